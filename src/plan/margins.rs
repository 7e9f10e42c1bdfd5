//! What a plan hangs on: what each piece earns, how far the answer moves, and the coverage below which truncation
//! loses.

use super::{
    acceptance::bisect,
    answer::{Margin, Point, Sensitivity},
    choose::Question,
    cost::{Design, Format},
};

impl Question {
    /// Each piece alone on top of native MTP, and taken away from the best design; k is chosen anew each time.
    pub(super) fn margins(&self, best: &Point) -> Vec<Margin> {
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

    /// The planned and the best point if acceptance or coverage were otherwise.
    pub(super) fn sensitivities(&self, best: &Point) -> Vec<Sensitivity> {
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

    /// Coverage at the best N below which every k is slower than `full_speed`, that of all rows.
    pub(super) fn break_even_coverage(&self, best: &Point, full_speed: f64) -> f64 {
        let loses = |coverage| {
            self.drafted.iter().all(|&k| self.point_covering(best.design, k, coverage).tokens_per_second < full_speed)
        };
        bisect(0.0, 1.0, loses)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::choose::tests::question, *};

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
}
