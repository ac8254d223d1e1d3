//! Launches whose blocks stay on the GPU together and wait for each other, on Hopper, in bf16 and with the sizes of published
//! talkers: the layers in one launch, and the code predictor's passes behind the first one in another.
//! Everything else takes the kernels of the graph one by one, and gets the same bits.

mod layers;
mod predictor;

use super::net::TalkerNet;
use crate::CudaError;
use crate::persistent::{BLOCKS, Stalled, unless_full};
use crate::spinning::Spinning;
use crate::stream::Stream;
pub(super) use layers::Batch;
use layers::Layers;
use omni_config::Precision;
use omni_core::ids::StageName;
use predictor::Predictor;
pub(super) use predictor::Step;
use std::sync::Arc;
use std::time::Duration;

/// What a talker has of them.
pub(super) struct Persistent {
    layers: Option<Layers>,
    predictor: Option<Predictor>,
    stalled: Arc<Stalled>,
    _only: Spinning,
}

impl Persistent {
    /// Room and what it holds, where the GPU, the config and the device's other users allow it. `most`: sequences of a
    /// step. `limit`: the longest time of a launch.
    ///
    /// # Errors
    /// What the driver says; a device without room for it is no error.
    pub fn new(
        net: &TalkerNet,
        most: usize,
        limit: Duration,
        stream: &Stream,
    ) -> Result<Option<Persistent>, CudaError> {
        let gpu = &net.gpu;
        let device = gpu.is_hopper() && gpu.multiprocessors() as usize >= BLOCKS;
        if !device || net.precision != Precision::Bf16 {
            return Ok(None);
        }
        let (layers, predictor) = (layers::served(net), predictor::served(net));
        if layers.is_none() && predictor.is_none() {
            return Ok(None);
        }
        let only = match Spinning::begin(gpu) {
            Ok(only) => only,
            Err(why) => {
                tracing::info!(why, "the talker runs as a graph");
                return Ok(None);
            }
        };
        let make = || -> Result<Persistent, CudaError> {
            let (stalled, limits) = Stalled::new(gpu, limit)?;
            let made = Persistent {
                layers: layers.map(|of| Layers::new(net, &of, most, limits, stream)).transpose()?,
                predictor: predictor.map(|of| Predictor::new(net, &of, most, limits, stream)).transpose()?,
                stalled: Arc::new(stalled),
                _only: only,
            };
            stream.synchronize()?;
            Ok(made)
        };
        let made = unless_full(StageName::Talker, make())?;
        if let Some(made) = &made {
            let [layers, predictor] = made.has();
            tracing::info!(layers, predictor, limit_ms = limit.as_millis() as u64, "kernels stay on the GPU");
        }
        Ok(made)
    }

    /// Queues all layers over a batch, and says whether it did: not where there are none for so many sequences.
    ///
    /// # Errors
    /// What the driver says.
    pub fn layers(&self, stream: &Stream, batch: &Batch<'_>) -> Result<bool, CudaError> {
        self.layers.as_ref().map_or(Ok(false), |layers| layers.queue(stream, batch))
    }

    /// The furthest position of a step of so many sequences up to which its layers are faster as one launch; `None`: there
    /// is no bound, or no such launch.
    pub fn reach(&self, rows: usize) -> Option<usize> {
        self.layers.as_ref()?.reach(rows)
    }

    /// Queues all passes of the predictor but the first, and says whether it did, in the same way.
    ///
    /// # Errors
    /// What the driver says.
    pub fn passes(&self, stream: &Stream, step: &Step<'_>) -> Result<bool, CudaError> {
        self.predictor.as_ref().map_or(Ok(false), |predictor| predictor.queue(stream, step))
    }

    /// Whether there are layers, and passes of the predictor.
    pub fn has(&self) -> [bool; 2] {
        [self.layers.is_some(), self.predictor.is_some()]
    }

    /// What tells a step that a launch waited in vain.
    pub fn stalled(&self) -> &Arc<Stalled> {
        &self.stalled
    }
}
