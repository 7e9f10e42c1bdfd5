// y = W x for the few vectors of a draft step: W is NVFP4 in the plain sidecar layout, x is BF16 [M, K], M = 1..8.
//
// Bytes moved: N * K * (1/2 + 1/16), each weight once, whatever M is; the aim is the speed of a plain read of them.
//
// A warp owns a tile of 32 rows and multiplies on the tensor cores, `mma.m16n8k16`, with the weights as the A operand.
// In half a step, 128 k, a lane (group g = lane / 4, member t = lane % 4) takes 16 bytes = 32 codes = 2 blocks of four
// rows:
//
//        k ->   | t=0: 32 | t=1: 32 | t=2: 32 | t=3: 32 |
//   row g       | 16 B    | 16 B    | 16 B    | 16 B    |    and rows g + 8, g + 16, g + 24
//
// An mma does not care which k is which as long as A and B agree, so a lane feeds its own neighbours in k, four to an
// mma, and x is staged in shared memory in the order in which the codes unpack. The members' blocks have different
// scales; there are two ways to apply them:
//
// - One or two vectors: column 4v + t of B holds what member t needs of vector v and zeros elsewhere. The members' blocks
//   come out in different columns, and a block scale multiplies a sum of 16 products in FP32.
// - More vectors need all eight columns: the scale multiplies the weights, in FP16, where E2M1 * E4M3 (six significand
//   bits) is exact. The sums of a step are added up in FP32 outside the tensor cores, which truncate.
//
// x becomes FP16 after a power-of-two scale that brings its largest finite element to 2^15: exact for elements down to
// 2^-32 of the largest, off by less than 2^-40 of the largest below; so every product is as exact as its x. NaN or Inf in
// x gives what IEEE arithmetic gives.
//
// Weights go through a warp's own ring in shared memory by asynchronous copies (sm_80 on), DEPTH steps ahead and over
// tile ends, so a warp waits for its own copies and for nothing else.
//
// `split` warps, a team, share a tile and take parts of K; their sums meet in shared memory, always in the same order, so
// a result does not depend on timing.

#include "nvfp4.cuh"

#ifndef WARPS
#define WARPS 12              // warps of a thread block
#endif
#ifndef BLOCKS_PER_SM
#define BLOCKS_PER_SM 1       // thread blocks the registers leave room for
#endif

#define THREADS (WARPS * 32)
#define TILE_ROWS 32
#define STEP_K 256            // k of a step: 2 halves * 4 members * 32 codes
#define STEP_BLOCKS 16
#define MAX_M 8
#define SLOT_BYTES 4608       // a warp's weights of a step: [half 2][row / 8 4][lane] of 16 bytes, scales [row 32][16]

// --------------------------------------------------------------------------------------------- shared memory

__device__ __forceinline__ void copy16(u32 shared, const u8* global) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared), "l"(global));
}
__device__ __forceinline__ void copy8(u32 shared, const u8* global, u32 n_bytes /* 8, or 0: zeros */) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(global), "r"(n_bytes));
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;"); }

