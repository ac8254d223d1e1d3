// All layers of a talker in one launch, for up to 32 rows, more than layers_90a.cu takes: BLOCKS blocks that stay on the device together.
// Weights are copied ahead from where they lie, rows by pieces of 64 inputs as soon as they are there.
//
// Seven hand-offs make a layer: queries, keys and values; attention, by the block that has a row and kv head; eight parts of the
// output, which the block that has a row adds up, with its residual, and norms; the inner activations; the parts of the sums
// behind them; and the row once more. Three of them are among the 16 blocks of a team. All sums are added in the order of
// linear.cu, common.cuh and attention.cu, so the residual and the cache are those of the graph's kernels, bit by bit.
//
// The launch must be cooperative; see persistent.cuh of waits. Compiled for compute capability 9.0a; on other devices these
// kernels must not be called.

#include "layers_many.cuh"

namespace {

[[maybe_unused]] __device__ __forceinline__ void add(float4& to, const float4& v) { to = make_float4(__fadd_rn(to.x, v.x), __fadd_rn(to.y, v.y), __fadd_rn(to.z, v.z), __fadd_rn(to.w, v.w)); }

template <int R>
__device__ __forceinline__ void run_many(const LayersArgs& a, const Clock& clock, const LayersBlocks<R>& of, LayersShared<R>& s, LayersRows<R> rows, LayersWeights<R> weights) {
    using H = LayersHanded<R>;
    constexpr int OWN = LayersShared<R>::OWN;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int j = blockIdx.x % TEAM;
    const int row_here = blockIdx.x * R / BLOCKS;
    const bool has_row = blockIdx.x % (BLOCKS / R) == 0;
    unsigned char* const hops = of.hops;
    float4 residual[2] = {}; // of this block's row: numbers 4 threadIdx.x and on, and those HIDDEN / 2 further
    int parity = 0;

    // Norms this block's row, which all threads hold, and hands it on.
    const auto hand_normed = [&](const bf16* gain) {
        if (row_here < a.count) {
#pragma unroll
            for (int i = 0; i < 2; ++i) *reinterpret_cast<float4*>(s.row + i * (HIDDEN / 2) + threadIdx.x * 4) = residual[i];
            meet();
            const float scale = scales_of(lane_squares(s.row + warp * (HIDDEN / PARTS) + lane % 4 * 8, HIDDEN / PARTS), HIDDEN, a.eps, s.squares[parity], [] { meet(); });
            parity ^= 1;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int at = i * (HIDDEN / 2) + threadIdx.x * 4;
                const uint2 gains = *reinterpret_cast<const uint2*>(gain + at);
                *reinterpret_cast<uint2*>(hops + H::NORMED + lies_at<R>(row_here, at)) =
                    make_uint2(packed(normed(residual[i].x, scale, low_half(gains.x)), normed(residual[i].y, scale, high_half(gains.x))),
                               packed(normed(residual[i].z, scale, low_half(gains.y)), normed(residual[i].w, scale, high_half(gains.y))));
            }
        }
        done(of.count(H::NORMED_DONE));
    };
    // Adds what all teams have of this block's row to its residual.
    const auto add_parts = [&](uint32_t until) {
        await_all(clock, of.count(H::PARTS_DONE), until);
        if (row_here >= a.count) return;
        const float4* from = reinterpret_cast<const float4*>(hops + H::SUMS) + row_here * (HIDDEN / 4) + threadIdx.x;
        float4 part[2][PARTS];
#pragma unroll
        for (int p = 0; p < 2 * PARTS; ++p) part[p % 2][p / 2] = __ldcg(from + p / 2 * R * (HIDDEN / 4) + p % 2 * (HIDDEN / 8));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float4 sum = part[i][0];
#pragma unroll
            for (int p = 1; p < PARTS; ++p) add(sum, part[i][p]);
            add(residual[i], sum);
        }
    };
    const auto all = [](int) { return true; };
    // A part of the sums of a product's 128 outputs.
    const auto hand_part = [&](auto of_product) {
        float* to = reinterpret_cast<float*>(hops + H::SUMS) + of.team * R * HIDDEN + j * 128 + warp * TILE;
        multiply_layers<decltype(of_product), R, R / 8, true>(clock, rows, weights, warp, 0, all, [&](int, const float(&sums)[R / 8][4]) {
#pragma unroll
            for (int i = 0; i < R / 4; ++i) {
                in_pairs(sums[i / 2][i % 2 * 2], sums[i / 2][i % 2 * 2 + 1], [&](int row, int output, float low, float high) {
                    *reinterpret_cast<float2*>(to + (i / 2 * 8 + row) * HIDDEN + i % 2 * 8 + output) = make_float2(low, high);
                });
            }
        });
        done(of.count(H::PARTS_DONE));
    };
    // Queries, keys and values. Two tiles of outputs by four warps each, which have eight rows each: of 16 rows two warps share
    // the same ones, by every other part.
    const auto hand_qkv = [&] {
        constexpr bool HALVES = R == 16;
        const int tile = warp % 2, half = HALVES ? warp / 4 : 0, first = (HALVES ? warp / 2 % 2 : warp / 2) * 8;
        float4 total = make_float4(-0.f, -0.f, -0.f, -0.f), kept[HALVES ? PARTS / 2 : 1]; // what is added to -0 keeps its bits
        const auto take = [&](int part, const float(&sums)[1][4]) {
            const float4 own = make_float4(sums[0][0], sums[0][1], sums[0][2], sums[0][3]);
            if (!HALVES) add(total, own);
#pragma unroll
            for (int i = 0; HALVES && i < PARTS / 2; ++i)
                if (part / 2 == i) kept[HALVES ? i : 0] = own;
        };
        multiply_layers<LayersQkv, R, 1, false>(clock, rows, weights, tile, first, [&](int part) { return !HALVES || part % 2 == half; }, take);
        if (HALVES) {
            if (half == 1) {
#pragma unroll
                for (int i = 0; i < PARTS / 2; ++i) s.parts[warp % 4][i][lane] = kept[HALVES ? i : 0];
            }
            meet();
#pragma unroll
            for (int i = 0; half == 0 && i < PARTS; ++i) add(total, i % 2 == 0 ? kept[HALVES ? i / 2 : 0] : s.parts[warp][i / 2][lane]);
        }
        if (half == 0) {
            bf16* to = reinterpret_cast<bf16*>(hops + H::QKV) + head_at(of.team, j / 4) * DIM + j % 4 * 32 + tile * TILE;
            const auto put = [&](int row, int output, float low, float high) {
                *reinterpret_cast<uint32_t*>(to + (first + row) * ((HEADS + 2 * KV_HEADS) * DIM) + output) = packed(low, high);
            };
            in_pairs(total.x, total.y, put);
            in_pairs(total.z, total.w, [&](int row, int output, float low, float high) { put(row, output + 8, low, high); });
        }
        done(of.of_team(H::QKV_DONE));
    };
    const auto hand_inner = [&] {
        float total[R / 8][4];
#pragma unroll
        for (int i = 0; i < R / 2; ++i) total[i / 4][i % 4] = -0.f;
        multiply_layers<LayersGateUp, R, R / 8, false>(clock, rows, weights, warp, 0, all, [&](int, const float(&sums)[R / 8][4]) {
#pragma unroll
            for (int i = 0; i < R / 2; ++i) total[i / 4][i % 4] = __fadd_rn(total[i / 4][i % 4], sums[i / 4][i % 4]);
        });
        if (warp < LayersGateUp::TILES) {
#pragma unroll
            for (int n = 0; n < R / 8; ++n) {
                // Of a tile of 16 outputs the first eight are gates, the others their ups.
                in_pairs(silu(total[n][0]) * total[n][2], silu(total[n][1]) * total[n][3], [&](int row, int output, float low, float high) {
                    *reinterpret_cast<uint32_t*>(hops + H::INNER_AT + lies_at<R>(n * 8 + row, blockIdx.x * RESULTS + warp * 8 + output)) = packed(low, high);
                });
            }
        }
        done(of.of_team(H::INNER_DONE));
    };

    // Of the rows that this block attends for.
