// Picking a token, by one block: penalties, suppression, temperature, top-k, top-p, min-p and the draw, in the order of
// src/model/sampling. Weights become whole numbers before they are added up, so that sums are the same in any order and a
// token depends on its row alone.
#pragma once

#include "common.cuh"
#include "frame.cuh"
#include "philox.cuh"

// The threads that pick together: a whole block of them. A kernel whose blocks also do other things brings a team of its
// own, of as many warps as it likes: the token is the same.
struct WholeBlock {
    static constexpr int THREADS = 512;
    static __device__ __forceinline__ void meet() { __syncthreads(); }
};
constexpr int PICKERS = WholeBlock::THREADS;
// Neighbouring tokens that a thread keeps in registers: a team picks among up to THREADS * EACH tokens.
constexpr int EACH = 8;
constexpr uint32_t DOMAIN_CODES = 2; // of the random numbers of codes
// A weight of 1 as a whole number: 2^40. Sums stay below 2^52.
constexpr float ONE = 1099511627776.f;

using whole = unsigned long long;

template <class TEAM>
struct PickParts {
    static constexpr int WARPS = TEAM::THREADS / WARP;
    whole parts[2][WARPS];
    float best[WARPS], least[WARPS];
    int best_at[WARPS];
    int token;
    int bad;
};
using PickShared = PickParts<WholeBlock>;

__device__ __forceinline__ whole warp_total(whole own) {
#pragma unroll
    for (int mask = WARP / 2; mask > 0; mask /= 2) own += __shfl_xor_sync(~0u, own, mask);
    return own;
}

// The sum over the warps of what each of them has; `turn` alternates from call to call, so that one barrier is enough.
template <class TEAM>
__device__ __forceinline__ whole over_warps(PickParts<TEAM>& s, whole own, int turn) {
    if (threadIdx.x % WARP == 0) s.parts[turn][threadIdx.x / WARP] = own;
    TEAM::meet();
    whole total = 0;
#pragma unroll
    for (int w = 0; w < PickParts<TEAM>::WARPS; ++w) total += s.parts[turn][w];
    return total;
}

// The sum of `own` over the threads before this one, and over all of them.
template <class TEAM>
__device__ __forceinline__ whole before_me(PickParts<TEAM>& s, whole own, whole& total) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    whole upto = own;
#pragma unroll
    for (int up = 1; up < WARP; up *= 2) {
        const whole other = __shfl_up_sync(~0u, upto, up);
        if (lane >= up) upto += other;
    }
    TEAM::meet();
    if (lane == WARP - 1) s.parts[0][warp] = upto;
    TEAM::meet();
    whole before = upto - own;
    total = 0;
#pragma unroll
    for (int w = 0; w < PickParts<TEAM>::WARPS; ++w) {
        before += w < warp ? s.parts[0][w] : 0;
        total += s.parts[0][w];
    }
    return before;
}

// A score that at least `k` of the scores have or exceed, and fewer than `k` exceed, or that exactly `k` have or exceed.
// Between `low`, which more than k have, and `high`, which none exceeds; by quarters.
template <class TEAM>
__device__ __forceinline__ float kth_largest(PickParts<TEAM>& s, const float (&scores)[EACH], uint32_t k, float low, float high) {
    // `high` itself may be the answer: what fewer than k have lies just above it.
    high = nextafterf(high, INFINITY);
    for (int turn = 0;; turn ^= 1) {
        const float half = low + (high - low) * 0.5f, first = low + (half - low) * 0.5f, third = half + (high - half) * 0.5f;
        if (!(half > low && half < high)) break;
        uint32_t two = 0, one = 0;
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            two += (scores[j] >= first ? 1u : 0u) + (scores[j] >= half ? 0x10000u : 0u);
            one += scores[j] >= third ? 1u : 0u;
        }
        const whole own = __reduce_add_sync(~0u, two) | static_cast<whole>(__reduce_add_sync(~0u, one)) << 32;
        const whole total = over_warps(s, own, turn);
        const uint32_t a = total & 0xFFFF, b = (total >> 16) & 0xFFFF, c = static_cast<uint32_t>(total >> 32);
        if (a == k || b == k || c == k) {
            low = a == k ? first : b == k ? half : third;
            break;
        }
        if (c > k) {
            low = third;
        } else if (b > k) {
            low = half;
            high = third;
        } else if (a > k) {
            low = first;
            high = half;
        } else {
            high = first;
        }
    }
    TEAM::meet();
    return low;
}

// Order-preserving bits of a float.
__device__ __forceinline__ uint32_t sortable(float x) {
    const uint32_t bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The token that the number of (seed, domain, step, group) selects from `size` logits, at most THREADS * EACH, or -1 when
// there is none. `logit(j, i)` is that of token `i`, the j-th of the thread. `counts` [size]: times a token was sampled,
// with bit 31 for tokens of a prompt; may be null. Tokens first_banned..end_banned are never picked but `spared`, and
// `banned` never. All threads of a team call it; all get the token.
template <class TEAM, class LOGIT>
__device__ __forceinline__ int pick_from(PickParts<TEAM>& s, LOGIT logit, int size, const SamplingArgs& p, const uint32_t* counts,
                    int first_banned, int end_banned, int spared, int banned, uint2 seed, uint32_t domain, uint32_t step,
                    uint32_t group) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int each = (size + TEAM::THREADS - 1) / TEAM::THREADS, from = threadIdx.x * each;
    if (threadIdx.x == 0) s.bad = 0;
    float scores[EACH], best = -INFINITY, least = INFINITY;
    uint32_t seen[EACH];
    const bool penalized = counts != nullptr && (p.repetition != 1.f || p.frequency != 0.f || p.presence != 0.f);
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        const bool there = j < each && from + j < size;
        scores[j] = there ? logit(j, from + j) : -INFINITY;
        seen[j] = there && penalized ? counts[from + j] : 0;
    }
    int best_at = size;
    bool bad = false;
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        const int i = from + j;
        float score = scores[j];
        bad |= !(score < INFINITY);
        if (seen[j] != 0) {
            score = score > 0.f ? score / p.repetition : score * p.repetition;
            const uint32_t times = seen[j] & 0x7FFFFFFFu;
            if (times > 0) score -= __fmaf_rn(p.frequency, static_cast<float>(times), p.presence);
        }
        if ((i >= first_banned && i < end_banned && i != spared) || i == banned) score = -INFINITY;
        bad |= !(score < INFINITY);
        scores[j] = score;
        if (score > best) {
            best = score;
            best_at = i;
        }
        if (score > -INFINITY) least = fminf(least, score);
    }
