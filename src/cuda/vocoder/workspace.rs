//! Memory of one stage: states of streams, and the activations of a launch.

use super::Limits;
use super::weights::{Product, Weights};
use crate::{Buffer, CudaError, Gpu};
use omni_model::hf::VocoderConfig;

/// Words of a row in the table of a launch: slot, first frame, frames, parity.
pub(super) const ROW_WORDS: usize = 4;
/// Words at the head of a launch's input and of its output: the first one counts operands that were clipped, the others
/// keep what follows where whole pieces of 16 bytes are.
pub(super) const HEAD: usize = 4;

pub(super) struct Workspace {
    /// Slots of streams.
    pub arena: Buffer<f32>,
    /// The input of a launch: [`HEAD`], [`ROW_WORDS`] words for each of the batch's rows, then codes.
    pub input: Buffer<u32>,
    /// Its output: [`HEAD`], then samples, row after row.
    pub samples: Buffer<f32>,
    /// Activations at the rates of frames.
    pub small: [Buffer<f32>; 3],
    /// Activations at higher rates: operands in the first two.
    pub large: [Buffer<f32>; 3],
}

impl Workspace {
    pub fn new(gpu: &Gpu, config: &VocoderConfig, weights: &Weights, limits: &Limits) -> Result<Workspace, CudaError> {
        let (small, large) = widths(weights);
        let (frames, slots) = (limits.frames, limits.sequences + limits.contexts);
        let activations = |width: usize| gpu.alloc("the vocoder's activations", frames * width);
        let operands = (large * weights.precision.bytes()).div_ceil(size_of::<f32>());
        Ok(Workspace {
            arena: gpu.alloc("the vocoder's streams", slots * weights.layout.slot())?,
            input: gpu
                .zeros("the vocoder's input", HEAD + limits.batch * ROW_WORDS + frames * config.num_quantizers)?,
            samples: gpu.alloc("the vocoder's samples", HEAD + frames * config.samples_per_frame())?,
            small: [activations(small)?, activations(small)?, activations(small)?],
            large: [activations(operands)?, activations(operands)?, activations(large)?],
        })
    }
}

/// Floats of a frame at its widest, before and after the first convolution of the decoder.
fn widths(weights: &Weights) -> (usize, usize) {
    let floats = |p: &Product| p.history.rate * p.outputs.max(p.channels);
    let around = weights.embed.around.iter().flat_map(|(a, b, c)| [a, b, c]);
    let layers = weights.layers.iter().flat_map(|l| [&l.qkv, &l.output, &l.gate_up, &l.down]);
    let convnexts = weights.convnexts.iter().flat_map(|c| [&c.up, &c.expand, &c.shrink]);
    let small = around.chain(layers).chain(convnexts).chain([&weights.first]).map(floats);
    let blocks = weights.blocks.iter().flat_map(|b| std::iter::once(&b.up).chain(b.units.iter().map(|u| &u.point)));
    let large = blocks.chain([&weights.first]).map(floats);
    (small.max().unwrap_or(1).max(weights.embed.channels), large.max().unwrap_or(1))
}
