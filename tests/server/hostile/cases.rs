//! What should not have been sent, and what should come back.

use super::voices::upload;
use crate::support::http::Ask;
use crate::support::recording::{data_url, good};
use crate::support::tts::{SPEECH, VOICES};
use serde_json::{Value, json};

const BATCH: &str = "/v1/audio/speech/batch";

/// One bad request.
pub struct Case {
    pub name: String,
    pub ask: Ask,
    pub status: u16,
    /// What the message says, so that the client can do better next time.
    pub says: &'static str,
}

pub fn case(name: impl Into<String>, ask: Ask, status: u16, says: &'static str) -> Case {
    Case { name: name.into(), ask, status, says }
}

/// A request that a Base checkpoint answers, changed; `null` takes a field away.
pub fn cloned(change: &Value) -> Value {
    let mut body = json!({"input": "Hello there.", "max_new_tokens": 3, "ref_audio": data_url(&good(0))});
    body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    body
}

/// Bodies and methods that no route takes.
pub fn protocol() -> Vec<Case> {
    let json = |body: &str| Ask::text(SPEECH, body);
    let typed =
        |kind: &str| Ask::new("POST", SPEECH, &[&format!("Content-Type: {kind}")], cloned(&json!({})).to_string());
    let deep = |open: &str, close: &str| {
        format!("{{\"input\": \"a\", \"metadata\": {}1{}}}", open.repeat(50_000), close.repeat(50_000))
    };
    let any = |method, path: &str| Ask::new(method, path, &[], "");
    let mut zipped = json("");
    zipped.headers.push("Content-Encoding: gzip".to_owned());
    zipped.body = gzip_header();
    let mut cut = json("{\"input\": \"a\"}");
    cut.length = Some("100");
    let mut cases = vec![
        case("an empty body", json(""), 400, "the request body is empty"),
        case("a body that is no JSON", json("hello"), 400, "not valid JSON"),
        case("a body that is cut", json("{\"input\": \"hel"), 400, "not valid JSON"),
        case("a list", json("[]"), 400, "expected a JSON object, found an array"),
        case("a string", json("\"hello\""), 400, "expected a JSON object, found a string"),
        case("null", json("null"), 400, "expected a JSON object, found null"),
        case("two objects", json("{}{}"), 400, "not valid JSON"),
        case("bytes that are no text", Ask::text(SPEECH, *b"{\"input\": \"\xff\xfe\"}"), 400, "not valid JSON"),
        case("half a surrogate", json("{\"input\": \"\\ud800\"}"), 400, "not valid JSON"),
        case("lists in lists", json(&deep("[", "]")), 400, "server.max_json_depth"),
        case("objects in objects", json(&deep("{\"a\":", "}")), 400, "server.max_json_depth"),
        case("a number that is NaN", json("{\"input\": \"a\", \"speed\": NaN}"), 400, "not valid JSON"),
        case("a number without end", json("{\"input\": \"a\", \"speed\": 1e999}"), 400, "number out of range"),
        case("another content type", typed("text/plain"), 415, "send JSON"),
        case("a form where JSON belongs", typed("multipart/form-data; boundary=cut"), 415, "send JSON"),
        case("no content type", Ask::new("POST", SPEECH, &[], "{}"), 415, "Content-Type: application/json"),
        case("a zipped body", zipped, 400, "not valid JSON"),
        case("a body that ends early", cut, 400, "the request body broke off"),
        case(
            "a body beyond the limit",
            Ask::text(SPEECH, vec![b' '; (16 << 20) + 1]),
            413,
            "larger than 16777216 bytes",
        ),
        case("no such route", any("GET", "/v1/audio/speeches"), 404, "there is nothing at"),
        case("a path that leads out", any("GET", "/v1/models/../../../etc/passwd"), 404, "does not exist"),
        case("plain HTTP to the WebSocket", any("GET", "/v1/audio/speech/stream"), 426, "WebSocket"),
    ];
    for (method, path) in [
        ("GET", SPEECH),
        ("DELETE", SPEECH),
        ("GET", BATCH),
        ("PUT", VOICES),
        ("PATCH", VOICES),
        ("POST", "/v1/audio/voices/heart"),
        ("GET", "/v1/audio/voices/heart"),
        ("POST", "/v1/audio/speech/stream"),
    ] {
        cases.push(case(format!("{method} {path}"), any(method, path), 405, "does not take"));
    }
    cases
}

