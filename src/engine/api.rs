//! The API of the engine: requests, events, errors, health. Server and commands know nothing else of it.

pub use super::health::{AlignerHealth, EngineHealth, StageHealth};
pub use super::refusal::{LaterReason, RequestError, SubmitError};
pub use super::stream::{Listener, ResponseStream};
use super::voice::{NewVoice, TaskType, VoiceChoice, VoiceError, VoiceInfo, VoiceNames};
use futures::future::BoxFuture;
use omni_config::LimitsConfig;
pub use omni_core::admission::{AdmissionStatus, Slo, Tenant, TenantId};
use omni_core::ids::{FinishReason, Frames, RequestId};
use omni_core::nodes::{DrainError, NodeStatus};
use omni_core::text::Pronunciations;
use omni_core::text::markup::Markup;
use omni_fault::FaultPlan;
pub use omni_model::media::MediaKind;
pub use omni_model::prompt::{Content, Part, ToolCall};
pub use omni_stage::StageState;
use omni_telemetry::trace::Recorder;
use serde::Serialize;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The model: for `/v1/models`, `/v1/audio/voices` and validation messages.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// The name clients may give as `model`.
    pub id: String,
    /// Speakers of the checkpoint, lower case, in order of their codec ids. [`Service::voices`] lists uploaded voices
    /// too.
    pub voices: Vec<String>,
    /// Used when a request names none; `None` where a voice has to be described or given.
    pub default_voice: Option<String>,
    /// Samples per second of every audio chunk.
    pub sample_rate: u32,
    /// Samples of one codec frame.
    pub samples_per_frame: u32,
    /// Over which the beginning of an answer fades in, on its way to a listener: the samples of [`AudioChunk`] do not.
    pub fade_in: Duration,
    /// Whether there is an aligner, beside the weights or in the config, so that a request may ask for the times of words.
    pub word_times: bool,
    /// Whether it hears sound in a chat turn.
    pub hears: bool,
    /// How much sound it encodes at once: a window. Zero where it hears none.
    pub window: Duration,
    /// Whether it sees pictures and videos in a chat turn.
    pub sees: bool,
    /// Whether its chat template has a place for tools.
    pub tools: bool,
    /// Present for Qwen3-TTS.
    pub tts: Option<TtsInfo>,
}

/// What a Qwen3-TTS checkpoint can do.
#[derive(Clone, Debug)]
pub struct TtsInfo {
    /// What it was trained for.
    pub task: TaskType,
    /// Languages that a request may name, lower case; besides them, `auto`.
    pub languages: Vec<String>,
    /// Whether it follows instructions.
    pub instructions: bool,
}

/// One chat turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Text, or texts and the places of media.
    pub content: Content,
    /// Functions that the assistant calls behind that.
    pub calls: Vec<ToolCall>,
}

impl ChatMessage {
    /// A turn of text.
    pub fn text(role: impl Into<String>, text: impl Into<String>) -> ChatMessage {
        ChatMessage { role: role.into(), content: Content::Text(text.into()), calls: Vec::new() }
    }

    /// Characters of all that a client wrote in it.
    pub fn chars(&self) -> usize {
        let calls = self.calls.iter().flat_map(|call| [call.name.as_str(), call.arguments.as_str()]);
        self.role.chars().count() + self.content.texts().chain(calls).map(|text| text.chars().count()).sum::<usize>()
    }
}

/// A sound, picture or video of a chat turn, as it came.
#[derive(Clone)]
pub enum MediaSource {
    /// A file of sound.
    Audio(Arc<[u8]>),
    /// A wav file that this process has written itself: mono, 16 bits, a head of 44 bytes. So no decoder of its own has
    /// to read it.
    Speech(Arc<[u8]>),
    /// A file of a picture; the first one of an animation.
    Image {
        /// The file.
        file: Arc<[u8]>,
        /// How many of its pixels are seen.
        detail: Detail,
    },
    /// A file of a video or an animation.
    Video {
        /// The file.
        file: Arc<[u8]>,
        /// Whether its sound is heard with its frames.
        hear: bool,
        /// Frames of a second that are seen; `None`: 2.
        frames_per_second: Option<f64>,
    },
    /// A video as a list of pictures.
    Frames {
        /// A file each, in the order of time.
        pictures: Vec<Arc<[u8]>>,
        /// How many of them are a second.
        frames_per_second: f64,
    },
}

