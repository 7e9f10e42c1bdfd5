// What the products of several vectors share, gemv_mma.cu and gemv_mma_few.cu: weights on their way, arithmetic, the loop.
//
// A warp owns a tile of 32 rows and multiplies on the tensor cores, `mma.m16n8k16`, with the weights as the A operand.
// In half a step, 128 k, a lane (group g = lane / 4, member t = lane % 4) takes 16 bytes = 32 codes = 2 blocks of four
// rows:
//
//        k ->   | t=0: 32 | t=1: 32 | t=2: 32 | t=3: 32 |
//   row g       | 16 B    | 16 B    | 16 B    | 16 B    |    and rows g + 8, g + 16, g + 24
//
// An mma does not care which k is which as long as A and B agree, so a lane feeds its own neighbours in k, four to an
// mma, and x is staged in shared memory in the order in which the codes unpack. The block scale multiplies the weights, in
// FP16, where E2M1 * E4M3 (six significand bits) is exact. The sums of a step are added up in FP32 outside the tensor cores,
// which truncate.
//
// Weights go through a warp's own ring in shared memory by asynchronous copies (sm_80 on), DEPTH steps ahead and over
// tile ends, so a warp waits for its own copies and for nothing else.
#pragma once

#include "gemv.cuh"

#define MOST_WARPS 16         // of a thread block: the launch says how many there are
#define TILE_ROWS 32
#define STEP_K 256            // k of a step: 2 halves * 4 members * 32 codes
#define STEP_BLOCKS 16
#define SLOT_BYTES 4608       // a warp's weights of a step: [half 2][row / 8 4][lane] of 16 bytes, scales [row 32][16]
#define SUMS 8                // of a lane: [4h + i] is row g + 16h + 8(i / 2), vector 2t + i % 2
#define TOP 15                // see scale_exponent()

// --------------------------------------------------------------------------------------------- shared memory

__device__ __forceinline__ void copy16(u32 shared, const u8* global) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared), "l"(global));
}
__device__ __forceinline__ void copy8(u32 shared, const u8* global, u32 n_bytes /* 8, or 0: zeros */) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(global), "r"(n_bytes));
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;"); }

// Waits until all copies but those of the last N half steps have arrived.
template <int N>
__device__ __forceinline__ void wait_for_all_but() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
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

__device__ __forceinline__ u32 n_warps() { return blockDim.x / 32; }

// Which warps work on what: a team of `split` warps, or of as many in each of a cluster's blocks, takes every `stride`-th
// tile, a part of the team its steps of it. Blocks hold the x of the steps that their warps take.
struct Share {
    u32 team, n_parts, part, first_tile, stride, n_tiles, first_step, end_step, block_first_step, block_end_step;
    u32 most_block_steps;  // of the blocks of a cluster, whose shared memory is laid out alike
    u32 end_tile;          // where the warp ends: teams of one block go on together, some without a last tile

    __device__ __forceinline__ Share(const Weights& w, u32 split, u32 n_ranks, u32 rank) {
        const u32 n_steps = (w.k + STEP_K - 1) / STEP_K, warp = threadIdx.x / 32;
        team = warp / split, n_parts = n_ranks * split, part = rank * split + warp % split;
        first_tile = blockIdx.x / n_ranks + gridDim.x / n_ranks * team, stride = gridDim.x / n_ranks * (n_warps() / split);
        n_tiles = (w.n_rows + TILE_ROWS - 1) / TILE_ROWS;
        first_step = part * n_steps / n_parts, end_step = (part + 1) * n_steps / n_parts;
        block_first_step = rank * n_steps / n_ranks, block_end_step = (rank + 1) * n_steps / n_ranks;
        most_block_steps = (n_steps + n_ranks - 1) / n_ranks;
        end_tile = n_ranks == 1 && split > 1 ? first_tile + (n_tiles - blockIdx.x + stride - 1) / stride * stride : n_tiles;
    }
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

