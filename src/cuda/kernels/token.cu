// The begin and end of a step of the thinker: rows of the embedding table, and a token of a large vocabulary.

#include "common.cuh"
#include "philox.cuh"
#include "token.cuh"

// One block per row. Tokens of a prompt are marked on the way, for the penalty on repetition.
template <typename T>
__device__ __forceinline__ void begin_tokens(const BeginTokensArgs& a) {
    // No later kernel may start before the rows are known: see attend_fast.
    wait_for_previous();
    const int row = blockIdx.x;
    const TokenRow r = a.rows[row];
    float* x = a.x + static_cast<size_t>(row) * a.width;
    if (threadIdx.x == 0) {
        a.slots[row] = r.slot == NONE ? 0 : r.slot;
        a.positions[row] = r.slot == NONE ? -1 : r.position;
    }
    if (threadIdx.x < 3) a.axes[row * 3 + threadIdx.x] = r.axes[threadIdx.x];
    if (r.slot == NONE) {
        for (int i = threadIdx.x; i < a.width; i += blockDim.x) x[i] = 0.f;
        return;
    }
    const uint32_t token = r.token == NONE ? a.last[r.slot] : r.token;
    if (threadIdx.x == 0 && r.token != NONE) atomicOr(a.counts + static_cast<size_t>(r.slot) * a.size + token, 0x80000000u);
    if (r.media != NONE) {
        const float* from = a.media + static_cast<size_t>(r.media) * a.media_width;
        for (int i = threadIdx.x; i < a.width; i += blockDim.x) x[i] = from[i];
        return;
    }
    const T* from = static_cast<const T*>(a.table) + static_cast<size_t>(token) * a.width;
    for (int i = threadIdx.x; i < a.width; i += blockDim.x) x[i] = to_float(from[i]);
}

// One block per row: adds a level of what was seen to the residual stream.
extern "C" __global__ void __launch_bounds__(256) add_level(const __grid_constant__ MediaArgs a) {
    wait_for_previous();
    const TokenRow r = a.rows[blockIdx.x];
    if (r.slot == NONE || r.media == NONE || (r.flags & SEEN) == 0) return;
    const float* from = a.media + static_cast<size_t>(r.media) * a.media_width + static_cast<size_t>(1 + a.level) * a.width;
    float* x = a.x + static_cast<size_t>(blockIdx.x) * a.width;
    for (int i = threadIdx.x; i < a.width; i += blockDim.x) x[i] = __fadd_rn(x[i], from[i]);
}

// One block of eight warps per row: hands hidden states on to the next stage.
template <typename T>
__device__ __forceinline__ void hand_states(const MediaArgs& a) {
    wait_for_previous();
    const TokenRow r = a.rows[blockIdx.x];
    if (r.slot == NONE || r.hand == NONE) return;
    __shared__ float scale;
    const float* x = a.x + static_cast<size_t>(blockIdx.x) * a.width;
    T* out = reinterpret_cast<T*>(a.head->handed) + static_cast<size_t>(r.hand) * a.width;
    const T* gain = static_cast<const T*>(a.gain);
    if (gain != nullptr) {
        if (threadIdx.x < WARP) {
            const float own = row_scale(x, a.width, a.eps, threadIdx.x);
            if (threadIdx.x == 0) scale = own;
        }
        __syncthreads();
    }
    for (int i = threadIdx.x; i < a.width; i += blockDim.x) {
        out[i] = from_float<T>(gain != nullptr ? normed(x[i], scale, to_float(gain[i])) : x[i]);
    }
}
extern "C" __global__ void __launch_bounds__(256) hand_states_f32(const __grid_constant__ MediaArgs a) { hand_states<float>(a); }
extern "C" __global__ void __launch_bounds__(256) hand_states_bf16(const __grid_constant__ MediaArgs a) { hand_states<bf16>(a); }

// ---- sampling ----------------------------------------------------------------------------------------------------------
//
// The same as `pick` of sample.cuh for vocabularies that do not fit into registers: one block of 32 warps per row, each
// of which looks at a range of neighbouring tokens. What is selected by rank (top-k) or by weight (top-p) is found by
// three histograms over the digits of the scores. Sums are of whole numbers: the same in any order.

constexpr int SAMPLERS = 1024;
constexpr int SAMPLER_WARPS = SAMPLERS / WARP;
constexpr int BINS = 2048;
constexpr float WHOLE = 1099511627776.f; // a weight of 1: 2^40
constexpr uint32_t DOMAIN_THINKER = 1;

