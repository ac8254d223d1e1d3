// Attention of Q query heads of one kv head over a paged cache, by eight warps that share its positions: what the kernels
// attend_fast* and the persistent layers have in common. Head size 128. All sums go in an order that depends on the
// position alone.
#pragma once

#include "attention.cuh"

constexpr int WARPS = 8;
constexpr int LANES = 8;                         // threads that share a position
constexpr int GROUPS = WARPS * (WARP / LANES);   // positions looked at together
constexpr int OWN = DIM / LANES;                 // elements of a position that a thread has: 8 of each half

// What a thread has of a position: of its key and of its value 8 elements of each half.
struct Fetched {
    uint4 k0, k1, v0, v1;

    __device__ __forceinline__ void clear() { k0 = k1 = v0 = v1 = make_uint4(0, 0, 0, 0); }
    // From the rows of a key and of a value.
    __device__ __forceinline__ void take(const bf16* key, const bf16* value, int own) {
        const uint4 *k = reinterpret_cast<const uint4*>(key), *v = reinterpret_cast<const uint4*>(value);
        k0 = k[own];
        k1 = k[own + LANES];
        v0 = v[own];
        v1 = v[own + LANES];
    }
};

// What the warps tell each other: queries, turned and scaled by log2(e) / sqrt(128), and the row's own key and value.
template <int Q>
struct Asked {
    float queries[Q][DIM];
    alignas(16) bf16 key[DIM], value[DIM];
};
// And what each has mixed.
template <int Q>
struct Mixed {
    float most_of[WARPS][Q], sum_of[WARPS][Q];
    float mixed[WARPS][Q][DIM];
};

// Mixes the values of positions 0 to `position`. `ahead` has those of this thread's group and the next ones, and
// `fetch(into, p)` gets a later one. OWN_ASKED: the last is in `asked`, not in the cache. The warps must meet before, and
// between this and `mixed_value`.
template <int Q, int AHEAD, bool OWN_ASKED, class FETCH>
__device__ __forceinline__ void mix_positions(const Asked<Q>& asked, Mixed<Q>& to, int position, Fetched (&ahead)[AHEAD], FETCH fetch) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int group = threadIdx.x / LANES, own = threadIdx.x % LANES;
    float q[Q][OWN], mix[Q][OWN] = {}, most[Q], sum[Q];
#pragma unroll
    for (int h = 0; h < Q; ++h) {
        most[h] = -INFINITY;
        sum[h] = 0.f;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            q[h][i] = asked.queries[h][own * 8 + i];
            q[h][i + 8] = asked.queries[h][DIM / 2 + own * 8 + i];
        }
    }
    // All threads of a warp make the same number of turns, for they exchange numbers.
    for (int turn = warp * (WARP / LANES); turn <= position; turn += GROUPS * AHEAD) {
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            const int first = turn + u * GROUPS;
            if (first > position) break;
            const int p = first + group % (WARP / LANES);
            const bool there = p <= position;
            if (OWN_ASKED && p == position) ahead[u].take(asked.key, asked.value, own);
            float key[OWN], value[OWN];
            unpack(ahead[u].k0, key);
            unpack(ahead[u].k1, key + 8);
            unpack(ahead[u].v0, value);
            unpack(ahead[u].v1, value + 8);
            fetch(ahead[u], p + GROUPS * AHEAD);
#pragma unroll
            for (int h = 0; h < Q; ++h) {
                float dot = 0.f;
#pragma unroll
                for (int i = 0; i < OWN; ++i) dot = __fmaf_rn(q[h][i], key[i], dot);
#pragma unroll
                for (int mask = LANES / 2; mask > 0; mask /= 2) dot += __shfl_xor_sync(~0u, dot, mask);
                if (!there) continue;
                const float now = fmaxf(most[h], dot), keep = exp2f(most[h] - now), weight = exp2f(dot - now);
                most[h] = now;
                sum[h] = __fmaf_rn(sum[h], keep, weight);
#pragma unroll
                for (int i = 0; i < OWN; ++i) mix[h][i] = __fmaf_rn(mix[h][i], keep, __fmul_rn(weight, value[i]));
            }
        }
    }
    // The groups of a warp, then the warps, always in the same order. The maximum is finite if any group has a
    // position; a group without one has weight 0.
#pragma unroll
    for (int h = 0; h < Q; ++h) {
#pragma unroll
        for (int mask = LANES; mask < WARP; mask *= 2) {
            const float other = __shfl_xor_sync(~0u, most[h], mask), now = fmaxf(most[h], other);
            const float keep = most[h] == -INFINITY ? 0.f : exp2f(most[h] - now);
            const float theirs = other == -INFINITY ? 0.f : exp2f(other - now);
            most[h] = now;
            sum[h] = __fadd_rn(__fmul_rn(sum[h], keep), __fmul_rn(__shfl_xor_sync(~0u, sum[h], mask), theirs));
#pragma unroll
            for (int i = 0; i < OWN; ++i) {
                mix[h][i] = __fadd_rn(__fmul_rn(mix[h][i], keep), __fmul_rn(__shfl_xor_sync(~0u, mix[h][i], mask), theirs));
            }
        }
        if (lane < LANES) {
            if (lane == 0) {
                to.most_of[warp][h] = most[h];
                to.sum_of[warp][h] = sum[h];
            }
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                to.mixed[warp][h][own * 8 + i] = mix[h][i];
                to.mixed[warp][h][DIM / 2 + own * 8 + i] = mix[h][i + 8];
            }
        }
    }
}

// Element `j` of head `h` of what all warps have mixed.
template <int Q>
__device__ __forceinline__ float mixed_value(const Mixed<Q>& of, int h, int j) {
    float now = of.most_of[0][h];
#pragma unroll
    for (int w = 1; w < WARPS; ++w) now = fmaxf(now, of.most_of[w][h]);
    float total = 0.f, value = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
        const float weight = of.most_of[w][h] == -INFINITY ? 0.f : exp2f(of.most_of[w][h] - now);
        total = __fmaf_rn(weight, of.sum_of[w][h], total);
        value = __fmaf_rn(weight, of.mixed[w][h][j], value);
    }
    return value / total;
}
