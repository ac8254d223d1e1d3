// Every product of the vocoder: causal convolutions, transposed convolutions and linear layers over
// [position][channel].
//
//   out[b, t, n] = bias[n] + sum over taps, ci of w[n][tap][ci] * x[b, t - (taps - 1 - tap) * dilation, ci]
//
// An implicit matrix product: rows are positions of all rows of the launch, columns are outputs. A linear layer has one
// tap; a transposed convolution of stride s is a convolution whose row of outputs is s consecutive positions.
//
// Results depend on nothing but the inputs: whatever the tile, an output is one chain of additions over taps and
// channels in the same order. Tensor cores multiply TF32 or F16 (operands are rounded where they are written, not here),
// which have the same tiles in bytes: a step is 128 bytes of each row, taps behind each other. The F32 kernels are the
// same but for their inner loop.
#pragma once

#include "vocoder.cuh"
#include "wgmma.cuh"

struct VocoderConvArgs {
    const void* x;   // operands [rows][positions][channels]
    const void* w;   // operands [outputs][taps * channels rounded up to whole steps]
    const float* bias;      // [outputs]; null: none
    const float* residual;  // like y, may be y; null: none; not with an activation
    const float* snake_a;   // [snake_period]; null: no snake
    const float* snake_b;
    float* y;  // the sum as it is, [rows * positions][outputs]; null: not wanted
    void* z;   // as operand of the next product: after the activation, rounded; null: not wanted
    unsigned* clipped;  // how many operands were beyond the largest
    VocoderPast past;
    int rows;
    int positions;  // per row
    int channels;   // a multiple of 16 bytes
    int taps;
    int dilation;
    int outputs;  // multiple of 4
    int activation;
    int snake_period;  // channel of an output: its number modulo this
    int column_tiles;
    int tiles;  // blocks behind them move the history on
};

static_assert(sizeof(VocoderRow) == 16 && sizeof(VocoderPast) == 40 && sizeof(VocoderConvArgs) == 152,
              "src/cuda/vocoder/args.rs has the same structs");

