// Experts for many rows: pairs that moe_sort has grouped, in tiles. The same bits as the kernels for few rows of moe.cu.
//
//   moe_gate_up_tiles32, 64   groups of up to so many pairs
//   moe_down_tiles32, 64

#include "moe.cuh"
#include "tiles.cuh"

// 128 rows of an expert's weights for a group of its pairs.
template <int BN, int ALONG, int HELD, bool DOWN>
__device__ __forceinline__ void moe_tiles(const MoeArgs& a) {
    using Tile = ManyRows<BN, ALONG, HELD>;
    extern __shared__ __align__(128) unsigned char dynamic[];
    wait_for_previous();
    let_next_start();
    bf16* tiles = reinterpret_cast<bf16*>(dynamic);
    const Group group = a.groups[blockIdx.y];
    const int inner = inner_of(a, group.expert), output0 = blockIdx.x * Tile::BM, inputs = DOWN ? inner : a.hidden;
    if (group.count == 0 || output0 >= (DOWN ? a.hidden : 2 * inner)) return;
    const int* pairs = a.order + group.first;
    uint32_t from[Tile::COPIES];
#pragma unroll
    for (int i = 0; i < Tile::COPIES; ++i) {
        const int pair = pairs[min(static_cast<int>(threadIdx.x) / 8 + i * 32, group.count - 1)];
        from[i] = DOWN ? pair * a.width : pair / a.choices * a.hidden;
    }
    const bf16* w = (DOWN ? down_of<bf16>(a, group.expert) : gate_up_of<bf16>(a, group.expert)) + static_cast<size_t>(output0) * inputs;
    float total[Tile::MT][Tile::NT][4];
    const int steps = inputs / DEPTH;
    Tile::multiply(tiles, w, static_cast<const bf16*>(DOWN ? a.between : a.normed), from, group.count, inputs, steps, DOWN ? steps : steps / PARTS, total);
    const float* sums = Tile::gather(tiles, total);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (int of = warp; of < group.count; of += 8) {
        const float* own = sums + of * Tile::PITCH;
        const size_t pair = pairs[of];
        if (DOWN) {
            *reinterpret_cast<float4*>(a.outputs + pair * a.hidden + output0 + lane * 4) = *reinterpret_cast<const float4*>(own + lane * 4);
        } else {
            bf16* to = static_cast<bf16*>(a.between) + pair * a.width + output0 / 2;
#pragma unroll
            for (int i = lane; i < Tile::BM / 2; i += WARP) to[i] = __float2bfloat16_rn(silu(own[gate_row(i)]) * own[gate_row(i) + 8]);
        }
    }
}

// Grid: (rows of weights / 128, groups). Shared memory: HELD tiles.
#define TILES(BN, ALONG, HELD)                                                                                        \
    extern "C" __global__ void __launch_bounds__(256, 2) moe_gate_up_tiles##BN(const __grid_constant__ MoeArgs a) {      \
        moe_tiles<BN, ALONG, HELD, false>(a);                                                                                 \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(256, 2) moe_down_tiles##BN(const __grid_constant__ MoeArgs a) {         \
        moe_tiles<BN, ALONG, HELD, true>(a);                                                                                  \
    }
TILES(32, 8, 4)
TILES(64, 4, 4)
#undef TILES