/// How many pixels of a picture are seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// As many as the checkpoint takes.
    #[default]
    Auto,
    /// At most 512 x 512.
    Low,
    /// As many as the checkpoint takes.
    High,
}

impl MediaSource {
    /// What its place in a message is.
    pub fn kind(&self) -> MediaKind {
        match self {
            MediaSource::Audio(_) | MediaSource::Speech(_) => MediaKind::Audio,
            MediaSource::Image { .. } => MediaKind::Image,
            MediaSource::Video { .. } | MediaSource::Frames { .. } => MediaKind::Video,
        }
    }

    /// Bytes of its files.
    pub fn bytes(&self) -> usize {
        match self {
            MediaSource::Audio(file)
            | MediaSource::Speech(file)
            | MediaSource::Image { file, .. }
            | MediaSource::Video { file, .. } => file.len(),
            MediaSource::Frames { pictures, .. } => pictures.iter().map(|picture| picture.len()).sum(),
        }
    }
}

impl std::fmt::Debug for MediaSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the bytes: they are long, and private.
        write!(f, "{} of {} bytes", self.kind(), self.bytes())
    }
}

/// Which kinds of output a chat request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Text only: the speech stages are never involved.
    Text,
    /// Text and speech.
    TextAndAudio,
}

/// Sampling fields a client may set; what it leaves out comes from generation_config.json and the spec's defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingOverrides {
    /// 0 is greedy.
    pub temperature: Option<f32>,
    /// 0 keeps all.
    pub top_k: Option<u32>,
    /// 1.0 keeps all.
    pub top_p: Option<f32>,
    /// 0 keeps all.
    pub min_p: Option<f32>,
    /// 1.0 is off.
    pub repetition_penalty: Option<f32>,
    /// 0 is off.
    pub frequency_penalty: Option<f32>,
    /// 0 is off.
    pub presence_penalty: Option<f32>,
}

/// A chat turn to answer.
#[derive(Clone, Debug)]
pub struct GenerateRequest {
    /// The conversation so far, the last message being the user's or a tool's.
    pub messages: Vec<ChatMessage>,
    /// Descriptions of the functions that the model may call: JSON, written in the order that it has. Refused where
    /// [`ModelInfo::tools`] is false.
    pub tools: Vec<String>,
    /// Whether the answer ends with the token that begins a call: then nothing of the call is spoken, and the same
    /// request for text alone, with the same seed, goes on behind it.
    pub until_call: bool,
    /// What the parts of the messages that are media stand for, in their order.
    pub media: Vec<MediaSource>,
    /// What to produce.
    pub output: Output,
    /// Speaker, any case; `None` is the default.
    pub voice: Option<String>,
    /// Sampling of the text.
    pub text: SamplingOverrides,
    /// Sampling of the speech (code 0; the predictor follows its own rule).
    pub speech: SamplingOverrides,
    /// Limit on answer tokens; `None` is the model's.
    pub max_text_tokens: Option<u32>,
    /// Limit on codec frames; `None` is the model's.
    pub max_frames: Option<Frames>,
    /// Produce exactly `max_text_tokens` tokens, or without them as many as the model may, and frames likewise, whatever
    /// the model says: for measuring.
    pub ignore_eos: bool,
    /// Same seed, same answer and same samples. `None` draws one; [`Event::Started`] tells it.
    pub seed: Option<u64>,
    /// The tenant, and when the response has to come.
    pub options: RequestOptions,
}

/// The tenant of a request, and when its response has to come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestOptions {
    /// The tenant whose fair share of the places the request takes.
    pub tenant: Tenant,
    /// When its speech has to come.
    pub slo: Slo,
    /// How long the request may take, whatever has come by then; `None`: the config's `limits.request_timeout`, and
    /// twice what its client hears.
    pub life: Option<Duration>,
    /// Whether the tenant was charged for it before: it was refused, not for [`LaterReason::OwnRate`], and asks again.
    pub charged: bool,
}

