// What the persistent layers of many rows (layers_many_90a.cu) are made of: what lies where, counts of what is done, copies, and
// products of weights as they lie.
#pragma once

#include "layers.cuh"
#include "pieces.cuh"

// Products of a block, of so many outputs and parts of 256 inputs. Weights of 32 outputs by a part are a stage: rows of 512
// bytes, because the memory gives those of 128 only two thirds as fast.
template <int OUTPUTS_, int PARTS_>
struct LayersProduct {
    static constexpr int OUTPUTS = OUTPUTS_, IN_PARTS = PARTS_, TILES = OUTPUTS / TILE, OF_PART = OUTPUTS / 32, STAGES = PARTS_ * OF_PART;
};
constexpr int PART_OF = 256, PART_PIECES = PART_OF / DEEP; // inputs of a part of HIDDEN, and of a stage; and their pieces of rows
using LayersQkv = LayersProduct<32, PARTS>;
using LayersOutput = LayersProduct<128, 1>;  // of this team's part
using LayersGateUp = LayersProduct<96, PARTS>;
using LayersDown = LayersProduct<128, 3>;    // of this team's part, in thirds
constexpr int ALL_OUTPUT_AT = LayersQkv::STAGES, ALL_GATE_UP_AT = ALL_OUTPUT_AT + LayersOutput::STAGES, ALL_DOWN_AT = ALL_GATE_UP_AT + LayersGateUp::STAGES,
              ALL_STAGES = ALL_DOWN_AT + LayersDown::STAGES; // stages of a layer's weights
constexpr int CACHED = STAGE / (2 * DIM * 2);                // positions of the cache in a stage
constexpr int RESULTS = LayersGateUp::OUTPUTS / 2;           // inner activations of a block
static_assert(CACHED == GROUPS && CACHED == 2 * PAGE && 32 * PART_OF * 2 == STAGE);
static_assert(LayersQkv::OUTPUTS * BLOCKS == (HEADS + 2 * KV_HEADS) * DIM && RESULTS * BLOCKS == INNER && PARTS * PART_OF == HIDDEN);
static_assert(PART_OF * PARTS == HEADS * DIM && LayersDown::IN_PARTS * PART_OF * PARTS == INNER);
static_assert(LayersOutput::OUTPUTS * TEAM == HIDDEN && BLOCKS == PARTS * TEAM && PARTS == KV_HEADS && RESULTS * TEAM * PARTS == INNER);

// The memory of a launch of R rows, in bytes. Counts have lines of their own. NORMED, ATTENDED and INNER_AT are in pieces of
// 64 inputs of all rows, as products take them; see `lies_at`.
template <int R>
struct LayersHanded {
    static constexpr int LAUNCH = 0, QKV_DONE = LINE, ATTENDED_DONE = QKV_DONE + PARTS * LINE, INNER_DONE = ATTENDED_DONE + PARTS * LINE,
                         PARTS_DONE = INNER_DONE + PARTS * LINE, NORMED_DONE = PARTS_DONE + LINE, NORMED = NORMED_DONE + LINE + 5 * LINE,
                         ATTENDED = NORMED + R * HIDDEN * 2, INNER_AT = ATTENDED + R * HEADS * DIM * 2, QKV = INNER_AT + R * INNER * 2,
                         SUMS = QKV + R * (HEADS + 2 * KV_HEADS) * DIM * 2, SIZE = SUMS + PARTS * R * HIDDEN * 4;
    static_assert(NORMED == 4096);
};

// What blocks tell each other, and how often each count rises.
template <int R>
struct LayersBlocks : Counts {
    uint32_t launch; // launches before this one
    int layers;
    // Counts when layer `layer` is through; when both its sums, and norms, of which there are two a layer, are.
    __device__ __forceinline__ uint32_t team_until(int layer) const { return (launch * layers + layer + 1) * TEAM; }
    __device__ __forceinline__ uint32_t sums_until(int layer, int which) const { return ((launch * layers + layer) * 2 + which + 1) * BLOCKS; }
    __device__ __forceinline__ uint32_t normed_until(int norm) const { return (launch * 2 * layers + norm + 1) * R; }
};

// Rings of R rows: bytes of the one of rows, and stages of the one of weights. They leave no room for a block of the vocoder; a
// server's step is shorter than with the graph all the same.
template <int R>
struct LayersRings {
    static constexpr int ROWS = 65536, WEIGHTS = 9, PIECE_OF_ROWS = R * DEEP * 2;
    // A part is copied as one: a copy takes the engine some 200 cycles, however short it is.
    static constexpr int SLOT = PART_PIECES * PIECE_OF_ROWS, SLOTS = ROWS / SLOT;
};
template <int R>
using LayersRows = Place<LayersRings<R>::SLOTS>;
template <int R>
using LayersWeights = Place<LayersRings<R>::WEIGHTS>;