    // Starts the copies of one step into a slot, half after half; `slot` points at this lane's part of it.
    __device__ __forceinline__ void fetch(u32 slot, const Weights& w, const Share& share) {
        if (tile < share.n_tiles) {
            if (RAGGED) {
                copy_ragged(slot, w);
                end_copies();
            } else {
                copy16(slot + 4096, element<1>(scales, at));
                const u8* code[4];
#pragma unroll
                for (int r = 0; r < 4; r++) code[r] = element<8>(codes[r], at), copy16(slot + r * 512, code[r]);
                end_copies();
#pragma unroll
                for (int r = 0; r < 4; r++) copy16(slot + r * 512 + 2048, code[r] + 64);
            }
            at += STEP_BLOCKS;
            if (++step == share.end_step) enter(tile + share.stride, w, share);
        } else {
            end_copies();
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

// Half a step of this warp's 32 rows times the staged x; `slot` and `scale` point at this lane's codes and at the four scales
// of its pair of members in row g, `x` at its part of B.
__device__ __forceinline__ void multiply(float sums[SUMS], u32 slot, u32 scale, u32 x, u32 x_pitch, u32 t) {
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

// --------------------------------------------------------------------------------------------- what becomes of a sum

// A sink takes from every lane the logits of rows row, row + 8, row + 16 and row + 24 of its vectors 2t + i.

template <class Y>
struct Logits {
    Y* __restrict__ y;  // [M, N] FP32 or BF16
    u32 n_rows, m_count;

    __device__ __forceinline__ void take(u32 row, int i, const float logits[4]) {
        const u32 m = threadIdx.x % 4 * 2 + i;
#pragma unroll
        for (int r = 0; r < 4; r++)
            if (m < m_count && row + 8 * r < n_rows) write(y + (u64)m * n_rows + row + 8 * r, logits[r]);
    }
};

struct Argmax {
    const int* __restrict__ token_ids;  // [N], or null: the row is the id
    u32 n_rows;
    Best best[2];

    __device__ __forceinline__ void take(u32 row, int i, const float logits[4]) {
        // one of the tile's ids will be asked for at the end, perhaps
        if (i == 0 && token_ids && threadIdx.x % 32 == 0) asm volatile("prefetch.global.L2 [%0];" ::"l"(token_ids + row));
#pragma unroll
        for (int r = 0; r < 4; r++)
            if (row + 8 * r < n_rows) best[i].take(logits[r], row + 8 * r);
    }

    // The winners of all threads' rows.
    __device__ __forceinline__ void settle(u32 m_count, u64* slots, int* ids, float* values) const {
        u64 keys[MAX_M];
        u64 own[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u32 id = token_ids && best[i].order ? (u32)token_ids[best[i].row] : best[i].row;
            own[i] = winner_key(best[i].order, id);
        }
#pragma unroll
        for (u32 m = 0; m < MAX_M; m++) keys[m] = threadIdx.x % 4 == m / 2 ? own[m % 2] : 0;
        settle_winners<MOST_WARPS>(keys, m_count, slots, ids, values);
    }
};

// --------------------------------------------------------------------------------------------- the loop

// Hands a tile's sums over as logits.
template <class Sink>
__device__ __forceinline__ void hand_over(const float sums[SUMS], u32 first_row, const double factors[MAX_M], Sink& sink) {
    const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const double factor = factors[2 * t + i];
        const float logits[4] = {(float)(sums[i] * factor), (float)(sums[i + 2] * factor), (float)(sums[i + 4] * factor),
                                 (float)(sums[i + 6] * factor)};
        sink.take(first_row + g, i, logits);
    }
}

// Where the staged x goes: [half step][word 4][vector][t 4] of 16 bytes, each the B operands of two mma.
struct Place {
    u32 m_count;
    __device__ __forceinline__ u32 operator()(u32 m, u32 i) const {
        return ((i / 16 * 4 + i % 4) * m_count + m) * 4 + i / 4 % 4;
    }
};

// Bytes of x that a block has room for, and where the rings of its warps end: DEPTH slots each.
__device__ __forceinline__ u32 staged_bytes(const Share& share, u32 m_count) {
    return share.most_block_steps * STEP_K * 2 * m_count;
}
template <int DEPTH>
__device__ __forceinline__ u32 rings_end(const Share& share, u32 m_count) {
    return staged_bytes(share, m_count) + n_warps() * DEPTH * SLOT_BYTES;
}

// Calls finish(sums, tile) with the sums of this warp's steps of each of its tiles, up to share.end_tile. `shared` starts with x and the rings;
// `factors` [MAX_M] turn sums into logits; EARLY: see Staging. agree(largest) is a barrier of all that share x, after which
// `largest` is theirs in common.
template <int DEPTH, bool RAGGED, int EARLY, class Agree, class Finish>
__device__ __forceinline__ void walk_tiles(const Weights& w, const uint4* __restrict__ x, u32 m_count, const Share& share,
                                           u32 dependent, uint4* shared, double* factors, Agree agree, Finish finish) {
    __shared__ u32 largest[MAX_M];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const u32 x_pitch = m_count * 64, x_step = 8 * x_pitch, x_bytes = staged_bytes(share, m_count);
    const u32 base = (u32)__cvta_generic_to_shared(shared);

    start_successor();
    if (threadIdx.x < MAX_M) largest[threadIdx.x] = 0;
    if (RAGGED)
        for (u32 i = threadIdx.x; i < x_bytes / 16; i += blockDim.x) shared[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();

    const u32 ring = base + x_bytes + warp * DEPTH * SLOT_BYTES + lane * 16, ring_end = ring + DEPTH * SLOT_BYTES;
    const u32 to_scales = 4096 + g * 16 + t / 2 * 4 - lane * 16;
    Stream<RAGGED> stream(w);
    stream.enter(share.first_tile, w, share);
    auto fetch_first = [&]() {
#pragma unroll
        for (int i = 0; i < DEPTH; i++) stream.fetch(ring + i * SLOT_BYTES, w, share);
    };
    // After another kernel, weights come first: they need not wait for it. Else x, lest it queue behind them.
    if (dependent) fetch_first();
    wait_for_predecessor();
    const float global_scale = *w.global_scale;
    const u32 first_k = share.block_first_step * STEP_K, end_k = min(share.block_end_step * STEP_K, w.k);
    Staging<Place, TOP, EARLY> staging(x + first_k / 8, w.k / 8, (end_k - first_k) / 8, m_count, Place{m_count});
    if (!dependent) fetch_first();
    staging.measure(shared, largest);
    agree(largest);
    staging.convert(shared, largest);
    if (threadIdx.x < m_count) factors[threadIdx.x] = staging.factor(global_scale, largest[threadIdx.x]);
    __syncthreads();

    // column g of B is vector g; columns past the last repeat the first, and nobody reads what comes of them
    const u32 first_x = base + (share.first_step - share.block_first_step) * x_step + (g < m_count ? g : 0) * 64 + t * 16;
    u32 step_x = first_x, slot = ring, tile = share.first_tile, step = share.first_step;
    float sums[SUMS] = {};
    while (tile < share.end_tile) {
        if (tile < share.n_tiles) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                half == 0 ? wait_for_all_but<2 * DEPTH - 1>() : wait_for_all_but<2 * DEPTH - 2>();
                if (half == 0) __syncwarp();  // another lane copied this lane's scales
                multiply(sums, slot + half * 2048, slot + to_scales + half * 8, step_x, x_pitch, t);
                step_x += x_step / 2;
            }
            __syncwarp();
            stream.fetch(slot, w, share);
            slot = slot + SLOT_BYTES == ring_end ? ring : slot + SLOT_BYTES;
            if (++step < share.end_step) continue;
        }
        finish(sums, tile);
#pragma unroll
        for (int i = 0; i < SUMS; i++) sums[i] = 0;
        step = share.first_step, step_x = first_x, tile += share.stride;
    }
}