/// Text to speak verbatim.
#[derive(Debug)]
pub struct SpeechRequest {
    /// What to say, whole or arriving piece by piece.
    pub text: TextSource,
    /// How to say it.
    pub params: SpeechParams,
}

/// How to speak a text.
#[derive(Clone, Debug, Default)]
pub struct SpeechParams {
    /// Who speaks.
    pub voice: VoiceChoice,
    /// The task that the client expects of the checkpoint; refused when the checkpoint has another.
    pub task: Option<TaskType>,
    /// A language by name, any case, or `auto`. Qwen3-TTS only; Qwen3-Omni infers it from the text.
    pub language: Option<String>,
    /// How to speak, or a description of the voice, in words. Checkpoints that follow none refuse it.
    pub instructions: Option<String>,
    /// Whether the talker gets the whole text in its prompt; `None` is what the reference does for the task.
    pub non_streaming: Option<bool>,
    /// Sampling of the speech.
    pub speech: SamplingOverrides,
    /// Limit on codec frames per sentence; `None` is the model's.
    pub max_frames: Option<Frames>,
    /// Produce exactly `max_frames` frames, or without them as many as the model may, whatever the model says: for
    /// measuring. The text is then not split.
    pub ignore_eos: bool,
    /// Size of the first audio chunk; `None` is the config's ramp.
    pub initial_chunk_frames: Option<Frames>,
    /// Whether to tell when each word sounds: [`Event::Word`]. Refused where [`ModelInfo::word_times`] is false.
    pub words: bool,
    /// As for chat.
    pub seed: Option<u64>,
    /// What of the text is markup; `None` speaks it as it is.
    pub markup: Option<Markup>,
    /// Whom markup means by a voice.
    pub voice_names: VoiceNames,
    /// How words are said, before the config's list.
    pub pronunciations: Option<Arc<Pronunciations>>,
    /// Whether nothing is sent before all is there: speech that went astray can then be made anew.
    pub whole: bool,
    /// As for chat.
    pub options: RequestOptions,
}

/// Where the text of a speech request comes from.
#[derive(Debug)]
pub enum TextSource {
    /// All of it.
    Whole(String),
    /// Pieces in order; a closed channel is the end of the text. Speech starts before that.
    Streamed(flume::Receiver<String>),
}

/// One thing that happened to a request, in order.
#[derive(Clone, Debug)]
pub enum Event {
    /// Always first.
    Started {
        /// The request's name in logs, metrics and traces.
        id: RequestId,
        /// The seed in use.
        seed: u64,
    },
    /// More of the answer's text (chat only): what the next token completes. Concatenated deltas are the answer.
    Text(String),
    /// More of the speech.
    Audio(AudioChunk),
    /// A word of the text, in their order, for requests that asked for words. It comes before or soon after its sound.
    Word(WordTime),
    /// The last event of a request that went well.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// What it used.
        usage: Usage,
    },
    /// The last event of a request that did not.
    Failed(RequestError),
}

/// A run of consecutive samples of one request.
#[derive(Clone, Debug)]
pub struct AudioChunk {
    /// Mono, in [-1, 1], at [`ModelInfo::sample_rate`].
    pub samples: Arc<[f32]>,
    /// Codec frames that it was made of.
    pub frames: Frames,
}

/// Why a request for the times of words is refused.
pub const NO_ALIGNER: &str = "this checkpoint has no aligner, so the times of its words are not known: the config's \
    aligner.checkpoint can name a folder with Qwen3-ForcedAligner-0.6B for it; or leave the field out";

/// When a word of the client's text sounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WordTime {
    /// The word as it was written, with its punctuation: what is between white space.
    pub word: String,
    /// Where it stands in the text: characters (Unicode scalar values) from its beginning.
    pub text: Range<u64>,
    /// Its first sample, counted as those of all [`AudioChunk`]s.
    pub start: u64,
    /// The first sample behind it.
    pub end: u64,
}

