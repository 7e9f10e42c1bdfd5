// y = W x for the few vectors of a draft step: W is NVFP4 in the plain sidecar layout, x is BF16 [M, K], M = 1..8.
//
// Bytes moved: N * K * (1/2 + 1/16), each weight once, whatever M is; the aim is the speed of a plain read of them.
//
// A warp owns a tile of 16 rows and multiplies on the tensor cores, `mma.m16n8k16`, weights as the A operand and the
// vectors as the eight columns of B, so that eight vectors cost the instructions of one. A lane (group g = lane / 4,
// member t = lane % 4) loads 16 bytes = 32 codes of rows g and g + 8; four lanes cover 64 bytes of a row:
//
//        k ->   | t=0: 32 | t=1: 32 | t=2: 32 | t=3: 32 |  one step: 128 k, two 16-byte loads, eight mma
//   row g       | 16B     | 16B     | 16B     | 16B     |
//   row g + 8   | 16B     | 16B     | 16B     | 16B     |
//
// An mma does not care which k is which as long as A and B agree, so a lane feeds its own neighbours in k, four to an
// mma, and x is staged in shared memory in the order in which the codes unpack. The block scale multiplies the weights
// in FP16 before the mma: E2M1 * E4M3 has six significand bits, so the product is exact. x becomes FP16 after a
// power-of-two scale that brings its largest finite element to 2^15: exact for elements down to 2^-32 of the largest,
// off by less than 2^-40 of the largest below. Sums are FP32.
//
// `split` warps share a tile and take parts of K; their sums meet in shared memory, always in the same order, so a
// result does not depend on timing. NaN or Inf in x gives what IEEE arithmetic gives.

#include "nvfp4.cuh"

#ifndef L2_FETCH
#define L2_FETCH ".L2::256B"
#endif
#ifndef WARPS
#define WARPS 16              // warps of a thread block
#endif
#ifndef BLOCKS_PER_SM
#define BLOCKS_PER_SM 2       // thread blocks the registers leave room for
#endif
#ifndef DEPTH
#define DEPTH 2               // steps of 128 k whose loads are in flight
#endif

#define TILE_ROWS 16
#define STEP_K 128            // k of a step: 4 lanes * 32 codes
#define MAX_M 8

// --------------------------------------------------------------------------------------------- loads

// Weights are read once: not kept in L1, and fetched into L2 256 bytes at a time, which the next steps find there.
__device__ __forceinline__ uint4 load_codes16(const u8* address) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate" L2_FETCH ".v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(address));
    return v;
}

__device__ __forceinline__ uint2 load_codes8(const u8* address) {
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(address));
    return v;
}

// 32 codes of one row and their two block scales.
struct Chunk {
    uint4 codes;
    u32 scales;
};

// Chunk `c` (32 k) of the row that starts at block `row_block`. Narrow: K % 32 == 16, rows are 8-byte aligned and the
// last chunk holds one block.
template <bool NARROW>
__device__ __forceinline__ Chunk load_chunk(const u8* __restrict__ codes, const u8* __restrict__ scales,
                                            u64 row_block, u32 c, u32 n_blocks) {
    Chunk chunk = {{0, 0, 0, 0}, 0};
    if (2 * c >= n_blocks) return chunk;
    const u8* code = codes + (row_block + 2 * c) * (BLOCK / 2);
    const u8* scale = scales + row_block + 2 * c;
    if (!NARROW) {
        chunk.codes = load_codes16(code);
        chunk.scales = __ldg((const u16*)scale);
    } else {
        uint2 first = load_codes8(code);
        chunk.codes.x = first.x, chunk.codes.y = first.y;
        chunk.scales = __ldg(scale);
        if (2 * c + 1 < n_blocks) {
            uint2 second = load_codes8(code + BLOCK / 2);
            chunk.codes.z = second.x, chunk.codes.w = second.y;
            chunk.scales |= __ldg(scale + 1) << 8;
        }
    }
    return chunk;
}

// --------------------------------------------------------------------------------------------- arithmetic

__device__ __forceinline__ u32 mul_f16x2(u32 a, u32 b) {
    u32 product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}

