//! A plan in words and tables.

use std::fmt::Write as _;

use super::numbers::{bytes, grouped};
use crate::plan::{Cell, Plan, Point, Question};

/// What the plan rests on, the answer, and what moves it.
pub fn text(question: &Question, plan: &Plan) -> String {
    let mut text = inputs(question);
    answer(&mut text, plan);
    formats(&mut text, plan);
    margins(&mut text, plan);
    sensitivities(&mut text, plan);
    surface(&mut text, plan);
    text.trim_end().to_owned()
}

fn inputs(question: &Question) -> String {
    let costs = &question.costs;
    let hardware = &costs.hardware;
    let step = if costs.target.measured_step_us.is_some() { "measured" } else { "predicted" };
    let rates: Vec<String> = question.acceptance.rates().iter().map(|rate| format!("{rate:.3}")).collect();
    format!(
        "machine      {}, {} GB/s: {}\n\
         target step  {:.2} ms at batch {}, {step}\n\
         acceptance   {}\n             by position: {}\n\
         coverage     {}\n\n",
        hardware.name,
        hardware.bandwidth_gb_s,
        hardware.source,
        costs.verify_us(0) / 1e3,
        costs.load.batch,
        question.acceptance.origin,
        rates.join(" "),
        question.coverage.origin,
    )
}

fn answer(text: &mut String, plan: &Plan) {
    let best = &plan.best;
    let mut line = |what: &str, speed: f64, rest: String| {
        let _ = writeln!(text, "{what:34} {speed:>9.1} tok/s  {rest}");
    };
    line("without speculation", plan.no_mtp, String::new());
    let over = |point: &Point| format!("k = {:<2}  {:.2}x", point.n_drafted, point.tokens_per_second / plan.no_mtp);
    line("native MTP, full bf16 head", plan.native.tokens_per_second, over(&plan.native));
    line("full nvfp4 head (vLLM 0.33)", plan.full_nvfp4_head.tokens_per_second, over(&plan.full_nvfp4_head));
    let gain = best.tokens_per_second / plan.native.tokens_per_second;
    line(
        &format!("best: {} rows", grouped(best.design.n_rows as u64)),
        best.tokens_per_second,
        format!("{}, {gain:.2}x native MTP", over(best)),
    );
    text.push('\n');
}

fn formats(text: &mut String, plan: &Plan) {
    text.push_str("head   linears     rows   k  coverage   tau  bytes a draft  draft step    tok/s  over native\n");
    for point in &plan.formats {
        let _ = writeln!(
            text,
            "{:6} {:7} {:>8}  {:>2}  {:>7.2}%  {:>4.2}  {:>13}  {:>7.3} ms  {:>7.1}  {:>10.2}x",
            point.design.head.name(),
            point.design.linears.name(),
            grouped(point.design.n_rows as u64),
            point.n_drafted,
            100.0 * point.coverage,
            point.tau,
            bytes(point.draft_bytes as u64),
            point.draft_us / 1e3,
            point.tokens_per_second,
            point.tokens_per_second / plan.native.tokens_per_second,
        );
    }
    text.push('\n');
}

fn margins(text: &mut String, plan: &Plan) {
    let (native, best) = (plan.native.tokens_per_second, plan.best.tokens_per_second);
    let _ = writeln!(text, "what each piece earns   alone over native MTP   the best design without it");
    for margin in &plan.margins {
        let _ = writeln!(
            text,
            "{:22}  {:>7.1} tok/s {:>+6.1} %  {:>10.1} tok/s {:>+6.1} %",
            margin.piece,
            margin.alone,
            100.0 * (margin.alone / native - 1.0),
            margin.without,
            100.0 * (margin.without / best - 1.0),
        );
    }
    text.push('\n');
}

fn sensitivities(text: &mut String, plan: &Plan) {
    text.push_str("if it were otherwise    this plan            best then                    over native\n");
    for case in &plan.sensitivities {
        let _ = writeln!(
            text,
            "{:22} {:>8.1} tok/s  {:>8.1} tok/s ({} rows, k = {})  {:>6.2}x",
            case.change,
            case.planned,
            case.best.tokens_per_second,
            grouped(case.best.design.n_rows as u64),
            case.best.n_drafted,
            case.best.tokens_per_second / case.native,
        );
    }
    let _ = writeln!(
        text,
        "\nbreak-even: below {:.2} % coverage these rows lose to a full nvfp4 head with the same linears\n\
         temperature: sampling lowers acceptance; take it from traffic at the temperature that you serve\n",
        100.0 * plan.break_even_coverage
    );
}

/// Tokens a second over N and k, for the formats of the best.
fn surface(text: &mut String, plan: &Plan) {
    let best = plan.best.design;
    let ours = |cell: &&Cell| (cell.design.head, cell.design.linears) == (best.head, best.linears);
    let cells: Vec<&Cell> = plan.grid.iter().filter(ours).collect();
    let mut rows = 0;
    let _ = write!(text, "tok/s, {} head   ", best.head.name());
    let first = cells.first().map_or(0, |cell| cell.design.n_rows);
    for cell in cells.iter().filter(|cell| cell.design.n_rows == first) {
        let _ = write!(text, "{:>8}", format!("k = {}", cell.n_drafted));
    }
    for cell in cells {
        if cell.design.n_rows != rows {
            rows = cell.design.n_rows;
            let _ = write!(text, "\n{:>12} rows  ", grouped(rows as u64));
        }
        let _ = write!(text, "{:>8.1}", cell.tokens_per_second);
    }
    text.push('\n');
}
