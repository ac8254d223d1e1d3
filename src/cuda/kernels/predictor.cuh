// What the persistent predictor (predictor_90a.cu) is made of: its arguments, the hand-offs between blocks, the ring that
// its weights come through, and products from it.
//
// Hand-offs are packets of 16 bytes in the second-level cache: three words and an epoch, written and read at once, so that
// a packet is either old or whole. Epochs are never reused: each launch begins a range of EPOCHS, and each packet of a
// launch's memory is written in every launch, so no older one can be taken for it when 32 bits wrap.
#pragma once

#include "common.cuh"
#include "frame.cuh"
#include "mma.cuh"

// The sizes of the predictor of all published talkers: a caller compares them.
constexpr int HIDDEN = 1024, INNER = 3072, HEADS = 16, KV_HEADS = 8, HEAD = 128, CODES = 2048;
constexpr int BLOCKS = 128;          // that run together
constexpr int COMPUTING = 256;       // threads of a block that compute; four more warps have one lane that copies
constexpr int STAGE = 16384;         // bytes of a piece of weights: 2048 for each computing warp
constexpr int POSITIONS = 16;        // of a sequence
constexpr int LAYER_STAGES = 15;     // 4 of queries, keys and values, 2 of the output, 6 of gate and up, 3 of down
constexpr int HEAD_STAGES = 2;
constexpr uint32_t EPOCHS = 1024;    // of a launch
constexpr int MAX_PASSES = 32, MAX_LAYERS = 8;

struct PredictorArgs {
    const uint4* body;        // [layers * LAYER_STAGES][BLOCKS][STAGE], see pack_predictor
    const uint4* heads;       // [passes][HEAD_STAGES][BLOCKS][STAGE]
    const bf16* gains;        // [layers][2][HIDDEN], and the final norm
    const bf16* qk_norm;      // [layers][2][HEAD]
    const float2* turns;      // [POSITIONS][HEAD / 2]: sine and cosine
    uint4* hops;              // see Hops
    const bf16* keys;         // the predictor's cache
    bf16* values;
    const uint32_t* pages;    // [rows, max_pages]
    const float* x;           // [rows, HIDDEN]: input of the first pass
    const StepRow* rows;
    const StepHead* head;
    const SlotParams* params;
    float* codec;             // [slots, outer]
    const uint64_t* tables;   // addresses by group: bf16 [CODES, outer]
    const uint64_t* narrowed; // the same, [CODES, HIDDEN]
    const uint32_t* forced;
    uint32_t* stalled;        // in memory of the host, becomes 1: see Clock
    uint64_t layer_size;      // elements of a layer's keys in the cache
    int max_pages;
    int count;                // rows of the step: those behind them are padding
    int first, passes;        // pass `first` is the first one here; `passes` in all
    int layers;
    int groups, outer;
    float eps, scale;
    int ring, kept, flight, pace; // see `copy_weights`
    uint32_t limit;           // cycles of a launch behind which nothing waits any more
};

__device__ __forceinline__ void meet() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
__device__ __forceinline__ uint32_t shared_at(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ uint4 load_shared(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}
__device__ __forceinline__ uint32_t packed(float a, float b) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const uint32_t*>(&v);
}
__device__ __forceinline__ uint32_t half_bits(float a) { return __bfloat16_as_ushort(__float2bfloat16_rn(a)); }
__device__ __forceinline__ float low_half(uint32_t w) { return __uint_as_float(w << 16); }
__device__ __forceinline__ float high_half(uint32_t w) { return __uint_as_float(w & 0xFFFF0000u); }
// A number as an argument.
template <int N>
struct Count {
    static constexpr int value = N;
};
// ---- waiting -----------------------------------------------------------------------------------------------------------

// When a launch began, by the multiprocessor's clock. A wait that is not over when the launch has taken `limit` cycles is in
// vain, and so is each later one: then nothing waits any more, and the launch ends soon with results that mean nothing. A
// block that ends so late, or nearly, tells the host that it must not use them.
struct Clock {
    uint32_t began, limit;
    __device__ __forceinline__ uint32_t passed() const { return static_cast<uint32_t>(::clock()) - began; }
    __device__ __forceinline__ bool over() const { return passed() >= limit; }
    __device__ __forceinline__ bool nearly_over() const { return passed() >= limit - limit / 8; }
};

