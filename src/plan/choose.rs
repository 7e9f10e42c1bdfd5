//! The choice: speeds of every (N, k, formats), and the best of them.

use serde::{Deserialize, Serialize};

use super::{
    acceptance::Acceptance,
    answer::{Cell, Line, Plan, Point},
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
            assumptions.push(format!(
                "coverage is {}: give text of your own with `--heldout`, and `--counts` or `--corpus` to rank ids by",
                self.coverage.origin
            ));
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
    pub(super) fn target_rows(&self) -> usize {
        self.costs.drafter.target_rows
    }

    /// One point.
    pub fn point(&self, design: Design, n_drafted: usize) -> Point {
        self.point_covering(design, n_drafted, self.coverage.at(design.n_rows, self.target_rows()))
    }

    pub(super) fn point_covering(&self, design: Design, n_drafted: usize, coverage: f64) -> Point {
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

    /// The best k of a design; the smaller of equals. `None` when there is no k to choose from.
    pub fn best_drafted(&self, design: Design) -> Option<Point> {
        fastest(self.drafted.iter().map(|&n_drafted| self.point(design, n_drafted)))
    }

    /// The best (N, k) of two formats, V among the sizes; the fewer rows of equals.
    pub(super) fn best_sized(&self, head: Format, linears: Format) -> Option<Point> {
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
}

/// The fastest point, the first of equals.
fn fastest(points: impl Iterator<Item = Point>) -> Option<Point> {
    points.reduce(|best, point| if point.tokens_per_second > best.tokens_per_second { point } else { best })
}

#[cfg(test)]
pub(super) mod tests {
    use super::{super::cost::tests::costs_27b, *};
    use crate::plan::Hardware;

    /// The seed's 27B on GB10 with what is assumed when nothing is given.
    pub fn question() -> Question {
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
