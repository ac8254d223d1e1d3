//! Mixture of experts on the device: `kernels/moe.cu`.

use super::buffer::Buffer;
use super::device::Gpu;
use super::error::CudaError;
use super::kernel::{Kernel, Shape, kernel_args};
use super::linear::{Input, Linear, Mode, Norm, Products};
use super::many::{self, ExpertWeights, ManyExperts};
use super::stream::Stream;
use super::weights::{Uploader, Weight, element_size};
use omni_config::Precision;
use omni_model::LoadError;
use omni_model::hf::{DecoderConfig, MoeConfig};
use omni_model::weights::Scope;

/// `MAX_EXPERTS` and `MAX_CHOICES` of `kernels/moe.cuh`.
const MAX_EXPERTS: usize = 512;
const MAX_CHOICES: usize = 32;
/// Pairs of an expert that a tile takes: of `kernels/prompt_moe.cu`, and of `kernels/many_linear_90a.cu`.
const TILES: [usize; 3] = [32, 64, many::PAIRS];
const MANY: usize = 2;
/// Shared memory of such a tile.
const TILE_BYTES: fn(usize) -> usize = |pairs| 4 * (128 + pairs) * 64 * 2;
/// Pairs per expert from which the larger tiles read weights less often, and from which those of Hopper are faster. As
/// measured on an H200, docs/cuda-thinker.md.
const MANY_PAIRS: usize = 96;
const MANY_PAIRS_HOPPER: usize = 32;
/// Up to so many pairs of a row and an expert, each pair reads the expert's weights for itself, because few pairs share
/// an expert. As measured on an H200, docs/cuda-thinker.md.
const FEW_PAIRS: usize = 56;
/// Choices that the kernel for few rows takes, a warp each.
const FEW_CHOICES: usize = 8;
const THREADS: u32 = 256;

/// A router, its experts, and the expert that every row visits, if there is one.
pub(super) struct Moe {
    sizes: Sizes,
    router: Linear,
    /// Of all experts, one behind the other: `[2 * inner, hidden]` in turns of eight rows, and `[hidden, inner]`.
    gate_up: Weight,
    down: Weight,
    shared: Option<Shared>,
}

/// The weights of a router and of all experts, which no other one stands beside.
pub(crate) struct Routed<'a> {
    pub router: &'a Linear,
    pub gate_up: &'a Weight,
    pub down: &'a Weight,
}

struct Shared {
    gate: Weight,
    gate_up: Weight,
    down: Weight,
}

#[derive(Clone, Copy, Debug)]
struct Sizes {
    hidden: usize,
    experts: usize,
    top_k: usize,
    inner: usize,
    shared: usize,
    normalize: bool,
}

impl Sizes {
    fn of(config: &MoeConfig, hidden: usize) -> Sizes {
        Sizes {
            hidden,
            experts: config.num_experts,
            top_k: config.num_experts_per_tok,
            inner: config.moe_intermediate_size,
            shared: config.shared_expert_intermediate_size.unwrap_or(0),
            normalize: config.norm_topk_prob,
        }
    }

    /// Experts that a row visits.
    fn choices(&self) -> usize {
        self.top_k + usize::from(self.shared > 0)
    }

    fn width(&self) -> usize {
        self.inner.max(self.shared)
    }

    /// Groups of up to `of` pairs that so many rows can make.
    fn groups(&self, rows: usize, of: usize) -> usize {
        let pairs = rows * self.choices();
        pairs.min(self.experts + 1 + pairs / of)
    }

    /// Which of [`TILES`] suits so many rows; `hopper`: whether the last one is there.
    fn tile(&self, rows: usize, hopper: bool) -> usize {
        let pairs = rows * self.top_k / self.experts.max(1);
        match hopper {
            true if pairs >= MANY_PAIRS_HOPPER => MANY,
            _ => usize::from(pairs >= MANY_PAIRS),
        }
    }

    /// Whether the kernels on tensor cores take them; the plain ones take any. Of a width that is no multiple of 8 the
    /// last turn of gate and up is short, and so such a width must never be fast.
    fn fast(&self) -> bool {
        self.hidden.is_multiple_of(512) && self.inner.is_multiple_of(64) && self.shared.is_multiple_of(64)
    }
}

/// `RouteArgs` of `kernels/moe.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
struct RouteArgs {
    logits: u64,
    x: u64,
    gain: u64,
    gate: u64,
    positions: u64,
    normed: u64,
    chosen: u64,
    weights: u64,
    rows: i32,
    hidden: i32,
    experts: i32,
    top_k: i32,
    choices: i32,
    normalize: i32,
    eps: f32,
    deals: i32,
}

