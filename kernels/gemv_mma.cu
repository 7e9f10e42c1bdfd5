// y = W x for up to eight vectors, and for rows of any length: W is NVFP4 in the plain sidecar layout, x is BF16 [M, K].
// gemv.cu is faster for one or two vectors and K % 32 == 0, gemv_mma_few.cu for few rows.
//
// `split` warps, a team, share a tile and take parts of K; their sums meet in shared memory, always in the same order, so
// a result does not depend on timing.

#include "gemv_mma.cuh"

// Adds the sums of a team's parts; true in the warp that has the whole. All warps of a block come here together.
__device__ __forceinline__ bool join_team(float sums[SUMS], float* team_sums /* [warp][SUMS][32] */, const Share& share) {
    if (share.n_parts == 1) return true;
    float* mine = team_sums + threadIdx.x / 32 * SUMS * 32 + threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < SUMS; i++) mine[i * 32] = sums[i];
    __syncthreads();
    if (share.part > 0) return false;
#pragma unroll 1
    for (u32 other = 1; other < share.n_parts; other++)
#pragma unroll
        for (int i = 0; i < SUMS; i++) sums[i] += mine[(other * SUMS + i) * 32];
    return true;
}

// Shared memory: x, DEPTH slots a warp, and when split > 1 the teams' sums, [2][warp][SUMS][32]: two buffers, so one barrier a
// tile is enough.
template <int DEPTH, bool RAGGED, class Sink>
__device__ __forceinline__ void gemv(const Weights& w, const uint4* __restrict__ x, u32 m_count,
                                     u32 split /* divides the warps, at most ceil(K / 256) */, u32 dependent,
                                     Sink& sink) {
    extern __shared__ uint4 shared[];
    __shared__ double factors[MAX_M];
    const Share share(w, split, 1, 0);
    float* team_sums = (float*)((char*)shared + rings_end<DEPTH>(share, m_count));
    u32 parity = 0;
    auto finish = [&](float sums[SUMS], u32 tile) {
        if (join_team(sums, team_sums + parity * n_warps() * SUMS * 32, share) && tile < share.n_tiles)
            hand_over(sums, Stream<RAGGED>::first_row(tile, w.n_rows), factors, sink);
        parity ^= 1;
    };
    walk_tiles<DEPTH, RAGGED, 5>(w, x, m_count, share, dependent, shared, factors, [](u32*) { __syncthreads(); }, finish);
}

// --------------------------------------------------------------------------------------------- kernels

template <int DEPTH, bool RAGGED>
__device__ __forceinline__ void argmax(const Weights& w, const uint4* x, u32 m_count, u32 split, u32 dependent,
                                       const int* token_ids, u64* slots, int* ids, float* values) {
    Argmax sink = {token_ids, w.n_rows, {}};
    gemv<DEPTH, RAGGED>(w, x, m_count, split, dependent, sink);
    sink.settle(m_count, slots, ids, values);
}

// NAME_logits: y [M, N] F32. NAME_argmax: ids, values [M], the token id of the largest logit and the logit. NaN is the
// largest; ties go to the lower row, which is the lower id: token_ids [N] (or null: the row is the id) ascend, but for
// rows at the end that repeat the first. slots [M, grid] are zero, and zero again afterwards.
#define KERNELS(NAME, DEPTH, RAGGED)                                                                                       \
    extern "C" __global__ void __launch_bounds__(MOST_WARPS * 32, 1) NAME##_logits(WEIGHTS_AND_X, float* __restrict__ y) {           \
        Logits<float> sink = {y, n_rows, m_count};                                                                         \
        gemv<DEPTH, RAGGED>({codes, scales, global_scale, n_rows, k}, x, m_count, split, dependent, sink);                 \
    }                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(MOST_WARPS * 32, 1)                                                                  \
        NAME##_argmax(WEIGHTS_AND_X, const int* __restrict__ token_ids, u64* slots, int* ids, float* values) {             \
        argmax<DEPTH, RAGGED>({codes, scales, global_scale, n_rows, k}, x, m_count, split, dependent, token_ids, slots,    \
                              ids, values);                                                                                \
    }

KERNELS(nvfp4_mma, 2, false)          // N >= 32, K % 256 == 0
KERNELS(nvfp4_mma_shallow, 1, false)  // the same where shared memory is short
KERNELS(nvfp4_mma_ragged, 1, true)    // any N, any K % 16 == 0
