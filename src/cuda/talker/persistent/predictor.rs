//! The passes of the code predictor behind the first one as one launch: see `kernels/predictor_90a.cu` for up to 16 sequences,
//! and `kernels/predictor_many_90a.cu` for more.

use crate::buffer::Buffer;
use crate::decoder::{Cache, DenseLayer};
use crate::kernel::{Shape, kernel_args};
use crate::persistent::{BLOCKS, Copying, Launches, Limits, STAGE, Sizes, fitting, stacked};
use crate::stream::Stream;
use crate::talker::net::TalkerNet;
use crate::weights::{Weight, element_size};
use crate::{CudaError, Gpu};
use omni_config::Precision;
use omni_model::hf::DecoderConfig;

/// The constants of `kernels/predictor.cuh`.
const HIDDEN: usize = 1024;
const INNER: usize = 3072;
const HEADS: usize = 16;
const KV_HEADS: usize = 8;
const HEAD: usize = 128;
const CODES: usize = 2048;
const POSITIONS: usize = 16;
const LAYER_STAGES: usize = 15;
const HEAD_STAGES: usize = 2;
const MAX_PASSES: usize = 32;
const MAX_LAYERS: usize = 8;
/// The pass that the graph's own kernels do: it has two positions of each sequence.
const FIRST: usize = 1;

/// The kernels, by the sequences that they take, ascending.
const KERNELS: [Sizes; 5] = [
    sizes(1, "predictor_1"),
    sizes(2, "predictor_2"),
    sizes(4, "predictor_4"),
    sizes(8, "predictor_8"),
    sizes(16, "predictor_16"),
];
/// The kernels for more, and what `kernels/predictor_many.cuh` says of their weights.
const MANY: [Sizes; 3] =
    [many(32, "predictor_many_32"), many(64, "predictor_many_64"), many(128, "predictor_many_128")];
const PIECE: usize = 8192;
const MANY_BYTES: usize = 245_760;
const MANY_HEAD_STAGES: usize = 4;
/// Pieces of a pass that are to stay in the second-level cache.
const KEPT: i32 = 16;
/// The share of the memory's rate at which pieces are asked for.
const SHARE: f64 = 0.9;

/// Everything that its launches share.
pub(in crate::talker) struct Predictor {
    few: Packed,
    /// Where a step may have more sequences than those of `few` take.
    many: Option<Packed>,
    gains: Buffer<u8>,
    qk_norm: Buffer<u8>,
    turns: Buffer<f32>,
    frequencies: u64,
    tables: Buffer<u64>,
    narrowed: Buffer<u64>,
    limits: Limits,
    numbers: Numbers,
}

/// Kernels, and weights in the order in which they take them: of layers, and of heads.
struct Packed {
    launches: Launches,
    body: Buffer<u8>,
    heads: Buffer<u8>,
}

/// Plain numbers of [`Args`].
#[derive(Clone, Copy)]
struct Numbers {
    layers: i32,
    passes: i32,
    outer: i32,
    eps: f32,
}

/// What a step's frame gives to its predictor.
pub(in crate::talker) struct Step<'a> {
    /// Sequences.
    pub count: usize,
    /// Address of the inputs of the first pass here, f32 `[rows, HIDDEN]`.
    pub x: u64,
    pub rows: u64,
    pub head: u64,
    pub params: u64,
    pub codec: u64,
    pub forced: u64,
    pub cache: &'a Cache,
}

/// `PredictorArgs` of `kernels/predictor.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    body: u64,
    heads: u64,
    gains: u64,
    qk_norm: u64,
    turns: u64,
    frequencies: u64,
    hops: u64,
    keys: u64,
    values: u64,
    pages: u64,
    x: u64,
    rows: u64,
    head: u64,
    params: u64,
    codec: u64,
    tables: u64,
    narrowed: u64,
    forced: u64,
    stalled: u64,
    layer_size: u64,
    max_pages: i32,
    count: i32,
    first: i32,
    passes: i32,
    layers: i32,
    groups: i32,
    outer: i32,
    eps: f32,
    scale: f32,
    kept: i32,
    copying: Copying,
    limit: u32,
}

/// `PackArgs` of `kernels/predictor_90a.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct PackArgs {
    qkv: u64,
    output: u64,
    gate_up: u64,
    down: u64,
    head: u64,
    to: u64,
}

