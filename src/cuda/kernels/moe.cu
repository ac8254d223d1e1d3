// Mixture of experts in place of a feed-forward layer. The router's logits come from linear.cu.
//
//   moe_route_*        norms the rows and picks their experts
//   moe_*_plain_*      any type and size: what the others are tested against, and the f32 engine
//   moe_*_few          bf16, few rows: every pair reads its expert's weights, at the speed of the memory
//   moe_sort, moe_*_tiles*, moe_gather
//                      bf16, more rows: pairs are grouped by expert, whose weights are read once per group (the tiles
//                      are in prompt_moe.cu)
//
// A pair's numbers are summed in one order that depends on the sizes alone, and a row adds up its experts in the order
// of their numbers: the same bits whatever the batch, and whichever of the fast kernels ran.

#include "mma.cuh"
#include "moe.cuh"
#include "norm.cuh"

// ---- router ------------------------------------------------------------------------------------------------------------

// Softmax over all experts, the best `top_k` of them (of equals the first), weights that sum to 1 if asked for. Eight
// rows per block, a warp each.
template <typename T>
__device__ __forceinline__ void route(const RouteArgs& a) {
    __shared__ float shares[8][MAX_EXPERTS];
    let_next_start();
    wait_for_previous();
    if (a.x != nullptr) {
        norm_rows(a.x, static_cast<const T*>(a.gain), static_cast<T*>(a.normed), a.rows, a.hidden, a.eps);
        __syncthreads();
    }

    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = blockIdx.x * 8 + warp;
    if (row >= a.rows) return;
    int* chosen = a.chosen + static_cast<size_t>(row) * a.choices;
    float* weights = a.weights + static_cast<size_t>(row) * a.choices;
    if (a.positions[row] < 0) {
        if (lane < a.choices) {
            chosen[lane] = -1;
            weights[lane] = 0.f;
        }
        return;
    }
    const float* logits = a.logits + static_cast<size_t>(row) * a.experts;
    float* own = shares[warp];
    float most = -INFINITY, total = 0.f;
    for (int e = lane; e < a.experts; e += WARP) most = fmaxf(most, logits[e]);
#pragma unroll
    for (int mask = WARP / 2; mask > 0; mask /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, mask));
    for (int e = lane; e < a.experts; e += WARP) {
        own[e] = expf(logits[e] - most);
        total += own[e];
    }
    total = warp_sum(total);
    for (int e = lane; e < a.experts; e += WARP) own[e] /= total;

    // Each turn finds the best of those that come behind the last one found. Lane `j` keeps the j-th.
    float last = INFINITY, share = 0.f, sum = 0.f;
    int last_at = -1, expert = 0;
    for (int j = 0; j < a.top_k; ++j) {
        float best = -1.f;
        int at = a.experts;
        for (int e = lane; e < a.experts; e += WARP) {
            const float p = own[e];
            if ((p < last || (p == last && e > last_at)) && p > best) {
                best = p;
                at = e;
            }
        }
#pragma unroll
        for (int mask = WARP / 2; mask > 0; mask /= 2) {
            const float other = __shfl_xor_sync(~0u, best, mask);
            const int other_at = __shfl_xor_sync(~0u, at, mask);
            if (other > best || (other == best && other_at < at)) {
                best = other;
                at = other_at;
            }
        }
        // Shares that are not numbers: the row is lost, which is found where its token is picked.
        if (at >= a.experts) {
            best = NAN;
            at = j;
        }
        last = best;
        last_at = at;
        sum = __fadd_rn(sum, best);
        if (lane == j) {
            share = best;
            expert = at;
        }
    }
    int rank = 0;
    for (int j = 0; j < a.top_k; ++j) {
        const int other = __shfl_sync(~0u, expert, j);
        rank += other < expert || (other == expert && j < lane);
    }
    if (lane < a.top_k) {
        chosen[rank] = expert;
        weights[rank] = a.normalize ? share / sum : share;
    }
    if (a.gate != nullptr) {
        const T* normed = static_cast<const T*>(a.normed) + static_cast<size_t>(row) * a.hidden;
        const T* gate = static_cast<const T*>(a.gate);
        float dot = 0.f;
        for (int i = lane; i < a.hidden; i += WARP) dot = __fmaf_rn(to_float(gate[i]), to_float(normed[a.deals ? dealt(i) : i]), dot);
        dot = warp_sum(dot);
        if (lane == 0) {
            chosen[a.top_k] = a.experts;
            weights[a.top_k] = 1.f / (1.f + expf(-dot));
        }
    }
}

// ---- plain -------------------------------------------------------------------------------------------------------------

