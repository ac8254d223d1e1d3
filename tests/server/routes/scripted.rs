//! A [`Service`] that answers as a test tells it to, for what a real engine cannot be made to do on demand.

use futures::FutureExt;
use futures::future::BoxFuture;
use omni_actors::config::LimitsConfig;
use omni_actors::core::ids::{Frames, RequestId, StageName};
use omni_actors::core::nodes::{DrainError, NodeStatus, OfferedStage};
use omni_actors::engine::*;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;

/// The seed that every scripted answer reports: larger than a double can hold exactly.
pub const SEED: u64 = 9_007_199_254_740_993;

/// A request that reached the engine, in the hands of the test.
pub struct Call {
    pub asked: Asked,
    /// Room for one event, so that a reader who pauses is noticed at once.
    pub events: flume::Sender<Event>,
    /// Resolves when the server let go of the stream.
    pub dropped: oneshot::Receiver<()>,
}

pub enum Asked {
    Chat(GenerateRequest),
    Speech(SpeechRequest),
}

impl Call {
    pub fn speech(&self) -> &SpeechRequest {
        match &self.asked {
            Asked::Speech(request) => request,
            Asked::Chat(_) => panic!("expected a speech request"),
        }
    }

    pub fn chat(&self) -> &GenerateRequest {
        match &self.asked {
            Asked::Chat(request) => request,
            Asked::Speech(_) => panic!("expected a chat request"),
        }
    }

    /// The whole or streamed text of a speech request; a streamed one is read to its end.
    pub async fn text(&self) -> String {
        match &self.speech().text {
            TextSource::Whole(text) => text.clone(),
            TextSource::Streamed(pieces) => {
                let mut text = String::new();
                while let Ok(piece) = pieces.recv_async().await {
                    text.push_str(&piece);
                }
                text
            }
        }
    }

    pub async fn started(&self) {
        self.send(Event::Started { id: RequestId(7), seed: SEED }).await;
    }

    /// `count` samples of the constant 0.5.
    pub async fn audio(&self, count: usize) {
        self.send(Event::Audio(AudioChunk { samples: vec![0.5; count].into(), frames: Frames(1) })).await;
    }

    pub async fn text_delta(&self, text: &str) {
        self.send(Event::Text(text.to_owned())).await;
    }

    pub async fn finish(&self) {
        let usage = Usage { prompt_tokens: 5, text_tokens: 3, frames: Frames(2), ..Usage::default() };
        self.send(Event::Finished { reason: FinishReason::Stop, usage }).await;
    }

    pub async fn fail(&self) {
        let error = RequestError::StageFailed { stage: StageName::Talker, reason: "injected panic".to_owned() };
        self.send(Event::Failed(error)).await;
    }

    async fn send(&self, event: Event) {
        self.events.send_async(event).await.expect("the server reads the stream");
    }
}

struct Guard(Option<oneshot::Sender<()>>);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.take().map(|sender| sender.send(()));
    }
}

pub struct Scripted {
    info: ModelInfo,
    calls: (flume::Sender<Call>, flume::Receiver<Call>),
    refusals: Mutex<VecDeque<SubmitError>>,
    pub uploaded: Mutex<Vec<NewVoice>>,
    /// What it was told last.
    pub limits: Mutex<Option<LimitsConfig>>,
    pub voice_refusals: Mutex<VecDeque<VoiceError>>,
    pub ready: AtomicBool,
    panics: AtomicBool,
    draining: AtomicBool,
    accepted: AtomicU64,
}

impl Scripted {
    pub fn new() -> Scripted {
        let info = ModelInfo {
            id: "team/test-voice".to_owned(),
            voices: vec!["alto".to_owned(), "heart".to_owned()],
            default_voice: Some("heart".to_owned()),
            sample_rate: 24_000,
            samples_per_frame: 1920,
            fade_in: Duration::ZERO,
            word_times: false,
            hears: true,
            window: Duration::ZERO,
            sees: true,
            tools: true,
            tts: None,
        };
        Scripted {
            info,
            calls: flume::unbounded(),
            refusals: Mutex::default(),
            uploaded: Mutex::default(),
            limits: Mutex::default(),
            voice_refusals: Mutex::default(),
            ready: AtomicBool::new(true),
            panics: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            accepted: AtomicU64::new(0),
        }
    }

    /// The next request that the server passes on.
    pub async fn call(&self) -> Call {
        self.calls.1.recv_async().await.expect("the service lives")
    }

    pub fn refuse_next(&self, error: SubmitError) {
        self.refusals.lock().unwrap().push_back(error);
    }

    /// The next request meets a bug.
    pub fn panic_next(&self) {
        self.panics.store(true, Ordering::SeqCst);
    }

