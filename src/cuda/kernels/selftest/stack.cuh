// What the self-tests of whole layers share: what a way of computing writes, and attention as the graph queues it. Behind the
// header that has the sizes of the layers.
#pragma once

#include "attention.cuh"
#include "harness.cuh"

// Keys and values of all layers, and the residual.
struct State {
    bf16 *keys, *values;
    float* x;
    size_t cache, sums; // numbers of each
};
inline State state_of(size_t cache, size_t sums) { return {device<bf16>(cache), device<bf16>(cache), device<float>(sums), cache, sums}; }
// Sets it to what a model begins with.
template <class MODEL>
void begin(const MODEL& m, const State& s) {
    CK(cudaMemcpyAsync(s.keys, m.keys, s.cache * 2, cudaMemcpyDeviceToDevice, st));
    CK(cudaMemcpyAsync(s.values, m.values, s.cache * 2, cudaMemcpyDeviceToDevice, st));
    CK(cudaMemcpyAsync(s.x, m.x, s.sums * 4, cudaMemcpyDeviceToDevice, st));
}

// Attention of a layer whose keys begin at `at` of the cache.
template <class MODEL>
AttentionArgs attention_of(const MODEL& m, const State& s, int layer, size_t at, const bf16* qkv, bf16* out, const int* positions, int rows, int max_pages) {
    AttentionArgs a = {};
    a.qkv = qkv;
    a.q_norm = m.qk_norm + layer * 2 * DIM;
    a.k_norm = m.qk_norm + (layer * 2 + 1) * DIM;
    a.inv_freq = m.frequencies;
    a.keys = s.keys + at;
    a.values = s.values + at;
    a.out = out;
    a.pages = m.pages;
    a.slots = m.slots;
    a.positions = positions;
    a.rows = rows, a.heads = HEADS, a.kv_heads = KV_HEADS, a.head_dim = DIM, a.max_pages = max_pages;
    a.eps = 1e-6f;
    a.scale = 0.08838834764831845f;
    return a;
}
