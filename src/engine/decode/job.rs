//! The jobs, what they need to know, and how each is done: the same on a thread of the server and in a worker.

use omni_media::hearing;
use omni_media::mel::MelConfig;
use omni_media::picture::{Animation, Grey16, Picture, decode_animation, decode_picture};
use omni_media::size::SizeRule;
use omni_media::{MediaError, MediaLimits, bicubic};
use omni_model::frontend::{AudioLimits, decode_audio};
use serde::{Deserialize, Serialize};
use std::io;

/// Pictures of one job, at most.
pub(super) const MOST_PICTURES: usize = 8;

/// What is to be done with a file, or with some pictures.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Job {
    /// Decode a recording of a voice: samples at its own rate.
    Recording(RecordingHead),
    /// Decode sound that a model hears: samples at the rate of its spectrum.
    Sound(SoundHead),
    /// Decode pictures that a model sees, and give each its size: an answer for each, the last one for the first that
    /// cannot be decoded.
    Pictures(PicturesHead),
    /// Decode the frames of an animation, and give them their size.
    Animation(FilmHead),
}

/// The limits of a recording; see [`AudioLimits`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RecordingHead {
    max_bytes: usize,
    min_seconds: f64,
    max_seconds: f64,
}

/// The limits of a file; see [`MediaLimits`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    max_bytes: usize,
    max_pixels: u64,
    max_seconds: f64,
    max_frames: usize,
}

/// See [`MelConfig`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SoundHead {
    limits: Limits,
    rate: u32,
    window: usize,
    hop: usize,
    bands: usize,
}

/// See [`SizeRule`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SightHead {
    limits: Limits,
    factor: usize,
    min_pixels: usize,
    max_pixels: usize,
}

/// Pictures of one size rule, one behind the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PicturesHead {
    sight: SightHead,
    /// Bytes of each.
    lengths: Vec<usize>,
}

/// A size, and how many frames a second are seen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FilmHead {
    sight: SightHead,
    /// Bits of an f64.
    rate: u64,
}

/// What a job found.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    /// Of sound.
    Samples(Samples),
    /// Of a picture or an animation.
    Pictures(Pictures),
}

/// Sound.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Samples {
    /// Hz.
    pub rate: u32,
    /// Mono samples.
    pub samples: Vec<f32>,
}

/// Pictures of one size, at least one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pictures {
    /// In the order of time.
    pub frames: Vec<Picture>,
    /// How many of them are a second; 1 for a picture that is alone.
    pub frames_per_second: f64,
}

impl Job {
    /// Decodes a recording within these limits.
    pub fn recording(limits: &AudioLimits) -> Job {
        let AudioLimits { max_bytes, min_seconds, max_seconds } = *limits;
        Job::Recording(RecordingHead { max_bytes, min_seconds, max_seconds })
    }

    /// Decodes sound for this spectrum.
    pub fn sound(limits: &MediaLimits, mel: &MelConfig) -> Job {
        let MelConfig { rate, window, hop, bands } = *mel;
        Job::Sound(SoundHead { limits: limits.into(), rate, window, hop, bands })
    }

    /// Decodes pictures of these lengths and resizes them by this rule.
    pub fn pictures(limits: &MediaLimits, rule: &SizeRule, lengths: Vec<usize>) -> Job {
        Job::Pictures(PicturesHead { sight: SightHead::new(limits, rule), lengths })
    }

    /// Decodes an animation, `rate` frames of a second, and resizes them by this rule.
    pub fn animation(limits: &MediaLimits, rule: &SizeRule, rate: f64) -> Job {
        Job::Animation(FilmHead { sight: SightHead::new(limits, rule), rate: rate.to_bits() })
    }
}