#pragma unroll 1
    for (int i = 0; i < OWN; ++i) {
        const int row = j * OWN + i, position = row < a.count ? a.positions[row] : -1;
        if (position >= 0 && threadIdx.x < DIM / 2) {
            float2& turn = s.turns[i][threadIdx.x];
            sincosf(__fmul_rn(static_cast<float>(position), a.frequencies[threadIdx.x]), &turn.x, &turn.y);
        }
        if (threadIdx.x == 0) s.position[i] = position;
    }
    meet();
    const auto place = [&](int row, int p) {
        const uint32_t page = a.pages[static_cast<size_t>(a.slots[row]) * a.max_pages + p / PAGE];
        return (static_cast<size_t>(page) * KV_HEADS + of.team) * (PAGE * DIM) + p % PAGE * DIM;
    };
    // attend_fast of attention.cu, for both query heads of this block's kv head and all of its rows.
    const auto attend = [&](int layer) {
        bf16 *keys = a.keys + layer * a.layer_size, *values = a.values + layer * a.layer_size;
        // What the cache has of a position of a row, in the order in which stages of it come.
        const auto fetch_of = [&](int position) {
            return [&, position](Fetched& into, int p) {
                into.clear();
                if (p / CACHED * CACHED >= position) return;
                await(clock, weights.filled(), weights.phase);
                const uint32_t from = weights.data + weights.slot * STAGE + p % CACHED * (DIM * 2) + threadIdx.x % LANES * 16;
                if (p < position) {
                    into.k0 = load_shared(from), into.k1 = load_shared(from + DIM);
                    into.v0 = load_shared(from + STAGE / 2), into.v1 = load_shared(from + STAGE / 2 + DIM);
                }
                // See `take`.
                fence_copies();
                __syncwarp();
                if (lane == 0) barrier_arrive(weights.emptied());
                weights.next();
            };
        };
        Fetched ahead[1];
        await_all(clock, of.of_team(H::QKV_DONE), of.team_until(layer));
        // Queries, key and value of a row, each by a warp.
#pragma unroll 1
        for (int i = warp / 4; i < OWN; i += 2) {
            const int kind = warp % 4, row = j * OWN + i, position = s.position[i];
            if (position < 0) continue;
            const bf16* from = reinterpret_cast<const bf16*>(hops + H::QKV) + (static_cast<size_t>(row) * (HEADS + 2 * KV_HEADS) + head_at(of.team, kind)) * DIM;
            const size_t at = place(row, position);
            Asked<2>& asked = s.asked[i];
            if (kind == 3) {
                const uint2 own = __ldcg(reinterpret_cast<const uint2*>(from) + lane);
                reinterpret_cast<uint2*>(asked.value)[lane] = own;
                reinterpret_cast<uint2*>(values + at)[lane] = own;
                continue;
            }
            const bf16* gain = a.qk_norm + (layer * 2 + kind / 2) * DIM + lane;
            const float gains[4] = {to_float(gain[0]), to_float(gain[32]), to_float(gain[64]), to_float(gain[96])};
            const float2 turns[2] = {s.turns[i][lane], s.turns[i][lane + 32]};
            float x[4];
#pragma unroll
            for (int k = 0; k < 4; ++k) x[k] = __uint_as_float(static_cast<uint32_t>(__ldcg(reinterpret_cast<const unsigned short*>(from) + lane + 32 * k)) << 16);
            // The key is not scaled: times 1 changes no bit.
            norm_and_turn(x, gains, turns, a.eps, kind == 2 ? 1.f : a.scale * 1.4426950408889634f);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                if (kind < 2) {
                    asked.queries[kind][lane + 32 * k] = x[k];
                } else {
                    asked.key[lane + 32 * k] = keys[at + lane + 32 * k] = __float2bfloat16_rn(x[k]);
                }
            }
        }
        meet();
