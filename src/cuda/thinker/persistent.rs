//! All layers of a thinker as one launch for one sequence, on Hopper, in bf16 and with the sizes of Qwen3-Omni 30B-A3B: see
//! `kernels/thinker_90a.cu`. It reads the weights where the graph's kernels do, and gives the same bits.
//!
//! Its blocks take every multiprocessor, so it is launched only while no other stage uses the GPU.

use super::net::ThinkerNet;
use crate::buffer::Buffer;
use crate::decoder::{Cache, SparseLayer};
use crate::kernel::kernel_args;
use crate::persistent::{BLOCKS, Copying, Launch, Limits, Sizes, Stalled, fitting, stacked, unless_full};
use crate::spinning::WholeGpu;
use crate::stream::{Event, Stream};
use crate::tensor_map::TensorMap;
use crate::weights::element_size;
use crate::{CudaError, Gpu};
use omni_config::Precision;
use omni_core::ids::StageName;
use omni_model::hf::{DecoderConfig, MoeConfig};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The constants of `kernels/thinker.cuh`.
const HIDDEN: usize = 2048;
const HEADS: usize = 32;
const KV_HEADS: usize = 4;
const EXPERTS: usize = 128;
const CHOICES: usize = 8;
const INNER: usize = 768;
const MAX_LAYERS: usize = 60;
/// Outputs of a box of the experts' second products: `TILE` of `kernels/mma.cuh`.
const TILE: usize = 16;
/// Of `kernels/attention.cuh`.
const DIM: usize = 128;

/// `sizeof(Shared)`, `sizeof(Attending)` and `Hops::SIZE` of the kernel.
const MULTIPLYING: usize = 17_248;
const ATTENDING: usize = 134_784;
const HOPS: usize = 5505;
/// A block for each kv head attends.
const KERNEL: Sizes = Sizes {
    rows: 1,
    name: "thinker_1",
    blocks: BLOCKS + KV_HEADS,
    shared: MULTIPLYING,
    hops: HOPS * 16,
    ring: fitting(MULTIPLYING),
};
const _: () = assert!(KERNEL.dynamic() >= ATTENDING, "what attends lies in place of the ring");
/// The share of the memory's rate at which pieces are asked for: more than all, so that a ring fills up again behind a wait.
const SHARE: f64 = 1.08;

/// What a thinker has of them.
pub(super) struct Persistent {
    launch: Launch,
    /// How the copy engine finds the weights: `[layers][4]` tensor maps.
    maps: Buffer<u64>,
    routers: Buffer<u64>,
    gains: Buffer<u8>,
    qk_norm: Buffer<u8>,
    numbers: Numbers,
    limits: Limits,
    stalled: Arc<Stalled>,
    /// Launches, and those for which another stage used the GPU.
    asked: [AtomicU64; 2],
    whole: WholeGpu,
}

/// What the net gives to [`Args`].
#[derive(Clone, Copy)]
struct Numbers {
    frequencies: u64,
    axis_of: Option<u64>,
    layers: i32,
    normalize: i32,
    eps: f32,
}

/// A row of a sequence.
pub(super) struct Row<'a> {
    /// Address of the residual, f32 `[HIDDEN]`.
    pub x: u64,
    /// Address of its sequence number, u32.
    pub slots: u64,
    /// Address of its position, i32; negative for padding.
    pub positions: u64,
    /// Address of the three positions that the rotation takes, f32, for a net whose positions have three axes.
    pub axes: u64,
    pub cache: &'a Cache,
}

/// `ThinkerArgs` of `kernels/thinker.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    maps: u64,
    routers: u64,
    gains: u64,
    qk_norm: u64,
    frequencies: u64,
    hops: u64,
    keys: u64,
    values: u64,
    pages: u64,
    slots: u64,
    positions: u64,
    axes: u64,
    axis_of: u64,
    x: u64,
    stalled: u64,
    layer_size: u64,
    max_pages: i32,
    layers: i32,
    normalize: i32,
    eps: f32,
    scale: f32,
    copying: Copying,
    limit: u32,
}

