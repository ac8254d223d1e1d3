// What the vocoder's kernels share: the table of rows, histories of causal layers, operands, activations.
//
// Activations are f32, or operands of products in an element type of theirs; channels last: row b of a launch has
// `positions` consecutive rows of `channels` elements, its frames (the same number for all rows of a launch; those
// behind a row's own are computed and thrown away: everything is causal). Streams keep what the next frame needs in
// slots of an arena. Histories (the last inputs of causal layers) are there twice: a step reads the half of its parity
// and writes the other one, so that nothing is overwritten that a block of the same step may still read. What lies
// before a stream's first row counts as zeros, so a slot needs no clearing.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "common.cuh"

// One row of a launch. The host keeps the same struct.
struct VocoderRow {
    int slot;    // of the arena; negative: padding
    int frame;   // number of its first frame in the stream
    int frames;  // how many frames of the launch are its own
    int parity;  // which half of its histories is current
};

// Where a causal layer finds its past.
struct VocoderPast {
    float* arena;
    const VocoderRow* rows;
    long long slot_floats;  // floats of a slot
    int half_floats;        // floats of one half
    int offset;             // of this layer in a half, in floats
    int positions_per_frame;
    int drop;  // positions at the start of a stream that count as zeros
};

namespace vocoder {

constexpr int NEVER = 0x7fffffff;

// What products multiply. `of` makes an operand of a sum; only `F16` has a largest number, and counts in `clipped` what
// is beyond it.

// On tensor cores, which read 10 bits of mantissa: nearest, ties away from zero.
struct Tf32 {
    using Element = float;
    static constexpr bool TENSOR = true;
    __device__ static float of(float x, unsigned*) {
        unsigned bits;
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
        return __uint_as_float(bits);
    }
};

// On tensor cores, half the bytes for the same bits of mantissa: nearest, ties to even.
struct F16 {
    using Element = __half;
    static constexpr bool TENSOR = true;
    static constexpr float LARGEST = 65504.0f;
    __device__ static __half of(float x, unsigned* clipped) {
        if (fabsf(x) > LARGEST) {
            atomicAdd(clipped, 1u);
            x = copysignf(LARGEST, x);
        }
        return __float2half_rn(x);
    }
};

struct F32 {
    using Element = float;
    static constexpr bool TENSOR = false;
    __device__ static float of(float x, unsigned*) { return x; }
};

// Elements of 16 bytes, which is what is copied at once.
template <typename Element>
constexpr int PIECE = 16 / sizeof(Element);

// sin(x)^2 for |x| < 1e4, as the CPU computes it: the square has period pi.
__device__ __forceinline__ float sin_squared(float x) {
    float n = rintf(x * 0.318309886f);
    float r = fmaf(n, -3.140625f, x);
    r = fmaf(n, -9.675026e-4f, r);
    r = fmaf(n, -1.5099580e-7f, r);
    float r2 = r * r;
    float p = 1.6059044e-10f;
    p = fmaf(p, r2, -2.5052108e-8f);
    p = fmaf(p, r2, 2.7557319e-6f);
    p = fmaf(p, r2, -1.9841270e-4f);
    p = fmaf(p, r2, 8.3333333e-3f);
    p = fmaf(p, r2, -0.16666667f);
    float sine = fmaf(p, r2 * r, r);
    return sine * sine;
}

__device__ __forceinline__ float snake(float x, float a, float b) { return fmaf(sin_squared(a * x), b, x); }
__device__ __forceinline__ float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }
__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

// The first position, counted from the launch's first one (so mostly negative), that is not zeros.
__device__ __forceinline__ int first_position(const VocoderPast& past, const VocoderRow& row) {
    if (row.slot < 0) return NEVER;
    // A stream that is old enough has nothing to hide; the product must not overflow.
    return past.drop - min(row.frame, 1 << 16) * past.positions_per_frame;
}

// One half of a layer's history in a slot, `[kept][channels]`.
template <typename Element>
__device__ __forceinline__ Element* history(const VocoderPast& past, const VocoderRow& row, int parity) {
    float* half = past.arena + row.slot * past.slot_floats + (long long)parity * past.half_floats;
    return reinterpret_cast<Element*>(half + past.offset);
}

// Bytes of a history that one block moves on.
constexpr int MOVE_THREADS = 128;
constexpr int MOVE_UNROLL = 8;
constexpr int MOVE_BYTES = MOVE_THREADS * MOVE_UNROLL * 16;

// Writes the history behind this step: the last `kept` of history and new rows. `part` counts blocks of MOVE_BYTES
// over all rows of the launch. Threads beyond MOVE_THREADS do nothing.
template <typename Element>
__device__ inline void move_history(const VocoderPast& past, const Element* x, int positions, int channels, int kept,
                                    int part) {
    constexpr int EACH = PIECE<Element>;
    int pieces = kept * channels / EACH;
    int parts = (pieces * 16 + MOVE_BYTES - 1) / MOVE_BYTES;
    int b = part / parts;
    VocoderRow row = past.rows[b];
    if (row.slot < 0 || row.frames <= 0 || threadIdx.x >= MOVE_THREADS) return;
    int fresh = row.frames * past.positions_per_frame;
    const uint4* old = reinterpret_cast<const uint4*>(history<Element>(past, row, row.parity));
    const uint4* in = reinterpret_cast<const uint4*>(x + (long long)b * positions * channels);
    uint4* to = reinterpret_cast<uint4*>(history<Element>(past, row, row.parity ^ 1));
    // Both as one run of rows: what the new history begins with is `fresh` rows into it.
    int skip = fresh * channels / EACH, start = (part % parts) * (MOVE_BYTES / 16);
    uint4 held[MOVE_UNROLL];
#pragma unroll
    for (int i = 0; i < MOVE_UNROLL; i++) {
        int at = start + i * MOVE_THREADS + threadIdx.x;
        if (at < pieces) {
            int from = at + skip;
            held[i] = from < pieces ? old[from] : in[from - pieces];
        }
    }
#pragma unroll
    for (int i = 0; i < MOVE_UNROLL; i++) {
        int at = start + i * MOVE_THREADS + threadIdx.x;
        if (at < pieces) to[at] = held[i];
    }
}

// The sum over the block of THREADS threads, the same bits in all of them. `scratch` holds THREADS / 32 floats; all
// threads must be done with it.
template <int THREADS>
__device__ __forceinline__ float block_sum(float x, float* scratch) {
#pragma unroll
    for (int lane = 16; lane > 0; lane >>= 1) x += __shfl_xor_sync(0xffffffffu, x, lane);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    float total = 0;
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) total += scratch[i];
    __syncthreads();
    return total;
}

}  // namespace vocoder
