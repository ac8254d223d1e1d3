//! What should not have been sent, and what should come back.

use crate::audio;
use crate::http::Ask;
use crate::recording::{FLOAT, PCM, Wav, data_url, good, hum};
use crate::tts::{SPEECH, VOICES};
use serde_json::{Value, json};

const BATCH: &str = "/v1/audio/speech/batch";

/// One bad request.
pub struct Case {
    pub name: String,
    pub ask: Ask,
    pub status: u16,
    /// What the message says, so that somebody can do better next time.
    pub says: &'static str,
}

fn case(name: impl Into<String>, ask: Ask, status: u16, says: &'static str) -> Case {
    Case { name: name.into(), ask, status, says }
}

/// A request that a Base checkpoint answers, changed; `null` takes a field away.
pub fn cloned(change: &Value) -> Value {
    let mut body = json!({"input": "Hello there.", "max_new_tokens": 3, "ref_audio": data_url(&good(0))});
    body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    body
}

/// An upload that is fine, changed part by part: an empty content takes the part away.
pub fn upload(name: &str, changes: &[(&str, &str, &[u8])]) -> Ask {
    let recording = good(0);
    let file = ("audio_sample", "; filename=\"a.wav\"\r\nContent-Type: audio/wav", recording.as_slice());
    let mut parts = vec![("name", "", name.as_bytes()), ("consent", "", b"form 12".as_slice()), file];
    for change in changes {
        match parts.iter_mut().find(|part| part.0 == change.0) {
            Some(part) => *part = *change,
            None => parts.push(*change),
        }
    }
    parts.retain(|part| !part.2.is_empty());
    Ask::form(VOICES, &parts)
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
        case("lists in lists", json(&deep("[", "]")), 400, "recursion limit"),
        case("objects in objects", json(&deep("{\"a\":", "}")), 400, "recursion limit"),
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
fn gzip_header() -> Vec<u8> {
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
        ("sample_rate", json!(48_000), "resample in the player"),
        ("word_timestamps", json!(true), "not supported"),
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
        ("of a million numbers", json!(vec![0; 1_000_000]), "has 1000000 numbers"),
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

/// Places of recordings, for a server that fetches from `localhost` and reads files of one folder only; `port` is where
/// [`Site`](crate::site::Site) listens.
pub fn places(port: u16, folder: &str) -> Vec<Case> {
    let long_host = format!("http://{}.example/a.wav", "x".repeat(100_000));
    let mut cases = Vec::new();
    let mut place = |text: &str, says| {
        let shown: String = text.chars().take(50).collect();
        let ask = Ask::json(SPEECH, &cloned(&json!({"ref_audio": text})));
        cases.push(case(format!("a recording at {shown}"), ask, 400, says));
    };
    for (text, says) in [
        ("", "is empty"),
        ("   ", "is empty"),
        ("UklGRg=", "not an audio file"),
        ("UklGR", "is not base64, or was cut off"),
        ("UklG*g==", "is not base64"),
        ("ЁЁЁЁ", "is not base64"),
        ("data:audio/wav;base64,", "there is no audio in it"),
        ("data:audio/wav;base64", "no comma"),
        ("data:audio/wav,RIFF", "must be base64"),
        ("data:", "no comma"),
        ("data:audio/wav;base64,data:audio/wav;base64,UklGRg==", "is not base64"),
        ("file:///etc/passwd", "no such file in the folders"),
        ("file://localhost/etc/passwd", "no such file in the folders"),
        ("file://other.example/etc/passwd", "no file of this machine"),
        ("file:///proc/self/environ", "no such file in the folders"),
        ("file:///dev/zero", "no such file in the folders"),
        ("file:", "no such file in the folders"),
        ("file:///", "no such file in the folders"),
        ("FILE:///etc/shadow", "no such file in the folders"),
        ("/etc/passwd", "is not base64"),
        ("../../../etc/passwd", "is not base64"),
        ("C:\\Windows\\win.ini", "neither base64 nor an address"),
        ("\\\\server\\share\\a.wav", "is not base64"),
        ("http://127.0.0.1/a.wav", "is not one from which"),
        ("http://2130706433/a.wav", "is not one from which"),
        ("http://0x7f000001/a.wav", "is not one from which"),
        ("http://0177.0.0.1/a.wav", "is not one from which"),
        ("http://169.254.169.254/latest/meta-data/", "is not one from which"),
        ("http://[::1]/a.wav", "is not one from which"),
        ("http://[::ffff:127.0.0.1]/a.wav", "is not one from which"),
        ("http://0.0.0.0/a.wav", "is not one from which"),
        ("http://localhost.evil.example/a.wav", "is not one from which"),
        ("http://evil.example/localhost", "is not one from which"),
        ("http://evil.example#localhost", "is not one from which"),
        ("https://localhost:secret@evil.example/a.wav", "user or password"),
        ("http://user@localhost/a.wav", "user or password"),
        ("http://", "is not an address"),
        ("http://[half", "is not an address"),
        ("gopher://localhost/a.wav", "neither base64 nor an address"),
        ("ftp://localhost/a.wav", "neither base64 nor an address"),
        ("javascript:alert(1)", "neither base64 nor an address"),
        ("s3://bucket/a.wav", "neither base64 nor an address"),
        (long_host.as_str(), "is not"),
    ] {
        place(text, says);
    }
    for (path, says) in [
        ("elsewhere", "leads on to another host"),
        ("to-file", "leads on to another host"),
        ("to-metadata", "leads on to another host"),
        ("round", "leads on to another host"),
        ("missing", "answered 404 instead of a recording"),
        ("text", "not an audio file"),
        ("endless", "larger than"),
        ("cut", "broke off"),
        ("silence", "did not arrive within"),
    ] {
        place(&format!("http://localhost:{port}/{path}"), says);
    }
    place("http://localhost:1/a.wav", "could not be reached");
    for path in ["none.wav", "..", "../secret.wav", "%2e%2e/secret.wav", "link.wav", "pipe", ""] {
        place(&format!("file://{folder}/{path}"), "no such file in the folders");
    }
    place(&format!("file://{folder}/notes.txt"), "not an audio file");
    cases
}

/// Files that are no recordings of a voice.
pub fn files() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let one = hum(0, 16_000);
    let second = |sample: f32| {
        let mut samples = vec![0.1; 16_000];
        samples[8_000] = sample;
        FLOAT.floats(&samples)
    };
    let mut no_data = good(0);
    no_data.truncate(36);
    let mut bad_chunk = good(0);
    bad_chunk[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut cut_flac = audio::flac_of_silence(1, true);
    cut_flac.truncate(50);
    let mut video = b"\0\0\0\x20ftypisom\0\0\x02\0isomiso2avc1mp41".to_vec();
    video.extend_from_slice(b"\0\0\0\x08free\0\0\0\x08mdat");
    vec![
        ("one byte", vec![0], "not an audio file"),
        ("noise", (0..5000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect(), "not an audio file"),
        ("text", b"This is only a text, whatever its name says. ".repeat(50), "not an audio file"),
        ("html", b"<!DOCTYPE html><html><body>not found</body></html>".to_vec(), "not an audio file"),
        ("json", b"{\"error\": \"not found\"}".to_vec(), "not an audio file"),
        ("png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0".to_vec(), "not an audio file"),
        ("zip", b"PK\x03\x04\x14\0\0\0\x08\0".repeat(10), "not an audio file"),
        ("gzip", [gzip_header(), vec![0xff; 5000]].concat(), "not an audio file"),
        ("pdf", b"%PDF-1.7\n1 0 obj\n".to_vec(), "not an audio file"),
        ("mp4 without sound", video, "export or upload it again"),
        ("avi", b"RIFF\x24\0\0\0AVI LIST\x14\0\0\0hdrl".to_vec(), "send"),
        (
            "webm",
            b"\x1a\x45\xdf\xa3\x9f\x42\x86\x81\x01\x42\xf7\x81\x01\x42\xf2\x81\x04\x42\x82\x84webm".to_vec(),
            "convert it to",
        ),
        ("ogg with opus", audio::ogg_opus(), "convert it to"),
        ("ogg that is cut", b"OggS\0\x02".to_vec(), "ends in the middle"),
        ("midi", b"MThd\0\0\0\x06\0\x01\0\x02\x01\xe0".to_vec(), "not an audio file"),
        ("wav without samples", PCM.with(&[]), "lasts 0.00 seconds"),
        ("wav of a tenth of a second", PCM.with(&hum(0, 1_600)), "lasts 0.10 seconds"),
        ("wav of more than a minute", PCM.with(&hum(0, 16_000 * 61)), "longer than 60 seconds"),
        ("wav that claims ten hours", Wav { claims: Some(10 * 3600 * 32_000), ..PCM }.with(&one), "seconds"),
        ("wav of silence", PCM.with(&[0; 32_000]), "is silent"),
        ("wav of 8-bit silence", Wav { bits: 8, ..PCM }.with(&[128; 16_000]), "is silent"),
        ("wav at 0 Hz", Wav { rate: 0, ..PCM }.with(&one), "samples per second"),
        ("wav at 10 MHz", Wav { rate: 10_000_000, ..PCM }.with(&one), "samples per second"),
        ("wav at 4 kHz", Wav { rate: 4_000, ..PCM }.with(&one), "samples per second"),
        ("wav without channels", Wav { channels: 0, ..PCM }.with(&one), "channel"),
        ("wav of 300 channels", Wav { channels: 300, ..PCM }.with(&one), "channel"),
        ("wav of 0-bit samples", Wav { bits: 0, ..PCM }.with(&one), "wav"),
        ("wav of 7-bit samples", Wav { bits: 7, ..PCM }.with(&one), "wav"),
        ("wav of 64-bit integers", Wav { bits: 64, ..PCM }.with(&one), "wav"),
        ("wav of an unknown codec", Wav { format: 0x7777, ..PCM }.with(&one), "wav"),
        ("wav of 16-bit floats", Wav { bits: 16, ..FLOAT }.with(&one), "wav"),
        ("wav without data", no_data, "wav"),
        ("wav with an endless chunk", bad_chunk, "wav"),
        ("wav with NaN in it", second(f32::NAN), "not finite numbers"),
        ("wav with infinity in it", second(f32::INFINITY), "not finite numbers"),
        ("wav with 1e30 in it", second(1e30), "expected -1 to 1"),
        ("flac of ten hours", audio::flac_of_silence(10, true), "longer than 60 seconds"),
        ("flac of ten hours that does not say so", audio::flac_of_silence(10, false), "longer than 60 seconds"),
        ("flac that is cut", cut_flac, "seconds"),
        ("mp3 of two hours", audio::mp3_of_silence(2), "longer than 60 seconds"),
        ("ten megabytes and more", PCM.with(&vec![1; 10 << 20]), "larger than 10485760 bytes"),
    ]
}

/// Those files, in requests and as uploads.
pub fn recordings() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, file, says) in files() {
        let ask = Ask::json(SPEECH, &cloned(&json!({"ref_audio": data_url(&file)})));
        cases.push(case(format!("a recording that is {name}"), ask, 400, says));
    }
    cases
}

/// Forms.
pub fn uploads() -> Vec<Case> {
    let long = vec![b'x'; 1 << 20];
    let field = |name: &'static str, content: &[u8]| upload("new", &[(name, "", content)]);
    let gone = |name: &'static str| upload("new", &[(name, "", b"")]);
    let whole = upload("new", &[]);
    let with = |change: &dyn Fn(&mut Ask)| {
        let mut ask = whole.clone();
        change(&mut ask);
        ask
    };
    let kind = |text: &'static str| with(&|ask: &mut Ask| ask.headers = vec![format!("Content-Type: {text}")]);
    let many: Vec<(&str, &str, &[u8])> = vec![("more", "", b"1"); 5000];
    let twice = |name: &'static str| {
        Ask::form(VOICES, &[("name", "", b"new"), ("consent", "", b"yes"), (name, "", b"1"), (name, "", b"2")])
    };
    let mut cases = vec![
        case("an upload without a file", gone("audio_sample"), 400, "audio_sample is missing"),
        case("an upload without a name", gone("name"), 400, "name is missing"),
        case("an upload without consent", gone("consent"), 400, "consent is missing"),
        case("an upload with empty consent", field("consent", b"  "), 400, "consent is missing"),
        case("an upload with an empty name", field("name", b"\t \n"), 400, "name is missing"),
        case("a name of a megabyte", field("name", &long), 400, "name: is longer than"),
        case("a name of 65 letters", field("name", &[b'x'; 65]), 400, "1 to 64 letters"),
        case("a name with slashes", field("name", b"../../etc/passwd"), 400, "1 to 64 letters"),
        case("a name with a backslash", field("name", b"a\\b"), 400, "1 to 64 letters"),
        case("a name with NUL", field("name", b"a\0b"), 400, "1 to 64 letters"),
        case("a name with a line break", field("name", b"a\nb"), 400, "1 to 64 letters"),
        case("a name with markup", field("name", b"<script>"), 400, "1 to 64 letters"),
        case("a name that turns the text around", field("name", "a\u{202e}b".as_bytes()), 400, "1 to 64 letters"),
        case("a name that is no text", field("name", b"\xff\xfe"), 400, "not UTF-8"),
        case("a name that is taken", field("name", b"KEPT"), 409, "there is a voice"),
        case("a consent of a megabyte", field("consent", &long), 400, "consent: is longer than"),
        case("a transcript of a megabyte", field("ref_text", &long), 400, "ref_text: is longer than"),
        case("a description of a megabyte", field("speaker_description", &long), 400, "is longer than"),
        case("two names", twice("name"), 400, "is there twice"),
        case("two files", twice("audio_sample"), 400, "audio_sample: is there twice"),
        case("a file and an embedding", field("speaker_embedding", b"[0.5]"), 400, "together with audio_sample"),
        case("5000 parts", Ask::form(VOICES, &many), 400, "too many parts"),
        case("a form without parts", Ask::form(VOICES, &[]), 400, "name is missing"),
        case("a form with another boundary", kind("multipart/form-data; boundary=other"), 400, "not a valid form"),
        case("a form without boundary", kind("multipart/form-data"), 415, "multipart/form-data with its boundary"),
        case("a form with an empty boundary", kind("multipart/form-data; boundary="), 400, "not a valid form"),
        case("an upload as JSON", kind("application/json"), 415, "multipart/form-data"),
        case("an upload of no type", with(&|ask: &mut Ask| ask.headers.clear()), 415, "multipart/form-data"),
        case("an empty upload", with(&|ask: &mut Ask| ask.body.clear()), 400, "not a valid form"),
        case("a form that is cut", with(&|ask: &mut Ask| ask.body.truncate(5000)), 400, "not a valid form"),
        case("an upload that ends early", with(&|ask: &mut Ask| ask.length = Some("1000000")), 400, "broke off"),
        case(
            "an upload beyond the limit",
            Ask { body: vec![b'-'; (16 << 20) + 1], ..whole.clone() },
            413,
            "larger than",
        ),
    ];
    for (name, file, says) in files() {
        let ask = upload("new", &[("audio_sample", "; filename=\"a.wav\"", &file)]);
        let says = if says.starts_with("larger than") { "more than the limit of 10485760" } else { says };
        cases.push(case(format!("an upload of {name}"), ask, 400, says));
    }
    for (name, text, says) in [
        ("no list", "hello", "expected a list of numbers"),
        ("NaN", "[NaN]", "expected a list of numbers"),
        ("too few", "[0.1]", "have 64"),
        ("too many", "[0.1,0.1]", "have 64"),
    ] {
        let parts =
            [("name", "", b"new".as_slice()), ("consent", "", b"yes"), ("speaker_embedding", "", text.as_bytes())];
        cases.push(case(format!("an uploaded embedding: {name}"), Ask::form(VOICES, &parts), 400, says));
    }
    for (name, says) in [
        ("nobody", "there is no uploaded voice"),
        ("..%2f..%2fetc%2fpasswd", "there is no uploaded voice"),
        ("%00", "there is no uploaded voice"),
        ("kept%0a", "there is no uploaded voice"),
        ("%20kept", "there is no uploaded voice"),
    ] {
        let ask = Ask::new("DELETE", &format!("{VOICES}/{name}"), &[], "");
        cases.push(case(format!("deleting {name}"), ask, 404, says));
    }
    let long_name = Ask::new("DELETE", &format!("{VOICES}/{}", "x".repeat(20_000)), &[], "");
    cases.push(case("deleting a name of 20000 letters", long_name, 404, "there is no uploaded voice"));
    let no_text = Ask::new("DELETE", "/v1/audio/voices/%ff", &[], "");
    cases.push(case("deleting what is no text", no_text, 404, "there is no uploaded voice"));
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
        (format!("{}{}", "[".repeat(10_000), "]".repeat(10_000)), "recursion limit"),
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
