//! What `draftfast --version` says: the version, the kernels inside, and every format that is read or written.

use std::sync::LazyLock;

use crate::{checkpoint, counts, gpu, sidecar, vocab::forms::Form};

/// The lines after the program's name; the same for every run of one binary.
pub static LONG: LazyLock<String> = LazyLock::new(|| {
    let forms: Vec<&str> = Form::ALL.iter().map(|form| form.file_name()).collect();
    [
        env!("CARGO_PKG_VERSION").to_owned(),
        format!(
            "kernels       sha256 {} (PTX for compute capability 8.0 and 9.0, driver 570 or later)",
            gpu::kernels_sha256()
        ),
        format!("sidecar       format {}", sidecar::FORMAT_VERSION),
        format!("counts        {}", counts::FORMAT),
        format!("vocabularies  {}", forms.join(", ")),
        "export        compressed-tensors, marlin".to_owned(),
        format!("families      {}", checkpoint::synth::families().collect::<Vec<_>>().join(", ")),
    ]
    .join("\n")
});

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;
    use crate::cli::export::LayoutName;

    #[test]
    fn every_export_layout_is_named() {
        for layout in LayoutName::value_variants() {
            let name = layout.to_possible_value().unwrap();
            assert!(LONG.contains(name.get_name()), "{}", name.get_name());
        }
    }
}
