//! `bench` against our own server with an engine whose answers are known, so that its figures can be checked.

use crate::support::omni::{Done, Omni};
use futures::FutureExt;
use futures::future::BoxFuture;
use omni_actors::config::Config;
use omni_actors::core::ids::{Frames, RequestId};
use omni_actors::engine::*;
use omni_actors::server::Server;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Answers each request with half a second of speech, but refuses every third one.
struct HalfSecond {
    info: ModelInfo,
    asked: AtomicUsize,
}

impl Service for HalfSecond {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn submit(&self, _: GenerateRequest) -> BoxFuture<'_, Result<ResponseStream, SubmitError>> {
        async { Err(SubmitError::NotReady("speech only".to_owned())) }.boxed()
    }

    fn speak(&self, _: SpeechRequest) -> BoxFuture<'_, Result<ResponseStream, SubmitError>> {
        let refused = self.asked.fetch_add(1, Ordering::Relaxed) % 3 == 2;
        async move {
            if refused {
                return Err(SubmitError::Full { limit: 1, retry_after: Duration::from_secs(1) });
            }
            let (send, events) = flume::unbounded();
            let chunk = |samples| Event::Audio(AudioChunk { samples: vec![0.25; samples].into(), frames: Frames(1) });
            send.send(Event::Started { id: RequestId(1), seed: 1 }).unwrap();
            send.send(chunk(1_920)).unwrap();
            send.send(chunk(10_080)).unwrap();
            send.send(Event::Finished { reason: FinishReason::Stop, usage: Usage::default() }).unwrap();
            Ok(ResponseStream::new(events, ()))
        }
        .boxed()
    }

    fn voices(&self) -> Vec<Arc<VoiceInfo>> {
        let built_in = |name: &String| Arc::new(VoiceInfo { name: name.clone(), uploaded: false, upload: None });
        self.info.voices.iter().map(built_in).collect()
    }

    fn add_voice(&self, voice: NewVoice) -> BoxFuture<'_, Result<VoiceInfo, VoiceError>> {
        std::future::ready(Err(VoiceError::Exists(voice.name))).boxed()
    }

    fn remove_voice<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), VoiceError>> {
        std::future::ready(Err(VoiceError::Unknown(name.into()))).boxed()
    }

    fn health(&self) -> EngineHealth {
        EngineHealth {
            ready: true,
            draining: false,
            requests: 0,
            admission: AdmissionStatus::default(),
            stages: Vec::new(),
            gateway: None,
            nodes: Vec::new(),
            aligner: None,
        }
    }

    fn drain(&self, _: Duration) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }
}

/// Runs `bench --url` with these arguments against such a server.
fn bench(args: &[&str]) -> (Done, serde_json::Value) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    let mut config = Config::default();
    config.server.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::bind(&config.server).unwrap();
    let url = format!("http://{}", server.local_addr());
    let info = ModelInfo {
        id: "half-second".to_owned(),
        voices: vec!["heart".to_owned()],
        default_voice: Some("heart".to_owned()),
        sample_rate: 24_000,
        samples_per_frame: 1_920,
        fade_in: Duration::ZERO,
        word_times: false,
        hears: false,
        window: Duration::ZERO,
        sees: false,
        tools: false,
        tts: None,
    };
    let service = Arc::new(HalfSecond { info, asked: AtomicUsize::new(0) });
    runtime.spawn(async move { server.serve(service, &config.limits, std::future::pending()).await });

    let omni = Omni::new();
    let json = omni.path("figures.json");
    let mut all = vec!["bench", "--url", &url, "--warmup", "0", "--json", &json];
    all.extend(args);
    let omni = omni.arguments(&all);
    let done = omni.run();
    let figures = std::fs::read(&json).map_or(serde_json::Value::Null, |text| serde_json::from_slice(&text).unwrap());
    (done, figures)
}

#[test]
fn a_closed_loop_counts_what_was_spoken_and_what_was_refused() {
    let (done, report) = bench(&["--concurrency", "1,2", "--requests", "6"]);
    done.succeeds().shows("c=1").shows("c=2").shows("4/6");
    for (i, concurrency) in [1, 2].into_iter().enumerate() {
        let level = &report["levels"][i];
        assert_eq!(level["load"]["concurrency"], concurrency);
        assert_eq!((&level["requests"], &level["succeeded"]), (&6.into(), &4.into()), "{level}");
        assert_eq!(level["audio_s"], 2.0);
        let errors = level["errors"].as_object().unwrap();
        assert_eq!(errors.len(), 1, "{errors:?}");
        let (error, times) = errors.iter().next().unwrap();
        assert!(error.starts_with("429 ") && *times == 2, "{error}: {times}");
    }
}

