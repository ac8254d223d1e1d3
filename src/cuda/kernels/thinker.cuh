// What the persistent layers of a thinker (thinker_90a.cu) are made of: their arguments, the hand-offs between blocks, and
// their weights.
#pragma once

#include "boxes.cuh"
#include "group_attention.cuh"

// The sizes of the thinker of Qwen3-Omni 30B-A3B: a caller compares them.
constexpr int HIDDEN = 2048, HEADS = 32, KV_HEADS = 4, EXPERTS = 128, CHOICES = 8, INNER = 768;
constexpr int MAX_LAYERS = 60;
constexpr uint32_t EPOCHS = 64; // of a launch

constexpr int TEAM = BLOCKS / KV_HEADS;           // blocks that multiply for the heads of a kv head; one more attends
constexpr int ASKED = GROUP + 2;                  // heads of a kv head: its queries, its key, its value
constexpr int ASKED_BOXES = ASKED * DIM / TEAM / 8; // of a block
constexpr int OF_EXPERT = BLOCKS / CHOICES;       // blocks that share an expert
constexpr int RESULTS = INNER / OF_EXPERT;        // of a block
static_assert(ASKED_BOXES == 5 && RESULTS == 48 && BLOCKS == EXPERTS && CHOICES == PARTS && HIDDEN == BLOCKS * TILE);

// A layer's pieces of weights. Tiles of 16 outputs: three of queries, keys and values, of which the last is half of one.
constexpr int QKV_TILES = 3, GATE_UP_TILES = 2 * RESULTS / TILE;
constexpr int QKV_STAGES = HIDDEN / PARTS / CHUNK * QKV_TILES, OUTPUT_STAGES = HEADS * DIM / PARTS / CHUNK,
              GATE_UP_STAGES = HIDDEN / PARTS / CHUNK * GATE_UP_TILES;
// Of the experts' second products a piece has WIDE inputs of 16 outputs of two experts.
constexpr int WIDE = 256, DOWN_STAGES = INNER / WIDE * CHOICES / 2;
constexpr int ROUTED = QKV_STAGES + OUTPUT_STAGES, // behind these the experts must be known
    LAYER_STAGES = ROUTED + GATE_UP_STAGES + DOWN_STAGES;

struct ThinkerArgs {
    // [layers][4]: queries, keys and values; output; gate and up of all experts; down of all experts, in boxes of WIDE inputs
    // by 16 outputs, which are not shuffled
    const WeightMap* maps;
    const bf16* const* routers;   // [layers]: [EXPERTS, HIDDEN]
    const bf16* gains;            // [layers][2][HIDDEN]
    const bf16* qk_norm;          // [layers][2][DIM]
    const float* frequencies;     // [DIM / 2]
    uint4* hops;                  // see Hops
    bf16* keys;                   // the cache, of all layers
    bf16* values;
    const uint32_t* pages;        // [slots, max_pages]
    const uint32_t* slots;        // [1]
    const int* positions;         // [1], negative for padding
    const float* axes;            // [1, 3] positions that the rotation takes; null: `positions`
    const unsigned char* axis_of; // [DIM / 2] which of them a frequency turns with
    float* x;                     // [HIDDEN]: the residual
    uint32_t* stalled;            // in memory of the host, becomes 1: see Clock
    uint64_t layer_size;          // elements of a layer's keys in the cache
    int max_pages;
    int layers;
    int normalize; // whether the weights of a row's experts sum to 1
    float eps, scale;
    Copying copying;
    uint32_t limit; // cycles of a launch behind which nothing waits any more
};

// The memory of a launch: the launches so far, then packets. Of a head four elements are in one, of the residual two, of the
// inner activations six, of logits one.
struct Hops {
    static constexpr int OF_HEAD = DIM / 4, OF_RESIDUAL = HIDDEN / 2, OF_CHOICE = INNER / 6;
    static constexpr int QKV = 1, ATTENDED = QKV + KV_HEADS * ASKED * OF_HEAD, MIDDLE = ATTENDED + HEADS * OF_HEAD, LOGITS = MIDDLE + OF_RESIDUAL,
                         INNERS = LOGITS + EXPERTS, END = INNERS + CHOICES * OF_CHOICE, SIZE = END + OF_RESIDUAL;
};

