// The passes of the code predictor behind the first one in one launch, for more rows than predictor_90a.cu takes: BLOCKS blocks
// that stay on the device together. Weights are copied ahead, rows by pieces of 64 inputs as soon as they are there.
//
// Seven hand-offs make a layer: queries, keys and values; attention, by the block that has a row and kv head; eight parts of
// the output, which the block that has a row adds up, with its residual, and norms; the inner activations; the parts of the
// sums behind them; and the row once more. Three of them are among the 16 blocks of a team. A block that has a row also picks
// its code, and embeds it. All sums are added in the order of linear.cu, common.cuh and attention.cu, so the codes are those
// of the graph's kernels, bit by bit.
//
// The launch must be cooperative; see persistent.cuh of waits. Compiled for compute capability 9.0a; on other devices these
// kernels must not be called.

#include "predictor_many.cuh"

namespace {

struct RowShared {
    alignas(16) float row[HIDDEN]; // the residual of this block's row
    ShortAsked asked[4];
    float squares[2][PARTS][8];
};

template <int R>
__device__ __forceinline__ void predict(const PredictorArgs& a, const Clock& clock, const Blocks<R>& of, RowShared& s, Picking& picking, RowPlace<R> rows, WeightPlace<R> weights) {
    using H = Handed<R>;
    constexpr bool BOTH = R > 64; // whether each group of four warps has rows of its own, or outputs
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int group = __shfl_sync(~0u, warp / 4, 0); // the same for a warp: operands of products have to be
    const int j = blockIdx.x % TEAM;
    const int row_here = blockIdx.x * R / BLOCKS;
    const bool has_row = blockIdx.x % (BLOCKS / R) == 0;
    unsigned char* const hops = of.hops;
    float residual[4] = {}; // of this block's row, numbers 4 threadIdx.x and on
    int parity = 0;
    constexpr int OWN_ROWS = R / TEAM; // whose attention this block has
    size_t page[(OWN_ROWS + 3) / 4];
#pragma unroll
    for (int i = 0; i < (OWN_ROWS + 3) / 4; ++i) page[i] = a.pages[static_cast<size_t>(min(j * OWN_ROWS + i * 4 + warp / 2, a.count - 1)) * a.max_pages];

    // `put(row, output, sums)` gets four sums: of this output and the next one of a row, and of the eighth row behind it.
    const auto product = [&](auto of_product, auto put) {
        using P = decltype(of_product);
        constexpr int N = BOTH ? P::OUTPUTS : P::OUTPUTS / 2;
        float total[N / 8][4];
        multiply<P, N, Rings<R>>(clock, rows, weights, BOTH ? group * 64 * DEEP * 2 : 0, BOTH ? 0 : group * N * DEEP * 2, total);
        const int row = (BOTH ? group * 64 : 0) + warp % 4 * 16 + g;
        if (row - g >= R) return;
#pragma unroll
        for (int n = 0; n < N / 8; ++n) put(row, (BOTH ? 0 : group * N) + 8 * n + 2 * t, total[n]);
    };
    // Norms this block's row, which all threads hold, and hands it on.
    const auto hand_normed = [&](const bf16* gain) {
        if (row_here < a.count) {
            const uint2 gains = *reinterpret_cast<const uint2*>(gain + threadIdx.x * 4);
            *reinterpret_cast<float4*>(s.row + threadIdx.x * 4) = make_float4(residual[0], residual[1], residual[2], residual[3]);
            meet();
            const float scale = scales_of(lane_squares(s.row + warp * (HIDDEN / PARTS) + t * 8, HIDDEN / PARTS), HIDDEN, a.eps, s.squares[parity], [] { meet(); });
            parity ^= 1;
            unsigned char* to = hops + H::NORMED;
            *reinterpret_cast<uint32_t*>(to + piece_at<R>(row_here, threadIdx.x * 4)) =
                packed(normed(residual[0], scale, low_half(gains.x)), normed(residual[1], scale, high_half(gains.x)));
            *reinterpret_cast<uint32_t*>(to + piece_at<R>(row_here, threadIdx.x * 4 + 2)) =
                packed(normed(residual[2], scale, low_half(gains.y)), normed(residual[3], scale, high_half(gains.y)));
        }
        done(of.count(H::NORMED_DONE));
    };
    // Adds what all teams have of this block's row to its residual, and norms it.
    const auto add_and_norm = [&](uint32_t until, const bf16* gain) {
        if (!has_row) return;
        await_all(clock, of.count(H::PARTS_DONE), until);
        if (row_here < a.count) {
            const float4* from = reinterpret_cast<const float4*>(hops + H::SUMS) + row_here * (HIDDEN / 4) + threadIdx.x;
            float4 part[PARTS];
#pragma unroll
            for (int p = 0; p < PARTS; ++p) part[p] = __ldcg(from + p * R * (HIDDEN / 4));
            float4 sum = part[0];
#pragma unroll
            for (int p = 1; p < PARTS; ++p)
                sum = make_float4(__fadd_rn(sum.x, part[p].x), __fadd_rn(sum.y, part[p].y), __fadd_rn(sum.z, part[p].z), __fadd_rn(sum.w, part[p].w));
            residual[0] = __fadd_rn(residual[0], sum.x), residual[1] = __fadd_rn(residual[1], sum.y);
            residual[2] = __fadd_rn(residual[2], sum.z), residual[3] = __fadd_rn(residual[3], sum.w);
        }
        hand_normed(gain);
    };
    // A part of the sums of 64 outputs.
    const auto hand_part = [&](int row, int output, const float (&sums)[4]) {
        float* to = reinterpret_cast<float*>(hops + H::SUMS) + (of.team * R + row) * HIDDEN + j * 64 + output;
        *reinterpret_cast<float2*>(to) = make_float2(sums[0], sums[1]);
        *reinterpret_cast<float2*>(to + 8 * HIDDEN) = make_float2(sums[2], sums[3]);
    };
    // Where the numbers of the i-th row of this pair of warps begin in a layer's cache.
    const auto cached_at = [&](int i) { return (page[i] * KV_HEADS + of.team) * (POSITIONS * HEAD); };
    // Rows and kv heads of this block by pairs of warps. `done` is called when the first ones have read what is in the cache.
    const auto attend = [&](int layer, int position, uint32_t until, auto done) {
        AttentionArgs at = {};
        at.qkv = hops + H::QKV;
        at.q_norm = a.qk_norm + layer * 2 * HEAD;
        at.k_norm = a.qk_norm + (layer * 2 + 1) * HEAD;
        at.inv_freq = a.frequencies;
        at.keys = a.keys + layer * a.layer_size;
        at.values = a.values + layer * a.layer_size;
        at.heads = HEADS, at.kv_heads = KV_HEADS, at.head_dim = HEAD;
        at.eps = a.eps, at.scale = a.scale;
        const int pair = warp / 2;
#pragma unroll
        for (int i = 0; i < (OWN_ROWS + 3) / 4; ++i) {
            const int row = j * OWN_ROWS + i * 4 + pair;
            const bool there = i * 4 + pair < OWN_ROWS && row < a.count;
            const auto position_at = [&](int p) { return cached_at(i) + p * HEAD; };
            ShortCached cached(at, there ? position : 0, position_at);
            if (i == 0) done();
            if (!there) continue;
            attend_short(at, s.asked[pair], cached, row, of.team, warp % 2, position, position_at,
                         [&] { await_all(clock, of.of_team(H::QKV_DONE), until); },
                         [&] { asm volatile("bar.sync %0, 64;" ::"r"(2 + pair) : "memory"); },
                         [&](int head, int quarter, uint32_t front, uint32_t back) {
                             unsigned char* to = hops + H::ATTENDED;
                             *reinterpret_cast<uint32_t*>(to + piece_at<R>(row, head * HEAD + quarter * 4)) = front;
                             *reinterpret_cast<uint32_t*>(to + piece_at<R>(row, head * HEAD + quarter * 4 + 2)) = back;
                         });
        }
    };

    if (has_row) {
        begin_picking(a, picking, row_here);
        const float4 x = reinterpret_cast<const float4*>(a.x + static_cast<size_t>(min(row_here, a.count - 1)) * HIDDEN)[threadIdx.x];
        residual[0] = x.x, residual[1] = x.y, residual[2] = x.z, residual[3] = x.w;
        meet();
        hand_normed(a.gains);
    }
#pragma unroll 1
    for (int pass = 0; pass < of.passes; ++pass) {
        const int position = a.first + pass + 1;
#pragma unroll 1
        for (int layer = 0; layer < of.layers; ++layer) {
            const uint32_t until = of.team_until(pass, layer);
            product(Qkv(), [&](int row, int output, const float (&sums)[4]) {
                // 32 neighbours of one of both queries, of the key, or of the value.
                const int kind = j / 4, head = kind < 2 ? of.team * 2 + kind : HEADS + (kind - 2) * KV_HEADS + of.team;
                uint32_t* to = reinterpret_cast<uint32_t*>(hops + H::QKV) + (row * (HEADS + 2 * KV_HEADS) * HEAD + head * HEAD + j % 4 * 32 + output) / 2;
                to[0] = packed(sums[0], sums[1]);
                to[8 * (HEADS + 2 * KV_HEADS) * HEAD / 2] = packed(sums[2], sums[3]);
            });
            attend(layer, position, until, [&] { done(of.of_team(H::QKV_DONE)); });
            done(of.of_team(H::ATTENDED_DONE));
            product(Output(), hand_part);
            done(of.count(H::PARTS_DONE));
            const bf16* gains = a.gains + (2 * layer + 1) * HIDDEN;
            add_and_norm(of.sums_until(pass, layer, 0), gains);
            product(GateUp(), [&](int row, int output, const float (&sums)[4]) {
                // Outputs are gate and up of a result in turns; neighbours of a row go out together.
                const float own[2] = {silu(sums[0]) * sums[1], silu(sums[2]) * sums[3]};
                const bool odd = t % 2 == 1;
                const float other = __shfl_xor_sync(~0u, odd ? own[0] : own[1], 1);
                const int result = blockIdx.x * (GateUp::OUTPUTS / 2) + (output - 2 * t) / 2 + (t & 2);
                *reinterpret_cast<uint32_t*>(hops + H::INNER_AT + piece_at<R>(odd ? row + 8 : row, result)) = odd ? packed(other, own[1]) : packed(own[0], other);
            });
            done(of.of_team(H::INNER_DONE));
            product(Down(), hand_part);
            done(of.count(H::PARTS_DONE));
            add_and_norm(of.sums_until(pass, layer, 1), gains + HIDDEN);
        }
        product(Head(), [&](int row, int output, const float (&sums)[4]) {
            float* to = reinterpret_cast<float*>(hops + H::LOGITS) + row * CODES + blockIdx.x * Head::OUTPUTS + output;
            *reinterpret_cast<float2*>(to) = make_float2(sums[0], sums[1]);
            *reinterpret_cast<float2*>(to + 8 * CODES) = make_float2(sums[2], sums[3]);
        });
        done(of.count(H::LOGITS_DONE));
        if (!has_row) continue;
        await_all(clock, of.count(H::LOGITS_DONE), of.logits_until(pass));
        const int code = pick_code(a, picking, row_here, a.first + pass, [&](float(&raw)[EACH]) {
            const float4* from = reinterpret_cast<const float4*>(hops + H::LOGITS) + row_here * (CODES / 4) + threadIdx.x * 2;
            const float4 front = __ldcg(from), back = __ldcg(from + 1);
            raw[0] = front.x, raw[1] = front.y, raw[2] = front.z, raw[3] = front.w, raw[4] = back.x, raw[5] = back.y, raw[6] = back.z, raw[7] = back.w;
        });
        if (pass + 1 < of.passes) {
            const bf16* table = reinterpret_cast<const bf16*>(a.narrowed[a.first + pass]) + static_cast<size_t>(code) * HIDDEN;
            const uint2 v = reinterpret_cast<const uint2*>(table)[threadIdx.x];
            residual[0] = low_half(v.x), residual[1] = high_half(v.x), residual[2] = low_half(v.y), residual[3] = high_half(v.y);
            hand_normed(a.gains);
        }
    }
    meet();
    if (has_row && picking.row.slot != NONE) add_embeddings(a, picking);
    if (threadIdx.x == 0) {
        if (blockIdx.x == 0) *reinterpret_cast<volatile uint32_t*>(hops + H::LAUNCH) = of.launch + 1;
        if (clock.nearly_over()) *reinterpret_cast<volatile uint32_t*>(a.stalled) = 1;
    }
}

// Registers as those of predictor_90a.cu.
template <int R>
__device__ __forceinline__ void predictor_many(const PredictorArgs& a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) unsigned char dynamic[];
    __shared__ Picking picking;
    __shared__ uint64_t barriers[64];
    const Clock clock = {static_cast<uint32_t>(::clock()), a.limit};
    const uint32_t full = shared_at(barriers), data = shared_at(dynamic);
    const RowPlace<R> rows = {full, full + 128, data, 0, 0};
    const WeightPlace<R> weights = {full + 256, full + 384, data + Rings<R>::ROWS, 0, 0};
    if (threadIdx.x == 0) {
        begin_ring(rows.full, rows.empty, Rings<R>::SLOTS);
        begin_ring(weights.full, weights.empty, Rings<R>::WEIGHTS);
    }
    __syncthreads();
    unsigned char* const hops = reinterpret_cast<unsigned char*>(a.hops);
    const Blocks<R> of = {{hops, static_cast<int>(blockIdx.x) / TEAM}, *reinterpret_cast<volatile uint32_t*>(hops), a.passes - a.first, a.layers};
    if (threadIdx.x >= COMPUTING) {
        keep_registers<32>();
        if (threadIdx.x == COMPUTING) copy_many_weights(a, clock, weights.full, weights.empty, weights.data);
        if (threadIdx.x / WARP == COMPUTING / WARP + 1) copy_rows<R>(a, clock, of, rows);
    } else {
        take_registers<152>();
        predict<R>(a, clock, of, *reinterpret_cast<RowShared*>(dynamic + Rings<R>::ROWS + Rings<R>::WEIGHTS * PIECE), picking, rows, weights);
    }
#endif
}

} // namespace

