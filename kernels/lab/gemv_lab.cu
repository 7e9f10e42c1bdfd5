// Checks and times builds of gemv.cu and gemv_mma.cu against each other, all in one go: ./gemv_lab DIR [time | sanitize],
// where DIR holds `gemv[-NAME].cubin`, `mma[-wWARPS][-NAME].cubin` (12 warps unless it says so) and floor.cubin. Results: one line a measurement, on stdout.
//
// Times are medians over replays of a CUDA graph of launches that rotate through copies of the weights, so that L2
// does not serve them. The reference is FP64, a thread block a row, over the same bytes.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define OK(call)                                                                                   \
    do {                                                                                           \
        int code = (int)(call);                                                                    \
        if (code) printf("%s:%d: %s: error %d\n", __FILE__, __LINE__, #call, code), fflush(stdout), exit(1); \
    } while (0)

// ------------------------------------------------------------------------------------ inputs

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

// ------------------------------------------------------------------------------------ builds

// A build of gemv.cu or of gemv_mma.cu, and the ways in which it multiplies.
struct Build {
    std::string name;
    bool mma;
    u32 warps;
    std::vector<CUfunction> logits, argmax;
};

CUfunction function(CUmodule module, const char* name) {
    CUfunction f;
    OK(cuModuleGetFunction(&f, module, name));
    int attribute;
    OK(cuFuncGetAttribute(&attribute, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, f));
    OK(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232448 - attribute));
    return f;
}

int n_sm;
u8 *pool_codes, *pool_scales;
u64 pool_codes_bytes = 3ull << 30, pool_scales_bytes = pool_codes_bytes / 8;
float* global_scale;
unsigned short* x;
float* y;
double *ref_y, *ref_weight, *ref_row;
int *token_ids, *ids;
u64* slots;
float* values;
cudaStream_t stream;
const double GS = 0.000123;

struct Problem {
    u32 n, k, m, kernel, split;
    bool argmax;
};

bool dependent = false;  // programmatic dependent launch

const std::vector<const char*> GEMV = {"nvfp4_gemv", "nvfp4_gemv_few"};
const std::vector<const char*> MMA = {"nvfp4_mma", "nvfp4_mma_shallow", "nvfp4_mma_ragged"};
const u32 GEMV_WARPS = 16;

std::vector<u32> splits(u32 warps) {
    std::vector<u32> found;
    for (u32 split = 1; split <= warps; split++)
        if (warps % split == 0 && (split == 1 || warps / split <= 15)) found.push_back(split);
    return found;
}

// All kernels and splits of a build that can do it.
std::vector<Problem> ways(const Build& b, u32 n, u32 k, u32 m, bool argmax) {
    std::vector<Problem> found;
    if (b.mma) {
        for (u32 kernel = 0; kernel < 3; kernel++)
            for (u32 split : splits(b.warps)) {
                u32 steps = (k + 255) / 256, bytes = steps * 512 * m + b.warps * (kernel == 0 ? 2 : 1) * 4608 + (split > 1 ? 2 * b.warps * 1024 : 0);
                bool ragged = k % 256 || n < 32;
                if (ragged == (kernel == 2) && split <= steps && bytes + 3000 <= 232448) found.push_back({n, k, m, kernel, split, argmax});
            }
    } else if (m == 1 && k % 32 == 0) {
        for (u32 kernel = 0; kernel < 2; kernel++)
            for (u32 split : {1u, 2u}) found.push_back({n, k, m, kernel, split, argmax});
    }
    return found;
}

void launch(const Build& b, const Problem& p, const u8* codes, const u8* scales) {
    u32 n = p.n, k = p.k, m = p.m, split = p.split, after = dependent, grid, bytes;
    if (b.mma) {
        grid = std::min<u32>(n_sm, (n + 31) / 32);
        bytes = (k + 255) / 256 * 512 * m + b.warps * (p.kernel == 0 ? 2 : 1) * 4608 + (split > 1 ? 2 * b.warps * 1024 : 0);
    } else {
        grid = std::min<u32>(2 * n_sm, n);
        bytes = (k + 512 * split - 1) / (512 * split) * split * 1024 * m;
    }
    const void* ids_in = token_ids;
    void* logits[] = {&codes, &scales, &global_scale, &x, &n, &k, &m, &split, &after, &y};
    void* argmax[] = {&codes, &scales, &global_scale, &x, &n, &k, &m, &split, &after, &ids_in, &slots, &ids, &values};
    CUlaunchAttribute attribute;
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config = {grid, 1, 1, (b.mma ? b.warps : GEMV_WARPS) * 32, 1, 1, bytes, stream, &attribute, dependent ? 1u : 0u};
    OK(cuLaunchKernelEx(&config, p.argmax ? b.argmax[p.kernel] : b.logits[p.kernel], p.argmax ? argmax : logits, 0));
}

