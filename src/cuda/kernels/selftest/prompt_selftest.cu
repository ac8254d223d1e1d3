// The kernels for prompts on random numbers: the same bits as those that decode, and what they take.
//   nvcc -O3 --std=c++17 -gencode arch=compute_90a,code=sm_90a -I kernels -o prompt_selftest
//     kernels/selftest/prompt_selftest.cu && ./prompt_selftest
#include "attention.cu"
#include "group_attention.cu"
#include "linear.cu"
#include "many_linear_90a.cu"
#include "maps.cuh"
#include "moe.cu"
#include "prompt_moe.cu"
#include "random.cu"
#include "harness.cuh"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

static int bad = 0;

template <typename... P, typename... A>
void launch(void (*k)(P...), dim3 grid, int threads, size_t shared, int cluster, A... args) {
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = threads;
    c.dynamicSmemBytes = shared;
    c.stream = st;
    cudaLaunchAttribute at[2];
    at[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    at[0].val.programmaticStreamSerializationAllowed = 1;
    at[1].id = cudaLaunchAttributeClusterDimension;
    at[1].val.clusterDim = {(unsigned)cluster, 1, 1};
    c.attrs = at;
    c.numAttrs = cluster > 1 ? 2 : 1;
    if (shared > 48 * 1024) CK(cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    CK(cudaLaunchKernelEx(&c, k, static_cast<P>(args)...));
}
bf16* rnd(size_t n, float bound, uint64_t name) {
    bf16* p = device<bf16>(n);
    fill_random_bf16<<<1024, 256, 0, st>>>((uint16_t*)p, n, 7, name, bound);
    CK(cudaGetLastError());
    return p;
}
float* rndf(size_t n, float bound, uint64_t name) {
    float* p = device<float>(n);
    fill_random_f32<<<1024, 256, 0, st>>>(p, n, 7, name, bound);
    CK(cudaGetLastError());
    return p;
}
template <typename T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}
void expect(bool ok, const char* what, int n) {
    bad += !ok;
    if (!ok) printf("BAD: %s, %d\n", what, n);
}
// Microseconds of one call, in a graph of `each` of them.
template <typename F>
float timed(F go, int each = 6) {
    go(0);
    CK(cudaStreamSynchronize(st));
    const cudaGraphExec_t exec = captured([&] {
        for (int i = 0; i < each; ++i) go(i);
    });
    const float us = median_of(7, [&] { CK(cudaGraphLaunch(exec, st)); }) / each;
    CK(cudaGraphExecDestroy(exec));
    return us;
}

// ---- products ----------------------------------------------------------------------------------------------------------

struct Product {
    const char* name;
    int outputs, inputs, mode;
};
enum Kind { NARROW, WIDE, SHARED, MANY32, MANY64, MANY128 }; // as src/cuda/tile.rs calls them; the last ones take dealt rows
constexpr int KINDS = 6, SMS = 132;

// Rows of `inputs` numbers with their inputs dealt.
__global__ void deal(const bf16* from, bf16* to, size_t n) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) to[i / 32 * 32 + dealt(i % 32)] = from[i];
}
bf16* dealt_copy(const bf16* x, size_t n) {
    bf16* y = device<bf16>(n);
    deal<<<1024, 256, 0, st>>>(x, y, n);
    CK(cudaGetLastError());
    return y;
}

void product(const Product& p, Kind kind, LinearArgs a) {
    const int results = p.mode == SILU_MUL ? p.outputs / 2 : p.outputs;
    a.outputs = p.outputs;
    a.inputs = p.inputs;
    a.ldy = results;
    const auto pick = [&](auto store, auto full, auto add, auto gated) { return p.mode == STORE ? store : p.mode == STORE_F32 ? full : p.mode == ADD ? add : gated; };
    const unsigned tiles = (a.rows + 63) / 64, outputs = p.outputs;
    if (kind == WIDE) launch(pick(linear_large64_store, linear_large64_full, linear_large64_add, linear_large64_silu_mul), dim3(outputs / 64, tiles), 256, 5 * 128 * 128, 1, a);
    if (kind == NARROW) launch(pick(linear_large32_store, linear_large32_full, linear_large32_add, linear_large32_silu_mul), dim3(outputs / 32, tiles), 256, 5 * 96 * 128, 1, a);
    if (kind >= MANY32) {
        const int of_tile = kind == MANY32 ? 32 : kind == MANY64 ? 64 : 128, blocks = (p.outputs + BM - 1) / BM * ((a.rows + of_tile - 1) / of_tile);
        const ManyLinear m{boxes(a.w, a.outputs, a.inputs, BM), boxes(a.x, a.rows, a.inputs, of_tile), a, of_tile, 0};
        launch(pick(many_linear_store, many_linear_full, many_linear_add, many_linear_silu_mul), dim3(std::min(blocks, SMS)), MULTIPLYING + COPYING, Rows::BYTES, 1, m);
    }
    if (kind == SHARED) launch(pick(linear_parts_store, linear_parts_full, linear_parts_add, linear_parts_silu_mul), dim3(8, outputs / 64, tiles), 256, 5 * 128 * 128, 8, a);
}

