// Tiles on the tensor cores of Hopper: copies by the tensor map, barriers in shared memory, products by four warps. Only
// for code of compute capability 9.0a.
#pragma once

#include "common.cuh"

// A tensor map, as the driver makes it.
struct alignas(128) TensorMap {
    unsigned char bytes[128];
};

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Behind the initialization of barriers, by the thread that did it.
__device__ __forceinline__ void show_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}

// One arrival, which expects so many bytes.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// One arrival.
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Waits for the end of a phase. A wait for what never comes would keep the device for ever; it ends with an error.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
    for (int polls = 0; polls < 1 << 24; ++polls) {
        uint32_t over;
        asm volatile(
            "{\n"
            ".reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n"
            "}"
            : "=r"(over)
            : "r"(barrier), "r"(parity)
            : "memory");
        if (over) return;
    }
    __trap();
}

// Queues the copy of a box of a matrix, whose first element is (`column`, `row`); what lies outside becomes zeros.
__device__ __forceinline__ void copy_box(uint32_t to, const TensorMap& map, int column, int row, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(&map), "r"(column), "r"(row), "r"(barrier)
                 : "memory");
}

// Rows of 64 bf16 in shared memory, shuffled as tensor maps of 128 bytes do: the operand that begins at `at`.
__device__ __forceinline__ uint64_t operand(uint32_t at) {
    return static_cast<uint64_t>((at & 0x3FFFF) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// Pieces of 16 bytes, eight to a block of 128 bytes, unshuffled: `lead` and `stride` bytes from block to block.
__device__ __forceinline__ uint64_t operand_of_blocks(uint32_t at, uint32_t lead, uint32_t stride) {
    return static_cast<uint64_t>((at & 0x3FFFF) >> 4) | static_cast<uint64_t>(lead >> 4) << 16 | static_cast<uint64_t>(stride >> 4) << 32;
}

// Makes what this thread has written to shared memory visible to the products and to the copies of tensor maps.
__device__ __forceinline__ void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// d += a b of 64 x 16 by 16 x N, by four warps. Sums lie as those of `mma`: d[n][i] is in column 8 n + 2 t + i % 2 and
// row g + 8 (i / 2) of the 16 of the warp. The bits are those of as many `mma`.
template <int N>
__device__ __forceinline__ void wgmma(float (&d)[N / 8][4], uint64_t a, uint64_t b);

#define WGMMA_FOUR(I) "+f"(d[I][0]), "+f"(d[I][1]), "+f"(d[I][2]), "+f"(d[I][3])
#define WGMMA_SUMS(I) WGMMA_FOUR(I), WGMMA_FOUR(I + 1), WGMMA_FOUR(I + 2), WGMMA_FOUR(I + 3)

template <>
__device__ __forceinline__ void wgmma<32>(float (&d)[4][4], uint64_t a, uint64_t b) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
        "}, %16, %17, p, 1, 1, 0, 0; }"
        : WGMMA_SUMS(0)
        : "l"(a), "l"(b));
}
template <>
__device__ __forceinline__ void wgmma<64>(float (&d)[8][4], uint64_t a, uint64_t b) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
        "}, %32, %33, p, 1, 1, 0, 0; }"
        : WGMMA_SUMS(0), WGMMA_SUMS(4)
        : "l"(a), "l"(b));
}
template <>
__device__ __forceinline__ void wgmma<128>(float (&d)[16][4], uint64_t a, uint64_t b) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
        "}, %64, %65, p, 1, 1, 0, 0; }"
        : WGMMA_SUMS(0), WGMMA_SUMS(4), WGMMA_SUMS(8), WGMMA_SUMS(12)
        : "l"(a), "l"(b));
}
template <>
__device__ __forceinline__ void wgmma<256>(float (&d)[32][4], uint64_t a, uint64_t b) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
        "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
        "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
        "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
        "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
        "}, %128, %129, p, 1, 1, 0, 0; }"
        : WGMMA_SUMS(0), WGMMA_SUMS(4), WGMMA_SUMS(8), WGMMA_SUMS(12), WGMMA_SUMS(16), WGMMA_SUMS(20), WGMMA_SUMS(24), WGMMA_SUMS(28)
        : "l"(a), "l"(b));
}

// The same of F16.
template <int N>
__device__ __forceinline__ void wgmma_half(float (&d)[N / 8][4], uint64_t a, uint64_t b);

template <>
__device__ __forceinline__ void wgmma_half<96>(float (&d)[12][4], uint64_t a, uint64_t b) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
        "}, %48, %49, p, 1, 1, 0, 0; }"
        : WGMMA_SUMS(0), WGMMA_SUMS(4), WGMMA_SUMS(8)
        : "l"(a), "l"(b));
}

// The same with `a` in registers, as `mma` has it: 16 rows to a warp. ACROSS: a row of `b` in memory is an input, not an
// output.
template <int N, int ACROSS>
__device__ __forceinline__ void wgmma_rows(float (&d)[N / 8][4], const uint32_t (&a)[4], uint64_t b);

template <>
__device__ __forceinline__ void wgmma_rows<32, 0>(float (&d)[4][4], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
        "}, {%16,%17,%18,%19}, %20, p, 1, 1, 0; }"
        : WGMMA_SUMS(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
template <>
__device__ __forceinline__ void wgmma_rows<64, 0>(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
        "}, {%32,%33,%34,%35}, %36, p, 1, 1, 0; }"
        : WGMMA_SUMS(0), WGMMA_SUMS(4)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
template <>
__device__ __forceinline__ void wgmma_rows<96, 0>(float (&d)[12][4], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
        "}, {%48,%49,%50,%51}, %52, p, 1, 1, 0; }"
        : WGMMA_SUMS(0), WGMMA_SUMS(4), WGMMA_SUMS(8)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
template <>
__device__ __forceinline__ void wgmma_rows<128, 0>(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
        "}, {%64,%65,%66,%67}, %68, p, 1, 1, 0; }"
        : WGMMA_SUMS(0), WGMMA_SUMS(4), WGMMA_SUMS(8), WGMMA_SUMS(12)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
template <>
__device__ __forceinline__ void wgmma_rows<160, 0>(float (&d)[20][4], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
        "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
        "}, {%80,%81,%82,%83}, %84, p, 1, 1, 0; }"
        : WGMMA_SUMS(0), WGMMA_SUMS(4), WGMMA_SUMS(8), WGMMA_SUMS(12), WGMMA_SUMS(16)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
template <>
__device__ __forceinline__ void wgmma_rows<64, 1>(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
        "}, {%32,%33,%34,%35}, %36, p, 1, 1, 1; }"
        : WGMMA_SUMS(0), WGMMA_SUMS(4)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
template <>
__device__ __forceinline__ void wgmma_rows<8, 1>(float (&d)[1][4], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3"
        "}, {%4,%5,%6,%7}, %8, p, 1, 1, 1; }"
        : WGMMA_FOUR(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef WGMMA_SUMS
#undef WGMMA_FOUR
