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

// What multiplies by 2^exponent: two factors, because one may lie outside FP32 (2^141).
struct PowerOfTwo {
    float first, second;

    __device__ __forceinline__ explicit PowerOfTwo(int exponent)
        : first(__uint_as_float((u32)(exponent / 2 + 127) << 23)),
          second(__uint_as_float((u32)(exponent - exponent / 2 + 127) << 23)) {}
};

// Two BF16, each in the upper half of a word, -> FP16 of x * power.
__device__ __forceinline__ u32 narrow(u32 low, u32 high, PowerOfTwo power) {
    const float a = __uint_as_float(low) * power.first * power.second, b = __uint_as_float(high) * power.first * power.second;
    u32 halves;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(halves) : "f"(b), "f"(a));
    return halves;
}

__device__ __forceinline__ u32 finite_max(u32 largest, u32 pair) {
    u32 low = pair & 0x7FFF, high = pair >> 16 & 0x7FFF;
    if (low < 0x7F80) largest = max(largest, low);
    if (high < 0x7F80) largest = max(largest, high);
    return largest;
}

// Eight neighbours in k, in the order in which their weights unpack.
__device__ __forceinline__ uint4 narrow8(const uint4& v, PowerOfTwo power) {
    const u32 in[4] = {v.x, v.y, v.z, v.w};
    u32 out[4];
    auto element = [&](int i) { return i % 2 ? in[i / 2] & 0xFFFF0000 : in[i / 2] << 16; };
#pragma unroll
    for (int j = 0; j < 4; j++) out[j] = narrow(element(pair_low(j)), element(pair_high(j)), power);
    return make_uint4(out[0], out[1], out[2], out[3]);
}

// x [M, K] BF16 -> shared FP16, in the places that the product reads: `place(m, i)` is where the 16 bytes of elements 8i ..
// 8i + 7 of a vector go. A warp works on one vector. TOP: see scale_exponent(). EARLY: groups of eight elements that a thread
// holds in registers.
template <class Place, int TOP, int EARLY>
struct Staging {
    uint4 early[EARLY];
    const uint4* __restrict__ x;  // this thread's vector
    u32 m, first, stride, end;    // which it is; this thread's groups of it
    Place place;

    // `from` points at the first of `n_groups` groups of the first vector, `pitch` groups lie between vectors.
    __device__ __forceinline__ Staging(const uint4* __restrict__ from, u32 pitch, u32 n_groups, u32 m_count, Place place)
        : place(place) {
        // a power of two of vectors, with as many warps each: some may have nothing to do
        const u32 log = 32 - __clz(m_count - 1), warp = threadIdx.x / 32;
        m = warp & (1 << log) - 1, x = from + m * pitch;
        first = (warp >> log) * 32 + threadIdx.x % 32, stride = (blockDim.x / 32 >> log) * 32;
        end = m < m_count && first < stride ? n_groups : 0;
#pragma unroll
        for (int j = 0; j < EARLY; j++)
            if (first + j * stride < end) early[j] = load(first + j * stride);
    }

    __device__ __forceinline__ uint4 load(u32 i) const {
        uint4 v;
        asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(x + i));
        return v;
    }

    // The largest finite magnitude of each vector into `largest` [MAX_M], zero before. What did not fit the registers is left
    // in its place.
    __device__ __forceinline__ void measure(uint4* staged, u32* largest) const {
        u32 mine = 0;
        auto note = [&](const uint4& v) { mine = finite_max(finite_max(finite_max(finite_max(mine, v.x), v.y), v.z), v.w); };
#pragma unroll
        for (int j = 0; j < EARLY; j++)
            if (first + j * stride < end) note(early[j]);
#pragma unroll 1
        for (u32 i = first + EARLY * stride; i < end; i += stride) {
            const uint4 v = load(i);
            staged[place(m, i)] = v;
            note(v);
        }
        mine = __reduce_max_sync(0xFFFFFFFF, mine);
        if (threadIdx.x % 32 == 0 && mine > 0) atomicMax(&largest[m], mine);
    }

    __device__ __forceinline__ void convert(uint4* staged, const u32* largest) const {
        const PowerOfTwo power(scale_exponent<TOP>(largest[m]));
#pragma unroll
        for (int j = 0; j < EARLY; j++)
            if (first + j * stride < end) staged[place(m, first + j * stride)] = narrow8(early[j], power);
#pragma unroll 1
        for (u32 i = first + EARLY * stride; i < end; i += stride) staged[place(m, i)] = narrow8(staged[place(m, i)], power);
    }

    // What turns a sum into a logit.
    static __device__ __forceinline__ double factor(float global_scale, u32 largest) {
        return global_scale * power_of_two(UNPACK_EXPONENT - scale_exponent<TOP>(largest));
    }
};

