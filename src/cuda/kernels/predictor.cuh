// What the persistent predictor (predictor_90a.cu) is made of: its arguments, its weights, and products from them.
#pragma once

#include "frame.cuh"
#include "mma.cuh"
#include "persistent.cuh"

// The sizes of the predictor of all published talkers: a caller compares them.
constexpr int HIDDEN = 1024, INNER = 3072, HEADS = 16, KV_HEADS = 8, HEAD = 128, CODES = 2048;
constexpr int POSITIONS = 16;        // of a sequence
constexpr int LAYER_STAGES = 15;     // 4 of queries, keys and values, 2 of the output, 6 of gate and up, 3 of down
constexpr int HEAD_STAGES = 2;
constexpr uint32_t EPOCHS = 1024;    // of a launch
constexpr int MAX_PASSES = 32, MAX_LAYERS = 8;

struct PredictorArgs {
    const uint4* body;        // [layers * LAYER_STAGES][BLOCKS][STAGE], see pack_predictor
    const uint4* heads;       // [passes][HEAD_STAGES][BLOCKS][STAGE]
    const bf16* gains;        // [layers][2][HIDDEN], and the final norm
    const bf16* qk_norm;      // [layers][2][HEAD]
    const float2* turns;      // [POSITIONS][HEAD / 2]: sine and cosine
    const float* frequencies; // [HEAD / 2]: what these are made of
    uint4* hops;              // see Hops and Handed
    bf16* keys;               // the predictor's cache
    bf16* values;
    const uint32_t* pages;    // [rows, max_pages]
    const float* x;           // [rows, HIDDEN]: input of the first pass
    const StepRow* rows;
    const StepHead* head;
    const SlotParams* params;
    float* codec;             // [slots, outer]
    const uint64_t* tables;   // addresses by group: bf16 [CODES, outer]
    const uint64_t* narrowed; // the same, [CODES, HIDDEN]
    const uint32_t* forced;
    uint32_t* stalled;        // in memory of the host, becomes 1: see Clock
    uint64_t layer_size;      // elements of a layer's keys in the cache
    int max_pages;
    int count;                // rows of the step: those behind them are padding
    int first, passes;        // pass `first` is the first one here; `passes` in all
    int layers;
    int groups, outer;
    float eps, scale;
    int kept; // see `copy_weights`
    Copying copying;
    uint32_t limit;           // cycles of a launch behind which nothing waits any more
};

// What is packed once, at loading.
struct PackArgs {
    const bf16 *qkv, *output, *gate_up, *down; // of a layer; null for a head
    const bf16* head;
    uint4* to;
};

// A lane's pieces of a stage lie 512 bytes apart.
struct Packed {
    static __device__ __forceinline__ uint32_t of(uint32_t from, int h) { return from + h * 512; }
};

// One lane copies all weights of all passes. `kept` stages of a pass are to stay in the second-level cache.
__device__ __forceinline__ void copy_weights(const PredictorArgs& a, const Clock& clock, uint32_t full, uint32_t empty, uint32_t data) {
    const int body = a.layers * LAYER_STAGES, pass_stages = body + HEAD_STAGES;
    const uint64_t last = staying(), first = passing();
    copy_stages(a.copying, clock, full, empty, data, (a.passes - a.first) * pass_stages, [&](int n, uint32_t to, uint32_t barrier) {
        const int pass = a.first + n / pass_stages, s = n % pass_stages;
        const bool head = s >= body;
        const size_t at = head ? static_cast<size_t>(pass) * HEAD_STAGES + s - body : s;
        const unsigned char* from = reinterpret_cast<const unsigned char*>(head ? a.heads : a.body) + (at * BLOCKS + blockIdx.x) * STAGE;
        const bool keep = !head && (s + 1) * a.kept / body != s * a.kept / body;
        expect_stage(barrier);
        copy_bytes(to, from, STAGE, barrier, keep ? last : first);
        return STAGE;
    });
}

// ---- products ----------------------------------------------------------------------------------------------------------

// T tiles of 16 outputs over S steps of 32 inputs of this warp's part; the first AHEAD stages are in registers. Rows are in
// shared memory at `x_at`, XS bytes each, and `acc` has eight of them at once. Weights lie as the instruction takes them; the
// order of sums is linear_small's.
template <int T, int S, int R, int XS, int AHEAD>
__device__ __forceinline__ void product(Ring<Packed>& ring, uint4 (&f)[AHEAD][4], uint32_t x_at, float (&acc)[T][(R + 7) / 8][4], int lane) {
    constexpr int Q = S * T / 2, EIGHTS = (R + 7) / 8;
    const int g = lane / 4, t = lane % 4;
    const uint32_t own = x_at + g * XS + t * 16;
    uint4 x[EIGHTS];
#pragma unroll
    for (int q = 0; q < Q; ++q) {
#pragma unroll
        for (int h = 0; h < 4; ++h) {
            const int i = q * 4 + h, step = i / (T * 2), tile = i % (T * 2) / 2, half = i % 2;
            if (i % (T * 2) == 0) {
#pragma unroll
                for (int k = 0; k < EIGHTS; ++k) {
                    x[k] = make_uint4(0, 0, 0, 0);
                    if (8 * k + g < R) x[k] = load_shared(own + k * 8 * XS + step * 64);
                }
            }
            const uint4& w = f[q % AHEAD][h];
#pragma unroll
            for (int k = 0; k < EIGHTS; ++k) mma(acc[tile][k], w.x, w.y, w.z, w.w, half ? x[k].z : x[k].x, half ? x[k].w : x[k].y);
        }
        if (q + AHEAD < Q) take(ring, f[q % AHEAD], lane);
    }
}
// Eight outputs: the weights are the second operand of the instruction, the rows the first, those behind the eighth its other
// half. The sums are the same.
template <int S, int R, int XS, int AHEAD>
__device__ __forceinline__ void product_of_eight(Ring<Packed>& ring, uint4 (&f)[AHEAD][4], uint32_t x_at, float (&acc)[4], int lane) {
    constexpr int Q = S / 4;
    const int g = lane / 4, t = lane % 4;
    const uint32_t own = x_at + g * XS + t * 16;
#pragma unroll
    for (int q = 0; q < Q; ++q) {
#pragma unroll
        for (int h = 0; h < 4; ++h) {
            uint4 x = make_uint4(0, 0, 0, 0), y = x;
            if (g < R) x = load_shared(own + (q * 4 + h) * 64);
            if (8 + g < R) y = load_shared(own + 8 * XS + (q * 4 + h) * 64);
            const uint4& w = f[q % AHEAD][h];
            mma(acc, x.x, y.x, x.y, y.y, w.x, w.y);
            mma(acc, x.z, y.z, x.w, y.w, w.z, w.w);
        }
        if (q + AHEAD < Q) take(ring, f[q % AHEAD], lane);
    }
}
