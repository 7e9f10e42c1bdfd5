//! A vector of F32 lanes in three sizes: the operations that the kernels need and no more. AVX-512 and AVX2 by intrinsics,
//! elsewhere (NEON, SSE2) arrays of eight that the compiler keeps in registers. [`dispatch`] runs a kernel with the widest
//! that the processor has.
//!
//! Every operation is one IEEE operation a lane; there is no fused multiply-add, so all three give the same bits.
#![expect(unsafe_code, reason = "vector intrinsics, in functions compiled for them")]

use super::{
    BLOCK,
    lanes::{Columns, MAX_LANES},
};
#[cfg(target_arch = "x86_64")]
use super::{simd_avx2::Avx2, simd_avx512::Avx512};

/// A computation written over [`Simd`]. `run` must be `#[inline(always)]`, to be compiled for each processor.
pub(super) trait Kernel {
    /// What it returns.
    type Out;
    fn run<S: Simd>(self) -> Self::Out;
}

/// Runs a kernel with the widest vectors of this processor.
pub(super) fn dispatch<K: Kernel>(kernel: K) -> K::Out {
    run_at(widest(), kernel)
}

/// Runs a kernel with these vectors, which the processor must have.
pub(super) fn run_at<K: Kernel>(level: Level, kernel: K) -> K::Out {
    assert!(level <= widest(), "{level:?} vectors on a processor without them");
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `widest` has seen the features.
        Level::Avx512 => unsafe { avx512(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx2 => unsafe { avx2(kernel) },
        Level::Portable => kernel.run::<Portable>(),
    }
}

/// The vectors that this processor has, narrowest first.
#[cfg(test)]
pub(super) fn levels() -> impl Iterator<Item = Level> {
    let all = [
        Level::Portable,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512,
    ];
    all.into_iter().filter(|&level| level <= widest())
}

/// The vectors that there are, narrowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

pub(super) fn widest() -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        if has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl") {
            return Level::Avx512;
        }
        if has!("avx2") {
            return Level::Avx2;
        }
    }
    Level::Portable
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn avx512<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Avx512>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Avx2>()
}

/// Lanes of F32 (`F`), of U32 (`U`), of truth values (`M`), and blocks of U16 (`B`).
pub(super) trait Simd: Copy {
    /// The number of lanes.
    const LANES: usize;
    /// F32 lanes.
    type F: Copy;
    /// U32 lanes.
    type U: Copy;
    /// Truth values.
    type M: Copy;
    /// The 16 numbers of a block, 16 bits each.
    type B: Copy;

    fn splat(x: f32) -> Self::F;
    fn splat_u(x: u32) -> Self::U;
    /// The first [`Simd::LANES`] numbers of a slice.
    fn load(from: &[f32]) -> Self::F;
    fn load_u(from: &[u32]) -> Self::U;
    fn store(x: Self::F, to: &mut [f32]);
    fn store_u(x: Self::U, to: &mut [u32]);
    fn add(a: Self::F, b: Self::F) -> Self::F;
    fn sub(a: Self::F, b: Self::F) -> Self::F;
    fn mul(a: Self::F, b: Self::F) -> Self::F;
    fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `if a < b { a } else { b }`
    fn min(a: Self::F, b: Self::F) -> Self::F;
    /// `if a > b { a } else { b }`
    fn max(a: Self::F, b: Self::F) -> Self::F;
    fn bits(a: Self::F) -> Self::U;
    fn from_bits(a: Self::U) -> Self::F;
    /// The numbers as F32; they are below 2^31.
    fn to_float(a: Self::U) -> Self::F;
    fn and(a: Self::U, b: Self::U) -> Self::U;
    fn or(a: Self::U, b: Self::U) -> Self::U;
    fn add_u(a: Self::U, b: Self::U) -> Self::U;
    fn sub_u(a: Self::U, b: Self::U) -> Self::U;
    /// The numbers are below 2^31.
    fn min_u(a: Self::U, b: Self::U) -> Self::U;
    /// The numbers are below 2^31.
    fn max_u(a: Self::U, b: Self::U) -> Self::U;
    fn shl<const N: u32>(a: Self::U) -> Self::U;
    fn shr<const N: u32>(a: Self::U) -> Self::U;
    /// `a < b`
    fn lt(a: Self::F, b: Self::F) -> Self::M;
    /// `a <= b`
    fn le(a: Self::F, b: Self::F) -> Self::M;
    /// `a < b`; the numbers are below 2^31.
    fn lt_u(a: Self::U, b: Self::U) -> Self::M;
    /// Both.
    fn both(a: Self::M, b: Self::M) -> Self::M;
    /// The first and not the second.
    fn except(a: Self::M, b: Self::M) -> Self::M;
    fn any(a: Self::M) -> bool;
    fn select(mask: Self::M, yes: Self::F, no: Self::F) -> Self::F;
    fn select_u(mask: Self::M, yes: Self::U, no: Self::U) -> Self::U;

