// Matrix products of the many rows of prompts.
//
//   linear_slim_*  bf16, tiles of 128 outputs by 64 rows
//
// The same bits as the fast kernels of linear.cu.

#include "linear.cuh"
#include "tiles.cuh"

// Grid: (rows / BN rounded up, outputs / 128). Shared memory: HELD tiles.
template <int BN, int ALONG, int HELD, int MODE>
__device__ __forceinline__ void linear_tiles(const LinearArgs& a) {
    using Tile = ManyRows<BN, ALONG, HELD>;
    extern __shared__ __align__(128) unsigned char dynamic[];
    wait_for_previous();
    let_next_start();
    bf16* tiles = reinterpret_cast<bf16*>(dynamic);
    const int row0 = blockIdx.x * BN, output0 = blockIdx.y * Tile::BM, count = min(BN, a.rows - row0);
    const bf16* x = static_cast<const bf16*>(a.x) + static_cast<size_t>(row0) * a.inputs;
    const bf16* w = static_cast<const bf16*>(a.w) + static_cast<size_t>(output0) * a.inputs;
    uint32_t from[Tile::COPIES];
#pragma unroll
    for (int i = 0; i < Tile::COPIES; ++i) from[i] = min(static_cast<int>(threadIdx.x) / 8 + i * 32, count - 1) * a.inputs;
    float total[Tile::MT][Tile::NT][4];
    const int steps = a.inputs / DEPTH;
    Tile::multiply(tiles, w, x, from, count, a.inputs, steps, steps / PARTS, total);
    const float* sums = Tile::gather(tiles, total);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (int of = warp; of < count; of += 8) {
        const float* own = sums + of * Tile::PITCH;
        const int row = row0 + of;
        if (MODE == SILU_MUL) {
#pragma unroll
            for (int i = lane; i < Tile::BM / 2; i += WARP) {
                finish_gated<bf16>(a, row, output0 / 2 + i, own[gate_row(i)], own[gate_row(i) + 8]);
            }
        } else {
            float before[Tile::BM / WARP];
#pragma unroll
            for (int i = 0; i < Tile::BM / WARP; ++i) before[i] = added_to<MODE>(a, row, output0 + lane + i * WARP);
#pragma unroll
            for (int i = 0; i < Tile::BM / WARP; ++i) finish<bf16, MODE>(a, row, output0 + lane + i * WARP, own[lane + i * WARP], before[i]);
        }
    }
}

#define SLIM(NAME, MODE)                                                                                            \
    extern "C" __global__ void __launch_bounds__(256, 2) linear_slim_##NAME(const __grid_constant__ LinearArgs a) { \
        linear_tiles<64, 4, 4, MODE>(a);                                                                            \
    }
SLIM(store, STORE)
SLIM(full, STORE_F32)
SLIM(add, ADD)
SLIM(silu_mul, SILU_MUL)
SLIM(silu, SILU)
