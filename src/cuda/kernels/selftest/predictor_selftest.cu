// The persistent predictors against the kernels of the graph: codes, status, sums of embeddings and the last logits bit by
// bit, for numbers of rows up to 128 and all ways to sample; a wait in vain; and what both take. (The graph here takes more
// than 16 rows by sixteens: its time then says nothing.)
//   nvcc -O3 --std=c++17 -gencode arch=compute_90a,code=sm_90a -I kernels -o predictor_selftest
//     kernels/selftest/predictor_selftest.cu && ./predictor_selftest
// `predictor_selftest stress [LAUNCHES [BESIDE [ROWS]]]` repeats both on the same input and tells each launch that gives other
// codes. BESIDE is a sum of what runs meanwhile: 1 a talker's graph, 2 copies that take all bandwidth, 4 blocks with much
// shared memory, 8 allocations.
#include "attention.cu"
#include "sample.cu"
#include "random.cu"
#include "predictor_90a.cu"
#include "predictor_many_90a.cu"
#include "products.cuh"
#include <atomic>
#include <cstring>
#include <thread>

constexpr int LAYERS = 5, GROUPS_ALL = 16, PASSES = 15, OUTER = 2048, SLOTS = 128, OUT = 2 * GROUPS_ALL + 2, TIMES = 2 + 2 * GROUPS_ALL;

struct Model {
    bf16 *qkv[LAYERS], *output[LAYERS], *gate_up[LAYERS], *down[LAYERS], *heads, *tables, *outer, *gains, *qk_norm, *keys, *values;
    float *frequencies, *x, *codec;
    uint32_t *forced, *pages, *slots;
    StepRow* rows;
    StepHead* head;
    SlotParams* params;
    uint32_t* done;
    uint32_t* out;   // mapped
    uint64_t* times; // mapped
    uint32_t* stalled; // mapped
};
constexpr size_t CACHE_LAYER = (size_t)2 * SLOTS * KV_HEADS * 16 * 128; // two pages for each row

