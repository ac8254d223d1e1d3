// All layers of a thinker, whose feed-forward blocks are mixtures of experts, in one launch for one sequence: BLOCKS blocks that
// stay on the device together, hand their results on through the second-level cache, and have the next weights copied while
// they wait.
//
// Six hand-offs make a layer: queries, keys and values; attention, by a block for each kv head; the residual behind the output;
// the logits of the experts, one by each block, from which each block picks the same ones; the inner activations; the residual
// behind them. Of the experts' first products a block has a sixteenth of one expert's, of the second ones 16 outputs of all.
// Sums are added in the order of linear.cu, group_attention.cuh and moe.cu, so the residual and the cache are those that the
// kernels of the graph give, bit by bit.
//
// The launch must be cooperative: a block that is not there is waited for. A wait that lasts too long ends all waits, and
// the host is told; see `Clock`. Compiled for compute capability 9.0a; on other devices these kernels must not be called.

#include "thinker.cuh"

namespace {

// Attends for a kv head, in all layers: norms and turns the heads that the team hands on, and mixes the values that they ask
// for. The order is attend_alone's of group_attention.cu.
[[maybe_unused]] __device__ __forceinline__ void attend(const ThinkerArgs& a, const Clock& clock, Attending& s) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, kv_head = blockIdx.x - BLOCKS;
    const uint32_t base = *reinterpret_cast<volatile uint32_t*>(a.hops) * EPOCHS;
    const int position = a.positions[0];
    const uint32_t* pages = a.pages + static_cast<size_t>(a.slots[0]) * a.max_pages;
    const auto place = [&](int at) { return ((static_cast<size_t>(pages[at / PAGE]) * KV_HEADS + kv_head) * PAGE + at % PAGE) * DIM; };
    if (threadIdx.x < DIM / 2) {
        const float at = a.axes != nullptr ? a.axes[a.axis_of[threadIdx.x]] : static_cast<float>(position);
        sincosf(__fmul_rn(at, a.frequencies[threadIdx.x]), &s.turns[threadIdx.x].x, &s.turns[threadIdx.x].y);
    }
    meet();
    const float scale = a.scale * LOG2E;
    const size_t own = position < 0 ? 0 : place(position); // where a layer's cache takes the position
    bf16 *keys = a.keys, *values = a.values; // of a layer
    // This warp's pieces in shared memory, one at a time.
    unsigned char* const piece = s.pieces[warp][0];
    const uint32_t piece_at = shared_at(piece), value_at = piece_at + PIECE_BYTES;
    // Zeros in place of the position itself and of what lies beyond: a weight of zero times what is no number is none either.
    const auto fetch = [&](int first) {
        if (first > position) return;
        const int chunk = lane % 16;
#pragma unroll 2
        for (int of = lane / 16; of < PIECE; of += 2) {
            const bool there = first + of < position;
            const size_t lies = place(there ? first + of : first) + chunk * 8;
            const int to = lies_in_piece(of, chunk);
            copy_async(piece_at + to, keys + lies, there);
            copy_async(value_at + to, values + lies, there);
        }
        commit_copies();
    };
    const uint4* const from = a.hops + Hops::QKV + kv_head * ASKED * Hops::OF_HEAD + lane;
#pragma unroll 1
    for (int layer = 0; layer < a.layers; ++layer) {
        const uint32_t epoch = base + layer + 2;
        // The layer's cache comes closer while its heads are computed.
        for (int at = STREAMS * PIECE + threadIdx.x * PAGE; at < position; at += COMPUTING * PAGE) {
            const size_t page = place(at);
            prefetch(keys + page, PAGE * DIM * 2);
            prefetch(values + page, PAGE * DIM * 2);
        }
        fetch(warp * PIECE);
        {
            // A query by each warp, and beside it the key, which the seventh keeps, and the value, which the eighth keeps.
            const bf16* gain = a.qk_norm + layer * 2 * DIM + lane;
            float gains[2][4], x[2][4];
#pragma unroll
            for (int i = 0; i < 4; ++i) gains[0][i] = to_float(gain[32 * i]), gains[1][i] = to_float(gain[DIM + 32 * i]);
            const float2 turns[2] = {s.turns[lane], s.turns[lane + 32]};
            uint2 raw[2];
            const int second = warp == 7 ? GROUP + 1 : GROUP;
            receive<2>(clock, epoch, from, [&](int i) { return (i == 0 ? warp : second) * Hops::OF_HEAD; }, [&](int i, const Packet& q) { raw[i] = make_uint2(q.x, q.y); });
            __syncwarp();
            if (position < 0) {
                store_packet(a.hops + Hops::ATTENDED + (kv_head * GROUP + warp) * Hops::OF_HEAD + lane, 0, 0, 0, epoch);
                continue;
            }
            reinterpret_cast<uint2*>(s.queries[warp])[lane] = raw[0];
            if (warp == 6) reinterpret_cast<uint2*>(s.key)[lane] = raw[1];
            if (warp == 7) {
                reinterpret_cast<uint2*>(s.value)[lane] = raw[1];
                reinterpret_cast<uint2*>(values + own)[lane] = raw[1];
            }
            __syncwarp();
            bf16* const to[2] = {s.queries[warp] + lane, warp == 6 ? s.key + lane : s.queries[warp] + lane};
#pragma unroll
            for (int i = 0; i < 4; ++i) x[0][i] = to_float(to[0][32 * i]), x[1][i] = to_float(to[1][32 * i]);
            // Nothing is scaled: times 1 changes no bit.
            norm_and_turn(x[0], gains[0], turns, a.eps, 1.f);
            norm_and_turn(x[1], gains[1], turns, a.eps, 1.f);
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                to[0][32 * i] = __float2bfloat16_rn(x[0][i]);
                if (warp == 6) {
                    to[1][32 * i] = __float2bfloat16_rn(x[1][i]);
                    keys[own + lane + 32 * i] = __float2bfloat16_rn(x[1][i]);
                }
            }
        }
        meet();
        uint4 query[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) query[i] = *reinterpret_cast<const uint4*>(&s.queries[g][i * 32 + t * 8]);
        Seen<1> seen;
        seen.clear();
#pragma unroll 1
        for (int first = warp * PIECE; first <= position; first += STREAMS * PIECE) {
            const int here = position - first; // where the position itself belongs, if it is of this piece
            wait_copies<0>();
            __syncwarp();
            if (here < PIECE) {
                const int to = lies_in_piece(here, lane / 2) + lane % 2 * 8;
                *reinterpret_cast<uint2*>(piece + to) = reinterpret_cast<const uint2*>(s.key)[lane];
                *reinterpret_cast<uint2*>(piece + PIECE_BYTES + to) = reinterpret_cast<const uint2*>(s.value)[lane];
                __syncwarp();
            }
            float score[KEYS][2] = {};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                uint4 key[KEYS];
#pragma unroll
                for (int n = 0; n < KEYS; ++n) key[n] = load_shared(piece_at + lies_in_piece(n * 8 + g, i * 4 + t));
#pragma unroll
                for (int half = 0; half < 2; ++half) {
#pragma unroll
                    for (int n = 0; n < KEYS; ++n) mma_eight_half(score[n], query[i], key[n], half);
                }
            }
            uint32_t weights[PIECE / 16][2];
            const int limit[1] = {here};
            seen.weigh(score, limit, scale, weights);
#pragma unroll
            for (int b = 0; b < PIECE / 16; ++b) {
#pragma unroll
                for (int j = 0; j < VALUES / 2; ++j) {
                    uint32_t v[4];
                    load_transposed(v, value_at + lies_in_piece(b * 16 + lane % 16, j * 2 + lane / 16));
                    mma_eight(seen.mix[j * 2], weights[b][0], weights[b][1], v[0], v[1]);
                    mma_eight(seen.mix[j * 2 + 1], weights[b][0], weights[b][1], v[2], v[3]);
                }
            }
            __syncwarp();
            fetch(first + STREAMS * PIECE);
        }
        const float own_sum = over_lanes(seen.sum[0]);
        if (t == 0) s.most[warp][g] = seen.most[0], s.sum[warp][g] = own_sum;
        meet(); // pieces have been read
