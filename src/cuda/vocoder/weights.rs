//! The net on the device: everything under `code2wav`, or under `decoder` in the file of the codec.

use super::layout::{History, Layout};
use super::packing::{self, Packed};
use super::{Limits, Precision};
use crate::{Buffer, CudaError, Gpu};
use candle_core::{DType, Device, Tensor};
use omni_model::hf::{Family, VocoderConfig, VocoderInput};
use omni_model::weights::Scope;
use omni_model::{Checkpoint, LoadError};

type Loaded<T> = Result<T, LoadError>;

/// Taps of every convolution of the upsampling that has more than one; not in the config of these models.
pub(super) const TAPS: usize = 7;
/// Taps of the convolution before the transformer.
const PRE_TAPS: usize = 3;
/// Dilations of the residual units of a block.
const DILATIONS: [usize; 3] = [1, 3, 9];
/// Epsilon of ConvNeXt's layer norm.
pub(super) const CONVNEXT_EPS: f32 = 1e-6;
/// What memory is for, in errors.
const WHAT: &str = "the weights of the vocoder";
/// Codewords that the training hardly used count as used this much.
const LEAST_USAGE: f64 = 1e-5;

/// A convolution, transposed convolution or linear layer.
pub(super) struct Product {
    pub weight: Operands,
    pub bias: Option<Buffer<f32>>,
    pub channels: usize,
    pub outputs: usize,
    pub taps: usize,
    pub dilation: usize,
    pub history: History,
}

/// Weights in the element type of products.
pub(super) enum Operands {
    Wide(Buffer<f32>),
    Half(Buffer<u16>),
}

impl Operands {
    pub fn address(&self) -> u64 {
        match self {
            Operands::Wide(buffer) => buffer.address(),
            Operands::Half(buffer) => buffer.address(),
        }
    }
}

/// `x + b sin(a x)^2`; zeros in the channels that fill up.
pub(super) struct Snake {
    pub a: Buffer<f32>,
    pub b: Buffer<f32>,
    pub channels: usize,
}

pub(super) struct Embed {
    /// `[groups][codebook][channels]`; a row is what its code adds to the sum.
    pub table: Buffer<f32>,
    pub channels: usize,
    pub scale: f32,
    /// The convolution before the transformer and the projections into and out of it, where the net has them.
    pub around: Option<(Product, Product, Product)>,
}

pub(super) struct Layer {
    pub attention_norm: Buffer<f32>,
    pub qkv: Product,
    pub output: Product,
    pub ffn_norm: Buffer<f32>,
    pub gate_up: Product,
    pub down: Product,
}

pub(super) struct ConvNext {
    pub channels: usize,
    pub up: Product,
    pub weight: Buffer<f32>,
    pub bias: Buffer<f32>,
    pub norm: (Buffer<f32>, Buffer<f32>),
    pub history: History,
    pub expand: Product,
    pub shrink: Product,
}

pub(super) struct Unit {
    pub snakes: [Snake; 2],
    pub wide: Product,
    pub point: Product,
}

pub(super) struct Block {
    pub snake: Snake,
    pub up: Product,
    pub units: Vec<Unit>,
}

pub(super) struct Last {
    pub snake: Snake,
    pub weight: Buffer<f32>,
    pub bias: Buffer<f32>,
    pub history: History,
}

/// All weights of the net.
pub(super) struct Weights {
    pub embed: Embed,
    pub layers: Vec<Layer>,
    pub norm: Buffer<f32>,
    pub frequencies: Buffer<f32>,
    pub convnexts: Vec<ConvNext>,
    pub first: Product,
    pub blocks: Vec<Block>,
    pub last: Last,
    pub layout: Layout,
    /// Samples at the start of a stream that are dropped.
    pub drop: usize,
    /// How products are computed: as asked for, where all widths allow it.
    pub precision: Precision,
}

/// Reads, packs and uploads, layer after layer as data flows.
struct Builder<'a> {
    gpu: &'a Gpu,
    precision: Precision,
    layout: Layout,
    /// Positions of a frame at this place of the net, and how many are dropped at the start of a stream.
    rate: usize,
    drop: usize,
}

impl Weights {
    pub fn load(gpu: &Gpu, checkpoint: &Checkpoint, precision: Precision, limits: &Limits) -> Loaded<Weights> {
        let (loader, root) = match checkpoint.family() {
            Family::Omni(_) => (checkpoint.loader(&["code2wav"], &Device::Cpu), "code2wav"),
            Family::Tts(_) => (checkpoint.codec_loader(&["decoder"], &Device::Cpu)?, "decoder"),
        };
        let config = checkpoint.family().vocoder();
        let precision = check(config, precision)?;
        let mut builder = Builder { gpu, precision, layout: Layout::default(), rate: 1, drop: 0 };
        let weights = builder.weights(&loader.scope(root), config, limits)?;
        loader.finish()?;
        Ok(weights)
    }
}

