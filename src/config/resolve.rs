//! Resolves a config: from what the user wrote to what it means. Each key is declared here and nowhere else.

use super::access::access;
use super::aliases::aliases;
use super::cluster::{self, cluster};
use super::document::Document;
use super::error::{ConfigError, Problem};
use super::faults::{fault, faults};
use super::keys::{key, keys};
use super::models;
pub use super::reader::Declared;
use super::reader::Reader;
use super::realtime::realtime;
use super::stages::{stage, transfer};
use super::units::parse_bytes;
use super::wyoming::wyoming;
use super::{
    AdmissionMode, AlignerConfig, CheckpointSource, Config, DecodePlace, DeviceConfig, DeviceKind, DrillConfig,
    LimitsConfig, LogFormat, MediaInputConfig, ModelConfig, Precision, ReferenceAudioConfig, ServerConfig,
    SpeechConfig, SupervisionConfig, TelemetryConfig, VocoderDtype, VoicesConfig, VoicesDirectory, WeightsKind,
};
use omni_core::ids::StageName;
use omni_core::text::{MAX_SPOKEN, MAX_WORD, Pronunciations};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Value;

/// `--set KEY=VALUE`: wins over the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    key: String,
    value: Value,
}

impl Override {
    /// Which key it is for.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// A text value, even where it looks like a number.
    pub fn text(key: &str, value: impl Into<String>) -> Override {
        Override { key: key.to_owned(), value: Value::String(value.into()) }
    }
}

impl std::fmt::Display for Override {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

impl std::str::FromStr for Override {
    type Err = String;

    /// The value is TOML; a bare word that is not TOML is taken as text.
    fn from_str(text: &str) -> Result<Override, String> {
        let (key, value) = text.split_once('=').ok_or("write KEY=VALUE, such as server.listen=127.0.0.1:9000")?;
        let value = toml::from_str::<toml::Table>(&format!("value = {value}"))
            .ok()
            .and_then(|mut table| table.remove("value"))
            .unwrap_or_else(|| Value::String(value.to_owned()));
        Ok(Override { key: key.trim().to_owned(), value })
    }
}

/// Reads a config file. Relative paths in it start at its folder.
///
/// # Errors
/// A file that cannot be read, or everything that is wrong in it.
pub fn load(path: &Path, overrides: &[Override]) -> Result<Config, ConfigError> {
    let text = read(path)?;
    parse(&text, path.parent().unwrap_or(Path::new("")), overrides)
}

/// Reads a config from text; relative paths in it start at `base`.
///
/// # Errors
/// Everything that is wrong in it.
pub fn parse(text: &str, base: &Path, overrides: &[Override]) -> Result<Config, ConfigError> {
    let mut document = Document::parse(text).map_err(|problem| ConfigError::Problems(vec![problem]))?;
    for Override { key, value } in overrides {
        document.set(key, value.clone());
    }
    if models::in_document(&document) {
        return models::parse(document, base);
    }
    let mut reader = Reader::new(document);
    let config = config(&mut reader, "model", base);
    or_problems(config, reader.finish().1)
}

/// Every key with its default and what is allowed, in the order of `configs/example.toml`.
pub fn declared() -> Vec<Declared> {
    let mut reader = Reader::new(Document::default());
    let _ = config(&mut reader, "model", Path::new(""));
    models::entry(&mut reader, "models[0]", Path::new(""));
    key(&mut reader, "keys[0]", Path::new(""));
    fault(&mut reader, "faults[0]");
    reader.finish().0
}

/// What an empty file means.
pub(super) fn defaults() -> Config {
    config(&mut Reader::new(Document::default()), "model", Path::new(""))
}

fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| ConfigError::Io { path: path.to_owned(), source })
}

