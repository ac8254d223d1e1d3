//! The order of launches that turns codes into samples.

use super::args::{AttentionArgs, ConvArgs, DepthwiseArgs, EmbedArgs, LastArgs, NormArgs, Past};
use super::layout::History;
use super::tiles::Tiles;
use super::weights::{Block, CONVNEXT_EPS, ConvNext, Layer, Product, Snake, TAPS, Weights};
use super::workspace::{HEAD, ROW_WORDS, Workspace};
use super::{Limits, Precision};
use crate::kernel::kernel_args;
use crate::{Buffer, CudaError, Gpu, Kernel, Shape, Stream};
use omni_model::hf::VocoderConfig;
use omni_model::{Checkpoint, LoadError};

/// Threads of a block: attention and the last layer; everything else but products.
const NARROW: u32 = 128;
const BROAD: u32 = 256;
/// Bytes of a history that one block moves on.
const MOVE_BYTES: usize = 16 << 10;
/// Samples of a block of the last layer.
const LAST_POSITIONS: usize = 64;

/// Shared memory that a block can have on every GPU we serve.
const MOST_SHARED: usize = 160 << 10;

/// The kernels of an operation, by precision.
macro_rules! names {
    ($name:literal) => {
        [concat!($name, "_f32"), concat!($name, "_tf32"), concat!($name, "_f16")]
    };
}

/// What a product does with its sums.
#[derive(Clone, Copy)]
enum Activation {
    None = 0,
    Gelu = 1,
    SiluPairs = 2,
}

/// The weights on a device and the kernels for them. Holds no state of any stream.
pub struct CudaVocoder {
    pub(super) gpu: Gpu,
    pub(super) config: VocoderConfig,
    pub(super) limits: Limits,
    pub(super) weights: Weights,
    kernels: Kernels,
}

struct Kernels {
    tiles: Tiles,
    /// For each of these.
    conv: Vec<Kernel>,
    embed: Kernel,
    norm: Kernel,
    attention: Kernel,
    depthwise: Kernel,
    last: Kernel,
}

impl CudaVocoder {
    /// Loads the vocoder of a checkpoint onto a GPU.
    ///
    /// # Errors
    /// When the file cannot be read, its tensors are not those of the config, a size is one the kernels do not have, or
    /// the device has no room.
    pub fn load(
        gpu: &Gpu,
        checkpoint: &Checkpoint,
        precision: Precision,
        limits: Limits,
    ) -> Result<CudaVocoder, LoadError> {
        gpu.bind()?;
        let limits = limits.sound();
        let config = checkpoint.family().vocoder().clone();
        if attention_shared(&config, limits.chunk()) > MOST_SHARED {
            let window = config.transformer.sliding_window;
            let reason = format!(
                "sliding_window = {window} of the vocoder is more than the GPU engine serves: set [device] kind = \"cpu\""
            );
            return Err(LoadError::Invalid { file: "config.json".into(), reason });
        }
        let weights = Weights::load(gpu, checkpoint, precision, &limits)?;
        let kernels = Kernels::new(gpu, weights.precision, &config, &limits, weights.last.snake.channels)?;
        Ok(CudaVocoder { gpu: gpu.clone(), config, limits, weights, kernels })
    }

    /// The sizes.
    pub fn config(&self) -> &VocoderConfig {
        &self.config
    }

    /// Queues the kernels that advance the sequences of the workspace's table by `frames` frames each.
    pub(super) fn queue(
        &self,
        stream: &Stream,
        workspace: &Workspace,
        rows: usize,
        frames: usize,
    ) -> Result<(), CudaError> {
        Queue { net: self, stream, workspace, rows, frames }.all()
    }
}

impl Kernels {
    fn new(
        gpu: &Gpu,
        precision: Precision,
        config: &VocoderConfig,
        limits: &Limits,
        last_channels: usize,
    ) -> Result<Kernels, CudaError> {
        let of = |names: [&'static str; 3]| -> Result<Kernel, CudaError> {
            let kernel = gpu.kernel(names[precision as usize])?;
            // As the talker's persistent kernels do, beside whose blocks these must find room.
            kernel.prefer_shared()?;
            Ok(kernel)
        };
        let tiles = Tiles::of(gpu, precision);
        let conv = tiles.all().iter().map(|tile| {
            let kernel = of(tile.names)?;
            kernel.allow_shared(tile.shared())?;
            Ok(kernel)
        });
        let attention = of(names!("vocoder_attention"))?;
        attention.allow_shared(attention_shared(config, limits.chunk()))?;
        let last = of(names!("vocoder_last"))?;
        last.allow_shared(last_shared(last_channels))?;
        Ok(Kernels {
            tiles,
            conv: conv.collect::<Result<_, CudaError>>()?,
            embed: of(names!("vocoder_embed"))?,
            norm: of(names!("vocoder_rms_norm"))?,
            attention,
            depthwise: of(names!("vocoder_depthwise_norm"))?,
            last,
        })
    }
}

