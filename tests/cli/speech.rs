//! The commands that speak, with the embedded voice and the real engine.
#![cfg(feature = "embedded-voice")]

use crate::support::omni::{Omni, omni};
use crate::support::pictures::bmp;
use crate::support::recording::good;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

/// Samples of a wav file, and its rate.
fn wav(bytes: &[u8]) -> (Vec<i16>, u32) {
    let mut reader = hound::WavReader::new(bytes).unwrap();
    let rate = reader.spec().sample_rate;
    (reader.samples().map(Result::unwrap).collect(), rate)
}

fn loudest(samples: &[i16]) -> u16 {
    samples.iter().map(|sample| sample.unsigned_abs()).max().unwrap_or(0)
}

fn say(args: &[&str]) -> Vec<u8> {
    let omni = Omni::new();
    let file = omni.path("speech.wav");
    let mut all = vec!["say", "-o", &file];
    all.extend(args);
    let omni = omni.arguments(&all);
    omni.run().succeeds().tells("real-time factor").tells("seed ");
    assert_eq!(std::fs::read_dir(omni.folder()).unwrap().count(), 1, "only the wav is left");
    std::fs::read(&file).unwrap()
}

#[test]
fn say_speaks_and_a_seed_repeats_it_sample_for_sample() {
    let first = say(&["Good morning.", "--seed", "7"]);
    let (samples, rate) = wav(&first);
    assert_eq!(rate, 24_000);
    assert!(samples.len() > 12_000 && loudest(&samples) > 1_000, "{} samples", samples.len());
    assert!(first == say(&["Good morning.", "--seed", "7"]), "the same seed gives the same file");
    assert!(first != say(&["Good morning.", "--seed", "8"]), "another seed gives another");
    assert!(first != say(&["Good morning.", "--seed", "7", "--voice", "ALTO"]), "so does another voice");
}

#[test]
fn a_checkpoint_folder_speaks_like_the_embedded_copy_of_it() {
    let folder = ["Good morning.", "--seed", "7", "--checkpoint", "assets/voice/checkpoint"];
    assert!(say(&folder) == say(&folder[..3]));
}

#[test]
fn an_answer_follows_from_a_recording_a_picture_and_a_seed() {
    let omni = Omni::new();
    let (question, photo, answer) = (omni.path("question.wav"), omni.path("photo.bmp"), omni.path("answer.wav"));
    std::fs::write(&question, good(1)).unwrap();
    std::fs::write(&photo, bmp(96, 64)).unwrap();
    let omni = omni.arguments(&["say", "--audio", &question, "--image", &photo, "--seed", "7", "--output", &answer]);
    let omni = omni.more(&["--checkpoint", "tests/fixtures/qwen3_omni", "--max-frames", "4"]);
    let spoken = || {
        omni.run().succeeds();
        std::fs::read(&answer).unwrap()
    };
    let first = spoken();
    assert!(first.starts_with(b"RIFF") && first.len() > 44);
    assert!(spoken() == first);
    std::fs::write(&photo, bmp(64, 96)).unwrap();
    assert!(spoken() != first, "another picture");
}

#[test]
fn what_cannot_be_heard_or_seen_is_told_with_its_file() {
    let omni = Omni::new();
    let picture = omni.file("a.png", "no picture");
    let blind = omni.arguments(&["say", "--image", &picture, "What is it?"]);
    blind.run().exits(2).tells("a.png: this model cannot see");
    let omni = Omni::new();
    let (picture, fixture) = (omni.file("a.png", "no picture"), "tests/fixtures/qwen3_omni");
    let seeing = omni.arguments(&["say", "--image", &picture, "--checkpoint", fixture]);
    seeing.run().exits(2).tells("a.png: this is not an image file");
    self::omni(["say", "--audio", "/no/such.wav"]).run().exits(1).tells("cannot read /no/such.wav");
    self::omni(["say"]).run().exits(2).tells("<TEXT>");
}

#[test]
fn markup_is_read_where_it_is_asked_for() {
    let one = wav(&say(&["Good morning.", "--seed", "7"])).0.len();
    let text = "Good morning. [pause: 0.5s] [voice: alto] [rate: 200%] Good morning.";
    let both = wav(&say(&[text, "--seed", "7", "--markup", "brackets"])).0;
    assert!(both[one..one + 12_000].iter().all(|sample| *sample == 0), "half a second of silence behind {one} samples");
    assert!(loudest(&both[one + 12_000..]) > 1_000);
    omni(["say", "Hello [laugh].", "--markup", "brackets"]).run().exits(2).tells("line 1, column 7: the tag [laugh]");
    omni(["say", "Hello.", "--markup", "html"]).run().exits(2).tells("is neither ssml nor brackets");
}

