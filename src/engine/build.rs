//! From a checkpoint and a config to supervised stages with edges between them.

use super::admission::Admissions;
use super::ledger::{ClientSink, CodesTap, Ledger};
use super::load::Loading;
use super::plan::{Common, FamilyPlanner, OmniPlanner, Planner, TtsPlanner};
use super::stages::Stages;
use super::voices::{self, Voices};
use super::{ModelInfo, Shared, StartError, TtsInfo};
use crate::actors::{self, AckSink, Arbiter, OutEdge, StageReports, StageSetup};
use crate::config::{Config, DeviceKind, TransferConfig, TransportKind};
use crate::core::deadline::Ears;
use crate::core::ledger::LedgerLimits;
use crate::core::restart::RestartLimits;
use crate::core::scheduler::SchedulerConfig;
use crate::fault::FaultPlan;
use crate::ids::{RequestId, StageName};
use crate::model::DeviceChoice;
use crate::model::checkpoint::Checkpoint;
use crate::model::frontend::AudioLimits;
use crate::model::hf::{Family, SAMPLE_RATE, Variant};
use crate::telemetry::{EdgeMetrics, RequestMetrics, StageMetrics};
use crate::transfer::lease::LeaseBook;
use crate::transfer::payload::Kind;
use crate::transfer::transport::{PayloadReceiver, PayloadSender, inproc, over_wire};
use candle_core::Device;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often the ledger looks for requests whose time is up.
const TICK: Duration = Duration::from_millis(250);

type Edge = (Arc<dyn PayloadSender>, Arc<dyn PayloadReceiver>);

