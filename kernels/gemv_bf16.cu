// y = W x with BF16 weights: the control that NVFP4 is measured against. x BF16 [M, K], M = 1..8, y F32 [M, N].
//
// Bytes moved: N * K * 2. A warp takes a row at a time; a lane loads 16 bytes = 8 weights, and x comes from L1.

typedef unsigned int u32;
typedef unsigned long long u64;

#define WARPS 8
#define MAX_M 8

__device__ __forceinline__ float low(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(u32 pair) { return __uint_as_float(pair & 0xFFFF0000); }

__device__ __forceinline__ float dot(uint4 w, uint4 x, float sum) {
    sum = fmaf(low(w.x), low(x.x), sum), sum = fmaf(high(w.x), high(x.x), sum);
    sum = fmaf(low(w.y), low(x.y), sum), sum = fmaf(high(w.y), high(x.y), sum);
    sum = fmaf(low(w.z), low(x.z), sum), sum = fmaf(high(w.z), high(x.z), sum);
    return fmaf(high(w.w), high(x.w), fmaf(low(w.w), low(x.w), sum));
}

template <int M>
__device__ __forceinline__ void gemv(const uint4* __restrict__ weights, const uint4* __restrict__ x, u32 n_rows, u32 k,
                                     u32 m_count, float* __restrict__ y) {
    const u32 lane = threadIdx.x % 32, row = blockIdx.x * WARPS + threadIdx.x / 32, groups = k / 8;
    if (row >= n_rows) return;
    const uint4* w = weights + (u64)row * groups;
    float sums[M] = {};
#pragma unroll 4
    for (u32 i = lane; i < groups; i += 32) {
        const uint4 eight = __ldcs(w + i);
#pragma unroll
        for (int m = 0; m < M; m++)
            if (m < m_count) sums[m] = dot(eight, __ldg(x + (u64)m * groups + i), sums[m]);
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
        for (int distance = 16; distance > 0; distance /= 2) sums[m] += __shfl_xor_sync(0xFFFFFFFF, sums[m], distance);
        if (lane == 0 && m < m_count) y[(u64)m * n_rows + row] = sums[m];
    }
}

#define KERNEL(NAME, M)                                                                                             \
    extern "C" __global__ void __launch_bounds__(WARPS * 32) NAME(const uint4* __restrict__ weights /* [N, K] */,   \
                                                                  const uint4* __restrict__ x /* [M, K] */,         \
                                                                  u32 n_rows, u32 k /* K % 8 == 0 */, u32 m_count,  \
                                                                  float* __restrict__ y /* [M, N] */) {             \
        gemv<M>(weights, x, n_rows, k, m_count, y);                                                                 \
    }

KERNEL(bf16_gemv1, 1)
KERNEL(bf16_gemv8, 8)
