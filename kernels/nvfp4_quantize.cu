// Rows of BF16 (or F32) weights -> NVFP4, the same bytes as `src/nvfp4/reference.rs`: that file is the specification, and the
// order of every FP32 operation below is its order. Compile with --fmad=false: a fused multiply-add is used only where
// it is written.
//
// One thread, one block of 16: reads 32 bytes of BF16, writes 8 bytes of codes and one scale. Bytes moved: N * K * (2 + 9/16).
//
// Divisions by a block's step are IEEE. BF16 has 8 significant bits, so a reciprocal, one multiplication and one
// remainder give the correctly rounded quotient: lab/quantize_lab.cu compares all 2^7 * 2^23 pairs of significands with
// the division instruction. Where exponents could leave the range in which that holds, the division itself is used.

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
    __device__ __forceinline__ u32 code() const {  // without the sign
        u32 bits = __float_as_uint(shifted);
        return (bits & 7) + (bits >> 22) - 298;
    }
};

// Division by the step of a block.
template <bool FAST>
struct Step {
    float step, reciprocal;

    __device__ __forceinline__ Step(u32 code, float global_scale) {
        step = __fmul_rn(e4m3_decode(code), global_scale);
        reciprocal = FAST ? __frcp_rn(step) : 0;
    }
    __device__ __forceinline__ float divide(float x) const {
        if (!FAST) return __fdiv_rn(x, step);
        float q = __fmul_rn(x, reciprocal);
        return __fmaf_rn(__fmaf_rn(-q, step, x), reciprocal, q);
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

// The scale code of the least error, the smaller of equals. From the top down until clipping alone costs more; the max
// rule's code goes first, because its error is a limit that most others soon exceed.
template <bool WEIGHTED, bool FAST>
__device__ __forceinline__ u32 least_error(const float x[BLOCK], const float* importance, float amax, float global_scale,
                                           u32 max_rule, u32 min_code) {
    const float infinity = __uint_as_float(0x7F800000);
    u32 best = max_rule;
    float best_error = block_error<WEIGHTED, FAST>(x, importance, max_rule, global_scale, infinity).all;
#pragma unroll 1
    for (u32 code = min(max_rule + CODES_ABOVE_MAX_RULE, MAX_CODE); code >= min_code; code--) {
        if (code == max_rule) continue;
        if (!WEIGHTED && code < max_rule) {  // the largest weight alone may settle it
            float y = Step<FAST>(code, global_scale).divide(amax);
            if (y > E2M1_MAX && __fmul_rn(square(__fsub_rn(y, E2M1_MAX)), square(e4m3_decode(code))) > best_error) break;
        }
        Error error = block_error<WEIGHTED, FAST>(x, importance, code, global_scale, best_error);
        if (error.all < best_error || (error.all == best_error && code < best)) best = code, best_error = error.all;
        if (error.clipping > best_error) break;
    }
    return best;
}

__device__ __forceinline__ float rough_reciprocal(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
__device__ __forceinline__ float rough_root(float x) {
    float r;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

// The squared error of a block at a step, in units of the step squared, but for less than 2^-14: neither division nor
// rounding is exact here. Just above zero floats are spaced as E2M1 is below 1, so that there rounding to one bit behind the
// leading one is rounding to E2M1. CLIPS: something may be as large as 7 steps, which would become 8.
template <bool CLIPS>
__device__ __forceinline__ float rough_error(const float x[BLOCK], float reciprocal) {
    float error = 0;
#pragma unroll
    for (int i = 0; i < BLOCK; i++) {
        const float y = __fmul_rn(fabsf(x[i]), reciprocal);
        u32 bits = __float_as_uint(__fmul_rn(y, 0x1p-126f)) + 0x00200000;
        if (CLIPS) bits = min(bits, 0x01FFFFFFu /* the last that becomes 6 */);
        const float difference = __fmaf_rn(__uint_as_float(bits & 0xFFC00000), -0x1p126f, y);
        error = __fmaf_rn(difference, difference, error);
    }
    return error;
}

#define MOST_CODES 22  // that can be best: a third of the max rule's scale clips more than that errs in all

// The scale codes of which one has the least error, bit i for the code top - i: in most blocks one. Codes are taken from the
// top down, until clipping the largest weight alone costs more.
struct Candidates {
    float scale, best_error, limit, slack;
    u32 bit, found;

    __device__ __forceinline__ Candidates(u32 top, u32 max_rule)
        : scale(e4m3_decode(top)), best_error(__uint_as_float(0x7F800000)), limit(best_error),
          slack(square(e4m3_decode(max_rule)) * 0x1p-11f), bit(1), found(0) {}

    template <bool CLIPS>
    __device__ __forceinline__ void consider(const float x[BLOCK], float global_scale) {
        const float error = rough_error<CLIPS>(x, rough_reciprocal(scale * global_scale)) * square(scale), high = error + slack;
        if (high < best_error) found = 0;
        if (error <= limit) found |= bit;
        best_error = fminf(best_error, error), limit = fminf(limit, high);
        scale = __uint_as_float(__float_as_uint(scale) - (1 << 20)), bit <<= 1;
    }
};

// As least_error() for weights that count alike.
__device__ __forceinline__ u32 least_error_of(const float x[BLOCK], float amax, float global_scale, u32 max_rule) {
    const u32 top = min(max_rule + CODES_ABOVE_MAX_RULE, MAX_CODE);
    const float largest = __fdiv_rn(amax, global_scale);
    Candidates rough(top, max_rule);
#pragma unroll 1
    while (rough.bit < 1u << MOST_CODES && largest < 6.99f * rough.scale) rough.consider<false>(x, global_scale);
#pragma unroll 1
    while (rough.bit < 1u << MOST_CODES && largest <= __fmaf_rn(rough.scale, E2M1_MAX, rough_root(rough.limit)))
        rough.consider<true>(x, global_scale);
    u32 best = top + 1 - __ffs(rough.found);
    if (rough.found & rough.found - 1) {
        float best_error = __uint_as_float(0x7F800000);
        const bool exact = divides_exactly(x);
        for (u32 left = rough.found; left; left &= left - 1) {
            const u32 code = top + 1 - __ffs(left);
            const float error = exact ? block_error<false, true>(x, nullptr, code, global_scale, best_error).all
                                      : block_error<false, false>(x, nullptr, code, global_scale, best_error).all;
            if (error <= best_error) best = code, best_error = error;
        }
    }
    return best;
}

// Two codes a byte, the even column in the low nibble. As ModelOpt, -0.0 becomes 0 and a negative number that rounds to
// zero 8.
template <bool FAST>
__device__ __forceinline__ uint2 pack(const float x[BLOCK], const Step<FAST>& step) {
    u32 words[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < BLOCK; i++) {
        float y = step.divide(x[i]);
        u32 code = Rounded(y).code() | (y < 0.0f ? 8 : 0);
        words[i / 8] |= code << (i % 8 * 4);
    }
    return make_uint2(words[0], words[1]);
}

enum Rule { MAX_RULE, FOUR_SIX, MSE };

template <int RULE, bool WEIGHTED, bool FAST>
__device__ __forceinline__ u32 quantize_scaled(const float x[BLOCK], const float* importance, float amax, float unrounded,
                                               float global_scale, u32 min_code, uint2& codes) {
    u32 code = ONE_CODE;  // a zero block, or one that is zero beside this global scale
    if (unrounded != 0) {
        code = max(e4m3_encode(fmaxf(unrounded, 1.0f / 512)), min_code);
        if (RULE == FOUR_SIX) {
            const float infinity = __uint_as_float(0x7F800000);
            u32 four = max(e4m3_encode(fmaxf(__fmul_rn(unrounded, 1.5f), 1.0f / 512)), min_code);
            float six_error = block_error<WEIGHTED, FAST>(x, importance, code, global_scale, infinity).all;
            if (block_error<WEIGHTED, FAST>(x, importance, four, global_scale, six_error).all < six_error) code = four;
        }
        if (RULE == MSE)
            // no code that it tries is subnormal, and the max rule's clips nothing
            code = FAST && !WEIGHTED && code >= MOST_CODES + 8 && unrounded <= E4M3_MAX
                       ? least_error_of(x, amax, global_scale, code)
                       : least_error<WEIGHTED, FAST && WEIGHTED>(x, importance, amax, global_scale, code, min_code);
    }
    codes = pack(x, Step<FAST>(code, global_scale));
    return code;
}

template <int RULE, bool WEIGHTED>
__device__ __forceinline__ u32 quantize_block(const float x[BLOCK], const float* importance, float global_scale,
                                              u32 min_code, bool from_bf16, uint2& codes) {
    float amax = 0;
#pragma unroll
    for (int i = 0; i < BLOCK; i++) amax = fmaxf(amax, fabsf(x[i]));
    const float unrounded = __fdiv_rn(amax, __fmul_rn(E2M1_MAX, global_scale));
    // In this range quotients neither overflow nor vanish. Errors need all of them exact; MSE asks when it needs to know.
    const bool in_range = from_bf16 && global_scale >= 0x1p-60f && global_scale <= 0x1p6f && unrounded <= 0x1p20f;
    if (in_range && (RULE == MAX_RULE || (RULE == MSE && !WEIGHTED) || divides_exactly(x)))
        return quantize_scaled<RULE, WEIGHTED, true>(x, importance, amax, unrounded, global_scale, min_code, codes);
    return quantize_scaled<RULE, WEIGHTED, false>(x, importance, amax, unrounded, global_scale, min_code, codes);
}

// --------------------------------------------------------------------------------------------- 4/6 over 1536

// A weight over its step. Zero where the reciprocal is infinite and the weight zero: the reference rounds NaN to zero.
__device__ __forceinline__ float scaled_1536(float x, const u32 code, float reciprocal) {
    float y = code == 0 ? 0.0f : __fmul_rn(x, reciprocal);
    return y == y ? y : 0.0f;
}

// fouroversix rounds without a ceiling: from 7 up to 8, as if E2M1 went on.
__device__ __forceinline__ float unsaturated(float y) {
    float a = fabsf(y);
    return copysignf(a >= 7.0f ? 8.0f : Rounded(a).magnitude(), y);
}

struct Candidate {
    u32 code;
    float reciprocal, error;
};

template <bool WEIGHTED>
__device__ Candidate fouroversix_candidate(const float x[BLOCK], const float* importance, float unrounded, float amax,
                                           float decode_scale, u32 min_code) {
    u32 code = e4m3_encode(unrounded);
    if (min_code > 1 && unrounded > 0) code = max(code, min_code);
    float scale = e4m3_decode(code), reciprocal = __fdiv_rn(1.0f, __fmul_rn(decode_scale, scale));
    float cost[BLOCK], error = 0;
#pragma unroll
    for (int i = 0; i < BLOCK; i++) {
        float y = scaled_1536(x[i], code, reciprocal);
        float decoded = __fdiv_rn(__fmul_rn(__fmul_rn(unsaturated(y), scale), amax), 1536.0f);
        float difference = __fsub_rn(decoded, x[i]);
        cost[i] = __fmul_rn(difference, difference);
        if (WEIGHTED) cost[i] = __fmul_rn(importance[i], cost[i]);
    }
#pragma unroll
    for (int i = 0; i < BLOCK / 2; i++) error = __fadd_rn(error, __fadd_rn(cost[i], cost[i + BLOCK / 2]));
    return {code, reciprocal, error};
}

// In the arithmetic of fouroversix' reference: reciprocals where the other rules divide, the scale 0 for a block that
// underflows.
template <bool WEIGHTED>
__device__ u32 fouroversix_block(const float x[BLOCK], const float* importance, float global_scale, u32 min_code,
                                 uint2& codes) {
    const float range = 1536.0f, amax = __fmul_rn(global_scale, range), encode_scale = __fdiv_rn(range, amax);
    const float decode_scale = __fdiv_rn(1.0f, encode_scale);
    float block_amax = 0;
#pragma unroll
    for (int i = 0; i < BLOCK; i++) block_amax = fmaxf(block_amax, fabsf(x[i]));
    const float unrounded = __fmul_rn(__fdiv_rn(block_amax, E2M1_MAX), encode_scale);
    Candidate six = fouroversix_candidate<WEIGHTED>(x, importance, unrounded, amax, decode_scale, min_code);
    Candidate four = fouroversix_candidate<WEIGHTED>(x, importance, __fmul_rn(unrounded, 1.5f), amax, decode_scale, min_code);
    const Candidate chosen = four.error < six.error ? four : six;
    u32 words[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < BLOCK; i++) {
        float y = scaled_1536(x[i], chosen.code, chosen.reciprocal);
        // its packer writes 8 as 0x8, minus zero
        u32 code = fabsf(y) >= 7.0f ? 8 : Rounded(y).code() | (y < 0.0f ? 8 : 0);
        words[i / 8] |= code << (i % 8 * 4);
    }
    codes = make_uint2(words[0], words[1]);
    return chosen.code;
}

// --------------------------------------------------------------------------------------------- kernels

#define ARGUMENTS                                                                                         \
    const uint4 *__restrict__ weights /* [N, K] BF16, or F32 */, u32 from_bf16, u64 n_blocks /* N * K / 16 */,                   \
        u32 row_blocks /* K / 16 */, float global_scale, u32 min_code /* 1, or KERNEL_SAFE_MIN_CODE */,   \
        const float *__restrict__ importance /* [K] or null */, uint2 *__restrict__ codes /* [N, K/2] */, \
        u8 *__restrict__ scales /* [N, K/16] E4M3 */

template <int RULE, bool OVER_1536>
__device__ __forceinline__ void quantize(ARGUMENTS) {
    const u64 block = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (block >= n_blocks) return;
    float x[BLOCK], weight[BLOCK];
    load_block(x, weights, from_bf16, block);
    uint2 packed;
    u32 scale;
    if (RULE != MAX_RULE && importance != nullptr) {
        const float* from = importance + block % row_blocks * BLOCK;
#pragma unroll
        for (int i = 0; i < BLOCK; i++) weight[i] = __ldg(from + i);
        scale = OVER_1536 ? fouroversix_block<true>(x, weight, global_scale, min_code, packed)
                          : quantize_block<RULE, true>(x, weight, global_scale, min_code, from_bf16, packed);
    } else {
        scale = OVER_1536 ? fouroversix_block<false>(x, nullptr, global_scale, min_code, packed)
                          : quantize_block<RULE, false>(x, nullptr, global_scale, min_code, from_bf16, packed);
    }
    codes[block] = packed;
    scales[block] = (u8)scale;
}

#define KERNEL(NAME, RULE, OVER_1536)                                                                            \
    extern "C" __global__ void __launch_bounds__(256) NAME(ARGUMENTS) {                                          \
        quantize<RULE, OVER_1536>(weights, from_bf16, n_blocks, row_blocks, global_scale, min_code, importance, codes, \
                                  scales);                                                                       \
    }

KERNEL(nvfp4_quantize_max, MAX_RULE, false)
KERNEL(nvfp4_quantize_four_six, FOUR_SIX, false)
KERNEL(nvfp4_quantize_four_six_1536, FOUR_SIX, true)
KERNEL(nvfp4_quantize_mse, MSE, false)
