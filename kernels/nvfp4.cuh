// NVFP4 as the kernels see it: the format's constants and how codes and scales become numbers.
//
// A weight is  e2m1(code) * e4m3(block_scale) * global_scale.  Codes: [N, K/2] bytes, the low nibble is the even k.
// Block scales: [N, K/16] E4M3 bits, one for 16 neighbours in k. The constants carry the names and values of
// `src/nvfp4`; a test compares the two.
#pragma once

#define BLOCK 16          // weights that share a block scale
#define E2M1_MAX 6.0f     // largest code
#define E4M3_MAX 448.0f   // largest block scale
#define KERNEL_SAFE_MIN_CODE 8  // the smallest normal E4M3, 2^-6

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Which conversions the hardware has. E2M1 itself: the Blackwell families, in an architecture- or family-specific
// build (NVRTC 13.5 does not define the feature macro of sm_121a, hence the family test). E4M3: from Ada on.
#if defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH__ >= 1000
#define CONVERTS_E2M1 1
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define CONVERTS_E4M3 1
#endif

// e2m1 * 2^-UNPACK_EXPONENT is what unpack_codes() returns: the widening tricks leave the exponent bias uncorrected,
// and the factor goes into the last multiplication of a row.
#if defined(CONVERTS_E2M1)
#define UNPACK_EXPONENT 0
#elif defined(CONVERTS_E4M3)
#define UNPACK_EXPONENT 6
#else
#define UNPACK_EXPONENT 14
#endif

// Two E4M3 bytes -> two FP16, exactly (E4M3 has 4 significand bits and fits the range); 0x7F is NaN.
__device__ __forceinline__ u32 unpack_scales(u32 bytes /* low 16 bits */) {
    u32 halves;
#if defined(CONVERTS_E2M1) || defined(CONVERTS_E4M3)
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((u16)bytes));
#else
    u32 spread = (bytes & 0xFF) | (bytes & 0xFF00) << 8;
    u32 shifted = (spread & 0x007F007F) << 7 | (spread & 0x00800080) << 8;          // e4m3 * 2^-8 as FP16
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(halves) : "r"(shifted), "r"(0x5C005C00)); // * 2^8
    if ((spread & 0x7F) == 0x7F) halves = (halves & 0xFFFF0000) | 0x7E00;
    if ((spread & 0x7F0000) == 0x7F0000) halves = (halves & 0xFFFF) | 0x7E000000;
#endif
    return halves;
}

// Eight codes (k = 0..7 from the lowest nibble up) -> four pairs of FP16 in the order of pair_order(), exactly.
__device__ __forceinline__ void unpack_codes(u32 codes, u32 pairs[4]) {
#if defined(CONVERTS_E2M1)
    asm("{\n\t.reg .b8 b0, b1, b2, b3;\n\tmov.b32 {b0, b1, b2, b3}, %4;\n\t"
        "cvt.rn.f16x2.e2m1x2 %0, b0;\n\tcvt.rn.f16x2.e2m1x2 %1, b1;\n\t"
        "cvt.rn.f16x2.e2m1x2 %2, b2;\n\tcvt.rn.f16x2.e2m1x2 %3, b3;\n\t}"
        : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3]) : "r"(codes));
#elif defined(CONVERTS_E4M3)
    // seem -> s00eem00 is the same number times 2^-6 in E4M3, subnormals included: four codes widen at once.
    u32 even = (codes << 4 & 0x80808080) | (codes << 2 & 0x1C1C1C1C);
    u32 odd = (codes & 0x80808080) | (codes >> 2 & 0x1C1C1C1C);
    asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %2;\n\tcvt.rn.f16x2.e4m3x2 %0, l;\n\tcvt.rn.f16x2.e4m3x2 %1, h;\n\t}"
        : "=r"(pairs[0]), "=r"(pairs[1]) : "r"(even));
    asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %2;\n\tcvt.rn.f16x2.e4m3x2 %0, l;\n\tcvt.rn.f16x2.e4m3x2 %1, h;\n\t}"
        : "=r"(pairs[2]), "=r"(pairs[3]) : "r"(odd));
#else
    // seem -> s000eem000000000 is the same number times 2^-14 in FP16, subnormals included.
    pairs[0] = (codes << 12 & 0x80008000) | (codes << 9 & 0x0E000E00);
    pairs[1] = (codes << 8 & 0x80008000) | (codes << 5 & 0x0E000E00);
    pairs[2] = (codes << 4 & 0x80008000) | (codes << 1 & 0x0E000E00);
    pairs[3] = (codes & 0x80008000) | (codes >> 3 & 0x0E000E00);
#endif
}

// The k (0..7) of the low and of the high half of pair j in unpack_codes().
__device__ __forceinline__ int pair_low(int j) {
#if defined(CONVERTS_E2M1)
    return 2 * j;
#elif defined(CONVERTS_E4M3)
    return j / 2 + 4 * (j % 2);
#else
    return j;
#endif
}
__device__ __forceinline__ int pair_high(int j) {
#if defined(CONVERTS_E2M1)
    return 2 * j + 1;
#elif defined(CONVERTS_E4M3)
    return j / 2 + 4 * (j % 2) + 2;
#else
    return j + 4;
#endif
}

// What single codes mean.
__device__ __forceinline__ float e4m3_value(u32 code) {
    const u32 half = unpack_scales(code) & 0xFFFF;
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((u16)half));
    return value;
}

__device__ __forceinline__ float e2m1_value(u32 code) {
    const u32 magnitude = code & 7;  // seem: 0 and 0.5 are the subnormals
    const float value = magnitude < 2 ? 0.5f * magnitude : __uint_as_float((126 << 23) + (magnitude << 22));
    return code & 8 ? -value : value;
}

// -0.0 -> 0.0 in two BF16.
__device__ __forceinline__ u32 without_minus_zero(u32 pair) {
    u32 sum;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(pair), "r"(0x3F803F80), "r"(0));
    return sum;
}

// Block `block` of [N, K] weights, BF16 or F32, without -0.0.
__device__ __forceinline__ void load_block(float x[BLOCK], const uint4* __restrict__ weights, u32 from_bf16, u64 block) {
    if (from_bf16) {
        const uint4 first = __ldg(weights + block * 2), second = __ldg(weights + block * 2 + 1);
        const u32 pairs[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
#pragma unroll
        for (int i = 0; i < BLOCK / 2; i++) {
            const u32 pair = without_minus_zero(pairs[i]);
            x[2 * i] = __uint_as_float(pair << 16), x[2 * i + 1] = __uint_as_float(pair & 0xFFFF0000);
        }
    } else {
#pragma unroll
        for (int i = 0; i < BLOCK / 4; i++) {
            const float4 four = __ldg((const float4*)weights + block * 4 + i);
            x[4 * i] = four.x + 0.0f, x[4 * i + 1] = four.y + 0.0f, x[4 * i + 2] = four.z + 0.0f, x[4 * i + 3] = four.w + 0.0f;
        }
    }
}
