//! What integration tests share: the default voice, engines on it, and answers as data.
#![allow(dead_code, clippy::unwrap_used, reason = "every test binary uses a part of this")]

use crate::support::wait;
use omni_actors::config::{Config, DeviceKind, Placement, Precision, Replicas};
use omni_actors::core::ids::Frames;
use omni_actors::engine::{
    ChatMessage, Engine, EngineHealth, EngineLoad, Event, FinishReason, GenerateRequest, Output, RequestError,
    RequestOptions, ResponseStream, SamplingOverrides, Service, SpeechParams, SpeechRequest, TextSource, Usage,
    WordTime, process,
};
use omni_actors::model::checkpoint::Checkpoint;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub const GREEDY: SamplingOverrides = SamplingOverrides {
    temperature: Some(0.0),
    top_k: None,
    top_p: None,
    min_p: None,
    repetition_penalty: None,
    frequency_penalty: None,
    presence_penalty: None,
};

/// For limits on time that a test is not about.
const AN_HOUR: Duration = Duration::from_secs(3600);

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn voice_folder() -> PathBuf {
    root().join("assets/voice/checkpoint")
}

pub fn voice() -> Checkpoint {
    Checkpoint::open(&voice_folder()).unwrap()
}

/// The tiny checkpoint with random weights: fast, and it never stops by itself.
pub fn tiny() -> Checkpoint {
    Checkpoint::open(&root().join("tests/fixtures/qwen3_omni")).unwrap()
}

pub async fn engine(checkpoint: &Checkpoint, change: impl FnOnce(&mut Config)) -> Engine {
    let mut config = Config::default();
    // The same on a machine with a GPU, unless that is what is to be tested: in f32, for goldens are.
    config.device.kind = Some(match std::env::var("OMNI_TEST_DEVICE").as_deref() {
        Ok("cuda") => DeviceKind::Cuda,
        _ => DeviceKind::Cpu,
    });
    config.device.dtype = Some(Precision::F32);
    // However slow the machine is, no request times out.
    (config.limits.request_timeout, config.limits.stalled_client_timeout) = (AN_HOUR, AN_HOUR);
    // Stages run in processes where the environment or a test says so.
    process::set_binary(env!("CARGO_BIN_EXE_omni-actors"));
    if std::env::var("OMNI_TEST_PLACEMENT").as_deref() == Ok("process") {
        config.stages.iter_mut().for_each(|stage| stage.placement = Placement::Process);
    }
    if let Some(replicas) = std::env::var("OMNI_TEST_REPLICAS").ok().and_then(|number| number.parse().ok()) {
        config.stages.iter_mut().for_each(|stage| stage.replicas = Replicas::Count(replicas));
    }
    change(&mut config);
    Engine::start(checkpoint, &config).await.unwrap()
}

pub fn chat(text: &str, output: Output) -> GenerateRequest {
    GenerateRequest {
        messages: vec![ChatMessage::text("user", text)],
        media: Vec::new(),
        tools: Vec::new(),
        until_call: false,
        output,
        voice: None,
        text: GREEDY,
        speech: GREEDY,
        max_text_tokens: None,
        max_frames: None,
        ignore_eos: false,
        seed: Some(1),
        options: RequestOptions::default(),
    }
}

pub fn speech(text: &str, seed: u64) -> SpeechRequest {
    SpeechRequest {
        text: TextSource::Whole(text.into()),
        params: SpeechParams { seed: Some(seed), ..SpeechParams::default() },
    }
}

/// Exactly this many frames, whatever the model says.
pub fn frames(count: u32, seed: u64) -> SpeechRequest {
    let mut request = speech("one two three", seed);
    request.params.max_frames = Some(Frames(count));
    request.params.ignore_eos = true;
    request
}

/// A whole answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    pub text: String,
    pub samples: Vec<f32>,
    pub chunks: Vec<u32>,
    pub words: Vec<WordTime>,
    pub end: Option<Result<(FinishReason, Usage), RequestError>>,
}

impl Answer {
    /// Whether it came in chunks as the config's ramp has them; those that waited for one another come as one.
    pub fn came_in_chunks(&self) -> bool {
        let ramp = [1, 2, 4].into_iter().chain(std::iter::repeat(8));
        let ends = |sizes: &mut dyn Iterator<Item = u32>| -> Vec<u32> {
            let mut end = 0;
            sizes
                .map(|size| {
                    end += size;
                    end
                })
                .collect()
        };
        let (owed, came) = (ends(&mut ramp.take(1000)), ends(&mut self.chunks.iter().copied()));
        // The end of the speech is no end of a chunk, and may be told without sound.
        let last = came.last().copied();
        came.iter().all(|end| Some(*end) == last || owed.contains(end))
    }
}

pub async fn collect(mut stream: ResponseStream) -> Answer {
    let mut answer = Answer::default();
    while let Some(event) = stream.next().await {
        assert_eq!(answer.end, None, "an event after the last one");
        match event {
            Event::Started { .. } => assert_eq!(answer, Answer::default(), "the first event comes first"),
            Event::Text(delta) => answer.text.push_str(&delta),
            Event::Word(word) => answer.words.push(word),
            Event::Audio(chunk) => {
                answer.samples.extend_from_slice(&chunk.samples);
                answer.chunks.push(chunk.frames.0);
            }
            Event::Finished { reason, usage } => {
                // It tells of the requests before, and of stages that died, not of this answer.
                answer.end = Some(Ok((reason, Usage { cached_tokens: 0, ..usage })));
            }
            Event::Failed(error) => answer.end = Some(Err(error)),
        }
    }
    answer
}

pub async fn say(engine: &Engine, request: SpeechRequest) -> Answer {
    collect(engine.speak(request).await.unwrap()).await
}

/// Waits until the engine's health is so.
pub async fn becomes(engine: &Engine, case: &str, is_so: impl Fn(&EngineHealth) -> bool) {
    wait::seen(|| {
        let health = engine.health();
        if is_so(&health) { Ok(()) } else { Err(format!("{case}: {health:?}")) }
    })
    .await;
}

/// Waits until nothing of any request is left.
pub async fn idle(engine: &Engine) {
    let empty = EngineLoad { requests: 0, leases: 0, sequences: 0, queued: 0 };
    wait::seen(|| match engine.load() {
        load if load == empty => Ok(()),
        load => Err(load),
    })
    .await;
}
