// What the kernels of the towers share. Their rows are many (patches of a picture, tokens of a clip), so weights are
// read once for 64 or 128 of them.
#pragma once

#include "common.cuh"

// `gelu` of torch: with the error function, and its approximation by tanh.
__device__ __forceinline__ float gelu_erf(float x) { return 0.5f * x * (1.f + erff(x * 0.70710678118654752440f)); }
__device__ __forceinline__ float gelu_tanh(float x) {
    const float inner = 0.79788456080286535588f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.f + tanhf(inner));
}

// Eight pieces of 16 bytes to a row of 64 bf16, shuffled so that neither copies nor `ldmatrix` meet a bank twice.
__device__ __forceinline__ uint32_t shuffled(int row, int piece) { return row * 128 + ((piece ^ (row & 7)) << 4); }

// 16 bytes to shared memory, or zeros.
__device__ __forceinline__ void tower_copy(uint32_t to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0));
}
__device__ __forceinline__ void tower_commit() { asm volatile("cp.async.commit_group;"); }
template <int LEFT>
__device__ __forceinline__ void tower_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT));
}

// Four 8 x 8 matrices of bf16 from shared memory; lanes 8i to 8i + 7 give the rows of matrix i.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}
__device__ __forceinline__ void load_transposed(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}
