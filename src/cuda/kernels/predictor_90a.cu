// The passes of the code predictor behind the first one in one launch, for few rows: BLOCKS blocks that stay on the device
// together, hand their results on through the second-level cache, and have the next weights copied while they wait.
//
// Five hand-offs make a layer: queries, keys and values; attention (by one block for each row and kv head); the residual
// behind the output; the inner activations; the residual behind them. Each block has all rows, and each of its eight
// computing warps one of the eight parts that inputs are summed in. All sums are added in the order of linear.cu,
// common.cuh and attention.cu, so the codes are those that the kernels of the graph give, bit by bit.
//
// The launch must be cooperative: a block that is not there is waited for. A wait that lasts too long ends all waits, and
// the host is told; see `Clock`. Compiled for compute capability 9.0a; on other devices these kernels must not be called.

#include "predictor_row.cuh"

namespace {

template <int R>
__device__ __forceinline__ void predict(const PredictorArgs& a, Shared<R>& s, Picking& picking, Ring<Packed> ring) {
    using S = Shared<R>;
    using H = Hops<R>;
    constexpr int AHEAD = R >= 8 ? 3 : 4;  // stages in registers before their rows have come
    constexpr int OWN = (R + 7) / 8;       // rows whose sums a warp adds: `warp` and the eighth behind it
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int b = blockIdx.x, team = b / 16, j = b % 16, row_here = b / 8;
    const bool attends = j < R, picks = b % 8 == 4 && row_here < R;
    const Clock clock = ring.clock;
    uint4* const hops = a.hops;
    const uint4* const part = hops + warp * 64 + lane;              // this warp's part of a row
    uint4* const own = hops + warp * ROW + b * (ROW / BLOCKS) + lane; // what this block has of row `warp`
    const uint32_t launch = *reinterpret_cast<volatile uint32_t*>(hops), base = launch * EPOCHS;
    unsigned char* const rows = s.rows[warp];
    float* const raw = reinterpret_cast<float*>(rows + R * S::NORMED);
    const uint32_t rows_at = shared_at(rows);
    int parity = 0;
    float residual[OWN] = {}; // of this warp's rows, output 8 b + lane

    // N packets of this lane's part of each of COUNT rows.
    const auto receive_rows = [&](auto each, auto count, int from, uint32_t epoch, auto take) {
        constexpr int N = decltype(each)::value, PIECES = N * decltype(count)::value, TOGETHER = PIECES < 8 ? PIECES : 8;
#pragma unroll
        for (int o = 0; o < PIECES; o += TOGETHER) {
            receive<TOGETHER>(clock, epoch, part + from + o / N * ROW, [](int i) { return i / N * ROW + i % N * 32; },
                              [&](int i, const Packet& q) { take((o + i) / N, (o + i) % N, q); });
        }
        __syncwarp();
    };
    // For each of this warp's rows.
    const auto rows_of_warp = [&](auto of) {
#pragma unroll
        for (int k = 0; k < OWN; ++k) {
            if (warp + 8 * k < R) of(k, warp + 8 * k);
        }
    };
    // Sums have been read: rows may come where they lie.
    const auto have_read = [] {
        if (S::OVERLAID) meet();
    };
    // This warp's part of all rows, normed with the other warps.
    const auto norm_in = [&](int kind, uint32_t epoch, const bf16* gain) {
        const int step = g % 4; // of the inputs that this lane norms, of rows g / 4, g / 4 + 2, ...
        const uint4 gains = *reinterpret_cast<const uint4*>(gain + warp * 128 + step * STEP + t * 8);
#pragma unroll
        for (int from = 0; from < R; from += S::RAWS) {
            receive_rows(Count<2>{}, Count<S::RAWS>{}, kind + from * ROW, epoch, [&](int row, int half, const Packet& q) {
                *reinterpret_cast<float2*>(raw + row * (S::RAW / 4) + half * 64 + lane * 2) = make_float2(__uint_as_float(q.x), __uint_as_float(q.y));
            });
            const float sum = lane_squares(raw + min(g, S::RAWS - 1) * (S::RAW / 4) + t * 8, 128);
            const float scale = scales_of(sum, HIDDEN, a.eps, s.squares[parity], [] { meet(); });
            parity ^= 1;
            float gained[8];
            unpack(gains, gained);
#pragma unroll
            for (int first = 0; first < S::RAWS; first += 2) {
                const int row = first + g / 4;
                const float of_row = __shfl_sync(~0u, scale, min(row, S::RAWS - 1) * 4);
                if (row < S::RAWS) {
                    const float4* at = reinterpret_cast<const float4*>(raw + row * (S::RAW / 4) + step * STEP + t * 8);
                    const float4 x = at[0], y = at[1];
                    *reinterpret_cast<uint4*>(rows + (from + row) * S::NORMED + (step * STEP + t * 8) * 2) = make_uint4(
                        packed(normed(x.x, of_row, gained[0]), normed(x.y, of_row, gained[1])), packed(normed(x.z, of_row, gained[2]), normed(x.w, of_row, gained[3])),
                        packed(normed(y.x, of_row, gained[4]), normed(y.y, of_row, gained[5])), packed(normed(y.z, of_row, gained[6]), normed(y.w, of_row, gained[7])));
                }
            }
            __syncwarp();
        }
    };
    // T tiles of normed rows, their sums to shared memory. Ends with the warps together.
    const auto product_of_normed = [&](auto tiles, int kind, uint32_t epoch, const bf16* gain) {
        constexpr int T = decltype(tiles)::value, FIRST = AHEAD < T * 2 ? AHEAD : T * 2;
        uint4 f[FIRST][4];
        take_ahead<FIRST>(ring, f, lane);
        norm_in(kind, epoch, gain);
        float acc[T][OWN][4] = {};
        product<T, 4, R, S::NORMED, FIRST>(ring, f, rows_at, acc, lane);
        float* sums = s.sums(warp);
        __syncwarp();
#pragma unroll
        for (int k = 0; k < OWN; ++k) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const int row = 8 * k + 2 * t + c;
                if (row < R) {
#pragma unroll
                    for (int tile = 0; tile < T; ++tile) {
                        sums[row * S::WIDE + tile * 16 + g] = acc[tile][k][c];
                        sums[row * S::WIDE + tile * 16 + g + 8] = acc[tile][k][c + 2];
                    }
                }
            }
        }
        meet();
    };
    const auto wide = [&](int row, int at) { return total_of(s.sums(0), S::NEXT, row * S::WIDE + at); };
    // Eight outputs added to the residual, which is handed on.
    const auto add = [&](const float (&acc)[4], int kind, uint32_t epoch) {
#pragma unroll
        for (int k = 0; k < OWN; ++k) {
            const int row = 8 * k + g;
            if (row < R) s.eight[warp][row][2 * t] = acc[2 * k], s.eight[warp][row][2 * t + 1] = acc[2 * k + 1];
        }
        meet();
        rows_of_warp([&](int k, int row) {
            residual[k] = __fadd_rn(residual[k], total_of(&s.eight[0][0][0], R * S::EIGHT, row * S::EIGHT + lane % 8));
            send_pairs<8>(own + k * 8 * ROW + kind, residual[k], lane, epoch);
        });
    };

    if (attends) keys_of_first<R>(a, hops, j, team);
    if (picks) {
        begin_picking(a, picking, row_here);
        if (threadIdx.x < BLOCKS) {
            float v[8];
            const float* x = a.x + static_cast<size_t>(min(row_here, a.count - 1)) * HIDDEN + threadIdx.x * 8;
#pragma unroll
            for (int i = 0; i < 8; ++i) v[i] = x[i];
            send_row(hops + H::EMBEDDED + row_here * ROW, v, base + a.first + 1);
        }
    }
    meet();
