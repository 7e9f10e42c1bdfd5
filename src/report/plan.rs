//! A plan in words and tables.

use super::table::{
    Align::{Left, Right},
    grouped, human_bytes, table,
};
use crate::plan::{Cell, Plan, PlanRecord, Point, Question};

/// What the plan rests on, the answer, and what moves it.
pub fn lines(question: &Question, plan: &Plan) -> Vec<String> {
    let parts = [inputs(question), answer(plan), formats(plan), margins(plan), sensitivities(plan), surface(plan)];
    let mut lines = parts.join(&String::new());
    lines.push(String::new());
    lines.push(format!(
        "break-even: below {:.2} % coverage these rows lose to a full nvfp4 head with the same linears",
        100.0 * plan.break_even_coverage
    ));
    lines.push("temperature: sampling lowers acceptance; take it from traffic at the temperature you serve".to_owned());
    lines
}

/// The answer in one sentence.
pub fn sentence(record: &PlanRecord) -> String {
    let PlanRecord { question, plan, .. } = record;
    format!(
        "plan for {}: {} rows and k = {} give {:.1} tok/s, {:.2}x native MTP and {:.2}x no speculation (predicted)",
        question.costs.hardware.name,
        grouped(plan.best.design.n_rows as u64),
        plan.best.n_drafted,
        plan.best.tokens_per_second,
        plan.best.tokens_per_second / plan.native.tokens_per_second,
        plan.best.tokens_per_second / plan.no_mtp,
    )
}

fn inputs(question: &Question) -> Vec<String> {
    let costs = &question.costs;
    let hardware = &costs.hardware;
    let step = if costs.target.measured_step_us.is_some() { "measured" } else { "predicted" };
    let rates: Vec<String> = question.acceptance.rates().iter().map(|rate| format!("{rate:.3}")).collect();
    let (batch, context) = (costs.load.batch, grouped(costs.load.n_context_tokens as u64));
    vec![
        format!("machine      {}, {} GB/s ({})", hardware.name, hardware.bandwidth_gb_s, hardware.source),
        format!(
            "target step  {:.2} ms, {step}; {batch} at a time, {context} tokens of context",
            costs.verify_us(0) / 1e3
        ),
        format!("acceptance   {}", question.acceptance.origin),
        format!("             by position: {}", rates.join(" ")),
        format!("coverage     {}", question.coverage.origin),
    ]
}

fn answer(plan: &Plan) -> Vec<String> {
    let row = |what: String, point: &Point| {
        let speed = point.tokens_per_second;
        let over_native = format!("{:.2}x native MTP", speed / plan.native.tokens_per_second);
        let over = format!("{:.2}x", speed / plan.no_mtp);
        vec![what, format!("k = {}", point.n_drafted), format!("{speed:.1} tok/s"), over, over_native]
    };
    let none = ["without speculation".to_owned(), String::new(), format!("{:.1} tok/s", plan.no_mtp)];
    let rows = [
        none.to_vec(),
        row("native MTP, full bf16 head".to_owned(), &plan.native),
        row("full nvfp4 head, as vLLM 0.33".to_owned(), &plan.full_nvfp4_head),
        row(format!("best: {} nvfp4 rows", grouped(plan.best.design.n_rows as u64)), &plan.best),
    ];
    table(&[Left, Left, Right, Right, Right], &rows)
}

fn formats(plan: &Plan) -> Vec<String> {
    let heads = ["head", "linears", "rows", "k", "coverage", "tau", "a draft reads", "takes", "tok/s", "over native"];
    let row = |point: &Point| {
        vec![
            point.design.head.name().to_owned(),
            point.design.linears.name().to_owned(),
            grouped(point.design.n_rows as u64),
            point.n_drafted.to_string(),
            format!("{:.2} %", 100.0 * point.coverage),
            format!("{:.2}", point.tau),
            human_bytes(point.draft_bytes as u64),
            format!("{:.3} ms", point.draft_us / 1e3),
            format!("{:.1}", point.tokens_per_second),
            format!("{:.2}x", point.tokens_per_second / plan.native.tokens_per_second),
        ]
    };
    let rows: Vec<_> = [heads.map(str::to_owned).to_vec()].into_iter().chain(plan.formats.iter().map(row)).collect();
    table(&[Left, Left, Right, Right, Right, Right, Right, Right, Right, Right], &rows)
}

fn margins(plan: &Plan) -> Vec<String> {
    let percent = |speed: f64, of: f64| format!("{:+.1} %", 100.0 * (speed / of - 1.0));
    let mut rows = vec![
        ["what each piece earns", "alone", "over native", "without it", "of the best"].map(str::to_owned).to_vec(),
    ];
    rows.extend(plan.margins.iter().map(|margin| {
        vec![
            margin.piece.to_owned(),
            format!("{:.1} tok/s", margin.alone),
            percent(margin.alone, plan.native.tokens_per_second),
            format!("{:.1} tok/s", margin.without),
            percent(margin.without, plan.best.tokens_per_second),
        ]
    }));
    table(&[Left, Right, Right, Right, Right], &rows)
}

fn sensitivities(plan: &Plan) -> Vec<String> {
    let mut rows = vec![
        ["if it were otherwise", "this plan", "best then", "rows", "k", "over native"].map(str::to_owned).to_vec(),
    ];
    rows.extend(plan.sensitivities.iter().map(|case| {
        vec![
            case.change.to_owned(),
            format!("{:.1} tok/s", case.planned),
            format!("{:.1} tok/s", case.best.tokens_per_second),
            grouped(case.best.design.n_rows as u64),
            case.best.n_drafted.to_string(),
            format!("{:.2}x", case.best.tokens_per_second / case.native),
        ]
    }));
    table(&[Left, Right, Right, Right, Right, Right], &rows)
}

/// Tokens a second over N and k, for the formats of the best.
fn surface(plan: &Plan) -> Vec<String> {
    let best = plan.best.design;
    let ours = |cell: &&Cell| (cell.design.head, cell.design.linears) == (best.head, best.linears);
    let cells: Vec<&Cell> = plan.grid.iter().filter(ours).collect();
    let by_rows: Vec<&[&Cell]> = cells.chunk_by(|a, b| a.design.n_rows == b.design.n_rows).collect();
    let Some(first) = by_rows.first() else { return Vec::new() };
    let heads = first.iter().map(|cell| format!("k = {}", cell.n_drafted));
    let mut rows = vec![["tok/s at rows".to_owned()].into_iter().chain(heads).collect::<Vec<_>>()];
    rows.extend(by_rows.iter().map(|cells| {
        let speeds = cells.iter().map(|cell| format!("{:.1}", cell.tokens_per_second));
        [grouped(cells[0].design.n_rows as u64)].into_iter().chain(speeds).collect()
    }));
    table(&vec![Right; rows[0].len()], &rows)
}