/// Tokens of a prompt that stand for media.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MediaTokens {
    /// Sound, that of videos included.
    pub audio: u32,
    /// Pictures.
    pub image: u32,
    /// Frames of videos.
    pub video: u32,
}

/// What a request used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Those of them that stand for sound, pictures and videos.
    pub media: MediaTokens,
    /// Tokens of the prompt whose positions were kept and not computed: by the attempt of the thinker that made the first
    /// token of the answer.
    pub cached_tokens: u32,
    /// Tokens of the answer, sampled or forced.
    pub text_tokens: u32,
    /// Codec frames made.
    pub frames: Frames,
}

/// Where one of several models is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelState {
    /// Its first request loads it.
    Unloaded,
    /// It is being loaded, or waits for memory.
    Loading,
    /// It serves.
    Loaded,
    /// It is being unloaded.
    Unloading,
    /// It did not load, or gave up, for this reason. It is tried again after a pause.
    Failed(String),
}

/// The engine as server and commands see it. Implemented by [`Engine`](crate); a trait so that the HTTP surface
/// can be tested with scripted answers where a real model cannot be made to misbehave.
pub trait Service: Send + Sync {
    /// What is served.
    fn info(&self) -> &ModelInfo;

    /// Answers a chat turn. Resolves as soon as the request is accepted or refused.
    fn submit(&self, request: GenerateRequest) -> BoxFuture<'_, Result<ResponseStream, SubmitError>>;

    /// Speaks text. Resolves as soon as the request is accepted or refused; a voice given as audio is encoded before.
    fn speak(&self, request: SpeechRequest) -> BoxFuture<'_, Result<ResponseStream, SubmitError>>;

    /// Every voice that a request may name: the checkpoint's speakers, then uploaded ones by name.
    fn voices(&self) -> Vec<Arc<VoiceInfo>>;

    /// Checks, encodes and keeps a voice. When this resolves to `Ok`, the voice survives the process.
    fn add_voice(&self, voice: NewVoice) -> BoxFuture<'_, Result<VoiceInfo, VoiceError>>;

    /// Forgets an uploaded voice. Requests that speak with it go on.
    fn remove_voice<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), VoiceError>>;

    /// A snapshot; never waits for a stage.
    fn health(&self) -> EngineHealth;

    /// All metrics in Prometheus' text format, those of stages in processes of their own included.
    fn metrics(&self) -> BoxFuture<'_, String> {
        Box::pin(std::future::ready(omni_telemetry::render()))
    }

    /// What a trace of this service listens to. A service that records nothing has a recorder that stays empty.
    fn recorder(&self) -> Recorder {
        Recorder::default()
    }

    /// The faults that can be planned while it runs; `None` where that was not asked for.
    fn faults(&self) -> Option<&FaultPlan> {
        None
    }

    /// Where the model is; `None` for one that is always there.
    fn state(&self) -> Option<ModelState> {
        None
    }

    /// Resolves when [`Service::info`] tells what the checkpoint can do; the model need not be loaded for that.
    fn prepare(&self) -> BoxFuture<'_, Result<(), SubmitError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Takes over those limits of another config that may change while it runs ([`LimitsConfig::taking_over`]), for the
    /// requests to come.
    fn set_limits(&self, _limits: &LimitsConfig) {}

    /// Has all nodes of this name, or the one of this id, leave all gateways, or come back (`undo`): what they had goes on in
    /// other nodes. With `force` they leave although a gateway has no other for one of their stages. Tells them as they
    /// are then.
    fn drain_node(
        &self,
        _node: String,
        _force: bool,
        _undo: bool,
    ) -> BoxFuture<'static, Result<Vec<NodeStatus>, DrainError>> {
        Box::pin(std::future::ready(Err(DrainError::NoCluster)))
    }

    /// Refuses new requests, lets running ones finish for at most `grace`, then ends the rest with
    /// [`RequestError::ShuttingDown`] and stops every stage.
    fn drain(&self, grace: Duration) -> BoxFuture<'_, ()>;
}
