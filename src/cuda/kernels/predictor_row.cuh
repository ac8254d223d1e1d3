// What one block of the persistent predictor (predictor_90a.cu) does for a row of its own: attention over its short cache.
// And what lies where.
#pragma once

#include "predictor_pick.cuh"

constexpr int ROW = 512; // packets of a row: of attention, of the residual and of the inner activations alike
static_assert(HEADS * HEAD / 4 == ROW && HIDDEN / 2 == ROW && INNER / 6 == ROW);

// The memory of a launch of R rows: the epoch, then packets, then rotated keys as attention takes them.
template <int R>
struct Hops {
    static constexpr int QKV = 1, ATTENDED = QKV + R * KV_HEADS * 3 * 32, MIDDLE = ATTENDED + R * ROW, END = MIDDLE + R * ROW, EMBEDDED = END + R * ROW,
                         INNER_AT = EMBEDDED + R * ROW, LOGITS = INNER_AT + R * ROW, KEYS = LOGITS + R * CODES / 2,
                         SIZE = KEYS + R * KV_HEADS * POSITIONS * HEAD / 8 * MAX_LAYERS;
};

// Shared memory behind the ring.
template <int R>
struct Shared {
    // A warp's rows: normed ones of 128 inputs and their raw numbers, or attended ones of 256, or inner ones of 384. Rows
    // lie so far apart that lanes of two rows do not meet in a bank.
    static constexpr int NORMED = 128 * 2 + 64, RAW = 128 * 4 + 16, ATTENDED = 256 * 2 + 64, INNER_ROW = 384 * 2 + 64;
    static constexpr int RAWS = R < 8 ? R : 8; // rows whose raw, or inner, numbers are there at once
    static constexpr int OF_NORMED = R * NORMED + RAWS * RAW, ROWS = OF_NORMED > R * ATTENDED ? OF_NORMED : R * ATTENDED;
    static constexpr int WIDE = 3 * 16 + 1, EIGHT = 8 + 1; // sums of a row, and one number more
    static constexpr bool OVERLAID = R > 8;                // the wide ones lie where rows have been
    static constexpr int NEXT = OVERLAID ? ROWS / 4 : R * WIDE; // numbers from one part's to the next one's
    static_assert(R * WIDE * 4 <= ROWS && RAWS * INNER_ROW <= ROWS);
    float queries[2][HEAD];
    bf16 key[HEAD];
    float squares[2][PARTS][8];
    float wide[OVERLAID ? 4 : PARTS * R * WIDE], eight[PARTS][R][EIGHT];
    alignas(16) unsigned char rows[PARTS][ROWS];

    // Where a part's wide sums are, of row 0.
    __device__ __forceinline__ float* sums(int part) { return (OVERLAID ? reinterpret_cast<float*>(rows[0]) : wide) + part * NEXT; }
};

// Where element `d` of a head lies for attention: pairs of neighbours, those of 4m and 4m + 1 apart from the others.
__device__ __forceinline__ int key_at(int d) { return (d % 4 / 2 * 32 + d / 4) * 2 + d % 2; }

// attend_short of attention.cu by four warps. Two norm and turn a query, one the key, one keeps the value. Then two have a
// head: of a position's key two lanes have half each, of all values each warp has half.
template <int R>
__device__ __forceinline__ void attend(const PredictorArgs& a, const Clock& clock, Shared<R>& s, uint4* hops, int layer, int row, int kv_head, int position,
                                       uint32_t epoch) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, of = lane / 2, head = warp % 2, half = warp / 2;
    uint32_t* keys = reinterpret_cast<uint32_t*>(hops + Hops<R>::KEYS) + ((layer * R + row) * KV_HEADS + kv_head) * POSITIONS * 64;
    const size_t page = a.pages[static_cast<size_t>(min(row, a.count - 1)) * a.max_pages];
    bf16* values = a.values + layer * a.layer_size + (page * KV_HEADS + kv_head) * POSITIONS * HEAD;
    uint4 key[8];
    uint32_t value[POSITIONS];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        key[i] = make_uint4(0, 0, 0, 0);
        if (of < position) {
            const Packet w = load_packet(keys + (lane % 2 * POSITIONS + of) * 32 + i * 4);
            key[i] = make_uint4(w.x, w.y, w.z, w.epoch);
        }
    }
    const volatile uint32_t* own_values = reinterpret_cast<const volatile uint32_t*>(values) + lane * 2 + half;
