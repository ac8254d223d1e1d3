// Compares the products and the attention of the towers for Hopper with those for any GPU, bit for bit, and times both at
// the sizes of Qwen3-Omni-30B.
//   nvcc -O3 --std=c++17 -gencode arch=compute_90a,code=sm_90a -I kernels -o tower_selftest kernels/selftest/tower_selftest.cu && ./tower_selftest
// Whether those for any GPU are right is tested in tests/cuda/encoder.rs.
#include "../tower_attention.cu"
#include "../tower_attention_90a.cu"
#include "../tower_linear.cu"
#include "../tower_linear_90a.cu"
#include "maps.cuh"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

static void ok(cudaError_t error) {
    if (error != cudaSuccess) {
        printf("%s\n", cudaGetErrorString(error));
        exit(1);
    }
}

static bool all_same = true;

__global__ void noise(bf16* x, size_t n, unsigned seed) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) {
        unsigned h = (unsigned(i) + seed) * 2654435761u;
        h = (h ^ h >> 15) * 2246822519u;
        h ^= h >> 13;
        x[i] = __float2bfloat16_rn(float(h >> 8) / 8388608.f - 1.f);
    }
}

__global__ void compare(const uint16_t* a, const uint16_t* b, size_t n, unsigned* differ) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) {
        if (a[i] != b[i]) atomicAdd(differ, 1u);
    }
}

static bf16* filled(size_t n, unsigned seed) {
    bf16* x;
    ok(cudaMalloc(&x, n * sizeof(bf16)));
    noise<<<1024, 256>>>(x, n, seed);
    return x;
}

// Whether so many 16-bit words of both are the same.
static const char* same(const void* a, const void* b, size_t n) {
    static unsigned* counter = nullptr;
    if (counter == nullptr) ok(cudaMalloc(&counter, sizeof(unsigned)));
    ok(cudaMemset(counter, 0, sizeof(unsigned)));
    compare<<<1024, 256>>>(static_cast<const uint16_t*>(a), static_cast<const uint16_t*>(b), n, counter);
    unsigned differ;
    ok(cudaMemcpy(&differ, counter, sizeof(unsigned), cudaMemcpyDeviceToHost));
    all_same = all_same && differ == 0;
    return differ == 0 ? "same bits" : "OTHER BITS";
}

// Median of the microseconds of one of twelve launches in a row, which get their numbers.
constexpr int ROW = 12;
template <typename F>
static float timed(F launch) {
    static cudaEvent_t begin = nullptr, end = nullptr;
    if (begin == nullptr) ok(cudaEventCreate(&begin)), ok(cudaEventCreate(&end));
    std::vector<float> all;
    for (int i = 0; i < 8; ++i) {
        ok(cudaEventRecord(begin));
        for (int j = 0; j < ROW; ++j) launch(i * ROW + j);
        ok(cudaEventRecord(end));
        ok(cudaEventSynchronize(end));
        float ms;
        ok(cudaEventElapsedTime(&ms, begin, end));
        if (i > 0) all.push_back(ms * 1000 / ROW);
    }
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
}

using Product = void (*)(TowerHopper);
struct Tile {
    const char* name;
    int rows, outputs, stages;
    Product kernels[5]; // by mode
};
#define TILE(NAME, ROWS, OUTPUTS, STAGES)                                                                                      \
    {                                                                                                                          \
        #NAME, ROWS, OUTPUTS, STAGES, {                                                                                        \
            tower_hopper_##NAME##_store, tower_hopper_##NAME##_full, tower_hopper_##NAME##_add, tower_hopper_##NAME##_gelu_erf, \
                tower_hopper_##NAME##_gelu_tanh                                                                                \
        }                                                                                                                      \
    }
static const Tile tiles[] = {TILE(128x256, 128, 256, 4), TILE(128x128, 128, 128, 3), TILE(128x128_alone, 128, 128, 6), TILE(64x128, 64, 128, 4),
                             TILE(64x32, 64, 32, 8)};

static TowerHopper with_maps(const Tile& tile, const TowerLinear& a) {
    return {boxes(a.w, a.outputs, a.inputs, tile.outputs), boxes(a.x, a.rows, a.inputs, tile.rows), a};
}

