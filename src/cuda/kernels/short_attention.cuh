// Attention over sequences of up to SHORT + 1 positions, such as the code predictor's, of heads of 128 numbers and two query
// heads to each kv head: what attend_short2 and a persistent predictor have in common.
#pragma once

#include "attention.cuh"

constexpr int SHORT = 16; // cached positions at most

// What the two warps tell each other: queries, turned and scaled, and the row's own key and value.
struct ShortAsked {
    alignas(16) float queries[2][DIM];
    alignas(16) bf16 own_key[DIM], own_value[DIM];
};

// What lies in the cache of a sequence, of one kv head: lane p has the key of position p, and four neighbours of each value.
// `at(position)` is where a position's numbers begin.
struct ShortCached {
    uint4 key[DIM / 8];
    uint2 value[SHORT];

    template <class AT>
    __device__ __forceinline__ ShortCached(const AttentionArgs& a, int position, AT at) {
        const int lane = threadIdx.x % WARP;
        const bf16 *keys = static_cast<const bf16*>(a.keys), *values = static_cast<const bf16*>(a.values);
        if (lane < position && lane < SHORT) {
            const uint4* from = reinterpret_cast<const uint4*>(keys + at(lane));
#pragma unroll
            for (int i = 0; i < DIM / 8; ++i) key[i] = from[i];
        } else {
#pragma unroll
            for (int i = 0; i < DIM / 8; ++i) key[i] = make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int p = 0; p < SHORT; ++p) value[p] = p < position ? reinterpret_cast<const uint2*>(values + at(p))[lane] : make_uint2(0, 0);
    }
};

// By two warps, one for each query head of a kv head: `cached` is read early, and so are the turns; behind `wait` the row's
// queries, key and value are there. Writes its key and value to the cache, `at` its position, on the way. `meet` has both
// warps meet; `put(head, lane, front, back)` gets four neighbours of a head.
template <class AT, class WAIT, class MEET, class PUT>
__device__ __forceinline__ void attend_short(const AttentionArgs& a, ShortAsked& s, ShortCached& cached, int row, int kv_head, int warp, int position, AT at,
                                             WAIT wait, MEET meet, PUT put) {
    const int lane = threadIdx.x % WARP;
    uint4(&key)[DIM / 8] = cached.key;
    const Turn<bf16> turn_query(a, static_cast<const bf16*>(a.q_norm), row, max(position, 0), lane);
    const Turn<bf16> turn_key(a, static_cast<const bf16*>(a.k_norm), row, max(position, 0), lane);
    wait();
    if (position < 0) return;

    // All are on their way at once.
    float low[MAX_PAIRS], high[MAX_PAIRS], key_low[MAX_PAIRS], key_high[MAX_PAIRS];
    uint2 own = make_uint2(0, 0);
    turn_query.load(a, head_of<bf16>(a, row, kv_head * 2 + warp), lane, low, high);
    if (warp == 0) {
        turn_key.load(a, head_of<bf16>(a, row, a.heads + kv_head), lane, key_low, key_high);
    } else {
        own = reinterpret_cast<const uint2*>(head_of<bf16>(a, row, a.heads + a.kv_heads + kv_head))[lane];
    }
    turn_query.loaded(a, lane, low, high);
    // Times log2(e), so that exponentials are powers of two.
    const float scale = a.scale * 1.4426950408889634f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        s.queries[warp][lane + i * WARP] = low[i] * scale;
        s.queries[warp][lane + i * WARP + DIM / 2] = high[i] * scale;
    }
    if (warp == 0) {
        turn_key.loaded(a, lane, key_low, key_high);
        bf16* to = static_cast<bf16*>(a.keys) + at(position);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            s.own_key[lane + i * WARP] = to[lane + i * WARP] = __float2bfloat16_rn(key_low[i]);
            s.own_key[lane + i * WARP + DIM / 2] = to[lane + i * WARP + DIM / 2] = __float2bfloat16_rn(key_high[i]);
        }
    } else {
        reinterpret_cast<uint2*>(s.own_value)[lane] = own;
        reinterpret_cast<uint2*>(static_cast<bf16*>(a.values) + at(position))[lane] = own;
    }
    meet();

    if (lane == position) {
#pragma unroll
        for (int i = 0; i < DIM / 8; ++i) key[i] = reinterpret_cast<const uint4*>(s.own_key)[i];
    }
    float dots[4] = {};
#pragma unroll
    for (int i = 0; i < DIM / 8; ++i) {
        float k[8];
        unpack(key[i], k);
        const float4 q0 = reinterpret_cast<const float4*>(s.queries[warp])[2 * i], q1 = reinterpret_cast<const float4*>(s.queries[warp])[2 * i + 1];
        dots[0] = __fmaf_rn(q1.x, k[4], __fmaf_rn(q0.x, k[0], dots[0]));
        dots[1] = __fmaf_rn(q1.y, k[5], __fmaf_rn(q0.y, k[1], dots[1]));
        dots[2] = __fmaf_rn(q1.z, k[6], __fmaf_rn(q0.z, k[2], dots[2]));
        dots[3] = __fmaf_rn(q1.w, k[7], __fmaf_rn(q0.w, k[3], dots[3]));
    }
    const float score = lane <= position ? (dots[0] + dots[1]) + (dots[2] + dots[3]) : -INFINITY;
    float most = score;
#pragma unroll
    for (int mask = WARP / 2; mask > 0; mask /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, mask));
    const float weight = exp2f(score - most), total = warp_sum(weight);
    float mix[4] = {};
#pragma unroll
    for (int p = 0; p <= SHORT; ++p) {
        const float of = __shfl_sync(~0u, weight, p);
        const uint2 v = p == position ? reinterpret_cast<const uint2*>(s.own_value)[lane] : p < SHORT ? cached.value[p] : make_uint2(0, 0);
        mix[0] = __fmaf_rn(of, __uint_as_float(v.x << 16), mix[0]);
        mix[1] = __fmaf_rn(of, __uint_as_float(v.x & 0xFFFF0000u), mix[1]);
        mix[2] = __fmaf_rn(of, __uint_as_float(v.y << 16), mix[2]);
        mix[3] = __fmaf_rn(of, __uint_as_float(v.y & 0xFFFF0000u), mix[3]);
    }
    const __nv_bfloat162 front = __floats2bfloat162_rn(mix[0] / total, mix[1] / total), back = __floats2bfloat162_rn(mix[2] / total, mix[3] / total);
    put(kv_head * 2 + warp, lane, *reinterpret_cast<const uint32_t*>(&front), *reinterpret_cast<const uint32_t*>(&back));
}