/// Does a job, and hands each answer over: one, or one for each picture.
///
/// # Errors
/// Those of `answer`, and a job whose lengths are not those of `body`.
pub(super) fn execute(
    job: &Job,
    body: &[u8],
    answer: &mut dyn FnMut(Result<Answer, String>) -> io::Result<()>,
) -> io::Result<()> {
    let told = |error: MediaError| error.to_string();
    answer(match job {
        Job::Recording(RecordingHead { max_bytes, min_seconds, max_seconds }) => {
            let limits = AudioLimits { max_bytes: *max_bytes, min_seconds: *min_seconds, max_seconds: *max_seconds };
            let clip = decode_audio(body, &limits).map_err(|error| error.to_string());
            clip.map(|clip| Answer::Samples(Samples { rate: clip.rate, samples: clip.pcm }))
        }
        Job::Sound(SoundHead { limits, rate, window, hop, bands }) => {
            let mel = MelConfig { rate: *rate, window: *window, hop: *hop, bands: *bands };
            let samples = hearing::samples(body, &limits.into(), &mel).map_err(told);
            samples.map(|samples| Answer::Samples(Samples { rate: *rate, samples }))
        }
        Job::Pictures(PicturesHead { sight, lengths }) => return pictures(sight, lengths, body, answer),
        Job::Animation(FilmHead { sight, rate }) => {
            let (rate, rule) = (f64::from_bits(*rate), sight.rule());
            decode_animation(body, rate, &(&sight.limits).into(), |frame| sized(frame, &rule))
                .map(|Animation { frames, frames_per_second }| Answer::Pictures(Pictures { frames, frames_per_second }))
                .map_err(told)
        }
    })
}

/// One after the other, so that no two are in memory.
fn pictures(
    sight: &SightHead,
    lengths: &[usize],
    mut body: &[u8],
    answer: &mut dyn FnMut(Result<Answer, String>) -> io::Result<()>,
) -> io::Result<()> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "the pictures have other lengths than they should");
    let all = lengths.iter().try_fold(0usize, |sum, length| sum.checked_add(*length));
    if lengths.len() > MOST_PICTURES || all != Some(body.len()) {
        return Err(malformed());
    }
    for length in lengths {
        let (file, rest) = body.split_at_checked(*length).ok_or_else(malformed)?;
        body = rest;
        let one = decode_picture(file, &(&sight.limits).into(), Grey16::default())
            .and_then(|picture| resized(vec![picture], &sight.rule()))
            .map(|frames| Answer::Pictures(Pictures { frames, frames_per_second: 1.0 }));
        let refused = one.is_err();
        answer(one.map_err(|error| error.to_string()))?;
        if refused {
            break;
        }
    }
    Ok(())
}

/// Gives frames their size, one after the other, so that no two sizes of all of them are in memory.
///
/// # Errors
/// [`MediaError::Aspect`] for a strip.
pub(super) fn resized(frames: Vec<Picture>, rule: &SizeRule) -> Result<Vec<Picture>, MediaError> {
    frames.into_iter().map(|frame| sized(frame, rule)).collect()
}

fn sized(frame: Picture, rule: &SizeRule) -> Result<Picture, MediaError> {
    rule.resized(frame.size()).map(|size| bicubic::resize(frame, size))
}

impl SightHead {
    fn new(limits: &MediaLimits, rule: &SizeRule) -> SightHead {
        let SizeRule { factor, min_pixels, max_pixels } = *rule;
        SightHead { limits: limits.into(), factor, min_pixels, max_pixels }
    }

    fn rule(&self) -> SizeRule {
        SizeRule { factor: self.factor, min_pixels: self.min_pixels, max_pixels: self.max_pixels }
    }
}

impl From<&MediaLimits> for Limits {
    fn from(limits: &MediaLimits) -> Limits {
        let MediaLimits { max_bytes, max_pixels, max_seconds, max_frames } = *limits;
        Limits { max_bytes, max_pixels, max_seconds, max_frames }
    }
}

impl From<&Limits> for MediaLimits {
    fn from(limits: &Limits) -> MediaLimits {
        let Limits { max_bytes, max_pixels, max_seconds, max_frames } = *limits;
        MediaLimits { max_bytes, max_pixels, max_seconds, max_frames }
    }
}