/// A gzip file that is nothing but its head.
pub fn gzip_header() -> Vec<u8> {
    b"\x1f\x8b\x08\0\0\0\0\0\0\x03".to_vec()
}

/// Fields of the speech route, on a Base checkpoint.
pub fn fields() -> Vec<Case> {
    let long = "x".repeat(1 << 20);
    let table = [
        ("input", Value::Null, "input is missing"),
        ("input", json!(""), "empty text"),
        ("input", json!(" \n\t"), "empty text"),
        ("input", json!(7), "expected a string, found a number"),
        ("input", json!(["a"]), "expected a string, found an array"),
        ("input", json!(long), "more than the limit of"),
        ("model", json!(7), "expected a string"),
        ("voice", json!(7), "voice: expected a string"),
        ("voice", json!({"name": "a"}), "the voice's name as \"id\""),
        ("voice", json!([]), "voice: expected a string"),
        ("response_format", json!("aac"), "wav"),
        ("response_format", json!("wav\n"), "wav"),
        ("response_format", json!(3), "expected a string"),
        ("response_format", json!(long), "wav"),
        ("speed", json!(0), "between 0.25 and 4"),
        ("speed", json!(-1), "between 0.25 and 4"),
        ("speed", json!(4.01), "between 0.25 and 4"),
        ("speed", json!(1e300), "between 0.25 and 4"),
        ("speed", json!("fast"), "expected a number, found a string"),
        ("stream", json!("yes"), "expected true or false"),
        ("stream", json!(1), "expected true or false"),
        ("stream_format", json!("xml"), "ask for \"sse\" or \"audio\""),
        ("stream_format", json!(long), "ask for \"sse\" or \"audio\""),
        ("seed", json!(1.5), "whole number of 64 bits"),
        ("seed", json!("abc"), "whole number of 64 bits"),
        ("seed", json!(1e300), "whole number of 64 bits"),
        ("temperature", json!(-0.1), "between 0 and 2"),
        ("temperature", json!("hot"), "expected a number"),
        ("top_p", json!(0), "top_p"),
        ("top_p", json!(1.5), "top_p"),
        ("top_k", json!(-5), "top_k"),
        ("top_k", json!(1.5), "expected a whole number"),
        ("min_p", json!(2), "between 0 and 1"),
        ("repetition_penalty", json!(0), "between 0.1 and 10"),
        ("frequency_penalty", json!(5), "between -2 and 2"),
        ("presence_penalty", json!(-5), "between -2 and 2"),
        ("max_new_tokens", json!(0), "is not between 1 and"),
        ("max_new_tokens", json!(-1), "is not between 1 and"),
        ("max_new_tokens", json!(10_000_000_000_u64), "is not between 1 and"),
        ("max_new_tokens", json!(1.5), "expected a whole number"),
        ("max_new_tokens", json!("many"), "expected a whole number"),
        ("initial_codec_chunk_frames", json!(-1), "is not between 0 and"),
        ("initial_codec_chunk_frames", json!(true), "expected a whole number"),
        ("ignore_eos", json!("x"), "expected true or false"),
        ("task_type", json!("Karaoke"), "choose CustomVoice, VoiceDesign or Base"),
        ("task_type", json!(7), "expected a string"),
        ("task_type", json!(long), "choose CustomVoice, VoiceDesign or Base"),
        ("task_type", json!("CustomVoice"), "needs another checkpoint: this one is for Base"),
        ("task_type", json!("VoiceDesign"), "needs another checkpoint: this one is for Base"),
        ("language", json!("Klingon"), "the languages are: auto, "),
        ("language", json!(long), "language"),
        ("language", json!("x".repeat(10_000)), "the languages are: auto, "),
        ("language", json!(["English"]), "expected a string"),
        ("language", json!("beijing_dialect"), "the languages are: auto, "),
        ("non_streaming_mode", json!("maybe"), "expected true or false"),
        ("instructions", json!("Whisper."), "does not follow instructions"),
        ("instructions", json!(7), "expected a string"),
        ("instruct", json!("Whisper."), "does not follow instructions"),
        ("x_vector_only_mode", json!("yes"), "expected true or false"),
        ("ref_text", json!(7), "expected a string"),
        ("ref_text", json!(long), "more than the limit of"),
        ("sample_rate", json!(0), "ask for 8000, 16000"),
        ("sample_rate", json!(-8_000), "ask for 8000, 16000"),
        ("sample_rate", json!(u64::MAX), "ask for 8000, 16000"),
        ("sample_rate", json!(8_000.5), "expected a whole number"),
        ("sample_rate", json!(true), "expected a whole number"),
        ("encoding", json!(long), "ask for \"pcm16\""),
        ("encoding", json!(8), "expected a string"),
        ("loudness", json!(1e300), "between -40 and -8"),
        ("loudness", json!(-70), "between -40 and -8"),
        ("loudness", json!("loud"), "expected a number, found a string"),
        ("word_timestamps", json!(true), "not supported"),
        ("timestamp_granularities", json!(["word"]), "has no aligner"),
        ("timestamp_granularities", json!(["segment"]), "ask for [\"word\"]"),
        ("timestamp_granularities", json!([long]), "ask for [\"word\"]"),
        ("timestamp_granularities", json!(["word", "word"]), "more than once"),
        ("timestamp_granularities", json!([7]), "expected strings, found a number"),
        ("timestamp_granularities", json!("word"), "expected an array, found a string"),
        ("ref_audio", Value::Null, "no voice was given"),
        ("ref_audio", json!(7), "expected a string"),
        ("ref_audio", json!(["a", "b"]), "expected one recording"),
        ("ref_audio", json!({"url": "a"}), "expected a string"),
        ("speaker_embedding", json!([0.5]), "together with ref_audio"),
    ];
    let mut cases: Vec<Case> = table
        .into_iter()
        .map(|(field, value, says)| {
            let shown = value.to_string();
            let shown = format!("{} ({} bytes)", shown.chars().take(20).collect::<String>(), shown.len());
            case(format!("{field}: {shown}"), Ask::json(SPEECH, &cloned(&json!({field: value}))), 400, says)
        })
        .collect();
    let mut more = |name: &str, change: Value, status, says| {
        cases.push(case(name, Ask::json(SPEECH, &cloned(&change)), status, says));
    };
    more("another model", json!({"model": "tts-9"}), 404, "does not exist; this server has");
    more("a model of a megabyte", json!({"model": long}), 404, "does not exist; this server has");
    more("a stream that is none", json!({"stream": false, "stream_format": "sse"}), 400, "leave one of them out");
    more("ignore_eos alone", json!({"ignore_eos": true, "max_new_tokens": null}), 400, "needs max_new_tokens");
    more("a transcript of nothing", json!({"ref_audio": null, "ref_text": "hello"}), 400, "transcript of ref_audio");
    let names = ["nobody", "vivian", "../../etc/passwd", "a\0b", "a\nb", "%2e%2e%2f", long.as_str()];
    for name in names {
        let shown: String = name.escape_default().take(20).collect();
        more(&format!("the voice {shown}"), json!({"ref_audio": null, "voice": name}), 400, "there is no voice");
    }
    cases
}