/// Keys and values of the window and of the new frames, each line a float4 longer; scores of a window and a query for
/// each warp.
fn attention_shared(config: &VocoderConfig, frames: usize) -> usize {
    let t = &config.transformer;
    let lines = 2 * (t.sliding_window - 1 + frames) * (t.head_dim + 4);
    (lines + NARROW as usize / 32 * (t.sliding_window + t.head_dim)) * size_of::<f32>()
}

/// Inputs and weights of a block of the last layer.
fn last_shared(channels: usize) -> usize {
    (LAST_POSITIONS + TAPS - 1 + TAPS) * channels * size_of::<f32>()
}

/// One pass through the net. Addresses are those of activations; 0 is none.
struct Queue<'a> {
    net: &'a CudaVocoder,
    stream: &'a Stream,
    workspace: &'a Workspace,
    rows: usize,
    frames: usize,
}

/// Where a product puts its results, and what it adds to them.
#[derive(Clone, Copy)]
struct Out<'a> {
    /// As they are.
    y: u64,
    /// As operand of the next product, behind a snake or not.
    z: u64,
    snake: Option<&'a Snake>,
    residual: u64,
    activation: Activation,
}

impl Out<'_> {
    fn plain(y: u64) -> Self {
        Out { y, z: 0, snake: None, residual: 0, activation: Activation::None }
    }

    fn operand(z: u64) -> Self {
        Out { y: 0, z, ..Self::plain(0) }
    }

    fn add(mut self, residual: u64) -> Self {
        self.residual = residual;
        self
    }

    fn through(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }
}

