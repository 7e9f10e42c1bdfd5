// y = W x for one vector, the draft step of one request: W is NVFP4 in the plain sidecar layout, x is BF16 [K]; K % 32 == 0,
// so that rows start at 16 bytes. gemv_mma.cu takes what this does not.
//
// Bytes moved: N * K * (1/2 + 1/16), each weight once; the aim is the speed of a plain read of them.
//
// A group, half a warp, takes ROWS neighbouring rows at a time and walks along K in steps of 512: a lane loads 16 bytes, 32
// codes, of each row straight into registers, so a group reads 256 bytes in a row and the sector of their scales. Blocks
// take equal shares of neighbouring rows. Many warps hide each other's waits; nothing is synchronized on the way.
//
// E2M1 * BF16 is exact in FP16. Eight products are added up in an FP16 half, rounded each time (relative 2^-11 of the sum
// so far); the two halves, times the block scale, are added to the row's sum in FP32.
//
// Where rows are few, `split` = 2: both groups of a warp take the same rows, and every other step.

#include "gemv.cuh"

#define WARPS 16                 // warps of a thread block
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define BLOCKS_PER_SM 1          // unpacking takes more registers
#else
#define BLOCKS_PER_SM 2
#endif
#define THREADS (WARPS * 32)
#define GROUPS (WARPS * 2)
#define LANES 16                 // of a group
#define STEP_K 512               // k of a step: 16 lanes * 32 codes
// Eight products of |e2m1| <= 6 with |x| < 2^(TOP + 1) stay finite in FP16.
#define TOP (9 + UNPACK_EXPONENT < 15 ? 9 + UNPACK_EXPONENT : 15)

// 16 bytes of the staged x for (step, word, lane): conflict-free for a group.
struct Place {
    __device__ __forceinline__ u32 operator()(u32, u32 i) const { return (i / 64 * 4 + i % 4) * LANES + i / 4 % LANES; }
};

__device__ __forceinline__ uint4 load16(const u8* at) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
    return v;
}
__device__ __forceinline__ u32 load2(const u8* at) {
    u16 v;
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(at));
    return v;
}
__device__ __forceinline__ u32 fma_f16x2(u32 a, u32 b, u32 c) {
    u32 sum;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}
__device__ __forceinline__ float2 widen(u32 halves) {
    float2 v;
    asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %2;\n\tcvt.f32.f16 %0, l;\n\tcvt.f32.f16 %1, h;\n\t}"
        : "=f"(v.x), "=f"(v.y) : "r"(halves));
    return v;
}

// The loads of a group, step after step and rows after rows, DEPTH steps ahead of the arithmetic.
template <int ROWS, int DEPTH>
struct Stream {
    uint4 codes[DEPTH][ROWS];
    u32 scales[DEPTH][ROWS];
    const u8 *code, *scale;  // this lane's next, in the first of the rows
    u32 row, step;           // the rows and the step that come next
    u32 n_valid;             // steps in which this lane has codes

    __device__ __forceinline__ Stream(const Weights& w, u32 first, u32 split, u32 part) : row(first), step(0) {
        const u32 first_k = (part * LANES + threadIdx.x % LANES) * 32;
        n_valid = first_k < w.k ? (w.k - first_k + split * STEP_K - 1) / (split * STEP_K) : 0;
        code = w.codes + ((u64)first * w.k + first_k) / 2, scale = w.scales + ((u64)first * w.k + first_k) / BLOCK;
    }

    static __device__ __forceinline__ u32 n_steps(u32 k, u32 split) { return ((k + STEP_K - 1) / STEP_K + split - 1) / split; }

    // Codes of rows and columns that are not there are whatever they were, their scales zero. stride: rows from one turn of
    // the group to the next.
    __device__ __forceinline__ void fetch(int into, const Weights& w, u32 split, u32 end_row, u32 stride) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            scales[into][r] = 0;
            if (row + r < end_row && step < n_valid) {
                codes[into][r] = load16(code + r * (w.k / 2));
                scales[into][r] = load2(scale + r * (w.k / BLOCK));
            }
        }
        code += split * STEP_K / 2, scale += split * STEP_K / BLOCK;
        if (++step < n_steps(w.k, split)) return;
        code += (u64)stride * (w.k / 2) - n_steps(w.k, split) * split * STEP_K / 2;
        scale += (u64)stride * (w.k / BLOCK) - n_steps(w.k, split) * split * STEP_K / BLOCK;
        step = 0, row += stride;
    }
};

