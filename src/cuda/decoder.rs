//! Decoder layers on the device: attention over a paged cache, feed-forward, residual stream in f32.

use super::buffer::Buffer;
pub use super::cache::Cache;
use super::device::Gpu;
use super::error::CudaError;
use super::kernel::{Kernel, Shape, kernel_args};
use super::linear::{Input, Linear, Mode, Norm, Products};
use super::moe::{Experts, Moe, Routed};
use super::stream::Stream;
use super::weights::{Uploader, Weight, element_size};
use omni_config::Precision;
use omni_model::LoadError;
use omni_model::hf::DecoderConfig;
pub use omni_model::pages::PAGE;
use omni_model::weights::Scope;

/// Positions of the sequences that `attend_short2_write` takes.
const MAX_SHORT: usize = 17;
/// Query heads per kv head, and rows of a block, of `kernels/group_attention.cu`.
const GROUP: usize = 8;
const GROUP_ROWS: usize = 16;
/// Its shared memory: three pieces of 32 keys and values, and the queries.
const GROUP_BYTES: usize = 3 * 2 * 32 * 128 * 2 + GROUP * GROUP_ROWS * (128 + 8) * 2;
/// The widest head that the kernels take.
const MAX_HEAD: usize = 256;

/// A stack of layers with its final norm.
pub struct Stack {
    config: DecoderConfig,
    layers: Vec<Layer>,
    norm: Weight,
    frequencies: Buffer<f32>,
    /// Which axis each frequency turns with, where positions have three.
    axis_of: Option<Buffer<u8>>,
}

struct Layer {
    attention_norm: Weight,
    qkv: Linear,
    q_norm: Weight,
    k_norm: Weight,
    output: Linear,
    ffn_norm: Weight,
    ffn: Ffn,
}

/// The weights of a layer without experts, for kernels that take them in another order.
pub(crate) struct DenseLayer<'a> {
    /// Ahead of attention and of the feed-forward block.
    pub norms: [&'a Weight; 2],
    /// Of queries and of keys.
    pub head_norms: [&'a Weight; 2],
    pub qkv: &'a Linear,
    pub output: &'a Linear,
    pub gate_up: &'a Linear,
    pub down: &'a Linear,
}

/// The same of a layer with experts.
pub(crate) struct SparseLayer<'a> {
    pub norms: [&'a Weight; 2],
    pub head_norms: [&'a Weight; 2],
    pub qkv: &'a Linear,
    pub output: &'a Linear,
    pub experts: Routed<'a>,
}

/// What a layer has: one block, or experts.
enum Ffn {
    Dense { gate_up: Linear, down: Linear },
    Moe(Moe),
}

/// Rows of a launch, on the device.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// How many.
    pub count: usize,
    /// Address of `[count]` sequence numbers, u32.
    pub slots: u64,
    /// Address of `[count]` positions, i32; negative for padding.
    pub positions: u64,
    /// Address of `[count, 3]` positions that the rotation takes, f32, for a stack whose positions have three axes; 0:
    /// `positions`.
    pub axes: u64,
    /// Whether no two of them are of one sequence.
    pub distinct: bool,
    /// Positions that no sequence exceeds, where that is known to be few.
    pub most: Option<usize>,
}

/// Scratch memory of layers, shared by all stacks of a stage.
pub struct Scratch {
    qkv: Buffer<u8>,
    mixed: Buffer<u8>,
    inner: Buffer<u8>,
}

/// The kernels of layers, for one element type.
pub struct Attention {
    write: Kernel,
    plain: Kernel,
    /// For 1, 2 and 4 query heads per block, without and with writing.
    fast: Option<[[Kernel; 2]; 3]>,
    /// For short sequences with two query heads per kv head.
    short: Option<Kernel>,
    /// For eight query heads per kv head: tokens of different sequences, with writing, and positions of prompts.
    group: Option<[Kernel; 2]>,
}

/// `AttentionArgs` of `kernels/attention.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    qkv: u64,
    q_norm: u64,
    k_norm: u64,
    inv_freq: u64,
    keys: u64,
    values: u64,
    out: u64,
    pages: u64,
    slots: u64,
    positions: u64,
    axes: u64,
    axis_of: u64,
    rows: i32,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
    max_pages: i32,
    eps: f32,
    scale: f32,
    deals: i32,
}