    #[inline(always)]
    fn abs(x: Self::F) -> Self::F {
        Self::from_bits(Self::and(Self::bits(x), Self::splat_u(0x7FFF_FFFF)))
    }

    /// The first [`Simd::LANES`] of a slice of BF16 bits.
    #[inline(always)]
    fn load_bf16(from: &[u16]) -> Self::F {
        let mut wide = [0.0; MAX_LANES];
        wide.iter_mut().zip(from).for_each(|(wide, &bits)| *wide = f32::from_bits(u32::from(bits) << 16));
        Self::load(&wide)
    }

    /// Codes `first` to `first` + [`Simd::LANES`] of a block in the lowest four bits; those above may be anything.
    #[inline(always)]
    fn nibbles(codes: &[u8; BLOCK / 2], first: usize) -> Self::U {
        let mut nibbles = [0; MAX_LANES];
        let bytes = codes.iter().flat_map(|byte| [u32::from(byte & 0xF), u32::from(byte >> 4)]);
        nibbles.iter_mut().zip(bytes.skip(first)).for_each(|(nibble, code)| *nibble = code);
        Self::load_u(&nibbles)
    }

    /// Of each code, given by its lowest four bits, the value of its magnitude, with its sign.
    fn pick(values: &[f32; 8], codes: Self::U) -> Self::F;

    /// The largest magnitude of each of [`Simd::LANES`] blocks of BF16 numbers, as F32 bits.
    #[inline(always)]
    fn largest_of_blocks(blocks: &[[u16; BLOCK]]) -> Self::U {
        let mut largest = [0; MAX_LANES];
        for (largest, block) in largest.iter_mut().zip(blocks) {
            *largest = u32::from(block.iter().fold(0, |max, bits| max.max(bits & 0x7FFF))) << 16;
        }
        Self::load_u(&largest)
    }

    /// Has the processor fetch `N` numbers, which need not exist.
    #[inline(always)]
    fn prefetch<const N: usize>(_from: *const u16) {}

    fn load_block(block: &[u16; BLOCK]) -> Self::B;
    /// A block of zeros.
    fn zero_block() -> Self::B;
    /// BF16 bits without the sign.
    fn magnitudes(bits: Self::B) -> Self::B;
    /// One more where a magnitude is above its threshold; all are below 2^15.
    fn add_above(counts: Self::B, magnitudes: Self::B, thresholds: &[u16; BLOCK]) -> Self::B;
    /// The sum of a block's numbers.
    fn sum_block(block: Self::B) -> u64;
    /// The codes with the signs of `bits` where these are not zero, two in the lowest byte of each 32 bits, even | odd << 4.
    fn pair_signed(codes: Self::B, bits: Self::B) -> Self::B;
    /// Writes those bytes of four blocks.
    fn store_pairs(pairs: [Self::B; 4], bytes: &mut [u8; 4 * BLOCK / 2]);
    /// BF16 bits as F32 numbers, in as many vectors as it takes and in an order that [`Simd::columns`] undoes.
    fn widen_block(bits: Self::B) -> [Self::F; 2];
    /// The numbers of a block in the lowest 16 bits of lanes, those above may be anything; in the same order.
    fn spread_block(block: Self::B) -> [Self::U; 2];
    /// The lanes of [`Simd::widen_block`] in the order of a block.
    fn columns(lanes: [Self::F; 2]) -> [f32; BLOCK];
    /// Of each code, given by its lowest three bits, the value.
    fn pick_magnitude(values: &[f32; 8], codes: Self::U) -> Self::F;

