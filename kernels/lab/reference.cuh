// What the GEMV lab multiplies, and the FP64 product that its builds are held against.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define OK(call)                                                                                   \
    do {                                                                                           \
        int code = (int)(call);                                                                    \
        if (code) printf("%s:%d: %s: error %d\n", __FILE__, __LINE__, #call, code), fflush(stdout), exit(1); \
    } while (0)

__device__ u32 hash(u64 i) {
    i = (i ^ i >> 31) * 0x7FB5D329728EA185ull;
    i = (i ^ i >> 27) * 0x81DADEF4BC2DD44Dull;
    return (u32)(i >> 32);
}
__global__ void fill_codes(u32* codes, u64 n, u32 seed) {
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x)
        codes[i] = hash(i * 31 + seed);
}
// any finite scale, subnormals and 448 included
__global__ void fill_scales(u8* scales, u64 n, u32 seed) {
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x)
        scales[i] = hash(i * 131 + seed) % 127;
}

__device__ double e2m1(u32 code) {
    const double magnitudes[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    return code & 8 ? -magnitudes[code & 7] : magnitudes[code & 7];
}
__device__ double e4m3(u32 code) { return code < 8 ? code / 512.0 : ldexp(1 + (code & 7) / 8.0, (int)(code >> 3) - 7); }
__device__ double bf16(unsigned short bits) { return __uint_as_float((u32)bits << 16); }

// y [M, N] and the sum of |w x|, by which errors are judged
__global__ void reference(const u8* codes, const u8* scales, double gs, const unsigned short* x, u32 n, u32 k,
                          double* y, double* weight, double* weights) {
    u32 row = blockIdx.x, m = blockIdx.y;
    double sum = 0, magnitude = 0, plain = 0;
    for (u32 i = threadIdx.x; i < k; i += blockDim.x) {
        u32 code = codes[((u64)row * k + i) / 2] >> (i % 2 * 4) & 15;
        double weight = e2m1(code) * e4m3(scales[((u64)row * k + i) / 16]) * gs, term = weight * bf16(x[(u64)m * k + i]);
        sum += term, magnitude += fabs(term), plain += fabs(weight);
    }
    __shared__ double sums[128], magnitudes[128], plains[128];
    sums[threadIdx.x] = sum, magnitudes[threadIdx.x] = magnitude, plains[threadIdx.x] = plain;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < 128; i++) sum += sums[i], magnitude += magnitudes[i], plain += plains[i];
        y[(u64)m * n + row] = sum, weight[(u64)m * n + row] = magnitude, weights[row] = plain;
    }
}