impl Stack {
    /// Loads `layers.*` and `norm` below `scope`.
    ///
    /// # Errors
    /// What the scope and the device say; [`LoadError::Invalid`] for configs that the kernels do not support.
    pub fn load(up: &Uploader, config: &DecoderConfig, scope: &Scope<'_>) -> Result<Stack, LoadError> {
        let unserved = |what: String| Err(LoadError::Invalid { file: "config.json".into(), reason: what });
        if config.attention_bias {
            return unserved("attention with biases is not served on a GPU; set device.kind to \"cpu\"".into());
        }
        if config.head_dim > MAX_HEAD || !config.head_dim.is_multiple_of(2) {
            return unserved(format!(
                "head_dim = {} is not served on a GPU: expected an even number up to {MAX_HEAD}",
                config.head_dim
            ));
        }
        let hidden = config.hidden_size;
        let layer = |i: usize| -> Result<Layer, LoadError> {
            let scope = scope.at("layers").at(i);
            let (attention, mlp, d) = (scope.at("self_attn"), scope.at("mlp"), config.head_dim);
            let (q, kv) = (config.num_attention_heads * d, config.num_key_value_heads * d);
            let qkv = up.room((q + 2 * kv) * hidden)?;
            for (name, rows, at) in [("q_proj", q, 0), ("k_proj", kv, q), ("v_proj", kv, q + kv)] {
                up.put(&qkv, at * hidden, &attention.at(name), "weight", &[rows, hidden])?;
            }
            Ok(Layer {
                attention_norm: up.tensor(&scope.at("input_layernorm"), "weight", &[hidden])?,
                qkv: Linear::new(qkv, None, q + 2 * kv, hidden),
                q_norm: up.tensor(&attention.at("q_norm"), "weight", &[d])?,
                k_norm: up.tensor(&attention.at("k_norm"), "weight", &[d])?,
                output: Linear::load(up, &attention.at("o_proj"), q, hidden, false)?,
                ffn_norm: up.tensor(&scope.at("post_attention_layernorm"), "weight", &[hidden])?,
                ffn: Ffn::load(up, config, i, &mlp)?,
            })
        };
        // As the CPU's: the exponent and the power in f32.
        let frequency = |j: usize| 1.0 / (config.rope_theta as f32).powf((2 * j) as f32 / config.head_dim as f32);
        let frequencies: Vec<f32> = (0..config.head_dim / 2).map(frequency).collect();
        Ok(Stack {
            layers: (0..config.num_hidden_layers).map(layer).collect::<Result<_, _>>()?,
            norm: up.tensor(&scope.at("norm"), "weight", &[hidden])?,
            frequencies: up.gpu().upload("rotary frequencies", &frequencies)?,
            axis_of: match config.rotary_axes() {
                Some(axes) => Some(up.gpu().upload("rotary frequencies", &axes)?),
                None => None,
            },
            config: config.clone(),
        })
    }

    /// Sizes.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// The final norm.
    pub fn norm(&self) -> Norm {
        Norm { gain: self.norm.address(), eps: self.config.rms_norm_eps as f32 }
    }

    /// The weight of the final norm.
    pub(crate) fn final_norm(&self) -> &Weight {
        &self.norm
    }

    /// Address of the frequencies of the rotation, f32 `[head_dim / 2]`.
    pub(crate) fn frequencies(&self) -> u64 {
        self.frequencies.address()
    }

    /// Address of the axis that each frequency turns with, where positions have three.
    pub(crate) fn axis_of(&self) -> Option<u64> {
        self.axis_of.as_ref().map(Buffer::address)
    }

