// Tables that tell the thinker's kernels about rows. The same layouts as in src/cuda/thinker/table.rs.
#pragma once

#include "frame.cuh"

// One row of a step: a position of a prompt, or the next token of an answer.
struct TokenRow {
    uint32_t slot;  // NONE: padding of the batch
    int32_t position;
    uint32_t token; // NONE: the one that the slot sampled last
    uint32_t count; // tokens sampled before this step
    uint32_t flags; // LAST: the limit is reached with this token; SEEN
    uint32_t media; // row of the pass's media that takes the place of the token's embedding; NONE: it does not
    uint32_t hand;  // row of `handed` that its hidden state goes to; NONE: none
    uint32_t of;    // of a row that is sampled behind a pass: which row of the pass it is
    float axes[3];  // positions that the rotation takes
    uint32_t unused_too;
};

// The row of media has levels that are added behind the first layers (deepstack).
constexpr uint32_t SEEN = 4;

// Ahead of the rows of a step.
struct TokenHead {
    uint64_t out;    // u32 [rows, 2] in memory of the host: the token, its status as in frame.cuh
    uint64_t handed; // T [.., width]: where hidden states go: among what the step hands on, or beside the cache's pages
};

constexpr int MAX_STOPS = 12;

// The state of a slot while its sequence lives.
struct TokenParams {
    SamplingArgs sampling;
    uint32_t seed_low, seed_high;
    uint32_t stops; // how many
    uint32_t unused;
    uint32_t stop[MAX_STOPS];
};

struct BeginTokensArgs {
    const TokenRow* rows;
    const uint32_t* last; // [slots]
    uint32_t* counts;     // [slots, size]: times a token was sampled; bit 31 for tokens of the prompt
    const void* table;    // T [size, width]
    float* x;             // [rows, width]
    uint32_t* slots;      // [rows]
    int* positions;       // [rows]
    float* axes;          // [rows, 3]
    const float* media;   // [.., levels + 1, width]
    int width, size, media_width, unused;
};

// What media change between layers.
struct MediaArgs {
    const TokenHead* head;
    const TokenRow* rows;
    const float* media; // [.., levels + 1, width]
    float* x;           // [rows, width]
    const void* gain;   // T [width]: of the norm that hidden states go through; null: none
    int width, media_width, level;
    float eps;
};

struct SampleTokenArgs {
    float* logits; // [rows, size]; penalties are applied in place
    const TokenHead* head;
    const TokenRow* rows;
    const TokenParams* params; // [slots]
    uint32_t* counts;          // [slots, size]
    uint32_t* done;            // [slots]
    uint32_t* last;            // [slots]
    int size;
};

// In `sources`, NONE is what is handed on otherwise; with SAMPLED: the token that the slot in the other bits sampled last.
constexpr uint32_t SAMPLED = 0x80000000u;

struct TakeRowsArgs {
    const uint32_t* of; // of each record of a table, `stride` words apart: which row of `x`
    const float* x;     // [.., width]: the residual stream of a pass
    float* out;         // [records, width]
    int width, stride;
};

struct PlaceRowsArgs {
    const uint32_t* places; // [rows] in memory of the host: rows of the table
    const void* rows;       // T [rows, width]
    void* table;            // T [.., width]
    int width, unused;
};

struct HandRowsArgs {
    const uint32_t* sources; // [rows] in memory of the host: rows of the table, or slots with SAMPLED
    const uint32_t* last;    // [slots]
    const void* table;       // T [.., width]: embeddings by token, or hidden states beside the cache's pages
    void* out;               // T [rows, width]
    int width, unused;
};