#pragma unroll 1
        for (int i = 0; i < OWN; ++i) {
            const int position = s.position[i];
            if (position < 0) continue;
            const auto fetch = fetch_of(position);
            fetch(ahead[0], threadIdx.x / LANES);
            mix_positions<2, 1, true>(s.asked[i], s.mixed, position, ahead, fetch);
            meet();
            const float v = mixed_value(s.mixed, threadIdx.x / DIM, threadIdx.x % DIM), next = __shfl_down_sync(~0u, v, 1);
            if (lane % 2 == 0) *reinterpret_cast<uint32_t*>(hops + H::ATTENDED + lies_at<R>(j * OWN + i, of.team * 2 * DIM + threadIdx.x)) = packed(v, next);
            if (i + 1 < OWN) meet();
        }
        done(of.of_team(H::ATTENDED_DONE));
    };

    if (has_row) {
        const float4* x = reinterpret_cast<const float4*>(a.x + static_cast<size_t>(min(row_here, a.count - 1)) * HIDDEN) + threadIdx.x;
        residual[0] = x[0], residual[1] = x[HIDDEN / 8];
        hand_normed(a.gains);
    }
#pragma unroll 1
    for (int layer = 0; layer < a.layers; ++layer) {
        const bf16* gains = a.gains + (2 * layer + 1) * HIDDEN;
        hand_qkv();
        attend(layer);
        hand_part(LayersOutput());
        if (has_row) {
            add_parts(of.sums_until(layer, 0));
            hand_normed(gains);
        }
        hand_inner();
        hand_part(LayersDown());
        if (has_row) {
            add_parts(of.sums_until(layer, 1));
            if (layer + 1 < a.layers) hand_normed(gains + HIDDEN);
        }
    }
    if (has_row && row_here < a.count) {
        float4* x = reinterpret_cast<float4*>(a.x + static_cast<size_t>(row_here) * HIDDEN) + threadIdx.x;
        x[0] = residual[0], x[HIDDEN / 8] = residual[1];
    }
    if (threadIdx.x == 0) {
        if (blockIdx.x == 0) *reinterpret_cast<volatile uint32_t*>(hops + H::LAUNCH) = of.launch + 1;
        if (clock.nearly_over()) *reinterpret_cast<volatile uint32_t*>(a.stalled) = 1;
    }
}