#pragma unroll 1
    for (int pass = a.first; pass < a.passes; ++pass) {
#pragma unroll 1
        for (int layer = 0; layer < a.layers; ++layer) {
            const uint32_t epoch = base + pass * a.layers + layer + 1;
            const bf16* gains = a.gains + layer * 2 * HIDDEN;
            product_of_normed(Count<2>{}, layer == 0 ? H::EMBEDDED : H::END, layer == 0 ? base + pass + 1 : epoch - 1, gains);
            if (layer == 0) {
                // It has come: the product needed it.
                rows_of_warp([&](int k, int) {
                    const Packet q = load_packet(own - lane + lane % 8 / 2 + k * 8 * ROW + H::EMBEDDED);
                    residual[k] = __uint_as_float(lane % 2 == 0 ? q.x : q.y);
                });
            }
            rows_of_warp([&](int, int row) {
                // Of lanes 2 j and 2 j + 1 of the head, 16 each: four of both queries and of the key, and of the value.
                const uint32_t bits = half_bits(wide(row, lane));
                const int plane = lane % 3, which = lane / 3 % 2;
                uint32_t w[3];
#pragma unroll
                for (int i = 0; i < 3; ++i) {
                    const int at = which * 16 + min(plane * 6 + 2 * i, 14);
                    const uint32_t low = __shfl_sync(~0u, bits, at), high = __shfl_sync(~0u, bits, at + 1);
                    w[i] = low | high << 16;
                }
                if (lane < 6) store_packet(hops + H::QKV + ((row * KV_HEADS + team) * 3 + plane) * 32 + 2 * j + which, w[0], w[1], w[2], epoch);
            });
            have_read();
            if (attends && warp < 4) attend<R>(a, clock, s, hops, layer, j, team, pass + 1, epoch);
            {
                uint4 f[2][4];
                take_ahead<2>(ring, f, lane);
                uint32_t* to = reinterpret_cast<uint32_t*>(rows) + lane % 16 * 4 + lane / 16;
                receive_rows(Count<2>{}, Count<R>{}, H::ATTENDED, epoch, [&](int row, int head, const Packet& q) {
                    uint32_t* word = to + row * (S::ATTENDED / 4) + head * 64;
                    word[0] = q.x, word[2] = q.y;
                });
                float acc[4] = {};
                product_of_eight<8, R, S::ATTENDED, 2>(ring, f, rows_at, acc, lane);
                add(acc, H::MIDDLE, epoch);
            }
            product_of_normed(Count<3>{}, H::MIDDLE, epoch, gains + HIDDEN);
            rows_of_warp([&](int k, int row) {
                const int at = min(lane, 23) / 8 * 16 + lane % 8;
                const float gate = wide(row, at), up = wide(row, at + 8);
                const uint32_t bits = half_bits(silu(gate) * up);
                uint32_t w[3];
#pragma unroll
                for (int i = 0; i < 3; ++i) {
                    const uint32_t low = __shfl_sync(~0u, bits, (lane * 6 + 2 * i) & 31), high = __shfl_sync(~0u, bits, (lane * 6 + 2 * i + 1) & 31);
                    w[i] = low | high << 16;
                }
                if (lane < 4) store_packet(own + k * 8 * ROW + H::INNER_AT, w[0], w[1], w[2], epoch);
            });
            have_read();
            {
                // All weights are in registers; rows come eight by eight.
                constexpr int TOGETHER = R < 8 ? R : 8;
                uint4 f[3][4];
                take_ahead<3>(ring, f, lane);
                uint32_t* to = reinterpret_cast<uint32_t*>(rows) + lane * 3;
                float acc[4] = {};
#pragma unroll
                for (int k = 0; k < OWN; ++k) {
                    receive_rows(Count<2>{}, Count<TOGETHER>{}, H::INNER_AT + k * 8 * ROW, epoch, [&](int row, int half, const Packet& q) {
                        uint32_t* word = to + row * (S::INNER_ROW / 4) + half * 96;
                        word[0] = q.x, word[1] = q.y, word[2] = q.z;
                    });
                    float own_acc[4] = {};
                    product_of_eight<12, TOGETHER, S::INNER_ROW, 3>(ring, f, rows_at, own_acc, lane);
                    acc[2 * k] = own_acc[0], acc[2 * k + 1] = own_acc[1];
                    __syncwarp();
                }
                add(acc, H::END, epoch);
            }
        }
        product_of_normed(Count<1>{}, H::END, base + pass * a.layers + a.layers, a.gains + a.layers * 2 * HIDDEN);
        const uint32_t epoch = base + pass + 1;
        rows_of_warp([&](int, int row) { send_pairs<16>(hops + H::LOGITS + (row * BLOCKS + b) * 8 + lane, wide(row, lane % 16), lane, epoch); });
        have_read();
        if (picks) {
            const int code = pick_code(a, picking, row_here, pass, [&](float(&raw)[EACH]) {
                receive<4>(clock, epoch, hops + H::LOGITS + (row_here * (CODES / 8) + threadIdx.x) * 4, [](int i) { return i; },
                           [&](int i, const Packet& q) { raw[2 * i] = __uint_as_float(q.x), raw[2 * i + 1] = __uint_as_float(q.y); });
            });
            if (pass + 1 < a.passes && threadIdx.x < BLOCKS) {
                float v[8];
                const bf16* table = reinterpret_cast<const bf16*>(a.narrowed[pass]) + static_cast<size_t>(code) * HIDDEN;
                unpack(reinterpret_cast<const uint4*>(table)[threadIdx.x], v);
                send_row(hops + H::EMBEDDED + row_here * ROW, v, epoch + 1);
            }
        }
    }
    meet();
    if (picks && picking.row.slot != NONE) add_embeddings(a, picking);
    if (threadIdx.x == 0) {
        if (b == 0) *reinterpret_cast<volatile uint32_t*>(hops) = launch + 1;
        if (clock.nearly_over()) *reinterpret_cast<volatile uint32_t*>(a.stalled) = 1;
    }
}

