// What persistent kernels for many rows have in common (predictor_many_90a.cu, layers_many_90a.cu): rows in pieces of 64 inputs,
// counts of what is done, and the rings that pieces come through.
#pragma once

#include "persistent.cuh"

constexpr int DEEP = 64; // inputs of a piece of rows and of weights
constexpr int TEAM = 16; // blocks that share a kv head, and a part of the inputs of `output` and `down`

// Where an even input `k` of a row of R is among pieces, in bytes: shuffled as tensor maps of 128 bytes do.
template <int R>
__device__ __forceinline__ int lies_at(int row, int k) {
    return k / DEEP * (R * DEEP * 2) + row * (DEEP * 2) + ((k % DEEP / 8 ^ row % 8) * 16) + k % 8 * 2;
}

// ---- counts ------------------------------------------------------------------------------------------------------------

constexpr int LINE = 128; // bytes that a count has for itself

// Where counts are that blocks share: by their place in the memory of a launch, and those of a team.
struct Counts {
    unsigned char* hops;
    int team;
    __device__ __forceinline__ uint32_t* count(int at) const { return reinterpret_cast<uint32_t*>(hops + at); }
    __device__ __forceinline__ uint32_t* of_team(int at) const { return count(at + team * LINE); }
};

// Counts only rise: those of a launch begin where the last one's ended, because all launches of this memory count alike.
__device__ __forceinline__ bool has_come(const uint32_t* count, uint32_t until) {
    uint32_t now;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(count) : "memory");
    return static_cast<int32_t>(now - until) >= 0;
}
__device__ __forceinline__ void await_count(const Clock& clock, const uint32_t* count, uint32_t until) {
    while (!has_come(count, until) && !clock.over()) {
    }
}
// All computing threads: what they have written is done.
__device__ __forceinline__ void done(uint32_t* count) {
    meet();
    if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
}
// All computing threads wait.
__device__ __forceinline__ void await_all(const Clock& clock, const uint32_t* count, uint32_t until) {
    if (threadIdx.x % WARP == 0) await_count(clock, count, until);
    __syncwarp();
}

// ---- rings --------------------------------------------------------------------------------------------------------------

// Where the warps are in a ring of pieces.
template <int SLOTS>
struct Place {
    uint32_t full, empty, data; // in shared memory
    int slot;
    uint32_t phase;
    __device__ __forceinline__ uint32_t filled() const { return full + slot * 8; }
    __device__ __forceinline__ uint32_t emptied() const { return empty + slot * 8; }
    __device__ __forceinline__ void next() {
        if (++slot == SLOTS) {
            slot = 0;
            phase ^= 1;
        }
    }
};

// Copies neighbouring pieces of rows, BYTES each, which others have written, into a ring: the lanes of a warp one each,
// because a copy takes longer to queue than to be multiplied.
template <int BYTES, int SLOTS>
__device__ __forceinline__ void copy_pieces(const Clock& clock, Place<SLOTS>& ring, const unsigned char* from, int pieces, uint64_t policy) {
    const int lane = threadIdx.x % WARP;
    // What is copied was not written by copies.
    asm volatile("fence.proxy.async;" ::: "memory");
    for (int at = 0; at < pieces; at += SLOTS) {
        const int count = min(SLOTS, pieces - at), slot = (ring.slot + lane) % SLOTS;
        const uint32_t phase = ring.phase ^ ((ring.slot + lane) / SLOTS & 1), full = ring.full + slot * 8;
        bool queued = lane >= count;
        while (__any_sync(~0u, !queued)) {
            // A copy is never put behind one that has not ended, not even when nothing waits any more: then those who read
            // say that they have before it is there.
            if (!queued && (barrier_passed(ring.empty + slot * 8, phase ^ 1) || clock.over()) && barrier_passed(full, phase ^ 1)) {
                barrier_expect(full, BYTES);
                copy_bytes(ring.data + slot * BYTES, from + (at + lane) * BYTES, BYTES, full, policy);
                queued = true;
            }
        }
        ring.phase ^= (ring.slot + count) / SLOTS & 1;
        ring.slot = (ring.slot + count) % SLOTS;
    }
}
// Waits for all copies into a ring: none may be on its way to a block that has ended.
template <int SLOTS>
__device__ __forceinline__ void await_copies(Place<SLOTS> ring) {
    for (int i = 0; i < SLOTS; ++i) {
        while (!barrier_passed(ring.full + ring.slot * 8, ring.phase ^ 1)) {
        }
        ring.next();
    }
}