pub(super) fn or_problems<T>(value: T, problems: Vec<Problem>) -> Result<T, ConfigError> {
    if problems.is_empty() { Ok(value) } else { Err(ConfigError::Problems(problems)) }
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

const DAY: Duration = secs(24 * 3600);

/// One config. `section` has the keys of its model: `model`, or an entry of `[[models]]`.
pub(super) fn config(r: &mut Reader, section: &str, base: &Path) -> Config {
    r.refuse("models", "must be written [[models]], once per model");
    let model = model(r, section, base);
    let device = device(r);
    let speech = SpeechConfig {
        prompt: prompt(r),
        max_segment_chars: segment_chars(r),
        spell_out: spell_out(r, &model.checkpoint),
        // Longer than the step with which a vocoder begins, and shorter than the silence before speech.
        fade_in: r.duration("speech.fade_in", ms(10), ms(0)..=ms(100)),
        retries: r.int("speech.retries", 2, 0..=5),
        // Longer than a quick typist's pause between words.
        flush_after: r.duration("speech.flush_after", ms(700), ms(50)..=secs(60)),
        lead_cap: r.duration("speech.lead_cap", secs(2), ms(100)..=DAY),
        pronunciations: pronunciations(r),
    };
    let server = ServerConfig {
        listen: r
            .text("server.listen", "127.0.0.1:8080", "an address and a port, such as \"127.0.0.1:8080\"", |text| {
                text.parse::<SocketAddr>().ok()
            })
            .unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 8080))),
        max_connections: r.int("server.max_connections", 256, 1..=65_536),
        // Half of the above: one machine does not take all places.
        max_connections_per_address: r.int("server.max_connections_per_address", 128, 0..=65_536),
        max_body_bytes: r.int("server.max_body_bytes", 16 << 20, 1024..=1 << 30),
        // Four of the largest bodies, and thousands of ordinary ones.
        max_input_bytes: r.int("server.max_input_bytes", 64 << 20, 1024..=1 << 40),
        // 45 minutes of speech at 24 kHz.
        max_output_bytes: r.int("server.max_output_bytes", 128 << 20, 64 << 10..=1 << 40),
        // Longer than a client is likely to look for a network.
        answers_kept: r.duration("server.answers_kept", secs(300), secs(0)..=DAY),
        // Tens of thousands of sentences.
        max_kept_bytes: r.int("server.max_kept_bytes", 16 << 20, 16 << 10..=1 << 40),
        // A batch of 32 with an x-vector of 2048 numbers each.
        max_json_values: r.int("server.max_json_values", 100_000, 100..=100_000_000),
        max_json_depth: r.int("server.max_json_depth", 32, 8..=100),
        // A quarter of the slowest speech that is streamed, Opus.
        min_read_rate: r.int("server.min_read_rate", 1024, 0..=1 << 30) as u64,
        read_timeout: r.duration("server.read_timeout", secs(10), ms(100)..=secs(600)),
        idle_timeout: r.duration("server.idle_timeout", secs(300), ms(100)..=DAY),
        allow_anonymous: r.switch("server.allow_anonymous", false),
        drain_grace: r.duration("server.drain_grace", secs(10), secs(0)..=secs(3600)),
        access: access(r, base),
        aliases: aliases(r),
        // As long as a chapter is read aloud.
        upgrade_grace: r.duration("server.upgrade_grace", secs(3600), secs(0)..=DAY),
        // Tens of GB from a slow disk.
        upgrade_patience: r.duration("server.upgrade_patience", secs(600), secs(1)..=DAY),
        model_memory: size(r, "server.model_memory", 1 << 20, "1MiB"),
        // A few GB from a disk.
        load_patience: r.duration("server.load_patience", secs(60), secs(1)..=secs(3600)),
        keys: keys(r, base),
        realtime: realtime(r),
    };
    if let Some(why) = server.too_open() {
        r.complain("server.listen", why);
    }
    if let Some(why) = server.access.admin_listen.and_then(|address| server.too_open_at(address)) {
        r.complain("server.admin_listen", why);
    }
    if server.max_input_bytes < server.max_body_bytes {
        r.complain("server.max_input_bytes", "must not be less than server.max_body_bytes");
    }
    let wyoming = wyoming(r, &server);
    let admission = [("deadlines", AdmissionMode::Deadlines), ("places", AdmissionMode::Places)];
    let limits = LimitsConfig {
        max_requests: r.int("limits.max_requests", 16, 1..=4096),
        admission: r.choice("limits.admission", "deadlines", &admission).unwrap_or(AdmissionMode::Deadlines),
        // Longer than a listener likes to wait, so that only overload breaks it.
        first_audio_deadline: r.duration("limits.first_audio_deadline", secs(2), ms(10)..=DAY),
        // A long chapter of a book; OpenAI's speech route takes 4096.
        max_input_chars: r.int("limits.max_input_chars", 65_536, 1..=10_000_000),
        // 55 MiB at 24 kHz.
        max_whole_audio: r.duration("limits.max_whole_audio", secs(1200), secs(1)..=DAY),
        // Hours of talk; each message costs the template's text around it.
        max_messages: r.int("limits.max_messages", 1024, 1..=1_000_000),
        // Twice what people write; each piece of a text is prefilled with them.
        max_instruction_chars: r.int("limits.max_instruction_chars", 4096, 1..=1_000_000),
        // 2.6 s of speech: more would come later than any deadline.
        max_first_chunk_frames: r.int("limits.max_first_chunk_frames", 32, 1..=4096),
        // More than limits.max_input_chars take, read aloud.
        max_audio: r.duration("limits.max_audio", secs(2 * 3600), secs(1)..=DAY),
        request_timeout: r.duration("limits.request_timeout", secs(120), secs(1)..=DAY),
        stalled_client_timeout: r.duration("limits.stalled_client_timeout", secs(30), secs(1)..=DAY),
    };
    let voices = voices(r, base);
    let aligner = aligner(r, base);
    let reference_audio = reference_audio(r, base);
    let media = media(r);
    let stages = StageName::ALL.map(|name| stage(r, name));
    let talker = &stages[StageName::Talker as usize];
    if let (Some(sequences), Some(largest)) = (talker.max_batch, talker.buckets.last())
        && sequences > *largest as usize
        && device.kind != Some(DeviceKind::Cpu)
    {
        r.complain("stages.talker.buckets", format!("must end with at least stages.talker.max_batch, {sequences}"));
    }
    let transfer = transfer(r);
    let cluster = cluster(r, base);
    cluster::check(r, &cluster, &stages);
    let supervision = SupervisionConfig {
        backoff: r.duration("supervision.backoff", ms(20), ms(1)..=secs(60)),
        max_backoff: r.duration("supervision.max_backoff", secs(2), ms(1)..=secs(600)),
        max_restarts: r.int("supervision.max_restarts", 5, 0..=1000),
        meltdown_window: r.duration("supervision.meltdown_window", secs(30), secs(1)..=secs(3600)),
        watchdog: r.duration("supervision.watchdog", secs(10), ms(100)..=secs(600)),
    };
    if supervision.backoff > supervision.max_backoff {
        r.complain("supervision.max_backoff", "must not be shorter than supervision.backoff");
    }
    let telemetry = TelemetryConfig {
        log: r
            .text(
                "telemetry.log",
                "info",
                "a level (error, warn, info, debug, trace) or a list of target=level",
                |text| tracing_subscriber::EnvFilter::try_new(text).ok().map(|_| text.to_owned()),
            )
            .unwrap_or_default(),
        log_format: r
            .choice("telemetry.log_format", "text", &[("text", LogFormat::Text), ("json", LogFormat::Json)])
            .unwrap_or(LogFormat::Text),
        trace: r.switch("telemetry.trace", false),
        access_log: r.switch("telemetry.access_log", false),
        otlp_endpoint: r
            .text(
                "telemetry.otlp_endpoint",
                "",
                "an address of http or https, such as \"http://127.0.0.1:4318/v1/traces\", or empty for none",
                endpoint,
            )
            .flatten(),
    };
    let drill =
        DrillConfig { enabled: r.switch("drill.enabled", false), seed: r.int("drill.seed", 0, 0..=i64::MAX) as u64 };
    let faults = faults(r);
    Config {
        model,
        device,
        speech,
        server,
        wyoming,
        limits,
        voices,
        aligner,
        reference_audio,
        media,
        stages,
        transfer,
        cluster,
        supervision,
        telemetry,
        drill,
        faults,
        models: Vec::new(),
    }
}

