//! The digest of a tensor: the sha256 of the sha256 digests of its pieces, 1 MiB each but the last.
//!
//! As trustworthy as the sha256 of all bytes (the depth is fixed, so two tensors with the same digest would give two
//! messages with the same sha256), but pieces are hashed by all threads, and several at a time by each. A head of 1.3 GB
//! would take a second otherwise, whatever the number of processors. In Python:
//!
//! ```text
//! sha256(b"".join(sha256(data[i : i + 2**20]).digest() for i in range(0, len(data), 2**20))).hexdigest()
//! ```

use anyhow::Result;
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::lanes::{LANES, largest_magnitude, sha256_lanes};
use crate::{interrupt, output::hex, report::Progress};

/// Bytes of a piece.
pub const PIECE_BYTES: usize = 1 << 20;

/// What one pass over a tensor finds out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// The digest, in hexadecimal.
    pub sha256: String,
    /// Of each piece the largest 16-bit word without its highest bit: the largest magnitude, if these are BF16 numbers.
    pub largest: Vec<u16>,
}

/// Hashes `bytes`.
///
/// # Errors
/// The run was interrupted.
pub fn tree_sha256(bytes: &[u8], progress: &Progress) -> Result<Tree> {
    let groups = bytes.par_chunks(LANES * PIECE_BYTES).map(|group| {
        interrupt::check()?;
        progress.advance(group.len() as u64);
        Ok(match group.as_chunks::<PIECE_BYTES>() {
            ([a, b, c], []) => sha256_lanes([a, b, c]).to_vec(),
            _ => group
                .chunks(PIECE_BYTES)
                .map(|piece| (Sha256::digest(piece).into(), largest_magnitude(piece)))
                .collect(),
        })
    });
    let pieces: Vec<Vec<([u8; 32], u16)>> = groups.collect::<Result<_>>()?;
    let (digests, largest): (Vec<[u8; 32]>, Vec<u16>) = pieces.into_iter().flatten().unzip();
    Ok(Tree { sha256: hex(&Sha256::digest(digests.concat())), largest })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `tests/python/test_checks.py` expects the same.
    const OF_THREE_PIECES_AND_FIVE_BYTES: &str = "f30de2b7bf3a9824d4876d8ffa7f0f0f9e07a3a287bb7c98346a92adb76a1e6b";

    #[test]
    fn python_gives_the_same_digest() {
        let bytes: Vec<u8> = (0..3 * PIECE_BYTES + 5).map(|i| (i % 251) as u8).collect();
        assert_eq!(tree_sha256(&bytes, &Progress::silent()).unwrap().sha256, OF_THREE_PIECES_AND_FIVE_BYTES);
    }

    #[test]
    fn the_digest_is_the_sha256_of_the_digests_of_the_pieces() {
        let bytes: Vec<u8> = (0..7 * PIECE_BYTES as u64 + 5).map(|i| ((i * i) >> 7) as u8).collect();
        for n_bytes in [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES, 4 * PIECE_BYTES - 1, bytes.len()] {
            let mut all = Sha256::new();
            bytes[..n_bytes].chunks(PIECE_BYTES).for_each(|piece| all.update(Sha256::digest(piece)));
            let found = tree_sha256(&bytes[..n_bytes], &Progress::silent()).unwrap();
            let largest: Vec<u16> = bytes[..n_bytes].chunks(PIECE_BYTES).map(largest_magnitude).collect();
            assert_eq!(found, Tree { sha256: hex(&all.finalize()), largest }, "{n_bytes}");
        }
    }
}
