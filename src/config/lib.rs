//! The config: reads what the user wrote and resolves it. `Config` is the resolved form: every value is valid and
//! present.
//!
//! The file format is TOML; `configs/example.toml` explains every key and is loaded by a test. `resolve.rs` declares
//! each key once: its default, what is allowed and what it means come from there.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod access;
mod aliases;
mod changed;
mod cluster;
mod device;
mod document;
mod error;
mod faults;
mod keys;
mod models;
mod placement;
mod reader;
mod realtime;
mod replicas;
mod resolve;
mod stages;
mod units;
mod wyoming;

pub use access::{AccessConfig, TlsConfig};
pub use aliases::AliasesConfig;
pub use changed::changed;
pub use cluster::{ClusterConfig, ClusterTls};
pub use device::{DeviceConfig, DeviceKind, Precision, VocoderDtype};
pub use error::{ConfigError, Problem};
pub use faults::{FaultFile, fault_fields, faults_of_json, load_faults, parse_faults};
pub use keys::{KeyConfig, Scope, hash_key};
pub use models::{LoadTime, ModelEntry};
pub use placement::{Found, Placed, placed};
pub use realtime::{RealtimeConfig, WebRtcConfig};
pub use replicas::Replicas;
pub use resolve::{Declared, Override, declared, load, parse};
pub use stages::{EdgesConfig, Placement, StageConfig, TransferConfig, TransportKind};
pub use units::{format_bytes, format_duration, parse_duration};
pub use wyoming::WyomingConfig;

pub use omni_telemetry::LogFormat;

use omni_core::ids::{Frames, StageName};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Everything `run`, `say` and `bench` need to know, after validation.
#[derive(Clone, Debug, PartialEq, bincode::Encode, bincode::Decode)]
pub struct Config {
    /// What is served.
    pub model: ModelConfig,
    /// What computes.
    pub device: DeviceConfig,
    /// How speech requests are turned into prompts and sentences.
    pub speech: SpeechConfig,
    /// The HTTP surface.
    pub server: ServerConfig,
    /// The listener for clients of the Wyoming protocol.
    pub wyoming: WyomingConfig,
    /// Limits on what one client can ask for.
    pub limits: LimitsConfig,
    /// Voices that clients upload.
    pub voices: VoicesConfig,
    /// What finds the times of words.
    pub aligner: AlignerConfig,
    /// Recordings of voices, in requests and uploads.
    pub reference_audio: ReferenceAudioConfig,
    /// What chat turns may carry besides text.
    pub media: MediaInputConfig,
    /// One entry per stage of [`StageName::ALL`], in that order.
    pub stages: [StageConfig; StageName::ALL.len()],
    /// How payloads travel between stages.
    pub transfer: TransferConfig,
    /// Stages on other hosts.
    pub cluster: ClusterConfig,
    /// When a stage is given up.
    pub supervision: SupervisionConfig,
    /// Logs.
    pub telemetry: TelemetryConfig,
    /// Whether more can break on purpose while the engine runs.
    pub drill: DrillConfig,
    /// What breaks on purpose; empty in production.
    pub faults: Vec<omni_fault::FaultRule>,
    /// Each of `[[models]]`, or none. Where there are some, everything above is what the first of them means.
    pub models: Vec<ModelEntry>,
}

impl Default for Config {
    /// What an empty file means: the embedded voice on a loopback port.
    fn default() -> Config {
        resolve::defaults()
    }
}

impl Config {
    /// The entry of one stage.
    pub fn stage(&self, name: StageName) -> &StageConfig {
        &self.stages[name as usize]
    }

    /// Frames of the first chunk that a request may ask for: what one step of the vocoder takes, and fewer than the
    /// talker may be ahead, for a longer chunk would never be whole.
    pub fn max_first_chunk(&self) -> Frames {
        let step = self.stage(StageName::Vocoder).max_step_frames.unwrap_or(u32::MAX);
        let window = self.stage(StageName::Talker).window;
        Frames(self.limits.max_first_chunk_frames.min(step).min(window.saturating_sub(1)).max(1))
    }
}