static Model model() {
    Model m;
    for (int l = 0; l < LAYERS; ++l) {
        m.qkv[l] = random_of((size_t)4096 * HIDDEN, sqrtf(3.f / HIDDEN));
        m.output[l] = random_of((size_t)HIDDEN * 2048, sqrtf(3.f / 2048));
        m.gate_up[l] = random_of((size_t)2 * INNER * HIDDEN, sqrtf(3.f / HIDDEN));
        m.down[l] = random_of((size_t)HIDDEN * INNER, sqrtf(3.f / INNER));
    }
    m.heads = random_of((size_t)PASSES * CODES * HIDDEN, 3.f * sqrtf(3.f / HIDDEN));
    m.tables = random_of((size_t)PASSES * CODES * HIDDEN, 1.f);
    m.outer = random_of((size_t)PASSES * CODES * OUTER, 1.f);
    m.gains = random_of((size_t)(2 * LAYERS + 1) * HIDDEN, 0.5f, 1.f);
    m.qk_norm = random_of((size_t)LAYERS * 2 * HEAD, 0.5f, 1.f);
    m.keys = random_of(LAYERS * CACHE_LAYER, 1.f);
    m.values = random_of(LAYERS * CACHE_LAYER, 1.f);
    std::vector<float> frequencies, x;
    for (int j = 0; j < HEAD / 2; ++j) frequencies.push_back(1.f / powf(1000000.f, 2.f * j / HEAD));
    for (int i = 0; i < SLOTS * HIDDEN; ++i) x.push_back((i * 2654435761u >> 8) / 8388608.f - 1.f);
    m.frequencies = up(frequencies);
    m.x = up(x);
    std::vector<uint32_t> forced, pages, slots;
    for (int i = 0; i < SLOTS * GROUPS_ALL; ++i) forced.push_back((i * 2654435761u >> 7) % CODES);
    for (int i = 0; i < 2 * SLOTS; ++i) pages.push_back(i);
    for (int i = 0; i < SLOTS; ++i) slots.push_back(i);
    m.forced = up(forced);
    m.pages = up(pages);
    m.slots = up(slots);
    const SamplingArgs ways[] = {{0.f, 1.f, 0.f, 0, 1.f, 0.f, 0.f, 0}, {.9f, 1.f, 0.f, 50, 1.f, 0.f, 0.f, 0}, {.9f, .9f, 0.f, 0, 1.f, 0.f, 0.f, 0},
                                 {1.f, 1.f, 0.f, 0, 1.f, 0.f, 0.f, 0}, {.8f, .95f, .02f, 20, 1.f, 0.f, 0.f, 0}};
    std::vector<StepRow> rows;
    std::vector<SlotParams> params;
    for (int i = 0; i < SLOTS; ++i) {
        StepRow r = {};
        // In batches with such a row, one is padding, and one has forced codes.
        r.slot = i == 2 ? NONE : (i * 5 + 3) % SLOTS;
        r.count = i * 7;
        r.forced = i == 5 ? 5 * GROUPS_ALL : NONE;
        rows.push_back(r);
        SlotParams p = {};
        p.first = p.others = ways[i % 5];
        p.seed_low = 77 + i;
        p.seed_high = i;
        params.push_back(p);
    }
    m.rows = up(rows);
    m.params = up(params);
    m.done = device<uint32_t>(SLOTS);
    m.codec = device<float>((size_t)SLOTS * OUTER);
    CK(cudaHostAlloc(&m.out, SLOTS * OUT * 4, cudaHostAllocMapped));
    CK(cudaHostAlloc(&m.times, TIMES * 8, cudaHostAllocMapped));
    CK(cudaHostAlloc(&m.stalled, 4, cudaHostAllocMapped));
    StepHead head = {};
    head.out = (uint64_t)m.out;
    head.times = (uint64_t)m.times;
    m.head = up(std::vector<StepHead>{head});
    return m;
}

struct Graph {
    cudaGraphExec_t exec;
    float* logits;
    bf16 *keys, *values;
};
static Graph graph_of(const Model& m, int rows, int passes) {
    Graph g;
    g.logits = device<float>((size_t)rows * CODES);
    g.keys = device<bf16>(LAYERS * CACHE_LAYER);
    g.values = device<bf16>(LAYERS * CACHE_LAYER);
    CK(cudaMemcpy(g.keys, m.keys, LAYERS * CACHE_LAYER * 2, cudaMemcpyDeviceToDevice));
    CK(cudaMemcpy(g.values, m.values, LAYERS * CACHE_LAYER * 2, cudaMemcpyDeviceToDevice));
    bf16 *qkv = device<bf16>((size_t)rows * 4096), *mixed = device<bf16>((size_t)rows * 2048), *inner = device<bf16>((size_t)rows * INNER);
    float* x = device<float>((size_t)rows * HIDDEN);
    std::vector<int*> positions;
    for (int p = 0; p < PASSES; ++p) positions.push_back(up(std::vector<int>(rows, p + 1)));
    bf16* ready = device<bf16>((size_t)rows * HIDDEN);
    const auto product = [&](Mode mode, const bf16* w, const void* in, const bf16* gain, void* y, int outputs, int inputs) {
        queue_product(mode, w, in, gain, y, rows, outputs, inputs, ready);
    };
    CK(cudaDeviceSynchronize());
    g.exec = captured([&] {
        CK(cudaMemcpyAsync(x, m.x, (size_t)rows * HIDDEN * 4, cudaMemcpyDeviceToDevice, st));
        for (int p = 1; p < passes; ++p) {
            for (int l = 0; l < LAYERS; ++l) {
                product(STORE, m.qkv[l], x, m.gains + 2 * l * HIDDEN, qkv, 4096, HIDDEN);
                AttentionArgs a = {};
                a.qkv = qkv;
                a.q_norm = m.qk_norm + l * 2 * HEAD;
                a.k_norm = m.qk_norm + (l * 2 + 1) * HEAD;
                a.inv_freq = m.frequencies;
                a.keys = g.keys + l * CACHE_LAYER;
                a.values = g.values + l * CACHE_LAYER;
                a.out = mixed;
                a.pages = m.pages;
                a.slots = m.slots;
                a.positions = positions[p];
                a.rows = rows, a.heads = HEADS, a.kv_heads = KV_HEADS, a.head_dim = HEAD, a.max_pages = 2;
                a.eps = 1e-6f;
                a.scale = 0.08838834764831845f;
                launch_overlapping(attend_short2_write, dim3(KV_HEADS, rows), 64, 0, a);
                product(ADD, m.output[l], mixed, nullptr, x, HIDDEN, 2048);
                product(SILU_MUL, m.gate_up[l], x, m.gains + (2 * l + 1) * HIDDEN, inner, 2 * INNER, HIDDEN);
                product(ADD, m.down[l], inner, nullptr, x, HIDDEN, INNER);
            }
            product(STORE_F32, m.heads + (size_t)p * CODES * HIDDEN, x, m.gains + 2 * LAYERS * HIDDEN, g.logits, CODES, HIDDEN);
            const GroupArgs s = {g.logits, m.rows, m.head, m.params, m.done, m.codec, p + 1 < PASSES ? x : nullptr, m.outer + (size_t)p * CODES * OUTER,
                                 m.tables + (size_t)p * CODES * HIDDEN, m.forced, CODES, OUTER, HIDDEN, p + 1, GROUPS_ALL};
            launch_overlapping(sample_group_bf16, dim3(rows), PICKERS, 0, s);
        }
    });
    return g;
}

