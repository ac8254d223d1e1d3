//! The vocoder of Qwen3-Omni: code frames to waveform, statefully (spec section 8).
//!
//! Mean of the code embeddings, a transformer that sees a window of frames, two kinds of upsampling. Everything is
//! causal, so a stream keeps what the next frame needs (the window's keys and values, the last inputs of every
//! convolution) and each frame is computed once. However a stream is cut into chunks, its samples are those of decoding
//! all frames at once, bit for bit on the CPU.
//!
//! Activations are `[time, channels]` throughout: a convolution is then a matrix product over windows of contiguous
//! memory.

mod conv;
mod decoder;
mod state;
mod transformer;

pub use state::Stream;

use crate::model::checkpoint::Loader;
use crate::model::hf::VocoderConfig;
use crate::model::{Checkpoint, LoadError};
use candle_core::{Device, IndexOp, Result, Tensor};
use decoder::Decoder;
use state::Plan;
use std::fmt::Arguments;
use transformer::Transformer;

/// Frames that go through the decoder together. What lies between its layers must stay in the cache: 1920 samples of a
/// frame are a few hundred kilobytes in every layer, and its products are large enough with one frame.
const FRAMES_AT_ONCE: usize = 1;

/// Called with the name (as in the checkpoint) and value of intermediate activations, piece by piece.
pub type Probe<'a> = &'a mut dyn FnMut(Arguments<'_>, &Tensor);

/// The net. Holds no state of any stream.
pub struct Vocoder {
    config: VocoderConfig,
    device: Device,
    /// `[groups * codebook_size, hidden]`.
    embedding: Tensor,
    transformer: Transformer,
    decoder: Decoder,
    plan: Plan,
}

impl Vocoder {
    /// Loads the vocoder of a checkpoint: everything under `code2wav`.
    ///
    /// # Errors
    /// When the file cannot be read or its tensors are not those of the config.
    pub fn load(checkpoint: &Checkpoint, device: &Device) -> std::result::Result<Vocoder, LoadError> {
        let loader = checkpoint.loader(&["code2wav"], device);
        let net = Vocoder::assemble(&loader, checkpoint.family().vocoder())?;
        loader.finish()?;
        Ok(net)
    }

    fn assemble(loader: &Loader, config: &VocoderConfig) -> std::result::Result<Vocoder, LoadError> {
        let scope = loader.scope("code2wav");
        let mut plan = Plan::new(&config.transformer);
        let rows = config.num_quantizers * config.codebook_size;
        let embedding = scope.at("code_embedding").get("weight", &[rows, config.transformer.hidden_size])?;
        let transformer = Transformer::load(&scope.at("pre_transformer"), &config.transformer)?;
        let decoder = Decoder::load(&scope, config, &mut plan)?;
        Ok(Vocoder { config: config.clone(), device: scope.device().clone(), embedding, transformer, decoder, plan })
    }

    /// The sizes.
    pub fn config(&self) -> &VocoderConfig {
        &self.config
    }

    /// A stream at its beginning.
    ///
    /// # Errors
    /// When the device has no room.
    pub fn stream(&self) -> Result<Stream> {
        self.plan.stream(&self.device)
    }

    /// Samples that a stream of so many frames has in all: the product of the rates per frame, less what the
    /// reference trims at the start (555 samples at the real rates).
    pub fn samples(&self, frames: u64) -> u64 {
        self.decoder.samples(frames)
    }

    /// The samples, in [-1, 1], of the stream's next frames. `codes` has `num_quantizers` codes per frame, each below
    /// `codebook_size`.
    ///
    /// # Errors
    /// When codes are out of range or not whole frames (the stream is unchanged), or the device fails (the stream is
    /// then of no use).
    pub fn decode(&self, stream: &mut Stream, codes: &[u32]) -> Result<Vec<f32>> {
        self.decode_probed(stream, codes, &mut |_, _| {})
    }

    /// [`Vocoder::decode`] that shows activations on the way, for comparing with a reference.
    ///
    /// # Errors
    /// Those of [`Vocoder::decode`].
    pub fn decode_probed(&self, stream: &mut Stream, codes: &[u32], probe: Probe<'_>) -> Result<Vec<f32>> {
        if codes.is_empty() {
            return Ok(Vec::new());
        }
        let x = self.embed(codes)?;
        probe(format_args!("embed_mean"), &x);
        let x = self.transformer.forward(&x, stream)?;
        probe(format_args!("pre_transformer"), &x);
        let frames = x.dim(0)?;
        let mut samples = Vec::with_capacity(frames * self.config.samples_per_frame());
        for first in (0..frames).step_by(FRAMES_AT_ONCE) {
            let piece = x.narrow(0, first, FRAMES_AT_ONCE.min(frames - first))?;
            if let Some(wave) = self.decoder.forward(piece, stream, probe)? {
                samples.extend(wave.i((.., 0))?.clamp(-1f32, 1f32)?.to_vec1::<f32>()?);
            }
        }
        Ok(samples)
    }

    /// Mean over the groups of a frame: `[frames * groups]` -> `[frames, hidden]`.
    fn embed(&self, codes: &[u32]) -> Result<Tensor> {
        let (groups, size) = (self.config.num_quantizers, self.config.codebook_size);
        if !codes.len().is_multiple_of(groups) {
            candle_core::bail!("{} codes are no whole frames of {groups}", codes.len());
        }
        if let Some(code) = codes.iter().find(|c| **c as usize >= size) {
            candle_core::bail!("code {code} is outside the codebook of {size}");
        }
        let ids: Vec<u32> = codes.iter().enumerate().map(|(i, c)| c + (i % groups * size) as u32).collect();
        let frames = codes.len() / groups;
        let rows = self.embedding.index_select(&Tensor::from_vec(ids, codes.len(), &self.device)?, 0)?;
        rows.reshape((frames, groups, self.config.transformer.hidden_size))?.mean(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn positions_beyond_the_models_maximum_sound_the_same() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3_omni");
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let net = Vocoder::load(&checkpoint, &Device::Cpu).unwrap();
        let codes: Vec<u32> = (0..20 * 8).map(|i| i * 37 % 128).collect();
        let mut early = net.stream().unwrap();
        let mut late = net.stream().unwrap();
        late.position = 50_000;
        let (early, late) = (net.decode(&mut early, &codes).unwrap(), net.decode(&mut late, &codes).unwrap());
        let worst = early.iter().zip(&late).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // Not equal: an angle of 50 000 has an error of some thousandths in f32.
        assert!(worst > 0.0 && worst < 5e-3, "{worst}");
    }
}
