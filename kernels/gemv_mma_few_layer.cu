// Two to eight vectors and few rows for the layers of a network: the kernels of gemv_mma_few.cu and, beside them, NAME_layer, whose y is BF16.
// The vLLM plugin compiles it.

#include "gemv_mma_few.cu"

#define LAYER(NAME, DEPTH)                                                                         \
    extern "C" __global__ void BOUNDS NAME##_layer(WEIGHTS_AND_X, u16* __restrict__ y) {           \
        Logits<u16> sink = {y, n_rows, m_count};                                                   \
        gemv<DEPTH>({codes, scales, global_scale, n_rows, k}, x, m_count, split, dependent, sink); \
    }

LAYER(nvfp4_mma_few, 2)