    /// Requests accepted so far.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::SeqCst)
    }

    /// Voices are kept as they came, so that a test can look at them.
    fn keep(&self, voice: NewVoice) -> Result<VoiceInfo, VoiceError> {
        if let Some(error) = self.voice_refusals.lock().unwrap().pop_front() {
            return Err(error);
        }
        let mut kept = self.uploaded.lock().unwrap();
        if kept.iter().any(|other| other.name == voice.name) {
            return Err(VoiceError::Exists(voice.name));
        }
        let info = voice_info(&voice);
        kept.push(voice);
        Ok(info)
    }

    fn accept(&self, asked: Asked) -> Result<ResponseStream, SubmitError> {
        assert!(!self.panics.swap(false, Ordering::SeqCst), "a bug, as the test wants it");
        if self.draining.load(Ordering::SeqCst) {
            return Err(SubmitError::ShuttingDown);
        }
        if let Some(error) = self.refusals.lock().unwrap().pop_front() {
            return Err(error);
        }
        self.accepted.fetch_add(1, Ordering::SeqCst);
        let (events, receiver) = flume::bounded(1);
        let (sender, dropped) = oneshot::channel();
        self.calls.0.send(Call { asked, events, dropped }).unwrap();
        Ok(ResponseStream::new(receiver, Guard(Some(sender))))
    }
}

fn voice_info(voice: &NewVoice) -> VoiceInfo {
    let (mime_type, file_size, ref_text) = match &voice.source {
        VoiceSource::Recording { recording, mime_type } => {
            (mime_type.clone(), recording.audio.len() as u64, recording.text.clone())
        }
        VoiceSource::Embedding(_) => (None, 0, None),
    };
    let upload = UploadInfo {
        created_at: 1_738_660_000,
        consent: voice.consent.clone(),
        description: voice.description.clone(),
        ref_text,
        mime_type,
        file_size,
        seconds: 1.5,
        owner: voice.owner.clone(),
    };
    VoiceInfo { name: voice.name.clone(), uploaded: true, upload: Some(upload) }
}

impl Service for Scripted {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn submit(&self, request: GenerateRequest) -> BoxFuture<'_, Result<ResponseStream, SubmitError>> {
        std::future::ready(self.accept(Asked::Chat(request))).boxed()
    }

    fn speak(&self, request: SpeechRequest) -> BoxFuture<'_, Result<ResponseStream, SubmitError>> {
        std::future::ready(self.accept(Asked::Speech(request))).boxed()
    }

    fn set_limits(&self, limits: &LimitsConfig) {
        *self.limits.lock().unwrap() = Some(limits.clone());
    }

    fn voices(&self) -> Vec<Arc<VoiceInfo>> {
        let built_in = |name: &String| Arc::new(VoiceInfo { name: name.clone(), uploaded: false, upload: None });
        let uploaded = self.uploaded.lock().unwrap().iter().map(voice_info).map(Arc::new).collect::<Vec<_>>();
        self.info.voices.iter().map(built_in).chain(uploaded).collect()
    }

    fn add_voice(&self, voice: NewVoice) -> BoxFuture<'_, Result<VoiceInfo, VoiceError>> {
        std::future::ready(self.keep(voice)).boxed()
    }

    fn remove_voice<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), VoiceError>> {
        let mut kept = self.uploaded.lock().unwrap();
        let found = kept.iter().position(|voice| voice.name.eq_ignore_ascii_case(name));
        let removed = found.map(|at| drop(kept.remove(at))).ok_or_else(|| VoiceError::Unknown(name.into()));
        std::future::ready(removed).boxed()
    }

    fn health(&self) -> EngineHealth {
        let stages = StageName::OF_TEXT.map(|name| StageHealth {
            name,
            replica: None,
            state: StageState::Running,
            since: 1_700_000_000,
            generation: 1,
            restarts: 0,
            last_reason: None,
            last_recovery_s: None,
            sequences: 0,
            pid: None,
            node: (name == StageName::Talker).then(|| "near".to_owned()),
        });
        EngineHealth {
            ready: self.ready.load(Ordering::SeqCst),
            draining: self.draining.load(Ordering::SeqCst),
            requests: 0,
            admission: AdmissionStatus::default(),
            stages: stages.into(),
            gateway: Some("9".to_owned()),
            nodes: vec![far()],
            aligner: None,
        }
    }

    fn drain_node(
        &self,
        node: String,
        force: bool,
        undo: bool,
    ) -> BoxFuture<'static, Result<Vec<NodeStatus>, DrainError>> {
        let answer = match node.as_str() {
            "far" if force || undo => Ok(vec![far()]),
            "far" => Err(DrainError::Refused("it is the last".to_owned())),
            _ => Err(DrainError::Unknown(node, vec!["far".to_owned()])),
        };
        std::future::ready(answer).boxed()
    }

    fn drain(&self, _grace: Duration) -> BoxFuture<'_, ()> {
        self.draining.store(true, Ordering::SeqCst);
        // Drained when the test has dropped every call it took.
        std::future::ready(()).boxed()
    }
}

/// A node that runs another version.
fn far() -> NodeStatus {
    NodeStatus {
        id: "1".to_owned(),
        name: "far".to_owned(),
        host: "rack-1".to_owned(),
        pid: 7,
        version: "0.0.9".to_owned(),
        arithmetic: "f32 with fused products".to_owned(),
        slots: 4,
        joined: Duration::from_secs(1_700_000_000),
        round_trip: Some(Duration::from_micros(1500)),
        stages: vec![OfferedStage {
            name: StageName::Talker,
            replica: None,
            used: false,
            reason: Some("it is old".to_owned()),
        }],
    }
}