    /// The weights of all layers; `None` where a layer has experts, or a product a bias.
    pub(crate) fn dense_layers(&self) -> Option<Vec<DenseLayer<'_>>> {
        self.layers.iter().map(Layer::dense).collect()
    }

    /// The weights of all layers; `None` where a layer has no experts or one that every row visits, or a product a bias.
    pub(crate) fn sparse_layers(&self) -> Option<Vec<SparseLayer<'_>>> {
        self.layers.iter().map(Layer::sparse).collect()
    }

    /// Bytes that one page takes over all layers, keys and values together.
    pub fn page_bytes(&self, precision: Precision) -> usize {
        2 * self.config.num_hidden_layers * self.page_of_layer(precision)
    }

    fn page_of_layer(&self, precision: Precision) -> usize {
        PAGE * self.config.num_key_value_heads * self.config.head_dim * element_size(precision)
    }

    /// A cache of `pages` pages for `slots` sequences of at most `max_pages` each. Tables hold zeros.
    ///
    /// # Errors
    /// When the device has no room.
    pub fn cache(
        &self,
        gpu: &Gpu,
        precision: Precision,
        pages: usize,
        slots: usize,
        max_pages: usize,
    ) -> Result<Cache, CudaError> {
        let layer_bytes = pages * self.page_of_layer(precision);
        let all = layer_bytes * self.layers.len();
        Ok(Cache {
            keys: gpu.alloc("the KV cache", all)?,
            values: gpu.alloc("the KV cache", all)?,
            tables: gpu.zeros("page tables", slots * max_pages)?,
            max_pages,
            layers: self.layers.len(),
            layer_bytes,
            page_bytes: self.page_of_layer(precision),
        })
    }

    /// Queues all layers over the residual stream `x [rows, hidden]` in f32.
    ///
    /// # Errors
    /// What the driver says.
    pub fn run(&self, engine: &Engine, stream: &Stream, x: u64, rows: Rows, cache: &Cache) -> Result<(), CudaError> {
        self.run_with(engine, stream, x, rows, cache, |_| Ok(()))
    }

    /// The same, and what `before` queues before each layer, and behind the last one.
    ///
    /// # Errors
    /// What the driver says.
    pub fn run_with(
        &self,
        engine: &Engine,
        stream: &Stream,
        x: u64,
        rows: Rows,
        cache: &Cache,
        before: impl Fn(usize) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let (products, scratch, c) = (&engine.products, &engine.scratch, &self.config);
        let eps = c.rms_norm_eps as f32;
        let axis_of = self.axis_of.as_ref().filter(|_| rows.axes != 0);
        for (i, layer) in self.layers.iter().enumerate() {
            before(i)?;
            let normed = |gain: &Weight| Input::Normed(x, Norm { gain: gain.address(), eps });
            let [qkv, mixed, inner] = [&scratch.qkv, &scratch.mixed, &scratch.inner].map(Buffer::address);
            let deals = engine.attention.deals(c.head_dim) && products.deals(&layer.output, rows.count);
            let ready = |x, dealt| if dealt { Input::Dealt(x) } else { Input::Ready(x) };
            products.run(stream, Mode::Store, &layer.qkv, normed(&layer.attention_norm), qkv, rows.count)?;
            let args = Args {
                qkv,
                q_norm: layer.q_norm.address(),
                k_norm: layer.k_norm.address(),
                inv_freq: self.frequencies.address(),
                keys: cache.keys.at(i * cache.layer_bytes),
                values: cache.values.at(i * cache.layer_bytes),
                out: mixed,
                pages: cache.tables.address(),
                slots: rows.slots,
                positions: rows.positions,
                axes: axis_of.map_or(0, |_| rows.axes),
                axis_of: axis_of.map_or(0, Buffer::address),
                rows: rows.count as i32,
                heads: c.num_attention_heads as i32,
                kv_heads: c.num_key_value_heads as i32,
                head_dim: c.head_dim as i32,
                max_pages: cache.max_pages as i32,
                eps,
                scale: (c.head_dim as f32).sqrt().recip(),
                deals: i32::from(deals),
            };
            engine.attention.run(stream, &args, rows)?;
            products.run(stream, Mode::Add, &layer.output, ready(mixed, deals), x, rows.count)?;
            match (&layer.ffn, &engine.experts) {
                (Ffn::Dense { gate_up, down }, _) => {
                    let deals = products.deals(gate_up, rows.count) && products.deals(down, rows.count);
                    let x_normed = normed(&layer.ffn_norm);
                    products.run_as(stream, Mode::SiluMul, gate_up, x_normed, inner, rows.count, deals)?;
                    products.run(stream, Mode::Add, down, ready(inner, deals), x, rows.count)?;
                }
                (Ffn::Moe(moe), Some(experts)) => {
                    let norm = Norm { gain: layer.ffn_norm.address(), eps };
                    experts.run(stream, products, moe, norm, x, rows.positions, rows.count)?;
                }
                (Ffn::Moe(_), None) => {
                    return Err(CudaError::NoKernel("moe: the engine was made without experts".into()));
                }
            }
        }
        before(self.layers.len())
    }
}

