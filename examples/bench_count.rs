//! Counts the texts of a jsonl file that is in memory, and prints seconds: the measuring half of benches/count_peers.py.
//!
//! `bench_count TOKENIZER THREADS FILE...` prints a line a file: name, bytes of text, wall seconds, CPU seconds, tokens.

#![expect(clippy::print_stdout, reason = "its output is data for a script")]

mod texts;

use std::{path::Path, time::Instant};

use anyhow::{Context, Result};
use draftfast::counts::{EngineChoice, Tokenizer};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [tokenizer, n_threads, files @ ..] = args.as_slice() else {
        anyhow::bail!("usage: bench_count TOKENIZER THREADS FILE...");
    };
    let (started, cpu) = (Instant::now(), cpu_seconds());
    let tokenizer = Tokenizer::open(Path::new(tokenizer))?;
    println!("load\t0\t{:.4}\t{:.4}", started.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let n_threads: usize = n_threads.parse().context("the number of threads")?;
    for file in files {
        let texts = texts::read(file).with_context(|| format!("`{file}`"))?;
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let n_bytes: usize = texts.iter().map(|text| text.len()).sum();
        let (started, cpu) = (Instant::now(), cpu_seconds());
        let counts = tokenizer.count_texts_on(&texts, EngineChoice::Auto, n_threads)?;
        let seconds = started.elapsed().as_secs_f64();
        let cpu = cpu_seconds() - cpu;
        println!("{file}\t{n_bytes}\t{seconds:.4}\t{cpu:.4}\t{}", counts.iter().sum::<u64>());
    }
    Ok(())
}

/// CPU time of the process so far, by the kernel's clock of 100 ticks a second; 0 where there is no /proc.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}
