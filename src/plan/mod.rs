//! Before anyone serves it: how many rows, how many draft tokens, and what it will earn.
//!
//! ```text
//! acceptance, logs    rates by draft position, from vLLM's or SGLang's own records
//! coverage            c(N) from counts
//! hardware            bandwidths and the shares of them that kernels reach
//! model               a checkpoint's headers -> bytes of a draft step and of a target step
//! cost                bytes -> microseconds -> tokens a second
//! choose              the best (N, k), what each piece earns, what it hangs on
//! ```
//! All but `model` and `logs` are numbers in, numbers out.

mod acceptance;
mod choose;
mod cost;
mod coverage;
mod hardware;
pub mod logs;
pub mod model;

pub use acceptance::Acceptance;
pub use choose::{Cell, Line, Margin, Plan, Point, Question, Sensitivity, row_choices};
pub use cost::{Costs, Design, Drafter, Format, Load, RoutedExperts, Target};
pub use coverage::CoverageCurve;
pub use hardware::{Hardware, NAMES};
