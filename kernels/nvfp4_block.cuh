// One block of 16 as `src/nvfp4/reference.rs` computes with it: scales, codes, quotients, the error of a scale. That file is the
// specification, and the order of every FP32 operation below is its order. Compile with --fmad=false: a fused multiply-add is
// used only where it is written.
//
// Divisions by a block's step are IEEE. BF16 has 8 significant bits, so a reciprocal, one multiplication and one
// remainder give the correctly rounded quotient: lab/quantize_lab.cu compares all 2^7 * 2^23 pairs of significands with
// the division instruction. Where exponents could leave the range in which that holds, the division itself is used.
#pragma once

#include "nvfp4.cuh"

#define ONE_CODE 0x38             // E4M3 1.0
#define MAX_CODE 0x7E             // E4M3 448
#define CODES_ABOVE_MAX_RULE 7    // larger scales cannot be better: reference.rs says why

// --------------------------------------------------------------------------------------------- numbers

__device__ __forceinline__ float e4m3_decode(u32 code) {  // 0..126
    return code < 8 ? (float)code * (1.0f / 512) : __uint_as_float((code + (120 << 3)) << 20);
}

// The nearest code of x >= 0, ties to even; above 448 the largest.
__device__ __forceinline__ u32 e4m3_encode(float x) {
    x = fminf(x, E4M3_MAX);
    if (x < 8.0f / 512) return __float_as_uint(x + 16384.0f) - __float_as_uint(16384.0f);
    u32 bits = __float_as_uint(x);
    return ((bits + 0x7FFFF + (bits >> 20 & 1)) >> 20) - (120 << 3);
}

// What rounding |y| to E2M1 needs: |y| + 2^22 * max(2^e, 1), where the sum's last bit is the grid's spacing at |y|.
// Saturated at 6; ties go to the even code.
struct Rounded {
    float power, shifted;

    __device__ __forceinline__ explicit Rounded(float y) {
        float a = fminf(fabsf(y), E2M1_MAX);
        power = __uint_as_float(max(__float_as_uint(a) & 0x7F800000, 0x3F800000));
        shifted = __fmaf_rn(power, 4194304.0f, a);
    }
    __device__ __forceinline__ float magnitude() const { return __fmaf_rn(power, -4194304.0f, shifted); }
    __device__ __forceinline__ u32 code_plus_298() const {  // without the sign
        u32 bits = __float_as_uint(shifted);
        return (bits & 7) + (bits >> 22);
    }
    __device__ __forceinline__ u32 code() const { return code_plus_298() - 298; }
};

__device__ __forceinline__ float quotient(float x, float step, float reciprocal /* __frcp_rn(step) */) {
    float q = __fmul_rn(x, reciprocal);
    return __fmaf_rn(__fmaf_rn(-q, step, x), reciprocal, q);
}

// Division by the step of a block.
template <bool FAST>
struct Step {
    float step, reciprocal;

    __device__ __forceinline__ explicit Step(float step) : step(step), reciprocal(FAST ? __frcp_rn(step) : 0) {}
    __device__ __forceinline__ Step(u32 code, float global_scale) : Step(__fmul_rn(e4m3_decode(code), global_scale)) {}
    __device__ __forceinline__ float divide(float x) const {
        return FAST ? quotient(x, step, reciprocal) : __fdiv_rn(x, step);
    }
};

// Whether Step<true> divides all of a block's weights: no remainder is so small that it cannot be said. MAX_RULE and pack()
// compare quotients with 1/4 and up only, which the last bit of a tiny one does not touch.
__device__ __forceinline__ bool divides_exactly(const float x[BLOCK]) {
    float smallest = 1;
#pragma unroll
    for (int i = 0; i < BLOCK; i++)
        if (x[i] != 0) smallest = fminf(smallest, fabsf(x[i]));
    return smallest >= 0x1p-90f;
}

// --------------------------------------------------------------------------------------------- one block

struct Error {
    float all, clipping;
};

__device__ __forceinline__ float square(float x) { return __fmul_rn(x, x); }

// The weighted squared error at a scale, in units of the global scale squared, and the part of it from clipping at 6.
// Where half of the block alone errs more than `limit`, that half's figures: sums only grow.
template <bool WEIGHTED, bool FAST>
__device__ __forceinline__ Error block_error(const float x[BLOCK], const float* importance, u32 code, float global_scale,
                                             float limit) {
    const Step<FAST> step(code, global_scale);
    const float unit = square(e4m3_decode(code));
    float error = 0, clipping = 0;
    auto add = [&](int i) {
        float y = fabsf(step.divide(x[i]));
        float cost = square(__fsub_rn(Rounded(y).magnitude(), y));
        if (WEIGHTED) cost = __fmul_rn(importance[i], cost);
        error = __fadd_rn(error, cost);
        if (y > E2M1_MAX) clipping = __fadd_rn(clipping, cost);
    };
#pragma unroll
    for (int i = 0; i < BLOCK / 2; i++) add(i);
    if (__fmul_rn(error, unit) <= limit) {
#pragma unroll
        for (int i = BLOCK / 2; i < BLOCK; i++) add(i);
    }
    return {__fmul_rn(error, unit), __fmul_rn(clipping, unit)};
}

// Of weights that count alike, as the reference computes it.
__device__ __forceinline__ float exact_error(const float x[BLOCK], u32 code, float global_scale) {
    const float infinity = __uint_as_float(0x7F800000);
    return divides_exactly(x) ? block_error<false, true>(x, nullptr, code, global_scale, infinity).all
                              : block_error<false, false>(x, nullptr, code, global_scale, infinity).all;
}

// Two codes a byte, the even column in the low nibble. As ModelOpt, -0.0 becomes 0 and a negative number that rounds to
// zero 8.
template <bool FAST>
__device__ __forceinline__ uint2 pack(const float x[BLOCK], const Step<FAST>& step) {
    u32 words[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 word = 298 * 0xEEEEEEEF /* -298 for each code */, signs = 0;
#pragma unroll
        for (int i = 7; i >= 0; i--) {
            const float y = step.divide(x[half * 8 + i]);
            word += Rounded(y).code_plus_298() << 4 * i;
            // a quotient may vanish, but not where FAST is right, and no weight is -0.0: see load_block()
            signs = __funnelshift_l(FAST || y < 0 ? __float_as_uint(x[half * 8 + i]) : 0, signs, 4);
        }
        words[half] = word | (signs & 0x88888888);
    }
    return make_uint2(words[0], words[1]);
}
