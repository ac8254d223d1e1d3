// What the persistent layers (layers_90a.cu) are made of: their arguments, the hand-offs between blocks, and their weights.
#pragma once

#include "boxes.cuh"
#include "fast_attention.cuh"

// The sizes of the talker of Qwen3-TTS 1.7B: a caller compares them.
constexpr int HIDDEN = 2048, INNER = 6144, HEADS = 16, KV_HEADS = 8;
constexpr int MAX_LAYERS = 60;
constexpr uint32_t EPOCHS = 64;      // of a launch
constexpr int QKV_STAGES = 8, OUTPUT_STAGES = 4, GATE_UP_STAGES = 24, DOWN_STAGES = 12; // of a layer
constexpr int LAYER_STAGES = QKV_STAGES + OUTPUT_STAGES + GATE_UP_STAGES + DOWN_STAGES;

struct LayersArgs {
    const WeightMap* maps;    // [layers][4]: queries, keys and values; output; gate and up; down
    const bf16* gains;        // [layers][2][HIDDEN]
    const bf16* qk_norm;      // [layers][2][DIM]
    const float* frequencies; // [DIM / 2]
    uint4* hops;              // see Hops
    bf16* keys;               // the cache, of all layers
    bf16* values;
    const uint32_t* pages;    // [slots, max_pages]
    const uint32_t* slots;    // [count]
    const int* positions;     // [count], negative for padding
    float* x;                 // [count, HIDDEN]: the residual
    uint32_t* stalled;        // in memory of the host, becomes 1: see Clock
    uint64_t layer_size;      // elements of a layer's keys in the cache
    int max_pages;
    int count;                // rows of the step: those behind them are padding
    int layers;
    float eps, scale;
    Copying copying;
    uint32_t limit;           // cycles of a launch behind which nothing waits any more
};

// Packets of a row. Of a head four elements are in one, of the residual two, of the inner activations six.
constexpr int OF_HEAD = DIM / 4, OF_RESIDUAL = HIDDEN / 2, OF_INNER = INNER / 6, ASKED_HEADS = 4;

// The memory of a launch of R rows: the launches so far, then packets.
template <int R>
struct Hops {
    static constexpr int QKV = 1, ATTENDED = QKV + R * KV_HEADS * ASKED_HEADS * OF_HEAD, MIDDLE = ATTENDED + R * HEADS * OF_HEAD,
                         END = MIDDLE + R * OF_RESIDUAL, INNER_AT = END + R * OF_RESIDUAL, SIZE = INNER_AT + R * OF_INNER;
};

// Shared memory behind the ring.
template <int R>
struct Shared {
    // A warp's rows of its part: normed ones and raw numbers of some of them, or attended ones, or inner ones, of which many
    // rows come in two halves. Rows lie so far apart that lanes of two rows do not meet in a bank.
    static constexpr int PART = HIDDEN / PARTS, HALVES = R > 4 ? 2 : 1, RAWS = R < 4 ? R : 4;
    static constexpr int NORMED = PART * 2 + 64, RAW = PART * 4 + 16, INNER_ROW = INNER / PARTS / HALVES * 2 + 64;
    static constexpr int OF_NORMED = R * NORMED + RAWS * RAW, OF_INNERS = R * INNER_ROW, ROWS = OF_NORMED > OF_INNERS ? OF_NORMED : OF_INNERS;
    static constexpr int WIDE = 6 * TILE + 1; // sums of a row, and one number more
    Asked<1> asked;
    Mixed<1> mixed;
    float heads[2][DIM];
    float2 turns[DIM / 2]; // sine and cosine of the row that this block attends for
    float squares[2][PARTS][8];
    alignas(16) unsigned char rows[PARTS][ROWS];

    // The sums of a part lie where its rows have been.
    static constexpr int NEXT = ROWS / 4; // numbers from one part's to the next one's
    static_assert(R * WIDE <= NEXT);
    __device__ __forceinline__ float* sums(int part) { return reinterpret_cast<float*>(rows[part]); }
};

// ---- weights -----------------------------------------------------------------------------------------------------------

// A warp copies all weights of all layers, and has the cache of the row that its block attends for brought closer.
template <int R>
__device__ __forceinline__ void copy_weights(const LayersArgs& a, const Clock& clock, uint32_t full, uint32_t empty, uint32_t data) {
    const int lane = threadIdx.x % WARP, b = blockIdx.x, team = b / 16, j = b % 16;
    const uint64_t policy = passing();
    int cached = 0;
    const uint32_t* pages = a.pages;
    if (j < 2 * R && j / 2 < a.count) {
        cached = max(a.positions[j / 2], 0);
        pages += static_cast<size_t>(a.slots[j / 2]) * a.max_pages;
    }
    copy_stages(a.copying, clock, full, empty, data, a.layers * LAYER_STAGES, [&](int n, uint32_t to, uint32_t barrier) {
        const int layer = n / LAYER_STAGES, s = n % LAYER_STAGES;
        if (s == 0) {
            for (int page = lane; page * PAGE < cached; page += WARP) {
                const size_t at = layer * a.layer_size + (static_cast<size_t>(pages[page]) * KV_HEADS + team) * (PAGE * DIM);
                prefetch(a.keys + at, PAGE * DIM * 2);
                prefetch(a.values + at, PAGE * DIM * 2);
            }
        }
        __syncwarp();
        if (lane == 0) {
            int kind, chunk, low, high;
            if (s < QKV_STAGES) {
                // Eight elements of each of the two queries, of the key and of the value.
                kind = 0, chunk = s / 2;
                low = s % 2 == 0 ? team * 2 * DIM : (HEADS + team) * DIM;
                high = s % 2 == 0 ? low + DIM : low + KV_HEADS * DIM;
                low += 8 * j, high += 8 * j;
            } else if (s < QKV_STAGES + OUTPUT_STAGES) {
                kind = 1, chunk = s - QKV_STAGES, low = 16 * b, high = low + 8;
            } else if (s < QKV_STAGES + OUTPUT_STAGES + GATE_UP_STAGES) {
                const int i = s - QKV_STAGES - OUTPUT_STAGES;
                kind = 2, chunk = i / 6, low = 96 * b + i % 6 * 16, high = low + 8;
            } else {
                kind = 3, chunk = s - QKV_STAGES - OUTPUT_STAGES - GATE_UP_STAGES, low = 16 * b, high = low + 8;
            }
            const WeightMap* map = a.maps + layer * 4 + kind;
            expect_stage(barrier);
            copy_outputs(to, map, chunk, low, barrier, policy);
            copy_outputs(to + STAGE / 2, map, chunk, high, barrier, policy);
        }
        __syncwarp();
        return STAGE;
    });
}
