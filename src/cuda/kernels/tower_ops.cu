// What a tower does beside products and attention. Threads advance in strides of the grid unless a kernel says otherwise.

#include "tower.cuh"

#define EACH(I, COUNT)                                                                             \
    for (size_t I = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x, count_ = (COUNT); \
         I < count_; I += static_cast<size_t>(gridDim.x) * blockDim.x)

// Layer norm of rows of f32, a warp each. Grid: (rows / 8 rounded up).
template <typename T>
__device__ __forceinline__ void tower_norm(const float* x, const T* gain, const T* bias, T* y, int rows, int width, float eps) {
    wait_for_previous();
    let_next_start();
    const int lane = threadIdx.x % WARP, row = blockIdx.x * 8 + threadIdx.x / WARP;
    if (row >= rows) return;
    x += static_cast<size_t>(row) * width;
    y += static_cast<size_t>(row) * width;
    float sum = 0.f, squares = 0.f;
    for (int i = lane; i < width; i += WARP) sum += x[i];
    const float mean = warp_sum(sum) / static_cast<float>(width);
    for (int i = lane; i < width; i += WARP) squares = __fmaf_rn(x[i] - mean, x[i] - mean, squares);
    const float scale = rsqrtf(warp_sum(squares) / static_cast<float>(width) + eps);
    for (int i = lane; i < width; i += WARP) {
        y[i] = from_float<T>(__fmaf_rn((x[i] - mean) * scale, to_float(gain[i]), to_float(bias[i])));
    }
}

// Rows of f32 to T.
template <typename T>
__device__ __forceinline__ void tower_take(const float* x, T* y, int count) {
    EACH(i, count) y[i] = from_float<T>(x[i]);
}

// ---- sound -------------------------------------------------------------------------------------------------------------

// A window [bins, frames] to chunks [chunks, bins, wide] of `step` frames each, with zeros behind the last of them.
template <typename T>
__device__ __forceinline__ void tower_chunks(const float* x, T* y, int chunks, int bins, int frames, int step, int wide) {
    EACH(i, static_cast<size_t>(chunks) * bins * wide) {
        const int at = i % wide, bin = i / wide % bins, frame = i / wide / bins * step + at;
        y[i] = from_float<T>(at < step && frame < frames ? x[static_cast<size_t>(bin) * frames + frame] : 0.f);
    }
}

// What a convolution of 3 x 3 with stride 2, padded by one, sees: images [n, height, width, channels] to rows
// [n * rows * columns, inputs] of the nine taps, channel after channel, with zeros up to `inputs`.
template <typename T>
__device__ __forceinline__ void tower_taps(const T* x, T* y, int n, int height, int width, int channels, int inputs) {
    const int rows = (height + 1) / 2, columns = (width + 1) / 2;
    EACH(i, static_cast<size_t>(n) * rows * columns * inputs) {
        const int input = i % inputs, tap = input / channels, channel = input % channels;
        const size_t place = i / inputs;
        const int column = place % columns, row = place / columns % rows, image = place / columns / rows;
        const int down = 2 * row - 1 + tap / 3, right = 2 * column - 1 + tap % 3;
        const bool there = tap < 9 && down >= 0 && down < height && right >= 0 && right < width;
        y[i] = there ? x[((static_cast<size_t>(image) * height + down) * width + right) * channels + channel] : from_float<T>(0.f);
    }
}

// The same eight numbers at a time: `channels` is a multiple of 8 and `inputs` nine times as many.
template <typename T>
__device__ __forceinline__ void tower_taps8(const T* x, T* y, int n, int height, int width, int channels) {
    constexpr int WORDS = 8 * sizeof(T) / 16;
    const int rows = (height + 1) / 2, columns = (width + 1) / 2, eights = channels / 8;
    EACH(i, static_cast<size_t>(n) * rows * columns * 9 * eights) {
        const int eight = i % eights, tap = i / eights % 9;
        const size_t place = i / eights / 9;
        const int column = place % columns, row = place / columns % rows, image = place / columns / rows;
        const int down = 2 * row - 1 + tap / 3, right = 2 * column - 1 + tap % 3;
        const bool there = down >= 0 && down < height && right >= 0 && right < width;
        const uint4* from = reinterpret_cast<const uint4*>(x + ((static_cast<size_t>(image) * height + down) * width + right) * channels + eight * 8);
        uint4* to = reinterpret_cast<uint4*>(y + i * 8);
#pragma unroll
        for (int word = 0; word < WORDS; ++word) to[word] = there ? from[word] : make_uint4(0, 0, 0, 0);
    }
}

