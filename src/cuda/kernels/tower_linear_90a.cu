// y = W x + b of a tower on Hopper: what tower_linear.cu does, by products of four warps (wgmma) with tiles that the tensor
// maps copy.
//
// A block has a warp for each 16 of its rows, which multiply, and one warp more, whose first lane copies. The sums are
// added over the inputs in the order of tower_linear.cu, sixteen after the other, so they have the same bits whatever the
// tile.
//
// Compiled for compute capability 9.0a; on other devices these kernels must not be called. Inputs, outputs and `ldy` are
// multiples of 8.

#include "tower_linear.cuh"
#include "wgmma.cuh"

struct TowerHopper {
    TensorMap w; // boxes of 64 inputs by the outputs of a tile
    TensorMap x; // boxes of 64 inputs by the rows of a tile
    TowerLinear linear;
};

// Four lanes have one pair of each of four columns of eight; afterwards each has all of one.
__device__ __forceinline__ uint4 gathered(const uint32_t (&p)[4], int t) {
    const bool odd = t & 1, high = t & 2;
    const uint32_t a = __shfl_xor_sync(~0u, odd ? p[0] : p[1], 1), b = __shfl_xor_sync(~0u, odd ? p[2] : p[3], 1);
    const uint32_t q0 = odd ? a : p[0], q1 = odd ? p[1] : a, q2 = odd ? b : p[2], q3 = odd ? p[3] : b;
    const uint32_t c = __shfl_xor_sync(~0u, high ? q0 : q2, 2), d = __shfl_xor_sync(~0u, high ? q1 : q3, 2);
    return high ? make_uint4(c, d, q2, q3) : make_uint4(q0, q1, c, d);
}

// What is done with 64 rows of BN sums by their four warps.
template <int BN, int MODE>
__device__ __forceinline__ void hopper_finish(const TowerLinear& a, float (&sums)[BN / 8][4], int row0, int output0) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int row = row0 + threadIdx.x / WARP % 4 * 16 + g;
    const bf16* bias = static_cast<const bf16*>(a.bias);
#pragma unroll
    for (int n = 0; n < BN / 8; n += 4) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int output = output0 + (n + i) * 8 + 2 * t;
            if (bias == nullptr || output >= a.outputs) continue;
            const __nv_bfloat162 both = *reinterpret_cast<const __nv_bfloat162*>(bias + output);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                sums[n + i][half * 2] += to_float(both.x);
                sums[n + i][half * 2 + 1] += to_float(both.y);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int to = row + half * 8;
            const size_t line = static_cast<size_t>(to) * a.ldy;
            if (MODE == TOWER_FULL || MODE == TOWER_ADD) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int output = output0 + (n + i) * 8 + 2 * t;
                    if (to >= a.rows || output >= a.outputs) continue;
                    float2* y = reinterpret_cast<float2*>(static_cast<float*>(a.y) + line + output);
                    float2 two = make_float2(sums[n + i][half * 2], sums[n + i][half * 2 + 1]);
                    if (MODE == TOWER_ADD) {
                        const float2 before = *y;
                        two = make_float2(__fadd_rn(before.x, two.x), __fadd_rn(before.y, two.y));
                    }
                    *y = two;
                }
            } else {
                uint32_t pairs[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float* two = sums[n + i] + half * 2;
                    pairs[i] = packed(tower_value<MODE>(two[0]), tower_value<MODE>(two[1]));
                }
                const uint4 eight = gathered(pairs, t);
                const int output = output0 + (n + t) * 8;
                if (to < a.rows && output < a.outputs) {
                    *reinterpret_cast<uint4*>(static_cast<bf16*>(a.y) + line + output) = eight;
                }
            }
        }
    }
}

