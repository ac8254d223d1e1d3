// How a block of a persistent predictor picks the codes of a row of its own.
#pragma once

#include "predictor.cuh"
#include "sample.cuh"

struct PickTeam {
    static constexpr int THREADS = COMPUTING;
    static __device__ __forceinline__ void meet() { ::meet(); }
};

// What a block that picks keeps of its row.
struct Picking {
    PickParts<PickTeam> parts;
    SlotParams params;
    StepRow row;
    int codes[MAX_PASSES];
};

// The row of the step that this block picks for, or none; by all its threads.
__device__ __forceinline__ void begin_picking(const PredictorArgs& a, Picking& s, int row) {
    if (threadIdx.x != 0) return;
    s.row.slot = NONE;
    if (row < a.count) s.row = a.rows[row];
    if (s.row.slot != NONE) s.params = a.params[s.row.slot];
}

// The code of a row from its logits: what sample_group of sample.cu does, but for the sum of embeddings. `load` waits for the
// EACH logits of this thread.
template <class LOAD>
__device__ __forceinline__ int pick_code(const PredictorArgs& a, Picking& s, int row, int pass, LOAD load) {
    const int group = pass + 1;
    const auto stamp_row = [&](int at) {
        if (row != 0 || threadIdx.x != 0 || a.head->times == 0) return;
        uint64_t time;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
        reinterpret_cast<volatile uint64_t*>(a.head->times)[at + 2 * group] = time;
    };
    float raw[EACH];
    load(raw);
    stamp_row(2);
    if (s.row.slot == NONE) {
        meet(); // the same for all threads: logits are taken
        return 0;
    }
    const auto logit = [&](int j, int) { return raw[j]; };
    int code = pick_from(s.parts, logit, CODES, s.params.others, nullptr, 0, 0, -1, -1, make_uint2(s.params.seed_low, s.params.seed_high),
                         DOMAIN_CODES, s.row.count, group);
    const bool broken = code < 0;
    if (broken) code = 0;
    const int picked = code;
    if (s.row.forced != NONE) code = static_cast<int>(a.forced[s.row.forced + group]);
    if (threadIdx.x == 0) {
        uint32_t* out = reinterpret_cast<uint32_t*>(a.head->out) + static_cast<size_t>(row) * (2 * a.groups + 2);
        out[group] = code;
        if (s.row.forced != NONE) out[a.groups + 2 + group] = picked;
        if (broken) out[a.groups + 1] |= BROKEN;
        s.codes[pass] = code;
    }
    stamp_row(3);
    return code;
}

// Adds the embeddings of a row's codes to its codec side, in their order.
__device__ __forceinline__ void add_embeddings(const PredictorArgs& a, const Picking& s) {
    float* codec = a.codec + static_cast<size_t>(s.row.slot) * a.outer;
    for (int i = threadIdx.x * 8; i < a.outer; i += COMPUTING * 8) {
        float4 front = *reinterpret_cast<const float4*>(codec + i), back = *reinterpret_cast<const float4*>(codec + i + 4);
        float v[8] = {front.x, front.y, front.z, front.w, back.x, back.y, back.z, back.w};
#pragma unroll 4
        for (int pass = a.first; pass < a.passes; ++pass) {
            const bf16* table = reinterpret_cast<const bf16*>(a.tables[pass]) + static_cast<size_t>(s.codes[pass]) * a.outer;
            float e[8];
            unpack(*reinterpret_cast<const uint4*>(table + i), e);
#pragma unroll
            for (int j = 0; j < 8; ++j) v[j] = __fadd_rn(v[j], e[j]);
        }
        *reinterpret_cast<float4*>(codec + i) = make_float4(v[0], v[1], v[2], v[3]);
        *reinterpret_cast<float4*>(codec + i + 4) = make_float4(v[4], v[5], v[6], v[7]);
    }
}