// Convolved chunks [chunks, bins, time, channels] to rows [tokens, channels * bins] of their tokens, `time` to a chunk.
template <typename T>
__device__ __forceinline__ void tower_flatten(const T* x, T* y, int tokens, int bins, int time, int channels) {
    EACH(i, static_cast<size_t>(tokens) * channels * bins) {
        const int bin = i % bins, channel = i / bins % channels, token = i / bins / channels;
        y[i] = x[((static_cast<size_t>(token / time) * bins + bin) * time + token % time) * channels + channel];
    }
}

// x[token] = the position of its place in the chunk.
extern "C" __global__ void tower_places(const float* positions, float* x, int tokens, int time, int width) {
    EACH(i, static_cast<size_t>(tokens) * width) {
        x[i] = positions[static_cast<size_t>(i / width % time) * width + i % width];
    }
}

// ---- pictures ----------------------------------------------------------------------------------------------------------

// Where a row or column of patches lies in the table of positions.
struct TowerSide {
    int below;
    int above;
    float near; // the weight of `below`
    float far;
};

// Row and column of a patch: they come in merge blocks.
__device__ __forceinline__ int2 place_of(int patch, int columns, int merge) {
    const int unit = merge * merge, block = patch / unit, inside = patch % unit, across = columns / merge;
    return make_int2(block / across * merge + inside / merge, block % across * merge + inside % merge);
}

// What patches are cut from.
struct TowerPixels {
    int before;  // patches of the first row of blocks that are not asked for
    int patches;
    int columns; // patches from left to right
    int height;  // pixels of each frame from top to bottom
    int frames;  // that there are; the last one stands for those that are missing of `deep`
    int deep;    // frames of a row of numbers
    int side;    // pixels of a patch's side
    int merge;   // patches of a block's side
};

// Pixels to patches, rows [patches, 3, deep, side, side]. `x`: a normalised value for each value of a pixel, [3, 256] of
// f32, then [frames, height, columns * side, 3] bytes.
template <typename T>
__device__ __forceinline__ void tower_pixels(const float* x, T* y, TowerPixels of) {
    const unsigned char* pixels = reinterpret_cast<const unsigned char*>(x + 3 * 256);
    const int width = of.columns * of.side;
    EACH(i, static_cast<size_t>(of.patches) * 3 * of.deep * of.side * of.side) {
        const int right = i % of.side, down = i / of.side % of.side, frame = i / of.side / of.side % of.deep;
        const int channel = i / of.side / of.side / of.deep % 3, patch = i / of.side / of.side / of.deep / 3;
        const int2 place = place_of(of.before + patch, of.columns, of.merge);
        const size_t line = static_cast<size_t>(min(frame, of.frames - 1)) * of.height + place.x * of.side + down;
        y[i] = from_float<T>(x[channel * 256 + pixels[(line * width + place.y * of.side + right) * 3 + channel]]);
    }
}

// x[patch] = the learned positions between which it lies. `sides`: those of all rows, then of all columns.
template <typename T>
__device__ __forceinline__ void tower_corners(const T* table, const TowerSide* sides, float* x, int patches, int rows, int columns, int merge, int side, int width) {
    EACH(i, static_cast<size_t>(patches) * width) {
        const int2 place = place_of(i / width, columns, merge);
        const TowerSide down = sides[place.x], right = sides[rows + place.y];
        const auto at = [&](int row, int column) { return to_float(table[(static_cast<size_t>(row) * side + column) * width + i % width]); };
        float sum = __fmul_rn(at(down.below, right.below), __fmul_rn(down.near, right.near));
        sum = __fadd_rn(sum, __fmul_rn(at(down.below, right.above), __fmul_rn(down.near, right.far)));
        sum = __fadd_rn(sum, __fmul_rn(at(down.above, right.below), __fmul_rn(down.far, right.near)));
        x[i] = __fadd_rn(sum, __fmul_rn(at(down.above, right.above), __fmul_rn(down.far, right.far)));
    }
}

