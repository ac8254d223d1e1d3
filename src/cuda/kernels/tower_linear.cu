// y = W x + b of a tower, for many rows.
//
//   tower_plain_*  any type and size: what the others are tested against, and the f32 engine
//   tower_wide_*   bf16, tiles of 128 rows by 128 outputs
//   tower_slim_*   bf16, tiles of 64 by 64, where the wide ones would leave most of the device idle
//
// Both tiled kernels add the products of a result over the inputs in one order, sixteen after the other, so a row has
// the same bits whatever the batch and whichever of them ran. The inputs are a multiple of 8.

#include "mma.cuh"
#include "tower_linear.cuh"

// One warp per result. Grid: (rows, outputs / 8 rounded up).
template <typename T, int MODE>
__device__ __forceinline__ void tower_plain(const TowerLinear& a) {
    const int lane = threadIdx.x % WARP, row = blockIdx.x, output = blockIdx.y * 8 + threadIdx.x / WARP;
    if (output >= a.outputs) return;
    const T* x = static_cast<const T*>(a.x) + static_cast<size_t>(row) * a.inputs;
    const T* w = static_cast<const T*>(a.w) + static_cast<size_t>(output) * a.inputs;
    float sum = 0.f;
    for (int i = lane; i < a.inputs; i += WARP) sum = __fmaf_rn(to_float(w[i]), to_float(x[i]), sum);
    sum = warp_sum(sum);
    if (lane == 0) tower_finish<T, MODE>(a, row, output, sum);
}

constexpr int DEEP = 64; // inputs of a tile
constexpr int HELD = 3;  // tiles in shared memory

// BM rows by BN outputs, by eight warps, two along the rows and four along the outputs. Grid: (outputs / BN, rows / BM),
// both rounded up. Shared memory: HELD * (BM + BN) * 128 bytes.
template <int BM, int BN, int MODE>
__device__ __forceinline__ void tower_tiles(const TowerLinear& a) {
    constexpr int MT = BM / 2 / 16, NT = BN / 4 / 8, STAGE = (BM + BN) * DEEP * 2;
    extern __shared__ __align__(128) unsigned char dynamic[];
    const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(dynamic));
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int row0 = blockIdx.y * BM, output0 = blockIdx.x * BN;
    const int down = warp / 4 * (BM / 2), across = warp % 4 * (BN / 4);
    const int steps = (a.inputs + DEEP - 1) / DEEP;

    // A thread copies the same piece of every 32nd row.
    const int copied = threadIdx.x / 8, piece = threadIdx.x % 8;
    const bf16* x = static_cast<const bf16*>(a.x);
    const bf16* w = static_cast<const bf16*>(a.w);
    const auto fetch = [&](int step) {
        const uint32_t to = shared + step % HELD * STAGE;
        const int input = step * DEEP + piece * 8;
        const bool deep = step < steps && input < a.inputs;
#pragma unroll
        for (int i = 0; i < BM; i += 32) {
            const int row = row0 + copied + i;
            const bool there = deep && row < a.rows;
            tower_copy(to + shuffled(copied + i, piece), there ? x + static_cast<size_t>(row) * a.inputs + input : x, there);
        }
#pragma unroll
        for (int i = 0; i < BN; i += 32) {
            const int output = output0 + copied + i;
            const bool there = deep && output < a.outputs;
            tower_copy(to + BM * DEEP * 2 + shuffled(copied + i, piece), there ? w + static_cast<size_t>(output) * a.inputs + input : w, there);
        }
        tower_commit();
    };
#pragma unroll
    for (int s = 0; s < HELD - 1; ++s) fetch(s);

    float acc[MT][NT][4] = {};
    const int a_row = down + lane % 16, a_piece = lane / 16;
    const int b_row = across + (lane & 7) + (lane >> 4) * 8, b_piece = (lane >> 3) & 1;
    for (int step = 0; step < steps; ++step) {
        tower_wait<HELD - 2>();
        __syncthreads();
        fetch(step + HELD - 1);
        const uint32_t from = shared + step % HELD * STAGE;
#pragma unroll
        for (int k = 0; k < DEEP / 16; ++k) {
            uint32_t rows[MT][4], weights[NT / 2][4];
#pragma unroll
            for (int m = 0; m < MT; ++m) load_matrices(rows[m], from + shuffled(a_row + m * 16, k * 2 + a_piece));
#pragma unroll
            for (int n = 0; n < NT / 2; ++n) {
                load_matrices(weights[n], from + BM * DEEP * 2 + shuffled(b_row + n * 16, k * 2 + b_piece));
            }
#pragma unroll
            for (int m = 0; m < MT; ++m) {
#pragma unroll
                for (int n = 0; n < NT; ++n) {
                    const uint32_t(&b)[4] = weights[n / 2];
                    mma(acc[m][n], rows[m][0], rows[m][1], rows[m][2], rows[m][3], b[n % 2 * 2], b[n % 2 * 2 + 1]);
                }
            }
        }
    }
    tower_wait<0>();
#pragma unroll
    for (int m = 0; m < MT; ++m) {
#pragma unroll
        for (int n = 0; n < NT; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = row0 + down + m * 16 + g + i / 2 * 8, output = output0 + across + n * 8 + 2 * t + i % 2;
                if (row < a.rows && output < a.outputs) tower_finish<bf16, MODE>(a, row, output, acc[m][n][i]);
            }
        }
    }
}

#define PLAIN(NAME, T, MODE) \
    extern "C" __global__ void __launch_bounds__(256) tower_plain_##NAME(TowerLinear a) { tower_plain<T, MODE>(a); }
PLAIN(store_f32, float, TOWER_STORE)
PLAIN(add_f32, float, TOWER_ADD)
PLAIN(gelu_erf_f32, float, TOWER_GELU_ERF)
PLAIN(gelu_tanh_f32, float, TOWER_GELU_TANH)
PLAIN(store_bf16, bf16, TOWER_STORE)
PLAIN(full_bf16, bf16, TOWER_FULL)
PLAIN(add_bf16, bf16, TOWER_ADD)
PLAIN(gelu_erf_bf16, bf16, TOWER_GELU_ERF)
PLAIN(gelu_tanh_bf16, bf16, TOWER_GELU_TANH)

#define TILES(NAME, MODE)                                                                                                                                     \
    extern "C" __global__ void __launch_bounds__(256, 2) tower_wide_##NAME(const __grid_constant__ TowerLinear a) { tower_tiles<128, 128, MODE>(a); } \
    extern "C" __global__ void __launch_bounds__(256, 2) tower_slim_##NAME(const __grid_constant__ TowerLinear a) { tower_tiles<64, 64, MODE>(a); }
TILES(store, TOWER_STORE)
TILES(full, TOWER_FULL)
TILES(add, TOWER_ADD)
TILES(gelu_erf, TOWER_GELU_ERF)
TILES(gelu_tanh, TOWER_GELU_TANH)
