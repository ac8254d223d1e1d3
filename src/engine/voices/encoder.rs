//! Encodes a recording: into the x-vector that the talker needs, and the codes that talker and vocoder need.

use crate::decode::{DecodeError, Decoders};
use crate::threads::background;
use crate::voice::{Recording, VoiceError};
use candle_core::Device;
use omni_fault::FaultSite;
use omni_model::LoadError;
use omni_model::checkpoint::Checkpoint;
use omni_model::frontend::{AudioLimits, VoiceEncoder};
use omni_model::hf::SAMPLE_RATE;
use rayon::ThreadPool;
use std::sync::Arc;

/// A voice, encoded.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Voiceprint {
    /// As wide as the talker.
    pub x_vector: Arc<[f32]>,
    /// For in-context cloning.
    pub reference: Option<Spoken>,
}

/// A recording with its transcript.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spoken {
    /// The transcript.
    pub text: Arc<str>,
    /// Frame after frame, all groups of each.
    pub codes: Arc<[u32]>,
}

/// The encoders of a Base checkpoint.
pub(super) struct Encoder {
    nets: VoiceEncoder,
    /// Of an x-vector.
    width: usize,
    limits: AudioLimits,
    decoders: Decoders,
    /// The threads that encode. Streams need the cores more.
    threads: ThreadPool,
    /// Where a fault plan can strike.
    fault: FaultSite,
}

/// An encoded recording.
pub(super) struct Encoded {
    pub x_vector: Arc<[f32]>,
    /// Frame after frame; empty if not asked for.
    pub codes: Arc<[u32]>,
    pub seconds: f32,
}

impl Encoder {
    /// Reads the weights.
    pub fn load(
        checkpoint: &Checkpoint,
        (decoders, limits): (Decoders, AudioLimits),
        fault: FaultSite,
    ) -> Result<Encoder, LoadError> {
        match VoiceEncoder::load(checkpoint, &Device::Cpu)? {
            Some(nets) => {
                let width = checkpoint.family().talker().text.hidden_size;
                Ok(Encoder { nets, width, limits, decoders, threads: background("encoder")?, fault })
            }
            None => {
                let reason = "has no speaker_encoder_config: voices are cloned by Base checkpoints".into();
                Err(LoadError::Invalid { file: "config.json".into(), reason })
            }
        }
    }

    /// Encodes a recording; its codes only where there is a transcript to go with them.
    pub fn encode(&self, recording: &Recording) -> Result<Encoded, VoiceError> {
        self.threads.install(|| self.encode_here(recording))
    }

    fn encode_here(&self, recording: &Recording) -> Result<Encoded, VoiceError> {
        // A panic is the only fault that can be planned here.
        let _ = self.fault.inject(|| None, || false);
        let clip = self.decoders.recording(&recording.audio, &self.limits).map_err(not_decoded)?;
        let seconds = clip.seconds() as f32;
        let pcm = VoiceEncoder::samples(&clip).map_err(refuse)?;
        let x_vector = self.nets.speaker.encode(&pcm).map_err(refuse)?;
        let codes = match recording.text {
            Some(_) => self.nets.codec.encode(&pcm).map_err(refuse)?,
            None => Vec::new(),
        };
        Ok(Encoded { x_vector: x_vector.into(), codes: codes.into(), seconds })
    }

    /// Refuses an x-vector that the talker cannot take.
    pub fn check_x_vector(&self, x_vector: &[f32]) -> Result<(), VoiceError> {
        let invalid = |message: String| Err(VoiceError::Invalid { param: "speaker_embedding", message });
        let width = self.width;
        if x_vector.len() != width {
            return invalid(format!("speaker_embedding has {} numbers: this model's have {width}", x_vector.len()));
        }
        match x_vector.iter().position(|x| !x.is_finite()) {
            Some(at) => invalid(format!("speaker_embedding[{at}] is not a finite number")),
            None => Ok(()),
        }
    }

    /// Tells encoders apart by what they do: two with the same answer to a second of a rising tone have the same
    /// weights.
    pub fn fingerprint(&self) -> Result<[u8; 32], VoiceError> {
        let tone = |i: u32| {
            let t = f64::from(i) / f64::from(SAMPLE_RATE);
            (0.5 * (std::f64::consts::TAU * (120.0 + 900.0 * t) * t).sin()) as f32
        };
        let pcm: Vec<f32> = (0..SAMPLE_RATE).map(tone).collect();
        let x_vector = self.nets.speaker.encode(&pcm).map_err(refuse)?;
        let codes = self.nets.codec.encode(&pcm).map_err(refuse)?;
        let x_vector: Vec<u8> = x_vector.iter().flat_map(|x| x.to_le_bytes()).collect();
        let codes: Vec<u8> = codes.iter().flat_map(|code| code.to_le_bytes()).collect();
        Ok(super::sha256(&[&x_vector, &codes]))
    }
}

fn not_decoded(error: DecodeError) -> VoiceError {
    match error {
        DecodeError::Refused(_) | DecodeError::Ended(_) => refuse(error),
        DecodeError::Busy => VoiceError::Busy,
        DecodeError::Unavailable(_) => VoiceError::Unavailable(error.to_string()),
    }
}

fn refuse(error: impl std::fmt::Display) -> VoiceError {
    VoiceError::Invalid { param: "ref_audio", message: error.to_string() }
}
