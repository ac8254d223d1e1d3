//! Another process takes over, and no sound is lost: streams end where they began, every connection is taken, and either
//! process survives the end of the other.

use crate::kept::Kept;
use crate::managed::Managed;
use crate::signals::speech;
use crate::support::http::Ask;
use crate::support::omni::{Omni, Serving};
use crate::support::process::Watched;
use crate::support::wait::{self, PATIENCE};
use crate::support::wyoming::Talk;
use rustix::process::Signal;
use serde_json::json;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

const STREAMS: usize = 8;
const UPGRADES: usize = 10;

fn serving(more: &[&str]) -> Managed {
    // A connection that is kept says nothing until the new process is ready, which takes its time on a loaded machine.
    const PATIENT: &str = "server.read_timeout=60s";
    Managed::start(|omni| omni.more(&["--set", "limits.max_requests=64", "--set", PATIENT]).more(more))
}

/// Waits until a count has grown by so many.
fn grows(count: &AtomicUsize, by: usize) {
    let before = count.load(Ordering::Relaxed);
    wait::until("streams end", || count.load(Ordering::Relaxed) >= before + by);
}

#[test]
fn ten_upgrades_in_a_row_cut_no_stream_and_refuse_no_connection() {
    let mut managed = serving(&[]);
    let url = managed.serving.url.clone();
    let whole = speech().send(&url);
    assert_eq!(whole.status, 200);
    let (done, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..STREAMS {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let reply = speech().send(&url);
                    assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
                    assert!(reply.body == whole.body, "other samples");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // The streams end whatever fails here.
        let _done = Ending(&done);
        for _ in 0..UPGRADES {
            grows(&answered, STREAMS / 2);
            let old = managed.main;
            let watched = Watched::new(old);
            managed.signal(Signal::USR2);
            managed.hears("READY=1");
            assert_ne!(managed.main, old);
            watched.ends_within(PATIENCE);
        }
        grows(&answered, STREAMS);
    });
    assert_eq!(managed.serving.wait(), Some(0), "the first of them");
    let last = Watched::new(managed.main);
    managed.signal(Signal::TERM);
    managed.hears("STOPPING=1");
    last.ends_within(PATIENCE);
    assert!(managed.processes().is_empty(), "nothing is left");
}

struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_old_process_answers_on_its_connections_and_says_when_it_is_gone() {
    let mut managed = serving(&["--set", "server.upgrade_grace=100s"]);
    let mut kept = Kept::new(&managed.serving.url);
    assert_eq!(kept.json("/ready")["gone_by"], serde_json::Value::Null);
    let whole = speech().send(&managed.serving.url);
    let mut asking = Kept::new(&managed.serving.url);
    asking.json("/live");
    managed.signal(Signal::USR2);
    managed.hears("READY=1");
    assert_eq!(managed.until_processes(2).len(), 2, "clients hold connections to the old one");

    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    // The old one retires a moment after the new one is ready.
    let begun = Instant::now();
    let ready = loop {
        let reply = kept.get("/ready").unwrap();
        if reply.header("connection") == Some("close") {
            break reply;
        }
        assert!(begun.elapsed() < PATIENCE);
    };
    assert_eq!(ready.status, 200);
    let gone_by = ready.json()["gone_by"].as_u64().unwrap();
    assert!((now + 99..now + 130).contains(&gone_by), "{gone_by} at {now}");
    assert!(kept.get("/live").is_none(), "that answer was the connection's last");
    // A request is served as before.
    asking.send("POST", "/v1/audio/speech", &String::from_utf8(speech().body).unwrap()).unwrap();
    let reply = asking.reply().unwrap();
    assert_eq!((reply.status, reply.header("connection")), (200, Some("close")));
    assert!(reply.body == whole.body, "other samples");
    assert_eq!(managed.serving.wait(), Some(0), "with its last client it ends");
}

#[test]
fn a_text_that_is_still_written_ends_in_the_old_process_and_the_new_one_takes_the_next() {
    // The random weights never stop by themselves.
    let mut managed = serving(&["--set", "wyoming.listen=127.0.0.1:0", "--set", "limits.max_audio=1s"]);
    let mut kept = Kept::new(&managed.serving.url);
    kept.json("/ready");
    let wyoming = managed.serving.wyoming();
    let mut talk = Talk::new(&wyoming);
    talk.send("synthesize-start", &json!({}));
    talk.send("synthesize-chunk", &json!({"text": "One, two, three. "}));
    talk.expect("audio-start");
    managed.signal(Signal::USR2);
    managed.hears("READY=1");
    // The old one retires a moment after the new one is ready.
    let begun = Instant::now();
    while kept.get("/ready").unwrap().header("connection") != Some("close") {
        assert!(begun.elapsed() < PATIENCE);
    }
    talk.send("synthesize-stop", &json!({}));
    assert!(!talk.rest().is_empty());
    talk.expect("synthesize-stopped");
    assert_eq!(talk.event(), None, "that answer was the connection's last");
    assert_eq!(managed.serving.wait(), Some(0), "with its last client it ends");
    let mut talk = Talk::new(&wyoming);
    talk.send("describe", &json!({}));
    talk.expect("info");
}