// Registers: 112 for each of twelve warps at the start. The four that copy give most of theirs to the eight that compute, so
// that a block of the vocoder still fits beside.
template <int R>
__device__ __forceinline__ void predictor(const PredictorArgs& a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) unsigned char dynamic[];
    __shared__ Picking picking;
    __shared__ uint64_t barriers[32];
    const Clock clock = {static_cast<uint32_t>(::clock()), a.limit};
    const uint32_t full = shared_at(barriers), empty = full + 128;
    if (threadIdx.x == 0) begin_ring(full, empty, a.copying.ring);
    __syncthreads();
    if (threadIdx.x >= COMPUTING) {
        keep_registers<24>();
        if (threadIdx.x == COMPUTING) copy_weights(a, clock, full, empty, shared_at(dynamic));
    } else {
        take_registers<152>();
        const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
        const Ring<Packed> ring = {full, empty, shared_at(dynamic) + warp * 2048 + lane * 16, 0, a.copying.ring, 0, clock};
        predict<R>(a, *reinterpret_cast<Shared<R>*>(dynamic + a.copying.ring * STAGE), picking, ring);
    }
#endif
}

} // namespace

// What a launch allocates.
#define PREDICTOR(R) \
    static_assert(sizeof(Shared<R>) == (R > 8 ? 81168 : 1792 + 8640 * R) && Hops<R>::SIZE == 1 + R * (768 + 5 * 512 + 1024 + MAX_LAYERS * 2048)); \
    extern "C" __global__ void __maxnreg__(112) predictor_##R(const __grid_constant__ PredictorArgs a) { predictor<R>(a); }
