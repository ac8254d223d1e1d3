// Attention of layers with eight query heads per kv head on the tensor cores: bf16, head_dim 128.
//
//   attend_group8_write   launches whose rows are all different sequences; writes its own key and value on the way
//   attend_group8_prompt  any rows, fast where neighbours are positions of one sequence; keys and values must be written
//
// Both have the same bits: group_attention.cuh says what is added before what.

#include "group_attention.cuh"

// Norms and turns a head into `to`.
__device__ __forceinline__ void turned(const AttentionArgs& a, const Turn<bf16>& turn, const bf16* head, bf16* to, int lane) {
    float low[MAX_PAIRS], high[MAX_PAIRS];
    turn.head(a, head, lane, low, high);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        to[lane + i * WARP] = __float2bfloat16_rn(low[i]);
        to[lane + i * WARP + DIM / 2] = __float2bfloat16_rn(high[i]);
    }
}

// ---- different sequences -----------------------------------------------------------------------------------------------

// Each warp takes a stream of all eight heads, which are rows 0 to 7 of its tiles. Grid: (kv_heads, rows).
//
// What lies in the cache before the row's own position is read while the kernel ahead still runs: see attend_fast.
__device__ __forceinline__ void attend_alone(const AttentionArgs& a) {
    __shared__ __align__(16) bf16 queries[GROUP][PITCH], own_key[DIM], own_value[DIM];
    __shared__ float most_of[STREAMS][GROUP], sum_of[STREAMS][GROUP];
    __shared__ __align__(16) float mixed[STREAMS][GROUP][DIM];

    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int kv_head = blockIdx.x, row = blockIdx.y, position = a.positions[row];
    const uint32_t slot = a.slots[row];
    const bf16* keys = static_cast<const bf16*>(a.keys);
    const bf16* values = static_cast<const bf16*>(a.values);
    const uint32_t* own_pages = a.pages + static_cast<size_t>(slot) * a.max_pages;
    // Pages of a piece.
    uint32_t page[2] = {};
    const auto find = [&](int first) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (first + i * PAGE < position) page[i] = own_pages[first / PAGE + i];
        }
    };
    uint4 key[KEYS][4], value[PIECE / 16][4][2];
    const auto lies = [&](int of) { return ((static_cast<size_t>(page[of / PAGE]) * a.kv_heads + kv_head) * PAGE + of % PAGE) * DIM; };
    const uint4 nothing = make_uint4(0, 0, 0, 0);
    const auto fetch_keys = [&](int first) {
#pragma unroll
        for (int n = 0; n < KEYS; ++n) {
            const int of = n * 8 + g;
            const uint4* from = reinterpret_cast<const uint4*>(keys + lies(of));
#pragma unroll
            for (int s = 0; s < 4; ++s) key[n][s] = first + of < position ? from[s * 4 + t] : nothing;
        }
    };
    // Lane (g, t) has of each tile of 16 positions four, and of each of these 16 neighbouring numbers.
    const auto place_of = [&](int i) { return i / 4 * 16 + i % 4 / 2 * 8 + 2 * t + i % 2; };
    const auto fetch_values = [&](int first) {
#pragma unroll
        for (int i = 0; i < PIECE / 4; ++i) {
            const int of = place_of(i);
            const uint4* from = reinterpret_cast<const uint4*>(values + lies(of));
#pragma unroll
            for (int s = 0; s < 2; ++s) value[i / 4][i % 4][s] = first + of < position ? from[g * 2 + s] : nothing;
        }
    };
    int first = warp * PIECE;
    if (first < position) find(first);
    if (first < position) {
        fetch_keys(first);
        fetch_values(first);
    } else {
#pragma unroll
        for (int n = 0; n < KEYS; ++n) {
#pragma unroll
            for (int s = 0; s < 4; ++s) key[n][s] = nothing;
        }
#pragma unroll
        for (int i = 0; i < PIECE / 4; ++i) value[i / 4][i % 4][0] = value[i / 4][i % 4][1] = nothing;
    }
    const Turn<bf16> turn(a, static_cast<const bf16*>(a.q_norm), row, max(position, 0), lane);
    wait_for_previous();
    let_next_start();
    if (position < 0) return;

    turned(a, turn, head_of<bf16>(a, row, kv_head * GROUP + warp), queries[warp], lane);
    if (warp == 6) {
        const Turn<bf16> turn_key(a, static_cast<const bf16*>(a.k_norm), row, position, lane);
        turned(a, turn_key, head_of<bf16>(a, row, a.heads + kv_head), own_key, lane);
        __syncwarp();
        uint2* to = reinterpret_cast<uint2*>(static_cast<bf16*>(a.keys) + cache_at(a, slot, position, kv_head));
        to[lane] = reinterpret_cast<const uint2*>(own_key)[lane];
    } else if (warp == 7) {
        const uint2 own = reinterpret_cast<const uint2*>(head_of<bf16>(a, row, a.heads + a.kv_heads + kv_head))[lane];
        reinterpret_cast<uint2*>(own_value)[lane] = own;
        reinterpret_cast<uint2*>(static_cast<bf16*>(a.values) + cache_at(a, slot, position, kv_head))[lane] = own;
    }
    __syncthreads();

    uint4 query[4];
