//! Videos through the `ffmpeg` program: frames and sound of a file.
//!
//! What a stranger sends is given to a large program, so that works in a process with limits, which the `omni-actors`
//! program or, without it, a shell sets before it becomes `ffmpeg`: memory, processor time, no files written, no core, few
//! descriptors. With the former it ends when the server does. The file is its standard input
//! and nothing else: the only protocol is `fd`, so a playlist or a reference inside the file opens no other file and no
//! address, and only formats of films are read, none that are lists of other files. Its environment is empty. It is
//! ended when it takes too long or writes more than it may.
//!
//! Calls block; they are not for an async thread.

mod confine;
mod process;
#[cfg(test)]
mod tests;

pub use confine::{Confined, NotConfined, confine};

use crate::limits::{MediaError, MediaLimits};
use crate::picture::Picture;
use crate::size::Size;
use crate::video::{Sampling, sample};
use process::Input;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// Formats that are read: films, none that name other files.
const FORMATS: &str = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,flv,ogg,asf,gif";
/// Bytes of the description of a frame, and of what comes before them.
const LINE: f64 = 200.0;
const DESCRIPTION: f64 = 65_536.0;
/// Frames of a second of film, at most.
const MOST_RATE: f64 = 240.0;
/// Bytes of the header of a frame.
const HEADER: u64 = 64;
/// Bytes of a second of sound: 8 channels of floats at 192 kHz.
const SOUND_PER_SECOND: f64 = 8.0 * 4.0 * 192_000.0;

/// What a process may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessLimits {
    /// Bytes of address space.
    pub memory: u64,
    /// For one call: on the clock, and of the processor.
    pub time: Duration,
}

impl Default for ProcessLimits {
    /// 2 GB, since `ffmpeg` reserves more than it uses; 30 s.
    fn default() -> ProcessLimits {
        ProcessLimits { memory: 2 << 30, time: Duration::from_secs(30) }
    }
}

/// The program, and what it may have.
#[derive(Clone, Debug)]
pub struct Ffmpeg {
    /// `ffmpeg`, by name or path.
    pub program: PathBuf,
    /// Of each call.
    pub limits: ProcessLimits,
    /// The `omni-actors` program, whose command `confine` limits a process and ends it with this one; `None`: a shell
    /// sets the limits, and a process that hangs outlives this one.
    pub launcher: Option<PathBuf>,
}

impl Default for Ffmpeg {
    fn default() -> Ffmpeg {
        Ffmpeg { program: "ffmpeg".into(), limits: ProcessLimits::default(), launcher: None }
    }
}

/// What a file says about its film.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Description {
    /// The sides of its frames.
    pub size: Size,
    /// Frames.
    pub frames: usize,
    /// Frames of a second.
    pub rate: f64,
}

/// The frames of a film that are seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Film {
    /// Upright, all of one size.
    pub frames: Vec<Picture>,
    /// How many of them there are for a second.
    pub frames_per_second: f64,
}

impl Ffmpeg {
    /// Decodes a film and picks frames, `rate` for a second, as [`sample`] does.
    ///
    /// # Errors
    /// [`MediaError::NoFfmpeg`] without the program; [`MediaError::TooMuch`] for more bytes, pixels or seconds than the
    /// limits, before a frame is decoded; [`MediaError::Video`] for what it cannot decode within its own limits.
    pub fn film(
        &self,
        bytes: &[u8],
        rate: f64,
        frames: RangeInclusive<usize>,
        limits: &MediaLimits,
    ) -> Result<Film, MediaError> {
        limits.check_bytes("video", bytes)?;
        let input = Input::new(bytes)?;
        let description = self.describe(&input, limits)?;
        let Size { height, width } = description.size;
        let side = |side: usize| u32::try_from(side).unwrap_or(u32::MAX);
        limits.check_pixels("video", side(width), side(height))?;
        limits.check_seconds("video", description.frames as f64 / description.rate)?;
        let most = limits.max_frames.min(*frames.end());
        let Sampling { indices, frames_per_second } =
            sample(description.frames, description.rate, rate, *frames.start()..=most)?;
        let frames = self.frames(&input, &indices, description.size)?;
        // A file may hold fewer frames than it says; what is there was sampled at the same rate.
        Ok(Film { frames, frames_per_second })
    }

