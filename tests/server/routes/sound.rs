//! What an answer sounds like where a client asks for it: sample rate, G.711, loudness.

use super::scripted::Call;
use super::{Site, events, json};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures::{SinkExt, StreamExt};
use omni_actors::core::ids::Frames;
use omni_actors::engine::{AudioChunk, Event};
use reqwest::Response;
use serde_json::{Value, json};
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::Message;

const PATH: &str = "/v1/audio/speech";
/// Samples of the answer that `speak` plays: not whole chunks of anything.
const SAMPLES: usize = 1_920 + 1_337;

/// Plays the engine: a tone of 500 Hz in two pieces.
async fn speak(call: &Call) {
    call.started().await;
    let tone = |i: usize| 0.5 * (i as f32 * std::f32::consts::TAU * 500.0 / 24_000.0).sin();
    let samples: Vec<f32> = (0..SAMPLES).map(tone).collect();
    for piece in [&samples[..1_920], &samples[1_920..]] {
        let event = Event::Audio(AudioChunk { samples: piece.to_vec().into(), frames: Frames(1) });
        call.events.send_async(event).await.unwrap();
    }
    call.finish().await;
}

async fn spoken(site: &Site, body: &Value) -> Response {
    let response = site.post(PATH, body);
    speak(&site.service.call().await).await;
    response.await.unwrap()
}

/// A body for "Hello." with these fields.
fn body(fields: Value) -> Value {
    let mut body = json!({"input": "Hello."});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

fn pcm16(bytes: &[u8]) -> Vec<i16> {
    bytes.chunks_exact(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]])).collect()
}

#[tokio::test]
async fn another_sample_rate_is_the_same_sound_to_the_sample() {
    let site = Site::new();
    for rate in [8_000u32, 16_000, 22_050, 44_100, 48_000] {
        let response = spoken(&site, &body(json!({"response_format": "pcm", "sample_rate": rate}))).await;
        assert_eq!(response.headers()["x-sample-rate"], rate.to_string().as_str());
        assert_eq!(response.headers()["content-type"], format!("audio/pcm;rate={rate};channels=1").as_str());
        let heard = pcm16(&response.bytes().await.unwrap());
        assert_eq!(heard.len(), (SAMPLES as f64 * f64::from(rate) / 24_000.0).round() as usize, "at {rate}");
        let tone = |i: usize| 0.5 * (i as f32 * std::f32::consts::TAU * 500.0 / rate as f32).sin() * 32_767.0;
        // Away from the ends, where the tone begins and stops at once.
        for (i, sample) in heard.iter().enumerate().take(heard.len() * 3 / 4).skip(heard.len() / 4) {
            assert!((f32::from(*sample) - tone(i)).abs() < 100.0, "sample {i} at {rate}: {sample}");
        }
    }
    let same = spoken(&site, &body(json!({"response_format": "pcm", "sample_rate": 24_000}))).await;
    assert_eq!(same.headers()["content-type"], "audio/pcm");
    assert_eq!(same.bytes().await.unwrap().len(), SAMPLES * 2);
}

#[tokio::test]
async fn every_way_to_send_an_answer_has_the_same_samples() {
    let site = Site::new();
    let fields = json!({"response_format": "pcm", "sample_rate": 16_000, "speed": 1.25});
    let raw = spoken(&site, &body(fields.clone())).await.bytes().await.unwrap();
    let mut whole = body(fields.clone());
    whole["stream"] = json!(false);
    assert_eq!(spoken(&site, &whole).await.bytes().await.unwrap(), raw);
    let mut streamed = body(fields.clone());
    streamed["stream"] = json!(true);
    let events = events(spoken(&site, &streamed).await).await;
    let deltas = events.iter().filter_map(|event| json(event)["audio"].as_str().map(str::to_owned));
    let deltas: Vec<u8> = deltas.flat_map(|audio| BASE64_STANDARD.decode(audio).unwrap()).collect();
    assert_eq!(deltas, raw);

    let address = format!("ws://{}/v1/audio/speech/stream", site.address);
    let (mut socket, _) = connect_async(address).await.unwrap();
    let mut config = fields;
    config["type"] = json!("session.config");
    for message in [config, json!({"type": "input.text", "text": "Hello."}), json!({"type": "input.done"})] {
        socket.send(Message::text(message.to_string())).await.unwrap();
    }
    let call = site.service.call().await;
    let playing = async {
        call.text().await;
        speak(&call).await;
    };
    let listening = async {
        let mut heard = Vec::new();
        loop {
            match socket.next().await.unwrap().unwrap() {
                Message::Binary(bytes) => heard.extend_from_slice(&bytes),
                Message::Text(text) => {
                    let event = json(&text);
                    match event["type"].as_str().unwrap() {
                        "session.updated" | "audio.start" => assert_eq!(event["sample_rate"], 16_000),
                        "audio.done" => {
                            assert_eq!(event["samples"].as_u64().unwrap() * 2, heard.len() as u64);
                            let seconds = event["seconds"].as_f64().unwrap();
                            assert!((seconds - heard.len() as f64 / 32_000.0).abs() < 1e-9, "{seconds}");
                            return heard;
                        }
                        "session.created" => {}
                        other => panic!("{other}: {event}"),
                    }
                }
                _ => {}
            }
        }
    };
    let ((), heard) = tokio::join!(playing, listening);
    assert_eq!(heard, raw);
}

