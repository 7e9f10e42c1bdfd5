//! The choice: speeds of every (N, k, formats), the best, and what it hangs on.

use serde::{Deserialize, Serialize};

use super::{
    acceptance::{Acceptance, bisect},
    cost::{Costs, Design, Format},
    coverage::CoverageCurve,
};

/// Everything a plan is computed from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Question {
    /// Machine, model and traffic.
    pub costs: Costs,
    /// Acceptance of the full head by position.
    pub acceptance: Acceptance,
    /// Coverage over N.
    pub coverage: CoverageCurve,
    /// The numbers of draft tokens to consider.
    pub drafted: Vec<usize>,
    /// The sizes of the draft head to consider, ascending; V is considered too.
    pub rows: Vec<usize>,
    /// What a person should know about how this was asked.
    pub notes: Vec<String>,
}

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
        Some(Self { plan: question.answer()?, assumptions: question.assumptions(), question })
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

/// The sizes that a plan considers for a head of `target_rows` rows: multiples of `step`, from a sixtieth of V.
pub fn row_choices(target_rows: usize, step: usize) -> Vec<usize> {
    let step = step.max(1);
    let first = (target_rows / 60).next_multiple_of(step).max(step);
    (first..target_rows).step_by(step).collect()
}

impl Question {
    /// Notes, and what was assumed for want of a measurement, a sentence each.
    pub fn assumptions(&self) -> Vec<String> {
        let mut assumptions = self.notes.clone();
        if self.acceptance.is_assumed {
            assumptions.push(format!(
                "acceptance is {}: give `--vllm-metrics`, `--sglang-log` or `--acceptance`",
                self.acceptance.origin
            ));
        }
        let n_known = self.acceptance.rates().len();
        if n_known > 1 && self.drafted.iter().any(|&k| k > n_known) {
            assumptions.push(format!("acceptance past position {n_known} is ASSUMED to stay what it is there"));
        }
        if self.coverage.is_assumed {
            assumptions.push(format!("coverage is {}: give `--coverage`", self.coverage.origin));
        }
        if self.costs.target.measured_step_us.is_none() {
            assumptions.push(
                "the target's step is predicted from its bytes: `--baseline TOK/S` replaces it by a measurement"
                    .to_owned(),
            );
        }
        assumptions
    }

    /// V.
    fn target_rows(&self) -> usize {
        self.costs.drafter.target_rows
    }

    /// One point.
    pub fn point(&self, design: Design, n_drafted: usize) -> Point {
        self.point_covering(design, n_drafted, self.coverage.at(design.n_rows, self.target_rows()))
    }

    fn point_covering(&self, design: Design, n_drafted: usize, coverage: f64) -> Point {
        let tau = self.acceptance.tau(n_drafted, coverage);
        let draft_us = self.costs.draft_us(&design);
        Point {
            design,
            n_drafted,
            coverage,
            tau,
            draft_us,
            draft_bytes: self.costs.draft_bytes(&design),
            step_us: self.costs.verify_us(n_drafted) + n_drafted as f64 * draft_us,
            tokens_per_second: self.costs.tokens_per_second(n_drafted, tau, draft_us),
        }
    }

    /// The best k of a design; the smaller of equals.
    fn best_drafted(&self, design: Design) -> Option<Point> {
        fastest(self.drafted.iter().map(|&n_drafted| self.point(design, n_drafted)))
    }

    /// The best (N, k) of two formats, V among the sizes; the fewer rows of equals.
    fn best_sized(&self, head: Format, linears: Format) -> Option<Point> {
        let sizes = self.rows.iter().copied().chain([self.target_rows()]);
        fastest(sizes.filter_map(|n_rows| self.best_drafted(Design { n_rows, head, linears })))
    }

