//! `draftfast export`: a sidecar in, the same numbers in another layout out.

use anyhow::Result;

use crate::{
    checksum,
    cli::export::{ActivationName, Export, LayoutName},
    export::{self, Layout},
    nvfp4::marlin::Activation,
    output::{StagedDir, refuse_existing, refuse_inputs},
    report::{Progress, Terminal, Unit},
    sidecar::Sidecar,
};

/// # Errors
/// The sidecar cannot be read, or the output cannot be written; then nothing is left behind.
pub fn run(args: &Export, terminal: &Terminal) -> Result<()> {
    refuse_existing(&args.output, args.force)?;
    refuse_inputs(&args.output, [args.sidecar.as_path()])?;
    let sidecar = Sidecar::open(&args.sidecar)?;
    let layout = match args.layout {
        LayoutName::CompressedTensors => Layout::CompressedTensors,
        LayoutName::Gguf => Layout::Gguf,
        LayoutName::Marlin => Layout::Marlin(match args.activations {
            Some(ActivationName::Bf16) => Activation::Bf16,
            Some(ActivationName::Fp16) => Activation::Fp16,
            None => export::activation(&sidecar)?,
        }),
    };
    let staged = StagedDir::create(&args.output, args.force)?;
    let progress = terminal.progress("export", Some(export::n_bytes(&sidecar)), Unit::Bytes);
    let exported = export::export(&sidecar, layout, &staged, &progress)?;
    progress.finish();
    checksum::add_list(&staged, &Progress::silent())?;
    staged.commit()?;
    if exported.n_flushed_blocks > 0 {
        terminal.warn(format!(
            "{} blocks have scales that {} cannot say and became zero: quantize without ModelOpt's bit-exact mode",
            exported.n_flushed_blocks,
            layout.name()
        ));
    }
    terminal.say(format!(
        "{}: {} linears rewritten, {} tensors copied",
        layout.name(),
        exported.n_quantized,
        exported.n_kept
    ));
    if terminal.is_json() { terminal.json(&exported) } else { terminal.data(args.output.display().to_string()) }
}