/// Embeddings, on a Base checkpoint whose own have 64 numbers.
pub fn embeddings() -> Vec<Case> {
    let fine = vec![0.1; 64];
    let with = |at: usize, value: Value| {
        let mut list = json!(fine);
        list[at] = value;
        list
    };
    let table = [
        ("none", json!([]), "has 0 numbers"),
        ("too short", json!(vec![0.1; 63]), "expected 64"),
        ("too long", json!(vec![0.1; 65]), "expected 64"),
        ("of another size of model", json!(vec![0.1; 1024]), "expected 64"),
        ("of many numbers", json!(vec![0; 90_000]), "has 90000 numbers"),
        ("of a million numbers", json!(vec![0; 1_000_000]), "server.max_json_values"),
        ("a string", json!("0.1, 0.2"), "expected a list of numbers, found a string"),
        ("an object", json!({"0": 0.1}), "expected a list of numbers, found an object"),
        ("a number", json!(0.1), "expected a list of numbers, found a number"),
        ("with a string in it", with(3, json!("0.1")), "number 3 is a string"),
        ("with NaN as a string in it", with(63, json!("NaN")), "number 63 is a string"),
        ("with null in it", with(0, Value::Null), "number 0 is null"),
        ("with a list in it", with(1, json!([0.1])), "number 1 is an array"),
        ("too large for a float", with(9, json!(1e300)), "number 9 is too large"),
    ];
    let mut cases: Vec<Case> = table
        .into_iter()
        .map(|(name, value, says)| {
            let body = cloned(&json!({"ref_audio": null, "speaker_embedding": value}));
            case(format!("an embedding {name}"), Ask::json(SPEECH, &body), 400, says)
        })
        .collect();
    for number in ["NaN", "Infinity", "-Infinity", "1e999"] {
        let list = format!("[{number}{}]", ", 0.1".repeat(63));
        let body = format!("{{\"input\": \"a\", \"speaker_embedding\": {list}}}");
        cases.push(case(format!("an embedding with {number} in it"), Ask::text(SPEECH, body), 400, "not valid JSON"));
    }
    cases
}