using whole = unsigned long long;

struct TokenShared {
    whole bins[BINS];
    whole parts[SAMPLER_WARPS];
    float best[SAMPLER_WARPS];
    int best_at[SAMPLER_WARPS];
    whole before;
    uint32_t bin;
    int bad, token;
};

// Order-preserving bits of a float.
__device__ __forceinline__ uint32_t order_of(float x) {
    const uint32_t bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Over the threads of a warp, up to and including this one.
__device__ __forceinline__ whole upto_me(whole own) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int up = 1; up < WARP; up *= 2) {
        const whole other = __shfl_up_sync(~0u, own, up);
        if (lane >= up) own += other;
    }
    return own;
}

// The sum over the threads before this one, and over all of them. `own` of a warp's lanes counts for its last lane.
__device__ __forceinline__ whole before_thread(TokenShared& s, whole own, whole& total) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const whole upto = upto_me(own);
    __syncthreads();
    if (lane == WARP - 1) s.parts[warp] = upto;
    __syncthreads();
    whole before = upto - own;
    total = 0;
    for (int w = 0; w < SAMPLER_WARPS; ++w) {
        before += w < warp ? s.parts[w] : 0;
        total += s.parts[w];
    }
    return before;
}

// The largest order of which those that have or exceed it amount to at least `wanted`, and what exceeds it amounts to.
// Together all must amount to that. COUNT: every score amounts to 1.
template <bool COUNT, typename Amount>
__device__ __forceinline__ uint32_t select(TokenShared& s, const float* scores, int from, int to, whole wanted, whole& above,
                                           const Amount& amount) {
    const int lane = threadIdx.x % WARP;
    uint32_t known = 0, mask = 0;
    above = 0;
    for (int shift : {21, 10, 0}) {
        const uint32_t digits = shift == 0 ? 0x3FFu : 0x7FFu;
        for (int b = threadIdx.x; b < BINS; b += SAMPLERS) s.bins[b] = 0;
        if (threadIdx.x == 0) {
            s.bin = 0;
            s.before = 0;
        }
        __syncthreads();
        for (int i = from + lane; i < to; i += WARP) {
            const uint32_t order = order_of(scores[i]);
            if ((order & mask) != known) continue;
            const uint32_t bin = (order >> shift) & digits;
            if (COUNT) {
                atomicAdd(reinterpret_cast<uint32_t*>(&s.bins[bin]), 1u); // the low half
            } else {
                const whole own = amount(scores[i]);
                if (own > 0) atomicAdd(&s.bins[bin], own);
            }
        }
        __syncthreads();
        // From the highest bin down, two for each thread.
        const int high = BINS - 1 - 2 * threadIdx.x;
        const whole first = s.bins[high], second = s.bins[high - 1];
        whole total;
        const whole before = before_thread(s, first + second, total);
        if (before < wanted && before + first >= wanted) {
            s.bin = high;
            s.before = before;
        } else if (before + first < wanted && before + first + second >= wanted) {
            s.bin = high - 1;
            s.before = before + first;
        }
        __syncthreads();
        known |= s.bin << shift;
        mask |= digits << shift;
        wanted -= s.before;
        above += s.before;
        __syncthreads();
    }
    return known;
}

// The token, or -1 when a logit is not a number or no token is possible. All threads get it.
__device__ int pick_token(TokenShared& s, float* scores, int size, const SamplingArgs& p, const uint32_t* counts, uint2 seed,
                          uint32_t step) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int each = (size + SAMPLERS - 1) / SAMPLERS * WARP;
    const int from = min(size, warp * each), to = min(size, from + each);
    const bool penalized = p.repetition != 1.f || p.frequency != 0.f || p.presence != 0.f;
    if (threadIdx.x == 0) s.bad = 0;
    __syncthreads();

    float best = -INFINITY;
    int best_at = size;
    bool bad = false;
    for (int i = from + lane; i < to; i += WARP) {
        float score = scores[i];
        bad |= !(score < INFINITY);
        const uint32_t seen = penalized ? counts[i] : 0;
        if (seen != 0) {
            score = score > 0.f ? score / p.repetition : score * p.repetition;
            const uint32_t times = seen & 0x7FFFFFFFu;
            if (times > 0) score -= __fmaf_rn(p.frequency, static_cast<float>(times), p.presence);
            bad |= !(score < INFINITY);
            scores[i] = score;
        }
        if (score > best) {
            best = score;
            best_at = i;
        }
    }