namespace vocoder {

enum Activation { NONE = 0, GELU = 1, SILU_PAIRS = 2 };

constexpr int LINE = 128;  // bytes of a row in a step through shared memory: 8 pieces of 16
constexpr int PAIRS = 4;   // of pieces in it, each the depth of one product of a warp

__device__ __forceinline__ void copy_async(unsigned to, const void* from, bool there) {
    int bytes = there ? 16 : 0;  // the rest is zeros
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT>
__device__ __forceinline__ void wait_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

__device__ __forceinline__ void load_4x4(unsigned (&r)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}
__device__ __forceinline__ void load_2x4(unsigned& a, unsigned& b, unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(a), "=r"(b) : "r"(from) : "memory");
}
// 4 TF32 numbers of a register's row and piece, or 8 F16 ones: the fragments lie alike.
template <typename Operand>
__device__ __forceinline__ void multiply_add(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    if constexpr (sizeof(typename Operand::Element) == 2) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm volatile(
            "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
}

// Two operands side by side.
template <typename Operand>
__device__ __forceinline__ void put(void* z, long long at, float2 v, unsigned* clipped) {
    using Element = typename Operand::Element;
    struct alignas(2 * sizeof(Element)) Both {
        Element x, y;
    };
    *reinterpret_cast<Both*>(static_cast<Element*>(z) + at) = {Operand::of(v.x, clipped), Operand::of(v.y, clipped)};
}

// Where a row of the tile reads.
struct Source {
    const void* fresh;  // position 0 of the launch
    const void* old;    // the position after the last one of the history
    int position;
    int first;  // positions before it are zeros
};

// A tile of ROWS x COLUMNS outputs by WARPS_M x WARPS_N warps, STAGES rounds of GROUP steps in flight. FOURS: four warps
// multiply 64 rows together (wgmma, F16 on Hopper), a warp with as many as it has otherwise, and all columns.
template <int ROWS, int COLUMNS, int WARPS_M, int WARPS_N, int GROUP, int STAGES, typename Operand, bool FOURS = false>
__device__ __forceinline__ void convolve(const VocoderConvArgs& p) {
    using Element = typename Operand::Element;
    constexpr bool TENSOR = Operand::TENSOR;
    constexpr int EACH = PIECE<Element>, DEPTH = 8 * EACH;  // elements of a piece and of a step
    constexpr int THREADS = WARPS_M * WARPS_N * 32, LINES = THREADS / 8;  // lines that the block copies at once
    constexpr int TALL = ROWS / WARPS_M / 16, WIDE = COLUMNS / WARPS_N / 8;
    constexpr int A_COPIES = ROWS / LINES, B_COPIES = COLUMNS / LINES;
    static_assert(A_COPIES * LINES == ROWS && B_COPIES * LINES == COLUMNS, "copies");
    constexpr int A_BYTES = ROWS * LINE, B_BYTES = COLUMNS * LINE;
    constexpr int STEP_BYTES = A_BYTES + B_BYTES, STAGE_BYTES = GROUP * STEP_BYTES;
    // Small tiles wait for latency, not for tensor cores: they read all operands of a round before they multiply.
    constexpr bool AHEAD = TALL * WIDE < 12;
    static_assert(!FOURS || (TALL == 1 && WARPS_N == 1 && WARPS_M % 4 == 0 && GROUP == 1), "products of four warps");
    extern __shared__ __align__(1024) unsigned char stages[];
    Source* sources = reinterpret_cast<Source*>(stages + STAGES * STAGE_BYTES);

    if ((int)blockIdx.x >= p.tiles) {
        wait_for_previous();
        let_next_start();
        move_history(p.past, static_cast<const Element*>(p.x), p.positions, p.channels, (p.taps - 1) * p.dilation,
                     (int)blockIdx.x - p.tiles);
        return;
    }
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int first_row = (int)blockIdx.x / p.column_tiles * ROWS;
    const int first_column = (int)blockIdx.x % p.column_tiles * COLUMNS;
    const int all_rows = p.rows * p.positions;
    const int pieces_per_tap = p.channels / EACH, steps = (pieces_per_tap * p.taps + 7) / 8;
    const int rounds = (steps + GROUP - 1) / GROUP;
    const int padded = steps * DEPTH;

    // Each thread copies the same 16 bytes of every 128 of some rows; pieces are swapped around so that reading a
    // column of a tile touches all banks.
    const int piece = tid % 8, line = tid / 8;
    const unsigned base = (unsigned)__cvta_generic_to_shared(stages);
    const unsigned copy_to = base + line * 128 + ((piece ^ (line & 7)) << 4);
    const Element* all_weights = static_cast<const Element*>(p.w);
    const Element* weights = all_weights + (long long)(first_column + line) * padded + piece * EACH;
    auto load_weights = [&](int round) {
        unsigned to = copy_to + (round % STAGES) * STAGE_BYTES + A_BYTES;
#pragma unroll
        for (int g = 0; g < GROUP; g++, to += STEP_BYTES) {
            int step = round * GROUP + g;
#pragma unroll
            for (int i = 0; i < B_COPIES; i++) {
                bool there = step < steps && first_column + line + i * LINES < p.outputs;
                const Element* from = there ? weights + (long long)i * LINES * padded + step * DEPTH : all_weights;
                copy_async(to + i * LINES * LINE, from, there);
            }
        }
    };
    // Weights never change: fetch them while the launch before this one ends.
#pragma unroll
    for (int round = 0; round < STAGES - 1; round++) {
        if (round < rounds) load_weights(round);
    }
    bool wanted = false;
    for (int i = tid; i < ROWS; i += THREADS) {
        Source source = {p.x, p.x, 0, NEVER};
        int row = first_row + i, b = row / p.positions;
        if (row < all_rows) {
            VocoderRow info = p.past.rows[b];
            source.position = row - b * p.positions;
            if (info.slot >= 0 && source.position < info.frames * p.past.positions_per_frame) {
                wanted = true;
                source.fresh = static_cast<const Element*>(p.x) + (long long)b * p.positions * p.channels;
                source.first = first_position(p.past, info);
                if (p.taps > 1)
                    source.old = history<Element>(p.past, info, info.parity) + (p.taps - 1) * p.dilation * p.channels;
            }
        }
        sources[i] = source;
    }
    wanted = __syncthreads_or(wanted);
    wait_for_previous();
    if (!wanted) {  // rows of padding, or tails of rows with fewer frames
        asm volatile("cp.async.wait_all;" ::: "memory");
        return;
    }

    const Element* from[A_COPIES];
    unsigned there_bits = 0;
    int load_tap = -1, load_piece = piece + pieces_per_tap;  // of the next step that is fetched: this thread's piece
    auto load_inputs = [&](int round) {
        unsigned to = copy_to + (round % STAGES) * STAGE_BYTES;
#pragma unroll
        for (int g = 0; g < GROUP; g++, to += STEP_BYTES, load_piece += 8) {
            if (load_piece >= pieces_per_tap) {
                do load_piece -= pieces_per_tap, load_tap++;
                while (load_piece >= pieces_per_tap);
                int shift = (p.taps - 1 - load_tap) * p.dilation;
                there_bits = 0;
#pragma unroll
                for (int i = 0; i < A_COPIES; i++) {
                    Source source = sources[line + i * LINES];
                    int at = source.position - shift;
                    // Behind the last tap come zeros.
                    bool there = load_tap < p.taps && at >= source.first;
                    const Element* begin = static_cast<const Element*>(at >= 0 ? source.fresh : source.old);
                    from[i] = there ? begin + (long long)at * p.channels : static_cast<const Element*>(p.x);
                    there_bits |= (unsigned)there << i;
                }
            }
#pragma unroll
            for (int i = 0; i < A_COPIES; i++) {
                bool there = there_bits >> i & 1;
                copy_async(to + i * LINES * LINE, there ? from[i] + load_piece * EACH : from[i], there);
            }
        }
    };
#pragma unroll
    for (int round = 0; round < STAGES - 1; round++) {
        if (round < rounds) load_inputs(round);
        commit();
    }

    float sums[TALL][WIDE][4] = {};
    const int warp_row = warp / WARPS_N * (TALL * 16), warp_column = warp % WARPS_N * (WIDE * 8);
    const int group = lane / 4, pair = lane % 4;
    // What this lane points at for the matrix loads: rows of A in two eights, columns of B in two eights.
    const unsigned a_line = (warp_row + lane % 8 + (lane / 8 & 1) * 8) * 128, a_piece = lane / 16;
    const unsigned b_line = (warp_column + lane % 8 + lane / 16 * 8) * 128, b_piece = lane / 8 & 1;
    const unsigned twist = lane & 7;

    // The operands of a pair of pieces: pair `k` of the step that begins at `a`.
    auto read = [&](unsigned (&left)[TALL][4], unsigned (&right)[WIDE][2], unsigned a, int k) {
        const unsigned b = a + A_BYTES;
#pragma unroll
        for (int i = 0; i < TALL; i++) load_4x4(left[i], a + a_line + i * 16 * 128 + (((k * 2 + a_piece) ^ twist) << 4));
#pragma unroll
        for (int j = 0; j + 1 < WIDE; j += 2) {
            unsigned both[4];
            load_4x4(both, b + b_line + j * 8 * 128 + (((k * 2 + b_piece) ^ twist) << 4));
            right[j][0] = both[0], right[j][1] = both[1], right[j + 1][0] = both[2], right[j + 1][1] = both[3];
        }
        if constexpr (WIDE % 2 == 1) {
            constexpr int j = WIDE - 1;
            unsigned at = (warp_column + lane % 8 + j * 8) * 128;
            load_2x4(right[j][0], right[j][1], b + at + (((k * 2 + b_piece) ^ twist) << 4));
        }
    };
    auto multiply = [&](const unsigned (&left)[TALL][4], const unsigned (&right)[WIDE][2]) {
#pragma unroll
        for (int i = 0; i < TALL; i++)
#pragma unroll
            for (int j = 0; j < WIDE; j++) multiply_add<Operand>(sums[i][j], left[i], right[j]);
    };

    for (int round = 0; round < rounds; round++) {
        wait_groups<STAGES - 2>();
        if constexpr (FOURS) fence_copies();
        __syncthreads();
        // The stage read in the round before is free now.
        auto fetch = [&] {
            if (int next = round + STAGES - 1; next < rounds) {
                load_weights(next);
                load_inputs(next);
            }
            commit();
        };
        const unsigned stage = base + (round % STAGES) * STAGE_BYTES;
        if constexpr (FOURS) {
            const unsigned rows = stage + warp / 4 * (64 * LINE);
            wgmma_begin();
#pragma unroll
            for (int k = 0; k < PAIRS; k++) wgmma_half<COLUMNS>(sums[0], operand(rows + k * 32), operand(stage + A_BYTES + k * 32));
            wgmma_commit();
            fetch();
            wgmma_wait<0>();
        } else if constexpr (TENSOR && AHEAD) {
            unsigned left[GROUP * PAIRS][TALL][4], right[GROUP * PAIRS][WIDE][2];
#pragma unroll
            for (int k = 0; k < GROUP * PAIRS; k++) read(left[k], right[k], stage + k / PAIRS * STEP_BYTES, k % PAIRS);
            fetch();
#pragma unroll
            for (int k = 0; k < GROUP * PAIRS; k++) multiply(left[k], right[k]);
        } else if constexpr (TENSOR) {
            fetch();
#pragma unroll
            for (int k = 0; k < GROUP * PAIRS; k++) {
                unsigned left[TALL][4], right[WIDE][2];
                read(left, right, stage + k / PAIRS * STEP_BYTES, k % PAIRS);
                multiply(left, right);
            }
        } else {
            fetch();
#pragma unroll 1
            for (int k = 0; k < GROUP * 8; k++) {
                const unsigned char* step = stages + (round % STAGES) * STAGE_BYTES + k / 8 * STEP_BYTES;
                auto four = [&](int row) {
                    return *reinterpret_cast<const float4*>(step + row * 128 + (((k % 8) ^ (row & 7)) << 4));
                };
                float4 left[TALL][2];
#pragma unroll
                for (int i = 0; i < TALL; i++) {
                    left[i][0] = four(warp_row + i * 16 + group);
                    left[i][1] = four(warp_row + i * 16 + group + 8);
                }
#pragma unroll
                for (int j = 0; j < WIDE; j++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        // The columns' lines come behind the rows' ones, a multiple of 8 of them.
                        float4 right = four(ROWS + warp_column + j * 8 + pair * 2 + e);
#pragma unroll
                        for (int i = 0; i < TALL; i++)
#pragma unroll
                            for (int h = 0; h < 2; h++) {
                                float& sum = sums[i][j][h * 2 + e];
                                sum = fmaf(left[i][h].x, right.x, sum);
                                sum = fmaf(left[i][h].y, right.y, sum);
                                sum = fmaf(left[i][h].z, right.z, sum);
                                sum = fmaf(left[i][h].w, right.w, sum);
                            }
                    }
            }
        }
    }
    let_next_start();

    if constexpr (FOURS) {
        // The sums meet in shared memory, so that neighbours go out together: four numbers of a row by a thread, a whole line of
        // a row by a few.
        constexpr int PITCH = COLUMNS + 8, PIECES = COLUMNS / 4;
        static_assert(ROWS * PITCH * 4 <= STAGES * STAGE_BYTES && ROWS * PIECES % (4 * THREADS) == 0, "sums in place of tiles");
        float* all = reinterpret_cast<float*>(stages);
        wait_groups<0>();
        __syncthreads();
#pragma unroll
        for (int j = 0; j < WIDE; j++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                *reinterpret_cast<float2*>(all + (warp_row + h * 8 + group) * PITCH + j * 8 + pair * 2) = make_float2(sums[0][j][h * 2], sums[0][j][h * 2 + 1]);
        __syncthreads();
        for (int i0 = tid; i0 < ROWS * PIECES; i0 += 4 * THREADS) {
            float4 v[4];
            bool there[4];
            long long at[4];
#pragma unroll
            for (int u = 0; u < 4; u++) {
                int i = i0 + u * THREADS, row = i / PIECES, column = first_column + i % PIECES * 4;
                there[u] = first_row + row < all_rows && column < p.outputs;
                at[u] = (long long)(first_row + row) * p.outputs + column;
                v[u] = p.residual && there[u] ? *reinterpret_cast<const float4*>(p.residual + at[u]) : make_float4(0, 0, 0, 0);
            }
#pragma unroll
            for (int u = 0; u < 4; u++) {
                if (!there[u]) continue;
                int i = i0 + u * THREADS, column = first_column + i % PIECES * 4;
                float4 sum = *reinterpret_cast<const float4*>(all + i / PIECES * PITCH + i % PIECES * 4);
                if (p.residual) sum.x += v[u].x, sum.y += v[u].y, sum.z += v[u].z, sum.w += v[u].w;
                float4 bias = p.bias ? *reinterpret_cast<const float4*>(p.bias + column) : make_float4(0, 0, 0, 0);
                sum.x += bias.x, sum.y += bias.y, sum.z += bias.z, sum.w += bias.w;
                if (p.activation == SILU_PAIRS) {
                    put<Operand>(p.z, at[u] / 2, make_float2(silu(sum.x) * sum.y, silu(sum.z) * sum.w), p.clipped);
                    continue;
                }
                if (p.activation == GELU) sum = make_float4(gelu(sum.x), gelu(sum.y), gelu(sum.z), gelu(sum.w));
                if (p.y) *reinterpret_cast<float4*>(p.y + at[u]) = sum;
                if (p.z) {
                    if (p.snake_a) {
                        int channel = column % p.snake_period;
                        float4 turn = *reinterpret_cast<const float4*>(p.snake_a + channel), height = *reinterpret_cast<const float4*>(p.snake_b + channel);
                        sum = make_float4(snake(sum.x, turn.x, height.x), snake(sum.y, turn.y, height.y), snake(sum.z, turn.z, height.z), snake(sum.w, turn.w, height.w));
                    }
                    struct alignas(4 * sizeof(Element)) Four {
                        Element x, y, z, w;
                    };
                    *reinterpret_cast<Four*>(static_cast<Element*>(p.z) + at[u]) = {Operand::of(sum.x, p.clipped), Operand::of(sum.y, p.clipped),
                                                                                    Operand::of(sum.z, p.clipped), Operand::of(sum.w, p.clipped)};
                }
            }
        }
        return;
    }

    if (p.residual) {
        // All at once, before anything is written: y may be the same memory.
#pragma unroll
        for (int j = 0; j < WIDE; j++)
#pragma unroll
            for (int i = 0; i < TALL; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    int row = first_row + warp_row + i * 16 + h * 8 + group;
                    int column = first_column + warp_column + j * 8 + pair * 2;
                    if (row < all_rows && column < p.outputs) {
                        long long at = (long long)row * p.outputs + column;
                        float2 r = *reinterpret_cast<const float2*>(p.residual + at);
                        sums[i][j][h * 2] += r.x, sums[i][j][h * 2 + 1] += r.y;
                    }
                }
    }
#pragma unroll
    for (int j = 0; j < WIDE; j++) {
        int column = first_column + warp_column + j * 8 + pair * 2;
        if (column >= p.outputs) continue;
        float2 bias = p.bias ? *reinterpret_cast<const float2*>(p.bias + column) : make_float2(0, 0);
        float2 turn = make_float2(0, 0), height = turn;
        if (p.snake_a) {
            int channel = column % p.snake_period;
            turn = *reinterpret_cast<const float2*>(p.snake_a + channel);
            height = *reinterpret_cast<const float2*>(p.snake_b + channel);
        }
#pragma unroll
        for (int i = 0; i < TALL; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int row = first_row + warp_row + i * 16 + h * 8 + group;
                if (row >= all_rows) continue;
                float2 v = make_float2(sums[i][j][h * 2] + bias.x, sums[i][j][h * 2 + 1] + bias.y);
                if (p.activation == SILU_PAIRS) {
                    Element* z = static_cast<Element*>(p.z) + (long long)row * (p.outputs / 2) + column / 2;
                    *z = Operand::of(silu(v.x) * v.y, p.clipped);
                    continue;
                }
                long long at = (long long)row * p.outputs + column;
                if (p.activation == GELU) v = make_float2(gelu(v.x), gelu(v.y));
                if (p.y) *reinterpret_cast<float2*>(p.y + at) = v;
                if (p.z) {
                    if (p.snake_a) v = make_float2(snake(v.x, turn.x, height.x), snake(v.y, turn.y, height.y));
                    put<Operand>(p.z, at, v, p.clipped);
                }
            }
    }
}

}  // namespace vocoder
