// All layers of a talker in one launch, for few rows of different sequences: BLOCKS blocks that stay on the device together,
// hand their results on through the second-level cache, and have the next weights copied while they wait.
//
// Five hand-offs make a layer: queries, keys and values; attention (by one block for each row and query head); the residual
// behind the output; the inner activations; the residual behind them. Each block has all rows, and each of its eight
// computing warps one of the eight parts that inputs are summed in. All sums are added in the order of linear.cu,
// common.cuh and attention.cu, so the residual and the cache are those that the kernels of the graph give, bit by bit.
//
// The launch must be cooperative: a block that is not there is waited for. A wait that lasts too long ends all waits, and
// the host is told; see `Clock`. Compiled for compute capability 9.0a; on other devices these kernels must not be called.

#include "layers.cuh"

namespace {

// Norms, turns and mixes: attend_fast of attention.cu, for a query head of a row. `ahead` has the first cached positions, and
// `at` is where the cache takes the row's own.
template <int R, int AHEAD, class FETCH>
__device__ __forceinline__ void attend(const LayersArgs& a, const Clock& clock, Shared<R>& s, int layer, int row, int kv_head, int which, int position, size_t at,
                                       Fetched (&ahead)[AHEAD], FETCH fetch, uint32_t epoch) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    // The query, the key and the value, each by a warp. One of two query heads has the cache written.
    if (warp < 3) {
        const int head = warp == 0 ? which : warp + 1;
        uint32_t front = 0, back = 0;
        receive<1>(clock, epoch, a.hops + Hops<R>::QKV + ((row * KV_HEADS + kv_head) * ASKED_HEADS + head) * OF_HEAD + lane, [](int) { return 0; },
                   [&](int, const Packet& q) { front = q.x, back = q.y; });
        __syncwarp();
        if (warp == 2) {
            const uint2 own = make_uint2(front, back);
            reinterpret_cast<uint2*>(s.asked.value)[lane] = own;
            if (which == 0) reinterpret_cast<uint2*>(a.values + at)[lane] = own;
        } else {
            float* raw = s.heads[warp];
            reinterpret_cast<float4*>(raw)[lane] = make_float4(low_half(front), high_half(front), low_half(back), high_half(back));
            const bf16* gain = a.qk_norm + (layer * 2 + warp) * DIM + lane;
            const float gains[4] = {to_float(gain[0]), to_float(gain[32]), to_float(gain[64]), to_float(gain[96])};
            const float2 turns[2] = {s.turns[lane], s.turns[lane + 32]};
            __syncwarp();
            float x[4] = {raw[lane], raw[lane + 32], raw[lane + 64], raw[lane + 96]};
            // The key is not scaled: times 1 changes no bit.
            norm_and_turn(x, gains, turns, a.eps, warp == 1 ? 1.f : a.scale * 1.4426950408889634f);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (warp == 0) {
                    s.asked.queries[0][lane + 32 * i] = x[i];
                } else {
                    s.asked.key[lane + 32 * i] = __float2bfloat16_rn(x[i]);
                    if (which == 0) a.keys[at + lane + 32 * i] = __float2bfloat16_rn(x[i]);
                }
            }
        }
    }
    meet();
    mix_positions<1, AHEAD, true>(s.asked, s.mixed, position, ahead, fetch);
    meet();
    if (warp < 4) {
        const float v = mixed_value(s.mixed, 0, threadIdx.x);
        const uint32_t word = packed(v, __shfl_down_sync(~0u, v, 1)), next = __shfl_down_sync(~0u, word, 2);
        if (lane % 4 == 0) store_packet(a.hops + Hops<R>::ATTENDED + (row * HEADS + kv_head * 2 + which) * OF_HEAD + threadIdx.x / 4, word, next, 0, epoch);
    }
}

