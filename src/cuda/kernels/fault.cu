// Breaks a context on purpose, for drills: every later call fails until the process ends.

#include <cstdint>

// Writes to an unmapped address.
extern "C" __global__ void illegal_access(uint64_t address) { *reinterpret_cast<volatile uint32_t*>(address) = 1; }