#[test]
fn the_ending_of_the_file_is_its_format() {
    let plain = wav(&say(&["Good morning.", "--seed", "7"])).0.len();
    for (name, magic) in
        [("a.flac", b"fLaC".as_slice()), ("a.mp3", b"\xff\xf3"), ("a.opus", b"OggS"), ("a.ogg", b"OggS")]
    {
        let omni = Omni::new();
        let file = omni.path(name);
        let omni = omni.arguments(&["say", "Good morning.", "--seed", "7", "-o", &file]);
        omni.run().succeeds();
        assert_eq!(&std::fs::read(&file).unwrap()[..magic.len()], magic, "{name}");
    }
    let faster = say(&["Good morning.", "--seed", "7", "--speed", "2", "--format", "wav"]);
    assert_eq!(wav(&faster).0.len(), plain.div_ceil(2));
    omni(["say", "Hi.", "-o", "a.m4a"]).run().exits(2).tells("the ending names no format");
    omni(["say", "Hi.", "--speed", "9"]).run().exits(2).tells("is not between 0.25 and 4");
}

#[test]
fn speech_begins_without_a_click() {
    let both = |ask: &[&str]| {
        [&[][..], &["--set", "speech.fade_in=0ms"]].map(|fade| wav(&say(&[ask, &["--seed", "7"], fade].concat())).0)
    };
    // The voice itself: nothing is said before 50 ms.
    let [faded, as_made] = both(&["Good morning."]);
    assert!(loudest(&as_made[..1_200]) < 30, "{:?}", &as_made[..1_200]);
    assert!(loudest(&faded[..480]) < 30 && faded[240..] == as_made[240..], "{:?}", &faded[..480]);
    // Random weights are loud from the first sample on.
    let [faded, as_made] = both(&["Hello", "--checkpoint", "tests/fixtures/qwen3_omni", "--max-frames", "4"]);
    assert!(loudest(&as_made[..24]) > 10 * loudest(&faded[..24]).max(1), "{:?} {:?}", &as_made[..24], &faded[..24]);
    assert!(faded[..240] != as_made[..240] && faded[240..] == as_made[240..]);
}

#[test]
fn say_resamples_encodes_for_telephones_and_sets_the_loudness() {
    let ask = ["Good morning.", "--seed", "7"];
    let (plain, _) = wav(&say(&ask));
    let (narrow, rate) = wav(&say(&[&ask[..], &["--sample-rate", "16000"]].concat()));
    assert_eq!((rate, narrow.len()), (16_000, (plain.len() * 2 + 1) / 3));
    let (quiet, _) = wav(&say(&[&ask[..], &["--loudness", "-35"]].concat()));
    let (loud, _) = wav(&say(&[&ask[..], &["--loudness", "-29"]].concat()));
    assert_eq!(quiet.len(), plain.len());
    let ratio = f32::from(loudest(&loud)) / f32::from(loudest(&quiet));
    assert!((ratio - 1.995).abs() < 0.01, "{ratio}");

    let omni = Omni::new();
    let file = omni.path("menu.ulaw");
    let omni = omni.arguments(&["say", ask[0], "--seed", "7", "-o", &file]);
    omni.run().succeeds();
    assert_eq!(std::fs::read(&file).unwrap().len(), (plain.len() + 1) / 3);
    for (args, told) in [
        (["--sample-rate", "11025"], "16000, 22050"),
        (["--loudness", "3"], "between -40 and -8"),
        (["--format", "aac"], "\"mulaw\", \"alaw\""),
    ] {
        Omni::new().arguments(&[&["say", "x"][..], &args].concat()).run().exits(2).tells(told);
    }
    let opus = ["say", "x", "--format", "opus", "--sample-rate", "22050"];
    Omni::new().args(opus).run().exits(2).tells("opus carries 8000, 16000, 24000, 48000");
}

#[test]
fn say_reads_stdin_and_streams_to_stdout() {
    let done = omni(["say", "-", "-o", "-", "--seed", "7"]).stdin("Good morning.\n").run();
    done.succeeds().tells("stdout: ");
    // The header leaves the length open; what follows is what the file of the same seed has.
    let file = say(&["Good morning.", "--seed", "7"]);
    assert_eq!(&done.stdout_bytes[..4], b"RIFF");
    assert!(done.stdout_bytes[44..] == file[44..]);
}

#[test]
fn say_can_answer() {
    let omni = Omni::new();
    let file = omni.path("answer.wav");
    let omni = omni.args(["say", "--chat", "What is the capital of France?", "--temperature", "0", "-o", &file]);
    omni.run().succeeds().tells("Paris");
    assert!(loudest(&wav(&std::fs::read(&file).unwrap()).0) > 1_000);
}

#[test]
fn a_voice_that_does_not_exist_is_told_and_leaves_no_file() {
    let omni = Omni::new();
    let file = omni.path("speech.wav");
    let omni = omni.args(["say", "Hello.", "--voice", "bob", "-o", &file]);
    omni.run().exits(2).tells("heart").tells("alto");
    assert_eq!(std::fs::read_dir(omni.folder()).unwrap().count(), 0);
}

