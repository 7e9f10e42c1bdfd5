// One vector for the layers of a network: the kernels of gemv.cu and, beside them, NAME_layer, whose y is BF16.
// The vLLM plugin compiles it.

#include "gemv.cu"

#define LAYER(NAME, ROWS, DEPTH)                                                                \
    extern "C" __global__ BOUNDS void NAME##_layer(WEIGHTS_AND_X, u16* __restrict__ y) {        \
        Logits<u16> sink = {y};                                                                 \
        gemv<ROWS, DEPTH>({codes, scales, global_scale, n_rows, k}, x, split, dependent, sink); \
    }

LAYER(nvfp4_gemv, 4, 1)
LAYER(nvfp4_gemv_few, 1, 3)