/// `[model]`
#[derive(Clone, Debug, PartialEq, bincode::Encode, bincode::Decode)]
pub struct ModelConfig {
    /// Where the weights are.
    pub checkpoint: CheckpointSource,
    /// What they are.
    pub weights: WeightsKind,
    /// Folder of the tokenizer's files; `None`: the checkpoint's.
    pub tokenizer: Option<PathBuf>,
    /// The name clients see; the folder's name if the file says nothing.
    pub name: String,
    /// Speaker of requests that name none; the checkpoint's first if the file says nothing.
    pub default_voice: Option<String>,
}

/// What the weights are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum WeightsKind {
    /// Those of the checkpoint's files.
    Stored,
    /// Random numbers of the right shapes: for measuring without a download.
    Random {
        /// Which ones.
        seed: u64,
    },
}

/// Where the weights are.
#[derive(Clone, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum CheckpointSource {
    /// The voice inside the binary.
    Embedded,
    /// A Hugging Face folder.
    Folder(PathBuf),
}

/// `[speech]`
#[derive(Clone, Debug, PartialEq, bincode::Encode, bincode::Decode)]
pub struct SpeechConfig {
    /// The user turn in front of a spoken text; `{text}` stands for the text. Default `Say: {text}`.
    pub prompt: String,
    /// Longest piece of text that is spoken in one go, in characters; longer text is split at paragraphs (Qwen3-TTS),
    /// sentences, commas or spaces. `None` is what suits the checkpoint.
    pub max_segment_chars: Option<usize>,
    /// Whether the planner of Qwen3-Omni spells numbers, signs and abbreviations out in English words. On for the
    /// embedded voice unless the file says otherwise.
    pub spell_out: bool,
    /// Over which the beginning of an answer fades in on its way to a listener.
    pub fade_in: Duration,
    /// How often a piece of speech that went astray is made anew, where nothing of it has been sent.
    pub retries: u32,
    /// Text that arrives piece by piece is spoken sentence by sentence; when nothing is left to speak and the writer
    /// pauses inside a sentence for this long, the words so far become a sentence.
    pub flush_after: Duration,
    /// A stream that is this far ahead of its listener waits while another one needs the device.
    pub lead_cap: Duration,
    /// How words are said, in all that is spoken as it is written; a request's own list goes first.
    pub pronunciations: BTreeMap<String, String>,
}

/// `[server]`
#[derive(Clone, Debug, PartialEq, bincode::Encode, bincode::Decode)]
pub struct ServerConfig {
    /// Loopback unless the file says otherwise.
    pub listen: SocketAddr,
    /// Connections open at once. When one more comes, the connection that has been idle for longest is closed; where
    /// none is idle, the new one is answered 503 and closed.
    pub max_connections: usize,
    /// Connections of one address open at once, loopback excepted; 0 is no limit.
    pub max_connections_per_address: usize,
    /// Largest request body, bytes.
    pub max_body_bytes: usize,
    /// Bytes of all requests that are being received or waited for together; more are answered 503.
    pub max_input_bytes: usize,
    /// Bytes of all answers in one piece that are being made or read, together; more are answered 503.
    pub max_output_bytes: usize,
    /// For how long an answer can be asked for again by its name; zero is never.
    pub answers_kept: Duration,
    /// Bytes of the requests that are kept for that, together.
    pub max_kept_bytes: usize,
    /// Values and names in the JSON of one request or message.
    pub max_json_values: usize,
    /// Arrays and objects inside of each other.
    pub max_json_depth: usize,
    /// Bytes per second that a client has to read while bytes wait for it; 0 is no limit.
    pub min_read_rate: u64,
    /// How long a client may take to send its request.
    pub read_timeout: Duration,
    /// How long a WebSocket session may be silent.
    pub idle_timeout: Duration,
    /// Whether clients without a key may come from other machines.
    pub allow_anonymous: bool,
    /// Keys of the clients that may use it; empty: every client that can reach it may.
    pub keys: Vec<KeyConfig>,
    /// How long running streams may go on after the first Ctrl-C or SIGTERM.
    pub drain_grace: Duration,
    /// By which names it may be called, and from which pages.
    pub access: AccessConfig,
    /// Other names of the model and its voices: `[aliases]`.
    pub aliases: AliasesConfig,
    /// How long streams may go on in the old process after an upgrade.
    pub upgrade_grace: Duration,
    /// How long the new process of an upgrade may take to become ready.
    pub upgrade_patience: Duration,
    /// Bytes of all loaded models together; `None`: no limit.
    pub model_memory: Option<u64>,
    /// How long a request waits for its model to be loaded.
    pub load_patience: Duration,
    /// Sessions of the realtime protocol.
    pub realtime: RealtimeConfig,
}