__device__ __forceinline__ void mma_f16(float sum[4], const u32 a[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// One step: 128 k of 16 rows times the staged x. `x` points at this lane's 16 bytes of the step, `x_pitch` apart in
// the word index.
__device__ __forceinline__ void multiply(float sum[4], const Chunk& upper, const Chunk& lower,
                                         const uint4* x, u32 x_pitch) {
    const u32 upper_codes[4] = {upper.codes.x, upper.codes.y, upper.codes.z, upper.codes.w};
    const u32 lower_codes[4] = {lower.codes.x, lower.codes.y, lower.codes.z, lower.codes.w};
    u32 upper_scales = unpack_scales(upper.scales), lower_scales = unpack_scales(lower.scales);
#pragma unroll
    for (int w = 0; w < 4; w++) {
        // words 0 and 1 are the first block of the chunk, 2 and 3 the second
        u32 pick = w < 2 ? 0x1010 : 0x3232;
        u32 upper_scale = __byte_perm(upper_scales, 0, pick), lower_scale = __byte_perm(lower_scales, 0, pick);
        u32 up[4], low[4];
        unpack_codes(upper_codes[w], up);
        unpack_codes(lower_codes[w], low);
        uint4 b = x[w * x_pitch];
        u32 first[4] = {mul_f16x2(up[0], upper_scale), mul_f16x2(low[0], lower_scale),
                        mul_f16x2(up[1], upper_scale), mul_f16x2(low[1], lower_scale)};
        mma_f16(sum, first, b.x, b.y);
        u32 second[4] = {mul_f16x2(up[2], upper_scale), mul_f16x2(low[2], lower_scale),
                         mul_f16x2(up[3], upper_scale), mul_f16x2(low[3], lower_scale)};
        mma_f16(sum, second, b.z, b.w);
    }
}

// --------------------------------------------------------------------------------------------- staging x

// The power of two that brings the largest finite |x| of a vector into [2^15, 2^16): 15 - floor(log2 max).
__device__ __forceinline__ int scale_exponent(u32 largest /* BF16 bits of the largest finite |x| */) {
    return largest == 0 ? 0 : 15 + 127 - max((int)(largest >> 7), 1);
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

// x [M, K] BF16 -> shared FP16, [step][word 4][m][t 4] of 16 bytes: the lanes of a warp read neighbours, and a lane's
// 16 bytes are the B operands of two mma. Beyond K: zeros. Returns nothing until every thread is done.
__device__ void stage_x(uint4* staged, u32 largest[MAX_M], const uint4* __restrict__ x, u32 n_groups /* K / 8 */,
                        u32 n_steps, u32 m_count) {
    if (threadIdx.x < MAX_M) largest[threadIdx.x] = 0;
    __syncthreads();
    for (u32 m = 0; m < m_count; m++) {
        u32 mine = 0;
        for (u32 i = threadIdx.x; i < n_groups; i += WARPS * 32) {
            uint4 v = __ldg(x + (u64)m * n_groups + i);
            mine = finite_max(finite_max(finite_max(finite_max(mine, v.x), v.y), v.z), v.w);
        }
        mine = __reduce_max_sync(0xFFFFFFFF, mine);
        if (threadIdx.x % 32 == 0) atomicMax(&largest[m], mine);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < n_steps * 16 * m_count; i += WARPS * 32) {
        u32 m = i / (n_steps * 16), group = i % (n_steps * 16);
        uint4 v = {0, 0, 0, 0};
        if (group < n_groups) v = __ldg(x + (u64)m * n_groups + group);
        u32 in[4] = {v.x, v.y, v.z, v.w}, out[4];
        int exponent = scale_exponent(largest[m]);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int low = pair_low(j), high = pair_high(j);
            u32 a = in[low / 2] >> (16 * (low % 2)) & 0xFFFF, b = in[high / 2] >> (16 * (high % 2)) & 0xFFFF;
            out[j] = narrow(a, exponent) | narrow(b, exponent) << 16;
        }
        u32 step = group / 16, t = group % 16 / 4, word = group % 4;
        staged[((step * 4 + word) * m_count + m) * 4 + t] = make_uint4(out[0], out[1], out[2], out[3]);
    }
    __syncthreads();
}

// --------------------------------------------------------------------------------------------- what becomes of a sum

// Order of floats as unsigned integers: NaN above all (as torch.argmax has it), -0 equal to +0.
__device__ __forceinline__ u32 ordered(float v) {
    if (v != v) return 0xFFFFFFFF;
    u32 bits = __float_as_uint(v + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000;
}

__device__ __forceinline__ float unordered(u32 key) {
    if (key == 0xFFFFFFFF) return __uint_as_float(0x7FC00000);
    return __uint_as_float(key >> 31 ? key & 0x7FFFFFFF : ~key);
}

// Writes y [M, N] F32.
struct Logits {
    float* __restrict__ y;
    u32 n_rows;

    __device__ __forceinline__ void take(u32 row, u32 m, float value, int) { y[(u64)m * n_rows + row] = value; }
};

// Keeps the best row of each of the two columns a lane sees.
struct Argmax {
    const int* __restrict__ token_ids;  // [N] or null: the row is the id
    u32 best[2], best_row[2];

    __device__ __forceinline__ u32 id(u32 row) const { return token_ids ? (u32)token_ids[row] : row; }

    __device__ __forceinline__ void take(u32 row, u32, float value, int column) {
        u32 key = ordered(value);
        if (key > best[column] || (key == best[column] && id(row) < id(best_row[column])))
            best[column] = key, best_row[column] = row;
    }
    // Higher is better; ties go to the lower id. Zero: no row seen.
    __device__ __forceinline__ u64 key(int column) const {
        return best[column] == 0 ? 0 : (u64)best[column] << 32 | (0xFFFFFFFF - id(best_row[column]));
    }
};

// --------------------------------------------------------------------------------------------- the loop

struct Weights {
    const u8* __restrict__ codes;         // [N, K/2]
    const u8* __restrict__ scales;        // [N, K/16]
    const float* __restrict__ global_scale;  // [1]
    u32 n_rows, k;
};

// Where a warp's next loads come from: a step of a tile, the tile's two row starts in blocks.
struct Cursor {
    u32 tile, step;
    u64 upper, lower;

    __device__ __forceinline__ void enter(u32 new_tile, u32 first_step, const Weights& w, u32 g) {
        tile = new_tile, step = first_step;
        u32 n_blocks = w.k / BLOCK, row = new_tile * TILE_ROWS + g;
        // rows past the end read the last row; nothing becomes of them
        upper = (u64)min(row, w.n_rows - 1) * n_blocks;
        lower = (u64)min(row + 8, w.n_rows - 1) * n_blocks;
    }
};

// Barrier of the `split` warps of one team.
__device__ __forceinline__ void team_sync(u32 team, u32 split) {
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(split * 32) : "memory");
}

template <bool NARROW, class Sink>
__device__ __forceinline__ void gemv(const Weights& w, const uint4* __restrict__ x, u32 m_count,
                                     u32 split /* divides WARPS, at most ceil(K / 128) */, Sink& sink) {
    extern __shared__ uint4 staged[];  // x, then the partial sums when split > 1
    __shared__ u32 largest[MAX_M];
    __shared__ double factors[MAX_M];  // what turns a sum into a logit
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const u32 n_blocks = w.k / BLOCK, n_steps = (w.k + STEP_K - 1) / STEP_K;
    const u32 n_tiles = (w.n_rows + TILE_ROWS - 1) / TILE_ROWS;
    const u32 team = warp / split, part = warp % split, stride = gridDim.x * (WARPS / split);
    const u32 first_step = part * n_steps / split, end_step = (part + 1) * n_steps / split;

    Chunk upper[DEPTH], lower[DEPTH];
    Cursor next;
    next.enter(blockIdx.x + gridDim.x * team, first_step, w, g);
    auto fetch = [&](int slot) {
        if (next.tile >= n_tiles) return;
        upper[slot] = load_chunk<NARROW>(w.codes, w.scales, next.upper, next.step * 4 + t, n_blocks);
        lower[slot] = load_chunk<NARROW>(w.codes, w.scales, next.lower, next.step * 4 + t, n_blocks);
        if (++next.step == end_step) next.enter(next.tile + stride, first_step, w, g);
    };
    // the first weights are on their way while x is staged
#pragma unroll
    for (int slot = 0; slot < DEPTH; slot++) fetch(slot);
    stage_x(staged, largest, x, w.k / 8, n_steps, m_count);
    if (threadIdx.x < MAX_M)
        factors[threadIdx.x] =
            *w.global_scale * power_of_two(UNPACK_EXPONENT - scale_exponent(largest[threadIdx.x]));
    __syncthreads();

    float4* partial = (float4*)(staged + n_steps * 16 * m_count);  // [2][WARPS][32]
    const u32 x_pitch = m_count * 4;
    const uint4* my_x = staged + first_step * 4 * x_pitch + (g < m_count ? g : 0) * 4 + t;
    const uint4* step_x = my_x;
    u32 tile = blockIdx.x + gridDim.x * team, step = first_step, parity = 0;
    float sum[4] = {0, 0, 0, 0};

    auto finish_tile = [&]() {
        if (split > 1) {  // two buffers, so one barrier a tile is enough
            partial[(parity * WARPS + warp) * 32 + lane] = make_float4(sum[0], sum[1], sum[2], sum[3]);
            team_sync(team, split);
            if (part == 0) {
#pragma unroll 1
                for (u32 other = 1; other < split; other++) {
                    float4 more = partial[(parity * WARPS + warp + other) * 32 + lane];
                    sum[0] += more.x, sum[1] += more.y, sum[2] += more.z, sum[3] += more.w;
                }
            }
            parity ^= 1;
        }
        if (part == 0) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 row = tile * TILE_ROWS + g + i / 2 * 8, m = 2 * t + i % 2;
                if (row < w.n_rows && m < m_count) sink.take(row, m, (float)(sum[i] * factors[m]), i % 2);
            }
        }
        sum[0] = sum[1] = sum[2] = sum[3] = 0;
        step = first_step, step_x = my_x, tile += stride;
    };
    while (tile < n_tiles) {
        // a slot is a compile-time index, so the buffers stay in registers; loads run DEPTH steps ahead, over tiles too
#pragma unroll
        for (int slot = 0; slot < DEPTH; slot++) {
            if (tile >= n_tiles) break;
            multiply(sum, upper[slot], lower[slot], step_x, x_pitch);
            fetch(slot);
            step_x += 4 * x_pitch;
            if (++step == end_step) finish_tile();
        }
    }
}

