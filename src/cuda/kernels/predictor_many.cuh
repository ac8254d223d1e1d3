// What the persistent predictor of many rows (predictor_many_90a.cu) is made of: what lies where, counts of what is done, and
// products of 64 rows at once by four warps.
#pragma once

#include "pieces.cuh"
#include "predictor_pick.cuh"
#include "short_attention.cuh"

constexpr int PIECE = 8192;      // bytes that a piece of weights has room for
constexpr int MANY_STAGES = 34;  // copies of weights of a layer: of queries, keys and values, and those from here on
constexpr int OUTPUT_AT = 8, GATE_UP_AT = 12, DOWN_AT = 28;
constexpr int MANY_BYTES = 245760; // bytes of a layer's weights of a block
constexpr int MANY_HEAD_STAGES = 4;

// A product of a block: OUTPUTS by PIECES pieces of inputs, in parts of so many, whose sums are added one after the other;
// TOGETHER pieces of weights come as one.
template <int OUTPUTS_, int PARTS_, int OF_PART_, int TOGETHER_>
struct Product {
    static constexpr int OUTPUTS = OUTPUTS_, IN_PARTS = PARTS_, OF_PART = OF_PART_, TOGETHER = TOGETHER_, PIECES = IN_PARTS * OF_PART;
    static constexpr int WEIGHTS = OUTPUTS * DEEP * 2; // bytes of a piece of weights
    static_assert(WEIGHTS * TOGETHER <= PIECE && PIECES % TOGETHER == 0 && OUTPUTS % 16 == 0);
};
using Qkv = Product<32, PARTS, 2, 2>;
using Output = Product<64, 1, 4, 1>;  // of this team's part
using GateUp = Product<48, PARTS, 2, 1>;
using Down = Product<64, 1, 6, 1>;    // of this team's part
using Head = Product<16, PARTS, 2, 4>;
static_assert(Qkv::OUTPUTS * BLOCKS == (HEADS + 2 * KV_HEADS) * HEAD && GateUp::OUTPUTS * BLOCKS == 2 * INNER && Head::OUTPUTS * BLOCKS == CODES);
static_assert(Output::PIECES * DEEP * PARTS == HEADS * HEAD && Down::PIECES * DEEP * PARTS == INNER && Qkv::PIECES * DEEP == HIDDEN);
static_assert(Output::OUTPUTS * TEAM == HIDDEN && BLOCKS == PARTS * TEAM && PARTS == KV_HEADS);
static_assert(GATE_UP_AT * PIECE + (DOWN_AT - GATE_UP_AT) * GateUp::WEIGHTS + (MANY_STAGES - DOWN_AT) * PIECE == MANY_BYTES);

// The memory of a launch of R rows, in bytes. Counts have lines of their own. NORMED, ATTENDED and INNER_AT are in pieces of
// 64 dealt inputs of all rows, as products take them; see `piece_at`.
template <int R>
struct Handed {
    static constexpr int LAUNCH = 0, QKV_DONE = LINE, ATTENDED_DONE = QKV_DONE + PARTS * LINE, INNER_DONE = ATTENDED_DONE + PARTS * LINE,
                         PARTS_DONE = INNER_DONE + PARTS * LINE, NORMED_DONE = PARTS_DONE + LINE, LOGITS_DONE = NORMED_DONE + LINE,
                         NORMED = LOGITS_DONE + LINE + 4 * LINE, ATTENDED = NORMED + R * HIDDEN * 2, INNER_AT = ATTENDED + R * HEADS * HEAD * 2,
                         QKV = INNER_AT + R * INNER * 2, SUMS = QKV + R * (HEADS + 2 * KV_HEADS) * HEAD * 2, LOGITS = SUMS + PARTS * R * HIDDEN * 4,
                         SIZE = LOGITS + R * CODES * 4;
    static_assert(NORMED % 1024 == 0);
};

// Where an even input `k` of a row of R is among pieces, in bytes: dealt, see `lies_at`.
template <int R>
__device__ __forceinline__ int piece_at(int row, int k) {
    return lies_at<R>(row, dealt(k));
}