double median_us(const std::function<void(int)>& one, int copies) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < copies; i++) one(i);
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    std::vector<float> times;
    cudaEvent_t begin, end;
    OK(cudaEventCreate(&begin));
    OK(cudaEventCreate(&end));
    for (int i = 0; i < 23; i++) {
        OK(cudaEventRecord(begin, stream));
        OK(cudaGraphLaunch(exec, stream));
        OK(cudaEventRecord(end, stream));
        OK(cudaEventSynchronize(end));
        float ms;
        OK(cudaEventElapsedTime(&ms, begin, end));
        if (i >= 3) times.push_back(ms * 1000 / copies);
    }
    OK(cudaEventDestroy(begin));
    OK(cudaEventDestroy(end));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

int copies_of(u64 n, u64 k) { return (int)std::min<u64>(24, std::max<u64>(4, pool_codes_bytes / (n * k / 2))); }

double time_us(const Build& b, const Problem& p) {
    u64 codes = (u64)p.n * p.k / 2, scales = codes / 8;
    return median_us([&](int i) { launch(b, p, pool_codes + i * codes, pool_scales + i * scales); }, copies_of(p.n, p.k));
}

// ------------------------------------------------------------------------------------ checks

std::vector<unsigned short> host_x;

void fill_x(u32 n, int kind) {
    std::vector<unsigned short>& host = host_x;
    host.assign(n, 0);
    u32 state = 12345 + kind;
    for (u32 i = 0; i < n; i++) {
        state = state * 1664525 + 1013904223;
        float v = ((int)(state >> 8 & 0xFFFF) - 32768) / 9000.0f;
        if (kind == 1) v = ldexpf(v, (int)(state >> 24) % 40 - 20);     // spread over 2^40
        if (kind == 2) v = i % 97 == 5 ? 3e38f : v * 1e-30f;              // huge beside tiny
        if (kind == 3) v = i % 3 ? v * 1e-39f : -0.0f;                   // subnormals and minus zero
        u32 bits;
        memcpy(&bits, &v, 4);
        host[i] = bits >> 16;
    }
    OK(cudaMemcpy(x, host.data(), n * 2, cudaMemcpyHostToDevice));
}