impl Predictor {
    /// Room, and weights packed from those of `layers`, for steps of up to `most` sequences.
    ///
    /// # Errors
    /// What the driver says.
    pub(super) fn new(
        net: &TalkerNet,
        layers: &[DenseLayer<'_>],
        most: usize,
        limits: Limits,
        stream: &Stream,
    ) -> Result<Predictor, CudaError> {
        let (gpu, predictor, config) = (&net.gpu, &net.predictor, &net.config.predictor);
        let what = "persistent kernels";
        let passes = predictor.heads.len();
        let heads: Vec<u64> = predictor.heads.iter().map(|head| head.weight().address()).collect();
        let pack = |name, kernels: &[Sizes], of_layer, of_head| -> Result<Packed, CudaError> {
            let launches = Launches::new(gpu, kernels, SHARE)?;
            Packed::new(gpu, stream, (name, launches), (layers, of_layer), (&heads, of_head))
        };
        let norms = layers.iter().flat_map(|layer| layer.norms).chain([predictor.stack.final_norm()]);
        let head_norms = layers.iter().flat_map(|layer| layer.head_norms);
        let turns = gpu.alloc(what, POSITIONS * HEAD)?;
        let (frequencies, to) = (predictor.stack.frequencies(), turns.address());
        // SAFETY: the arguments are those of the kernel: HEAD / 2 frequencies, and a pair for each of them and position.
        unsafe {
            let shape = Shape::new(POSITIONS, HEAD as u32 / 2);
            gpu.kernel("turn_predictor")?.launch(stream, shape, kernel_args![frequencies, to])?;
        }
        let narrowed: Vec<u64> = (1..=passes).map(|group| predictor.narrowed(group, net.table.address())).collect();
        let tables: Vec<u64> = predictor.tables.iter().map(Weight::address).collect();
        Ok(Predictor {
            few: pack("pack_predictor", &KERNELS, LAYER_STAGES * STAGE, HEAD_STAGES * STAGE)?,
            many: (most > KERNELS[KERNELS.len() - 1].rows)
                .then(|| pack("pack_predictor_many", &MANY, MANY_BYTES, MANY_HEAD_STAGES * PIECE))
                .transpose()?,
            gains: stacked(gpu, stream, norms)?,
            qk_norm: stacked(gpu, stream, head_norms)?,
            turns,
            frequencies,
            tables: gpu.upload(what, &tables)?,
            narrowed: gpu.upload(what, &narrowed)?,
            limits,
            numbers: Numbers {
                layers: layers.len() as i32,
                passes: passes as i32,
                outer: net.config.text.hidden_size as i32,
                eps: config.rms_norm_eps as f32,
            },
        })
    }

    /// Queues all passes but the first, and says whether it did: not for more sequences than the kernels take.
    ///
    /// # Errors
    /// What the driver says.
    pub fn queue(&self, stream: &Stream, step: &Step<'_>) -> Result<bool, CudaError> {
        let mut all = std::iter::once(&self.few).chain(&self.many);
        let found = all.find_map(|packed| Some((packed, packed.launches.fitting(step.count)?)));
        let Some((packed, launch)) = found else { return Ok(false) };
        let numbers = self.numbers;
        let [keys, values] = step.cache.buffers();
        let args = Args {
            body: packed.body.address(),
            heads: packed.heads.address(),
            gains: self.gains.address(),
            qk_norm: self.qk_norm.address(),
            turns: self.turns.address(),
            frequencies: self.frequencies,
            hops: launch.hops.address(),
            keys: keys.address(),
            values: values.address(),
            pages: step.cache.tables(),
            x: step.x,
            rows: step.rows,
            head: step.head,
            params: step.params,
            codec: step.codec,
            tables: self.tables.address(),
            narrowed: self.narrowed.address(),
            forced: step.forced,
            stalled: self.limits.stalled,
            layer_size: (step.cache.layer_bytes() / element_size(Precision::Bf16)) as u64,
            max_pages: step.cache.max_pages() as i32,
            count: step.count as i32,
            first: FIRST as i32,
            passes: numbers.passes,
            layers: numbers.layers,
            groups: numbers.passes + 1,
            outer: numbers.outer,
            eps: numbers.eps,
            scale: (HEAD as f32).sqrt().recip(),
            kept: KEPT,
            copying: launch.copying,
            limit: self.limits.cycles,
        };
        // SAFETY: the argument is `PredictorArgs`, with addresses of buffers of `self` and of the stage that queues;
        // `hops` has the size that this kernel takes.
        unsafe { launch.kernel.launch(stream, launch.shape, kernel_args![args])? };
        Ok(true)
    }
}

impl Packed {
    /// Packs the weights of layers and heads, of which a block has so many bytes each.
    fn new(
        gpu: &Gpu,
        stream: &Stream,
        (pack, launches): (&'static str, Launches),
        (layers, of_layer): (&[DenseLayer<'_>], usize),
        (heads, of_head): (&[u64], usize),
    ) -> Result<Packed, CudaError> {
        let room = |bytes| gpu.alloc("persistent kernels", bytes * BLOCKS);
        let (body, all_heads) = (room(layers.len() * of_layer)?, room(heads.len() * of_head)?);
        let pack = gpu.kernel(pack)?;
        let packed = |args: PackArgs| {
            // SAFETY: the argument is `PackArgs`, with addresses of weights of the sizes that `served` has seen.
            unsafe { pack.launch(stream, Shape::new(1024, 256), kernel_args![args]) }
        };
        for (i, layer) in layers.iter().enumerate() {
            let [qkv, output, gate_up, down] =
                [layer.qkv, layer.output, layer.gate_up, layer.down].map(|linear| linear.weight().address());
            packed(PackArgs { qkv, output, gate_up, down, head: 0, to: body.at(i * of_layer * BLOCKS) })?;
        }
        for (pass, head) in heads.iter().enumerate() {
            let to = all_heads.at(pass * of_head * BLOCKS);
            packed(PackArgs { qkv: 0, output: 0, gate_up: 0, down: 0, head: *head, to })?;
        }
        Ok(Packed { launches, body, heads: all_heads })
    }
}

/// The layers of the predictor, if the kernels take it.
pub(super) fn served(net: &TalkerNet) -> Option<Vec<DenseLayer<'_>>> {
    let (predictor, config) = (&net.predictor, &net.config.predictor);
    let DecoderConfig { hidden_size, intermediate_size, num_attention_heads, num_key_value_heads, head_dim, .. } =
        *config;
    let sizes = [hidden_size, intermediate_size, num_attention_heads, num_key_value_heads, head_dim, config.vocab_size];
    let known = sizes == [HIDDEN, INNER, HEADS, KV_HEADS, HEAD, CODES] && net.config.text.hidden_size.is_multiple_of(8);
    let passes = FIRST + 1..=MAX_PASSES.min(POSITIONS - 1);
    let fits = passes.contains(&predictor.heads.len()) && config.num_hidden_layers <= MAX_LAYERS;
    let plain = predictor.heads.iter().all(|head| head.bias().is_none() && head.outputs() == CODES);
    if known && fits && plain { predictor.stack.dense_layers() } else { None }
}

/// `sizeof(Shared<rows>)` and `Hops<rows>::SIZE` of the kernels.
const fn sizes(rows: usize, name: &'static str) -> Sizes {
    let shared = if rows > 8 { 81168 } else { 1792 + 8640 * rows };
    let hops = 16 * (1 + rows * (768 + 5 * 512 + 1024 + MAX_LAYERS * 2048));
    Sizes { rows, name, blocks: BLOCKS, shared, hops, ring: fitting(shared) }
}

/// `sizeof(RowShared)` and `Rings<rows>::ROWS`, `Handed<rows>::SIZE` and `Rings<rows>::WEIGHTS` of the kernels for many.
const fn many(rows: usize, name: &'static str) -> Sizes {
    let (of_rows, pieces) = if rows < 64 { (32 << 10, 13) } else { (64 << 10, 16) };
    let (shared, hops) = (of_rows + 10_752, 4096 + rows * 61_440);
    Sizes { rows, name, blocks: BLOCKS, shared, hops, ring: (pieces, PIECE) }
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
            ("HEAD", HEAD),
            ("CODES", CODES),
            ("POSITIONS", POSITIONS),
            ("LAYER_STAGES", LAYER_STAGES),
            ("HEAD_STAGES", HEAD_STAGES),
            ("MAX_PASSES", MAX_PASSES),
            ("MAX_LAYERS", MAX_LAYERS),
        ];
        agree(&[include_str!("../../kernels/predictor.cuh")], &ours);
        let ours = [("PIECE", PIECE), ("MANY_BYTES", MANY_BYTES), ("MANY_HEAD_STAGES", MANY_HEAD_STAGES)];
        agree(&[include_str!("../../kernels/predictor_many.cuh")], &ours);
    }

    #[test]
    fn blocks_of_few_fit_beside_the_vocoders() {
        fit(&KERNELS, BESIDE, &[8, 8, 7, 4, 4]);
        made_in(&KERNELS, include_str!("../../kernels/predictor_90a.cu"));
        fit(&MANY[..1], BESIDE, &[13]);
        fit(&MANY[1..], WHOLE, &[16, 16]);
        made_in(&MANY, include_str!("../../kernels/predictor_many_90a.cu"));
    }
}