#pragma unroll
        for (int n = 0; n < VALUES; ++n) *reinterpret_cast<float2*>(&s.mixed[warp][g][n * 8 + 2 * t]) = make_float2(seen.mix[n][0], seen.mix[n][1]);
        meet();
        // A warp adds up the streams of a head that have seen a position.
        float most = s.most[0][warp], total = s.sum[0][warp], all[DIM / WARP];
#pragma unroll
        for (int i = 0; i < DIM / WARP; ++i) all[i] = s.mixed[0][warp][i * WARP + lane];
#pragma unroll 1
        for (int k = 1; k < min(STREAMS, position / PIECE + 1); ++k) {
            const Shares shares(most, s.most[k][warp], scale);
            most = shares.most;
            total = shares.of(total, s.sum[k][warp]);
#pragma unroll
            for (int i = 0; i < DIM / WARP; ++i) all[i] = shares.of(all[i], s.mixed[k][warp][i * WARP + lane]);
        }
#pragma unroll
        for (int i = 0; i < DIM / WARP; ++i) s.queries[warp][i * WARP + lane] = __float2bfloat16_rn(__fdiv_rn(all[i], total));
        __syncwarp();
        const uint2 mix = reinterpret_cast<const uint2*>(s.queries[warp])[lane];
        store_packet(a.hops + Hops::ATTENDED + (kv_head * GROUP + warp) * Hops::OF_HEAD + lane, mix.x, mix.y, 0, epoch);
        keys += a.layer_size;
        values += a.layer_size;
        meet(); // pieces come where the mixed numbers are
    }
}

