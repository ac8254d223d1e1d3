// Products of many rows on Hopper, by products of four warps (wgmma): y = W x, and experts for pairs that moe_sort has
// grouped. Sums have the bits of linear.cu and moe.cu: eight parts of the inputs, each in steps of 32, two `mma` a step.
//
//   many_linear_*             tiles of 128 outputs by up to 128 rows, whose inputs are dealt (see `dealt`)
//   many_gate_up, many_down   the same of an expert, by groups of up to 160 pairs
//
// Blocks stay and take one tile after the other. Eight warps multiply, each 16 outputs, whose weights go from shared memory
// into their registers in `mma_step`'s order; rows are dealt, because the instruction takes sixteen neighbours of them. Four
// warps more copy, and are ahead also from tile to tile; they leave most of their registers to the others.
//
// Compiled for compute capability 9.0a; on other devices these kernels must not be called.

#include "linear.cuh"
#include "moe.cuh"
#include "tiles.cuh"
#include "wgmma.cuh"

constexpr int BM = 128, DEEP = 64; // outputs and inputs of a piece of weights
constexpr int W_BYTES = BM * DEEP * 2;
constexpr int MULTIPLYING = 256; // threads; two groups of four warps
constexpr int COPYING = 128;     // threads; of rows that are gathered, eight to a row
constexpr int OUT_PITCH = 72;    // of results on their way out: 64 outputs of a row, and what keeps rows in different banks
[[maybe_unused]] constexpr int LATE = 3; // pieces that copies of gathered rows may be behind their queueing

// Tiles of up to MOST rows: their pieces in shared memory, of which AHEAD are on their way, and what leaves.
template <int MOST_, int AHEAD_>
struct Many {
    static constexpr int MOST = MOST_, AHEAD = AHEAD_, PIECE = W_BYTES + MOST * DEEP * 2, BARRIERS = AHEAD * PIECE;
    static constexpr int TURNS = BARRIERS + 2 * AHEAD * 8, LEAVING = TURNS + 16, BYTES = 1024 + LEAVING + 2 * MOST * OUT_PITCH * 2;
};
using Rows = Many<128, 5>;  // of products
using Pairs = Many<160, 5>; // of experts

struct ManyLinear {
    TensorMap w, x; // boxes of 64 inputs by BM outputs, and by `of_tile` rows
    LinearArgs linear;
    int of_tile; // rows of a tile: 32, 64 or 128
    int deals;   // whether bf16 results are dealt for the next product
};

struct ManyExperts {
    TensorMap w, shared_w; // of all experts, and of the one that every row visits: boxes of 64 inputs by BM outputs
    MoeArgs moe;
};

// Where a thread is in the ring of pieces.
template <class T>
struct Place {
    uint32_t full, empty, data; // in shared memory
    int slot;
    uint32_t phase;
    __device__ __forceinline__ void next() {
        slot = slot + 1 == T::AHEAD ? 0 : slot + 1;
        phase ^= slot == 0;
    }
    __device__ __forceinline__ void skip(int pieces) {
        slot += pieces;
        phase ^= slot / T::AHEAD & 1;
        slot %= T::AHEAD;
    }
    __device__ __forceinline__ uint32_t piece() const { return data + slot * T::PIECE; }
    __device__ __forceinline__ uint32_t filled() const { return full + slot * 8; }
    __device__ __forceinline__ uint32_t emptied() const { return empty + slot * 8; }
};

// The results of a group of four warps, [MOST][OUT_PITCH].
template <class T>
__device__ __forceinline__ bf16* leaving(unsigned char* dynamic) {
    return reinterpret_cast<bf16*>(dynamic + T::LEAVING) + threadIdx.x / 128 * (T::MOST * OUT_PITCH);
}

__device__ __forceinline__ void meet_group() { asm volatile("bar.sync %0, 128;" ::"r"(1 + static_cast<int>(threadIdx.x) / 128) : "memory"); }

[[maybe_unused]] constexpr int FEW_REGISTERS = 56, MANY_REGISTERS = 224; // of a thread that copies, and of one that multiplies

