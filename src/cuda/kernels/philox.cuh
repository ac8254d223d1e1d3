// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), word for word what
// src/model/sampling/philox.rs computes: a number is a pure function of key and counter.
#pragma once

#include <cstdint>

__device__ __forceinline__ uint4 philox_block(uint4 counter, uint2 key) {
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        if (round > 0) {
            key.x += 0x9E3779B9u;
            key.y += 0xBB67AE85u;
        }
        const uint32_t a_low = counter.x * 0xD2511F53u, a_high = __umulhi(counter.x, 0xD2511F53u);
        const uint32_t b_low = counter.z * 0xCD9E8D57u, b_high = __umulhi(counter.z, 0xCD9E8D57u);
        counter = make_uint4(b_high ^ counter.y ^ key.x, b_low, a_high ^ counter.w ^ key.y, a_low);
    }
    return counter;
}