#pragma unroll
    for (int mask = WARP / 2; mask > 0; mask /= 2) {
        const float other = __shfl_xor_sync(~0u, best, mask);
        const int at = __shfl_xor_sync(~0u, best_at, mask);
        if (other > best || (other == best && at < best_at)) {
            best = other;
            best_at = at;
        }
    }
    if (lane == 0) {
        s.best[warp] = best;
        s.best_at[warp] = best_at;
    }
    if (bad) s.bad = 1;
    __syncthreads();
    best = -INFINITY;
    best_at = size;
    for (int w = 0; w < SAMPLER_WARPS; ++w) {
        if (s.best[w] > best) { // warps hold ascending tokens: the first of equals stays
            best = s.best[w];
            best_at = s.best_at[w];
        }
    }
    if (s.bad || best_at >= size) return -1;
    if (p.temperature == 0.f) return best_at;
    if (threadIdx.x == 0) s.token = best_at;

    uint32_t border = 0;
    if (p.top_k > 0 && p.top_k < static_cast<uint32_t>(size)) {
        whole above;
        border = select<true>(s, scores, from, to, p.top_k, above, [](float) { return whole(1); });
    }
    const auto weight = [&](float score) -> whole {
        return order_of(score) >= border ? static_cast<whole>(expf((score - best) / p.temperature) * WHOLE) : 0;
    };
    // Of the tokens of order `edge` the first `ties` stay, and none below.
    uint32_t edge = 0;
    whole ties = ~whole(0), ties_before = 0;
    if (p.top_p < 1.f) {
        whole own = 0, total, above;
        for (int i = from + lane; i < to; i += WARP) own += weight(scores[i]);
        before_thread(s, own, total);
        const whole wanted = max(whole(1), static_cast<whole>(ceil(static_cast<double>(p.top_p) * static_cast<double>(total))));
        edge = select<false>(s, scores, from, to, wanted, above, weight);
        // A token stays while those before it have less than p of all.
        whole mine = 0, all;
        if (threadIdx.x == 0) s.before = 0;
        __syncthreads();
        for (int i = from + lane; i < to; i += WARP) {
            if (order_of(scores[i]) == edge) {
                ++mine;
                s.before = weight(scores[i]); // the same for all of them
            }
        }
        before_thread(s, mine, all);
        for (int w = 0; w < warp; ++w) ties_before += s.parts[w];
        const whole at_edge = max(whole(1), s.before);
        ties = (wanted - above + at_edge - 1) / at_edge;
        __syncthreads();
    }
    const whole smallest = p.min_p > 0.f ? static_cast<whole>(p.min_p * WHOLE) : 0;
    // What stays of the token of this lane; for all lanes of a warp at once, from the front of its range on.
    whole seen = ties_before;
    const auto stays = [&](int i) -> whole {
        const float score = i < to ? scores[i] : -INFINITY;
        const uint32_t order = order_of(score);
        whole own = i < to ? weight(score) : 0;
        const bool tie = i < to && edge > 0 && order == edge;
        const uint32_t which = __ballot_sync(~0u, tie);
        if (order < edge || (tie && seen + __popc(which & ((1u << lane) - 1)) >= ties)) own = 0;
        seen += __popc(which);
        return own >= smallest ? own : 0;
    };
    whole own = 0, total;
    for (int first = from; first < to; first += WARP) own += stays(first + lane);
    before_thread(s, own, total);
    whole before = 0, in_warp = s.parts[warp];
    for (int w = 0; w < warp; ++w) before += s.parts[w];
    const uint32_t word = philox_block(make_uint4(step, 0, DOMAIN_THINKER, 0), seed).x >> 8;
    // floor(word / 2^24 * total), exactly.
    const whole target = (__umul64hi(total, static_cast<whole>(word)) << 40) | ((total * word) >> 24);
    if (target >= before && target < before + in_warp) {
        seen = ties_before;
        for (int first = from; first < to; first += WARP) {
            const whole upto = before + upto_me(stays(first + lane));
            const uint32_t which = __ballot_sync(~0u, upto > target);
            if (which != 0) {
                if (lane == 0) s.token = first + __ffs(which) - 1;
                break;
            }
            before = __shfl_sync(~0u, upto, WARP - 1);
        }
    }
    __syncthreads();
    return s.token;
}

