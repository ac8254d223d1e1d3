// Tables that tell kernels about rows. The same layouts as in src/cuda/talker/table.rs.
#pragma once

#include <cstdint>

constexpr uint32_t NONE = 0xFFFFFFFFu;

// One row of a step.
struct StepRow {
    uint32_t slot;  // NONE: padding of the batch
    int32_t position;
    uint32_t text;  // row of the text table that is added to the codec side
    uint32_t count; // codes 0 sampled before this step
    uint32_t flags; // see below
    uint32_t forced; // where the forced codes of the row begin in the step's list; NONE: none are forced
    float axes[3];   // positions that the rotation takes
    uint32_t of;     // where a pass over prompts did the layers: which of its rows
    uint32_t unused[2];
};

constexpr uint32_t NO_END = 1;   // the end must not be sampled
constexpr uint32_t LAST = 2;     // the limit is reached with this code

// A page that a slot got: pages[slot][index] = page.
struct NewPage {
    uint32_t slot, index, page, unused;
};

// Ahead of the rows of a step.
struct StepHead {
    // u32 [rows, 2 * groups + 2] in memory of the host: the codes, code 0 again, status; of rows with forced codes also
    // the codes that would have been picked.
    uint64_t out;
    // u64 [2 + 2 * groups], there too: when the frame began (the second is unused), and of each group when its codes
    // began to be picked and when they were. Nanoseconds of the device's clock.
    uint64_t times;
    uint32_t pages;
    uint32_t unused;
};

// Written by one block of a kernel for all. Times of rows of padding alone are not read.
__device__ __forceinline__ void stamp(const StepHead* head, int at) {
    if (blockIdx.x != 0 || threadIdx.x != 0 || head->times == 0) return;
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    reinterpret_cast<volatile uint64_t*>(head->times)[at] = now;
}

// Status of a row in `out`.
constexpr uint32_t STALE = 1;     // had ended before
constexpr uint32_t STOPPED = 2;   // sampled the end
constexpr uint32_t EXHAUSTED = 4; // reached its limit
constexpr uint32_t BROKEN = 8;    // a logit is not a number, or no token is allowed

// How one token is picked; `SamplingParams` of src/model/sampling.
struct SamplingArgs {
    float temperature, top_p, min_p;
    uint32_t top_k;
    float repetition, frequency, presence;
    uint32_t unused;
};

// The state of a slot while its sequence lives.
struct SlotParams {
    SamplingArgs first, others; // code 0, and the other groups
    uint32_t seed_low, seed_high;
    uint32_t unused[2];
};

// One position of a prompt.
struct PromptRow {
    uint32_t slot;
    int32_t position;
    uint32_t text;  // row of the text table
    uint32_t kind;  // see below
    uint32_t codes; // where its codes begin in the launch's list; for TOKEN the codec id itself
    uint32_t last;  // 1: the codec side goes to the slot's `codec` and the position runs with a frame's layers
    float axes[3];  // positions that the rotation takes
    uint32_t unused[3];
};

constexpr uint32_t PLAIN_TEXT = 0, TOKEN = 1, X_VECTOR = 2, REFERENCE_FRAME = 3;
constexpr uint32_t NEXT = 4; // no position of a prompt: the slot's next one, whose codec side is in `codec`
