//! Acceptance as runtimes record it: vLLM's Prometheus counters, SGLang's accept lengths, or a list of rates.
//!
//! vLLM counts, for each position, how many drafts had it accepted. An accepted position implies all before it, so those
//! counts over the number of drafts are survivals; their quotients are the rates. SGLang logs a mean accept length, from
//! which one constant rate follows.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read},
    path::Path,
};

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::Acceptance;
use crate::{
    error::{Hint, quoted},
    input::{open_file, read_text},
};

/// No metrics dump or rate list is larger; a log of days is.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// Rates from a list: a JSON array, or one number a line; conditional, the first position first.
///
/// # Errors
/// Not numbers from 0 to 1.
pub fn read_curve(path: &Path) -> Result<Acceptance> {
    let say = || format!("`{}` is no acceptance curve", path.display());
    let text = read_text(path).with_context(say)?;
    let rates: Vec<f64> = if text.trim_start().starts_with('[') {
        serde_json::from_str(&text).with_context(say)?
    } else {
        let numbers = text.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty());
        numbers
            .map(|word| word.parse().with_context(|| format!("{} is not a number", quoted(word))))
            .collect::<Result<_>>()
            .with_context(say)?
    };
    let origin = format!("{} rates of `{}`", rates.len(), name(path));
    Acceptance::new(rates, origin).with_context(say).hint("give the rate of each position among drafts that reached it")
}

/// vLLM's spec-decode counters in a metrics text dump; label sets (engines, models) are added up.
///
/// # Errors
/// No such counters, no drafts counted, or counts that contradict each other.
pub fn read_vllm_metrics(path: &Path) -> Result<Acceptance> {
    let mut drafts = None;
    let mut accepted: BTreeMap<usize, f64> = BTreeMap::new();
    for_lines(path, |line| {
        let Some(sample) = Sample::parse(line) else { return Ok(()) };
        let sum = match sample.counter() {
            Some("spec_decode_num_drafts") => drafts.get_or_insert(0.0),
            Some("spec_decode_num_accepted_tokens_per_pos") => {
                let position = sample.label("position").and_then(|text| text.parse().ok());
                accepted.entry(position.with_context(|| format!("{} has no `position`", quoted(line)))?).or_insert(0.0)
            }
            _ => return Ok(()),
        };
        ensure!(sample.value.is_finite() && sample.value >= 0.0, "{} is no count", quoted(line));
        *sum += sample.value;
        Ok(())
    })?;
    let (Some(drafts), false) = (drafts, accepted.is_empty()) else {
        return Err(anyhow!("`{}` has no `vllm:spec_decode_num_accepted_tokens_per_pos_total`", path.display()))
            .hint("dump `/metrics` of a server that runs with a speculative config, after it has served requests");
    };
    ensure!(drafts > 0.0, "`{}`: no draft has been counted yet", path.display());
    for (expected, found) in accepted.keys().enumerate() {
        ensure!(expected == *found, "`{}`: the counter of position {expected} is missing", path.display());
    }
    let shares: Vec<f64> = accepted.values().map(|count| count / drafts).collect();
    let origin = format!("vLLM's counters of {drafts} drafts in `{}`", name(path));
    Acceptance::from_survival(&shares, origin).with_context(|| format!("`{}`", path.display()))
}

/// SGLang's accept lengths, each log line weighted by its running requests. The number of draft tokens is
/// `n_drafted`, or what the log says the server was started with.
///
/// # Errors
/// No such lines, no number of draft tokens, or an accept length that it does not allow.
pub fn read_sglang_log(path: &Path, n_drafted: Option<usize>) -> Result<Acceptance> {
    let (mut sum, mut n_requests) = (0.0, 0.0);
    let mut said = None;
    for_lines(path, |line| {
        said = said
            .or_else(|| number_after(line, "speculative_num_steps="))
            .or_else(|| number_after(line, "--speculative-num-steps "));
        if let Some(accept_length) = number_after(line, "accept len: ") {
            let running = number_after(line, "#running-req: ").unwrap_or(1.0);
            sum += accept_length * running;
            n_requests += running;
        }
        Ok(())
    })?;
    if n_requests == 0.0 {
        return Err(anyhow!("`{}` has no `accept len:` of a decode batch", path.display()))
            .hint("log a server that runs with a speculative algorithm while it serves requests");
    }
    let n_drafted = match (n_drafted, said) {
        (Some(n_drafted), _) => n_drafted,
        (None, Some(n_drafted)) if n_drafted >= 1.0 => n_drafted as usize,
        _ => {
            return Err(anyhow!("`{}` does not say how many tokens were drafted a step", path.display()))
                .hint("give `--logged-k N`, the server's `--speculative-num-steps`");
        }
    };
    let origin = format!("SGLang's mean accept length {:.3} at k = {n_drafted} in `{}`", sum / n_requests, name(path));
    Acceptance::from_accept_length(sum / n_requests, n_drafted, origin).with_context(|| format!("`{}`", path.display()))
}

/// A sample of a Prometheus text exposition.
struct Sample<'a> {
    name: &'a str,
    labels: &'a str,
    value: f64,
}