#[test]
fn an_open_loop_sends_what_its_seed_says() {
    let args = ["--rate", "40", "--duration", "0.5", "--seed", "3"];
    let (first, report) = bench(&args);
    first.succeeds();
    let level = &report["levels"][0];
    assert_eq!(level["load"]["loop"], "open");
    assert_eq!(level["load"]["duration_s"], 0.5);
    assert!(level["requests"].as_u64().unwrap() > 5, "{level}");
    let (_, again) = bench(&args);
    assert_eq!(again["levels"][0]["requests"], level["requests"]);
}

#[test]
fn a_sweep_fixes_the_frames_and_holds_the_server_to_them() {
    // Half a second is 6 frames and a quarter.
    let (done, report) = bench(&["--sweep", "1,2", "--rates", "30", "--duration", "0.3", "--frames", "6"]);
    done.succeeds().shows("c=2").shows("30/s").shows("ms per frame p50");
    assert_eq!(report["levels"].as_array().unwrap().len(), 3);
    assert_eq!((&report["levels"][0]["frames"], &report["levels"][0]["succeeded"]), (&6.into(), &11.into()));
    let (done, report) = bench(&["--requests", "1", "--frames", "7"]);
    done.exits(1);
    assert_eq!(report["levels"][0]["errors"]["6 frames instead of 7"], 1);
}

#[test]
fn a_floor_needs_a_model_to_be_of() {
    let (done, _) = bench(&["--bandwidth", "4.3e12"]);
    done.exits(2).tells("--bandwidth: give --config or --checkpoint too");
    let args = ["--bandwidth", "4.3e12", "--config", "configs/random-tts-1.7b.toml", "--requests", "1"];
    let (done, report) = bench(&args);
    done.succeeds().shows("floor: 5.32 GB of weights per frame at 4.30 TB/s are 1.24 ms; 0.71 ms if");
    assert!((report["floor"]["frame_ms"].as_f64().unwrap() - 1.237).abs() < 0.001);
}

#[test]
fn fields_for_the_body_reach_the_server() {
    let (done, report) = bench(&["--requests", "3", "--extra", "{\"voice\": \"bob\"}"]);
    done.exits(1).tells("without a single successful request");
    let errors = report["levels"][0]["errors"].to_string();
    assert!(errors.contains("400") && errors.contains("bob"), "{errors}");
}

/// Runs `bench --chat` against a server that it starts itself.
fn chat(args: &[&str]) -> (Done, serde_json::Value) {
    let omni = Omni::new();
    let json = omni.path("figures.json");
    let mut all = vec!["bench", "--warmup", "1", "--json", &json, "--chat"];
    all.extend(args);
    let omni = omni.arguments(&all);
    let done = omni.run();
    let figures = std::fs::read(&json).map_or(serde_json::Value::Null, |text| serde_json::from_slice(&text).unwrap());
    (done, figures)
}

#[cfg(feature = "embedded-voice")]
#[test]
fn answers_in_text_are_as_long_as_asked_whatever_the_model_would_say() {
    let tokens = |report: &serde_json::Value| report["levels"][0]["text"]["tokens"].as_u64().unwrap();
    let (done, free) = chat(&["text", "--requests", "4"]);
    done.succeeds().shows("TTFT p50/p95/p99 ms").shows("4/4");
    // The embedded voice repeats short sentences and stops.
    assert!(tokens(&free) < 160, "{free}");
    let (done, fixed) = chat(&["--tokens", "40", "--requests", "4", "--concurrency", "1,2"]);
    done.succeeds().shows("c=1").shows("c=2");
    for level in fixed["levels"].as_array().unwrap() {
        assert_eq!(
            (&level["succeeded"], &level["text"]["tokens"], &level["tokens"]),
            (&4.into(), &160.into(), &40.into())
        );
        assert_eq!(level["audio_s"], 0.0);
        // The pace of a stream is unknown where all of it came at once.
        assert!(level["text"]["ttft_ms"]["p50"].as_f64().unwrap() > 0.0, "{level}");
    }
}

