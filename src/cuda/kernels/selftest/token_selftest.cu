// The thinker's sampling at its real vocabulary against the definitions on the host, and what it takes.
//   nvcc -O3 --std=c++17 -arch=sm_90 -I kernels -o token_selftest kernels/selftest/token_selftest.cu && ./token_selftest
#include "random.cu"
#include "token.cu"
#include "harness.cuh"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

constexpr int SIZE = 152064, ROWS_OF_TEST = 32;

double uniform_of(uint32_t step, uint32_t low, uint32_t high) {
    uint32_t c[4] = {step, 0, DOMAIN_THINKER, 0}, k0 = low, k1 = high;
    for (int i = 0; i < 10; ++i) {
        if (i) k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
        const uint64_t a = (uint64_t)c[0] * 0xD2511F53u, b = (uint64_t)c[2] * 0xCD9E8D57u;
        const uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k1, (uint32_t)a};
        for (int j = 0; j < 4; ++j) c[j] = next[j];
    }
    return (c[0] >> 8) / 16777216.0;
}

int expected(const float* logits, const uint32_t* counts, const SamplingArgs& p, double u) {
    std::vector<double> s(SIZE), w(SIZE);
    for (int i = 0; i < SIZE; ++i) {
        float x = logits[i];
        if (counts[i] && (p.repetition != 1 || p.frequency || p.presence)) {
            x = x > 0 ? x / p.repetition : x * p.repetition;
            const uint32_t n = counts[i] & 0x7FFFFFFF;
            if (n) x -= p.frequency * n + p.presence;
        }
        s[i] = x;
    }
    const int best = std::max_element(s.begin(), s.end()) - s.begin();
    if (p.temperature == 0) return best;
    double least = -INFINITY;
    if (p.top_k > 0 && p.top_k < (uint32_t)SIZE) {
        auto order = s;
        std::nth_element(order.begin(), order.begin() + p.top_k - 1, order.end(), std::greater<double>());
        least = order[p.top_k - 1];
    }
    double total = 0;
    for (int i = 0; i < SIZE; ++i) total += w[i] = s[i] >= least ? exp((s[i] - s[best]) / p.temperature) : 0;
    if (p.top_p < 1) {
        std::vector<int> ids(SIZE);
        for (int i = 0; i < SIZE; ++i) ids[i] = i;
        std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) { return w[a] > w[b]; });
        double before = 0;
        for (int i : ids) {
            if (before >= p.top_p * total) w[i] = 0;
            else before += w[i];
        }
    }
    total = 0;
    for (auto& x : w) total += x = x < p.min_p ? 0 : x;
    double at = 0;
    for (int i = 0; i < SIZE; ++i) if (w[i] > 0 && (at += w[i]) > u * total) return i;
    return best;
}

