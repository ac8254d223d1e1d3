// What the vocoder does besides products: the sum of a frame's codebook rows, norms, attention over a window, depthwise
// convolutions and the last one. Everything is computed in f32; `z` is written as operands of products.
#include "vocoder.cuh"

struct VocoderEmbedArgs {
    const unsigned* codes;  // [rows * frames][groups], in range
    const float* table;     // [groups][codebook][channels]
    float* y;               // [rows * frames][channels]; null: not wanted
    void* z;                // as operand; null: not wanted
    unsigned* clipped;      // how many operands were beyond the largest; likewise below
    float scale;
    int groups;
    int codebook;
    int channels;
};

struct VocoderNormArgs {
    const float* x;  // [n][channels]
    const float* weight;
    void* z;
    unsigned* clipped;
    float eps;
    int channels;
};

struct VocoderAttentionArgs {
    const float* qkv;          // [rows * frames][(heads + 2 kv_heads) * width], not turned yet
    void* z;                   // [rows * frames][heads * width]
    unsigned* clipped;
    const float* frequencies;  // [width / 2]
    float* arena;
    const VocoderRow* rows;
    long long slot_floats;
    // Keys of a layer in a slot, [kv_heads][ring][width]; the values follow.
    long long keys;
    int frames;  // of a launch, per row
    int heads;
    int kv_heads;
    int width;
    int window;
    int ring;  // positions; at least window - 1 + frames
    float scale;
};

struct VocoderDepthwiseArgs {
    const float* x;       // [rows][positions][channels]
    const float* weight;  // [taps][channels]
    const float* bias;
    const float* norm_weight;
    const float* norm_bias;
    void* z;
    unsigned* clipped;
    VocoderPast past;
    float eps;
    int rows;
    int positions;
    int channels;
    int taps;
};

struct VocoderLastArgs {
    const void* x;        // operands [rows][positions][channels]
    const float* weight;  // [taps][channels]
    const float* bias;    // [1]
    float* samples;       // [rows][positions], in [-1, 1]
    const unsigned* clipped;
    unsigned* told;  // gets what all kernels of the launch have counted in `clipped`
    VocoderPast past;
    int rows;
    int positions;
    int channels;
    int taps;  // 7
};

static_assert(sizeof(VocoderEmbedArgs) == 56 && sizeof(VocoderNormArgs) == 40 && sizeof(VocoderAttentionArgs) == 96 &&
                  sizeof(VocoderDepthwiseArgs) == 120 && sizeof(VocoderLastArgs) == 104,
              "src/cuda/vocoder/args.rs has the same structs");