impl Queue<'_> {
    fn all(&self) -> Result<(), CudaError> {
        let weights = &self.net.weights;
        let [x, z, w] = self.workspace.small.each_ref().map(|buffer| buffer.address());
        match &weights.embed.around {
            None => self.embed(x, 0)?,
            Some((pre, inward, _)) => {
                self.embed(0, x)?;
                self.product(pre, x, Out::operand(z))?;
                self.product(inward, z, Out::plain(x))?;
            }
        }
        for (i, layer) in weights.layers.iter().enumerate() {
            self.layer(layer, i, [x, z, w])?;
        }
        self.norm(x, &weights.norm, z)?;
        // `now` holds the input of the next layer, `spare` is free.
        let (mut now, mut spare) = (z, w);
        if let Some((_, _, outward)) = &weights.embed.around {
            self.product(outward, now, Out::operand(spare))?;
            (now, spare) = (spare, now);
        }
        for convnext in &weights.convnexts {
            self.convnext(convnext, [x, now, spare])?;
            (now, spare) = (spare, now);
        }
        let [mut now_large, mut spare_large, y] = self.workspace.large.each_ref().map(|buffer| buffer.address());
        let snakes = weights.blocks.iter().map(|block| &block.snake).chain([&weights.last.snake]);
        let snakes: Vec<_> = snakes.collect();
        self.product(&weights.first, now, Out { snake: Some(snakes[0]), ..Out::operand(now_large) })?;
        for (block, next) in weights.blocks.iter().zip(&snakes[1..]) {
            self.block(block, next, [now_large, spare_large, y])?;
            (now_large, spare_large) = (spare_large, now_large);
        }
        self.last(now_large)
    }

    /// Replaces `x` with the output of the layer; the other buffers are free before and after.
    fn layer(&self, layer: &Layer, index: usize, [x, z, w]: [u64; 3]) -> Result<(), CudaError> {
        self.norm(x, &layer.attention_norm, z)?;
        self.product(&layer.qkv, z, Out::plain(w))?;
        self.attention(index, w, z)?;
        self.product(&layer.output, z, Out::plain(x).add(x))?;
        self.norm(x, &layer.ffn_norm, z)?;
        self.product(&layer.gate_up, z, Out::operand(w).through(Activation::SiluPairs))?;
        self.product(&layer.down, w, Out::plain(x).add(x))
    }

    /// From `now` to `spare`, by way of the others.
    fn convnext(&self, layer: &ConvNext, [x, now, spare]: [u64; 3]) -> Result<(), CudaError> {
        self.product(&layer.up, now, Out::plain(x))?;
        self.depthwise(layer, x, spare)?;
        self.product(&layer.expand, spare, Out::operand(now).through(Activation::Gelu))?;
        self.product(&layer.shrink, now, Out::operand(spare).add(x))
    }

    /// From `now`, behind the block's snake, to `spare`, behind the `next` one.
    fn block(&self, block: &Block, next: &Snake, [now, spare, y]: [u64; 3]) -> Result<(), CudaError> {
        let first = block.units.first().map(|unit| &unit.snakes[0]);
        self.product(&block.up, now, Out { y, snake: first, ..Out::operand(spare) })?;
        for (i, unit) in block.units.iter().enumerate() {
            let after = block.units.get(i + 1).map(|unit| &unit.snakes[0]);
            self.product(&unit.wide, spare, Out { snake: Some(&unit.snakes[1]), ..Out::operand(now) })?;
            let sum = if after.is_some() { y } else { 0 };
            let out = Out { y: sum, snake: after.or(Some(next)), ..Out::operand(spare) };
            self.product(&unit.point, now, out.add(y))?;
        }
        Ok(())
    }

    fn product(&self, layer: &Product, x: u64, out: Out<'_>) -> Result<(), CudaError> {
        let positions = self.frames * layer.history.rate;
        let steps = (layer.channels * layer.taps).div_ceil(self.net.weights.precision.depth());
        let tiles = self.net.kernels.tiles;
        let multiprocessors = self.net.gpu.multiprocessors() as usize;
        let which = tiles.pick(self.rows * positions, layer.outputs, steps, multiprocessors);
        let tile = &tiles.all()[which];
        let tiles = tile.blocks(self.rows * positions, layer.outputs);
        let args = ConvArgs {
            x,
            weight: layer.weight.address(),
            bias: layer.bias.as_ref().map_or(0, |bias| bias.address()),
            residual: out.residual,
            snake_a: out.snake.map_or(0, |snake| snake.a.address()),
            snake_b: out.snake.map_or(0, |snake| snake.b.address()),
            y: out.y,
            z: out.z,
            clipped: self.clipped(),
            past: self.past(layer.history),
            rows: self.rows as i32,
            positions: positions as i32,
            channels: layer.channels as i32,
            taps: layer.taps as i32,
            dilation: layer.dilation as i32,
            outputs: layer.outputs as i32,
            activation: out.activation as i32,
            snake_period: out.snake.map_or(1, |snake| snake.channels) as i32,
            column_tiles: layer.outputs.div_ceil(tile.columns) as i32,
            tiles: tiles as i32,
        };
        let shape = Shape::new(tiles + self.moves(layer.history, layer.channels), tile.threads).shared(tile.shared());
        // SAFETY: the arguments of every product; addresses are of this net's weights and workspace, whose sizes are
        // made for the limits that `rows` and `frames` keep.
        unsafe { self.net.kernels.conv[which].launch(self.stream, shape.overlapping(), kernel_args![args]) }
    }

    fn embed(&self, y: u64, z: u64) -> Result<(), CudaError> {
        let (embed, config) = (&self.net.weights.embed, &self.net.config);
        let args = EmbedArgs {
            codes: self.workspace.input.at(HEAD + self.net.limits.batch * ROW_WORDS),
            table: embed.table.address(),
            y,
            z,
            clipped: self.clipped(),
            scale: embed.scale,
            groups: config.num_quantizers as i32,
            codebook: config.codebook_size as i32,
            channels: embed.channels as i32,
        };
        let shape = Shape::new(self.rows * self.frames, BROAD).overlapping();
        // SAFETY: as for products; the codes were checked against the codebooks when they came.
        unsafe { self.net.kernels.embed.launch(self.stream, shape, kernel_args![args]) }
    }

    fn norm(&self, x: u64, weight: &Buffer<f32>, z: u64) -> Result<(), CudaError> {
        let t = &self.net.config.transformer;
        let eps = t.rms_norm_eps as f32;
        let (clipped, channels) = (self.clipped(), t.hidden_size as i32);
        let args = NormArgs { x, weight: weight.address(), z, clipped, eps, channels };
        let shape = Shape::new(self.rows * self.frames, BROAD).overlapping();
        // SAFETY: as for products.
        unsafe { self.net.kernels.norm.launch(self.stream, shape, kernel_args![args]) }
    }

    fn attention(&self, layer: usize, qkv: u64, z: u64) -> Result<(), CudaError> {
        let (t, layout) = (&self.net.config.transformer, &self.net.weights.layout);
        let args = AttentionArgs {
            qkv,
            z,
            clipped: self.clipped(),
            frequencies: self.net.weights.frequencies.address(),
            arena: self.workspace.arena.address(),
            rows: self.workspace.input.at(HEAD),
            slot_floats: layout.slot() as i64,
            keys: layout.keys(layer) as i64,
            frames: self.frames as i32,
            heads: t.num_attention_heads as i32,
            kv_heads: t.num_key_value_heads as i32,
            width: t.head_dim as i32,
            window: t.sliding_window as i32,
            ring: self.net.limits.ring(&self.net.config) as i32,
            scale: (t.head_dim as f32).powf(-0.5),
        };
        let shape = Shape::new(self.rows * t.num_key_value_heads, NARROW)
            .shared(attention_shared(&self.net.config, self.frames));
        // SAFETY: as for products; the layout has this layer's keys and values.
        unsafe { self.net.kernels.attention.launch(self.stream, shape.overlapping(), kernel_args![args]) }
    }

    fn depthwise(&self, layer: &ConvNext, x: u64, z: u64) -> Result<(), CudaError> {
        let (positions, channels) = (self.frames * layer.history.rate, layer.channels);
        let args = DepthwiseArgs {
            x,
            weight: layer.weight.address(),
            bias: layer.bias.address(),
            norm_weight: layer.norm.0.address(),
            norm_bias: layer.norm.1.address(),
            z,
            clipped: self.clipped(),
            past: self.past(layer.history),
            eps: CONVNEXT_EPS,
            rows: self.rows as i32,
            positions: positions as i32,
            channels: channels as i32,
            taps: layer.history.kept as i32 + 1,
        };
        let blocks = self.rows * positions + self.moved(layer.history, channels * size_of::<f32>());
        let shape = Shape::new(blocks, BROAD).shared(channels * size_of::<f32>()).overlapping();
        // SAFETY: as for products.
        unsafe { self.net.kernels.depthwise.launch(self.stream, shape, kernel_args![args]) }
    }

    fn last(&self, x: u64) -> Result<(), CudaError> {
        let last = &self.net.weights.last;
        let (positions, channels) = (self.frames * last.history.rate, last.snake.channels);
        let args = LastArgs {
            x,
            weight: last.weight.address(),
            bias: last.bias.address(),
            samples: self.workspace.samples.at(HEAD),
            clipped: self.clipped(),
            told: self.workspace.samples.address(),
            past: self.past(last.history),
            rows: self.rows as i32,
            positions: positions as i32,
            channels: channels as i32,
            taps: last.history.kept as i32 + 1,
        };
        let blocks = positions.div_ceil(LAST_POSITIONS) * self.rows + self.moves(last.history, channels);
        // SAFETY: as for products.
        unsafe {
            let shape = Shape::new(blocks, NARROW).shared(last_shared(channels)).overlapping();
            self.net.kernels.last.launch(self.stream, shape, kernel_args![args])
        }
    }

    fn past(&self, history: History) -> Past {
        let workspace = self.workspace;
        self.net.weights.layout.past(history, workspace.arena.address(), workspace.input.at(HEAD))
    }

    /// Where operands beyond the largest are counted.
    fn clipped(&self) -> u64 {
        self.workspace.input.address()
    }

    /// Blocks that move a history of operands on.
    fn moves(&self, history: History, channels: usize) -> usize {
        self.moved(history, channels * self.net.weights.precision.bytes())
    }

    /// Blocks that move a history on whose positions have so many bytes.
    fn moved(&self, history: History, bytes: usize) -> usize {
        self.rows * (history.kept * bytes).div_ceil(MOVE_BYTES)
    }
}
