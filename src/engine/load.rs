//! Loads the weights of a stage, on the thread that uses them.

#[cfg(feature = "cuda")]
use crate::assemble::handles;
use crate::device::DeviceChoice;
#[cfg(feature = "cuda")]
use crate::setup::window;
use crate::threads::background;
use candle_core::Device;
use omni_config::{Config, DeviceKind};
#[cfg(feature = "cuda")]
use omni_config::{Precision, VocoderDtype};
use omni_core::ids::StageName;
#[cfg(feature = "cuda")]
use omni_model::Budget;
use omni_model::LoadError;
use omni_model::checkpoint::Checkpoint;
use omni_model::stage::{StageFactory, StageModel};
use omni_model::stages::{
    encoder::EncoderFactory, talker::TalkerFactory, thinker::ThinkerFactory, vocoder::VocoderFactory,
};
use omni_model::talker::Talker;
use omni_model::thinker::Thinker;
use omni_model::towers::Towers;
use omni_model::vocoder::Vocoder;
use omni_telemetry::trace::Recorder;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Embeddings that wait at a talker on a GPU besides: those of prompts, a few of them long, and of texts that it is given
/// again when it has been restarted.
#[cfg(feature = "cuda")]
const PROMPT_ROWS: usize = 1 << 15;

/// Where the weights of the towers are.
const TOWERS: [&str; 2] = ["thinker.audio_tower", "thinker.visual"];

/// The checkpoint, config and devices that the stages of one process load from and run on.
pub(super) struct Loading {
    checkpoint: Checkpoint,
    config: Config,
    device: DeviceChoice,
    /// The stages of this process, which share its parts of the GPUs.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "what a GPU is told"))]
    here: Vec<StageName>,
    /// Where stages on GPUs record their copies.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "what a GPU is told"))]
    recorder: Recorder,
    /// Each opened by the first stage that loads on it, one for all.
    #[cfg(feature = "cuda")]
    gpus: Mutex<std::collections::BTreeMap<usize, omni_cuda::Gpu>>,
}

impl Loading {
    /// For one checkpoint, config and device. Reads and opens nothing yet.
    pub fn new(
        checkpoint: &Checkpoint,
        config: &Config,
        device: DeviceChoice,
        here: &[StageName],
        recorder: Recorder,
    ) -> Arc<Loading> {
        Arc::new(Loading {
            checkpoint: checkpoint.clone(),
            config: config.clone(),
            device,
            here: here.into(),
            recorder,
            #[cfg(feature = "cuda")]
            gpus: Mutex::default(),
        })
    }

    /// The factory of a stage's model, on a GPU or, where that computes, on the CPU.
    pub fn factory(self: &Arc<Loading>, stage: StageName, gpu: usize) -> Arc<dyn StageFactory> {
        let loading = Arc::clone(self);
        let load = move || match loading.device.kind {
            DeviceKind::Cpu => load(stage, &loading.checkpoint, &Device::Cpu, loading.config.stage(stage).kept_prompts),
            DeviceKind::Cuda => loading.on_gpu(stage, gpu),
        };
        Arc::new(LoadedOnce { load: Box::new(load), loading: Mutex::new(()), loaded: OnceLock::new() })
    }

    /// The same on a GPU.
    #[cfg(not(feature = "cuda"))]
    fn on_gpu(&self, stage: StageName, _: usize) -> Result<Box<dyn StageFactory>, LoadError> {
        let reason = format!("this binary has no {stage} for GPUs; build it with --features cuda, or use \"cpu\"");
        Err(LoadError::Invalid { file: "device.kind".into(), reason })
    }

