// The kernels of moe.cu on random numbers: fast against plain, the same bits whatever the batch, and what a layer takes.
//   nvcc -O3 --std=c++17 -arch=sm_90 -I kernels -o moe_selftest kernels/selftest/moe_selftest.cu && ./moe_selftest
#include "linear.cu"
#include "few_linear.cu"
#include "moe.cu"
#include "prompt_moe.cu"
#include "random.cu"
#include "harness.cuh"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

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

struct Sizes {
    const char* name;
    int hidden, experts, top_k, inner, shared;
    bool normalize;
};
struct Layer {
    bf16 *gain, *router, *gate_up, *down, *gate, *shared_gate_up, *shared_down;
};
struct Room {
    int max_rows;
    float *logits, *weights, *outputs;
    bf16 *normed, *between, *rows_normed;
    int *chosen, *order, *positions;
    Group* groups;
};

Layer make_layer(const Sizes& s, uint64_t n) {
    const float a = sqrtf(3.f / s.hidden), b = sqrtf(3.f / s.inner);
    Layer l = {};
    l.gain = rnd(s.hidden, 1.5f, n);
    l.router = rnd((size_t)s.experts * s.hidden, 2.f * a, n + 1);
    l.gate_up = rnd((size_t)s.experts * 2 * s.inner * s.hidden, a, n + 2);
    l.down = rnd((size_t)s.experts * s.inner * s.hidden, b, n + 3);
    if (s.shared) {
        l.gate = rnd(s.hidden, a, n + 4);
        l.shared_gate_up = rnd((size_t)2 * s.shared * s.hidden, a, n + 5);
        l.shared_down = rnd((size_t)s.shared * s.hidden, b, n + 6);
    }
    return l;
}
int choices(const Sizes& s) { return s.top_k + (s.shared ? 1 : 0); }
Room make_room(const Sizes& s, int rows) {
    const size_t pairs = (size_t)rows * choices(s);
    const int width = std::max(s.inner, s.shared);
    return {rows, device<float>((size_t)rows * s.experts), device<float>(pairs), device<float>(pairs * s.hidden), device<bf16>((size_t)rows * s.hidden),
            device<bf16>(pairs * width), device<bf16>((size_t)rows * s.hidden), device<int>(pairs), device<int>(pairs), device<int>(rows),
            device<Group>(pairs + s.experts + 1)};
}

enum Way { PLAIN_ONLY, FEW, MANY };
enum Part { ROUTER = 1, ROUTE = 2, SORT = 4, GATE_UP = 8, DOWN = 16, ALL = 31 };

void moe(const Sizes& s, const Layer& l, const Room& r, float* x, int rows, Way way, int parts = ALL) {
    const int c = choices(s), width = std::max(s.inner, s.shared), pairs = rows * c;
    if (parts & ROUTER) {
        LinearArgs a{l.router, x, l.gain, nullptr, r.logits, rows, s.experts, s.hidden, s.experts, 1e-6f};
        if (rows <= 8) launch_overlapping(linear_small_norm_full, dim3(s.experts / 16), 256, 0, a);
        else {
            launch_overlapping(rms_norm_bf16, dim3(rows), 256, 0, (const float*)x, (const bf16*)l.gain, r.rows_normed, rows, s.hidden, 1e-6f);
            a.x = r.rows_normed;
            a.gain = nullptr;
            if (rows <= 16) launch_overlapping(linear_few1x2_full, dim3(s.experts / 16), 256, 0, a);
            else if (rows <= 32) launch_overlapping(linear_few1x4_full, dim3(s.experts / 16), 256, 0, a);
            else launch_overlapping(linear_large32_full, dim3(s.experts / 32, (rows + 63) / 64), 256, (size_t)STAGES * (32 + ROWS) * DEPTH * 2, a);
        }
    }
    if (parts & ROUTE) {
        RouteArgs a{r.logits, x, l.gain, l.gate, r.positions, r.normed, r.chosen, r.weights, rows, s.hidden, s.experts, s.top_k, c, s.normalize, 1e-6f};
        launch_overlapping(moe_route_bf16, dim3((rows + 7) / 8), 256, 0, a);
    }
    constexpr int GROUP = 32, TILES = 4 * (128 + GROUP) * DEPTH * 2;
    const int max_groups = std::min(pairs, s.experts + 1 + pairs / GROUP);
    MoeArgs a{l.gate_up, l.down, l.shared_gate_up, l.shared_down, r.normed, r.between, x, r.chosen, r.weights, r.order, r.groups, r.outputs, rows, s.hidden, s.inner, s.shared, width, s.experts, c, max_groups, GROUP};
    if (way == MANY && (parts & SORT)) launch_overlapping(moe_sort, dim3(1), 1024, 0, a);
    if (parts & GATE_UP) {
        if (way == PLAIN_ONLY) launch_overlapping(moe_gate_up_plain_bf16, dim3((width + 7) / 8, pairs), 256, 0, a);
        if (way == FEW) launch_overlapping(moe_gate_up_few, dim3(width / 8, pairs), 256, 0, a);
        if (way == MANY) launch_overlapping(moe_gate_up_tiles32, dim3(width / 64, max_groups), 256, TILES, a);
    }
    if (parts & DOWN) {
        if (way == PLAIN_ONLY) launch_overlapping(moe_down_plain_bf16, dim3((s.hidden + 7) / 8, rows), 256, 0, a);
        if (way == FEW) launch_overlapping(moe_down_few, dim3(s.hidden / 16, rows), 32 * c, 0, a);
        if (way == MANY) {
            launch_overlapping(moe_down_tiles32, dim3(s.hidden / 128, max_groups), 256, TILES, a);
            launch_overlapping(moe_gather, dim3(rows), 256, 0, a);
        }
    }
}

