//! SIGTERM and SIGKILL of a server under load: streams that were under way after the first are finished, and after
//! either nothing is left: no process, no socket, no segment, no temporary file. `OMNI_SIGNALS=100 cargo test --test
//! processes signals` does so a hundred times each.

use crate::support::http::{Ask, Reply};
use crate::support::omni::{Omni, Serving};
use crate::support::process::{Watched, marked};
use crate::support::wait;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::TcpStream;
use std::time::Duration;

/// How long a process may outlive its server.
const OUTLIVES: Duration = Duration::from_secs(2);
/// Clients at once.
const CLIENTS: usize = 4;
const STAGES: [&str; 3] = ["thinker", "talker", "vocoder"];

/// How often each case is played.
fn rounds() -> usize {
    std::env::var("OMNI_SIGNALS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(3)
}

/// A server in a folder of its own, which is all that it has for temporary files.
struct Site {
    serving: Serving,
    folder: std::path::PathBuf,
    mark: String,
    processes: Vec<Watched>,
    shared: BTreeSet<String>,
}

fn shared_memory() -> BTreeSet<String> {
    let files = std::fs::read_dir("/dev/shm").into_iter().flatten();
    files.filter_map(|file| file.ok()?.file_name().into_string().ok()).collect()
}

impl Site {
    fn new(placement: &str, round: usize) -> Site {
        let shared = shared_memory();
        let omni = Omni::new();
        let folder = omni.folder().to_owned();
        let mark = format!("OMNI_SIGNALS_MARK={}-{placement}-{round}", std::process::id());
        let placements = STAGES.map(|stage| format!("stages.{stage}.placement={placement}"));
        let mut args = vec!["run", "--listen", "127.0.0.1:0", "--set", "server.drain_grace=60s"];
        args.extend(["--set", "model.checkpoint=tests/fixtures/qwen3_omni", "--set", "limits.admission=places"]);
        placements.iter().for_each(|placement| args.extend(["--set", placement]));
        let (name, value) = mark.split_once('=').unwrap();
        let home = folder.display().to_string();
        let serving = omni
            .arguments(&args)
            .variable(name, value)
            .variable("TMPDIR", &home)
            .variable("XDG_DATA_HOME", &home)
            .variable("HOME", &home)
            .serve();
        let health = until(&serving, |health| health["ready"] == true);
        let pids = health["stages"].as_array().unwrap().iter().filter_map(|stage| stage["pid"].as_u64());
        let processes: Vec<_> = pids.map(|pid| Watched::new(pid as u32)).collect();
        assert_eq!(processes.len(), if placement == "process" { 3 } else { 0 });
        Site { serving, folder, mark, processes, shared }
    }

    /// Nothing of it is there any more.
    fn has_left_nothing(&self, placement: &str) {
        self.processes.iter().for_each(|process| process.ends_within(OUTLIVES));
        wait::answer(|| match marked(&self.mark) {
            left if left.is_empty() => Ok(()),
            left => Err(format!("{placement}: processes {left:?} are left")),
        });
        let address = self.serving.url.strip_prefix("http://").unwrap();
        assert!(TcpStream::connect(address).is_err(), "{placement}: a process still listens on {address}");
        let files: Vec<_> = std::fs::read_dir(&self.folder).unwrap().map(|file| file.unwrap().path()).collect();
        assert!(files.is_empty(), "{placement}: {files:?} are left");
        let segments: Vec<_> =
            shared_memory().difference(&self.shared).filter(|name| name.contains("omni")).cloned().collect();
        assert!(segments.is_empty(), "{placement}: {segments:?} are left in shared memory");
    }
}

pub fn until(serving: &Serving, is_so: impl Fn(&Value) -> bool) -> Value {
    wait::answer(|| {
        let health = Ask::new("GET", "/health", &[], "").send(&serving.url).json();
        if is_so(&health) { Ok(health) } else { Err(health) }
    })
}

/// The load: always the same words, so that every answer has to have the same bytes.
pub fn speech() -> Ask {
    let body = json!({
        "input": "one two three", "seed": 5, "response_format": "pcm", "max_new_tokens": 60, "ignore_eos": true,
    });
    Ask::json("/v1/audio/speech", &body)
}

/// Asks until the server is gone or refuses; gives what came, cut answers as `None`.
pub fn keep_asking(url: &str) -> Vec<Option<Reply>> {
    let mut replies = Vec::new();
    // Without a byte of answer nothing had been accepted.
    while let Some(bytes) = speech().bytes(url).filter(|bytes| !bytes.is_empty()) {
        let reply = Reply::read(&bytes);
        let goes_on = reply.as_ref().is_some_and(|reply| reply.status == 200);
        replies.push(reply);
        if !goes_on {
            break;
        }
    }
    replies
}

/// One server, `CLIENTS` clients, one signal in the middle of it.
fn play(placement: &str, signal: &str, round: usize) {
    let mut site = Site::new(placement, round);
    let whole = speech().send(&site.serving.url);
    assert_eq!(whole.status, 200);
    let url = site.serving.url.clone();
    let replies = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| keep_asking(&url))).collect();
        until(&site.serving, |health| health["requests"].as_u64() >= Some(2));
        site.serving.signal(signal);
        asking.into_iter().flat_map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    let code = site.serving.wait();
    match signal {
        "TERM" => {
            assert_eq!(code, Some(0), "{placement} round {round}");
            for reply in &replies {
                let reply = reply.as_ref().unwrap_or_else(|| panic!("{placement} round {round}: a stream was cut"));
                match reply.status {
                    200 => assert!(reply.body == whole.body, "{placement} round {round}: other samples"),
                    503 => {}
                    other => panic!("{placement} round {round}: status {other}"),
                }
            }
        }
        _ => assert_eq!(code, None, "killed by a signal"),
    }
    site.has_left_nothing(placement);
}

#[test]
fn after_a_sigterm_under_load_every_stream_is_finished_and_nothing_is_left() {
    for round in 0..rounds() {
        play(["thread", "process"][round % 2], "TERM", round);
    }
}

#[test]
fn after_a_sigkill_under_load_nothing_is_left() {
    for round in 0..rounds() {
        play(["process", "thread"][round % 2], "KILL", round);
    }
}