impl Persistent {
    /// Room, and how the copy engine finds the weights, where the GPU, the config and the device's other users allow it.
    /// `limit`: the longest time of a launch.
    ///
    /// # Errors
    /// What the driver says; a device without room for it is no error.
    pub fn new(net: &ThinkerNet, limit: Duration, stream: &Stream) -> Result<Option<Persistent>, CudaError> {
        let gpu = &net.gpu;
        if !gpu.is_hopper() || (gpu.multiprocessors() as usize) < KERNEL.blocks {
            return Ok(None);
        }
        let Some(layers) = served(net) else { return Ok(None) };
        let whole = match WholeGpu::begin(gpu, Event::new(gpu)?) {
            Ok(whole) => whole,
            Err(why) => {
                tracing::info!(why, "the thinker runs as a graph");
                return Ok(None);
            }
        };
        let make = || -> Result<Persistent, CudaError> {
            let (stalled, limits) = Stalled::new(gpu, limit)?;
            let routers: Vec<u64> = layers.iter().map(|layer| layer.experts.router.weight().address()).collect();
            let made = Persistent {
                launch: Launch::new(gpu, &KERNEL, SHARE)?,
                maps: maps(gpu, &layers)?,
                routers: gpu.upload("persistent kernels", &routers)?,
                gains: stacked(gpu, stream, layers.iter().flat_map(|layer| layer.norms))?,
                qk_norm: stacked(gpu, stream, layers.iter().flat_map(|layer| layer.head_norms))?,
                numbers: Numbers {
                    frequencies: net.stack.frequencies(),
                    axis_of: net.stack.axis_of(),
                    layers: layers.len() as i32,
                    normalize: net.config.moe.as_ref().map_or(0, |moe| i32::from(moe.norm_topk_prob)),
                    eps: net.config.rms_norm_eps as f32,
                },
                limits,
                stalled: Arc::new(stalled),
                asked: Default::default(),
                whole,
            };
            stream.synchronize()?;
            Ok(made)
        };
        let made = unless_full(StageName::Thinker, make())?;
        if made.is_some() {
            tracing::info!(limit_ms = limit.as_millis() as u64, "the thinker's layers stay on the GPU");
        }
        Ok(made)
    }

    /// Queues all layers over the residual of a row. Only to be captured, or within [`Persistent::launch`].
    ///
    /// # Errors
    /// What the driver says.
    pub fn queue(&self, stream: &Stream, row: &Row<'_>) -> Result<(), CudaError> {
        let (launch, numbers) = (&self.launch, self.numbers);
        let [keys, values] = row.cache.buffers();
        let args = Args {
            maps: self.maps.address(),
            routers: self.routers.address(),
            gains: self.gains.address(),
            qk_norm: self.qk_norm.address(),
            frequencies: numbers.frequencies,
            hops: launch.hops.address(),
            keys: keys.address(),
            values: values.address(),
            pages: row.cache.tables(),
            slots: row.slots,
            positions: row.positions,
            axes: numbers.axis_of.map_or(0, |_| row.axes),
            axis_of: numbers.axis_of.unwrap_or(0),
            x: row.x,
            stalled: self.limits.stalled,
            layer_size: (row.cache.layer_bytes() / element_size(Precision::Bf16)) as u64,
            max_pages: row.cache.max_pages() as i32,
            layers: numbers.layers,
            normalize: numbers.normalize,
            eps: numbers.eps,
            scale: (DIM as f32).sqrt().recip(),
            copying: launch.copying,
            limit: self.limits.cycles,
        };
        // SAFETY: the argument is `ThinkerArgs`, with addresses of buffers of `self`, of the net and of the stage that
        // queues; `hops` has the size that the kernel takes.
        unsafe { launch.kernel.launch(stream, launch.shape, kernel_args![args]) }
    }

    /// Has `launch` queue the layers, or a graph with them, if no other stage uses the GPU, and says whether it did.
    ///
    /// # Errors
    /// Those of `launch`, and what the driver says.
    pub fn launch(&self, stream: &Stream, launch: impl FnOnce() -> Result<(), CudaError>) -> Result<bool, CudaError> {
        let launched = self.whole.launch(stream, launch)?;
        self.asked[usize::from(!launched)].fetch_add(1, Ordering::Relaxed);
        Ok(launched)
    }