/// `MoeArgs` of `kernels/moe.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Args {
    gate_up: u64,
    down: u64,
    shared_gate_up: u64,
    shared_down: u64,
    normed: u64,
    between: u64,
    x: u64,
    chosen: u64,
    weights: u64,
    order: u64,
    groups: u64,
    outputs: u64,
    rows: i32,
    hidden: i32,
    inner: i32,
    shared_inner: i32,
    width: i32,
    experts: i32,
    choices: i32,
    max_groups: i32,
    group: i32,
    unused: i32,
}

impl Moe {
    /// Loads `gate`, `experts.*` and, if the config has one, `shared_expert` below `scope`.
    pub fn load(up: &Uploader, config: &MoeConfig, hidden: usize, scope: &Scope<'_>) -> Result<Moe, LoadError> {
        let sizes = Sizes::of(config, hidden);
        let Sizes { experts, inner, .. } = sizes;
        if experts > MAX_EXPERTS || sizes.choices() > MAX_CHOICES || !hidden.is_multiple_of(4) {
            let reason = format!(
                "{experts} experts of {hidden} inputs, {} for every position, are not served on a GPU: expected up to \
                 {MAX_EXPERTS}, a multiple of 4, and up to {MAX_CHOICES}",
                sizes.choices()
            );
            return Err(LoadError::Invalid { file: "config.json".into(), reason });
        }
        let (gate_up, down) = (up.room(experts * 2 * inner * hidden)?, up.room(experts * inner * hidden)?);
        for e in 0..experts {
            let expert = scope.at("experts").at(e);
            let halves = [&expert.at("gate_proj"), &expert.at("up_proj")];
            up.put_gate_up(&gate_up, e * 2 * inner * hidden, halves, "weight", inner, hidden)?;
            up.put(&down, e * inner * hidden, &expert.at("down_proj"), "weight", &[hidden, inner])?;
        }
        let shared = |inner| -> Result<Shared, LoadError> {
            let expert = scope.at("shared_expert");
            let halves = [&expert.at("gate_proj"), &expert.at("up_proj")];
            Ok(Shared {
                gate: up.tensor(&scope.at("shared_expert_gate"), "weight", &[1, hidden])?,
                gate_up: up.gate_up(halves, "weight", inner, hidden)?,
                down: up.tensor(&expert.at("down_proj"), "weight", &[hidden, inner])?,
            })
        };
        Ok(Moe {
            router: Linear::load(up, &scope.at("gate"), hidden, experts, false)?,
            shared: config.shared_expert_intermediate_size.map(shared).transpose()?,
            gate_up,
            down,
            sizes,
        })
    }
}

impl Moe {
    /// The weights, for kernels that take them in another order; `None` where every row visits one of the experts.
    pub(crate) fn routed(&self) -> Option<Routed<'_>> {
        let Moe { router, gate_up, down, shared, .. } = self;
        shared.is_none().then_some(Routed { router, gate_up, down })
    }

    /// Of all experts, and of the one that every row visits: gate and up, and down.
    fn weights(&self) -> [(ExpertWeights, Option<ExpertWeights>); 2] {
        let Sizes { hidden, experts, inner, shared, .. } = self.sizes;
        let of = |weight: &Weight, rows, inputs| ExpertWeights { address: weight.address(), rows, inputs };
        let own = self.shared.as_ref();
        [
            (of(&self.gate_up, experts * 2 * inner, hidden), own.map(|own| of(&own.gate_up, 2 * shared, hidden))),
            (of(&self.down, experts * hidden, inner), own.map(|own| of(&own.down, hidden, shared))),
        ]
    }
}

/// Kernels for experts, and their scratch memory.
pub struct Experts {
    route: Kernel,
    /// Gate and up, and down.
    plain: [Kernel; 2],
    fast: Option<Fast>,
    /// Only the kernels for many rows, in which of [`TILES`]: for tests.
    grouped: Option<usize>,
    logits: Buffer<f32>,
    normed: Buffer<u8>,
    chosen: Buffer<i32>,
    weights: Buffer<f32>,
    order: Buffer<i32>,
    groups: Buffer<i32>,
    between: Buffer<u8>,
    /// The output of each expert for each of its rows, unweighted.
    outputs: Buffer<f32>,
}

