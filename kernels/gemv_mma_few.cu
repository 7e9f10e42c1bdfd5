// y = W x for two to eight vectors and a matrix of few rows and many columns: as gemv_mma.cu, but the blocks of a cluster
// share tiles and take parts of K, so that no multiprocessor is left without work and none stages all of x. From
// sm_90 on; N >= 32, K % 256 == 0.
//
// The sums of a tile's parts meet in the shared memory of one of the blocks, each in a place of its own, and are added up in
// the same order always, after the loop.

#include "gemv_mma.cuh"

#define CLUSTER 8  // blocks

// --------------------------------------------------------------------------------------------- clusters

__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// A barrier of the cluster in two halves; memory, that of other blocks too, is as written before arriving.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Writes a word to where `here`, a place in this block's shared memory, is in the block `rank` of the cluster.
__device__ __forceinline__ void write_to(u32 rank, void* here, u32 value) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"((u32)__cvta_generic_to_shared(here)), "r"(rank));
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(there), "r"(value) : "memory");
}

// --------------------------------------------------------------------------------------------- the kernel

// Shared memory: x, DEPTH slots a warp, and the sums that other blocks leave here: [tile of this block][part][SUMS][32]. The
// cluster's tile j belongs to the block j % CLUSTER.
template <int DEPTH, class Sink>
__device__ __forceinline__ void gemv(const Weights& w, const uint4* __restrict__ x, u32 m_count,
                                     u32 split /* divides the warps; CLUSTER * split is at most K / 256 */, u32 dependent,
                                     Sink& sink) {
    extern __shared__ uint4 shared[];
    __shared__ double factors[MAX_M];
    __shared__ u32 theirs[CLUSTER][MAX_M];
    const u32 rank = cluster_rank(), lane = threadIdx.x % 32;
    const Share share(w, split, CLUSTER, rank);
    const u32 n_clusters = gridDim.x / CLUSTER, cluster = blockIdx.x / CLUSTER;
    float* sums_here = (float*)((char*)shared + rings_end<DEPTH>(share, m_count)) + lane;

    cluster_arrive();  // all have started: see agree()
    auto agree = [&](u32* largest) {
        __syncthreads();
        cluster_wait();
        if (threadIdx.x < CLUSTER * MAX_M)
            write_to(threadIdx.x / MAX_M, &theirs[rank][threadIdx.x % MAX_M], largest[threadIdx.x % MAX_M]);
        cluster_arrive();
        cluster_wait();
        if (threadIdx.x < MAX_M)
            for (u32 r = 0; r < CLUSTER; r++) largest[threadIdx.x] = max(largest[threadIdx.x], theirs[r][threadIdx.x]);
        __syncthreads();
    };
    auto finish = [&](const float sums[SUMS], u32 tile) {
        const u32 j = (tile - cluster) / n_clusters;
        float* place = sums_here + (j / CLUSTER * share.n_parts + share.part) * SUMS * 32;
#pragma unroll
        for (int i = 0; i < SUMS; i++) write_to(j % CLUSTER, place + i * 32, __float_as_uint(sums[i]));
    };
    walk_tiles<DEPTH, false, 12>(w, x, m_count, share, dependent, shared, factors, agree, finish);
    cluster_arrive();
    cluster_wait();
    for (u32 own = threadIdx.x / 32;; own += n_warps()) {
        const u32 tile = cluster + (own * CLUSTER + rank) * n_clusters;
        if (tile >= share.n_tiles) break;
        const float* parts = sums_here + own * share.n_parts * SUMS * 32;
        float sums[SUMS] = {};
        for (u32 part = 0; part < share.n_parts; part++)
#pragma unroll
            for (int i = 0; i < SUMS; i++) sums[i] += parts[(part * SUMS + i) * 32];
        hand_over(sums, Stream<false>::first_row(tile, w.n_rows), factors, sink);
    }
}

#define BOUNDS __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(MOST_WARPS * 32, 1)

// Results as in gemv_mma.cu. The grid is a multiple of CLUSTER.
#define KERNELS(NAME, DEPTH)                                                                                              \
    extern "C" __global__ void BOUNDS NAME##_logits(WEIGHTS_AND_X, float* __restrict__ y) {                                \
        Logits<float> sink = {y, n_rows, m_count};                                                                         \
        gemv<DEPTH>({codes, scales, global_scale, n_rows, k}, x, m_count, split, dependent, sink);                         \
    }                                                                                                                      \
    extern "C" __global__ void BOUNDS NAME##_argmax(WEIGHTS_AND_X, const int* __restrict__ token_ids, u64* slots, int* ids,  \
                                                    float* values) {                                                       \
        Argmax sink = {token_ids, n_rows, {}};                                                                             \
        gemv<DEPTH>({codes, scales, global_scale, n_rows, k}, x, m_count, split, dependent, sink);                         \
        sink.settle(m_count, slots, ids, values);                                               \
    }

KERNELS(nvfp4_mma_few, 2)
