// A product of the towers: its arguments, and what is done with its sums.
#pragma once

#include "tower.cuh"

// What is done with a sum. Same numbers in src/cuda/encoder/products.rs.
enum TowerMode {
    TOWER_STORE = 0,     // y[T] = sum + bias
    TOWER_FULL = 1,      // y[f32] = sum + bias
    TOWER_ADD = 2,       // y[f32] += sum + bias
    TOWER_GELU_ERF = 3,  // y[T] = gelu(sum + bias)
    TOWER_GELU_TANH = 4, // the same by tanh
};

struct TowerLinear {
    const void* w;    // T [outputs, inputs]
    const void* x;    // T [rows, inputs]
    const void* bias; // T [outputs] or null
    void* y;          // [rows, ldy]
    int rows;
    int outputs;
    int inputs;
    int ldy;
};

template <int MODE>
__device__ __forceinline__ float tower_value(float sum) {
    return MODE == TOWER_GELU_ERF ? gelu_erf(sum) : MODE == TOWER_GELU_TANH ? gelu_tanh(sum) : sum;
}

template <typename T, int MODE>
__device__ __forceinline__ void tower_finish(const TowerLinear& a, int row, int output, float sum) {
    if (a.bias != nullptr) sum += to_float(static_cast<const T*>(a.bias)[output]);
    const size_t at = static_cast<size_t>(row) * a.ldy + output;
    if (MODE == TOWER_FULL) static_cast<float*>(a.y)[at] = sum;
    if (MODE == TOWER_ADD) static_cast<float*>(a.y)[at] = __fadd_rn(static_cast<const float*>(a.y)[at], sum);
    if (MODE != TOWER_FULL && MODE != TOWER_ADD) static_cast<T*>(a.y)[at] = from_float<T>(tower_value<MODE>(sum));
}