// Picks the experts of the position: `route` of moe.cu.
__device__ __forceinline__ void route(const ThinkerArgs& a, const Ring<Boxes>& ring, Shared& s, uint32_t epoch) {
    constexpr int EACH = EXPERTS / WARP;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    // One warp asks, because all blocks ask for the same.
    if (warp == 0) {
        float own[EACH], most = -INFINITY, total = 0.f;
        receive<EACH>(ring.clock, epoch, a.hops + Hops::LOGITS + lane, [](int i) { return i * WARP; }, [&](int i, const Packet& q) { own[i] = __uint_as_float(q.x); });
        __syncwarp();
#pragma unroll
        for (int i = 0; i < EACH; ++i) most = fmaxf(most, own[i]);
#pragma unroll
        for (int mask = WARP / 2; mask > 0; mask /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, mask));
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            own[i] = expf(own[i] - most);
            total += own[i];
        }
        total = warp_sum(total);
#pragma unroll
        for (int i = 0; i < EACH; ++i) s.shares[i / 2][lane + i % 2 * WARP] = own[i] / total;
    }
    meet();
    // How many are better, by two threads for each. Shares are no less than zero, so their bits are in their order. Those that
    // are not numbers are all alike: the row is lost, which is found where its token is picked.
    const int expert = threadIdx.x / 2, half = threadIdx.x % 2, beyond = expert - half * (EXPERTS / 2); // the first that does not come before it
    const float own = s.shares[expert / (EXPERTS / 2)][expert % (EXPERTS / 2)];
    const uint32_t share = __float_as_uint(own);
    int better[4] = {};
#pragma unroll 8
    for (int i = 0; i < EXPERTS / 2; i += 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(s.shares[half] + i);
        better[0] += four.x + (i < beyond) > share;
        better[1] += four.y + (i + 1 < beyond) > share;
        better[2] += four.z + (i + 2 < beyond) > share;
        better[3] += four.w + (i + 3 < beyond) > share;
    }
    int rank = better[0] + better[1] + better[2] + better[3];
    rank += __shfl_xor_sync(~0u, rank, 1);
    const bool picked = half == 0 && rank < CHOICES;
    const uint32_t beside = __ballot_sync(~0u, picked);
    if (lane == 0) s.picked[warp] = __popc(beside);
    meet();
    if (!picked) return;
    int place = __popc(beside & ((1u << lane) - 1));
