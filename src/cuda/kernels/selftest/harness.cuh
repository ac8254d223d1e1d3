// What the self-tests share: errors of the driver, memory, random weights, graphs and times.
#pragma once

#include "common.cuh"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CK(x)                                                                      \
    do {                                                                           \
        cudaError_t e_ = (x);                                                      \
        if (e_ != cudaSuccess) {                                                   \
            printf("FAIL %s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e_)); \
            exit(1);                                                               \
        }                                                                          \
    } while (0)

[[maybe_unused]] static cudaStream_t st;

// Zeros on the device.
template <typename T>
T* device(size_t n) {
    T* p;
    CK(cudaMalloc(&p, n * sizeof(T)));
    CK(cudaMemset(p, 0, n * sizeof(T)));
    return p;
}
template <typename T>
T* up(const std::vector<T>& v) {
    T* p = device<T>(v.size());
    CK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}
template <typename T>
std::vector<T> down(const T* p, size_t n) {
    std::vector<T> v(n);
    CK(cudaStreamSynchronize(st));
    CK(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
}

__global__ void fill(bf16* p, size_t n, uint32_t seed, float bound, float plus) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint64_t z = i * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull + 1;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z ^= z >> 27;
        p[i] = __float2bfloat16_rn(plus + bound * ((float)(z >> 40) * (1.f / 8388608.f) - 1.f));
    }
}
// Numbers between plus - bound and plus + bound, others with each call.
inline bf16* random_of(size_t n, float bound, float plus = 0.f) {
    static uint32_t seed = 1;
    bf16* p = device<bf16>(n);
    fill<<<1024, 256, 0, st>>>(p, n, seed++, bound, plus);
    CK(cudaGetLastError());
    return p;
}

template <class F>
cudaGraphExec_t captured(F queue) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CK(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal));
    queue();
    CK(cudaStreamEndCapture(st, &graph));
    CK(cudaGraphInstantiate(&exec, graph, 0));
    CK(cudaGraphDestroy(graph));
    return exec;
}
// The median of the microseconds that what is queued takes, of so many times behind two more.
template <class F>
float median_of(int times, F queue) {
    cudaEvent_t a, b;
    CK(cudaEventCreate(&a));
    CK(cudaEventCreate(&b));
    std::vector<float> all;
    for (int i = 0; i < times + 2; ++i) {
        CK(cudaEventRecord(a, st));
        queue();
        CK(cudaEventRecord(b, st));
        CK(cudaEventSynchronize(b));
        float ms;
        CK(cudaEventElapsedTime(&ms, a, b));
        if (i > 1) all.push_back(ms * 1000);
    }
    CK(cudaEventDestroy(a));
    CK(cudaEventDestroy(b));
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
}

// Launches a kernel that may start before the one ahead has ended, with so many bytes of shared memory.
template <typename... P, typename... A>
void launch_overlapping(void (*kernel)(P...), dim3 grid, int threads, int shared, A... args) {
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = threads;
    c.dynamicSmemBytes = shared;
    c.stream = st;
    cudaLaunchAttribute at;
    at.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    at.val.programmaticStreamSerializationAllowed = 1;
    c.attrs = &at;
    c.numAttrs = 1;
    if (shared > 48 * 1024) CK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    CK(cudaLaunchKernelEx(&c, kernel, static_cast<P>(args)...));
}
// Launches a kernel whose blocks wait for each other, with so many bytes of shared memory.
template <typename ARGS>
void launch_together(const void* kernel, int blocks, int threads, int shared, ARGS& args) {
    cudaLaunchConfig_t c = {};
    c.gridDim = blocks;
    c.blockDim = threads;
    c.dynamicSmemBytes = shared;
    c.stream = st;
    cudaLaunchAttribute at;
    at.id = cudaLaunchAttributeCooperative;
    at.val.cooperative = 1;
    c.attrs = &at;
    c.numAttrs = 1;
    CK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    CK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
    void* all[] = {&args};
    CK(cudaLaunchKernelExC(&c, kernel, all));
}
