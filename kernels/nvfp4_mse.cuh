// The scale of the least error for blocks whose weights count alike.
//
// All candidates are tried in FP16, two weights at a time, and those are kept that could be best in spite of its rounding: in
// seven of eight blocks one. The others' candidates are listed in shared memory and shared out among the threads, which compute
// their errors as reference.rs does.
#pragma once

#include "nvfp4_block.cuh"

#define QUANTIZE_THREADS 256  // of a thread block
#define ROUGH_MIN_CODE 30     // of the max rule: no candidate is subnormal
#define MOST_PAIRS 1024       // blocks and candidates to compare exactly

__device__ __forceinline__ u32 mul_f16x2(u32 a, u32 b) {
    u32 r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
__device__ __forceinline__ u32 add_f16x2(u32 a, u32 b) {
    u32 r;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
__device__ __forceinline__ u32 fma_f16x2(u32 a, u32 b, u32 c) {
    u32 r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
__device__ __forceinline__ u32 max_bf16x2(u32 a, u32 b) {
    u32 r;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
__device__ __forceinline__ float sum_of_halves(u32 a) {
    float sum;
    asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %1;\n\tadd.rn.f16 l, l, h;\n\tcvt.f32.f16 %0, l;\n\t}" : "=f"(sum) : "r"(a));
    return sum;
}
__device__ __forceinline__ u32 f16_pair(float v) {  // v twice
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %1;" : "=r"(r) : "f"(v));
    return r;
}
__device__ __forceinline__ float low_f16(u32 pair) {
    float v;
    asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %1;\n\tcvt.f32.f16 %0, l;\n\t}" : "=f"(v) : "r"(pair));
    return v;
}

#define HALF_A_STEP 0x01000100

// Magnitudes times 2^-14 -> the nearest E2M1 times 2^-14, saturated at 6. Around 2^-14 FP16 is spaced as E2M1 is around 1, so
// that rounding to one bit behind the leading one is rounding to E2M1.
__device__ __forceinline__ u32 nearest_e2m1(u32 t, u32 half_a_step /* HALF_A_STEP */) {
    u32 r;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm("{\n\t.reg .b32 a;\n\tadd.u16x2 a, %1, %2;\n\tmin.u16x2 %0, a, %3;\n\t}" : "=r"(r) : "r"(t), "r"(half_a_step), "r"(0x0FFF0FFF));
#else
    asm("min.f16x2 %0, %1, %2;" : "=r"(r) : "r"(t), "r"(0x0E000E00));
    r += half_a_step;
#endif
    return r & 0xFE00FE00;
}

#define INFINITE __uint_as_float(0x7F800000)

// A candidate scale in FP16, in units in which the octave of a block's top candidate begins between 1/4 and 1/2: nothing that
// counts leaves the range of FP16.
struct __align__(16) RoughScale {
    u32 reciprocal;   // 2^-14 / scale, twice
    u32 negative;     // -2^14 * scale, twice
    float six_times;
    u32 half_a_step;  // HALF_A_STEP: a constant the compiler would move to a register again and again
};

// What a thread block shares.
struct Search {
    RoughScale scales[32];   // of candidate `code` where the top one is `top`: code - top / 8 * 8 + 24
    float factor, per_square;  // see prepare()
    float six, sixth;          // global scales, and its reciprocal: what the largest weight is divided by
    u32 n_pairs, end_pair;
    u32 pairs[MOST_PAIRS];   // thread << 8 | scale code; then the exact error

    // A rough error E and the true one, F, of the same scale: FP16 sums err by less than 8 * 2^-11; the quotient decides wrongly
    // next to a boundary only, which costs less than 2^-7 + 28 * (relative error of the reciprocal); and a scale that is
    // off by d moves F by less than t F + (1 + d^2 / t) d^2 (sum of squares of the weights), whatever t is: here 1/256. So
    // what has E > factor * (least E) + per_square * (sum of squares) is not best.
    __device__ __forceinline__ void prepare(float global_scale) {
        if (threadIdx.x >= 32) return;
        const u32 octave = threadIdx.x / 8, eighths = 8 + threadIdx.x % 8;
        const float unit = __uint_as_float((__float_as_uint(global_scale) & 0x7FFFFF) | 125 << 23);
        const float scale = unit * (float)eighths * __uint_as_float((124 - 3 + octave) << 23);
        const u32 rounded = f16_pair(scale), reciprocal = f16_pair(0x1p-14f / low_f16(rounded));
        const float scale_error = fabsf(low_f16(rounded) - scale) / scale;
        const float reciprocal_error = fabsf(low_f16(rounded) * low_f16(reciprocal) * 0x1p14f - 1);
        // The lowest two are none: clipping costs more than anything there.
        scales[threadIdx.x] = {reciprocal, f16_pair(low_f16(rounded) * -0x1p14f), threadIdx.x < 2 ? -INFINITE : 6 * scale, HALF_A_STEP};
        const float d = __uint_as_float(__reduce_max_sync(0xFFFFFFFF, __float_as_uint(scale_error)));
        const float r = __uint_as_float(__reduce_max_sync(0xFFFFFFFF, __float_as_uint(reciprocal_error)));
        if (threadIdx.x > 0) return;
        factor = (1 + 0x1p-7f + 28.5f * r) * 1.018f, per_square = 580 * d * d;
        six = __fmul_rn(E2M1_MAX, global_scale), sixth = __frcp_rn(six);
        n_pairs = 0, end_pair = MOST_PAIRS;
    }

    // Bit i: the code top - i may have the least error. From the top down, until clipping the largest weight alone costs more.
    __device__ __forceinline__ u32 candidates(const u32 v[BLOCK / 2], float largest, u32 top) const {
        u32 squares = mul_f16x2(v[0], v[0]);
#pragma unroll
        for (int i = 1; i < BLOCK / 2; i++) squares = fma_f16x2(v[i], v[i], squares);
        const float slack = __fmaf_rn(sum_of_halves(squares), per_square, 0x1p-18f);
        const RoughScale* next = &scales[top % 8 + 24];
        float best = INFINITE, limit = INFINITE;
        u32 bit = 1, found = 0;
#pragma unroll 1
        while (true) {
            const RoughScale scale = *next;
            const float over = largest - scale.six_times;
            if (over * fabsf(over) > limit) return found;
            u32 sums[2];
#pragma unroll
            for (int i = 0; i < BLOCK / 2; i++) {
                const u32 code = nearest_e2m1(mul_f16x2(v[i], scale.reciprocal), scale.half_a_step), d = fma_f16x2(code, scale.negative, v[i]);
                sums[i % 2] = i < 2 ? mul_f16x2(d, d) : fma_f16x2(d, d, sums[i % 2]);
            }
            const float error = sum_of_halves(add_f16x2(sums[0], sums[1])), high = __fmaf_rn(error, factor, slack);
            if (high < best) found = 0;
            if (error <= limit) found |= bit;
            best = fminf(best, error), limit = fminf(limit, high);
            next--, bit <<= 1;
        }
    }
};

// The magnitudes of a block of BF16 weights, in pairs, and the largest.
struct Magnitudes {
    u32 pairs[BLOCK / 2];
    float largest;

    __device__ __forceinline__ Magnitudes(const uint4* __restrict__ weights, u64 block) {
        const uint4 first = __ldg(weights + block * 2), second = __ldg(weights + block * 2 + 1);
        const u32 words[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
        u32 most = 0;
#pragma unroll
        for (int i = 0; i < BLOCK / 2; i++) pairs[i] = words[i] & 0x7FFF7FFF, most = max_bf16x2(most, pairs[i]);
        largest = __uint_as_float(max(most << 16, most & 0xFFFF0000));
    }

    // In FP16, exactly, in the units of RoughScale; what would be subnormal, and does not count, becomes 2^-14. Returns the largest.
    __device__ __forceinline__ float in_units(float global_scale, u32 top) {
        const int power = 127 + 5 - (int)(__float_as_uint(global_scale) >> 23) - (int)(top / 8);
        const u32 offset = (112 - power) * 0x00010001, least = offset * 128 + 0x00800080;
#pragma unroll
        for (int i = 0; i < BLOCK / 2; i++) pairs[i] = max_bf16x2(pairs[i], least) * 8 - offset * 1024;
        return largest * __uint_as_float((127 + power) << 23);
    }
};
