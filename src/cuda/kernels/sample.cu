// Codes from logits, and the input of the next pass: one block per row.

#include "sample.cuh"

struct FirstArgs {
    const float* logits;    // [rows, size]
    const StepRow* rows;
    const StepHead* head;
    const SlotParams* params; // [slots]
    uint32_t* counts;       // [slots, size]
    uint32_t* done;         // [slots]
    float* codec;           // [slots, outer]: becomes the sum of the frame's embeddings
    float* next;            // [.., inner]: the predictor's input, row `next_row + row`
    const void* table;      // T [size, outer]
    const void* narrowed;   // T [size, inner]: the same in the predictor's width
    const uint32_t* forced; // forced codes, which replace the picked ones
    int next_row;
    int size, outer, inner;
    int first_banned, eos;
    int groups;
};

struct GroupArgs {
    const float* logits; // [rows, size]
    const StepRow* rows;
    const StepHead* head;
    const SlotParams* params;
    const uint32_t* done;
    float* codec;
    float* next;          // null after the last group
    const void* table;    // T [size, outer]
    const void* narrowed; // T [size, inner]
    const uint32_t* forced;
    int size, outer, inner;
    int group, groups;
};

template <typename T>
__device__ __forceinline__ void embed(const void* table, int code, int width, float* to, bool add) {
    const T* from = static_cast<const T*>(table) + static_cast<size_t>(code) * width;
    for (int i = threadIdx.x; i < width; i += PICKERS) {
        const float x = to_float(from[i]);
        to[i] = add ? __fadd_rn(to[i], x) : x;
    }
}

__device__ __forceinline__ uint32_t* out_of(const StepHead* head, int row, int groups) {
    return reinterpret_cast<uint32_t*>(head->out) + static_cast<size_t>(row) * (2 * groups + 2);
}

template <typename T>
__device__ __forceinline__ void sample_first(const FirstArgs& a) {
    __shared__ PickShared shared;
    let_next_start();
    wait_for_previous();
    stamp(a.head, 2);
    const int row = blockIdx.x;
    const StepRow r = a.rows[row];
    float* next = a.next + static_cast<size_t>(a.next_row + row) * a.inner;
    if (r.slot == NONE) {
        embed<T>(a.narrowed, 0, a.inner, next, false);
        return;
    }
    const SlotParams& p = a.params[r.slot];
    uint32_t* counts = a.counts + static_cast<size_t>(r.slot) * a.size;
    const bool stale = a.done[r.slot] != 0, no_end = r.flags & NO_END;
    const size_t at = static_cast<size_t>(row) * a.size;
    int code = pick(shared, a.logits + at, a.size, p.first, counts, a.first_banned, a.size, no_end ? -1 : a.eos,
                    no_end ? a.eos : -1, make_uint2(p.seed_low, p.seed_high), DOMAIN_CODES, r.count, 0);
    const bool broken = code < 0;
    if (broken) code = 0;
    // Read here: the pick needs all registers.
    const int picked = code;
    const uint32_t forced = a.rows[row].forced;
    if (forced != NONE) code = static_cast<int>(a.forced[forced]);
    if (threadIdx.x == 0) {
        uint32_t status = 0;
        if (stale) {
            status = STALE;
        } else {
            if (broken) status |= BROKEN;
            else if (code == a.eos) status |= STOPPED;
            else if (r.flags & LAST) status |= EXHAUSTED;
            if (status != 0) a.done[r.slot] = 1;
            counts[code] += 1;
        }
        uint32_t* out = out_of(a.head, row, a.groups);
        out[0] = out[a.groups] = code;
        out[a.groups + 1] = status;
        if (forced != NONE) out[a.groups + 2] = picked;
    }
    embed<T>(a.narrowed, code, a.inner, next, false);
    embed<T>(a.table, code, a.outer, a.codec + static_cast<size_t>(r.slot) * a.outer, false);
    stamp(a.head, 3);
}

template <typename T>
__device__ __forceinline__ void sample_group(const GroupArgs& a) {
    __shared__ PickShared shared;
    let_next_start();
    wait_for_previous();
    stamp(a.head, 2 + 2 * a.group);
    const int row = blockIdx.x;
    const StepRow r = a.rows[row];
    if (r.slot == NONE) {
        if (a.next != nullptr) embed<T>(a.narrowed, 0, a.inner, a.next + static_cast<size_t>(row) * a.inner, false);
        return;
    }
    const SlotParams& p = a.params[r.slot];
    const size_t at = static_cast<size_t>(row) * a.size;
    int code = pick(shared, a.logits + at, a.size, p.others, nullptr, 0, 0, -1, -1,
                    make_uint2(p.seed_low, p.seed_high), DOMAIN_CODES, r.count, a.group);
    const bool broken = code < 0;
    if (broken) code = 0;
    const int picked = code;
    const uint32_t forced = a.rows[row].forced;
    if (forced != NONE) code = static_cast<int>(a.forced[forced + a.group]);
    if (threadIdx.x == 0) {
        uint32_t* out = out_of(a.head, row, a.groups);
        out[a.group] = code;
        if (forced != NONE) out[a.groups + 2 + a.group] = picked;
        if (broken) out[a.groups + 1] |= BROKEN;
    }
    if (a.next != nullptr) embed<T>(a.narrowed, code, a.inner, a.next + static_cast<size_t>(row) * a.inner, false);
    embed<T>(a.table, code, a.outer, a.codec + static_cast<size_t>(r.slot) * a.outer, true);
    stamp(a.head, 3 + 2 * a.group);
}

extern "C" __global__ void __launch_bounds__(PICKERS) sample_first_f32(const __grid_constant__ FirstArgs a) { sample_first<float>(a); }
extern "C" __global__ void __launch_bounds__(PICKERS) sample_first_bf16(const __grid_constant__ FirstArgs a) { sample_first<bf16>(a); }
extern "C" __global__ void __launch_bounds__(PICKERS) sample_group_f32(const __grid_constant__ GroupArgs a) { sample_group<float>(a); }
extern "C" __global__ void __launch_bounds__(PICKERS) sample_group_bf16(const __grid_constant__ GroupArgs a) { sample_group<bf16>(a); }

// Picks alone, for tests: row `i` draws with step `i`.
struct PickArgs {
    const float* logits;
    const uint32_t* counts; // [rows, size] or null
    int* tokens;
    SamplingArgs params;
    int size, first_banned, end_banned, spared, banned;
    uint32_t seed_low, seed_high, domain, group;
};
extern "C" __global__ void __launch_bounds__(PICKERS) pick_rows(const __grid_constant__ PickArgs a) {
    __shared__ PickShared shared;
    const size_t at = static_cast<size_t>(blockIdx.x) * a.size;
    const int token = pick(shared, a.logits + at, a.size, a.params, a.counts == nullptr ? nullptr : a.counts + at,
                           a.first_banned, a.end_banned, a.spared, a.banned, make_uint2(a.seed_low, a.seed_high), a.domain,
                           blockIdx.x, a.group);
    if (threadIdx.x == 0) a.tokens[blockIdx.x] = token;
}
