//! Builds an engine: from a checkpoint and a config to supervised stages with edges between them.

use super::admission::{Admissions, TICK};
use super::aligning;
use super::cluster;
use super::decode::Decoders;
use super::device::{DeviceChoice, gpus};
use super::encoded::{MediaCache, MediaMemory};
use super::journal::Edge;
use super::ledger::{Acks, Ledger, LedgerSink, Reports};
use super::media::{self, Preparer};
use super::placement;
use super::plan::{Common, FamilyPlanner, MediaPlanner, OmniPlanner, Planner, RequestLimits, TtsPlanner};
use super::process;
use super::setup::{StageMaker, Wiring, chunk_ramp, edge_capacity, restart_limits, window};
use super::stages::Stages;
use super::status_history::Follower;
use super::voices::{self, Voices};
use super::{Kept, ModelInfo, Ordinary, Shared, StartError, TtsInfo};
use omni_config::{Config, DeviceKind, Placement, TransferConfig, TransportKind};
use omni_core::ids::{Replica, StageName};
use omni_core::ledger::LedgerLimits;
use omni_core::text::Pronunciations;
use omni_fault::{FaultCapabilities, FaultPlan, FaultPoint};
use omni_model::aligner;
use omni_model::checkpoint::Checkpoint;
use omni_model::encoder::Grain;
use omni_model::frontend::AudioLimits;
use omni_model::hf::{AudioTowerConfig, Family, MediaConfig, SAMPLE_RATE, Variant};
use omni_stage::process::{IntoStage, NodeSetup};
use omni_stage::{self as actors, AckSink, StageHandle, StageReports};
use omni_telemetry::{RequestMetrics, SupervisionMetrics};
use omni_transfer::link::edge::{self, EdgeOptions, LostSink};
use omni_transfer::payload::Kind;
use omni_transfer::transport::{PayloadReceiver, PayloadSender, inproc};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, RwLock, Weak};
use std::time::Duration;
use tokio::sync::Semaphore;

type Sender = Arc<dyn PayloadSender>;
type Receiver = Arc<dyn PayloadReceiver>;

