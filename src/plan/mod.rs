//! Before anyone serves it: how many rows, how many draft tokens, and what it will earn.
//!
//! ```text
//! acceptance, logs    rates by draft position, from vLLM's or SGLang's own records
//! coverage, measured  c(N), from counts (or, coverage_file, from a vocabulary's record)
//! hardware            bandwidths and the shares of them that kernels reach (bench_file: as measured)
//! model               a checkpoint's headers -> bytes of a draft step and of a target step
//! cost                bytes -> microseconds -> tokens a second
//! choose              the best (N, k), what each piece earns, what it hangs on
//! ```
//! All but `model`, `logs`, `measured` and the readers of files are numbers in, numbers out.

mod acceptance;
pub mod bench_file;
mod choose;
mod cost;
mod coverage;
pub mod coverage_file;
mod hardware;
pub mod logs;
pub mod measured;
pub mod model;

pub use acceptance::Acceptance;
pub use choose::{Cell, Line, Margin, PLAN_NAME, Plan, PlanRecord, Point, Question, Sensitivity, row_choices};
pub use cost::{Costs, Design, Drafter, Format, Load, RoutedExperts, Target};
pub use coverage::CoverageCurve;
pub use hardware::{Hardware, NAMES};
