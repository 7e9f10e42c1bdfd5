//! The answers of a plan, as figures: what `--json` prints and `plan.json` holds.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::{Acceptance, choose::Question, cost::Design};

/// One design with one k.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The design.
    pub design: Design,
    /// Draft tokens a step, k.
    pub n_drafted: usize,
    /// Share of tokens that the head can propose.
    pub coverage: f64,
    /// Tokens a step and request.
    pub tau: f64,
    /// Microseconds of one draft step.
    pub draft_us: f64,
    /// Bytes of one draft step.
    pub draft_bytes: f64,
    /// Microseconds of the whole step.
    pub step_us: f64,
    /// Tokens a second of the whole batch.
    pub tokens_per_second: f64,
}

/// What one piece earns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Margin {
    /// The piece.
    pub piece: String,
    /// Tokens a second when native MTP gets it alone.
    pub alone: f64,
    /// Tokens a second when the best design loses it.
    pub without: f64,
}

/// The best point if something were otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sensitivity {
    /// What would be otherwise.
    pub change: String,
    /// Tokens a second of the planned (N, k).
    pub planned: f64,
    /// The point that would be best.
    pub best: Point,
    /// Tokens a second of native MTP at its best k.
    pub native: f64,
}

/// Longest draft that is considered.
pub const MOST_DRAFTED: usize = 32;

/// The plan that a sidecar was built by, when a machine was given.
pub const PLAN_NAME: &str = "plan.json";

/// A question with its answers: what [`PLAN_NAME`] holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PlanRecord {
    /// What was asked.
    pub question: Question,
    /// The answers.
    pub plan: Plan,
    /// What was assumed.
    pub assumptions: Vec<String>,
}

impl PlanRecord {
    /// Answers; `None` when there is no k to choose from.
    pub fn new(question: Question) -> Option<Self> {
        let plan = question.answer()?;
        let mut assumptions = question.assumptions();
        let most = question.drafted.iter().copied().max().unwrap_or(0);
        if question.drafted.len() > 1 && plan.best.n_drafted == most {
            assumptions
                .push(format!("k = {most} is the best and the largest considered: a larger `--k` may be better"));
        }
        Some(Self { plan, assumptions, question })
    }

    /// Reads what [`PLAN_NAME`] holds. A sidecar may come from anywhere, and its question is answered again.
    ///
    /// # Errors
    /// It is no plan, or its question is none that this program asks.
    pub fn from_json(bytes: &[u8]) -> Result<Self> {
        let say = || format!("`{PLAN_NAME}`");
        let record: Self = serde_json::from_slice(bytes).context("not a plan").with_context(say)?;
        let Question { acceptance, drafted, .. } = &record.question;
        Acceptance::new(acceptance.rates().to_vec(), "").with_context(say)?;
        if let Some(k) = drafted.iter().find(|k| !(1..=MOST_DRAFTED).contains(*k)) {
            bail!("{}: it considers k = {k}, expected 1 to {MOST_DRAFTED}", say());
        }
        Ok(record)
    }

    /// The best k for a head of `n_rows` rows in the formats of the best point: what was built may have other rows.
    pub fn at_rows(&self, n_rows: usize) -> Point {
        let design = Design { n_rows, ..self.plan.best.design };
        self.question.best_drafted(design).unwrap_or(self.plan.best)
    }
}

/// Answers to a [`Question`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    /// Tokens a second without speculation.
    pub no_mtp: f64,
    /// Native MTP, full BF16 head, at its best k.
    pub native: Point,
    /// A full NVFP4 head over the native linears at its best k: what vLLM 0.33 does by itself.
    pub full_nvfp4_head: Point,
    /// The best with an NVFP4 head and NVFP4 linears.
    pub best: Point,
    /// The best (N, k) of each pair of formats.
    pub formats: Vec<Point>,
    /// Tokens a second over N, a line a k, with the formats of `best`.
    pub surface: Vec<Line>,
    /// Tokens a second of each pair of formats, each k and a few sizes.
    pub grid: Vec<Cell>,
    /// What each piece earns.
    pub margins: Vec<Margin>,
    /// How much the answer moves.
    pub sensitivities: Vec<Sensitivity>,
    /// Coverage at the best N below which truncation loses to the full NVFP4 head with the same linears.
    pub break_even_coverage: f64,
}

/// The speed of one design with one k.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The design.
    #[serde(flatten)]
    pub design: Design,
    /// k.
    pub n_drafted: usize,
    /// Tokens a second.
    pub tokens_per_second: f64,
    /// Over decoding without speculation.
    pub over_no_mtp: f64,
    /// Over native MTP at its best k.
    pub over_native: f64,
}

/// Speeds of one k.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// k.
    pub n_drafted: usize,
    /// (N, tokens a second).
    pub points: Vec<(usize, f64)>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::choose::tests::question, *};

    #[test]
    fn a_plan_from_a_file_is_one_that_could_have_been_asked() {
        let record = serde_json::to_value(PlanRecord::new(question()).unwrap()).unwrap();
        let read = |key: &str, value: serde_json::Value| {
            let mut record = record.clone();
            *record.pointer_mut(key).unwrap() = value;
            PlanRecord::from_json(&serde_json::to_vec(&record).unwrap()).map_err(|error| format!("{error:#}"))
        };
        assert_eq!(read("/plan/no_mtp", json!(1.0)).unwrap().plan.no_mtp, 1.0);
        assert!(read("/question/drafted", json!([3, u64::MAX])).unwrap_err().contains("expected 1 to 32"));
        assert!(read("/question/drafted", json!([0])).unwrap_err().contains("k = 0"));
        assert!(read("/question/acceptance/rates", json!([])).unwrap_err().contains("no acceptance rate"));
        assert!(read("/question/acceptance/rates", json!([2.0])).unwrap_err().contains("expected 0 to 1"));
        assert!(read("/plan", json!({})).unwrap_err().contains("not a plan"));
    }
}