struct Persistent {
    PredictorArgs args;
    const void* kernel;
    int shared, rows, logits_at, stage, ring; // `ring`: its only size, if there is but one
    size_t hops;
};
// Weights as each kind of kernel takes them, and tables.
struct PackedWeights {
    uint4 *body, *heads;
};
struct Loaded {
    PackedWeights few, many;
    const float2* turns;
    const uint64_t *tables, *narrowed;
};
static Persistent persistent_of(const Model& m, int rows, const Loaded& of) {
    const uint4 *body = rows > 16 ? of.many.body : of.few.body, *heads = rows > 16 ? of.many.heads : of.few.heads;
    const float2* turns = of.turns;
    const uint64_t *tables = of.tables, *narrowed = of.narrowed;
    Persistent p = {};
    p.rows = rows;
    PredictorArgs a = {};
    a.body = body, a.heads = heads, a.gains = m.gains, a.qk_norm = m.qk_norm, a.turns = turns, a.frequencies = m.frequencies;
    bf16 *keys = device<bf16>(LAYERS * CACHE_LAYER), *values = device<bf16>(LAYERS * CACHE_LAYER);
    CK(cudaMemcpy(keys, m.keys, LAYERS * CACHE_LAYER * 2, cudaMemcpyDeviceToDevice));
    CK(cudaMemcpy(values, m.values, LAYERS * CACHE_LAYER * 2, cudaMemcpyDeviceToDevice));
    a.keys = keys, a.values = values, a.pages = m.pages, a.max_pages = 2, a.layer_size = CACHE_LAYER;
    a.x = m.x, a.rows = m.rows, a.head = m.head, a.params = m.params, a.codec = m.codec, a.tables = tables, a.narrowed = narrowed, a.forced = m.forced;
    a.stalled = m.stalled;
    a.first = 1, a.passes = PASSES, a.layers = LAYERS, a.groups = GROUPS_ALL, a.outer = OUTER;
    a.eps = 1e-6f, a.scale = 0.08838834764831845f;
    a.kept = 16, a.copying.flight = 3, a.copying.pace = 800, a.limit = 1u << 30;
#define WAY(R)                                    \
    if (rows > R / 2 && rows <= R) {              \
        p.kernel = (const void*)predictor_##R;    \
        p.shared = sizeof(Shared<R>);             \
        p.logits_at = Hops<R>::LOGITS;            \
        p.hops = Hops<R>::SIZE * 16;              \
        p.stage = STAGE;                          \
    }
    WAY(1) WAY(2) WAY(4) WAY(8) WAY(16)
#define MANY_WAY(R)                                    \
    if (rows > R / 2 && rows <= R) {                   \
        p.kernel = (const void*)predictor_many_##R;    \
        p.shared = Rings<R>::ROWS + sizeof(RowShared); \
        p.ring = Rings<R>::WEIGHTS;                    \
        p.logits_at = Handed<R>::LOGITS;               \
        p.hops = Handed<R>::SIZE;                      \
        p.stage = PIECE;                               \
    }
    MANY_WAY(32) MANY_WAY(64) MANY_WAY(128)
    a.hops = (uint4*)device<char>(p.hops);
    a.count = rows;
    p.args = a;
    return p;
}
static int most_ring(const Persistent& p, int kb) { return p.ring > 0 ? p.ring : std::min(8, (kb * 1024 - p.shared - 1100) / p.stage); }
static std::vector<float> logits_of(const Persistent& p, int row) {
    if (p.stage != STAGE) return down((const float*)((const char*)p.args.hops + p.logits_at) + (size_t)row * CODES, CODES);
    const std::vector<uint4> q = down(p.args.hops + p.logits_at + (size_t)row * CODES / 2, CODES / 2);
    std::vector<float> all(CODES);
    for (int i = 0; i < CODES; ++i) memcpy(&all[i], i % 2 == 0 ? &q[i / 2].x : &q[i / 2].y, 4);
    return all;
}
static void run(const Persistent& p, int ring, PredictorArgs with) {
    PredictorArgs a = p.args;
    a.kept = with.kept, a.copying = {ring, with.copying.flight, with.copying.pace}, a.limit = with.limit, a.passes = with.passes;
    launch_together(p.kernel, BLOCKS, COMPUTING + 128, ring * p.stage + p.shared, a);
}