// One warp per result. Grid: (width / 8 rounded up, pairs). 8 gates, then their 8 ups; fewer of each at the end.
template <typename T>
__device__ __forceinline__ void gate_up_plain(const MoeArgs& a) {
    let_next_start();
    wait_for_previous();
    const int lane = threadIdx.x % WARP, pair = blockIdx.y, result = blockIdx.x * 8 + threadIdx.x / WARP;
    const int expert = a.chosen[pair];
    if (expert < 0) return;
    const int inner = inner_of(a, expert);
    if (result >= inner) return;
    const T* weights = gate_up_of<T>(a, expert);
    const T* gate = weights + static_cast<size_t>(gate_row(result)) * a.hidden;
    const T* up = weights + static_cast<size_t>(up_row(result, inner)) * a.hidden;
    const T* x = static_cast<const T*>(a.normed) + static_cast<size_t>(pair / a.choices) * a.hidden;
    float sums[2] = {};
    for (int i = lane; i < a.hidden; i += WARP) {
        sums[0] = __fmaf_rn(to_float(gate[i]), to_float(x[i]), sums[0]);
        sums[1] = __fmaf_rn(to_float(up[i]), to_float(x[i]), sums[1]);
    }
    const float g = warp_sum(sums[0]), u = warp_sum(sums[1]);
    if (lane == 0) static_cast<T*>(a.between)[static_cast<size_t>(pair) * a.width + result] = from_float<T>(silu(g) * u);
}

// One warp per output. Grid: (hidden / 8 rounded up, rows).
template <typename T>
__device__ __forceinline__ void down_plain(const MoeArgs& a) {
    let_next_start();
    wait_for_previous();
    const int lane = threadIdx.x % WARP, row = blockIdx.y, output = blockIdx.x * 8 + threadIdx.x / WARP;
    if (output >= a.hidden || a.chosen[row * a.choices] < 0) return;
    float total = 0.f;
    for (int j = 0; j < a.choices; ++j) {
        const int pair = row * a.choices + j, expert = a.chosen[pair], inner = inner_of(a, expert);
        const T* w = down_of<T>(a, expert) + static_cast<size_t>(output) * inner;
        const T* y = static_cast<const T*>(a.between) + static_cast<size_t>(pair) * a.width;
        float sum = 0.f;
        for (int i = lane; i < inner; i += WARP) sum = __fmaf_rn(to_float(w[i]), to_float(y[i]), sum);
        const float part = __fmul_rn(warp_sum(sum), a.weights[pair]);
        total = j == 0 ? part : __fadd_rn(total, part);
    }
    if (lane == 0) a.x[static_cast<size_t>(row) * a.hidden + output] += total;
}

// ---- tensor cores ------------------------------------------------------------------------------------------------------

// Eight results of an expert, gate and up, for one pair; each of the eight warps takes one part of the inputs. Grid:
// (width / 8, pairs).
__device__ __forceinline__ void gate_up_few(const MoeArgs& a) {
    constexpr int AHEAD = 8;
    __shared__ float sums[PARTS][TILE + 1];
    let_next_start();
    wait_for_previous();
    const int pair = blockIdx.y, expert = a.chosen[pair];
    if (expert < 0 || blockIdx.x * 8 >= inner_of(a, expert)) return;

    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int part = a.hidden / PARTS, steps = part / STEP, first = warp * part + t * 8;
    const bf16* low = gate_up_of<bf16>(a, expert) + static_cast<size_t>(blockIdx.x * TILE + g) * a.hidden + first;
    const bf16* high = low + static_cast<size_t>(8) * a.hidden;
    const bf16* from = static_cast<const bf16*>(a.normed) + static_cast<size_t>(pair / a.choices) * a.hidden + first;
    uint4 w[AHEAD][2];
    const auto fetch = [&](int step) {
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            if (step + u < steps) {
                w[u][0] = load_weights(low + (step + u) * STEP);
                w[u][1] = load_weights(high + (step + u) * STEP);
            }
        }
    };
    fetch(0);
    float acc[4] = {};
    for (int step = 0; step < steps; step += AHEAD) {
        uint4 x[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            x[u] = make_uint4(0, 0, 0, 0);
            if (g == 0 && step + u < steps) x[u] = *reinterpret_cast<const uint4*>(from + (step + u) * STEP);
        }
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            if (step + u < steps) mma_step(acc, w[u][0], w[u][1], x[u]);
        }
        if (step + AHEAD < steps) fetch(step + AHEAD);
    }
    if (t == 0) {
        sums[warp][g] = acc[0];
        sums[warp][g + 8] = acc[2];
    }
    __syncthreads();
    if (threadIdx.x >= 8) return;
    const auto total = [&](int output) {
        float sum = sums[0][output];
#pragma unroll
        for (int p = 1; p < PARTS; ++p) sum = __fadd_rn(sum, sums[p][output]);
        return sum;
    };
    const int at = threadIdx.x;
    static_cast<bf16*>(a.between)[static_cast<size_t>(pair) * a.width + blockIdx.x * 8 + at] = __float2bfloat16_rn(silu(total(at)) * total(at + 8));
}

