//! No descriptors are left: a stage waits for some to be restarted, connections wait to be accepted, and a config that
//! needs more than there can be is refused at the start.

use crate::kept::Kept;
use crate::signals::{speech, until};
use crate::support::http::{Ask, stage_of};
use crate::support::omni::{Omni, Serving};
use crate::support::process::Watched;
use crate::support::wait::PATIENCE;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Instant;

const TINY: &str = "model.checkpoint=tests/fixtures/qwen3_omni";

/// Lets a process have no file beyond these numbers. Those that it has stay open. Gives the limit before.
fn limit(serving: &Serving, current: Option<u64>) -> Option<u64> {
    let pid = Pid::from_raw(serving.pid() as i32);
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    prlimit(pid, Resource::Nofile, Rlimit { current, maximum }).unwrap().current
}

#[test]
fn a_stage_waits_for_descriptors_and_is_not_given_up() {
    let omni = Omni::new();
    let log = omni.path("log");
    let serving = omni
        .args(["run", "--listen", "127.0.0.1:0", "--set", TINY, "--set", "stages.talker.placement=process"])
        // One crash is forgiven, and no failed start.
        .more(&["--set", "supervision.max_restarts=1", "--set", "limits.admission=places"])
        .log_to(&log)
        .serve();
    let health = until(&serving, |health| health["ready"] == true);
    let whole = speech().send(&serving.url);

    let mut asking = Kept::new(&serving.url);
    asking.json("/live");
    let mut listening = Kept::new(&serving.url);
    let body = String::from_utf8(speech().body).unwrap();
    listening.send("POST", "/v1/audio/speech", &body).unwrap();
    assert!(listening.has_begun());
    let before = limit(&serving, Some(3));
    Watched::new(stage_of(&health, "talker")["pid"].as_u64().unwrap() as u32).kill();
    // A client that comes now waits at the door.
    let late = Kept::new(&serving.url);

    let begun = Instant::now();
    loop {
        let health = asking.json("/health");
        let reason = stage_of(&health, "talker")["last_reason"].as_str().unwrap_or_default();
        if reason.contains("no room for its process") {
            break;
        }
        assert_ne!(stage_of(&health, "talker")["state"], "failed", "{health}");
        assert!(begun.elapsed() < PATIENCE, "{health}");
    }
    // Many more tries than failures are forgiven.
    let tries = |log: &str| std::fs::read_to_string(log).unwrap().matches("stage process not started").count();
    while tries(&log) < 4 {
        assert!(begun.elapsed() < PATIENCE, "it is not tried again");
        assert_eq!(stage_of(&asking.json("/health"), "talker")["state"], "restarting");
    }
    limit(&serving, before);
    assert!(listening.reply().expect("the stream goes on").body == whole.body, "other samples");
    let health = until(&serving, |health| health["ready"] == true);
    assert_eq!(stage_of(&health, "talker")["restarts"], 1, "{health}");
    assert_eq!({ late }.json("/live")["live"], true);
    serving.signal("TERM");
    let (code, log) = serving.log();
    assert_eq!(code, Some(0));
    let refusals = log.matches("cannot accept connections").count();
    assert!((1..=2).contains(&refusals), "{refusals} lines for one scarcity");
}

/// A server in a shell that limits it first.
fn limited(limit: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_omni-actors")]);
    command.args(["run", "--listen", "127.0.0.1:0", "--set", TINY, "--set", "device.kind=cpu"]).env_remove("OMNI_LOG");
    command.current_dir(env!("CARGO_MANIFEST_DIR")).stdout(Stdio::piped()).process_group(0);
    command
}

#[test]
fn a_config_that_needs_more_open_files_than_there_may_be_is_refused() {
    let refused = limited("-n 300").stderr(Stdio::piped()).output().unwrap();
    let told = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{told}");
    assert!(told.contains("server.max_connections") && told.contains("512 open files"), "{told}");
    assert!(told.contains("may have 300") && told.contains("LimitNOFILE"), "{told}");
}

#[test]
fn a_low_limit_of_its_own_is_raised() {
    let serving = Serving::from_child(limited("-S -n 64").spawn().unwrap(), Omni::new());
    let pid = serving.pid();
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<_> = line.split_whitespace().filter(|word| word.parse::<u64>().is_ok()).collect();
    assert!(!numbers.contains(&"64"), "{line}");
    assert_eq!(Ask::new("GET", "/live", &[], "").send(&serving.url).status, 200);
}
