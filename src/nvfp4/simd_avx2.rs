//! AVX2: the intrinsics behind [`Simd`].
#![expect(unsafe_code, reason = "vector intrinsics, in functions compiled for them")]

use std::arch::x86_64::*;

use super::{lanes::Columns, simd::Simd};

/// Eight lanes. Methods may only run where AVX2 is: [`super::simd::dispatch`] sees to it.
#[derive(Clone, Copy)]
pub(super) struct Avx2;

/// One intrinsic a method. The caller of the trait has checked the processor.
macro_rules! intrinsics {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty = $body:expr;)*) => {
        $(#[inline(always)] fn $name($($arg: $ty),*) -> $out {
            // SAFETY: `dispatch` names this type only in a function compiled for its features, and calls that
            // only where the processor has them.
            unsafe { $body }
        })*
    };
}
pub(super) use intrinsics;

impl Simd for Avx2 {
    const LANES: usize = 8;
    type F = __m256;
    type U = __m256i;
    type M = __m256;
    type B = __m256i;

    intrinsics! {
        splat(x: f32) -> __m256 = _mm256_set1_ps(x);
        splat_u(x: u32) -> __m256i = _mm256_set1_epi32(x as i32);
        load(from: &[f32]) -> __m256 = _mm256_loadu_ps(from[..8].as_ptr());
        load_u(from: &[u32]) -> __m256i = _mm256_loadu_si256(from[..8].as_ptr().cast());
        store(x: __m256, to: &mut [f32]) -> () = _mm256_storeu_ps(to[..8].as_mut_ptr(), x);
        load_bf16(from: &[u16]) -> __m256 = {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from[..8].as_ptr().cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        };
        nibbles(codes: &[u8; 8], first: usize) -> __m256i = {
            let word = i32::from_le_bytes([0, 1, 2, 3].map(|i| codes[first / 2 + i]));
            _mm256_srlv_epi32(_mm256_set1_epi32(word), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28))
        };
        pick(values: &[f32; 8], codes: __m256i) -> __m256 = {
            // The permutation reads the lowest three bits of each lane.
            let magnitude = _mm256_permutevar8x32_ps(_mm256_loadu_ps(values.as_ptr()), codes);
            let sign = _mm256_and_si256(_mm256_slli_epi32::<28>(codes), _mm256_set1_epi32(i32::MIN));
            _mm256_xor_ps(magnitude, _mm256_castsi256_ps(sign))
        };
        load_block(block: &[u16; 16]) -> __m256i = _mm256_loadu_si256(block.as_ptr().cast());
        zero_block() -> __m256i = _mm256_setzero_si256();
        magnitudes(bits: __m256i) -> __m256i = _mm256_and_si256(bits, _mm256_set1_epi16(0x7FFF));
        // A comparison that holds is -1.
        add_above(counts: __m256i, magnitudes: __m256i, thresholds: &[u16; 16]) -> __m256i = _mm256_sub_epi16(
            counts, _mm256_cmpgt_epi16(magnitudes, _mm256_loadu_si256(thresholds.as_ptr().cast())));
        largest_of_blocks(blocks: &[[u16; 16]]) -> __m256i = {
            let largest = largest_of_eight(&blocks[..8]);
            _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(largest))
        };
        pair_signed(codes: __m256i, bits: __m256i) -> __m256i = {
            // The magnitudes of what is negative.
            let negative = _mm256_subs_epu16(bits, _mm256_set1_epi16(i16::MIN));
            let is_negative = _mm256_cmpgt_epi16(negative, _mm256_setzero_si256());
            let signed = _mm256_or_si256(codes, _mm256_and_si256(is_negative, _mm256_set1_epi16(8)));
            _mm256_madd_epi16(signed, _mm256_set1_epi32(0x0010_0001))
        };
        store_pairs(pairs: [__m256i; 4], bytes: &mut [u8; 32]) -> () = {
            let [a, b, c, d] = pairs;
            let packed = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
            // Each half has four bytes of every block.
            let packed = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
            _mm256_storeu_si256(bytes.as_mut_ptr().cast(), packed)
        };
        // Elements 0..4 and 8..12, and the others.
        widen_block(bits: __m256i) -> [__m256; 2] = {
            let zero = _mm256_setzero_si256();
            let halves = [_mm256_unpacklo_epi16(zero, bits), _mm256_unpackhi_epi16(zero, bits)];
            [_mm256_castsi256_ps(halves[0]), _mm256_castsi256_ps(halves[1])]
        };
        spread_block(block: __m256i) -> [__m256i; 2] =
            [_mm256_unpacklo_epi16(block, block), _mm256_unpackhi_epi16(block, block)];
        pick_magnitude(values: &[f32; 8], codes: __m256i) -> __m256 =
            _mm256_permutevar8x32_ps(_mm256_loadu_ps(values.as_ptr()), codes);
        columns(lanes: [__m256; 2]) -> [f32; 16] = {
            let mut columns = [0.0; 16];
            let [low, high] = lanes;
            _mm256_storeu_ps(columns.as_mut_ptr(), _mm256_permute2f128_ps::<0x20>(low, high));
            _mm256_storeu_ps(columns[8..].as_mut_ptr(), _mm256_permute2f128_ps::<0x31>(low, high));
            columns
        };
        sum_block(block: __m256i) -> u64 = {
            let sums = _mm256_madd_epi16(block, _mm256_set1_epi16(1));
            let sums = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
            let sums = _mm_add_epi32(sums, _mm_shuffle_epi32::<0b0100_1110>(sums));
            u64::from((_mm_cvtsi128_si32(sums) + _mm_extract_epi32::<1>(sums)).cast_unsigned())
        };
        store_u(x: __m256i, to: &mut [u32]) -> () = _mm256_storeu_si256(to[..8].as_mut_ptr().cast(), x);
        add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
        sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
        mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
        div(a: __m256, b: __m256) -> __m256 = _mm256_div_ps(a, b);
        min(a: __m256, b: __m256) -> __m256 = _mm256_min_ps(a, b);
        max(a: __m256, b: __m256) -> __m256 = _mm256_max_ps(a, b);
        bits(a: __m256) -> __m256i = _mm256_castps_si256(a);
        from_bits(a: __m256i) -> __m256 = _mm256_castsi256_ps(a);
        to_float(a: __m256i) -> __m256 = _mm256_cvtepi32_ps(a);
        and(a: __m256i, b: __m256i) -> __m256i = _mm256_and_si256(a, b);
        or(a: __m256i, b: __m256i) -> __m256i = _mm256_or_si256(a, b);
        add_u(a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32(a, b);
        sub_u(a: __m256i, b: __m256i) -> __m256i = _mm256_sub_epi32(a, b);
        min_u(a: __m256i, b: __m256i) -> __m256i = _mm256_min_epi32(a, b);
        max_u(a: __m256i, b: __m256i) -> __m256i = _mm256_max_epi32(a, b);
        lt(a: __m256, b: __m256) -> __m256 = _mm256_cmp_ps::<_CMP_LT_OQ>(a, b);
        le(a: __m256, b: __m256) -> __m256 = _mm256_cmp_ps::<_CMP_LE_OQ>(a, b);
        lt_u(a: __m256i, b: __m256i) -> __m256 = _mm256_castsi256_ps(_mm256_cmpgt_epi32(b, a));
        both(a: __m256, b: __m256) -> __m256 = _mm256_and_ps(a, b);
        except(a: __m256, b: __m256) -> __m256 = _mm256_andnot_ps(b, a);
        any(a: __m256) -> bool = _mm256_movemask_ps(a) != 0;
        select(mask: __m256, yes: __m256, no: __m256) -> __m256 = _mm256_blendv_ps(no, yes, mask);
        select_u(mask: __m256, yes: __m256i, no: __m256i) -> __m256i = _mm256_castps_si256(
            _mm256_blendv_ps(_mm256_castsi256_ps(no), _mm256_castsi256_ps(yes), mask));
    }

    #[inline(always)]
    fn prefetch<const N: usize>(from: *const u16) {
        for line in (0..N).step_by(32) {
            // SAFETY: as above; an address that is not mapped is left alone.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(line).cast()) }
        }
    }

    #[inline(always)]
    fn shl<const N: u32>(a: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_sll_epi32(a, _mm_cvtsi32_si128(N as i32)) }
    }

    #[inline(always)]
    fn shr<const N: u32>(a: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_srl_epi32(a, _mm_cvtsi32_si128(N as i32)) }
    }

    #[inline(always)]
    fn transpose_bf16(bits: &[u16], columns: &mut Columns) {
        let bits = &bits[..8 * 16];
        // SAFETY: as above; each load is 16 of the 128 numbers, each store the first 8 of a column's 16.
        unsafe {
            // A lane of 32 bits holds two elements; eight blocks of eight such pairs are transposed.
            let mut rows = [_mm256_setzero_si256(); 8];
            for (i, row) in rows.iter_mut().enumerate() {
                *row = _mm256_loadu_si256(bits.as_ptr().add(16 * i).cast());
            }
            for i in [0, 2, 4, 6] {
                let (a, b) = (rows[i], rows[i + 1]);
                (rows[i], rows[i + 1]) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            }
            let [a, b, c, d, e, f, g, h] = rows;
            let low = [
                _mm256_unpacklo_epi64(a, c),
                _mm256_unpackhi_epi64(a, c),
                _mm256_unpacklo_epi64(b, d),
                _mm256_unpackhi_epi64(b, d),
            ];
            let high = [
                _mm256_unpacklo_epi64(e, g),
                _mm256_unpackhi_epi64(e, g),
                _mm256_unpacklo_epi64(f, h),
                _mm256_unpackhi_epi64(f, h),
            ];
            for pair in 0..4 {
                let (a, b) = (low[pair], high[pair]);
                store_pair_avx2(_mm256_permute2x128_si256::<0x20>(a, b), columns, 2 * pair);
                store_pair_avx2(_mm256_permute2x128_si256::<0x31>(a, b), columns, 2 * pair + 8);
            }
        }
    }

    #[inline(always)]
    fn store_codes([first, second]: [__m256i; 2], bytes: &mut [u8]) {
        let bytes = &mut bytes[..64];
        // SAFETY: as above; the stores are the 64 bytes.
        unsafe {
            let (low, high) = (_mm256_unpacklo_epi32(first, second), _mm256_unpackhi_epi32(first, second));
            // Blocks 0, 1, 4, 5 and 2, 3, 6, 7.
            _mm256_storeu_si256(bytes.as_mut_ptr().cast(), _mm256_permute2x128_si256::<0x20>(low, high));
            _mm256_storeu_si256(bytes.as_mut_ptr().add(32).cast(), _mm256_permute2x128_si256::<0x31>(low, high));
        }
    }

    #[inline(always)]
    fn store_bytes(x: __m256i, bytes: &mut [u8]) {
        // SAFETY: as above.
        let word = unsafe {
            let words = _mm256_permute4x64_epi64::<0x08>(_mm256_packus_epi32(x, x));
            let words = _mm256_castsi256_si128(words);
            _mm_cvtsi128_si64(_mm_packus_epi16(words, words))
        };
        bytes[..8].copy_from_slice(&word.to_le_bytes());
    }
}

