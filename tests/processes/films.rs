//! The process that becomes `ffmpeg` for a film that a client sent: its limits, and that it ends with its server.

use crate::support::omni::{Omni, omni};
use crate::support::process::Watched;
use crate::support::wait::{self, PATIENCE};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/qwen3_omni");

/// A child of a process that runs this program.
fn child(parent: u32, program: &str) -> Option<u32> {
    let is_it = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        field("PPid:") == Some(&parent.to_string()) && field("Name:") == Some(program)
    };
    let entries = fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).find(is_it)
}

#[test]
fn a_program_that_decodes_a_film_has_limits_and_is_ended_when_its_server_is_killed() {
    let omni = Omni::new();
    // It never ends by itself, and reads nothing that would tell it that the server has gone.
    let program = omni.file("hangs", "#!/bin/sh\nexec sleep 1000\n");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let film = omni.file("film.mp4", "\0\0\0\u{18}ftypmp42");
    let mut server = Command::new(env!("CARGO_BIN_EXE_omni-actors"))
        .args(["say", "--chat", "What is this?", "--video", &film, "--checkpoint", TINY, "--output", "-"])
        .args(["--set", "device.kind=cpu", "--set", &format!("media.ffmpeg={program:?}")])
        .args(["--set", "media.decode_timeout=\"10m\""])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = wait::answer(|| {
        assert!(server.try_wait().unwrap().is_none(), "the program is not started");
        child(server.id(), "sleep").ok_or("the program is not started")
    });
    let program = Watched::new(pid);
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let hard = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    let found = ["core file size", "file size", "open files", "address space", "cpu time"]
        .map(|name| hard(&format!("Max {name} ")));
    assert_eq!(found, ["0", "0", "64", "2147483648", "600"]);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(status.lines().any(|line| line.split_whitespace().eq(["NoNewPrivs:", "1"])), "{status}");
    server.kill().unwrap();
    server.wait().unwrap();
    program.ends_within(PATIENCE);
}

#[test]
fn a_process_that_cannot_become_its_program_says_why() {
    let here = std::process::id().to_string();
    omni(["confine", "2147483648", "5", &here, "--", "/no/such/program"]).run().exits(127).tells("No such file");
    omni(["confine", "2147483648", "5", "1", "--", "/bin/true"]).run().exits(121).tells("not by hand");
    let limits = "ulimit -v; ulimit -f; ulimit -c; ulimit -n; ulimit -t";
    let limited = omni(["confine", "2147483648", "5", &here, "--", "/bin/sh", "-c", limits]).run();
    limited.succeeds();
    assert_eq!(limited.stdout, "2097152\n0\n0\n64\n5\n");
}

#[test]
#[ignore = "needs ffmpeg 6 or newer, or its path in OMNI_FFMPEG: cargo test --test processes real_film -- --ignored"]
fn a_real_film_is_seen_and_heard_through_a_limited_process() {
    let ffmpeg = std::env::var("OMNI_FFMPEG").unwrap_or_else(|_| "ffmpeg".to_owned());
    let omni = Omni::new();
    let (film, wav) = (omni.path("film.mp4"), omni.path("answer.wav"));
    let sources =
        ["-f", "lavfi", "-i", "testsrc=size=64x48:rate=10:duration=3", "-f", "lavfi", "-i", "sine=duration=3"];
    let mut made = Command::new(&ffmpeg);
    made.args(["-v", "error", "-y"]).args(sources).args(["-c:v", "mpeg4", "-c:a", "aac", &film]);
    assert!(made.status().unwrap().success());
    let omni = omni.arguments(&["say", "--chat", "What is this?", "--video", &film, "--checkpoint", TINY]);
    let set = format!("media.ffmpeg={ffmpeg:?}");
    let omni = omni.more(&["--output", &wav, "--max-frames", "4", "--set", "device.kind=cpu", "--set", &set]);
    omni.run().succeeds();
    assert!(fs::metadata(&wav).unwrap().len() > 44);
}
