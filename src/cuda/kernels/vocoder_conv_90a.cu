// The products of the vocoder in F16 on Hopper, in tiles for many positions: see vocoder_conv.cuh. The bits are those of the
// other tiles.
//
// Compiled for compute capability 9.0a; on other devices these kernels must not be called.
#include "vocoder_conv.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define VOCODER_BODY(ROWS, COLUMNS, STAGES) vocoder::convolve<ROWS, COLUMNS, 8, 1, 1, STAGES, vocoder::F16, true>(args);
#else
#define VOCODER_BODY(ROWS, COLUMNS, STAGES) __trap();
#endif
// The host knows their shapes and shared memory by name (src/cuda/vocoder/tiles.rs).
#define VOCODER_CONV_HOPPER(NAME, ROWS, COLUMNS, STAGES, RESIDENT)                                                      \
    extern "C" __global__ void __launch_bounds__(256, RESIDENT) vocoder_conv_hopper_##NAME(VocoderConvArgs args) { \
        VOCODER_BODY(ROWS, COLUMNS, STAGES)                                                                             \
    }
VOCODER_CONV_HOPPER(128x96, 128, 96, 3, 2)
