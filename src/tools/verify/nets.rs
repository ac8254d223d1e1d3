//! The nets of one checkpoint, loaded when a case needs them.

use super::device::Stages;
use candle_core::Device;
use omni_model::frontend::VoiceEncoder;
use omni_model::talker::Talker;
use omni_model::thinker::Thinker;
use omni_model::tokenizer::Tokenizer;
use omni_model::towers::Towers;
use omni_model::vocoder::Vocoder;
use omni_model::{Checkpoint, LoadError};
use serde_json::{Map, Value};
use std::cell::{OnceCell, RefCell};
use std::path::{Path, PathBuf};

/// A checkpoint with its nets, in f32 on the CPU.
pub(super) struct Nets {
    folder: PathBuf,
    overrides: Map<String, Value>,
    pub checkpoint: Checkpoint,
    thinker: OnceCell<Thinker>,
    talker: OnceCell<Talker>,
    vocoder: OnceCell<Vocoder>,
    voice: OnceCell<Option<VoiceEncoder>>,
    /// The stages of a device.
    pub stages: RefCell<Stages>,
}

impl Nets {
    pub fn open(folder: &Path, overrides: &Map<String, Value>) -> Result<Nets, LoadError> {
        Ok(Nets {
            folder: folder.to_owned(),
            overrides: overrides.clone(),
            checkpoint: Checkpoint::open_with(folder, overrides)?,
            thinker: OnceCell::new(),
            talker: OnceCell::new(),
            vocoder: OnceCell::new(),
            voice: OnceCell::new(),
            stages: RefCell::default(),
        })
    }

    /// Whether a case needs these nets.
    pub fn are(&self, folder: &Path, overrides: &Map<String, Value>) -> bool {
        self.folder == folder && self.overrides == *overrides
    }

    pub fn thinker(&self) -> Result<&Thinker, LoadError> {
        if let Some(net) = self.thinker.get() {
            return Ok(net);
        }
        let (config, loader) = (self.checkpoint.omni()?, self.checkpoint.loader(&["thinker"], &Device::Cpu));
        let net = Thinker::load(&loader, &config.thinker)?;
        loader.finish()?;
        Ok(self.thinker.get_or_init(|| net))
    }

    /// The towers that the checkpoint has. They are not kept: few cases need them.
    pub fn towers(&self) -> Result<Towers, LoadError> {
        let owned = ["thinker.audio_tower", "thinker.visual"];
        let (config, loader) = (self.checkpoint.omni()?, self.checkpoint.loader(&owned, &Device::Cpu));
        let towers = Towers::load(&loader, &config.thinker)?;
        loader.finish()?;
        Ok(towers)
    }

    pub fn talker(&self) -> Result<&Talker, LoadError> {
        if let Some(net) = self.talker.get() {
            return Ok(net);
        }
        let loader = self.checkpoint.loader(&["talker"], &Device::Cpu);
        let net = Talker::load(&loader, self.checkpoint.family())?;
        loader.finish()?;
        Ok(self.talker.get_or_init(|| net))
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