/// Batches that are refused as a whole.
pub fn batches() -> Vec<Case> {
    let many: Vec<Value> = (0..33).map(|i| json!({"input": format!("{i}")})).collect();
    let table = [
        ("without items", json!({"voice": "a"}), "items is missing"),
        ("of no items", json!({"items": []}), "has 0 entries; expected 1 to 32"),
        ("of 33 items", json!({"items": many}), "has 33 entries; expected 1 to 32"),
        ("whose items are a string", json!({"items": "hello"}), "items: expected an array"),
        ("whose items are an object", json!({"items": {"input": "a"}}), "items: expected an array"),
        ("of strings", json!({"items": ["hello"]}), "items[0]: expected an object, found a string"),
        ("with null in it", json!({"items": [{"input": "a"}, null]}), "items[1]: expected an object, found null"),
        ("with a list in it", json!({"items": [[]]}), "items[0]: expected an object, found an array"),
        ("that streams", json!({"items": [{"input": "a"}], "stream": true}), "answered whole"),
        ("with a number as model", json!({"items": [{"input": "a"}], "model": 7}), "expected a string"),
    ];
    let mut cases: Vec<Case> = table
        .into_iter()
        .map(|(name, body, says)| case(format!("a batch {name}"), Ask::json(BATCH, &body), 400, says))
        .collect();
    cases.push(case("a batch that is a list", Ask::text(BATCH, "[]"), 400, "expected a JSON object"));
    cases.push(case("a batch of no type", Ask::new("POST", BATCH, &[], "{}"), 415, "application/json"));
    let other = json!({"items": [{"input": "a"}], "model": "tts-9"});
    cases.push(case("a batch for another model", Ask::json(BATCH, &other), 404, "does not exist"));
    cases
}