// Waits until the oldest of DEPTH steps has arrived.
template <int DEPTH>
__device__ __forceinline__ void wait_oldest() {
    asm volatile("cp.async.wait_group %0;" ::"n"(DEPTH - 1) : "memory");
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

// base + index * SIZE, on the multiply-add pipe: unpacking keeps the integer pipe busy.
template <int SIZE>
__device__ __forceinline__ const u8* element(const u8* base, u32 index) {
    const u8* address;
    asm volatile("mad.wide.u32 %0, %1, %2, %3;" : "=l"(address) : "r"(index), "n"(SIZE), "l"(base));
    return address;
}

// The loads of a warp, step after step and tile after tile. RAGGED: K % 256 != 0 or N < 32, so rows are aligned to
// nothing and the last step is not full.
template <bool RAGGED>
struct Stream {
    const u8 *codes[4], *scales;  // this lane's first codes of row g + 8r, and the first scales of row `lane`
    u32 at, tile, step;           // `at`: the tile's and step's first block, counted over the matrix
    u32 n_blocks, lane;

    // The last tile is moved up rather than cut off: its rows are whole, and some are computed twice.
    static __device__ __forceinline__ u32 first_row(u32 tile, u32 n_rows) {
        return RAGGED ? tile * TILE_ROWS : min(tile * TILE_ROWS, n_rows - TILE_ROWS);
    }

    __device__ __forceinline__ Stream(const Weights& w) : n_blocks(w.k / BLOCK), lane(threadIdx.x % 32) {
        scales = w.scales + (u64)lane * n_blocks;
#pragma unroll
        for (int r = 0; r < 4; r++) codes[r] = w.codes + ((u64)(lane / 4 + 8 * r) * n_blocks + lane % 4 * 2) * 8;
        // keep them: computed anew they cost integer adds
        asm volatile("" : "+l"(codes[0]), "+l"(codes[1]), "+l"(codes[2]), "+l"(codes[3]), "+l"(scales));
    }

    __device__ __forceinline__ void enter(u32 new_tile, const Weights& w, const Share& share) {
        tile = new_tile, step = share.first_step;
        at = first_row(tile, w.n_rows) * n_blocks + step * STEP_BLOCKS;
    }

    // Starts the copies of one step into a slot; `slot` points at this lane's part of it.
    __device__ __forceinline__ void fetch(u32 slot, const Weights& w, const Share& share) {
        if (tile < share.n_tiles) {
            if (RAGGED) {
                copy_ragged(slot, w);
            } else {
#pragma unroll
                for (int r = 0; r < 4; r++) {
                    const u8* code = element<8>(codes[r], at);
                    copy16(slot + r * 512, code);
                    copy16(slot + r * 512 + 2048, code + 64);
                }
                copy16(slot + 4096, element<1>(scales, at));
            }
            at += STEP_BLOCKS;
            if (++step == share.end_step) enter(tile + share.stride, w, share);
        }
        end_copies();
    }

    // Zeros for blocks past the end of K and for rows past the last.
    __device__ void copy_ragged(u32 slot, const Weights& w) {
        for (int r = 0; r < 4; r++) {
            const u32 n = tile * TILE_ROWS + lane / 4 + 8 * r < w.n_rows ? n_blocks - step * STEP_BLOCKS : 0;
            for (u32 i = 0; i < 4; i++) {
                const u32 half = i / 2, block = half * 8 + i % 2;  // of the step, relative to this lane's first
                const bool there = lane % 4 * 2 + block < n;
                copy8(slot + r * 512 + half * 2048 + i % 2 * 8, there ? codes[r] + ((u64)at + block) * 8 : w.codes, there ? 8 : 0);
            }
        }
        const u32 n = tile * TILE_ROWS + lane < w.n_rows ? n_blocks - step * STEP_BLOCKS : 0;
        for (u32 i = 0; i < 16; i++) {
            u32 byte = i < n ? scales[(u64)at + i] : 0;
            asm volatile("st.shared.u8 [%0], %1;" ::"r"(slot + 4096 + i), "r"(byte) : "memory");
        }
    }
};

// --------------------------------------------------------------------------------------------- arithmetic

__device__ __forceinline__ void mma_f16(float sum[4], const u32 a[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ u32 mul_f16x2(u32 a, u32 b) {
    u32 product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}

// Four block scales as FP32.
__device__ __forceinline__ float4 widen_scales(u32 bytes) {
    float4 v;
    u32 first = unpack_scales(bytes), second = unpack_scales(bytes >> 16);
    asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %2;\n\tcvt.f32.f16 %0, l;\n\tcvt.f32.f16 %1, h;\n\t}"
        : "=f"(v.x), "=f"(v.y) : "r"(first));
    asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %2;\n\tcvt.f32.f16 %0, l;\n\tcvt.f32.f16 %1, h;\n\t}"
        : "=f"(v.z), "=f"(v.w) : "r"(second));
    return v;
}

// multiply(): half a step of this warp's 32 rows times the staged x; `slot` and `scale` point at this lane's codes and at
// the four scales of its pair of members in row g, `x` at its part of B.

// One or two vectors. sums[r]: this lane's row g + 8r, for the vector of its two columns.
struct Columns {
    static constexpr int SUMS = 4;

    static __device__ __forceinline__ u32 pair(u32 t) { return t % 2; }  // columns 2t, 2t + 1 belong to this pair

    // Where this lane reads its part of B in word 0 of step 0: column g is vector g / 4 for member g % 4 alone, else
    // zeros, which do not move on from step to step.
    static __device__ __forceinline__ bool feeds(u32 g, u32 t, u32 m_count) { return t == g % 4 && g / 4 < m_count; }
    static __device__ __forceinline__ u32 vector(u32 g, u32) { return g / 4; }

