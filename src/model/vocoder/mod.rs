//! The vocoder: code frames to waveform, statefully. One net for both families.
//!
//! The codes of a frame become a vector: for Qwen3-Omni (code2wav) the mean of their embeddings, for Qwen3-TTS (the 12
//! Hz decoder) the sum of residual codebooks and a short convolution. Then come a transformer that sees a window of
//! frames and two kinds of upsampling. Everything is causal, so a stream keeps what the next frame needs (the window's
//! keys and values, the last inputs of every convolution) and each frame is computed once. However a stream is cut into
//! chunks, its samples are those of decoding all frames at once, bit for bit on the CPU.
//!
//! Activations are `[time, channels]` throughout: a convolution is then a matrix product over windows of contiguous
//! memory.
//!
//! Transformer: query `i` sees keys `j` with `0 <= i - j < window` (72); no norm of queries and keys; rotation with
//! theta 1e4 and absolute positions; RMSNorm with eps 1e-5 (of Qwen3-Omni the final norm too). Upsampling: ConvNeXt
//! with LayerNorm 1e-6 and exact GELU; then a convolution of kernel 7 to 1536 channels, four blocks (Snake, transposed
//! convolution of stride `r` and kernel `2r`, which halves the channels, residual units of dilation 1, 3, 9), Snake, a
//! convolution of kernel 7 to 1, clamped to -1 to 1. Snake is `x + sin^2(exp(alpha) * x) / (exp(beta) + 1e-9)`.
//!
//! How it compares with the reference:
//!
//! - Qwen3-TTS: its transposed convolutions trim only on the right, so it is causal, and `T` frames are `1920 * T`
//!   samples.
//! - Qwen3-Omni: they trim `kernel - stride` samples on *both* sides: none of the upsamplers by 2, of the blocks (8, 5,
//!   4, 3) one input step each. `T` frames are `1920 * T - 555` samples, and sample `k` is at the true time `k + 555`.
//!   With right trim alone `y[555 + k]` equals them but for the first 5748 samples, where zero padding replaces the
//!   real history; to match the reference at the start a stream drops the first `r` outputs of each transposed
//!   convolution once.
//! - `chunked_decode(300, 25)` of Qwen3-Omni runs each chunk with 25 frames of left context, and so loses 555 samples
//!   (23 ms) at each border, every 24 s. The transformer sees `layers * (window - 1)` = 568 frames, so streams equal
//!   decoding at once, not the reference's chunks, beyond 300 frames. Goldens have both.

mod attention;
mod context;
mod conv;
mod decoder;
mod input;
mod state;
mod transformer;

pub use context::{Context, Contexts};
pub use state::Stream;

pub(crate) use attention::{Attention, AttentionSizes};
pub(crate) use conv::{CausalConv, load_pointwise};
pub(crate) use state::{HistoryPlan, Plan};

use crate::hf::{Family, VocoderConfig};
use crate::weights::Scope;
use crate::{Checkpoint, LoadError};
use candle_core::{Device, IndexOp, Result, Tensor};
use decoder::Decoder;
use input::Input;
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
    input: Input,
    transformer: Transformer,
    decoder: Decoder,
    /// After so many frames, what the upsampling keeps does not depend on older ones.
    reach: usize,
    plan: Plan,
}

impl Vocoder {
    /// Loads the vocoder of a checkpoint: everything under `code2wav`, or under `decoder` in the file of the codec.
    ///
    /// # Errors
    /// When the file cannot be read or its tensors are not those of the config.
    pub fn load(checkpoint: &Checkpoint, device: &Device) -> std::result::Result<Vocoder, LoadError> {
        let (loader, root) = match checkpoint.family() {
            Family::Omni(_) => (checkpoint.loader(&["code2wav"], device), "code2wav"),
            Family::Tts(_) => (checkpoint.codec_loader(&["decoder"], device)?, "decoder"),
        };
        let net = Vocoder::assemble(&loader.scope(root), checkpoint.family().vocoder())?;
        loader.finish()?;
        Ok(net)
    }