// What a launch allocates behind the ring of weights, and its memory.
static_assert(sizeof(RowShared) == 10752 && Handed<32>::SIZE == 4096 + 32 * 61440);
#define PREDICTOR_MANY(R) \
    extern "C" __global__ void __maxnreg__(112) predictor_many_##R(const __grid_constant__ PredictorArgs a) { predictor_many<R>(a); }
PREDICTOR_MANY(32)
PREDICTOR_MANY(64)
PREDICTOR_MANY(128)

// ---- loading -----------------------------------------------------------------------------------------------------------

// A layer's weights, or a head's, in the order in which blocks take them: by pieces of so many outputs by 64 dealt inputs,
// shuffled as tensor maps of 128 bytes do. A thread packs 16 bytes.
extern "C" __global__ void __launch_bounds__(256) pack_predictor_many(const __grid_constant__ PackArgs a) {
    const bool head = a.head != nullptr;
    const uint32_t count = static_cast<uint32_t>(BLOCKS) * (head ? MANY_HEAD_STAGES * PIECE : MANY_BYTES) / 16;
    for (uint32_t at = blockIdx.x * 256 + threadIdx.x; at < count; at += gridDim.x * 256) {
        // What of a piece: `output` of so many, eight dealt inputs from `unit` on.
        const auto pack = [&](const bf16* weights, int outputs, int inputs, uint32_t from, int together, auto row_of) {
            const uint32_t of_stage = static_cast<uint32_t>(outputs) * 8 * together, stage = from / (of_stage * BLOCKS), b = from / of_stage % BLOCKS, in = from % of_stage;
            const int piece = stage * together + in / (outputs * 8), output = in / 8 % outputs, unit = in % 8 ^ output % 8;
            const bf16* row = weights + static_cast<size_t>(row_of(b, output)) * inputs;
            uint32_t words[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                // The pair of inputs that is dealt to this place.
                const int place = unit * 8 + 2 * i, k = (place & 32) | (place & 16) >> 2 | (place & 8) >> 2 | (place & 6) << 2;
                words[i] = *reinterpret_cast<const uint32_t*>(row + (inputs == HIDDEN ? 0 : b / TEAM * (inputs / PARTS)) + piece * DEEP + k);
            }
            a.to[at] = make_uint4(words[0], words[1], words[2], words[3]);
        };
        constexpr uint32_t UNIT = static_cast<uint32_t>(BLOCKS) / 16; // of a byte of a block
        constexpr uint32_t OUTPUT = OUTPUT_AT * PIECE * UNIT, GATE = GATE_UP_AT * PIECE * UNIT, DOWN = (MANY_BYTES - (MANY_STAGES - DOWN_AT) * PIECE) * UNIT;
        if (head) {
            pack(a.head, Head::OUTPUTS, HIDDEN, at, Head::TOGETHER, [](int b, int output) { return b * Head::OUTPUTS + output; });
        } else if (at < OUTPUT) {
            pack(a.qkv, Qkv::OUTPUTS, HIDDEN, at, Qkv::TOGETHER, [](int b, int output) {
                const int team = b / TEAM, kind = b % TEAM / 4, of = kind < 2 ? team * 2 + kind : HEADS + (kind - 2) * KV_HEADS + team;
                return of * HEAD + b % 4 * 32 + output;
            });
        } else if (at < GATE) {
            pack(a.output, Output::OUTPUTS, HEADS * HEAD, at - OUTPUT, 1, [](int b, int output) { return b % TEAM * 64 + output; });
        } else if (at < DOWN) {
            pack(a.gate_up, GateUp::OUTPUTS, HIDDEN, at - GATE, 1, [](int b, int output) {
                const int result = b * (GateUp::OUTPUTS / 2) + output / 2;
                return output % 2 == 0 ? gate_row(result) : gate_row(result) + 8;
            });
        } else {
            pack(a.down, Down::OUTPUTS, INNER, at - DOWN, 1, [](int b, int output) { return b % TEAM * 64 + output; });
        }
    }
}