/// The kernels copy whole pieces of 16 bytes of every activation. They fill up odd widths where they can; where they
/// cannot, F16 gives way to TF32, whose pieces are shorter.
fn check(config: &VocoderConfig, precision: Precision) -> Loaded<Precision> {
    let t = &config.transformer;
    let mut sizes = vec![
        ("hidden_size", t.hidden_size),
        ("head_dim", t.head_dim),
        ("intermediate_size", t.intermediate_size),
        ("latent_dim", config.latent_width()),
    ];
    if let VocoderInput::Residual { sum_width, .. } = config.input {
        sizes.push(("codebook_dim", sum_width));
    }
    let odd = |of: usize| sizes.iter().filter(move |(_, size)| !size.is_multiple_of(of));
    let lines: Vec<_> =
        odd(4).map(|(name, size)| format!("{name} = {size} of the vocoder is no multiple of 4")).collect();
    if lines.is_empty() {
        let Some((name, size)) = odd(8).next().filter(|_| precision == Precision::F16) else { return Ok(precision) };
        tracing::info!(name, size, "the vocoder computes in TF32: a width is no multiple of 8");
        return Ok(Precision::Tf32);
    }
    let reason = format!("{}; the GPU engine does not serve such sizes: set [device] kind = \"cpu\"", lines.join(", "));
    Err(LoadError::Invalid { file: "config.json".into(), reason })
}

