// Attention of new positions over a paged cache of keys and values, with the norm and rotation of queries and keys.
//
//   kv_write_*       norms, rotates and stores the keys of new positions, and stores their values
//   attend_plain_*   any head size, one warp per query head
//   attend_short2    bf16, head_dim 128, two query heads per kv head, sequences of up to 17 positions, all different
//   attend_fast*     bf16, head_dim 128: eight warps share the positions; *_write also does what kv_write does, for
//                    launches whose rows are all different sequences
//   attend_group8*   of group_attention.cu: eight query heads per kv head, on tensor cores
//
// How many positions are summed in which order depends on the row's own position alone, so a row's result has the same
// bits whatever the batch.

#include "fast_attention.cuh"
#include "short_attention.cuh"

template <typename T>
__device__ __forceinline__ void write_key(const AttentionArgs& a, int row, int kv_head, uint32_t slot, int position, int lane) {
    float low[MAX_PAIRS], high[MAX_PAIRS];
    const Turn<T> turn(a, static_cast<const T*>(a.k_norm), row, position, lane);
    turn.head(a, head_of<T>(a, row, a.heads + kv_head), lane, low, high);
    T* key = static_cast<T*>(a.keys) + cache_at(a, slot, position, kv_head);
#pragma unroll
    for (int i = 0; i < MAX_PAIRS; ++i) {
        const int j = lane + i * WARP;
        if (j < a.head_dim / 2) {
            key[j] = from_float<T>(low[i]);
            key[j + a.head_dim / 2] = from_float<T>(high[i]);
        }
    }
}

template <typename T>
__device__ __forceinline__ void write_value(const AttentionArgs& a, int row, int kv_head, uint32_t slot, int position, int lane) {
    const T* from = head_of<T>(a, row, a.heads + a.kv_heads + kv_head);
    T* to = static_cast<T*>(a.values) + cache_at(a, slot, position, kv_head);
    for (int i = lane; i < a.head_dim; i += WARP) to[i] = from[i];
}

// Grid: (kv_heads, rows), two warps: one for the key, one for the value.
template <typename T>
__device__ __forceinline__ void kv_write(const AttentionArgs& a) {
    wait_for_previous();
    let_next_start();
    const int row = blockIdx.y, position = a.positions[row], lane = threadIdx.x % WARP;
    if (position < 0) return;
    if (threadIdx.x < WARP) {
        write_key<T>(a, row, blockIdx.x, a.slots[row], position, lane);
    } else {
        write_value<T>(a, row, blockIdx.x, a.slots[row], position, lane);
    }
}

// Grid: (heads, rows), one warp. Keys must be written.
template <typename T>
__device__ __forceinline__ void attend_plain(const AttentionArgs& a) {
    wait_for_previous();
    let_next_start();
    const int row = blockIdx.y, head = blockIdx.x, kv_head = head / (a.heads / a.kv_heads);
    const int position = a.positions[row], lane = threadIdx.x, half = a.head_dim / 2;
    if (position < 0) return;
    const uint32_t slot = a.slots[row];
    float q_low[MAX_PAIRS], q_high[MAX_PAIRS], low[MAX_PAIRS] = {}, high[MAX_PAIRS] = {};
    const Turn<T> turn(a, static_cast<const T*>(a.q_norm), row, position, lane);
    turn.head(a, head_of<T>(a, row, head), lane, q_low, q_high);
    float most = -INFINITY, sum = 0.f;
    for (int p = 0; p <= position; ++p) {
        const size_t at = cache_at(a, slot, p, kv_head);
        const T* key = static_cast<const T*>(a.keys) + at;
        const T* value = static_cast<const T*>(a.values) + at;
        float dot = 0.f;
#pragma unroll
        for (int i = 0; i < MAX_PAIRS; ++i) {
            const int j = lane + i * WARP;
            if (j < half) {
                dot = __fmaf_rn(q_low[i], to_float(key[j]), dot);
                dot = __fmaf_rn(q_high[i], to_float(key[j + half]), dot);
            }
        }
        const float score = warp_sum(dot) * a.scale;
        const float now = fmaxf(most, score), keep = expf(most - now), weight = expf(score - now);
        most = now;
        sum = sum * keep + weight;
#pragma unroll
        for (int i = 0; i < MAX_PAIRS; ++i) {
            const int j = lane + i * WARP;
            if (j < half) {
                low[i] = low[i] * keep + weight * to_float(value[j]);
                high[i] = high[i] * keep + weight * to_float(value[j + half]);
            }
        }
    }
    T* out = static_cast<T*>(a.out) + (static_cast<size_t>(row) * a.heads + head) * a.head_dim;
#pragma unroll
    for (int i = 0; i < MAX_PAIRS; ++i) {
        const int j = lane + i * WARP;
        if (j < half) {
            out[j] = from_float<T>(low[i] / sum);
            out[j + half] = from_float<T>(high[i] / sum);
        }
    }
}

// ---- fast --------------------------------------------------------------------------------------------------------------

