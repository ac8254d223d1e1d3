// What all kernels share: element types, reductions in one fixed order, and the hand-over between kernels that overlap.
#pragma once

#include <cuda_bf16.h>
#include <cstdint>

using bf16 = __nv_bfloat16;

constexpr int WARP = 32;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }

template <typename T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) { return x; }
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) { return __float2bfloat16_rn(x); }

// A kernel launched with Shape::overlapping may start before its predecessor has ended. It says here that its successor
// may start too ...
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// (Everything that a kernel may read before its own wait must have been written before the last kernel ahead of it that
// says this after its wait, or not at all.)
//
// ... and waits here until everything before it has ended. Before this, only weights may be read and nothing written.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int mask = WARP / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(~0u, x, mask);
    return x;
}

// Parts that the inputs of a product, and the squares of a norm, are summed in.
constexpr int PARTS = 8;

// What a lane adds up of the squares of a part of a row: of every 32 numbers the eight from `own` on.
__device__ __forceinline__ float lane_squares(const float* own, int part) {
    float sum = 0.f;
#pragma unroll 8
    for (int i = 0; i < part; i += 32) {
        const float4 a = *reinterpret_cast<const float4*>(own + i), b = *reinterpret_cast<const float4*>(own + i + 4);
        sum = __fmaf_rn(a.x, a.x, sum);
        sum = __fmaf_rn(a.y, a.y, sum);
        sum = __fmaf_rn(a.z, a.z, sum);
        sum = __fmaf_rn(a.w, a.w, sum);
        sum = __fmaf_rn(b.x, b.x, sum);
        sum = __fmaf_rn(b.y, b.y, sum);
        sum = __fmaf_rn(b.z, b.z, sum);
        sum = __fmaf_rn(b.w, b.w, sum);
    }
    return sum;
}

// 1 / rms of eight rows of `width` numbers from what lanes (g, t) of eight warps, one for each part, have added up of row g.
// `meet` has the warps meet.
template <class MEET>
__device__ __forceinline__ float scales_of(float sum, int width, float eps, float (&parts)[PARTS][8], MEET meet) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (t == 0) parts[warp][g] = sum;
    meet();
    float total = parts[0][g];
#pragma unroll
    for (int p = 1; p < PARTS; ++p) total = __fadd_rn(total, parts[p][g]);
    return rsqrtf(total / static_cast<float>(width) + eps);
}

// 1 / rms of eight rows of `width` numbers, by one block of eight warps, each of which takes one part of the width.
// Lane (g, t) gets the scale of row g; rows that are not there give anything. The order of additions depends on the
// width alone, so that every kernel that norms a row gets the same bits. `width` is a multiple of 32 * PARTS.
__device__ __forceinline__ float row_scales(const float* x, int width, float eps, bool there, float (&parts)[PARTS][8]) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int part = width / PARTS;
    const float sum = there ? lane_squares(x + static_cast<size_t>(g) * width + warp * part + t * 8, part) : 0.f;
    return scales_of(sum, width, eps, parts, [] { __syncthreads(); });
}

// The same of one row of any width by one warp: for sizes that the fast kernels do not take.
__device__ __forceinline__ float row_scale(const float* row, int width, float eps, int lane) {
    float sum = 0.f;
    for (int i = lane; i < width; i += WARP) sum = __fmaf_rn(row[i], row[i], sum);
    return rsqrtf(warp_sum(sum) / static_cast<float>(width) + eps);
}

__device__ __forceinline__ float normed(float x, float scale, float gain) {
    return __fmul_rn(__fmul_rn(x, scale), gain);
}

// Two numbers in bf16, and eight numbers out of bf16.
__device__ __forceinline__ uint32_t packed(float a, float b) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const uint32_t*>(&v);
}
__device__ __forceinline__ float low_half(uint32_t word) { return __uint_as_float(word << 16); }
__device__ __forceinline__ float high_half(uint32_t word) { return __uint_as_float(word & 0xFFFF0000u); }
__device__ __forceinline__ void unpack(const uint4& from, float* to) {
    const uint32_t words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) to[2 * i] = low_half(words[i]), to[2 * i + 1] = high_half(words[i]);
}

// Eight neighbours of a normed row in bf16.
__device__ __forceinline__ uint4 normed8(const float4& x, const float4& y, float scale, const uint4& gain) {
    return make_uint4(packed(normed(x.x, scale, low_half(gain.x)), normed(x.y, scale, high_half(gain.x))),
                      packed(normed(x.z, scale, low_half(gain.y)), normed(x.w, scale, high_half(gain.y))),
                      packed(normed(y.x, scale, low_half(gain.z)), normed(y.y, scale, high_half(gain.z))),
                      packed(normed(y.z, scale, low_half(gain.w)), normed(y.w, scale, high_half(gain.w))));
}

__device__ __forceinline__ float silu(float x) { return x / (1.f + expf(-x)); }

// Weights of a gated feed-forward layer: their rows are gate and up in turns of eight, 8 gates then their 8 ups, so
// that a tile of 16 outputs holds both halves of 8 results. Result `i` has its gate in this row. The fast kernels take
// whole turns only and find its up 8 rows further; where the results are no multiple of 8, the last turn is shorter.
__device__ __forceinline__ int gate_row(int i) { return (i / 8) * 16 + i % 8; }
__device__ __forceinline__ int up_row(int i, int results) { return gate_row(i) + min(8, results - (i / 8) * 8); }

// Where input `k` of a row lies whose inputs are *dealt*: those of a step of 32 in the order in which `mma_step` takes them, so
// that sixteen neighbours are the inputs of one `mma`. Pairs stay pairs.
__device__ __forceinline__ int dealt(int k) { return (k & ~31) | (k & 4) << 2 | (k & 2) << 2 | (k & 24) >> 2 | (k & 1); }

__device__ __forceinline__ uint4 load_shared(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}

// A number as an argument.
template <int N>
struct Count {
    static constexpr int value = N;
};