namespace vocoder {

template <typename Operand>
__device__ __forceinline__ void embed(const VocoderEmbedArgs& p) {
    wait_for_previous();
    let_next_start();
    int frame = blockIdx.x;
    const unsigned* codes = p.codes + (long long)frame * p.groups;
    for (int c = threadIdx.x; c < p.channels; c += blockDim.x) {
        float sum = 0;
        for (int g = 0; g < p.groups; g++)
            sum += p.table[((long long)g * p.codebook + codes[g]) * p.channels + c];
        sum *= p.scale;
        long long at = (long long)frame * p.channels + c;
        if (p.y) p.y[at] = sum;
        if (p.z) static_cast<typename Operand::Element*>(p.z)[at] = Operand::of(sum, p.clipped);
    }
}

template <typename Operand>
__device__ __forceinline__ void rms_norm(const VocoderNormArgs& p) {
    __shared__ float scratch[8];
    wait_for_previous();
    let_next_start();
    const float* x = p.x + (long long)blockIdx.x * p.channels;
    auto* z = static_cast<typename Operand::Element*>(p.z) + (long long)blockIdx.x * p.channels;
    float squares = 0;
    for (int c = threadIdx.x; c < p.channels; c += 256) squares = fmaf(x[c], x[c], squares);
    float factor = 1.0f / sqrtf(block_sum<256>(squares, scratch) / p.channels + p.eps);
    for (int c = threadIdx.x; c < p.channels; c += 256) z[c] = Operand::of(x[c] * factor * p.weight[c], p.clipped);
}

// One block of 4 warps per row and key head, which fetches the window once; one warp per query.
template <typename Operand>
__device__ __forceinline__ void attend(const VocoderAttentionArgs& p) {
    extern __shared__ __align__(16) float shared[];
    const int b = blockIdx.x / p.kv_heads, head = blockIdx.x % p.kv_heads;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    wait_for_previous();
    let_next_start();
    const VocoderRow row = p.rows[b];
    if (row.slot < 0) return;
    const int half = p.width / 2, line = (p.heads + 2 * p.kv_heads) * p.width;
    float* ring_keys = p.arena + row.slot * p.slot_floats + p.keys + (long long)head * p.ring * p.width;
    float* ring_values = ring_keys + (long long)p.kv_heads * p.ring * p.width;
    const float* fresh = p.qkv + (long long)b * p.frames * line;
    // Keys and values by position, counted from what the first query sees; lines a float4 apart from each other's banks.
    const int pitch = p.width + 4, origin = row.frame - p.window + 1;
    float* keys = shared;
    float* values = keys + (p.window - 1 + p.frames) * pitch;

    const int begin_old = max(0, origin), fours = p.width / 4, begin_ring = begin_old % p.ring;
#pragma unroll 8
    for (int i = threadIdx.x; i < (row.frame - begin_old) * fours; i += 128) {
        int position = i / fours, c = i % fours * 4, at = begin_ring + position;
        at = (at < p.ring ? at : at - p.ring) * p.width + c;
        int to = (begin_old - origin + position) * pitch + c;
        *reinterpret_cast<float4*>(keys + to) = *reinterpret_cast<const float4*>(ring_keys + at);
        *reinterpret_cast<float4*>(values + to) = *reinterpret_cast<const float4*>(ring_values + at);
    }
    // The new keys, turned, and values also go into the ring, over some that no query sees any more.
    for (int i = threadIdx.x; i < row.frames * half; i += 128) {
        int t = i / half, j = i % half;
        const float* k = fresh + (long long)t * line + (p.heads + head) * p.width;
        const float* v = k + p.kv_heads * p.width;
        float sine, cosine;
        sincosf((float)(row.frame + t) * p.frequencies[j], &sine, &cosine);
        float low = k[j] * cosine - k[j + half] * sine, high = k[j + half] * cosine + k[j] * sine;
        int at = (row.frame + t) % p.ring * p.width + j, to = (p.window - 1 + t) * pitch + j;
        ring_keys[at] = keys[to] = low;
        ring_keys[at + half] = keys[to + half] = high;
        ring_values[at] = values[to] = v[j];
        ring_values[at + half] = values[to + half] = v[j + half];
    }
    __syncthreads();

    float* scores = values + (p.window - 1 + p.frames) * pitch + warp * (p.window + p.width);
    float* query = scores + p.window;
    const int per_head = p.heads / p.kv_heads;
    for (int i = warp; i < row.frames * per_head; i += warps) {
        int t = i / per_head, q_head = head * per_head + i % per_head, position = row.frame + t;
        const float* q = fresh + (long long)t * line + q_head * p.width;
        for (int j = lane; j < half; j += 32) {
            float sine, cosine;
            sincosf((float)position * p.frequencies[j], &sine, &cosine);
            query[j] = q[j] * cosine - q[j + half] * sine;
            query[j + half] = q[j + half] * cosine + q[j] * sine;
        }
        __syncwarp();
        // Keys are counted from the window's begin: the order of sums depends on the query's position alone, not on where
        // in the ring they are or how the stream was cut.
        const int missing = max(0, p.window - 1 - position);
        const float* seen_keys = keys + t * pitch;
        const float* seen_values = values + t * pitch;
        float best = -INFINITY;
        for (int j = missing + lane; j < p.window; j += 32) {
            const float* k = seen_keys + j * pitch;
            float4 parts = make_float4(0, 0, 0, 0);
#pragma unroll 8
            for (int c = 0; c < p.width; c += 4) {
                float4 x = *reinterpret_cast<const float4*>(k + c);
                parts.x = fmaf(x.x, query[c], parts.x);
                parts.y = fmaf(x.y, query[c + 1], parts.y);
                parts.z = fmaf(x.z, query[c + 2], parts.z);
                parts.w = fmaf(x.w, query[c + 3], parts.w);
            }
            float score = ((parts.x + parts.y) + (parts.z + parts.w)) * p.scale;
            scores[j] = score;
            best = fmaxf(best, score);
        }
        for (int other = 16; other > 0; other >>= 1) best = fmaxf(best, __shfl_xor_sync(~0u, best, other));
        float total = 0;
        for (int j = missing + lane; j < p.window; j += 32) {
            float weight = expf(scores[j] - best);
            scores[j] = weight;
            total += weight;
        }
        for (int other = 16; other > 0; other >>= 1) total += __shfl_xor_sync(~0u, total, other);
        __syncwarp();
        auto* z = static_cast<typename Operand::Element*>(p.z) + ((long long)b * p.frames + t) * p.heads * p.width +
                  q_head * p.width;
        for (int c = lane; c < p.width; c += 32) {
            float sum = 0;
#pragma unroll 8
            for (int j = missing; j < p.window; j++) sum = fmaf(scores[j], seen_values[j * pitch + c], sum);
            z[c] = Operand::of(sum / total, p.clipped);
        }
        __syncwarp();
    }
}

// A causal filter per channel, then layer norm over the channels. One block per position.
template <typename Operand>
__device__ __forceinline__ void depthwise_norm(const VocoderDepthwiseArgs& p) {
    extern __shared__ float shared[];  // [channels]
    __shared__ float scratch[8];
    const int kept = p.taps - 1, all = p.rows * p.positions;
    wait_for_previous();
    let_next_start();
    if ((int)blockIdx.x >= all) {
        move_history(p.past, p.x, p.positions, p.channels, kept, (int)blockIdx.x - all);
        return;
    }
    const int b = blockIdx.x / p.positions, t = blockIdx.x % p.positions;
    const VocoderRow row = p.past.rows[b];
    if (row.slot < 0) return;
    const int first = first_position(p.past, row);
    const float* fresh = p.x + (long long)b * p.positions * p.channels;
    const float* old = history<float>(p.past, row, row.parity) + kept * p.channels;
    float sum = 0;
    for (int c = threadIdx.x; c < p.channels; c += 256) {
        float y = p.bias[c];
        for (int tap = 0; tap < p.taps; tap++) {
            int at = t - kept + tap;
            float x = at < first ? 0.0f : (at >= 0 ? fresh : old)[(long long)at * p.channels + c];
            y = fmaf(p.weight[tap * p.channels + c], x, y);
        }
        shared[c] = y;
        sum += y;
    }
    float mean = block_sum<256>(sum, scratch) / p.channels;
    float squares = 0;
    for (int c = threadIdx.x; c < p.channels; c += 256) {
        float off = shared[c] - mean;
        squares = fmaf(off, off, squares);
    }
    float factor = 1.0f / sqrtf(block_sum<256>(squares, scratch) / p.channels + p.eps);
    auto* z = static_cast<typename Operand::Element*>(p.z) + (long long)blockIdx.x * p.channels;
    for (int c = threadIdx.x; c < p.channels; c += 256)
        z[c] = Operand::of((shared[c] - mean) * factor * p.norm_weight[c] + p.norm_bias[c], p.clipped);
}

// The last convolution: one output, 7 taps. A block of 128 threads does 64 positions: 16 groups of 8 threads, which share
// the channels of 4 positions.
constexpr int LAST_POSITIONS = 64, LAST_TAPS = 7, LAST_EACH = 4;

__device__ __forceinline__ float4 four(const float* x) { return *reinterpret_cast<const float4*>(x); }
__device__ __forceinline__ float4 four(const __half* x) {
    uint2 bits = *reinterpret_cast<const uint2*>(x);
    float2 low = __half22float2(reinterpret_cast<const __half2&>(bits.x));
    float2 high = __half22float2(reinterpret_cast<const __half2&>(bits.y));
    return make_float4(low.x, low.y, high.x, high.y);
}

template <typename Operand>
__device__ __forceinline__ void last(const VocoderLastArgs& p) {
    using Element = typename Operand::Element;
    extern __shared__ __align__(16) float shared[];  // rows [64 + 6][channels], then weights [7][channels]
    constexpr int KEPT = LAST_TAPS - 1, ROWS = LAST_POSITIONS + KEPT;
    const int tiles = (p.positions + LAST_POSITIONS - 1) / LAST_POSITIONS;
    wait_for_previous();
    let_next_start();
    const Element* inputs = static_cast<const Element*>(p.x);
    if (blockIdx.x == 0 && threadIdx.x == 0) *p.told = *p.clipped;
    if ((int)blockIdx.x >= tiles * p.rows) {
        move_history(p.past, inputs, p.positions, p.channels, KEPT, (int)blockIdx.x - tiles * p.rows);
        return;
    }
    const int b = blockIdx.x / tiles, begin = blockIdx.x % tiles * LAST_POSITIONS, fours = p.channels / 4;
    const VocoderRow row = p.past.rows[b];
    if (row.slot < 0) return;
    const int first = first_position(p.past, row);
    const Element* fresh = inputs + (long long)b * p.positions * p.channels;
    const Element* old = history<Element>(p.past, row, row.parity) + KEPT * p.channels;
    float4* rows = reinterpret_cast<float4*>(shared);
    float4* weights = rows + ROWS * fours;
#pragma unroll 8
    for (int i = threadIdx.x; i < ROWS * fours; i += 128) {
        int at = begin - KEPT + i / fours;
        bool there = at >= first && at < p.positions;
        rows[i] = there ? four((at >= 0 ? fresh : old) + (long long)at * p.channels + i % fours * 4) : float4{};
    }
    for (int i = threadIdx.x; i < LAST_TAPS * fours; i += 128) weights[i] = reinterpret_cast<const float4*>(p.weight)[i];
    __syncthreads();

    const int slice = threadIdx.x % 8, group = threadIdx.x / 8;
    float sums[LAST_EACH] = {};
    for (int c = slice; c < fours; c += 8) {
        float4 weight[LAST_TAPS];
#pragma unroll
        for (int tap = 0; tap < LAST_TAPS; tap++) weight[tap] = weights[tap * fours + c];
#pragma unroll
        for (int r = 0; r < LAST_EACH + KEPT; r++) {
            float4 x = rows[(group * LAST_EACH + r) * fours + c];
#pragma unroll
            for (int i = 0; i < LAST_EACH; i++) {
                if (r - i < 0 || r - i >= LAST_TAPS) continue;
                float4 w = weight[r - i];
                sums[i] = fmaf(x.x, w.x, sums[i]);
                sums[i] = fmaf(x.y, w.y, sums[i]);
                sums[i] = fmaf(x.z, w.z, sums[i]);
                sums[i] = fmaf(x.w, w.w, sums[i]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < LAST_EACH; i++) {
#pragma unroll
        for (int other = 4; other > 0; other >>= 1) sums[i] += __shfl_xor_sync(~0u, sums[i], other);
        int t = begin + group * LAST_EACH + i;
        if (slice == 0 && t < p.positions)
            p.samples[(long long)b * p.positions + t] = fminf(fmaxf(sums[i] + p.bias[0], -1.0f), 1.0f);
    }
}

}  // namespace vocoder

#define VOCODER_OP(NAME, ARGS, BODY, THREADS)                                                \
    extern "C" __global__ void __launch_bounds__(THREADS) vocoder_##NAME##_f16(ARGS args) {  \
        vocoder::BODY<vocoder::F16>(args);                                                   \
    }                                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS) vocoder_##NAME##_tf32(ARGS args) { \
        vocoder::BODY<vocoder::Tf32>(args);                                                  \
    }                                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS) vocoder_##NAME##_f32(ARGS args) {  \
        vocoder::BODY<vocoder::F32>(args);                                                   \
    }
VOCODER_OP(embed, VocoderEmbedArgs, embed, 256)
VOCODER_OP(rms_norm, VocoderNormArgs, rms_norm, 256)
VOCODER_OP(attention, VocoderAttentionArgs, attend, 128)
VOCODER_OP(depthwise_norm, VocoderDepthwiseArgs, depthwise_norm, 256)
VOCODER_OP(last, VocoderLastArgs, last, 128)