// --------------------------------------------------------------------------------------------- kernels

template <bool NARROW>
__device__ __forceinline__ void logits(const Weights& w, const uint4* x, float* y, u32 m_count, u32 split) {
    Logits sink = {y, w.n_rows};
    gemv<NARROW>(w, x, m_count, split, sink);
}

// The winner of each vector. Blocks meet in `keys`, the last one to arrive reads them out and leaves zeros for the next
// launch; a maximum does not depend on the order of arrival.
template <bool NARROW>
__device__ __forceinline__ void argmax(const Weights& w, const uint4* x, const int* token_ids, u32 m_count, u32 split,
                                       u64* keys /* [MAX_M] zeros */, u32* arrived /* zero */, int* ids, float* values) {
    __shared__ u64 warp_keys[WARPS][MAX_M];
    Argmax sink = {token_ids, {0, 0}, {0, 0}};
    gemv<NARROW>(w, x, m_count, split, sink);
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int column = 0; column < 2; column++) {
        u64 key = sink.key(column);
        for (int distance = 4; distance < 32; distance *= 2) key = max(key, __shfl_xor_sync(0xFFFFFFFF, key, distance));
        if (lane < 4) warp_keys[warp][2 * lane + column] = key;
    }
    __syncthreads();
    if (warp > 0) return;
    if (lane < m_count) {
        u64 key = 0;
        for (int other = 0; other < WARPS; other++) key = max(key, warp_keys[other][lane]);
        atomicMax(&keys[lane], key);
        __threadfence();
    }
    __syncwarp();
    u32 ticket = lane == 0 ? atomicAdd(arrived, 1) : 0;
    if (__shfl_sync(0xFFFFFFFF, ticket, 0) != gridDim.x - 1) return;
    __threadfence();
    if (lane < m_count) {
        u64 key = atomicExch(&keys[lane], 0);
        ids[lane] = (int)(0xFFFFFFFF - (u32)key);
        values[lane] = unordered((u32)(key >> 32));
    }
    if (lane == 0) *arrived = 0;
}

