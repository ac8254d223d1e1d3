// What kernels are made of whose blocks stay on the device together: hand-offs between blocks, waits that end, and the
// ring that weights come through.
//
// Hand-offs are packets of 16 bytes in the second-level cache: three words and an epoch, written and read at once, so that
// a packet is either old or whole. Epochs are never reused: each launch begins a range of them, and each packet of a
// launch's memory is written in every launch, so no older one can be taken for it when 32 bits wrap.
#pragma once

#include "wgmma.cuh"

constexpr int BLOCKS = 128;    // that run together
constexpr int COMPUTING = 256; // threads of a block that compute; four more warps have one that copies
constexpr int STAGE = 16384;   // bytes of a piece of weights: 2048 for each computing warp

__device__ __forceinline__ void meet() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
__device__ __forceinline__ uint32_t shared_at(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ uint32_t half_bits(float a) { return __bfloat16_as_ushort(__float2bfloat16_rn(a)); }
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
// Waits for N packets of this lane of each of COUNT rows, which have `of_row` packets, eight at once.
template <int N, int COUNT, class TAKE>
__device__ __forceinline__ void receive_rows(const Clock& clock, uint32_t epoch, const uint4* from, int of_row, TAKE take) {
    constexpr int PIECES = N * COUNT, TOGETHER = PIECES < 8 ? PIECES : 8;
#pragma unroll
    for (int o = 0; o < PIECES; o += TOGETHER) {
        receive<TOGETHER>(clock, epoch, from + o / N * of_row, [&](int i) { return i / N * of_row + i % N * 32; },
                          [&](int i, const Packet& q) { take((o + i) / N, (o + i) % N, q); });
    }
    __syncwarp();
}
// Hands on N numbers that the first lanes of a warp have, two in a packet.
template <int N>
__device__ __forceinline__ void send_pairs(uint4* to, float own, int lane, uint32_t epoch) {
    const float low = __shfl_sync(~0u, own, 2 * lane % WARP), high = __shfl_sync(~0u, own, (2 * lane + 1) % WARP);
    if (lane < N / 2) store_packet(to, __float_as_uint(low), __float_as_uint(high), 0, epoch);
}

// ---- weights -----------------------------------------------------------------------------------------------------------

// Stages of weights in shared memory, as one lane takes them. PLACE says where a lane's four pieces of a stage lie.
template <class PLACE>
struct Ring {
    uint32_t full, empty, data; // in shared memory; `data` is this lane's
    int slot, stages;
    uint32_t phase;
    Clock clock;
};
__device__ __forceinline__ void await(const Clock& clock, uint32_t barrier, uint32_t phase) {
    while (!barrier_passed(barrier, phase) && !clock.over()) {
    }
}
// A barrier behind those of the longest ring: for what the copying warp has to hear of the others, of whom eight tell it.
__device__ __forceinline__ uint32_t signal_of(uint32_t full) { return full + 15 * 8; }
// Barriers of `stages` stages, `full` behind one another and `empty` 128 bytes further. By one thread, ahead of all others.
__device__ __forceinline__ void begin_ring(uint32_t full, uint32_t empty, int stages) {
    for (int i = 0; i < stages; ++i) {
        barrier_init(full + i * 8, 1);
        barrier_init(empty + i * 8, 8);
    }
    fence_copies();
}
// Gives the stage back, and goes on to the next one. The fence: a copy into the stage is not ordered behind loads that may
// still be under way when the barrier hears of them.
template <class PLACE>
__device__ __forceinline__ void pass(Ring<PLACE>& ring, int lane) {
    fence_copies();
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.empty + ring.slot * 8);
    if (++ring.slot == ring.stages) {
        ring.slot = 0;
        ring.phase ^= 1;
    }
}
// This lane's four pieces of the next stage.
template <class PLACE>
__device__ __forceinline__ void take(Ring<PLACE>& ring, uint4 (&f)[4], int lane) {
    await(ring.clock, ring.full + ring.slot * 8, ring.phase);
    const uint32_t from = ring.data + ring.slot * STAGE;
#pragma unroll
    for (int h = 0; h < 4; ++h) f[h] = load_shared(PLACE::of(from, h));
    pass(ring, lane);
}
template <int AHEAD, class PLACE>
__device__ __forceinline__ void take_ahead(Ring<PLACE>& ring, uint4 (&f)[AHEAD][4], int lane) {
#pragma unroll
    for (int q = 0; q < AHEAD; ++q) take(ring, f[q], lane);
}