pub(super) fn model(r: &mut Reader, section: &str, base: &Path) -> ModelConfig {
    let key = |field: &str| format!("{section}.{field}");
    let not_empty = |text: &str| Some(text.to_owned()).filter(|text| !text.trim().is_empty());
    let checkpoint = match r
        .text(&key("checkpoint"), "embedded", "\"embedded\" or the path of a checkpoint folder", not_empty)
        .as_deref()
    {
        None | Some("embedded") => CheckpointSource::Embedded,
        Some(path) => CheckpointSource::Folder(base.join(path)),
    };
    let random = r.choice(&key("load_format"), "auto", &[("auto", false), ("random", true)]).unwrap_or(false);
    let seed = r.int(&key("seed"), 0, 0..=i64::MAX) as u64;
    if random && checkpoint == CheckpointSource::Embedded {
        let needs = format!("\"random\" needs {}: a folder with the configs of a model", key("checkpoint"));
        r.complain(&key("load_format"), needs);
    }
    // The empty text stands for the default of a text key that may be left out.
    let optional = |text: &str| Some(text.trim().to_owned());
    let folder = r.text(&key("tokenizer"), "", "a folder, or empty for the checkpoint's", optional);
    let name = r.text(&key("name"), "", "the name that clients see; empty for the folder's name", optional);
    let voice = r.text(&key("default_voice"), "", "a speaker of the checkpoint; empty for its first", optional);
    let folder_name = match &checkpoint {
        CheckpointSource::Embedded => "omni-actors-voice".to_owned(),
        CheckpointSource::Folder(path) => {
            path.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
        }
    };
    ModelConfig {
        checkpoint,
        tokenizer: folder.filter(|folder| !folder.is_empty()).map(|folder| base.join(folder)),
        weights: if random { WeightsKind::Random { seed } } else { WeightsKind::Stored },
        name: name.filter(|name| !name.is_empty()).unwrap_or(folder_name),
        default_voice: voice.filter(|voice| !voice.is_empty()).map(|voice| voice.to_lowercase()),
    }
}