#define NVFP4_ARGUMENTS                                                                                  \
    const u8 *__restrict__ codes /* [N, K/2] */, const u8 *__restrict__ scales /* [N, K/16] E4M3 */,     \
        const float *__restrict__ global_scale /* [1] */, const uint4 *__restrict__ x /* [M, K] BF16 */, \
        u32 n_rows, u32 k, u32 m_count, u32 split
#define BOUNDS __launch_bounds__(WARPS * 32, BLOCKS_PER_SM)

// y [M, N] F32. K % 32 == 0.
extern "C" __global__ BOUNDS void nvfp4_gemv_logits(NVFP4_ARGUMENTS, float* __restrict__ y) {
    logits<false>({codes, scales, global_scale, n_rows, k}, x, y, m_count, split);
}
// The same for K % 32 == 16.
extern "C" __global__ BOUNDS void nvfp4_gemv_logits_narrow(NVFP4_ARGUMENTS, float* __restrict__ y) {
    logits<true>({codes, scales, global_scale, n_rows, k}, x, y, m_count, split);
}
// ids, values [M]: the token id of the largest logit (ties: the lowest id; NaN is the largest), and the logit.
extern "C" __global__ BOUNDS void nvfp4_gemv_argmax(NVFP4_ARGUMENTS, const int* __restrict__ token_ids,
                                                    u64* keys, u32* arrived, int* ids, float* values) {
    argmax<false>({codes, scales, global_scale, n_rows, k}, x, token_ids, m_count, split, keys, arrived, ids, values);
}
// The same for K % 32 == 16.
extern "C" __global__ BOUNDS void nvfp4_gemv_argmax_narrow(NVFP4_ARGUMENTS, const int* __restrict__ token_ids,
                                                           u64* keys, u32* arrived, int* ids, float* values) {
    argmax<true>({codes, scales, global_scale, n_rows, k}, x, token_ids, m_count, split, keys, arrived, ids, values);
}