#pragma unroll
    for (int mask = WARP / 2; mask > 0; mask /= 2) {
        const float other = __shfl_xor_sync(~0u, best, mask);
        const int at = __shfl_xor_sync(~0u, best_at, mask);
        if (other > best || (other == best && at < best_at)) {
            best = other;
            best_at = at;
        }
        least = fminf(least, __shfl_xor_sync(~0u, least, mask));
    }
    TEAM::meet();
    if (lane == 0) {
        s.best[warp] = best;
        s.best_at[warp] = best_at;
        s.least[warp] = least;
    }
    if (bad) s.bad = 1;
    TEAM::meet();
    best = -INFINITY;
    best_at = size;
#pragma unroll
    for (int w = 0; w < PickParts<TEAM>::WARPS; ++w) {
        if (s.best[w] > best) { // warps hold ascending tokens: the first of equals stays
            best = s.best[w];
            best_at = s.best_at[w];
        }
        least = fminf(least, s.least[w]);
    }
    if (s.bad || best_at >= size) return -1;
    if (p.temperature == 0.f) return best_at;
    if (threadIdx.x == 0) s.token = best_at;

    // What stays: scores of at least `border`; weights are set to 0 for all others.
    float border = least;
    if (p.top_k > 0 && p.top_k < static_cast<uint32_t>(size)) {
        uint32_t own = 0;
#pragma unroll
        for (int j = 0; j < EACH; ++j) own += scores[j] > -INFINITY;
        TEAM::meet();
        if (over_warps(s, __reduce_add_sync(~0u, own), 1) > p.top_k) border = kth_largest(s, scores, p.top_k, least, best);
    }
    whole weights[EACH];
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        weights[j] = scores[j] >= border ? static_cast<whole>(expf((scores[j] - best) / p.temperature) * ONE) : 0;
    }
    if (p.top_p < 1.f) {
        whole own = 0;
#pragma unroll
        for (int j = 0; j < EACH; ++j) own += weights[j];
        TEAM::meet();
        const whole total = over_warps(s, warp_total(own), 1);
        // A token stays while those before it have less than p of all.
        const whole wanted = max(static_cast<whole>(1), static_cast<whole>(ceil(static_cast<double>(p.top_p) * static_cast<double>(total))));
        // The largest key such that the tokens that have or exceed it come to that, bit by bit.
        const auto weight_from = [&](uint32_t key, int turn) {
            whole sum = 0;
#pragma unroll
            for (int j = 0; j < EACH; ++j) sum += sortable(scores[j]) >= key ? weights[j] : 0;
            return over_warps(s, warp_total(sum), turn);
        };
        uint32_t key = 0;
        for (int bit = 31; bit >= 0; --bit) {
            const uint32_t next = key | (1u << bit);
            if (weight_from(next, bit & 1 ? 0 : 1) >= wanted) key = next;
        }
        const whole above = weight_from(key + 1, 0);
        // Of the tokens at the border only as many as it takes, the first ones.
        whole ties = 0, at_border = 0, all;
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            if (sortable(scores[j]) == key && weights[j] > 0) {
                ++ties;
                at_border = weights[j];
            }
        }
        whole rank = before_me(s, ties, all);
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            const uint32_t own_key = sortable(scores[j]);
            if (own_key < key) weights[j] = 0;
            // Needed while those above and the ties before it have less than what is wanted.
            if (own_key == key && weights[j] > 0 && above + rank++ * at_border >= wanted) weights[j] = 0;
        }
    }
    if (p.min_p > 0.f) {
        const whole smallest = static_cast<whole>(p.min_p * ONE);
#pragma unroll
        for (int j = 0; j < EACH; ++j) weights[j] = weights[j] >= smallest ? weights[j] : 0;
    }

    whole own = 0, total;
#pragma unroll
    for (int j = 0; j < EACH; ++j) own += weights[j];
    whole at = before_me(s, own, total);
    const uint32_t word = philox_block(make_uint4(step, group, domain, 0), seed).x >> 8;
    // floor(word / 2^24 * total), exactly.
    const whole target = (__umul64hi(total, static_cast<whole>(word)) << 40) | ((total * word) >> 24);
    if (target >= at && target < at + own) {
        bool found = false;
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            at += weights[j];
            if (!found && at > target) {
                found = true;
                s.token = from + j;
            }
        }
    }
    TEAM::meet();
    return s.token;
}

// The same from logits in memory, by a whole block.
__device__ int pick(PickShared& s, const float* logits, int size, const SamplingArgs& p, const uint32_t* counts,
                    int first_banned, int end_banned, int spared, int banned, uint2 seed, uint32_t domain, uint32_t step,
                    uint32_t group) {
    const auto logit = [&](int, int i) { return logits[i]; };
    return pick_from(s, logit, size, p, counts, first_banned, end_banned, spared, banned, seed, domain, step, group);
}