// BM rows (64 or 128) by BN outputs, STAGES tiles of 64 inputs ahead. Grid: (outputs / BN, rows / BM), both rounded up.
// Threads: 2 * BM + 32. Shared memory: 1024 + STAGES * ((BM + BN) * 128 + 16) bytes.
template <int BM, int BN, int STAGES, int MODE>
__device__ __forceinline__ void hopper_tiles(const TowerHopper& args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    constexpr int WARPS = BM / 16, DEEP = 64, X_BYTES = BM * DEEP * 2, STAGE = (BM + BN) * DEEP * 2;
    extern __shared__ unsigned char dynamic[];
    const TowerLinear& a = args.linear;
    const uint32_t shared = (static_cast<uint32_t>(__cvta_generic_to_shared(dynamic)) + 1023) & ~1023u;
    const uint32_t full = shared + STAGES * STAGE, empty = full + STAGES * 8;
    const int row0 = blockIdx.y * BM, output0 = blockIdx.x * BN, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int steps = (a.inputs + DEEP - 1) / DEEP;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(full + i * 8, 1);
            barrier_init(empty + i * 8, WARPS);
        }
        show_barriers();
    }
    __syncthreads();
    if (warp == WARPS) {
        if (lane > 0) return;
        const auto weights = [&](int step) {
            const uint32_t slot = step % STAGES, barrier = full + slot * 8;
            barrier_expect(barrier, STAGE);
            copy_box(shared + slot * STAGE + X_BYTES, args.w, step * DEEP, output0, barrier);
        };
        const auto rows = [&](int step) {
            const uint32_t slot = step % STAGES;
            copy_box(shared + slot * STAGE, args.x, step * DEEP, row0, full + slot * 8);
        };
        // Weights may be read before what is ahead of this kernel has ended.
        for (int step = 0; step < STAGES && step < steps; ++step) weights(step);
        wait_for_previous();
        for (int step = 0; step < STAGES && step < steps; ++step) rows(step);
        for (int step = STAGES; step < steps; ++step) {
            barrier_wait(empty + step % STAGES * 8, step / STAGES % 2 ^ 1);
            weights(step);
            rows(step);
        }
        return;
    }
    float sums[BN / 8][4] = {};
    const uint32_t own = shared + warp / 4 * (64 * DEEP * 2);
    for (int step = 0; step < steps; ++step) {
        const uint32_t slot = step % STAGES, at = slot * STAGE;
        barrier_wait(full + slot * 8, step / STAGES % 2);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < DEEP / 16; ++k) wgmma<BN>(sums, operand(own + at + k * 32), operand(shared + X_BYTES + at + k * 32));
        wgmma_commit();
        wgmma_wait<1>();
        if (step > 0 && lane == 0) barrier_arrive(empty + (step - 1) % STAGES * 8);
    }
    wgmma_wait<0>();
    // What follows finds room as soon as all tiles are computed.
    let_next_start();
    wait_for_previous();
    hopper_finish<BN, MODE>(a, sums, row0 + warp / 4 * 64, output0);
#else
    __trap();
#endif
}

// Same tiles in src/cuda/encoder/products.rs. A limit of 320 threads keeps two blocks of 288 within the registers of each
// quarter of a multiprocessor.
#define HOPPER(NAME, MODE)                                                                                             \
    extern "C" __global__ void __launch_bounds__(288, 1) tower_hopper_128x256_##NAME(const __grid_constant__ TowerHopper a) { \
        hopper_tiles<128, 256, 4, MODE>(a);                                                                            \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(320, 2) tower_hopper_128x128_##NAME(const __grid_constant__ TowerHopper a) { \
        hopper_tiles<128, 128, 3, MODE>(a);                                                                            \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(288, 1) tower_hopper_128x128_alone_##NAME(const __grid_constant__ TowerHopper a) { \
        hopper_tiles<128, 128, 6, MODE>(a);                                                                            \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(160, 2) tower_hopper_64x128_##NAME(const __grid_constant__ TowerHopper a) { \
        hopper_tiles<64, 128, 4, MODE>(a);                                                                             \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(160, 2) tower_hopper_64x32_##NAME(const __grid_constant__ TowerHopper a) { \
        hopper_tiles<64, 32, 8, MODE>(a);                                                                              \
    }
HOPPER(store, TOWER_STORE)
HOPPER(full, TOWER_FULL)
HOPPER(add, TOWER_ADD)
HOPPER(gelu_erf, TOWER_GELU_ERF)
HOPPER(gelu_tanh, TOWER_GELU_TANH)