void products() {
    const Product all[] = {{"qkv", 5120, 2048, STORE}, {"o", 2048, 4096, ADD}, {"talker qkv", 2560, 1024, STORE}, {"talker o", 1024, 2048, ADD}, {"router", 128, 2048, STORE_F32}, {"gate_up", 12288, 2048, SILU_MUL}, {"down", 2048, 6144, ADD}};
    const int most = 2048;
    for (const Product& p : all) {
        bf16* w[4];
        for (int i = 0; i < 4; ++i) w[i] = rnd((size_t)p.outputs * p.inputs, sqrtf(3.f / p.inputs), 10 + i);
        bf16* x = rnd((size_t)most * p.inputs, 1.7f, 20);
        bf16* dealt_x = dealt_copy(x, (size_t)most * p.inputs);
        const auto rows_of = [&](int kind) { return kind < MANY32 ? x : dealt_x; };
        float* y = device<float>((size_t)most * p.outputs);
        for (int rows : {1, 7, 64, 65, 100, 128, 129, 300, 1000}) {
            std::vector<float> got[KINDS];
            for (int kind = 0; kind < KINDS; ++kind) {
                fill_random_f32<<<1024, 256, 0, st>>>(y, (size_t)rows * p.outputs, 7, 30, 1.f);
                product(p, (Kind)kind, {w[0], rows_of(kind), nullptr, nullptr, y, rows, 0, 0, 0, 1e-6f});
                got[kind] = down(y, (size_t)rows * p.outputs);
                expect(kind == 0 || same(got[0], got[kind]), p.name, rows * 10 + kind);
            }
        }
        for (int rows : {48, 64, 128, 304, 512, 1024, 2048}) {
            printf("%-10s rows %4d:", p.name, rows);
            const char* names[] = {"narrow", "wide", "shared", "by 32", "by 64", "by 128"};
            for (int kind = 0; kind < KINDS; ++kind) {
                const float us = timed([&](int i) { product(p, (Kind)kind, {w[i % 4], rows_of(kind), nullptr, nullptr, y, rows, 0, 0, 0, 1e-6f}); });
                printf("  %s %6.1f us %4.0f TF", names[kind], us, 2e-6 * rows * p.outputs * p.inputs / us);
            }
            printf("\n");
        }
        for (bf16* each : w) CK(cudaFree(each));
        CK(cudaFree(x));
        CK(cudaFree(dealt_x));
        CK(cudaFree(y));
    }
}

// ---- experts -----------------------------------------------------------------------------------------------------------

struct Sizes {
    const char* name;
    int hidden, experts, top_k, inner, shared;
};
enum Way { FEW = 0 }; // else the pairs of a tile

