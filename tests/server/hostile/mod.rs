//! Clients that break the rules on purpose: every bad request gets an answer that says what is wrong with it, and the
//! server keeps nothing of it.

mod audio;
mod cases;
mod site;
mod voices;

use crate::support::http::{Ask, Reply};
use crate::support::recording::{PCM, Wav, data_url, good, hum};
use crate::support::tts::{VOICES, fixture, serve, speaks};
use crate::support::wait::{self, PATIENCE};
use cases::{Case, cloned};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::TcpStream;
use std::path::Path;
use std::time::Instant;
use tokio_tungstenite::tungstenite::{Message, WebSocket, client};
use voices::upload;

/// A message is one line that a person reads.
const LONGEST_MESSAGE: usize = 700;

/// What is wrong with the answer to a case, if something is.
fn judge(case: &Case, reply: &Reply) -> Result<(), String> {
    let wrong = |what: String| Err(format!("{}: {what}: {}", case.name, shortened(&reply.body)));
    if reply.status != case.status {
        return wrong(format!("status {} instead of {}", reply.status, case.status));
    }
    let Ok(body) = serde_json::from_slice::<Value>(&reply.body) else { return wrong("not JSON".to_owned()) };
    let error = &body["error"];
    let (Some(message), Some(code)) = (error["message"].as_str(), error["code"].as_str()) else {
        return wrong("not an error as OpenAI's clients know it".to_owned());
    };
    if error["type"] != "invalid_request_error"
        || code.is_empty()
        || !error["param"].is_string() && !error["param"].is_null()
    {
        return wrong("not an error of the client's".to_owned());
    }
    if message.len() > LONGEST_MESSAGE || message.chars().any(char::is_control) {
        return wrong(format!("{} bytes are no readable line", message.len()));
    }
    if !message.contains(case.says) {
        return wrong(format!("does not say {:?}", case.says));
    }
    Ok(())
}

fn shortened(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(400)]).into_owned()
}

