//! The engine: assembles the stages of a config, keeps the request ledger, and gives server and commands one handle. It
//! knows no HTTP and no command line.
//!
//! | file | what |
//! | --- | --- |
//! | `api`, `refusal`, `health` | requests, events, errors, states: all that server and commands know of the engine |
//! | `service` | the engine as they call it |
//! | `cluster` | stages on other hosts: the gateway's side and the node's |
//! | `assemble`, `stages`, `load`, `device` | from a checkpoint and a config to supervised stages with edges between them |
//! | `models` | several models in one process, loaded and unloaded |
//! | `setup` | what a stage is made of, in a thread or in a process |
//! | `process` | stages in processes of their own: the child's side |
//! | `decode` | files that clients send, decoded in processes with limits |
//! | `ledger` | every accepted request, its client and its journal |
//! | `journal` | what the stages of a request have sent each other, to readmit the sequence of any of them |
//! | `media` | what chat turns carry besides text: from files to what a stage encodes, within limits |
//! | `caught` | panics in what is done for one request |
//! | `client` | the client's end of the last edges: text and samples as events |
//! | `placement` | what `placement = "auto"` means on this machine |
//! | `plan` | from a request to the sequences that it needs in each stage |
//! | `encoded` | embeddings of media that are known, and the memory that they take |
//! | `admission` | which requests are accepted |
//! | `threads` | pools of threads for work that no listener waits for |
//! | `stream` | the response to a request, as its client reads it |
//! | `status_history` | since when each stage is in its state, and how long its last recovery took |
//! | [`simulation`] | all of it on one thread with a simulated clock, and everything that can break |
//! | `speak` | speech requests: a text, sentence after sentence |
//! | `script`, `speakers` | a text with markup and pronunciations: pieces and pauses, and who speaks each |
//! | `incremental` | the same word by word, for a text that is still being written |
//! | `relay` | the requests of one text as one stream |
//! | `words`, `aligning` | when each word sounds, for requests that ask; the aligner of the config |
//! | `voice` | voices as clients name, give and see them |
//! | `voices` | voices that clients uploaded: encoded once, kept on disk |

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod admission;
mod aligning;
pub mod api;
mod assemble;
mod caught;
mod client;
pub mod cluster;
pub mod decode;
pub mod device;
mod encoded;
mod health;
mod incremental;
mod journal;
mod ledger;
mod load;
mod media;
pub mod models;
pub mod placement;
mod plan;
mod posted_lock;
pub mod process;
mod recent;
mod refusal;
mod relay;
mod script;
mod service;
mod setup;
pub mod simulation;
mod speak;
mod speakers;
mod stages;
mod status_history;
mod stream;
mod threads;
pub mod voice;
mod voices;
mod words;

pub use api::{
    AdmissionStatus, AlignerHealth, AudioChunk, ChatMessage, Content, Detail, EngineHealth, Event, GenerateRequest,
    LaterReason, Listener, MediaKind, MediaSource, MediaTokens, ModelInfo, ModelState, NO_ALIGNER, Output, Part,
    RequestError, RequestOptions, ResponseStream, SamplingOverrides, Service, Slo, SpeechParams, SpeechRequest,
    StageHealth, StageState, SubmitError, Tenant, TenantId, TextSource, ToolCall, TtsInfo, Usage, WordTime,
};
pub use assemble::model_info;
pub use omni_core::ids::FinishReason;
pub use omni_core::text::Pronunciations;
pub use omni_core::text::markup::Markup;
pub use voice::{
    NewVoice, Recording, TaskType, UploadInfo, VoiceChoice, VoiceError, VoiceInfo, VoiceNames, VoiceSource,
};

