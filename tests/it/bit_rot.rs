//! A thousand bits of a sidecar, flipped one at a time: checksums see each, `verify` sees each that changes a value, and
//! nothing that reads a damaged sidecar panics.

use std::{
    fs,
    path::{Path, PathBuf},
};

use draftfast::{
    checkpoint::{Checkpoint, Overrides},
    checksum::{self, LIST_NAME, Outcome},
    gpu::Device,
    inspect::{InspectConfig, inspect},
    nvfp4,
    quantize::Sources,
    report::Progress,
    sidecar::{Sidecar, verify},
};
use rayon::prelude::*;

use crate::{draftfast, stderr};

const N_FLIPS: u64 = 1000;

/// SplitMix64: the same bits every time.
fn random(seed: u64) -> u64 {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// The values that a sidecar stands for, as bits: decoded weights, scalars, kept tensors, ids. `None` when it has none.
fn values(dir: &Path) -> Option<Vec<(String, Vec<u32>)>> {
    let drafter = Checkpoint::open_file(&dir.join("drafter.safetensors")).ok()?;
    let mut values = Vec::new();
    for (name, entry) in drafter.entries() {
        let data = drafter.tensor(name).ok()?.data;
        let part = |last: &str| drafter.tensor(&format!("{name}{last}")).ok().map(|tensor| tensor.data);
        if let (Some(scales), Some(global)) = (part("_scale"), part("_scale_2")) {
            let k = 2 * entry.shape.get(1)?;
            let mut decoded = vec![0.0; data.len() * 2];
            nvfp4::decode_rows(data, scales, k, f32::from_le_bytes(global.try_into().ok()?), &mut decoded);
            // 0 and -0 are one value.
            values.push((name.clone(), decoded.into_iter().map(|x| if x == 0.0 { 0 } else { x.to_bits() }).collect()));
        } else if !name.ends_with("_scale") && !name.ends_with("_scale_2") {
            values.push((name.clone(), data.iter().map(|byte| u32::from(*byte)).collect()));
        }
    }
    Some(values)
}

fn looking() -> InspectConfig {
    InspectConfig { n_rows: 64, target_rows: None, overrides: Overrides::default() }
}

/// Flips a bit of a copy, looks at it with everything that reads sidecars, and flips it back. Returns whether a value
/// changed.
fn flip(dir: &Path, file: &Path, bit: u64, target: &Checkpoint, before: &[(String, Vec<u32>)]) -> bool {
    let sound = fs::read(file).unwrap();
    let mut damaged = sound.clone();
    damaged[bit as usize / 8] ^= 1 << (bit % 8);
    fs::write(file, &damaged).unwrap();
    let at = format!("bit {bit} of {}", file.file_name().unwrap().display());

    let list = checksum::read_list(&dir.join(LIST_NAME));
    let caught = list.and_then(|list| checksum::check(&list, &Progress::silent()));
    let caught = caught.map_or(true, |outcomes| outcomes.iter().any(|outcome| *outcome != Outcome::Ok));
    let of_list = file.ends_with(LIST_NAME);
    // In the list itself a digit may turn into the same digit in upper case.
    let is_case = of_list && sound[bit as usize / 8].is_ascii_alphabetic() && bit % 8 == 5;
    assert!(caught || is_case, "{at} is not caught by its checksum");

    let is_changed = !of_list && values(dir).is_none_or(|values| values != before);
    let found = Sidecar::open(dir).and_then(|sidecar| {
        let sources = Sources { target, mtp_from: None };
        verify(&sidecar, sources, &Device::Cpu, &Progress::silent())
    });
    let is_refused = found.map_or(true, |found| !found.problems.is_empty());
    assert!(!is_changed || is_refused, "{at} changes a value and passes verification");
    let _ = inspect(dir, None, &looking());
    fs::write(file, sound).unwrap();
    is_changed
}

#[test]
fn a_thousand_flipped_bits_are_caught() {
    let dir = crate::memory_dir();
    let at = |name: &str| dir.path().join(name);
    let text = |name: &str| at(name).to_str().unwrap().to_owned();
    fs::write(at("a.txt"), "A few words to count, and 12 more: één, 二, три.\n".repeat(50)).unwrap();
    for args in [
        vec!["synth", "qwen3.5-dense", "--scale", "tiny", "-o", &text("model")],
        vec!["count", &text("model"), "--corpus", &text("a.txt"), "-o", &text("c")],
        vec!["build", &text("model"), "--counts", &text("c"), "--size", "300", "-o", &text("out")],
    ] {
        let output = draftfast(&args);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    let target = Checkpoint::open(&at("model")).unwrap();
    let before = values(&at("out")).unwrap();
    let paths = files(&at("out"));
    // Every other flip is spread over the bytes, so that it is mostly of weights; the rest over the files.
    let n_bits = |path: &Path| fs::metadata(path).unwrap().len() * 8;
    let total: u64 = paths.iter().map(|path| n_bits(path)).sum();
    let place = |flip: u64| -> (usize, u64) {
        let mut bit = random(2 * flip) % total;
        if !flip.is_multiple_of(2) {
            let file = (flip / 2) as usize % paths.len();
            return (file, random(2 * flip + 1) % n_bits(&paths[file]));
        }
        let mut file = 0;
        while bit >= n_bits(&paths[file]) {
            bit -= n_bits(&paths[file]);
            file += 1;
        }
        (file, bit)
    };
    const N_COPIES: u64 = 8;
    let n_changed: usize = (0..N_COPIES)
        .into_par_iter()
        .map(|part| {
            let copy = at(&format!("copy-{part}"));
            fs::create_dir(&copy).unwrap();
            for path in &paths {
                fs::copy(path, copy.join(path.file_name().unwrap())).unwrap();
            }
            let flips = (part * N_FLIPS / N_COPIES..(part + 1) * N_FLIPS / N_COPIES).map(place);
            let changed = flips.filter(|(file, bit)| {
                flip(&copy, &copy.join(paths[*file].file_name().unwrap()), *bit, &target, &before)
            });
            changed.count()
        })
        .sum();
    println!("of {N_FLIPS} bits, {n_changed} changed a value");
    assert!(n_changed > N_FLIPS as usize / 4);
}
