// The products of 9 to 32 rows against those of larger tiles, and of 8 against those of fewer: every bit, and the time of a
// layer of a talker and of a predictor, attention left out.
//   nvcc -O3 --std=c++17 -gencode arch=compute_90a,code=sm_90a -I kernels -o few_selftest kernels/selftest/few_selftest.cu
//     && ./few_selftest
#include "linear.cu"
#include "few_linear.cu"
#include "harness.cuh"
#include <cstring>

struct Sizes {
    const char* name;
    int hidden, qkv, mixed, inner, layers;
};
struct Layer {
    bf16 *qkv, *output, *gate_up, *down;
};

template <typename... P, typename... A>
static void launch(void (*k)(P...), dim3 grid, size_t shared, int cluster, bool overlap, A... args) {
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = 256;
    c.stream = st;
    c.dynamicSmemBytes = shared;
    cudaLaunchAttribute at[2];
    int n = 0;
    if (overlap) at[n].id = cudaLaunchAttributeProgrammaticStreamSerialization, at[n++].val.programmaticStreamSerializationAllowed = 1;
    if (cluster > 1) at[n].id = cudaLaunchAttributeClusterDimension, at[n].val.clusterDim.x = cluster, at[n].val.clusterDim.y = at[n].val.clusterDim.z = 1, ++n;
    c.attrs = at;
    c.numAttrs = n;
    if (shared > 0) CK(cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    CK(cudaLaunchKernelEx(&c, k, static_cast<P>(args)...));
}

static bf16* ready;
// Of a way: outputs of a block in sixteens where there are many outputs, and where there are few; 0: those of linear.cu.
struct Way {
    int wide, narrow;
};
static void product(Way ways, int mode, const bf16* w, const void* x, const bf16* gain, void* y, int rows, int outputs, int inputs) {
    LinearArgs a{w, x, gain, nullptr, y, rows, outputs, inputs, mode == SILU_MUL ? outputs / 2 : outputs, 1e-6f};
    const int way = outputs >= 4096 ? ways.wide : ways.narrow;
#define BY_MODE(S, N, A) (mode == STORE ? S : mode == ADD ? A : N)
#define FEWS(M, N) BY_MODE(linear_few##M##x##N##_store, linear_few##M##x##N##_silu_mul, linear_few##M##x##N##_add)
    if (gain != nullptr && (way != 0 || rows > 8)) {
        launch(rms_norm_bf16, dim3(rows), 0, 1, true, (const float*)x, gain, ready, rows, inputs, 1e-6f);
        a.x = ready, a.gain = nullptr;
    }
    if (way != 0) {
        const auto kernel = rows <= 16 ? FEWS(1, 2) : way == 1 ? FEWS(1, 4) : FEWS(2, 4);
        launch(kernel, dim3(outputs / (rows > 16 ? way * 16 : 16)), 0, 1, true, a);
    } else if (rows <= 8) {
        launch(gain ? BY_MODE(linear_small_norm_store, linear_small_norm_silu_mul, linear_small_norm_add) : BY_MODE(linear_small_store, linear_small_silu_mul, linear_small_add), dim3(outputs / 16), 0, 1, true, a);
    } else if (outputs <= 2048) {
        launch(BY_MODE(linear_parts_store, linear_parts_silu_mul, linear_parts_add), dim3(8, outputs / 64, (rows + 63) / 64), 5 * 128 * 128, 8, true, a);
    } else if (outputs > 4096) {
        launch(BY_MODE(linear_large64_store, linear_large64_silu_mul, linear_large64_add), dim3(outputs / 64, (rows + 63) / 64), 5 * 128 * 128, 1, false, a);
    } else {
        launch(BY_MODE(linear_large32_store, linear_large32_silu_mul, linear_large32_add), dim3(outputs / 32, (rows + 63) / 64), 5 * 96 * 128, 1, false, a);
    }
}

int main() {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    CK(cudaStreamCreate(&st));
    int bad = 0;
    ready = device<bf16>(64 * 2048);
    for (const Sizes s : {Sizes{"talker", 2048, 4096, 2048, 6144, 28}, Sizes{"predictor", 1024, 4096, 2048, 3072, 5}}) {
        std::vector<Layer> layers;
        for (int i = 0; i < s.layers; ++i)
            layers.push_back({random_of((size_t)s.qkv * s.hidden, sqrtf(3.f / s.hidden)), random_of((size_t)s.hidden * s.mixed, sqrtf(3.f / s.mixed)),
                              random_of((size_t)2 * s.inner * s.hidden, sqrtf(3.f / s.hidden)), random_of((size_t)s.hidden * s.inner, sqrtf(3.f / s.inner))});
        const bf16* gain = random_of(s.hidden, 1.f);
        bf16 *qkv = device<bf16>(64 * (size_t)s.qkv), *inner = device<bf16>(64 * (size_t)s.inner);
        float *x = device<float>(64 * (size_t)s.hidden), *x0 = device<float>(64 * (size_t)s.hidden);
        std::vector<float> host(64 * (size_t)s.hidden);
        for (size_t i = 0; i < host.size(); ++i) host[i] = (float)((i * 2654435761u >> 8) % 65536) / 32768.f - 1.f;
        CK(cudaMemcpy(x0, host.data(), host.size() * 4, cudaMemcpyHostToDevice));
        CK(cudaDeviceSynchronize());
        for (int rows : {8, 9, 16, 17, 24, 32}) {
            std::vector<float> want;
            for (const Way way : {Way{0, 0}, Way{1, 0}, Way{2, 0}, Way{0, 1}, Way{0, 2}, Way{1, 1}, Way{2, 1}, Way{2, 2}}) {
                const bool first = way.wide == 0 && way.narrow == 0;
                const cudaGraphExec_t exec = captured([&] {
                    CK(cudaMemcpyAsync(x, x0, host.size() * 4, cudaMemcpyDeviceToDevice, st));
                    for (const Layer& l : layers) {
                        product(way, STORE, l.qkv, x, gain, qkv, rows, s.qkv, s.hidden);
                        product(way, ADD, l.output, qkv, nullptr, x, rows, s.hidden, s.mixed);
                        product(way, SILU_MUL, l.gate_up, x, gain, inner, rows, 2 * s.inner, s.hidden);
                        product(way, ADD, l.down, inner, nullptr, x, rows, s.hidden, s.inner);
                    }
                });
                const float us = median_of(10, [&] { CK(cudaGraphLaunch(exec, st)); }) / s.layers;
                const std::vector<float> got = down(x, (size_t)rows * s.hidden);
                if (first) want = got;
                size_t others = 0;
                for (size_t i = 0; i < got.size(); ++i) others += memcmp(&got[i], &want[i], 4) != 0;
                bad += others > 0;
                printf("%-9s rows %2d wide %d narrow %d: %6.1f us a layer, %zu numbers differ\n", s.name, rows, way.wide, way.narrow, us, others);
                CK(cudaGraphExecDestroy(exec));
            }
        }
    }
    printf("%s\n", bad ? "FAILED" : "ok");
    return bad != 0;
}
