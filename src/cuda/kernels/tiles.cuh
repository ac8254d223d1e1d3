// Tiles of weights times tiles of rows, both copied to shared memory ahead of their use.
#pragma once

#include "mma.cuh"

__device__ __forceinline__ void copy_async(uint32_t to, const void* from, bool there) {
    const int bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;"); }
template <int LEFT>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT));
}

constexpr int DEPTH = 64; // inputs of a tile in shared memory: 128 bytes, eight pieces of 16

// How the pieces of a row are shuffled, so that neither storing nor loading meets a bank twice.
__device__ __forceinline__ int shuffle_of(int row) { return ((row & 1) << 2) | ((row >> 1) & 3); }

// Where piece `piece` of row `row` lies.
__device__ __forceinline__ int place(int row, int piece) { return row * DEPTH + (piece ^ shuffle_of(row)) * 8; }

// 128 outputs by BN rows by eight warps, ALONG of them along the outputs and the others along the rows, whose tiles of
// eight they take in turns: where only the first `count` rows are there, all have about as much to do. The order of
// additions is that of linear.cuh.
template <int BN, int ALONG, int HELD>
struct ManyRows {
    static constexpr int BM = 128, ACROSS = 8 / ALONG, MT = BM / ALONG / 16, NT = BN / ACROSS / 8;
    static constexpr int STAGE = (BM + BN) * DEPTH, COPIES = (BN + 31) / 32, PITCH = BM + 4;
    static_assert(BN * PITCH * 4 <= HELD * STAGE * 2, "sums take the place of the tiles");

    // `w`: the first of the outputs. `x` and `from`: where rows threadIdx.x / 8, + 32, ... of the block begin. `inputs`: of
    // a row of both.
    // After every `per_part` of `steps` tiles the sums begin anew; all parts are added up one after the other.
    static __device__ __forceinline__ void multiply(bf16* tiles, const bf16* w, const bf16* x, const uint32_t (&from)[COPIES], int count,
                                                    int inputs, int steps, int per_part, float (&total)[MT][NT][4]) {
        const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
        const int along = warp % ALONG, across = warp / ALONG;
        const int copied = threadIdx.x / 8, piece = threadIdx.x % 8;
        const bf16* w_from = w + copied * inputs + piece * 8;
        const bf16* x_from = x + piece * 8;
        const int row_step = 32 * inputs;
        const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(tiles));
        // 32 rows further the shuffle of the pieces is the same.
        const uint32_t w_to = shared + place(copied, piece) * 2, x_to = w_to + BM * DEPTH * 2;
        const auto fetch = [&](int step, int stage) {
            const int at = step * DEPTH, to = stage * STAGE * 2;
#pragma unroll
            for (int i = 0; i < BM / 32; ++i) copy_async(w_to + to + i * 32 * DEPTH * 2, w_from + (i * row_step + at), true);
#pragma unroll
            for (int i = 0; i < COPIES; ++i) {
                if (i * 32 >= count) break;
                copy_async(x_to + to + i * 32 * DEPTH * 2, x_from + (from[i] + at), copied + i * 32 < count);
            }
        };
#pragma unroll
        for (int s = 0; s < HELD - 1; ++s) {
            if (s < steps) fetch(s, s);
            commit_copies();
        }
        // Tiles of eight rows that this warp has.
        const int own = ((count + 7) / 8 - across + ACROSS - 1) / ACROSS;
        const int w_at[2] = {place(along * MT * 16 + g, t), place(along * MT * 16 + g, 4 + t)};
        const int x_at[2] = {BM * DEPTH + place(across * 8 + g, t), BM * DEPTH + place(across * 8 + g, 4 + t)};
        float acc[MT][NT][4] = {};
        bool begins = true;
        int left = per_part, stage = 0, into = HELD - 1;
        for (int step = 0; step < steps; ++step) {
            wait_copies<HELD - 2>();
            __syncthreads();
            if (step + HELD - 1 < steps) fetch(step + HELD - 1, into);
            commit_copies();
            const bf16* tile = tiles + stage * STAGE;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                uint4 low[MT], high[MT], x[NT];
#pragma unroll
                for (int m = 0; m < MT; ++m) {
                    low[m] = *reinterpret_cast<const uint4*>(tile + w_at[half] + m * 16 * DEPTH);
                    high[m] = *reinterpret_cast<const uint4*>(tile + w_at[half] + (m * 16 + 8) * DEPTH);
                }
#pragma unroll
                for (int n = 0; n < NT; ++n) {
                    if (n < own) x[n] = *reinterpret_cast<const uint4*>(tile + x_at[half] + n * ACROSS * 8 * DEPTH);
                }
#pragma unroll
                for (int part = 0; part < 2; ++part) {
#pragma unroll
                    for (int n = 0; n < NT; ++n) {
                        if (n >= own) continue;
#pragma unroll
                        for (int m = 0; m < MT; ++m) mma_half(acc[m][n], low[m], high[m], x[n], part);
                    }
                }
            }
            stage = stage + 1 == HELD ? 0 : stage + 1;
            into = into + 1 == HELD ? 0 : into + 1;
            if (--left == 0) {
#pragma unroll
                for (int m = 0; m < MT; ++m) {
#pragma unroll
                    for (int n = 0; n < NT; ++n) {
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            total[m][n][i] = begins ? acc[m][n][i] : __fadd_rn(total[m][n][i], acc[m][n][i]);
                            acc[m][n][i] = 0.f;
                        }
                    }
                }
                begins = false;
                left = per_part;
            }
        }
    }

    // Puts the sums where the tiles were, so that neighbours of a row go out together: [BN][PITCH].
    static __device__ __forceinline__ const float* gather(bf16* tiles, const float (&total)[MT][NT][4]) {
        const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
        const int along = warp % ALONG, across = warp / ALONG;
        float* sums = reinterpret_cast<float*>(tiles);
        wait_copies<0>();
        __syncthreads();
#pragma unroll
        for (int n = 0; n < NT; ++n) {
#pragma unroll
            for (int m = 0; m < MT; ++m) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    sums[((n * ACROSS + across) * 8 + 2 * t + i % 2) * PITCH + (along * MT + m) * 16 + g + i / 2 * 8] = total[m][n][i];
                }
            }
        }
        __syncthreads();
        return sums;
    }
};
