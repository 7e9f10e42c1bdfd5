// Rows of BF16 (or F32) weights -> NVFP4, the same bytes as `src/nvfp4/reference.rs`: that file is the specification, and the
// order of every FP32 operation below is its order. Compile with --fmad=false: a fused multiply-add is used only where
// it is written.
//
// One thread, one block of 16: reads 32 bytes of BF16, writes 8 bytes of codes and one scale. Bytes moved: N * K * (2 + 9/16).

#include "nvfp4_mse.cuh"

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
        if (RULE == MSE) code = least_error<WEIGHTED, FAST>(x, importance, amax, global_scale, code, min_code);
    }
    codes = pack(x, Step<FAST>(code, global_scale));
    return code;
}

// In this range quotients neither overflow nor vanish, for blocks that are not far above it.
__device__ __forceinline__ bool in_range(float global_scale) { return global_scale >= 0x1p-60f && global_scale <= 0x1p6f; }

template <int RULE, bool WEIGHTED>
__device__ __forceinline__ u32 quantize_block(const float x[BLOCK], const float* importance, float global_scale,
                                              u32 min_code, bool from_bf16, uint2& codes) {
    float amax = 0;
#pragma unroll
    for (int i = 0; i < BLOCK; i++) amax = fmaxf(amax, fabsf(x[i]));
    const float unrounded = __fdiv_rn(amax, __fmul_rn(E2M1_MAX, global_scale));
    if (from_bf16 && in_range(global_scale) && unrounded <= 0x1p20f && (RULE == MAX_RULE || divides_exactly(x)))
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

// As quantize<MSE>(), for weights that count alike: all threads of a block work together.
__device__ __forceinline__ void quantize_mse(const uint4* __restrict__ weights, u32 from_bf16, u64 n_blocks, float global_scale,
                                             u32 min_code, uint2* __restrict__ codes, u8* __restrict__ scales) {
    __shared__ Search search;
    search.prepare(global_scale);
    __syncthreads();
    const u64 first = (u64)blockIdx.x * blockDim.x, block = first + threadIdx.x;
    u32 top = 0, found = 0, pair = 0;  // found 0: this block takes the plain way
    if (block < n_blocks && from_bf16 && in_range(global_scale)) {
        Magnitudes magnitudes(weights, block);
        const float unrounded = quotient(magnitudes.largest, search.six, search.sixth);
        const u32 code = max(e4m3_encode(unrounded), min_code);
        if (code >= ROUGH_MIN_CODE && unrounded <= E4M3_MAX) {
            top = min(code + CODES_ABOVE_MAX_RULE, MAX_CODE);
            const float largest = magnitudes.in_units(global_scale, top);
            found = search.candidates(magnitudes.pairs, largest, top);
        }
        if (found & found - 1) {
            pair = atomicAdd(&search.n_pairs, __popc(found));
            if (pair + __popc(found) > MOST_PAIRS)
                atomicMin(&search.end_pair, pair), found = 0;
            else
                for (u32 i = pair, left = found; left; i++, left &= left - 1)
                    search.pairs[i] = threadIdx.x << 8 | (top + 1 - __ffs(left));
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < min(search.n_pairs, search.end_pair); i += blockDim.x) {
        float x[BLOCK];
        load_block(x, weights, true, first + search.pairs[i] / 256);
        search.pairs[i] = __float_as_uint(exact_error(x, search.pairs[i] % 256, global_scale));
    }
    __syncthreads();
    if (block >= n_blocks) return;
    float x[BLOCK];
    load_block(x, weights, from_bf16, block);
    uint2 packed;
    u32 scale;
    if (found == 0) {
        scale = quantize_block<MSE, false>(x, nullptr, global_scale, min_code, from_bf16, packed);
    } else {
        scale = top + 1 - __ffs(found);
        if (found & found - 1) {
            float best = INFINITE;
            for (u32 i = pair, left = found; left; i++, left &= left - 1) {  // ever smaller codes
                const float error = __uint_as_float(search.pairs[i]);
                if (error <= best) best = error, scale = top + 1 - __ffs(left);
            }
        }
        packed = pack(x, Step<true>(scale, global_scale));
    }
    codes[block] = packed;
    scales[block] = (u8)scale;
}

#define KERNEL(NAME, RULE, OVER_1536)                                                                            \
    extern "C" __global__ void __launch_bounds__(QUANTIZE_THREADS) NAME(ARGUMENTS) {                                          \
        quantize<RULE, OVER_1536>(weights, from_bf16, n_blocks, row_blocks, global_scale, min_code, importance, codes, \
                                  scales);                                                                       \
    }

KERNEL(nvfp4_quantize_max, MAX_RULE, false)
KERNEL(nvfp4_quantize_four_six, FOUR_SIX, false)
KERNEL(nvfp4_quantize_four_six_1536, FOUR_SIX, true)

extern "C" __global__ void __launch_bounds__(QUANTIZE_THREADS) nvfp4_quantize_mse(ARGUMENTS) {
    if (importance)
        quantize<MSE, false>(weights, from_bf16, n_blocks, row_blocks, global_scale, min_code, importance, codes, scales);
    else
        quantize_mse(weights, from_bf16, n_blocks, global_scale, min_code, codes, scales);
}