fn floats(tensor: &Tensor) -> Loaded<Vec<f32>> {
    Ok(tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
}

impl Builder<'_> {
    fn weights(&mut self, scope: &Scope<'_>, config: &VocoderConfig, limits: &Limits) -> Loaded<Weights> {
        let t = &config.transformer;
        let inner = scope.at("pre_transformer");
        let embed = self.embed(scope, &inner, config)?;
        let layers = (0..t.num_hidden_layers).map(|i| self.layer(&inner.at("layers").at(i), config));
        let layers = layers.collect::<Loaded<_>>()?;
        let norm = self.vector(&inner.at("norm"), "weight", t.hidden_size)?;
        // As the reference: the exponent and the power in f32.
        let frequency = |j: usize| 1.0 / (t.rope_theta as f32).powf((2 * j) as f32 / t.head_dim as f32);
        let frequencies: Vec<f32> = (0..t.head_dim / 2).map(frequency).collect();
        let frequencies = self.upload(&frequencies)?;
        let latent = config.latent_width();
        let mut convnexts = Vec::new();
        for (i, ratio) in config.upsampling_ratios.iter().enumerate() {
            convnexts.push(self.convnext(&scope.at("upsample").at(i), latent, *ratio)?);
        }
        let (scope, dim) = (scope.at("decoder"), config.decoder_dim);
        let first = self.convolution(&scope.at(0), (latent, dim), (TAPS, 1))?;
        let mut blocks = Vec::new();
        for (i, rate) in config.upsample_rates.iter().enumerate() {
            blocks.push(self.block(&scope.at(i + 1).at("block"), dim >> i, *rate, config.drops_start())?);
        }
        let (n, channels) = (blocks.len(), dim >> blocks.len());
        let snake = self.snake(&scope.at(n + 1), channels)?;
        let last = self.last(&scope.at(n + 2), snake, channels)?;
        let mut layout = std::mem::take(&mut self.layout);
        layout.cache(t.num_hidden_layers, t.num_key_value_heads * limits.ring(config) * t.head_dim);
        let (drop, precision) = (self.drop, self.precision);
        Ok(Weights { embed, layers, norm, frequencies, convnexts, first, blocks, last, layout, drop, precision })
    }

    fn embed(&mut self, scope: &Scope<'_>, inner: &Scope<'_>, config: &VocoderConfig) -> Loaded<Embed> {
        let (groups, size, hidden) = (config.num_quantizers, config.codebook_size, config.transformer.hidden_size);
        let VocoderInput::Residual { code_width, sum_width, latent_width } = config.input else {
            let table = scope.at("code_embedding").get("weight", &[groups * size, hidden])?;
            let table = self.upload(&floats(&table)?)?;
            return Ok(Embed { table, channels: hidden, scale: 1.0 / groups as f32, around: None });
        };
        // A code's row of its codebook, projected, so that a frame is a sum of rows.
        let mut tables = Vec::with_capacity(groups);
        for (name, groups) in [("rvq_first", 1), ("rvq_rest", groups - 1)] {
            let scope = scope.at("quantizer").at(name);
            // The projection into the codebook is for the encoder, which has its own.
            scope.ignore("input_proj");
            let projection = scope.at("output_proj").get("weight", &[sum_width, code_width, 1])?.squeeze(2)?.t()?;
            let projection = projection.contiguous()?;
            for layer in 0..groups {
                let scope = scope.at("vq").at("layers").at(layer).at("_codebook");
                let usage = scope.get("cluster_usage", &[size])?.maximum(LEAST_USAGE)?.unsqueeze(1)?;
                let rows = scope.get("embedding_sum", &[size, code_width])?.broadcast_div(&usage)?;
                tables.push(rows.contiguous()?.matmul(&projection)?);
            }
        }
        let table = self.upload(&floats(&Tensor::cat(&tables, 0)?)?)?;
        let pre = self.convolution(&scope.at("pre_conv"), (sum_width, latent_width), (PRE_TAPS, 1))?;
        let inward = self.linear(&inner.at("input_proj"), (latent_width, hidden), true, None)?;
        let outward = self.linear(&inner.at("output_proj"), (hidden, latent_width), true, None)?;
        Ok(Embed { table, channels: sum_width, scale: 1.0, around: Some((pre, inward, outward)) })
    }

    fn layer(&mut self, scope: &Scope<'_>, config: &VocoderConfig) -> Loaded<Layer> {
        let t = &config.transformer;
        let (hidden, inner) = (t.hidden_size, t.intermediate_size);
        let (attention, ffn) = (scope.at("self_attn"), scope.at("mlp"));
        let (q, kv) = (t.num_attention_heads * t.head_dim, t.num_key_value_heads * t.head_dim);
        let (mut weight, mut bias) = (Vec::new(), Vec::new());
        for (name, outputs) in [("q_proj", q), ("k_proj", kv), ("v_proj", kv)] {
            let scope = attention.at(name);
            weight.extend(floats(&scope.get("weight", &[outputs, hidden])?)?);
            if t.attention_bias {
                bias.extend(floats(&scope.get("bias", &[outputs])?)?);
            }
        }
        let scale = |name: &str| floats(&scope.at(name).get("scale", &[hidden])?);
        let weights = |name: &str, outputs, inputs| floats(&ffn.at(name).get("weight", &[outputs, inputs])?);
        let pack = self.precision;
        let gate_up =
            pack.gated(&weights("gate_proj", inner, hidden)?, &weights("up_proj", inner, hidden)?, (inner, hidden));
        let down = weights("down_proj", hidden, inner)?;
        Ok(Layer {
            attention_norm: self.vector(&scope.at("input_layernorm"), "weight", hidden)?,
            qkv: self.product(pack.linear(&weight, &bias, (q + 2 * kv, hidden), None), 1)?,
            output: self.linear(
                &attention.at("o_proj"),
                (q, hidden),
                t.attention_bias,
                Some(scale("self_attn_layer_scale")?),
            )?,
            ffn_norm: self.vector(&scope.at("post_attention_layernorm"), "weight", hidden)?,
            gate_up: self.product(gate_up, 1)?,
            down: self.product(pack.linear(&down, &[], (hidden, inner), Some(&scale("mlp_layer_scale")?)), 1)?,
        })
    }

    fn convnext(&mut self, scope: &Scope<'_>, width: usize, ratio: usize) -> Loaded<ConvNext> {
        let up = self.transposed(&scope.at(0), (width, width), (ratio, ratio), false)?;
        let scope = scope.at(1);
        let depthwise = scope.at("dwconv").at("conv");
        // [channels, 1, taps] -> [taps, channels]
        let weight = depthwise.get("weight", &[width, 1, TAPS])?.squeeze(1)?.t()?.contiguous()?;
        let offset = self.layout.keep(TAPS - 1, width * size_of::<f32>());
        let gamma = floats(&scope.get("gamma", &[width])?)?;
        Ok(ConvNext {
            channels: width,
            up,
            weight: self.upload(&floats(&weight)?)?,
            bias: self.vector(&depthwise, "bias", width)?,
            norm: (self.vector(&scope.at("norm"), "weight", width)?, self.vector(&scope.at("norm"), "bias", width)?),
            history: History { offset, kept: TAPS - 1, rate: self.rate, drop: self.drop },
            expand: self.linear(&scope.at("pwconv1"), (width, 4 * width), true, None)?,
            shrink: self.linear(&scope.at("pwconv2"), (4 * width, width), true, Some(gamma))?,
        })
    }

    fn block(&mut self, scope: &Scope<'_>, channels: usize, rate: usize, drops: bool) -> Loaded<Block> {
        let half = channels / 2;
        let snake = self.snake(&scope.at(0), channels)?;
        let up = self.transposed(&scope.at(1), (channels, half), (2 * rate, rate), drops)?;
        let mut units = Vec::new();
        for (i, dilation) in DILATIONS.into_iter().enumerate() {
            let scope = scope.at(i + 2);
            units.push(Unit {
                snakes: [self.snake(&scope.at("act1"), half)?, self.snake(&scope.at("act2"), half)?],
                wide: self.convolution(&scope.at("conv1"), (half, half), (TAPS, dilation))?,
                point: self.convolution(&scope.at("conv2"), (half, half), (1, 1))?,
            });
        }
        Ok(Block { snake, up, units })
    }

    fn last(&mut self, scope: &Scope<'_>, snake: Snake, channels: usize) -> Loaded<Last> {
        let scope = scope.at("conv");
        let weight = floats(&scope.get("weight", &[1, channels, TAPS])?)?;
        let width = self.precision.wide(channels);
        let mut lines = vec![0.0; TAPS * width];
        for (i, w) in weight.iter().enumerate() {
            lines[i % TAPS * width + i / TAPS] = *w;
        }
        let offset = self.layout.keep(TAPS - 1, width * self.precision.bytes());
        let history = History { offset, kept: TAPS - 1, rate: self.rate, drop: self.drop };
        Ok(Last { snake, weight: self.upload(&lines)?, bias: self.vector(&scope, "bias", 1)?, history })
    }

    fn convolution(
        &mut self,
        scope: &Scope<'_>,
        (inputs, outputs): (usize, usize),
        (taps, dilation): (usize, usize),
    ) -> Loaded<Product> {
        let scope = scope.at("conv");
        let weight = floats(&scope.get("weight", &[outputs, inputs, taps])?)?;
        let bias = floats(&scope.get("bias", &[outputs])?)?;
        self.product(self.precision.convolution(&weight, &bias, (outputs, inputs, taps)), dilation)
    }

    fn transposed(
        &mut self,
        scope: &Scope<'_>,
        (inputs, outputs): (usize, usize),
        (kernel, stride): (usize, usize),
        drops: bool,
    ) -> Loaded<Product> {
        let scope = scope.at("conv");
        let weight = floats(&scope.get("weight", &[inputs, outputs, kernel])?)?;
        let bias = floats(&scope.get("bias", &[outputs])?)?;
        let product = self.product(self.precision.transposed(&weight, &bias, (inputs, outputs, kernel), stride), 1)?;
        self.rate *= stride;
        self.drop = self.drop * stride + if drops { kernel - stride } else { 0 };
        Ok(product)
    }

    fn linear(
        &mut self,
        scope: &Scope<'_>,
        (inputs, outputs): (usize, usize),
        bias: bool,
        scale: Option<Vec<f32>>,
    ) -> Loaded<Product> {
        let weight = floats(&scope.get("weight", &[outputs, inputs])?)?;
        let bias = if bias { floats(&scope.get("bias", &[outputs])?)? } else { Vec::new() };
        self.product(self.precision.linear(&weight, &bias, (outputs, inputs), scale.as_deref()), 1)
    }

    fn product(&mut self, packed: Packed, dilation: usize) -> Loaded<Product> {
        let kept = (packed.taps - 1) * dilation;
        let offset = self.layout.keep(kept, packed.channels * self.precision.bytes());
        let bias = if packed.bias.is_empty() { None } else { Some(self.upload(&packed.bias)?) };
        Ok(Product {
            weight: self.operands(packed.weight)?,
            bias,
            channels: packed.channels,
            outputs: packed.outputs,
            taps: packed.taps,
            dilation,
            history: History { offset, kept, rate: self.rate, drop: self.drop },
        })
    }

    fn snake(&self, scope: &Scope<'_>, channels: usize) -> Loaded<Snake> {
        let read = |name: &str| floats(&scope.get(name, &[channels])?);
        let (mut a, mut b) = (read("alpha")?, read("beta")?);
        a.iter_mut().for_each(|x| *x = x.exp());
        b.iter_mut().for_each(|x| *x = (x.exp() + 1e-9).recip());
        let width = self.precision.wide(channels);
        a.resize(width, 0.0);
        b.resize(width, 0.0);
        Ok(Snake { a: self.upload(&a)?, b: self.upload(&b)?, channels: width })
    }

    fn vector(&self, scope: &Scope<'_>, name: &str, width: usize) -> Loaded<Buffer<f32>> {
        self.upload(&floats(&scope.get(name, &[width])?)?)
    }

    fn operands(&self, mut weight: Vec<f32>) -> Loaded<Operands> {
        match self.precision {
            Precision::F32 => {}
            Precision::Tf32 => weight.iter_mut().for_each(|w| *w = packing::tf32(*w)),
            Precision::F16 => {
                let half: Vec<u16> = weight.into_iter().map(packing::f16).collect();
                return Ok(Operands::Half(self.gpu.upload(WHAT, &half)?));
            }
        }
        Ok(Operands::Wide(self.upload(&weight)?))
    }

    fn upload(&self, data: &[f32]) -> Loaded<Buffer<f32>> {
        self.gpu.upload(WHAT, data).map_err(|error: CudaError| error.into())
    }
}