// Q query heads of one kv head per block. Grid: (heads / Q, rows).
//
// With WRITE the row's own key and value go to the cache on the way, and what lies before them is read while the kernel
// ahead still runs: it was written by earlier passes. That is sure because attention lets its successors start only
// once its own predecessors have ended.
template <int Q, bool WRITE>
__device__ __forceinline__ void attend_fast(const AttentionArgs& a) {
    __shared__ Asked<Q> asked;
    __shared__ Mixed<Q> mixed;

    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, own = threadIdx.x % LANES;
    const int row = blockIdx.y, head0 = blockIdx.x * Q, kv_head = head0 / (a.heads / a.kv_heads);
    if (!WRITE) wait_for_previous();
    const int position = a.positions[row];
    const uint32_t slot = a.slots[row];
    // Positions below this are in the cache already.
    const int cached = WRITE ? position : position + 1;
    const auto fetch = [&](Fetched& into, int p) {
        into.clear();
        if (p >= cached) return;
        const size_t at = cache_at(a, slot, p, kv_head);
        into.take(static_cast<const bf16*>(a.keys) + at, static_cast<const bf16*>(a.values) + at, own);
    };
    Fetched ahead[1];
    fetch(ahead[0], threadIdx.x / LANES);
    // The first warps turn queries, the next one the key.
    const Turn<bf16> turn(a, static_cast<const bf16*>(warp < Q ? a.q_norm : a.k_norm), row, max(position, 0), lane);
    if (WRITE) wait_for_previous();
    let_next_start();
    if (position < 0) return;

    if (warp < Q) {
        float low[MAX_PAIRS], high[MAX_PAIRS];
        turn.head(a, head_of<bf16>(a, row, head0 + warp), lane, low, high);
        // Times log2(e), so that exponentials are powers of two.
        const float scale = a.scale * 1.4426950408889634f;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            asked.queries[warp][lane + i * WARP] = low[i] * scale;
            asked.queries[warp][lane + i * WARP + DIM / 2] = high[i] * scale;
        }
    } else if (WRITE && warp == Q) {
        float low[MAX_PAIRS], high[MAX_PAIRS];
        turn.head(a, head_of<bf16>(a, row, a.heads + kv_head), lane, low, high);
        bf16* key = static_cast<bf16*>(a.keys) + cache_at(a, slot, position, kv_head);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            asked.key[lane + i * WARP] = key[lane + i * WARP] = __float2bfloat16_rn(low[i]);
            asked.key[lane + i * WARP + DIM / 2] = key[lane + i * WARP + DIM / 2] = __float2bfloat16_rn(high[i]);
        }
    } else if (WRITE && warp == Q + 1) {
        const bf16* from = head_of<bf16>(a, row, a.heads + a.kv_heads + kv_head);
        bf16* value = static_cast<bf16*>(a.values) + cache_at(a, slot, position, kv_head);
#pragma unroll
        for (int i = 0; i < DIM / WARP; ++i) asked.value[lane + i * WARP] = value[lane + i * WARP] = from[lane + i * WARP];
    }
    __syncthreads();
    mix_positions<Q, 1, WRITE>(asked, mixed, position, ahead, fetch);
    __syncthreads();
    for (int i = threadIdx.x; i < Q * DIM; i += blockDim.x) {
        const int h = i / DIM, j = i % DIM;
        static_cast<bf16*>(a.out)[(static_cast<size_t>(row) * a.heads + head0 + h) * DIM + out_at(a, j)] = __float2bfloat16_rn(mixed_value(mixed, h, j));
    }
}

// ---- short -------------------------------------------------------------------------------------------------------------

// For sequences of up to SHORT + 1 positions: one kv head and its two query heads per block. See attend_fast of what is read
// early. Grid: (kv_heads, rows).
__device__ __forceinline__ void attend_short_block(const AttentionArgs& a) {
    __shared__ ShortAsked asked;
    const int row = blockIdx.y, position = a.positions[row];
    const uint32_t slot = a.slots[row];
    const auto at = [&](int p) { return cache_at(a, slot, p, blockIdx.x); };
    ShortCached cached(a, position, at);
    const auto wait = [] {
        wait_for_previous();
        let_next_start();
    };
    const auto put = [&](int head, int lane, uint32_t front, uint32_t back) {
        put_four(a, static_cast<bf16*>(a.out) + (static_cast<size_t>(row) * a.heads + head) * DIM, lane, front, back);
    };
    attend_short(a, asked, cached, row, blockIdx.x, threadIdx.x / WARP, position, at, wait, [] { __syncthreads(); }, put);
}

extern "C" __global__ void __launch_bounds__(64) kv_write_f32(const __grid_constant__ AttentionArgs a) { kv_write<float>(a); }
extern "C" __global__ void __launch_bounds__(64) kv_write_bf16(const __grid_constant__ AttentionArgs a) { kv_write<bf16>(a); }
extern "C" __global__ void __launch_bounds__(32) attend_plain_f32(const __grid_constant__ AttentionArgs a) { attend_plain<float>(a); }
extern "C" __global__ void __launch_bounds__(32) attend_plain_bf16(const __grid_constant__ AttentionArgs a) { attend_plain<bf16>(a); }
extern "C" __global__ void __launch_bounds__(256) attend_fast1(const __grid_constant__ AttentionArgs a) { attend_fast<1, false>(a); }
extern "C" __global__ void __launch_bounds__(256) attend_fast2(const __grid_constant__ AttentionArgs a) { attend_fast<2, false>(a); }
extern "C" __global__ void __launch_bounds__(256) attend_fast4(const __grid_constant__ AttentionArgs a) { attend_fast<4, false>(a); }
extern "C" __global__ void __launch_bounds__(256) attend_fast1_write(const __grid_constant__ AttentionArgs a) { attend_fast<1, true>(a); }
extern "C" __global__ void __launch_bounds__(256) attend_fast2_write(const __grid_constant__ AttentionArgs a) { attend_fast<2, true>(a); }
extern "C" __global__ void __launch_bounds__(256) attend_fast4_write(const __grid_constant__ AttentionArgs a) { attend_fast<4, true>(a); }
extern "C" __global__ void __launch_bounds__(64) attend_short2_write(const __grid_constant__ AttentionArgs a) { attend_short_block(a); }
