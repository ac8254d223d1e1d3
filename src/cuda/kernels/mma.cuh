// Tiles of weights times a few rows on the tensor cores.
#pragma once

#include "common.cuh"

constexpr int STEP = 32; // inputs of a step
constexpr int TILE = 16; // outputs of a tile

// A 16 x 16 tile of weights times 16 x 8 of rows. Threads hold the eight neighbouring inputs 8t..8t+7 of a step of 32,
// which is one 16-byte load, and not those that the instruction's layout names: a sum may take its terms in any order as
// long as both sides agree.
__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_step(float (&c)[4], const uint4& low, const uint4& high, const uint4& x) {
    mma(c, low.x, high.x, low.y, high.y, x.x, x.y);
    mma(c, low.z, high.z, low.w, high.w, x.z, x.w);
}

// The halves of `mma_step`: many sums take all first halves and then all second ones, or each would wait for its own.
__device__ __forceinline__ void mma_half(float (&c)[4], const uint4& low, const uint4& high, const uint4& x, int half) {
    if (half == 0) {
        mma(c, low.x, high.x, low.y, high.y, x.x, x.y);
    } else {
        mma(c, low.z, high.z, low.w, high.w, x.z, x.w);
    }
}

// `mma` and `mma_half` of which only the first eight rows of weights are there: of the sums, too.
__device__ __forceinline__ void mma_eight(float (&c)[2], uint32_t a0, uint32_t a2, uint32_t b0, uint32_t b1) {
    asm volatile(
        "{ .reg .f32 none0, none1; mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,none0,none1}, {%2,%6,%3,%6}, {%4,%5}, {%0,%1,%7,%7}; }"
        : "+f"(c[0]), "+f"(c[1])
        : "r"(a0), "r"(a2), "r"(b0), "r"(b1), "r"(0u), "f"(0.f));
}

__device__ __forceinline__ void mma_eight_half(float (&c)[2], const uint4& low, const uint4& x, int half) {
    if (half == 0) {
        mma_eight(c, low.x, low.y, x.x, x.y);
    } else {
        mma_eight(c, low.z, low.w, x.z, x.w);
    }
}

// Which output of eight a lane's tile row `g` is, of weights that a tensor map has copied: those of two neighbouring rows
// differ by four, so that a quarter of a warp reads all banks once.
__device__ __forceinline__ int output_of(int g) { return g % 2 * 4 + g / 2; }

// Weights are read once: they need not push anything out of the first-level cache.
__device__ __forceinline__ uint4 load_weights(const bf16* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

// Brings `bytes` (a multiple of 16) closer, into the second-level cache.
__device__ __forceinline__ void prefetch(const bf16* p, int bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#else
    for (int at = 0; at < bytes; at += 32) asm volatile("prefetch.global.L2 [%0];" ::"l"(reinterpret_cast<const char*>(p) + at));
#endif
}
constexpr int NEAR = 12; // steps that are fetched so, behind those on their way to registers
