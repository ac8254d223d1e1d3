// Mixture of experts: the arguments of its kernels. The same layouts as in src/cuda/moe.rs.
//
// A row visits `choices` experts: those that the router picks, in the order of their numbers, and behind them the one
// that every row visits, if there is one, under the number `experts`. A row and one of its experts are a *pair*, number
// row * choices + choice.
#pragma once

#include "common.cuh"

constexpr int MAX_EXPERTS = 512;
constexpr int MAX_CHOICES = 32; // a lane of a warp each

struct RouteArgs {
    const float* logits;  // [rows, experts]
    const float* x;       // [rows, hidden]; null: `normed` has them already
    const void* gain;     // T [hidden]: the norm's weight
    const void* gate;     // T [hidden]: of the expert that all rows visit, or null
    const int* positions; // [rows]; negative: padding, which visits no expert
    void* normed;         // T [rows, hidden]
    int* chosen;          // [rows, choices]; -1 for padding
    float* weights;       // [rows, choices]
    int rows, hidden, experts, top_k, choices, normalize;
    float eps;
    int deals; // whether the inputs of `normed` are dealt
};

// Pairs of one expert: order[first .. first + count].
struct Group {
    int expert, first, count, unused;
};

struct MoeArgs {
    const void* gate_up;        // T [experts][2 * inner, hidden], in turns of eight rows
    const void* down;           // T [experts][hidden, inner]
    const void* shared_gate_up; // T [2 * shared_inner, hidden], likewise, or null
    const void* shared_down;    // T [hidden, shared_inner] or null
    const void* normed;         // T [rows, hidden]
    void* between;              // T [pairs, width]
    float* x;                   // [rows, hidden]: the experts' outputs are added to it
    const int* chosen;          // [pairs]
    const float* weights;       // [pairs]
    int* order;                 // [pairs]: pairs by expert
    Group* groups;              // [max_groups]: those behind the last have a count of 0
    float* outputs;             // [pairs, hidden]: the output of each expert, unweighted
    int rows, hidden, inner, shared_inner;
    int width; // the larger of inner and shared_inner
    int experts, choices, max_groups;
    int group; // pairs of a group
};

// ---- weights of a pair -------------------------------------------------------------------------------------------------

__device__ __forceinline__ int inner_of(const MoeArgs& a, int expert) { return expert == a.experts ? a.shared_inner : a.inner; }

template <typename T>
__device__ __forceinline__ const T* gate_up_of(const MoeArgs& a, int expert) {
    if (expert == a.experts) return static_cast<const T*>(a.shared_gate_up);
    return static_cast<const T*>(a.gate_up) + static_cast<size_t>(expert) * 2 * a.inner * a.hidden;
}

template <typename T>
__device__ __forceinline__ const T* down_of(const MoeArgs& a, int expert) {
    if (expert == a.experts) return static_cast<const T*>(a.shared_down);
    return static_cast<const T*>(a.down) + static_cast<size_t>(expert) * a.hidden * a.inner;
}
