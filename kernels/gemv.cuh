// What the products in gemv.cu and gemv_mma.cu share: how x is staged, which logit wins, dependent launches.
//
// x becomes FP16 after a power-of-two scale that brings its largest finite element to the top of the range: exact for
// elements down to about 2^-30 of the largest, off by less than 2^-34 of the largest below. NaN or Inf in x gives what IEEE
// arithmetic gives.
#pragma once

#include "nvfp4.cuh"

#define MAX_M 8  // vectors of a launch

struct Weights {
    const u8* __restrict__ codes;            // [N, K/2]
    const u8* __restrict__ scales;           // [N, K/16]
    const float* __restrict__ global_scale;  // [1]
    u32 n_rows, k;
};

// --------------------------------------------------------------------------------------------- staging x

// The power of two that brings the largest finite |x| of a vector into [2^TOP, 2^(TOP + 1)): TOP - floor(log2 max).
template <int TOP>
__device__ __forceinline__ int scale_exponent(u32 largest /* BF16 bits of the largest finite |x| */) {
    return largest == 0 ? 0 : TOP + 127 - max((int)(largest >> 7), 1);
}

__device__ __forceinline__ double power_of_two(int exponent) { return __hiloint2double((1023 + exponent) << 20, 0); }

// BF16 bits -> FP16 bits of x * 2^exponent. Two factors, because one may lie outside FP32 (2^141).
__device__ __forceinline__ u32 narrow(u32 bf16, int exponent) {
    int half = exponent / 2;
    float v = __uint_as_float(bf16 << 16);
    v *= __uint_as_float((u32)(half + 127) << 23);
    v *= __uint_as_float((u32)(exponent - half + 127) << 23);
    u16 f16;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(f16) : "f"(v));
    return f16;
}

__device__ __forceinline__ u32 finite_max(u32 largest, u32 pair) {
    u32 low = pair & 0x7FFF, high = pair >> 16 & 0x7FFF;
    if (low < 0x7F80) largest = max(largest, low);
    if (high < 0x7F80) largest = max(largest, high);
    return largest;
}

// Eight neighbours in k, in the order in which their weights unpack.
__device__ __forceinline__ uint4 narrow8(uint4 v, int exponent) {
    const u32 in[4] = {v.x, v.y, v.z, v.w};
    u32 out[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        int low = pair_low(j), high = pair_high(j);
        u32 a = in[low / 2] >> (16 * (low % 2)) & 0xFFFF, b = in[high / 2] >> (16 * (high % 2)) & 0xFFFF;
        out[j] = narrow(a, exponent) | narrow(b, exponent) << 16;
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
}

// x [M, K] BF16 -> shared FP16, in the places that the product reads: `place(m, i)` is where the 16 bytes of the vector's
// elements 8i .. 8i + 7 go. TOP: see scale_exponent().
template <class Place, int TOP>
struct Staging {
    static constexpr int EARLY = 4;  // vectors of 16 bytes a thread holds in registers
    uint4 early[EARLY];
    u32 n_groups, n_all, m_count;
    Place place;

    __device__ __forceinline__ Staging(const uint4* __restrict__ x, u32 k, u32 m, Place where)
        : n_groups(k / 8), n_all(k / 8 * m), m_count(m), place(where) {
#pragma unroll
        for (int j = 0; j < EARLY; j++) {
            u32 i = threadIdx.x + j * blockDim.x;
            if (i < n_all)
                asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                             : "=r"(early[j].x), "=r"(early[j].y), "=r"(early[j].z), "=r"(early[j].w) : "l"(x + i));
        }
    }

    // The largest finite magnitude of each vector, then the conversion, in place for what did not fit the registers.
    // `largest` [MAX_M] is zero before.
    __device__ __forceinline__ void finish(uint4* staged, u32* largest, const uint4* __restrict__ x) {
#pragma unroll
        for (int j = 0; j < EARLY; j++) {
            u32 i = threadIdx.x + j * blockDim.x;
            if (i - threadIdx.x % 32 < n_all) note(i < n_all ? early[j] : make_uint4(0, 0, 0, 0), i, largest);
        }
        for (u32 i = threadIdx.x + EARLY * blockDim.x; i - threadIdx.x % 32 < n_all; i += blockDim.x) {
            uint4 v = {0, 0, 0, 0};
            if (i < n_all) v = __ldg(x + i), staged[at(i)] = v;
            note(v, i, largest);
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < EARLY; j++) {
            u32 i = threadIdx.x + j * blockDim.x;
            if (i < n_all) staged[at(i)] = narrow8(early[j], scale_exponent<TOP>(largest[i / n_groups]));
        }
        for (u32 i = threadIdx.x + EARLY * blockDim.x; i < n_all; i += blockDim.x)
            staged[at(i)] = narrow8(staged[at(i)], scale_exponent<TOP>(largest[i / n_groups]));
    }

    __device__ __forceinline__ u32 at(u32 i) const { return place(i / n_groups, i % n_groups); }

    // Whole warps come here; lanes past the end bring zeros.
    __device__ __forceinline__ void note(const uint4& v, u32 i, u32* largest) const {
        u32 mine = finite_max(finite_max(finite_max(finite_max(0, v.x), v.y), v.z), v.w), m = min(i / n_groups, m_count - 1);
        if (__all_sync(0xFFFFFFFF, m == __shfl_sync(0xFFFFFFFF, m, 0))) {
            mine = __reduce_max_sync(0xFFFFFFFF, mine);
            if (threadIdx.x % 32 == 0) atomicMax(&largest[m], mine);
        } else {
            atomicMax(&largest[m], mine);
        }
    }

    // What turns a sum into a logit.
    static __device__ __forceinline__ double factor(float global_scale, u32 largest) {
        return global_scale * power_of_two(UNPACK_EXPONENT - scale_exponent<TOP>(largest));
    }
};