#[test]
fn spoken_answers_have_as_many_tokens_and_frames_as_asked() {
    let tiny = ["--set", "model.checkpoint=tests/fixtures/qwen3_omni", "--set", "device.kind=cpu"];
    let lengths = ["audio", "--tokens", "7", "--frames", "9", "--rate", "40", "--duration", "0.2"];
    let (done, report) = chat(&[&lengths[..], &tiny].concat());
    done.succeeds().shows("TTFA p50/p95/p99 ms");
    let level = &report["levels"][0];
    let requests = level["requests"].as_u64().unwrap();
    assert!(requests > 0 && level["succeeded"] == requests, "{level}");
    assert_eq!(level["text"]["tokens"], requests * 7);
    assert!((level["audio_s"].as_f64().unwrap() - requests as f64 * 0.72).abs() < requests as f64 * 0.08, "{level}");
}

#[test]
fn lengths_that_fit_no_chat_are_refused() {
    let bench =
        |args: &[&str]| Omni::new().arguments(&[&["bench", "--url", "http://127.0.0.1:9"], args].concat()).run();
    bench(&["--chat", "--frames", "5"]).exits(2).tells("--chat audio");
    bench(&["--chat", "audio", "--tokens", "5"]).exits(2).tells("need --tokens and --frames");
    bench(&["--tokens", "5"]).exits(2).tells("--chat");
}

/// Holds conversations with the tiny checkpoint, which hears.
fn conversations(args: &[&str]) -> (Done, serde_json::Value) {
    let omni = Omni::new();
    let json = omni.path("figures.json");
    let texts = omni.file("texts.txt", "Could you tell me the time?\n");
    let mut all = vec!["bench", "--realtime"];
    all.extend(args);
    let tiny = ["--set", "model.checkpoint=tests/fixtures/qwen3_omni", "--set", "device.kind=cpu"];
    all.extend(tiny.iter().chain(&["--warmup", "0", "--frames", "4", "--texts", &texts, "--json", &json]));
    let omni = omni.arguments(&all);
    let done = omni.run();
    let figures = std::fs::read(&json).map_or(serde_json::Value::Null, |text| serde_json::from_slice(&text).unwrap());
    (done, figures)
}

#[test]
fn conversations_have_as_many_answers_as_turns() {
    for turns in ["vad", "push", "text"] {
        let (done, report) = conversations(&[turns, "--concurrency", "2", "--turns", "2", "--interrupt", "0"]);
        done.succeeds().shows("n=2 |").shows("first sound p50/p95/max ms");
        assert_eq!(report["turns"], turns);
        let level = &report["levels"][0];
        assert_eq!((&level["turns"], &level["answers"], &level["interruptions"]), (&4.into(), &4.into(), &0.into()));
        assert!(level["first_sound_ms"]["p50"].as_f64().unwrap() > 0.0, "{level}");
        // Four frames each; a vocoder that has seen no frame makes less of the first one.
        let audio = level["audio_s"].as_f64().unwrap();
        assert!((0.9..=1.3).contains(&audio), "{level}");
        // A turn is over when it has been silent for half a second.
        let after = level["after_speech_ms"]["p50"].as_f64().unwrap();
        assert_eq!((after >= 400.0, after > 0.0), (turns == "vad", turns != "text"), "{level}");
    }
}

#[test]
fn an_answer_that_is_spoken_into_ends_without_another_sound() {
    let (done, report) = conversations(&["--turns", "2", "--interrupt", "1"]);
    done.succeeds();
    let level = &report["levels"][0];
    assert_eq!((&report["turns"], &level["answers"]), (&"vad".into(), &2.into()), "{level}");
    // An answer of a fast machine may be complete before a user can speak into it.
    assert!(level["interruptions"].as_u64().unwrap() <= 1, "{level}");
    assert_eq!(level["sounds_after"], 0);
}

#[test]
fn conversations_that_make_no_sense_are_refused() {
    let bench = |args: &[&str]| Omni::new().arguments(&[&["bench"], args].concat()).run();
    bench(&["--turns", "3"]).exits(2).tells("--realtime");
    bench(&["--realtime", "--chat"]).exits(2).tells("cannot be used with");
    bench(&["--realtime", "--interrupt", "1.5"]).exits(2).tells("--interrupt: must be a share from 0 to 1");
    bench(&["--realtime", "--pace", "0"]).exits(2).tells("--pace: must be 0.1 to 100");
    bench(&["--realtime", "shout"]).exits(2).tells("push");
    bench(&["--realtime", "--url", "http://127.0.0.1:9"]).exits(1).tells("does not tell its models");
}

#[test]
fn a_server_that_is_not_there_is_told() {
    let done = Omni::new().args(["bench", "--url", "http://127.0.0.1:9"]).run();
    done.exits(1).tells("http://127.0.0.1:9 does not answer: could not connect");
}
