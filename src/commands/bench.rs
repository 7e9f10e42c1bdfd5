//! `draftfast bench`: a draft step's products on the GPU.

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::{
    bench::{self, BenchConfig, BenchReport, Shape},
    checkpoint::{Checkpoint, Overrides, ledger::DEFAULT_ROWS, recipe},
    cli::bench::{Bench, Export},
    gpu::{Device, DeviceRequest},
    output::write_file,
    report::{Terminal, Unit, bench as tables},
    sidecar::Sidecar,
};

const N_WARMUPS: usize = 5;

/// # Errors
/// There is no GPU, or what to time cannot be read.
pub fn run(args: &Bench, terminal: &Terminal) -> Result<()> {
    let cases = bench::cases(&shapes(args)?)?;
    let export = match &args.export[..] {
        [form, path] => Some((form_of(form)?, path)),
        _ => None,
    };
    if args.dry_run {
        return match terminal.is_json() {
            true => terminal.json(&cases),
            false => terminal.data(tables::plan_lines(&cases).join("\n")),
        };
    }
    let request = match args.device {
        DeviceRequest::Auto => DeviceRequest::Cuda(0),
        request => request,
    };
    let (Device::Cuda(gpu), why) = request.open()? else {
        bail!("`bench` times a GPU: `--device cpu` has none to time");
    };
    terminal.say(why);
    let config = BenchConfig { n_warmups: N_WARMUPS, n_replays: args.replays.max(3) };
    let progress = terminal.progress("timing", Some((cases.len() * args.m.len()) as u64), Unit::Items);
    let report = bench::run(&gpu, &cases, &args.m, config, &progress)?;
    progress.finish();
    report.warnings.iter().for_each(|warning| terminal.warn(warning));
    if let Some((form, path)) = export {
        write_file(path.as_ref(), exported(&report, form)?.as_bytes(), args.force)?;
    }
    match terminal.is_json() {
        true => terminal.json(&report),
        false => terminal.data(tables::lines(&report).join("\n")),
    }
}

fn form_of(text: &str) -> Result<Export> {
    match Export::from_str(text, true) {
        Ok(form) => Ok(form),
        Err(_) => bail!("`--export {text}`: expected `md`, `csv` or `json`, then a file"),
    }
}

fn shapes(args: &Bench) -> Result<Vec<Shape>> {
    if let Some(model) = &args.model {
        let recipe = recipe(&Checkpoint::open(model)?, None, &Overrides::default())?;
        return bench::model_shapes(&recipe, args.rows.unwrap_or(DEFAULT_ROWS));
    }
    if let Some(sidecar) = &args.sidecar {
        return bench::sidecar_shapes(&Sidecar::open(sidecar)?.manifest);
    }
    let shape = |&(n, k): &(u32, u32)| Shape { name: format!("{n}x{k}"), n_before: n, n_after: n, k, head: true };
    Ok(args.shape.iter().map(shape).collect())
}

fn exported(report: &BenchReport, form: Export) -> Result<String> {
    Ok(match form {
        Export::Md => tables::markdown(report, &command_line()),
        Export::Csv => tables::csv(report),
        Export::Json => serde_json::to_string_pretty(report)? + "\n",
    })
}

/// The command as it was given, for a reader who wants to repeat it.
fn command_line() -> String {
    std::iter::once("draftfast".to_owned()).chain(std::env::args().skip(1)).collect::<Vec<_>>().join(" ")
}