struct Packet {
    uint32_t x, y, z, epoch;
};
__device__ __forceinline__ Packet load_packet(const void* p) {
    uint64_t low, high;
    asm volatile("{ .reg .b128 q; ld.relaxed.gpu.global.b128 q, [%2]; mov.b128 {%0, %1}, q; }" : "=l"(low), "=l"(high) : "l"(p) : "memory");
    return {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)};
}
__device__ __forceinline__ void store_packet(void* p, uint32_t x, uint32_t y, uint32_t z, uint32_t epoch) {
    const uint64_t low = x | static_cast<uint64_t>(y) << 32, high = z | static_cast<uint64_t>(epoch) << 32;
    asm volatile("{ .reg .b128 q; mov.b128 q, {%1, %2}; st.relaxed.gpu.global.b128 [%0], q; }" ::"l"(p), "l"(low), "l"(high) : "memory");
}
// Waits for N packets of this lane, the i-th at `from + at(i)`, then hands them on.
template <int N, class AT, class TAKE>
__device__ __forceinline__ void receive(const Clock& clock, uint32_t epoch, const uint4* from, AT at, TAKE take) {
    Packet v[N];
    for (;;) {
        bool there = true;
#pragma unroll
        for (int i = 0; i < N; ++i) v[i] = load_packet(from + at(i));
#pragma unroll
        for (int i = 0; i < N; ++i) there &= v[i].epoch == epoch;
        if (there || clock.over()) break;
    }
#pragma unroll
    for (int i = 0; i < N; ++i) take(i, v[i]);
}
// Hands on N numbers that the first lanes of a warp have, two in a packet.
template <int N>
__device__ __forceinline__ void send_pairs(uint4* to, float own, int lane, uint32_t epoch) {
    const float low = __shfl_sync(~0u, own, 2 * lane % WARP), high = __shfl_sync(~0u, own, (2 * lane + 1) % WARP);
    if (lane < N / 2) store_packet(to, __float_as_uint(low), __float_as_uint(high), 0, epoch);
}

// ---- weights -----------------------------------------------------------------------------------------------------------

struct Ring {
    uint32_t full, empty, data; // in shared memory; `data` is this lane's
    int slot, stages;
    uint32_t phase;
    Clock clock;
};
__device__ __forceinline__ bool has_passed(uint32_t barrier, uint32_t phase) {
    uint32_t passed;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(passed)
                 : "r"(barrier), "r"(phase)
                 : "memory");
    return passed;
}
__device__ __forceinline__ void await(const Clock& clock, uint32_t barrier, uint32_t phase) {
    while (!has_passed(barrier, phase) && !clock.over()) {
    }
}
// Puts loads and stores of shared memory ahead of copies into it.
__device__ __forceinline__ void fence_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// This lane's four pieces of the next stage. The fence: a copy into the stage is not ordered behind loads that may still be
// under way when the barrier hears of them.
__device__ __forceinline__ void take(Ring& ring, uint4 (&f)[4], int lane) {
    await(ring.clock, ring.full + ring.slot * 8, ring.phase);
    const uint32_t from = ring.data + ring.slot * STAGE;
#pragma unroll
    for (int h = 0; h < 4; ++h) f[h] = load_shared(from + h * 512);
    fence_copies();
    __syncwarp();
    if (lane == 0) asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(ring.empty + ring.slot * 8) : "memory");
    if (++ring.slot == ring.stages) {
        ring.slot = 0;
        ring.phase ^= 1;
    }
}
template <int AHEAD>
__device__ __forceinline__ void take_ahead(Ring& ring, uint4 (&f)[AHEAD][4], int lane) {
#pragma unroll
    for (int q = 0; q < AHEAD; ++q) take(ring, f[q], lane);
}
// One lane copies all weights of all passes into the ring, in the order in which they are used. At most `flight` stages are
// on their way at once, and `pace` cycles lie between two: unshaped, the copies slow every hand-off. `kept` stages of a
// pass are to stay in the second-level cache, the others give way.
__device__ __forceinline__ void copy_weights(const PredictorArgs& a, const Clock& clock, uint32_t full, uint32_t empty, uint32_t data) {
    const int body = a.layers * LAYER_STAGES, pass_stages = body + HEAD_STAGES, total = (a.passes - a.first) * pass_stages;
    uint64_t last, first;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(last));
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
    int slot = 0, waited = 0, waited_slot = 0;
    uint32_t phase = 0, waited_phase = 0, next = ::clock();
    // A copy ends by itself: this wait needs no limit, and has none, because no copy may be on its way to a block that has
    // ended.
    const auto wait_for_copies = [&](int until) {
        for (; waited < until; ++waited) {
            while (!has_passed(full + waited_slot * 8, waited_phase)) {
            }
            if (++waited_slot == a.ring) {
                waited_slot = 0;
                waited_phase ^= 1;
            }
        }
    };
    for (int n = 0; n < total; ++n) {
        const int pass = a.first + n / pass_stages, s = n % pass_stages;
        if (n >= a.ring) await(clock, empty + slot * 8, phase ^ 1);
        fence_copies();
        wait_for_copies(n - min(a.flight, a.ring) + 1);
        const bool head = s >= body;
        const size_t at = head ? static_cast<size_t>(pass) * HEAD_STAGES + s - body : s;
        const unsigned char* from = reinterpret_cast<const unsigned char*>(head ? a.heads : a.body) + (at * BLOCKS + blockIdx.x) * STAGE;
        const bool keep = !head && (s + 1) * a.kept / body != s * a.kept / body;
        while (static_cast<int>(static_cast<uint32_t>(::clock()) - next) < 0) {
        }
        next = static_cast<uint32_t>(::clock()) + a.pace;
        const uint32_t barrier = full + slot * 8, to = data + slot * STAGE;
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(STAGE) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to), "l"(from), "r"(STAGE),
                     "r"(barrier), "l"(keep ? last : first)
                     : "memory");
        if (++slot == a.ring) {
            slot = 0;
            phase ^= 1;
        }
    }
    wait_for_copies(total);
}

