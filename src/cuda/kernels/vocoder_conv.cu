// The products of the vocoder for any GPU: see vocoder_conv.cuh.
#include "vocoder_conv.cuh"

// Tiles from many positions to few. The host knows their shapes and shared memory by name (src/cuda/vocoder/tiles.rs).
#define VOCODER_CONV(NAME, ROWS, COLUMNS, WARPS_M, WARPS_N, GROUP, STAGES, RESIDENT)                               \
    extern "C" __global__ void __launch_bounds__(WARPS_M* WARPS_N * 32, RESIDENT)                                   \
        vocoder_conv_f16_##NAME(VocoderConvArgs args) {                                                             \
        vocoder::convolve<ROWS, COLUMNS, WARPS_M, WARPS_N, GROUP, STAGES, vocoder::F16>(args);                      \
    }                                                                                                               \
    extern "C" __global__ void __launch_bounds__(WARPS_M* WARPS_N * 32, RESIDENT)                                   \
        vocoder_conv_tf32_##NAME(VocoderConvArgs args) {                                                            \
        vocoder::convolve<ROWS, COLUMNS, WARPS_M, WARPS_N, GROUP, STAGES, vocoder::Tf32>(args);                     \
    }                                                                                                               \
    extern "C" __global__ void __launch_bounds__(WARPS_M* WARPS_N * 32) vocoder_conv_f32_##NAME(VocoderConvArgs args) { \
        vocoder::convolve<ROWS, COLUMNS, WARPS_M, WARPS_N, GROUP, STAGES, vocoder::F32>(args);                      \
    }
VOCODER_CONV(128x96, 128, 96, 4, 2, 1, 3, 2)
VOCODER_CONV(64x96, 64, 96, 2, 2, 1, 3, 3)
VOCODER_CONV(64x48, 64, 48, 2, 2, 1, 4, 3)
VOCODER_CONV(32x48, 32, 48, 2, 2, 2, 3, 3)
VOCODER_CONV(16x32, 16, 32, 1, 4, 4, 3, 3)
