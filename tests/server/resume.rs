//! A client that lost its connection asks again, with the seed and its position, and hears the rest, bit for bit: in
//! each format, over each way to send it, on another server, and where a stage dies.

use crate::e2e_http::{SPEECH, Site, WAV_HEADER, decode};
use crate::support::engine::idle;
use crate::support::http::Ask;
use crate::support::recording::{data_url, good};
use crate::support::tts;
use futures::{SinkExt, StreamExt};
use omni_actors::core::ids::StageName;
use omni_actors::fault::{FaultKind, FaultPoint, FaultRule};
use reqwest::{Response, StatusCode};
use serde_json::{Value, json};
use std::time::Duration;
use tokio_tungstenite::tungstenite::Message;

const UNKNOWN_END: u64 = (1 << 53) - 1;
const SEED: u64 = 5;

/// Two sentences of ten frames each.
fn speech(more: &Value) -> Value {
    let mut body = json!({"input": "One, two, three, four, five and six. Seven, eight, nine, ten and eleven.",
        "max_new_tokens": 10, "response_format": "pcm"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn with(mut body: Value, field: &str, value: impl Into<Value>) -> Value {
    body[field] = value.into();
    body
}

impl Site {
    /// Asks with a header.
    async fn ask(&self, body: &Value, header: &str, value: &str) -> Response {
        let request = self.client.post(format!("http://{}{SPEECH}", self.address)).header(header, value);
        request.json(body).send().await.unwrap()
    }

    /// The whole answer.
    async fn whole(&self, body: &Value) -> Vec<u8> {
        let response = self.ask(body, "accept", "*/*").await;
        assert_eq!(response.status(), 200, "{body}");
        response.bytes().await.unwrap().into()
    }

    /// Asks for a refusal: status, code and field.
    async fn refusal(&self, body: &Value, header: &str, value: &str) -> (u16, String, String) {
        let response = self.ask(body, header, value).await;
        let status = response.status().as_u16();
        let error: Value = response.json().await.unwrap();
        let text = |field: &str| error["error"][field].as_str().unwrap().to_owned();
        (status, text("code"), text("param"))
    }
}

/// The rest of an answer from a byte on.
async fn rest(site: &Site, body: &Value, byte: usize) -> (StatusCode, String, Vec<u8>) {
    let response = site.ask(body, "range", &format!("bytes={byte}-")).await;
    let range = response.headers().get("content-range").map_or("", |range| range.to_str().unwrap()).to_owned();
    (response.status(), range, response.bytes().await.unwrap().into())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_goes_on_at_any_byte() {
    let site = Site::new(|_| {}).await;
    for (format, speed) in [("pcm", 1.0), ("pcm", 1.3), ("wav", 1.0), ("flac", 1.0), ("mp3", 0.7)] {
        for stream in [true, false] {
            let mut body = speech(&json!({"response_format": format, "speed": speed, "seed": SEED, "stream": stream}));
            if stream {
                body["stream_format"] = json!("audio");
            }
            let file = site.whole(&body).await;
            let length = file.len();
            for byte in [1, WAV_HEADER - 1, WAV_HEADER, length / 2 + 1, length - 1] {
                let (status, range, rest) = rest(&site, &body, byte).await;
                assert_eq!(status, 206, "{format}");
                assert!(rest == file[byte..], "{format}, {speed} times as fast, streamed: {stream}, from byte {byte}");
                let told = match stream {
                    true => format!("bytes {byte}-{UNKNOWN_END}/*"),
                    false => format!("bytes {byte}-{}/{length}", length - 1),
                };
                assert_eq!(range, told);
            }
            for beyond in [length, length + 1, UNKNOWN_END as usize] {
                let (status, range, error) = rest(&site, &body, beyond).await;
                assert_eq!((status.as_u16(), range), (416, format!("bytes */{length}")), "{format}");
                let error: Value = serde_json::from_slice(&error).unwrap();
                assert_eq!(error["error"]["code"], "range_not_satisfiable");
            }
            let (status, _, all) = rest(&site, &body, 0).await;
            assert!(status == 200 && all == file, "from the first byte on is the whole");
        }
    }
    idle(&site.engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_lost_its_connection_hears_the_rest_from_any_server() {
    let site = Site::new(|_| {}).await;
    let body = speech(&json!({"initial_codec_chunk_frames": 1}));
    let mut answer = site.ask(&body, "accept", "*/*").await;
    let seed: u64 = answer.headers()["x-seed"].to_str().unwrap().parse().unwrap();
    // Half of what comes first: on a busy machine that may be all there is.
    let mut heard = answer.chunk().await.unwrap().unwrap().to_vec();
    heard.truncate(heard.len() / 2);
    // The connection breaks.
    drop(answer);
    idle(&site.engine).await;

    let body = with(body, "seed", seed);
    let file = site.whole(&body).await;
    assert!(heard.len() < file.len() && file.starts_with(&heard));
    let (status, _, mut more) = rest(&site, &body, heard.len()).await;
    assert_eq!(status, 206);
    heard.append(&mut more);
    assert!(heard == file, "other samples");

    // Another server, on which stages die meanwhile: behind the position and before it. One sentence with a seed, since
    // two may share their steps, and the talker is to have as many as this counts.
    let body = speech(&json!({"input": "One, two, three, four, five.", "max_new_tokens": 20, "seed": SEED}));
    let file = site.whole(&body).await;
    for (stage, nth) in [(StageName::Talker, 15), (StageName::Talker, 3), (StageName::Vocoder, 2)] {
        let rule = FaultRule::new(stage, FaultPoint::Runner, FaultKind::Panic).nth(nth);
        let other = Site::new(|config| {
            config.faults = vec![rule];
            config.supervision.backoff = Duration::from_millis(1);
        })
        .await;
        let half = file.len() / 2;
        let (status, _, more) = rest(&other, &body, half).await;
        assert_eq!(status, 206);
        assert!(more == file[half..], "other samples behind a {stage} that died");
        let health: Value =
            other.client.get(format!("http://{}/health", other.address)).send().await.unwrap().json().await.unwrap();
        let restarts: u64 =
            health["stages"].as_array().unwrap().iter().map(|stage| stage["restarts"].as_u64().unwrap()).sum();
        assert_eq!(restarts, 1, "{health}");
    }
}

#[test]
fn a_cloned_voice_goes_on_after_a_restart() {
    let voices = tempfile::tempdir().unwrap();
    let serve = || tts::serve(&tts::fixture("base"), voices.path(), "");
    let body = speech(&json!({"seed": SEED, "ref_audio": data_url(&good(1)), "ref_text": "La la la."}));
    let first = serve();
    let file = tts::speaks(&first.url, &body);
    first.signal("KILL");
    drop(first);

    let second = serve();
    let mut again = Ask::json(SPEECH, &body);
    let byte = file.len() / 2 + 1;
    again.headers.push(format!("Range: bytes={byte}-"));
    let rest = again.send(&second.url);
    assert_eq!(rest.status, 206);
    assert!(rest.body == file[byte..], "other samples");
    let start = file.len() / 4;
    assert!(tts::speaks(&second.url, &with(body, "start_sample", start)) == file[2 * start..], "other samples");
    let metrics = Ask::new("GET", "/metrics", &[], "").send(&second.url);
    let metrics = String::from_utf8(metrics.body).unwrap();
    for by in ["byte", "sample"] {
        assert!(metrics.contains(&format!("omni_http_resumed_total{{by=\"{by}\"}} 1\n")), "{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_file_begins_at_a_sample() {
    let site = Site::new(|_| {}).await;
    for speed in [1.0, 1.7] {
        let body = speech(&json!({"seed": SEED, "speed": speed}));
        let pcm = site.whole(&body).await;
        let samples = pcm.len() / 2;
        for start in [0, 1, 1921, samples / 2, samples - 1, samples] {
            let from = with(body.clone(), "start_sample", start);
            assert!(site.whole(&from).await == pcm[2 * start..], "pcm from sample {start}");
            let wav = site.whole(&with(from.clone(), "response_format", "wav")).await;
            assert!(wav[WAV_HEADER..] == pcm[2 * start..], "wav from sample {start}");
            assert_eq!(hound::WavReader::new(wav.as_slice()).unwrap().duration() as usize, samples - start);
            // The new file may be cut as well.
            if start == samples / 2 {
                assert!(rest(&site, &from, 100).await.2 == pcm[2 * start + 100..]);
            }
        }
        for (format, first) in [("mp3", &[0xff_u8][..]), ("opus", b"OggS"), ("flac", b"fLaC")] {
            let from = with(with(body.clone(), "start_sample", samples / 2), "response_format", format);
            assert!(site.whole(&from).await.starts_with(first), "a {format} file of its own");
        }
        for beyond in [samples as u64 + 1, UNKNOWN_END] {
            for stream in [json!(false), json!(true), Value::Null] {
                let body = with(with(body.clone(), "start_sample", beyond), "stream", stream);
                let refused = site.refusal(&body, "accept", "*/*").await;
                assert_eq!(refused, (416, "range_not_satisfiable".into(), "start_sample".into()));
            }
        }
    }
    idle(&site.engine).await;
}

/// An event of a stream: its id, which is empty where it has none, and its data.
fn event(text: &str) -> (String, Value) {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    (field("id: ").to_owned(), serde_json::from_str(field("data: ")).unwrap())
}

async fn events(response: Response) -> Vec<(String, Value)> {
    assert_eq!(response.status(), 200);
    response.text().await.unwrap().split_terminator("\n\n").map(event).collect()
}

fn audio(events: &[(String, Value)]) -> Vec<u8> {
    events.iter().filter(|(_, data)| data["audio"].is_string()).flat_map(|(_, data)| decode(&data["audio"])).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn events_go_on_behind_the_last_one_that_came() {
    let site = Site::new(|_| {}).await;
    for format in ["pcm", "wav", "flac", "mp3"] {
        let body = speech(&json!({"response_format": format, "seed": SEED, "stream": true}));
        let all = events(site.ask(&body, "last-event-id", "").await).await;
        let file = audio(&all);
        let mut bytes = 0;
        for (at, (id, data)) in all.iter().enumerate() {
            bytes += audio(&all[at..=at]).len();
            assert_eq!(*id, bytes.to_string(), "{format}: {}", data["type"]);
            let more = events(site.ask(&body, "last-event-id", id).await).await;
            assert!(audio(&more) == file[bytes..], "{format} behind event {at}");
            assert_eq!(more.last().unwrap(), all.last().unwrap(), "usage and end are those of the whole");
        }
        let beyond = (bytes + 1).to_string();
        let refused = site.refusal(&body, "last-event-id", &beyond).await;
        assert_eq!(refused, (416, "range_not_satisfiable".into(), "Last-Event-ID".into()));
    }
    let opus = speech(&json!({"response_format": "opus", "stream": true}));
    assert!(events(site.ask(&opus, "accept", "*/*").await).await.iter().all(|(id, _)| id.is_empty()));
    idle(&site.engine).await;
}

/// Speaks over a WebSocket: the messages and the audio up to `session.closed`, or up to some bytes of audio, where the
/// connection is dropped.
async fn spoken(site: &Site, config: &Value, texts: &[&str], most: usize) -> (Vec<Value>, Vec<u8>) {
    let mut socket = site.socket().await;
    let mut say = vec![with(config.clone(), "type", "session.config")];
    for text in texts {
        say.extend([json!({"type": "input.text", "text": text}), json!({"type": "input.done"})]);
    }
    say.push(json!({"type": "session.close"}));
    for message in say {
        socket.send(Message::text(message.to_string())).await.unwrap();
    }
    let (mut messages, mut audio) = (Vec::new(), Vec::new());
    while audio.len() < most
        && let Some(Ok(message)) = socket.next().await
    {
        match message {
            Message::Binary(bytes) => audio.extend_from_slice(&bytes),
            Message::Text(text) => messages.push(serde_json::from_str(&text).unwrap()),
            _ => {}
        }
    }
    (messages, audio)
}

fn of_type<'a>(messages: &'a [Value], kind: &str) -> Vec<&'a Value> {
    messages.iter().filter(|message| message["type"] == kind).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_utterance_goes_on_over_another_websocket() {
    let site = Site::new(|_| {}).await;
    let text = "One, two, three, four, five and six. Seven, eight, nine, ten and eleven.";
    let config = json!({"max_new_tokens": 10, "initial_codec_chunk_frames": 1});
    let (messages, mut heard) = spoken(&site, &config, &[text], 1).await;
    let started = of_type(&messages, "audio.start")[0].clone();
    assert_eq!(started["start_sample"], 0);
    idle(&site.engine).await;

    let config = with(config, "seed", started["seed"].clone());
    let (_, all) = spoken(&site, &config, &[text], usize::MAX).await;
    assert!(!heard.is_empty() && heard.len() < all.len());
    let start = heard.len() / 2;
    let (messages, more) = spoken(&site, &with(config.clone(), "start_sample", start), &[text, text], usize::MAX).await;
    heard.extend_from_slice(&more[..all.len() - heard.len()]);
    assert!(heard == all, "other samples");
    // The position was that of one utterance.
    assert!(more[all.len() - 2 * start..] == all, "the next utterance is whole");
    let starts: Vec<_> = of_type(&messages, "audio.start").iter().map(|start| start["start_sample"].clone()).collect();
    assert_eq!(starts, [json!(start), json!(0)]);
    assert_eq!(of_type(&messages, "audio.done")[0]["samples"], all.len() / 2 - start);

    let beyond = with(config, "start_sample", all.len() / 2 + 1);
    let (messages, nothing) = spoken(&site, &beyond, &[text], usize::MAX).await;
    let errors = of_type(&messages, "error");
    assert!(nothing.is_empty() && errors.len() == 1, "{messages:?}");
    assert_eq!((&errors[0]["code"], &errors[0]["param"]), (&json!("range_not_satisfiable"), &json!("start_sample")));
    // Without its seed an utterance would be another one.
    let (messages, _) = spoken(&site, &json!({"start_sample": 1}), &[], usize::MAX).await;
    assert_eq!(of_type(&messages, "error")[0]["param"], "seed");
    idle(&site.engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn positions_that_make_no_sense_are_refused() {
    let site = Site::new(|_| {}).await;
    let body = speech(&json!({"seed": SEED}));
    let invalid = |param: &str| (400, "invalid_value".to_owned(), param.to_owned());
    for (wrong, code) in [
        (json!(-1), "invalid_value"),
        (json!(UNKNOWN_END + 1), "invalid_value"),
        (json!(u64::MAX), "invalid_value"),
        (json!(1.5), "invalid_type"),
        (json!("1"), "invalid_type"),
    ] {
        let refused = site.refusal(&with(body.clone(), "start_sample", wrong), "accept", "*/*").await;
        assert_eq!(refused, (400, code.to_owned(), "start_sample".to_owned()));
    }
    for wrong in ["bytes=-1", "bytes=5-4", "bytes=1-2,4-", "bytes=9007199254740992-", "bytes=99999999999999999999999-"]
    {
        assert_eq!(site.refusal(&body, "range", wrong).await, invalid("Range"), "{wrong}");
    }
    let events = with(body.clone(), "stream", true);
    for wrong in ["-1", "first", "9007199254740992"] {
        assert_eq!(site.refusal(&events, "last-event-id", wrong).await, invalid("Last-Event-ID"), "{wrong}");
    }
    // Pages of opus end where pieces ended.
    let opus = with(body.clone(), "response_format", "opus");
    assert_eq!(site.refusal(&opus, "range", "bytes=100-").await, invalid("Range"));
    // Without a seed the answer would be another one.
    let missing = (400, "missing_required_parameter".to_owned(), "seed".to_owned());
    let unseeded = speech(&json!({}));
    assert_eq!(site.refusal(&unseeded, "range", "bytes=100-").await, missing);
    assert_eq!(site.refusal(&with(unseeded.clone(), "stream", true), "last-event-id", "100").await, missing);
    assert_eq!(site.refusal(&with(unseeded, "start_sample", 1), "accept", "*/*").await, missing);
    // Another unit is another server's.
    assert_eq!(site.ask(&body, "range", "samples=100-").await.status(), 200);
    // An item of a batch comes whole.
    for batch in [
        json!({"items": [{"input": "One.", "seed": 1, "start_sample": 1}]}),
        json!({"items": [{"input": "One."}], "seed": 1, "start_sample": 1}),
    ] {
        let url = format!("http://{}{SPEECH}/batch", site.address);
        let refused = site.client.post(url).json(&batch).send().await.unwrap();
        let error: Value = refused.json().await.unwrap();
        assert_eq!(error["error"]["code"], "unsupported_parameter", "{error}");
    }
    idle(&site.engine).await;
}