// Shared memory behind the rings.
template <int R>
struct LayersShared {
    static constexpr int OWN = R / TEAM; // rows that this block attends for
    Asked<2> asked[OWN];
    // A row is normed while nothing is mixed, and sums are added before.
    union {
        Mixed<2> mixed;
        float row[HIDDEN];                // the residual of this block's row
        float4 parts[4][PARTS / 2][WARP]; // sums of queries, keys and values of four warps
    };
    float2 turns[OWN][DIM / 2]; // sines and cosines
    float squares[2][PARTS][8];
    int position[OWN];
};

// Which head of a row's queries, keys and values a team's is: its two query heads, its key, its value.
__device__ __forceinline__ int head_at(int team, int kind) { return kind < 2 ? team * 2 + kind : HEADS + (kind - 2) * KV_HEADS + team; }

// ---- copies ------------------------------------------------------------------------------------------------------------

// A warp copies all weights of all layers, and between them, ahead of the output's, what the cache has of the rows that its
// block attends for: 32 positions in a stage, their keys and then their values.
template <int R>
__device__ __forceinline__ void copy_layers(const LayersArgs& a, const Clock& clock, uint32_t full, uint32_t empty, uint32_t data) {
    constexpr int OWN = R / TEAM;
    const int lane = threadIdx.x % WARP, b = blockIdx.x, team = b / TEAM, j = b % TEAM;
    const uint64_t policy = passing();
    const auto cached_of = [&](int i) {
        const int row = j * OWN + i;
        return row < a.count ? max(a.positions[row], 0) : 0;
    };
    int of_cache = 0; // stages of a layer
    for (int i = 0; i < OWN; ++i) of_cache += (cached_of(i) + CACHED - 1) / CACHED;
    const int of_layer = ALL_STAGES + of_cache;
    copy_stages(a.copying, clock, full, empty, data, a.layers * of_layer, [&](int n, uint32_t to, uint32_t barrier) {
        const int layer = n / of_layer, at = n % of_layer;
        if (at >= ALL_OUTPUT_AT && at < ALL_OUTPUT_AT + of_cache) {
            int i = 0, from = (at - ALL_OUTPUT_AT) * CACHED;
            for (; from >= cached_of(i); ++i) from -= (cached_of(i) + CACHED - 1) / CACHED * CACHED;
            const int count = cached_of(i) - from > PAGE ? 2 : 1;
            const int bytes = count * 2 * PAGE * DIM * 2;
            if (lane == 0) barrier_expect(barrier, bytes);
            __syncwarp();
            if (lane < 2 * count) {
                const int half = lane / count, page = lane % count;
                const uint32_t number = a.pages[static_cast<size_t>(a.slots[j * OWN + i]) * a.max_pages + from / PAGE + page];
                const bf16* of = (half == 0 ? a.keys : a.values) + layer * a.layer_size + (static_cast<size_t>(number) * KV_HEADS + team) * (PAGE * DIM);
                copy_bytes(to + (half * 2 + page) * (PAGE * DIM * 2), of, PAGE * DIM * 2, barrier, policy);
            }
            return bytes;
        }
        if (lane == 0) {
            const int s = at < ALL_OUTPUT_AT ? at : at - of_cache;
            int kind, part, output;
            if (s < ALL_OUTPUT_AT) {
                // 32 neighbours of one of both queries, of the key, or of the value.
                kind = 0, part = s, output = head_at(team, j / 4) * DIM + j % 4 * 32;
            } else if (s < ALL_GATE_UP_AT) {
                kind = 1, part = team, output = j * LayersOutput::OUTPUTS + (s - ALL_OUTPUT_AT) * 32;
            } else if (s < ALL_DOWN_AT) {
                const int k = s - ALL_GATE_UP_AT;
                kind = 2, part = k / LayersGateUp::OF_PART, output = b * LayersGateUp::OUTPUTS + k % LayersGateUp::OF_PART * 32;
            } else {
                const int k = s - ALL_DOWN_AT;
                kind = 3, part = team * LayersDown::IN_PARTS + k / LayersDown::OF_PART, output = j * LayersDown::OUTPUTS + k % LayersDown::OF_PART * 32;
            }
            barrier_expect(barrier, STAGE);
            asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                         "l"(a.maps + layer * 4 + kind), "r"(part * PART_OF), "r"(output), "r"(barrier), "l"(policy)
                         : "memory");
        }
        __syncwarp();
        return STAGE;
    });
}

// One warp copies the rows of all products as they come.
template <int R>
__device__ __forceinline__ void copy_layers_rows(const Clock& clock, const LayersBlocks<R>& of, LayersRows<R> ring) {
    using H = LayersHanded<R>;
    constexpr int BYTES = LayersRings<R>::SLOT;
    const uint64_t keep = staying();
    const auto await_rows = [&](int count, uint32_t until) {
        await_count(clock, of.count(count), until);
        __syncwarp();
    };
    const auto copy = [&](int from, int parts) { copy_pieces<BYTES>(clock, ring, of.hops + from, parts, keep); };
    const int own = of.team * LINE;
    for (int layer = 0; layer < of.layers; ++layer) {
        await_rows(H::NORMED_DONE, of.normed_until(2 * layer));
        copy(H::NORMED, PARTS);
        await_rows(H::ATTENDED_DONE + own, of.team_until(layer));
        copy(H::ATTENDED + of.team * BYTES, 1);
        await_rows(H::NORMED_DONE, of.normed_until(2 * layer + 1));
        copy(H::NORMED, PARTS);
        await_rows(H::INNER_DONE + own, of.team_until(layer));
        copy(H::INNER_AT + of.team * LayersDown::IN_PARTS * BYTES, LayersDown::IN_PARTS);
    }
    await_copies(ring);
}

