//! Weights of a stage, read where they are used.

use crate::config::DeviceKind;
use crate::ids::StageName;
use crate::model::checkpoint::Checkpoint;
use crate::model::stage::{StageFactory, StageModel};
use crate::model::stages::{talker::TalkerFactory, thinker::ThinkerFactory, vocoder::VocoderFactory};
use crate::model::talker::Talker;
use crate::model::thinker::Thinker;
use crate::model::vocoder::Vocoder;
use crate::model::{DeviceChoice, LoadError};
use candle_core::Device;
use std::sync::{Arc, OnceLock};

/// What makes a stage's device state.
pub(super) fn factory(stage: StageName, checkpoint: &Checkpoint, device: &DeviceChoice) -> Arc<dyn StageFactory> {
    let (checkpoint, device) = (checkpoint.clone(), device.clone());
    let load = move || match device.kind {
        DeviceKind::Cpu => load(stage, &checkpoint, &Device::Cpu),
        DeviceKind::Cuda => load_on_gpu(stage, &checkpoint, &device),
    };
    Arc::new(LoadedOnce { load: Box::new(load), loaded: OnceLock::new() })
}

/// The same on a GPU.
fn load_on_gpu(stage: StageName, _: &Checkpoint, _: &DeviceChoice) -> Result<Box<dyn StageFactory>, LoadError> {
    let reason = format!("there is no {stage} for this device; set it to \"cpu\"");
    Err(LoadError::Invalid { file: "device.kind".into(), reason })
}

/// The net of one stage and what makes its device state.
fn load(stage: StageName, checkpoint: &Checkpoint, device: &Device) -> Result<Box<dyn StageFactory>, LoadError> {
    let loader = checkpoint.loader(&[stage.as_str()], device);
    let factory: Box<dyn StageFactory> = match stage {
        StageName::Thinker => {
            let net = Thinker::load(&loader, &checkpoint.omni()?.thinker)?;
            Box::new(ThinkerFactory::new(Arc::new(net)))
        }
        StageName::Talker => Box::new(TalkerFactory::new(Arc::new(Talker::load(&loader, checkpoint.family())?))),
        StageName::Code2wav => return Ok(Box::new(VocoderFactory::new(Arc::new(Vocoder::load(checkpoint, device)?)))),
    };
    loader.finish()?;
    Ok(factory)
}

type Load = dyn Fn() -> Result<Box<dyn StageFactory>, LoadError> + Send + Sync;

/// Reads the weights on the runner's thread when the stage starts, so that all stages load side by side and the server
/// can say that it is not ready yet. The weights outlive a runner that dies.
struct LoadedOnce {
    load: Box<Load>,
    loaded: OnceLock<Box<dyn StageFactory>>,
}

impl StageFactory for LoadedOnce {
    fn build(&self) -> Result<Box<dyn StageModel>, LoadError> {
        // One runner per stage: nobody else loads at the same time.
        if self.loaded.get().is_none() {
            let _ = self.loaded.set((self.load)()?);
        }
        match self.loaded.get() {
            Some(factory) => factory.build(),
            None => Err(LoadError::Invalid { file: "weights".into(), reason: "were not kept after loading".into() }),
        }
    }
}
