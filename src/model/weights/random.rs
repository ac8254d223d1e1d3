//! Weights from a seed, for measuring without a download: the right shapes, the right element type, noise.
//!
//! Element `i` of a tensor is a function of (seed, name, i) alone, so that it is the same on every device, whatever the
//! order or the split in which tensors are made:
//!
//! 1. `name` is the 64-bit FNV-1a hash of the tensor's whole name;
//! 2. the word is number `i % 4` of the Philox4x32-10 block of counter (low and high half of `i / 4`, low and high half of
//!    `name`) and key (low and high half of `seed`);
//! 3. the value is `((word >> 8) * 2^-23 - 1) * bound` in f32, of which only the last product rounds;
//! 4. it is rounded to bf16, to the nearest even, whatever the element type asked for.
//!
//! `kernels/random.cu` does the same. What `bound` is, or that a tensor is constant, depends on its name and shape
//! ([`Fill::of`]): activations stay of order 1 through all layers, and speech is neither silent nor clipped.

use crate::LoadError;
use crate::sampling::philox;
use candle_core::{DType, Device, Tensor};
use rayon::prelude::*;

/// Elements that a thread makes at a time; a multiple of a block's four.
const PIECE: usize = 1 << 16;

/// What the elements of a tensor are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fill {
    /// All the same; exact in bf16.
    Constant(f32),
    /// Evenly spread over `[-bound, bound)`.
    Uniform(f32),
}

/// One tensor of random weights: everything a device needs to make it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomTensor {
    /// Of the whole model.
    pub seed: u64,
    /// Hash of the tensor's name.
    pub name: u64,
    /// What its elements are.
    pub fill: Fill,
}

/// The 64-bit FNV-1a hash of a name.
pub fn hash(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

impl Fill {
    /// What a tensor of this name and shape is filled with.
    pub fn of(name: &str, shape: &[usize]) -> Fill {
        let last = name.rsplit('.').next().unwrap_or(name);
        match (last, shape) {
            ("bias", _) => Fill::Constant(0.0),
            // Logarithms of what Snake takes: x + sin(x)^2.
            ("alpha" | "beta", _) => Fill::Constant(0.0),
            // Layer scales: small, as trained ones are, so that the residual stream stays what it was.
            ("scale" | "gamma", _) => Fill::Constant(0.125),
            // Codebooks are kept as sums of vectors and how many there were.
            ("cluster_usage", _) => Fill::Constant(1.0),
            ("embedding_sum" | "embed_sum", _) => Fill::Uniform(1.0),
            // A norm's.
            (_, [_]) => Fill::Constant(1.0),
            _ if name.contains("embed") => Fill::Uniform(0.5),
            _ => Fill::Uniform(gain(name, shape) * (3.0 / inputs(name, shape) as f32).sqrt()),
        }
    }
}

/// How many products an output of a linear layer or convolution `[outputs, inputs, taps]` adds up.
fn inputs(name: &str, shape: &[usize]) -> usize {
    // Transposed convolutions are stored the other way round, `[inputs, outputs, taps]`. Those that overlap are twice
    // as long as their stride.
    let transposed = |ending: &str| name.contains("decoder.") && name.ends_with(ending);
    let all = match shape {
        [inputs, _, _] if transposed(".block.1.conv.weight") => 2 * inputs,
        [inputs, _, _] if name.contains(".upsample.") && name.ends_with(".0.conv.weight") => *inputs,
        [_, rest @ ..] => rest.iter().product(),
        [] => 1,
    };
    all.max(1)
}

/// A product with a matrix of gain 1 keeps the size of what it is given.
fn gain(name: &str, shape: &[usize]) -> f32 {
    match shape {
        // To samples.
        [1, inputs, taps] if *inputs > 1 && *taps > 1 => 0.05,
        // The way back into the stream of a residual unit, of which there are many in a row.
        _ if name.ends_with(".conv2.conv.weight") => 0.25,
        _ => 1.0,
    }
}

impl RandomTensor {
    /// The tensor of a model.
    pub fn new(seed: u64, name: &str, shape: &[usize]) -> RandomTensor {
        RandomTensor { seed, name: hash(name), fill: Fill::of(name, shape) }
    }

    /// Elements `first..first + out.len()`, as bf16 bits.
    pub fn bits(&self, first: u64, out: &mut [u16]) {
        self.each(first, out, |bits| bits);
    }

    fn each<T: Send>(&self, first: u64, out: &mut [T], of: impl Fn(u16) -> T + Sync) {
        out.par_chunks_mut(PIECE).enumerate().for_each(|(i, piece)| {
            let begin = first + (i * PIECE) as u64;
            let bound = match self.fill {
                Fill::Constant(value) => return piece.iter_mut().for_each(|element| *element = of(bf16(value))),
                Fill::Uniform(bound) => bound,
            };
            let mut words = self.block(begin / 4);
            for (at, element) in (begin..).zip(piece) {
                if at.is_multiple_of(4) {
                    words = self.block(at / 4);
                }
                *element = of(weight(words[(at % 4) as usize], bound));
            }
        });
    }

    fn block(&self, number: u64) -> [u32; 4] {
        let halves = |x: u64| [x as u32, (x >> 32) as u32];
        let ([low, high], [name_low, name_high]) = (halves(number), halves(self.name));
        philox::block([low, high, name_low, name_high], halves(self.seed))
    }

    /// Elements from `first` on, as a tensor of `shape` on `device`.
    ///
    /// # Errors
    /// What the device says.
    pub fn tensor(&self, first: u64, shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor, LoadError> {
        let count = shape.iter().product();
        let host = if dtype == DType::F32 {
            let mut data = vec![0f32; count];
            self.each(first, &mut data, widened);
            Tensor::from_vec(data, shape, &Device::Cpu)?
        } else {
            let mut data = vec![[0u8; 2]; count];
            self.each(first, &mut data, u16::to_le_bytes);
            Tensor::from_raw_buffer(data.as_flattened(), DType::BF16, shape, &Device::Cpu)?.to_dtype(dtype)?
        };
        Ok(host.to_device(device)?)
    }
}

fn weight(word: u32, bound: f32) -> u16 {
    // A multiple of 2^-23 in [-1, 1), exactly.
    let unit = (word >> 8) as f32 * (1.0 / (1u32 << 23) as f32) - 1.0;
    bf16(unit * bound)
}

/// The nearest bf16, of two equally near the even one. For finite numbers.
fn bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) as u16
}

