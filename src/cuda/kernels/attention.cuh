// What the kernels of attention over a paged cache share: where things lie, and the norm and turn of heads.
//
// Caches are [page][kv head][PAGE positions][head_dim] per layer. A row of a launch is one new position of one
// sequence: `slots[row]` names the sequence, whose pages are `pages[slot * max_pages + position / PAGE]`; a negative
// position is padding. Every row sees the cached positions up to its own.
#pragma once

#include "common.cuh"

constexpr int PAGE = 16;
constexpr int MAX_PAIRS = 4; // head_dim up to 256
constexpr int DIM = 128;     // head_dim of the fast kernels

struct AttentionArgs {
    const void* qkv;       // T [rows, (heads + 2 * kv_heads) * head_dim]
    const void* q_norm;    // T [head_dim]
    const void* k_norm;    // T [head_dim]
    const float* inv_freq; // [head_dim / 2]
    void* keys;            // T, this layer's cache
    void* values;
    void* out;             // T [rows, heads * head_dim]
    const uint32_t* pages;
    const uint32_t* slots;
    const int* positions;
    const float* axes;            // [rows, 3] positions that the rotation takes; null: `positions`
    const unsigned char* axis_of; // [head_dim / 2] which of them a frequency turns with
    int rows;
    int heads;
    int kv_heads;
    int head_dim;
    int max_pages;
    float eps;
    float scale;
    int deals; // whether `out` is dealt: by kernels of bf16 with heads of 128
};

// Where number `k` of a head goes.
__device__ __forceinline__ int out_at(const AttentionArgs& a, int k) { return a.deals ? dealt(k) : k; }
// Four neighbours from 4 `quarter` on, in pairs.
__device__ __forceinline__ void put_four(const AttentionArgs& a, bf16* head, int quarter, uint32_t front, uint32_t back) {
    *reinterpret_cast<uint32_t*>(head + out_at(a, 4 * quarter)) = front;
    *reinterpret_cast<uint32_t*>(head + out_at(a, 4 * quarter + 2)) = back;
}

__device__ __forceinline__ size_t cache_at(const AttentionArgs& a, uint32_t slot, int position, int kv_head) {
    const uint32_t page = a.pages[static_cast<size_t>(slot) * a.max_pages + position / PAGE];
    return ((static_cast<size_t>(page) * a.kv_heads + kv_head) * PAGE + position % PAGE) * a.head_dim;
}

// The turn of a row's position, and a norm's weight, for what one lane has of a head: elements l, l + 32, ... of the first
// half and their partners in the second half. Known before the head is.
template <typename T>
struct Turn {
    float sine[MAX_PAIRS], cosine[MAX_PAIRS], gain_low[MAX_PAIRS], gain_high[MAX_PAIRS];

    __device__ __forceinline__ Turn(const AttentionArgs& a, const T* gain, int row, int position, int lane) {
        const int half = a.head_dim / 2;
#pragma unroll
        for (int i = 0; i < MAX_PAIRS; ++i) {
            const int j = lane + i * WARP;
            if (j >= half) continue;
            const float at = a.axes ? a.axes[row * 3 + a.axis_of[j]] : static_cast<float>(position);
            sincosf(__fmul_rn(at, a.inv_freq[j]), &sine[i], &cosine[i]);
            gain_low[i] = to_float(gain[j]);
            gain_high[i] = to_float(gain[j + half]);
        }
    }

    // What this lane has of a head.
    static __device__ __forceinline__ void load(const AttentionArgs& a, const T* head, int lane, float (&low)[MAX_PAIRS], float (&high)[MAX_PAIRS]) {
        const int half = a.head_dim / 2;
#pragma unroll
        for (int i = 0; i < MAX_PAIRS; ++i) {
            const int j = lane + i * WARP;
            low[i] = j < half ? to_float(head[j]) : 0.f;
            high[i] = j < half ? to_float(head[j + half]) : 0.f;
        }
    }

    // Norms and rotates one head by one warp.
    __device__ __forceinline__ void head(const AttentionArgs& a, const T* head, int lane, float (&low)[MAX_PAIRS], float (&high)[MAX_PAIRS]) const {
        load(a, head, lane, low, high);
        loaded(a, lane, low, high);
    }
    __device__ __forceinline__ void loaded(const AttentionArgs& a, int lane, float (&low)[MAX_PAIRS], float (&high)[MAX_PAIRS]) const {
        const int half = a.head_dim / 2;
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < MAX_PAIRS; ++i) {
            sum = __fmaf_rn(low[i], low[i], sum);
            sum = __fmaf_rn(high[i], high[i], sum);
        }
        const float scale = rsqrtf(warp_sum(sum) / static_cast<float>(a.head_dim) + a.eps);
#pragma unroll
        for (int i = 0; i < MAX_PAIRS; ++i) {
            if (lane + i * WARP >= half) continue;
            const float x = normed(low[i], scale, gain_low[i]), y = normed(high[i], scale, gain_high[i]);
            low[i] = __fmaf_rn(x, cosine[i], -__fmul_rn(y, sine[i]));
            high[i] = __fmaf_rn(y, cosine[i], __fmul_rn(x, sine[i]));
        }
    }
};

template <typename T>
__device__ __forceinline__ const T* head_of(const AttentionArgs& a, int row, int head) {
    return static_cast<const T*>(a.qkv) + (static_cast<size_t>(row) * (a.heads + 2 * a.kv_heads) + head) * a.head_dim;
}