// One block per row.
extern "C" __global__ void __launch_bounds__(SAMPLERS) sample_token(const __grid_constant__ SampleTokenArgs a) {
    __shared__ TokenShared shared;
    let_next_start();
    wait_for_previous();
    const int row = blockIdx.x;
    const TokenRow r = a.rows[row];
    if (r.slot == NONE) return;
    uint32_t* out = reinterpret_cast<uint32_t*>(a.head->out) + static_cast<size_t>(row) * 2;
    if (a.done[r.slot] != 0) {
        if (threadIdx.x == 0) {
            out[0] = 0;
            out[1] = STALE;
        }
        return;
    }
    const TokenParams& p = a.params[r.slot];
    uint32_t* counts = a.counts + static_cast<size_t>(r.slot) * a.size;
    const int token = pick_token(shared, a.logits + static_cast<size_t>(row) * a.size, a.size, p.sampling, counts,
                                 make_uint2(p.seed_low, p.seed_high), r.count);
    // All threads have seen that the row was not done.
    __syncthreads();
    if (threadIdx.x != 0) return;
    uint32_t status = 0;
    if (token < 0) {
        status = BROKEN;
    } else {
        for (uint32_t i = 0; i < p.stops; ++i) status |= p.stop[i] == static_cast<uint32_t>(token) ? STOPPED : 0;
        if (status == 0 && (r.flags & LAST) != 0) status = EXHAUSTED;
        counts[token] += 1;
        a.last[r.slot] = token;
    }
    if (status != 0) a.done[r.slot] = 1;
    out[0] = token < 0 ? 0 : token;
    out[1] = status;
}

extern "C" __global__ void __launch_bounds__(256) begin_tokens_f32(const __grid_constant__ BeginTokensArgs a) { begin_tokens<float>(a); }
extern "C" __global__ void __launch_bounds__(256) begin_tokens_bf16(const __grid_constant__ BeginTokensArgs a) { begin_tokens<bf16>(a); }

// The rows of a pass that what follows it goes on from, one behind the other.
extern "C" __global__ void __launch_bounds__(256) take_rows(const __grid_constant__ TakeRowsArgs a) {
    wait_for_previous();
    const float* from = a.x + static_cast<size_t>(a.of[static_cast<size_t>(blockIdx.x) * a.stride]) * a.width;
    float* to = a.out + static_cast<size_t>(blockIdx.x) * a.width;
    for (int i = threadIdx.x; i < a.width; i += blockDim.x) to[i] = from[i];
}

// The embeddings for the next stage: rows of the table, unchanged.
template <typename T>
__device__ __forceinline__ void hand_rows(const HandRowsArgs& a) {
    wait_for_previous();
    const uint32_t source = a.sources[blockIdx.x];
    if (source == NONE) return;
    const uint32_t token = source & SAMPLED ? a.last[source & ~SAMPLED] : source;
    const T* from = static_cast<const T*>(a.table) + static_cast<size_t>(token) * a.width;
    T* to = static_cast<T*>(a.out) + static_cast<size_t>(blockIdx.x) * a.width;
    for (int i = threadIdx.x; i < a.width; i += blockDim.x) to[i] = from[i];
}
// The other way round: rows that lie one behind the other to their places in a table.
template <typename T>
__device__ __forceinline__ void place_rows(const PlaceRowsArgs& a) {
    wait_for_previous();
    const T* from = static_cast<const T*>(a.rows) + static_cast<size_t>(blockIdx.x) * a.width;
    T* to = static_cast<T*>(a.table) + static_cast<size_t>(a.places[blockIdx.x]) * a.width;
    for (int i = threadIdx.x; i < a.width; i += blockDim.x) to[i] = from[i];
}
extern "C" __global__ void __launch_bounds__(256) place_rows_f32(const __grid_constant__ PlaceRowsArgs a) { place_rows<float>(a); }
extern "C" __global__ void __launch_bounds__(256) place_rows_bf16(const __grid_constant__ PlaceRowsArgs a) { place_rows<bf16>(a); }

extern "C" __global__ void __launch_bounds__(256) hand_rows_f32(const __grid_constant__ HandRowsArgs a) { hand_rows<float>(a); }
extern "C" __global__ void __launch_bounds__(256) hand_rows_bf16(const __grid_constant__ HandRowsArgs a) { hand_rows<bf16>(a); }