template <int R>
__device__ __forceinline__ void run_layers(const LayersArgs& a, Shared<R>& s, Ring<Boxes> ring) {
    using S = Shared<R>;
    using H = Hops<R>;
    constexpr int AHEAD = R == 8 ? 3 : 4; // stages in registers before their rows have come
    constexpr int FETCHED = 3;            // positions of the cache that a thread has on their way
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int b = blockIdx.x, team = b / 16, j = b % 16;
    const int row_here = j / 2; // that this block attends for, with one of its kv head's query heads
    const bool attends = row_here < R;
    const Clock clock = ring.clock;
    uint4* const hops = a.hops;
    const uint4* const part = hops + lane;
    uint4* const own = hops + warp * OF_RESIDUAL + b * (OF_RESIDUAL / BLOCKS) + lane; // what this block has of row `warp`
    const uint32_t launch = *reinterpret_cast<volatile uint32_t*>(hops), base = launch * EPOCHS;
    unsigned char* const rows = s.rows[warp];
    float* const raw = reinterpret_cast<float*>(rows + R * S::NORMED);
    const uint32_t rows_at = shared_at(rows);
    int parity = 0;

    // This warp's part of all rows, normed with the other warps.
    const auto norm_in = [&](int kind, uint32_t epoch, const bf16* gain) {
        const int input = g * STEP + t * 8; // the first of eight that this lane norms, of every row
        const uint4 gains = *reinterpret_cast<const uint4*>(gain + warp * S::PART + input);
#pragma unroll
        for (int first = 0; first < R; first += S::RAWS) {
            const uint4* from = part + kind + first * OF_RESIDUAL + warp * (OF_RESIDUAL / PARTS);
            receive_rows<4, S::RAWS>(clock, epoch, from, OF_RESIDUAL, [&](int row, int i, const Packet& q) {
                *reinterpret_cast<float2*>(raw + row * (S::RAW / 4) + i * 64 + lane * 2) = make_float2(__uint_as_float(q.x), __uint_as_float(q.y));
            });
            const float sum = lane_squares(raw + min(g, S::RAWS - 1) * (S::RAW / 4) + t * 8, S::PART);
            const float scale = scales_of(sum, HIDDEN, a.eps, s.squares[parity], meet);
            parity ^= 1;
#pragma unroll
            for (int row = 0; row < S::RAWS; ++row) {
                const float of_row = __shfl_sync(~0u, scale, row * 4);
                const float4* at = reinterpret_cast<const float4*>(raw + row * (S::RAW / 4) + input);
                *reinterpret_cast<uint4*>(rows + (first + row) * S::NORMED + input * 2) = normed8(at[0], at[1], of_row, gains);
            }
            __syncwarp();
        }
    };
    // Sums of T tiles to shared memory. Ends with the warps together.
    const auto share = [&](auto tiles, const auto& acc) {
        const int output = output_of(g);
        float* sums = s.sums(warp);
        __syncwarp();
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            if (2 * t + c < R) {
#pragma unroll
                for (int tile = 0; tile < decltype(tiles)::value; ++tile) {
                    sums[(2 * t + c) * S::WIDE + tile * TILE + output] = acc[tile][c];
                    sums[(2 * t + c) * S::WIDE + tile * TILE + output + 8] = acc[tile][c + 2];
                }
            }
        }
        meet();
    };
    const auto product_of_normed = [&](auto tiles, int kind, uint32_t epoch, const bf16* gain) {
        constexpr int T = decltype(tiles)::value;
        uint4 f[AHEAD][4];
        take_ahead<AHEAD>(ring, f, lane);
        norm_in(kind, epoch, gain);
        float acc[T][4] = {};
        product<T, S::PART / CHUNK, R, S::NORMED, AHEAD>(ring, f, rows_at, acc, lane);
        share(tiles, acc);
    };
    const auto wide = [&](int at) { return total_of(s.sums(0), S::NEXT, warp * S::WIDE + at); };

    float residual = 0.f; // of row `warp`, output 16 b + lane
    const bool has = warp < R && warp < a.count && lane < TILE;
    float* const x = a.x + static_cast<size_t>(warp) * HIDDEN + b * TILE + lane;
    if (has) residual = *x;
    if (warp < R) send_pairs<TILE>(own + H::END, residual, lane, base + 1);
    // Adds what warps have of 16 outputs to the residual, which is handed on.
    const auto add = [&](const float (&acc)[1][4], int kind, uint32_t epoch) {
        share(Count<1>{}, acc);
        if (warp < R) {
            residual = __fadd_rn(residual, wide(lane % TILE));
            send_pairs<TILE>(own + kind, residual, lane, epoch);
        }
        meet(); // sums have been read
    };

    // Of the row that this block attends for.
    const int position = attends && row_here < a.count ? a.positions[row_here] : -1;
    const uint32_t* pages = a.pages + (position < 0 ? 0 : static_cast<size_t>(a.slots[row_here]) * a.max_pages);
    const auto place = [&](int p) { return (static_cast<size_t>(pages[p / PAGE]) * KV_HEADS + team) * (PAGE * DIM) + p % PAGE * DIM; };
    if (position >= 0 && threadIdx.x < DIM / 2) {
        sincosf(__fmul_rn(static_cast<float>(position), a.frequencies[threadIdx.x]), &s.turns[threadIdx.x].x, &s.turns[threadIdx.x].y);
    }