// What blocks tell each other, and how often each count rises in a pass.
template <int R>
struct Blocks : Counts {
    uint32_t launch; // launches before this one
    int passes, layers;
    // Counts when layer `layer` of the pass is through, `pass` counted from the first one here.
    __device__ __forceinline__ uint32_t team_until(int pass, int layer) const { return ((launch * passes + pass) * layers + layer + 1) * TEAM; }
    __device__ __forceinline__ uint32_t sums_until(int pass, int layer, int which) const { return (((launch * passes + pass) * layers + layer) * 2 + which + 1) * BLOCKS; }
    __device__ __forceinline__ uint32_t normed_until(int pass, int norm) const { return ((launch * passes + pass) * (2 * layers + 1) + norm + 1) * R; }
    __device__ __forceinline__ uint32_t logits_until(int pass) const { return (launch * passes + pass + 1) * BLOCKS; }
};

// ---- rings --------------------------------------------------------------------------------------------------------------

// Rings of R rows: bytes of the one of rows, and pieces of the one of weights. Gate and up are 16 pieces: all that are not
// there when their rows come are waited for. With 32 rows both rings leave room for a block of the vocoder; with more they
// do not, and a step of a server is shorter so.
template <int R>
struct Rings {
    static constexpr int ROWS = R < 64 ? 32768 : 65536, WEIGHTS = R < 64 ? 13 : 16, PIECE_OF_ROWS = R * DEEP * 2;
    // Pieces of rows that are copied as one: a copy takes the engine some 200 cycles, however short it is.
    static constexpr int TOGETHER = R > 64 ? 1 : 2, SLOT = TOGETHER * PIECE_OF_ROWS, SLOTS = ROWS / SLOT;
};

template <int R>
using RowPlace = Place<Rings<R>::SLOTS>;
template <int R>
using WeightPlace = Place<Rings<R>::WEIGHTS>;

// One lane copies all weights of all passes; see `copy_weights`.
__device__ __forceinline__ void copy_many_weights(const PredictorArgs& a, const Clock& clock, uint32_t full, uint32_t empty, uint32_t data) {
    const int body = a.layers * MANY_STAGES, of_pass = body + MANY_HEAD_STAGES;
    const uint64_t last = staying(), first = passing();
    copy_stages<PIECE>(a.copying, clock, full, empty, data, (a.passes - a.first) * of_pass, [&](int n, uint32_t to, uint32_t barrier) {
        const int pass = a.first + n / of_pass, s = n % of_pass, layer = s / MANY_STAGES, at = s % MANY_STAGES;
        const bool head = s >= body, narrow = !head && at >= GATE_UP_AT && at < DOWN_AT;
        const int bytes = narrow ? GateUp::WEIGHTS : PIECE;
        const int from = head              ? (s - body) * PIECE
                         : at < GATE_UP_AT ? at * PIECE
                         : narrow          ? GATE_UP_AT * PIECE + (at - GATE_UP_AT) * GateUp::WEIGHTS
                                           : MANY_BYTES - (MANY_STAGES - at) * PIECE;
        const unsigned char* all = head ? reinterpret_cast<const unsigned char*>(a.heads) + static_cast<size_t>(pass) * BLOCKS * MANY_HEAD_STAGES * PIECE
                                        : reinterpret_cast<const unsigned char*>(a.body) + static_cast<size_t>(layer) * BLOCKS * MANY_BYTES;
        const bool keep = !head && (s + 1) * a.kept / body != s * a.kept / body;
        barrier_expect(barrier, bytes);
        copy_bytes(to, all + static_cast<size_t>(from) * BLOCKS + static_cast<size_t>(blockIdx.x) * bytes, bytes, barrier, keep ? last : first);
        return PIECE;
    });
}