fn device(r: &mut Reader) -> DeviceConfig {
    let kinds = [("auto", None), ("cpu", Some(DeviceKind::Cpu)), ("cuda", Some(DeviceKind::Cuda))];
    let dtypes = [("auto", None), ("f32", Some(Precision::F32)), ("bf16", Some(Precision::Bf16))];
    let kind = r.choice("device.kind", "auto", &kinds).flatten();
    let index = r.int("device.index", 0, 0..=63);
    let dtype = r.choice("device.dtype", "auto", &dtypes).flatten();
    if kind == Some(DeviceKind::Cpu) && dtype == Some(Precision::Bf16) {
        r.complain("device.dtype", "must be \"auto\" or \"f32\" on a CPU");
    }
    let vocoder = [("auto", None), ("f16", Some(VocoderDtype::F16)), ("tf32", Some(VocoderDtype::Tf32))];
    let vocoder = r.choice("device.vocoder_dtype", "auto", &vocoder).flatten();
    if vocoder.is_some() && dtype == Some(Precision::F32) {
        r.complain("device.vocoder_dtype", "must be \"auto\" where device.dtype is \"f32\"");
    }
    let kv_memory = size(r, "device.kv_memory", 16 << 20, "16MiB");
    let persistent_kernels = r.switch("device.persistent_kernels", true);
    let vocoder_dtype = vocoder.unwrap_or_default();
    DeviceConfig { kind, index, dtype, vocoder_dtype, kv_memory, persistent_kernels }
}

