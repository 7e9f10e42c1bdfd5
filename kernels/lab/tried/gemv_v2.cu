// y = W x for the few vectors of a draft step: W is NVFP4 in the plain sidecar layout, x is BF16 [M, K], M = 1..8.
//
// Bytes moved: N * K * (1/2 + 1/16), each weight once, whatever M is; the aim is the speed of a plain read of them.
//
// A warp owns a tile of 16 rows and multiplies on the tensor cores, `mma.m16n8k16`, with the weights as the A operand.
// A lane (group g = lane / 4, member t = lane % 4) takes 16 bytes = 32 codes = 2 blocks of rows g and g + 8:
//
//        k ->   | t=0: 32 | t=1: 32 | t=2: 32 | t=3: 32 |  one step: 128 k
//   row g       | 16 B    | 16 B    | 16 B    | 16 B    |
//   row g + 8   | 16 B    | 16 B    | 16 B    | 16 B    |
//
// An mma does not care which k is which as long as A and B agree, so a lane feeds its own neighbours in k, four to an
// mma. Column 4v + t of B holds what member t needs of vector v and zeros elsewhere; so the four members' blocks, which
// have different scales, come out in four columns, the block scale multiplies a sum of 16 products in FP32, and no
// weight is ever scaled by itself. Two vectors fill an mma; x is staged in shared memory in the order in which the codes
// unpack.
//
// E2M1 times x is exact in the FP16 of the mma: x becomes FP16 after a power-of-two scale that brings its largest finite
// element to 2^15, which is exact for elements down to 2^-32 of the largest and off by less than 2^-40 of the largest
// below. Sums over blocks are FP32 fused multiply-adds. NaN or Inf in x gives what IEEE arithmetic gives.
//
// Weights go through shared memory by asynchronous copies (sm_80 on), `depth` steps ahead and over tile ends, each lane
// into its own 16 bytes and out again, so there is nothing to wait for but the copy itself.
//
// `split` warps share a tile and take parts of K; their sums meet in shared memory, always in the same order, so a
// result does not depend on timing.

#include "nvfp4.cuh"

#ifndef WARPS
#define WARPS 32              // warps of a thread block
#endif
#ifndef BLOCKS_PER_SM
#define BLOCKS_PER_SM 1       // thread blocks the registers leave room for
#endif

#define TILE_ROWS 16
#define STEP_K 128            // k of a step: 4 lanes * 32 codes
#define MAX_M 8
#define SLOT_BYTES 1280       // a warp's weights of a step: 2 * 512 bytes of codes, 2 * 128 bytes of scales
#define X_STEP_BYTES(CAPACITY) (256 * (CAPACITY))  // x of a step: 128 FP16 a vector

// --------------------------------------------------------------------------------------------- asynchronous copies

__device__ __forceinline__ void copy16(u32 shared, const u8* global, u32 n_bytes /* 16, or 0: zeros */) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(n_bytes));
}
__device__ __forceinline__ void copy8(u32 shared, const u8* global, u32 n_bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(global), "r"(n_bytes));
}
__device__ __forceinline__ void copy4(u32 shared, const u8* global, u32 n_bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global), "r"(n_bytes));
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;"); }

// Waits until the oldest of `depth` steps has arrived.
__device__ __forceinline__ void wait_oldest(u32 depth /* 2 or 4 */) {
    if (depth == 4)
        asm volatile("cp.async.wait_group 3;" ::: "memory");
    else
        asm volatile("cp.async.wait_group 1;" ::: "memory");
}

__device__ __forceinline__ uint4 read16(u32 shared) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(shared));
    return v;
}
__device__ __forceinline__ u32 read4(u32 shared) {
    u32 v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(shared));
    return v;
}

// --------------------------------------------------------------------------------------------- weights on their way

struct Weights {
    const u8* __restrict__ codes;            // [N, K/2]
    const u8* __restrict__ scales;           // [N, K/16]
    const float* __restrict__ global_scale;  // [1]
    u32 n_rows, k;
};

// Which warps work on what: a team of `split` warps takes every `stride`-th tile, a part of the team its steps of it.
struct Share {
    u32 team, part, stride, n_tiles, first_step, end_step;

