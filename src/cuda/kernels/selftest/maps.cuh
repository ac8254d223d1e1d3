// Tensor maps, as src/cuda/tensor_map.rs makes them.
#pragma once

#include "harness.cuh"
#include "wgmma.cuh"
#include <cudaTypedefs.h>

// Boxes of 64 inputs, shuffled, or of more, by `box_rows` rows of a matrix [rows, inputs].
static TensorMap boxes(const void* x, int rows, int inputs, int box_rows, int box_inputs = 64) {
    static PFN_cuTensorMapEncodeTiled_v12000 encode = nullptr;
    if (encode == nullptr) {
        cudaDriverEntryPointQueryResult found;
        CK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", reinterpret_cast<void**>(&encode), 12000, cudaEnableDefault, &found));
    }
    TensorMap map;
    const cuuint64_t sizes[2] = {cuuint64_t(inputs), cuuint64_t(rows)}, strides[1] = {cuuint64_t(inputs) * 2};
    const cuuint32_t box[2] = {cuuint32_t(box_inputs), cuuint32_t(box_rows)}, steps[2] = {1, 1};
    const CUresult answer =
        encode(reinterpret_cast<CUtensorMap*>(&map), CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(x), sizes, strides, box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, box_inputs > 64 ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (answer != CUDA_SUCCESS) printf("cuTensorMapEncodeTiled: %d\n", int(answer)), exit(1);
    return map;
}