// One step of ROWS rows times x; `x` points at this lane's part of the staged step.
template <int ROWS>
__device__ __forceinline__ void multiply(float sums[ROWS], const uint4 codes[ROWS], const u32 scales[ROWS], const uint4* x) {
#pragma unroll
    for (int block = 0; block < 2; block++) {
        u32 part[ROWS] = {};
#pragma unroll
        for (int word = 2 * block; word < 2 * block + 2; word++) {
            const uint4 b = x[word * LANES];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                u32 pairs[4];
                unpack_codes((&codes[r].x)[word], pairs);
#pragma unroll
                for (int j = 0; j < 4; j++) part[r] = fma_f16x2(pairs[j], (&b.x)[j], part[r]);
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float2 halves = widen(part[r]), scale = widen(unpack_scales(scales[r]));
            sums[r] = fmaf(halves.x + halves.y, block ? scale.y : scale.x, sums[r]);
        }
    }
}

template <int ROWS>
__device__ __forceinline__ u32 row_of_lane() {
    return threadIdx.x % LANES / (LANES / ROWS);
}

// The sum over the lanes of a group (of a warp when split) of each of ROWS values: a lane gets that of row_of_lane().
template <int ROWS>
__device__ __forceinline__ float sum_lanes(float values[ROWS], u32 split) {
    const u32 lane = threadIdx.x % LANES;
#pragma unroll
    for (int half = ROWS / 2, distance = LANES / 2; half > 0; half /= 2, distance /= 2) {
        const bool upper = lane & distance;
#pragma unroll
        for (int r = 0; r < half; r++) {
            const float sent = upper ? values[r] : values[r + half];
            values[r] = (upper ? values[r + half] : values[r]) + __shfl_xor_sync(0xFFFFFFFF, sent, distance);
        }
    }
#pragma unroll
    for (int distance = LANES / ROWS / 2; distance > 0; distance /= 2)
        values[0] += __shfl_xor_sync(0xFFFFFFFF, values[0], distance);
    if (split == 2) values[0] += __shfl_xor_sync(0xFFFFFFFF, values[0], LANES);
    return values[0];
}

// --------------------------------------------------------------------------------------------- what becomes of a sum

// A sink takes from every lane the logit of row `row`; `first`: one lane of those that have the same. Before, it hears which
// rows are the block's; `room` is shared memory for eight bytes a row.

template <class Y>
struct Logits {
    Y* __restrict__ y;  // [N] FP32 or BF16

    __device__ __forceinline__ void begin(u32, u32, float*) {}
    __device__ __forceinline__ void take(u32 row, float logit, bool first) {
        if (first) write(y + row, logit);
    }
};

// Keeps the block's logits, and compares them at the end: in the loop there is no register left for a best one.
struct Argmax {
    const int* __restrict__ token_ids;  // [N], or null: the row is the id
    float* logits;                      // in shared memory, of the block's rows, from row 0 on; then their ids

    __device__ __forceinline__ void begin(u32 first_row, u32 end_row, float* room) {
        logits = room - first_row;
        if (!token_ids) return;
#pragma unroll 1
        for (u32 row = first_row + threadIdx.x; row < end_row; row += THREADS)
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
                         ::"r"((u32)__cvta_generic_to_shared(logits + (end_row - first_row) + row)), "l"(token_ids + row));
    }
    __device__ __forceinline__ void take(u32 row, float logit, bool first) {
        if (first) logits[row] = logit;
    }
    // The best key of this thread's rows. All threads come here when they are done with the loop.
    __device__ __forceinline__ u64 best(u32 first_row, u32 end_row) const {
        __syncthreads();
        u64 best = 0;
#pragma unroll 1
        for (u32 row = first_row + threadIdx.x; row < end_row; row += THREADS) {
            const u32 id = token_ids ? __float_as_uint(logits[end_row - first_row + row]) : row;
            best = max(best, winner_key(ordered(logits[row]), id));
        }
        return best;
    }
};

__device__ __forceinline__ u32 first_row_of(u32 block, u32 n_rows) { return (u64)block * n_rows / gridDim.x; }

// --------------------------------------------------------------------------------------------- the kernels

