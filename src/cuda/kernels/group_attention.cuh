// Attention of eight query heads of one kv head, as all kernels of it add up: bf16, head_dim 128.
//
// A position sees the cached ones in pieces of 32. Piece i belongs to stream i % 8; a stream goes through its pieces one
// after the other, and the streams are added up in their order. Where a piece ends, and what is added before what, depends
// on no other row. Of what lies beyond a row's own position nothing is added.
#pragma once

#include "attention.cuh"
#include "tiles.cuh"

constexpr int GROUP = 8;  // query heads of a kv head, a warp each
constexpr int PIECE = 32; // positions
constexpr int STREAMS = 8;
constexpr int KEYS = PIECE / 8, VALUES = DIM / 8; // tiles of eight
constexpr int PITCH = DIM + 8; // of queries in shared memory: 16 bytes more, so that eight rows lie in different banks
constexpr float LOG2E = 1.4426950408889634f;

// What 8 or 16 rows (HALVES of 8) have seen of a stream: lane (g, t) has of rows g and g + 8 two numbers of each tile of
// eight.
template <int HALVES>
struct Seen {
    float mix[VALUES][2 * HALVES];
    float most[HALVES], sum[HALVES];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int j = 0; j < VALUES; ++j) {
#pragma unroll
            for (int i = 0; i < 2 * HALVES; ++i) mix[j][i] = 0.f;
        }
#pragma unroll
        for (int half = 0; half < HALVES; ++half) most[half] = -INFINITY, sum[half] = 0.f;
    }

    // Turns the dot products of a piece with its keys into weights, as the left side of products with its values.
    // `limit`: positions of the piece up to which each row sees. `scale`: of a score, for powers of two.
    __device__ __forceinline__ void weigh(const float (&score)[KEYS][2 * HALVES], const int (&limit)[HALVES], float scale, uint32_t (&weights)[PIECE / 16][2 * HALVES]) {
        const int t = threadIdx.x % 4;
        float now[HALVES], shrink[HALVES];
        bool shrinks = false;
#pragma unroll
        for (int half = 0; half < HALVES; ++half) {
            now[half] = -INFINITY;
#pragma unroll
            for (int n = 0; n < KEYS; ++n) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    if (n * 8 + 2 * t + i <= limit[half]) now[half] = fmaxf(now[half], score[n][half * 2 + i]);
                }
            }
            now[half] = fmaxf(now[half], __shfl_xor_sync(~0u, now[half], 1));
            now[half] = fmaxf(now[half], __shfl_xor_sync(~0u, now[half], 2));
            now[half] = fmaxf(now[half], most[half]);
            // A row that has seen nothing yet has nothing to shrink.
            shrink[half] = most[half] == now[half] ? 1.f : exp2f(__fmul_rn(__fsub_rn(most[half], now[half]), scale));
            most[half] = now[half];
            sum[half] = __fmul_rn(sum[half], shrink[half]);
            shrinks |= shrink[half] != 1.f;
        }
        if (__any_sync(~0u, shrinks)) {
#pragma unroll
            for (int j = 0; j < VALUES; ++j) {
#pragma unroll
                for (int i = 0; i < 2 * HALVES; ++i) mix[j][i] = __fmul_rn(mix[j][i], shrink[i / 2]);
            }
        }
#pragma unroll
        for (int n = 0; n < KEYS; ++n) {
#pragma unroll
            for (int half = 0; half < HALVES; ++half) {
                float own[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const bool there = n * 8 + 2 * t + i <= limit[half];
                    own[i] = there ? exp2f(__fmul_rn(__fsub_rn(score[n][half * 2 + i], now[half]), scale)) : 0.f;
                    sum[half] = __fadd_rn(sum[half], own[i]);
                }
                weights[n / 2][n % 2 * HALVES + half] = packed(own[0], own[1]);
            }
        }
    }
};

__device__ __forceinline__ float over_lanes(float sum) {
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
    return __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
}

// What the streams before and the next one amount to in their sum.
struct Shares {
    float before, next, most;

    __device__ __forceinline__ Shares(float most_before, float most_next, float scale) {
        most = fmaxf(most_before, most_next);
        before = most_before == -INFINITY ? 0.f : exp2f(__fmul_rn(__fsub_rn(most_before, most), scale));
        next = most_next == -INFINITY ? 0.f : exp2f(__fmul_rn(__fsub_rn(most_next, most), scale));
    }
    __device__ __forceinline__ float of(float sum, float own) const { return added(sum, own, before, next); }
    // A stream without positions changes nothing.
    static __device__ __forceinline__ float added(float sum, float own, float before, float next) {
        return next == 0.f ? sum : __fmaf_rn(sum, before, __fmul_rn(own, next));
    }
};

// What all streams count for in the sum of a head.
struct StreamShares {
    float before[STREAMS], next[STREAMS], total;

    // Of head `head`: the largest scores and the sums of weights that the streams have seen.
    __device__ __forceinline__ StreamShares(const float (&most)[STREAMS][GROUP], const float (&sum)[STREAMS][GROUP], int head, float scale) {
        float largest = most[0][head];
        total = sum[0][head];
        before[0] = next[0] = 1.f;
#pragma unroll
        for (int s = 1; s < STREAMS; ++s) {
            const Shares shares(largest, most[s][head], scale);
            largest = shares.most, before[s] = shares.before, next[s] = shares.next;
            total = shares.of(total, sum[s][head]);
        }
    }
    // Adds what stream `s` has of a number to those before.
    __device__ __forceinline__ float added(int s, float sum, float own) const { return s == 0 ? own : Shares::added(sum, own, before[s], next[s]); }
    __device__ __forceinline__ uint2 mixed(const float (&all)[4]) const {
        return make_uint2(packed(__fdiv_rn(all[0], total), __fdiv_rn(all[1], total)), packed(__fdiv_rn(all[2], total), __fdiv_rn(all[3], total)));
    }
};

__device__ __forceinline__ void load_transposed(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

// Where the `chunk`-th 16 bytes of position `of` lie in a piece of keys, or of values, in shared memory: in an order in which
// neither rows nor columns meet in a bank.
constexpr int PIECE_BYTES = PIECE * DIM * 2;
__device__ __forceinline__ int lies_in_piece(int of, int chunk) { return (of * 16 + (chunk & 8) + ((chunk & 7) ^ shuffle_of(of & 7))) * 16; }
