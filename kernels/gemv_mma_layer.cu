// Two to eight vectors for the layers of a network: the kernels of gemv_mma.cu and, beside them, NAME_layer, whose y is BF16.
// The vLLM plugin compiles it.

#include "gemv_mma.cu"

#define LAYER(NAME, DEPTH, RAGGED)                                                                              \
    extern "C" __global__ void __launch_bounds__(MOST_WARPS * 32, 1) NAME##_layer(WEIGHTS_AND_X, u16* __restrict__ y) { \
        Logits<u16> sink = {y, n_rows, m_count};                                                                \
        gemv<DEPTH, RAGGED>({codes, scales, global_scale, n_rows, k}, x, m_count, split, dependent, sink);      \
    }

LAYER(nvfp4_mma, 2, false)
LAYER(nvfp4_mma_shallow, 1, false)
LAYER(nvfp4_mma_ragged, 1, true)
