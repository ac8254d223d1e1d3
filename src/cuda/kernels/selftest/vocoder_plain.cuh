// The vocoder's operations as plainly as they can be written, one thread per output: what the fast kernels are held to.
#pragma once

namespace plain {

using namespace vocoder;

// A position of a causal layer's input, the past included.
__device__ inline float input(const VocoderPast& past, const float* x, int b, int t, int c, int positions, int channels,
                              int kept) {
    VocoderRow row = past.rows[b];
    if (t < first_position(past, row)) return 0;
    if (t >= 0) return x[((long long)b * positions + t) * channels + c];
    return history<float>(past, row, row.parity)[(kept + t) * channels + c];
}

__global__ void conv(VocoderConvArgs p) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (long long)p.rows * p.positions * p.outputs) return;
    int column = i % p.outputs, row = i / p.outputs, b = row / p.positions, t = row % p.positions;
    const float* x = static_cast<const float*>(p.x);
    const float* w = static_cast<const float*>(p.w);
    float* z = static_cast<float*>(p.z);
    int line = (p.taps * p.channels + 31) / 32 * 32;
    auto sum_of = [&](int column) {
        float sum = 0;
        for (int tap = 0; tap < p.taps; tap++)
            for (int c = 0; c < p.channels; c++)
                sum += input(p.past, x, b, t - (p.taps - 1 - tap) * p.dilation, c, p.positions, p.channels,
                             (p.taps - 1) * p.dilation) *
                       w[(long long)column * line + tap * p.channels + c];
        return sum + (p.bias ? p.bias[column] : 0);
    };
    float v = sum_of(column);
    if (p.activation == SILU_PAIRS) {
        if (column % 2 == 0) z[(long long)row * (p.outputs / 2) + column / 2] = v / (1 + expf(-v)) * sum_of(column + 1);
        return;
    }
    if (p.activation == GELU) v = 0.5f * v * (1 + erff(v * 0.70710678f));
    if (p.residual) v += p.residual[i];
    if (p.y) p.y[i] = v;
    if (!z) return;
    if (p.snake_a) {
        int c = column % p.snake_period;
        float s = sinf(v * p.snake_a[c]);
        v += s * s * p.snake_b[c];
    }
    z[i] = v;
}

__global__ void depthwise_norm(VocoderDepthwiseArgs p) {
    int b = blockIdx.x / p.positions, t = blockIdx.x % p.positions;
    double mean = 0, squares = 0;
    auto y = [&](int c) {
        float y = p.bias[c];
        for (int tap = 0; tap < p.taps; tap++)
            y += p.weight[tap * p.channels + c] *
                 input(p.past, p.x, b, t - p.taps + 1 + tap, c, p.positions, p.channels, p.taps - 1);
        return y;
    };
    for (int c = 0; c < p.channels; c++) mean += y(c);
    mean /= p.channels;
    for (int c = 0; c < p.channels; c++) squares += (y(c) - mean) * (y(c) - mean);
    double factor = 1 / sqrt(squares / p.channels + p.eps);
    for (int c = threadIdx.x; c < p.channels; c += blockDim.x)
        static_cast<float*>(p.z)[(long long)blockIdx.x * p.channels + c] = (y(c) - mean) * factor * p.norm_weight[c] + p.norm_bias[c];
}

__global__ void last(VocoderLastArgs p) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (long long)p.rows * p.positions) return;
    int b = i / p.positions, t = i % p.positions;
    float sum = p.bias[0];
    for (int tap = 0; tap < p.taps; tap++)
        for (int c = 0; c < p.channels; c++)
            sum += p.weight[tap * p.channels + c] *
                   input(p.past, static_cast<const float*>(p.x), b, t - p.taps + 1 + tap, c, p.positions, p.channels,
                         p.taps - 1);
    p.samples[i] = fminf(fmaxf(sum, -1.0f), 1.0f);
}

// For all of them but attention: moves the history on afterwards.
__global__ void move(VocoderPast past, const float* x, int positions, int channels, int kept) {
    move_history(past, x, positions, channels, kept, blockIdx.x);
}

__global__ void rms_norm(VocoderNormArgs p) {
    const float* x = p.x + (long long)blockIdx.x * p.channels;
    double squares = 0;
    for (int c = 0; c < p.channels; c++) squares += (double)x[c] * x[c];
    for (int c = threadIdx.x; c < p.channels; c += blockDim.x)
        static_cast<float*>(p.z)[(long long)blockIdx.x * p.channels + c] = x[c] / sqrt(squares / p.channels + p.eps) * p.weight[c];
}

// One thread per row and key head, everything in turn. At most 128 positions in the window, heads at most 128 wide.
__global__ void attention(VocoderAttentionArgs p) {
    int b = blockIdx.x / p.kv_heads, head = blockIdx.x % p.kv_heads, half = p.width / 2;
    VocoderRow row = p.rows[b];
    if (row.slot < 0 || threadIdx.x > 0) return;
    float* keys = p.arena + row.slot * p.slot_floats + p.keys + (long long)head * p.ring * p.width;
    float* values = keys + (long long)p.kv_heads * p.ring * p.width;
    int line = (p.heads + 2 * p.kv_heads) * p.width, group = p.heads / p.kv_heads;
    for (int t = 0; t < row.frames; t++) {
        int position = row.frame + t;
        const float* all = p.qkv + ((long long)b * p.frames + t) * line;
        auto turned = [&](const float* x, int j) {
            float angle = position * p.frequencies[j % half];
            return j < half ? x[j] * cosf(angle) - x[j + half] * sinf(angle)
                            : x[j] * cosf(angle) + x[j - half] * sinf(angle);
        };
        for (int j = 0; j < p.width; j++) {
            keys[position % p.ring * p.width + j] = turned(all + (p.heads + head) * p.width, j);
            values[position % p.ring * p.width + j] = all[(p.heads + p.kv_heads + head) * p.width + j];
        }
        for (int q = head * group; q < (head + 1) * group; q++) {
            float query[128], scores[128], best = -INFINITY, total = 0;
            for (int j = 0; j < p.width; j++) query[j] = turned(all + q * p.width, j);
            int begin = max(0, position - p.window + 1), n = position - begin + 1;
            for (int i = 0; i < n; i++) {
                scores[i] = 0;
                for (int j = 0; j < p.width; j++) scores[i] += query[j] * keys[(begin + i) % p.ring * p.width + j];
                scores[i] *= p.scale;
                best = fmaxf(best, scores[i]);
            }
            for (int i = 0; i < n; i++) total += scores[i] = expf(scores[i] - best);
            for (int j = 0; j < p.width; j++) {
                float sum = 0;
                for (int i = 0; i < n; i++) sum += scores[i] * values[(begin + i) % p.ring * p.width + j];
                static_cast<float*>(p.z)[(((long long)b * p.frames + t) * p.heads + q) * p.width + j] = sum / total;
            }
        }
    }
}

}  // namespace plain
