//! Products of a few rows with weights: which kernel, and its arguments.

use super::buffer::Buffer;
use super::device::Gpu;
use super::error::CudaError;
use super::kernel::{Kernel, Shape, kernel_args};
use super::many::ManyLinear;
use super::stream::Stream;
use super::tile::{Has, Product, Tile};
use super::weights::{Uploader, Weight, element_size};
use omni_config::Precision;
use omni_model::LoadError;
use omni_model::weights::Scope;

/// What a kernel does with a sum: the numbers of `kernels/linear.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `y = sum + bias`, in the engine's type.
    Store,
    /// `y = sum + bias`, in f32.
    StoreF32,
    /// `y += sum + bias`, in f32.
    Add,
    /// `y = silu(gate) * up`, in the engine's type.
    SiluMul,
    /// `y = silu(sum + bias)`, in the engine's type.
    Silu,
}

const MODES: [Mode; 5] = [Mode::Store, Mode::StoreF32, Mode::Add, Mode::SiluMul, Mode::Silu];

/// A layer: `[outputs, inputs]` and perhaps a bias.
pub struct Linear {
    weight: Weight,
    bias: Option<Weight>,
    outputs: usize,
    inputs: usize,
}

impl Linear {
    /// Takes weights that are on the device.
    pub fn new(weight: Weight, bias: Option<Weight>, outputs: usize, inputs: usize) -> Linear {
        Linear { weight, bias, outputs, inputs }
    }

    /// Loads `weight` and, if there is one, `bias`.
    ///
    /// # Errors
    /// Those of [`Uploader::tensor`].
    pub fn load(
        up: &Uploader,
        scope: &Scope<'_>,
        inputs: usize,
        outputs: usize,
        bias: bool,
    ) -> Result<Linear, LoadError> {
        let weight = up.tensor(scope, "weight", &[outputs, inputs])?;
        let bias = bias.then(|| up.tensor(scope, "bias", &[outputs])).transpose()?;
        Ok(Linear { weight, bias, outputs, inputs })
    }

    /// Numbers that a row of the inputs has.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Rows of the weight.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// The bias, if it has one.
    pub fn bias(&self) -> Option<&Weight> {
        self.bias.as_ref()
    }

    /// The weight.
    pub fn weight(&self) -> &Weight {
        &self.weight
    }
}

/// A norm: its weight and epsilon.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// Address of the weight, `[width]`.
    pub gain: u64,
    /// Epsilon.
    pub eps: f32,
}

/// Rows that go into a product.
#[derive(Clone, Copy, Debug)]
pub enum Input {
    /// Rows of the engine's type.
    Ready(u64),
    /// The same with dealt inputs (`kernels/common.cuh`), for a layer of [`Products::can_deal`].
    Dealt(u64),
    /// Rows of f32, which are normed first.
    Normed(u64, Norm),
}

/// `LinearArgs` of `kernels/linear.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Args {
    pub w: u64,
    pub x: u64,
    gain: u64,
    bias: u64,
    y: u64,
    pub rows: i32,
    pub outputs: i32,
    pub inputs: i32,
    ldy: i32,
    eps: f32,
}

/// Up to so many rows, one pass over the weights at the speed of memory by blocks that norm the rows on the way.
const SMALL_ROWS: usize = 8;
/// Up to so many, by blocks that take normed rows; above, tiles of outputs and rows.
const FEW_ROWS: usize = 32;
/// Inputs that the kernel for few rows norms itself.
const MAX_NORMED: usize = 2048;
/// Outputs from which tiles of 32 fill the device with few rows.
const WIDE: usize = 4096;
/// Blocks that share one: `PARTS` of `kernels/common.cuh`.
const PARTS: usize = 8;
/// `STAGES`, `ROWS` and `DEPTH` of `kernels/linear.cu`.
const TILE_BYTES: fn(usize) -> usize = |outputs| 5 * (outputs + 64) * 64 * 2;
const THREADS: u32 = 256;

/// Whether the kernels on tensor cores take a layer of this size; the plain ones take any. Of gate and up of a width
/// that is no multiple of 8 the last turn is short, and so such a width must never be fast.
fn fast_sizes(outputs: usize, inputs: usize) -> bool {
    inputs.is_multiple_of(512) && outputs.is_multiple_of(32)
}