    static __device__ __forceinline__ void multiply(float sums[SUMS], u32 slot, u32 scale, u32 x, u32 x_pitch, u32) {
        const uint4 codes[4] = {read16(slot), read16(slot + 512), read16(slot + 1024), read16(slot + 1536)};
        const float4 scales[4] = {widen_scales(read4(scale)), widen_scales(read4(scale + 128)),
                                  widen_scales(read4(scale + 256)), widen_scales(read4(scale + 384))};
#pragma unroll
        for (int block = 0; block < 2; block++) {
            float d[2][4] = {};
#pragma unroll
            for (int word = 2 * block; word < 2 * block + 2; word++) {
                const uint4 b = read16(x + word * x_pitch);
#pragma unroll
                for (int half = 0; half < 2; half++) {  // rows g, g + 8 and rows g + 16, g + 24
                    u32 up[4], low[4];
                    unpack_codes((&codes[2 * half].x)[word], up);
                    unpack_codes((&codes[2 * half + 1].x)[word], low);
                    const u32 first[4] = {up[0], low[0], up[1], low[1]}, second[4] = {up[2], low[2], up[3], low[3]};
                    mma_f16(d[half], first, b.x, b.y);
                    mma_f16(d[half], second, b.z, b.w);
                }
            }
#pragma unroll
            for (int r = 0; r < 4; r++) {  // x, y: the even column's two blocks; z, w: the odd column's
                sums[r] = fmaf(d[r / 2][r % 2 * 2], block ? scales[r].y : scales[r].x, sums[r]);
                sums[r] = fmaf(d[r / 2][r % 2 * 2 + 1], block ? scales[r].w : scales[r].z, sums[r]);
            }
        }
    }
};

// Up to eight vectors. sums[4h + i]: row g + 16h + 8(i / 2), vector 2t + i % 2.
struct Scaled {
    static constexpr int SUMS = 8;

    static __device__ __forceinline__ u32 pair(u32 t) { return t / 2; }
    static __device__ __forceinline__ bool feeds(u32, u32, u32) { return true; }
    static __device__ __forceinline__ u32 vector(u32 g, u32 m_count) { return g < m_count ? g : 0; }

    static __device__ __forceinline__ void multiply(float sums[SUMS], u32 slot, u32 scale, u32 x, u32 x_pitch, u32 t) {
        const uint4 codes[4] = {read16(slot), read16(slot + 512), read16(slot + 1024), read16(slot + 1536)};
        float d[2][4] = {};
        u32 scales[4];  // FP16: this member's two blocks
#pragma unroll
        for (int r = 0; r < 4; r++) scales[r] = unpack_scales(read4(scale + r * 128) >> (t % 2 * 16));
#pragma unroll
        for (int word = 0; word < 4; word++) {
            const uint4 b = read16(x + word * x_pitch);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const u32 pick = word < 2 ? 0x1010 : 0x3232;
                const u32 up_scale = __byte_perm(scales[2 * half], 0, pick), low_scale = __byte_perm(scales[2 * half + 1], 0, pick);
                u32 up[4], low[4];
                unpack_codes((&codes[2 * half].x)[word], up);
                unpack_codes((&codes[2 * half + 1].x)[word], low);
#pragma unroll
                for (int j = 0; j < 4; j++) up[j] = mul_f16x2(up[j], up_scale), low[j] = mul_f16x2(low[j], low_scale);
                const u32 first[4] = {up[0], low[0], up[1], low[1]}, second[4] = {up[2], low[2], up[3], low[3]};
                mma_f16(d[half], first, b.x, b.y);
                mma_f16(d[half], second, b.z, b.w);
            }
        }
#pragma unroll
        for (int i = 0; i < SUMS; i++) sums[i] += d[i / 4][i % 4];
    }
};

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

// x [M, K] BF16 -> shared FP16, [half step][word 4][vector][t 4] of 16 bytes, each the B operands of two mma.
struct Staging {
    static constexpr int EARLY = 4;  // vectors of 16 bytes a thread holds in registers
    uint4 early[EARLY];
    u32 n_groups, n_all, m_count;

