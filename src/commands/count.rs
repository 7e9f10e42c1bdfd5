//! `draftfast count`: text to a counts file, or to `id<TAB>count` lines.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::{
    cli::count::{Count, Engine, StdinFormat, TextFlags, Width},
    corpus::{Extract, Format, Source, Speakers, expand},
    counts::{
        CountOptions, Counts, DomainCounts, EngineChoice, IdWidth, Tokenizer, chat_template, check, count,
        count_token_ids, write_tsv,
    },
    output::{prepare_file, refuse_inputs},
    report::{Terminal, Unit},
};

/// # Errors
/// Bad input, or an output that cannot be written.
pub fn run(args: &Count, n_threads: Option<usize>, terminal: &Terminal) -> Result<()> {
    if let Some(output) = &args.output {
        prepare_file(output, args.force)?;
    }
    let fraction = args.check.unwrap_or(0.0);
    ensure!((0.0..=1.0).contains(&fraction), "`--check {fraction}` is not between 0 and 1");
    let tokenizer = Tokenizer::open(&args.tokenizer)?;
    let sources = sources(args);
    if let Some(output) = &args.output {
        refuse_inputs(output, sources.iter().map(|source| source.path.as_path()).chain([tokenizer.path()]))?;
    }
    let options = options(args, &tokenizer, n_threads, terminal)?;
    let counts = if args.token_ids {
        let progress = progress(&sources, &options, "counting ids", terminal)?;
        let width = args.ids.map(|width| if width == Width::U16 { IdWidth::U16 } else { IdWidth::U32 });
        let counts = count_token_ids(&tokenizer, &sources, width, args.text.field.as_deref(), &progress)?;
        progress.finish();
        counts
    } else {
        count_text(args, &tokenizer, &sources, &options, fraction, terminal)?
    };
    warn(&counts, terminal);
    if let Some(output) = &args.output {
        counts.write(output, args.force)?;
    }
    if let Some(state) = options.resume.filter(|state| state.is_file()) {
        // The result is written: the state has served.
        let _ = std::fs::remove_file(state);
    }
    show(args, &counts, terminal)
}

fn count_text(
    args: &Count,
    tokenizer: &Tokenizer,
    sources: &[Source],
    options: &CountOptions,
    fraction: f64,
    terminal: &Terminal,
) -> Result<Counts> {
    match tokenizer.fast_name() {
        _ if args.engine == Engine::Reference => terminal.say("engine: the tokenizers crate, as asked"),
        Ok(name) => terminal.say(format!("engine: fast ({name})")),
        Err(reason) => terminal.say(format!("engine: the tokenizers crate, which is slow, because {reason}")),
    }
    let mut checked = None;
    if fraction > 0.0 && (args.engine == Engine::Reference || tokenizer.fast_name().is_err()) {
        terminal.say("`--check` has nothing to compare: the tokenizers crate itself counts");
    } else if fraction > 0.0 {
        // First: what is wrong with it should not be said after hours of counting.
        let bar = terminal.progress("checking", None, Unit::Bytes);
        let sentence = check(tokenizer, sources, options, fraction, &bar)?;
        bar.finish();
        terminal.say(&sentence);
        checked = Some(sentence);
    }
    let bar = progress(sources, options, "counting", terminal)?;
    let mut counts = count(tokenizer, sources, options, &bar)?;
    bar.finish();
    counts.engines.extend(checked);
    counts.engines.sort();
    Ok(counts)
}

fn sources(args: &Count) -> Vec<Source> {
    if args.stdin {
        return vec![Source { domain: "text".to_owned(), weight: 1.0, path: "-".into(), field: None }];
    }
    args.corpus.clone()
}

/// What to take from the records.
///
/// # Errors
/// Chats are to be rendered, and the chat template is missing or damaged.
pub fn extract(flags: &TextFlags, tokenizer: &Tokenizer, terminal: &Terminal) -> Result<Extract> {
    let speakers = if flags.only.is_some() { Speakers::Assistant } else { Speakers::All };
    let thinking = !flags.no_thinking;
    let mut extract = Extract { field: flags.field.clone(), speakers, thinking, ..Extract::default() };
    if flags.only.is_some() || flags.render {
        extract.render = chat_template(tokenizer)?.map(|template| template.renderer(speakers, thinking));
        match &extract.render {
            Some(_) => terminal.say("chats are rendered by the model's own template"),
            None if flags.render => {
                anyhow::bail!("`{}`: there is no chat template beside it", tokenizer.path().display())
            }
            None => {
                terminal.say("there is no chat template beside the tokenizer: message contents are counted as they are")
            }
        }
    }
    Ok(extract)
}