void experts() {
    const Sizes sizes[] = {{"thinker", 2048, 128, 8, 768, 0}, {"talker", 1024, 128, 6, 384, 768}};
    const int most = 2048, layers = 3;
    for (const Sizes& s : sizes) {
        const int c = s.top_k + (s.shared ? 1 : 0), width = std::max(s.inner, s.shared);
        const size_t pairs = (size_t)most * c;
        const float ka = sqrtf(3.f / s.hidden), kb = sqrtf(3.f / s.inner);
        bf16 *gate_up[layers], *shrink[layers];
        for (int i = 0; i < layers; ++i) {
            gate_up[i] = rnd((size_t)s.experts * 2 * s.inner * s.hidden, ka, 50 + i);
            shrink[i] = rnd((size_t)s.experts * s.inner * s.hidden, kb, 60 + i);
        }
        bf16 *gain = rnd(s.hidden, 1.5f, 1), *gate = rnd(s.hidden, ka, 4), *shared_gate_up = rnd((size_t)2 * s.shared * s.hidden + 1, ka, 5), *shared_down = rnd((size_t)s.shared * s.hidden + 1, kb, 6);
        float *logits = rndf((size_t)most * s.experts, 3.f, 70), *weights = device<float>(pairs), *outputs = device<float>(pairs * s.hidden), *x = device<float>((size_t)most * s.hidden);
        bf16 *normed = device<bf16>((size_t)most * s.hidden), *between = device<bf16>(pairs * width);
        int *chosen = device<int>(pairs), *order = device<int>(pairs);
        Group* groups = device<Group>(pairs + s.experts + 1);
        std::vector<int> positions(most, 5);
        positions[2] = -1;
        int* at = up(positions);
        enum { NORM = 1, ROUTE = 2, SORT = 4, GATE_UP = 8, DOWN = 16, GATHER = 32 };
        const auto run = [&](int layer, int way, int rows, int parts) {
            const int group = way == FEW ? 32 : way, n = rows * c, max_groups = std::min(n, s.experts + 1 + n / group);
            if (parts & NORM) launch(way == Pairs::MOST ? rms_norm_dealt_bf16 : rms_norm_bf16, dim3(rows), 256, 0, 1, (const float*)x, (const bf16*)gain, normed, rows, s.hidden, 1e-6f);
            if (parts & ROUTE) launch(moe_route_bf16, dim3((rows + 7) / 8), 256, 0, 1, RouteArgs{logits, nullptr, gain, s.shared ? gate : nullptr, at, normed, chosen, weights, rows, s.hidden, s.experts, s.top_k, c, 1, 1e-6f, way == Pairs::MOST});
            const MoeArgs a{gate_up[layer], shrink[layer], shared_gate_up, shared_down, normed, between, x, chosen, weights, order, groups, outputs, rows, s.hidden, s.inner, s.shared, width, s.experts, c, max_groups, group};
            if (way != FEW && (parts & SORT)) launch(moe_sort, dim3(1), 1024, 0, 1, a);
            const dim3 up_grid(width / 64, max_groups), down_grid(s.hidden / 128, max_groups);
            if (way == Pairs::MOST && (parts & GATE_UP)) {
                const ManyExperts m{boxes(gate_up[layer], s.experts * 2 * s.inner, s.hidden, BM), boxes(shared_gate_up, std::max(2 * s.shared, 8), s.hidden, BM), a};
                launch(many_gate_up, dim3(SMS), MULTIPLYING + COPYING, Pairs::BYTES, 1, m);
            }
            if (way == Pairs::MOST && (parts & DOWN)) {
                const ManyExperts m{boxes(shrink[layer], s.experts * s.hidden, s.inner, BM), boxes(shared_down, s.hidden, std::max(s.shared, 8), BM), a};
                launch(many_down, dim3(SMS), MULTIPLYING + COPYING, Pairs::BYTES, 1, m);
            }
            if (parts & GATE_UP) {
                if (way == FEW) launch(moe_gate_up_few, dim3(width / 8, n), 256, 0, 1, a);
                if (way == 32) launch(moe_gate_up_tiles32, up_grid, 256, 4 * 160 * 128, 1, a);
                if (way == 64) launch(moe_gate_up_tiles64, up_grid, 256, 4 * 192 * 128, 1, a);
            }
            if (parts & DOWN) {
                if (way == FEW) launch(moe_down_few, dim3(s.hidden / 16, rows), 32 * c, 0, 1, a);
                if (way == 32) launch(moe_down_tiles32, down_grid, 256, 4 * 160 * 128, 1, a);
                if (way == 64) launch(moe_down_tiles64, down_grid, 256, 4 * 192 * 128, 1, a);
            }
            if (way != FEW && (parts & GATHER)) launch(moe_gather, dim3(rows), 256, 0, 1, a);
        };
        for (int rows : {1, 7, 33, 130, 700, 2048}) {
            std::vector<float> want;
            for (int way : {0, 32, 64, Pairs::MOST}) {
                fill_random_f32<<<1024, 256, 0, st>>>(x, (size_t)rows * s.hidden, 7, 77, 1.7f);
                run(0, way, rows, ~0);
                const auto got = down(x, (size_t)rows * s.hidden);
                if (way == 0) want = got;
                expect(same(want, got), s.name, rows * 1000 + way);
                const auto n = down(chosen, (size_t)rows * c);
                if (way == 0) continue;
                // Each pair is in one group of its expert.
                const auto all = down(groups, std::min(rows * c, s.experts + 1 + rows * c / way));
                const auto by = down(order, (size_t)rows * c);
                std::vector<int> seen(rows * c);
                for (const Group& g : all) for (int i = 0; i < g.count; ++i) seen[by[g.first + i]] += n[by[g.first + i]] == g.expert;
                for (int i = 0; i < rows * c; ++i) expect(seen[i] == (n[i] >= 0), "sorted", rows);
            }
        }
        for (int rows : {16, 32, 64, 112, 128, 256, 304, 512, 1024, 2048}) {
            fill_random_f32<<<1024, 256, 0, st>>>(x, (size_t)rows * s.hidden, 7, 77, 1.7f);
            const auto part = [&](int way, int which) {
                run(0, way, rows, NORM | ROUTE | SORT);
                return timed([&](int i) { run(i % layers, way, rows, which); });
            };
            printf("%s rows %4d: norm %.1f route %.1f sort %.1f gather %.1f us; gate_up and down:", s.name, rows, part(32, NORM), part(32, ROUTE), part(32, SORT), part(32, GATHER));
            for (int way : {32, 64, Pairs::MOST}) {
                const float u = part(way, GATE_UP), d = part(way, DOWN);
                printf("  %d: %.1f %.1f", way, u, d);
            }
            const auto n = down(chosen, (size_t)rows * c);
            std::vector<int> seen(s.experts + 1);
            for (int e : n) if (e >= 0) seen[e] = 1;
            const int visited = std::count(seen.begin(), seen.begin() + s.experts, 1);
            printf(" | floor %.1f us\n", 2.0 * 3 * s.hidden * ((double)visited * s.inner + s.shared) / 4.3e6);
            fflush(stdout);
        }
        for (int i = 0; i < layers; ++i) { CK(cudaFree(gate_up[i])); CK(cudaFree(shrink[i])); }
        CK(cudaFree(outputs));
    }
}