// Cosine and sine of each patch and pair: the first half of the pairs turns with the row, the second with the column.
extern "C" __global__ void tower_turns(const float* frequencies, float2* turns, int patches, int columns, int merge, int half) {
    EACH(i, static_cast<size_t>(patches) * half) {
        const int2 place = place_of(i / half, columns, merge);
        const int pair = i % half;
        const float angle = static_cast<float>(pair < half / 2 ? place.x : place.y) * frequencies[pair];
        turns[i] = make_float2(cosf(angle), sinf(angle));
    }
}

// Turns queries and keys of [n, 3, heads, 2 * half] in place: pair j is the numbers j and half + j.
template <typename T>
__device__ __forceinline__ void tower_rotate(T* qkv, const float2* turns, int n, int heads, int half) {
    wait_for_previous();
    let_next_start();
    EACH(i, static_cast<size_t>(n) * 2 * heads * half) {
        const int pair = i % half, head = i / half % (2 * heads);
        const size_t row = i / half / (2 * heads);
        T* at = qkv + (row * 3 * heads + head) * 2 * half + pair;
        const float2 turn = turns[row * half + pair];
        const float a = to_float(at[0]), b = to_float(at[half]);
        at[0] = from_float<T>(__fsub_rn(__fmul_rn(a, turn.x), __fmul_rn(b, turn.y)));
        at[half] = from_float<T>(__fadd_rn(__fmul_rn(b, turn.x), __fmul_rn(a, turn.y)));
    }
}

#define BOTH(T, NAME)                                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(256) tower_norm_##NAME(const float* x, const T* gain, const T* bias, T* y, int rows, int width, float eps) { \
        tower_norm(x, gain, bias, y, rows, width, eps);                                                                                                 \
    }                                                                                                                                                   \
    extern "C" __global__ void tower_take_##NAME(const float* x, T* y, int count) { tower_take(x, y, count); }                                          \
    extern "C" __global__ void tower_pixels_##NAME(const float* x, T* y, TowerPixels of) { tower_pixels(x, y, of); }                                    \
    extern "C" __global__ void tower_chunks_##NAME(const float* x, T* y, int chunks, int bins, int frames, int step, int wide) {                        \
        tower_chunks(x, y, chunks, bins, frames, step, wide);                                                                                           \
    }                                                                                                                                                   \
    extern "C" __global__ void tower_taps_##NAME(const T* x, T* y, int n, int height, int width, int channels, int inputs) {                            \
        tower_taps(x, y, n, height, width, channels, inputs);                                                                                           \
    }                                                                                                                                                   \
    extern "C" __global__ void tower_taps8_##NAME(const T* x, T* y, int n, int height, int width, int channels) {                                       \
        tower_taps8(x, y, n, height, width, channels);                                                                                                  \
    }                                                                                                                                                   \
    extern "C" __global__ void tower_flatten_##NAME(const T* x, T* y, int tokens, int bins, int time, int channels) {                                   \
        tower_flatten(x, y, tokens, bins, time, channels);                                                                                              \
    }                                                                                                                                                   \
    extern "C" __global__ void tower_corners_##NAME(const T* table, const TowerSide* sides, float* x, int patches, int rows, int columns, int merge, int side, int width) { \
        tower_corners(table, sides, x, patches, rows, columns, merge, side, width);                                                                     \
    }                                                                                                                                                   \
    extern "C" __global__ void tower_rotate_##NAME(T* qkv, const float2* turns, int n, int heads, int half) { tower_rotate(qkv, turns, n, heads, half); }
BOTH(float, f32)
BOTH(bf16, bf16)