fn options(args: &Count, tokenizer: &Tokenizer, n_threads: Option<usize>, terminal: &Terminal) -> Result<CountOptions> {
    let defaults = CountOptions::default();
    // stdin cannot be read twice, so a run over it cannot be resumed.
    let is_resumable =
        args.save_every > 0 && !args.token_ids && sources(args).iter().all(|s| s.path.as_os_str() != "-");
    Ok(CountOptions {
        extract: extract(&args.text, tokenizer, terminal)?,
        stdin: if args.format == StdinFormat::Jsonl { Format::Lines } else { Format::Text },
        strict: args.text.strict,
        n_threads: n_threads.unwrap_or(defaults.n_threads),
        engine: if args.engine == Engine::Reference { EngineChoice::Reference } else { EngineChoice::Auto },
        resume: args.output.as_ref().filter(|_| is_resumable).map(|output| state_path(output)),
        allow_empty: args.stdin && args.emit.is_some(),
        save_every: Duration::from_secs(args.save_every),
        ..defaults
    })
}

/// The state lies beside the output, under a name that says what it is.
fn state_path(output: &std::path::Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(".resume");
    name.into()
}

fn progress(
    sources: &[Source],
    options: &CountOptions,
    label: &str,
    terminal: &Terminal,
) -> Result<crate::report::Progress> {
    let n_bytes: u64 = expand(sources, options.stdin)?.files.iter().map(|file| file.n_bytes).sum();
    Ok(terminal.progress(label, (n_bytes > 0).then_some(n_bytes), Unit::Bytes))
}

fn show(args: &Count, counts: &Counts, terminal: &Terminal) -> Result<()> {
    for domain in &counts.domains {
        terminal.say(format!(
            "{}: {} tokens, {} of {} ids seen, {} documents, {} bytes, {} files",
            domain.domain,
            domain.n_tokens()?,
            n_ids_seen(domain),
            counts.n_ids,
            domain.n_documents,
            domain.n_bytes,
            domain.files.len()
        ));
    }
    if args.emit.is_some() {
        let sum = |id: usize| counts.domains.iter().map(|domain| domain.counts[id]).sum();
        let sums: Vec<u64> = (0..counts.n_ids).map(sum).collect();
        return terminal.data(write_tsv(&sums).trim_end());
    }
    if terminal.is_json() {
        return terminal.json(&summary(args.output.as_deref(), counts)?);
    }
    args.output.as_ref().map_or(Ok(()), |output| terminal.data(output.display().to_string()))
}

/// Says what was skipped. A folder may hold thousands of files that are no text: `-v` names all of them.
pub(super) fn warn(counts: &Counts, terminal: &Terminal) {
    const N_SHOWN: usize = 20;
    let (shown, more) = counts.warnings.split_at(counts.warnings.len().min(N_SHOWN));
    shown.iter().for_each(|warning| terminal.warn(warning));
    more.iter().for_each(|warning| terminal.detail(warning));
    if !more.is_empty() {
        terminal.warn(format!("{} more like these: `-v` names them", more.len()));
    }
}

fn n_ids_seen(domain: &DomainCounts) -> usize {
    domain.counts.iter().filter(|count| **count > 0).count()
}

/// What `count` and `merge` print as JSON: all but the counts themselves.
///
/// # Errors
/// More tokens than fit 64 bits.
pub(super) fn summary(output: Option<&Path>, counts: &Counts) -> Result<Value> {
    let mut domains = Vec::new();
    for domain in &counts.domains {
        let n_skipped = domain.files.iter().map(|file| file.n_skipped).sum::<u64>();
        domains.push(json!({
            "domain": domain.domain, "n_tokens": domain.n_tokens()?, "n_ids_seen": n_ids_seen(domain),
            "n_documents": domain.n_documents, "n_bytes": domain.n_bytes, "n_skipped": n_skipped,
            "files": domain.files,
        }));
    }
    Ok(json!({
        "output": output.map(|path| path.to_string_lossy()), "tokenizer_sha256": counts.tokenizer_sha256,
        "n_ids": counts.n_ids, "engines": counts.engines, "domains": domains, "warnings": counts.warnings,
    }))
}