#pragma unroll
    for (int s = 0; s < 4; ++s) query[s] = *reinterpret_cast<const uint4*>(&queries[g][s * 32 + t * 8]);
    const float scale = a.scale * LOG2E;
    Seen<1> seen;
    seen.clear();
    for (; first <= position; first += STREAMS * PIECE) {
        const int own = position - first; // where the row's own key belongs, if it is of this piece
        const int next = first + STREAMS * PIECE;
        if (own < PIECE) {
#pragma unroll
            for (int n = 0; n < KEYS; ++n) {
                if (n * 8 + g != own) continue;
#pragma unroll
                for (int s = 0; s < 4; ++s) key[n][s] = reinterpret_cast<const uint4*>(own_key)[s * 4 + t];
            }
#pragma unroll
            for (int i = 0; i < PIECE / 4; ++i) {
                if (place_of(i) != own) continue;
#pragma unroll
                for (int s = 0; s < 2; ++s) value[i / 4][i % 4][s] = reinterpret_cast<const uint4*>(own_value)[g * 2 + s];
            }
        }
        if (next <= position) find(next);
        float score[KEYS][2] = {};
#pragma unroll
        for (int s = 0; s < 8; ++s) {
#pragma unroll
            for (int n = 0; n < KEYS; ++n) mma_eight_half(score[n], query[s / 2], key[n][s / 2], s % 2);
        }
        if (next <= position) fetch_keys(next);
        uint32_t weights[PIECE / 16][2];
        const int limit[1] = {own};
        seen.weigh(score, limit, scale, weights);
#pragma unroll
        for (int b = 0; b < PIECE / 16; ++b) {
#pragma unroll
            for (int s = 0; s < 2; ++s) {
                const uint4(&v)[4][2] = value[b];
                const uint32_t words[4][4] = {{v[0][s].x, v[0][s].y, v[0][s].z, v[0][s].w}, {v[1][s].x, v[1][s].y, v[1][s].z, v[1][s].w},
                                              {v[2][s].x, v[2][s].y, v[2][s].z, v[2][s].w}, {v[3][s].x, v[3][s].y, v[3][s].z, v[3][s].w}};
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    const int order = j % 2 ? 0x7632 : 0x5410;
                    const uint32_t b0 = __byte_perm(words[0][j / 2], words[1][j / 2], order), b1 = __byte_perm(words[2][j / 2], words[3][j / 2], order);
                    mma_eight(seen.mix[s * 8 + j], weights[b][0], weights[b][1], b0, b1);
                }
            }
        }
        if (next <= position) fetch_values(next);
    }
    const float sum = over_lanes(seen.sum[0]);
    if (t == 0) {
        most_of[warp][g] = seen.most[0];
        sum_of[warp][g] = sum;
    }
    // Tile j of this lane's columns 2t and 2t + 1 are numbers 16 * column + j.
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
        for (int j = 0; j < VALUES; j += 4) {
            *reinterpret_cast<float4*>(&mixed[warp][g][(2 * t + c) * 16 + j]) =
                make_float4(seen.mix[j][c], seen.mix[j + 1][c], seen.mix[j + 2][c], seen.mix[j + 3][c]);
        }
    }
    __syncthreads();
    // A warp adds up the streams of a head.
    const StreamShares shares(most_of, sum_of, warp, scale);
    float all[4] = {};
#pragma unroll
    for (int s = 0; s < STREAMS; ++s) {
#pragma unroll
        for (int i = 0; i < 4; ++i) all[i] = shares.added(s, all[i], mixed[s][warp][lane * 4 + i]);
    }
    const uint2 mix = shares.mixed(all);
    bf16* out = static_cast<bf16*>(a.out) + (static_cast<size_t>(row) * a.heads + kv_head * GROUP + warp) * DIM;
    put_four(a, out, lane, mix.x, mix.y);
}

// ---- prompts -----------------------------------------------------------------------------------------------------------

