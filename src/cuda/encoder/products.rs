//! Products of many rows with the weights of a tower: which kernel, and its arguments.

use super::hopper::Hopper;
use crate::kernel::kernel_args;
use crate::weights::{Uploader, Weight};
use crate::{CudaError, Gpu, Kernel, Shape, Stream};
use omni_config::Precision;
use omni_model::LoadError;
use omni_model::weights::Scope;

/// What a kernel does with a sum: the numbers of `kernels/tower_linear.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// `y = sum + bias`, in the engine's type.
    Store,
    /// `y = sum + bias`, in f32.
    Full,
    /// `y += sum + bias`, in f32.
    Add,
    /// `y = gelu(sum + bias)`, in the engine's type.
    GeluErf,
    /// The same by tanh.
    GeluTanh,
}

/// A layer `[outputs, inputs]`, perhaps with a bias.
pub(super) struct Linear {
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

    /// Loads `weight` and `bias`.
    ///
    /// # Errors
    /// Those of [`Uploader::tensor`].
    pub fn load(up: &Uploader, scope: &Scope<'_>, inputs: usize, outputs: usize) -> Result<Linear, LoadError> {
        let weight = up.tensor(scope, "weight", &[outputs, inputs])?;
        let bias = up.tensor(scope, "bias", &[outputs])?;
        Ok(Linear { weight, bias: Some(bias), outputs, inputs })
    }

    /// Numbers of a result.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Numbers of a row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }
}

/// Which kernels multiply and attend. All but the plain ones give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cores {
    /// Those without tensor cores, for tests.
    Plain,
    /// Those for any GPU that is supported.
    Any,
    /// The best for this GPU.
    Best,
}

/// `TowerLinear` of `kernels/tower_linear.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Args {
    pub w: u64,
    pub x: u64,
    pub bias: u64,
    pub y: u64,
    pub rows: i32,
    pub outputs: i32,
    pub inputs: i32,
    pub ldy: i32,
}

impl Args {
    /// Whether the kernels for Hopper take them: they read and write 16 bytes at a time.
    fn fit_hopper(&self) -> bool {
        let whole = [self.outputs, self.inputs, self.ldy].iter().all(|count| count % 8 == 0);
        whole && [self.w, self.x, self.bias, self.y].iter().all(|address| address % 16 == 0)
    }
}

const THREADS: u32 = 256;
/// Rows and outputs of a wide and of a slim tile. Slim ones are faster where fewer wide ones than three fifths of the
/// multiprocessors do it all, as measured (`kernels/selftest/tower_selftest.cu`).
const TILES: [usize; 2] = [128, 64];
/// `HELD` tiles of rows and of weights, of 64 inputs in bf16.
const fn tile_bytes(tile: usize) -> usize {
    3 * 2 * tile * 64 * 2
}

/// The kernels of one mode.
#[derive(Clone, Copy)]
struct Variants {
    plain: Kernel,
    /// In tiles: wide, slim.
    tiled: Option<[Kernel; 2]>,
}

/// All of them for one element type.
pub(super) struct Products {
    modes: [Variants; 5],
    hopper: Option<Hopper>,
    multiprocessors: usize,
    plain: bool,
}

impl Products {
    /// For a GPU and element type.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Gpu, precision: Precision, cores: Cores) -> Result<Products, CudaError> {
        macro_rules! variants {
            ($plain:literal) => {
                Variants { plain: gpu.kernel(concat!("tower_plain_", $plain, "_f32"))?, tiled: None }
            };
            (bf16 $name:literal) => {{
                let tiled = [gpu.kernel(concat!("tower_wide_", $name))?, gpu.kernel(concat!("tower_slim_", $name))?];
                for (kernel, tile) in tiled.iter().zip(TILES) {
                    kernel.allow_shared(tile_bytes(tile))?;
                }
                Variants { plain: gpu.kernel(concat!("tower_plain_", $name, "_bf16"))?, tiled: Some(tiled) }
            }};
        }
        let modes = match precision {
            // f32 results are stored in f32 either way.
            Precision::F32 => [
                variants!("store"),
                variants!("store"),
                variants!("add"),
                variants!("gelu_erf"),
                variants!("gelu_tanh"),
            ],
            Precision::Bf16 => [
                variants!(bf16 "store"),
                variants!(bf16 "full"),
                variants!(bf16 "add"),
                variants!(bf16 "gelu_erf"),
                variants!(bf16 "gelu_tanh"),
            ],
        };
        let hopper = match (precision, cores) {
            (Precision::Bf16, Cores::Best) => Hopper::new(gpu)?,
            _ => None,
        };
        let multiprocessors = gpu.multiprocessors() as usize;
        Ok(Products { modes, hopper, multiprocessors, plain: cores == Cores::Plain })
    }

    /// Queues `y = mode(layer x)` for `rows` rows, `ldy` numbers apart in `y`.
    ///
    /// # Errors
    /// What the driver says.
    #[expect(clippy::too_many_arguments, reason = "those of the kernel")]
    pub fn run(
        &self,
        stream: &Stream,
        mode: Mode,
        layer: &Linear,
        x: u64,
        y: u64,
        ldy: usize,
        rows: usize,
    ) -> Result<(), CudaError> {
        let Linear { weight, bias, outputs, inputs } = layer;
        let args = Args {
            w: weight.address(),
            x,
            bias: bias.as_ref().map_or(0, Weight::address),
            y,
            rows: rows as i32,
            outputs: *outputs as i32,
            inputs: *inputs as i32,
            ldy: ldy as i32,
        };
        if let Some(hopper) = self.hopper.as_ref().filter(|_| args.fit_hopper()) {
            return hopper.run(stream, mode, args);
        }
        let Variants { plain, tiled } = self.modes[mode as usize];
        let (kernel, shape) = match tiled.filter(|_| inputs.is_multiple_of(8) && !self.plain) {
            None => (plain, Shape::new(rows, THREADS).by(outputs.div_ceil(8))),
            Some(kernels) => {
                let blocks = |tile: usize| (outputs.div_ceil(tile), rows.div_ceil(tile));
                let (across, down) = blocks(TILES[0]);
                let slim = usize::from(across * down < self.multiprocessors * 3 / 5);
                let (across, down) = blocks(TILES[slim]);
                (kernels[slim], Shape::new(across, THREADS).by(down).shared(tile_bytes(TILES[slim])))
            }
        };
        // SAFETY: the argument is `TowerLinear`; the layer lives as long as the stage that queues, and the caller gives
        // rows of the layer's sizes.
        unsafe { kernel.launch(stream, shape, kernel_args![args]) }
    }
}