/// The largest magnitudes of eight blocks, as bits.
#[inline(always)]
pub(super) fn largest_of_eight(blocks: &[[u16; 16]]) -> __m128i {
    // SAFETY: only called by methods of AVX2 and AVX-512; every load is a block.
    unsafe {
        let mut rows = [_mm256_setzero_si256(); 8];
        for (row, block) in rows.iter_mut().zip(blocks) {
            *row = Avx2::magnitudes(_mm256_loadu_si256(block.as_ptr().cast()));
        }
        // As if to transpose, but what would be two vectors is their larger numbers: halves of halves of blocks.
        for i in [0, 2, 4, 6] {
            let (a, b) = (rows[i], rows[i + 1]);
            rows[i] = _mm256_max_epu16(_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b));
        }
        for i in [0, 4] {
            let (a, b) = (rows[i], rows[i + 2]);
            rows[i] = _mm256_max_epu16(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        }
        let (a, b) = (rows[0], rows[4]);
        let largest = _mm256_max_epu16(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
        _mm_max_epu16(_mm256_castsi256_si128(largest), _mm256_extracti128_si256::<1>(largest))
    }
}

/// Splits lanes of two BF16 numbers into columns `first` and `first + 1`.
#[inline(always)]
fn store_pair_avx2(pair: __m256i, columns: &mut Columns, first: usize) {
    // SAFETY: only called by AVX2's methods; a column has 16 lanes, of which the first 8 are stored.
    unsafe {
        let high = _mm256_and_si256(pair, _mm256_set1_epi32(0xFFFF_0000_u32.cast_signed()));
        _mm256_storeu_si256(columns[first].as_mut_ptr().cast(), _mm256_slli_epi32::<16>(pair));
        _mm256_storeu_si256(columns[first + 1].as_mut_ptr().cast(), high);
    }
}
