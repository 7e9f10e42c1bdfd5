//! The grammar of hard cases: strings of pieces that have bitten tokenizers, or may.

use std::{collections::BTreeMap, sync::LazyLock};

/// By what is hard about them.
static PIECES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let pieces: BTreeMap<String, Vec<String>> = serde_json::from_str(include_str!("pieces.json")).unwrap();
    pieces.into_values().flatten().collect()
});

/// SplitMix64: the seed is all there is to a run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// A string of a few pieces of the grammar, of the tokenizer's own tokens, of single characters, some repeated.
pub fn string(random: &mut Random, tokens: &[String], added: &[String]) -> String {
    let mut text = String::new();
    for _ in 0..1 + random.below(12) {
        let piece = match random.below(20) {
            0..=11 => random.pick(&PIECES).clone(),
            12..=15 => random.pick(tokens).clone(),
            16 | 17 if !added.is_empty() => random.pick(added).clone(),
            18 => {
                // Part of an added token, which must not match.
                let part: Vec<char> = added.first().map(|a| a.chars().collect()).unwrap_or_default();
                part.iter().take(random.below(part.len() + 1)).collect()
            }
            _ => char::from_u32(random.below(0x3_0000) as u32).unwrap_or('x').to_string(),
        };
        // Long repeats are merged another way.
        let n = match random.below(60) {
            0..=4 => 1 + random.below(40),
            5 => 1 + random.below(300),
            _ => 1,
        };
        (0..n).for_each(|_| text.push_str(&piece));
    }
    text
}