// 16 outputs of one expert for one pair by one warp, all inputs in one chain of sums. `from`: where the pair begins in
// `between`, plus 8t, for the lanes of column 0; null for the others.
template <int AHEAD>
__device__ __forceinline__ void down_tile(const MoeArgs& a, int expert, int output0, const bf16* from, float (&acc)[4]) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int inner = inner_of(a, expert), steps = inner / STEP;
    const bf16* low = down_of<bf16>(a, expert) + static_cast<size_t>(output0 + g) * inner + t * 8;
    const bf16* high = low + static_cast<size_t>(8) * inner;
    uint4 w[AHEAD][2];
    for (int step = 0; step < steps; step += AHEAD) {
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            if (step + u < steps) {
                w[u][0] = load_weights(low + (step + u) * STEP);
                w[u][1] = load_weights(high + (step + u) * STEP);
            }
        }
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            uint4 x = make_uint4(0, 0, 0, 0);
            if (from != nullptr && step + u < steps) x = *reinterpret_cast<const uint4*>(from + (step + u) * STEP);
            if (step + u < steps) mma_step(acc, w[u][0], w[u][1], x);
        }
    }
}

// 16 outputs of one row per block, a warp per choice. Grid: (hidden / 16, rows), up to eight warps.
__device__ __forceinline__ void down_few(const MoeArgs& a) {
    __shared__ float outputs[8][TILE];
    let_next_start();
    wait_for_previous();
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int row = blockIdx.y, pair = row * a.choices + warp, expert = a.chosen[pair];
    // A row visits all of its experts or none.
    if (expert < 0) return;
    const bf16* from = g == 0 ? static_cast<const bf16*>(a.between) + static_cast<size_t>(pair) * a.width + t * 8 : nullptr;
    float acc[4] = {};
    down_tile<8>(a, expert, blockIdx.x * TILE, from, acc);
    if (t == 0) {
        outputs[warp][g] = acc[0];
        outputs[warp][g + 8] = acc[2];
    }
    __syncthreads();
    if (threadIdx.x >= TILE) return;
    float total = 0.f;
    for (int j = 0; j < a.choices; ++j) {
        const float own = __fmul_rn(outputs[j][threadIdx.x], a.weights[row * a.choices + j]);
        total = j == 0 ? own : __fadd_rn(total, own);
    }
    a.x[static_cast<size_t>(row) * a.hidden + blockIdx.x * TILE + threadIdx.x] += total;
}

// Adds up the weighted outputs of a row's experts. Grid: rows.
__device__ __forceinline__ void gather_outputs(const MoeArgs& a) {
    let_next_start();
    wait_for_previous();
    const int row = blockIdx.x;
    const size_t pair0 = static_cast<size_t>(row) * a.choices;
    if (a.chosen[pair0] < 0) return;
    for (int i = threadIdx.x * 4; i < a.hidden; i += blockDim.x * 4) {
        float4 total = make_float4(0.f, 0.f, 0.f, 0.f);
        for (int j = 0; j < a.choices; ++j) {
            const float4 v = *reinterpret_cast<const float4*>(a.outputs + (pair0 + j) * a.hidden + i);
            const float w = a.weights[pair0 + j];
            const float4 own = make_float4(__fmul_rn(v.x, w), __fmul_rn(v.y, w), __fmul_rn(v.z, w), __fmul_rn(v.w, w));
            total.x = j == 0 ? own.x : __fadd_rn(total.x, own.x);
            total.y = j == 0 ? own.y : __fadd_rn(total.y, own.y);
            total.z = j == 0 ? own.z : __fadd_rn(total.z, own.z);
            total.w = j == 0 ? own.w : __fadd_rn(total.w, own.w);
        }
        float4* x = reinterpret_cast<float4*>(a.x + static_cast<size_t>(row) * a.hidden + i);
        const float4 before = *x;
        *x = make_float4(before.x + total.x, before.y + total.y, before.z + total.z, before.w + total.w);
    }
}

// ---- grouping ----------------------------------------------------------------------------------------------------------