template <int ROWS, int DEPTH, class Sink>
__device__ __forceinline__ void gemv(const Weights& w, const uint4* __restrict__ x, u32 split, u32 dependent, Sink& sink) {
    extern __shared__ uint4 staged[];  // [steps][word 4][lane] of 16 bytes, steps a multiple of split; the sink's room
    __shared__ u32 largest;
    __shared__ double factor;
    const u32 pair = threadIdx.x / LANES % 2, part = split == 2 ? pair : 0;
    const u32 first = (threadIdx.x / LANES / split) * ROWS, stride = GROUPS / split * ROWS;
    const u32 first_row = first_row_of(blockIdx.x, w.n_rows), end_row = first_row_of(blockIdx.x + 1, w.n_rows);

    start_successor();
    Stream<ROWS, DEPTH> stream(w, first_row + first, split, part);
    const u32 n_steps = stream.n_steps(w.k, split);
    sink.begin(first_row, end_row, (float*)(staged + n_steps * split * 4 * LANES));
    auto fetch_first = [&]() {
#pragma unroll
        for (int i = 0; i < DEPTH; i++) stream.fetch(i, w, split, end_row, stride);
    };
    // After another kernel, weights come first: they need not wait for it. Else x, lest it queue behind them.
    if (dependent) fetch_first();
    wait_for_predecessor();
    const float global_scale = *w.global_scale;
    Staging<Place, TOP, 2> staging(x, w.k / 8, w.k / 8, 1, Place());
    if (!dependent) fetch_first();
    if (threadIdx.x == 0) largest = 0;
    if (w.k < n_steps * split * STEP_K)
        for (u32 i = threadIdx.x; i < n_steps * split * 4 * LANES; i += THREADS) staged[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    staging.measure(staged, &largest);
    __syncthreads();
    staging.convert(staged, &largest);
    if (threadIdx.x == 0) factor = staging.factor(global_scale, largest);
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();

    const uint4* at = staged + part * 4 * LANES + threadIdx.x % LANES;
    float sums[ROWS] = {};
    u32 row = first_row + first, step = 0;
    // A warp goes on while its first group has rows.
    while (row - (split == 1 ? pair * ROWS : 0) < end_row) {
#pragma unroll
        for (int i = 0; i < DEPTH; i++) {
            multiply<ROWS>(sums, stream.codes[i], stream.scales[i], at);
            stream.fetch(i, w, split, end_row, stride);
            at += split * 4 * LANES;
            if (++step < n_steps) continue;
            const float sum = sum_lanes<ROWS>(sums, split);
            if (row + row_of_lane<ROWS>() < end_row)
                sink.take(row + row_of_lane<ROWS>(), (float)(sum * factor), threadIdx.x % (LANES / ROWS) == 0 && part == 0);
#pragma unroll
            for (int r = 0; r < ROWS; r++) sums[r] = 0;
            step = 0, at -= n_steps * split * 4 * LANES, row += stride;
        }
    }
}

template <int ROWS, int DEPTH>
__device__ __forceinline__ void argmax(const Weights& w, const uint4* x, u32 split, u32 dependent, const int* token_ids,
                                       u64* slots, int* ids, float* values) {
    Argmax sink = {token_ids, nullptr};
    gemv<ROWS, DEPTH>(w, x, split, dependent, sink);
    u64 best[MAX_M] = {sink.best(first_row_of(blockIdx.x, w.n_rows), first_row_of(blockIdx.x + 1, w.n_rows))};
    settle_winners<WARPS>(best, 1, slots, ids, values);
}

#define BOUNDS __launch_bounds__(THREADS, BLOCKS_PER_SM)

// NAME_logits: y [N] F32. NAME_argmax: ids, values [1], the token id of the largest logit and the logit. NaN is the
// largest; ties go to the lower row, which is the lower id: token_ids [N] (or null: the row is the id) ascend, but for
// rows at the end that repeat the first. slots [grid] are zero, and zero again afterwards. m_count is 1.
#define KERNELS(NAME, ROWS, DEPTH)                                                                                  \
    extern "C" __global__ BOUNDS void NAME##_logits(WEIGHTS_AND_X, float* __restrict__ y) {                         \
        Logits<float> sink = {y};                                                                                     \
        gemv<ROWS, DEPTH>({codes, scales, global_scale, n_rows, k}, x, split, dependent, sink);                     \
    }                                                                                                               \
    extern "C" __global__ BOUNDS void NAME##_argmax(WEIGHTS_AND_X, const int* __restrict__ token_ids, u64* slots,   \
                                                    int* ids, float* values) {                                      \
        argmax<ROWS, DEPTH>({codes, scales, global_scale, n_rows, k}, x, split, dependent, token_ids, slots, ids,   \
                            values);                                                                                \
    }

KERNELS(nvfp4_gemv, 4, 1)      // many rows
KERNELS(nvfp4_gemv_few, 1, 3)  // few
