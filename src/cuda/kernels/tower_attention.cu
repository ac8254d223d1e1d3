// Attention of a tower: every position of a part sees all positions of its part.
//
//   tower_see_*           bf16, on the tensor cores, heads of up to 64, 80 and 128 numbers, a multiple of 8
//   tower_attention_*     any type, heads of up to 256: the f32 engine, and what the others are tested against
//
// A position meets the keys of its part in one order, so it has the same bits whatever is encoded beside it.

#include "mma.cuh"
#include "tower_attention.cuh"

// One warp per query and head. Grid: (tiles * 8, heads).
template <typename T>
__device__ __forceinline__ void attend_plain(const TowerAttention& a) {
    constexpr int MOST = 256 / WARP;
    const int lane = threadIdx.x % WARP, head = blockIdx.y;
    const TowerTile tile = a.tiles[blockIdx.x / 8];
    const int query = tile.first + blockIdx.x % 8 * 8 + threadIdx.x / WARP;
    if (query >= tile.end) return;
    const size_t stride = static_cast<size_t>(3) * a.heads * a.d;
    const T* q = static_cast<const T*>(a.qkv) + query * stride + head * a.d;
    const T* k = static_cast<const T*>(a.qkv) + (a.heads + head) * a.d;
    const T* v = k + a.heads * a.d;
    float asked[MOST], sum[MOST] = {}, most = -INFINITY, weights = 0.f;
#pragma unroll
    for (int i = 0; i < MOST; ++i) asked[i] = lane + i * WARP < a.d ? to_float(q[lane + i * WARP]) : 0.f;
    for (int key = tile.start; key < tile.end; ++key) {
        float score = 0.f;
#pragma unroll
        for (int i = 0; i < MOST; ++i) {
            if (lane + i * WARP < a.d) score = __fmaf_rn(asked[i], to_float(k[key * stride + lane + i * WARP]), score);
        }
        score = warp_sum(score) * a.scale;
        const float now = fmaxf(most, score), shrink = expf(most - now), weight = expf(score - now);
        weights = __fmaf_rn(weights, shrink, weight);
#pragma unroll
        for (int i = 0; i < MOST; ++i) {
            if (lane + i * WARP < a.d) sum[i] = __fmaf_rn(weight, to_float(v[key * stride + lane + i * WARP]), sum[i] * shrink);
        }
        most = now;
    }
    T* out = static_cast<T*>(a.out) + (static_cast<size_t>(query) * a.heads + head) * a.d;
#pragma unroll
    for (int i = 0; i < MOST; ++i) {
        if (lane + i * WARP < a.d) out[lane + i * WARP] = from_float<T>(sum[i] / weights);
    }
}

// 64 queries of a head by four warps. D: numbers of a head with the zeros behind them. Grid: (tiles, heads). Shared
// memory: 5 * 64 rows.
template <int D>
__device__ __forceinline__ void attend(const TowerAttention& a) {
    // An odd number of pieces of 16 bytes: eight rows lie in different banks.
    constexpr int ROW = D * 2 + 16, PIECES = D / 8, TILE_BYTES = KEYS * ROW;
    extern __shared__ __align__(128) unsigned char dynamic[];
    const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(dynamic));
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, head = blockIdx.y;
    const TowerTile tile = a.tiles[blockIdx.x];
    const size_t stride = static_cast<size_t>(3) * a.heads * a.d;
    const bf16* q = static_cast<const bf16*>(a.qkv) + head * a.d;
    const bf16* k = q + a.heads * a.d;
    const bf16* v = k + a.heads * a.d;
    const auto fetch = [&](const bf16* from, int first, uint32_t to) {
        for (int i = threadIdx.x; i < KEYS * PIECES; i += 128) {
            const int row = i / PIECES, piece = i % PIECES;
            const bool there = first + row < tile.end && piece * 8 < a.d;
            tower_copy(to + row * ROW + piece * 16, there ? from + (first + row) * stride + piece * 8 : from, there);
        }
    };
    const auto fetch_keys = [&](int number) {
        const int first = tile.start + number * KEYS;
        if (first < tile.end) {
            const uint32_t to = shared + (1 + number % 2 * 2) * TILE_BYTES;
            fetch(k, first, to);
            fetch(v, first, to + TILE_BYTES);
        }
        tower_commit();
    };
    fetch(q, tile.first, shared);
    fetch_keys(0);
    tower_wait<0>();
    __syncthreads();
    uint32_t asked[D / 16][4];
#pragma unroll
    for (int i = 0; i < D / 16; ++i) load_matrices(asked[i], shared + (warp * 16 + lane % 16) * ROW + (i * 2 + lane / 16) * 16);

    const float scale = a.scale * 1.44269504088896340736f;
    float sum[D / 8][4] = {}, most[2] = {-INFINITY, -INFINITY}, weights[2] = {};
    const int tiles = (tile.end - tile.start + KEYS - 1) / KEYS;
    for (int number = 0; number < tiles; ++number) {
        fetch_keys(number + 1);
        tower_wait<1>();
        __syncthreads();
        const uint32_t keys = shared + (1 + number % 2 * 2) * TILE_BYTES, values = keys + TILE_BYTES;
        float score[KEYS / 8][4] = {};
#pragma unroll
        for (int i = 0; i < D / 16; ++i) {
#pragma unroll
            for (int n = 0; n < KEYS / 16; ++n) {
                uint32_t b[4];
                load_matrices(b, keys + (n * 16 + (lane & 7) + (lane >> 4) * 8) * ROW + (i * 2 + ((lane >> 3) & 1)) * 16);
                mma(score[n * 2], asked[i][0], asked[i][1], asked[i][2], asked[i][3], b[0], b[1]);
                mma(score[n * 2 + 1], asked[i][0], asked[i][1], asked[i][2], asked[i][3], b[2], b[3]);
            }
        }
        weigh<D / 8>(score, sum, most, weights, tile.end - tile.start - number * KEYS, scale, t);
#pragma unroll
        for (int i = 0; i < KEYS / 16; ++i) {
            uint32_t w[4];
            packed(w, score[i * 2], score[i * 2 + 1]);
#pragma unroll
            for (int n = 0; n < D / 16; ++n) {
                uint32_t b[4];
                load_transposed(b, values + (i * 16 + (lane & 7) + ((lane >> 3) & 1) * 8) * ROW + (n * 2 + (lane >> 4)) * 16);
                mma(sum[n * 2], w[0], w[1], w[2], w[3], b[0], b[1]);
                mma(sum[n * 2 + 1], w[0], w[1], w[2], w[3], b[2], b[3]);
            }
        }
        // The tile after the next comes to where this one is.
        __syncthreads();
    }
    show<D / 8>(a, sum, weights, head, tile.first + warp * 16 + g, tile.end, t);
}

extern "C" __global__ void __launch_bounds__(256) tower_attention_f32(TowerAttention a) { attend_plain<float>(a); }
extern "C" __global__ void __launch_bounds__(256) tower_attention_bf16(TowerAttention a) { attend_plain<bf16>(a); }
extern "C" __global__ void __launch_bounds__(128) tower_see64(const __grid_constant__ TowerAttention a) { attend<64>(a); }
extern "C" __global__ void __launch_bounds__(128) tower_see80(const __grid_constant__ TowerAttention a) { attend<80>(a); }
extern "C" __global__ void __launch_bounds__(128) tower_see128(const __grid_constant__ TowerAttention a) { attend<128>(a); }