    __device__ __forceinline__ Share(const Weights& w, u32 split, u32 warp) {
        u32 n_steps = (w.k + STEP_K - 1) / STEP_K;
        team = warp / split, part = warp % split, stride = gridDim.x * (WARPS / split);
        n_tiles = (w.n_rows + TILE_ROWS - 1) / TILE_ROWS;
        first_step = part * n_steps / split, end_step = (part + 1) * n_steps / split;
    }
    __device__ __forceinline__ u32 first_tile() const { return blockIdx.x + gridDim.x * team; }
};

// The loads of a warp, step after step and tile after tile. Narrow: K % 64 != 0, so rows of codes are only 8-byte
// aligned and rows of scales not at all.
template <bool NARROW>
struct Stream {
    u32 upper, lower;  // this lane's next block of rows g and g + 8, counted over the matrix
    u32 tile, step;

    __device__ __forceinline__ void enter(u32 new_tile, const Weights& w, const Share& share, u32 lane) {
        tile = new_tile, step = share.first_step;
        u32 n_blocks = w.k / BLOCK, row = new_tile * TILE_ROWS + lane / 4, at = step * 8 + lane % 4 * 2;
        // rows past the end read the last row; nothing becomes of them
        upper = min(row, w.n_rows - 1) * n_blocks + at, lower = min(row + 8, w.n_rows - 1) * n_blocks + at;
    }

    // Starts the copies of one step into the slot at `shared`. This lane's scales are not those of its codes but those
    // of columns 2t and 2t + 1, four bytes.
    __device__ __forceinline__ void fetch(u32 shared, const Weights& w, const Share& share, u32 lane) {
        if (tile < share.n_tiles) {
            const u32 t = lane % 4, codes_at = shared + lane * 16, scales_at = shared + 1024 + lane * 4;
            const int n_left = (int)(w.k / BLOCK) - (int)(step * 8), to_scales = (int)(t % 2 * 4) - (int)(t * 2);
            const u8 *up = w.codes + (u64)upper * 8, *low = w.codes + (u64)lower * 8;
            const u8 *up_scales = w.scales + to_scales + (u64)upper, *low_scales = w.scales + to_scales + (u64)lower;
            if (!NARROW) {  // whole pairs of members: what is not there is zeros
                u32 there = (int)(t % 2 * 4) < n_left, n_bytes = (int)(t * 2) < n_left ? 16 : 0;
                copy16(codes_at, n_bytes ? up : w.codes, n_bytes);
                copy16(codes_at + 512, n_bytes ? low : w.codes, n_bytes);
                copy4(scales_at, there ? up_scales : w.scales, there * 4);
                copy4(scales_at + 128, there ? low_scales : w.scales, there * 4);
            } else {
                for (int half = 0; half < 2; half++) {
                    u32 there = (int)(t * 2) + half < n_left;
                    copy8(codes_at + half * 8, there ? up + half * 8 : w.codes, there * 8);
                    copy8(codes_at + half * 8 + 512, there ? low + half * 8 : w.codes, there * 8);
                }
                for (int i = 0; i < 4; i++) {
                    bool there = (int)(t % 2 * 4) + i < n_left;
                    u32 a = there ? up_scales[i] : 0, b = there ? low_scales[i] : 0;
                    asm volatile("st.shared.u8 [%0], %1;" ::"r"(scales_at + i), "r"(a) : "memory");
                    asm volatile("st.shared.u8 [%0], %1;" ::"r"(scales_at + 128 + i), "r"(b) : "memory");
                }
            }
            upper += 8, lower += 8;
            if (++step == share.end_step) enter(tile + share.stride, w, share, lane);
        }
        end_copies();
    }
};

// --------------------------------------------------------------------------------------------- arithmetic

__device__ __forceinline__ void mma_f16(float sum[4], const u32 a[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float2 unpack_pair(u32 halves) {
    float2 v;
    asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %2;\n\tcvt.f32.f16 %0, l;\n\tcvt.f32.f16 %1, h;\n\t}"
        : "=f"(v.x), "=f"(v.y) : "r"(halves));
    return v;
}