#[derive(Clone, Copy)]
struct Fast {
    few: [Kernel; 2],
    sort: Kernel,
    /// For each of the first [`TILES`], gate and up, and down.
    tiles: [[Kernel; 2]; MANY],
    /// For the last one.
    many: Option<ManyExperts>,
    gather: Kernel,
}

impl Experts {
    /// For up to `rows` rows of any of these stacks; `None` where none of them has experts.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(
        gpu: &Gpu,
        precision: Precision,
        rows: usize,
        stacks: &[&DecoderConfig],
    ) -> Result<Option<Experts>, CudaError> {
        let with = stacks.iter().filter_map(|c| c.moe.as_ref().map(|moe| Sizes::of(moe, c.hidden_size)));
        let sizes: Vec<Sizes> = with.collect();
        if sizes.is_empty() {
            return Ok(None);
        }
        let most = |of: &dyn Fn(&Sizes) -> usize| sizes.iter().map(of).max().unwrap_or(1);
        let pairs = rows * most(&|s| s.choices());
        let bytes = element_size(precision);
        let (route, plain, fast) = match precision {
            Precision::F32 => ("moe_route_f32", ["moe_gate_up_plain_f32", "moe_down_plain_f32"], None),
            Precision::Bf16 => {
                let fast = Fast {
                    few: [gpu.kernel("moe_gate_up_few")?, gpu.kernel("moe_down_few")?],
                    sort: gpu.kernel("moe_sort")?,
                    tiles: [
                        [gpu.kernel("moe_gate_up_tiles32")?, gpu.kernel("moe_down_tiles32")?],
                        [gpu.kernel("moe_gate_up_tiles64")?, gpu.kernel("moe_down_tiles64")?],
                    ],
                    gather: gpu.kernel("moe_gather")?,
                    many: ManyExperts::new(gpu)?,
                };
                for (kernels, pairs) in fast.tiles.iter().zip(TILES) {
                    for kernel in kernels {
                        kernel.allow_shared(TILE_BYTES(pairs))?;
                    }
                }
                ("moe_route_bf16", ["moe_gate_up_plain_bf16", "moe_down_plain_bf16"], Some(fast))
            }
        };
        // Each row of what is kept is as wide as the stack wants it: together they fit into the widest.
        let outputs = if fast.is_some() { most(&|s| rows * s.choices() * s.hidden) } else { 1 };
        Ok(Some(Experts {
            route: gpu.kernel(route)?,
            plain: [gpu.kernel(plain[0])?, gpu.kernel(plain[1])?],
            fast,
            grouped: None,
            logits: gpu.zeros("scratch", rows * most(&|s| s.experts))?,
            normed: gpu.zeros("scratch", rows * most(&|s| s.hidden) * bytes)?,
            chosen: gpu.zeros("scratch", pairs)?,
            weights: gpu.zeros("scratch", pairs)?,
            order: gpu.zeros("scratch", pairs)?,
            groups: gpu.zeros("scratch", 4 * most(&|s| s.groups(rows, TILES[0])))?,
            between: gpu.zeros("scratch", most(&|s| rows * s.choices() * s.width()) * bytes)?,
            outputs: gpu.zeros("scratch", outputs)?,
        }))
    }

    /// The same without the fast kernels.
    #[must_use]
    pub fn plain(mut self) -> Experts {
        self.fast = None;
        self
    }

    /// The same with the kernels for many rows whatever their number, by tiles of 32 pairs, of 64, or of those for Hopper;
    /// `None` where these tiles are not there.
    #[must_use]
    pub fn grouped(mut self, tile: usize) -> Option<Experts> {
        let there = tile < MANY || tile == MANY && self.fast.is_some_and(|fast| fast.many.is_some());
        self.grouped = Some(tile);
        there.then_some(self)
    }

    /// Queues `x += experts(norm(x))` for the residual stream `x [rows, hidden]`; rows of a negative position stay.
    #[expect(clippy::too_many_arguments, reason = "a layer's, and what it runs on")]
    pub(super) fn run(
        &self,
        stream: &Stream,
        products: &Products,
        moe: &Moe,
        norm: Norm,
        x: u64,
        positions: u64,
        rows: usize,
    ) -> Result<(), CudaError> {
        let s = &moe.sizes;
        let (choices, width) = (s.choices(), s.width());
        let pairs = rows * choices;
        let fast = self.fast.filter(|_| s.fast());
        let few = pairs <= FEW_PAIRS && choices <= FEW_CHOICES && self.grouped.is_none();
        // Of many rows the router takes the normed ones that the experts take, with the same bits.
        let ready = fast.is_some() && !few && products.is_fast(&moe.router);
        // Whose rows must be dealt for the router, too.
        let many = fast.and_then(|fast| fast.many).filter(|_| ready && products.can_deal(&moe.router, rows));
        let tile = self.grouped.unwrap_or_else(|| s.tile(rows, many.is_some()));
        let many = many.filter(|_| tile == MANY);
        let deals = many.is_some();
        let tile = if deals { MANY } else { tile.min(MANY - 1) };
        let input = if ready {
            products.norm(stream, x, norm, self.normed.address(), rows, s.hidden, deals)?;
            if deals { Input::Dealt(self.normed.address()) } else { Input::Ready(self.normed.address()) }
        } else {
            Input::Normed(x, norm)
        };
        products.run(stream, Mode::StoreF32, &moe.router, input, self.logits.address(), rows)?;
        let shared = moe.shared.as_ref();
        let address = |of: fn(&Shared) -> &Weight| shared.map_or(0, |shared| of(shared).address());
        let route = RouteArgs {
            logits: self.logits.address(),
            x: if ready { 0 } else { x },
            gain: norm.gain,
            gate: address(|shared| &shared.gate),
            positions,
            normed: self.normed.address(),
            chosen: self.chosen.address(),
            weights: self.weights.address(),
            rows: rows as i32,
            hidden: s.hidden as i32,
            experts: s.experts as i32,
            top_k: s.top_k as i32,
            choices: choices as i32,
            normalize: i32::from(s.normalize),
            eps: norm.eps,
            deals: i32::from(deals),
        };
        let max_groups = s.groups(rows, TILES[tile]);
        let args = Args {
            gate_up: moe.gate_up.address(),
            down: moe.down.address(),
            shared_gate_up: address(|shared| &shared.gate_up),
            shared_down: address(|shared| &shared.down),
            normed: self.normed.address(),
            between: self.between.address(),
            x,
            chosen: self.chosen.address(),
            weights: self.weights.address(),
            order: self.order.address(),
            groups: self.groups.address(),
            outputs: self.outputs.address(),
            rows: rows as i32,
            hidden: s.hidden as i32,
            inner: s.inner as i32,
            shared_inner: s.shared as i32,
            width: width as i32,
            experts: s.experts as i32,
            choices: choices as i32,
            max_groups: max_groups as i32,
            group: TILES[tile] as i32,
            unused: 0,
        };
        // SAFETY: the argument is `RouteArgs`; all addresses are of the layer's weights, of buffers made for so many
        // rows, and of the caller's rows.
        unsafe {
            let shape = Shape::new(rows.div_ceil(8), THREADS).overlapping();
            self.route.launch(stream, shape, kernel_args![route])?;
        }
        let step = |kernel: Kernel, shape: Shape| {
            // SAFETY: as above, with `MoeArgs`.
            unsafe { kernel.launch(stream, shape.overlapping(), kernel_args![args]) }
        };
        match fast {
            None => {
                step(self.plain[0], Shape::new(width.div_ceil(8), THREADS).by(pairs))?;
                step(self.plain[1], Shape::new(s.hidden.div_ceil(8), THREADS).by(rows))
            }
            Some(fast) if few => {
                step(fast.few[0], Shape::new(width / 8, THREADS).by(pairs))?;
                step(fast.few[1], Shape::new(s.hidden / 16, 32 * choices as u32).by(rows))
            }
            Some(fast) => {
                step(fast.sort, Shape::new(1, 1024))?;
                if let Some(many) = many {
                    many.run(stream, args, moe.weights())?;
                } else {
                    let shape = |weights: usize| {
                        Shape::new(weights / 128, THREADS).by(max_groups).shared(TILE_BYTES(TILES[tile]))
                    };
                    step(fast.tiles[tile][0], shape(2 * width))?;
                    step(fast.tiles[tile][1], shape(s.hidden))?;
                }
                step(fast.gather, Shape::new(rows, THREADS))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_width_of_experts_that_is_no_multiple_of_8_takes_the_plain_kernels() {
        let sizes = |inner, shared| Sizes { hidden: 2048, experts: 128, top_k: 8, inner, shared, normalize: true };
        assert!(sizes(768, 0).fast() && sizes(384, 768).fast(), "thinker and talker of Qwen3-Omni");
        for odd in (1..1024).filter(|width| width % 8 > 0) {
            assert!(!sizes(odd, 0).fast() && !sizes(768, odd).fast(), "{odd}");
        }
    }
}