/// Starts the supervisors. Each stage loads its weights and comes up by itself.
pub(super) async fn assemble(checkpoint: &Checkpoint, config: &Config, kept: Kept) -> Result<Shared, StartError> {
    let family = checkpoint.family();
    let next_request = Arc::clone(&kept.next_request);
    // A device that cannot be used is an error of the maker.
    let kind = DeviceChoice::resolve(&config.device).map_or(DeviceKind::Cpu, |device| device.kind);
    let names = checkpoint.stages();
    let config = &placement::settle(config, names, kind);
    let apart = |stage: &StageName| config.stage(*stage).placement.is_apart();
    let here: Vec<StageName> = names.iter().filter(|stage| !apart(stage)).copied().collect();
    let maker = StageMaker::new(checkpoint, config, &here, kept)?;
    let settled = maker.faults.settle(capabilities(family, names, config, maker.device.kind));
    settled.map_err(|error| StartError::Config(error.to_string()))?;
    config.replicas_fit(names, maker.device.kind, gpus(maker.device.kind)).map_err(StartError::Config)?;
    if maker.device.kind == DeviceKind::Cuda && names.iter().any(apart) {
        tracing::warn!(
            "stages in processes of their own share the GPU without an arbiter: first sounds are not put first"
        );
    }
    let aligner = aligning::finder(checkpoint, config, &maker.faults).await?;
    let info = model_info(checkpoint, config)?;
    let stages = Stages::new(names, config);
    let (mut into, mut inbound) = (Vec::new(), Vec::new());
    // The ledger needs the edges, and the edges report losses to the ledger.
    let told = Arc::new(OnceLock::<Weak<Ledger>>::new());
    let edges = Edges { config, told: Arc::clone(&told) };
    for stage in stages.iter() {
        let (sender, receiver) = edges.towards(stage, stages.before(stage.name()))?;
        into.push(sender);
        inbound.push(receiver);
    }
    let metrics = RequestMetrics::new(maker.recorder.clone());
    let limits = LedgerLimits {
        request_timeout: config.limits.request_timeout,
        stalled_client_timeout: config.limits.stalled_client_timeout,
    };
    let groups = family.talker().num_code_groups;
    let faults = maker.faults.clone();
    let ledger = Ledger::new(limits, stages.clone(), groups, maker.unit, metrics.clone(), faults);
    let ledger = Arc::new(ledger.numbered_by(next_request));
    ledger.leads_into(into);
    let _ = told.set(Arc::downgrade(&ledger));
    let nodes = cluster::nodes(checkpoint, config, names).await?;
    for (handle, inbound) in stages.iter().zip(inbound) {
        let outbound = edges_from(handle.name(), &ledger);
        let acks: Arc<dyn AckSink> = Arc::new(Acks { ledger: Arc::clone(&ledger), stage: handle.name() });
        let replica = handle.place();
        let reports: Arc<dyn StageReports> = Arc::new(Reports { ledger: Arc::clone(&ledger), replica });
        let started = match inbound {
            Some(inbound) => {
                let handles = handles(handle.name(), config, maker.device.kind);
                let recorder = maker.recorder.clone();
                let wiring =
                    Wiring { inbound, outbound, handles, acks, reports, recorder, own_process: false, notes: None };
                actors::start(maker.stage(handle.place(), handle.replica().is_some(), wiring), Arc::clone(handle)).await
            }
            None => {
                let ends = process::ends(handle.place(), config, &maker, outbound, acks, reports);
                match &nodes {
                    Some(nodes) if handle.is_on_nodes() => {
                        let setup = NodeSetup {
                            place: handle.place(),
                            nodes: Arc::clone(nodes),
                            restart: restart_limits(config),
                            watchdog: config.supervision.watchdog,
                            metrics: SupervisionMetrics::new(handle.name(), handle.replica()),
                            zero_copy: config.transfer.zero_copy,
                            ends,
                        };
                        actors::process::start_on_nodes(setup, Arc::clone(handle)).await
                    }
                    _ => {
                        let setup = process::setup(handle, checkpoint, config, ends)?;
                        actors::process::start(setup, Arc::clone(handle)).await
                    }
                }
            }
        };
        started.map_err(|error| StartError::Stage(handle.name(), error.to_string()))?;
    }

    let planner = Planner {
        family: family_planner(checkpoint, &info, config, maker.device.kind)?,
        common: Common {
            generation: Arc::clone(checkpoint.generation()),
            max_positions: family.talker().text.max_position_embeddings as u32,
            groups,
            chunk_ramp: chunk_ramp(config),
            limits: RwLock::new(RequestLimits::new(&config.limits, maker.unit)),
            max_first_chunk: config.max_first_chunk(),
            retries: config.speech.retries,
            audio_window: window(config, StageName::Vocoder),
            frame: maker.unit,
        },
        fault: maker.faults.site(None, FaultPoint::Plan),
    };
    let preparer = Preparer::new(checkpoint, config)?;
    let voices = voices(checkpoint, &info, config, &maker.faults).await?;
    let admissions = Admissions::new(&config.limits, SAMPLE_RATE);
    admissions.settled_by(&ledger);
    let followers = stages.iter().map(|stage| Follower::new(stage)).collect();
    Ok(Shared {
        info,
        planner,
        stages,
        nodes,
        ticker: tokio::spawn(tick(Arc::downgrade(&ledger), admissions.clone())),
        ledger,
        admissions,
        planning: Semaphore::new(planning_at_once()),
        ordinary: Ordinary { first_chunk: chunk_ramp(config).into_iter().max().unwrap_or(1) },
        since: followers,
        metrics,
        leases: maker.leases.clone(),
        draining: AtomicBool::new(false),
        faults: maker.faults.clone(),
        recorder: maker.recorder.clone(),
        speech: config.speech.clone(),
        pronunciations: pronunciations(config)?.into(),
        max_segment_chars: config.speech.max_segment_chars.unwrap_or_else(|| segment_chars(checkpoint)),
        preparer,
        voices,
        aligner,
    })
}

fn pronunciations(config: &Config) -> Result<Pronunciations, StartError> {
    let mut list = Pronunciations::default();
    for (word, spoken) in &config.speech.pronunciations {
        let wrong = |message| StartError::Config(format!("speech.pronunciations.{word}: {message}"));
        list.insert(word, spoken).map_err(wrong)?;
    }
    Ok(list)
}

/// Large requests that are planned at the same time: the other cores are for the stages and for the server.
fn planning_at_once() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() / 2).max(1)
}

/// Characters of one piece of speech when the config does not say.
fn segment_chars(checkpoint: &Checkpoint) -> usize {
    match checkpoint.family() {
        // About 8 s: the longest that the embedded voice was trained to say in one go.
        Family::Omni(_) => 120,
        // What surely fits into the frames that the checkpoint is made for: no script takes five to a character.
        Family::Tts(_) => (checkpoint.generation().talker_max_tokens as usize / 5).clamp(400, 4000),
    }
}

