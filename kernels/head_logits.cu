// Logits of heads on hidden states, with the same digits as the CPU: `src/nvfp4/quality.rs` is the specification, and the
// order of every sum below is its order. Compile with --fmad=false.

#include "nvfp4.cuh"

__device__ __forceinline__ float bf16(u32 bits) { return __uint_as_float(bits << 16); }

#define TILE 64  // rows, and states, of a thread block

struct Bf16Rows {
    const uint2* __restrict__ weights;  // [N, K]

    __device__ __forceinline__ void load(float four[4], u64 at) const {
        const uint2 pairs = __ldg(weights + at / 4);
        four[0] = bf16(pairs.x & 0xFFFF), four[1] = bf16(pairs.x >> 16), four[2] = bf16(pairs.y & 0xFFFF), four[3] = bf16(pairs.y >> 16);
    }
};

struct Nvfp4Rows {
    const u16* __restrict__ codes;  // [N, K/2]
    const u8* __restrict__ scales;  // [N, K/16] E4M3
    float global_scale;

    __device__ __forceinline__ void load(float four[4], u64 at) const {
        const u32 packed = __ldg(codes + at / 4);
        const float scale = e4m3_value(__ldg(scales + at / BLOCK));
#pragma unroll
        for (int i = 0; i < 4; i++) four[i] = __fmul_rn(__fmul_rn(e2m1_value(packed >> 4 * i & 15), scale), global_scale);
    }
};

// logits [states, N] F32: products, added up over k in order. A thread has four rows and four states of the tile. The grid has
// `row_tiles` thread blocks for each 64 states.
template <class Rows>
__device__ __forceinline__ void multiply(const Rows& rows, const Bf16Rows& states, u32 n_rows, u32 n_states, u32 k,
                                         float* __restrict__ logits, u32 row_tiles) {
    __shared__ float row_part[BLOCK][TILE + 4], state_part[BLOCK][TILE + 4];  // a block of k at a time
    const u32 first_row = blockIdx.x % row_tiles * TILE, first_state = blockIdx.x / row_tiles * TILE;
    const u32 in = threadIdx.x / 4, part = threadIdx.x % 4 * 4;
    const u32 row = min(first_row + in, n_rows - 1), state = min(first_state + in, n_states - 1);
    const u32 own_row = threadIdx.x % 16 * 4, own_state = threadIdx.x / 16 * 4;
    float sums[4][4] = {};
    for (u32 first = 0; first < k; first += BLOCK) {
        float weights[4], values[4];
        rows.load(weights, (u64)row * k + first + part), states.load(values, (u64)state * k + first + part);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; i++) row_part[part + i][in] = weights[i], state_part[part + i][in] = values[i];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BLOCK; i++) {
            const float4 w = *(const float4*)&row_part[i][own_row], x = *(const float4*)&state_part[i][own_state];
#pragma unroll
            for (int s = 0; s < 4; s++)
#pragma unroll
                for (int r = 0; r < 4; r++) sums[s][r] = __fadd_rn(sums[s][r], __fmul_rn((&x.x)[s], (&w.x)[r]));
        }
    }
#pragma unroll
    for (int s = 0; s < 4; s++)
#pragma unroll
        for (int r = 0; r < 4; r++)
            if (first_state + own_state + s < n_states && first_row + own_row + r < n_rows)
                logits[(u64)(first_state + own_state + s) * n_rows + first_row + own_row + r] = sums[s][r];
}

extern "C" __global__ void __launch_bounds__(256) head_logits_bf16(const uint2* __restrict__ weights,
                                                                   const uint2* __restrict__ states, u32 n_rows,
                                                                   u32 n_states, u32 k, float* __restrict__ logits,
                                                                   u32 row_tiles) {
    multiply(Bf16Rows{weights}, Bf16Rows{states}, n_rows, n_states, k, logits, row_tiles);
}

extern "C" __global__ void __launch_bounds__(256) head_logits_nvfp4(const u16* __restrict__ codes,
                                                                    const u8* __restrict__ scales, float global_scale,
                                                                    const uint2* __restrict__ states, u32 n_rows,
                                                                    u32 n_states, u32 k, float* __restrict__ logits,
                                                                    u32 row_tiles) {
    multiply(Nvfp4Rows{codes, scales, global_scale}, Bf16Rows{states}, n_rows, n_states, k, logits, row_tiles);
}