    fn assemble(scope: &Scope<'_>, config: &VocoderConfig) -> std::result::Result<Vocoder, LoadError> {
        let mut plan = Plan::new(config);
        let input = Input::load(scope, config, &mut plan)?;
        let transformer = Transformer::load(&scope.at("pre_transformer"), config)?;
        let decoder = Decoder::load(scope, config, &mut plan)?;
        let reach = decoder.reach(config.samples_per_frame()) as usize;
        Ok(Vocoder { config: config.clone(), device: scope.device().clone(), input, transformer, decoder, reach, plan })
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

    /// Samples that a stream of so many frames has in all: the product of the rates per frame, less what the reference
    /// of Qwen3-Omni drops at the start (555 samples at the real rates).
    pub fn samples(&self, frames: u64) -> u64 {
        self.decoder.samples(frames)
    }

    /// Checks that these are whole frames of codes inside the codebooks.
    ///
    /// # Errors
    /// What is wrong with them, as text.
    pub fn check(&self, codes: &[u32]) -> std::result::Result<(), String> {
        self.config.check_codes(codes)
    }

    /// The samples, in [-1, 1], of the stream's next frames. `codes` has `num_quantizers` codes per frame, each below
    /// `codebook_size`.
    ///
    /// # Errors
    /// When codes are out of range or not whole frames (the stream is unchanged), or the device fails (the stream must
    /// then be dropped).
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
        if let Err(reason) = self.check(codes) {
            candle_core::bail!("{reason}");
        }
        let x = self.input.forward(codes, stream, probe)?;
        let x = self.transformer.forward(&x, stream)?;
        probe(format_args!("pre_transformer"), &x);
        let mut samples = Vec::with_capacity(x.dim(0)? * self.config.samples_per_frame());
        self.upsample(&x, stream, probe, |wave| {
            samples.extend(wave.i((.., 0))?.clamp(-1f32, 1f32)?.to_vec1::<f32>()?);
            Ok(())
        })?;
        Ok(samples)
    }

    /// Takes in frames without giving their samples; `more` says that further such frames follow. The stream is then in
    /// the state that decoding would have left, bit for bit on the CPU. It costs far less: the upsampling, which does
    /// most of the work, reaches back only some frames and sees only the last ones.
    ///
    /// # Errors
    /// Those of [`Vocoder::decode`].
    pub fn absorb(&self, stream: &mut Stream, codes: &[u32], more: usize) -> Result<()> {
        if codes.is_empty() {
            return Ok(());
        }
        if let Err(reason) = self.check(codes) {
            candle_core::bail!("{reason}");
        }
        let x = self.input.forward(codes, stream, &mut |_, _| {})?;
        let x = self.transformer.forward(&x, stream)?;
        let frames = x.dim(0)?;
        let seen = self.reach.saturating_sub(more).min(frames);
        if seen < frames {
            // What follows is not the start of the speech.
            stream.histories.iter_mut().for_each(|history| history.trim = 0);
        }
        if seen == 0 {
            return Ok(());
        }
        self.upsample(&x.narrow(0, frames - seen, seen)?, stream, &mut |_, _| {}, |_| Ok(()))
    }

    /// `[frames, latent]` to pieces of `[samples, 1]`.
    fn upsample(
        &self,
        x: &Tensor,
        stream: &mut Stream,
        probe: Probe<'_>,
        mut take: impl FnMut(Tensor) -> Result<()>,
    ) -> Result<()> {
        let frames = x.dim(0)?;
        for first in (0..frames).step_by(FRAMES_AT_ONCE) {
            let piece = x.narrow(0, first, FRAMES_AT_ONCE.min(frames - first))?;
            if let Some(wave) = self.decoder.forward(piece, stream, probe)? {
                take(wave)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn positions_beyond_the_models_maximum_sound_the_same() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen3_omni");
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