/// The kernels of one mode.
#[derive(Clone, Copy)]
struct Variants {
    /// Without and with norm.
    plain: [Kernel; 2],
    fast: Option<Fast>,
}

#[derive(Clone, Copy)]
struct Fast {
    /// For up to 8 rows, without and with norm.
    small: [Kernel; 2],
    /// For up to 16 rows in tiles of 16 outputs, and for up to 32 in tiles of 16 and of 32.
    few: [Kernel; 3],
    /// Tiles of 32 and of 64 outputs.
    large: [Kernel; 2],
    /// Eight blocks to a tile of 64 outputs.
    parts: Kernel,
}

/// All of them for one element type, with the room that norms need.
pub struct Products {
    precision: Precision,
    modes: Vec<Variants>,
    norm: Kernel,
    norm_full: Kernel,
    many: Option<ManyLinear>,
    multiprocessors: usize,
    /// Whether blocks can share tiles.
    clusters: bool,
    /// Normed rows, for launches that cannot norm on the way.
    normed: Buffer<u8>,
    /// Only the plain kernels: for tests.
    plain: bool,
}

macro_rules! variants {
    ($gpu:expr, $name:literal, $plain:literal) => {
        Variants {
            plain: [
                $gpu.kernel(concat!("linear_plain_", $plain, "_bf16"))?,
                $gpu.kernel(concat!("linear_plain_norm_", $plain, "_bf16"))?,
            ],
            fast: Some(Fast {
                small: [
                    $gpu.kernel(concat!("linear_small_", $name))?,
                    $gpu.kernel(concat!("linear_small_norm_", $name))?,
                ],
                few: [
                    $gpu.kernel(concat!("linear_few1x2_", $name))?,
                    $gpu.kernel(concat!("linear_few1x4_", $name))?,
                    $gpu.kernel(concat!("linear_few2x4_", $name))?,
                ],
                large: [
                    $gpu.kernel(concat!("linear_large32_", $name))?,
                    $gpu.kernel(concat!("linear_large64_", $name))?,
                ],
                parts: $gpu.kernel(concat!("linear_parts_", $name))?,
            }),
        }
    };
    ($gpu:expr, $plain:literal) => {
        Variants {
            plain: [
                $gpu.kernel(concat!("linear_plain_", $plain, "_f32"))?,
                $gpu.kernel(concat!("linear_plain_norm_", $plain, "_f32"))?,
            ],
            fast: None,
        }
    };
}