impl Layer {
    fn dense(&self) -> Option<DenseLayer<'_>> {
        let Ffn::Dense { gate_up, down } = &self.ffn else { return None };
        let (qkv, output) = (&self.qkv, &self.output);
        let plain = [qkv, output, gate_up, down].iter().all(|linear| linear.bias().is_none());
        let norms = [&self.attention_norm, &self.ffn_norm];
        let head_norms = [&self.q_norm, &self.k_norm];
        plain.then_some(DenseLayer { norms, head_norms, qkv, output, gate_up, down })
    }

    fn sparse(&self) -> Option<SparseLayer<'_>> {
        let Ffn::Moe(moe) = &self.ffn else { return None };
        let (qkv, output, experts) = (&self.qkv, &self.output, moe.routed()?);
        let plain = [qkv, output, experts.router].iter().all(|linear| linear.bias().is_none());
        let norms = [&self.attention_norm, &self.ffn_norm];
        let head_norms = [&self.q_norm, &self.k_norm];
        plain.then_some(SparseLayer { norms, head_norms, qkv, output, experts })
    }
}

impl Ffn {
    fn load(up: &Uploader, config: &DecoderConfig, layer: usize, scope: &Scope<'_>) -> Result<Ffn, LoadError> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        if let Some(moe) = config.moe.as_ref().filter(|_| config.is_sparse(layer)) {
            return Ok(Ffn::Moe(Moe::load(up, moe, hidden, scope)?));
        }
        let gate_up = up.gate_up([&scope.at("gate_proj"), &scope.at("up_proj")], "weight", inner, hidden)?;
        Ok(Ffn::Dense {
            gate_up: Linear::new(gate_up, None, 2 * inner, hidden),
            down: Linear::load(up, &scope.at("down_proj"), inner, hidden, false)?,
        })
    }
}

/// Kernels and scratch of one stage.
pub struct Engine {
    /// Products.
    pub products: Products,
    /// Experts, where a stack has them.
    pub experts: Option<Experts>,
    attention: Attention,
    scratch: Scratch,
}

impl Engine {
    /// For up to `rows` rows of any of these stacks; `width` is the largest other input of a product.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(
        gpu: &Gpu,
        precision: Precision,
        rows: usize,
        stacks: &[&DecoderConfig],
        width: usize,
    ) -> Result<Engine, CudaError> {
        let size = element_size(precision);
        let most = |of: fn(&DecoderConfig) -> usize| stacks.iter().map(|c| of(c)).max().unwrap_or(1);
        let qkv = most(|c| (c.num_attention_heads + 2 * c.num_key_value_heads) * c.head_dim);
        let mixed = most(|c| c.num_attention_heads * c.head_dim);
        let inner = most(|c| c.intermediate_size);
        let hidden = most(|c| c.hidden_size).max(width);
        Ok(Engine {
            products: Products::new(gpu, precision, rows, hidden)?,
            experts: Experts::new(gpu, precision, rows, stacks)?,
            attention: Attention::new(gpu, precision)?,
            scratch: Scratch {
                qkv: gpu.zeros("scratch", rows * qkv * size)?,
                mixed: gpu.zeros("scratch", rows * mixed * size)?,
                inner: gpu.zeros("scratch", rows * inner * size)?,
            },
        })
    }
}