fn family_planner(
    checkpoint: &Checkpoint,
    info: &ModelInfo,
    config: &Config,
    device: DeviceKind,
) -> Result<FamilyPlanner, StartError> {
    let default_voice = info.default_voice.clone();
    Ok(match checkpoint.family() {
        Family::Omni(omni) => FamilyPlanner::Omni(Box::new(OmniPlanner {
            prompter: checkpoint.prompter()?,
            config: Arc::clone(omni),
            default_voice: default_voice.unwrap_or_default(),
            speech_prompt: config.speech.prompt.clone(),
            eos: checkpoint.generation().thinker_eos.as_slice().into(),
            media: media_planner(checkpoint, config, device),
            spell_out: config.speech.spell_out,
        })),
        Family::Tts(tts) => FamilyPlanner::Tts(TtsPlanner {
            prompter: checkpoint.tts_prompter()?,
            config: Arc::clone(tts),
            default_voice,
        }),
    })
}

/// What plans need for sound and pictures.
fn media_planner(checkpoint: &Checkpoint, config: &Config, device: DeviceKind) -> MediaPlanner {
    let front_ends = match checkpoint.stages().contains(&StageName::Encoder) {
        false => Err("this checkpoint does not hear or see: it has no towers; send text".to_owned()),
        true => MediaConfig::load(checkpoint.files()).map_err(|error| error.to_string()),
    };
    let cache = MediaCache::new(config.media.max_cached_embeddings);
    // A large piece fits no frame between processes.
    let apart = config.stage(StageName::Encoder).placement.is_apart();
    let framed = apart || passes_frames(config, StageName::Encoder, StageName::Thinker);
    let grain = if device == DeviceKind::Cuda && !framed { Grain::Coarse } else { Grain::Fine };
    MediaPlanner::new(front_ends, cache, MediaMemory::new(config.media.max_embeddings as u64), grain)
}

/// Whether clients may bring voices.
fn clones(family: &Family) -> bool {
    matches!(family, Family::Tts(tts) if tts.variant == Variant::Base)
}

/// The voices of clients, if this checkpoint can speak with them.
async fn voices(
    checkpoint: &Checkpoint,
    info: &ModelInfo,
    config: &Config,
    faults: &FaultPlan,
) -> Result<Option<Arc<Voices>>, StartError> {
    if !clones(checkpoint.family()) {
        return Ok(None);
    }
    let folder = voices::folder(&config.voices.directory, &info.id);
    let (checkpoint, most) = (checkpoint.clone(), (config.voices.max_count, config.voices.max_bytes));
    let reference = &config.reference_audio;
    let limits = AudioLimits {
        max_bytes: reference.max_bytes,
        min_seconds: reference.min_length.as_secs_f64(),
        max_seconds: reference.max_length.as_secs_f64(),
    };
    let decoders = Decoders::new(reference)?;
    let faults = [FaultPoint::Voices, FaultPoint::Encoder].map(|point| faults.site(None, point));
    let opening =
        tokio::task::spawn_blocking(move || Voices::open(&checkpoint, folder, most, (decoders, limits), faults));
    let opened = opening.await.map_err(|error| StartError::Config(format!("voices: {error}")))?;
    Ok(Some(Arc::new(opened?)))
}

/// What a checkpoint is to clients under a config.
///
/// # Errors
/// [`StartError::Config`] for a default voice that the checkpoint does not have.
pub fn model_info(checkpoint: &Checkpoint, config: &Config) -> Result<ModelInfo, StartError> {
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
    let senses = media::served(checkpoint);
    Ok(ModelInfo {
        id: config.model.name.clone(),
        voices: talker.speaker_names().into_iter().filter(|_| named).map(str::to_owned).collect(),
        default_voice,
        sample_rate: SAMPLE_RATE,
        samples_per_frame: family.vocoder().samples_per_frame() as u32,
        fade_in: config.speech.fade_in,
        word_times: aligner::exists(checkpoint) || config.aligner.checkpoint.is_some(),
        hears: senses.hears,
        window: if senses.hears { window_of_sound(checkpoint)? } else { Duration::ZERO },
        sees: senses.sees,
        tools: matches!(family, Family::Omni(_)) && checkpoint.prompter()?.knows_tools(),
        tts,
    })
}

/// How much sound the audio tower of a checkpoint encodes at once.
fn window_of_sound(checkpoint: &Checkpoint) -> Result<Duration, StartError> {
    let Family::Omni(omni) = checkpoint.family() else { return Ok(Duration::ZERO) };
    let mel = MediaConfig::load(checkpoint.files())?.mel;
    let frames = omni.thinker.audio.as_ref().map_or(0, AudioTowerConfig::window_frames);
    Ok(Duration::from_secs_f64((frames * mel.hop) as f64 / f64::from(mel.rate.max(1))))
}

