//! Everything that comes in from outside, damaged: bodies and messages of clients, frames of an edge, configs, fault
//! plans and the files of a checkpoint. The program takes it or refuses it with words; it never panics and keeps
//! nothing of it. The tests measure the memory of their own process, so they have an executable to themselves.
//!
//! A few seconds in all; `OMNI_FUZZ_SECONDS=3600 cargo test --test fuzz_entries -- --nocapture` goes on for an hour,
//! and `OMNI_FUZZ_SEED` begins elsewhere. A failure names the seed that shows it at once.
#![allow(clippy::unwrap_used)]

mod support;

#[cfg(feature = "webrtc")]
#[path = "../src/webrtc/hostile.rs"]
mod hostile;

use crate::support::http::{Ask, PATIENCE};
use crate::support::pictures::{bmp, gif};
use crate::support::recording::{PCM, data_url, hum};
use crate::support::tts;
use crate::support::wyoming::frame;
use bytes::Bytes;
use omni_actors::config;
use omni_actors::core::ids::{Attempt, Generation, RequestId, Seq};
use omni_actors::core::text::Pronunciations;
use omni_actors::core::text::markup::{Markup, MarkupReader, marks};
use omni_actors::media::MediaLimits;
use omni_actors::media::hearing::samples;
use omni_actors::media::mel::{LogMel, MelConfig};
use omni_actors::media::picture::{Grey16, decode_animation, decode_picture};
use omni_actors::model::Checkpoint;
use omni_actors::realtime::{Abilities, AnswerPart, Effect, Limits, Opening, Session};
use omni_actors::transfer::payload::{Header, Kind, Part, Payload};
use omni_actors::transfer::wire;
use serde_json::json;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_tungstenite::tungstenite::{Message, client};

const BATCH: &str = "/v1/audio/speech/batch";

/// Growth of a process that is no leak: caches that fill, memory that the allocator keeps.
const GROWTH: u64 = 128 << 20;

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % below.max(1) as u64) as usize
    }

    /// Valid input, damaged in one to four places.
    fn damaged(&mut self, good: &[u8]) -> Vec<u8> {
        const WORDS: [&[u8]; 16] = [
            b"-1",
            b"1e999",
            b"18446744073709551616",
            b"null",
            b"[]",
            b"{}",
            b"\"\"",
            b"NaN",
            b"\xff\xfe",
            b"\0",
            b"\\ud800",
            b"=",
            b"[[",
            b"\n",
            b"../../etc/passwd",
            b"true",
        ];
        let mut bytes = good.to_vec();
        for _ in 0..=self.roll(4) {
            let at = self.roll(bytes.len() + 1);
            match self.roll(6) {
                0 if at < bytes.len() => bytes[at] ^= 1 << self.roll(8),
                1 => bytes.truncate(at),
                2 => _ = bytes.splice(at..at, WORDS[self.roll(WORDS.len())].iter().copied()),
                3 => {
                    let to = (at + self.roll(40)).min(bytes.len());
                    bytes.drain(at..to);
                }
                4 => {
                    let to = (at + self.roll(40)).min(bytes.len());
                    let again = bytes[at..to].repeat(1 + self.roll(20));
                    bytes.splice(at..at, again);
                }
                _ => {
                    // A number becomes another one.
                    let digits: Vec<usize> = (0..bytes.len()).filter(|i| bytes[*i].is_ascii_digit()).collect();
                    if let Some(i) = digits.get(self.roll(digits.len())) {
                        bytes.splice(*i..=*i, WORDS[self.roll(3)].iter().copied());
                    }
                }
            }
        }
        bytes
    }
}

/// Has `one` done with one seed after the other, for a share of the time there is.
fn fuzz(name: &str, share: f64, mut one: impl FnMut(&mut Dice)) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let time = Duration::from_secs_f64(number("OMNI_FUZZ_SECONDS").unwrap_or(6) as f64 * share);
    let (first, begun) = (number("OMNI_FUZZ_SEED").unwrap_or(1), Instant::now());
    let mut seed = first;
    while begun.elapsed() < time {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one(&mut Dice(seed))));
        assert!(outcome.is_ok(), "{name}: OMNI_FUZZ_SEED={seed} shows it");
        seed += 1;
    }
    println!("{name}: {} cases", seed - first);
}