#[test]
fn a_server_serves_is_measured_and_drains() {
    let server = omni(["run", "--listen", "127.0.0.1:0"]).serve();
    let done = omni(["bench", "--url", &server.url, "--requests", "2", "--warmup", "0"]).run();
    done.succeeds().shows("2/2").shows("c=1");
    server.signal("TERM");
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn a_stream_under_way_is_finished_before_the_server_ends() {
    let server = omni(["run", "--listen", "127.0.0.1:0"]).serve();
    let mut stream = begin_stream(&server.url, 20);
    server.signal("TERM");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.ends_with(b"0\r\n\r\n"), "the last chunk came");
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn a_second_signal_ends_the_server_at_once() {
    let server = omni(["run", "--listen", "127.0.0.1:0"]).serve();
    // Far more speech than a client that does not read will ever get.
    let _unread = begin_stream(&server.url, 2_000);
    server.signal("INT");
    wait_for_refusal(&server.url);
    server.signal("INT");
    assert_eq!(server.exit_code(), Some(130));
}

#[test]
fn an_address_in_use_is_told() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    omni(["run", "--listen", &address]).run().exits(1).tells("cannot listen on").tells(&address);
}

#[test]
fn bench_measures_the_embedded_voice_in_its_own_process() {
    // As many at once as a batch takes: every one must come through, none may wait for ever.
    let load = ["--concurrency", "8", "--requests", "8", "--warmup", "0"];
    let patience = ["--timeout", "600", "--set", "limits.request_timeout=10m"];
    let done = Omni::new().arguments(&[&["bench"], &load[..], &patience].concat()).run();
    done.succeeds().shows("omni-actors-voice in this process").shows("8/8");
    assert!(!done.stderr.contains("ERROR"), "{}", done.stderr);
}

/// Asks for that many frames of speech and waits for the head of the answer.
fn begin_stream(url: &str, frames: u32) -> TcpStream {
    let body = format!(
        "{{\"input\": \"Hello.\", \"stream\": true, \"stream_format\": \"audio\", \"response_format\": \"pcm\", \
         \"max_new_tokens\": {frames}, \"ignore_eos\": true}}"
    );
    let mut stream = TcpStream::connect(url.trim_start_matches("http://")).unwrap();
    let head =
        "POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close";
    write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = [0; 15];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
    stream
}

/// Until the server has seen the signal and says that it is stopping.
fn wait_for_refusal(url: &str) {
    let address = url.trim_start_matches("http://");
    // Each turn waits for an answer; the bound only keeps a broken server from hanging the test.
    for _ in 0..10_000 {
        // A refused connection is an answer, too.
        let Ok(mut stream) = TcpStream::connect(address) else { return };
        let sent = write!(stream, "GET /ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer);
        if sent.is_err() || read.is_err() || answer.starts_with("HTTP/1.1 503") {
            return;
        }
    }
    panic!("the server goes on as if there had been no signal");
}

#[test]
fn say_speaks_with_the_voice_of_a_recording() {
    let base = ["--checkpoint", "tests/fixtures/qwen3_tts/base", "--max-frames", "4", "--seed", "7"];
    let recording = ["Good morning.", "--ref-audio", "tests/fixtures/audio/mono.flac"];
    let (samples, rate) = wav(&say(&[&recording[..], &base].concat()));
    assert_eq!((samples.len(), rate), (4 * 1920, 24_000));
    let with_text = say(&[&recording[..], &base, &["--ref-text", "one two"]].concat());
    assert!(wav(&with_text).0 != samples, "the manner of the recording is heard");
    let nobody = Omni::new().arguments(&[&["say", "Good morning."], &base[..]].concat());
    nobody.run().exits(2).tells("give a recording");
    let told = Omni::new().arguments(&[&["say", "--instructions", "slowly"], &recording[..], &base].concat());
    told.run().exits(2).tells("does not follow instructions");
}

#[test]
fn trace_writes_a_file_and_says_what_is_in_it() {
    let omni = Omni::new();
    let file = omni.path("trace.json");
    let omni = omni.arguments(&["trace", "--frames", "8", "--concurrency", "2", "--requests", "3", "-o", &file]);
    omni.run().succeeds().shows("0 missing").shows("talker").shows("vocoder").shows("ui.perfetto.dev");
    assert_eq!(std::fs::read_dir(omni.folder()).unwrap().count(), 1, "only the trace is left");
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let requests = events.iter().filter(|event| event["name"].as_str().unwrap().starts_with("speech ")).count();
    assert_eq!(requests, 3);
    let drawn = std::process::Command::new("python3")
        .args(["scripts/timeline.py", &file, "--frames", "6", "-o", &omni.path("timeline.svg")])
        .output()
        .unwrap();
    assert!(drawn.status.success(), "{}", String::from_utf8_lossy(&drawn.stderr));
}

#[test]
fn trace_says_what_is_wrong() {
    omni(["trace", "--concurrency", "0"]).run().exits(2).tells("--concurrency");
    omni(["trace", "--url", "ftp://here"]).run().exits(2).tells("only http:// is supported");
    omni(["trace", "--url", "http://127.0.0.1:1"]).run().exits(1).tells("no answer from http://127.0.0.1:1");
    omni(["trace", "--url", "http://127.0.0.1:1", "--text", "Hello."]).run().exits(2).tells("cannot be used with");
    omni(["trace", "--voice", "nobody", "-o", "/dev/null"]).run().exits(2).tells("nobody");
}
