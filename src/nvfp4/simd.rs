//! A vector of F32 lanes in three sizes: the operations that the kernels need and no more. AVX-512 and AVX2 by intrinsics,
//! elsewhere (NEON, SSE2) arrays of eight that the compiler keeps in registers. [`dispatch`] runs a kernel with the widest
//! that the processor has.
//!
//! Every operation is one IEEE operation a lane; there is no fused multiply-add, so all three give the same bits.
#![expect(unsafe_code, reason = "vector intrinsics, in functions compiled for them")]

use super::e2m1;

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

/// Lanes of F32 (`F`), of U32 (`U`), and of truth values (`M`).
pub(super) trait Simd: Copy {
    /// The number of lanes.
    const LANES: usize;
    /// F32 lanes.
    type F: Copy;
    /// U32 lanes.
    type U: Copy;
    /// Truth values.
    type M: Copy;

    fn splat(x: f32) -> Self::F;
    fn splat_u(x: u32) -> Self::U;
    /// The first [`Simd::LANES`] numbers of a slice.
    fn load(from: &[f32]) -> Self::F;
    fn load_u(from: &[u32]) -> Self::U;
    fn store(x: Self::F, to: &mut [f32]);
    fn store_u(x: Self::U, to: &mut [u32]);
    /// E2M1 values of the lowest four bits.
    fn e2m1(codes: Self::U) -> Self::F;
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

    lanewise! {
        splat(x: f32) -> [f32; 8] = [x; 8];
        splat_u(x: u32) -> [u32; 8] = [x; 8];
        load(from: &[f32]) -> [f32; 8] = std::array::from_fn(|l| from[l]);
        load_u(from: &[u32]) -> [u32; 8] = std::array::from_fn(|l| from[l]);
        e2m1(codes: [u32; 8]) -> [f32; 8] = map(codes, |code| e2m1::decode(code as u8));
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

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Simd;
    use crate::nvfp4::e2m1;

    /// Eight lanes. Methods may only run where AVX2 is: [`super::dispatch`] sees to it.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx2;
    /// Sixteen lanes. Methods may only run where AVX-512 F, BW, DQ and VL are: [`super::dispatch`] sees to it.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx512;

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
            e2m1(codes: __m256i) -> __m256 = {
                // The permutation reads the lowest three bits of each lane.
                let magnitude = _mm256_permutevar8x32_ps(_mm256_loadu_ps(e2m1::MAGNITUDES.as_ptr()), codes);
                let sign = _mm256_slli_epi32::<28>(_mm256_and_si256(codes, _mm256_set1_epi32(8)));
                _mm256_or_ps(magnitude, _mm256_castsi256_ps(sign))
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
            // The permutation reads the lowest four bits of each lane.
            e2m1(codes: __m512i) -> __m512 = _mm512_permutexvar_ps(codes, _mm512_loadu_ps(e2m1::VALUES.as_ptr()));
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
    }
}