impl Attention {
    /// The kernels of an element type.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Gpu, precision: Precision) -> Result<Attention, CudaError> {
        Ok(match precision {
            Precision::F32 => Attention {
                write: gpu.kernel("kv_write_f32")?,
                plain: gpu.kernel("attend_plain_f32")?,
                fast: None,
                short: None,
                group: None,
            },
            Precision::Bf16 => {
                let group = [gpu.kernel("attend_group8_write")?, gpu.kernel("attend_group8_prompt")?];
                group[1].allow_shared(GROUP_BYTES)?;
                Attention {
                    write: gpu.kernel("kv_write_bf16")?,
                    plain: gpu.kernel("attend_plain_bf16")?,
                    fast: Some([
                        [gpu.kernel("attend_fast1")?, gpu.kernel("attend_fast1_write")?],
                        [gpu.kernel("attend_fast2")?, gpu.kernel("attend_fast2_write")?],
                        [gpu.kernel("attend_fast4")?, gpu.kernel("attend_fast4_write")?],
                    ]),
                    short: Some(gpu.kernel("attend_short2_write")?),
                    group: Some(group),
                }
            }
        })
    }

    /// Whether results for heads of this size can be dealt.
    fn deals(&self, head_dim: usize) -> bool {
        self.fast.is_some() && head_dim == 128
    }

    fn run(&self, stream: &Stream, args: &Args, of: Rows) -> Result<(), CudaError> {
        let distinct = of.distinct;
        let (rows, heads, kv_heads) = (args.rows as usize, args.heads as usize, args.kv_heads as usize);
        let group = heads / kv_heads;
        // Query heads of one block.
        let (which, together) = match group {
            2 => (1, 2),
            g if g.is_multiple_of(4) => (2, 4),
            _ => (0, 1),
        };
        let fast = self.fast.filter(|_| args.head_dim == 128).map(|fast| fast[which]);
        // A block can write its key and value on the way if no other block needs them.
        let writes = fast.is_some() && distinct && together == group;
        let args = *args;
        let short = self.short.filter(|_| {
            args.head_dim == 128 && group == 2 && distinct && of.most.is_some_and(|most| most <= MAX_SHORT)
        });
        if let Some(short) = short {
            let shape = Shape::new(kv_heads, 64).by(rows).overlapping();
            // SAFETY: as below.
            return unsafe { short.launch(stream, shape, kernel_args![args]) };
        }
        if let Some([alone, prompt]) = self.group.filter(|_| args.head_dim == 128 && group == GROUP) {
            let shape = Shape::new(kv_heads, 256).overlapping();
            // SAFETY: as below.
            return unsafe {
                if distinct {
                    alone.launch(stream, shape.by(rows), kernel_args![args])
                } else {
                    self.write.launch(stream, Shape::new(kv_heads, 64).by(rows).overlapping(), kernel_args![args])?;
                    let shape = shape.by(rows.div_ceil(GROUP_ROWS)).shared(GROUP_BYTES);
                    prompt.launch(stream, shape, kernel_args![args])
                }
            };
        }
        // SAFETY: the argument is `AttentionArgs`; all addresses are of buffers of the engine and its caller.
        unsafe {
            if !writes {
                self.write.launch(stream, Shape::new(kv_heads, 64).by(rows).overlapping(), kernel_args![args])?;
            }
            match fast {
                Some(fast) => {
                    let shape = Shape::new(heads / together, 256).by(rows).overlapping();
                    fast[usize::from(writes)].launch(stream, shape, kernel_args![args])
                }
                None => self.plain.launch(stream, Shape::new(heads, 32).by(rows).overlapping(), kernel_args![args]),
            }
        }
    }
}
