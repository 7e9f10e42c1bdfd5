// The products for the layers of a network, whose results are rounded to BF16 as the next layer wants them: gemv_layer.cu,
// gemv_mma_layer.cu and gemv_mma_few_layer.cu are gemv.cu, gemv_mma.cu and gemv_mma_few.cu with kernels NAME_layer beside
// theirs, y [M, N] BF16. The vLLM plugin compiles them.
#pragma once

#include "gemv.cuh"

// To nearest, ties to even.
__device__ __forceinline__ u16 rounded(float v) {
    u16 bf16;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bf16) : "f"(v));
    return bf16;
}

// The sink `Logits` of gemv.cu.
struct RoundedRow {
    u16* __restrict__ y;  // [N]

    __device__ __forceinline__ void begin(u32, u32, float*) {}
    __device__ __forceinline__ void take(u32 row, float logit, bool first) {
        if (first) y[row] = rounded(logit);
    }
};

// The sink `Logits` of gemv_mma.cuh.
struct RoundedRows {
    u16* __restrict__ y;  // [M, N]
    u32 n_rows, m_count;

    __device__ __forceinline__ void take(u32 row, int i, const float logits[4]) {
        const u32 m = threadIdx.x % 4 * 2 + i;
#pragma unroll
        for (int r = 0; r < 4; r++)
            if (m < m_count && row + 8 * r < n_rows) y[(u64)m * n_rows + row + 8 * r] = rounded(logits[r]);
    }
};
