//! A log that cannot be written costs log lines and nothing else: a stage that crashes is restarted, streams are whole,
//! and the server ends in order.

use crate::signals::{keep_asking, speech, until};
use crate::support::http::{Ask, stage_of};
use crate::support::omni::Omni;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::File;
use std::io::{PipeReader, Write, pipe};
use std::process::Stdio;

const CLIENTS: usize = 3;
/// While the first answer is made.
const CRASH: &str = "[[faults]]\nstage = \"talker\"\npoint = \"runner\"\nkind = \"panic\"\nnth = 20\n";

/// A series without labels, or the sum of one with labels.
fn series(url: &str, name: &str) -> f64 {
    let text = String::from_utf8(Ask::new("GET", "/metrics", &[], "").send(url).body).unwrap();
    let named = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
    text.lines().filter(named).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// A server whose stderr takes nothing, or not enough.
fn survives(placement: &str, stderr: impl Into<Stdio>, kept: Option<PipeReader>) {
    let omni = Omni::new();
    let plan = omni.file("crash.toml", CRASH);
    let placement = format!("stages.talker.placement={placement}");
    let mut serving = omni
        .args(["run", "--listen", "127.0.0.1:0", "--faults", &plan, "--set", "server.drain_grace=60s"])
        .more(&["--set", "model.checkpoint=tests/fixtures/qwen3_omni", "--set", "limits.admission=places"])
        .more(&["--set", &placement])
        .serve_to(stderr);
    let url = serving.url.clone();
    until(&serving, |health| health["ready"] == true);
    let crossed = speech().send(&url);
    let health = until(&serving, |health| health["ready"] == true);
    assert_eq!(stage_of(&health, "talker")["restarts"], 1, "{placement}: {health}");
    let whole = speech().send(&url);
    assert_eq!((crossed.status, whole.status), (200, 200));
    assert!(crossed.body == whole.body, "{placement}: other samples");

    // Lines for a log that is not read wait in the queue.
    until(&serving, |_| kept.is_some() || series(&url, "omni_log_lines_lost_total") > 0.0);
    let replies = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| keep_asking(&url))).collect();
        until(&serving, |health| health["requests"].as_u64() >= Some(1));
        serving.signal("TERM");
        asking.into_iter().flat_map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    for reply in replies {
        let reply = reply.unwrap_or_else(|| panic!("{placement}: a stream was cut"));
        assert!(reply.status == 503 || reply.body == whole.body, "{placement}: status {}", reply.status);
    }
    assert_eq!(serving.wait(), Some(0), "{placement}");
    drop(kept);
}

#[test]
fn a_log_whose_reader_is_gone_stops_nothing() {
    for placement in ["thread", "process"] {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        survives(placement, writer, None);
    }
}

#[test]
fn a_log_that_is_never_read_stops_nothing() {
    for placement in ["thread", "process"] {
        let (reader, mut writer) = pipe().unwrap();
        let flags = fcntl_getfl(&writer).unwrap();
        fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
        while writer.write(&[0; 4096]).is_ok() {}
        fcntl_setfl(&writer, flags).unwrap();
        survives(placement, writer, Some(reader));
    }
}

#[test]
fn a_log_on_a_full_disk_stops_nothing() {
    for placement in ["thread", "process"] {
        survives(placement, File::options().write(true).open("/dev/full").unwrap(), None);
    }
}