/// What a checkpoint with voices of its own cannot do. `small` follows no instructions.
pub fn custom_voice(small: bool) -> Vec<Case> {
    let speak = |change: Value| {
        let mut body = json!({"input": "Hello there.", "max_new_tokens": 3});
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        Ask::json(SPEECH, &body)
    };
    let recording = data_url(&good(0));
    let mut cases = vec![
        case("a clone of a voice", speak(json!({"ref_audio": recording})), 400, "cannot clone a voice"),
        case("an embedding", speak(json!({"speaker_embedding": vec![0.1; 64]})), 400, "cannot clone a voice"),
        case("an unknown voice", speak(json!({"voice": "nobody"})), 400, "choose one of: "),
        case("another speaker's name", speak(json!({"speaker": "heart"})), 400, "choose one of: "),
        case("the task Base", speak(json!({"task_type": "Base"})), 400, "needs another checkpoint"),
        case("the task VoiceDesign", speak(json!({"task_type": "VoiceDesign"})), 400, "needs another checkpoint"),
        case("an unknown language", speak(json!({"language": "Klingon"})), 400, "the languages are: auto, "),
        case("a dialect as a language", speak(json!({"language": "sichuan_dialect"})), 400, "is a dialect"),
        case("an upload", upload("new", &[]), 400, "Base"),
        case(
            "deleting a voice of the model",
            Ask::new("DELETE", "/v1/audio/voices/Vivian", &[], ""),
            400,
            "belongs to the model",
        ),
    ];
    for address in ["http://localhost/a.wav", "https://example.com/a.wav"] {
        let ask = speak(json!({"ref_audio": address}));
        cases.push(case(format!("a recording at {address}"), ask, 400, "fetches nothing"));
    }
    cases.push(case("a recording in a file", speak(json!({"ref_audio": "file:///etc/passwd"})), 400, "reads no files"));
    if small {
        let ask = speak(json!({"voice": "vivian", "instructions": "Whisper."}));
        cases.push(case("instructions", ask, 400, "does not follow instructions"));
    }
    cases
}

/// Messages over the WebSocket of a Base checkpoint.
pub fn messages() -> Vec<(String, &'static str)> {
    let config = |change: Value| {
        let mut message = json!({"type": "session.config"});
        message.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        message.to_string()
    };
    let long = "x".repeat(1 << 20);
    vec![
        (String::new(), "empty"),
        ("hello".into(), "not valid JSON"),
        ("[]".into(), "expected a JSON object"),
        ("{}".into(), "type is missing"),
        ("{\"type\": 7}".into(), "expected a string"),
        ("{\"type\": \"speak\"}".into(), "send one of"),
        (json!({"type": long}).to_string(), "send one of"),
        ("{\"type\": \"input.text\"}".into(), "text is missing"),
        ("{\"type\": \"input.text\", \"text\": 7}".into(), "expected a string"),
        (format!("{}{}", "[".repeat(10_000), "]".repeat(10_000)), "server.max_json_depth"),
        ("{\"type\": \"input.commit\"}".into(), "without any input.text"),
        ("{\"type\": \"input.commit\", \"commit_id\": 7}".into(), "expected a string"),
        (config(json!({"word_timestamps": true})), "not supported"),
        (config(json!({"timestamp_granularities": ["word"]})), "has no aligner"),
        (config(json!({"timestamp_granularities": {"word": true}})), "expected an array"),
        (config(json!({"voice": "nobody"})), "there is no voice"),
        (config(json!({"voice": long})), "there is no voice"),
        (config(json!({"model": "tts-9"})), "does not exist"),
        (config(json!({"response_format": "aac"})), "wav"),
        (config(json!({"speed": 9})), "between 0.25 and 4"),
        (config(json!({"max_new_tokens": 0})), "is not between 1 and"),
        (config(json!({"ignore_eos": true, "max_new_tokens": 3})), "ignore_eos"),
        (config(json!({"ref_audio": "file:///etc/passwd"})), "no such file in the folders"),
        (config(json!({"ref_audio": "UklGR"})), "is not base64"),
        (config(json!({"speaker_embedding": ["NaN"]})), "number 0 is a string"),
        (config(json!({"ref_text": "hello"})), "transcript of ref_audio"),
        (config(json!({"language": 7})), "expected a string"),
        (config(json!({"task_type": "Karaoke"})), "choose CustomVoice"),
    ]
}
