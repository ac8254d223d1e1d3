//! Programs in processes with limits. Scripts stand for `ffmpeg` where a limit is at stake; the tests of a real film need
//! the program itself.

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
    (path, Ffmpeg { program, limits, launcher: None })
}

fn film(ffmpeg: &Ffmpeg) -> Result<Film, MediaError> {
    ffmpeg.film(b"film", 2.0, 4..=768, &MediaLimits::default())
}

/// What `ffmpeg` says of a film of four frames, half a second apart.
const DESCRIBED: &str = r##"case "$*" in *framecrc*)
echo "#tb 0: 1/10"; echo "#media_type 0: video"; echo "#dimensions 0: 2x1"
for t in 0 15 5 10; do echo "0, -9, $t, 5, 99, 0x0"; done; exit;; esac"##;

#[test]
fn without_the_program_the_error_says_what_to_install() {
    let ffmpeg = Ffmpeg { program: "/nonexistent/ffmpeg".into(), ..Ffmpeg::default() };
    let error = film(&ffmpeg).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/ffmpeg cannot be started"), "{error}");
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
    let (_path, ffmpeg) =
        script(r#"ulimit -v >&2; ulimit -f >&2; ulimit -c >&2; ulimit -n >&2; ulimit -t >&2; exit 1"#);
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
    assert_eq!(
        refused(MediaLimits { max_bytes: 1, ..usual }),
        "the video has 4 bytes, at most 1 are taken (max_bytes)"
    );
    assert_eq!(refused(usual), "the video cannot be decoded: decoded");
}

#[test]
fn what_is_no_description_and_no_picture_is_refused() {
    let lines = ["#tb 0: 1/10\n", "#dimensions 0: 2x1\n", "0, 0, 0, 1, 9, 0x0\n0, 1, 1, 1, 9, 0x0\n"];
    let found = description(&lines.concat()).unwrap();
    assert_eq!(found, Description { size: Size { height: 1, width: 2 }, frames: 2, rate: 10.0 });
    for missing in 0..3 {
        let text: String = lines.iter().enumerate().filter(|(i, _)| *i != missing).map(|(_, line)| *line).collect();
        assert_eq!(description(&text), None, "{text}");
    }
    for wrong in ["#tb 0: 1/0\n", "#tb 0: x\n"] {
        assert_eq!(description(&[wrong, lines[1], lines[2]].concat()), None, "{wrong}");
    }
    for wrong in
        ["0, 0, 7, 1\n0, 1, 7, 1\n", "0, 0\n", "0, 0, NOPTS, 1\n", "0, 0, 9223372036854775807, 1\n0, 0, -2, 1\n"]
    {
        assert_eq!(description(&[lines[0], lines[1], wrong].concat()), None, "{wrong}");
    }
    for bytes in [
        &b"P5\n1 1\n255\nabc"[..],
        b"P6\n1 1\n255\nab",
        b"P6\n99999999999999999999 1\n255\n",
        b"P6",
        b"x",
        b"P6\n4294967296 4294967296\n255\nabc",
    ] {
        assert_eq!(pictures(bytes), None);
    }
    assert_eq!(pictures(b"").unwrap(), []);
}

/// The real program.
fn real() -> Ffmpeg {
    match std::env::var_os("OMNI_FFMPEG") {
        Some(program) => Ffmpeg { program: program.into(), ..Ffmpeg::default() },
        None => Ffmpeg::default(),
    }
}

/// A film of ten frames a second with a tone of as long, as it makes one.
fn made(ffmpeg: &Ffmpeg, size: &str, seconds: u32) -> Vec<u8> {
    let file = tempfile::Builder::new().suffix(".mp4").tempfile().unwrap();
    let sources = [format!("testsrc=size={size}:rate=10:duration={seconds}"), format!("sine=duration={seconds}")];
    let mut command = std::process::Command::new(&ffmpeg.program);
    command.args(["-v", "error", "-y"]).args(sources.iter().flat_map(|source| ["-f", "lavfi", "-i", source]));
    assert!(command.args(["-c:v", "mpeg4", "-c:a", "aac"]).arg(file.path()).status().unwrap().success());
    std::fs::read(file.path()).unwrap()
}

#[test]
#[ignore = "needs ffmpeg 6 or newer, or its path in OMNI_FFMPEG: cargo test -p omni-media real_film -- --ignored"]
fn a_real_film_is_decoded() {
    let ffmpeg = real();
    let bytes = made(&ffmpeg, "64x48", 3);
    let film = ffmpeg.film(&bytes, 2.0, 4..=768, &MediaLimits::default()).unwrap();
    assert_eq!((film.frames.len(), film.frames_per_second), (6, 2.0));
    assert_eq!(film.frames[0].size(), Size { height: 48, width: 64 });
    assert!(film.frames[0] != film.frames[5]);
    let sound = ffmpeg.sound(&bytes, &MediaLimits::default()).unwrap().unwrap();
    assert!(sound.starts_with(b"RIFF") && sound.len() > 3 * 44_100 * 4);
    let cut = ffmpeg.film(&bytes[..bytes.len() / 2], 2.0, 4..=768, &MediaLimits::default());
    assert!(matches!(cut, Err(MediaError::Video(_))), "half a file has no index: {cut:?}");
}

#[test]
#[ignore = "needs ffmpeg 6 or newer, or its path in OMNI_FFMPEG: cargo test -p omni-media real_film -- --ignored"]
fn a_real_film_that_takes_more_than_it_may_is_ended() {
    let usual = real();
    let bytes = made(&usual, "3840x2160", 1);
    let seen = |limits: ProcessLimits, media: MediaLimits| {
        Ffmpeg { limits, ..usual.clone() }.film(&bytes, 2.0, 4..=768, &media).map(|film| film.frames.len())
    };
    assert_eq!(seen(usual.limits, MediaLimits::default()), Ok(4));
    // The program itself maps half of that; a frame takes 12 to 33 MB, several times.
    let little = seen(ProcessLimits { memory: 300 << 20, ..usual.limits }, MediaLimits::default());
    assert!(matches!(little, Err(MediaError::Video(_))), "{little:?}");
    let short = seen(ProcessLimits { time: Duration::from_millis(1), ..usual.limits }, MediaLimits::default());
    assert_eq!(short.unwrap_err().to_string(), "the video cannot be decoded: it takes longer than 0.001 s");
    let few = seen(usual.limits, MediaLimits { max_pixels: 1 << 20, ..MediaLimits::default() });
    assert!(matches!(few, Err(MediaError::TooMuch { .. })), "{few:?}");
}

#[test]
#[ignore = "needs ffmpeg 6 or newer, or its path in OMNI_FFMPEG: cargo test -p omni-media real_film -- --ignored"]
fn what_is_no_real_film_but_a_list_of_others_opens_no_file_and_no_address() {
    let ffmpeg = real();
    let film = tempfile::Builder::new().suffix(".mp4").tempfile().unwrap();
    std::fs::write(film.path(), made(&ffmpeg, "64x48", 1)).unwrap();
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    server.set_nonblocking(true).unwrap();
    let (path, address) = (film.path().display(), server.local_addr().unwrap());
    let lists = [
        format!("#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://{address}/film.ts\n#EXT-X-ENDLIST\n"),
        format!("#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{path}\n#EXT-X-ENDLIST\n"),
        format!("ffconcat version 1.0\nfile '{path}'\n"),
        format!("v=0\no=- 0 0 IN IP4 {address}\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n"),
        format!("<MPD><Period><AdaptationSet><BaseURL>http://{address}/</BaseURL></AdaptationSet></Period></MPD>"),
    ];
    for list in lists {
        let seen = ffmpeg.film(list.as_bytes(), 2.0, 4..=768, &MediaLimits::default());
        assert!(matches!(seen, Err(MediaError::Video(_))), "{list}: {seen:?}");
        let heard = ffmpeg.sound(list.as_bytes(), &MediaLimits::default());
        assert!(matches!(heard, Err(MediaError::Video(_))), "{list}: {heard:?}");
    }
    assert_eq!(server.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "an address was opened");
}