constexpr int TILE_ROWS = 16;
constexpr int HELD = 3;                       // pieces in shared memory
constexpr int HELD_BYTES = 2 * PIECE_BYTES;    // keys, then values
constexpr int QUERIES_AT = HELD * HELD_BYTES;

// 16 rows and the eight heads of a kv head, a warp each; the sequences among the rows one after the other. Grid:
// (kv_heads, rows / 16 rounded up). Shared memory: HELD pieces and the queries.
__device__ __forceinline__ void attend_prompt(const AttentionArgs& a) {
    extern __shared__ __align__(128) unsigned char dynamic[];
    __shared__ int positions[TILE_ROWS];
    __shared__ uint32_t slots[TILE_ROWS];
    wait_for_previous();
    let_next_start();
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    // The last rows see most: they begin first.
    const int kv_head = blockIdx.x, row0 = (gridDim.y - 1 - blockIdx.y) * TILE_ROWS;
    if (threadIdx.x < TILE_ROWS) {
        const int row = row0 + threadIdx.x;
        positions[threadIdx.x] = row < a.rows ? a.positions[row] : -1;
        slots[threadIdx.x] = row < a.rows ? a.slots[row] : 0;
    }
    __syncthreads();
    bf16(*queries)[TILE_ROWS][PITCH] = reinterpret_cast<bf16(*)[TILE_ROWS][PITCH]>(dynamic + QUERIES_AT);
    for (int i = threadIdx.x; i < TILE_ROWS * GROUP * DIM / 8; i += blockDim.x) {
        const int of = i / (GROUP * DIM / 8), head = i / (DIM / 8) % GROUP, piece = i % (DIM / 8);
        const bool there = positions[of] >= 0;
        const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(&queries[head][of][piece * 8]));
        copy_async(to, head_of<bf16>(a, there ? row0 + of : 0, kv_head * GROUP + head) + piece * 8, there);
    }
    commit_copies();
    // A warp turns two rows, in place: each lane writes what it alone has read.
    for (int of = warp; of < TILE_ROWS; of += 8) {
        const int position = max(positions[of], 0);
        const Turn<bf16> turn(a, static_cast<const bf16*>(a.q_norm), min(row0 + of, a.rows - 1), position, lane);
        if (of == warp) {
            wait_copies<0>();
            __syncthreads();
        }
#pragma unroll
        for (int h = 0; h < GROUP; ++h) turned(a, turn, queries[h][of], queries[h][of], lane);
    }
    __syncthreads();
    uint4 low[4], high[4];
