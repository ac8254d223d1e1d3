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

// Whether the phase of this parity has ended; waits a little for it.
__device__ __forceinline__ bool barrier_passed(uint32_t barrier, uint32_t parity) {
    uint32_t passed;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(passed)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return passed;
}

// Waits for the end of a phase. A wait for what never comes would keep the device for ever; it ends with an error.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
    for (int polls = 0; polls < 1 << 24; ++polls) {
        if (barrier_passed(barrier, parity)) return;
    }
    __trap();
}

// Queues the copy of a box of a matrix, whose first element is (`column`, `row`); what lies outside becomes zeros.
__device__ __forceinline__ void copy_box(uint32_t to, const TensorMap& map, int column, int row, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(&map), "r"(column), "r"(row), "r"(barrier)
                 : "memory");
}

// A thread of these four warps keeps so many registers, or takes so many, which others have left.
template <int N>
__device__ __forceinline__ void keep_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

// Rows of 64 bf16 in shared memory, shuffled as tensor maps of 128 bytes do: the operand that begins at `at`.
__device__ __forceinline__ uint64_t operand(uint32_t at) {
    return static_cast<uint64_t>((at & 0x3FFFF) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// The operand that begins `further` bytes behind `at`, inside of 128 bytes.
__device__ __forceinline__ uint64_t operand(uint32_t at, uint32_t further) {
    const uint32_t low = ((at & 0x3FFFF) >> 4 | 1u << 16) + further / 16;
    uint64_t both;
    asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(low), "r"(1u << 30 | 64u));
    return both;
}

// Pieces of 16 bytes, eight to a block of 128 bytes, unshuffled: `lead` and `stride` bytes from block to block.
__device__ __forceinline__ uint64_t operand_of_blocks(uint32_t at, uint32_t lead, uint32_t stride) {
    return static_cast<uint64_t>((at & 0x3FFFF) >> 4) | static_cast<uint64_t>(lead >> 4) << 16 | static_cast<uint64_t>(stride >> 4) << 32;
}

// Puts this thread's loads and stores of shared memory ahead of products that read it, and of copies of tensor maps.
__device__ __forceinline__ void fence_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

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

// The same, or d = a b where it `begins`.
template <int N>
__device__ __forceinline__ void wgmma_from(float (&d)[N / 8][4], uint64_t a, uint64_t b, bool begins);

// The same of F16.
template <int N>
__device__ __forceinline__ void wgmma_half(float (&d)[N / 8][4], uint64_t a, uint64_t b);

// The same with `a` in registers, as `mma` has it: 16 rows to a warp. ACROSS: a row of `b` in memory is an input, not an
// output.
template <int N, int ACROSS>
__device__ __forceinline__ void wgmma_rows(float (&d)[N / 8][4], const uint32_t (&a)[4], uint64_t b);

// The sums of a thread, of which there are N / 2: their names in the instruction, and the operands.
#define WGMMA_FOUR(I) "+f"(d[I][0]), "+f"(d[I][1]), "+f"(d[I][2]), "+f"(d[I][3])
#define WGMMA_SUMS(I) WGMMA_FOUR(I), WGMMA_FOUR(I + 1), WGMMA_FOUR(I + 2), WGMMA_FOUR(I + 3)
#define WGMMA_NAMES_4 "%0,%1,%2,%3"
#define WGMMA_SUMS_4 WGMMA_FOUR(0)
#define WGMMA_NAMES_8 WGMMA_NAMES_4 ",%4,%5,%6,%7"
#define WGMMA_SUMS_8 WGMMA_SUMS_4, WGMMA_FOUR(1)
#define WGMMA_NAMES_12 WGMMA_NAMES_8 ",%8,%9,%10,%11"
#define WGMMA_SUMS_12 WGMMA_SUMS_8, WGMMA_FOUR(2)
#define WGMMA_NAMES_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define WGMMA_SUMS_16 WGMMA_SUMS(0)
#define WGMMA_NAMES_32 WGMMA_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WGMMA_SUMS_32 WGMMA_SUMS_16, WGMMA_SUMS(4)
#define WGMMA_NAMES_24 WGMMA_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define WGMMA_SUMS_24 WGMMA_SUMS_16, WGMMA_FOUR(4), WGMMA_FOUR(5)
#define WGMMA_NAMES_48 WGMMA_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define WGMMA_SUMS_48 WGMMA_SUMS_32, WGMMA_SUMS(8)
#define WGMMA_NAMES_64 WGMMA_NAMES_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WGMMA_SUMS_64 WGMMA_SUMS_48, WGMMA_SUMS(12)
#define WGMMA_NAMES_80 WGMMA_NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define WGMMA_SUMS_80 WGMMA_SUMS_64, WGMMA_SUMS(16)
#define WGMMA_NAMES_128 \
    WGMMA_NAMES_80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,"  \
                   "%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define WGMMA_SUMS_128 WGMMA_SUMS_80, WGMMA_SUMS(20), WGMMA_SUMS(24), WGMMA_SUMS(28)

// SUMS: their number; further names count from there.
#define WGMMA_OF(WHICH, N, TYPE, SUMS, A, B)                                                                                   \
    template <>                                                                                                                \
    __device__ __forceinline__ void WHICH<N>(float (&d)[N / 8][4], uint64_t a, uint64_t b) {                                   \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" \
                     WGMMA_NAMES_##SUMS "}, %" #A ", %" #B ", p, 1, 1, 0, 0; }"                                                \
                     : WGMMA_SUMS_##SUMS                                                                                       \
                     : "l"(a), "l"(b));                                                                                        \
    }
