//! Videos through the `ffmpeg` program: frames and sound of a file.
//!
//! What a stranger sends is given to a large program, so it works in a process with limits, which a shell sets before it
//! becomes `ffmpeg`: memory, processor time, no files written, no core, few descriptors. The file is its standard input
//! and nothing else: the only protocol is `fd`, so a playlist or a reference inside the file opens no other file and no
//! address, and only formats of films are read, none that are lists of other files. Its environment is empty. It is
//! ended when it takes too long or writes more than it may.
//!
//! Calls block; they are not for an async thread.

mod process;
#[cfg(test)]
mod tests;

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
/// Bytes that a description of a file may have.
const DESCRIPTION: u64 = 64 << 10;
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

/// The programs, and what they may have.
#[derive(Clone, Debug)]
pub struct Ffmpeg {
    /// `ffmpeg`, by name or path.
    pub ffmpeg: PathBuf,
    /// `ffprobe`.
    pub ffprobe: PathBuf,
    /// Of each call.
    pub limits: ProcessLimits,
}

impl Default for Ffmpeg {
    fn default() -> Ffmpeg {
        Ffmpeg { ffmpeg: "ffmpeg".into(), ffprobe: "ffprobe".into(), limits: ProcessLimits::default() }
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
    /// [`MediaError::NoFfmpeg`] without the programs; [`MediaError::TooMuch`] for more bytes, pixels or seconds than the
    /// limits, before a frame is decoded; [`MediaError::Video`] for what they cannot decode within their own limits.
    pub fn film(
        &self,
        bytes: &[u8],
        rate: f64,
        frames: RangeInclusive<usize>,
        limits: &MediaLimits,
    ) -> Result<Film, MediaError> {
        limits.check_bytes("video", bytes)?;
        let input = Input::new(bytes)?;
        let description = self.describe(&input)?;
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
        let found = self.run(&self.ffprobe, &input, &probe("a:0", "stream=codec_type"), DESCRIPTION)?;
        if String::from_utf8_lossy(&found).trim().is_empty() {
            return Ok(None);
        }
        let most = (limits.max_seconds * SOUND_PER_SECOND) as u64;
        let output = ["-map", "0:a:0", "-vn", "-sn", "-dn", "-c:a", "pcm_f32le", "-f", "wav", "-"];
        let arguments = [&decode()[..], &output.map(str::to_owned)].concat();
        self.run(&self.ffmpeg, &input, &arguments, most.saturating_add(HEADER)).map(Some)
    }

    fn describe(&self, input: &Input) -> Result<Description, MediaError> {
        let mut arguments = probe("v:0", "stream=width,height,avg_frame_rate,nb_read_packets");
        arguments.insert(0, "-count_packets".into());
        let text = self.run(&self.ffprobe, input, &arguments, DESCRIPTION)?;
        description(&String::from_utf8_lossy(&text))
            .ok_or_else(|| MediaError::Video("it has no film, or does not say its size and rate".into()))
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
        let arguments = [&decode()[..], &output.map(str::to_owned)].concat();
        let frame = size.height as u64 * size.width as u64 * 3 + HEADER;
        let bytes = self.run(&self.ffmpeg, input, &arguments, frame.saturating_mul(indices.len() as u64))?;
        let frames = pictures(&bytes).ok_or_else(|| MediaError::Video("its frames are not whole".into()))?;
        match frames.len() {
            0 => Err(MediaError::Video("none of its frames can be decoded".into())),
            _ => Ok(frames),
        }
    }
}

/// What comes before the output of `ffmpeg`.
fn decode() -> Vec<String> {
    ["-nostdin", "-hide_banner", "-loglevel", "error", "-threads", "1"]
        .map(str::to_owned)
        .into_iter()
        .chain(source())
        .collect()
}

/// What `ffprobe` is asked.
fn probe(stream: &str, entries: &str) -> Vec<String> {
    let head = ["-hide_banner", "-loglevel", "error", "-select_streams", stream, "-show_entries", entries];
    let form = ["-of", "default=noprint_wrappers=1"];
    head.into_iter().chain(form).map(str::to_owned).chain(source()).collect()
}

/// The file, and what it may lead to: nothing.
fn source() -> Vec<String> {
    ["-protocol_whitelist", "fd", "-format_whitelist", FORMATS, "-fd", "0", "-i", "fd:"].map(str::to_owned).to_vec()
}

/// Lines `key=value` of `ffprobe`.
fn description(text: &str) -> Option<Description> {
    let value = |key: &str| text.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix('='));
    let (numerator, denominator) = value("avg_frame_rate")?.split_once('/')?;
    let rate = numerator.parse::<f64>().ok()? / denominator.parse::<f64>().ok()?;
    let count = |key: &str| value(key)?.parse::<usize>().ok().filter(|count| *count > 0);
    let size = Size { height: count("height")?, width: count("width")? };
    let found = Description { size, frames: count("nb_read_packets")?, rate };
    (rate.is_finite() && rate > 0.0).then_some(found)
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