template <class F>
float us_of_pass(int times, F queue) { return median_of(times, queue) / (PASSES - 1); }

// What else may run on the device: a talker's graph, copies, blocks with much shared memory, and allocations.
__global__ void hog(float* sink, int cycles) {
    extern __shared__ float room[];
    const long long began = clock64();
    float v = threadIdx.x;
    room[threadIdx.x] = v;
    while (clock64() - began < cycles) {
        __syncthreads();
        v = v * 1.0001f + room[(threadIdx.x * 7 + 1) % blockDim.x];
        room[threadIdx.x] = v;
    }
    if (v == 3.14159f) *sink = v;
}
struct Crowd {
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    long turns[5] = {};
    template <class F>
    void add(int of, F turn) {
        threads.emplace_back([this, of, turn] {
            cudaStream_t own;
            CK(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
            for (int i = 0; !stop; ++i) {
                turn(own, i);
                ++turns[of];
            }
        });
    }
    void start(int mask, cudaGraphExec_t graph) {
        if (mask & 1) add(0, [graph](cudaStream_t own, int) {
            CK(cudaGraphLaunch(graph, own));
            CK(cudaStreamSynchronize(own));
        });
        if (mask & 2) {
            char* room;
            CK(cudaMalloc(&room, 512 << 20));
            add(1, [room](cudaStream_t own, int) {
                CK(cudaMemcpyAsync(room, room + (256 << 20), 256 << 20, cudaMemcpyDeviceToDevice, own));
                CK(cudaStreamSynchronize(own));
            });
        }
        if (mask & 4) {
            CK(cudaFuncSetAttribute(hog, cudaFuncAttributeMaxDynamicSharedMemorySize, 72 << 10));
            CK(cudaFuncSetAttribute(hog, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
            add(2, [](cudaStream_t own, int i) {
                hog<<<16 + i * 37 % 260, 128, (40 + i % 4 * 10) << 10, own>>>(nullptr, 20000 + i * 7919 % 200000);
                CK(cudaGetLastError());
                CK(cudaStreamSynchronize(own));
            });
        }
        if (mask & 8) {
            static std::vector<char> host(32 << 20);
            add(3, [](cudaStream_t, int) {
                char* room;
                CK(cudaMalloc(&room, 32 << 20));
                CK(cudaMemcpy(room, host.data(), 32 << 20, cudaMemcpyHostToDevice));
                CK(cudaFree(room));
            });
        }
    }
    void end() {
        stop = true;
        for (auto& t : threads) t.join();
        printf("  beside: %ld graphs, %ld copies, %ld hogs, %ld allocations\n", turns[0], turns[1], turns[2], turns[3]);
    }
};

int main(int argc, char** argv) {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    CK(cudaStreamCreate(&st));
    const Model m = model();
    uint4 *body = device<uint4>((size_t)LAYERS * LAYER_STAGES * BLOCKS * 1024), *heads = device<uint4>((size_t)PASSES * HEAD_STAGES * BLOCKS * 1024);
    for (int l = 0; l < LAYERS; ++l) pack_predictor<<<1024, 256, 0, st>>>({m.qkv[l], m.output[l], m.gate_up[l], m.down[l], nullptr, body + (size_t)l * LAYER_STAGES * BLOCKS * 1024});
    for (int p = 0; p < PASSES; ++p) pack_predictor<<<1024, 256, 0, st>>>({nullptr, nullptr, nullptr, nullptr, m.heads + (size_t)p * CODES * HIDDEN, heads + (size_t)p * HEAD_STAGES * BLOCKS * 1024});
    uint4 *many_body = (uint4*)device<char>((size_t)LAYERS * BLOCKS * MANY_BYTES), *many_heads = (uint4*)device<char>((size_t)PASSES * BLOCKS * MANY_HEAD_STAGES * PIECE);
    for (int l = 0; l < LAYERS; ++l) pack_predictor_many<<<1024, 256, 0, st>>>({m.qkv[l], m.output[l], m.gate_up[l], m.down[l], nullptr, many_body + (size_t)l * BLOCKS * MANY_BYTES / 16});
    for (int p = 0; p < PASSES; ++p) pack_predictor_many<<<1024, 256, 0, st>>>({nullptr, nullptr, nullptr, nullptr, m.heads + (size_t)p * CODES * HIDDEN, many_heads + (size_t)p * BLOCKS * MANY_HEAD_STAGES * PIECE / 16});
    float2* turns = device<float2>(POSITIONS * 64);
    turn_predictor<<<POSITIONS, 64, 0, st>>>(m.frequencies, turns);
    CK(cudaGetLastError());
    std::vector<uint64_t> addresses, narrow;
    for (int p = 0; p < PASSES; ++p) addresses.push_back((uint64_t)(m.outer + (size_t)p * CODES * OUTER)), narrow.push_back((uint64_t)(m.tables + (size_t)p * CODES * HIDDEN));
    const Loaded loaded = {{body, heads}, {many_body, many_heads}, turns, up(addresses), up(narrow)};
    CK(cudaDeviceSynchronize());

    int bad = 0;
    const auto state = [&](int rows) {
        struct {
            std::vector<uint32_t> out;
            std::vector<float> codec;
        } s;
        CK(cudaStreamSynchronize(st));
        s.out.assign(m.out, m.out + rows * OUT);
        s.codec = down(m.codec, (size_t)SLOTS * OUTER);
        memset(m.out, 0, SLOTS * OUT * 4);
        CK(cudaMemset(m.codec, 0, (size_t)SLOTS * OUTER * 4));
        return s;
    };
    *m.stalled = 0;
    if (argc > 1 && strcmp(argv[1], "stress") == 0) {
        const int launches = argc > 2 ? atoi(argv[2]) : 2000;
        const int mask = argc > 3 ? atoi(argv[3]) : 0, only = argc > 4 ? atoi(argv[4]) : 0;
        Model other = m; // of the crowd
        other.codec = device<float>((size_t)SLOTS * OUTER);
        other.done = device<uint32_t>(SLOTS);
        CK(cudaHostAlloc(&other.out, SLOTS * OUT * 4, cudaHostAllocMapped));
        StepHead head = {};
        head.out = (uint64_t)other.out;
        other.head = up(std::vector<StepHead>{head});
        const Graph beside = graph_of(other, SLOTS, PASSES);
        for (int rows : {1, 2, 4, 8, 16, 32, 64, 128}) {
            if (only != 0 && rows != only) continue;
            const Persistent p = persistent_of(m, rows, loaded);
            const Graph g = graph_of(m, rows, PASSES);
            const int ring = most_ring(p, 150);
            const cudaGraphExec_t one = captured([&] { run(p, ring, p.args); });
            CK(cudaGraphLaunch(g.exec, st));
            const auto want = state(rows);
            for (int which : {0, 1, 2}) {
                Crowd crowd;
                crowd.start(mask, beside.exec);
                int others = 0;
                double worst = 0, sum = 0;
                cudaEvent_t e0, e1;
                CK(cudaEventCreate(&e0));
                CK(cudaEventCreate(&e1));
                for (int i = 0; i < launches; ++i) {
                    CK(cudaEventRecord(e0, st));
                    if (which == 0) CK(cudaGraphLaunch(g.exec, st));
                    else if (which == 1) run(p, ring, p.args);
                    else CK(cudaGraphLaunch(one, st));
                    CK(cudaEventRecord(e1, st));
                    CK(cudaStreamSynchronize(st));
                    float ms;
                    CK(cudaEventElapsedTime(&ms, e0, e1));
                    sum += ms, worst = std::max<double>(worst, ms);
                    for (int r = 0; r < rows; ++r) {
                        int at = 0;
                        while (at < OUT && m.out[r * OUT + at] == want.out[r * OUT + at]) ++at;
                        if (at == OUT) continue;
                        if (others++ < 12) printf("  rows %d launch %d: row %d differs from word %d on, %u for %u\n", rows, i, r, at, m.out[r * OUT + at], want.out[r * OUT + at]);
                    }
                    memset(m.out, 0, SLOTS * OUT * 4);
                }
                crowd.end();
                bad += others;
                const char* names[] = {"graph", "persistent", "captured"};
                printf("rows %2d ring %d %-10s: %d rows of %d launches differ, stalled %d, %.3f ms, at most %.3f\n", rows, ring, names[which], others, launches, (int)*m.stalled, sum / launches, worst);
            }
        }
        return bad != 0;
    }
    const bool only_times = argc > 1 && strcmp(argv[1], "times") == 0;
    const int from = argc > 2 ? atoi(argv[2]) : 0;
    for (int rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 24, 32, 33, 48, 64, 65, 100, 128}) {
        if (rows < from) continue;
        const Persistent p = persistent_of(m, rows, loaded);
        const int ring = most_ring(p, 150);
        for (int passes : {2, 3, PASSES}) {
            if (only_times || (passes < PASSES && rows > 2 && rows != 17)) continue;
            const Graph g = graph_of(m, rows, passes);
            state(rows);
            CK(cudaGraphLaunch(g.exec, st));
            const auto want = state(rows);
            const std::vector<float> logits = down(g.logits, (size_t)rows * CODES);
            for (int again = 0; again < 3; ++again) {
                PredictorArgs with = p.args;
                with.passes = passes;
                if (again == 0) CK(cudaMemset(p.args.hops, 0, p.hops)); // counts are those of launches of as many passes
                if (again == 1) with.kept = 0, with.copying.pace = 0, with.copying.flight = 16;
                run(p, again == 2 && p.stage == STAGE ? std::max(2, ring - 2) : ring, with);
                const auto got = state(rows);
                size_t codes = 0, sums = 0, words = 0;
                for (int i = 0; i < rows * OUT; ++i) codes += got.out[i] != want.out[i];
                for (size_t i = 0; i < got.codec.size(); ++i) sums += memcmp(&got.codec[i], &want.codec[i], 4) != 0;
                for (int r = 0; r < rows; ++r) {
                    const std::vector<float> own = logits_of(p, r);
                    for (int i = 0; i < CODES; ++i) words += memcmp(&own[i], &logits[(size_t)r * CODES + i], 4) != 0;
                }
                const bool wrong = codes + sums + words > 0 || *m.stalled != 0;
                bad += wrong;
                if (wrong || (again == 0 && passes == PASSES))
                    printf("rows %2d passes %2d ring %d: %zu words of output, %zu sums, %zu logits differ, stalled %d; codes %u %u %u %u\n", rows, passes - 1, ring, codes, sums, words,
                           (int)*m.stalled, want.out[1], want.out[2], want.out[3], want.out[14]);
            }
            CK(cudaGraphExecDestroy(g.exec));
        }
        if ((rows & (rows - 1)) != 0) continue;
        // Sampled as a talker does unless it is told otherwise.
        const std::vector<SlotParams> ways = down(m.params, SLOTS);
        std::vector<SlotParams> usual = ways;
        for (SlotParams& of : usual) of.others = {.9f, 1.f, 0.f, 50, 1.f, 0.f, 0.f, 0};
        CK(cudaMemcpy(m.params, usual.data(), SLOTS * sizeof(SlotParams), cudaMemcpyHostToDevice));
        const Graph g = graph_of(m, rows, PASSES);
        printf("rows %2d: graph %.1f us a pass", rows, us_of_pass(20, [&] { CK(cudaGraphLaunch(g.exec, st)); }));
        float best = 1e9f;
        PredictorArgs with = p.args, chosen = with;
        for (int kept : {0, 16, 20})
            for (int flight : {2, 3, 4, 6, 8})
                for (int pace : {0, 350, 450, 700, 800, 900, 1000}) {
                    with.kept = kept, with.copying.flight = flight, with.copying.pace = pace;
                    const float us = us_of_pass(6, [&] { run(p, ring, with); });
                    if (us < best) best = us, chosen = with;
                }
        printf("; persistent %.1f (kept 16, flight 3, pace 800: %.1f), best with %d, %d, %d, ring %d: %.1f", us_of_pass(20, [&] { run(p, ring, p.args); }),
               us_of_pass(20, [&] { run(p, ring, p.args); }), chosen.kept, chosen.copying.flight, chosen.copying.pace, ring, us_of_pass(20, [&] { run(p, ring, chosen); }));
        const cudaGraphExec_t one = captured([&] { run(p, ring, chosen); });
        printf(", captured %.1f\n", us_of_pass(20, [&] { CK(cudaGraphLaunch(one, st)); }));
        CK(cudaMemcpy(m.params, ways.data(), SLOTS * sizeof(SlotParams), cudaMemcpyHostToDevice));
    }
    // Blocks that wait too long: the launch ends, and says so.
    const Persistent p = persistent_of(m, 2, loaded);
    PredictorArgs with = p.args;
    for (uint32_t limit : {0u, 1u << 30}) {
        with.limit = limit;
        *m.stalled = 0;
        run(p, 8, with);
        CK(cudaStreamSynchronize(st));
        printf("limit %u: stalled %d\n", limit, (int)*m.stalled);
        bad += *m.stalled != (limit == 0);
    }
    printf("%s: %d wrong\n", bad ? "FAILED" : "ok", bad);
    return bad != 0;
}