// ---- products ----------------------------------------------------------------------------------------------------------

// T tiles of 16 outputs over S steps of 32 inputs of this warp's part; the first AHEAD stages are in registers. Rows are in
// shared memory at `x_at`, XS bytes each. Weights lie as the instruction takes them; the order of sums is linear_small's.
template <int T, int S, int R, int XS, int AHEAD>
__device__ __forceinline__ void product(Ring& ring, uint4 (&f)[AHEAD][4], uint32_t x_at, float (&acc)[T][4], int lane) {
    constexpr int Q = S * T / 2;
    const int g = lane / 4, t = lane % 4;
    const uint32_t own = x_at + g * XS + t * 16;
    uint4 x;
#pragma unroll
    for (int q = 0; q < Q; ++q) {
#pragma unroll
        for (int h = 0; h < 4; ++h) {
            const int i = q * 4 + h, step = i / (T * 2), tile = i % (T * 2) / 2, half = i % 2;
            if (i % (T * 2) == 0) {
                x = make_uint4(0, 0, 0, 0);
                if (g < R) x = load_shared(own + step * 64);
            }
            const uint4& w = f[q % AHEAD][h];
            mma(acc[tile], w.x, w.y, w.z, w.w, half ? x.z : x.x, half ? x.w : x.y);
        }
        if (q + AHEAD < Q) take(ring, f[q % AHEAD], lane);
    }
}
// Eight outputs: the weights are the second operand of the instruction, the rows the first. The sums are the same.
template <int S, int R, int XS, int AHEAD>
__device__ __forceinline__ void product_of_eight(Ring& ring, uint4 (&f)[AHEAD][4], uint32_t x_at, float (&acc)[4], int lane) {
    constexpr int Q = S / 4;
    const int g = lane / 4, t = lane % 4;
    const uint32_t own = x_at + g * XS + t * 16;
#pragma unroll
    for (int q = 0; q < Q; ++q) {
#pragma unroll
        for (int h = 0; h < 4; ++h) {
            uint4 x = make_uint4(0, 0, 0, 0);
            if (g < R) x = load_shared(own + (q * 4 + h) * 64);
            const uint4& w = f[q % AHEAD][h];
            mma(acc, x.x, 0, x.y, 0, w.x, w.y);
            mma(acc, x.z, 0, x.w, 0, w.z, w.w);
        }
        if (q + AHEAD < Q) take(ring, f[q % AHEAD], lane);
    }
}
// The eight parts of a sum, one after the other; `stride` numbers between those of two warps.
__device__ __forceinline__ float total_of(const float* sums, int stride, int at) {
    float s = sums[at];
#pragma unroll
    for (int w = 1; w < PARTS; ++w) s = __fadd_rn(s, sums[w * stride + at]);
    return s;
}