fn widened(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "talker.model.layers.0.self_attn.q_proj.weight";

    /// Made by another program from the description above; a GPU's test expects the same.
    #[test]
    fn the_values_are_these() {
        let tensor = RandomTensor::new(42, NAME, &[2048, 2048]);
        assert_eq!(tensor.name, 0x0D9A_B1B2_7073_4BCC);
        assert_eq!(tensor.fill, Fill::Uniform(f32::from_bits(0x3D1C_C471)));
        let mut bits = [0; 8];
        tensor.bits(0, &mut bits);
        assert_eq!(bits, [0x3D1C, 0xBCF2, 0xBD00, 0x3C8A, 0x3D0D, 0xBC35, 0xBD11, 0xBD03]);
        tensor.bits((1 << 34) + 1, &mut bits);
        assert_eq!(bits, [0xBB8E, 0xBD09, 0x3C8F, 0x3D19, 0x3CD2, 0x3CD1, 0xBBBE, 0xBC8B]);
    }

    #[test]
    fn an_element_is_the_same_in_any_piece_and_type() {
        let tensor = RandomTensor::new(7, NAME, &[512, 300]);
        let whole = tensor.tensor(0, &[512, 300], DType::F32, &Device::Cpu).unwrap();
        let part = tensor.tensor(301, &[2, 7], DType::BF16, &Device::Cpu).unwrap();
        let part = part.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let whole = whole.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(part, whole[301..315]);
        assert_ne!(RandomTensor::new(8, NAME, &[512, 300]), tensor);
        let Fill::Uniform(bound) = tensor.fill else { panic!() };
        let mean = whole.iter().sum::<f32>() / whole.len() as f32;
        let power = whole.iter().map(|x| x * x).sum::<f32>() / whole.len() as f32;
        assert!(mean.abs() < 1e-3 * bound.max(1.0), "{mean}");
        // The variance of what is spread evenly over [-bound, bound); 1 / inputs.
        assert!((power * 300.0 - 1.0).abs() < 0.01, "{power}");
    }

    #[test]
    fn what_a_tensor_is_depends_on_its_name_and_shape() {
        let uniform = |inputs: f32, gain: f32| Fill::Uniform(gain * (3.0 / inputs).sqrt());
        for (name, shape, fill) in [
            ("talker.model.norm.weight", &[2048][..], Fill::Constant(1.0)),
            ("talker.model.layers.3.self_attn.q_norm.weight", &[128], Fill::Constant(1.0)),
            ("talker.text_projection.linear_fc1.bias", &[2048], Fill::Constant(0.0)),
            ("talker.model.text_embedding.weight", &[151_936, 2048], Fill::Uniform(0.5)),
            ("thinker.model.embed_tokens.weight", &[152_064, 2048], Fill::Uniform(0.5)),
            ("decoder.decoder.1.block.2.act1.alpha", &[768], Fill::Constant(0.0)),
            ("decoder.upsample.0.1.gamma", &[1024], Fill::Constant(0.125)),
            ("decoder.pre_conv.conv.weight", &[1024, 512, 3], uniform(1536.0, 1.0)),
            ("decoder.upsample.0.0.conv.weight", &[1024, 1000, 2], uniform(1024.0, 1.0)),
            ("decoder.upsample.0.1.dwconv.conv.weight", &[1024, 1, 7], uniform(7.0, 1.0)),
            ("decoder.decoder.1.block.1.conv.weight", &[1536, 768, 16], uniform(3072.0, 1.0)),
            ("code2wav.decoder.1.block.1.conv.weight", &[1536, 768, 16], uniform(3072.0, 1.0)),
            ("encoder.encoder.layers.1.block.1.conv.weight", &[32, 64, 3], uniform(192.0, 1.0)),
            ("decoder.decoder.6.conv.weight", &[1, 96, 7], uniform(672.0, 0.05)),
        ] {
            assert_eq!(Fill::of(name, shape), fill, "{name}");
        }
    }
}