    /// The answers; `None` when there is no k to choose from.
    pub fn answer(&self) -> Option<Plan> {
        use Format::{Bf16, Fp8, Nvfp4};
        let full = |head, linears| self.best_drafted(Design { n_rows: self.target_rows(), head, linears });
        let best = self.best_sized(Nvfp4, Nvfp4)?;
        let native = full(Bf16, Bf16)?;
        let pairs = [Bf16, Fp8, Nvfp4].into_iter().flat_map(|head| [Bf16, Nvfp4].map(|linears| (head, linears)));
        let no_mtp = self.costs.tokens_per_second(0, 1.0, 0.0);
        Some(Plan {
            no_mtp,
            grid: pairs.clone().flat_map(|pair| self.cells(pair, no_mtp, native.tokens_per_second)).collect(),
            native,
            full_nvfp4_head: full(Nvfp4, Bf16)?,
            best,
            formats: pairs.filter_map(|(head, linears)| self.best_sized(head, linears)).collect(),
            surface: self.surface(best.design),
            margins: self.margins(&best),
            sensitivities: self.sensitivities(&best),
            break_even_coverage: self.break_even_coverage(&best, full(Nvfp4, Nvfp4)?.tokens_per_second),
        })
    }

    /// The sizes that tables show, in proportion for small vocabularies, and V.
    fn shown_rows(&self) -> Vec<usize> {
        const SHOWN: [usize; 8] = [8_192, 16_384, 32_768, 49_152, 65_536, 98_304, 131_072, 196_608];
        let target_rows = self.target_rows();
        let scaled = SHOWN.iter().map(|rows| rows * target_rows / 248_320 / 128 * 128).filter(|&rows| rows > 0);
        let exact = SHOWN.into_iter().filter(|&rows| rows < target_rows);
        let mut sizes: Vec<usize> = if target_rows > 100_000 { exact.collect() } else { scaled.collect() };
        sizes.push(target_rows);
        sizes.dedup();
        sizes
    }

    fn cells(&self, (head, linears): (Format, Format), no_mtp: f64, native: f64) -> Vec<Cell> {
        let designs = self.shown_rows().into_iter().map(|n_rows| Design { n_rows, head, linears });
        let cell = |design, n_drafted| {
            let tokens_per_second = self.point(design, n_drafted).tokens_per_second;
            let (over_no_mtp, over_native) = (tokens_per_second / no_mtp, tokens_per_second / native);
            Cell { design, n_drafted, tokens_per_second, over_no_mtp, over_native }
        };
        designs.flat_map(|design| self.drafted.iter().map(move |&k| cell(design, k))).collect()
    }

    fn surface(&self, design: Design) -> Vec<Line> {
        let sizes: Vec<usize> = self.rows.iter().copied().chain([self.target_rows()]).collect();
        let speed = |n_rows, n_drafted| self.point(Design { n_rows, ..design }, n_drafted).tokens_per_second;
        let line = |&n_drafted: &usize| Line {
            n_drafted,
            points: sizes.iter().map(|&n_rows| (n_rows, speed(n_rows, n_drafted))).collect(),
        };
        self.drafted.iter().map(line).collect()
    }

    /// Each piece alone on top of native MTP, and taken away from the best design; k is chosen anew each time.
    fn margins(&self, best: &Point) -> Vec<Margin> {
        let ours = best.design;
        let native = Design { n_rows: self.target_rows(), head: Format::Bf16, linears: Format::Bf16 };
        let speed = |design| self.best_drafted(design).map_or(0.0, |point| point.tokens_per_second);
        vec![
            Margin {
                piece: "truncated vocabulary".to_owned(),
                alone: speed(Design { n_rows: ours.n_rows, ..native }),
                without: speed(Design { n_rows: native.n_rows, ..ours }),
            },
            Margin {
                piece: "NVFP4 head".to_owned(),
                alone: speed(Design { head: ours.head, ..native }),
                without: speed(Design { head: native.head, ..ours }),
            },
            Margin {
                piece: "NVFP4 linears".to_owned(),
                alone: speed(Design { linears: ours.linears, ..native }),
                without: speed(Design { linears: native.linears, ..ours }),
            },
        ]
    }

    fn sensitivities(&self, best: &Point) -> Vec<Sensitivity> {
        let accepting = |delta| Self { acceptance: self.acceptance.shifted(delta), ..self.clone() };
        let covering = |delta| Self { coverage: self.coverage.shifted(delta), ..self.clone() };
        let cases = [
            ("acceptance - 0.05", accepting(-0.05)),
            ("acceptance + 0.05", accepting(0.05)),
            ("coverage - 1 point", covering(-0.01)),
            ("coverage + 1 point", covering(0.01)),
        ];
        let native = Design { n_rows: self.target_rows(), head: Format::Bf16, linears: Format::Bf16 };
        let sensitivity = |(change, question): (&'static str, Self)| {
            Some(Sensitivity {
                change: change.to_owned(),
                planned: question.point(best.design, best.n_drafted).tokens_per_second,
                best: question.best_sized(best.design.head, best.design.linears)?,
                native: question.best_drafted(native)?.tokens_per_second,
            })
        };
        cases.into_iter().filter_map(sensitivity).collect()
    }