int main() {
    const SamplingArgs ways[] = {{0.f, 1.f, 0.f, 0, 1.05f, .1f, .2f, 0}, {.7f, 1.f, 0.f, 50, 1.f, 0, 0, 0}, {.7f, .8f, 0.f, 20, 1.05f, 0, 0, 0},
                                 {1.f, .9f, 0.f, 0, 1.f, 0, 0, 0},      {1.f, 1.f, 0.f, 0, 1.1f, 0, 0, 0}, {1.2f, .95f, .01f, 3000, 1.f, .2f, 0, 0}};
    float *logits, *from;
    uint32_t *counts, *done, *last, *out;
    TokenRow* rows;
    TokenParams* params;
    TokenHead* head;
    const size_t n = (size_t)ROWS_OF_TEST * SIZE;
    CK(cudaMalloc(&logits, n * 4));
    CK(cudaMalloc(&from, n * 4));
    CK(cudaMalloc(&counts, n * 4));
    CK(cudaMalloc(&done, ROWS_OF_TEST * 4));
    CK(cudaMalloc(&last, ROWS_OF_TEST * 4));
    CK(cudaMalloc(&rows, ROWS_OF_TEST * sizeof(TokenRow)));
    CK(cudaMalloc(&params, ROWS_OF_TEST * sizeof(TokenParams)));
    CK(cudaMalloc(&head, sizeof(TokenHead)));
    CK(cudaHostAlloc(&out, ROWS_OF_TEST * 8, cudaHostAllocMapped));
    fill_random_f32<<<1024, 256>>>(from, n, 7, 31, 9.f);
    CK(cudaDeviceSynchronize());
    std::vector<float> host(n);
    CK(cudaMemcpy(host.data(), from, n * 4, cudaMemcpyDeviceToHost));
    std::vector<uint32_t> seen(n);
    for (size_t i = 0; i < n; ++i) seen[i] = (i * 2654435761u >> 20) % 9 == 0 ? (i % 3) + (i % 2 ? 0x80000000u : 0u) : 0;
    // Rounded, so that many are equal, in half of the rows.
    for (size_t i = 0; i < n / 2; ++i) host[i] = roundf(host[i] * 4) / 4;
    CK(cudaMemcpy(from, host.data(), n * 4, cudaMemcpyHostToDevice));
    const TokenHead h{(uint64_t)out, 0};
    CK(cudaMemcpy(head, &h, sizeof h, cudaMemcpyHostToDevice));
    int bad = 0;
    for (const SamplingArgs& p : ways) {
        std::vector<TokenRow> table;
        std::vector<TokenParams> own(ROWS_OF_TEST);
        for (int i = 0; i < ROWS_OF_TEST; ++i) {
            table.push_back({(uint32_t)i, 5, NONE, (uint32_t)i * 3, 0, NONE, NONE, 0, {}, 0});
            own[i].sampling = p;
            own[i].seed_low = 11 + i;
            own[i].seed_high = 12;
        }
        CK(cudaMemcpy(rows, table.data(), table.size() * sizeof(TokenRow), cudaMemcpyHostToDevice));
        CK(cudaMemcpy(params, own.data(), own.size() * sizeof(TokenParams), cudaMemcpyHostToDevice));
        float best_ms = 1e9f;
        int wrong = 0;
        for (int turn = 0; turn < 5; ++turn) {
            CK(cudaMemcpy(logits, from, n * 4, cudaMemcpyDeviceToDevice));
            CK(cudaMemcpy(counts, seen.data(), n * 4, cudaMemcpyHostToDevice));
            CK(cudaMemset(done, 0, ROWS_OF_TEST * 4));
            cudaEvent_t e0, e1;
            CK(cudaEventCreate(&e0));
            CK(cudaEventCreate(&e1));
            CK(cudaDeviceSynchronize());
            CK(cudaEventRecord(e0));
            sample_token<<<ROWS_OF_TEST, SAMPLERS>>>({logits, head, rows, params, counts, done, last, SIZE});
            CK(cudaGetLastError());
            CK(cudaEventRecord(e1));
            CK(cudaDeviceSynchronize());
            float ms;
            CK(cudaEventElapsedTime(&ms, e0, e1));
            best_ms = std::min(best_ms, ms);
        }
        for (int i = 0; i < ROWS_OF_TEST; ++i) {
            const int want = expected(&host[(size_t)i * SIZE], &seen[(size_t)i * SIZE], p, uniform_of(i * 3, 11 + i, 12));
            if ((int)out[2 * i] != want || out[2 * i + 1] != 0) {
                if (wrong++ < 3) printf("  row %d: %u, status %u, expected %d\n", i, out[2 * i], out[2 * i + 1], want);
            }
        }
        bad += wrong;
        printf("temperature %.1f top-k %u top-p %.2f min-p %.2f: %d of %d differ, %.1f us for %d rows\n", p.temperature, p.top_k, p.top_p, p.min_p, wrong, ROWS_OF_TEST, best_ms * 1e3, ROWS_OF_TEST);
    }
    return bad != 0;
}