/// `[limits]`
#[derive(Clone, Debug, PartialEq, bincode::Encode, bincode::Decode)]
pub struct LimitsConfig {
    /// Requests in flight; one more is answered 429.
    pub max_requests: usize,
    /// What decides whether a request is accepted.
    pub admission: AdmissionMode,
    /// When the first sound of a stream has to come, unless its request says otherwise.
    pub first_audio_deadline: Duration,
    /// Longest input text or conversation, characters.
    pub max_input_chars: usize,
    /// Longest speech in an answer that comes in one piece.
    pub max_whole_audio: Duration,
    /// Messages of a conversation.
    pub max_messages: usize,
    /// Longest instructions and longest transcript of a recording, characters. Each piece of a text begins with them.
    pub max_instruction_chars: usize,
    /// Frames of the first chunk of sound that a request may ask for; see [`Config::max_first_chunk`].
    pub max_first_chunk_frames: u32,
    /// Most speech of one request.
    pub max_audio: Duration,
    /// Life of a request, and for each second of speech that its client has heard two seconds more.
    pub request_timeout: Duration,
    /// How long a client may keep its request waiting: reading nothing, or writing nothing.
    pub stalled_client_timeout: Duration,
}

impl LimitsConfig {
    /// These limits with those of another config that may change while a server runs: they are looked at when a request
    /// comes, and nothing was made in their size.
    pub fn taking_over(&self, new: &LimitsConfig) -> LimitsConfig {
        LimitsConfig {
            first_audio_deadline: new.first_audio_deadline,
            max_input_chars: new.max_input_chars,
            max_whole_audio: new.max_whole_audio,
            max_messages: new.max_messages,
            max_instruction_chars: new.max_instruction_chars,
            max_audio: new.max_audio,
            ..self.clone()
        }
    }
}

/// What decides whether a request is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum AdmissionMode {
    /// Whether the new stream and all running ones can be expected to be in time.
    Deadlines,
    /// Whether there is a place.
    Places,
}

impl ServerConfig {
    /// Why the server must not listen at `listen`, if it must not.
    pub fn too_open(&self) -> Option<&'static str> {
        self.too_open_at(self.listen)
    }

    /// The same for any address.
    pub fn too_open_at(&self, address: SocketAddr) -> Option<&'static str> {
        let open = !address.ip().is_loopback() && self.keys.is_empty() && !self.allow_anonymous;
        open.then_some(
            "can be reached from other machines, and there are no [[keys]]: add some (docs/security.md), or let \
             every client in with server.allow_anonymous = true",
        )
    }
}

/// `[aligner]`
#[derive(Clone, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct AlignerConfig {
    /// A folder in the layout of Qwen3-ForcedAligner-0.6B; `None`: only what lies beside a checkpoint's weights.
    pub checkpoint: Option<PathBuf>,
    /// How long it may take for one piece of speech.
    pub timeout: Duration,
}

/// `[voices]`
#[derive(Clone, Debug, PartialEq, bincode::Encode, bincode::Decode)]
pub struct VoicesConfig {
    /// Where they are kept.
    pub directory: VoicesDirectory,
    /// How many at most.
    pub max_count: usize,
    /// Bytes of their recordings together.
    pub max_bytes: u64,
}

/// Where uploaded voices are kept.
#[derive(Clone, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum VoicesDirectory {
    /// A folder of this user: `$XDG_DATA_HOME/omni-actors/voices/NAME`, with the model's name.
    User,
    /// Nowhere: they are gone with the process.
    Memory,
    /// A folder.
    Folder(PathBuf),
}

