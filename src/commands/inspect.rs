//! `draftfast inspect`: what is at a path, and what it costs.

use anyhow::Result;

use crate::{
    checkpoint::Overrides,
    cli::inspect::{Inspect, RecipeFlags},
    inspect::{InspectConfig, inspect},
    report::{Terminal, inspection},
};

/// # Errors
/// The path is nothing that draftfast knows, or is damaged.
pub fn run(args: &Inspect, terminal: &Terminal) -> Result<()> {
    let config = InspectConfig { n_rows: args.rows, target_rows: args.target_rows, overrides: overrides(&args.recipe) };
    let inspection = inspect(&args.path, args.recipe.mtp_from.as_deref(), &config)?;
    if terminal.is_json() {
        return terminal.json(&inspection);
    }
    terminal.data(inspection::lines(&inspection).join("\n"))
}

/// The corrections that were given.
pub fn overrides(flags: &RecipeFlags) -> Overrides {
    Overrides { quantize: flags.quantize.clone(), keep: flags.keep.clone() }
}