    /// A vector of whole blocks of BF16 bits, transposed and widened.
    #[inline(always)]
    fn transpose_bf16(bits: &[u16], columns: &mut Columns) {
        for (lane, block) in bits.chunks_exact(BLOCK).take(Self::LANES).enumerate() {
            for (column, &bits) in columns.iter_mut().zip(block) {
                column[lane] = f32::from_bits(u32::from(bits) << 16);
            }
        }
    }

    /// Writes the codes of a vector of blocks, eight bytes each: elements 0..8 of every block, and 8..16.
    #[inline(always)]
    fn store_codes(words: [Self::U; 2], bytes: &mut [u8]) {
        let mut lanes = [[0; MAX_LANES]; 2];
        lanes.iter_mut().zip(words).for_each(|(lanes, word)| Self::store_u(word, lanes));
        for (lane, block) in bytes.chunks_exact_mut(BLOCK / 2).take(Self::LANES).enumerate() {
            block.copy_from_slice(&(u64::from(lanes[0][lane]) | u64::from(lanes[1][lane]) << 32).to_le_bytes());
        }
    }

    /// Writes a byte a lane; the numbers are below 256.
    #[inline(always)]
    fn store_bytes(x: Self::U, bytes: &mut [u8]) {
        let mut lanes = [0; MAX_LANES];
        Self::store_u(x, &mut lanes);
        bytes.iter_mut().zip(lanes).for_each(|(byte, lane)| *byte = lane as u8);
    }
}

/// Arrays of eight lanes.
#[derive(Clone, Copy)]
pub(super) struct Portable;

#[inline(always)]
fn map<T: Copy, R>(a: [T; 8], f: impl Fn(T) -> R) -> [R; 8] {
    a.map(f)
}

#[inline(always)]
fn zip<A: Copy, B: Copy, R>(a: [A; 8], b: [B; 8], f: impl Fn(A, B) -> R) -> [R; 8] {
    std::array::from_fn(|l| f(a[l], b[l]))
}

/// One method a line, each the same for every lane.
macro_rules! lanewise {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty = $body:expr;)*) => {
        $(#[inline(always)] fn $name($($arg: $ty),*) -> $out { $body })*
    };
}

impl Simd for Portable {
    const LANES: usize = 8;
    type F = [f32; 8];
    type U = [u32; 8];
    // Wide as the lanes, so that a select is a bitwise one.
    type M = [u32; 8];
    type B = [u16; BLOCK];