#pragma unroll
    for (int w = 0; w < PARTS; ++w) place += w < warp ? s.picked[w] : 0;
    s.chosen[place] = expert;
    s.rank[place] = rank;
    s.best[rank] = own;
    barrier_arrive(signal_of(ring.full));
}

// Of registers: a choice between whole vectors would be one between addresses.
__device__ __forceinline__ uint4 either(bool first, const uint4& a, const uint4& b) {
    return make_uint4(first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w);
}

[[maybe_unused]] __device__ __forceinline__ void run_layers(const ThinkerArgs& a, Shared& s, Ring<Boxes> ring) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int b = blockIdx.x, team = b / TEAM, j = b % TEAM;
    const Clock clock = ring.clock;
    uint4* const hops = a.hops;
    const uint32_t launch = *reinterpret_cast<volatile uint32_t*>(hops), base = launch * EPOCHS;
    unsigned char* const rows = s.rows[warp];
    float* const raw = reinterpret_cast<float*>(rows + Shared::PART * 2);
    float* const sums = s.sums[warp];
    constexpr int NEXT = sizeof(s.sums[0]) / 4; // numbers from one part's sums to the next one's
    const uint32_t rows_at = shared_at(rows);
    int parity = 0;

    const auto wide = [&](int at) { return total_of(s.sums[0], NEXT, at); };
    // This warp's part of the residual, normed with the other warps.
    const auto norm_in = [&](int kind, uint32_t epoch, const bf16* gain) {
        const int input = g * STEP + t * 8; // the first of eight that this lane norms
        const uint4 gains = *reinterpret_cast<const uint4*>(gain + warp * Shared::PART + input);
        receive<4>(clock, epoch, hops + kind + warp * (Hops::OF_RESIDUAL / PARTS) + lane, [](int i) { return i * WARP; },
                   [&](int i, const Packet& q) { reinterpret_cast<float2*>(raw)[i * WARP + lane] = make_float2(__uint_as_float(q.x), __uint_as_float(q.y)); });
        __syncwarp();
        const float scale = scales_of(lane_squares(raw + t * 8, Shared::PART), HIDDEN, a.eps, s.squares[parity], meet);
        parity ^= 1;
        const float4* at = reinterpret_cast<const float4*>(raw + input);
        *reinterpret_cast<uint4*>(rows + input * 2) = normed8(at[0], at[1], scale, gains);
        __syncwarp();
    };
    // Sums of tiles to shared memory. Ends with the warps together.
    const auto share = [&](auto tiles, const auto& acc) {
        if (t == 0) {
#pragma unroll
            for (int tile = 0; tile < decltype(tiles)::value; ++tile) {
                sums[tile * TILE + output_of(g)] = acc[tile][0];
                sums[tile * TILE + output_of(g) + 8] = acc[tile][2];
            }
        }
        meet();
    };

    float residual = 0.f; // of output 16 b + lane, in the first warp
    float* const x = a.x + b * TILE + lane % TILE;
    if (warp == 0) residual = *x;
    const auto hand_on = [&](int kind, uint32_t epoch) { send_pairs<TILE>(hops + kind + b * (TILE / 2) + lane, residual, lane, epoch); };
    if (warp == 0) hand_on(Hops::END, base + 1);

