// y = W x + b for a batch of rows, with what follows it fused in: arguments and the last step that all variants share.
//
// Weights are [outputs, inputs], row-major. The additions over the inputs go in one order that depends on the sizes of
// the layer alone: eight parts of the inputs one after the other, each in steps of 32. So a row's result has the same
// bits whatever the batch, and whichever of the fast kernels ran.
#pragma once

#include "common.cuh"

// What a kernel does with a sum. Same numbers in src/cuda/linear.rs.
enum Mode {
    STORE = 0,     // y[T] = sum + bias
    STORE_F32 = 1, // y[f32] = sum + bias
    ADD = 2,       // y[f32] += sum + bias
    SILU_MUL = 3,  // y[T] = silu(gate) * up; see `gate_row`
    SILU = 4,      // y[T] = silu(sum + bias)
};

struct LinearArgs {
    const void* w;    // T [outputs, inputs]
    const void* x;    // T [rows, inputs], or f32 before its norm
    const void* gain; // T [inputs]: the norm's weight, if x is to be normed
    const void* bias; // T [outputs] or null
    void* y;          // [rows, ldy]
    int rows;
    int outputs;
    int inputs;
    int ldy;
    float eps;
};

// What a result of ADD is added to.
template <int MODE>
__device__ __forceinline__ float added_to(const LinearArgs& a, int row, int output) {
    return MODE == ADD ? static_cast<const float*>(a.y)[static_cast<size_t>(row) * a.ldy + output] : 0.f;
}

template <typename T, int MODE>
__device__ __forceinline__ void finish(const LinearArgs& a, int row, int output, float sum, float before) {
    if (a.bias != nullptr) sum += to_float(static_cast<const T*>(a.bias)[output]);
    const size_t at = static_cast<size_t>(row) * a.ldy + output;
    if (MODE == STORE) static_cast<T*>(a.y)[at] = from_float<T>(sum);
    if (MODE == STORE_F32) static_cast<float*>(a.y)[at] = sum;
    if (MODE == ADD) static_cast<float*>(a.y)[at] = __fadd_rn(before, sum);
    if (MODE == SILU) static_cast<T*>(a.y)[at] = from_float<T>(silu(sum));
}

template <typename T>
__device__ __forceinline__ void finish_gated(const LinearArgs& a, int row, int result, float gate, float up) {
    static_cast<T*>(a.y)[static_cast<size_t>(row) * a.ldy + result] = from_float<T>(silu(gate) * up);
}
