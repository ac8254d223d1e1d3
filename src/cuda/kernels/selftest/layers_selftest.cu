// The persistent layers against the kernels of the graph: residuals and caches bit by bit, for every number of rows up to 8, some
// up to 32, and for positions up to thousands; a wait in vain; and what both take.
//   nvcc -O3 --std=c++17 -gencode arch=compute_90a,code=sm_90a -I kernels -o layers_selftest
//     kernels/selftest/layers_selftest.cu && ./layers_selftest
// `layers_selftest times [all]` measures alone, `layers_selftest stress [LAUNCHES]` repeats launches beside copies that take all
// bandwidth, and tells each whose residual is another.
#include "attention.cu"
#include "layers_90a.cu"
#include "layers_many_90a.cu"
#include "maps.cuh"
#include "products.cuh"
#include "stack.cuh"
#include <atomic>
#include <cstring>
#include <thread>

// The first slots have long sequences, the others shorter ones.
constexpr int LAYERS_ALL = 28, SLOTS = 32, LONG = 8, PAGES_EACH = 160, PAGES_SHORT = 20, FREQUENCIES = DIM / 2;
constexpr int POOL = LONG * PAGES_EACH + (SLOTS - LONG) * PAGES_SHORT;
constexpr size_t CACHE_LAYER = (size_t)POOL * KV_HEADS * PAGE * DIM;

struct Model {
    bf16 *qkv[LAYERS_ALL], *output[LAYERS_ALL], *gate_up[LAYERS_ALL], *down[LAYERS_ALL], *gains, *qk_norm, *keys, *values;
    float *frequencies, *x;
    uint32_t *pages, *slots;
    uint32_t* stalled; // mapped
    TensorMap* maps;
    TensorMap* many_maps;
};
static Model model() {
    Model m;
    std::vector<TensorMap> maps;
    std::vector<TensorMap> many_maps;
    for (int l = 0; l < LAYERS_ALL; ++l) {
        m.qkv[l] = random_of((size_t)4096 * HIDDEN, sqrtf(3.f / HIDDEN));
        m.output[l] = random_of((size_t)HIDDEN * 2048, sqrtf(3.f / 2048));
        m.gate_up[l] = random_of((size_t)2 * INNER * HIDDEN, sqrtf(3.f / HIDDEN));
        m.down[l] = random_of((size_t)HIDDEN * INNER, sqrtf(3.f / INNER));
        maps.push_back(part_boxes(m.qkv[l], 4096, HIDDEN));
        maps.push_back(part_boxes(m.output[l], HIDDEN, 2048));
        maps.push_back(part_boxes(m.gate_up[l], 2 * INNER, HIDDEN));
        maps.push_back(part_boxes(m.down[l], HIDDEN, INNER));
        many_maps.push_back(boxes(m.qkv[l], 4096, HIDDEN, 32, PART_OF));
        many_maps.push_back(boxes(m.output[l], HIDDEN, 2048, 32, PART_OF));
        many_maps.push_back(boxes(m.gate_up[l], 2 * INNER, HIDDEN, 32, PART_OF));
        many_maps.push_back(boxes(m.down[l], HIDDEN, INNER, 32, PART_OF));
    }
    m.maps = up(maps);
    m.many_maps = up(many_maps);
    m.gains = random_of((size_t)2 * LAYERS_ALL * HIDDEN, 0.5f, 1.f);
    m.qk_norm = random_of((size_t)LAYERS_ALL * 2 * DIM, 0.5f, 1.f);
    m.keys = random_of(LAYERS_ALL * CACHE_LAYER, 1.f);
    m.values = random_of(LAYERS_ALL * CACHE_LAYER, 1.f);
    std::vector<float> frequencies, x;
    for (int j = 0; j < FREQUENCIES; ++j) frequencies.push_back(1.f / powf(1000000.f, 2.f * j / DIM));
    for (int i = 0; i < SLOTS * HIDDEN; ++i) x.push_back((i * 2654435761u >> 8) / 8388608.f - 1.f);
    m.frequencies = up(frequencies);
    m.x = up(x);
    std::vector<uint32_t> pages, slots;
    int given = 0;
    for (int i = 0; i < SLOTS * PAGES_EACH; ++i) {
        const bool has = i / PAGES_EACH < LONG || i % PAGES_EACH < PAGES_SHORT;
        pages.push_back(has ? (given++ * 37 + 11) % POOL : 0);
    }
    for (int i = 0; i < SLOTS; ++i) slots.push_back(i < LONG ? (i * 5 + 3) % LONG : LONG + (i * 7 + 5) % (SLOTS - LONG));
    m.pages = up(pages);
    m.slots = up(slots);
    CK(cudaHostAlloc(&m.stalled, 4, cudaHostAllocMapped));
    *m.stalled = 0;
    return m;
}