PREDICTOR(1)
PREDICTOR(2)
PREDICTOR(4)
PREDICTOR(8)
PREDICTOR(16)

// ---- loading -------------------------------------------------------------------------------------------------------------

// A layer's weights, or a head's, in the order in which the blocks' warps take them. A piece of 512 bytes is 16 outputs by
// half a step of 32 inputs as an instruction's first operand, or, of 8 outputs, a step as the second.
extern "C" __global__ void __launch_bounds__(256) pack_predictor(const __grid_constant__ PackArgs a) {
    const auto word = [](const bf16* p) { return *reinterpret_cast<const uint32_t*>(p); };
    const int stages = a.head != nullptr ? HEAD_STAGES : LAYER_STAGES;
    const uint32_t count = stages * BLOCKS * (STAGE / 16);
    for (uint32_t at = blockIdx.x * 256 + threadIdx.x; at < count; at += gridDim.x * 256) {
        const int lane = at % 32, h = at / 32 % 4, w = at / 128 % 8, b = at / 1024 % BLOCKS, s = at / 1024 / BLOCKS;
        const int g = lane / 4, t = lane % 4, team = b / 16, j = b % 16;
        const auto wide = [&](const bf16* low, const bf16* high, int inputs, int step, int half) {
            const size_t from = w * (inputs / PARTS) + step * STEP + t * 8 + half * 4;
            a.to[at] = make_uint4(word(low + from), word(high + from), word(low + from + 2), word(high + from + 2));
        };
        const auto eight = [&](const bf16* weights, int inputs, int step) {
            const size_t from = static_cast<size_t>(8 * b + g) * inputs + w * (inputs / PARTS) + step * STEP + t * 8;
            a.to[at] = *reinterpret_cast<const uint4*>(weights + from);
        };
        if (a.head != nullptr) {
            const int i = s * 4 + h;
            const bf16* low = a.head + static_cast<size_t>(16 * b + g) * HIDDEN;
            wide(low, low + 8 * HIDDEN, HIDDEN, i / 2, i % 2);
        } else if (s < 4) {
            // Lane l of attention has elements l, l + 32, l + 64, l + 96 of both queries and of the key, and 4 l .. of the value.
            const int i = s * 4 + h, l = 2 * j + i % 4 / 2;
            const auto row = [&](int at16) {
                const int kind = at16 / 4, c = at16 % 4;
                const int output = kind < 2    ? team * 2 * HEAD + kind * HEAD + l + 32 * c
                                   : kind == 2 ? HEADS * HEAD + team * HEAD + l + 32 * c
                                               : (HEADS + KV_HEADS) * HEAD + team * HEAD + 4 * l + c;
                return a.qkv + static_cast<size_t>(output) * HIDDEN;
            };
            wide(row(g), row(g + 8), HIDDEN, i / 4, i % 2);
        } else if (s < 6) {
            eight(a.output, HEADS * HEAD, (s - 4) * 4 + h);
        } else if (s < 12) {
            const int i = (s - 6) * 4 + h;
            const bf16* low = a.gate_up + static_cast<size_t>(48 * b + i % 6 / 2 * 16 + g) * HIDDEN;
            wide(low, low + 8 * HIDDEN, HIDDEN, i / 6, i % 2);
        } else {
            eight(a.down, INNER, (s - 12) * 4 + h);
        }
    }
}

// The rotation of every position, as attention.cuh computes it: float2 [POSITIONS][HEAD / 2], one block for each position.
extern "C" __global__ void turn_predictor(const float* frequencies, float2* turns) {
    const int at = blockIdx.x * (HEAD / 2) + threadIdx.x;
    sincosf(__fmul_rn(static_cast<float>(blockIdx.x), frequencies[threadIdx.x]), &turns[at].x, &turns[at].y);
}
