//! All layers of a talker as one launch: see `kernels/layers_90a.cu` for up to 8 sequences, and `kernels/layers_many_90a.cu`
//! for up to 32. They read the weights where the graph's kernels do.

use crate::CudaError;
use crate::buffer::Buffer;
use crate::decoder::{Cache, DenseLayer};
use crate::kernel::kernel_args;
use crate::linear::Linear;
use crate::persistent::{BLOCKS, Copying, Launches, Limits, STAGE, Sizes, fitting, stacked};
use crate::stream::Stream;
use crate::talker::net::{TalkerNet, Text};
use crate::tensor_map::TensorMap;
use crate::weights::element_size;
use omni_config::Precision;
use omni_model::hf::DecoderConfig;

/// The constants of `kernels/layers.cuh`.
const HIDDEN: usize = 2048;
const INNER: usize = 6144;
const HEADS: usize = 16;
const KV_HEADS: usize = 8;
const MAX_LAYERS: usize = 60;
/// Of `kernels/attention.cuh`.
const DIM: usize = 128;

/// The kernels, by the sequences that they take, ascending.
const KERNELS: [Sizes; 4] = [sizes(1, "layers_1"), sizes(2, "layers_2"), sizes(4, "layers_4"), sizes(8, "layers_8")];
/// The kernels for more.
const MANY: [Sizes; 2] = [many(16, "layers_many_16"), many(32, "layers_many_32")];
/// Outputs of a box of their weights.
const MANY_OUTPUTS: u32 = 32;
/// Positions of the cache, of all sequences that a block of these attends for, up to which they are faster than the graph,
/// which has more blocks for attention. On an H200 32 positions more cost 1.3 us a layer, and 0.7 in the graph.
const MANY_POSITIONS: usize = 768;
/// The blocks that share the sequences of a kv head.
const TEAM: usize = 16;
/// The share of the memory's rate at which pieces are asked for: more than all, so that a ring fills up again behind a wait.
const SHARE: f64 = 1.08;

/// Everything that its launches share.
pub(in crate::talker) struct Layers {
    few: Mapped,
    /// Where a step may have more sequences than those of `few` take.
    many: Option<Mapped>,
    gains: Buffer<u8>,
    qk_norm: Buffer<u8>,
    frequencies: u64,
    limits: Limits,
    layers: i32,
    eps: f32,
}

/// Kernels, and how the copy engine finds the weights for them: `[layers][4]` tensor maps.
struct Mapped {
    launches: Launches,
    maps: Buffer<u64>,
}

/// Rows of different sequences.
pub(in crate::talker) struct Batch<'a> {
    pub count: usize,
    /// Address of the residual, f32 `[count, HIDDEN]`.
    pub x: u64,
    /// Address of `[count]` sequence numbers, u32.
    pub slots: u64,
    /// Address of `[count]` positions, i32; negative for padding.
    pub positions: u64,
    pub cache: &'a Cache,
}

/// `LayersArgs` of `kernels/layers.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    maps: u64,
    gains: u64,
    qk_norm: u64,
    frequencies: u64,
    hops: u64,
    keys: u64,
    values: u64,
    pages: u64,
    slots: u64,
    positions: u64,
    x: u64,
    stalled: u64,
    layer_size: u64,
    max_pages: i32,
    count: i32,
    layers: i32,
    eps: f32,
    scale: f32,
    copying: Copying,
    limit: u32,
}

