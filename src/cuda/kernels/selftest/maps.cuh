// Tensor maps, as src/cuda/tensor_map.rs makes them.
#pragma once

#include "harness.cuh"
#include "wgmma.cuh"
#include <cudaTypedefs.h>

// N sizes of a matrix, the bytes from one to the next of all dimensions but the first, and of a box.
template <int N>
TensorMap encoded(const void* x, const cuuint64_t (&sizes)[N], const cuuint64_t (&strides)[N - 1], const cuuint32_t (&box)[N], CUtensorMapL2promotion promotion) {
    static PFN_cuTensorMapEncodeTiled_v12000 encode = nullptr;
    if (encode == nullptr) {
        cudaDriverEntryPointQueryResult found;
        CK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", reinterpret_cast<void**>(&encode), 12000, cudaEnableDefault, &found));
    }
    TensorMap map;
    cuuint32_t steps[N];
    std::fill(steps, steps + N, 1);
    const CUresult answer = encode(reinterpret_cast<CUtensorMap*>(&map), CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, N, const_cast<void*>(x), sizes, strides, box, steps,
                                   CU_TENSOR_MAP_INTERLEAVE_NONE, box[0] > 64 ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B, promotion,
                                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (answer != CUDA_SUCCESS) printf("cuTensorMapEncodeTiled: %d\n", int(answer)), exit(1);
    return map;
}

// Boxes of 64 inputs, shuffled, or of more, by `box_rows` rows of a matrix [rows, inputs].
inline TensorMap boxes(const void* x, int rows, int inputs, int box_rows, int box_inputs = 64) {
    const cuuint64_t sizes[2] = {cuuint64_t(inputs), cuuint64_t(rows)}, strides[1] = {cuuint64_t(inputs) * 2};
    const cuuint32_t box[2] = {cuuint32_t(box_inputs), cuuint32_t(box_rows)};
    return encoded(x, sizes, strides, box, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}
// Boxes of 64 inputs of each part of eight outputs of weights [outputs, inputs].
inline TensorMap part_boxes(const void* w, int outputs, int inputs) {
    const cuuint64_t sizes[3] = {cuuint64_t(inputs / PARTS), cuuint64_t(outputs), PARTS};
    const cuuint64_t strides[2] = {cuuint64_t(inputs) * 2, cuuint64_t(inputs / PARTS) * 2};
    const cuuint32_t box[3] = {64, 8, PARTS};
    return encoded(w, sizes, strides, box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}