// Pairs by expert, and the experts' pairs in groups: a counting sort by one block. Where among the pairs of its expert a
// pair comes is left to chance, for no sum depends on it; several counters of an expert share what its pairs ask.
__device__ __forceinline__ void sort_pairs(const MoeArgs& a) {
    constexpr int COUNTERS = 8, BINS = MAX_EXPERTS + WARP, AT_ONCE = 8;
    __shared__ int counts[COUNTERS][BINS], starts[BINS], firsts[BINS], all;
    let_next_start();
    wait_for_previous();
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int experts = a.experts + 1, pairs = a.rows * a.choices;
    int* own = counts[warp % COUNTERS];
    const auto walk = [&](auto each) {
        for (int i0 = threadIdx.x; i0 < pairs; i0 += blockDim.x * AT_ONCE) {
            int expert[AT_ONCE];
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u) {
                const int i = i0 + u * blockDim.x;
                expert[u] = i < pairs ? a.chosen[i] : -1;
            }
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u) {
                if (expert[u] >= 0) each(i0 + u * blockDim.x, expert[u]);
            }
        }
    };
    for (int i = threadIdx.x; i < COUNTERS * BINS; i += blockDim.x) counts[i / BINS][i % BINS] = 0;
    __syncthreads();
    walk([&](int, int expert) { atomicAdd(own + expert, 1); });
    __syncthreads();
    for (int e = threadIdx.x; e < BINS; e += blockDim.x) {
        int before = 0;
#pragma unroll
        for (int c = 0; c < COUNTERS; ++c) {
            const int some = counts[c][e];
            counts[c][e] = before;
            before += some;
        }
        starts[e] = before;
    }
    __syncthreads();
    if (warp == 0) {
        int pairs_before = 0, groups_before = 0;
        for (int e0 = 0; e0 < experts; e0 += WARP) {
            const int count = e0 + lane < experts ? starts[e0 + lane] : 0, groups = (count + a.group - 1) / a.group;
            int upto = count, groups_upto = groups;
#pragma unroll
            for (int up = 1; up < WARP; up *= 2) {
                const int other = __shfl_up_sync(~0u, upto, up), other_groups = __shfl_up_sync(~0u, groups_upto, up);
                if (lane >= up) {
                    upto += other;
                    groups_upto += other_groups;
                }
            }
            starts[e0 + lane] = pairs_before + upto - count;
            firsts[e0 + lane] = groups_before + groups_upto - groups;
            pairs_before += __shfl_sync(~0u, upto, WARP - 1);
            groups_before += __shfl_sync(~0u, groups_upto, WARP - 1);
        }
        if (lane == 0) {
            // Behind the last expert begins nothing, wherever its bin lies.
            if (experts % WARP == 0) starts[experts] = pairs_before;
            all = groups_before;
        }
    }
    __syncthreads();
    for (int i = all + threadIdx.x; i < a.max_groups; i += blockDim.x) a.groups[i] = {0, 0, 0, 0};
    for (int e = threadIdx.x; e < experts; e += blockDim.x) {
        const int start = starts[e], count = starts[e + 1] - start;
        for (int i = 0; i * a.group < count; ++i) a.groups[firsts[e] + i] = {e, start + i * a.group, min(a.group, count - i * a.group), 0};
    }
    walk([&](int i, int expert) { a.order[starts[expert] + atomicAdd(own + expert, 1)] = i; });
}

extern "C" __global__ void __launch_bounds__(256) moe_route_f32(const __grid_constant__ RouteArgs a) { route<float>(a); }
extern "C" __global__ void __launch_bounds__(256) moe_route_bf16(const __grid_constant__ RouteArgs a) { route<bf16>(a); }
extern "C" __global__ void __launch_bounds__(256) moe_gate_up_plain_f32(const __grid_constant__ MoeArgs a) { gate_up_plain<float>(a); }
extern "C" __global__ void __launch_bounds__(256) moe_gate_up_plain_bf16(const __grid_constant__ MoeArgs a) { gate_up_plain<bf16>(a); }
extern "C" __global__ void __launch_bounds__(256) moe_down_plain_f32(const __grid_constant__ MoeArgs a) { down_plain<float>(a); }
extern "C" __global__ void __launch_bounds__(256) moe_down_plain_bf16(const __grid_constant__ MoeArgs a) { down_plain<bf16>(a); }
extern "C" __global__ void __launch_bounds__(256, 2) moe_gate_up_few(const __grid_constant__ MoeArgs a) { gate_up_few(a); }
extern "C" __global__ void __launch_bounds__(256, 2) moe_down_few(const __grid_constant__ MoeArgs a) { down_few(a); }
extern "C" __global__ void __launch_bounds__(1024) moe_sort(const __grid_constant__ MoeArgs a) { sort_pairs(a); }
extern "C" __global__ void __launch_bounds__(256) moe_gather(const __grid_constant__ MoeArgs a) { gather_outputs(a); }