static void run(const Tile& tile, int mode, const TowerHopper& args) {
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((args.linear.outputs + tile.outputs - 1) / tile.outputs, (args.linear.rows + tile.rows - 1) / tile.rows);
    config.blockDim = 2 * tile.rows + 32;
    config.dynamicSmemBytes = 1024 + tile.stages * ((tile.rows + tile.outputs) * 128 + 16);
    config.attrs = &overlap;
    config.numAttrs = 1;
    ok(cudaFuncSetAttribute(reinterpret_cast<const void*>(tile.kernels[mode]), cudaFuncAttributeMaxDynamicSharedMemorySize, int(config.dynamicSmemBytes)));
    ok(cudaLaunchKernelEx(&config, tile.kernels[mode], args));
}

// `wide`: tiles of 128 x 128, otherwise of 64 x 64.
static void run_any(bool wide, int mode, const TowerLinear& a) {
    static void (*const kernels[2][5])(TowerLinear) = {
        {tower_slim_store, tower_slim_full, tower_slim_add, tower_slim_gelu_erf, tower_slim_gelu_tanh},
        {tower_wide_store, tower_wide_full, tower_wide_add, tower_wide_gelu_erf, tower_wide_gelu_tanh}};
    const int tile = wide ? 128 : 64, bytes = HELD * 2 * tile * 128;
    const auto kernel = kernels[wide][mode];
    ok(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    kernel<<<dim3((a.outputs + tile - 1) / tile, (a.rows + tile - 1) / tile), 256, bytes>>>(a);
    ok(cudaGetLastError());
}

// All tiles in all modes.
static void bits(int rows, int outputs, int inputs, bool biased) {
    const size_t out = size_t(rows) * outputs;
    bf16 *x = filled(size_t(rows) * inputs, 1), *w = filled(size_t(outputs) * inputs, 2), *bias = filled(outputs, 3);
    // Of f32 where a mode says so; small noise to begin with, which TOWER_ADD adds to.
    bf16 *want = filled(out * 2, 4), *got = filled(out * 2, 4);
    for (int mode = 0; mode < 5; ++mode) {
        const bool full = mode == TOWER_FULL || mode == TOWER_ADD;
        TowerLinear a = {w, x, biased ? bias : nullptr, want, rows, outputs, inputs, outputs};
        noise<<<1024, 256>>>(want, out * 2, 5);
        run_any(true, mode, a);
        for (const Tile& tile : tiles) {
            noise<<<1024, 256>>>(got, out * 2, 5);
            a.y = got;
            run(tile, mode, with_maps(tile, a));
            const char* told = same(want, got, full ? out * 2 : out);
            if (told[0] != 's') printf("%d x %d x %d, mode %d, %s: %s\n", rows, outputs, inputs, mode, tile.name, told);
        }
    }
    ok(cudaDeviceSynchronize());
    cudaFree(x), cudaFree(w), cudaFree(bias), cudaFree(want), cudaFree(got);
}

// Times every tile. Weights come from memory, as they do layer after layer.
static void rates(int rows, int outputs, int inputs) {
    constexpr int LAYERS = 6;
    const size_t out = size_t(rows) * outputs;
    bf16 *x = filled(size_t(rows) * inputs, 1), *y = filled(out, 3), *w[LAYERS];
    for (int i = 0; i < LAYERS; ++i) w[i] = filled(size_t(outputs) * inputs, 2 + i);
    const auto of = [&](int number) { return TowerLinear{w[number % LAYERS], x, nullptr, y, rows, outputs, inputs, outputs}; };
    const double flop = 2.0 * rows * outputs * inputs;
    printf("%5d x %4d x %4d, us:", rows, outputs, inputs);
    float before = 1e9f, now = 1e9f;
    for (bool wide : {true, false}) {
        const float us = timed([&](int number) { run_any(wide, TOWER_STORE, of(number)); });
        printf(" %s %.1f", wide ? "wide" : "slim", us);
        before = std::min(before, us);
    }
    for (const Tile& tile : tiles) {
        std::vector<TowerHopper> args;
        for (int i = 0; i < LAYERS; ++i) args.push_back(with_maps(tile, of(i)));
        const float us = timed([&](int number) { run(tile, TOWER_STORE, args[number % LAYERS]); });
        printf(", %s %.1f", tile.name, us);
        now = std::min(now, us);
    }
    printf("; TFLOP/s: any GPU %.0f, Hopper %.0f\n", flop / before / 1e6, flop / now / 1e6);
    ok(cudaGetLastError());
    cudaFree(x), cudaFree(y);
    for (bf16* one : w) cudaFree(one);
}

static TowerTile* table(int n, int part, int queries, size_t* count) {
    std::vector<TowerTile> all;
    for (int start = 0; start < n; start += part) {
        const int end = std::min(n, start + part);
        for (int first = start; first < end; first += queries) all.push_back({first, start, end});
    }
    TowerTile* there;
    ok(cudaMalloc(&there, all.size() * sizeof(TowerTile)));
    ok(cudaMemcpy(there, all.data(), all.size() * sizeof(TowerTile), cudaMemcpyHostToDevice));
    *count = all.size();
    return there;
}

static void attention(int n, int part, int heads, int d) {
    const size_t all = size_t(n) * heads * d;
    bf16 *qkv = filled(all * 3, 4), *want = filled(all, 5), *got = filled(all, 6);
    size_t count, wide;
    const TowerAttention a = {qkv, want, table(n, part, 64, &count), heads, d, 1.f / sqrtf(float(d))};
    const TowerAttention b = {qkv, got, table(n, part, 128, &wide), heads, d, a.scale};
    const int width = d <= 64 ? 64 : 80, bytes = 5 * 64 * (width * 2 + 16), more = 1024 + 8 * 64 * width * 2;
    const auto any = d <= 64 ? tower_see64 : tower_see80, hopper = d == 64 ? tower_hopper_see64 : tower_hopper_see72;
    ok(cudaFuncSetAttribute(reinterpret_cast<const void*>(any), cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    ok(cudaFuncSetAttribute(reinterpret_cast<const void*>(hopper), cudaFuncAttributeMaxDynamicSharedMemorySize, more));
    const float before = timed([&](int) { any<<<dim3(count, heads), 128, bytes>>>(a); });
    const float now = timed([&](int) { hopper<<<dim3(wide, heads), 256, more>>>(b); });
    const double flop = 4.0 * n * part * heads * d;
    printf("attention of %5d in parts of %5d: any GPU %.1f us, %.0f TFLOP/s; Hopper %.1f us, %.0f TFLOP/s, %s\n", n, part, before, flop / before / 1e6, now,
           flop / now / 1e6, same(want, got, all));
    ok(cudaGetLastError());
    cudaFree(qkv), cudaFree(want), cudaFree(got);
}

int main() {
    for (bool biased : {true, false}) {
        bits(1, 8, 8, biased), bits(77, 488, 1288, biased), bits(104, 1280, 5120, biased), bits(300, 4304, 1152, biased), bits(1560, 1152, 4304, biased);
    }
    attention(1, 1, 20, 64), attention(300, 97, 20, 64), attention(129, 129, 16, 72);
    printf("products: %s\n", all_same ? "same bits" : "OTHER BITS");
    for (int rows : {104, 832}) rates(rows, 3840, 1280), rates(rows, 1280, 1280), rates(rows, 5120, 1280), rates(rows, 1280, 5120);
    rates(6400, 480, 4320), rates(1664, 480, 4320), rates(104, 1280, 7680);
    for (int rows : {1200, 1560, 16384}) rates(rows, 3456, 1152), rates(rows, 1152, 1152), rates(rows, 4304, 1152), rates(rows, 1152, 4304);
    rates(300, 4608, 4608), rates(300, 2048, 4608);
    attention(104, 104, 20, 64), attention(832, 104, 20, 64);
    attention(1200, 1200, 16, 72), attention(1560, 1560, 16, 72), attention(16384, 16384, 16, 72);
    return all_same ? 0 : 1;
}