    lanewise! {
        load_block(block: &[u16; BLOCK]) -> [u16; BLOCK] = *block;
        zero_block() -> [u16; BLOCK] = [0; BLOCK];
        magnitudes(bits: [u16; BLOCK]) -> [u16; BLOCK] = bits.map(|bits| bits & 0x7FFF);
        add_above(counts: [u16; BLOCK], magnitudes: [u16; BLOCK], thresholds: &[u16; BLOCK]) -> [u16; BLOCK] =
            std::array::from_fn(|i| counts[i] + u16::from(magnitudes[i] > thresholds[i]));
        sum_block(block: [u16; BLOCK]) -> u64 = block.into_iter().map(u64::from).sum();
        widen_block(bits: [u16; BLOCK]) -> [[f32; 8]; 2] =
            std::array::from_fn(|half| std::array::from_fn(|l| f32::from_bits(u32::from(bits[8 * half + l]) << 16)));
        spread_block(block: [u16; BLOCK]) -> [[u32; 8]; 2] =
            std::array::from_fn(|half| std::array::from_fn(|l| u32::from(block[8 * half + l])));
        columns(lanes: [[f32; 8]; 2]) -> [f32; BLOCK] = std::array::from_fn(|i| lanes[i / 8][i % 8]);
        pick_magnitude(values: &[f32; 8], codes: [u32; 8]) -> [f32; 8] = map(codes, |code| values[code as usize % 8]);
        splat(x: f32) -> [f32; 8] = [x; 8];
        splat_u(x: u32) -> [u32; 8] = [x; 8];
        load(from: &[f32]) -> [f32; 8] = std::array::from_fn(|l| from[l]);
        load_u(from: &[u32]) -> [u32; 8] = std::array::from_fn(|l| from[l]);
        pick(values: &[f32; 8], codes: [u32; 8]) -> [f32; 8] =
            map(codes, |code| f32::from_bits(values[code as usize % 8].to_bits() ^ (code & 8) << 28));
        add(a: [f32; 8], b: [f32; 8]) -> [f32; 8] = zip(a, b, |a, b| a + b);
        sub(a: [f32; 8], b: [f32; 8]) -> [f32; 8] = zip(a, b, |a, b| a - b);
        mul(a: [f32; 8], b: [f32; 8]) -> [f32; 8] = zip(a, b, |a, b| a * b);
        div(a: [f32; 8], b: [f32; 8]) -> [f32; 8] = zip(a, b, |a, b| a / b);
        min(a: [f32; 8], b: [f32; 8]) -> [f32; 8] = zip(a, b, |a, b| if a < b { a } else { b });
        max(a: [f32; 8], b: [f32; 8]) -> [f32; 8] = zip(a, b, |a, b| if a > b { a } else { b });
        bits(a: [f32; 8]) -> [u32; 8] = map(a, f32::to_bits);
        from_bits(a: [u32; 8]) -> [f32; 8] = map(a, f32::from_bits);
        to_float(a: [u32; 8]) -> [f32; 8] = map(a, |a| a as i32 as f32);
        and(a: [u32; 8], b: [u32; 8]) -> [u32; 8] = zip(a, b, |a, b| a & b);
        or(a: [u32; 8], b: [u32; 8]) -> [u32; 8] = zip(a, b, |a, b| a | b);
        add_u(a: [u32; 8], b: [u32; 8]) -> [u32; 8] = zip(a, b, u32::wrapping_add);
        sub_u(a: [u32; 8], b: [u32; 8]) -> [u32; 8] = zip(a, b, u32::wrapping_sub);
        min_u(a: [u32; 8], b: [u32; 8]) -> [u32; 8] = zip(a, b, u32::min);
        max_u(a: [u32; 8], b: [u32; 8]) -> [u32; 8] = zip(a, b, u32::max);
        lt(a: [f32; 8], b: [f32; 8]) -> [u32; 8] = zip(a, b, |a, b| if a < b { u32::MAX } else { 0 });
        le(a: [f32; 8], b: [f32; 8]) -> [u32; 8] = zip(a, b, |a, b| if a <= b { u32::MAX } else { 0 });
        lt_u(a: [u32; 8], b: [u32; 8]) -> [u32; 8] = zip(a, b, |a, b| if a < b { u32::MAX } else { 0 });
        both(a: [u32; 8], b: [u32; 8]) -> [u32; 8] = zip(a, b, |a, b| a & b);
        except(a: [u32; 8], b: [u32; 8]) -> [u32; 8] = zip(a, b, |a, b| a & !b);
        any(a: [u32; 8]) -> bool = a.into_iter().fold(0, |any, a| any | a) != 0;
        select_u(mask: [u32; 8], yes: [u32; 8], no: [u32; 8]) -> [u32; 8] = zip(mask, zip(yes, no, |y, n| (y, n)), |m, (y, n)| y & m | n & !m);
        select(mask: [u32; 8], yes: [f32; 8], no: [f32; 8]) -> [f32; 8] = map(Self::select_u(mask, Self::bits(yes), Self::bits(no)), f32::from_bits);
    }

    #[inline(always)]
    fn pair_signed(codes: [u16; BLOCK], bits: [u16; BLOCK]) -> [u16; BLOCK] {
        let signed = |i: usize| codes[i] | if bits[i] & 0x7FFF > 0 { bits[i] >> 12 & 8 } else { 0 };
        std::array::from_fn(|i| if i % 2 == 0 { signed(i) | signed(i + 1) << 4 } else { 0 })
    }

    #[inline(always)]
    fn store_pairs(pairs: [[u16; BLOCK]; 4], bytes: &mut [u8; 4 * BLOCK / 2]) {
        for (byte, pair) in bytes.iter_mut().zip(pairs.as_flattened().as_chunks::<2>().0) {
            *byte = pair[0] as u8;
        }
    }

    #[inline(always)]
    fn store(x: [f32; 8], to: &mut [f32]) {
        to[..8].copy_from_slice(&x);
    }

    #[inline(always)]
    fn store_u(x: [u32; 8], to: &mut [u32]) {
        to[..8].copy_from_slice(&x);
    }

    #[inline(always)]
    fn shl<const N: u32>(a: [u32; 8]) -> [u32; 8] {
        map(a, |a| a << N)
    }

    #[inline(always)]
    fn shr<const N: u32>(a: [u32; 8]) -> [u32; 8] {
        map(a, |a| a >> N)
    }
}
