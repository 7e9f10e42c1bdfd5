// Proves the quantizer's division and times its kernels: ./quantize_lab quantize.cubin floor.cubin. The bytes themselves
// are compared with the CPU by tests/it/gpu.rs.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

typedef unsigned int u32;
typedef unsigned long long u64;

#define OK(call)                                                                                   \
    do {                                                                                           \
        int code = (int)(call);                                                                    \
        if (code) printf("%s: error %d\n", #call, code), fflush(stdout), exit(1);                  \
    } while (0)

// Every significand of a BF16 weight over every significand of a step, exponents 0: as the kernel divides, and truly.
__global__ void compare_divisions(u64* n_wrong) {
    u64 wrong = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < 1ull << 30; i += (u64)gridDim.x * blockDim.x) {
        float x = __uint_as_float(0x3F800000 | (u32)(i & 127) << 16), step = __uint_as_float(0x3F800000 | (u32)(i >> 7));
        float r = __frcp_rn(step), q = __fmul_rn(x, r);
        wrong += __fmaf_rn(__fmaf_rn(-q, step, x), r, q) != __fdiv_rn(x, step);
    }
    if (wrong) atomicAdd(n_wrong, wrong);
}

__global__ void fill_gaussian(unsigned short* x, u64 n) {
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) {
        u64 h = i * 0x9E3779B97F4A7C15ull;
        h = (h ^ h >> 29) * 0xBF58476D1CE4E5B9ull, h ^= h >> 32;
        float u = ((u32)h + 1.0f) / 4294967808.0f, v = (u32)(h >> 32) / 4294967296.0f;
        x[i] = __float_as_uint(0.02f * sqrtf(-2 * logf(u)) * cospif(2 * v)) >> 16;
    }
}

int main(int argc, char** argv) {
    OK(cudaSetDevice(0));
    OK(cudaFree(0));
    u64 *wrong, none = 0;
    OK(cudaMalloc(&wrong, 8));
    OK(cudaMemcpy(wrong, &none, 8, cudaMemcpyHostToDevice));
    compare_divisions<<<1024, 256>>>(wrong);
    OK(cudaMemcpy(&none, wrong, 8, cudaMemcpyDeviceToHost));
    printf("divisions that differ: %llu of 2^30\n", none);

    const u64 n = 64064ull * 2560, copies = 4;
    unsigned short* x;
    char *codes, *scales;
    OK(cudaMalloc(&x, n * 2 * copies));
    OK(cudaMalloc(&codes, n / 2 * copies));
    OK(cudaMalloc(&scales, n / 16 * copies));
    fill_gaussian<<<4096, 256>>>(x, n * copies);
    OK(cudaDeviceSynchronize());
    CUmodule quantize, floor;
    OK(cuModuleLoad(&quantize, argv[1]));
    OK(cuModuleLoad(&floor, argv[2]));
    auto median = [&](auto launch) {
        cudaEvent_t a, b;
        OK(cudaEventCreate(&a));
        OK(cudaEventCreate(&b));
        std::vector<float> t;
        for (int i = 0; i < 23; i++) {
            OK(cudaEventRecord(a));
            for (u64 c = 0; c < copies; c++) launch(c);
            OK(cudaEventRecord(b));
            OK(cudaEventSynchronize(b));
            float ms;
            OK(cudaEventElapsedTime(&ms, a, b));
            if (i >= 3) t.push_back(ms * 1000 / copies);
        }
        std::sort(t.begin(), t.end());
        return t[t.size() / 2];
    };
    CUfunction f;
    OK(cuModuleGetFunction(&f, floor, "plain_copy"));
    u64 vectors = n * 41 / 16 / 32;  // half of the bytes read plus half written: as many bytes as the quantizer moves
    float copy = median([&](u64 c) {
        char *from = (char*)x, *to = from + n * 4 + c * 1024;
        void* args[] = {&from, &to, &vectors};
        OK(cuLaunchKernel(f, 132 * 4, 1, 1, 512, 1, 1, 0, 0, args, 0));
    });
    printf("copy of the same bytes (%.0f MB): %.1f us, %.0f GB/s\n", n * 41 / 16 / 1e6, copy, n * 41 / 16 / copy / 1e3);
    for (const char* name : {"max", "four_six", "four_six_1536", "mse"}) {
        char symbol[64];
        snprintf(symbol, 64, "nvfp4_quantize_%s", name);
        OK(cuModuleGetFunction(&f, quantize, symbol));
        float us = median([&](u64 c) {
            void* weights = x + c * n;
            char *to = codes + c * n / 2, *to_scales = scales + c * n / 16;
            u32 bf16 = 1, row_blocks = 160, min_code = 8;
            u64 blocks = n / 16;
            float gs = 0.11f / 2688;
            void* importance = nullptr;
            void* args[] = {&weights, &bf16, &blocks, &row_blocks, &gs, &min_code, &importance, &to, &to_scales};
            OK(cuLaunchKernel(f, (blocks + 255) / 256, 1, 1, 256, 1, 1, 0, 0, args, 0));
        });
        printf("%s: %.1f us, %.2f times the copy\n", name, us, us / copy);
    }
}