/// Starts the supervisors. The stages load their weights and come up by themselves.
pub(super) async fn assemble(checkpoint: &Checkpoint, config: &Config) -> Result<Shared, StartError> {
    let device =
        DeviceChoice::resolve(&config.device).map_err(|error| StartError::Config(format!("device.kind: {error}")))?;
    tracing::info!(device = device.kind.as_str(), dtype = device.dtype.as_str(), why = %device.why, "device chosen");
    let loading = Loading::new(checkpoint, config, device.clone());
    let family = checkpoint.family();
    let info = model_info(checkpoint, config)?;
    let stages = Stages::new(family.stages());
    let capacity = |stage: StageName| {
        let (rows, units) = (config.limits.max_requests, window(config, stage) as usize);
        rows * (units + 64) + 1024
    };
    let edge = |from: StageName| -> Edge {
        match transport(&config.transfer, from) {
            TransportKind::Inproc => erase(inproc(capacity(from))),
            TransportKind::Wire | TransportKind::Shm => erase(over_wire(capacity(from), Device::Cpu)),
        }
    };
    // As many rows of text as a thinker may be ahead.
    let (text_in, text_out) = erase(inproc(capacity(StageName::Thinker)));

    let leases = LeaseBook::default();
    let metrics = RequestMetrics::new();
    let limits = LedgerLimits {
        request_timeout: config.limits.request_timeout,
        stalled_client_timeout: config.limits.stalled_client_timeout,
    };
    let ledger = Arc::new(Ledger::new(limits, stages.clone(), text_in, metrics.clone()));
    let client: Arc<dyn PayloadSender> = Arc::new(ClientSink(Arc::clone(&ledger)));
    let faults = FaultPlan::new(&config.faults);
    let unit = Duration::from_secs_f64(f64::from(info.samples_per_frame) / f64::from(info.sample_rate));
    let (mut inbound, mut outbound) = (vec![text_out], Vec::new());
    for name in family.stages() {
        let kind = match name {
            StageName::Thinker => Kind::Rows,
            StageName::Talker => Kind::Codes,
            StageName::Code2wav => {
                outbound.push(vec![(Kind::Audio, Arc::clone(&client))]);
                continue;
            }
        };
        let (mut sender, receiver) = edge(*name);
        inbound.push(receiver);
        if *name == StageName::Talker {
            sender = Arc::new(CodesTap { ledger: Arc::clone(&ledger), edge: sender });
        }
        let told = (*name == StageName::Thinker).then(|| (Kind::Tokens, Arc::clone(&client)));
        outbound.push(std::iter::once((kind, sender)).chain(told).collect());
    }
    // Rows that a thinker leaves on a GPU are of use to a talker on the same one.
    let handles = device.kind == DeviceKind::Cuda
        && config.transfer.device_handover
        && transport(&config.transfer, StageName::Thinker) == TransportKind::Inproc;
    // A GPU computes the steps of several stages side by side; on a CPU the system shares the cores out.
    let mut arbiters: BTreeMap<usize, Arc<Arbiter>> = BTreeMap::new();
    for ((handle, inbound), outbound) in stages.iter().zip(inbound).zip(outbound) {
        let name = handle.name();
        let before = stages.before(name);
        let acks: Arc<dyn AckSink> = match before {
            Some(stage) => Arc::clone(stage) as Arc<dyn AckSink>,
            None => Arc::new(NobodyWaits),
        };
        let stage = config.stage(name);
        let arbiter = (device.kind == DeviceKind::Cuda)
            .then(|| Arc::clone(arbiters.entry(config.device_index(name)).or_default()));
        let setup = StageSetup {
            name,
            scheduler: SchedulerConfig {
                slots: config.limits.max_requests as u32,
                max_batch: config.max_batch(name, device.kind),
                prefill_chunk: stage.prefill_chunk,
                run_ahead: config.run_ahead(name) as u32,
                window: window(config, name),
                buckets: if arbiter.is_some() { stage.buckets.clone() } else { Vec::new() },
                max_step_units: stage.max_step_frames,
                ears: ears(config, name, unit),
            },
            arbiter,
            factory: loading.factory(name),
            restart: RestartLimits {
                backoff: config.supervision.backoff,
                max_backoff: config.supervision.max_backoff,
                max_restarts: config.supervision.max_restarts,
                window: config.supervision.meltdown_window,
            },
            watchdog: config.supervision.watchdog,
            faults: faults.clone(),
            metrics: StageMetrics::new(name),
            outbound: outbound
                .into_iter()
                .map(|(kind, sender)| OutEdge {
                    kind,
                    sender,
                    handles: kind == Kind::Rows && handles,
                    metrics: EdgeMetrics::new(name, kind),
                })
                .collect(),
            inbound,
            upstream: before.map(|stage| stage.name()),
            early_handoff: config.transfer.early_handoff,
            acks,
            reports: Arc::clone(&ledger) as Arc<dyn StageReports>,
            leases: leases.clone(),
        };
        let started = actors::start(setup, Arc::clone(handle)).await;
        started.map_err(|error| StartError::Stage(name, error.to_string()))?;
    }

    let planner = Planner {
        family: family_planner(checkpoint, &info, config)?,
        common: Common {
            generation: Arc::clone(checkpoint.generation()),
            max_positions: family.talker().text.max_position_embeddings as u32,
            groups: family.talker().num_code_groups,
            chunk_ramp: chunk_ramp(config),
            max_input_chars: config.limits.max_input_chars,
            audio_window: window(config, StageName::Code2wav),
        },
    };
    let voices = voices(checkpoint, &info, config).await?;
    Ok(Shared {
        info,
        planner,
        stages,
        ticker: tokio::spawn(tick(Arc::downgrade(&ledger))),
        ledger,
        admissions: Admissions::new(config.limits.max_requests),
        metrics,
        leases,
        draining: AtomicBool::new(false),
        speech: config.speech.clone(),
        max_segment_chars: config.speech.max_segment_chars.unwrap_or(segment_chars(family)),
        voices,
    })
}

/// Characters of one piece of speech when the config does not say.
fn segment_chars(family: &Family) -> usize {
    match family {
        // About 8 s: the longest that the embedded voice was trained to say in one go.
        Family::Omni(_) => 120,
        Family::Tts(_) => 400,
    }
}

fn family_planner(checkpoint: &Checkpoint, info: &ModelInfo, config: &Config) -> Result<FamilyPlanner, StartError> {
    let default_voice = info.default_voice.clone();
    Ok(match checkpoint.family() {
        Family::Omni(omni) => FamilyPlanner::Omni(OmniPlanner {
            prompter: checkpoint.prompter()?,
            config: Arc::clone(omni),
            default_voice: default_voice.unwrap_or_default(),
            speech_prompt: config.speech.prompt.clone(),
            eos: checkpoint.generation().thinker_eos.as_slice().into(),
            spell_out: config.speech.spell_out,
        }),
        Family::Tts(tts) => FamilyPlanner::Tts(TtsPlanner {
            prompter: checkpoint.tts_prompter()?,
            config: Arc::clone(tts),
            default_voice,
        }),
    })
}