static State new_state() { return state_of(LAYERS_ALL * CACHE_LAYER, SLOTS * HIDDEN); }

static void queue_graph(const Model& m, const State& s, int rows, const int* positions, int layers) {
    static bf16 *qkv = device<bf16>(SLOTS * 4096), *mixed = device<bf16>(SLOTS * 2048), *inner = device<bf16>(SLOTS * INNER), *ready = device<bf16>(SLOTS * HIDDEN);
    const auto product = [&](Mode mode, const bf16* w, const void* in, const bf16* gain, void* y, int outputs, int inputs) {
        queue_product(mode, w, in, gain, y, rows, outputs, inputs, ready);
    };
    for (int l = 0; l < layers; ++l) {
        product(STORE, m.qkv[l], s.x, m.gains + 2 * l * HIDDEN, qkv, 4096, HIDDEN);
        const AttentionArgs a = attention_of(m, s, l, l * CACHE_LAYER, qkv, mixed, positions, rows, PAGES_EACH);
        launch_overlapping(attend_fast2_write, dim3(KV_HEADS, rows), 256, 0, a);
        product(ADD, m.output[l], mixed, nullptr, s.x, HIDDEN, 2048);
        product(SILU_MUL, m.gate_up[l], s.x, m.gains + (2 * l + 1) * HIDDEN, inner, 2 * INNER, HIDDEN);
        product(ADD, m.down[l], inner, nullptr, s.x, HIDDEN, INNER);
    }
}

struct Persistent {
    LayersArgs args;
    const void* kernel;
    int shared, hops;
    int ring; // that the kernel has, if it has no choice
};
static Persistent persistent_of(const Model& m, const State& s, int rows, const int* positions) {
    Persistent p = {};
    LayersArgs& a = p.args;
    a.maps = reinterpret_cast<const WeightMap*>(m.maps), a.gains = m.gains, a.qk_norm = m.qk_norm, a.frequencies = m.frequencies;
    a.keys = s.keys, a.values = s.values, a.pages = m.pages, a.slots = m.slots, a.positions = positions, a.x = s.x;
    a.stalled = m.stalled;
    a.layer_size = CACHE_LAYER, a.max_pages = PAGES_EACH, a.count = rows, a.layers = LAYERS_ALL;
    a.eps = 1e-6f, a.scale = 0.08838834764831845f;
    a.copying.flight = 3, a.copying.pace = 800, a.limit = 1u << 30;
#define WAY(R)                                 \
    if (rows > R / 2 && rows <= R) {           \
        p.kernel = (const void*)layers_##R;    \
        p.shared = sizeof(Shared<R>);          \
        p.hops = Hops<R>::SIZE * 16;           \
    }
    WAY(1) WAY(2) WAY(4) WAY(8)
#define MANY(R)                                                 \
    if (rows > R / 2 && rows <= R) {                            \
        p.kernel = (const void*)layers_many_##R;                \
        p.shared = LayersRings<R>::ROWS + sizeof(LayersShared<R>); \
        p.hops = LayersHanded<R>::SIZE;                         \
        p.ring = LayersRings<R>::WEIGHTS;                       \
        a.maps = reinterpret_cast<const WeightMap*>(m.many_maps); \
    }
    MANY(16) MANY(32)
    a.hops = (uint4*)device<char>(p.hops);
    return p;
}
static int ring_of(const Persistent& p, int kb, int most = 8) { return p.ring > 0 ? p.ring : std::max(1, std::min(most, (kb * 1024 - p.shared - 1100) / STAGE)); }
static void run(const Persistent& p, int ring, const LayersArgs& with) {
    LayersArgs a = with;
    a.copying.ring = ring;
    launch_together(p.kernel, BLOCKS, COMPUTING + 128, ring * STAGE + p.shared, a);
}

