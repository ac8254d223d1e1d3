// The vocoder's kernels on random weights at the sizes of the real 12 Hz decoder: fast against plain, pieces against
// whole, rows alone against rows together, and how long a step takes.
//
//   nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -I kernels -o vocoder_selftest
//     kernels/selftest/vocoder_selftest.cu
#include "../vocoder_conv.cu"
#include "../vocoder_conv_90a.cu"
#include "../vocoder_ops.cu"
#include "vocoder_plain.cuh"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#define CHECK(call)                                                                               \
    do {                                                                                          \
        cudaError_t error = (call);                                                               \
        if (error != cudaSuccess) {                                                               \
            printf("FAIL %s:%d %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error)); \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

enum Mode { F32, TF32, F16, PLAIN };
const char* const NAMES[] = {"f32", "tf32", "f16"};
int bytes_of(Mode mode) { return mode == F16 ? 2 : 4; }
struct Tile {
    const char* name;
    void (*kernels[3])(VocoderConvArgs);
    int rows, columns, threads, steps, blocks;
    double step, beside, rest;
};
#define TILE(NAME) #NAME, {vocoder_conv_f32_##NAME, vocoder_conv_tf32_##NAME, vocoder_conv_f16_##NAME}
const Tile TILES[] = {
    {TILE(128x96), 128, 96, 256, 3, 2, 0.80, 0.35, 3.0},
    {TILE(64x96), 64, 96, 128, 3, 3, 0.61, 0.21, 3.0},
    {TILE(64x48), 64, 48, 128, 4, 3, 0.48, 0.07, 2.0},
    {TILE(32x48), 32, 48, 128, 6, 3, 0.26, 0.09, 1.2},
    {TILE(16x32), 16, 32, 128, 12, 3, 0.19, 0.05, 0.8},
    // F16 on Hopper alone.
    {"hopper 128x96", {nullptr, nullptr, vocoder_conv_hopper_128x96}, 128, 96, 256, 3, 2, 0.62, 0.22, 3.0},
};
int tiles_of(Mode mode) { return mode == F16 ? 6 : 5; }
size_t shared_of(const Tile& t) { return (size_t)t.steps * (t.rows + t.columns) * 128 + t.rows * 24; }

int sms = 132, forced = -1;
bool overlap = true;

int pick(Mode mode, long long rows, long long columns, int steps) {
    if (forced >= 0) return forced;
    int best = 0;
    double least = 1e30;
    for (int i = 0; i < tiles_of(mode); i++) {
        const Tile& t = TILES[i];
        int share = (((rows + t.rows - 1) / t.rows) * ((columns + t.columns - 1) / t.columns) + sms - 1) / sms;
        auto wave = [&](int blocks) { return (t.step + t.beside * (blocks - 1)) * steps + t.rest; };
        double cost = share / t.blocks * wave(t.blocks) + (share % t.blocks ? wave(share % t.blocks) : 0);
        if (cost < least) least = cost, best = i;
    }
    return best;
}
struct Random {
    unsigned long long state = 12345;
    float operator()() {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        return (float)(state >> 40) / (1 << 23) - 1.0f;
    }
} random_;

template <class T>
T* device(const std::vector<T>& v) {
    T* p;
    CHECK(cudaMalloc(&p, v.size() * sizeof(T) + 16));
    CHECK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}
float* some(size_t n, float bound, float middle = 0) {
    std::vector<float> v(n);
    for (float& x : v) x = middle + bound * random_();
    return device(v);
}
float host_tf32(float x) {
    unsigned bits;
    memcpy(&bits, &x, 4);
    bits = (bits + 0x1000) & ~0x1fffu;
    memcpy(&x, &bits, 4);
    return x;
}

struct Conv {
    void* w[3];
    float* bias;
    int in, out, taps, dilation, offset, kept;
};
struct Snake {
    float *a = nullptr, *b = nullptr;
    int period = 1;
};
struct ConvNext {
    Conv up, expand, shrink;
    float *w, *bias, *norm_w, *norm_b;
    int offset;
};
struct Unit {
    Snake one, two;
    Conv wide, point;
};
struct Block {
    Snake snake;
    Conv up;
    int rate, half;
    Unit units[3];
};
struct Layer {
    float *norm1, *norm2;
    Conv qkv, out, gate_up, down;
    long long keys;
};

constexpr int GROUPS = 16, BOOK = 2048, HEADS = 16, WIDTH = 64, WINDOW = 72, RING = 84;
constexpr int SLOTS = 72, LATENT = 1024, HIDDEN = 512, INNER = 1024, DIM = 1536, SUM = 512;

size_t attention_shared(int frames) {
    return (2 * (WINDOW - 1 + frames) * (WIDTH + 4) + 4 * (WINDOW + WIDTH)) * 4;
}
constexpr size_t LAST_SHARED = (64 + 6 + 7) * 96 * 4;

#define MODES(NAME) {vocoder_##NAME##_f32, vocoder_##NAME##_tf32, vocoder_##NAME##_f16}
void (*const EMBED[])(VocoderEmbedArgs) = MODES(embed);
void (*const NORM[])(VocoderNormArgs) = MODES(rms_norm);
void (*const ATTENTION[])(VocoderAttentionArgs) = MODES(attention);
void (*const DEPTHWISE[])(VocoderDepthwiseArgs) = MODES(depthwise_norm);
void (*const LAST[])(VocoderLastArgs) = MODES(last);

struct Net {
    int half = 0;
    long long slot = 0;
    float *table, *frequencies, *norm, *last_w, *last_b, *arena, *samples;
    int last_offset;
    Conv pre, inward, outward, first;
    Layer layers[8];
    ConvNext convnexts[2];
    Block blocks[4];
    Snake last_snake;
    unsigned *codes, *clipped, *told;
    VocoderRow* rows;
    float *a, *b, *c, *small_a, *small_b, *small_c;
    int B, F;
    Mode mode;
    cudaStream_t stream;
    // Called with every product, for timing.
    std::function<void(const char*, const VocoderConvArgs&)> watch;

    int keep(int rows, int channels) {
        int at = half;
        half += rows * channels;
        return at;
    }
    Conv conv(int in, int out, int taps, int dilation, float gain = 1) {
        Conv c{};
        float bound = gain * sqrtf(3.0f / (in * taps));
        std::vector<float> some_(in * taps * (size_t)out);
        for (float& x : some_) x = bound * random_();
        auto lines = [&](int depth, auto rounded) {
            int line = (in * taps + depth - 1) / depth * depth;
            std::vector<decltype(rounded(0.0f))> w((size_t)out * line);
            for (int o = 0; o < out; o++)
                for (int i = 0; i < in * taps; i++) w[(size_t)o * line + i] = rounded(some_[(size_t)o * in * taps + i]);
            return w;
        };
        c.w[F32] = device(lines(32, [](float x) { return x; }));
        c.w[TF32] = device(lines(32, host_tf32));
        c.w[F16] = device(lines(64, [](float x) { return __float2half_rn(x); }));
        c.bias = ::some(out, 0.05f);
        c.in = in, c.out = out, c.taps = taps, c.dilation = dilation, c.kept = (taps - 1) * dilation;
        c.offset = keep(c.kept, in);
        return c;
    }
    Snake snake(int channels) { return {some(channels, 0.3f, 1), some(channels, 0.2f, 0.5f), channels}; }

    Net() {
        table = some((size_t)GROUPS * BOOK * SUM, 0.4f);
        pre = conv(SUM, LATENT, 3, 1);
        inward = conv(LATENT, HIDDEN, 1, 1);
        for (Layer& l : layers) {
            l.norm1 = some(HIDDEN, 0.1f, 1), l.norm2 = some(HIDDEN, 0.1f, 1);
            l.qkv = conv(HIDDEN, 3 * HEADS * WIDTH, 1, 1, 1.5f), l.out = conv(HEADS * WIDTH, HIDDEN, 1, 1, 0.5f);
            l.gate_up = conv(HIDDEN, 2 * INNER, 1, 1), l.down = conv(INNER, HIDDEN, 1, 1, 0.5f);
        }
        norm = some(HIDDEN, 0.1f, 1);
        outward = conv(HIDDEN, LATENT, 1, 1);
        for (ConvNext& n : convnexts) {
            n.up = conv(LATENT, 2 * LATENT, 1, 1);
            n.w = some(7 * LATENT, 0.6f), n.bias = some(LATENT, 0.1f);
            n.norm_w = some(LATENT, 0.1f, 1), n.norm_b = some(LATENT, 0.1f);
            n.offset = keep(6, LATENT);
            n.expand = conv(LATENT, 4 * LATENT, 1, 1), n.shrink = conv(4 * LATENT, LATENT, 1, 1, 0.5f);
        }
        first = conv(LATENT, DIM, 7, 1);
        int rates[4] = {8, 5, 4, 3}, dilations[3] = {1, 3, 9};
        for (int i = 0; i < 4; i++) {
            Block& k = blocks[i];
            k.rate = rates[i], k.half = DIM >> (i + 1), k.snake = snake(2 * k.half);
            k.up = conv(2 * k.half, k.half * k.rate, 2, 1, 0.8f);
            for (int j = 0; j < 3; j++)
                k.units[j] = {snake(k.half), snake(k.half), conv(k.half, k.half, 7, dilations[j], 0.7f),
                              conv(k.half, k.half, 1, 1, 0.5f)};
        }
        int n = blocks[3].half;
        last_snake = snake(n), last_w = some(7 * n, 0.05f), last_b = some(1, 0.01f), last_offset = keep(6, n);
        slot = 2 * half;
        for (Layer& l : layers) l.keys = slot, slot += 2ll * HEADS * RING * WIDTH;
        std::vector<float> f(WIDTH / 2);
        for (int j = 0; j < WIDTH / 2; j++) f[j] = 1.0f / powf(10000.0f, 2.0f * j / WIDTH);
        frequencies = device(f);
        CHECK(cudaMalloc(&arena, SLOTS * slot * 4));
        CHECK(cudaMemset(arena, 0xff, SLOTS * slot * 4));  // not a number, wherever it is read
        size_t frames = 256;
        for (float** p : {&a, &b, &c}) CHECK(cudaMalloc(p, frames * 1920 * 96 * 4));
        for (float** p : {&small_a, &small_b, &small_c}) CHECK(cudaMalloc(p, frames * 4 * 4096 * 4));
        CHECK(cudaMalloc(&samples, frames * 1920 * 4));
        CHECK(cudaMalloc(&codes, frames * GROUPS * 4));
        CHECK(cudaMalloc(&clipped, 4));
        CHECK(cudaMalloc(&told, 4));
        CHECK(cudaMalloc(&rows, 256 * sizeof(VocoderRow)));
        CHECK(cudaStreamCreate(&stream));
        printf("state %.2f MB per stream, of which histories 2 x %.2f MB\n", slot * 4e-6, half * 4e-6);
    }

    template <class Args>
    void launch(void (*kernel)(Args), int blocks, int threads, size_t shared, const Args& args) {
        cudaLaunchConfig_t config = {};
        config.gridDim = blocks, config.blockDim = threads, config.dynamicSmemBytes = shared, config.stream = stream;
        cudaLaunchAttribute attribute;
        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = 1;
        config.attrs = &attribute, config.numAttrs = overlap;
        CHECK(cudaLaunchKernelEx(&config, kernel, args));
    }
    VocoderPast past(int offset, int rate) { return {arena, rows, slot, half, offset, rate, 0}; }
    int parts(int kept, int channels, int bytes) {
        return (kept * channels * bytes + vocoder::MOVE_BYTES - 1) / vocoder::MOVE_BYTES * B;
    }

    void product(const char* name, const Conv& k, int rate, const float* x, float* y, float* z, Snake s = {},
                 const float* residual = nullptr, int activation = 0, bool biased = true) {
        VocoderConvArgs p = {};
        p.x = x, p.w = k.w[mode == PLAIN ? F32 : mode], p.clipped = clipped, p.bias = biased ? k.bias : nullptr, p.residual = residual;
        p.snake_a = s.a, p.snake_b = s.b, p.snake_period = s.period, p.y = y, p.z = z;
        p.past = past(k.offset, rate), p.rows = B, p.positions = F * rate, p.channels = k.in, p.taps = k.taps;
        p.dilation = k.dilation, p.outputs = k.out, p.activation = activation;
        if (mode == PLAIN) {
            long long n = (long long)B * p.positions * k.out;
            plain::conv<<<(n + 255) / 256, 256, 0, stream>>>(p);
            if (k.kept) plain::move<<<parts(k.kept, k.in, 4), 128, 0, stream>>>(p.past, x, p.positions, k.in, k.kept);
            return;
        }
        if (watch) watch(name, p);
        tile(p, pick(mode, (long long)B * p.positions, k.out, steps_of(p)));
    }
    int steps_of(const VocoderConvArgs& p) const { return (p.channels * p.taps * bytes_of(mode) + 127) / 128; }
    void tile(VocoderConvArgs p, int which) {
        const Tile& t = TILES[which];
        p.column_tiles = (p.outputs + t.columns - 1) / t.columns;
        p.tiles = (B * p.positions + t.rows - 1) / t.rows * p.column_tiles;
        int moves = p.taps > 1 ? parts((p.taps - 1) * p.dilation, p.channels, bytes_of(mode)) : 0;
        launch(t.kernels[mode], p.tiles + moves, t.threads, shared_of(t), p);
    }

    void step() {
        bool plain_ = mode == PLAIN;
        int n = B * F, m = plain_ ? F32 : mode;
        CHECK(cudaMemsetAsync(clipped, 0, 4, stream));
        launch(EMBED[m], n, 256, 0, VocoderEmbedArgs{codes, table, nullptr, small_a, clipped, 1, GROUPS, BOOK, SUM});
        product("pre", pre, 1, small_a, nullptr, small_b);
        float *x = small_a, *z = small_b, *w = small_c;
        product("in", inward, 1, z, x, nullptr);
        auto rms = [&](float* weight) {
            VocoderNormArgs args{x, weight, z, clipped, 1e-5f, HIDDEN};
            if (plain_) plain::rms_norm<<<n, 256, 0, stream>>>(args);
            else launch(NORM[m], n, 256, 0, args);
        };
        for (Layer& l : layers) {
            rms(l.norm1);
            product("qkv", l.qkv, 1, z, w, nullptr, {}, nullptr, 0, false);
            VocoderAttentionArgs args{w, z, clipped, frequencies, arena, rows,   slot, l.keys,
                                      F, HEADS, HEADS, WIDTH, WINDOW, RING, 0.125f};
            if (plain_) plain::attention<<<B * HEADS, 32, 0, stream>>>(args);
            else launch(ATTENTION[m], B * HEADS, 128, attention_shared(F), args);
            product("out", l.out, 1, z, x, nullptr, {}, x, 0, false);
            rms(l.norm2);
            product("gate_up", l.gate_up, 1, z, nullptr, w, {}, nullptr, vocoder::SILU_PAIRS, false);
            product("down", l.down, 1, w, x, nullptr, {}, x, 0, false);
        }
        rms(norm);
        product("outward", outward, 1, z, nullptr, w);
        int rate = 1;
        float *now = small_c, *other = small_b;
        for (ConvNext& k : convnexts) {
            product("up2", k.up, rate, now, x, nullptr);
            rate *= 2;
            VocoderDepthwiseArgs args{x, k.w, k.bias, k.norm_w, k.norm_b, other, clipped, past(k.offset, rate), 1e-6f, B, F * rate, LATENT, 7};
            int moves = parts(6, LATENT, 4);
            if (plain_) {
                plain::depthwise_norm<<<n * rate, 256, 0, stream>>>(args);
                plain::move<<<moves, 128, 0, stream>>>(args.past, x, F * rate, LATENT, 6);
            } else {
                launch(DEPTHWISE[m], n * rate + moves, 256, LATENT * 4, args);
            }
            product("expand", k.expand, rate, other, nullptr, now, {}, nullptr, vocoder::GELU);
            product("shrink", k.shrink, rate, now, nullptr, other, {}, x);
            std::swap(now, other);
        }
        float *in = a, *mid = b, *y = c;
        product("first", first, rate, now, nullptr, in, blocks[0].snake);
        for (int i = 0; i < 4; i++) {
            Block& k = blocks[i];
            std::string label = "block" + std::to_string(i + 1);
            product((label + " up").c_str(), k.up, rate, in, y, mid, k.units[0].one);
            rate *= k.rate;
            std::swap(in, mid);
            for (int j = 0; j < 3; j++) {
                Unit& u = k.units[j];
                product((label + " wide").c_str(), u.wide, rate, in, nullptr, mid, u.two);
                Snake next = j < 2 ? k.units[j + 1].one : i < 3 ? blocks[i + 1].snake : last_snake;
                product((label + " point").c_str(), u.point, rate, mid, j < 2 ? y : nullptr, in, next, y);
            }
        }
        int channels = blocks[3].half;
        VocoderLastArgs args{in, last_w, last_b, samples, clipped, told, past(last_offset, rate), B, F * rate, channels, 7};
        int tiles = (F * rate + vocoder::LAST_POSITIONS - 1) / vocoder::LAST_POSITIONS * B, moves = parts(6, channels, bytes_of(mode));
        if (plain_) {
            plain::last<<<(B * F * rate + 127) / 128, 128, 0, stream>>>(args);
            plain::move<<<moves, 128, 0, stream>>>(args.past, in, F * rate, channels, 6);
        } else {
            launch(LAST[m], tiles + moves, 128, LAST_SHARED, args);
        }
    }
};

unsigned code_of(int stream, int frame, int group) {
    unsigned h = stream * 2654435761u ^ frame * 40503u * 2246822519u ^ group * 3266489917u;
    h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
    return h % BOOK;
}

// Streams in their slots, decoded together in some order of chunks; the samples of each.
struct Run {
    Net& net;
    Mode mode;
    std::vector<int> ids, slots;
    std::vector<int> at, parity;
    std::vector<std::vector<float>> out;
    Run(Net& net, Mode mode, std::vector<int> ids, std::vector<int> slots)
        : net(net), mode(mode), ids(ids), slots(slots), at(ids.size()), parity(ids.size()), out(ids.size()) {}
    // `own[i]` frames of stream i in a launch of F; `extra` rows of padding.
    void step(int F, std::vector<int> own, int extra = 0) {
        int B = ids.size() + extra;
        std::vector<VocoderRow> rows(B, {-1, 0, 0, 0});
        std::vector<unsigned> codes((size_t)B * F * GROUPS);
        for (size_t i = 0; i < ids.size(); i++) {
            if (!own[i]) continue;
            rows[i] = {slots[i], at[i], own[i], parity[i]};
            for (int f = 0; f < own[i]; f++)
                for (int g = 0; g < GROUPS; g++) codes[((size_t)i * F + f) * GROUPS + g] = code_of(ids[i], at[i] + f, g);
            at[i] += own[i], parity[i] ^= 1;
        }
        CHECK(cudaMemcpy(net.rows, rows.data(), rows.size() * sizeof(VocoderRow), cudaMemcpyHostToDevice));
        CHECK(cudaMemcpy(net.codes, codes.data(), codes.size() * 4, cudaMemcpyHostToDevice));
        net.B = B, net.F = F, net.mode = mode;
        net.step();
        CHECK(cudaGetLastError());
        CHECK(cudaStreamSynchronize(net.stream));
        std::vector<float> got((size_t)B * F * 1920);
        CHECK(cudaMemcpy(got.data(), net.samples, got.size() * 4, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < ids.size(); i++)
            out[i].insert(out[i].end(), got.begin() + i * F * 1920, got.begin() + (i * F + own[i]) * 1920);
    }
};

int failures = 0;
void verdict(bool good, const char* what) {
    printf("%s %s\n", good ? "ok  " : "FAIL", what);
    failures += !good;
}
void compare(const char* what, const std::vector<float>& want, const std::vector<float>& got, double least_db) {
    double signal = 0, noise = 0, worst = 0;
    for (size_t i = 0; i < want.size(); i++) {
        double off = (double)got[i] - want[i];
        signal += (double)want[i] * want[i], noise += off * off;
        if (!(fabs(off) <= worst)) worst = fabs(off);
    }
    double db = 10 * log10(signal / noise);
    char text[200];
    snprintf(text, sizeof text, "%s: SNR %.1f dB (at least %.0f), worst %.2e, rms of the signal %.3f", what, db, least_db, worst,
             sqrt(signal / want.size()));
    verdict(db >= least_db, text);
}

double time_us(cudaStream_t stream, int times, const std::function<void()>& run) {
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    for (int i = 0; i < 3; i++) run();
    CHECK(cudaEventRecord(begin, stream));
    for (int i = 0; i < times; i++) run();
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaEventSynchronize(end));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    return ms * 1e3 / times;
}

int main() {
    cudaDeviceProp prop;
    CHECK(cudaGetDeviceProperties(&prop, 0));
    sms = prop.multiProcessorCount;
    overlap = prop.major >= 9;
    printf("%s, %d multiprocessors\n", prop.name, sms);
    for (const Tile& t : TILES)
        for (auto kernel : t.kernels)
            if (kernel != nullptr) CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_of(t)));
    for (const Tile& t : TILES) {
        int blocks;
        CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, t.kernels[F16], t.threads, shared_of(t)));
        printf("tile %s: %zu KB shared, %d blocks per multiprocessor\n", t.name, shared_of(t) >> 10, blocks);
    }
    for (auto kernel : ATTENTION)
        CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, attention_shared(12)));
    Net net;

    // 1. Fast against plain: three streams in uneven chunks, one of them late, a tail in every launch.
    std::vector<std::vector<int>> own = {{5, 3, 0}, {1, 5, 4}, {2, 2, 5}, {5, 5, 5}};
    auto uneven = [&](Mode mode, int base) {
        Run run(net, mode, {1, 2, 3}, {base, base + 1, base + 2});
        for (auto& o : own) run.step(5, o, 1);
        return run.out;
    };
    auto want = uneven(PLAIN, 0), f32 = uneven(F32, 3), tf32 = uneven(TF32, 6), f16 = uneven(F16, 30);
    const decltype(want)* begun[] = {&f32, &tf32, &f16};
    for (int i = 0; i < 3; i++) {
        compare("f32 kernels against plain ones", want[i], f32[i], 90);
        compare("tf32 kernels against plain ones", want[i], tf32[i], 40);
        compare("f16 kernels against plain ones", want[i], f16[i], 40);
    }
    // 2. The same bits however a stream is cut, batched and tiled, beyond the window.
    for (Mode mode : {F16, TF32, F32}) {
        std::string name = NAMES[mode];
        Run single(net, mode, {1}, {9});
        for (int i = 0; i < 100; i++) single.step(1, {1});
        Run pieces(net, mode, {1, 5, 6}, {10, 11, 12});
        for (int n : {1, 2, 4, 8, 12, 12, 12, 12, 12, 12, 12, 1}) pieces.step(n, {n, n, n / 2}, 2);
        verdict(single.out[0] == pieces.out[0], (name + ": the same bits one by one and in chunks of up to 12").c_str());
        bool same = true, begins = true;
        Run again(net, mode, {1, 2, 3}, {20, 21, 22});
        for (forced = 0; forced < tiles_of(mode); forced++) again.step(3, {3, 3, 3});
        forced = -1;
        same &= memcmp(again.out[0].data(), single.out[0].data(), again.out[0].size() * 4) == 0;
        for (int i = 0; i < 3; i++)
            begins &= memcmp(again.out[i].data(), (*begun[mode])[i].data(), std::min(again.out[i].size(), (*begun[mode])[i].size()) * 4) == 0;
        verdict(same, (name + ": the same bits with every tile").c_str());
        verdict(begins, (name + ": the same bits beside other rows").c_str());
    }
    // 3. How long a step takes.
    for (Mode timed : {TF32, F16}) {
    printf("\n%s\n  B   F   us/step  without overlap  us per frame  TFLOP/s  launches\n", NAMES[timed]);
    auto full = [&](int B, int F) {
        std::vector<VocoderRow> rows;
        for (int i = 0; i < B; i++) rows.push_back({i % SLOTS, 100, F, 0});
        CHECK(cudaMemcpy(net.rows, rows.data(), rows.size() * sizeof(VocoderRow), cudaMemcpyHostToDevice));
        net.B = B, net.F = F, net.mode = timed;
    };
    for (auto [B, F] : {std::pair{1, 1}, {1, 2}, {1, 4}, {1, 12}, {8, 1}, {16, 1}, {32, 1}, {64, 1}, {16, 4}, {16, 12}, {32, 4}, {64, 2}, {64, 4}}) {
        full(B, F);
        double us[2];
        size_t nodes = 0;
        for (bool with : {true, false}) {
            overlap = with && prop.major >= 9;
            cudaGraph_t graph;
            cudaGraphExec_t exec;
            CHECK(cudaStreamBeginCapture(net.stream, cudaStreamCaptureModeThreadLocal));
            net.step();
            CHECK(cudaStreamEndCapture(net.stream, &graph));
            CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
            CHECK(cudaGraphInstantiate(&exec, graph, 0));
            us[with] = time_us(net.stream, 20, [&] { CHECK(cudaGraphLaunch(exec, net.stream)); });
            CHECK(cudaGraphExecDestroy(exec));
            CHECK(cudaGraphDestroy(graph));
        }
        overlap = prop.major >= 9;
        printf("%3d %3d %9.1f %16.1f %13.1f %8.1f %9zu\n", B, F, us[1], us[0], us[1] / B / F, 4.95e3 * B * F / fmin(us[0], us[1]), nodes);
    }
    // 4. Every product with every tile; * is what pick() takes.
    for (auto [B, F] : {std::pair{1, 1}, {8, 1}, {64, 1}, {64, 4}}) {
        full(B, F);
        printf("\n%s, B %d, F %d: us with each tile\n%-14s %8s %7s %6s", NAMES[timed], B, F, "", "rows", "columns", "depth");
        for (int i = 0; i < tiles_of(timed); i++) printf(" %10s", TILES[i].name);
        printf("   TFLOP/s of the best\n");
        std::string seen;
        net.watch = [&](const char* name, const VocoderConvArgs& p) {
            if (seen.find(std::string("|") + name + "|") != std::string::npos) return;
            seen += std::string("|") + name + "|";
            double rows = (double)p.rows * p.positions, depth = p.channels * p.taps, best = 1e30;
            printf("%-14s %8.0f %7d %6.0f", name, rows, p.outputs, depth);
            for (int i = 0; i < tiles_of(timed); i++) {
                double us = time_us(net.stream, 5, [&] { net.tile(p, i); });
                printf(" %9.1f%c", us, pick(timed, rows, p.outputs, net.steps_of(p)) == i ? '*' : ' ');
                best = fmin(best, us);
            }
            printf(" %8.1f\n", 2e-6 * rows * depth * p.outputs / best);
        };
        net.step();
        CHECK(cudaStreamSynchronize(net.stream));
        net.watch = nullptr;
    }
    // 5. What is not a product.
    for (auto [B, F] : {std::pair{1, 1}, {64, 1}, {64, 4}}) {
        full(B, F);
        VocoderAttentionArgs attention{net.small_a, net.small_b, net.clipped, net.frequencies, net.arena, net.rows, net.slot, net.layers[0].keys,
                                       F, HEADS, HEADS, WIDTH, WINDOW, RING, 0.125f};
        VocoderNormArgs norm{net.small_a, net.norm, net.small_b, net.clipped, 1e-5f, HIDDEN};
        VocoderLastArgs last{net.a, net.last_w, net.last_b, net.samples, net.clipped, net.told, net.past(net.last_offset, 1920), B, F * 1920, 96, 7};
        VocoderEmbedArgs embed{net.codes, net.table, nullptr, net.small_a, net.clipped, 1, GROUPS, BOOK, SUM};
        ConvNext& k = net.convnexts[1];
        VocoderDepthwiseArgs depthwise{net.small_a, k.w, k.bias, k.norm_w, k.norm_b, net.small_b, net.clipped, net.past(k.offset, 4), 1e-6f, B, F * 4, LATENT, 7};
        auto us = [&](auto kernel, int blocks, int threads, size_t shared, auto args) {
            return time_us(net.stream, 20, [&] { net.launch(kernel, blocks, threads, shared, args); });
        };
        printf("\nB %d, F %d: embed %.1f us, norm %.1f, attention %.1f, depthwise %.1f, last %.1f", B, F,
               us(EMBED[timed], B * F, 256, 0, embed), us(NORM[timed], B * F, 256, 0, norm),
               us(ATTENTION[timed], B * HEADS, 128, attention_shared(F), attention),
               us(DEPTHWISE[timed], B * F * 4 + net.parts(6, LATENT, 4), 256, LATENT * 4, depthwise),
               us(LAST[timed], (F * 1920 + 63) / 64 * B + net.parts(6, 96, bytes_of(timed)), 128, LAST_SHARED, last));
    }
    }
    printf("\n\n%s\n", failures ? "FAILED" : "all good");
    return failures != 0;
}
