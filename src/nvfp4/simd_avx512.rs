//! AVX-512: the intrinsics behind [`Simd`]. Blocks of 16-bit numbers are half a vector: AVX2 does those as well.
#![expect(unsafe_code, reason = "vector intrinsics, in functions compiled for them")]

use std::arch::x86_64::*;

use super::{
    lanes::{Columns, MAX_LANES},
    simd::Simd,
    simd_avx2::{Avx2, intrinsics, largest_of_eight},
};

/// Sixteen lanes. Methods may only run where AVX-512 F, BW, DQ and VL are: [`super::simd::dispatch`] sees to it.
#[derive(Clone, Copy)]
pub(super) struct Avx512;

impl Simd for Avx512 {
    const LANES: usize = 16;
    type F = __m512;
    type U = __m512i;
    type M = __mmask16;
    type B = __m256i;

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
        largest_of_blocks(blocks: &[[u16; 16]]) -> __m512i = {
            let (first, second) = (largest_of_eight(&blocks[..8]), largest_of_eight(&blocks[8..16]));
            _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_set_m128i(second, first)))
        };
        widen_block(bits: __m256i) -> [__m512; 2] = {
            let wide = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits));
            [_mm512_castsi512_ps(wide), _mm512_setzero_ps()]
        };
        spread_block(block: __m256i) -> [__m512i; 2] = [_mm512_cvtepu16_epi32(block), _mm512_setzero_si512()];
        pick_magnitude(values: &[f32; 8], codes: __m512i) -> __m512 = {
            // Sixteen values, the eight twice: so the permutation reads the lowest three bits.
            let values = _mm512_broadcast_f32x8(_mm256_loadu_ps(values.as_ptr()));
            _mm512_permutexvar_ps(codes, values)
        };
        columns(lanes: [__m512; 2]) -> [f32; 16] = {
            let mut columns = [0.0; 16];
            _mm512_storeu_ps(columns.as_mut_ptr(), lanes[0]);
            columns
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

    #[inline(always)]
    fn prefetch<const N: usize>(from: *const u16) {
        Avx2::prefetch::<N>(from);
    }

    #[inline(always)]
    fn load_block(block: &[u16; 16]) -> __m256i {
        Avx2::load_block(block)
    }

    #[inline(always)]
    fn zero_block() -> __m256i {
        Avx2::zero_block()
    }

    #[inline(always)]
    fn magnitudes(bits: __m256i) -> __m256i {
        Avx2::magnitudes(bits)
    }

    #[inline(always)]
    fn add_above(counts: __m256i, magnitudes: __m256i, thresholds: &[u16; 16]) -> __m256i {
        Avx2::add_above(counts, magnitudes, thresholds)
    }

    #[inline(always)]
    fn sum_block(block: __m256i) -> u64 {
        Avx2::sum_block(block)
    }

    #[inline(always)]
    fn pair_signed(codes: __m256i, bits: __m256i) -> __m256i {
        Avx2::pair_signed(codes, bits)
    }

    #[inline(always)]
    fn store_pairs(pairs: [__m256i; 4], bytes: &mut [u8; 32]) {
        Avx2::store_pairs(pairs, bytes);
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
