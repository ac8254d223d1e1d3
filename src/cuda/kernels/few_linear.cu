// Matrix products of 9 to 32 rows with weights that are read once.
//
//   linear_few{M}x{N}_*  bf16, M tiles of 16 outputs to a block, N tiles of 8 rows
//
// As linear_small of linear.cu, and with its bits; but rows come ready: norming them in every block would take longer than
// the product.

#include "linear.cuh"
#include "mma.cuh"

namespace {

// Each of the eight warps takes one part of the inputs. MT: tiles of 16 outputs; NT: tiles of 8 rows. AHEAD, ROWS_AHEAD: steps
// whose weights, and whose rows, are on their way at once.
template <int MT, int NT, int AHEAD, int ROWS_AHEAD, int MODE>
__device__ __forceinline__ void linear_few(const LinearArgs& a) {
    constexpr int BM = MT * TILE;
    __shared__ float sums[PARTS][NT * 8][BM + 1];

    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int part = a.inputs / PARTS, steps = part / STEP, first = warp * part + t * 8;
    const bf16* own = static_cast<const bf16*>(a.w) + static_cast<size_t>(blockIdx.x * BM + g) * a.inputs + first;
    const size_t eight = static_cast<size_t>(8) * a.inputs;

    uint4 w[AHEAD][MT][2], x[ROWS_AHEAD][NT];
    const auto fetch = [&](int u, int step) {
        if (step >= steps) return;
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            w[u][m][0] = load_weights(own + 2 * m * eight + step * STEP);
            w[u][m][1] = load_weights(own + (2 * m + 1) * eight + step * STEP);
        }
    };
    const bf16* of = static_cast<const bf16*>(a.x) + static_cast<size_t>(g) * a.inputs + first;
    const auto fetch_rows = [&](int u, int step) {
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            x[u][n] = make_uint4(0, 0, 0, 0);
            if (n * 8 + g < a.rows && step < steps) x[u][n] = *reinterpret_cast<const uint4*>(of + n * eight + step * STEP);
        }
    };
#pragma unroll
    for (int u = 0; u < AHEAD; ++u) fetch(u, u);
    // What does not fit into registers yet comes closer while the kernel ahead still runs.
    if (t == 0 && steps > AHEAD) {
        const int bytes = min(steps - AHEAD, NEAR) * STEP * 2;
#pragma unroll
        for (int m = 0; m < 2 * MT; ++m) prefetch(own + m * eight + AHEAD * STEP, bytes);
    }
    let_next_start();
    wait_for_previous();
#pragma unroll
    for (int u = 0; u < ROWS_AHEAD; ++u) fetch_rows(u, u);

    float acc[MT][NT][4] = {};
    for (int step = 0; step < steps; step += AHEAD) {
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            if (step + u >= steps) continue;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
#pragma unroll
                for (int n = 0; n < NT; ++n) {
#pragma unroll
                    for (int m = 0; m < MT; ++m) mma_half(acc[m][n], w[u][m][0], w[u][m][1], x[u % ROWS_AHEAD][n], half);
                }
            }
            fetch(u, step + u + AHEAD);
            fetch_rows(u % ROWS_AHEAD, step + u + ROWS_AHEAD);
        }
    }

#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
        for (int m = 0; m < MT; ++m) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[warp][n * 8 + 2 * t + i % 2][m * TILE + g + i / 2 * 8] = acc[m][n][i];
        }
    }
    constexpr int RESULTS = MODE == SILU_MUL ? BM / 2 : BM, EACH = (NT * 8 * RESULTS + 255) / 256;
    static_assert(256 % RESULTS == 0, "a thread's results are of one output");
    float before[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int row = (threadIdx.x + i * 256) / RESULTS, at = threadIdx.x % RESULTS;
        before[i] = row < NT * 8 && row < a.rows ? added_to<MODE>(a, row, blockIdx.x * RESULTS + at) : 0.f;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int row = (threadIdx.x + i * 256) / RESULTS, at = threadIdx.x % RESULTS, result = blockIdx.x * RESULTS + at;
        if (row >= NT * 8 || row >= a.rows) continue;
        const auto total = [&](int output) {
            float sum = sums[0][row][output];
#pragma unroll
            for (int p = 1; p < PARTS; ++p) sum = __fadd_rn(sum, sums[p][row][output]);
            return sum;
        };
        if (MODE == SILU_MUL) {
            finish_gated<bf16>(a, row, result, total(gate_row(at)), total(gate_row(at) + 8));
        } else {
            finish<bf16, MODE>(a, row, result, total(at), before[i]);
        }
    }
}

} // namespace

#define FEW(NAME, MODE, MT, NT, AHEAD, ROWS_AHEAD)                                                                              \
    extern "C" __global__ void __launch_bounds__(256, 2) linear_few##MT##x##NT##_##NAME(const __grid_constant__ LinearArgs a) { \
        linear_few<MT, NT, AHEAD, ROWS_AHEAD, MODE>(a);                                                                         \
    }
// Two blocks to a multiprocessor: how far ahead each can fetch follows from its registers.
#define FEW_ROWS(NAME, MODE) FEW(NAME, MODE, 1, 2, 4, 4) FEW(NAME, MODE, 1, 4, 4, 2) FEW(NAME, MODE, 2, 4, 2, 2)
FEW_ROWS(store, STORE)
FEW_ROWS(full, STORE_F32)
FEW_ROWS(add, ADD)
FEW_ROWS(silu_mul, SILU_MUL)
FEW_ROWS(silu, SILU)
