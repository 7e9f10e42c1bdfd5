// Checks and times builds of gemv.cu, gemv_mma.cu and gemv_mma_few.cu against each other, all in one go:
// ./gemv_lab DIR check | sanitize | time [NxK:M,M...]..., where DIR holds `gemv[-NAME].cubin`, `mma[-NAME].cubin`,
// `few-cCLUSTER[-NAME].cubin` and floor.cubin. Letters behind a shape's M: `a`, argmax too; `i`, independent launches too; `g`,
// smaller grids too. Names with `-wWARPS` are builds with so many warps. Results: one line a measurement, on stdout. A build
// that waits for itself hangs: run it under `timeout`.
//
// Times are medians over replays of a CUDA graph of launches that rotate through copies of the weights, so that L2
// does not serve them. The reference is FP64, a thread block a row, over the same bytes.
#include <cuda.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "reference.cuh"
#include "timed.cuh"

// ------------------------------------------------------------------------------------ builds

enum Kind { ONE, MMA, FEW };

// A build of gemv.cu, gemv_mma.cu or gemv_mma_few.cu, and the ways in which it multiplies.
struct Build {
    std::string name;
    Kind kind;
    u32 warps, cluster, clusters;  // of a block; blocks of a cluster, and how many of those the card runs at a time
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

// Clusters of so many blocks that run at a time, each block with all the shared memory that it may have.
u32 most_clusters(CUfunction f, u32 cluster, u32 warps) {
    CUlaunchAttribute attribute;
    attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute.value.clusterDim = {cluster, 1, 1};
    CUlaunchConfig config = {cluster, 1, 1, warps * 32, 1, 1, 200000, 0, &attribute, 1};
    int found;
    OK(cuOccupancyMaxActiveClusters(&found, f, &config));
    printf("clusters of %u at a time: %d\n", cluster, found);
    return found;
}

int n_sm;
u8 *pool_codes, *pool_scales;
u64 pool_codes_bytes = 3ull << 30;
float* global_scale;
unsigned short* x;
float* y;
double *ref_y, *ref_weight, *ref_row;
int *token_ids, *ids;
u64* slots;
float* values;
const double GS = 0.000123;

struct Problem {
    u32 n, k, m, kernel, split;
    bool argmax;
    u32 spare;  // places for blocks that the grid leaves free
};

bool dependent = false;  // programmatic dependent launch
bool planned = false;    // only the way that the program would choose for one vector

const std::vector<const char*> GEMV = {"nvfp4_gemv", "nvfp4_gemv_few"};
const std::vector<const char*> MMA_KERNELS = {"nvfp4_mma", "nvfp4_mma_shallow", "nvfp4_mma_ragged"};
const std::vector<const char*> FEW_KERNELS = {"nvfp4_mma_few"};

const std::vector<const char*>& kernels(Kind kind) { return kind == ONE ? GEMV : kind == MMA ? MMA_KERNELS : FEW_KERNELS; }

std::vector<u32> splits(u32 warps) {
    std::vector<u32> found;
    for (u32 split = 1; split <= warps; split++)
        if (warps % split == 0) found.push_back(split);
    return found;
}

// Blocks, and their dynamic shared memory.
std::pair<u32, u32> shape(const Build& b, const Problem& p) {
    const u32 n_steps = (p.k + 255) / 256, tiles = (p.n + 31) / 32;
    if (b.kind == ONE) {
        const u32 grid = std::min<u32>(2 * n_sm - p.spare, p.n);
        return {grid, (p.k + 512 * p.split - 1) / (512 * p.split) * p.split * 1024 + (p.n + grid - 1) / grid * 8};
    }
    if (b.kind == MMA)
        return {std::min<u32>(n_sm - p.spare, tiles),
                n_steps * 512 * p.m + b.warps * (p.kernel == 0 ? 2 : 1) * 4608 + (p.split > 1 ? 2 * b.warps * 1024 : 0)};
    const u32 clusters = std::min<u32>(b.clusters, tiles), own = ((tiles + clusters - 1) / clusters + b.cluster - 1) / b.cluster;
    return {clusters * b.cluster, (n_steps + b.cluster - 1) / b.cluster * 512 * p.m + b.warps * 2 * 4608 + own * b.cluster * p.split * 1024};
}

// All kernels and splits of a build that can do it.
std::vector<Problem> ways(const Build& b, u32 n, u32 k, u32 m, bool argmax, u32 spare = 0) {
    std::vector<Problem> found;
    auto add = [&](u32 kernel, u32 split) {
        const Problem p = {n, k, m, kernel, split, argmax, spare};
        if (shape(b, p).second + 3000 <= 232448) found.push_back(p);
    };
    const u32 n_steps = (k + 255) / 256;
    const bool ragged = k % 256 || n < 32;
    if (b.kind == ONE && m == 1 && k % 32 == 0)
        for (u32 kernel = 0; kernel < 2; kernel++)
            for (u32 split : {1u, 2u})
                if (!planned || (kernel == n <= 330u * n_sm / 4 && split == (kernel || k % 1024 == 0 ? 2 : 1))) add(kernel, split);
    if (b.kind == MMA)
        for (u32 kernel = 0; kernel < 3; kernel++)
            for (u32 split : splits(b.warps))
                // the shallow one where the other does not fit
                if (ragged == (kernel == 2) && split <= n_steps && (kernel != 1 || found.empty())) add(kernel, split);
    if (b.kind == FEW && !ragged)
        for (u32 split : splits(b.warps))
            if (b.cluster * split <= n_steps) add(0, split);
    return found;
}

void launch(const Build& b, const Problem& p, const u8* codes, const u8* scales) {
    u32 n = p.n, k = p.k, m = p.m, split = p.split, after = dependent;
    const auto [grid, bytes] = shape(b, p);
    const void* ids_in = token_ids;
    void* logits[] = {&codes, &scales, &global_scale, &x, &n, &k, &m, &split, &after, &y};
    void* argmax[] = {&codes, &scales, &global_scale, &x, &n, &k, &m, &split, &after, &ids_in, &slots, &ids, &values};
    CUlaunchAttribute attribute;
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config = {grid, 1, 1, b.warps * 32, 1, 1, bytes, stream, &attribute, dependent ? 1u : 0u};
    OK(cuLaunchKernelEx(&config, p.argmax ? b.argmax[p.kernel] : b.logits[p.kernel], p.argmax ? argmax : logits, 0));
}

int copies_of(u64 n, u64 k) { return (int)std::min<u64>(24, std::max<u64>(4, pool_codes_bytes / (n * k / 2))); }

Timed timed(const Build& b, const Problem& p) {
    u64 codes = (u64)p.n * p.k / 2, scales = codes / 8;
    return Timed([&](int i) { launch(b, p, pool_codes + i * codes, pool_scales + i * scales); }, copies_of(p.n, p.k));
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

u64 digest = 0;  // of all logits that a build gave: equal for builds that add up in the same order

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
    for (float v : gy) {
        u32 bits;
        memcpy(&bits, &v, 4);
        digest = (digest ^ bits) * 0x100000001B3ull;
    }
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

int check_slots() {
    std::vector<u64> left((1 << 16) / 8);
    OK(cudaMemcpy(left.data(), slots, 1 << 16, cudaMemcpyDeviceToHost));
    const int n_left = (int)(left.size() - std::count(left.begin(), left.end(), 0));
    printf("slots left in use: %d (expected 0)\n", n_left);
    return n_left != 0;
}

// ------------------------------------------------------------------------------------ main

int main(int argc, char** argv) {
    const std::string mode = argv[2];
    const bool quick = mode == "sanitize", only_time = mode == "time";
    planned = only_time;
    if (quick) pool_codes_bytes = 16 << 20;  // every byte is watched
    const u64 pool_scales_bytes = pool_codes_bytes / 8;
    OK(cudaSetDevice(0));
    OK(cudaFree(0));
    OK(cudaDeviceGetAttribute(&n_sm, cudaDevAttrMultiProcessorCount, 0));
    if (quick) n_sm = 2;  // few blocks, which wait for each other and have several turns all the same
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
        Build b = {};
        b.name = entry.path().stem().string();
        b.kind = b.name.rfind("mma", 0) == 0 ? MMA : b.name.rfind("few", 0) == 0 ? FEW : ONE;
        if (b.kind == ONE && b.name.rfind("gemv", 0) != 0) continue;
        OK(cuModuleLoad(&module, entry.path().c_str()));
        for (const char* name : kernels(b.kind)) {
            b.logits.push_back(function(module, (name + std::string("_logits")).c_str()));
            b.argmax.push_back(function(module, (name + std::string("_argmax")).c_str()));
        }
        const size_t warps = b.name.find("-w");
        b.warps = warps != std::string::npos ? atoi(b.name.c_str() + warps + 2) : b.kind == ONE ? 16 : 12;
        if (sscanf(b.name.c_str(), "few-c%u", &b.cluster) == 1) b.clusters = quick ? 2 : most_clusters(b.logits[0], b.cluster, b.warps);
        builds.push_back(b);
    }
    std::sort(builds.begin(), builds.end(), [](auto& a, auto& b) { return a.name < b.name; });

    for (auto& b : builds) {
        if (only_time) break;
        double worst = 0, worst_all = 0;
        // gemv.cu rounds sums of up to eight products to FP16, each time by at most 2^-12 of the sum of their magnitudes
        const double allowed = b.kind != ONE ? 1e-6 : 7.0 / 4096;
        int wrong = 0;
        typedef std::vector<std::pair<u32, u32>> Shapes;
        const Shapes all = {{1, 16}, {1, 32}, {17, 48}, {1000, 2576}, {1001, 2592}, {4099, 2560}, {530, 5120}, {257, 272}, {333, 12288}, {20011, 544}, {160, 9728}, {5120, 17408}};
        const Shapes small = {{1, 16}, {17, 48}, {650, 544}, {300, 1024}, {200, 2560}};
        digest = 0;
        for (auto [n, k] : quick ? small : all) {
            if (quick) printf("%s: %u x %u\n", b.name.c_str(), n, k), fflush(stdout);
            for (u32 m = 1; m <= 8; m += quick && m > 1 ? 5 : 1)
                for (Problem p : ways(b, n, k, m, false))
                    for (int kind = 0; kind < (quick ? 1 : 4); kind++) {
                        if (quick) printf("kernel %u m=%u split=%u\n", p.kernel, m, p.split), fflush(stdout);
                        double e = check(b, p, kind);
                        if (e > allowed && wrong++ < 5) printf("WRONG %s kernel %u n=%u k=%u m=%u split=%u kind=%d: %g\n", b.name.c_str(), p.kernel, n, k, m, p.split, kind, e);
                        worst_all = std::max(worst_all, e);
                        if (kind == 0) worst = std::max(worst, e);
                    }
        }
        printf("check %s: worst error over sum|wx|: %.2e plain, %.2e with adversarial x; digest %016llx\n", b.name.c_str(), worst, worst_all, digest);
        check_nan(b);
        fflush(stdout);
    }
    if (!only_time) return check_slots();

    fill_x(8 * 32768, 0);
    for (int a = 3; a < argc; a++) {
        u32 s[2];
        OK(sscanf(argv[a], "%ux%u", s, s + 1) != 2);
        u64 bytes = (u64)s[0] * s[1] * 9 / 16, n_vectors = bytes / 16;
        auto wanted = [&](char what) { return strchr(strchr(argv[a], ':'), what) != nullptr; };
        const int read_copies = (int)std::min<u64>(24, std::max<u64>(4, pool_codes_bytes / bytes));
        for (u32 m = 1; m <= 8; m++) {
            if (!wanted('0' + m)) continue;
            std::vector<std::pair<std::string, Timed>> all;
            all.push_back({"floor", Timed([&](int i) {
                const u8* data = pool_codes + i * (bytes / 16 * 16);
                u32* sink = (u32*)ids;
                void* args[] = {&data, &n_vectors, &sink};
                OK(cuLaunchKernel(read, n_sm * 4, 1, 1, 512, 1, 1, 0, stream, args, 0));
            }, read_copies)});
            for (auto& b : builds)
                for (int argmax = 0; argmax <= wanted('a'); argmax++)
                    for (int pdl = !wanted('i'); pdl < 2; pdl++)
                        for (u32 spare : wanted('g') && b.kind != FEW ? std::vector<u32>{0, 1, 4, 8} : std::vector<u32>{0})
                            for (const Problem& p : ways(b, s[0], s[1], m, argmax, spare)) {
                                dependent = pdl;
                                std::string name = b.name + (argmax ? " argmax" : " logits") + " " + (kernels(b.kind)[p.kernel] + 6) + " s" + std::to_string(p.split);
                                all.push_back({name + (pdl ? " p" : " i") + (spare ? " -" + std::to_string(spare) : ""), timed(b, p)});
                                dependent = false;
                            }
            // Round after round, because the card's speed drifts.
            for (int round = 0; round < 7; round++)
                for (auto& [name, t] : all) t.round();
            std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.second.median() < b.second.median(); });
            for (auto& [name, t] : all) {
                const double us = t.median();
                printf("%u x %u m%u %s: %.2f (%.2f to %.2f)\n", s[0], s[1], m, name.c_str(), us, t.us.front(), t.us.back());
                OK(cudaGraphExecDestroy(t.exec));
            }
        }
        fflush(stdout);
    }
    return check_slots();
}