/// A number of bytes of at least `least`, which `shown` writes; `None` is `"auto"`.
pub(super) fn size(r: &mut Reader, key: &str, least: u64, shown: &str) -> Option<u64> {
    let allowed = format!("\"auto\" or a size in quotes of at least {shown}, such as \"8GiB\"");
    let size = r.value(key, "\"auto\"", allowed, |value| match value.as_str()? {
        "auto" => Some(None),
        size => Some(Some(parse_bytes(size).filter(|bytes| *bytes >= least)?)),
    });
    size.flatten()
}

fn endpoint(text: &str) -> Option<Option<String>> {
    if text.is_empty() {
        return Some(None);
    }
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"))?;
    (!rest.is_empty() && !rest.starts_with('/') && !rest.contains(' ')).then(|| Some(text.to_owned()))
}

fn prompt(r: &mut Reader) -> String {
    let once = |text: &str| Some(text.to_owned()).filter(|text| text.matches("{text}").count() == 1);
    r.text("speech.prompt", "Say: {text}", "text with {text} in it once", once).unwrap_or_default()
}

fn pronunciations(r: &mut Reader) -> BTreeMap<String, String> {
    let allowed = format!(
        "a table of words of 1 to {MAX_WORD} characters without white space, each with 1 to {MAX_SPOKEN} characters that \
         are said instead, such as {{ GIF = \"jif\" }}"
    );
    r.names("speech.pronunciations", allowed, |word, spoken| {
        Pronunciations::default().insert(word, spoken).ok()?;
        Some((word.to_owned(), spoken.to_owned()))
    })
}

fn spell_out(r: &mut Reader, checkpoint: &CheckpointSource) -> bool {
    let choices = [("auto", None), ("on", Some(true)), ("off", Some(false))];
    let chosen = r.choice("speech.spell_out", "auto", &choices).flatten();
    chosen.unwrap_or(*checkpoint == CheckpointSource::Embedded)
}

fn segment_chars(r: &mut Reader) -> Option<usize> {
    let allowed = "0 for what suits the model, or a whole number from 20 to 4000".to_owned();
    let chars = r.value("speech.max_segment_chars", "0", allowed, |value| {
        let number = usize::try_from(value.as_integer()?).ok()?;
        (number == 0 || (20..=4000).contains(&number)).then_some(number)
    });
    chars.filter(|chars| *chars > 0)
}

fn voices(r: &mut Reader, base: &Path) -> VoicesConfig {
    let allowed = "a folder, \"memory\" to keep voices only as long as the process, or empty for a folder of this user";
    let directory = match r.text("voices.directory", "", allowed, |text| Some(text.trim().to_owned())).as_deref() {
        None | Some("") => VoicesDirectory::User,
        Some("memory") => VoicesDirectory::Memory,
        Some(path) => VoicesDirectory::Folder(base.join(path)),
    };
    VoicesConfig {
        directory,
        max_count: r.int("voices.max_count", 1000, 0..=1_000_000),
        // A thousand recordings of a minute, or a hundred of the largest.
        max_bytes: r.int("voices.max_bytes", 1_u64 << 30, 0..=1 << 40),
    }
}