    /// The sound of a film as a wav file of floats, in its own rate and channels; `None` for a silent one.
    ///
    /// # Errors
    /// Those of [`Ffmpeg::film`].
    pub fn sound(&self, bytes: &[u8], limits: &MediaLimits) -> Result<Option<Vec<u8>>, MediaError> {
        limits.check_bytes("video", bytes)?;
        let input = Input::new(bytes)?;
        // Packets are copied, none is decoded: the first ones say which streams there are.
        let streams = ["-map", "0:a:0?", "-map", "0:v:0", "-c", "copy", "-t", "0.001", "-f", "framecrc", "-"];
        let found = self.run(&input, &streams, DESCRIPTION as u64)?;
        let audible = |line: &str| line.starts_with("#media_type") && line.ends_with(": audio");
        if !String::from_utf8_lossy(&found).lines().any(audible) {
            return Ok(None);
        }
        let most = (limits.max_seconds * SOUND_PER_SECOND) as u64;
        let output = ["-map", "0:a:0", "-vn", "-sn", "-dn", "-c:a", "pcm_f32le", "-f", "wav", "-"];
        self.run(&input, &output, most.saturating_add(HEADER)).map(Some)
    }

    fn describe(&self, input: &Input, limits: &MediaLimits) -> Result<Description, MediaError> {
        // Packets are copied, none is decoded: a line for each, with its time.
        let packets = ["-map", "0:v:0", "-c", "copy", "-f", "framecrc", "-"];
        let most = DESCRIPTION + limits.max_seconds * MOST_RATE * LINE;
        let text = self.run(input, &packets, most as u64)?;
        description(&String::from_utf8_lossy(&text))
            .ok_or_else(|| MediaError::Video("it has no film, or does not say its size and times".into()))
    }

    fn frames(&self, input: &Input, indices: &[usize], size: Size) -> Result<Vec<Picture>, MediaError> {
        let wanted: Vec<String> = indices.iter().map(|index| format!("eq(n,{index})")).collect();
        let output = [
            "-map",
            "0:v:0",
            "-an",
            "-sn",
            "-dn",
            "-vf",
            &format!("select='{}'", wanted.join("+")),
            "-fps_mode",
            "passthrough",
            "-frames:v",
            &indices.len().to_string(),
            "-pix_fmt",
            "rgb24",
            "-c:v",
            "ppm",
            "-f",
            "image2pipe",
            "-",
        ];
        let frame = size.height as u64 * size.width as u64 * 3 + HEADER;
        let bytes = self.run(input, &output, frame.saturating_mul(indices.len() as u64))?;
        let frames = pictures(&bytes).ok_or_else(|| MediaError::Video("its frames are not whole".into()))?;
        match frames.len() {
            0 => Err(MediaError::Video("none of its frames can be decoded".into())),
            _ => Ok(frames),
        }
    }
}

/// What every call begins with: one thread, the file, and what the file may lead to, which is nothing.
const SOURCE: [&str; 13] = [
    "-nostdin",
    "-loglevel",
    "error",
    "-threads",
    "1",
    "-protocol_whitelist",
    "fd",
    "-format_whitelist",
    FORMATS,
    "-fd",
    "0",
    "-i",
    "fd:",
];

/// Reads the form `framecrc`: lines `#name stream: value`, then for each packet `stream, dts, pts, duration, ..`, the
/// times in the unit of `#tb`.
fn description(text: &str) -> Option<Description> {
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" 0: "));
    let (width, height) = value("#dimensions")?.split_once('x')?;
    let (numerator, denominator) = value("#tb")?.split_once('/')?;
    let unit = (numerator.parse::<f64>().ok()?, denominator.parse::<f64>().ok()?);
    let side = |text: &str| text.parse::<usize>().ok().filter(|side| *side > 0);
    let size = Size { height: side(height)?, width: side(width)? };
    let packets = text.lines().filter(|line| line.starts_with("0,"));
    let times: Vec<i64> = packets.map(|line| line.split(',').nth(2)?.trim().parse().ok()).collect::<Option<_>>()?;
    let (first, last) = (times.iter().min()?, times.iter().max()?);
    let span = last.checked_sub(*first)? as f64 * unit.0;
    // One frame has no rate; `sample` refuses it.
    let rate = if times.len() < 2 { 1.0 } else { (times.len() - 1) as f64 * unit.1 / span };
    (rate.is_finite() && rate > 0.0).then_some(Description { size, frames: times.len(), rate })
}

/// Pictures in the form `P6 WIDTH HEIGHT 255`, one behind the other.
fn pictures(mut bytes: &[u8]) -> Option<Vec<Picture>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let mut fields = [0usize; 3];
        let mut rest = bytes.strip_prefix(b"P6")?;
        for field in &mut fields {
            rest = rest.trim_ascii_start();
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            *field = str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
            rest = &rest[digits..];
        }
        let [width, height, 255] = fields else { return None };
        let length = width.checked_mul(height)?.checked_mul(3)?;
        let pixels = rest.get(1..)?.get(..length)?;
        found.push(Picture::new(Size { height, width }, pixels.to_vec()));
        bytes = &rest[1 + length..];
    }
    Some(found)
}