// ---- attention ---------------------------------------------------------------------------------------------------------

void attention(int heads, int kv_heads) {
    const int max_pages = 256, slots = 12, width = (heads + 2 * kv_heads) * DIM, most = 2048;
    const size_t cache = (size_t)slots * max_pages * kv_heads * PAGE * DIM;
    bf16 *qkv = rnd((size_t)most * width, 1.7f, 3), *q_norm = rnd(DIM, 1.5f, 1), *k_norm = rnd(DIM, 1.5f, 2);
    bf16 *keys = rnd(cache, 1.7f, 4), *values = rnd(cache, 1.7f, 5), *out = device<bf16>((size_t)most * heads * DIM);
    std::vector<uint32_t> pages(slots * max_pages);
    for (size_t i = 0; i < pages.size(); ++i) pages[i] = i * 7919 % pages.size();
    std::vector<float> freq(DIM / 2);
    for (int i = 0; i < DIM / 2; ++i) freq[i] = powf(1e6f, -2.f * i / DIM);
    uint32_t* on_pages = up(pages);
    float* on_freq = up(freq);
    uint32_t* on_slots = device<uint32_t>(most);
    int* on_positions = device<int>(most);
    AttentionArgs a{qkv, q_norm, k_norm, on_freq, keys, values, out, on_pages, on_slots, on_positions, nullptr, nullptr, 0, heads, kv_heads, DIM, max_pages, 1e-6f, sqrtf(1.f / DIM)};
    const auto rows = [&](const std::vector<uint32_t>& of, const std::vector<int>& at) {
        CK(cudaStreamSynchronize(st));
        CK(cudaMemcpy(on_slots, of.data(), of.size() * 4, cudaMemcpyHostToDevice));
        CK(cudaMemcpy(on_positions, at.data(), at.size() * 4, cudaMemcpyHostToDevice));
        CK(cudaMemset(out, 0xFF, (size_t)most * heads * DIM * 2));
        a.rows = of.size();
    };
    enum Way { PLAIN, FAST, ALONE, PROMPT };
    const auto attend = [&](Way way) {
        if (way != ALONE) launch(kv_write_bf16, dim3(kv_heads, a.rows), 64, 0, 1, a);
        if (way == PLAIN) launch(attend_plain_bf16, dim3(heads, a.rows), 32, 0, 1, a);
        if (way == FAST) launch(attend_fast4, dim3(heads / 4, a.rows), 256, 0, 1, a);
        if (way == ALONE) launch(attend_group8_write, dim3(kv_heads, a.rows), 256, 0, 1, a);
        if (way == PROMPT) launch(attend_group8_prompt, dim3(kv_heads, (a.rows + TILE_ROWS - 1) / TILE_ROWS), 256, QUERIES_AT + HEADS * TILE_ROWS * PITCH * 2, 1, a);
    };
    const auto wide = [&](const std::vector<bf16>& v) {
        std::vector<double> w(v.size());
        for (size_t i = 0; i < v.size(); ++i) w[i] = __bfloat162float(v[i]);
        return w;
    };
    // Cuts of prompts: (slot, first, count) of each, behind what the cache has.
    struct Cut { int slot, first, count; };
    const std::vector<std::vector<Cut>> passes = {{{0, 0, 300}}, {{1, 0, 1}, {2, 0, 17}, {3, 5, 40}, {4, 31, 2}, {5, 250, 20}}, {{6, 1000, 200}, {7, 255, 3}, {8, 511, 70}}, {{9, 3000, 100}}, {{10, 20, 600}}};
    for (const auto& cuts : passes) {
        std::vector<uint32_t> of;
        std::vector<int> at;
        for (const Cut& cut : cuts) {
            for (int i = 0; i < cut.count; ++i) {
                of.push_back(cut.slot);
                at.push_back(cut.first + i);
            }
            if (of.size() < 100) { // padding between them
                of.push_back(0);
                at.push_back(-1);
            }
        }
        const size_t n = of.size() * heads * DIM;
        rows(of, at);
        attend(PLAIN);
        const auto plain = wide(down(out, n));
        rows(of, at);
        attend(PROMPT);
        const auto prompt = down(out, n);
        double error = 0, power = 0;
        const auto got = wide(prompt);
        for (size_t i = 0; i < n; ++i) {
            if (at[i / (heads * DIM)] < 0) continue;
            error += (got[i] - plain[i]) * (got[i] - plain[i]);
            power += plain[i] * plain[i];
        }
        error = sqrt(error / power);
        printf("attention of %zu rows: prompt against plain %.2e\n", of.size(), error);
        expect(error < 6e-3, "prompt is plain", of.size());
        // Each row alone, as a token: the row's keys are computed from the same numbers. In turns of one row per sequence.
        int differ = 0, own_keys = 0;
        const auto cache_before = down(keys, cache);
        for (size_t r = 0; r < of.size(); r += 1 + r % 3) {
            if (at[r] < 0) continue;
            AttentionArgs whole = a;
            rows({of[r]}, {at[r]});
            a.qkv = qkv + r * width;
            attend(ALONE);
            const auto one = down(out, (size_t)heads * DIM);
            differ += memcmp(one.data(), prompt.data() + r * heads * DIM, one.size() * 2) != 0;
            attend(PROMPT);
            const auto single = down(out, (size_t)heads * DIM);
            differ += memcmp(one.data(), single.data(), one.size() * 2) != 0;
            a = whole;
        }
        own_keys = !same(cache_before, down(keys, cache));
        expect(differ == 0, "rows that differ alone", differ);
        expect(own_keys == 0, "keys that differ", own_keys);
    }
    for (const Cut cut : {Cut{0, 0, 112}, Cut{0, 0, 304}, Cut{0, 0, 1024}, Cut{0, 0, 2048}, Cut{0, 2048, 1024}}) {
        std::vector<uint32_t> of(cut.count, cut.slot);
        std::vector<int> at(cut.count);
        for (int i = 0; i < cut.count; ++i) at[i] = cut.first + i;
        rows(of, at);
        const double flops = 4.0 * DIM * heads * cut.count * (cut.first + cut.count / 2.0);
        const float write = timed([&](int) { launch(kv_write_bf16, dim3(kv_heads, a.rows), 64, 0, 1, a); }), fast = timed([&](int) { attend(FAST); }), prompt = timed([&](int) { attend(PROMPT); });
        printf("prompt of %d behind %d: kv_write %.1f us, fast %.1f us, prompt %.1f us (%.0f TF), writing included\n", cut.count, cut.first, write, fast, prompt, flops / prompt * 1e-6);
    }
    for (int position : {20, 100, 300, 1000, 4000}) {
        for (int count : {1, 12}) {
            std::vector<uint32_t> of(count);
            for (int i = 0; i < count; ++i) of[i] = i;
            rows(of, std::vector<int>(count, position));
            const float fast = timed([&](int) { attend(FAST); }, 48), alone = timed([&](int) { attend(ALONE); }, 48);
            printf("%d tokens at %d: fast and kv_write %.2f us, group8 %.2f us\n", count, position, fast, alone);
        }
    }
}

int main(int argc, char** argv) {
    CK(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
    cudaDeviceProp pr;
    CK(cudaGetDeviceProperties(&pr, 0));
    printf("%s %d SM\n", pr.name, pr.multiProcessorCount);
    if (argc < 2) attention(32, 4);
    experts();
    products();
    printf("%d bad\n", bad);
    return bad != 0;
}