#pragma unroll 1
    for (int layer = 0; layer < a.layers; ++layer) {
        const uint32_t epoch = base + layer + 2;
        const bf16* gains = a.gains + layer * 2 * HIDDEN;
        product_of_normed(Count<2>{}, H::END, epoch - 1, gains);
        if (warp < R) {
            // Eight elements of each of four heads.
            const uint32_t bits = half_bits(wide(lane));
            uint32_t w[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint32_t low = __shfl_sync(~0u, bits, (lane * 4 + 2 * i) & 31), high = __shfl_sync(~0u, bits, (lane * 4 + 2 * i + 1) & 31);
                w[i] = low | high << 16;
            }
            if (lane < 8) store_packet(hops + H::QKV + ((warp * KV_HEADS + team) * ASKED_HEADS + lane / 2) * OF_HEAD + 2 * j + lane % 2, w[0], w[1], 0, epoch);
        }
        meet(); // sums have been read
        if (attends) {
            if (position >= 0) {
                const bf16 *keys = a.keys + layer * a.layer_size, *values = a.values + layer * a.layer_size;
                const auto fetch = [&](Fetched& into, int p) {
                    into.clear();
                    if (p >= position) return;
                    const size_t at = place(p);
                    into.take(keys + at, values + at, threadIdx.x % LANES);
                };
                Fetched ahead[FETCHED];
#pragma unroll
                for (int u = 0; u < FETCHED; ++u) fetch(ahead[u], threadIdx.x / LANES + u * GROUPS);
                attend<R>(a, clock, s, layer, row_here, team, j % 2, position, layer * a.layer_size + place(position), ahead, fetch, epoch);
            } else if (threadIdx.x < OF_HEAD) {
                store_packet(hops + H::ATTENDED + (row_here * HEADS + team * 2 + j % 2) * OF_HEAD + threadIdx.x, 0, 0, 0, epoch);
            }
        }
        {
            uint4 f[AHEAD][4];
            take_ahead<AHEAD>(ring, f, lane);
            receive_rows<2, R>(clock, epoch, part + H::ATTENDED + warp * 2 * OF_HEAD, HEADS * OF_HEAD, [&](int row, int head, const Packet& q) {
                *reinterpret_cast<uint2*>(rows + row * S::NORMED + (head * 32 + lane) * 8) = make_uint2(q.x, q.y);
            });
            float acc[1][4] = {};
            product<1, S::PART / CHUNK, R, S::NORMED, AHEAD>(ring, f, rows_at, acc, lane);
            add(acc, H::MIDDLE, epoch);
        }
        product_of_normed(Count<6>{}, H::MIDDLE, epoch, gains + HIDDEN);
        if (warp < R) {
            // Two inner activations of each of the first 24 lanes.
            const int first = min(lane, 23) * 2, at = first / 8 * TILE + first % 8;
            const uint32_t both = packed(silu(wide(at)) * wide(at + 8), silu(wide(at + 1)) * wide(at + 9));
            uint32_t w[3];
#pragma unroll
            for (int i = 0; i < 3; ++i) w[i] = __shfl_sync(~0u, both, (lane * 3 + i) & 31);
            if (lane < 8) store_packet(hops + H::INNER_AT + warp * OF_INNER + b * 8 + lane, w[0], w[1], w[2], epoch);
        }
        meet(); // sums have been read
        {
            constexpr int EACH = 4 / S::HALVES;
            float acc[1][4] = {};
#pragma unroll
            for (int half = 0; half < S::HALVES; ++half) {
                uint4 f[AHEAD][4];
                take_ahead<AHEAD>(ring, f, lane);
                receive_rows<EACH, R>(clock, epoch, part + H::INNER_AT + warp * (OF_INNER / PARTS) + half * EACH * 32, OF_INNER, [&](int row, int i, const Packet& q) {
                    uint32_t* word = reinterpret_cast<uint32_t*>(rows + row * S::INNER_ROW) + (i * 32 + lane) * 3;
                    word[0] = q.x, word[1] = q.y, word[2] = q.z;
                });
                product<1, DOWN_STAGES / S::HALVES, R, S::INNER_ROW, AHEAD>(ring, f, rows_at, acc, lane);
                __syncwarp();
            }
            add(acc, H::END, epoch);
        }
    }
    if (has) *x = residual;
    if (threadIdx.x == 0) {
        if (b == 0) *reinterpret_cast<volatile uint32_t*>(hops) = launch + 1;
        if (clock.nearly_over()) *reinterpret_cast<volatile uint32_t*>(a.stalled) = 1;
    }
}

template <int R>
__device__ __forceinline__ void layers(const LayersArgs& a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) unsigned char dynamic[];
    stay<Boxes>(
        a.copying, a.limit, dynamic,
        [&](const Clock& clock, uint32_t full, uint32_t empty, uint32_t data) { copy_weights<R>(a, clock, full, empty, data); },
        [&](const Ring<Boxes>& ring, unsigned char* behind) { run_layers<R>(a, *reinterpret_cast<Shared<R>*>(behind), ring); });
#endif
}

} // namespace

// What a launch allocates.
#define LAYERS(R) \
    static_assert(sizeof(Shared<R>) == 7232 + 8 * (576 * R + 1040 * Shared<R>::RAWS) && Hops<R>::SIZE == 1 + R * 4608); \
    extern "C" __global__ void __maxnreg__(112) layers_##R(const __grid_constant__ LayersArgs a) { layers<R>(a); }
LAYERS(1)
LAYERS(2)
LAYERS(4)
LAYERS(8)