#[test]
fn the_new_process_serves_when_the_old_one_is_killed() {
    // Before it is ready.
    let mut managed = serving(&[]);
    managed.signal(Signal::USR2);
    managed.until_processes(2);
    managed.signal(Signal::KILL);
    let reply = speech().send(&managed.serving.url);
    assert_eq!(reply.status, 200);
    managed.hears("READY=1");
    assert_ne!(managed.main, managed.serving.pid());

    // While it finishes a stream.
    let old = Watched::new(managed.main);
    let mut stream = Kept::new(&managed.serving.url);
    stream.json("/live");
    managed.signal(Signal::USR2);
    managed.hears("READY=1");
    old.kill();
    assert!(stream.get("/live").is_none());
    assert!(speech().send(&managed.serving.url).body == reply.body, "other samples");
}

#[test]
fn a_stream_of_the_killed_process_goes_on_in_the_new_one() {
    let mut managed = serving(&["--set", "server.upgrade_grace=600s", "--set", "limits.stalled_client_timeout=600s"]);
    let url = managed.serving.url.clone();
    // Seven megabytes, which the sockets do not hold: it is not over while its client does not read.
    let body = json!({
        "input": "one two three", "seed": 5, "response_format": "pcm", "max_new_tokens": 2000, "ignore_eos": true,
        "deadline_ms": "none",
    });
    let mut stream = Kept::new(&url);
    stream.send("POST", "/v1/audio/speech", &body.to_string()).unwrap();
    assert!(stream.has_begun());
    let old = Watched::new(managed.main);
    managed.signal(Signal::USR2);
    managed.hears("READY=1");
    assert_eq!(managed.until_processes(2).len(), 2, "the old one has a stream to finish");
    old.kill();
    let mut heard = stream.cut();

    let ask = Ask::json("/v1/audio/speech", &body);
    let mut again = ask.clone();
    again.headers.push(format!("Range: bytes={}-", heard.len()));
    let (rest, whole) = (again.send(&url), ask.send(&url));
    assert_eq!((rest.status, whole.status), (206, 200));
    assert!(!heard.is_empty() && !rest.body.is_empty());
    heard.extend_from_slice(&rest.body);
    assert!(heard == whole.body, "other samples");
}

#[test]
fn the_old_process_goes_on_when_there_is_no_new_one() {
    let config =
        "[model]\ncheckpoint = \"CHECKPOINT\"\n[server]\nlisten = \"127.0.0.1:0\"\nupgrade_patience = \"1s\"\n";
    let root = env!("CARGO_MANIFEST_DIR");
    let config = config.replace("CHECKPOINT", &format!("{root}/tests/fixtures/qwen3_omni"));
    let folder = tempfile::tempdir().unwrap();
    let (path, log) = (folder.path().join("config.toml"), folder.path().join("log"));
    std::fs::write(&path, &config).unwrap();
    let managed = Managed::start(|omni| omni.args(["run", path.to_str().unwrap()]).log_to(log.to_str().unwrap()));
    let refused = |config: &str, why: &str| {
        std::fs::write(&path, config).unwrap();
        managed.signal(Signal::USR2);
        let begun = Instant::now();
        while !std::fs::read_to_string(&log).unwrap().contains(why) {
            assert!(begun.elapsed() < PATIENCE, "{}", std::fs::read_to_string(&log).unwrap());
            assert_eq!(Ask::new("GET", "/live", &[], "").send(&managed.serving.url).status, 200);
        }
        assert_eq!(managed.until_processes(1), [managed.serving.pid()]);
        assert_eq!(speech().send(&managed.serving.url).status, 200);
    };
    refused("[server]\nlisten = 5\n", "the new process ended before it was ready");
    let slow = "[[faults]]\nstage = \"talker\"\npoint = \"build\"\nkind = \"delay\"\ndelay = \"600s\"\n";
    refused(&format!("{config}{slow}"), "was not ready within 1s and was killed");
}

#[test]
fn a_socket_of_the_service_manager_is_served_and_a_closed_stdout_harms_nothing() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    // What systemd does: the socket is descriptor 3 and the variables name this very process.
    let start = "exec 3<&0 0</dev/null && LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", start, env!("CARGO_BIN_EXE_omni-actors")]).args(crate::managed::ARGS);
    let (reader, stdout) = std::io::pipe().unwrap();
    drop(reader);
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env("CUDA_VISIBLE_DEVICES", "");
    command.stdin(Stdio::from(OwnedFd::from(socket))).stdout(stdout);
    let mut serving = Serving::at(&url, command.spawn().unwrap(), Omni::new());
    drop(command);
    crate::signals::until(&serving, |health| health["ready"] == true);
    assert_eq!(speech().send(&url).status, 200);
    serving.signal("TERM");
    assert_eq!(serving.wait(), Some(0));
}
