// Attention of the towers: its arguments, and what its kernels on tensor cores share.
#pragma once

#include "tower.cuh"

// Queries of a part: `first` is the first of them, the part is from `start` to `end`.
struct TowerTile {
    int first;
    int start;
    int end;
};

struct TowerAttention {
    const void* qkv; // T [n, 3, heads, d]
    void* out;       // T [n, heads, d]
    const TowerTile* tiles;
    int heads;
    int d;
    float scale;
};

constexpr int KEYS = 64; // of a tile in shared memory

// Weights of four keys, and of four more, as the product with values takes them.
__device__ __forceinline__ void packed(uint32_t (&w)[4], const float (&one)[4], const float (&other)[4]) {
    w[0] = packed(one[0], one[1]), w[1] = packed(one[2], one[3]);
    w[2] = packed(other[0], other[1]), w[3] = packed(other[2], other[3]);
}

// Scores of a tile of keys, of which `left` are there, become weights; what was summed before shrinks by as much as the
// highest score has grown. A thread has two queries: numbers 0 and 1 of each four, and 2 and 3.
template <int N>
__device__ __forceinline__ void weigh(float (&score)[KEYS / 8][4], float (&sum)[N][4], float (&most)[2], float (&weights)[2], int left, float scale, int t) {
    float now[2] = {most[0], most[1]};
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            score[n][i] = n * 8 + 2 * t + i % 2 < left ? score[n][i] * scale : -INFINITY;
            now[i / 2] = fmaxf(now[i / 2], score[n][i]);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        now[half] = fmaxf(now[half], __shfl_xor_sync(~0u, now[half], 1));
        now[half] = fmaxf(now[half], __shfl_xor_sync(~0u, now[half], 2));
        const float shrink = exp2f(most[half] - now[half]);
        weights[half] *= shrink;
#pragma unroll
        for (int n = 0; n < N; ++n) {
            sum[n][half * 2] *= shrink;
            sum[n][half * 2 + 1] *= shrink;
        }
        most[half] = now[half];
    }
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            score[n][i] = exp2f(score[n][i] - most[i / 2]);
            weights[i / 2] += score[n][i];
        }
    }
}

// Writes what the thread's two queries saw: `query`, and the eighth behind it.
template <int N>
__device__ __forceinline__ void show(const TowerAttention& a, const float (&sum)[N][4], const float (&weights)[2], int head, int query, int end, int t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float all = weights[half];
        all += __shfl_xor_sync(~0u, all, 1);
        all += __shfl_xor_sync(~0u, all, 2);
        const int to = query + half * 8;
        if (to >= end) continue;
        bf16* out = static_cast<bf16*>(a.out) + (static_cast<size_t>(to) * a.heads + head) * a.d;
#pragma unroll
        for (int n = 0; n < N; ++n) {
            const int at = n * 8 + 2 * t;
            if (at < a.d) *reinterpret_cast<uint32_t*>(out + at) = packed(sum[n][half * 2] / all, sum[n][half * 2 + 1] / all);
        }
    }
}