#pragma unroll 1
    for (int layer = 0; layer < a.layers; ++layer) {
        const uint32_t epoch = base + layer + 2;
        const bf16* gains = a.gains + layer * 2 * HIDDEN;
        {
            uint4 f[6][4];
            take_ahead<6>(ring, f, lane);
            norm_in(Hops::END, epoch - 1, gains);
            float acc[QKV_TILES][4] = {};
            product<QKV_TILES, Shared::PART / CHUNK, 1, Shared::ROW, 6, 2>(ring, f, rows_at, acc, lane);
            share(Count<QKV_TILES>{}, acc);
        }
        if (warp < 2) {
            // Eight elements of each of the boxes: the first warp has four boxes, the second one.
            const float own = wide(warp * 32 + lane % (warp == 0 ? 32 : 8));
            const uint32_t low = half_bits(__shfl_sync(~0u, own, lane * 4 % 32)), high = half_bits(__shfl_sync(~0u, own, (lane * 4 + 1) % 32));
            const uint32_t third = half_bits(__shfl_sync(~0u, own, (lane * 4 + 2) % 32)), last = half_bits(__shfl_sync(~0u, own, (lane * 4 + 3) % 32));
            // A packet has four elements, which are neighbours in the order of the team's heads.
            if (lane < (warp == 0 ? 8 : 2)) {
                store_packet(hops + Hops::QKV + team * ASKED * Hops::OF_HEAD + j * (ASKED_BOXES * 2) + warp * 8 + lane, low | high << 16, third | last << 16, 0, epoch);
            }
        }
        {
            uint4 f[4][4];
            take_ahead<4>(ring, f, lane);
            constexpr int PACKETS = HEADS / PARTS * Hops::OF_HEAD;
            receive<4>(clock, epoch, hops + Hops::ATTENDED + warp * PACKETS + lane, [](int i) { return i * WARP; },
                       [&](int i, const Packet& q) { reinterpret_cast<uint2*>(rows)[i * WARP + lane] = make_uint2(q.x, q.y); });
            __syncwarp();
            float acc[1][4] = {};
            product<1, OUTPUT_STAGES, 1, Shared::ROW, 4, 4>(ring, f, rows_at, acc, lane);
            meet(); // sums have been read
            share(Count<1>{}, acc);
            if (warp == 0) {
                residual = __fadd_rn(residual, wide(lane % TILE));
                hand_on(Hops::MIDDLE, epoch);
            }
        }
        {
            // The logit of one expert.
            uint4 router[Shared::PART / STEP];
            const bf16* from = a.routers[layer] + static_cast<size_t>(b) * HIDDEN + warp * Shared::PART + t * 8;
#pragma unroll
            for (int i = 0; i < Shared::PART / STEP; ++i) {
                router[i] = make_uint4(0, 0, 0, 0);
                if (g == 0) router[i] = load_weights(from + i * STEP);
            }
            norm_in(Hops::MIDDLE, epoch, gains + HIDDEN);
            float acc[4] = {};
#pragma unroll
            for (int i = 0; i < Shared::PART / STEP; ++i) {
                mma_step(acc, router[i], make_uint4(0, 0, 0, 0), load_shared(rows_at + i * (STEP * 2) + t * 16));
            }
            if (lane == 0) s.logits[warp] = acc[0];
            meet();
            if (threadIdx.x == 0) store_packet(hops + Hops::LOGITS + b, __float_as_uint(total_of(s.logits, 1, 0)), 0, 0, epoch);
        }
        route(a, ring, s, epoch);
        {
            uint4 f[6][4];
            take_ahead<6>(ring, f, lane);
            float acc[GATE_UP_TILES][4] = {};
            product<GATE_UP_TILES, Shared::PART / CHUNK, 1, Shared::ROW, 6, 1>(ring, f, rows_at, acc, lane);
            share(Count<GATE_UP_TILES>{}, acc);
        }
        if (warp == 0) {
            // Two inner activations of each of the first 24 lanes.
            const int first = min(lane, RESULTS / 2 - 1) * 2, at = first / 8 * TILE + first % 8;
            const uint32_t both = packed(silu(wide(at)) * wide(at + 8), silu(wide(at + 1)) * wide(at + 9));
            uint32_t w[3];
#pragma unroll
            for (int i = 0; i < 3; ++i) w[i] = __shfl_sync(~0u, both, (lane * 3 + i) & 31);
            if (lane < RESULTS / 6) store_packet(hops + Hops::INNERS + b * (RESULTS / 6) + lane, w[0], w[1], w[2], epoch);
        }
        {
            // An expert by each warp, in one chain of sums over all inputs: down_tile of moe.cu.
            receive<4>(clock, epoch, hops + Hops::INNERS + warp * Hops::OF_CHOICE + lane, [](int i) { return i * WARP; }, [&](int i, const Packet& q) {
                uint32_t* word = reinterpret_cast<uint32_t*>(rows) + (i * WARP + lane) * 3;
                word[0] = q.x, word[1] = q.y, word[2] = q.z;
            });
            __syncwarp();
            constexpr int STEPS = WIDE / STEP;
            const uint32_t own = warp % 2 * (STAGE / 2) + g * (WIDE * 2) + t * 16, data = ring.data - Boxes::own(warp, lane);
            // Of two steps, lanes of odd rows load the second one first: they would meet the others in a bank.
            const bool odd = g % 2 != 0;
            float acc[4] = {};
            uint32_t x_at = rows_at + t * 16;
#pragma unroll 1
            for (int stage = 0; stage < DOWN_STAGES; ++stage) {
                await(clock, ring.full + ring.slot * 8, ring.phase);
                const uint32_t w_at = data + ring.slot * STAGE + own;
                if (stage % (CHOICES / 2) != warp / 2) {
                    pass(ring, lane);
                    continue;
                }
                uint4 w[STEPS][2];
#pragma unroll
                for (int i = 0; i < STEPS; ++i) {
                    const uint32_t at = w_at + (odd ? i ^ 1 : i) * (STEP * 2);
                    w[i][0] = load_shared(at);
                    w[i][1] = load_shared(at + 8 * (WIDE * 2));
                }
                pass(ring, lane);
#pragma unroll
                for (int i = 0; i < STEPS; ++i) {
                    mma_step(acc, either(odd, w[i ^ 1][0], w[i][0]), either(odd, w[i ^ 1][1], w[i][1]), load_shared(x_at + i * (STEP * 2)));
                }
                x_at += WIDE * 2;
            }
            meet(); // sums have been read
            if (t == 0) sums[g] = acc[0], sums[g + 8] = acc[2];
            meet();
            if (warp == 0) {
                float best = 0.f, total = 0.f;
#pragma unroll
                for (int k = 0; k < CHOICES; ++k) best = __fadd_rn(best, s.best[k]);
#pragma unroll
                for (int k = 0; k < CHOICES; ++k) {
                    const float share = s.best[s.rank[k]], own = __fmul_rn(s.sums[k][lane % TILE], a.normalize ? share / best : share);
                    total = k == 0 ? own : __fadd_rn(total, own);
                }
                residual += total;
                hand_on(Hops::END, epoch);
            }
        }
    }
    if (warp == 0 && lane < TILE) *x = residual;
    if (threadIdx.x == 0) {
        if (b == 0) *reinterpret_cast<volatile uint32_t*>(hops) = launch + 1;
        if (clock.nearly_over()) *reinterpret_cast<volatile uint32_t*>(a.stalled) = 1;
    }
}

} // namespace

// What a launch allocates. KV_HEADS blocks more than BLOCKS.
static_assert(sizeof(Shared) == 17248 && sizeof(Attending) == 134784 && Hops::SIZE == 5505);
extern "C" __global__ void __maxnreg__(112) thinker_1(const __grid_constant__ ThinkerArgs a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) unsigned char dynamic[];
    Shared& s = *reinterpret_cast<Shared*>(dynamic + a.copying.ring * STAGE);
    stay<Boxes>(
        a.copying, a.limit, dynamic,
        [&](const Clock& clock, uint32_t full, uint32_t empty, uint32_t data) {
            if (blockIdx.x < BLOCKS) copy_weights(a, clock, full, empty, data, s);
        },
        [&](const Ring<Boxes>& ring, unsigned char*) {
            if (blockIdx.x < BLOCKS) run_layers(a, s, ring);
            else attend(a, ring.clock, *reinterpret_cast<Attending*>(dynamic));
        });
#endif
}
