//! `draftfast synth`: a checkpoint with random weights.

use anyhow::Result;
use serde_json::json;

use crate::{
    checkpoint::synth,
    cli::synth::Synth,
    output::StagedDir,
    report::{Terminal, Unit, table::human_bytes},
};

/// # Errors
/// There is no such family, or the output cannot be written.
pub fn run(args: &Synth, terminal: &Terminal) -> Result<()> {
    let scale = args.scale.into();
    let n_bytes = synth::n_bytes(&args.family, scale)?;
    let out = StagedDir::create(&args.output, args.force)?;
    let progress = terminal.progress("synthesizing", Some(n_bytes), Unit::Bytes);
    synth::write(&args.family, scale, args.seed, &out, &progress)?;
    progress.finish();
    out.commit()?;
    terminal.say(format!("`{}`: {} with random weights, {}", args.output.display(), args.family, human_bytes(n_bytes)));
    if terminal.is_json() {
        return terminal.json(&json!({
            "output": args.output.to_string_lossy(), "family": args.family, "seed": args.seed, "n_bytes": n_bytes,
        }));
    }
    terminal.data(args.output.display().to_string())
}
