//! Counting a corpus: files are decoded one after the other, their blocks are counted on all threads.
//!
//! A domain is counted in rounds. Between two rounds the tables are folded into the dense counts, and the state of the
//! run can be saved ([`super::resume`]).

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, mpsc},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};

use super::{
    Counts, DomainCounts, FileRecord, Tokenizer,
    cursor::Cursor,
    engine::{Engine, EngineChoice},
    fast::Tally,
    resume::{Resume, State},
};
use crate::{
    corpus::{Block, BlockTally, CorpusFile, Extract, Format, Source, Speakers, expand, refuse_stdin},
    error::Hint,
    report::Progress,
};

/// How a corpus is counted.
#[derive(Debug, Clone)]
pub struct CountOptions {
    /// What to take from the records.
    pub extract: Extract,
    /// The layout of stdin.
    pub stdin: Format,
    /// A record that cannot be read is an error, not a skipped one.
    pub strict: bool,
    /// Threads that count.
    pub n_threads: usize,
    /// Which engine counts.
    pub engine: EngineChoice,
    /// Where the state of the run is saved, and from where it goes on; `None` saves nothing.
    pub resume: Option<PathBuf>,
    /// How often it is saved.
    pub save_every: Duration,
    /// Whether a corpus without any document is fine: a mapper may get an empty share.
    pub allow_empty: bool,
    /// Bytes that all tables of pre-tokens together may take before they are folded.
    pub table_bytes: usize,
}

impl Default for CountOptions {
    fn default() -> Self {
        Self {
            extract: Extract::default(),
            stdin: Format::Text,
            strict: false,
            n_threads: std::thread::available_parallelism().map_or(1, usize::from),
            engine: EngineChoice::Auto,
            resume: None,
            save_every: Duration::from_secs(60),
            allow_empty: false,
            table_bytes: 384 << 20,
        }
    }
}

/// Counts the tokens of all sources. The result depends neither on the number of threads nor on being resumed.
///
/// # Errors
/// A source that cannot be read, damaged files, no document at all, a bad record with `strict`, or an interrupt.
pub fn count(tokenizer: &Tokenizer, sources: &[Source], options: &CountOptions, progress: &Progress) -> Result<Counts> {
    let expanded = expand(sources, options.stdin)?;
    let engine = Engine::of(tokenizer, options.engine)?;
    let resume = Resume::new(options, tokenizer, &engine, &expanded.files);
    let empty = Counts {
        tokenizer_sha256: tokenizer.sha256().to_owned(),
        n_ids: tokenizer.n_ids(),
        engines: vec![engine.name()],
        domains: Vec::new(),
        warnings: Vec::new(),
    };
    let mut state = match resume.load(&expanded.files)? {
        Some(state) => state,
        None => State::new(Counts { warnings: resume.unused().into_iter().collect(), ..empty }),
    };
    let n_documents: u64 = state.counts.domains.iter().map(|domain| domain.n_documents).sum();
    if n_documents > 0 {
        state
            .counts
            .warnings
            .push(format!("an earlier run had counted {n_documents} documents; this one went on from there"));
    }
    for path in &expanded.skipped {
        state.warn(format!("`{}` looks binary and was not read", path.display()));
    }
    for (i, files) in expanded.files.chunk_by(|a, b| a.domain == b.domain).enumerate() {
        if i + 1 < state.counts.domains.len() || (i + 1 == state.counts.domains.len() && state.is_domain_done) {
            files.iter().for_each(|file| progress.advance(file.n_bytes));
            continue;
        }
        count_domain(&engine, files, options, &resume, &mut state, progress)?;
    }
    Ok(state.counts)
}

/// How provenance names what is taken from the records.
pub(super) fn texts_of(extract: &Extract) -> String {
    let speakers = match extract.speakers {
        Speakers::All => "each text",
        Speakers::Assistant => "assistant texts",
    };
    let rendered = if extract.render.is_some() { ", chats rendered" } else { "" };
    let thinking = if extract.thinking { "" } else { ", without thinking" };
    format!("{speakers}{rendered}{thinking}")
}

