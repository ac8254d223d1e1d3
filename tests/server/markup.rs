//! Markup and pronunciations over every way to ask for speech, on a real engine.

use crate::e2e_http::{SPEECH, Site, WAV_HEADER, decode};
use crate::support::engine::idle;
use futures::{SinkExt, StreamExt};
use omni_actors::core::ids::StageName;
use omni_actors::engine::Service;
use omni_actors::fault::{FaultKind, FaultPoint, FaultRule};
use serde_json::{Value, json};
use std::time::Duration;
use tokio_tungstenite::tungstenite::Message;

const BATCH: &str = "/v1/audio/speech/batch";
const BRACKETS: &str = "One, two.[pause: 0.25s] [voice: ethan]Three, four.[rate: 200%] Five, GIF.";
const SSML: &str = "<speak>One, two.<break time='250ms'/> <voice name='Ethan'>Three, four.\
                    <prosody rate='200%'>Five, <sub alias='six'>GIF</sub>.</prosody></voice></speak>";
/// 0.25 s at 24 kHz, 16 bits.
const PAUSE: usize = 12_000;

/// Three pieces of five frames each.
fn asks(more: &Value) -> Value {
    let mut body = json!({"input": BRACKETS, "markup": "brackets", "pronunciations": {"GIF": "six"}, "voice": "Aiden",
        "max_new_tokens": 5, "response_format": "pcm", "seed": 5});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

impl Site {
    async fn pcm(&self, more: &Value) -> Vec<u8> {
        self.bytes(SPEECH, &asks(more)).await
    }

    /// The field and the message of a 400.
    async fn mistake(&self, more: &Value) -> (String, String) {
        let response = self.post(SPEECH, &asks(more)).await;
        assert_eq!(response.status(), 400, "{more}");
        let error: Value = response.json().await.unwrap();
        let text = |field: &str| error["error"][field].as_str().unwrap().to_owned();
        (text("param"), text("message"))
    }
}

/// Where the longest run of zero samples begins, and its bytes.
fn silence(pcm: &[u8]) -> (usize, usize) {
    let mut longest = (0, 0);
    let mut begin = 0;
    for (at, sample) in pcm.chunks(2).enumerate() {
        if sample != [0, 0] {
            begin = 2 * at + 2;
        }
        longest = longest.max((2 * at + 2 - begin, begin));
    }
    (longest.1, longest.0)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_is_the_same_whole_streamed_in_a_batch_and_from_any_sample_on() {
    let site = Site::new(|_| {}).await;
    let pcm = site.pcm(&json!({})).await;
    let (begin, length) = silence(&pcm);
    assert!((PAUSE..PAUSE + 20).contains(&length), "{length} bytes of silence");
    let (one, other) = (begin, pcm.len() - begin - length);
    assert!(one > 10_000 && (one as f64 * 1.4..one as f64 * 1.6).contains(&(other as f64)), "{one} and {other} bytes");
    assert!(pcm == site.pcm(&json!({"input": SSML, "markup": "ssml"})).await, "SSML is another way to write it");

    assert!(pcm == site.pcm(&json!({"stream": false})).await, "whole");
    let wav = site.pcm(&json!({"response_format": "wav"})).await;
    assert!(wav[WAV_HEADER..] == pcm, "wav");
    let events = site.events(SPEECH, &asks(&json!({"stream": true}))).await;
    let audio = events.iter().filter(|event| event["audio"].is_string()).flat_map(|event| decode(&event["audio"]));
    assert!(audio.collect::<Vec<u8>>() == pcm, "events");
    let items = json!({"items": [{"input": BRACKETS}, {"input": SSML, "markup": "ssml"}, {"input": "[boo]"}]});
    let mut batch = asks(&items);
    batch.as_object_mut().unwrap().remove("input");
    let answer: Value = serde_json::from_slice(&site.bytes(BATCH, &batch).await).unwrap();
    for index in 0..2 {
        assert!(decode(&answer["results"][index]["audio_data"]) == pcm, "item {index}");
    }
    assert!(answer["results"][2]["error"].as_str().unwrap().contains("the tag [boo] is unknown"), "{answer}");

    // Inside of the first piece, of the pause and of the last piece.
    for start in [begin / 4, begin / 2 + PAUSE / 4, (begin + PAUSE) / 2, pcm.len() / 2 - 100] {
        assert!(site.pcm(&json!({"start_sample": start})).await == pcm[2 * start..], "from sample {start}");
        let request = site.client.post(format!("http://{}{SPEECH}", site.address)).json(&asks(&json!({})));
        let rest = request.header("range", format!("bytes={start}-")).send().await.unwrap();
        assert_eq!(rest.status(), 206);
        assert!(rest.bytes().await.unwrap() == pcm[start..], "from byte {start}");
    }
    idle(&site.engine).await;

    let site = Site::new(|config| {
        config.faults = vec![FaultRule::new(StageName::Talker, FaultPoint::Runner, FaultKind::Panic).nth(9)];
        config.supervision.backoff = Duration::from_millis(1);
    })
    .await;
    let start = pcm.len() / 4;
    assert!(site.pcm(&json!({"start_sample": start})).await == pcm[2 * start..], "where a stage dies");
    assert_eq!(site.engine.health().stages.iter().map(|stage| stage.restarts).sum::<u32>(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn over_a_websocket_a_tag_may_come_in_pieces() {
    let site = Site::new(|_| {}).await;
    let pcm = site.pcm(&json!({})).await;
    for (markup, text) in [("brackets", BRACKETS), ("ssml", SSML)] {
        for size in [7, 1000] {
            let mut socket = site.socket().await;
            let mut config = asks(&json!({"type": "session.config", "markup": markup}));
            config.as_object_mut().unwrap().remove("input");
            let mut say = vec![config];
            let pieces = text.as_bytes().chunks(size).map(|piece| std::str::from_utf8(piece).unwrap());
            say.extend(pieces.map(|piece| json!({"type": "input.text", "text": piece})));
            say.extend([json!({"type": "input.done"}), json!({"type": "session.close"})]);
            for message in say {
                socket.send(Message::text(message.to_string())).await.unwrap();
            }
            let (mut audio, mut told) = (Vec::new(), Vec::new());
            while let Some(Ok(message)) = socket.next().await {
                match message {
                    Message::Binary(bytes) => audio.extend_from_slice(&bytes),
                    Message::Text(text) => told.push(text.to_string()),
                    _ => {}
                }
            }
            assert!(audio == pcm, "{markup} in pieces of {size}: {} of {} bytes, {told:?}", audio.len(), pcm.len());
        }
    }
    let mut socket = site.socket().await;
    for message in [
        json!({"type": "session.config", "markup": "brackets"}),
        json!({"type": "input.text", "text": "One [pau"}),
        json!({"type": "input.text", "text": "se: 99s] two."}),
    ] {
        socket.send(Message::text(message.to_string())).await.unwrap();
    }
    let error = loop {
        let message = socket.next().await.unwrap().unwrap().into_text().unwrap_or_default();
        if message.contains("\"error\"") && message.contains("\"code\"") {
            break serde_json::from_str::<Value>(&message).unwrap();
        }
    };
    assert_eq!((&error["code"], &error["param"]), (&json!("invalid_value"), &json!("input")));
    assert!(error["message"].as_str().unwrap().contains("line 1, column 5: a pause may have 10 s"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_name_the_field_the_place_and_what_is_allowed() {
    let site = Site::new(|_| {}).await;
    let many: Value = (0..101).map(|n| (format!("w{n}"), json!("x"))).collect::<serde_json::Map<_, _>>().into();
    for (more, param, told) in [
        (json!({"markup": "html"}), "markup", "\"html\" is unknown; ask for \"ssml\", \"brackets\" or \"none\""),
        (json!({"markup": 5}), "markup", "expected a string"),
        (json!({"input": "So [laugh]!"}), "input", "line 1, column 4: the tag [laugh] is unknown; known are [pause"),
        (
            json!({"input": "a\n[voice: bob] b"}),
            "input",
            "line 2, column 1: there is no voice \"bob\"; choose one of: ",
        ),
        (json!({"input": "<p>", "markup": "ssml"}), "input", "line 1, column 1: SSML is one <speak> element"),
        (json!({"input": "[pause: 1s]"}), "input", "nothing to speak"),
        (json!({"ignore_eos": true}), "markup", "ignore_eos"),
        (json!({"pronunciations": many}), "pronunciations", "has 101 words; expected 100 at most"),
        (json!({"pronunciations": {"a b": "c"}}), "pronunciations", "\"a b\": a word must have 1 to 64 characters"),
        (json!({"pronunciations": {"a": 5}}), "pronunciations", "\"a\": expected a string, found a number"),
        (json!({"pronunciations": ["a"]}), "pronunciations", "expected an object"),
    ] {
        let (field, message) = site.mistake(&more).await;
        assert!(field == param && message.contains(told), "{more}: {field}: {message}");
    }
    // Names that stand for voices may be in a text, too.
    let alias = site.pcm(&json!({"input": "[voice: alloy]One."})).await;
    assert!(!alias.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_text_is_left_alone_and_the_config_has_pronunciations() {
    let site = Site::new(|config| {
        config.speech.pronunciations = [("gif", "jif"), ("sql", "sequel")].map(|(a, b)| (a.into(), b.into())).into();
    })
    .await;
    let plain = |input: &str| json!({"input": input, "markup": null, "pronunciations": null});
    let tagged = site.pcm(&plain("One [pause: 1s] two.")).await;
    assert!(tagged == site.pcm(&json!({"input": "One [[pause: 1s] two.", "pronunciations": null})).await);
    let said = site.pcm(&plain("A jif of sequel.")).await;
    assert!(said == site.pcm(&plain("A GIF of SQL.")).await);
    let own = json!({"input": "A GIF of SQL.", "markup": "none", "pronunciations": {"gif": "ghif"}});
    assert!(site.pcm(&own).await == site.pcm(&plain("A ghif of sequel.")).await);
}
