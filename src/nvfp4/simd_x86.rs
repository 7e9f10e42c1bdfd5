//! AVX2 and AVX-512: the intrinsics behind [`Simd`].
#![expect(unsafe_code, reason = "vector intrinsics, in functions compiled for them")]

use std::arch::x86_64::*;

use super::{
    lanes::{Columns, MAX_LANES},
    simd::Simd,
};

/// Eight lanes. Methods may only run where AVX2 is: [`super::simd::dispatch`] sees to it.
#[derive(Clone, Copy)]
pub(super) struct Avx2;
/// Sixteen lanes. Methods may only run where AVX-512 F, BW, DQ and VL are: [`super::simd::dispatch`] sees to it.
#[derive(Clone, Copy)]
pub(super) struct Avx512;

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

impl Simd for Avx2 {
    const LANES: usize = 8;
    type F = __m256;
    type U = __m256i;
    type M = __m256;

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
        largest_of_block(bits: &[u16; 16]) -> u16 = {
            let bits = _mm256_loadu_si256(bits.as_ptr().cast());
            let magnitudes = _mm256_and_si256(bits, _mm256_set1_epi16(0x7FFF));
            let largest = _mm_max_epu16(_mm256_castsi256_si128(magnitudes), _mm256_extracti128_si256::<1>(magnitudes));
            // There is an instruction for the smallest of eight: of their complements.
            let smallest = _mm_minpos_epu16(_mm_xor_si128(largest, _mm_set1_epi16(-1)));
            !(_mm_cvtsi128_si32(smallest) as u16)
        };
        count_above(blocks: &[[u16; 16]; 4], thresholds: [&[[u16; 16]; 7]; 4], codes: &mut [u8; 32]) -> () = {
            let mut pairs = [_mm256_setzero_si256(); 4];
            for (pair, (block, thresholds)) in pairs.iter_mut().zip(blocks.iter().zip(thresholds)) {
                *pair = count_above_avx2(block, thresholds);
            }
            let [a, b, c, d] = pairs;
            let bytes = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
            // Each half has four bytes of every block.
            let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
            _mm256_storeu_si256(codes.as_mut_ptr().cast(), bytes)
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

/// [`Simd::count_above`] of one block: eight pairs of codes, each `even | odd << 4` in 32 bits.
#[inline(always)]
fn count_above_avx2(block: &[u16; 16], thresholds: &[[u16; 16]; 7]) -> __m256i {
    // SAFETY: only called by AVX2's methods; every load is sixteen numbers.
    unsafe {
        let bits = _mm256_loadu_si256(block.as_ptr().cast());
        let magnitudes = _mm256_and_si256(bits, _mm256_set1_epi16(0x7FFF));
        let above = |threshold| _mm256_cmpgt_epi16(magnitudes, threshold);
        let is_negative = _mm256_and_si256(_mm256_srli_epi16::<12>(bits), _mm256_set1_epi16(8));
        let mut codes = _mm256_and_si256(is_negative, above(_mm256_setzero_si256()));
        for threshold in thresholds {
            // A comparison that holds is -1.
            codes = _mm256_sub_epi16(codes, above(_mm256_loadu_si256(threshold.as_ptr().cast())));
        }
        _mm256_madd_epi16(codes, _mm256_set1_epi32(0x0010_0001))
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

impl Simd for Avx512 {
    const LANES: usize = 16;
    type F = __m512;
    type U = __m512i;
    type M = __mmask16;

    intrinsics! {
        splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        splat_u(x: u32) -> __m512i = _mm512_set1_epi32(x as i32);
        load(from: &[f32]) -> __m512 = _mm512_loadu_ps(from[..16].as_ptr());
        load_u(from: &[u32]) -> __m512i = _mm512_loadu_si512(from[..16].as_ptr().cast());
        store(x: __m512, to: &mut [f32]) -> () = _mm512_storeu_ps(to[..16].as_mut_ptr(), x);
        load_bf16(from: &[u16]) -> __m512 = {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from[..16].as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        };
        nibbles(codes: &[u8; 8], _first: usize) -> __m512i = {
            let word = _mm512_set1_epi64(i64::from_le_bytes(*codes));
            // The lower word in the lower half, the upper in the upper.
            let words = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), word);
            let shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
            _mm512_srlv_epi32(words, shifts)
        };
        pick(values: &[f32; 8], codes: __m512i) -> __m512 = {
            let values = _mm512_castps256_ps512(_mm256_loadu_ps(values.as_ptr()));
            let magnitude = _mm512_permutexvar_ps(_mm512_and_si512(codes, _mm512_set1_epi32(7)), values);
            let sign = _mm512_and_si512(_mm512_slli_epi32::<28>(codes), _mm512_set1_epi32(i32::MIN));
            _mm512_xor_ps(magnitude, _mm512_castsi512_ps(sign))
        };
        store_u(x: __m512i, to: &mut [u32]) -> () = _mm512_storeu_si512(to[..16].as_mut_ptr().cast(), x);
        add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
        max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        bits(a: __m512) -> __m512i = _mm512_castps_si512(a);
        from_bits(a: __m512i) -> __m512 = _mm512_castsi512_ps(a);
        to_float(a: __m512i) -> __m512 = _mm512_cvtepi32_ps(a);
        and(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
        or(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
        add_u(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
        sub_u(a: __m512i, b: __m512i) -> __m512i = _mm512_sub_epi32(a, b);
        min_u(a: __m512i, b: __m512i) -> __m512i = _mm512_min_epi32(a, b);
        max_u(a: __m512i, b: __m512i) -> __m512i = _mm512_max_epi32(a, b);
        lt(a: __m512, b: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b);
        le(a: __m512, b: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(a, b);
        lt_u(a: __m512i, b: __m512i) -> __mmask16 = _mm512_cmplt_epi32_mask(a, b);
        select(mask: __mmask16, yes: __m512, no: __m512) -> __m512 = _mm512_mask_blend_ps(mask, no, yes);
        select_u(mask: __mmask16, yes: __m512i, no: __m512i) -> __m512i = _mm512_mask_blend_epi32(mask, no, yes);
    }

    // A block is half a vector: AVX2 does it as well.
    #[inline(always)]
    fn largest_of_block(bits: &[u16; 16]) -> u16 {
        Avx2::largest_of_block(bits)
    }

    #[inline(always)]
    fn count_above(blocks: &[[u16; 16]; 4], thresholds: [&[[u16; 16]; 7]; 4], codes: &mut [u8; 32]) {
        Avx2::count_above(blocks, thresholds, codes);
    }

    #[inline(always)]
    fn both(a: __mmask16, b: __mmask16) -> __mmask16 {
        a & b
    }

    #[inline(always)]
    fn except(a: __mmask16, b: __mmask16) -> __mmask16 {
        a & !b
    }

    #[inline(always)]
    fn any(a: __mmask16) -> bool {
        a != 0
    }

    #[inline(always)]
    fn shl<const N: u32>(a: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_slli_epi32::<N>(a) }
    }

    #[inline(always)]
    fn shr<const N: u32>(a: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_srli_epi32::<N>(a) }
    }

    #[inline(always)]
    fn transpose_bf16(bits: &[u16], columns: &mut Columns) {
        let bits = &bits[..16 * 16];
        // SAFETY: as above; each load is 16 of the 256 numbers, each store a whole column.
        unsafe {
            // As with AVX2, in the lower half blocks 0..8, in the upper one 8..16.
            let mut rows = [_mm512_setzero_si512(); 8];
            for (i, row) in rows.iter_mut().enumerate() {
                let low = _mm256_loadu_si256(bits.as_ptr().add(16 * i).cast());
                let high = _mm256_loadu_si256(bits.as_ptr().add(16 * (i + 8)).cast());
                *row = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
            }
            for i in [0, 2, 4, 6] {
                let (a, b) = (rows[i], rows[i + 1]);
                (rows[i], rows[i + 1]) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            }
            let [a, b, c, d, e, f, g, h] = rows;
            let low = [
                _mm512_unpacklo_epi64(a, c),
                _mm512_unpackhi_epi64(a, c),
                _mm512_unpacklo_epi64(b, d),
                _mm512_unpackhi_epi64(b, d),
            ];
            let high = [
                _mm512_unpacklo_epi64(e, g),
                _mm512_unpackhi_epi64(e, g),
                _mm512_unpacklo_epi64(f, h),
                _mm512_unpackhi_epi64(f, h),
            ];
            let (even, odd) =
                (_mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13), _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15));
            for pair in 0..4 {
                let (a, b) = (low[pair], high[pair]);
                store_pair_avx512(_mm512_permutex2var_epi64(a, even, b), columns, 2 * pair);
                store_pair_avx512(_mm512_permutex2var_epi64(a, odd, b), columns, 2 * pair + 8);
            }
        }
    }

    #[inline(always)]
    fn store_bytes(x: __m512i, bytes: &mut [u8]) {
        let bytes = &mut bytes[..16];
        // SAFETY: as above; the store is the 16 bytes.
        unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(x)) }
    }

    #[inline(always)]
    fn store_codes([first, second]: [__m512i; 2], bytes: &mut [u8]) {
        let bytes = &mut bytes[..128];
        // SAFETY: as above; the stores are the 128 bytes.
        unsafe {
            let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
            _mm512_storeu_si512(bytes.as_mut_ptr().cast(), _mm512_permutex2var_epi32(first, low, second));
            _mm512_storeu_si512(bytes.as_mut_ptr().add(64).cast(), _mm512_permutex2var_epi32(first, high, second));
        }
    }
}

/// Splits lanes of two BF16 numbers into columns `first` and `first + 1`.
#[inline(always)]
fn store_pair_avx512(pair: __m512i, columns: &mut Columns, first: usize) {
    const { assert!(MAX_LANES == 16) };
    // SAFETY: only called by AVX-512's methods; a column has 16 lanes.
    unsafe {
        let high = _mm512_and_si512(pair, _mm512_set1_epi32(0xFFFF_0000_u32.cast_signed()));
        _mm512_storeu_si512(columns[first].as_mut_ptr().cast(), _mm512_slli_epi32::<16>(pair));
        _mm512_storeu_si512(columns[first + 1].as_mut_ptr().cast(), high);
    }
}