use admission::{Admissions, Entrant};
use futures::future::BoxFuture;
use ledger::Ledger;
use media::{Prepared, Preparer};
use omni_config::{Config, SpeechConfig};
use omni_core::ids::StageName;
use omni_fault::FaultPlan;
use omni_media::Medium;
use omni_model::LoadError;
use omni_model::checkpoint::{Checkpoint, Senses};
use omni_stage::StageStatus;
use omni_stage::process::Nodes;
use omni_telemetry::trace::Recorder;
use omni_telemetry::{self as telemetry, RequestKind, RequestMetrics};
use omni_transfer::lease::LeaseBook;
use plan::Planner;
use script::Words;
use service::planned;
use stages::Stages;
use status_history::Follower;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use stream::Expired;
use tokio::sync::Semaphore;
use voices::Voices;
use words::WordFinder;

/// How long a request waits for a stage that starts for the first time before it is refused.
const READY_PATIENCE: Duration = Duration::from_secs(2);

/// How long a scrape waits for the process of a stage: one that does not answer is left out.
const METRICS_PATIENCE: Duration = Duration::from_millis(500);

/// A running pipeline. Clones are handles to the same one; when the last is dropped, open requests are ended and the
/// stages stop. [`Service::drain`] lets running requests finish first.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

/// What an engine may share with the one that is loaded after it.
#[derive(Clone)]
struct Kept {
    /// What traces listen to.
    recorder: Recorder,
    faults: FaultPlan,
    /// The number of the next request. Engines that share the recorder share it, so that no two requests have the same
    /// number. One by one, so that a number always fits into the notes of what actors have in hand.
    next_request: Arc<AtomicU64>,
}

impl Kept {
    /// For an engine of this config alone.
    fn new(config: &Config) -> Kept {
        let faults = FaultPlan::with(config.drill.seed, config.drill.enabled, &config.faults);
        Kept { recorder: Recorder::default(), faults, next_request: Arc::new(AtomicU64::new(1)) }
    }
}

struct Shared {
    info: ModelInfo,
    planner: Planner,
    stages: Stages,
    /// Where stages on nodes come from.
    nodes: Option<Arc<dyn Nodes>>,
    ledger: Arc<Ledger>,
    admissions: Admissions,
    /// One per stage.
    since: Vec<Follower>,
    metrics: RequestMetrics,
    leases: LeaseBook,
    draining: AtomicBool,
    faults: FaultPlan,
    recorder: Recorder,
    speech: SpeechConfig,
    pronunciations: Arc<Pronunciations>,
    max_segment_chars: usize,
    /// Turns of large requests to be planned.
    planning: Semaphore,
    ordinary: Ordinary,
    /// Of a checkpoint that hears and sees.
    preparer: Option<Preparer>,
    /// Of a checkpoint that clones voices.
    voices: Option<Arc<Voices>>,
    /// Of a checkpoint that has one.
    /// For requests that ask for the times of words.
    aligner: Option<WordFinder>,
    ticker: tokio::task::JoinHandle<()>,
}

/// Characters of a request that is planned at once, in a millisecond or two.
const PLANNED_AT_ONCE: usize = 4096;
/// Characters in front of the first sound of an ordinary request. More take longer, which says nothing of the server.
const ORDINARY_CHARS: usize = 8192;
/// The same of what each piece of a text begins with.
const ORDINARY_INSTRUCTIONS: usize = 512;

/// What an ordinary request asks for: the times of others do not tell how fast this server is.
struct Ordinary {
    /// Frames of the largest chunk that the config makes.
    first_chunk: u32,
}

impl Ordinary {
    /// Whether a first sound comes as soon as this server can make it.
    fn speech(&self, request: &SpeechRequest, max_segment_chars: usize) -> bool {
        let SpeechRequest { text, params } = request;
        // A client may still be writing.
        let TextSource::Whole(text) = text else { return false };
        let one_piece = params.ignore_eos && text.chars().count() > max_segment_chars;
        let instructions = params.instructions.as_ref().map_or(0, |text| text.chars().count());
        let first_chunk = params.initial_chunk_frames.map_or(0, |frames| frames.0);
        // A recording has to be encoded first.
        let clones = matches!(params.voice, VoiceChoice::Clone(_));
        // It may begin with a pause, and its voices may have to be read.
        let marked = params.markup.is_some();
        !one_piece && !clones && !marked && instructions <= ORDINARY_INSTRUCTIONS && first_chunk <= self.first_chunk
    }
}

