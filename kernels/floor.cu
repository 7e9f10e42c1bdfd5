// The two ceilings a benchmark is held against, measured in the same run: a plain read and a plain copy.

typedef unsigned int u32;
typedef unsigned long long u64;

// Reads n_vectors * 16 bytes and keeps nothing: four independent loads a thread, grid-stride. The sum is stored only if
// it equals a value it cannot be known to have, so the loads stay.
extern "C" __global__ void __launch_bounds__(512) plain_read(const uint4* __restrict__ data, u64 n_vectors, u32* sink) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u32 sum = 0;
    for (; i + 3 * stride < n_vectors; i += 4 * stride) {
        uint4 a = __ldg(data + i), b = __ldg(data + i + stride), c = __ldg(data + i + 2 * stride),
              d = __ldg(data + i + 3 * stride);
        sum ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    for (; i < n_vectors; i += stride) {
        uint4 a = __ldg(data + i);
        sum ^= a.x ^ a.y ^ a.z ^ a.w;
    }
    if (sum == 0x9E3779B9) *sink = sum;
}

// Copies n_vectors * 16 bytes.
extern "C" __global__ void __launch_bounds__(512) plain_copy(const uint4* __restrict__ from, uint4* __restrict__ to,
                                                             u64 n_vectors) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * stride < n_vectors; i += 4 * stride) {
        uint4 a = __ldg(from + i), b = __ldg(from + i + stride), c = __ldg(from + i + 2 * stride),
              d = __ldg(from + i + 3 * stride);
        to[i] = a, to[i + stride] = b, to[i + 2 * stride] = c, to[i + 3 * stride] = d;
    }
    for (; i < n_vectors; i += stride) to[i] = __ldg(from + i);
}

// Words of a hash of their position, with the bits outside `keep` replaced by those of `set`: weights that are finite.
extern "C" __global__ void __launch_bounds__(256) fill(u32* __restrict__ words, u64 n_words, u32 seed, u32 keep, u32 set) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n_words; i += stride) {
        u64 h = (i + seed) * 0x9E3779B97F4A7C15ull;
        h = (h ^ h >> 29) * 0xBF58476D1CE4E5B9ull;
        words[i] = ((u32)(h >> 32) & keep) | set;
    }
}
