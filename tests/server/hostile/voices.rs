//! Recordings that should not have been sent: from places that a client has no business in, in files that are no
//! voices, in forms that say too little or too much.

use super::audio;
use super::cases::{Case, case, cloned, gzip_header};
use crate::support::http::Ask;
use crate::support::recording::{FLOAT, PCM, Wav, data_url, good, hum};
use crate::support::tts::{SPEECH, VOICES};
use serde_json::json;

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

/// Places of recordings, for a server that fetches from `localhost` and reads files of one folder only; `port` is where
/// [`Site`](super::site::Site) listens.
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
        ("data:audio/wav;base64,", "there is no data in it"),
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
        ("missing", "answered 404 instead of a file"),
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
