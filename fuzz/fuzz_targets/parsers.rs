//! The entry of libFuzzer: `DRAFTFAST_FUZZ=TARGET parsers ...`, or `DRAFTFAST_FUZZ_SEEDS=DIR parsers` to write the seeds.

#![no_main]

use std::{panic, path::Path, process, sync::LazyLock};

use draftfast_fuzz::{TARGETS, Target, seeds};
use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let wanted = std::env::var("DRAFTFAST_FUZZ").unwrap_or_default();
    let names: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
    let found = TARGETS.iter().find(|(name, _)| *name == wanted);
    found.unwrap_or_else(|| panic!("DRAFTFAST_FUZZ is `{wanted}`, expected one of {}", names.join(", "))).1
});

/// A panic of ours is a finding at once, wherever it might be caught. One of a library is a finding when nobody catches
/// it: `draftfast::error::contained` turns those into errors.
fn abort_on_our_panics() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let is_ours = info.location().is_none_or(|location| !location.file().contains("/registry/"));
        if is_ours {
            before(info);
            process::abort();
        }
    }));
}

fuzz_target!(
    init: {
        if let Some(dir) = std::env::var_os("DRAFTFAST_FUZZ_SEEDS") {
            seeds::write(Path::new(&dir));
            process::exit(0);
        }
        // What a target builds once does not count as time of its first input.
        TARGET(&[0, 0, 0]);
        abort_on_our_panics();
    },
    |data: &[u8]| TARGET(data)
);