    /// Launches so far, and those for which another stage used the GPU.
    pub fn launches(&self) -> [u64; 2] {
        self.asked.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// What tells a step that a launch waited in vain.
    pub fn stalled(&self) -> &Arc<Stalled> {
        &self.stalled
    }
}

/// The tensor maps of all layers, in the order of `ThinkerArgs`.
fn maps(gpu: &Gpu, layers: &[SparseLayer<'_>]) -> Result<Buffer<u64>, CudaError> {
    let mut maps = Vec::new();
    for SparseLayer { qkv, output, experts, .. } in layers {
        for linear in [qkv, output] {
            let (address, outputs, inputs) = (linear.weight().address(), linear.outputs(), linear.inputs());
            maps.extend(TensorMap::of_parts(address, outputs, inputs)?.words());
        }
        maps.extend(TensorMap::of_parts(experts.gate_up.address(), EXPERTS * 2 * INNER, HIDDEN)?.words());
        maps.extend(TensorMap::wide(experts.down.address(), EXPERTS * HIDDEN, INNER, TILE as u32)?.words());
    }
    gpu.upload("persistent kernels", &maps)
}

/// The layers of the thinker, if the kernel takes it.
fn served(net: &ThinkerNet) -> Option<Vec<SparseLayer<'_>>> {
    let DecoderConfig { hidden_size, num_attention_heads, num_key_value_heads, head_dim, .. } = net.config;
    let MoeConfig { num_experts, num_experts_per_tok, moe_intermediate_size, .. } = *net.config.moe.as_ref()?;
    let known = [hidden_size, num_attention_heads, num_key_value_heads, head_dim] == [HIDDEN, HEADS, KV_HEADS, DIM]
        && [num_experts, num_experts_per_tok, moe_intermediate_size] == [EXPERTS, CHOICES, INNER];
    let few = net.config.num_hidden_layers <= MAX_LAYERS;
    if known && few && net.precision == Precision::Bf16 { net.stack.sparse_layers() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::persistent::tests::{BESIDE, agree, fit};

    const HEADER: &str = include_str!("../kernels/thinker.cuh");
    const SOURCE: &str = include_str!("../kernels/thinker_90a.cu");

    /// The kernel and this file must agree on each of them.
    #[test]
    fn the_constants_are_those_of_the_kernel() {
        let ours = [
            ("HIDDEN", HIDDEN),
            ("HEADS", HEADS),
            ("KV_HEADS", KV_HEADS),
            ("EXPERTS", EXPERTS),
            ("CHOICES", CHOICES),
            ("INNER", INNER),
            ("MAX_LAYERS", MAX_LAYERS),
            ("TILE", TILE),
            ("DIM", DIM),
        ];
        let others = [include_str!("../kernels/mma.cuh"), include_str!("../kernels/attention.cuh")];
        agree(&[HEADER, others[0], others[1]], &ours);
        let sizes =
            format!("sizeof(Shared) == {MULTIPLYING} && sizeof(Attending) == {ATTENDING} && Hops::SIZE == {HOPS})");
        assert!(SOURCE.contains(&sizes), "{sizes}");
        assert!(SOURCE.contains(&format!(" {}(const __grid_constant__ ThinkerArgs", KERNEL.name)));
        assert_eq!(KERNEL.blocks, 132, "the multiprocessors of a whole H100");
    }

    #[test]
    fn its_blocks_have_eight_pieces_of_weights() {
        fit(&[KERNEL], BESIDE, &[8]);
    }

    /// The names of a struct's fields, in their order; `name` finds one in the part of a line that names it.
    fn fields<'a>(source: &'a str, head: &str, name: fn(&'a str) -> Option<&'a str>) -> Vec<&'a str> {
        let (_, body) = source.split_once(head).unwrap();
        let lines = body.lines().skip(1).take_while(|line| !line.starts_with('}'));
        let code = lines.map(|line| line.split("//").next().unwrap().trim().trim_end_matches([';', ',']));
        code.filter(|line| !line.is_empty()).flat_map(|line| line.split(", ")).filter_map(name).collect()
    }

    #[test]
    fn its_arguments_are_in_the_order_of_the_kernels() {
        let theirs = fields(HEADER, "\nstruct ThinkerArgs {", |field| field.rsplit([' ', '*']).next());
        let ours = fields(include_str!("persistent.rs"), "\nstruct Args {", |field| Some(field.split_once(':')?.0));
        assert_eq!(ours, theirs);
    }
}
