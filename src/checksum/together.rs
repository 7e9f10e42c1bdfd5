//! The digests of many files. Where there are more of them than threads, each thread hashes several at once: the rounds of
//! one fill the time that those of another wait.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

use anyhow::{Context, Result};
use rayon::prelude::*;

use super::{
    digest::{Reading, fill, sha256_read},
    lanes::{BLOCK_BYTES, LANES, START, compress, finish, is_fast},
};
use crate::{
    input::{CHUNK_BYTES, Chunk, open_file},
    interrupt,
    output::hex,
    report::Progress,
};

/// The sha256 of each file in lower-case hexadecimal, or why there is none. In parallel.
///
/// # Errors
/// The run was interrupted.
pub(super) fn sha256_files(paths: &[PathBuf], progress: &Progress) -> Result<Vec<Result<String>>> {
    let n_threads = rayon::current_num_threads();
    let found = if paths.len() > n_threads && is_fast() {
        several_a_thread(paths, n_threads, progress)
    } else {
        let reading = if paths.len() < n_threads { Reading::Ahead } else { Reading::InTurn };
        paths.par_iter().map(|path| sha256_read(path, reading, progress)).collect()
    };
    interrupt::check()?;
    Ok(found)
}

fn several_a_thread(paths: &[PathBuf], n_threads: usize, progress: &Progress) -> Vec<Result<String>> {
    // Large files first, so that none is left alone at the end.
    let n_bytes = |path: &PathBuf| path.metadata().map_or(0, |metadata| metadata.len());
    let mut order: Vec<(usize, u64)> = paths.iter().map(n_bytes).enumerate().collect();
    order.sort_by_key(|&(at, n_bytes)| (std::cmp::Reverse(n_bytes), at));
    let next = AtomicUsize::new(0);
    let take = || order.get(next.fetch_add(1, Ordering::Relaxed)).map(|&(at, _)| (at, paths[at].as_path()));
    let n_lanes = LANES.min(paths.len().div_ceil(n_threads));
    let work = |_| Worker { lanes: (0..n_lanes).map(|_| None).collect(), found: Vec::new() }.run(&take, progress);
    let mut found: Vec<_> = (0..n_threads).into_par_iter().flat_map_iter(work).collect();
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, sha256)| sha256).collect()
}

/// A file that is being hashed.
struct Lane<'a> {
    /// Which one.
    at: usize,
    path: &'a Path,
    file: File,
    state: [u32; 8],
    chunk: Chunk,
    /// What of the chunk is not hashed yet.
    begin: usize,
    end: usize,
    n_bytes: u64,
}

impl<'a> Lane<'a> {
    fn open(at: usize, path: &'a Path) -> Result<Self> {
        let file = open_file(path)?;
        // Asks the kernel for a longer read-ahead of its own.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Sequential);
        Ok(Self { at, path, file, state: START, chunk: Chunk::new(), begin: 0, end: 0, n_bytes: 0 })
    }

    /// Reads on when there is no whole block; false when there is none in the file either.
    fn refill(&mut self) -> Result<bool> {
        if self.end - self.begin >= BLOCK_BYTES {
            return Ok(true);
        }
        // Only the end of a file leaves less than a block.
        if self.end > self.begin {
            return Ok(false);
        }
        let n = fill(&self.file, self.chunk.bytes_mut())?;
        (self.begin, self.end) = (0, n);
        self.n_bytes += n as u64;
        Ok(n >= BLOCK_BYTES)
    }

    fn blocks(&self) -> &[[u8; BLOCK_BYTES]] {
        self.chunk.bytes()[self.begin..self.end].as_chunks().0
    }

    fn digest(&self) -> String {
        let tail = &self.chunk.bytes()[self.begin..self.end];
        hex(&finish(self.state, tail, self.n_bytes))
    }
}