impl Products {
    /// For up to `rows` rows of up to `width` inputs.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Gpu, precision: Precision, rows: usize, width: usize) -> Result<Products, CudaError> {
        let modes = match precision {
            // f32 results are stored in f32 either way.
            Precision::F32 => vec![
                variants!(gpu, "store"),
                variants!(gpu, "store"),
                variants!(gpu, "add"),
                variants!(gpu, "silu_mul"),
                variants!(gpu, "silu"),
            ],
            Precision::Bf16 => vec![
                variants!(gpu, "store", "store"),
                variants!(gpu, "full", "full"),
                variants!(gpu, "add", "add"),
                variants!(gpu, "silu_mul", "silu_mul"),
                variants!(gpu, "silu", "silu"),
            ],
        };
        for fast in modes.iter().filter_map(|mode| mode.fast) {
            for (kernel, outputs) in fast.large.iter().zip([32, 64]) {
                kernel.allow_shared(TILE_BYTES(outputs))?;
            }
            fast.parts.allow_shared(TILE_BYTES(64))?;
        }
        let (norm, norm_full) = match precision {
            Precision::F32 => ("rms_norm_f32", "rms_norm_f32"),
            Precision::Bf16 => ("rms_norm_bf16", "rms_norm_full_bf16"),
        };
        let many = match precision {
            Precision::F32 => None,
            Precision::Bf16 => ManyLinear::new(gpu)?,
        };
        Ok(Products {
            many,
            precision,
            modes,
            norm: gpu.kernel(norm)?,
            norm_full: gpu.kernel(norm_full)?,
            multiprocessors: gpu.multiprocessors() as usize,
            clusters: gpu.capability() >= 90,
            normed: gpu.alloc("normed rows", rows * width * element_size(precision))?,
            plain: false,
        })
    }

    /// The same without the fast kernels.
    #[must_use]
    pub fn plain(mut self) -> Products {
        self.plain = true;
        self
    }

    /// Queues `y = mode(layer x)` for `rows` rows. `y` is `[rows, results]`.
    ///
    /// # Errors
    /// What the driver says.
    pub fn run(
        &self,
        stream: &Stream,
        mode: Mode,
        layer: &Linear,
        input: Input,
        y: u64,
        rows: usize,
    ) -> Result<(), CudaError> {
        self.run_as(stream, mode, layer, input, y, rows, false)
    }

    /// The same, with results that are dealt where `deals`, which needs dealt rows or such that are normed, and
    /// [`Products::deals`] of this layer.
    ///
    /// # Errors
    /// What the driver says.
    #[expect(clippy::too_many_arguments, reason = "those of `run`")]
    pub(super) fn run_as(
        &self,
        stream: &Stream,
        mode: Mode,
        layer: &Linear,
        input: Input,
        y: u64,
        rows: usize,
        deals: bool,
    ) -> Result<(), CudaError> {
        let Linear { weight, bias, outputs, inputs } = layer;
        let results = if mode == Mode::SiluMul { outputs / 2 } else { *outputs };
        let (x, norm) = match input {
            Input::Ready(x) | Input::Dealt(x) => (x, None),
            Input::Normed(x, norm) => (x, Some(norm)),
        };
        let mut args = Args {
            w: weight.address(),
            x,
            gain: norm.map_or(0, |norm| norm.gain),
            bias: bias.as_ref().map_or(0, Weight::address),
            y,
            rows: rows as i32,
            outputs: *outputs as i32,
            inputs: *inputs as i32,
            ldy: results as i32,
            eps: norm.map_or(0.0, |norm| norm.eps),
        };
        let variants = &self.modes[MODES.iter().position(|m| *m == mode).unwrap_or_default()];
        let Some(fast) = variants.fast.filter(|_| fast_sizes(*outputs, *inputs) && !self.plain) else {
            let kernel = variants.plain[usize::from(norm.is_some())];
            let shape = Shape::new(results.div_ceil(8), THREADS).by(rows).overlapping();
            return self.launch(stream, kernel, shape, args);
        };
        let product = Product { rows, outputs: *outputs, inputs: *inputs };
        let tile = match input {
            Input::Dealt(_) => Tile::Many(product.many(self.multiprocessors).0),
            Input::Ready(_) => product.tile(self.multiprocessors, Has { many: false, ..self.has(rows) }),
            Input::Normed(..) => product.tile(self.multiprocessors, self.has(rows)),
        };
        let many = self.many.as_ref().filter(|_| matches!(tile, Tile::Many(_)));
        if let Some(norm) = norm.filter(|_| rows > SMALL_ROWS || *inputs > MAX_NORMED) {
            let kernel = many.map_or(self.norm, |many| many.norm);
            self.queue_norm(kernel, stream, x, norm, self.normed.address(), rows, *inputs)?;
            (args.x, args.gain) = (self.normed.address(), 0);
        }
        if let (Some(many), Tile::Many(of_tile)) = (many, tile) {
            return many.run(stream, mode, args, of_tile, deals);
        }
        if rows <= SMALL_ROWS {
            let kernel = fast.small[usize::from(args.gain != 0)];
            return self.launch(stream, kernel, Shape::new(outputs / 16, THREADS).overlapping(), args);
        }
        if rows <= FEW_ROWS {
            let two = usize::from(rows > 16 && *outputs >= WIDE);
            let kernel = fast.few[usize::from(rows > 16) + two];
            return self.launch(stream, kernel, Shape::new(outputs / (16 << two), THREADS).overlapping(), args);
        }
        let tiles = rows.div_ceil(64);
        if tile == Tile::Shared {
            let shape = Shape::new(PARTS, THREADS).by(outputs / 64).deep(tiles).shared(TILE_BYTES(64));
            return self.launch(stream, fast.parts, shape.clusters(PARTS).overlapping(), args);
        }
        // These do not overlap: tiles that start early take the room of those ahead of them, which costs more than it
        // saves, as measured.
        let (kernel, of_tile) = if tile == Tile::Narrow { (fast.large[0], 32) } else { (fast.large[1], 64) };
        let shape = Shape::new(outputs / of_tile, THREADS).by(tiles).shared(TILE_BYTES(of_tile));
        self.launch(stream, kernel, shape, args)
    }

    fn launch(&self, stream: &Stream, kernel: Kernel, shape: Shape, args: Args) -> Result<(), CudaError> {
        // SAFETY: the argument is `LinearArgs`; the layer lives as long as the engine that queues, and the caller gives
        // rows of the layer's sizes.
        unsafe { kernel.launch(stream, shape, kernel_args![args]) }
    }

    /// The tiles that there are for so many rows.
    fn has(&self, rows: usize) -> Has {
        Has { clusters: self.clusters, many: self.many.is_some() && rows > FEW_ROWS }
    }

    /// Whether a layer can take so many dealt rows.
    pub fn can_deal(&self, layer: &Linear, rows: usize) -> bool {
        self.is_fast(layer) && self.has(rows).many && layer.outputs.is_multiple_of(64)
    }

    /// Whether a layer takes so many rows soonest if they are dealt. Rows that are normed first are dealt then.
    pub(super) fn deals(&self, layer: &Linear, rows: usize) -> bool {
        let product = Product { rows, outputs: layer.outputs, inputs: layer.inputs };
        let tile = || product.tile(self.multiprocessors, self.has(rows));
        self.can_deal(layer, rows) && matches!(tile(), Tile::Many(_))
    }

    /// Queues the norm of `rows` rows of f32 to rows of the engine's type, dealt ones where `deals`.
    ///
    /// # Errors
    /// What the driver says.
    #[expect(clippy::too_many_arguments, reason = "those of the kernel")]
    pub(super) fn norm(
        &self,
        stream: &Stream,
        x: u64,
        norm: Norm,
        y: u64,
        rows: usize,
        width: usize,
        deals: bool,
    ) -> Result<(), CudaError> {
        let kernel = self.many.as_ref().filter(|_| deals).map_or(self.norm, |many| many.norm);
        self.queue_norm(kernel, stream, x, norm, y, rows, width)
    }

    /// Queues the same norm to rows of f32, with the values that rows of the engine's type have.
    ///
    /// # Errors
    /// What the driver says.
    pub fn norm_full(
        &self,
        stream: &Stream,
        x: u64,
        norm: Norm,
        y: u64,
        rows: usize,
        width: usize,
    ) -> Result<(), CudaError> {
        self.queue_norm(self.norm_full, stream, x, norm, y, rows, width)
    }

    #[expect(clippy::too_many_arguments, reason = "those of the kernel")]
    fn queue_norm(
        &self,
        kernel: Kernel,
        stream: &Stream,
        x: u64,
        norm: Norm,
        y: u64,
        rows: usize,
        width: usize,
    ) -> Result<(), CudaError> {
        let shape = Shape::new(rows, THREADS).overlapping();
        // SAFETY: the arguments are those of `rms_norm_*` in kernels/linear.cu.
        unsafe { kernel.launch(stream, shape, kernel_args![x, norm.gain, y, rows as i32, width as i32, norm.eps]) }
    }

    /// Whether a layer of these sizes has fast kernels here.
    pub(super) fn is_fast(&self, layer: &Linear) -> bool {
        self.precision == Precision::Bf16 && !self.plain && fast_sizes(layer.outputs, layer.inputs)
    }

    /// Element type.
    pub fn precision(&self) -> Precision {
        self.precision
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feed_forward_width_that_is_no_multiple_of_8_takes_the_plain_products() {
        assert!(fast_sizes(2 * 3072, 1024), "gate and up of Qwen3-TTS");
        assert!(fast_sizes(1024, 3072), "down of Qwen3-TTS");
        for inner in (1..4096).filter(|inner| inner % 8 > 0) {
            assert!(!fast_sizes(2 * inner, 1024), "gate and up of {inner}");
            assert!(!fast_sizes(1024, inner), "down of {inner}");
        }
    }
}
