//! What `draftfast --version` says: the version, the kernels inside, and every format that is read or written.

use std::sync::LazyLock;

use clap::ValueEnum;

use super::export::LayoutName;
use crate::{checkpoint::synth, counts, gpu, sidecar, vocab::forms::Form};

/// What clap is to print for `--version`; it wants to know before it has read the command line, and the kernels' digest takes
/// milliseconds of every command.
pub fn long() -> &'static str {
    let is_wanted = |argument: std::ffi::OsString| argument == "--version" || argument == "man";
    if std::env::args_os().any(is_wanted) { &LONG } else { env!("CARGO_PKG_VERSION") }
}

/// The lines after the program's name; the same for every run of one binary.
static LONG: LazyLock<String> = LazyLock::new(|| {
    let forms: Vec<&str> = Form::ALL.iter().map(|form| form.file_name()).collect();
    let layouts: Vec<_> = LayoutName::value_variants().iter().filter_map(LayoutName::to_possible_value).collect();
    [
        env!("CARGO_PKG_VERSION").to_owned(),
        format!(
            "kernels       sha256 {} (PTX for compute capability 8.0 and 9.0, driver 570 or later)",
            gpu::kernels_sha256()
        ),
        format!("sidecar       format {}", sidecar::FORMAT_VERSION),
        format!("counts        {}", counts::FORMAT),
        format!("vocabularies  {}", forms.join(", ")),
        format!("export        {}", layouts.iter().map(|layout| layout.get_name()).collect::<Vec<_>>().join(", ")),
        format!("families      {}", synth::families().collect::<Vec<_>>().join(", ")),
    ]
    .join("\n")
});