/// One thread's files.
struct Worker<'a> {
    lanes: Vec<Option<Lane<'a>>>,
    found: Vec<(usize, Result<String>)>,
}

impl<'a> Worker<'a> {
    fn run(
        mut self,
        take: &impl Fn() -> Option<(usize, &'a Path)>,
        progress: &Progress,
    ) -> Vec<(usize, Result<String>)> {
        while !interrupt::is_requested() {
            for lane in &mut self.lanes {
                prepare(lane, take, &mut self.found);
            }
            let mut live: Vec<&mut Lane<'a>> = self.lanes.iter_mut().flatten().collect();
            let Some(n_blocks) = live.iter().map(|lane| lane.blocks().len()).min() else { break };
            match &mut live[..] {
                [a, b, c] => compress_lanes([a, b, c], n_blocks),
                [a, b] => compress_lanes([a, b], n_blocks),
                lanes => lanes.iter_mut().for_each(|lane| compress_lanes([lane], n_blocks)),
            }
            for lane in live {
                lane.begin += n_blocks * BLOCK_BYTES;
                progress.advance((n_blocks * BLOCK_BYTES) as u64);
            }
        }
        self.found
    }
}

/// Sees to it that a lane has a block to hash: of its file or, when that is done, of the next; it stays empty when there is
/// none.
fn prepare<'a>(
    lane: &mut Option<Lane<'a>>,
    take: &impl Fn() -> Option<(usize, &'a Path)>,
    found: &mut Vec<(usize, Result<String>)>,
) {
    let say = |path: &Path| format!("`{}`", path.display());
    loop {
        if let Some(file) = lane {
            match file.refill() {
                Ok(true) => return,
                Ok(false) => found.push((file.at, Ok(file.digest()))),
                Err(error) => found.push((file.at, Err(error).with_context(|| say(file.path)))),
            }
            *lane = None;
        }
        let Some((at, path)) = take() else { return };
        match Lane::open(at, path) {
            Ok(file) => *lane = Some(file),
            Err(error) => found.push((at, Err(error).with_context(|| say(path)))),
        }
    }
}

/// Hashes `n_blocks` of each file.
fn compress_lanes<const N: usize>(lanes: [&mut Lane<'_>; N], n_blocks: usize) {
    const { assert!(CHUNK_BYTES.is_multiple_of(BLOCK_BYTES)) };
    let mut states = lanes.each_ref().map(|lane| lane.state);
    compress(&mut states, lanes.each_ref().map(|lane| &lane.blocks()[..n_blocks]));
    lanes.into_iter().zip(states).for_each(|(lane, state)| lane.state = state);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::sha256_hex;

    #[test]
    fn many_files_of_all_lengths_give_their_digests_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..5 * CHUNK_BYTES + 77).map(|i| ((i * 31) >> 3) as u8).collect();
        let lengths = [0, 1, 55, 56, 63, 64, 65, 3 * CHUNK_BYTES, CHUNK_BYTES - 1, CHUNK_BYTES + 1, bytes.len(), 999];
        let path = |i: usize| dir.path().join(i.to_string());
        lengths.iter().enumerate().for_each(|(i, &n)| std::fs::write(path(i), &bytes[..n]).unwrap());
        for n_files in [lengths.len(), 4, 3, 1] {
            let mut paths: Vec<PathBuf> = (0..n_files).map(path).collect();
            paths.insert(1, dir.path().join("absent"));
            for n_threads in [1, 2, 3] {
                let mut found = several_a_thread(&paths, n_threads, &Progress::silent());
                let error = format!("{:#}", found.remove(1).unwrap_err());
                assert!(error.contains("absent") && error.contains("No such file"), "{error}");
                let expected: Vec<_> = lengths[..n_files].iter().map(|&n| sha256_hex(&bytes[..n])).collect();
                assert_eq!(found.into_iter().map(Result::unwrap).collect::<Vec<_>>(), expected, "{n_threads} threads");
            }
        }
    }
}
