// The begin of a frame: the input of each row.

#include "common.cuh"
#include "frame.cuh"

struct BeginArgs {
    const StepHead* head;
    const StepRow* rows;
    const NewPage* new_pages;
    uint32_t* pages;      // [slots, max_pages]
    const float* codec;   // [slots, width]
    const void* text;     // T [.., width]
    float* x;             // [rows, width]: becomes the input of the layers
    uint32_t* slots;      // [rows]
    int* positions;       // [rows]
    float* axes;          // [rows, 3]
    int width, max_pages;
};

// One block per row. x = codec side + text side; notes which sequence and position the row is. The pages of a step are
// entered by block 0: they are needed only by kernels that come later.
template <typename T>
__device__ __forceinline__ void begin_frame(const BeginArgs& a) {
    // No later kernel may start before the rows are known: see attend_fast.
    wait_for_previous();
    stamp(a.head, 0);
    const int row = blockIdx.x;
    if (row == 0) {
        for (uint32_t i = threadIdx.x; i < a.head->pages; i += blockDim.x) {
            const NewPage n = a.new_pages[i];
            a.pages[static_cast<size_t>(n.slot) * a.max_pages + n.index] = n.page;
        }
    }
    const StepRow r = a.rows[row];
    if (threadIdx.x == 0) {
        a.slots[row] = r.slot == NONE ? 0 : r.slot;
        a.positions[row] = r.slot == NONE ? -1 : r.position;
    }
    if (threadIdx.x < 3) a.axes[row * 3 + threadIdx.x] = r.axes[threadIdx.x];
    float* x = a.x + static_cast<size_t>(row) * a.width;
    if (r.slot == NONE) {
        for (int i = threadIdx.x; i < a.width; i += blockDim.x) x[i] = 0.f;
        return;
    }
    const float* codec = a.codec + static_cast<size_t>(r.slot) * a.width;
    const T* text = static_cast<const T*>(a.text) + static_cast<size_t>(r.text) * a.width;
    for (int i = threadIdx.x; i < a.width; i += blockDim.x) x[i] = codec[i] + to_float(text[i]);
}

struct PromptArgs {
    const PromptRow* rows;
    const uint32_t* codes;    // frames of references, `groups` each
    float* codec;             // [slots, width]
    const float* x_vectors;   // [slots, width]
    const void* text;         // T [.., width]
    const void* table;        // T [codec ids, width]
    const void* const* tables; // groups - 1 tables T [codes, width]
    float* x;                 // [rows, width]
    uint32_t* slots;
    int* positions;
    float* axes;
    int width, groups;
};

// One block per position of a prompt. A last position that is marked so leaves its codec side in `codec` and runs with the
// layers of a frame; here it is padding.
template <typename T>
__device__ __forceinline__ void begin_prompt(const PromptArgs& a) {
    const int row = blockIdx.x;
    const PromptRow r = a.rows[row];
    const bool padding = r.slot == NONE;
    if (threadIdx.x == 0) {
        a.slots[row] = padding ? 0 : r.slot;
        a.positions[row] = padding || r.last ? -1 : r.position;
    }
    if (threadIdx.x < 3) a.axes[row * 3 + threadIdx.x] = r.axes[threadIdx.x];
    float* x = a.x + static_cast<size_t>(row) * a.width;
    for (int i = threadIdx.x; i < a.width; i += blockDim.x) {
        float side = 0.f;
        if (!padding) {
            if (r.kind == TOKEN) side = to_float(static_cast<const T*>(a.table)[static_cast<size_t>(r.codes) * a.width + i]);
            if (r.kind == NEXT) side = a.codec[static_cast<size_t>(r.slot) * a.width + i];
            if (r.kind == X_VECTOR) side = a.x_vectors[static_cast<size_t>(r.slot) * a.width + i];
            if (r.kind == REFERENCE_FRAME) {
                const uint32_t* codes = a.codes + r.codes;
                side = to_float(static_cast<const T*>(a.table)[static_cast<size_t>(codes[0]) * a.width + i]);
                for (int g = 1; g < a.groups; ++g) {
                    side = __fadd_rn(side, to_float(static_cast<const T*>(a.tables[g - 1])[static_cast<size_t>(codes[g]) * a.width + i]));
                }
            }
        }
        if (!padding && r.last) a.codec[static_cast<size_t>(r.slot) * a.width + i] = side;
        const float text = padding ? 0.f : to_float(static_cast<const T*>(a.text)[static_cast<size_t>(r.text) * a.width + i]);
        x[i] = side + text;
    }
}

extern "C" __global__ void __launch_bounds__(256) begin_frame_f32(const __grid_constant__ BeginArgs a) { begin_frame<float>(a); }
extern "C" __global__ void __launch_bounds__(256) begin_frame_bf16(const __grid_constant__ BeginArgs a) { begin_frame<bf16>(a); }
extern "C" __global__ void __launch_bounds__(256) begin_prompt_f32(const __grid_constant__ PromptArgs a) { begin_prompt<float>(a); }
extern "C" __global__ void __launch_bounds__(256) begin_prompt_bf16(const __grid_constant__ PromptArgs a) { begin_prompt<bf16>(a); }

// Rows of a table by their numbers, as they are: T [count, width].
template <typename T>
__device__ __forceinline__ void gather(const T* table, const uint32_t* ids, T* out, int width) {
    const T* from = table + static_cast<size_t>(ids[blockIdx.x]) * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) out[static_cast<size_t>(blockIdx.x) * width + i] = from[i];
}
extern "C" __global__ void gather_f32(const float* table, const uint32_t* ids, float* out, int width) { gather(table, ids, out, width); }
extern "C" __global__ void gather_bf16(const bf16* table, const uint32_t* ids, bf16* out, int width) { gather(table, ids, out, width); }

// f32 to T and back: loading.
extern "C" __global__ void to_bf16(const float* from, bf16* to, uint64_t count) {
    const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) to[i] = __float2bfloat16_rn(from[i]);
}
extern "C" __global__ void to_f32(const bf16* from, float* to, uint64_t count) {
    const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) to[i] = __bfloat162float(from[i]);
}