    /// The same on a GPU.
    #[cfg(feature = "cuda")]
    fn on_gpu(&self, stage: StageName, gpu: usize) -> Result<Box<dyn StageFactory>, LoadError> {
        use omni_cuda::encoder::{CudaEncoderFactory, TowersNet};
        use omni_cuda::talker::{CudaTalkerFactory, TalkerNet, TalkerOptions};
        use omni_cuda::thinker::{CudaThinkerFactory, KeptMemory, ThinkerNet, ThinkerOptions};
        use omni_cuda::vocoder;
        let gpu = self.gpu(gpu)?;
        gpu.bind()?;
        let slots = self.config.limits.max_requests;
        let setup = self.config.stage(stage);
        // Thinker and talker have a cache each.
        let caches = if self.checkpoint.omni().is_ok() { 2 } else { 1 };
        let kv_memory = self.device.kv_memory.map(|bytes| bytes / caches);
        match stage {
            StageName::Encoder => {
                let loader = self.checkpoint.loader(&TOWERS, &Device::Cpu);
                let net = TowersNet::load(&gpu, self.device.dtype, &loader, &self.checkpoint.omni()?.thinker)?;
                loader.finish()?;
                let factory = CudaEncoderFactory::new(Arc::new(net));
                Ok(Box::new(match handles(stage, &self.config, DeviceKind::Cuda) {
                    true => factory.leaving_rows(self.recorder.clone()),
                    false => factory,
                }))
            }
            StageName::Thinker => {
                let loader = self.checkpoint.loader(&[stage.as_str()], &Device::Cpu);
                let net = ThinkerNet::load(&gpu, self.device.dtype, &loader, &self.checkpoint.omni()?.thinker)?;
                loader.finish()?;
                let options = ThinkerOptions {
                    slots,
                    batch: self.config.max_batch(stage, DeviceKind::Cuda).min(slots),
                    prefill_chunk: self.config.prefill_chunk(stage, DeviceKind::Cuda) as usize,
                    run_ahead: self.config.run_ahead(stage, DeviceKind::Cuda),
                    kv_memory,
                    embeddings_in_step: !self.config.transfer.async_d2h,
                    persistent: self.device.persistent_kernels.then_some(ThinkerOptions::PERSISTENT),
                };
                let kept = KeptMemory::new(setup.kept_prompts, setup.kept_prompts_host);
                let factory = CudaThinkerFactory::new(Arc::new(net), options).keeping(kept);
                Ok(Box::new(factory.with_recorder(self.recorder.clone())))
            }
            StageName::Talker => {
                let loader = self.checkpoint.loader(&[stage.as_str()], &Device::Cpu);
                let net = TalkerNet::load(&gpu, self.device.dtype, &loader, self.checkpoint.family())?;
                loader.finish()?;
                let largest = self.config.max_batch(stage, DeviceKind::Cuda).min(slots);
                let mut buckets: Vec<usize> = setup.buckets.iter().map(|bucket| *bucket as usize).collect();
                // No step can fill a larger graph.
                let needed = buckets.iter().position(|bucket| *bucket >= largest).unwrap_or(buckets.len());
                buckets.truncate(needed + 1);
                let options = TalkerOptions {
                    slots,
                    buckets,
                    prefill_chunk: self.config.prefill_chunk(stage, DeviceKind::Cuda) as usize,
                    run_ahead: self.config.run_ahead(stage, DeviceKind::Cuda),
                    kv_memory,
                    // Each thinker is ahead by its window, behind a prompt.
                    text_embeddings: match self.checkpoint.stages().contains(&StageName::Thinker) {
                        true => slots * window(&self.config, StageName::Thinker) as usize + PROMPT_ROWS,
                        false => 0,
                    },
                    async_h2d: self.config.transfer.async_h2d,
                    persistent: self.device.persistent_kernels.then_some(TalkerOptions::PERSISTENT),
                };
                Ok(Box::new(CudaTalkerFactory::new(Arc::new(net), options).with_recorder(self.recorder.clone())))
            }
            StageName::Vocoder => {
                let chunks: Vec<u32> = setup.chunk_ramp.iter().map(|frames| frames.0).collect();
                let limits = vocoder::Limits::new(slots, &chunks);
                let precision = match (self.device.dtype, self.device.vocoder_dtype) {
                    (Precision::F32, _) => vocoder::Precision::F32,
                    (Precision::Bf16, VocoderDtype::Tf32) => vocoder::Precision::Tf32,
                    (Precision::Bf16, VocoderDtype::F16) => vocoder::Precision::F16,
                };
                let net = vocoder::CudaVocoder::load(&gpu, &self.checkpoint, precision, limits)?;
                Ok(Box::new(vocoder::CudaVocoderFactory::new(Arc::new(net))))
            }
        }
    }

    #[cfg(feature = "cuda")]
    fn gpu(&self, index: usize) -> Result<omni_cuda::Gpu, LoadError> {
        use omni_cuda::Gpu;
        let mut gpus = self.gpus.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpu) = gpus.get(&index) {
            return Ok(gpu.clone());
        }
        let gpu = Gpu::open(index)?;
        if let Some(budget) = Budget::of(&self.config, self.checkpoint.family().stages(), &self.here, index) {
            gpu.limit(budget);
        }
        for other in gpus.values() {
            gpu.befriend(other)?;
        }
        gpus.insert(index, gpu.clone());
        Ok(gpu)
    }
}

/// The net of one stage and what makes its device state; a thinker and a talker keep so many bytes of prompts.
fn load(
    stage: StageName,
    checkpoint: &Checkpoint,
    device: &Device,
    kept_prompts: usize,
) -> Result<Box<dyn StageFactory>, LoadError> {
    let owned: &[&str] = match stage {
        StageName::Encoder => &TOWERS,
        stage => &[stage.as_str()],
    };
    let loader = checkpoint.loader(owned, device);
    let factory: Box<dyn StageFactory> = match stage {
        StageName::Encoder => {
            let config = &checkpoint.omni()?.thinker;
            let towers = Towers::load(&loader, config)?;
            // Decode steps of running answers come before it.
            Box::new(EncoderFactory::new(Arc::new(towers), config.clone(), background("encoder")?))
        }
        StageName::Thinker => {
            let net = Thinker::load(&loader, &checkpoint.omni()?.thinker)?;
            Box::new(ThinkerFactory::new(Arc::new(net)).keeping(kept_prompts))
        }
        StageName::Talker => {
            let net = Talker::load(&loader, checkpoint.family())?;
            Box::new(TalkerFactory::new(Arc::new(net)).keeping(kept_prompts))
        }
        StageName::Vocoder => return Ok(Box::new(VocoderFactory::new(Arc::new(Vocoder::load(checkpoint, device)?)))),
    };
    loader.finish()?;
    Ok(factory)
}

type Load = dyn Fn() -> Result<Box<dyn StageFactory>, LoadError> + Send + Sync;

/// Reads the weights on the runner's thread when the stage starts, so that all stages load side by side and the server
/// can say that it is not ready yet. The weights outlive a runner that dies.
struct LoadedOnce {
    load: Box<Load>,
    /// Held by the replica that loads, while the others wait for the weights.
    loading: Mutex<()>,
    loaded: OnceLock<Box<dyn StageFactory>>,
}

impl StageFactory for LoadedOnce {
    fn build(&self) -> Result<Box<dyn StageModel>, LoadError> {
        if self.loaded.get().is_none() {
            let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
            if self.loaded.get().is_none() {
                let _ = self.loaded.set((self.load)()?);
            }
        }
        match self.loaded.get() {
            Some(factory) => factory.build(),
            None => Err(LoadError::Invalid { file: "weights".into(), reason: "were not kept after loading".into() }),
        }
    }
}