impl Shared {
    /// A permit for a request, or why not. `steady` and `chat` as in [`Asked`](omni_core::admission::Asked).
    fn enter(
        &self,
        options: &RequestOptions,
        (steady, chat, sounds): (bool, bool, bool),
    ) -> Result<admission::Permit, SubmitError> {
        let restarts = self.stages.iter().map(|stage| stage.status().borrow().restarts).sum();
        self.admissions.enter(Entrant { options, steady, chat, sounds, restarts })
    }

    /// How words are said: as a request wants, then as the config has it.
    fn words(&self, own: Option<&Pronunciations>) -> Words {
        let pronunciations = match own {
            None => Arc::clone(&self.pronunciations),
            Some(own) => Arc::new(own.clone().over(&self.pronunciations)),
        };
        Words { pronunciations, max_chars: self.planner.common.limits().max_input_chars }
    }

    /// Plans a request of so many characters: a large one away from the threads on which everything else waits, and few
    /// at a time.
    async fn plan<T: Send + 'static>(
        self: &Arc<Self>,
        chars: usize,
        work: impl FnOnce(&Planner) -> Result<T, SubmitError> + Send + 'static,
    ) -> Result<T, SubmitError> {
        if chars <= PLANNED_AT_ONCE {
            return work(&self.planner);
        }
        let Ok(_turn) = self.planning.acquire().await else { return Err(SubmitError::ShuttingDown) };
        let shared = Arc::clone(self);
        let planned = tokio::task::spawn_blocking(move || work(&shared.planner)).await;
        planned.unwrap_or_else(|error| Err(SubmitError::NotReady(format!("the request was not planned: {error}"))))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.ticker.abort();
        self.ledger.shut_down();
        self.stages.iter().rev().for_each(|stage| stage.halt());
    }
}

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The checkpoint cannot be served.
    #[error(transparent)]
    Checkpoint(#[from] LoadError),
    /// The config does not fit the checkpoint.
    #[error("{0}")]
    Config(String),
    /// A stage did not come up.
    #[error("the {0} stage does not run: {1}")]
    Stage(StageName, String),
    /// Something that another start may not meet, such as an address in use.
    #[error("{0}")]
    Failed(String),
}

impl Engine {
    /// Starts every stage and returns before any of them is up: [`Engine::settled`] tells when. Must be called on a
    /// tokio runtime.
    ///
    /// # Errors
    /// [`StartError`] for what can be seen without reading the weights.
    pub fn launch<'a>(checkpoint: &'a Checkpoint, config: &'a Config) -> BoxFuture<'a, Result<Engine, StartError>> {
        Box::pin(async move {
            let kept = Kept::new(config);
            Ok(Engine { shared: Arc::new(assemble::assemble(checkpoint, config, kept).await?) })
        })
    }