    __device__ __forceinline__ Staging(const uint4* __restrict__ x, u32 k, u32 m) : n_groups(k / 8), n_all(k / 8 * m), m_count(m) {
#pragma unroll
        for (int j = 0; j < EARLY; j++) {
            u32 i = threadIdx.x + j * THREADS;
            if (i < n_all)
                asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                             : "=r"(early[j].x), "=r"(early[j].y), "=r"(early[j].z), "=r"(early[j].w) : "l"(x + i));
        }
    }

    __device__ __forceinline__ u32 place(u32 i) const {
        u32 m = i / n_groups, group = i % n_groups, half = group / 16, t = group % 16 / 4, word = group % 4;
        return ((half * 4 + word) * m_count + m) * 4 + t;
    }

    // The largest finite magnitude of each vector, then the conversion, in place for what did not fit the registers.
    __device__ __forceinline__ void finish(uint4* staged, u32 largest[MAX_M], const uint4* __restrict__ x) {
#pragma unroll
        for (int j = 0; j < EARLY; j++) {
            u32 i = threadIdx.x + j * THREADS;
            if (i - threadIdx.x % 32 < n_all) note(i < n_all ? early[j] : make_uint4(0, 0, 0, 0), i, largest);
        }
        for (u32 i = threadIdx.x + EARLY * THREADS; i - threadIdx.x % 32 < n_all; i += THREADS) {
            uint4 v = {0, 0, 0, 0};
            if (i < n_all) v = __ldg(x + i), staged[place(i)] = v;
            note(v, i, largest);
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < EARLY; j++) {
            u32 i = threadIdx.x + j * THREADS;
            if (i < n_all) staged[place(i)] = narrow8(early[j], scale_exponent(largest[i / n_groups]));
        }
        for (u32 i = threadIdx.x + EARLY * THREADS; i < n_all; i += THREADS) {
            uint4* at = staged + place(i);
            *at = narrow8(*at, scale_exponent(largest[i / n_groups]));
        }
    }

    // Whole warps come here; lanes past the end bring zeros.
    __device__ __forceinline__ void note(const uint4& v, u32 i, u32 largest[MAX_M]) const {
        u32 mine = finite_max(finite_max(finite_max(finite_max(0, v.x), v.y), v.z), v.w), m = min(i / n_groups, m_count - 1);
        if (__all_sync(0xFFFFFFFF, m == __shfl_sync(0xFFFFFFFF, m, 0))) {
            mine = __reduce_max_sync(0xFFFFFFFF, mine);
            if (threadIdx.x % 32 == 0) atomicMax(&largest[m], mine);
        } else {
            atomicMax(&largest[m], mine);
        }
    }
};

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

// A sink takes from every lane some logits of one vector `m`. `Lanes` says which lanes have the same vector.

// Writes y [M, N] F32.
struct Logits {
    float* __restrict__ y;
    u32 n_rows, m_count;

    template <bool PAIRS, int COUNT>
    __device__ __forceinline__ void take(u32 first_row /* and every eighth after it */, u32 m, const float value[COUNT]) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (m < m_count && first_row + 8 * i < n_rows) y[(u64)m * n_rows + first_row + 8 * i] = value[i];
    }
};

// Keeps the best logit of a warp and its row: the higher, then the lower row.
struct Argmax {
    u64* best;  // this warp's [MAX_M] in shared memory; zero: none yet
    u32 n_rows, m_count;

    // PAIRS: lanes t and t ^ 1 have the same vector too, not only those of all groups.
    template <bool PAIRS, int COUNT>
    __device__ __forceinline__ void take(u32 first_row, u32 m, const float value[COUNT]) {
        u64 key = 0;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            u32 row = first_row + 8 * i;
            if (row < n_rows) key = max(key, (u64)ordered(value[i]) << 32 | (0xFFFFFFFF - row));
        }
        if (PAIRS) key = max(key, __shfl_xor_sync(0xFFFFFFFF, key, 1));
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) key = max(key, __shfl_xor_sync(0xFFFFFFFF, key, distance));
        if (threadIdx.x % 32 / 4 == 0 && !(PAIRS && threadIdx.x % 2) && m < m_count) best[m] = max(best[m], key);
    }
};

// --------------------------------------------------------------------------------------------- the loop

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

// Barrier of the `split` warps of one team.
__device__ __forceinline__ void team_sync(u32 team, u32 split) {
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(split * 32) : "memory");
}

