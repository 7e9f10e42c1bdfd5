//! The state of a run on disk: a run that is killed goes on where it was saved last and gives the same counts.
//!
//! The file is the length of a JSON header (u64), the header, and the counts so far as a counts file. It is replaced
//! atomically. It names the run it belongs to (tokenizer, options, files); of another run it is left unused, with a
//! warning, and overwritten. Files that were counted must have the size that they had; one that was being read may have
//! been mended behind the place where the run stopped ([`super::cursor::Cursor::go_on`]).

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::{CountOptions, Counts, DomainCounts, Tokenizer, engine::Engine, run::texts_of};
use crate::{
    corpus::CorpusFile,
    error::advise,
    input::read_file,
    output::{sha256_hex, write_file},
};

/// Counts, and the tally of each open file.
const MAX_STATE_BYTES: u64 = 2 << 30;

/// How far a run is.
pub struct State {
    /// Counts of the domains done, and of the one being counted.
    pub counts: Counts,
    /// Whether the last domain is complete.
    pub is_domain_done: bool,
    /// Blocks counted of the file being read.
    pub n_blocks: u64,
    /// What they hash to.
    pub blocks_hash: u64,
    /// Documents counted and records skipped of files not yet finished, by their number in the domain.
    pub open_files: BTreeMap<usize, (u64, u64)>,
}

#[derive(Serialize, Deserialize)]
struct Header {
    run: String,
    is_domain_done: bool,
    n_blocks: u64,
    blocks_hash: u64,
    open_files: BTreeMap<usize, (u64, u64)>,
    warnings: Vec<String>,
}

/// Where the state is kept; off for runs that are not resumed.
pub struct Resume {
    path: Option<PathBuf>,
    /// What the run is, as a hash.
    run: String,
}

impl State {
    /// The state before the first domain.
    pub fn new(counts: Counts) -> Self {
        Self { counts, is_domain_done: true, n_blocks: 0, blocks_hash: 0, open_files: BTreeMap::new() }
    }
}

impl Resume {
    /// The place of this run's state.
    pub fn new(options: &CountOptions, tokenizer: &Tokenizer, engine: &Engine<'_>, files: &[CorpusFile]) -> Self {
        let files: Vec<_> = files.iter().map(|file| (&file.domain, &file.path, &file.field)).collect();
        let options_text = format!("{:?} {:?} {:?}", options.extract.field, options.extract.share, options.stdin);
        let run =
            format!("{} {} {} {options_text} {files:?}", tokenizer.sha256(), engine.name(), texts_of(&options.extract));
        Self { path: options.resume.clone(), run: sha256_hex(run.as_bytes()) }
    }

    /// Whether the run saves its state.
    pub fn is_on(&self) -> bool {
        self.path.is_some()
    }

    /// The saved state of this run over these files, if there is one.
    ///
    /// # Errors
    /// The file is of this run and damaged.
    pub fn load(&self, files: &[CorpusFile]) -> Result<Option<State>> {
        let Some(path) = self.path.as_ref().filter(|path| path.is_file()) else { return Ok(None) };
        let say = || format!("`{}`: the saved state of the run is damaged", path.display());
        let bytes = read_file(path, MAX_STATE_BYTES).with_context(say)?;
        let (length, rest) = bytes.split_first_chunk::<8>().with_context(say)?;
        let length =
            usize::try_from(u64::from_le_bytes(*length)).ok().filter(|n| *n <= rest.len()).with_context(say)?;
        let (header, counts) = rest.split_at(length);
        let Header { run, is_domain_done, n_blocks, blocks_hash, open_files, warnings } =
            serde_json::from_slice(header).with_context(say)?;
        if run != self.run {
            return Ok(None);
        }
        let mut counts = Counts::from_bytes(counts).with_context(say)?;
        if !counts.domains.iter().all(|domain| are_as_counted(domain, files)) {
            return Ok(None);
        }
        counts.warnings = warnings;
        Ok(Some(State { counts, is_domain_done, n_blocks, blocks_hash, open_files }))
    }

    /// What to say of a state that is there and was not loaded.
    pub fn unused(&self) -> Option<String> {
        let path = self.path.as_ref().filter(|path| path.is_file())?;
        let path = path.display();
        Some(format!("`{path}` is of a run with other text or other flags: counting begins at the beginning"))
    }

    /// Saves the state.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, state: &State) -> Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let header = Header {
            run: self.run.clone(),
            is_domain_done: state.is_domain_done,
            n_blocks: state.n_blocks,
            blocks_hash: state.blocks_hash,
            open_files: state.open_files.clone(),
            warnings: state.counts.warnings.clone(),
        };
        let header = serde_json::to_vec(&header)?;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.extend(state.counts.to_bytes()?);
        write_file(path, &bytes, true)
    }

    /// The error of a run that can go on later.
    pub fn advise(&self, error: anyhow::Error) -> anyhow::Error {
        match &self.path {
            Some(path) => advise(
                error,
                format!("the counts so far are in `{}`: the same command goes on from there", path.display()),
            ),
            None => error,
        }
    }
}

/// Whether the files that were counted to their end have the size that they had.
fn are_as_counted(domain: &DomainCounts, files: &[CorpusFile]) -> bool {
    let files = files.iter().filter(|file| file.domain == domain.domain);
    domain.files.iter().zip(files).all(|(counted, file)| counted.n_bytes == file.n_bytes)
}