// Returns the worst |y - ref| / sum |w x|; checks argmax against the build's own logits, and NaN.
double check(const Build& b, Problem p, int kind) {
    fill_x(p.k * p.m, kind);
    std::vector<double> ry(p.n * p.m), rw(p.n * p.m), rs(p.n), largest(p.m);
    for (u32 i = 0; i < p.k * p.m; i++) {
        u32 bits = (u32)host_x[i] << 16;
        float v;
        memcpy(&v, &bits, 4);
        largest[i / p.k] = std::max(largest[i / p.k], fabs((double)v));
    }
    std::vector<float> gy(p.n * p.m);
    p.argmax = false;
    reference<<<dim3(p.n, p.m), 128, 0, stream>>>(pool_codes, pool_scales, (double)(float)GS, x, p.n, p.k, ref_y, ref_weight, ref_row);
    OK(cudaMemsetAsync(y, 0xFF, p.n * p.m * 4, stream));
    launch(b, p, pool_codes, pool_scales);
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemcpy(ry.data(), ref_y, ry.size() * 8, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(rs.data(), ref_row, rs.size() * 8, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(rw.data(), ref_weight, rw.size() * 8, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(gy.data(), y, gy.size() * 4, cudaMemcpyDeviceToHost));
    double worst = 0;
    // x is exact down to 2^-32 of a vector's largest element, and its error is 2^-40 of it below
    for (size_t i = 0; i < ry.size(); i++) {
        if (std::isinf(gy[i]) && fabs(ry[i]) > 3.4e38) continue;
        double error = fabs(gy[i] - ry[i]) / (rw[i] + 1e-44 + largest[i / p.n] * rs[i % p.n] * 0x1p-40 / 1e-6);
        if (fabs(gy[i] - ry[i]) < 1e-44) error = 0;
        if (!(error <= worst)) worst = std::isnan(error) ? 1e9 : error;
    }
    p.argmax = true;
    launch(b, p, pool_codes, pool_scales);
    OK(cudaStreamSynchronize(stream));
    int got[8];
    float got_value[8];
    OK(cudaMemcpy(got, ids, 32, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(got_value, values, 32, cudaMemcpyDeviceToHost));
    for (u32 m = 0; m < p.m; m++) {
        const float* row = &gy[m * p.n];
        u32 best = 0;
        for (u32 i = 1; i < p.n; i++)
            if (row[i] > row[best]) best = i;
        if (got[m] != (int)(best * 3 + 7) || got_value[m] != row[best])
            printf("ARGMAX %s n=%u k=%u m=%u: %d %g, expected %u %g\n", b.name.c_str(), p.n, p.k, m, got[m], got_value[m],
                   best * 3 + 7, row[best]), worst = 1e9;
    }
    return worst;
}

// NaN in one of the vectors: all its logits are NaN and its winner is the lowest id, the others do not notice.
void check_nan(const Build& b) {
    for (u32 m = 1; m <= 3; m++)
        for (Problem p : ways(b, 1000, 2560, m, false)) {
            fill_x(p.k * p.m, 0);
            unsigned short nan = 0x7FC1;
            OK(cudaMemcpy(x + (p.m - 1) * p.k + 17, &nan, 2, cudaMemcpyHostToDevice));
            launch(b, p, pool_codes, pool_scales);
            p.argmax = true;
            launch(b, p, pool_codes, pool_scales);
            OK(cudaStreamSynchronize(stream));
            std::vector<float> gy(p.n * p.m);
            int got[8];
            OK(cudaMemcpy(gy.data(), y, gy.size() * 4, cudaMemcpyDeviceToHost));
            OK(cudaMemcpy(got, ids, 32, cudaMemcpyDeviceToHost));
            u32 n_nan[2] = {0, 0};
            for (u32 i = 0; i < p.n * p.m; i++) n_nan[i / p.n == p.m - 1] += std::isnan(gy[i]);
            if (n_nan[0] || n_nan[1] != p.n || got[p.m - 1] != 7)
                printf("NAN %s kernel %u m=%u: %u and %u rows (expected 0 and %u), id %d (expected 7)\n", b.name.c_str(), p.kernel, m, n_nan[0], n_nan[1], p.n, got[p.m - 1]);
        }
}

// ------------------------------------------------------------------------------------ main

int main(int argc, char** argv) {
    OK(cudaSetDevice(0));
    OK(cudaFree(0));
    OK(cudaDeviceGetAttribute(&n_sm, cudaDevAttrMultiProcessorCount, 0));
    OK(cudaStreamCreate(&stream));
    OK(cudaMalloc(&pool_codes, pool_codes_bytes));
    OK(cudaMalloc(&pool_scales, pool_scales_bytes));
    fill_codes<<<1024, 256>>>((u32*)pool_codes, pool_codes_bytes / 4, 1);
    fill_scales<<<1024, 256>>>(pool_scales, pool_scales_bytes, 2);
    OK(cudaMalloc(&global_scale, 4));
    float gs = (float)GS;
    OK(cudaMemcpy(global_scale, &gs, 4, cudaMemcpyHostToDevice));
    OK(cudaMalloc(&x, 8 * 32768 * 2));
    OK(cudaMalloc(&y, 8ull * 248320 * 4));
    OK(cudaMalloc(&ref_y, 8ull * 65536 * 8));
    OK(cudaMalloc(&ref_weight, 8ull * 65536 * 8));
    OK(cudaMalloc(&ref_row, 65536 * 8));
    OK(cudaMalloc(&token_ids, 248320 * 4));
    OK(cudaMalloc(&ids, 32));
    OK(cudaMalloc(&slots, 1 << 16));
    OK(cudaMalloc(&values, 32));
    OK(cudaMemset(ids, 0, 32));
    OK(cudaMemset(values, 0, 32));
    OK(cudaMemset(slots, 0, 1 << 16));
    std::vector<int> map(248320);
    for (int i = 0; i < 248320; i++) map[i] = i * 3 + 7;
    OK(cudaMemcpy(token_ids, map.data(), map.size() * 4, cudaMemcpyHostToDevice));
    OK(cudaDeviceSynchronize());
    fill_x(8 * 32768, 0);

    CUmodule module;
    CUfunction read;
    std::string dir = argv[1];
    OK(cuModuleLoad(&module, (dir + "/floor.cubin").c_str()));
    OK(cuModuleGetFunction(&read, module, "plain_read"));
    std::vector<Build> builds;
    for (auto& entry : std::filesystem::directory_iterator(dir)) {
        Build b;
        b.name = entry.path().stem().string();
        b.mma = b.name.rfind("mma", 0) == 0;
        if (sscanf(b.name.c_str(), "mma-w%u", &b.warps) != 1) b.warps = 12;
        if (!b.mma && b.name.rfind("gemv", 0) != 0) continue;
        OK(cuModuleLoad(&module, entry.path().c_str()));
        for (const char* name : b.mma ? MMA : GEMV) {
            b.logits.push_back(function(module, (name + std::string("_logits")).c_str()));
            b.argmax.push_back(function(module, (name + std::string("_argmax")).c_str()));
        }
        builds.push_back(b);
    }
    std::sort(builds.begin(), builds.end(), [](auto& a, auto& b) { return a.name < b.name; });

    const bool quick = argc > 2 && !strcmp(argv[2], "sanitize"), only_time = argc > 2 && !strcmp(argv[2], "time");
    for (auto& b : builds) {
        if (only_time) break;
        double worst = 0, worst_all = 0;
        // gemv.cu rounds sums of up to eight products to FP16, each time by at most 2^-12 of the sum of their magnitudes
        const double allowed[2] = {b.mma ? 1e-6 : 7.0 / 4096, b.mma ? 1e-6 : 7.0 / 4096};
        int wrong = 0;
        const u32 shapes[][2] = {{1, 16}, {1, 32}, {17, 48}, {1000, 2576}, {1001, 2592}, {4099, 2560}, {530, 5120}, {257, 272}, {333, 12288}, {20011, 544}};
        for (auto& s : shapes)
            for (u32 m = 1; m <= 8; m += quick ? 7 : 1)
                for (Problem p : ways(b, s[0], s[1], m, false))
                    for (int kind = 0; kind < 4; kind++) {
                        if (quick && (kind || s[0] > 1001)) continue;
                        double e = check(b, p, kind);
                        if (e > allowed[kind > 0] && wrong++ < 5) printf("WRONG %s kernel %u n=%u k=%u m=%u split=%u kind=%d: %g\n", b.name.c_str(), p.kernel, s[0], s[1], m, p.split, kind, e);
                        worst_all = std::max(worst_all, e);
                        if (kind == 0) worst = std::max(worst, e);
                    }
        printf("check %s: worst error over sum|wx|: %.2e plain, %.2e with adversarial x\n", b.name.c_str(), worst, worst_all);
        check_nan(b);
        fflush(stdout);
    }
    if (quick) return 0;

    const u32 shapes[][2] = {{64128, 2560}, {64128, 5120}, {248320, 2560}, {10240, 2560}, {13312, 2560}, {2560, 12288}, {34816, 5120}, {5120, 17408}, {2560, 4096}, {248320, 5120}};
    fill_x(8 * 32768, 0);
    for (auto& s : shapes) {
        u64 bytes = (u64)s[0] * s[1] * 9 / 16, n_vectors = bytes / 16;
        double floor_us = 1e9;
        for (int grid : {n_sm * 2, n_sm * 4, n_sm * 8}) {
            int copies = (int)std::min<u64>(24, std::max<u64>(4, pool_codes_bytes / bytes));
            double us = median_us([&](int i) {
                const u8* data = pool_codes + i * (bytes / 16 * 16);
                u32* sink = (u32*)ids;
                void* args[] = {&data, &n_vectors, &sink};
                OK(cuLaunchKernel(read, grid, 1, 1, 512, 1, 1, 0, stream, args, 0));
            }, copies);
            floor_us = std::min(floor_us, us);
        }
        printf("floor %u x %u: %.2f us, %.0f GB/s\n", s[0], s[1], floor_us, bytes / floor_us / 1000);
        for (u32 m : {1u, 2u, 4u, 8u})
            for (bool argmax : {false, true}) {
                std::vector<std::pair<double, std::string>> results;
                for (auto& b : builds)
                    for (const Problem& p : ways(b, s[0], s[1], m, argmax))
                        for (int pdl = 0; pdl < 2; pdl++) {
                            dependent = pdl;
                            const char* kernel = (b.mma ? MMA : GEMV)[p.kernel];
                            results.push_back({time_us(b, p), b.name + " " + (kernel + 6) + " s" + std::to_string(p.split) + (pdl ? "p" : "")});
                            dependent = false;
                        }
                std::sort(results.begin(), results.end());
                printf("%u x %u m%u %s:", s[0], s[1], m, argmax ? "argmax" : "logits");
                for (size_t i = 0; i < results.size() && i < 4; i++)
                    printf("  %.2f (%.1f%%) %s", results[i].first, 100 * floor_us / results[i].first, results[i].second.c_str());
                printf("\n");
                for (auto& r : results) fprintf(stderr, "%u x %u m%u %s %s %.2f\n", s[0], s[1], m, argmax ? "argmax" : "logits", r.second.c_str(), r.first);
            }
        fflush(stdout);
    }
    std::vector<u64> left((1 << 16) / 8);
    OK(cudaMemcpy(left.data(), slots, 1 << 16, cudaMemcpyDeviceToHost));
    printf("slots left in use: %d (expected 0)\n", (int)(left.size() - std::count(left.begin(), left.end(), 0)));
}