// One warp copies the rows of all products as they come.
template <int R>
__device__ __forceinline__ void copy_rows(const PredictorArgs& a, const Clock& clock, const Blocks<R>& of, RowPlace<R> ring) {
    using H = Handed<R>;
    constexpr int BYTES = Rings<R>::PIECE_OF_ROWS, TOGETHER = Rings<R>::TOGETHER;
    const uint64_t keep = staying();
    const auto copy = [&](int from, int pieces) { copy_pieces<BYTES * TOGETHER>(clock, ring, of.hops + from, pieces / TOGETHER, keep); };
    const auto await_rows = [&](int count, uint32_t until) {
        await_count(clock, of.count(count), until);
        __syncwarp();
    };
    const int own = of.team * LINE;
    for (int pass = 0; pass < of.passes; ++pass) {
        for (int layer = 0; layer < of.layers; ++layer) {
            await_rows(H::NORMED_DONE, of.normed_until(pass, 2 * layer));
            copy(H::NORMED, Qkv::PIECES);
            await_rows(H::ATTENDED_DONE + own, of.team_until(pass, layer));
            copy(H::ATTENDED + of.team * Output::PIECES * BYTES, Output::PIECES);
            await_rows(H::NORMED_DONE, of.normed_until(pass, 2 * layer + 1));
            copy(H::NORMED, GateUp::PIECES);
            await_rows(H::INNER_DONE + own, of.team_until(pass, layer));
            copy(H::INNER_AT + of.team * Down::PIECES * BYTES, Down::PIECES);
        }
        await_rows(H::NORMED_DONE, of.normed_until(pass, 2 * of.layers));
        copy(H::NORMED, Head::PIECES);
    }
    await_copies(ring);
}

// ---- products ----------------------------------------------------------------------------------------------------------

// Rows of this group of four warps by its N outputs: total[n][i] is of row 16 (warp % 4) + g + 8 (i / 2) of the 64 and output
// 8 n + 2 t + i % 2 of the N. `rows_from`, `weights_from`: where the group's begin in a piece.
template <class P, int N, class RINGS, class ROWS, class WEIGHTS>
__device__ __forceinline__ void multiply(const Clock& clock, ROWS& rows, WEIGHTS& weights, int rows_from, int weights_from, float (&total)[N / 8][4]) {
    constexpr int OF_ROWS = RINGS::TOGETHER;
    static_assert(P::PIECES % OF_ROWS == 0);
    const bool first = threadIdx.x % WARP == 0;
    float sums[2][N / 8][4];
#pragma unroll
    for (int i = 0; i < N; ++i) sums[i / (N / 2)][i % (N / 2) / 4][i % 4] = 0.f;
    // What is added to -0 keeps its bits.
#pragma unroll
    for (int i = 0; i < N / 2; ++i) total[i / 4][i % 4] = -0.f;
    const auto take = [&](int part) {
#pragma unroll
        for (int i = 0; i < N / 2; ++i) total[i / 4][i % 4] = __fadd_rn(total[i / 4][i % 4], sums[part % 2][i / 4][i % 4]);
    };
    uint32_t rows_used = 0, weights_used = 0;
    // What the products before the last ones have read.
    const auto release = [&](int c) {
        if (c % OF_ROWS == OF_ROWS - 1 && first) barrier_arrive(rows_used);
        if (c % P::TOGETHER == P::TOGETHER - 1 && first) barrier_arrive(weights_used);
    };
#pragma unroll
    for (int c = 0; c < P::PIECES; ++c) {
        if (c % P::TOGETHER == 0) await(clock, weights.filled(), weights.phase);
        if (c % OF_ROWS == 0) await(clock, rows.filled(), rows.phase);
        const uint32_t x = rows.data + rows.slot * RINGS::SLOT + c % OF_ROWS * RINGS::PIECE_OF_ROWS + rows_from, w = weights.data + weights.slot * PIECE + c % P::TOGETHER * P::WEIGHTS + weights_from;
        wgmma_begin();
#pragma unroll
        for (int s = 0; s < DEEP / 16; ++s) wgmma_from<N>(sums[c / P::OF_PART % 2], operand(x, s * 32), operand(w, s * 32), c % P::OF_PART == 0 && s == 0);
        wgmma_commit();
        if (c > 0) {
            wgmma_wait<1>();
            release(c - 1);
            if (c % P::OF_PART == 0) take(c / P::OF_PART - 1);
        }
        rows_used = rows.emptied(), weights_used = weights.emptied();
        if (c % OF_ROWS == OF_ROWS - 1) rows.next();
        if (c % P::TOGETHER == P::TOGETHER - 1) weights.next();
    }
    wgmma_wait<0>();
    release(P::PIECES - 1);
    take(P::IN_PARTS - 1);
}
