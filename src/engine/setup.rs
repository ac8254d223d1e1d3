//! What a stage is made of, wherever it runs: one function for threads of this process and for a process of its own.

use super::load::Loading;
use super::{Kept, StartError};
use crate::device::DeviceChoice;
use omni_config::{Config, DeviceKind};
use omni_core::deadline::PlaybackPolicy;
use omni_core::ids::{Replica, StageName};
use omni_core::restart::RestartLimits;
use omni_core::scheduler::{SchedulerConfig, Yields};
use omni_fault::FaultPlan;
use omni_model::checkpoint::Checkpoint;
use omni_model::hf::SAMPLE_RATE;
use omni_model::stage::StageFactory;
use omni_stage::{AckSink, Arbiter, OutEdge, StageReports, StageSetup};
use omni_telemetry::trace::Recorder;
use omni_telemetry::{EdgeMetrics, StageMetrics};
use omni_transfer::lease::LeaseBook;
use omni_transfer::payload::Kind;
use omni_transfer::shm::Notes;
use omni_transfer::transport::{PayloadReceiver, PayloadSender};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What the stages of one process have in common.
pub(super) struct StageMaker<'a> {
    config: &'a Config,
    pub device: DeviceChoice,
    loading: Arc<Loading>,
    /// Of each stage and GPU: replicas on a CPU share the weights.
    factories: Mutex<BTreeMap<(StageName, usize), Arc<dyn StageFactory>>>,
    /// Time that a listener needs for one frame.
    pub unit: Duration,
    pub faults: FaultPlan,
    /// What the engine's requests and stages record.
    pub recorder: Recorder,
    pub leases: LeaseBook,
    /// Of each GPU, which computes the steps of several stages side by side; on a CPU the system shares the cores out.
    arbiters: BTreeMap<usize, Arc<Arbiter>>,
}

/// The edges and sinks of a stage.
pub(super) struct Wiring {
    pub inbound: Arc<dyn PayloadReceiver>,
    pub outbound: Vec<(Kind, Arc<dyn PayloadSender>)>,
    /// Whether embeddings travel as handles to buffers on the device.
    pub handles: bool,
    pub acks: Arc<dyn AckSink>,
    pub reports: Arc<dyn StageReports>,
    /// What its actors record.
    pub recorder: Recorder,
    /// See [`StageSetup::own_process`].
    pub own_process: bool,
    /// See [`StageSetup::notes`].
    pub notes: Option<Notes>,
}