#pragma unroll
    for (int p = 0; p < POSITIONS; ++p) value[p] = p < position ? own_values[p * (HEAD / 2)] : 0;
    const bf16* gain = a.qk_norm + (layer * 2 + (warp == 2 ? 1 : 0)) * HEAD + lane;
    const float gains[4] = {to_float(gain[0]), to_float(gain[32]), to_float(gain[64]), to_float(gain[96])};
    const float2 turn[2] = {a.turns[position * 64 + lane], a.turns[position * 64 + lane + 32]};
    uint32_t w[9];
    receive<3>(clock, epoch, hops + Hops<R>::QKV + (row * KV_HEADS + kv_head) * 96 + lane, [](int i) { return i * 32; },
               [&](int i, const Packet& q) { w[3 * i] = q.x, w[3 * i + 1] = q.y, w[3 * i + 2] = q.z; });
    __syncwarp();
    if (warp < 3) {
        // Elements lane, lane + 32, lane + 64 and lane + 96.
        const uint32_t front = warp == 0 ? w[0] : warp == 1 ? w[2] : w[4], back = warp == 0 ? w[1] : warp == 1 ? w[3] : w[5];
        float x[4] = {low_half(front), high_half(front), low_half(back), high_half(back)};
        float sum = __fmaf_rn(x[0], x[0], 0.f);
        sum = __fmaf_rn(x[2], x[2], sum);
        sum = __fmaf_rn(x[1], x[1], sum);
        sum = __fmaf_rn(x[3], x[3], sum);
        const float scale = rsqrtf(warp_sum(sum) / static_cast<float>(HEAD) + a.eps);
        // The key is not scaled: times 1 changes no bit.
        const float times = warp == 2 ? 1.f : a.scale * 1.4426950408889634f;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float low = normed(x[i], scale, gains[i]), high = normed(x[i + 2], scale, gains[i + 2]);
            x[i] = __fmaf_rn(low, turn[i].y, -__fmul_rn(high, turn[i].x)) * times;
            x[i + 2] = __fmaf_rn(high, turn[i].y, __fmul_rn(low, turn[i].x)) * times;
        }
        const int at = key_at(lane); // that of lane + 32 is 16 further
        if (warp < 2) {
#pragma unroll
            for (int i = 0; i < 4; ++i) s.queries[warp][at + i * 16] = x[i];
        } else {
            bf16* to = reinterpret_cast<bf16*>(keys) + (at / 64 * POSITIONS + position) * 64 + at % 64;
#pragma unroll
            for (int i = 0; i < 4; ++i) s.key[at + i * 16] = to[i * 16] = __float2bfloat16_rn(x[i]);
        }
    } else if (row < a.count) {
        reinterpret_cast<uint2*>(values + position * HEAD)[lane] = make_uint2(w[6], w[7]);
    }
    asm volatile("bar.sync 2, 128;" ::: "memory");

    if (of == position) {
#pragma unroll
        for (int i = 0; i < 8; ++i) key[i] = reinterpret_cast<const uint4*>(s.key)[lane % 2 * 8 + i];
    }
    const float4* query = reinterpret_cast<const float4*>(s.queries[head]) + lane % 2 * 16;
    float dot[2] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const uint32_t words[4] = {key[i].x, key[i].y, key[i].z, key[i].w};
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const float4 q = query[i * 2 + j];
            dot[0] = __fmaf_rn(q.x, low_half(words[2 * j]), dot[0]);
            dot[1] = __fmaf_rn(q.y, high_half(words[2 * j]), dot[1]);
            dot[0] = __fmaf_rn(q.z, low_half(words[2 * j + 1]), dot[0]);
            dot[1] = __fmaf_rn(q.w, high_half(words[2 * j + 1]), dot[1]);
        }
    }
    float score = __fadd_rn(dot[0], dot[1]);
    score = __fadd_rn(score, __shfl_xor_sync(~0u, score, 1));
    if (of > position) score = -INFINITY;
    float most = score;
#pragma unroll
    for (int mask = 16; mask > 1; mask /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, mask));
    const float weight = exp2f(score - most);
    float total = weight;
#pragma unroll
    for (int mask = 16; mask > 1; mask /= 2) total += __shfl_xor_sync(~0u, total, mask);
    const uint32_t own = half == 0 ? w[6] : w[7];
    float mix[2] = {};
#pragma unroll
    for (int p = 0; p < POSITIONS; ++p) {
        const float part = __shfl_sync(~0u, weight, 2 * p);
        const uint32_t v = p == position ? own : value[p];
        mix[0] = __fmaf_rn(part, low_half(v), mix[0]);
        mix[1] = __fmaf_rn(part, high_half(v), mix[1]);
    }
    // Word 2 lane + half of the head; two of them in a packet.
    const uint32_t word = packed(mix[0] / total, mix[1] / total), next = __shfl_down_sync(~0u, word, 1);
    if (lane % 2 == 0) store_packet(hops + Hops<R>::ATTENDED + row * ROW + (kv_head * 2 + head) * 32 + half * 16 + of, word, next, 0, epoch);
}

// Keys of the positions that the first pass has put into the cache, for this block's row and kv head.
template <int R>
__device__ __forceinline__ void keys_of_first(const PredictorArgs& a, uint4* hops, int row, int kv_head) {
    const size_t page = a.pages[static_cast<size_t>(min(row, a.count - 1)) * a.max_pages];
    for (int i = threadIdx.x; i < a.layers * (a.first + 1) * 64; i += COMPUTING) {
        const int word = i % 64, position = i / 64 % (a.first + 1), layer = i / 64 / (a.first + 1);
        const bf16* from = a.keys + layer * a.layer_size + ((page * KV_HEADS + kv_head) * POSITIONS + position) * HEAD;
        uint32_t* to = reinterpret_cast<uint32_t*>(hops + Hops<R>::KEYS) + ((layer * R + row) * KV_HEADS + kv_head) * POSITIONS * 64;
        to[(word % 2 * POSITIONS + position) * 32 + word / 2] = reinterpret_cast<const uint32_t*>(from)[word];
    }
}

// Hands on a row of HIDDEN numbers, eight by each of the first threads.
__device__ __forceinline__ void send_row(uint4* to, const float (&v)[8], uint32_t epoch) {
#pragma unroll
    for (int i = 0; i < 4; ++i) store_packet(to + threadIdx.x * 4 + i, __float_as_uint(v[2 * i]), __float_as_uint(v[2 * i + 1]), 0, epoch);
}