// One step: 128 k of 16 rows times the staged x. upper[s] and lower[s] gather rows g and g + 8 for the vector of this
// lane's two columns in mma set s.
template <int CAPACITY>
__device__ __forceinline__ void multiply(float* upper, float* lower, u32 slot /* this warp's */, u32 x, u32 lane) {
    constexpr int SETS = (CAPACITY + 1) / 2;
    uint4 up16 = read16(slot + lane * 16), low16 = read16(slot + 512 + lane * 16);
    u32 up_scales = read4(slot + 1024 + lane * 4), low_scales = read4(slot + 1152 + lane * 4);
    const u32 up_codes[4] = {up16.x, up16.y, up16.z, up16.w}, low_codes[4] = {low16.x, low16.y, low16.z, low16.w};
    // scales of column 2t (blocks 0 and 1 of the lane behind it) and of column 2t + 1
    float2 up_even = unpack_pair(unpack_scales(up_scales & 0xFFFF)), up_odd = unpack_pair(unpack_scales(up_scales >> 16));
    float2 low_even = unpack_pair(unpack_scales(low_scales & 0xFFFF)), low_odd = unpack_pair(unpack_scales(low_scales >> 16));
#pragma unroll
    for (int block = 0; block < 2; block++) {
        float sum[SETS][4] = {};
#pragma unroll
        for (int word = 2 * block; word < 2 * block + 2; word++) {
            u32 up[4], low[4];
            unpack_codes(up_codes[word], up);
            unpack_codes(low_codes[word], low);
            const u32 first[4] = {up[0], low[0], up[1], low[1]}, second[4] = {up[2], low[2], up[3], low[3]};
#pragma unroll
            for (int set = 0; set < SETS; set++) {
                uint4 b = read16(x + word * CAPACITY * 64 + set * 128);
                mma_f16(sum[set], first, b.x, b.y);
                mma_f16(sum[set], second, b.z, b.w);
            }
        }
#pragma unroll
        for (int set = 0; set < SETS; set++) {
            upper[set] = fmaf(sum[set][0], block ? up_even.y : up_even.x, upper[set]);
            upper[set] = fmaf(sum[set][1], block ? up_odd.y : up_odd.x, upper[set]);
            lower[set] = fmaf(sum[set][2], block ? low_even.y : low_even.x, lower[set]);
            lower[set] = fmaf(sum[set][3], block ? low_odd.y : low_odd.x, lower[set]);
        }
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

// x [M, K] BF16 -> shared FP16, [step][word 4][vector CAPACITY][t 4] of 16 bytes, the B operands of two mma; then one
// more step of zeros, which the lanes read whose part of B is zero. Vectors from m_count on are zeros too.
template <int CAPACITY>
__device__ __forceinline__ void stage_x(uint4* staged, u32 largest[MAX_M], const uint4* __restrict__ x,
                                        u32 n_groups /* K / 8 */, u32 n_steps, u32 m_count) {
    if (threadIdx.x < MAX_M) largest[threadIdx.x] = 0;
    __syncthreads();
    for (u32 m = 0; m < m_count; m++) {
        u32 mine = 0;
        for (u32 i = threadIdx.x; i < n_groups; i += WARPS * 32) {
            uint4 v = __ldg(x + (u64)m * n_groups + i);
            mine = finite_max(finite_max(finite_max(finite_max(mine, v.x), v.y), v.z), v.w);
        }
        mine = __reduce_max_sync(0xFFFFFFFF, mine);
        if (threadIdx.x % 32 == 0 && mine) atomicMax(&largest[m], mine);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < (n_steps + 1) * 16 * CAPACITY; i += WARPS * 32) {
        u32 t = i % 4, m = i / 4 % CAPACITY, word = i / (4 * CAPACITY) % 4, step = i / (16 * CAPACITY);
        u32 group = step * 16 + t * 4 + word;
        bool there = group < n_groups && m < m_count;
        uint4 v = {0, 0, 0, 0};
        if (there) v = narrow8(__ldg(x + (u64)m * n_groups + group), scale_exponent(largest[m]));
        staged[i] = v;
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

// A sink takes, for one vector m, a row and its logit from each of the lanes that have one (`mine`); lanes 4g + t and
// t / 2 = m % 2 belong to one vector.

// Writes y [M, N] F32.
struct Logits {
    float* __restrict__ y;
    u32 n_rows;

    __device__ __forceinline__ void take(bool mine, u32 row, u32 m, float value) {
        if (mine) y[(u64)m * n_rows + row] = value;
    }
};

// Keeps the best logit of a warp and its row: the higher, then the lower row.
struct Argmax {
    u64* best;  // this warp's [MAX_M] in shared memory; zero: none yet

    __device__ __forceinline__ void take(bool mine, u32 row, u32 m, float value) {
        u64 key = mine ? (u64)ordered(value) << 32 | (0xFFFFFFFF - row) : 0;
        key = max(key, __shfl_xor_sync(0xFFFFFFFF, key, 1));
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) key = max(key, __shfl_xor_sync(0xFFFFFFFF, key, distance));
        if ((threadIdx.x & 29) == 0 && m < MAX_M) best[m] = max(best[m], key);
    }
};

// --------------------------------------------------------------------------------------------- the loop

// Barrier of the `split` warps of one team.
__device__ __forceinline__ void team_sync(u32 team, u32 split) {
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(split * 32) : "memory");
}

// Shared memory: x and a step of zeros, `depth` slots a warp, and when split > 1 the teams' sums, [2][WARPS][set][32].
template <int CAPACITY, bool NARROW, class Sink>
__device__ __forceinline__ void gemv(const Weights& w, const uint4* __restrict__ x, u32 m_count,
                                     u32 split /* divides WARPS, at most 15 teams or 1, at most ceil(K / 128) */,
                                     u32 depth /* 2 or 4 */, Sink& sink) {
    constexpr int SETS = (CAPACITY + 1) / 2;
    extern __shared__ uint4 shared[];
    __shared__ u32 largest[MAX_M];
    __shared__ double factors[MAX_M];  // what turns a sum into a logit
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const u32 n_steps = (w.k + STEP_K - 1) / STEP_K;
    const Share share(w, split, warp);
    const u32 x_base = (u32)__cvta_generic_to_shared(shared), zeros = x_base + n_steps * X_STEP_BYTES(CAPACITY);
    const u32 ring = zeros + X_STEP_BYTES(CAPACITY) + 128 + warp * depth * SLOT_BYTES, ring_end = ring + depth * SLOT_BYTES;
    float2* sums = (float2*)((char*)shared + (n_steps + 1) * X_STEP_BYTES(CAPACITY) + 128 + WARPS * depth * SLOT_BYTES);

    // the first weights are on their way while x is staged
    Stream<NARROW> stream;
    stream.enter(share.first_tile(), w, share, lane);
    for (u32 slot = ring; slot < ring_end; slot += SLOT_BYTES) stream.fetch(slot, w, share, lane);
    if (threadIdx.x < 8) ((uint4*)((char*)shared + (n_steps + 1) * X_STEP_BYTES(CAPACITY)))[threadIdx.x] = make_uint4(0, 0, 0, 0);
    stage_x<CAPACITY>(shared, largest, x, w.k / 8, n_steps, m_count);
    if (threadIdx.x < MAX_M)
        factors[threadIdx.x] = *w.global_scale * power_of_two(UNPACK_EXPONENT - scale_exponent(largest[threadIdx.x]));
    __syncthreads();

    // column g of B: vector g / 4 of the set, for member g % 4 alone
    const bool feeds = t == g % 4 && g / 4 < CAPACITY;
    const u32 x_stride = feeds ? X_STEP_BYTES(CAPACITY) : 0;
    const u32 first_x = feeds ? x_base + share.first_step * X_STEP_BYTES(CAPACITY) + g * 16 : zeros + (g ^ 4) * 16;
    u32 step_x = first_x, slot = ring, tile = share.first_tile(), step = share.first_step, parity = 0;
    float upper[SETS] = {}, lower[SETS] = {};
    while (tile < share.n_tiles) {
        wait_oldest(depth);
        multiply<CAPACITY>(upper, lower, slot, step_x, lane);
        stream.fetch(slot, w, share, lane);
        slot = slot + SLOT_BYTES == ring_end ? ring : slot + SLOT_BYTES;
        step_x += x_stride;
        if (++step < share.end_step) continue;

        // the members' columns of a vector lie in two neighbouring lanes
#pragma unroll
        for (int s = 0; s < SETS; s++) {
            upper[s] += __shfl_xor_sync(0xFFFFFFFF, upper[s], 1);
            lower[s] += __shfl_xor_sync(0xFFFFFFFF, lower[s], 1);
        }
        if (split > 1) {  // two buffers, so one barrier a tile is enough
            float2* mine = sums + ((parity * WARPS + warp) * SETS) * 32 + lane;
            for (int s = 0; s < SETS; s++) mine[s * 32] = make_float2(upper[s], lower[s]);
            team_sync(share.team, split);
            if (share.part == 0) {
#pragma unroll 1
                for (u32 other = 1; other < split; other++)
#pragma unroll
                    for (int s = 0; s < SETS; s++) {
                        float2 more = mine[(other * SETS + s) * 32];
                        upper[s] += more.x, lower[s] += more.y;
                    }
            }
            parity ^= 1;
        }
#pragma unroll
        for (int s = 0; s < SETS; s++) {
            u32 m = 2 * s + t / 2, row = tile * TILE_ROWS + g + t % 2 * 8;  // of the pair, one lane does each row
            if (share.part == 0)
                sink.take(m < m_count && row < w.n_rows, row, m, (float)((t % 2 ? lower[s] : upper[s]) * factors[m]));
            upper[s] = lower[s] = 0;
        }
        step = share.first_step, step_x = first_x, tile += share.stride;
    }
}

// --------------------------------------------------------------------------------------------- kernels

template <int CAPACITY, bool NARROW>
__device__ __forceinline__ void logits(const Weights& w, const uint4* x, float* y, u32 m_count, u32 split, u32 depth) {
    Logits sink = {y, w.n_rows};
    gemv<CAPACITY, NARROW>(w, x, m_count, split, depth, sink);
}

// The winner of each vector. Blocks meet in `keys`, the last one to arrive reads them out and leaves zeros for the next
// launch; a maximum does not depend on the order of arrival.
template <int CAPACITY, bool NARROW>
__device__ __forceinline__ void argmax(const Weights& w, const uint4* x, const int* token_ids, u32 m_count, u32 split,
                                       u32 depth, u64* keys, u32* arrived, int* ids, float* values) {
    __shared__ u64 best[WARPS][MAX_M];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane < MAX_M) best[warp][lane] = 0;
    __syncwarp();
    Argmax sink = {best[warp]};
    gemv<CAPACITY, NARROW>(w, x, m_count, split, depth, sink);
    __syncthreads();
    if (warp > 0) return;
    if (lane < m_count) {
        u64 key = 0;
        for (int other = 0; other < WARPS; other++) key = max(key, best[other][lane]);
        atomicMax(&keys[lane], key);
        __threadfence();
    }
    __syncwarp();
    u32 ticket = lane == 0 ? atomicAdd(arrived, 1) : 0;
    if (__shfl_sync(0xFFFFFFFF, ticket, 0) != gridDim.x - 1) return;
    __threadfence();
    if (lane < m_count) {
        u64 key = atomicExch(&keys[lane], 0);
        u32 row = 0xFFFFFFFF - (u32)key;
        ids[lane] = token_ids ? token_ids[row] : (int)row;
        values[lane] = unordered((u32)(key >> 32));
    }
    if (lane == 0) *arrived = 0;
}

#define WEIGHTS_AND_X                                                                                    \
    const u8 *__restrict__ codes /* [N, K/2] */, const u8 *__restrict__ scales /* [N, K/16] E4M3 */,     \
        const float *__restrict__ global_scale /* [1] */, const uint4 *__restrict__ x /* [M, K] BF16 */, \
        u32 n_rows, u32 k, u32 m_count, u32 split, u32 depth
#define BOUNDS __launch_bounds__(WARPS * 32, BLOCKS_PER_SM)

// NAME_logits: y [M, N] F32. NAME_argmax: ids, values [M], the token id of the largest logit and the logit. NaN is the
// largest; ties go to the lower row, which is the lower id: token_ids [N] (or null: the row is the id) ascend, but for
// rows at the end that repeat the first. keys [MAX_M] and arrived [1] are zero, and zero again afterwards.
#define KERNELS(NAME, CAPACITY, NARROW)                                                                          \
    extern "C" __global__ BOUNDS void NAME##_logits(WEIGHTS_AND_X, float* __restrict__ y) {                      \
        logits<CAPACITY, NARROW>({codes, scales, global_scale, n_rows, k}, x, y, m_count, split, depth);         \
    }                                                                                                            \
    extern "C" __global__ BOUNDS void NAME##_argmax(WEIGHTS_AND_X, const int* __restrict__ token_ids, u64* keys, \
                                                    u32* arrived, int* ids, float* values) {                     \
        argmax<CAPACITY, NARROW>({codes, scales, global_scale, n_rows, k}, x, token_ids, m_count, split, depth,  \
                                 keys, arrived, ids, values);                                                    \
    }

KERNELS(nvfp4_gemv1, 1, false)
KERNELS(nvfp4_gemv2, 2, false)
KERNELS(nvfp4_gemv4, 4, false)
KERNELS(nvfp4_gemv8, 8, false)
KERNELS(nvfp4_gemv8_narrow, 8, true)  // K % 64 != 0