// A tile's sums are complete: adds the team's, and hands them over as logits.
template <class Way, class Sink>
__device__ __forceinline__ void finish_tile(float sums[Way::SUMS], float* team_sums /* [WARPS][SUMS][32] */, u32 first_row,
                                            const Share& share, u32 split, const double factors[MAX_M], Sink& sink) {
    constexpr bool PAIRS = Way::SUMS == 4;
    constexpr int KEPT = PAIRS ? 2 : 8;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float kept[KEPT];
    if (PAIRS) {  // a vector's columns lie in two neighbouring lanes: one goes on with rows g, g + 8, the other with the rest
#pragma unroll
        for (int i = 0; i < 2; i++)
            kept[i] = (t % 2 ? sums[i + 2] : sums[i]) + __shfl_xor_sync(0xFFFFFFFF, t % 2 ? sums[i] : sums[i + 2], 1);
    } else {
#pragma unroll
        for (int i = 0; i < KEPT; i++) kept[i] = sums[i];
    }
    if (split > 1) {
        float* mine = team_sums + warp * KEPT * 32 + lane;
#pragma unroll
        for (int i = 0; i < KEPT; i++) mine[i * 32] = kept[i];
        team_sync(share.team, split);
        if (share.part > 0) return;
#pragma unroll 1
        for (u32 other = 1; other < split; other++)
#pragma unroll
            for (int i = 0; i < KEPT; i++) kept[i] += mine[(other * KEPT + i) * 32];
    }
    if (PAIRS) {
        const float logits[2] = {(float)(kept[0] * factors[t / 2]), (float)(kept[1] * factors[t / 2])};
        sink.template take<true, 2>(first_row + g + t % 2 * 16, t / 2, logits);
    } else {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const double factor = factors[2 * t + i];
            const float logits[4] = {(float)(kept[i] * factor), (float)(kept[i + 2] * factor),
                                     (float)(kept[i + 4] * factor), (float)(kept[i + 6] * factor)};
            sink.template take<false, 4>(first_row + g, 2 * t + i, logits);
        }
    }
}

