//! The engine as a [`Service`].

use super::api::{EngineHealth, GenerateRequest, ModelInfo, ResponseStream, Service, Slo, SpeechRequest, SubmitError};
use super::health::{is_running, stage_health};
use super::voice::{NewVoice, VoiceError, VoiceInfo};
use super::words::WordFinder;
use super::{Engine, caught, speak};
use futures::FutureExt;
use futures::future::BoxFuture;
use omni_config::LimitsConfig;
use omni_core::nodes::{DrainError, NodeStatus};
use omni_fault::FaultPlan;
use omni_stage::StageHandle;
use omni_telemetry::trace::Recorder;
use omni_telemetry::{self as telemetry, RequestKind};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Service for Engine {
    fn info(&self) -> &ModelInfo {
        &self.shared.info
    }

    fn submit(&self, request: GenerateRequest) -> BoxFuture<'_, Result<ResponseStream, SubmitError>> {
        Box::pin(async move {
            let kind = match request.options.slo {
                Slo::Background => RequestKind::Preparation,
                Slo::BestEffort | Slo::Realtime(_) => RequestKind::Chat,
            };
            let accepted = planned(self.generate(request)).await;
            accepted.inspect_err(|_| self.shared.metrics.refused(kind))
        })
    }

    fn speak(&self, request: SpeechRequest) -> BoxFuture<'_, Result<ResponseStream, SubmitError>> {
        Box::pin(async move {
            let accepted = planned(speak::speak(self, request)).await;
            accepted.inspect_err(|_| self.shared.metrics.refused(RequestKind::Speech))
        })
    }

    fn voices(&self) -> Vec<Arc<VoiceInfo>> {
        let built_in = |name: &String| Arc::new(VoiceInfo { name: name.clone(), uploaded: false, upload: None });
        let uploaded = self.shared.voices.iter().flat_map(|voices| voices.list());
        self.shared.info.voices.iter().map(built_in).chain(uploaded).collect()
    }

    fn add_voice(&self, voice: NewVoice) -> BoxFuture<'_, Result<VoiceInfo, VoiceError>> {
        Box::pin(async move {
            match &self.shared.voices {
                Some(voices) => voices.add(voice).await,
                None => Err(no_cloning()),
            }
        })
    }

    fn remove_voice<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), VoiceError>> {
        Box::pin(async move {
            match &self.shared.voices {
                Some(voices) => voices.remove(name).await,
                None => Err(VoiceError::Unknown(name.into())),
            }
        })
    }

    fn health(&self) -> EngineHealth {
        // Of a stage on nodes, those replicas that have been there, and one where there was none.
        let none_yet = |name| self.shared.stages.replicas(name).iter().all(|replica| replica.is_vacant());
        let shown = |stage: &StageHandle| !stage.is_vacant() || stage.replica() == Some(0) && none_yet(stage.name());
        let known = self.shared.stages.iter().zip(&self.shared.since).filter(|(stage, _)| shown(stage));
        let stages: Vec<_> = known.map(|(stage, since)| stage_health(stage, since.known())).collect();
        let admission = self.shared.admissions.status();
        let draining = self.shared.draining.load(Ordering::Relaxed);
        let aligner = self.shared.aligner.as_ref().and_then(WordFinder::health);
        let ready = !draining && is_running(&stages);
        let gateway = self.shared.nodes.as_ref().map(|nodes| nodes.gateway());
        let nodes = self.shared.nodes.as_ref().map(|nodes| nodes.list()).unwrap_or_default();
        EngineHealth { ready, draining, requests: admission.held, admission, stages, gateway, nodes, aligner }
    }

    fn drain_node(
        &self,
        node: String,
        force: bool,
        undo: bool,
    ) -> BoxFuture<'static, Result<Vec<NodeStatus>, DrainError>> {
        match &self.shared.nodes {
            Some(nodes) => nodes.drain(node, force, undo),
            None => Box::pin(std::future::ready(Err(DrainError::NoCluster))),
        }
    }

    fn metrics(&self) -> BoxFuture<'_, String> {
        Box::pin(async move {
            let told = self.stage_metrics().await;
            let own = telemetry::render() + &self.node_metrics().unwrap_or_default();
            telemetry::merged(&own, &told)
        })
    }

    fn recorder(&self) -> Recorder {
        self.shared.recorder.clone()
    }

    fn faults(&self) -> Option<&FaultPlan> {
        Some(&self.shared.faults).filter(|faults| faults.is_open())
    }

    fn set_limits(&self, limits: &LimitsConfig) {
        self.shared.planner.common.set_limits(limits);
        self.shared.admissions.set_first_audio(limits.first_audio_deadline);
    }

    fn drain(&self, grace: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.shared.draining.store(true, Ordering::Relaxed);
            self.shared.faults.drains();
            telemetry::set_ready(false);
            self.stop(grace).await;
        })
    }
}

/// Accepts a request. A panic on the way, in a template or a tokenizer, refuses this request and harms no other.
pub(crate) async fn planned<T>(accepting: impl Future<Output = Result<T, SubmitError>>) -> Result<T, SubmitError> {
    let accepted = AssertUnwindSafe(accepting).catch_unwind().await;
    accepted.unwrap_or_else(|panic| {
        Err(SubmitError::Internal(format!("the request could not be planned: {}", caught::text(panic.as_ref()))))
    })
}

fn no_cloning() -> VoiceError {
    let message = "this model speaks with its own voices only; cloning needs a Qwen3-TTS Base checkpoint".into();
    VoiceError::Invalid { param: "audio_sample", message }
}