impl Layers {
    /// Room, and how the copy engine finds the weights of `layers`, for steps of up to `most` sequences.
    ///
    /// # Errors
    /// What the driver says.
    pub(super) fn new(
        net: &TalkerNet,
        layers: &[DenseLayer<'_>],
        most: usize,
        limits: Limits,
        stream: &Stream,
    ) -> Result<Layers, CudaError> {
        let gpu = &net.gpu;
        let mapped = |kernels: &[Sizes], map: &dyn Fn(&Linear) -> Result<TensorMap, CudaError>| {
            let mut maps = Vec::new();
            for layer in layers {
                for linear in [layer.qkv, layer.output, layer.gate_up, layer.down] {
                    maps.extend(map(linear)?.words());
                }
            }
            let maps = gpu.upload("persistent kernels", &maps)?;
            Ok::<_, CudaError>(Mapped { launches: Launches::new(gpu, kernels, SHARE)?, maps })
        };
        let in_parts = |of: &Linear| TensorMap::of_parts(of.weight().address(), of.outputs(), of.inputs());
        let wide = |of: &Linear| TensorMap::wide(of.weight().address(), of.outputs(), of.inputs(), MANY_OUTPUTS);
        Ok(Layers {
            few: mapped(&KERNELS, &in_parts)?,
            many: (most > KERNELS[KERNELS.len() - 1].rows).then(|| mapped(&MANY, &wide)).transpose()?,
            gains: stacked(gpu, stream, layers.iter().flat_map(|layer| layer.norms))?,
            qk_norm: stacked(gpu, stream, layers.iter().flat_map(|layer| layer.head_norms))?,
            frequencies: net.stack.frequencies(),
            limits,
            layers: layers.len() as i32,
            eps: net.config.text.rms_norm_eps as f32,
        })
    }

    /// See [`super::Persistent::reach`].
    pub fn reach(&self, rows: usize) -> Option<usize> {
        let launches = &self.many.as_ref()?.launches;
        let few = self.few.launches.fitting(rows).is_some();
        launches.fitting(rows).filter(|_| !few).map(|launch| MANY_POSITIONS / (launch.rows / TEAM))
    }

    /// Queues all layers over the residual, and says whether it did: not of more rows than the kernels take.
    ///
    /// # Errors
    /// What the driver says.
    pub fn queue(&self, stream: &Stream, batch: &Batch<'_>) -> Result<bool, CudaError> {
        let mut all = std::iter::once(&self.few).chain(&self.many);
        let found = all.find_map(|mapped| Some((mapped, mapped.launches.fitting(batch.count)?)));
        let Some((mapped, launch)) = found else { return Ok(false) };
        let [keys, values] = batch.cache.buffers();
        let args = Args {
            maps: mapped.maps.address(),
            gains: self.gains.address(),
            qk_norm: self.qk_norm.address(),
            frequencies: self.frequencies,
            hops: launch.hops.address(),
            keys: keys.address(),
            values: values.address(),
            pages: batch.cache.tables(),
            slots: batch.slots,
            positions: batch.positions,
            x: batch.x,
            stalled: self.limits.stalled,
            layer_size: (batch.cache.layer_bytes() / element_size(Precision::Bf16)) as u64,
            max_pages: batch.cache.max_pages() as i32,
            count: batch.count as i32,
            layers: self.layers,
            eps: self.eps,
            scale: (DIM as f32).sqrt().recip(),
            copying: launch.copying,
            limit: self.limits.cycles,
        };
        // SAFETY: the argument is `LayersArgs`, with addresses of buffers of `self`, of the net and of the stage that
        // queues; `hops` has the size that this kernel takes.
        unsafe { launch.kernel.launch(stream, launch.shape, kernel_args![args])? };
        Ok(true)
    }
}

/// The layers of the talker, if the kernels take it.
pub(super) fn served(net: &TalkerNet) -> Option<Vec<DenseLayer<'_>>> {
    let DecoderConfig { hidden_size, intermediate_size, num_attention_heads, num_key_value_heads, head_dim, .. } =
        net.config.text;
    let sizes = [hidden_size, intermediate_size, num_attention_heads, num_key_value_heads, head_dim];
    let known = sizes == [HIDDEN, INNER, HEADS, KV_HEADS, DIM];
    let few = net.config.text.num_hidden_layers <= MAX_LAYERS;
    // Where a thinker hands media on, positions have three axes.
    let turned_alike = matches!(net.text, Text::Table { .. });
    if known && few && turned_alike { net.stack.dense_layers() } else { None }
}

/// `sizeof(Shared<rows>)` and `Hops<rows>::SIZE` of the kernels.
const fn sizes(rows: usize, name: &'static str) -> Sizes {
    let raw = if rows < 4 { rows } else { 4 };
    let shared = 7232 + 8 * (576 * rows + 1040 * raw);
    Sizes { rows, name, blocks: BLOCKS, shared, hops: 16 * (1 + rows * 4608), ring: fitting(shared) }
}

/// `sizeof(LayersShared<rows>)` and `LayersRings<rows>::ROWS`, `LayersHanded<rows>::SIZE` and `LayersRings<rows>::WEIGHTS` of
/// the kernels for many.
const fn many(rows: usize, name: &'static str) -> Sizes {
    let shared = (64 << 10) + 8848 + 2048 * (rows / 16);
    Sizes { rows, name, blocks: BLOCKS, shared, hops: 4096 + rows * 94_208, ring: (9, STAGE) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::persistent::tests::{BESIDE, WHOLE, agree, fit, made_in};

    /// The kernels and this file must agree on each of them.
    #[test]
    fn the_constants_are_those_of_the_kernels() {
        let ours = [
            ("HIDDEN", HIDDEN),
            ("INNER", INNER),
            ("HEADS", HEADS),
            ("KV_HEADS", KV_HEADS),
            ("MAX_LAYERS", MAX_LAYERS),
            ("DIM", DIM),
        ];
        agree(&[include_str!("../../kernels/layers.cuh"), include_str!("../../kernels/attention.cuh")], &ours);
        agree(&[include_str!("../../kernels/pieces.cuh")], &[("TEAM", TEAM)]);
    }

    #[test]
    fn blocks_of_few_fit_beside_the_vocoders() {
        fit(&KERNELS, BESIDE, &[8, 7, 5, 4]);
        made_in(&KERNELS, include_str!("../../kernels/layers_90a.cu"));
        fit(&MANY, WHOLE, &[9, 9]);
        made_in(&MANY, include_str!("../../kernels/layers_many_90a.cu"));
    }
}