// `filling`: arrivals that fill a piece; `emptying`: warps that take it.
template <class T>
__device__ __forceinline__ Place<T> begin_ring(unsigned char*& dynamic, int filling, int emptying) {
    extern __shared__ unsigned char raw[];
    dynamic = raw + (-static_cast<uint32_t>(__cvta_generic_to_shared(raw)) & 1023);
    const uint32_t data = static_cast<uint32_t>(__cvta_generic_to_shared(dynamic)), full = data + T::BARRIERS, empty = full + T::AHEAD * 8;
    if (threadIdx.x == 0) {
        for (int i = 0; i < T::AHEAD; ++i) {
            barrier_init(full + i * 8, filling);
            barrier_init(empty + i * 8, emptying);
        }
        for (int group = 0; group < 2; ++group) barrier_init(data + T::TURNS + group * 8, MULTIPLYING / WARP / 2);
        show_barriers();
    }
    __syncthreads();
    return {full, empty, data, 0, 0};
}

// M times 16 outputs of this warp, the i-th behind output 64 (first + i) of the tile, by N rows: total[m][n][i] is of row
// 8 n + 2 t + i % 2 and output 16 warp + output_of(g) + 8 (i / 2). The sums begin anew in every part, of `per_part` pieces.
template <int M, int N, class T>
__device__ __forceinline__ void multiply(Place<T>& place, int first, int parts, int per_part, float (&total)[M][N / 8][4]) {
    const int lane = threadIdx.x % WARP, t = lane % 4, output = output_of(lane / 4);
    const uint32_t own = (first * 64 + threadIdx.x / WARP % 4 * 16 + output) * 128 + (t ^ output) * 16;
    struct Weights {
        uint4 of[M][4];
    };
    const auto load = [&](uint32_t piece) {
        Weights w;
#pragma unroll
        for (int i = 0; i < M * 4; ++i) {
            const uint32_t at = piece + (i % 4 / 2 == 0 ? own : own ^ 64) + i / 4 * (64 * 128) + i % 2 * (8 * 128);
            w.of[i / 4][i % 4] = load_shared(at);
        }
        return w;
    };
    // What is added to -0 keeps its bits.
#pragma unroll
    for (int i = 0; i < M * N / 2; ++i) total[i / (N / 2)][i / 4 % (N / 8)][i % 4] = -0.f;
    for (int part = 0; part < parts; ++part) {
        float acc[M][N / 8][4] = {};
        for (int left = per_part; left > 0; --left) {
            barrier_wait(place.filled(), place.phase);
            const Weights w = load(place.piece());
            const uint32_t x = place.piece() + W_BYTES;
            wgmma_begin();
#pragma unroll
            for (int s = 0; s < 2; ++s) {
#pragma unroll
                for (int m = 0; m < M; ++m) {
                    const uint4 low = w.of[m][2 * s], high = w.of[m][2 * s + 1];
                    const uint32_t a[4] = {low.x, high.x, low.y, high.y}, b[4] = {low.z, high.z, low.w, high.w};
                    wgmma_rows<N, 0>(acc[m], a, operand(x + s * 64));
                    wgmma_rows<N, 0>(acc[m], b, operand(x + s * 64 + 32));
                }
            }
            wgmma_commit();
            wgmma_wait<0>();
            // The products have read their registers only now: until here nothing else may be in them.
#pragma unroll
            for (int i = 0; i < M * 4; ++i) {
                const uint4 v = w.of[i / 4][i % 4];
                asm volatile("" ::"r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w));
            }
            if (lane == 0) barrier_arrive(place.emptied());
            place.next();
        }
#pragma unroll
        for (int i = 0; i < M * N / 2; ++i) {
            float& sum = total[i / (N / 2)][i / 4 % (N / 8)][i % 4];
            sum = __fadd_rn(sum, acc[i / (N / 2)][i / 4 % (N / 8)][i % 4]);
        }
    }
}

// Calls `tile` with the number of rows to multiply, as a type, that holds `count`.
template <int MOST, class F>
__device__ __forceinline__ void for_rows(int count, F tile) {
    if (count <= 32) {
        tile(Count<32>());
    } else if (count <= 64) {
        tile(Count<64>());
    } else if (count <= 96) {
        tile(Count<96>());
    } else if (MOST <= 128 || count <= 128) {
        tile(Count<128>());
    } else {
        tile(Count<160>());
    }
}

// Rows of results in shared memory, WIDE numbers of each, go out by 16 bytes. `to`: where row `r` begins.
template <int WIDE, class TO>
__device__ __forceinline__ void store_rows(const bf16* results, int count, TO to) {
    constexpr int PIECES = WIDE / 8;
    for (int i = threadIdx.x % 128; i < count * PIECES; i += 128) {
        const int row = i / PIECES, piece = i % PIECES;
        *reinterpret_cast<uint4*>(to(row) + piece * 8) = *reinterpret_cast<const uint4*>(results + row * OUT_PITCH + piece * 8);
    }
}

// ---- y = W x -----------------------------------------------------------------------------------------------------------

// Grid: as many blocks as run at once. Outputs are a multiple of 64, inputs of 512.
template <int MODE>
__device__ __forceinline__ void many_linear(const ManyLinear& args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    const LinearArgs& a = args.linear;
    unsigned char* dynamic;
    Place<Rows> place = begin_ring<Rows>(dynamic, 1, MULTIPLYING / WARP);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int across = (a.rows + args.of_tile - 1) / args.of_tile, tiles = (a.outputs + BM - 1) / BM * across, steps = a.inputs / DEEP;
    if (warp >= MULTIPLYING / WARP) {
        keep_registers<FEW_REGISTERS>();
        if (threadIdx.x > MULTIPLYING) return;
        bool waited = false;
        const uint32_t bytes = W_BYTES + args.of_tile * DEEP * 2;
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            const int output0 = tile / across * BM, row0 = tile % across * args.of_tile;
            const auto weights = [&](const Place<Rows>& at, int step) {
                barrier_expect(at.filled(), bytes);
                copy_box(at.piece(), args.w, step * DEEP, output0, at.filled());
            };
            int ahead = 0;
            if (!waited) {
                // Weights may be read before what is ahead of this kernel has ended.
                Place<Rows> at = place;
                for (; ahead < Rows::AHEAD && ahead < steps; ++ahead) {
                    weights(at, ahead);
                    at.next();
                }
                wait_for_previous();
                waited = true;
            }
            for (int step = 0; step < steps; ++step) {
                if (step >= ahead) {
                    barrier_wait(place.emptied(), place.phase ^ 1);
                    weights(place, step);
                }
                copy_box(place.piece() + W_BYTES, args.x, step * DEEP, row0, place.filled());
                place.next();
            }
        }
        return;
    }
    take_registers<MANY_REGISTERS>();
    wait_for_previous();
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int output0 = tile / across * BM + warp / 4 * 64, row0 = tile % across * args.of_tile, count = min(a.rows - row0, args.of_tile);
        const int output = output0 + warp % 4 * 16 + output_of(g);
        for_rows<Rows::MOST>(count, [&](auto rows) {
            constexpr int N = decltype(rows)::value;
            float all[1][N / 8][4], (&total)[N / 8][4] = all[0];
            multiply<1, N>(place, warp / 4, PARTS, steps / PARTS, all);
            if (tile + gridDim.x >= tiles) let_next_start();
            if (output0 >= a.outputs) return;
            if (MODE == STORE_F32 || MODE == ADD) {
                // All that is added to is read before anything is written, or every read would wait for the write ahead of it.
#pragma unroll
                for (int n0 = 0; n0 < N / 8; n0 += 4) {
                    float before[4][4] = {};
                    const auto each = [&](auto take) {
#pragma unroll
                        for (int n = 0; n < 4; ++n) {
#pragma unroll
                            for (int i = 0; i < 4; ++i) {
                                const int row = 8 * (n0 + n) + 2 * t + i % 2;
                                if (row < count) take(n, i, row0 + row, output + i / 2 * 8);
                            }
                        }
                    };
                    if (MODE == ADD) each([&](int n, int i, int row, int to) { before[n][i] = added_to<MODE>(a, row, to); });
                    each([&](int n, int i, int row, int to) { finish<bf16, MODE>(a, row, to, total[n0 + n][i], before[n][i]); });
                }
            } else {
                bf16* results = leaving<Rows>(dynamic);
                const int own = warp % 4 * (MODE == SILU_MUL ? 8 : 16) + output_of(g);
                const auto put = [&](int row, int at, float value) { results[row * OUT_PITCH + (args.deals ? dealt(at) : at)] = __float2bfloat16_rn(value); };
                meet_group();
#pragma unroll
                for (int n = 0; n < N / 8; ++n) {
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const int row = 8 * n + 2 * t + i;
                        if (MODE == SILU_MUL) {
                            put(row, own, silu(total[n][i]) * total[n][i + 2]);
                        } else {
#pragma unroll
                            for (int half = 0; half < 2; ++half) {
                                float sum = total[n][i + 2 * half];
                                if (a.bias != nullptr) sum += to_float(static_cast<const bf16*>(a.bias)[output + 8 * half]);
                                put(row, own + 8 * half, MODE == SILU ? silu(sum) : sum);
                            }
                        }
                    }
                }
                meet_group();
                constexpr int WIDE = MODE == SILU_MUL ? 32 : 64;
                bf16* y = static_cast<bf16*>(a.y) + static_cast<size_t>(row0) * a.ldy + output0 / (64 / WIDE);
                store_rows<WIDE>(results, count, [&](int row) { return y + static_cast<size_t>(row) * a.ldy; });
            }
        });
    }