impl<'a> StageMaker<'a> {
    /// For the stages that run in this process. Chooses the device; reads no weights yet.
    pub fn new(
        checkpoint: &Checkpoint,
        config: &'a Config,
        here: &[StageName],
        kept: Kept,
    ) -> Result<StageMaker<'a>, StartError> {
        let Kept { recorder, faults, .. } = kept;
        let device = DeviceChoice::resolve(&config.device)
            .map_err(|error| StartError::Config(format!("device.kind: {error}")))?;
        tracing::info!(device = device.kind.as_str(), dtype = device.dtype.as_str(), why = %device.why, "device chosen");
        let family = checkpoint.stages();
        device.fit(config, family).map_err(StartError::Config)?;
        let of_gpus = || here.iter().flat_map(|stage| config.gpus(*stage)).map(|gpu| (gpu, Arbiter::new()));
        let samples = checkpoint.family().vocoder().samples_per_frame() as f64;
        Ok(StageMaker {
            config,
            factories: Mutex::default(),
            loading: Loading::new(checkpoint, config, device.clone(), here, recorder.clone()),
            unit: Duration::from_secs_f64(samples / f64::from(SAMPLE_RATE)),
            faults,
            recorder,
            leases: LeaseBook::default(),
            arbiters: if device.kind == DeviceKind::Cuda { of_gpus().collect() } else { BTreeMap::new() },
            device,
        })
    }

    /// What the stages are configured by.
    pub fn config(&self) -> &Config {
        self.config
    }

    fn factory(&self, stage: StageName, gpu: usize) -> Arc<dyn StageFactory> {
        let place = (stage, if self.device.kind == DeviceKind::Cuda { gpu } else { 0 });
        let mut made = self.factories.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(made.entry(place).or_insert_with(|| self.loading.factory(stage, gpu)))
    }

    /// Whether sequences of a stage on this GPU wait for the next stage on it.
    fn yields(&self, name: StageName, gpu: usize) -> Yields {
        let shares = |next| self.device.kind == DeviceKind::Cuda && self.config.gpus(next).contains(&gpu);
        match name {
            StageName::Thinker if shares(StageName::Talker) => Yields::Each,
            StageName::Talker if shares(StageName::Vocoder) => Yields::Alone,
            _ => Yields::Never,
        }
    }

    /// Everything about one replica of a stage that outlives its actors. Its series get its number where there are
    /// several in this process.
    pub fn stage(&self, place: Replica, several: bool, wiring: Wiring) -> StageSetup {
        let Replica { stage: name, number } = place;
        let (config, stage) = (self.config, self.config.stage(name));
        let kind = self.device.kind;
        let gpu = config.gpu(name, number.into());
        let arbiter = self.arbiters.get(&gpu).cloned();
        let Wiring { inbound, outbound, handles, acks, reports, recorder, own_process, notes } = wiring;
        StageSetup {
            name,
            replica: number,
            scheduler: SchedulerConfig {
                slots: config.limits.max_requests as u32,
                max_batch: config.max_batch(name, kind),
                prefill_chunk: config.prefill_chunk(name, kind),
                prefill_least: match (kind, name) {
                    // A pass over a few positions reads nearly all experts, as one over many does
                    // (docs/cuda-thinker.md), and what the encoder computes beside it waits for both.
                    (DeviceKind::Cuda, StageName::Thinker) => config.prefill_chunk(name, kind),
                    _ => 0,
                },
                // A talker's passes are short: its prompts would wait longer than they gain.
                joins_prompts: kind == DeviceKind::Cuda && name == StageName::Thinker,
                // Its frames tell how far they are.
                paced: kind == DeviceKind::Cuda && name == StageName::Talker && config.transfer.just_in_time,
                yields: self.yields(name, gpu),
                run_ahead: config.run_ahead(name, kind) as u32,
                window: window(config, name),
                buckets: if arbiter.is_some() { stage.buckets.clone() } else { Vec::new() },
                max_step_units: stage.max_step_frames,
                playback: playback_policy(config, name, self.unit),
            },
            arbiter,
            factory: self.factory(name, gpu),
            restart: restart_limits(config),
            watchdog: config.supervision.watchdog,
            faults: self.faults.clone(),
            metrics: StageMetrics::new(name, several.then_some(number.into()), recorder.clone()),
            recorder,
            outbound: outbound
                .into_iter()
                .map(|(kind, sender)| OutEdge {
                    kind,
                    sender,
                    handles: matches!(kind, Kind::Embeddings | Kind::Media) && handles,
                    metrics: EdgeMetrics::new(name, kind),
                })
                .collect(),
            inbound,
            early_handoff: config.transfer.early_handoff,
            acks,
            reports,
            notes,
            leases: self.leases.clone(),
            own_process,
        }
    }
}

/// When a stage is started again, actors or process.
pub(super) fn restart_limits(config: &Config) -> RestartLimits {
    RestartLimits {
        backoff: config.supervision.backoff,
        max_backoff: config.supervision.max_backoff,
        max_restarts: config.supervision.max_restarts,
        window: config.supervision.meltdown_window,
    }
}

/// Most payloads that can be on their way from a stage to the next: the windows of all requests.
pub(super) fn edge_capacity(config: &Config, from: StageName) -> usize {
    let (sequences, units) = (config.limits.max_requests, window(config, from) as usize);
    sequences * (units + 64) + 1024
}

/// Frames of the chunks in which speech is sent.
pub(super) fn chunk_ramp(config: &Config) -> Vec<u32> {
    config.stage(StageName::Vocoder).chunk_ramp.iter().map(|frames| frames.0).collect()
}

/// A stage's window, never smaller than what the next stage takes at once.
pub(super) fn window(config: &Config, stage: StageName) -> u32 {
    let largest = chunk_ramp(config).into_iter().max().unwrap_or(1);
    let least = if stage == StageName::Talker { largest + 1 } else { 2 };
    config.stage(stage).window.max(least)
}

/// How the listeners of a stage consume its units.
fn playback_policy(config: &Config, stage: StageName, unit: Duration) -> PlaybackPolicy {
    let gathers = if stage == StageName::Talker { chunk_ramp(config).into_iter().max().unwrap_or(1) } else { 0 };
    // A client reads text at any pace: no lead is too long for a thinker.
    // An encoder has no listener: its sequences go in the order in which they came.
    let lead_cap = (stage > StageName::Thinker).then_some(config.speech.lead_cap);
    let unit = if stage == StageName::Encoder { Duration::ZERO } else { unit };
    PlaybackPolicy { unit, gathers, lead_cap }
}