/// Whether clients may bring voices.
fn clones(family: &Family) -> bool {
    matches!(family, Family::Tts(tts) if tts.variant == Variant::Base)
}

/// The voices of clients, if this checkpoint can speak with them.
async fn voices(checkpoint: &Checkpoint, info: &ModelInfo, config: &Config) -> Result<Option<Arc<Voices>>, StartError> {
    if !clones(checkpoint.family()) {
        return Ok(None);
    }
    let folder = voices::folder(&config.voices.directory, &info.id);
    let (checkpoint, max_count) = (checkpoint.clone(), config.voices.max_count);
    let reference = &config.reference_audio;
    let limits = AudioLimits {
        max_bytes: reference.max_bytes,
        min_seconds: reference.min_length.as_secs_f64(),
        max_seconds: reference.max_length.as_secs_f64(),
    };
    let opening = tokio::task::spawn_blocking(move || Voices::open(&checkpoint, folder, max_count, limits));
    let opened = opening.await.map_err(|error| StartError::Config(format!("voices: {error}")))?;
    Ok(Some(Arc::new(opened?)))
}

fn model_info(checkpoint: &Checkpoint, config: &Config) -> Result<ModelInfo, StartError> {
    let family = checkpoint.family();
    let talker = family.talker();
    let named = !matches!(family, Family::Tts(tts) if tts.variant != Variant::CustomVoice);
    let default_voice = match &config.model.default_voice {
        // An uploaded voice, which may come later.
        Some(voice) if clones(family) => Some(voice.clone()),
        Some(voice) => {
            talker.speaker(voice).map_err(|error| StartError::Config(format!("model.default_voice: {error}")))?;
            Some(voice.to_lowercase())
        }
        None => named.then(|| talker.default_speaker().to_owned()),
    };
    let tts = match family {
        Family::Omni(_) => None,
        Family::Tts(tts) => Some(TtsInfo {
            task: tts.variant,
            languages: tts.languages.keys().cloned().collect(),
            instructions: tts.follows_instructions,
        }),
    };
    Ok(ModelInfo {
        id: config.model.name.clone(),
        voices: talker.speaker_names().into_iter().filter(|_| named).map(str::to_owned).collect(),
        default_voice,
        sample_rate: SAMPLE_RATE,
        samples_per_frame: family.vocoder().samples_per_frame() as u32,
        tts,
    })
}

fn chunk_ramp(config: &Config) -> Vec<u32> {
    config.stage(StageName::Code2wav).chunk_ramp.iter().map(|frames| frames.0).collect()
}

/// A stage's window, never smaller than what the next one wants at once.
fn window(config: &Config, stage: StageName) -> u32 {
    let largest = chunk_ramp(config).into_iter().max().unwrap_or(1);
    let least = if stage == StageName::Talker { largest + 1 } else { 2 };
    config.stage(stage).window.max(least)
}

/// What the listeners of a stage hear.
fn ears(config: &Config, stage: StageName, unit: Duration) -> Ears {
    let gathers = if stage == StageName::Talker { chunk_ramp(config).into_iter().max().unwrap_or(1) } else { 0 };
    // Text is read at any pace: nobody who has enough of it is held back.
    let lead_cap = (stage != StageName::Thinker).then_some(config.speech.lead_cap);
    Ears { unit, gathers, lead_cap }
}

/// How the payloads of a stage travel to the next.
fn transport(transfer: &TransferConfig, from: StageName) -> TransportKind {
    let edge = match from {
        StageName::Thinker => transfer.edges.rows,
        StageName::Talker | StageName::Code2wav => transfer.edges.codes,
    };
    edge.unwrap_or(transfer.transport)
}

fn erase(ends: (impl PayloadSender + 'static, impl PayloadReceiver + 'static)) -> Edge {
    (Arc::new(ends.0), Arc::new(ends.1))
}

async fn tick(ledger: Weak<Ledger>) {
    let mut ticks = tokio::time::interval(TICK);
    loop {
        ticks.tick().await;
        match ledger.upgrade() {
            Some(ledger) => ledger.tick(),
            None => return,
        }
    }
}

/// Text of a client arrives whole: nobody waits to send more of it.
struct NobodyWaits;

impl AckSink for NobodyWaits {
    fn acked(&self, _: RequestId, _: u32) {}
}
