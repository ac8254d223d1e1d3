//! The stages of a GPU, for the cases.

use super::device::{AT_ONCE, StageSource};
use candle_core::Device;
use omni_config::Precision;
use omni_cuda::Gpu;
use omni_cuda::encoder::{CudaEncoderFactory, TowersNet};
use omni_cuda::talker::{CudaTalkerFactory, TalkerNet, TalkerOptions};
use omni_cuda::thinker::{CudaThinkerFactory, ThinkerNet, ThinkerOptions};
use omni_cuda::vocoder::{self, CudaVocoder, CudaVocoderFactory, Limits};
use omni_model::stage::{StageFactory, StageModel};
use omni_model::{Checkpoint, LoadError};
use std::sync::Arc;

/// Stages as serving builds them, but small: a talker for 8 sequences and a vocoder for one stream.
pub(super) struct OnGpu {
    pub gpu: Gpu,
    pub precision: Precision,
}

impl StageSource for OnGpu {
    fn precision(&self) -> Precision {
        self.precision
    }

    fn encoder(&self, checkpoint: &Checkpoint) -> Result<Box<dyn StageModel>, LoadError> {
        self.gpu.bind()?;
        let loader = checkpoint.loader(&["thinker.audio_tower", "thinker.visual"], &Device::Cpu);
        let net = TowersNet::load(&self.gpu, self.precision, &loader, &checkpoint.omni()?.thinker)?;
        loader.finish()?;
        CudaEncoderFactory::new(Arc::new(net)).build()
    }

    fn thinker(&self, checkpoint: &Checkpoint) -> Result<Box<dyn StageModel>, LoadError> {
        self.gpu.bind()?;
        let loader = checkpoint.loader(&["thinker"], &Device::Cpu);
        let net = ThinkerNet::load(&self.gpu, self.precision, &loader, &checkpoint.omni()?.thinker)?;
        loader.finish()?;
        let options = ThinkerOptions {
            slots: 1,
            batch: 1,
            prefill_chunk: 64,
            run_ahead: 1,
            kv_memory: None,
            embeddings_in_step: true,
            persistent: Some(ThinkerOptions::PERSISTENT),
        };
        CudaThinkerFactory::new(Arc::new(net), options).build()
    }

    fn talker(&self, checkpoint: &Checkpoint) -> Result<Box<dyn StageModel>, LoadError> {
        self.gpu.bind()?;
        let loader = checkpoint.loader(&["talker"], &Device::Cpu);
        let net = TalkerNet::load(&self.gpu, self.precision, &loader, checkpoint.family())?;
        loader.finish()?;
        let options = TalkerOptions {
            slots: AT_ONCE,
            buckets: vec![1, 2, 4, AT_ONCE],
            prefill_chunk: 64,
            run_ahead: 1,
            kv_memory: None,
            text_embeddings: 4096,
            async_h2d: true,
            persistent: Some(TalkerOptions::PERSISTENT),
        };
        CudaTalkerFactory::new(Arc::new(net), options).build()
    }

    fn vocoder(&self, checkpoint: &Checkpoint) -> Result<Box<dyn StageModel>, LoadError> {
        let precision = match self.precision {
            Precision::F32 => vocoder::Precision::F32,
            Precision::Bf16 => vocoder::Precision::Tf32,
        };
        let net = CudaVocoder::load(&self.gpu, checkpoint, precision, Limits::new(2, &[1, 2, 4, 8]))?;
        CudaVocoderFactory::new(Arc::new(net)).build()
    }
}