int check_route(const Sizes& s, const Layer& l, const Room& r, int rows) {
    const int c = choices(s);
    const auto logits = down(r.logits, (size_t)rows * s.experts);
    const auto chosen = down(r.chosen, (size_t)rows * c);
    const auto weights = down(r.weights, (size_t)rows * c);
    const auto normed = down(r.normed, (size_t)rows * s.hidden);
    std::vector<bf16> gate;
    if (s.shared) gate = down(l.gate, s.hidden);
    int wrong = 0;
    for (int row = 0; row < rows; ++row) {
        if (row == 2) { // padding
            for (int j = 0; j < c; ++j) wrong += chosen[row * c + j] != -1;
            continue;
        }
        const float* own = &logits[(size_t)row * s.experts];
        std::vector<int> order(s.experts);
        for (int e = 0; e < s.experts; ++e) order[e] = e;
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return own[a] > own[b]; });
        double most = own[order[0]], total = 0, sum = 0;
        for (int e = 0; e < s.experts; ++e) total += exp(own[e] - most);
        order.resize(s.top_k);
        for (int e : order) sum += exp(own[e] - most) / total;
        std::sort(order.begin(), order.end());
        for (int j = 0; j < s.top_k; ++j) {
            const double share = exp(own[order[j]] - most) / total / (s.normalize ? sum : 1.0);
            wrong += chosen[row * c + j] != order[j] || fabs(weights[row * c + j] - share) > 1e-5;
        }
        if (s.shared) {
            double dot = 0;
            for (int i = 0; i < s.hidden; ++i) dot += (double)__bfloat162float(gate[i]) * __bfloat162float(normed[(size_t)row * s.hidden + i]);
            wrong += chosen[row * c + s.top_k] != s.experts || fabs(weights[row * c + s.top_k] - 1.0 / (1.0 + exp(-dot))) > 1e-4;
        }
    }
    return wrong;
}

