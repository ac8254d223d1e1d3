// Times the products and the attention of the towers of Qwen3-Omni-30B, and prints how much arithmetic a second they do.
//   nvcc -O3 --std=c++17 -arch=sm_90 -I kernels -o tower_selftest kernels/selftest/tower_selftest.cu && ./tower_selftest
// Whether they are right is tested in tests/cuda/encoder.rs.
#include "../tower_attention.cu"
#include "../tower_linear.cu"

#include <algorithm>
#include <cstdio>
#include <vector>

static void ok(cudaError_t error) {
    if (error != cudaSuccess) {
        printf("%s\n", cudaGetErrorString(error));
        exit(1);
    }
}

__global__ void noise(bf16* x, size_t n, unsigned seed) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) {
        unsigned h = (unsigned(i) + seed) * 2654435761u;
        h = (h ^ h >> 15) * 2246822519u;
        x[i] = __float2bfloat16_rn(float(h >> 8) / 8388608.f - 1.f);
    }
}

static bf16* filled(size_t n, unsigned seed) {
    bf16* x;
    ok(cudaMalloc(&x, n * sizeof(bf16)));
    noise<<<1024, 256>>>(x, n, seed);
    return x;
}

// Median of the microseconds of a launch.
template <typename F>
static float timed(F launch) {
    cudaEvent_t begin, end;
    ok(cudaEventCreate(&begin));
    ok(cudaEventCreate(&end));
    std::vector<float> all;
    for (int i = 0; i < 23; ++i) {
        ok(cudaEventRecord(begin));
        launch();
        ok(cudaEventRecord(end));
        ok(cudaEventSynchronize(end));
        float ms;
        ok(cudaEventElapsedTime(&ms, begin, end));
        if (i > 2) all.push_back(ms * 1000);
    }
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
}

static void product(int rows, int outputs, int inputs) {
    bf16 *x = filled(size_t(rows) * inputs, 1), *w = filled(size_t(outputs) * inputs, 2), *y = filled(size_t(rows) * outputs, 3);
    const TowerLinear a = {w, x, nullptr, y, rows, outputs, inputs, outputs};
    const auto grid = [&](int tile) { return dim3((outputs + tile - 1) / tile, (rows + tile - 1) / tile); };
    const int wide = HELD * 256 * 128, slim = HELD * 128 * 128;
    ok(cudaFuncSetAttribute(tower_wide_store, cudaFuncAttributeMaxDynamicSharedMemorySize, wide));
    ok(cudaFuncSetAttribute(tower_slim_store, cudaFuncAttributeMaxDynamicSharedMemorySize, slim));
    const float t[2] = {timed([&] { tower_wide_store<<<grid(128), 256, wide>>>(a); }), timed([&] { tower_slim_store<<<grid(64), 256, slim>>>(a); })};
    const double flop = 2.0 * rows * outputs * inputs;
    printf("%6d x %5d x %5d   wide %7.1f us %4.0f TFLOP/s   slim %7.1f us %4.0f TFLOP/s\n", rows, outputs, inputs, t[0], flop / t[0] / 1e6, t[1], flop / t[1] / 1e6);
    ok(cudaGetLastError());
    cudaFree(x), cudaFree(w), cudaFree(y);
}

static void attention(int n, int part, int heads, int d) {
    bf16 *qkv = filled(size_t(n) * 3 * heads * d, 4), *out = filled(size_t(n) * heads * d, 5);
    std::vector<TowerTile> tiles;
    for (int start = 0; start < n; start += part) {
        for (int first = start; first < std::min(n, start + part); first += 64) tiles.push_back({first, start, std::min(n, start + part)});
    }
    TowerTile* table;
    ok(cudaMalloc(&table, tiles.size() * sizeof(TowerTile)));
    ok(cudaMemcpy(table, tiles.data(), tiles.size() * sizeof(TowerTile), cudaMemcpyHostToDevice));
    const TowerAttention a = {qkv, out, table, heads, d, 1.f / sqrtf(float(d))};
    const int width = d <= 64 ? 64 : 80, bytes = 5 * 64 * (width * 2 + 16);
    auto kernel = d <= 64 ? tower_see64 : tower_see80;
    ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    const float t = timed([&] { kernel<<<dim3(tiles.size(), heads), 128, bytes>>>(a); });
    printf("attention of %6d in parts of %5d   %8.1f us %4.0f TFLOP/s\n", n, part, t, 4.0 * n * part * heads * d / t / 1e6);
    ok(cudaGetLastError());
    cudaFree(qkv), cudaFree(out), cudaFree(table);
}

int main() {
    for (int rows : {104, 832}) {
        product(rows, 3840, 1280), product(rows, 1280, 1280), product(rows, 5120, 1280), product(rows, 1280, 5120);
    }
    product(6400, 480, 4320), product(104, 1280, 7680);
    for (int rows : {1200, 1560, 16384}) {
        product(rows, 3456, 1152), product(rows, 1152, 1152), product(rows, 4304, 1152), product(rows, 1152, 4304);
    }
    product(300, 4608, 4608), product(300, 2048, 4608);
    attention(104, 104, 20, 64), attention(832, 104, 20, 64);
    attention(1200, 1200, 16, 72), attention(1560, 1560, 16, 72), attention(16384, 16384, 16, 72);
}