// Shared memory behind the ring, of blocks that multiply.
struct Shared {
    static constexpr int PART = HIDDEN / PARTS, ROW = 1616; // bytes of what a warp has of a row, and those to another bank
    alignas(16) unsigned char rows[PARTS][ROW];
    float sums[PARTS][GATE_UP_TILES * TILE + 1];
    float squares[2][PARTS][8];
    float logits[PARTS];
    alignas(16) float shares[2][EXPERTS / 2 + 4]; // in halves that do not meet in a bank
    int picked[PARTS];   // how many experts each warp has picked
    int chosen[CHOICES]; // the picked experts in the order of their numbers
    int rank[CHOICES];   // theirs: the best has 0
    float best[CHOICES]; // shares by rank
};
// The same of a block that attends, in place of the ring.
struct Attending {
    static constexpr int ROW = DIM + 8; // of mixed: lanes of two rows do not meet in a bank
    // Keys and values, see `lies_in_piece`; then what each stream has mixed of each head.
    union {
        unsigned char pieces[STREAMS][2][PIECE_BYTES];
        alignas(16) float mixed[STREAMS][GROUP][ROW];
    };
    bf16 queries[GROUP][PITCH], key[DIM], value[DIM];
    float most[STREAMS][GROUP], sum[STREAMS][GROUP];
    float2 turns[DIM / 2]; // sine and cosine of the position
};

// ---- weights -----------------------------------------------------------------------------------------------------------

// A warp copies all weights of all layers.
__device__ __forceinline__ void copy_weights(const ThinkerArgs& a, const Clock& clock, uint32_t full, uint32_t empty, uint32_t data, const Shared& s) {
    const int lane = threadIdx.x % WARP, b = blockIdx.x, team = b / TEAM, j = b % TEAM;
    const uint64_t policy = passing();
    // The first of eight outputs of a box of queries, keys or values.
    const auto asked = [&](int box) {
        const int head = box * 8 / DIM, first = head < GROUP ? team * GROUP + head : HEADS + (head - GROUP) * KV_HEADS + team;
        return first * DIM + box * 8 % DIM;
    };
    copy_stages(a.copying, clock, full, empty, data, a.layers * LAYER_STAGES, [&](int n, uint32_t to, uint32_t barrier) {
        const int layer = n / LAYER_STAGES, stage = n % LAYER_STAGES;
        if (stage == 0 && lane == 0) prefetch(a.routers[layer] + static_cast<size_t>(b) * HIDDEN, HIDDEN * 2);
        if (stage == ROUTED) await(clock, signal_of(full), layer & 1);
        __syncwarp();
        int bytes = STAGE;
        if (lane == 0) {
            const WeightMap* map = a.maps + layer * 4;
            const auto pair = [&](int chunk, int low, int high) {
                expect_stage(barrier);
                copy_outputs(to, map, chunk, low, barrier, policy);
                copy_outputs(to + STAGE / 2, map, chunk, high, barrier, policy);
            };
            if (stage < QKV_STAGES) {
                const int chunk = stage / QKV_TILES, box = j * ASKED_BOXES + stage % QKV_TILES * 2;
                if (stage % QKV_TILES * 2 + 1 < ASKED_BOXES) {
                    pair(chunk, asked(box), asked(box + 1));
                } else {
                    bytes = STAGE / 2;
                    barrier_expect(barrier, STAGE / 2);
                    copy_outputs(to, map, chunk, asked(box), barrier, policy);
                }
            } else if (stage < ROUTED) {
                map += 1;
                pair(stage - QKV_STAGES, TILE * b, TILE * b + 8);
            } else if (stage < ROUTED + GATE_UP_STAGES) {
                map += 2;
                const int i = stage - ROUTED, expert = s.chosen[b / OF_EXPERT];
                const int output = expert * 2 * INNER + b % OF_EXPERT * 2 * RESULTS + i % GATE_UP_TILES * TILE;
                pair(i / GATE_UP_TILES, output, output + 8);
            } else {
                map += 3;
                const int i = stage - ROUTED - GATE_UP_STAGES, choice = i % (CHOICES / 2) * 2;
                expect_stage(barrier);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(
                                     to + half * (STAGE / 2)),
                                 "l"(map), "r"(i / (CHOICES / 2) * WIDE), "r"(s.chosen[choice + half] * HIDDEN + TILE * b), "r"(barrier), "l"(policy)
                                 : "memory");
                }
            }
        }
        __syncwarp();
        return bytes;
    });
}
