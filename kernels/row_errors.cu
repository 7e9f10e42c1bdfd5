// Error figures of rows, with the same digits as the CPU: `src/nvfp4/error_rows.rs` is the specification, and the order of
// every sum below is its order. Compile with --fmad=false.
//
// A warp, one row: half of it takes a run of blocks, the other half the next, a lane the columns of one place in a block.
// The copies to the card bound it, not its loads of two bytes.

#include "nvfp4.cuh"

#define ROWS 8           // of a thread block, one a warp
#define BLOCKS_PER_RUN 16  // whose sums are kept in F32

// Figures of a row, of everything times `power`: sums of (decoded - weight)^2 and of weight^2; the largest of the former;
// weights beyond what their block can say; blocks that lose codes where a kernel reads scales below the smallest normal as
// zero.
struct RowFigures {
    double sq_error, sq_weight;
    float largest_square;
    u32 n_saturated, n_flushed, unused;
};

struct Rows {
    const void* __restrict__ weights;  // [N, K] BF16, or F32
    const uint2* __restrict__ codes;   // [N, K/2]
    const u8* __restrict__ scales;     // [N, K/16] E4M3
    u32 from_bf16;
    float global_scale, power;  // the matrix's global scale times the power

    __device__ __forceinline__ float weight(u64 at) const {
        return from_bf16 ? __uint_as_float((u32)__ldg((const u16*)weights + at) << 16) : __ldg((const float*)weights + at);
    }
};

// What a lane finds in its column.
struct Column {
    float sq_error, sq_weight, largest_square;
    u32 n_saturated, n_flushed;

    // `column`: of the block.
    __device__ __forceinline__ void add(const Rows& rows, u64 block, u32 column) {
        const uint2 codes = __ldg(rows.codes + block);
        const u32 scale_code = __ldg(rows.scales + block), code = (column < 8 ? codes.x : codes.y) >> column % 8 * 4 & 15;
        const float scale = e4m3_value(scale_code), x = __fmul_rn(rows.weight(block * BLOCK + column), rows.power);
        const float difference = __fsub_rn(__fmul_rn(__fmul_rn(e2m1_value(code), scale), rows.global_scale), x);
        const float error = __fmul_rn(difference, difference);
        sq_error = __fadd_rn(sq_error, error), sq_weight = __fadd_rn(sq_weight, __fmul_rn(x, x));
        largest_square = fmaxf(largest_square, error);
        n_saturated += __fmul_rn(__fmul_rn(E2M1_MAX, scale), rows.global_scale) < fabsf(x);
        n_flushed += column == 0 && ((codes.x | codes.y) & 0x77777777) && (scale_code & 0x7F) < KERNEL_SAFE_MIN_CODE;
    }
};

// The columns of a block are added up pairwise: halves, until one number is left.
__device__ __forceinline__ double pairwise(double sum) {
#pragma unroll
    for (int distance = BLOCK / 2; distance > 0; distance /= 2) sum = __dadd_rn(sum, __shfl_xor_sync(0xFFFFFFFF, sum, distance));
    return sum;
}

extern "C" __global__ void __launch_bounds__(ROWS * 32) nvfp4_row_errors(
    const void* __restrict__ weights, u32 from_bf16, u32 n_rows, u32 row_blocks /* K / 16 */, float global_scale, float power,
    const uint2* __restrict__ codes, const u8* __restrict__ scales, RowFigures* __restrict__ figures /* [N] */) {
    const Rows rows = {weights, codes, scales, from_bf16, global_scale, power};
    const u32 row = blockIdx.x * ROWS + threadIdx.x / 32, lane = threadIdx.x % 32, column = lane % BLOCK;
    if (row >= n_rows) return;
    double sq_error = 0, sq_weight = 0;
    Column found = {};
    for (u32 first = 0; first < row_blocks; first += 2 * BLOCKS_PER_RUN) {
        const u32 run = first + lane / BLOCK * BLOCKS_PER_RUN, end = min(run + BLOCKS_PER_RUN, row_blocks);
        found.sq_error = found.sq_weight = 0;
        for (u32 block = run; block < end; block++) found.add(rows, (u64)row * row_blocks + block, column);
#pragma unroll
        for (u32 half = 0; half < 32; half += BLOCK) {
            sq_error = __dadd_rn(sq_error, __shfl_sync(0xFFFFFFFF, found.sq_error, column + half));
            sq_weight = __dadd_rn(sq_weight, __shfl_sync(0xFFFFFFFF, found.sq_weight, column + half));
        }
    }
    sq_error = pairwise(sq_error), sq_weight = pairwise(sq_weight);
    // floats of one sign are ordered as their bits
    const float largest_square = __uint_as_float(__reduce_max_sync(0xFFFFFFFF, __float_as_uint(found.largest_square)));
    const u32 n_saturated = __reduce_add_sync(0xFFFFFFFF, found.n_saturated), n_flushed = __reduce_add_sync(0xFFFFFFFF, found.n_flushed);
    if (lane == 0) figures[row] = {sq_error, sq_weight, largest_square, n_saturated, n_flushed, 0};
}