    /// Resolves when every stage can serve.
    ///
    /// # Errors
    /// [`StartError::Stage`] with the reason when one of them cannot.
    pub fn settled(&self) -> BoxFuture<'_, Result<(), StartError>> {
        Box::pin(async move {
            self.all_stages(|status| matches!(status.state, StageState::Running | StageState::Failed)).await?;
            telemetry::set_ready(true);
            Ok(())
        })
    }

    /// Waits until every stage is as wanted, on nodes one replica of it; an error if one has failed for good.
    async fn all_stages(&self, wanted: impl Fn(&StageStatus) -> bool) -> Result<(), StartError> {
        for on_nodes in self.shared.stages.each().filter(|replicas| replicas[0].is_on_nodes()) {
            let any = on_nodes.iter().map(|replica| {
                let (mut status, wanted) = (replica.status(), &wanted);
                Box::pin(async move { status.wait_for(wanted).await.is_ok() })
            });
            futures::future::select_all(any).await;
        }
        for replica in self.shared.stages.iter().filter(|replica| !replica.is_on_nodes()) {
            let mut status = replica.status();
            let settled = status.wait_for(&wanted).await;
            if let Ok(status) = settled
                && status.state == StageState::Failed
                && self.shared.stages.is_given_up(replica.name())
            {
                let reason = status.last_reason.clone().unwrap_or_default();
                return Err(StartError::Stage(replica.name(), reason));
            }
        }
        Ok(())
    }

    /// Resolves when a stage is given up, all replicas of it: which, and why.
    pub async fn given_up(&self) -> (StageName, String) {
        let each = self.shared.stages.each().map(|replicas| {
            let name = replicas[0].name();
            let failures = replicas.iter().map(|replica| {
                let mut status = replica.status();
                async move {
                    let failed = status.wait_for(|status| status.state == StageState::Failed).await;
                    match failed.ok().map(|status| status.last_reason.clone().unwrap_or_default()) {
                        Some(reason) => reason,
                        // It was stopped.
                        None => std::future::pending().await,
                    }
                }
            });
            let all = futures::future::join_all(failures);
            Box::pin(async move { (name, all.await.pop().unwrap_or_default()) })
        });
        futures::future::select_all(each).await.0
    }

    /// [`Engine::launch`] and [`Engine::settled`].
    ///
    /// # Errors
    /// Those of both.
    pub fn start<'a>(checkpoint: &'a Checkpoint, config: &'a Config) -> BoxFuture<'a, Result<Engine, StartError>> {
        Box::pin(async move {
            let engine = Engine::launch(checkpoint, config).await?;
            engine.settled().await?;
            Ok(engine)
        })
    }

    /// [`Engine::start`], with what an earlier engine of the same config had.
    fn start_keeping<'a>(
        checkpoint: &'a Checkpoint,
        config: &'a Config,
        kept: Kept,
    ) -> BoxFuture<'a, Result<Engine, StartError>> {
        Box::pin(async move {
            let engine = Engine { shared: Arc::new(assemble::assemble(checkpoint, config, kept).await?) };
            engine.settled().await?;
            Ok(engine)
        })
    }

    /// Refuses new requests, lets running ones finish for at most `grace`, and stops every stage.
    async fn stop(&self, grace: Duration) {
        self.shared.draining.store(true, Ordering::Relaxed);
        // Requests that are open when the grace is over end, and so do those that are opened later.
        let _ = tokio::time::timeout(grace, self.shared.admissions.all_left()).await;
        self.shared.ledger.shut_down();
        // Downstream first: a stage whose source is gone would take that for a broken edge.
        for stage in self.shared.stages.iter().rev() {
            stage.stop().await;
        }
        self.shared.ticker.abort();
    }

    /// What stages in processes of their own expose.
    async fn stage_metrics(&self) -> Vec<(telemetry::Process, String)> {
        let asked = self.shared.stages.iter().map(|stage| async {
            let told = tokio::time::timeout(METRICS_PATIENCE, stage.process_metrics()).await;
            Some(((stage.name(), stage.replica()), told.ok()??))
        });
        futures::future::join_all(asked).await.into_iter().flatten().collect()
    }

    /// The series of nodes, where stages are on some.
    fn node_metrics(&self) -> Option<String> {
        let nodes = self.shared.nodes.as_ref()?.list();
        let replicas: Vec<_> = self.shared.stages.iter().filter_map(|stage| stage.node_metrics()).collect();
        let trips: Vec<_> = nodes.iter().map(|node| (node.name.as_str(), node.round_trip)).collect();
        Some(telemetry::render_nodes(&replicas, &trips))
    }

    /// The faults to inject. The plan takes new rules only if the config says `drill.enabled`.
    pub fn faults(&self) -> &FaultPlan {
        &self.shared.faults
    }

    /// How long ago a supervisor took a message, of that stage for which it is longest.
    pub fn unsupervised(&self) -> Duration {
        self.shared.stages.iter().map(|stage| stage.unsupervised()).max().unwrap_or_default()
    }

    /// What is held at this moment; all zero when the engine is idle.
    pub fn load(&self) -> EngineLoad {
        let stages: Vec<_> = self.shared.stages.iter().map(|stage| stage.load()).collect();
        EngineLoad {
            requests: self.shared.ledger.open(),
            leases: self.shared.leases.live() + stages.iter().map(|load| load.leases).sum::<u64>(),
            sequences: stages.iter().map(|load| load.sequences + load.slots + load.inputs).sum(),
            queued: stages.iter().map(|load| load.queued).sum(),
        }
    }

    async fn ready(&self) -> Result<(), SubmitError> {
        if self.shared.draining.load(Ordering::Relaxed) {
            return Err(SubmitError::ShuttingDown);
        }
        // A stage that restarts is no reason to wait here: the ledger admits the request when the stage is up.
        let came_up = |status: &StageStatus| status.state != StageState::Starting;
        match tokio::time::timeout(READY_PATIENCE, self.all_stages(came_up)).await {
            Ok(outcome) => outcome.map_err(|error| SubmitError::NotReady(error.to_string())),
            Err(_) => Err(SubmitError::NotReady("a stage is starting".into())),
        }
    }

    /// [`Service::submit`] of a chat turn whose media the caller has decoded, in the order of their places.
    ///
    /// # Errors
    /// Those of [`Service::submit`].
    pub async fn submit_decoded(
        &self,
        request: GenerateRequest,
        media: Vec<Arc<Medium>>,
    ) -> Result<ResponseStream, SubmitError> {
        planned(self.answer(request, Given::Decoded(media))).await
    }

    async fn generate(&self, mut request: GenerateRequest) -> Result<ResponseStream, SubmitError> {
        let files = std::mem::take(&mut request.media);
        self.answer(request, if files.is_empty() { Given::Text } else { Given::Files(files) }).await
    }

    async fn answer(&self, request: GenerateRequest, given: Given) -> Result<ResponseStream, SubmitError> {
        self.ready().await?;
        let (options, sounds) = (request.options, request.output == Output::TextAndAudio);
        let (aside, owner) = (options.slo == Slo::Background, plan::owner(options.tenant.id));
        let chars = request.messages.iter().map(ChatMessage::chars).sum();
        self.shared.planner.check_messages(request.messages.len(), chars)?;
        // Only accepted requests are planned: a template and a tokenizer go over all of the conversation. What is
        // decoded and encoded first takes longer.
        let text_alone = matches!(given, Given::Text);
        let place = self.shared.enter(&options, (chars <= ORDINARY_CHARS && text_alone, true, sounds))?;
        let Prepared { media, tokens, memory } = match (given, &self.shared.preparer) {
            (Given::Text, _) => Prepared::default(),
            (Given::Decoded(media), _) => Prepared { media, ..Prepared::default() },
            (Given::Files(files), Some(preparer)) if aside => preparer.prepare_aside(files, owner).await?,
            (Given::Files(files), Some(preparer)) => preparer.prepare(files, owner).await?,
            (Given::Files(files), None) => {
                media::check_senses(Senses::default(), &files)?;
                Prepared::default()
            }
        };
        // Media are hashed.
        let work = if text_alone { chars } else { usize::MAX };
        let mut plan = self.shared.plan(work, move |planner| planner.chat(&request, &media)).await?;
        if aside {
            plan.yields();
        }
        let kind = if aside { RequestKind::Preparation } else { RequestKind::Chat };
        let watch = place.watch();
        let expired = Expired::default();
        let stream = self.shared.ledger.open_request(plan, kind, place, Arc::clone(&expired));
        Ok(stream.watched(watch).lasting(options.life, expired).counting(tokens).keeping(memory))
    }
}

/// What a chat turn carries.
enum Given {
    Text,
    Files(Vec<MediaSource>),
    Decoded(Vec<Arc<Medium>>),
}

/// See [`Engine::load`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineLoad {
    /// Entries of the ledger.
    pub requests: usize,
    /// Outputs of steps that are still in use.
    pub leases: u64,
    /// Sequences in schedulers, models and connectors.
    pub sequences: usize,
    /// Messages in bounded queues.
    pub queued: usize,
}