#else
    __trap();
#endif
}

#define MANY(NAME, MODE) \
    extern "C" __global__ void __launch_bounds__(MULTIPLYING + COPYING, 1) many_linear_##NAME(const __grid_constant__ ManyLinear a) { many_linear<MODE>(a); }
MANY(store, STORE)
MANY(full, STORE_F32)
MANY(add, ADD)
MANY(silu_mul, SILU_MUL)
MANY(silu, SILU)

// ---- experts -----------------------------------------------------------------------------------------------------------

// Grid: as many blocks as run at once. Rows of `normed` and of `between` are dealt. Widths are multiples of 64, `hidden` of
// 512, groups of up to 160 pairs.
//
// Of gate and up both groups of warps have a tile together. Of `down` each has its own, and while one's results go out, which
// takes as long, the other multiplies; its sums have one part, and so room in the registers for twice as many outputs.
template <bool DOWN>
__device__ __forceinline__ void many_experts(const ManyExperts& args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using T = Pairs;
    const MoeArgs& a = args.moe;
    unsigned char* dynamic;
    Place<T> place = begin_ring<T>(dynamic, COPYING + 1, MULTIPLYING / WARP / (DOWN ? 2 : 1));
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int outputs = DOWN ? a.hidden : 2 * a.width, of_group = outputs / BM;
    wait_for_previous();
    // Calls `take` with each tile of this block that is there: some pairs of an expert, their number, the first of the outputs,
    // and the pieces of the inputs.
    const auto tiles = [&](auto take) {
        for (int tile = blockIdx.x;; tile += gridDim.x) {
            if (tile / of_group >= a.max_groups) return;
            const Group group = a.groups[tile / of_group];
            if (group.count == 0) return;
            const int output0 = tile % of_group * BM, inner = inner_of(a, group.expert), steps = (DOWN ? inner : a.hidden) / DEEP;
            if (!DOWN && output0 >= 2 * inner) continue;
            take(group.expert, a.order + group.first, group.count, output0, steps);
        }
    };
    if (warp >= MULTIPLYING / WARP) {
        keep_registers<FEW_REGISTERS>();
        constexpr int AT_ONCE = COPYING / 8;
        const int thread = threadIdx.x - MULTIPLYING, piece = thread % 8, first = thread / 8;
        const uint32_t own = W_BYTES + first * 128 + (piece ^ (first & 7)) * 16;
        int behind = 0;
        Place<T> late = place;
        // The products read what this thread's copies wrote as soon as it says so.
        const auto filled = [&] {
            fence_copies();
            barrier_arrive(late.filled());
            late.next();
        };
        tiles([&](int expert, const int* pairs, int count, int output0, int steps) {
            const bool shared = expert == a.experts;
            const int weights0 = shared ? output0 : expert * (DOWN ? a.hidden : 2 * a.inner) + output0;
            const TensorMap& map = shared ? args.shared_w : args.w;
            uint32_t from[T::MOST / AT_ONCE]; // of the rows' 16 bytes
#pragma unroll
            for (int i = 0; i < T::MOST / AT_ONCE; ++i) {
                const int pair = pairs[min(first + AT_ONCE * i, count - 1)];
                from[i] = (DOWN ? pair * a.width : pair / a.choices * a.hidden) / 8 + piece;
            }
            const uint4* rows = static_cast<const uint4*>(DOWN ? a.between : a.normed);
            const int turns = (count + 31) / 32 * (32 / AT_ONCE);
            for (int step = 0; step < steps; ++step) {
                barrier_wait(place.emptied(), place.phase ^ 1);
                if (thread == 0) {
                    barrier_expect(place.filled(), W_BYTES);
                    copy_box(place.piece(), map, step * DEEP, weights0, place.filled());
                }
#pragma unroll
                for (int i = 0; i < T::MOST / AT_ONCE; ++i) {
                    if (i >= turns) break;
                    copy_async(place.piece() + own + i * AT_ONCE * 128, rows + (from[i] + step * (DEEP / 8)), first + AT_ONCE * i < count);
                }
                commit_copies();
                place.next();
                if (behind == LATE) {
                    wait_copies<LATE>();
                    filled();
                } else {
                    ++behind;
                }
            }
        });
        wait_copies<0>();
        for (; behind > 0; --behind) filled();
        return;
    }
    take_registers<MANY_REGISTERS>();
    // A group of warps begins its tile when the other one has multiplied: were it further behind than the ring is long, it would
    // take one filling of a piece for another.
    const uint32_t turns = place.data + T::TURNS;
    int turn = 0;
    tiles([&](int, const int* pairs, int count, int output0, int steps) {
        const int own = turn++;
        if (DOWN && own % 2 != warp / 4) {
            place.skip(steps);
            return;
        }
        if (DOWN && own > 0) barrier_wait(turns + own % 2 * 8, (own - 1) / 2 % 2);
        for_rows<T::MOST>(count, [&](auto rows) {
            constexpr int N = decltype(rows)::value, M = DOWN ? 2 : 1;
            float total[M][N / 8][4];
            multiply<M, N>(place, DOWN ? 0 : warp / 4, DOWN ? 1 : PARTS, DOWN ? steps : steps / PARTS, total);
            if (DOWN && lane == 0) barrier_arrive(turns + (own + 1) % 2 * 8);
            if (DOWN) {
                float* to = a.outputs + output0 + warp % 4 * 16 + output_of(g);
#pragma unroll
                for (int i = 0; i < N / 4; ++i) {
                    const int row = 8 * (i / 2) + 2 * t + i % 2;
                    if (row >= count) continue;
                    float* own_to = to + static_cast<size_t>(pairs[row]) * a.hidden;
#pragma unroll
                    for (int m = 0; m < M; ++m) {
                        own_to[m * 64] = total[m][i / 2][i % 2];
                        own_to[m * 64 + 8] = total[m][i / 2][i % 2 + 2];
                    }
                }
            } else {
                bf16* results = leaving<T>(dynamic);
                meet_group();
#pragma unroll
                for (int i = 0; i < N / 4; ++i) {
                    const float gate = total[0][i / 2][i % 2], up = total[0][i / 2][i % 2 + 2];
                    results[(8 * (i / 2) + 2 * t + i % 2) * OUT_PITCH + dealt(warp % 4 * 8 + output_of(g))] = __float2bfloat16_rn(silu(gate) * up);
                }
                meet_group();
                bf16* y = static_cast<bf16*>(a.between) + output0 / 2 + warp / 4 * 32;
                store_rows<32>(results, count, [&](int row) { return y + static_cast<size_t>(pairs[row]) * a.width; });
            }
        });
    });
    let_next_start();
#else
    __trap();
#endif
}

extern "C" __global__ void __launch_bounds__(MULTIPLYING + COPYING, 1) many_gate_up(const __grid_constant__ ManyExperts a) { many_experts<false>(a); }
extern "C" __global__ void __launch_bounds__(MULTIPLYING + COPYING, 1) many_down(const __grid_constant__ ManyExperts a) { many_experts<true>(a); }