int main() {
    CK(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
    cudaDeviceProp pr;
    CK(cudaGetDeviceProperties(&pr, 0));
    printf("%s %d SM\n", pr.name, pr.multiProcessorCount);
    const Sizes sizes[] = {{"thinker", 2048, 128, 8, 768, 0, true}, {"talker", 1024, 128, 6, 384, 768, false}};
    int bad = 0;
    for (const Sizes& s : sizes) {
        const Layer l = make_layer(s, 1000);
        const Room r = make_room(s, 512);
        std::vector<float> first;
        for (int rows : {1, 3, 8, 9, 16, 17, 40, 64, 200, 512}) {
            std::vector<int> positions(rows, 5);
            if (rows > 2) positions[2] = -1;
            CK(cudaMemcpy(r.positions, positions.data(), rows * 4, cudaMemcpyHostToDevice));
            const size_t n = (size_t)rows * s.hidden;
            float* x0 = rndf(n, 1.7f, 77);
            const auto before = down(x0, n);
            std::vector<float> got[3];
            int misrouted = 0;
            for (int way = 0; way < 3; ++way) {
                float* x = rndf(n, 1.7f, 77);
                moe(s, l, r, x, rows, (Way)way);
                got[way] = down(x, n);
                misrouted += check_route(s, l, r, rows);
                CK(cudaFree(x));
            }
            double error = 0, power = 0;
            for (size_t i = 0; i < n; ++i) {
                const double d = got[1][i] - got[0][i], p = got[0][i] - before[i];
                error += d * d;
                power += p * p;
            }
            error = sqrt(error / power);
            bool padding_kept = true;
            if (rows > 2) for (int i = 0; i < s.hidden; ++i) for (auto& g : got) padding_kept &= g[2 * s.hidden + i] == before[2 * s.hidden + i];
            if (first.empty()) first.assign(got[1].begin(), got[1].begin() + s.hidden);
            const bool alike = got[1] == got[2], steady = std::equal(first.begin(), first.end(), got[1].begin());
            const bool ok = error < 4e-3 && alike && steady && padding_kept && misrouted == 0 && std::isfinite(error);
            bad += !ok;
            printf("%s rows %3d: rel %.2e, few = many %d, row 0 as alone %d, padding kept %d, misrouted %d%s\n", s.name, rows, error, alike, steady, padding_kept, misrouted, ok ? "" : "  BAD");
            CK(cudaFree(x0));
        }
        for (void* p : {(void*)l.gate_up, (void*)l.down, (void*)l.router, (void*)r.outputs, (void*)r.between}) CK(cudaFree(p));
    }
    printf("%d bad\n", bad);

    for (const Sizes& s : sizes) {
        const int layers = 6;
        std::vector<Layer> stack;
        for (int i = 0; i < layers; ++i) stack.push_back(make_layer(s, 2000 + 10 * i));
        const Room r = make_room(s, 512);
        CK(cudaMemset(r.positions, 0, 512 * 4));
        for (int rows : {1, 2, 4, 8, 16, 24, 32, 64, 128, 256, 512}) {
            float* x = rndf((size_t)rows * s.hidden, 1.7f, 78);
            for (Way way : {FEW, MANY}) {
                if (way == FEW && rows > 64) continue;
                printf("%s rows %3d %s:", s.name, rows, way == FEW ? "few " : "many");
                for (int parts : {(int)ALL, ROUTER | ROUTE, (int)SORT, (int)GATE_UP, (int)DOWN}) {
                    if (parts == SORT && way == FEW) continue;
                    const auto go = [&] { for (const Layer& l : stack) moe(s, l, r, x, rows, way, parts); };
                    // Everything before a part must have run once. For a part alone all layers use the last one's choice.
                    moe(s, stack[0], r, x, rows, way);
                    CK(cudaStreamSynchronize(st));
                    const cudaGraphExec_t exec = captured(go);
                    const float us = median_of(10, [&] {
                        for (int j = 0; j < 4; ++j) CK(cudaGraphLaunch(exec, st));
                    }) / 4 / layers;
                    const char* names[] = {"layer", "router", "sort", "gate_up", "down"};
                    const int which = parts == ALL ? 0 : parts == (ROUTER | ROUTE) ? 1 : parts == SORT ? 2 : parts == GATE_UP ? 3 : 4;
                    printf(" %s %.1f us", names[which], us);
                    CK(cudaGraphExecDestroy(exec));
                }
                const auto chosen = down(r.chosen, (size_t)rows * choices(s));
                std::vector<int> seen(s.experts + 1);
                for (int e : chosen) seen[e] = 1;
                const int visited = std::count(seen.begin(), seen.begin() + s.experts, 1);
                const double bytes = 2.0 * 3 * s.hidden * ((double)visited * s.inner + s.shared);
                printf(" | %d experts, %.0f MB, floor at 4.3 TB/s %.1f us\n", visited, bytes / 1e6, bytes / 4.3e6);
                fflush(stdout);
            }
            CK(cudaFree(x));
        }
        for (const Layer& l : stack) { CK(cudaFree(l.gate_up)); CK(cudaFree(l.down)); }
    }
    return bad != 0;
}
