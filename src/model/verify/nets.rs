//! The nets of one checkpoint, loaded when a case needs them.

use crate::model::frontend::VoiceEncoder;
use crate::model::talker::Talker;
use crate::model::thinker::Thinker;
use crate::model::tokenizer::Tokenizer;
use crate::model::vocoder::Vocoder;
use crate::model::{Checkpoint, LoadError};
use candle_core::Device;
use serde_json::{Map, Value};
use std::cell::OnceCell;
use std::path::{Path, PathBuf};

/// A checkpoint with its nets, in f32 on the CPU.
pub(super) struct Nets {
    folder: PathBuf,
    overrides: Map<String, Value>,
    pub checkpoint: Checkpoint,
    speech: OnceCell<(Thinker, Talker)>,
    vocoder: OnceCell<Vocoder>,
    voice: OnceCell<Option<VoiceEncoder>>,
}

impl Nets {
    pub fn open(folder: &Path, overrides: &Map<String, Value>) -> Result<Nets, LoadError> {
        Ok(Nets {
            folder: folder.to_owned(),
            overrides: overrides.clone(),
            checkpoint: Checkpoint::open_with(folder, overrides)?,
            speech: OnceCell::new(),
            vocoder: OnceCell::new(),
            voice: OnceCell::new(),
        })
    }

    /// Whether these are the nets that a case asks for.
    pub fn are(&self, folder: &Path, overrides: &Map<String, Value>) -> bool {
        self.folder == folder && self.overrides == *overrides
    }

    pub fn speech(&self) -> Result<&(Thinker, Talker), LoadError> {
        if let Some(nets) = self.speech.get() {
            return Ok(nets);
        }
        let (config, loader) = (self.checkpoint.omni()?, self.checkpoint.loader(&["thinker", "talker"], &Device::Cpu));
        let nets = (Thinker::load(&loader, &config.thinker)?, Talker::load(&loader, self.checkpoint.family())?);
        loader.finish()?;
        Ok(self.speech.get_or_init(|| nets))
    }

    pub fn vocoder(&self) -> Result<&Vocoder, LoadError> {
        if let Some(net) = self.vocoder.get() {
            return Ok(net);
        }
        let net = Vocoder::load(&self.checkpoint, &Device::Cpu)?;
        Ok(self.vocoder.get_or_init(|| net))
    }

    /// `None` when the checkpoint clones no voices.
    pub fn voice(&self) -> Result<Option<&VoiceEncoder>, LoadError> {
        if let Some(net) = self.voice.get() {
            return Ok(net.as_ref());
        }
        let net = VoiceEncoder::load(&self.checkpoint, &Device::Cpu)?;
        Ok(self.voice.get_or_init(|| net).as_ref())
    }

    pub fn tokenizer(&self) -> Result<Tokenizer, LoadError> {
        Tokenizer::load(self.checkpoint.files())
    }
}