/// Memory of a process in bytes.
fn memory(process: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
}

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn configs_and_plans_are_taken_or_refused_with_words() {
    let files = ["configs/example.toml", "configs/qwen3-tts.toml", "configs/random-tts-1.7b.toml"];
    let good: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(root(file)).unwrap()).collect();
    // The commented rules of the example are a plan.
    let plan = b"seed = 7\n[[faults]]\nstage = \"talker\"\npoint = \"runner\"\nkind = \"delay\"\ndelay = \"50ms\"\nnth = 3\ntimes = \"all\"\nphase = \"first\"\nafter = \"2s\"\nchance = 0.5\n";
    let before = memory("self");
    fuzz("configs and plans", 0.15, |dice| {
        let text = dice.damaged(&good[dice.0 as usize % good.len()]);
        if let Err(error) = config::parse(&String::from_utf8_lossy(&text), &root("configs"), &[]) {
            assert!(!error.to_string().is_empty());
        }
        let text = dice.damaged(plan);
        match config::parse_faults(&String::from_utf8_lossy(&text)) {
            // What was taken can be written and read again.
            Ok(file) => assert!(config::parse_faults(&file.to_string()).is_ok(), "{file}"),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
    assert!(memory("self") < before + GROWTH, "it grows");
}

#[test]
fn texts_with_markup_are_read_or_refused_with_words() {
    let good: [&[u8]; 2] = [
        b"Hello. [pause: 0.5s] [voice: heart]So [[this] is [rate: 80%]slow[voice: default]. Bye.",
        b"<?xml version=\"1.0\"?><speak version=\"1.1\"><p><s>Hi &amp; <sub alias=\"jif\">GIF</sub></s></p><break \
          time=\"500ms\"/><voice name=\"heart\"><prosody rate=\"80%\">so <say-as interpret-as=\"digits\">12</say-as>\
          </prosody></voice><![CDATA[x]]></speak>",
    ];
    let before = memory("self");
    fuzz("marked texts", 0.1, |dice| {
        let text = dice.damaged(good[dice.0 as usize % 2]);
        let text = String::from_utf8_lossy(&text);
        for markup in Markup::ALL {
            let whole = marks(markup, &text);
            let mut reader = MarkupReader::new(markup);
            let pieces: Result<Vec<_>, _> =
                text.split_inclusive([' ', ']', '"']).map(|piece| reader.push(piece)).collect();
            let pieced = pieces.and_then(|_| reader.finish());
            assert_eq!(whole.is_ok(), pieced.is_ok());
            let Err(error) = whole else { continue };
            assert!(!error.message.is_empty() && error.place.line > 0 && error.place.column > 0);
        }
        let mut list = Pronunciations::default();
        for word in text.split(' ') {
            let _ = list.insert(word, "so");
        }
        if let Some(said) = list.apply(&text, 300) {
            assert!(said.len() <= 300.max(text.len()));
        }
    });
    assert!(memory("self") < before + GROWTH, "it grows");
}

#[test]
fn sound_and_pictures_are_taken_or_refused_with_words() {
    let media = |name: &str| std::fs::read(root("tests/fixtures/qwen3_omni/frontend/media").join(name)).unwrap();
    let good =
        ["i_palette_trns_w96_h64.png", "i_rgba_w100_h70.png", "i_exif6_w120_h80.jpg", "a8k_pcm16_0p3s.wav"].map(media);
    let limits = MediaLimits { max_pixels: 100_000, max_seconds: 2.0, max_frames: 8, ..MediaLimits::default() };
    let mel = LogMel::new(MelConfig { rate: 16_000, window: 400, hop: 160, bands: 128 }).unwrap();
    let before = memory("self");
    fuzz("sound and pictures", 0.15, |dice| {
        let bytes = dice.damaged(&good[dice.0 as usize % good.len()]);
        match decode_picture(&bytes, &limits, Grey16::HighByte) {
            Ok(picture) => assert!(picture.size().height * picture.size().width <= 100_000),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        if let Err(error) = decode_animation(&bytes, 2.0, &limits) {
            assert!(!error.to_string().is_empty());
        }
        match samples(&bytes, &limits, &mel) {
            Ok(pcm) => assert!(pcm.len() <= 32_001 && pcm.iter().all(|sample| sample.is_finite())),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
    assert!(memory("self") < before + GROWTH, "it grows");
}

#[test]
fn parts_of_chat_messages_are_answered_or_refused_with_words() {
    let voices = tempfile::tempdir().unwrap();
    let more = "[limits]\nadmission = \"places\"\nmax_requests = 4\nrequest_timeout = \"20s\"\n[media]\nmax_seconds = 2\n\
        max_pixels = 100000\nmax_frames = 8\nffmpeg = \"\"\n[stages.encoder]\nplacement = \"thread\"\n";
    let server = tts::serve(&root("tests/fixtures/qwen3_omni"), voices.path(), more);
    let (picture, film) = (data_url(&bmp(64, 48)), data_url(&gif(4, 25)));
    let sound = data_url(&PCM.with(&hum(1, 8_000)));
    let base64 = sound.rsplit(',').next().unwrap();
    let parts = [
        json!({"type": "image_url", "image_url": {"url": picture, "detail": "low"}}),
        json!({"type": "input_audio", "input_audio": {"data": base64, "format": "wav"}}),
        json!({"type": "audio_url", "audio_url": {"url": sound}}),
        json!({"type": "video_url", "video_url": {"url": film}, "fps": 4.0}),
        json!({"type": "video", "video": [picture, picture, picture, picture], "fps": 2.0}),
    ];
    let turn = |parts: &[&serde_json::Value]| {
        let text = json!({"type": "text", "text": "What is this?"});
        let content: Vec<_> = parts.iter().copied().chain([&text]).collect();
        json!({"messages": [{"role": "user", "content": content}], "max_tokens": 2,
            "mm_processor_kwargs": {"use_audio_in_video": false}})
    };
    let chats = "/v1/chat/completions";
    let answered = |body: &serde_json::Value| {
        let reply = Ask::json(chats, body).send(&server.url);
        assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
    };
    answered(&turn(&parts.each_ref()));
    let before = memory(&server.pid().to_string());
    fuzz("parts of chat messages", 0.15, |dice| {
        let (one, other) = (&parts[dice.roll(parts.len())], &parts[dice.roll(parts.len())]);
        let body = dice.damaged(turn(&[one, other]).to_string().as_bytes());
        let reply = Ask::text(chats, body).send(&server.url);
        assert!(reply.status != 500, "{}", String::from_utf8_lossy(&reply.body));
        if reply.status >= 400 {
            assert!(reply.json()["error"]["message"].is_string());
        }
    });
    assert!(memory(&server.pid().to_string()) < before + GROWTH, "it grows");
    answered(&turn(&parts.each_ref()));
    let metrics = Ask::new("GET", "/metrics", &[], "").send(&server.url);
    let text = String::from_utf8(metrics.body).unwrap();
    let restarts = |line: &str| line.starts_with("omni_stage_restarts_total") && !line.ends_with(" 0");
    assert!(!text.lines().any(restarts), "a stage died of it");
}

#[test]
fn frames_are_taken_or_refused_with_words() {
    let header = Header {
        request: RequestId(300),
        generation: Generation(2),
        attempt: Attempt(5),
        seq: Seq(7),
        kind: Kind::Codes,
        units: 3,
        end: None,
        sent: 0,
        cached: 0,
    };
    let payload = Payload { header, parts: vec![Part::U32(vec![7; 48]), Part::F32(vec![0.5; 9])], leases: Vec::new() };
    let good = wire::encode(&payload).unwrap();
    fuzz("frames", 0.1, |dice| {
        let frame = Bytes::from(dice.damaged(&good));
        for zero_copy in [true, false] {
            if let Err(error) = wire::decode(&frame, zero_copy) {
                assert!(!error.to_string().is_empty());
            }
        }
    });
}

#[test]
fn checkpoints_are_opened_or_refused_with_words() {
    let from = root("tests/fixtures/qwen3_tts/custom_voice");
    let folder = tempfile::tempdir().unwrap();
    copy(&from, folder.path());
    let files: Vec<PathBuf> =
        files(&from).into_iter().filter(|file| file.file_name() != Some("README.md".as_ref())).collect();
    fuzz("checkpoint files", 0.3, |dice| {
        let file = &files[dice.roll(files.len())];
        let good = std::fs::read(from.join(file)).unwrap();
        // The header is what a safetensors file can lie with.
        let head = good.len().min(if file.extension() == Some("safetensors".as_ref()) { 6000 } else { usize::MAX });
        let bad = [dice.damaged(&good[..head]), good[head..].to_vec()].concat();
        std::fs::write(folder.path().join(file), bad).unwrap();
        let loaded = Checkpoint::open(folder.path()).and_then(|checkpoint| {
            let loader = checkpoint.loader(&["talker"], &candle_core::Device::Cpu);
            omni_actors::model::talker::Talker::load(&loader, checkpoint.family())?;
            loader.finish()?;
            checkpoint.tts_prompter().map(drop)
        });
        if let Err(error) = loaded {
            assert!(!error.to_string().is_empty());
        }
        std::fs::write(folder.path().join(file), good).unwrap();
    });
}

/// Files of a folder and those below it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = PathBuf::from(path.file_name().unwrap());
        if path.is_dir() {
            found.extend(files(&path).into_iter().map(|file| name.join(file)));
        } else {
            found.push(name);
        }
    }
    found.sort();
    found
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        std::fs::create_dir_all(to.join(&file).parent().unwrap()).unwrap();
        std::fs::copy(from.join(&file), to.join(&file)).unwrap();
    }
}

#[test]
fn realtime_events_are_followed_or_refused_with_words() {
    let abilities = Abilities {
        model: "m".to_owned(),
        hears: true,
        calls: true,
        sees: true,
        default_voice: None,
        frame_ms: 80.0,
        is_model: Arc::new(|name| name == "m"),
        find_voice: Arc::new(|_| Ok(None)),
    };
    let limits = Limits {
        items: 16,
        bytes: 1 << 20,
        audio_ms: 2_000,
        instruction_chars: 100,
        item_chars: 100,
        parts: 4,
        media: 2,
        media_ms: 4_000,
        jobs: 3,
        window_ms: 200,
    };
    let opening = Opening { id: "sess_1".to_owned(), seed: 1, expires_at: 1, abilities, limits, plays: false };
    let sound = "AAAA".repeat(2_000);
    let item = |content: serde_json::Value| {
        json!({"type": "conversation.item.create", "event_id": "e", "previous_item_id": "item_1",
               "item": {"id": "mine", "type": "message", "role": "user", "content": [content]}})
    };
    let good = [
        json!({"type": "session.update", "session": {"type": "realtime", "instructions": "x", "tools": [{"type": "function", "name": "f"}],
            "output_modalities": ["audio"], "max_output_tokens": 7, "seed": 3, "audio": {
                "input": {"format": {"type": "audio/pcm", "rate": 24_000}, "transcription": {"language": "en"},
                    "turn_detection": {"type": "server_vad", "threshold": 0.5, "silence_duration_ms": 100}},
                "output": {"format": {"type": "audio/pcma"}, "voice": "v", "speed": 1.5}}}}),
        json!({"type": "input_audio_buffer.append", "audio": sound}),
        json!({"type": "input_audio_buffer.commit"}),
        item(json!({"type": "input_text", "text": "Hello"})),
        item(json!({"type": "input_audio", "audio": sound, "transcript": "Hello"})),
        item(json!({"type": "input_image", "image_url": "data:,", "detail": "low"})),
        json!({"type": "response.create", "response": {"conversation": "none", "instructions": "x", "temperature": 0.5,
            "metadata": {"a": "b"}, "input": [{"type": "item_reference", "id": "item_1"}]}}),
        json!({"type": "conversation.item.create", "item": {
            "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}}),
        json!({"type": "conversation.item.create", "item": {
            "type": "function_call_output", "call_id": "c", "output": "x"}}),
        json!({"type": "response.create"}),
        json!({"type": "response.cancel", "response_id": "resp_1"}),
        json!({"type": "conversation.item.truncate", "item_id": "item_2", "content_index": 0, "audio_end_ms": 10}),
        json!({"type": "conversation.item.retrieve", "item_id": "item_1"}),
        json!({"type": "conversation.item.delete", "item_id": "item_1"}),
        json!({"type": "input_audio_buffer.clear"}),
    ];
    fuzz("realtime events", 0.1, |dice| {
        let (mut session, _) = Session::new(opening.clone());
        let mut jobs = Vec::new();
        for _ in 0..24 {
            let event = good[dice.roll(good.len())].to_string();
            let event = if dice.roll(2) == 0 { event.into_bytes() } else { dice.damaged(event.as_bytes()) };
            let effects = match serde_json::from_slice(&event) {
                Ok(event) => session.client_event(event),
                Err(_) => session.go_on(),
            };
            for effect in effects {
                match effect {
                    Effect::Begin(job) => jobs.push(job.id),
                    Effect::Send(sent) => assert!(serde_json::to_string(&sent).is_ok()),
                    Effect::Cancel(_) => {}
                }
            }
            if !jobs.is_empty() {
                let part = match dice.roll(5) {
                    0 => AnswerPart::Started,
                    1 => AnswerPart::Text("word ".to_owned()),
                    2 => AnswerPart::Text("<tool_call>{\"name\": \"f\"}</tool_call>".to_owned()),
                    3 => AnswerPart::Audio(vec![0; 480]),
                    _ => AnswerPart::Failed { code: "c".to_owned(), message: "m".to_owned() },
                };
                session.answer(jobs[dice.roll(jobs.len())], part);
            }
            assert!(session.bytes() < 2 << 20, "{} bytes", session.bytes());
        }
    });
}

/// A client of a call, which sends what no client should, in front of and behind the encryption.
#[cfg(feature = "webrtc")]
#[test]
fn packets_of_a_call_are_taken_or_dropped() {
    use crate::support::phone::Peer;
    use omni_actors::webrtc::{Call, News, Step, called, crypto::provider};
    let (server, client) = (([192, 0, 2, 1], 8443).into(), ([198, 51, 100, 7], 4242).into());
    let strangers = [([203, 0, 113, 9], 99).into(), client];
    let one = |dice: &mut Dice, harm: usize| {
        let mut now = Instant::now();
        hostile::behave();
        let (mut peer, offer) = Peer::new(hostile::hostile(provider()), client, now);
        let (mut call, answer) = Call::answer(&offer, &[server], 1 << 16, now).unwrap();
        peer.accept(&answer);
        let mut inner = Dice(dice.0);
        if harm > 0 {
            hostile::change(move |packet| if inner.roll(3) == 0 { inner.damaged(packet) } else { packet.to_vec() });
        }
        let (mut over, mut heard, mut before) = (false, 0, Vec::new());
        for _ in 0..150 {
            now += Duration::from_millis(10);
            call.pass(now);
            peer.pass(now);
            if peer.open {
                let _ = peer.try_tell("{}");
                peer.say(&[500; 480], now);
                peer.pass(now);
            }
            if peer.open && dice.roll(40) < harm {
                peer.opens_another();
            }
            for (_, packet) in std::mem::take(&mut peer.out) {
                let _ = called(&packet);
                if dice.roll(4) < harm {
                    let from = strangers[dice.roll(2)];
                    call.receive(from, &dice.damaged(&packet), now);
                }
                if dice.roll(8) < harm && !before.is_empty() {
                    let again: &Vec<u8> = &before[dice.roll(before.len())];
                    call.receive(client, again, now);
                }
                if dice.roll(10) >= harm {
                    call.receive(client, &packet, now);
                }
                if before.len() < 200 {
                    before.push(packet);
                }
            }
            for packet in 0.. {
                assert!(packet < 10_000, "it goes on sending");
                match call.step() {
                    Step::Send(_, packet) => peer.receive(server, &packet, now),
                    Step::News(News::Over) if over => break,
                    Step::News(News::Over) => over = true,
                    Step::News(News::Heard(samples)) => heard += samples.len(),
                    Step::News(_) => {}
                    Step::Wait(until) => {
                        assert!(until >= now || over || packet < 1_000);
                        break;
                    }
                }
            }
        }
        assert!(heard < 24_000 * 13, "{heard} samples in a second and a half");
        heard
    };
    let before = memory("self");
    fuzz("packets of calls", 0.15, |dice| {
        one(dice, 1);
    });
    assert!(memory("self") < before + GROWTH, "it grows");
    assert!(one(&mut Dice(1), 0) > 10_000, "a client like others is heard");
}

#[test]
fn clients_are_answered_whatever_they_send() {
    let voices = tempfile::tempdir().unwrap();
    // A length that was damaged may ask for minutes of sound: they end.
    let more = "[limits]\nadmission = \"places\"\nmax_requests = 4\nrequest_timeout = \"5s\"\n[reference_audio]\nmin_length = \"100ms\"\n";
    let more = format!("{more}[wyoming]\nlisten = \"127.0.0.1:0\"\n");
    let mut server = tts::serve(&tts::fixture("base"), voices.path(), &more);
    let vector: Vec<f64> = vec![0.1; 64];
    let speech = json!({"input": "Hello there.", "max_new_tokens": 2, "ignore_eos": true, "speaker_embedding": vector,
        "language": "English", "response_format": "wav", "speed": 1.0, "stream": false, "seed": 3});
    let marked = json!({"input": "Hello [pause: 0.5s] [rate: 80%]there.", "markup": "brackets", "max_new_tokens": 2,
        "speaker_embedding": vector, "pronunciations": {"there": "hair"}, "response_format": "pcm"});
    let chat = json!({"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 2, "stream": false});
    let parts = json!([{"type": "text", "text": "Hello."}, {"type": "image_url", "image_url": {"url": "data:,"}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "video", "video": ["UklGRg=="], "fps": 2.0}]);
    let seen = json!({"messages": [{"role": "user", "content": parts}], "max_tokens": 2,
        "mm_processor_kwargs": {"use_audio_in_video": true, "fps": 1.0}});
    let start =
        json!({"type": "session.config", "speaker_embedding": vector, "max_new_tokens": 2, "language": "English"});
    let text = json!({"type": "input.text", "text": "Hello there. "});
    let done = json!({"type": "input.done"});
    let before = memory(&server.pid().to_string());
    let wyoming = server.wyoming();
    fuzz("Wyoming events", 0.05, |dice| {
        let voice = json!({"text": "Hello there. ", "voice": {"name": "mine", "language": "en"}});
        let events = ["synthesize-start", "synthesize-chunk", "synthesize", "synthesize-stop", "describe"];
        let good: Vec<u8> = events.iter().flat_map(|kind| frame(kind, &voice)).collect();
        let mut socket = TcpStream::connect(&wyoming).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        // A server that has had enough may have closed.
        let _ = socket.write_all(&dice.damaged(&good));
        let _ = socket.shutdown(Shutdown::Write);
        if let Err(error) = socket.read_to_end(&mut Vec::new()) {
            assert!(error.kind() == ErrorKind::ConnectionReset, "the server keeps the connection: {error}");
        }
    });
    fuzz("HTTP bodies", 0.2, |dice| {
        let chats = "/v1/chat/completions";
        let (path, good) =
            [(tts::SPEECH, &speech), (tts::SPEECH, &marked), (chats, &chat), (chats, &seen), (BATCH, &speech)]
                [dice.roll(5)];
        let reply = Ask::text(path, dice.damaged(good.to_string().as_bytes())).send(&server.url);
        assert!(reply.status != 500, "{}", String::from_utf8_lossy(&reply.body));
        if reply.status >= 400 {
            assert!(reply.json()["error"]["message"].is_string());
        }
    });
    fuzz("WebSocket messages", 0.2, |dice| {
        let host = server.url.strip_prefix("http://").unwrap();
        let socket = TcpStream::connect(host).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let (mut talk, _) = client(format!("ws://{host}/v1/audio/speech/stream"), socket).unwrap();
        for good in [&start, &text, &text, &done] {
            let bytes = if dice.roll(2) == 0 {
                good.to_string().into_bytes()
            } else {
                dice.damaged(good.to_string().as_bytes())
            };
            let message = match String::from_utf8(bytes) {
                Ok(text) => Message::text(text),
                Err(bytes) => Message::binary(bytes.into_bytes()),
            };
            // A server that has had enough may have closed.
            if talk.send(message).is_err() {
                return;
            }
        }
        let _ = talk.close(None);
        while talk.read().is_ok() {}
    });
    assert!(memory(&server.pid().to_string()) < before + GROWTH, "it grows");
    tts::speaks(&server.url, &speech);
    let metrics = Ask::new("GET", "/metrics", &[], "").send(&server.url);
    let text = String::from_utf8(metrics.body).unwrap();
    let restarts = |line: &str| line.starts_with("omni_stage_restarts_total") && !line.ends_with(" 0");
    assert!(!text.lines().any(restarts), "a stage died of it");
}