__global__ void count_differing(const uint32_t* a, const uint32_t* b, size_t words, unsigned long long* count) {
    unsigned long long n = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words; i += (size_t)gridDim.x * blockDim.x) n += a[i] != b[i];
    if (n > 0) atomicAdd(count, n);
}
static size_t differing(const void* a, const void* b, size_t bytes) {
    static unsigned long long* count = device<unsigned long long>(1);
    CK(cudaMemsetAsync(count, 0, 8, st));
    count_differing<<<1024, 256, 0, st>>>((const uint32_t*)a, (const uint32_t*)b, bytes / 4, count);
    return down(count, 1)[0];
}

int main(int argc, char** argv) {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    CK(cudaStreamCreate(&st));
    const Model m = model();
    const State graph = new_state(), ours = new_state();
    CK(cudaDeviceSynchronize());
    const bool only_times = argc > 1 && strcmp(argv[1], "times") == 0, stress = argc > 1 && strcmp(argv[1], "stress") == 0;
    int bad = 0;
    // What positions rows have: short ones, one at a page's edge, long ones, padding.
    int places[][SLOTS] = {{0, 1, 15, 16, 17, 2, 31, 33}, {150, 64, 149, 130, 200, 31, 32, 12}, {2500, 1000, 513, 2047, 300, 2048, 1, 700}, {40, -1, 90, 55, -1, 3, 77, 20}};
    for (int k = 0; k < 4; ++k) {
        for (int row = LONG; row < SLOTS; ++row) places[k][row] = k == 0 ? row : k == 3 && row % 5 == 1 ? -1 : (row * 37 + k * 11) % (k == 1 ? 150 : 300);
    }
    for (int rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 31, 32}) {
        if (only_times || stress) break;
        for (const auto& place : places) {
            const int* positions = up(std::vector<int>(place, place + SLOTS));
            const Persistent p = persistent_of(m, ours, rows, positions);
            for (int layers : {1, 2, LAYERS_ALL}) {
                if (layers < LAYERS_ALL && (rows & (rows - 1)) != 0) continue;
                begin(m, graph);
                queue_graph(m, graph, rows, positions, layers);
                CK(cudaMemsetAsync(p.args.hops, 0, p.hops, st)); // counts are those of launches of as many layers
                for (int again = 0; again < 3; ++again) {
                    begin(m, ours);
                    LayersArgs with = p.args;
                    with.layers = layers;
                    if (again == 1) with.copying.pace = 0, with.copying.flight = 16;
                    const int ring = ring_of(p, again == 2 ? 222 : 150);
                    run(p, ring, with);
                    CK(cudaStreamSynchronize(st));
                    size_t sums = 0;
                    for (int r = 0; r < rows; ++r) {
                        if (place[r] >= 0) sums += differing(graph.x + r * HIDDEN, ours.x + r * HIDDEN, HIDDEN * 4);
                    }
                    const size_t cache = again > 0 ? 0 : differing(graph.keys, ours.keys, layers * CACHE_LAYER * 2) + differing(graph.values, ours.values, layers * CACHE_LAYER * 2);
                    const bool wrong = sums + cache > 0 || *m.stalled != 0;
                    bad += wrong;
                    if (wrong || (again == 0 && layers == LAYERS_ALL)) {
                        printf("rows %d layers %2d at %d.. ring %d: %zu words of the residual, %zu of the cache differ, stalled %d; x %g %g\n", rows, layers, place[0], ring, sums, cache, (int)*m.stalled,
                               down(graph.x, 2)[0], down(ours.x, 2)[0]);
                    }
                    *m.stalled = 0;
                    if (bad > 12) return 1;
                }
            }
        }
    }
    if (stress) {
        const int launches = argc > 2 ? atoi(argv[2]) : 2000;
        std::atomic<bool> stop{false};
        std::thread copies([&] {
            cudaStream_t own;
            CK(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
            char* room = device<char>(512 << 20);
            while (!stop) {
                CK(cudaMemcpyAsync(room, room + (256 << 20), 256 << 20, cudaMemcpyDeviceToDevice, own));
                CK(cudaStreamSynchronize(own));
            }
        });
        const int* positions = up(std::vector<int>(places[1], places[1] + SLOTS));
        for (int rows : {1, 2, 4, 8, 16, 32}) {
            const Persistent p = persistent_of(m, ours, rows, positions);
            const int ring = ring_of(p, 150);
            begin(m, graph);
            queue_graph(m, graph, rows, positions, LAYERS_ALL);
            const std::vector<float> want = down(graph.x, (size_t)rows * HIDDEN);
            int others = 0;
            begin(m, ours);
            for (int i = 0; i < launches; ++i) {
                CK(cudaMemcpyAsync(ours.x, m.x, SLOTS * HIDDEN * 4, cudaMemcpyDeviceToDevice, st));
                run(p, ring, p.args);
                const std::vector<float> got = down(ours.x, (size_t)rows * HIDDEN);
                others += memcmp(want.data(), got.data(), want.size() * 4) != 0;
            }
            bad += others;
            printf("rows %d: %d of %d launches differ beside copies, stalled %d\n", rows, others, launches, (int)*m.stalled);
        }
        stop = true;
        copies.join();
        return bad != 0;
    }
    for (int rows : {1, 2, 4, 8, 16, 32}) {
        for (int place : {0, 1, 2}) {
            const int* positions = up(std::vector<int>(places[place], places[place] + SLOTS));
            const Persistent p = persistent_of(m, ours, rows, positions);
            const int ring = ring_of(p, 150);
            begin(m, ours);
            begin(m, graph);
            queue_graph(m, graph, rows, positions, LAYERS_ALL);
            const cudaGraphExec_t g = captured([&] { queue_graph(m, graph, rows, positions, LAYERS_ALL); });
            const cudaGraphExec_t one = captured([&] { run(p, ring, p.args); });
            printf("rows %d at %d..: graph %.1f us a layer", rows, places[place][0], median_of(20, [&] { CK(cudaGraphLaunch(g, st)); }) / LAYERS_ALL);
            printf("; persistent, ring %d: %.1f", ring, median_of(20, [&] { CK(cudaGraphLaunch(one, st)); }) / LAYERS_ALL);
            for (int room : {150, 222}) {
                if (argc < 3 || place == 2 || (p.ring > 0 && room > 150)) break;
                float best = 1e9f;
                LayersArgs with = p.args, chosen = with;
                const int other = ring_of(p, room, 12);
                for (int flight : {2, 3, 4, 6})
                    for (int pace : {0, 500, 600, 700, 800}) {
                        with.copying.flight = flight, with.copying.pace = pace;
                        const float us = median_of(6, [&] { run(p, other, with); }) / LAYERS_ALL;
                        if (us < best) best = us, chosen = with;
                    }
                printf("; ring %d, flight %d, pace %d: %.1f", other, chosen.copying.flight, chosen.copying.pace, best);
            }
            printf("\n");
        }
    }
    if (!only_times) {
        // A wait in vain ends, and says so; the next launch is whole again.
        const int* positions = up(std::vector<int>(places[1], places[1] + SLOTS));
        for (int rows : {1, 8, 16, 32}) {
            const Persistent p = persistent_of(m, ours, rows, positions);
            for (uint32_t limit : {0u, 2000u, 200000u}) {
                LayersArgs with = p.args;
                with.limit = limit;
                run(p, ring_of(p, 150), with);
                CK(cudaStreamSynchronize(st));
                printf("rows %d, a limit of %u cycles: stalled %d", rows, limit, (int)*m.stalled);
                bad += *m.stalled != 1;
                *m.stalled = 0;
                begin(m, graph);
                queue_graph(m, graph, rows, positions, LAYERS_ALL);
                begin(m, ours);
                run(p, ring_of(p, 150), p.args);
                const size_t sums = differing(graph.x, ours.x, rows * HIDDEN * 4);
                printf("; the launch behind it: %zu differ, stalled %d\n", sums, (int)*m.stalled);
                bad += sums != 0 || *m.stalled != 0;
            }
        }
    }
    printf(bad == 0 ? "fine\n" : "%d WRONG\n", bad);
    return bad != 0;
}