    fn break_even_coverage(&self, best: &Point, full_speed: f64) -> f64 {
        let loses = |coverage| {
            self.drafted.iter().all(|&k| self.point_covering(best.design, k, coverage).tokens_per_second < full_speed)
        };
        bisect(0.0, 1.0, loses)
    }
}

/// The fastest point, the first of equals.
fn fastest(points: impl Iterator<Item = Point>) -> Option<Point> {
    points.reduce(|best, point| if point.tokens_per_second > best.tokens_per_second { point } else { best })
}

#[cfg(test)]
mod tests {
    use super::{super::cost::tests::costs_27b, *};
    use crate::plan::Hardware;

    fn question() -> Question {
        Question {
            costs: costs_27b(Hardware::named("gb10").unwrap(), 80_000.0),
            acceptance: Acceptance::assumed(),
            coverage: CoverageCurve::assumed(248_320),
            drafted: (1..=12).collect(),
            rows: row_choices(248_320, 1_024),
            notes: Vec::new(),
        }
    }

    #[test]
    fn the_best_is_the_best_of_all_points() {
        let question = question();
        let plan = question.answer().unwrap();
        let sizes = question.rows.iter().copied().chain([248_320]);
        let every = sizes.flat_map(|n_rows| {
            let design = Design { n_rows, head: Format::Nvfp4, linears: Format::Nvfp4 };
            (1..=12).map(move |k| (design, k))
        });
        let most = every.map(|(design, k)| question.point(design, k).tokens_per_second).fold(0.0, f64::max);
        assert_eq!(plan.best.tokens_per_second, most);
        assert!(plan.best.tokens_per_second > plan.full_nvfp4_head.tokens_per_second);
        assert!(plan.full_nvfp4_head.tokens_per_second > plan.native.tokens_per_second);
    }

    #[test]
    fn at_the_break_even_coverage_truncation_earns_nothing() {
        let question = question();
        let plan = question.answer().unwrap();
        let full = question.best_drafted(Design { n_rows: 248_320, ..plan.best.design }).unwrap();
        let fastest_at = |coverage| {
            (1..=12)
                .map(|k| question.point_covering(plan.best.design, k, coverage).tokens_per_second)
                .fold(0.0, f64::max)
        };
        assert!((fastest_at(plan.break_even_coverage) / full.tokens_per_second - 1.0).abs() < 1e-9);
        assert!(plan.break_even_coverage < plan.best.coverage);
    }

    #[test]
    fn pieces_are_taken_from_both_ends() {
        let plan = question().answer().unwrap();
        for margin in &plan.margins {
            assert!(margin.alone >= plan.native.tokens_per_second, "{}", margin.piece);
            assert!(margin.without <= plan.best.tokens_per_second, "{}", margin.piece);
        }
    }

    #[test]
    fn a_cheaper_head_wants_more_rows() {
        // The finding of VOCAB.md section 0: with an NVFP4 head the best N moves up.
        let plan = question().answer().unwrap();
        let rows = |head| {
            let found = plan.formats.iter().find(|p| (p.design.head, p.design.linears) == (head, Format::Nvfp4));
            found.unwrap().design.n_rows
        };
        assert!(rows(Format::Bf16) < rows(Format::Fp8) && rows(Format::Fp8) < rows(Format::Nvfp4));
    }

    #[test]
    fn without_a_k_there_is_no_plan() {
        assert!(Question { drafted: Vec::new(), ..question() }.answer().is_none());
    }

    #[test]
    fn row_choices_are_whole_tiles_below_v() {
        let rows = row_choices(248_320, 128);
        assert!(rows.iter().all(|n| n % 128 == 0 && *n < 248_320));
        assert!(row_choices(100, 128).is_empty());
    }
}