WGMMA_OF(wgmma, 32, "bf16", 16, 16, 17)
WGMMA_OF(wgmma, 64, "bf16", 32, 32, 33)
WGMMA_OF(wgmma, 128, "bf16", 64, 64, 65)
WGMMA_OF(wgmma, 256, "bf16", 128, 128, 129)
WGMMA_OF(wgmma_half, 96, "f16", 48, 48, 49)
#define WGMMA_FROM(N, SUMS, A, B, ADDS)                                                                                        \
    template <>                                                                                                                \
    __device__ __forceinline__ void wgmma_from<N>(float (&d)[N / 8][4], uint64_t a, uint64_t b, bool begins) {                 \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #ADDS ", 0; wgmma.mma_async.sync.aligned.m64n" #N                      \
                     "k16.f32.bf16.bf16 {" WGMMA_NAMES_##SUMS "}, %" #A ", %" #B ", p, 1, 1, 0, 0; }"                          \
                     : WGMMA_SUMS_##SUMS                                                                                       \
                     : "l"(a), "l"(b), "r"(begins ? 0 : 1));                                                                   \
    }
WGMMA_FROM(8, 4, 4, 5, 6)
WGMMA_FROM(16, 8, 8, 9, 10)
WGMMA_FROM(24, 12, 12, 13, 14)
WGMMA_FROM(32, 16, 16, 17, 18)
WGMMA_FROM(48, 24, 24, 25, 26)
WGMMA_FROM(64, 32, 32, 33, 34)
#define WGMMA_ROWS_OF(N, ACROSS, SUMS, A0, A1, A2, A3, B)                                                                      \
    template <>                                                                                                                \
    __device__ __forceinline__ void wgmma_rows<N, ACROSS>(float (&d)[N / 8][4], const uint32_t (&a)[4], uint64_t b) {          \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {"         \
                     WGMMA_NAMES_##SUMS "}, {%" #A0 ",%" #A1 ",%" #A2 ",%" #A3 "}, %" #B ", p, 1, 1, " #ACROSS "; }"           \
                     : WGMMA_SUMS_##SUMS                                                                                       \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                    \
    }
WGMMA_ROWS_OF(32, 0, 16, 16, 17, 18, 19, 20)
WGMMA_ROWS_OF(64, 0, 32, 32, 33, 34, 35, 36)
WGMMA_ROWS_OF(96, 0, 48, 48, 49, 50, 51, 52)
WGMMA_ROWS_OF(128, 0, 64, 64, 65, 66, 67, 68)
WGMMA_ROWS_OF(160, 0, 80, 80, 81, 82, 83, 84)
WGMMA_ROWS_OF(64, 1, 32, 32, 33, 34, 35, 36)
WGMMA_ROWS_OF(8, 1, 4, 4, 5, 6, 7, 8)
#undef WGMMA_OF
#undef WGMMA_FROM
#undef WGMMA_ROWS_OF
#undef WGMMA_FOUR
#undef WGMMA_SUMS
#undef WGMMA_NAMES_4
#undef WGMMA_SUMS_4
#undef WGMMA_NAMES_8
#undef WGMMA_SUMS_8
#undef WGMMA_NAMES_12
#undef WGMMA_SUMS_12
#undef WGMMA_NAMES_24
#undef WGMMA_SUMS_24
#undef WGMMA_NAMES_16
#undef WGMMA_SUMS_16
#undef WGMMA_NAMES_32
#undef WGMMA_SUMS_32
#undef WGMMA_NAMES_48
#undef WGMMA_SUMS_48
#undef WGMMA_NAMES_64
#undef WGMMA_SUMS_64
#undef WGMMA_NAMES_80
#undef WGMMA_SUMS_80
#undef WGMMA_NAMES_128
#undef WGMMA_SUMS_128