// ---- products ----------------------------------------------------------------------------------------------------------

// A warp's tile of 16 outputs by N eights of rows, over all inputs of a product of R rows; `tile` is counted from the block's
// first output, `first` is the first row. A part of the inputs, if it is `wanted`, has its sums handed to `take`: sums[n][i] is of
// row first + 8 n + t + 4 (i % 2) and output 16 tile + g + 8 (i / 2). The order of sums is linear_small's. IN_ONE: all parts are one
// sum. A warp with no tile, or that does not want a part, is heard at all stages.
template <class P, int R, int N, bool IN_ONE, class WANTED, class TAKE>
__device__ __forceinline__ void multiply_layers(const Clock& clock, LayersRows<R>& rows, LayersWeights<R>& weights, int tile, int first, WANTED wanted, TAKE take) {
    constexpr int BATCH = 2; // pieces that are read at once
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, here = output_of(g);
    // Lanes of two neighbouring rows read what lies in different banks: of rows of pieces other ones, of weights other steps.
    const bool odd = g % 2 != 0;
    const uint32_t own_weights = (tile % 2 * TILE + g) * (PART_OF * 2) + t * 16 + (odd ? 64 : 0), own_rows = (first + here) * 128 + (t ^ here) * 16;
    const auto release = [&](auto& ring) {
        if (lane == 0) barrier_arrive(ring.emptied());
        ring.next();
    };
    float acc[N][4] = {};
#pragma unroll 1
    for (int part = 0; part < P::IN_PARTS; ++part) {
        const bool wants = tile < P::TILES && wanted(part);
#pragma unroll 1
        for (int stage = 0; stage < P::OF_PART; ++stage) {
            await(clock, weights.filled(), weights.phase);
            if (!wants || tile / 2 != stage) {
                release(weights);
                continue;
            }
#pragma unroll
            for (int c0 = 0; c0 < PART_PIECES; c0 += BATCH) {
                uint4 w[BATCH][4], v[BATCH][2][N];
#pragma unroll
                for (int k = 0; k < BATCH; ++k) {
                    const int c = c0 + k;
                    const uint32_t from = weights.data + weights.slot * STAGE + c * (DEEP * 2) + own_weights;
                    uint4 read[2][2];
#pragma unroll
                    for (int i = 0; i < 4; ++i) read[i / 2][i % 2] = load_shared((i / 2 == 0 ? from : from ^ 64) + i % 2 * (8 * PART_OF * 2));
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const uint4 one = read[i / 2][i % 2], two = read[1 - i / 2][i % 2];
                        w[k][i] = odd ? two : one;
                    }
                    if (c == 0) await(clock, rows.filled(), rows.phase);
                    const uint32_t x = rows.data + rows.slot * LayersRings<R>::SLOT + c * LayersRings<R>::PIECE_OF_ROWS + own_rows;
#pragma unroll
                    for (int i = 0; i < 2 * N; ++i) v[k][i / N][i % N] = load_shared((i / N == 0 ? x : x ^ 64) + i % N * 1024);
                }
                if (c0 + BATCH == PART_PIECES) {
                    // What has been read may be overwritten: see `take`.
                    fence_copies();
                    __syncwarp();
                    release(rows);
                    release(weights);
                }
#pragma unroll
                for (int i = 0; i < BATCH * 4 * N; ++i) {
                    const int k = i / (4 * N), step = i / (2 * N) % 2, half = i / N % 2, n = i % N;
                    mma_half(acc[n], w[k][2 * step], w[k][2 * step + 1], v[k][step][n], half);
                }
            }
        }
        if (!wants) {
            await(clock, rows.filled(), rows.phase);
            release(rows);
        } else if (!IN_ONE || part + 1 == P::IN_PARTS) {
            take(part, acc);
#pragma unroll
            for (int i = 0; i < N * 4; ++i) acc[i / 4][i % 4] = 0.f;
        }
    }
}

// Two neighbouring outputs of a row in one lane: of the values of rows t and t + 4 that this lane has of output g, and the lane
// of the next or last output has. `put(row, output, first, second)` gets the row, of the eight, and the lower output, of the eight.
template <class PUT>
__device__ __forceinline__ void in_pairs(float first_row, float second_row, PUT put) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const bool odd = g % 2 != 0;
    const float own = odd ? second_row : first_row, other = __shfl_xor_sync(~0u, odd ? first_row : second_row, 4);
    put(odd ? t + 4 : t, g & ~1, odd ? other : own, odd ? own : other);
}