impl<'a> Sample<'a> {
    /// `NAME{LABELS} VALUE [TIMESTAMP]`; comments and other lines are none.
    fn parse(line: &'a str) -> Option<Self> {
        let (name, labels, rest) = match line.split_once('{') {
            Some((name, rest)) => {
                let (labels, rest) = rest.rsplit_once('}')?;
                (name, labels, rest)
            }
            None => {
                let (name, rest) = line.split_once(' ')?;
                (name, "", rest)
            }
        };
        let value = rest.split_whitespace().next()?.parse().ok()?;
        (!name.starts_with('#')).then_some(Self { name, labels, value })
    }

    /// The name without namespace and `_total`, which exporters add or leave out.
    fn counter(&self) -> Option<&'a str> {
        let (_, name) = self.name.rsplit_once(':')?;
        Some(name.strip_suffix("_total").unwrap_or(name))
    }

    fn label(&self, key: &str) -> Option<&'a str> {
        let find = |pair: &'a str| pair.trim().strip_prefix(key)?.strip_prefix("=\"")?.strip_suffix('"');
        self.labels.split(',').find_map(find)
    }
}

fn number_after(line: &str, key: &str) -> Option<f64> {
    let (_, rest) = line.split_once(key)?;
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    rest[..end].trim_end_matches('.').parse().ok()
}

/// Calls `use_line` with each line; bytes that are no UTF-8 become replacement characters.
fn for_lines(path: &Path, mut use_line: impl FnMut(&str) -> Result<()>) -> Result<()> {
    let say = || format!("`{}`", path.display());
    let mut reader = BufReader::new(open_file(path).with_context(say)?);
    let mut line = Vec::new();
    loop {
        crate::interrupt::check()?;
        line.clear();
        let n_bytes =
            (&mut reader).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).context("cannot read").with_context(say)?;
        if n_bytes == 0 {
            return Ok(());
        }
        if n_bytes as u64 == MAX_LINE_BYTES {
            bail!("{}: a line is longer than {MAX_LINE_BYTES} bytes, which no log or metrics dump has", say());
        }
        use_line(String::from_utf8_lossy(&line).trim_end()).with_context(say)?;
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn counters_of_several_engines_add_up() {
        let dump = file(
            "# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.\n\
             # TYPE vllm:spec_decode_num_drafts_total counter\n\
             vllm:spec_decode_num_drafts_total{engine=\"0\",model_name=\"m\"} 600.0\n\
             vllm:spec_decode_num_drafts_total{engine=\"1\",model_name=\"m\"} 400.0\n\
             vllm:spec_decode_num_draft_tokens_total{engine=\"0\",model_name=\"m\"} 1200.0\n\
             vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",model_name=\"m\",position=\"0\"} 500.0\n\
             vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"1\",model_name=\"m\",position=\"0\"} 300.0\n\
             vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",model_name=\"m\",position=\"1\"} 4e2\n\
             vllm:num_requests_running{engine=\"0\"} 2.0\n",
        );
        assert_eq!(read_vllm_metrics(dump.path()).unwrap().rates(), [0.8, 0.5]);
    }

    #[test]
    fn dumps_that_say_nothing_are_named_errors() {
        let said = |text: &str| format!("{:#}", read_vllm_metrics(file(text).path()).unwrap_err());
        assert!(said("vllm:num_requests_running 2.0\n").contains("has no `vllm:spec_decode"));
        let two = "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"1\"} 1\n";
        assert!(said(&format!("vllm:spec_decode_num_drafts_total 0\n{two}")).contains("no draft has been counted"));
        assert!(said(&format!("vllm:spec_decode_num_drafts_total 5\n{two}")).contains("position 0 is missing"));
        let more = "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"} 9\n";
        assert!(said(&format!("vllm:spec_decode_num_drafts_total 5\n{more}")).contains("position 1"));
    }

    #[test]
    fn accept_lengths_are_weighted_by_requests() {
        let log = file(
            "server_args=ServerArgs(model_path='m', speculative_algorithm='NEXTN', speculative_num_steps=3)\n\
             [2026-11-30 10:00:00] Decode batch, #running-req: 1, #token: 64, accept len: 2.00, accept rate: 0.33\n\
             [2026-11-30 10:00:01] Decode batch, #running-req: 3, #token: 64, accept len: 3.00, accept rate: 0.67\n",
        );
        let acceptance = read_sglang_log(log.path(), None).unwrap();
        assert!((acceptance.tau(3, 1.0) - 2.75).abs() < 1e-9);
        let silent = file("Decode batch, #running-req: 1, accept len: 2.00\n");
        assert!(read_sglang_log(silent.path(), None).unwrap_err().to_string().contains("how many tokens"));
        assert!(read_sglang_log(silent.path(), Some(1)).is_ok());
        assert!(read_sglang_log(file("hello\n").path(), None).unwrap_err().to_string().contains("accept len"));
    }

    #[test]
    fn lists_of_rates_are_read_in_both_forms() {
        assert_eq!(read_curve(file("[0.9, 0.8]").path()).unwrap().rates(), [0.9, 0.8]);
        assert_eq!(read_curve(file("0.9\n0.8\n").path()).unwrap().rates(), [0.9, 0.8]);
        for text in ["", "[]", "0.9 x", "1.5", "{\"a\": 1}"] {
            assert!(read_curve(file(text).path()).is_err(), "{text}");
        }
    }
}