#[tokio::test]
async fn telephones_get_g711() {
    let site = Site::new();
    let samples = (SAMPLES as f64 / 3.0).round() as usize;
    let mut bare = Vec::new();
    for (format, content_type) in [("mulaw", "audio/PCMU"), ("ulaw", "audio/PCMU"), ("alaw", "audio/PCMA")] {
        let response = spoken(&site, &body(json!({"response_format": format}))).await;
        assert_eq!(response.headers()["content-type"], content_type);
        assert_eq!(response.headers()["x-sample-rate"], "8000");
        bare.push(response.bytes().await.unwrap());
        assert_eq!(bare.last().unwrap().len(), samples, "{format}");
    }
    assert_eq!(bare[0], bare[1]);
    assert_ne!(bare[0], bare[2]);
    for (encoding, tag, same) in [("mulaw", 7, &bare[0]), ("alaw", 6, &bare[2])] {
        let response = spoken(&site, &body(json!({"response_format": "wav", "encoding": encoding}))).await;
        assert_eq!(response.headers()["content-type"], "audio/wav");
        let file = response.bytes().await.unwrap();
        assert_eq!((file[20], &file[24..28]), (tag, &8_000u32.to_le_bytes()[..]));
        assert_eq!(file[58..58 + samples], same[..], "{encoding}");
    }
    let wide = spoken(&site, &body(json!({"response_format": "mulaw", "sample_rate": 16_000}))).await;
    assert_eq!(wide.headers()["content-type"], "audio/PCMU;rate=16000;channels=1");
}

#[tokio::test]
async fn a_loudness_makes_the_answer_come_whole() {
    let site = Site::new();
    // Each second of the tone is the same, so that its peak tells how loud it was made.
    let peak = async |fields: Value| {
        let response = site.post(PATH, &body(fields));
        let call = site.service.call().await;
        call.started().await;
        let tone = |i: usize| 0.1 * (i as f32 * std::f32::consts::TAU * 1_000.0 / 24_000.0).sin();
        let samples: Vec<f32> = (0..24_000).map(tone).collect();
        call.events.send_async(Event::Audio(AudioChunk { samples: samples.into(), frames: Frames(13) })).await.unwrap();
        call.finish().await;
        let response = response.await.unwrap();
        assert_eq!(response.headers()["content-length"], "48000");
        let heard = pcm16(&response.bytes().await.unwrap());
        heard.iter().map(|sample| f32::from(*sample).abs() / 32_767.0).fold(0.0, f32::max)
    };
    // A tone of -20 dB (its peak, mono) is -20 LUFS.
    let unchanged = peak(json!({"response_format": "pcm", "stream": false})).await;
    assert!((unchanged - 0.1).abs() < 0.001, "{unchanged}");
    let louder = peak(json!({"response_format": "pcm", "loudness": -14})).await;
    assert!((louder - 0.1995).abs() < 0.006, "{louder}");
    let quieter = peak(json!({"response_format": "pcm", "loudness": -26})).await;
    assert!((quieter - 0.0501).abs() < 0.002, "{quieter}");
}

#[tokio::test]
async fn an_answer_that_waits_for_its_loudness_keeps_the_limits_of_whole_answers() {
    let site = Site::with(|_, limits| limits.max_whole_audio = std::time::Duration::from_millis(100));
    let response = site.post(PATH, &body(json!({"response_format": "pcm", "loudness": -16, "sample_rate": 8_000})));
    let call = site.service.call().await;
    call.started().await;
    call.audio(2_401).await;
    let response = response.await.unwrap();
    assert_eq!(response.status(), 400);
    assert_eq!(response.json::<Value>().await.unwrap()["error"]["code"], "answer_too_long");

    // The budget for answers counts what waits.
    let site = Site::with(|server, _| server.max_output_bytes = 64 << 10);
    let response = site.post(PATH, &body(json!({"response_format": "pcm", "loudness": -16})));
    let call = site.service.call().await;
    call.started().await;
    call.audio(24_000).await;
    let response = response.await.unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(response.json::<Value>().await.unwrap()["error"]["code"], "too_much_output");
}

#[tokio::test]
async fn a_session_has_no_loudness_and_refuses_rates_that_its_format_does_not_carry() {
    let site = Site::new();
    let (mut socket, _) = connect_async(format!("ws://{}/v1/audio/speech/stream", site.address)).await.unwrap();
    socket.next().await.unwrap().unwrap();
    for (fields, param) in [
        (json!({"loudness": -16}), "loudness"),
        (json!({"response_format": "opus", "sample_rate": 44_100}), "sample_rate"),
        (json!({"response_format": "pcm", "encoding": "alaw"}), "encoding"),
    ] {
        let mut config = fields;
        config["type"] = json!("session.config");
        socket.send(Message::text(config.to_string())).await.unwrap();
        let answer = json(socket.next().await.unwrap().unwrap().to_text().unwrap());
        assert_eq!((answer["type"].as_str(), answer["param"].as_str()), (Some("error"), Some(param)), "{answer}");
    }
}

#[tokio::test]
async fn items_of_a_batch_have_rates_of_their_own() {
    let site = Site::new();
    let items = json!([{"input": "a"}, {"input": "b", "sample_rate": 8_000, "response_format": "pcm"},
        {"input": "c", "sample_rate": 44_100, "response_format": "opus"}]);
    let response = site.post("/v1/audio/speech/batch", &json!({"response_format": "mulaw", "items": items}));
    for _ in 0..2 {
        speak(&site.service.call().await).await;
    }
    let answer: Value = response.await.unwrap().json().await.unwrap();
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results[0]["media_type"], "audio/PCMU");
    assert_eq!(results[1]["media_type"], "audio/pcm;rate=8000;channels=1");
    let lengths = results[..2].iter().map(|item| BASE64_STANDARD.decode(item["audio_data"].as_str().unwrap()).unwrap());
    assert_eq!(lengths.map(|file| file.len()).collect::<Vec<_>>(), [1_086, 2_172]);
    assert_eq!(results[2]["param"], "sample_rate");
}
