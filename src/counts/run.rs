//! Counting a corpus: files are decoded one after the other, their blocks are counted on all threads.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, mpsc},
};

use anyhow::{Result, bail};

use super::{
    Counts, DomainCounts, FileRecord, Tokenizer,
    engine::{Engine, EngineChoice},
    fast::Tally,
};
use crate::{
    corpus::{Block, BlockTally, CorpusFile, Extract, FileReader, Format, ReadOptions, Source, Speakers, expand},
    error::Hint,
    interrupt,
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
}

/// A table of pre-tokens that grows beyond this is folded into the dense counts: still exact, and memory is bounded.
const TABLE_BYTES: usize = 128 << 20;

impl Default for CountOptions {
    fn default() -> Self {
        let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { extract: Extract::default(), stdin: Format::Text, strict: false, n_threads, engine: EngineChoice::Auto }
    }
}

/// Counts the tokens of all sources. The result does not depend on the number of threads.
///
/// # Errors
/// A source that cannot be read, damaged files, no document at all, a bad record with `strict`, or an interrupt.
pub fn count(tokenizer: &Tokenizer, sources: &[Source], options: &CountOptions, progress: &Progress) -> Result<Counts> {
    let expanded = expand(sources, options.stdin)?;
    let engine = Engine::of(tokenizer, options.engine)?;
    let mut counts = Counts {
        tokenizer_sha256: tokenizer.sha256().to_owned(),
        n_ids: tokenizer.n_ids(),
        engines: vec![engine.name()],
        domains: Vec::new(),
        warnings: Vec::new(),
    };
    for path in &expanded.skipped {
        counts.warnings.push(format!("`{}` looks binary and was not read", path.display()));
    }
    for files in expanded.files.chunk_by(|a, b| a.domain == b.domain) {
        let domain = count_domain(&engine, files, options, tokenizer.n_ids(), progress, &mut counts.warnings)?;
        counts.domains.push(domain);
    }
    Ok(counts)
}

/// How provenance names what is taken from the records.
fn texts_of(extract: &Extract) -> String {
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
    n_ids: usize,
    progress: &Progress,
    warnings: &mut Vec<String>,
) -> Result<DomainCounts> {
    let tallies = Mutex::new(BTreeMap::<usize, BlockTally>::new());
    let (sender, receiver) = mpsc::sync_channel::<(usize, Block)>(options.n_threads * 2);
    // The workers alone hold the receiver: when all of them have left with an error, sending fails instead of waiting.
    let receiver = Arc::new(Mutex::new(receiver));
    let tallies_of_files = &tallies;
    let work = move |receiver: Arc<Mutex<mpsc::Receiver<(usize, Block)>>>| -> Result<Vec<u64>> {
        let mut tally = Tally::new(n_ids);
        loop {
            let next = receiver.lock().map_or(None, |receiver| receiver.recv().ok());
            let Some((file, block)) = next else {
                engine.fold(&mut tally);
                return Ok(tally.into_counts());
            };
            let seen = block.texts(&options.extract, |text| engine.count(text, &mut tally))?;
            if tally.n_table_bytes() > TABLE_BYTES {
                engine.fold(&mut tally);
            }
            progress.advance(block.n_file_bytes);
            if let Ok(mut tallies) = tallies_of_files.lock() {
                tallies.entry(file).or_default().add(seen);
            }
        }
    };
    let (mut records, vectors) = std::thread::scope(|scope| {
        let spawn = |_| {
            let receiver = Arc::clone(&receiver);
            scope.spawn(move || work(receiver))
        };
        let workers: Vec<_> = (0..options.n_threads.max(1)).map(spawn).collect();
        drop(receiver);
        let records = read_files(files, options, sender);
        let vectors = workers.into_iter().map(|worker| match worker.join() {
            Ok(counts) => counts,
            Err(_) => bail!("a counting thread panicked"),
        });
        let vectors = vectors.collect::<Result<Vec<_>>>();
        let vectors = vectors?;
        anyhow::Ok((records?, vectors))
    })?;
    let mut domain = DomainCounts {
        domain: files[0].domain.clone(),
        texts: texts_of(&options.extract),
        counts: vec![0; n_ids],
        ..DomainCounts::default()
    };
    for counts in vectors {
        domain.counts.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let tallies = tallies.into_inner().unwrap_or_default();
    for (i, tally) in tallies {
        report(&files[i], &tally, options.strict, warnings)?;
        records[i].n_documents = tally.n_documents;
        records[i].n_skipped = tally.n_skipped;
        domain.n_documents += tally.n_documents;
        domain.n_bytes += tally.n_bytes;
    }
    domain.files = records;
    // A share of a small corpus may well be empty.
    if domain.n_documents == 0 && options.extract.takes_all() {
        bail!("the corpus of domain `{}` holds no document ({} files read)", domain.domain, files.len());
    }
    Ok(domain)
}

/// Decodes the files in order and hands out their blocks.
fn read_files(
    files: &[CorpusFile],
    options: &CountOptions,
    sender: mpsc::SyncSender<(usize, Block)>,
) -> Result<Vec<FileRecord>> {
    let read_options = ReadOptions { field: options.extract.field.clone(), cut: None };
    let mut records = Vec::new();
    for (i, file) in files.iter().enumerate() {
        let mut reader = FileReader::open(file, &read_options)?;
        while let Some(block) = reader.next_block()? {
            interrupt::check()?;
            // The workers leave early only with an error of their own, which is the one to report.
            if sender.send((i, block)).is_err() {
                return Ok(records);
            }
        }
        let (sha256, n_bytes) = reader.finish()?;
        records.push(FileRecord { name: file.name.clone(), sha256, n_bytes, n_documents: 0, n_skipped: 0 });
    }
    Ok(records)
}

fn report(file: &CorpusFile, tally: &BlockTally, strict: bool, warnings: &mut Vec<String>) -> Result<()> {
    let Some(error) = &tally.first_error else { return Ok(()) };
    let path = file.path.display();
    if error.fatal {
        return Err(anyhow::anyhow!("`{path}`: {error}")).hint("convert the file to UTF-8, or leave it out");
    }
    if strict {
        return Err(anyhow::anyhow!("`{path}`: {error}"))
            .hint("without `--strict` such records are skipped and counted");
    }
    let n = tally.n_skipped;
    let records = if n == 1 { "record was" } else { "records were" };
    warnings.push(format!("`{path}`: {n} {records} skipped, the first: {error}"));
    Ok(())
}