#pragma unroll
    for (int s = 0; s < 4; ++s) {
        low[s] = *reinterpret_cast<const uint4*>(&queries[warp][g][s * 32 + t * 8]);
        high[s] = *reinterpret_cast<const uint4*>(&queries[warp][g + 8][s * 32 + t * 8]);
    }
    const float scale = a.scale * LOG2E;
    const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(dynamic));
    // Where this thread's pieces of 16 bytes lie; half of a row further the shuffle is the same.
    const int copied = threadIdx.x / 8, copied_piece = threadIdx.x % 8;
    const uint32_t to = shared + copied * DIM * 2 + (copied_piece ^ shuffle_of(copied)) * 16;
    const uint32_t v_row = (lane & 7) + ((lane >> 3) & 1) * 8, v_piece = lane >> 4;

    for (int begin = 0; begin < TILE_ROWS;) {
        if (positions[begin] < 0) {
            ++begin;
            continue;
        }
        const uint32_t slot = slots[begin];
        int end = begin, last = 0;
        while (end < TILE_ROWS && positions[end] >= 0 && slots[end] == slot) last = max(last, positions[end++]);
        const int upto[2] = {g >= begin && g < end ? positions[g] : -1, g + 8 >= begin && g + 8 < end ? positions[g + 8] : -1};
        const int pieces = last / PIECE + 1;
        const uint32_t* own_pages = a.pages + static_cast<size_t>(slot) * a.max_pages + copied / PAGE;
        // The pieces by stream: those that are fetched, whose page is known one turn before.
        int fetched = 0, stage_to = 0;
        const auto page_of = [&](int piece) {
            return piece < pieces && piece * PIECE + copied <= last ? own_pages[piece * (PIECE / PAGE)] : 0u;
        };
        const auto after = [&](int piece) {
            const int next = piece + STREAMS;
            return next < pieces ? next : piece % STREAMS + 1 < min(STREAMS, pieces) ? piece % STREAMS + 1 : pieces;
        };
        uint32_t page = page_of(0);
        const auto fetch = [&] {
            if (fetched < pieces) {
                const bool there = fetched * PIECE + copied <= last;
                const size_t at = ((static_cast<size_t>(page) * a.kv_heads + kv_head) * PAGE + copied % PAGE) * DIM + copied_piece * 8;
                const bf16* key = static_cast<const bf16*>(a.keys) + at;
                const bf16* value = static_cast<const bf16*>(a.values) + at;
                const uint32_t into = to + stage_to * HELD_BYTES;
                copy_async(into, key, there);
                copy_async(into + 128, key + 64, there);
                copy_async(into + HELD_BYTES / 2, value, there);
                copy_async(into + HELD_BYTES / 2 + 128, value + 64, there);
                stage_to = stage_to + 1 == HELD ? 0 : stage_to + 1;
                fetched = after(fetched);
                page = page_of(fetched);
            }
            commit_copies();
        };
#pragma unroll
        for (int i = 0; i < HELD - 1; ++i) fetch();

        Seen<2> seen;
        float total[VALUES][4], total_most[2], total_sum[2];
        seen.clear();
        int stage = 0;
        for (int piece = 0; piece < pieces;) {
            wait_copies<HELD - 2>();
            __syncthreads();
            fetch();
            const uint32_t value_at = shared + stage * HELD_BYTES + HELD_BYTES / 2;
            float score[KEYS][4] = {};
#pragma unroll
            for (int s = 0; s < 4; ++s) {
                uint4 key[KEYS];
#pragma unroll
                for (int n = 0; n < KEYS; ++n) {
                    key[n] = *reinterpret_cast<const uint4*>(dynamic + stage * HELD_BYTES + lies_in_piece(n * 8 + g, s * 4 + t));
                }
#pragma unroll
                for (int half = 0; half < 2; ++half) {
#pragma unroll
                    for (int n = 0; n < KEYS; ++n) mma_half(score[n], low[s], high[s], key[n], half);
                }
            }
            const int limit[2] = {upto[0] - piece * PIECE, upto[1] - piece * PIECE};
            uint32_t weights[PIECE / 16][4];
            seen.weigh(score, limit, scale, weights);
#pragma unroll
            for (int b = 0; b < PIECE / 16; ++b) {
#pragma unroll
                for (int j = 0; j < VALUES / 2; ++j) {
                    uint32_t v[4];
                    load_transposed(v, value_at + lies_in_piece(b * 16 + v_row, j * 2 + v_piece));
                    mma(seen.mix[j * 2], weights[b][0], weights[b][1], weights[b][2], weights[b][3], v[0], v[1]);
                    mma(seen.mix[j * 2 + 1], weights[b][0], weights[b][1], weights[b][2], weights[b][3], v[2], v[3]);
                }
            }
            stage = stage + 1 == HELD ? 0 : stage + 1;
            if (piece + STREAMS >= pieces) { // the stream ends
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float sum = over_lanes(seen.sum[half]);
                    const bool begins = piece % STREAMS == 0;
                    const Shares shares(begins ? -INFINITY : total_most[half], seen.most[half], scale);
                    total_sum[half] = begins ? sum : shares.of(total_sum[half], sum);
                    total_most[half] = begins ? seen.most[half] : shares.most;
#pragma unroll
                    for (int j = 0; j < VALUES; ++j) {
#pragma unroll
                        for (int i = half * 2; i < half * 2 + 2; ++i) {
                            total[j][i] = begins ? seen.mix[j][i] : shares.of(total[j][i], seen.mix[j][i]);
                        }
                    }
                }
                seen.clear();
            }
            piece = after(piece);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (upto[half] < 0) continue;
            bf16* out = static_cast<bf16*>(a.out) + (static_cast<size_t>(row0 + g + half * 8) * a.heads + kv_head * GROUP + warp) * DIM;
#pragma unroll
            for (int j = 0; j < VALUES; ++j) {
                const int at = j * 8 + 2 * t;
                *reinterpret_cast<uint32_t*>(out + out_at(a, at)) =
                    packed(__fdiv_rn(total[j][half * 2], total_sum[half]), __fdiv_rn(total[j][half * 2 + 1], total_sum[half]));
            }
        }
        // The next sequence's pieces come to where these are.
        wait_copies<0>();
        __syncthreads();
        begin = end;
    }
}

extern "C" __global__ void __launch_bounds__(256) attend_group8_write(const __grid_constant__ AttentionArgs a) { attend_alone(a); }
extern "C" __global__ void __launch_bounds__(256, 1) attend_group8_prompt(const __grid_constant__ AttentionArgs a) { attend_prompt(a); }