// --------------------------------------------------------------------------------------------- what a logit is written as

__device__ __forceinline__ void write(float* to, float logit) { *to = logit; }
// BF16, to nearest, ties to even: the next layer of a network wants it so.
__device__ __forceinline__ void write(u16* to, float logit) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(*to) : "f"(logit)); }

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

// The best logit that a thread has seen of one vector, and its row. Rows come in ascending order, so of equal logits the
// first stays.
struct Best {
    u32 order, row;  // order 0: none yet

    __device__ __forceinline__ void take(float logit, u32 new_row) {
        const u32 found = ordered(logit);
        if (found > order) order = found, row = new_row;
    }
};

// The higher logit, then the lower id, is the larger key; 0: none.
__device__ __forceinline__ u64 winner_key(u32 order, u32 id) { return order ? (u64)order << 32 | (0xFFFFFFFF - id) : 0; }

// The largest key of a warp. Reductions of 32 bits are one instruction; 64-bit atomics in shared memory would be loops.
__device__ __forceinline__ u64 warp_max(u64 key) {
    const u32 high = key >> 32, order = __reduce_max_sync(0xFFFFFFFF, high);
    return (u64)order << 32 | __reduce_max_sync(0xFFFFFFFF, high == order ? (u32)key : 0);
}

// A thread's share of the best key of each vector in slots [M, grid], of the first n columns. Waits for all of them, warp by
// warp so that lanes stay together, and leaves zeros for the next launch.
__device__ __forceinline__ void collect(u64 best[MAX_M], u32 m_count, u64* slots, u32 n) {
    for (u32 i = threadIdx.x; i - threadIdx.x % 32 < n; i += blockDim.x) {
        u64 keys[MAX_M];
        bool missing;
        do {
            missing = false;
#pragma unroll
            for (u32 m = 0; m < MAX_M; m++) {
                if (m >= m_count || i >= n) continue;
                asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(keys[m]) : "l"(slots + m * gridDim.x + i) : "memory");
                missing |= keys[m] == 0;
            }
        } while (__any_sync(0xFFFFFFFF, missing));
#pragma unroll
        for (u32 m = 0; m < MAX_M; m++)
            if (m < m_count && i < n) slots[m * gridDim.x + i] = 0, best[m] = max(best[m], keys[m]);
    }
}

// The winner of each vector; all threads come here when their rows are done, with their best keys. A block leaves its
// winners in its own column of slots [M, grid]; the last block, which starts last, waits for the others' and writes the
// result. Nothing is fenced, because a slot says all there is to say.
template <int MOST_WARPS>
__device__ __forceinline__ void settle_winners(u64 best[MAX_M], u32 m_count, u64* slots, int* ids, float* values) {
    __shared__ u64 keys[MAX_M][MOST_WARPS];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool last = blockIdx.x == gridDim.x - 1;
    if (last) collect(best, m_count, slots, gridDim.x - 1);
#pragma unroll
    for (u32 m = 0; m < MAX_M; m++) {
        if (m >= m_count) break;
        const u64 key = warp_max(best[m]);
        if (lane == 0) keys[m][warp] = key;
    }
    __syncthreads();
    if (warp >= m_count) return;
    const u64 key = warp_max(lane < blockDim.x / 32 ? keys[warp][lane] : 0);
    if (lane > 0) return;
    if (last)
        ids[warp] = (int)(0xFFFFFFFF - (u32)key), values[warp] = unordered((u32)(key >> 32));
    else  // a block may have had no row
        asm volatile("st.relaxed.gpu.u64 [%0], %1;" ::"l"(slots + warp * gridDim.x + blockIdx.x), "l"(max(key, 1ull)) : "memory");
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
