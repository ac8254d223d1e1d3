//! One of several models, as the server sees it: a [`Service`] that is there also while its engine is not.

use super::{Group, Use, lock};
use crate::Engine;
use crate::api::{
    AdmissionStatus, EngineHealth, GenerateRequest, ModelInfo, ModelState, ResponseStream, Service, SpeechRequest,
    SubmitError,
};
use crate::voice::{NewVoice, VoiceError, VoiceInfo};
use futures::future::BoxFuture;
use omni_config::{LimitsConfig, VoicesDirectory};
use omni_core::residence::LoadState;
use omni_fault::FaultPlan;
use omni_telemetry::trace::Recorder;
use omni_telemetry::{self as telemetry};
use std::sync::Arc;
use std::time::Duration;

/// See the module.
pub struct ServedModel {
    group: Arc<Group>,
    index: usize,
}

impl ServedModel {
    pub(super) fn new(group: Arc<Group>, index: usize) -> ServedModel {
        ServedModel { group, index }
    }

    fn slot(&self) -> &super::Slot {
        &self.group.slots[self.index]
    }

    /// The engine, and what keeps it, for what is done with a voice.
    async fn enter_for_voice(&self) -> Result<(Engine, Use), VoiceError> {
        self.group.enter(self.index).await.map_err(|error| VoiceError::NotReady(error.to_string()))
    }
}

impl Service for ServedModel {
    fn info(&self) -> &ModelInfo {
        let slot = self.slot();
        slot.info.get().unwrap_or(&slot.unknown)
    }

    fn submit(&self, request: GenerateRequest) -> BoxFuture<'_, Result<ResponseStream, SubmitError>> {
        Box::pin(async move {
            let (engine, used) = self.group.enter(self.index).await?;
            Ok(engine.submit(request).await?.keeping(used))
        })
    }

    fn speak(&self, request: SpeechRequest) -> BoxFuture<'_, Result<ResponseStream, SubmitError>> {
        Box::pin(async move {
            let (engine, used) = self.group.enter(self.index).await?;
            Ok(engine.speak(request).await?.keeping(used))
        })
    }

    fn voices(&self) -> Vec<Arc<VoiceInfo>> {
        let slot = self.slot();
        slot.engine().map_or_else(|| lock(&slot.voices).clone(), |engine| engine.voices())
    }

    fn add_voice(&self, voice: NewVoice) -> BoxFuture<'_, Result<VoiceInfo, VoiceError>> {
        Box::pin(async move {
            let (engine, used) = self.enter_for_voice().await?;
            let added = engine.add_voice(voice).await?;
            if self.slot().config.voices.directory == VoicesDirectory::Memory {
                // Voices that are nowhere else keep their model loaded.
                std::mem::forget(used);
            }
            Ok(added)
        })
    }

    fn remove_voice<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), VoiceError>> {
        Box::pin(async move {
            let (engine, _used) = self.enter_for_voice().await?;
            engine.remove_voice(name).await
        })
    }

    fn health(&self) -> EngineHealth {
        if let Some(engine) = self.slot().engine() {
            return engine.health();
        }
        let ready = matches!(self.group.state(self.index), LoadState::Unloaded | LoadState::Unloading);
        let admission = AdmissionStatus::default();
        let draining = self.group.lock().is_closed();
        EngineHealth {
            ready: ready && !draining,
            draining,
            requests: 0,
            admission,
            stages: Vec::new(),
            gateway: None,
            nodes: Vec::new(),
            aligner: None,
        }
    }

    fn metrics(&self) -> BoxFuture<'_, String> {
        Box::pin(async move {
            let mut told = Vec::new();
            for engine in self.group.engines() {
                told.extend(engine.stage_metrics().await);
            }
            telemetry::merged(&telemetry::render(), &told)
        })
    }

    fn recorder(&self) -> Recorder {
        self.slot().kept.recorder.clone()
    }

    fn faults(&self) -> Option<&FaultPlan> {
        Some(&self.slot().kept.faults).filter(|faults| faults.is_open())
    }

    fn state(&self) -> Option<ModelState> {
        Some(match self.group.state(self.index) {
            LoadState::Unloaded => ModelState::Unloaded,
            LoadState::Loading => ModelState::Loading,
            LoadState::Loaded => ModelState::Loaded,
            LoadState::Unloading => ModelState::Unloading,
            LoadState::Failed { reason, .. } => ModelState::Failed(reason),
        })
    }

    fn prepare(&self) -> BoxFuture<'_, Result<(), SubmitError>> {
        Box::pin(async move {
            let refused = |reason| SubmitError::NotReady(format!("the model {:?}: {reason}", self.info().id));
            self.group.know(self.index).await.map_err(refused)
        })
    }

    fn set_limits(&self, limits: &LimitsConfig) {
        *lock(&self.slot().limits) = Some(limits.clone());
        if let Some(engine) = self.slot().engine() {
            engine.set_limits(limits);
        }
    }

    fn drain(&self, grace: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.group.change(|residence, _| residence.close());
            if let Some(engine) = self.slot().engine() {
                engine.drain(grace).await;
            }
        })
    }
}