// How stages are copied: at most `flight` are on their way at once, and `pace` cycles lie between two. Unshaped, the copies
// slow every hand-off.
struct Copying {
    int ring, flight, pace;
};
// Copies `total` stages of up to BYTES, in the order in which they are used: `copy` queues the n-th, to an address in shared
// memory, tells a barrier, and says how many bytes it asked to be paced for.
template <int BYTES = STAGE, class COPY>
__device__ __forceinline__ void copy_stages(const Copying& c, const Clock& clock, uint32_t full, uint32_t empty, uint32_t data, int total, COPY copy) {
    int slot = 0, waited = 0, waited_slot = 0;
    uint32_t phase = 0, waited_phase = 0, next = ::clock();
    // A copy ends by itself: this wait needs no limit, and has none, because no copy may be on its way to a block that has
    // ended.
    const auto wait_for_copies = [&](int until) {
        for (; waited < until; ++waited) {
            while (!barrier_passed(full + waited_slot * 8, waited_phase)) {
            }
            if (++waited_slot == c.ring) {
                waited_slot = 0;
                waited_phase ^= 1;
            }
        }
    };
    for (int n = 0; n < total; ++n) {
        if (n >= c.ring) await(clock, empty + slot * 8, phase ^ 1);
        fence_copies();
        wait_for_copies(n - min(c.flight, c.ring) + 1);
        while (static_cast<int>(static_cast<uint32_t>(::clock()) - next) < 0) {
        }
        next = static_cast<uint32_t>(::clock());
        next += c.pace * copy(n, data + slot * BYTES, full + slot * 8) / BYTES;
        if (++slot == c.ring) {
            slot = 0;
            phase ^= 1;
        }
    }
    wait_for_copies(total);
}
__device__ __forceinline__ void expect_stage(uint32_t barrier) {
    barrier_expect(barrier, STAGE);
}
// Queues the copy of so many neighbouring bytes, a multiple of 16, which stay in the second-level cache as `policy` has it.
__device__ __forceinline__ void copy_bytes(uint32_t to, const void* from, int bytes, uint32_t barrier, uint64_t policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to), "l"(from), "r"(bytes),
                 "r"(barrier), "l"(policy)
                 : "memory");
}
// Ways for what is copied in the second-level cache: it is to stay there, or to give way.
__device__ __forceinline__ uint64_t staying() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ uint64_t passing() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// The eight parts of a sum, one after the other; `stride` numbers between those of two warps.
__device__ __forceinline__ float total_of(const float* sums, int stride, int at) {
    float s = sums[at];
#pragma unroll
    for (int w = 1; w < PARTS; ++w) s = __fadd_rn(s, sums[w * stride + at]);
    return s;
}

// ---- heads -------------------------------------------------------------------------------------------------------------

// Norms and turns a head of 128 numbers by a warp, whose lanes have every 32nd of them; then multiplies by `times`. The
// order of Turn::head of attention.cuh.
__device__ __forceinline__ void norm_and_turn(float (&x)[4], const float (&gains)[4], const float2 (&turns)[2], float eps, float times) {
    float sum = __fmaf_rn(x[0], x[0], 0.f);
    sum = __fmaf_rn(x[2], x[2], sum);
    sum = __fmaf_rn(x[1], x[1], sum);
    sum = __fmaf_rn(x[3], x[3], sum);
    const float scale = rsqrtf(warp_sum(sum) / static_cast<float>(4 * WARP) + eps);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float low = normed(x[i], scale, gains[i]), high = normed(x[i + 2], scale, gains[i + 2]);
        x[i] = __fmaf_rn(low, turns[i].y, -__fmul_rn(high, turns[i].x)) * times;
        x[i + 2] = __fmaf_rn(high, turns[i].y, __fmul_rn(low, turns[i].x)) * times;
    }
}

// ---- a block -----------------------------------------------------------------------------------------------------------

// What a block does: one warp copies, as `copy(clock, full, empty, data)` has it, and eight compute, as `compute(ring,
// behind)` does; `behind` the ring is the rest of `dynamic`. Registers: 112 for each of twelve warps at the start. The
// four that do not compute give most of theirs to the eight that do, so that a block of the vocoder still fits beside.
template <class PLACE, class COPY, class COMPUTE>
__device__ __forceinline__ void stay(const Copying& copying, uint32_t limit, unsigned char* dynamic, COPY copy, COMPUTE compute) {
    __shared__ uint64_t barriers[32];
    const Clock clock = {static_cast<uint32_t>(::clock()), limit};
    const uint32_t full = shared_at(barriers), empty = full + 128, data = shared_at(dynamic);
    if (threadIdx.x == 0) {
        barrier_init(signal_of(full), 8);
        begin_ring(full, empty, copying.ring);
    }
    __syncthreads();
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (threadIdx.x >= COMPUTING) {
        keep_registers<32>();
        if (threadIdx.x < COMPUTING + WARP) copy(clock, full, empty, data);
    } else {
        take_registers<152>();
        const Ring<PLACE> ring = {full, empty, data + PLACE::own(warp, lane), 0, copying.ring, 0, clock};
        compute(ring, dynamic + copying.ring * STAGE);
    }
}