// No block finds room beside one of these, whose threads have all registers that there are.
template <int R>
__device__ __forceinline__ void layers_many(const LayersArgs& a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) unsigned char dynamic[];
    __shared__ uint64_t barriers[96];
    const Clock clock = {static_cast<uint32_t>(::clock()), a.limit};
    const uint32_t full = shared_at(barriers), data = shared_at(dynamic);
    const LayersRows<R> rows = {full, full + 256, data, 0, 0};
    const LayersWeights<R> weights = {full + 512, full + 640, data + LayersRings<R>::ROWS, 0, 0};
    if (threadIdx.x == 0) {
        begin_ring(rows.full, rows.empty, LayersRings<R>::SLOTS);
        begin_ring(weights.full, weights.empty, LayersRings<R>::WEIGHTS);
    }
    __syncthreads();
    unsigned char* const hops = reinterpret_cast<unsigned char*>(a.hops);
    const LayersBlocks<R> of = {{hops, static_cast<int>(blockIdx.x) / TEAM}, *reinterpret_cast<volatile uint32_t*>(hops), a.layers};
    if (threadIdx.x >= COMPUTING) {
        keep_registers<40>();
        if (threadIdx.x / WARP == COMPUTING / WARP) copy_layers<R>(a, clock, weights.full, weights.empty, weights.data);
        if (threadIdx.x / WARP == COMPUTING / WARP + 1) copy_layers_rows<R>(clock, of, rows);
    } else {
        take_registers<232>();
        run_many<R>(a, clock, of, *reinterpret_cast<LayersShared<R>*>(dynamic + LayersRings<R>::ROWS + LayersRings<R>::WEIGHTS * STAGE), rows, weights);
    }
#endif
}

} // namespace

// What a launch allocates behind the ring of weights, and its memory.
#define LAYERS_MANY(R) \
    static_assert(sizeof(LayersShared<R>) == 8848 + 2048 * (R / TEAM) && LayersHanded<R>::SIZE == 4096 + R * 94208); \
    extern "C" __global__ void __maxnreg__(168) layers_many_##R(const __grid_constant__ LayersArgs a) { layers_many<R>(a); }
LAYERS_MANY(16)
LAYERS_MANY(32)
