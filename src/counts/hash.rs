//! A fast hash for keys that nobody chooses against us twice: multiply, fold the halves.
//!
//! Texts can be hostile, tables stay correct then and only slow; the vocabulary is as trusted as the model.

use std::hash::Hasher;

const K: u64 = 0x9e37_79b9_7f4a_7c15;

/// Multiplies and adds the halves of the product.
#[inline]
pub fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ (product >> 64) as u64
}

/// The hash of a key of at most 15 bytes with its length on top.
#[inline]
pub fn of_key(key: u128) -> u64 {
    fold(key as u64 ^ K, (key >> 64) as u64 ^ 0xd6e8_feb8_6659_fd93)
}

/// The hash of a key of at most 7 bytes with its length on top.
#[inline]
pub fn of_short_key(key: u64) -> u64 {
    fold(key, K)
}

/// The hash of a long string.
pub fn of_bytes(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut tail = [0; 8];
    tail[..rest.len()].copy_from_slice(rest);
    let words = words.iter().chain(std::iter::once(&tail));
    words.fold(K ^ bytes.len() as u64, |hash, word| fold(hash ^ u64::from_le_bytes(*word), K))
}

/// The same for `HashMap`.
#[derive(Default)]
pub struct Folded(u64);

impl Hasher for Folded {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = fold(self.0 ^ of_bytes(bytes), K);
    }
    fn write_u8(&mut self, _: u8) {} // the end mark of `str`; the length is in the hash already
    fn finish(&self) -> u64 {
        self.0
    }
}
