//! Before anyone serves it: how many rows, how many draft tokens, and what it will earn.
//!
//! ```text
//! acceptance, logs    rates by draft position, from vLLM's or SGLang's own records
//! coverage, measured  c(N), from counts (or, coverage_file, from a vocabulary's record)
//! hardware            bandwidths and the shares of them that kernels reach (bench_file: as measured)
//! model               a checkpoint's headers -> bytes of a draft step and of a target step
//! cost                bytes -> microseconds -> tokens a second
//! choose, answer      the best (N, k), and the figures that say so
//! margins             what each piece earns, and what the answer hangs on
//! ```
//! All but `model`, `logs`, `measured` and the readers of files are numbers in, numbers out.

mod acceptance;
mod answer;
pub mod bench_file;
mod choose;
mod cost;
mod coverage;
pub mod coverage_file;
mod hardware;
pub mod logs;
mod margins;
pub mod measured;
pub mod model;

pub use acceptance::Acceptance;
pub use answer::{Cell, Line, MOST_DRAFTED, Margin, PLAN_NAME, Plan, PlanRecord, Point, Sensitivity};
pub use choose::{Question, row_choices};
pub use cost::{Costs, Design, Drafter, Format, Load, RoutedExperts, Target};
pub use coverage::CoverageCurve;
pub use hardware::{Hardware, NAMES};