// --------------------------------------------------------------------------------------------- which logit wins


// Order of floats as unsigned integers, none of them 0: NaN above all (as torch.argmax has it), -0 equal to +0.
__device__ __forceinline__ u32 ordered(float v) {
    if (v != v) return 0xFFFFFFFF;
    u32 bits = __float_as_uint(v + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000;
}

__device__ __forceinline__ float unordered(u32 key) {
    if (key == 0xFFFFFFFF) return __uint_as_float(0x7FC00000);
    return __uint_as_float(key >> 31 ? key & 0x7FFFFFFF : ~key);
}

// The best logit that a thread has seen of one vector, and its token id. Rows come in ascending order, so of equal logits
// the first stays.
struct Best {
    u32 order, id;  // order 0: none yet

    // token_ids [N], or null: the row is the id. It is read for the few logits that are the best so far.
    __device__ __forceinline__ void take(float logit, u32 row, const int* __restrict__ token_ids) {
        const u32 found = ordered(logit);
        if (found <= order) return;
        order = found, id = token_ids ? (u32)token_ids[row] : row;
    }
    // The higher logit, then the lower id, is the larger key; 0: none.
    __device__ __forceinline__ u64 key() const { return order ? (u64)order << 32 | (0xFFFFFFFF - id) : 0; }
};

// The winner of each vector, from every block's best keys in shared memory; all threads come here. A block leaves its keys
// in its own column of slots [M, grid], and the last block, which starts last, waits for all columns and leaves zeros for
// the next launch. Nothing is fenced, because a slot says all there is to say.
__device__ __forceinline__ void settle_winners(u64* best, u32 m_count, u64* slots, int* ids, float* values) {
    if (threadIdx.x < m_count)
        asm volatile("st.relaxed.gpu.u64 [%0], %1;" ::"l"(slots + threadIdx.x * gridDim.x + blockIdx.x), "l"(best[threadIdx.x]) : "memory");
    if (blockIdx.x != gridDim.x - 1) return;
    for (u32 i = threadIdx.x; i < m_count * gridDim.x; i += blockDim.x) {
        u64 key;
        do asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(key) : "l"(slots + i) : "memory");
        while (key == 0);
        slots[i] = 0;
        atomicMax(&best[i / gridDim.x], key);
    }
    __syncthreads();
    if (threadIdx.x < m_count) {
        ids[threadIdx.x] = (int)(0xFFFFFFFF - (u32)best[threadIdx.x]);
        values[threadIdx.x] = unordered((u32)(best[threadIdx.x] >> 32));
    }
}

// --------------------------------------------------------------------------------------------- dependent launches

// Programmatic dependent launch (sm_90 on), for chains of kernels: the next kernel may start before this one ends and ask
// for its weights, which no kernel writes; before it touches anything else it waits for this one. Launched without that
// attribute, both are no-ops.
__device__ __forceinline__ void start_successor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void wait_for_predecessor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#define WEIGHTS_AND_X                                                                                \
    const u8 *__restrict__ codes /* [N, K/2] */, const u8 *__restrict__ scales /* [N, K/16] E4M3 */, \
        const float *__restrict__ global_scale /* [1] */, const uint4 *__restrict__ x /* [M, K] BF16 */, u32 n_rows, u32 k, \
        u32 m_count, u32 split, u32 dependent /* launched as a dependent of the kernel before */