/// `[reference_audio]`
#[derive(Clone, Debug, PartialEq, bincode::Encode, bincode::Decode)]
pub struct ReferenceAudioConfig {
    /// Shortest recording.
    pub min_length: Duration,
    /// Longest recording.
    pub max_length: Duration,
    /// Largest file, in bytes, before it is decoded.
    pub max_bytes: usize,
    /// Hosts from which the server fetches recordings that a request names by address; empty refuses addresses.
    pub allowed_hosts: Vec<String>,
    /// Folders from which it reads recordings that a request names as files; empty refuses files.
    pub allowed_folders: Vec<PathBuf>,
    /// How long fetching may take.
    pub fetch_timeout: Duration,
    /// Where files are decoded.
    pub decode: DecodePlace,
    /// How long decoding one may take in a process, on the clock and of the processor.
    pub decode_timeout: Duration,
}

/// `[media]`: what chat turns may carry. Sizes of one file unless said otherwise.
#[derive(Clone, Debug, PartialEq, bincode::Encode, bincode::Decode)]
pub struct MediaInputConfig {
    /// Files of one request; the frames of a video that is sent as a list count as one.
    pub max_files: usize,
    /// Largest file, in bytes, before it is decoded.
    pub max_bytes: usize,
    /// Width times height of a picture or frame as it is encoded.
    pub max_pixels: u64,
    /// Width times height that a picture or frame is brought down to before it is encoded.
    pub max_seen_pixels: usize,
    /// Seconds of all sound of a request together, and of each video.
    pub max_seconds: u32,
    /// Frames of all videos of a request that are seen.
    pub max_frames: usize,
    /// Bytes of decoded sound and pictures of all requests together, from before they are decoded until their answers
    /// have ended.
    pub max_memory: usize,
    /// Bytes of embeddings of all open requests.
    pub max_embeddings: usize,
    /// Bytes of embeddings that are kept for media that come again.
    pub max_cached_embeddings: usize,
    /// Bytes of spectra that are kept of the speech of realtime sessions.
    pub max_cached_spectra: usize,
    /// The program that decodes videos, by name or path; `None`: videos have to come as lists of frames.
    pub ffmpeg: Option<PathBuf>,
    /// Where files are decoded.
    pub decode: DecodePlace,
    /// How long decoding one may take in a process, on the clock and of the processor.
    pub decode_timeout: Duration,
}

/// Where files that clients send are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum DecodePlace {
    /// In a process, where the program to start is known: always, but where a program links the library and names none.
    Auto,
    /// On a thread of this process.
    Thread,
    /// In a process of its own, with limits.
    Process,
}

/// `[supervision]`
#[derive(Clone, Debug, PartialEq, bincode::Encode, bincode::Decode)]
pub struct SupervisionConfig {
    /// First pause before a restart; doubles with each failure in a row.
    pub backoff: Duration,
    /// Longest pause.
    pub max_backoff: Duration,
    /// More failures than this within `meltdown_window` and the stage stays down.
    pub max_restarts: usize,
    /// See `max_restarts`.
    pub meltdown_window: Duration,
    /// A model runner that has work and has launched nothing for this long counts as failed.
    pub watchdog: Duration,
}

/// `[telemetry]`
#[derive(Clone, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct TelemetryConfig {
    /// Which log lines are written: a level, or a list such as `info,omni_stage=debug`.
    pub log: String,
    /// What a log line looks like.
    pub log_format: LogFormat,
    /// Whether clients of the server may trace it: `GET /debug/trace`, and `trace` in a request.
    pub trace: bool,
    /// Whether each request has a line in the log.
    pub access_log: bool,
    /// Where spans of requests go, as OTLP over HTTP; `None`: nowhere.
    pub otlp_endpoint: Option<String>,
}

/// `[drill]`
#[derive(Clone, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct DrillConfig {
    /// Whether faults can be planned while the engine runs: at `/debug/faults`, and by a program that has the engine.
    pub enabled: bool,
    /// Seed of the chances of rules.
    pub seed: u64,
}