fn count_domain(
    engine: &Engine<'_>,
    files: &[CorpusFile],
    options: &CountOptions,
    resume: &Resume,
    state: &mut State,
    progress: &Progress,
) -> Result<()> {
    let domain = &files.first().context("a domain without files")?.domain;
    if state.is_domain_done {
        let counts = vec![0; state.counts.n_ids];
        let (domain, texts) = (domain.clone(), texts_of(&options.extract));
        state.counts.domains.push(DomainCounts { domain, counts, texts, ..DomainCounts::default() });
        state.is_domain_done = false;
        (state.n_blocks, state.blocks_hash) = (0, 0);
    }
    let cut = engine.cut();
    let n_files_done = state.domain()?.files.len();
    let mut cursor = Cursor::new(files, options.extract.field.clone(), cut, n_files_done);
    cursor.go_on(state.n_blocks, state.blocks_hash)?;
    files[..n_files_done].iter().for_each(|file| progress.advance(file.n_bytes));
    loop {
        let deadline = resume.is_on().then(|| Instant::now() + options.save_every);
        let (is_end, tallies) = round(engine, &mut cursor, deadline, options, state.domain()?, progress);
        for (i, tally) in tallies {
            report(&files[i], &tally, options.strict, state)?;
            state.add(i, &tally)?;
        }
        state.finish_files(cursor.take_records())?;
        (state.n_blocks, state.blocks_hash) = cursor.place();
        match is_end {
            Ok(true) => break,
            Ok(false) => resume.save(state)?,
            // What was counted is sound: a damaged file or an interrupt does not cost it.
            Err(error) if state.counts.domains.iter().all(|domain| domain.n_documents == 0) => return Err(error),
            Err(error) => return resume.save(state).and(Err(error)).map_err(|error| resume.advise(error)),
        }
    }
    let is_whole = options.extract.share == (0, 1 << 32); // a share of few documents may well be empty
    if state.domain()?.n_documents == 0 && is_whole && !options.allow_empty {
        let skipped = state.counts.warnings.last().map_or(String::new(), |warning| format!("; {warning}"));
        bail!("the corpus of domain `{domain}` holds no document ({} files read{skipped})", files.len());
    }
    state.is_domain_done = true;
    (state.n_blocks, state.blocks_hash) = (0, 0);
    Ok(())
}

type Tallies = BTreeMap<usize, BlockTally>;

/// Counts blocks until the domain ends (true) or the deadline has passed (false), and folds.
fn round(
    engine: &Engine<'_>,
    cursor: &mut Cursor<'_>,
    deadline: Option<Instant>,
    options: &CountOptions,
    domain: &mut DomainCounts,
    progress: &Progress,
) -> (Result<bool>, Tallies) {
    let n_threads = options.n_threads.max(1);
    let tallies = Mutex::new(Tallies::new());
    let (sender, receiver) = mpsc::sync_channel::<(usize, Block)>(n_threads * 2);
    // The workers alone hold the receiver: when all of them have left with an error, sending fails instead of waiting.
    let receiver = Arc::new(Mutex::new(receiver));
    let (shared, n_ids, files) = (&tallies, domain.counts.len(), cursor.files());
    let work = move |receiver: Arc<Mutex<mpsc::Receiver<(usize, Block)>>>| -> Result<Tally> {
        let mut tally = Tally::new(n_ids);
        loop {
            let next = receiver.lock().map_or(None, |receiver| receiver.recv().ok());
            let Some((file, block)) = next else { return Ok(tally) };
            let extract = options.extract.of_field(files[file].field.as_deref());
            let seen = block.texts(&extract, |text| engine.count(text, &mut tally))?;
            if tally.n_table_bytes() > options.table_bytes / n_threads {
                engine.fold(&mut tally);
            }
            progress.advance(block.n_file_bytes);
            if let Ok(mut tallies) = shared.lock() {
                tallies.entry(file).or_default().add(seen);
            }
        }
    };
    let read = std::thread::scope(|scope| {
        let spawn = |_| {
            let receiver = Arc::clone(&receiver);
            scope.spawn(move || work(receiver))
        };
        let workers: Vec<_> = (0..n_threads).map(spawn).collect();
        drop(receiver);
        let read = cursor.feed(sender, deadline);
        let (mut failed, mut done) = (None, Vec::new());
        for worker in workers {
            match worker.join().unwrap_or_else(|_| Err(anyhow!("a counting thread panicked"))) {
                Ok(tally) => done.push(tally),
                Err(error) => failed = Some(error),
            }
        }
        domain.counts.iter_mut().zip(engine.fold_all(done)).for_each(|(sum, count)| *sum += count);
        failed.map_or(read, Err)
    });
    (read, tallies.into_inner().unwrap_or_default())
}

