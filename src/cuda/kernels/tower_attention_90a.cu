// Attention of a tower on Hopper: what tower_attention.cu does on tensor cores, by products of four warps (wgmma).
//
// Scores and sums are added in the order of tower_attention.cu, so they have the same bits. Compiled for compute capability
// 9.0a; on other devices these kernels must not be called.

#include "tower_attention.cuh"
#include "wgmma.cuh"

[[maybe_unused]] constexpr int KEY_TILES = 3; // tiles of keys and values in shared memory

// D: 64, or 72 of which eight numbers are behind the shuffled rows of 64. Grid: (tiles of 128 queries, heads). Shared
// memory: 1024 + 8 tiles.
template <int D>
__device__ __forceinline__ void attend_hopper(const TowerAttention& a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    // Behind 64 rows of 64 numbers: their next eight, and zeros.
    constexpr int PIECES = D == 64 ? 8 : 10, BEHIND = KEYS * 128, TILE_BYTES = KEYS * PIECES * 16;
    extern __shared__ unsigned char dynamic[];
    const uint32_t shared = (static_cast<uint32_t>(__cvta_generic_to_shared(dynamic)) + 1023) & ~1023u;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, head = blockIdx.y;
    const TowerTile tile = a.tiles[blockIdx.x];
    const size_t stride = static_cast<size_t>(3) * a.heads * D;
    const bf16* q = static_cast<const bf16*>(a.qkv) + head * D;
    const bf16* k = q + a.heads * D;
    const bf16* v = k + a.heads * D;
    const auto place = [](int row, int piece) {
        return piece < 8 ? shuffled(row, piece) : static_cast<uint32_t>(BEHIND + (piece - 8) * KEYS * 16 + row * 16);
    };
    const auto fetch = [&](const bf16* from, int first, uint32_t to) {
        for (int i = threadIdx.x; i < KEYS * PIECES; i += 256) {
            const int row = i / PIECES, piece = i % PIECES;
            const bool there = first + row < tile.end && piece * 8 < D;
            tower_copy(to + place(row, piece), there ? from + (first + row) * stride + piece * 8 : from, there);
        }
    };
    const auto fetch_keys = [&](int number) {
        const int first = tile.start + number * KEYS;
        if (first < tile.end) {
            const uint32_t to = shared + (2 + number % KEY_TILES * 2) * TILE_BYTES;
            fetch(k, first, to);
            fetch(v, first, to + TILE_BYTES);
        }
        tower_commit();
    };
    wait_for_previous();
    fetch(q, tile.first, shared);
    fetch(q, tile.first + KEYS, shared + TILE_BYTES);
    tower_commit();
    fetch_keys(0);
    fetch_keys(1);
    tower_wait<2>();
    __syncthreads();
    uint32_t asked[PIECES / 2][4];
#pragma unroll
    for (int i = 0; i < PIECES / 2; ++i) {
        load_matrices(asked[i], shared + warp / 4 * TILE_BYTES + place(warp % 4 * 16 + lane % 16, i * 2 + lane / 16));
    }

    const float scale = a.scale * 1.44269504088896340736f;
    float sum[D / 8][4] = {}, most[2] = {-INFINITY, -INFINITY}, weights[2] = {};
    const int tiles = (tile.end - tile.start + KEYS - 1) / KEYS;
    for (int number = 0; number < tiles; ++number) {
        tower_wait<1>();
        fence_copies();
        __syncthreads();
        // To where the tile before this one was.
        fetch_keys(number + 2);
        const uint32_t keys = shared + (2 + number % KEY_TILES * 2) * TILE_BYTES, values = keys + TILE_BYTES;
        float score[KEYS / 8][4] = {};
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < 4; ++i) wgmma_rows<KEYS, 0>(score, asked[i], operand(keys + i * 32));
        if (D > 64) {
            wgmma_rows<KEYS, 0>(score, asked[PIECES / 2 - 1], operand_of_blocks(keys + BEHIND, KEYS * 16, 128));
        }
        wgmma_commit();
        wgmma_wait<0>();
        weigh<D / 8>(score, sum, most, weights, tile.end - tile.start - number * KEYS, scale, t);
        uint32_t w[KEYS / 16][4];
#pragma unroll
        for (int i = 0; i < KEYS / 16; ++i) packed(w[i], score[i * 2], score[i * 2 + 1]);
        float(&first)[8][4] = *reinterpret_cast<float(*)[8][4]>(&sum[0]);
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < KEYS / 16; ++i) wgmma_rows<64, 1>(first, w[i], operand(values + i * 2048));
        if (D > 64) {
            float(&last)[1][4] = *reinterpret_cast<float(*)[1][4]>(&sum[D / 8 - 1]);
#pragma unroll
            for (int i = 0; i < KEYS / 16; ++i) {
                wgmma_rows<8, 1>(last, w[i], operand_of_blocks(values + BEHIND + i * 256, 128, KEYS * 16));
            }
        }
        wgmma_commit();
        wgmma_wait<0>();
    }
    tower_wait<0>();
    let_next_start();
    show<D / 8>(a, sum, weights, head, tile.first + warp * 16 + g, tile.end, t);
#else
    __trap();
#endif
}

extern "C" __global__ void __launch_bounds__(256, 2) tower_hopper_see64(const __grid_constant__ TowerAttention a) { attend_hopper<64>(a); }
extern "C" __global__ void __launch_bounds__(256, 2) tower_hopper_see72(const __grid_constant__ TowerAttention a) { attend_hopper<72>(a); }
