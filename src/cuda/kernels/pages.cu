// Copies of whole pages of a KV cache to the host's memory and back.

#include <cstdint>

// `MOST` of thinker/host.rs: what a launch has room for among its arguments.
constexpr int MOST = 64;

// A page of the device and a slot of the host's memory.
struct Copy {
    uint32_t page;
    uint32_t slot;
};

// Units are 16 bytes. A slot is: the page's keys of all layers, its values, and its hidden states.
struct PagesArgs {
    uint4* keys;
    uint4* values;
    uint4* hidden;
    uint4* host;
    uint64_t layer;   // from one layer of the cache to the next
    int32_t layers;
    int32_t page;     // of one layer's keys, or values
    int32_t states;   // hidden states of a page; 0 for none
    int32_t count;
    int32_t to_host;
    int32_t unused;
    Copy copies[MOST];
};

// Grid: copies go round over x, the units of each over y.
extern "C" __global__ void copy_pages(const __grid_constant__ PagesArgs args) {
    const int side = args.layers * args.page, all = 2 * side + args.states;
    for (int i = blockIdx.x; i < args.count; i += gridDim.x) {
        const Copy copy = args.copies[i];
        uint4* const slot = args.host + uint64_t(copy.slot) * all;
        for (int unit = blockIdx.y * blockDim.x + threadIdx.x; unit < all; unit += gridDim.y * blockDim.x) {
            uint4* there;
            if (unit < 2 * side) {
                const int within = unit < side ? unit : unit - side;
                const int layer = within / args.page, offset = within % args.page;
                there = (unit < side ? args.keys : args.values) + layer * args.layer + uint64_t(copy.page) * args.page + offset;
            } else {
                there = args.hidden + uint64_t(copy.page) * args.states + (unit - 2 * side);
            }
            if (args.to_host) {
                slot[unit] = *there;
            } else {
                *there = slot[unit];
            }
        }
    }
}
