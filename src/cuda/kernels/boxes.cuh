// Weights of persistent layers for few rows as the ring has them, boxes of eight outputs, and products from them.
#pragma once

#include "mma.cuh"
#include "persistent.cuh"

constexpr int CHUNK = 64; // inputs of each part in a box

// How the copy engine finds pieces of a matrix: a CUtensorMap with boxes of CHUNK inputs of each of the eight parts of 8
// outputs, whose rows of 128 bytes are shuffled.
struct alignas(64) WeightMap {
    char opaque[128];
};

// A stage is two boxes, of 8 outputs each: [part][output][CHUNK]. A lane's pieces are of the first box, then of the second,
// of one step, then of the next one.
struct Boxes {
    static __device__ __forceinline__ uint32_t of(uint32_t from, int h) { return (h < 2 ? from : from ^ 64) + h % 2 * (STAGE / 2); }
    static __device__ __forceinline__ uint32_t own(int warp, int lane) {
        const int output = output_of(lane / 4), t = lane % 4;
        return warp * 1024 + output * 128 + (t ^ output) * 16;
    }
};

// Queues the copy of a box: the `chunk`-th of each part of eight outputs from `output` on.
__device__ __forceinline__ void copy_outputs(uint32_t to, const WeightMap* map, int chunk, int output, uint32_t barrier, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                 "l"(map), "r"(chunk * CHUNK), "r"(output), "r"(0), "r"(barrier), "l"(policy)
                 : "memory");
}

// ---- products ----------------------------------------------------------------------------------------------------------

// T tiles of 16 outputs over C chunks of this warp's part; the first AHEAD stages are in registers. Rows are in shared memory
// at `x_at`, XS bytes each. The order of sums is linear_small's. TURN: chunks of a turn of the loop.
template <int T, int C, int R, int XS, int AHEAD, int TURN = C>
__device__ __forceinline__ void product(Ring<Boxes>& ring, uint4 (&f)[AHEAD][4], uint32_t x_at, float (&acc)[T][4], int lane) {
    static_assert(C % TURN == 0 && (C == TURN || TURN * T % AHEAD == 0), "stages lie in the same registers in each turn");
    const int g = lane / 4, t = lane % 4;
    // Of one row all lanes take a copy: sums of the others are not looked at.
    uint32_t own = x_at + (R == 1 ? 0 : g * XS) + t * 16;
#pragma unroll 1
    for (int left = C * T; left > 0; left -= TURN * T, own += TURN * CHUNK * 2) {
        uint4 x[2];
#pragma unroll
        for (int q = 0; q < TURN * T; ++q) {
            if (q % T == 0) {
#pragma unroll
                for (int step = 0; step < 2; ++step) {
                    x[step] = make_uint4(0, 0, 0, 0);
                    if (R == 1 || g < R) x[step] = load_shared(own + (q / T * 2 + step) * (STEP * 2));
                }
            }
            const uint4(&w)[4] = f[q % AHEAD];
            mma_step(acc[q % T], w[0], w[1], x[0]);
            mma_step(acc[q % T], w[2], w[3], x[1]);
            if (q + AHEAD < left) take(ring, f[q % AHEAD], lane);
        }
    }
}