fn report(file: &CorpusFile, tally: &BlockTally, strict: bool, state: &mut State) -> Result<()> {
    let Some(error) = &tally.first_error else { return Ok(()) };
    let path = file.path.display();
    if error.fatal && (strict || !file.is_found) {
        return Err(anyhow!("`{path}`: {error}")).hint("convert the file to UTF-8, or leave it out");
    }
    if error.fatal {
        state.warn(format!("`{path}` {error}: the piece of text that holds it (a MiB, or the file) was not counted"));
        return Ok(());
    }
    if strict {
        return Err(anyhow!("`{path}`: {error}")).hint("without `--strict` such records are skipped and counted");
    }
    let n = tally.n_skipped;
    let records = if n == 1 { "record was" } else { "records were" };
    state.warn(format!("`{path}`: {n} {records} skipped, the first: {error}"));
    Ok(())
}

/// Recounts the documents whose hash falls into `fraction` of all with both engines; the sentence for provenance.
///
/// # Errors
/// The counts differ, the sample is empty, the text is stdin, or what [`count`] says.
pub fn check(
    tokenizer: &Tokenizer,
    sources: &[Source],
    options: &CountOptions,
    fraction: f64,
    progress: &Progress,
) -> Result<String> {
    refuse_stdin(sources)?;
    let mut options = CountOptions { resume: None, ..options.clone() };
    options.extract.share = (0, (fraction * (1_u64 << 32) as f64) as u64);
    let counted = |engine| {
        let options = CountOptions { engine, ..options.clone() };
        count(tokenizer, sources, &options, progress).with_context(|| format!("checking {fraction} of the documents"))
    };
    let (fast, reference) = (counted(EngineChoice::Auto)?, counted(EngineChoice::Reference)?);
    let (mut n_documents, mut n_tokens) = (0, 0);
    for (a, b) in fast.domains.iter().zip(&reference.domains) {
        let n_differing = a.counts.iter().zip(&b.counts).filter(|(a, b)| a != b).count();
        if n_differing > 0 {
            let error = anyhow!("domain `{}`: {n_differing} ids are counted differently by the reference", a.domain);
            return Err(error)
                .hint("count with `--engine reference`, and report the tokenizer: the fast engine is wrong");
        }
        n_documents += a.n_documents;
        n_tokens += a.n_tokens()?;
    }
    if n_documents == 0 {
        return Err(anyhow!("`--check {fraction}` picks none of the documents")).hint("check a larger share of them");
    }
    Ok(format!(
        "{fraction} of the documents ({n_documents}, {n_tokens} tokens) recounted by {}: equal",
        reference.engines.join(", ")
    ))
}

impl State {
    /// The domain being counted.
    fn domain(&mut self) -> Result<&mut DomainCounts> {
        self.counts.domains.last_mut().context("no domain is being counted")
    }

    /// Notes a sentence for the person; one that was said before the run was resumed is not said again.
    fn warn(&mut self, warning: String) {
        if !self.counts.warnings.contains(&warning) {
            self.counts.warnings.push(warning);
        }
    }

    /// Adds what a round saw of file `i`, which may not be finished.
    fn add(&mut self, i: usize, tally: &BlockTally) -> Result<()> {
        let domain = self.domain()?;
        domain.n_documents += tally.n_documents;
        domain.n_bytes += tally.n_bytes;
        let open = self.open_files.entry(i).or_default();
        open.0 += tally.n_documents;
        open.1 += tally.n_skipped;
        Ok(())
    }

    /// Moves finished files into the record.
    fn finish_files(&mut self, records: Vec<FileRecord>) -> Result<()> {
        for mut record in records {
            let i = self.domain()?.files.len();
            (record.n_documents, record.n_skipped) = self.open_files.remove(&i).unwrap_or_default();
            self.domain()?.files.push(record);
        }
        Ok(())
    }
}
