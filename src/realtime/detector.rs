//! How much a sound is speech: a small net that hears 16 ms at a time. Its scores depend on the samples, not on how they
//! were cut into pieces.

use crate::sound::WireFormat;
use omni_audio::{AudioError, Resampler};

/// Samples of a frame at [`RATE`].
const FRAME: usize = 256;
/// What the net hears, Hz.
const RATE: u32 = 16_000;

/// See the module.
pub(crate) struct Detector {
    resampler: Resampler,
    net: Box<earshot::Detector>,
    /// Sound at [`RATE`] of less than a frame.
    waiting: Vec<f32>,
}

impl std::fmt::Debug for Detector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Detector").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}

impl Detector {
    /// For sound of this format.
    pub fn new(format: WireFormat) -> Result<Detector, AudioError> {
        let resampler = Resampler::new(format.rate(), RATE)?;
        Ok(Detector { resampler, net: Box::default(), waiting: Vec::new() })
    }

    /// The scores, 0 to 1, of the frames that these samples complete.
    pub fn push(&mut self, samples: &[i16]) -> Result<Vec<f32>, AudioError> {
        let samples: Vec<f32> = samples.iter().map(|sample| f32::from(*sample) / 32_768.0).collect();
        self.resampler.push(&samples, &mut self.waiting)?;
        let whole = self.waiting.len() / FRAME * FRAME;
        // The resampler may overshoot, and the net takes [-1, 1].
        self.waiting[..whole].iter_mut().for_each(|sample| *sample = sample.clamp(-1.0, 1.0));
        let scores = self.waiting[..whole].chunks_exact(FRAME).map(|frame| self.net.predict_f32(frame)).collect();
        self.waiting.drain(..whole);
        Ok(scores)
    }
}