// Shared memory: x, 512 bytes of zeros, DEPTH slots a warp, and when split > 1 the teams' sums, [2][WARPS][2 or 8][32].
template <class Way, int DEPTH, bool RAGGED, class Sink>
__device__ __forceinline__ void gemv(const Weights& w, const uint4* __restrict__ x, u32 m_count,
                                     u32 split /* divides WARPS, at most ceil(K / 256); 1, or at most 15 teams */,
                                     u32 dependent /* launched as a dependent of the kernel before */, Sink& sink) {
    extern __shared__ uint4 shared[];
    __shared__ u32 largest[MAX_M];
    __shared__ double factors[MAX_M];  // what turns a sum into a logit
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const u32 x_pitch = m_count * 64, x_step = 8 * x_pitch, x_bytes = (w.k + STEP_K - 1) / STEP_K * x_step;
    const u32 base = (u32)__cvta_generic_to_shared(shared);
    const Share share(w, split, warp);

    start_successor();
    if (threadIdx.x < 32) shared[x_bytes / 16 + threadIdx.x] = make_uint4(0, 0, 0, 0);
    if (threadIdx.x < MAX_M) largest[threadIdx.x] = 0;
    if (RAGGED)
        for (u32 i = threadIdx.x; i < x_bytes / 16; i += THREADS) shared[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();

    const u32 ring = base + x_bytes + 512 + warp * DEPTH * SLOT_BYTES + lane * 16, ring_end = ring + DEPTH * SLOT_BYTES;
    const u32 to_scales = 4096 + g * 16 + Way::pair(t) * 4 - lane * 16;
    Stream<RAGGED> stream(w);
    stream.enter(share.first_tile(), w, share);
    auto fetch_first = [&]() {
#pragma unroll
        for (int i = 0; i < DEPTH; i++) stream.fetch(ring + i * SLOT_BYTES, w, share);
    };
    // After another kernel, weights come first: they need not wait for it. Else x, lest it queue behind them.
    if (dependent) fetch_first();
    wait_for_predecessor();
    const float global_scale = *w.global_scale;
    Staging staging(x, w.k, m_count);
    if (!dependent) fetch_first();
    staging.finish(shared, largest, x);
    if (threadIdx.x < MAX_M)
        factors[threadIdx.x] = global_scale * power_of_two(UNPACK_EXPONENT - scale_exponent(largest[threadIdx.x]));
    __syncthreads();

    const bool feeds = Way::feeds(g, t, m_count);
    const u32 x_stride = feeds ? x_step / 2 : 0;
    const u32 first_x = feeds ? base + share.first_step * x_step + Way::vector(g, m_count) * 64 + t * 16
                              : base + x_bytes + (g ^ 4) % 8 * 16;
    float* team_sums = (float*)((char*)shared + x_bytes + 512 + WARPS * DEPTH * SLOT_BYTES);
    u32 step_x = first_x, slot = ring, tile = share.first_tile(), step = share.first_step, parity = 0;
    float sums[Way::SUMS] = {};
    while (tile < share.n_tiles) {
        wait_oldest<DEPTH>();
        __syncwarp();  // another lane copied this lane's scales
#pragma unroll
        for (int half = 0; half < 2; half++) {
            Way::multiply(sums, slot + half * 2048, slot + to_scales + half * 8, step_x, x_pitch, t);
            step_x += x_stride;
        }
        __syncwarp();
        stream.fetch(slot, w, share);
        slot = slot + SLOT_BYTES == ring_end ? ring : slot + SLOT_BYTES;
        if (++step < share.end_step) continue;
        // two buffers of team sums, so one barrier a tile is enough
        finish_tile<Way>(sums, team_sums + parity * WARPS * (Way::SUMS == 4 ? 2 : 8) * 32,
                         Stream<RAGGED>::first_row(tile, w.n_rows), share, split, factors, sink);
#pragma unroll
        for (int i = 0; i < Way::SUMS; i++) sums[i] = 0;
        step = share.first_step, step_x = first_x, tile += share.stride, parity ^= 1;
    }
}

// --------------------------------------------------------------------------------------------- kernels

// The winner of each vector. Blocks meet in `keys`, the last one to arrive reads them out and leaves zeros for the next
// launch; a maximum does not depend on the order of arrival.
template <class Way, int DEPTH, bool RAGGED>
__device__ __forceinline__ void argmax(const Weights& w, const uint4* x, const int* token_ids, u32 m_count, u32 split,
                                       u32 dependent, u64* keys, u32* arrived, int* ids, float* values) {
    __shared__ u64 best[WARPS][MAX_M];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane < MAX_M) best[warp][lane] = 0;
    Argmax sink = {best[warp], w.n_rows, m_count};
    gemv<Way, DEPTH, RAGGED>(w, x, m_count, split, dependent, sink);
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
        u32 n_rows, u32 k, u32 m_count, u32 split, u32 dependent
#define BOUNDS __launch_bounds__(THREADS, BLOCKS_PER_SM)

// NAME_logits: y [M, N] F32. NAME_argmax: ids, values [M], the token id of the largest logit and the logit. NaN is the
// largest; ties go to the lower row, which is the lower id: token_ids [N] (or null: the row is the id) ascend, but for
// rows at the end that repeat the first. keys [MAX_M] and arrived [1] are zero, and zero again afterwards.
#define KERNELS(NAME, WAY, DEPTH, RAGGED)                                                                        \
    extern "C" __global__ BOUNDS void NAME##_logits(WEIGHTS_AND_X, float* __restrict__ y) {                      \
        Logits sink = {y, n_rows, m_count};                                                                      \
        gemv<WAY, DEPTH, RAGGED>({codes, scales, global_scale, n_rows, k}, x, m_count, split, dependent, sink);  \
    }                                                                                                            \
    extern "C" __global__ BOUNDS void NAME##_argmax(WEIGHTS_AND_X, const int* __restrict__ token_ids, u64* keys, \
                                                    u32* arrived, int* ids, float* values) {                     \
        argmax<WAY, DEPTH, RAGGED>({codes, scales, global_scale, n_rows, k}, x, token_ids, m_count, split,       \
                                   dependent, keys, arrived, ids, values);                                                        \
    }

KERNELS(nvfp4_gemv2, Columns, 2, false)          // M = 1, 2; N >= 32, K % 256 == 0
KERNELS(nvfp4_gemv8, Scaled, 2, false)           // M = 1..8; the same
KERNELS(nvfp4_gemv2_shallow, Columns, 1, false)  // the same two where shared memory is short
KERNELS(nvfp4_gemv8_shallow, Scaled, 1, false)
KERNELS(nvfp4_gemv_ragged, Scaled, 1, true)      // M = 1..8; any N, any K % 16 == 0
