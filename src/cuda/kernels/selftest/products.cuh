// Products as the graph of a talker queues them for up to 16 rows, by sixteens for more: what persistent kernels are compared
// with.
#pragma once

#include "linear.cu"
#include "few_linear.cu"
#include "harness.cuh"

// Rows with a gain are normed first: by the product itself up to 8, into `ready` beyond.
inline void queue_product(Mode mode, const bf16* w, const void* in, const bf16* gain, void* y, int rows, int outputs, int inputs, bf16* ready = nullptr) {
    LinearArgs a{w, in, gain, nullptr, y, rows, outputs, inputs, mode == SILU_MUL ? outputs / 2 : outputs, 1e-6f};
    if (rows > 8 && gain != nullptr) {
        launch_overlapping(rms_norm_bf16, dim3(rows), 256, 0, (const float*)in, gain, ready, rows, inputs, 1e-6f);
        a.x = ready, a.gain = nullptr;
    }
    if (rows > 16) {
        // A row's bits do not depend on those beside it.
        const int wide = mode == STORE || mode == SILU_MUL ? 2 : 4;
        for (int from = 0; from < rows; from += 16) {
            queue_product(mode, w, static_cast<const bf16*>(a.x) + (size_t)from * inputs, nullptr, static_cast<char*>(y) + (size_t)from * a.ldy * wide,
                          std::min(16, rows - from), outputs, inputs);
        }
        return;
    }
    const dim3 grid(outputs / 16);
#define PICK(N) (rows > 8 ? linear_few1x2_##N : gain ? linear_small_norm_##N : linear_small_##N)
    if (mode == STORE) launch_overlapping(PICK(store), grid, 256, 0, a);
    if (mode == STORE_F32) launch_overlapping(PICK(full), grid, 256, 0, a);
    if (mode == ADD) launch_overlapping(PICK(add), grid, 256, 0, a);
    if (mode == SILU_MUL) launch_overlapping(PICK(silu_mul), grid, 256, 0, a);
#undef PICK
}