fn media(r: &mut Reader) -> MediaInputConfig {
    let decode = [("auto", DecodePlace::Auto), ("process", DecodePlace::Process), ("thread", DecodePlace::Thread)];
    let program = |text: &str| Some(Some(PathBuf::from(text)).filter(|_| !text.trim().is_empty()));
    MediaInputConfig {
        max_files: r.int("media.max_files", 16, 1..=256),
        // A photo of a phone is 2 to 8 MB.
        max_bytes: r.int("media.max_bytes", 16 << 20, 1024..=1 << 30),
        // 8K.
        max_pixels: r.int("media.max_pixels", 7680 * 4320, 1024..=1 << 28) as u64,
        // 2048 x 2048: a layer of the vision tower takes time with the square of it.
        max_seen_pixels: r.int("media.max_seen_pixels", 1 << 22, 1 << 16..=1 << 28),
        max_seconds: r.int("media.max_seconds", 300, 1..=3600) as u32,
        // Half a minute at the two frames a second that are seen.
        max_frames: r.int("media.max_frames", 64, 2..=768),
        // 64 frames of 1080p take 400 MB of it until they have their size.
        max_memory: r.int("media.max_memory", 1 << 30, 16 << 20..=1usize << 40),
        // A few large pictures: one of 4 megapixels has embeddings of 134 MB.
        max_embeddings: r.int("media.max_embeddings", 1 << 30, 1 << 20..=1usize << 40),
        // Two large pictures, or half an hour of sound.
        max_cached_embeddings: r.int("media.max_cached_embeddings", 256 << 20, 0..=1usize << 40),
        // Twenty minutes: a second of 128 bands takes 0.1 MB.
        max_cached_spectra: r.int("media.max_cached_spectra", 128 << 20, 0..=1usize << 40),
        ffmpeg: r
            .text("media.ffmpeg", "ffmpeg", "a program by name or path, or empty for none", program)
            .unwrap_or_else(|| Some("ffmpeg".into())),
        decode: r.choice("media.decode", "auto", &decode).unwrap_or(DecodePlace::Auto),
        decode_timeout: r.duration("media.decode_timeout", secs(20), secs(1)..=secs(600)),
    }
}

fn aligner(r: &mut Reader, base: &Path) -> AlignerConfig {
    let folder = |text: &str| Some(base.join(text)).filter(|_| !text.trim().is_empty());
    let allowed = "a folder with a Qwen3-ForcedAligner checkpoint, or empty for none";
    AlignerConfig {
        checkpoint: r.text("aligner.checkpoint", "", allowed, |text| Some(folder(text))).flatten(),
        // Five minutes of speech, the longest piece, on a few cores.
        timeout: r.duration("aligner.timeout", secs(120), ms(100)..=secs(3600)),
    }
}

fn reference_audio(r: &mut Reader, base: &Path) -> ReferenceAudioConfig {
    let texts = |value: &Value| {
        let list = value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned));
        list.collect::<Option<Vec<_>>>()
    };
    let host = |host: &String| !host.is_empty() && !host.contains(['/', ':', '@', ' ']);
    let hosts = "a list of host names without scheme or port, such as [\"media.example.org\"]".to_owned();
    let allowed_hosts = r
        .value("reference_audio.allowed_hosts", "[]", hosts, |value| texts(value).filter(|list| list.iter().all(host)));
    let folders = "a list of folders".to_owned();
    let allowed_folders = r.value("reference_audio.allowed_folders", "[]", folders, |value| {
        texts(value).filter(|list| list.iter().all(|folder| !folder.trim().is_empty()))
    });
    let decode = [("auto", DecodePlace::Auto), ("process", DecodePlace::Process), ("thread", DecodePlace::Thread)];
    let config = ReferenceAudioConfig {
        min_length: r.duration("reference_audio.min_length", ms(500), ms(100)..=secs(60)),
        max_length: r.duration("reference_audio.max_length", secs(60), secs(1)..=secs(600)),
        max_bytes: r.int("reference_audio.max_bytes", 10 << 20, 1024..=1 << 30),
        allowed_hosts: allowed_hosts.unwrap_or_default().into_iter().map(|host| host.to_lowercase()).collect(),
        allowed_folders: allowed_folders.unwrap_or_default().into_iter().map(|folder| base.join(folder)).collect(),
        fetch_timeout: r.duration("reference_audio.fetch_timeout", secs(10), ms(100)..=secs(600)),
        decode: r.choice("reference_audio.decode", "auto", &decode).unwrap_or(DecodePlace::Auto),
        decode_timeout: r.duration("reference_audio.decode_timeout", secs(10), secs(1)..=secs(600)),
    };
    if config.min_length > config.max_length {
        r.complain("reference_audio.max_length", "must not be shorter than reference_audio.min_length");
    }
    config
}
