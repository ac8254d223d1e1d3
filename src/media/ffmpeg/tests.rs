//! Programs in processes with limits. Scripts stand for `ffmpeg` where a limit is at stake; the test of the real one is
//! `a_real_film_is_decoded`, which needs it installed.

use super::*;
use std::os::unix::fs::PermissionsExt;

/// A program that runs this script.
fn script(text: &str) -> (tempfile::TempPath, Ffmpeg) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    // Closed before it is started: a file that is open for writing cannot be.
    let path = file.into_temp_path();
    let program = path.to_path_buf();
    let limits = ProcessLimits { memory: 256 << 20, time: Duration::from_secs(60) };
    (path, Ffmpeg { ffmpeg: program.clone(), ffprobe: program, limits })
}

fn film(ffmpeg: &Ffmpeg) -> Result<Film, MediaError> {
    ffmpeg.film(b"film", 2.0, 4..=768, &MediaLimits::default())
}

const DESCRIBED: &str = r#"case "$*" in *nb_read_packets*)
echo width=2; echo height=1; echo avg_frame_rate=10/5; echo nb_read_packets=4; exit;; esac"#;

#[test]
fn without_the_program_the_error_says_what_to_install() {
    let ffmpeg = Ffmpeg { ffprobe: "/nonexistent/ffprobe".into(), ..Ffmpeg::default() };
    let error = film(&ffmpeg).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/ffprobe cannot be started"), "{error}");
    assert!(error.contains("install the package ffmpeg, or send the frames of the video as images"), "{error}");
}

#[test]
fn frames_come_from_the_programs_output() {
    let (_path, ffmpeg) = script(&format!("{DESCRIBED}\nfor i in 1 2 3 4; do printf 'P6\\n2 1\\n255\\nabcdef'; done"));
    let film = film(&ffmpeg).unwrap();
    assert_eq!((film.frames.len(), film.frames_per_second), (4, 2.0));
    assert_eq!(film.frames[3].rgb(), b"abcdef");
}

#[test]
fn the_file_is_its_input_and_nothing_of_the_environment_is_given() {
    let (_path, ffmpeg) = script(r#"[ "$(cat)" = film ] && [ -z "$HOME$CARGO" ] && echo "said it" >&2; exit 3"#);
    assert_eq!(film(&ffmpeg).unwrap_err().to_string(), "the video cannot be decoded: said it");
}

#[test]
fn limits_hold_memory_files_and_output() {
    let (_path, ffmpeg) = script(r#"ulimit -v >&2; ulimit -f >&2; ulimit -c >&2; ulimit -n >&2; ulimit -t >&2; exit 1"#);
    assert_eq!(film(&ffmpeg).unwrap_err().to_string(), "the video cannot be decoded: 262144; 0; 0; 64; 60");
    // 4 frames of 6 bytes are promised.
    let (_path, ffmpeg) = script(&format!("{DESCRIBED}\nwhile :; do echo much; done"));
    let error = film(&ffmpeg).unwrap_err().to_string();
    assert!(error.ends_with("its frames or sound have more than 280 bytes"), "{error}");
}

#[test]
fn a_program_that_hangs_is_ended() {
    let (_path, mut ffmpeg) = script("exec sleep 1000");
    ffmpeg.limits.time = Duration::from_millis(50);
    assert_eq!(film(&ffmpeg).unwrap_err().to_string(), "the video cannot be decoded: it takes longer than 0.05 s");
}

#[test]
fn a_film_beyond_the_limits_is_refused_before_a_frame_is_decoded() {
    let (_path, ffmpeg) = script(&format!("{DESCRIBED}\necho decoded >&2; exit 1"));
    let refused = |limits: MediaLimits| ffmpeg.film(b"film", 2.0, 4..=768, &limits).unwrap_err().to_string();
    let usual = MediaLimits::default();
    let seconds = refused(MediaLimits { max_seconds: 1.0, ..usual });
    assert_eq!(seconds, "the video has 2 seconds, at most 1 are taken (max_seconds)");
    let pixels = refused(MediaLimits { max_pixels: 1, ..usual });
    assert_eq!(pixels, "the video has 2 pixels, at most 1 are taken (max_pixels)");
    assert_eq!(refused(MediaLimits { max_bytes: 1, ..usual }), "the video has 4 bytes, at most 1 are taken (max_bytes)");
    assert_eq!(refused(usual), "the video cannot be decoded: decoded");
}

#[test]
fn what_is_no_description_and_no_picture_is_refused() {
    for text in ["", "width=2", "width=2\nheight=0\navg_frame_rate=1/1\nnb_read_packets=3",
        "width=2\nheight=2\navg_frame_rate=0/0\nnb_read_packets=3", "width=2\nheight=2\navg_frame_rate=1\nnb_read_packets=N/A"] {
        assert_eq!(description(text), None, "{text}");
    }
    for bytes in [&b"P5\n1 1\n255\nabc"[..], b"P6\n1 1\n255\nab", b"P6\n99999999999999999999 1\n255\n", b"P6", b"x",
        b"P6\n4294967296 4294967296\n255\nabc"] {
        assert_eq!(pictures(bytes), None);
    }
    assert_eq!(pictures(b"").unwrap(), []);
}

#[test]
#[ignore = "needs ffmpeg 6 or newer: cargo test -p omni-media a_real_film -- --ignored"]
fn a_real_film_is_decoded() {
    let file = tempfile::Builder::new().suffix(".mp4").tempfile().unwrap();
    let source = ["-v", "error", "-y", "-f", "lavfi", "-i", "testsrc=size=64x48:rate=10:duration=3"];
    let sound = ["-f", "lavfi", "-i", "sine=frequency=440:duration=3", "-c:v", "mpeg4", "-c:a", "aac"];
    let made = std::process::Command::new("ffmpeg").args(source).args(sound).arg(file.path()).status().unwrap();
    assert!(made.success());
    let bytes = std::fs::read(file.path()).unwrap();
    let ffmpeg = Ffmpeg::default();
    let film = ffmpeg.film(&bytes, 2.0, 4..=768, &MediaLimits::default()).unwrap();
    assert_eq!((film.frames.len(), film.frames_per_second), (6, 2.0));
    assert_eq!(film.frames[0].size(), Size { height: 48, width: 64 });
    assert!(film.frames[0] != film.frames[5]);
    let sound = ffmpeg.sound(&bytes, &MediaLimits::default()).unwrap().unwrap();
    assert!(sound.starts_with(b"RIFF") && sound.len() > 3 * 44_100 * 4);
}
