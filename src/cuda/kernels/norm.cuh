// RMSNorm of rows that a kernel is about to use.
#pragma once

#include "common.cuh"

// Eight rows by one block of eight warps: f32 rows to normed rows of T, or of f32 that went through T. Block `i` has rows
// 8i to 8i + 7.
template <typename T, typename OUT>
__device__ __forceinline__ void norm_rows(const float* x, const T* gain, OUT* y, int rows, int width, float eps) {
    __shared__ float squares[PARTS][8], scales[8];
    const int row0 = blockIdx.x * 8, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    x += static_cast<size_t>(row0) * width;
    y += static_cast<size_t>(row0) * width;
    if (width % (32 * PARTS) == 0) {
        const float scale = row_scales(x, width, eps, row0 + lane / 4 < rows, squares);
        if (warp == 0 && lane % 4 == 0) scales[lane / 4] = scale;
    } else if (row0 + warp < rows) {
        const float scale = row_scale(x + static_cast<size_t>(warp) * width, width, eps, lane);
        if (lane == 0) scales[warp] = scale;
    }
    __syncthreads();
    const int count = min(8, rows - row0) * width;
#pragma unroll 4
    for (int i = threadIdx.x * 4; i < count; i += 256 * 4) {
        const float4 v = *reinterpret_cast<const float4*>(x + i);
        const float each[4] = {v.x, v.y, v.z, v.w};
        const int at = i % width;
        const float scale = scales[i / width];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            y[i + j] = from_float<OUT>(to_float(from_float<T>(normed(each[j], scale, to_float(gain[at + j])))));
        }
    }
}
