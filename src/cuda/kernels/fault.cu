// What breaks a context on purpose, for drills: every call behind it fails, until the process ends.

#include <cstdint>

// Writes where nothing is.
extern "C" __global__ void illegal_access(uint64_t address) { *reinterpret_cast<volatile uint32_t*>(address) = 1; }