/// The transport from a stage to the next.
fn transport(transfer: &TransferConfig, from: StageName) -> TransportKind {
    let edge = match from {
        StageName::Encoder | StageName::Thinker => transfer.edges.embeddings,
        StageName::Talker | StageName::Vocoder => transfer.edges.codes,
    };
    edge.unwrap_or(transfer.transport)
}

/// Whether the edge between two stages carries frames. An edge of handles loses nothing.
fn passes_frames(config: &Config, from: StageName, to: StageName) -> bool {
    config.stage(to).placement.is_apart() || transport(&config.transfer, from) != TransportKind::Inproc
}

/// Which faults this engine can inject.
fn capabilities(family: &Family, stages: &[StageName], config: &Config, device: DeviceKind) -> FaultCapabilities {
    let framed = stages.windows(2).filter(|pair| passes_frames(config, pair[0], pair[1]));
    let apart = stages.iter().filter(|stage| config.stage(**stage).placement == Placement::Process);
    FaultCapabilities {
        stages: stages.to_vec(),
        apart: apart.copied().collect(),
        framed: framed.map(|pair| pair[0]).collect(),
        gpu: device == DeviceKind::Cuda,
        voices: clones(family),
    }
}

/// Makes the edges between stages.
struct Edges<'a> {
    config: &'a Config,
    /// Gets the reports of what could not be sent.
    told: Arc<OnceLock<Weak<Ledger>>>,
}

impl Edges<'_> {
    /// Both ends of the edge into a stage; the sender alone where the stage is another process.
    fn towards(
        &self,
        stage: &Arc<StageHandle>,
        before: Option<StageName>,
    ) -> Result<(Sender, Option<Receiver>), StartError> {
        if self.config.stage(stage.name()).placement.is_apart() {
            return Ok((Arc::new(IntoStage(Arc::clone(stage))), None));
        }
        let (sender, receiver) = match before {
            Some(from) if passes_frames(self.config, from, stage.name()) => self.frames(from, stage.place())?,
            // In front of the first stage, as many sequences of text as that may be ahead.
            from => erase(inproc(edge_capacity(self.config, from.unwrap_or(stage.name())))),
        };
        Ok((sender, Some(receiver)))
    }

    /// An edge between two stages of this process that passes frames. A payload that fits no frame fails the receiver's
    /// sequence.
    fn frames(&self, from: StageName, to: Replica) -> Result<(Sender, Receiver), StartError> {
        let told = Arc::clone(&self.told);
        let lost: LostSink = Arc::new(move |request, reason| {
            if let Some(ledger) = told.get().and_then(Weak::upgrade) {
                ledger.sequence_failed(to, request, reason);
            }
        });
        let options =
            EdgeOptions { capacity: edge_capacity(self.config, from), zero_copy: self.config.transfer.zero_copy, lost };
        if transport(&self.config.transfer, from) == TransportKind::Wire {
            return Ok(erase(edge::over_queue(options)));
        }
        let ring = edge::over_ring(self.config.transfer.shm_bytes, options);
        let ring =
            ring.map_err(|error| StartError::Config(format!("transfer.shm_bytes: no shared memory: {error}")))?;
        Ok(erase(ring))
    }
}

/// Whether the next stage can use the embeddings that a stage leaves on a device: same device, same process, and a
/// transport that passes handles.
pub(super) fn handles(from: StageName, config: &Config, device: DeviceKind) -> bool {
    let here = |stage: StageName| !config.stage(stage).placement.is_apart();
    let next = match from {
        StageName::Encoder => StageName::Thinker,
        StageName::Thinker => StageName::Talker,
        StageName::Talker | StageName::Vocoder => return false,
    };
    device == DeviceKind::Cuda
        && config.transfer.device_handover
        && here(from)
        && here(next)
        && transport(&config.transfer, from) == TransportKind::Inproc
}

/// Where the output of a stage goes: through the ledger, to the next stage or to the client.
fn edges_from(stage: StageName, ledger: &Arc<Ledger>) -> Vec<(Kind, Sender)> {
    let tap = |edge: Edge| (edge.kind(), Arc::new(LedgerSink(Arc::clone(ledger))) as Sender);
    Edge::from_stage(stage).map(tap).collect()
}

fn erase(ends: (impl PayloadSender + 'static, impl PayloadReceiver + 'static)) -> (Sender, Receiver) {
    (Arc::new(ends.0), Arc::new(ends.1))
}

async fn tick(ledger: Weak<Ledger>, admissions: Admissions) {
    let mut ticks = tokio::time::interval(TICK);
    loop {
        ticks.tick().await;
        admissions.tick();
        match ledger.upgrade() {
            Some(ledger) => ledger.tick(),
            None => return,
        }
    }
}
