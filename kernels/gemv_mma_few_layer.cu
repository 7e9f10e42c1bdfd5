// Two to eight vectors and few rows: see layer.cuh.

#include "gemv_mma_few.cu"
#include "layer.cuh"

#define LAYER(NAME, DEPTH)                                                                         \
    extern "C" __global__ void BOUNDS NAME##_layer(WEIGHTS_AND_X, u16* __restrict__ y) {           \
        RoundedRows sink = {y, n_rows, m_count};                                                   \
        gemv<DEPTH>({codes, scales, global_scale, n_rows, k}, x, m_count, split, dependent, sink); \
    }

LAYER(nvfp4_mma_few, 2)
