// Random weights: element `index` of a tensor is a function of (seed, name, index) alone, with the same bits as
// src/model/weights/random.rs computes on a CPU.
//
// Words come from Philox keyed by the seed, its counter (index / 4, hash of the name); element index takes word index % 4.
// A word becomes a multiple of 2^-23 in [-1, 1), exactly; times `bound` in f32; rounded to bf16, nearest even. The f32
// kernel rounds too, so that engines of both types have the same weights.
//
// Launch: any grid and block; threads go on in strides of the grid, four elements each.

#include "philox.cuh"

namespace {

__device__ __forceinline__ uint16_t weight(uint32_t word, float bound) {
    // Both steps to [-1, 1) are exact, so it does not matter whether they become one fma.
    const float unit = __fsub_rn(__fmul_rn(static_cast<float>(word >> 8), 0x1p-23f), 1.0f);
    const uint32_t bits = __float_as_uint(__fmul_rn(unit, bound));
    return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

__device__ __forceinline__ void put(uint16_t* out, uint16_t value) { *out = value; }

__device__ __forceinline__ void put(float* out, uint16_t value) {
    *out = __uint_as_float(static_cast<uint32_t>(value) << 16);
}

template <typename T>
__device__ __forceinline__ void fill(T* out, uint64_t count, uint64_t seed, uint64_t name, float bound) {
    const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    const uint2 key = make_uint2(static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
    for (uint64_t block = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; block * 4 < count; block += stride) {
        const uint4 words = philox_block(
            make_uint4(static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), static_cast<uint32_t>(name),
                       static_cast<uint32_t>(name >> 32)),
            key);
        const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (block * 4 + i < count) put(out + block * 4 + i, weight(word[i], bound));
        }
    }
}

}  // namespace

extern "C" __global__ void fill_random_bf16(uint16_t* out, uint64_t count, uint64_t seed, uint64_t name, float bound) {
    fill(out, count, seed, name, bound);
}

extern "C" __global__ void fill_random_f32(float* out, uint64_t count, uint64_t seed, uint64_t name, float bound) {
    fill(out, count, seed, name, bound);
}

extern "C" __global__ void fill_bf16(uint16_t* out, uint64_t count, float value) {
    const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    const uint16_t bits = static_cast<uint16_t>(__float_as_uint(value) >> 16); // constants are exact in bf16
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) out[i] = bits;
}

extern "C" __global__ void fill_f32(float* out, uint64_t count, float value) {
    const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) out[i] = value;
}