/// Sends all of them; every answer that is not as it should be is told.
fn pass(url: &str, cases: &[Case]) {
    let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names.len(), cases.len(), "two cases have one name");
    let mut wrong = Vec::new();
    for case in cases {
        let begun = Instant::now();
        let reply = case.ask.send(url);
        wrong.extend(judge(case, &reply).err());
        let took = begun.elapsed();
        if took > PATIENCE / 3 {
            wrong.push(format!("{}: took {took:?}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

fn is_ready(url: &str) {
    let reply = Ask::new("GET", "/ready", &[], "").send(url);
    assert_eq!(reply.status, 200, "{}", shortened(&reply.body));
}

/// Resident memory in bytes: now (`VmRSS`) or at most so far (`VmHWM`).
fn memory(pid: u32, which: &str) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(which)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// Open files and sockets: at most so many as soon as the server has seen that its clients are gone.
fn closes_files(pid: u32, most: usize) {
    wait::answer(|| match files(pid) {
        open if open <= most => Ok(()),
        open => Err(format!("{open} files are open, {most} were")),
    });
}

fn files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

#[test]
fn bad_requests_are_refused_with_advice_and_leave_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let allowed = folder.path().join("allowed");
    std::fs::create_dir(&allowed).unwrap();
    std::fs::write(folder.path().join("secret.wav"), good(0)).unwrap();
    std::fs::write(allowed.join("notes.txt"), "the password is swordfish").unwrap();
    std::fs::write(allowed.join("fine.wav"), good(0)).unwrap();
    std::os::unix::fs::symlink("../secret.wav", allowed.join("link.wav")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(allowed.join("pipe")).status().unwrap().success());
    let allowed = allowed.display().to_string();
    let reference = format!(
        "[reference_audio]\nallowed_hosts = [\"localhost\"]\nallowed_folders = [{allowed:?}]\nfetch_timeout = \"2s\"\n"
    );
    let serving = serve(&fixture("base"), &folder.path().join("voices"), &reference);
    let url = serving.url.as_str();

    let mut cases = cases::protocol();
    cases.extend(cases::fields());
    cases.extend(cases::embeddings());
    cases.extend(voices::places(site::site(), &allowed));
    cases.extend(voices::recordings());
    cases.extend(voices::uploads());
    cases.extend(cases::batches());
    assert!(cases.len() > 250, "{}", cases.len());

    assert_eq!(upload("kept", &[]).send(url).status, 200);
    let good = [
        cloned(&json!({"seed": 7})),
        cloned(&json!({"seed": 7, "ref_audio": format!("file://{allowed}/fine.wav")})),
        json!({"input": "Hello there.", "max_new_tokens": 3, "seed": 7, "voice": "kept"}),
    ];
    let before = good.each_ref().map(|body| speaks(url, body));
    assert!(before.iter().all(|said| *said == before[0]), "one recording, one voice");

    let open = files(serving.pid());
    let [first, second] = [1, 2].map(|_| {
        pass(url, &cases);
        is_ready(url);
        closes_files(serving.pid(), open);
        memory(serving.pid(), "VmRSS")
    });
    println!("{} cases; {first} bytes after one pass, {second} after two", cases.len());
    assert!(second < first + (8 << 20), "memory grew from {first} to {second} bytes");

    assert_eq!(before, good.each_ref().map(|body| speaks(url, body)), "what is fine is answered as before");
    let kept = Ask::new("GET", VOICES, &[], "").send(url).json();
    assert_eq!(kept["names"], json!(["kept"]));
}

#[test]
fn a_checkpoint_refuses_what_it_was_not_trained_for() {
    let small = tempfile::tempdir().unwrap();
    copy(&fixture("custom_voice"), small.path());
    let config = std::fs::read_to_string(small.path().join("config.json")).unwrap();
    assert!(config.contains("\"1b7\""));
    std::fs::write(small.path().join("config.json"), config.replace("\"1b7\"", "\"0b6\"")).unwrap();
    for (checkpoint, is_small) in [(fixture("custom_voice"), false), (small.path().to_owned(), true)] {
        let serving = serve(&checkpoint, &small.path().join("voices"), "");
        pass(&serving.url, &cases::custom_voice(is_small));
        is_ready(&serving.url);
        speaks(&serving.url, &json!({"input": "Hello there.", "max_new_tokens": 3, "voice": "Vivian"}));
    }
}

#[test]
fn a_recording_for_a_whole_batch_is_in_memory_a_few_times_at_most() {
    let voices = tempfile::tempdir().unwrap();
    let serving = serve(&fixture("base"), voices.path(), "");
    let before = memory(serving.pid(), "VmHWM");
    let recording = Wav { rate: 96_000, ..PCM }.with(&hum(0, 4_500_000));
    let items: Vec<Value> = (0..32).map(|number| json!({"input": format!("Number {number}.")})).collect();
    let batch = json!({"items": items, "ref_audio": data_url(&recording), "max_new_tokens": 1});
    let answer = Ask::json("/v1/audio/speech/batch", &batch).send(&serving.url).json();
    assert_eq!(answer["succeeded"], 32, "{}", shortened(answer.to_string().as_bytes()));
    let took = memory(serving.pid(), "VmHWM") - before;
    println!("{took} bytes for a recording of {}", recording.len());
    assert!(took < 20 * recording.len(), "{took} bytes for a recording of {}", recording.len());
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let (from, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        if from.is_dir() {
            std::fs::create_dir(&to).unwrap();
            copy(&from, &to);
        } else {
            std::fs::copy(from, to).unwrap();
        }
    }
}

struct Talk(WebSocket<TcpStream>);

impl Talk {
    fn new(url: &str) -> Talk {
        let host = url.strip_prefix("http://").unwrap();
        let socket = TcpStream::connect(host).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut talk = Talk(client(format!("ws://{host}/v1/audio/speech/stream"), socket).unwrap().0);
        assert_eq!(talk.hears()["type"], "session.created");
        talk
    }

    fn says(&mut self, message: impl Into<Message>) {
        self.0.send(message.into()).unwrap();
    }

    /// The next message that is no audio.
    fn hears(&mut self) -> Value {
        loop {
            match self.0.read().unwrap() {
                Message::Text(text) => return serde_json::from_str(&text).unwrap(),
                Message::Binary(_) | Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn bad_messages_are_answered_and_the_session_goes_on() {
    let voices = tempfile::tempdir().unwrap();
    let reference = "[reference_audio]\nallowed_folders = [\"/usr/share\"]\n";
    let serving = serve(&fixture("base"), voices.path(), reference);
    let mut talk = Talk::new(&serving.url);
    let mut wrong = Vec::new();
    for (message, says) in cases::messages() {
        talk.says(Message::text(message.clone()));
        let error = talk.hears();
        let text = error["message"].as_str().unwrap_or("").to_owned();
        let readable = text.len() <= LONGEST_MESSAGE && !text.chars().any(char::is_control);
        if error["type"] != "error" || !error["code"].is_string() || !readable || !text.contains(says) {
            wrong.push(format!("{}: {}", shortened(message.as_bytes()), shortened(error.to_string().as_bytes())));
        }
    }
    talk.says(Message::binary(vec![0_u8; 100]));
    let error = talk.hears();
    assert_eq!(error["type"], "error", "{error}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    let voice = data_url(&good(0));
    talk.says(json!({"type": "session.config", "ref_audio": voice, "max_new_tokens": 3}).to_string());
    assert_eq!(talk.hears()["type"], "session.updated");
    talk.says(json!({"type": "input.text", "text": "Still here."}).to_string());
    talk.says(json!({"type": "input.done"}).to_string());
    assert_eq!(talk.hears()["type"], "audio.start");
    assert_eq!(talk.hears()["type"], "audio.done");
    assert_eq!(talk.hears()["type"], "session.done");

    // Frames that are no messages end the session, not the server.
    let _ = talk.0.send(Message::text("x".repeat((16 << 20) + 1)));
    is_ready(&serving.url);
}
