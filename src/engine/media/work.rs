//! The files of one request, decoded one after the other, and what they become.

use super::{Inner, name};
use crate::api::{MediaSource, MediaTokens};
use crate::decode::{DecodeError, Pictures, resize_film};
use omni_media::hearing::{audio_tokens, samples, spectra};
use omni_media::patches::Patches;
use omni_media::picture::Picture;
use omni_media::size::SizeRule;
use omni_media::video::{USUAL_RATE, second_per_grid};
use omni_media::{MediaError, MediaLimits, Medium};
use omni_telemetry::MediaMetrics;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Frames that a film has at least, if it has them.
const LEAST_FRAMES: usize = 4;

/// Why there are no media.
#[derive(Debug, PartialEq)]
pub(super) enum Trouble {
    /// One of them is at fault: its number, and what is wrong.
    Medium(usize, String),
    /// There was no worker.
    Busy(String),
    /// The client has left.
    Gone,
}

/// A medium without its sound, which is known when all clips are.
enum Half {
    Audio(usize),
    Image(Patches),
    Video { frames: Patches, second_per_grid: f64, clip: Option<usize> },
}

/// What the files so far have taken of the limits.
#[derive(Default)]
struct Taken {
    /// Samples at the rate of the spectrum, one entry per clip.
    clips: Vec<Vec<f32>>,
    frames: usize,
    /// Tokens of what is seen.
    tokens: usize,
}

impl Inner {
    /// Decodes and prepares; blocks. It looks at `gone` before each file.
    pub(super) fn work(&self, sources: &[MediaSource], gone: &AtomicBool) -> Result<Vec<Medium>, Trouble> {
        let mut taken = Taken::default();
        let mut halves = Vec::with_capacity(sources.len());
        for (index, source) in sources.iter().enumerate() {
            if gone.load(Ordering::Relaxed) {
                return Err(Trouble::Gone);
            }
            let began = Instant::now();
            let half = self.half(source, &mut taken, gone).map_err(|why| why.at(index))?;
            halves.push(half);
            if taken.tokens > self.max_tokens {
                let message = format!(
                    "the pictures so far take {} tokens, more than the {} that the model can take: send fewer or \
                     smaller ones, or \"detail\": \"low\"",
                    taken.tokens, self.max_tokens
                );
                return Err(Trouble::Medium(index, message));
            }
            MediaMetrics::took(name(source.kind()), began.elapsed());
        }
        let clips: Vec<&[f32]> = taken.clips.iter().map(Vec::as_slice).collect();
        let spectra = spectra(&clips, &self.mel).map_err(|error| Trouble::Medium(0, error.to_string()))?;
        let mut spectra: Vec<_> = spectra.into_iter().map(Some).collect();
        let mut heard = |clip: usize| spectra.get_mut(clip).and_then(Option::take);
        let whole = |half| match half {
            Half::Audio(clip) => heard(clip).map(Medium::Audio),
            Half::Image(patches) => Some(Medium::Image(patches)),
            Half::Video { frames, second_per_grid, clip } => {
                Some(Medium::Video { frames, second_per_grid, sound: clip.and_then(&mut heard) })
            }
        };
        // Each clip was counted once.
        Ok(halves.into_iter().filter_map(whole).collect())
    }

    fn half(&self, source: &MediaSource, taken: &mut Taken, gone: &AtomicBool) -> Result<Half, Why> {
        match source {
            MediaSource::Audio(file) => self.clip(file, &self.limits, taken).map(Half::Audio),
            MediaSource::Speech(file) => {
                let decode = |limits: &MediaLimits| samples(file, limits, &self.mel).map_err(Why::from);
                self.clip_of(decode, &self.limits, taken).map(Half::Audio)
            }
            MediaSource::Image { file, detail } => {
                let rule = self.rule(*detail);
                let picture = self.decoders.picture(file, &self.limits, &rule)?;
                Ok(Half::Image(self.patches(vec![picture], &rule, taken)?))
            }
            MediaSource::Frames { pictures, frames_per_second } => {
                taken.frames += pictures.len();
                self.check_frames(taken)?;
                let mut frames = Vec::with_capacity(pictures.len());
                for file in pictures {
                    if gone.load(Ordering::Relaxed) {
                        return Err(Why::Gone);
                    }
                    frames.push(self.decoders.picture(file, &self.limits, &self.front.video)?);
                }
                self.video(Pictures { frames, frames_per_second: *frames_per_second }, None, taken)
            }
            MediaSource::Video { file, hear, frames_per_second } => {
                let rate = frames_per_second.unwrap_or(USUAL_RATE);
                let left = self.limits.max_frames.saturating_sub(taken.frames) & !1;
                taken.frames += 2;
                self.check_frames(taken)?;
                taken.frames -= 2;
                let limits = MediaLimits { max_frames: left, ..self.limits };
                if is_animation(file) {
                    let found = self.decoders.animation(file, rate, &limits, &self.front.video)?;
                    taken.frames += found.frames.len();
                    return self.video(found, None, taken);
                }
                let Some(ffmpeg) = &self.ffmpeg else { return Err(Why::Refused(NO_VIDEOS.into())) };
                let limits = MediaLimits { max_pixels: self.film_pixels(), ..limits };
                let film = ffmpeg.film(file, rate, LEAST_FRAMES.min(left)..=left, &limits)?;
                taken.frames += film.frames.len();
                let frames = resize_film(film.frames, &self.front.video)?;
                let found = Pictures { frames, frames_per_second: film.frames_per_second };
                let clip = match hear {
                    true => self.film_sound(file, taken)?,
                    false => None,
                };
                self.video(found, clip, taken)
            }
        }
    }

    /// Decodes a clip, which is as long as the clips before it have left room for; its number.
    fn clip(&self, file: &[u8], limits: &MediaLimits, taken: &mut Taken) -> Result<usize, Why> {
        let decode = |limits: &MediaLimits| self.decoders.sound(file, limits, &self.front.mel).map_err(Why::from);
        self.clip_of(decode, limits, taken)
    }

    fn clip_of(
        &self,
        decode: impl FnOnce(&MediaLimits) -> Result<Vec<f32>, Why>,
        limits: &MediaLimits,
        taken: &mut Taken,
    ) -> Result<usize, Why> {
        let rate = f64::from(self.front.mel.rate);
        let before = taken.clips.iter().map(|clip| clip.len() as f64 / rate).sum::<f64>();
        let limits = MediaLimits { max_seconds: (self.limits.max_seconds - before).max(0.0), ..*limits };
        let clip = decode(&limits).map_err(|why| match why {
            Why::Refused(reason) if before > 0.0 => {
                let most = self.limits.max_seconds;
                Why::Refused(format!("{reason}; all sound of a request may last {most} s (media.max_seconds)"))
            }
            why => why,
        })?;
        taken.clips.push(clip);
        Ok(taken.clips.len() - 1)
    }

    fn film_sound(&self, file: &[u8], taken: &mut Taken) -> Result<Option<usize>, Why> {
        let Some(ffmpeg) = &self.ffmpeg else { return Ok(None) };
        // What it writes is bounded by the length: as many bytes as stereo at 48 kHz has, of the most that it may be.
        let limits = MediaLimits { max_seconds: self.limits.max_seconds / 16.0, ..self.limits };
        let Some(wav) = ffmpeg.sound(file, &limits)? else { return Ok(None) };
        let limits = MediaLimits { max_bytes: wav.len(), ..self.limits };
        self.clip(&wav, &limits, taken).map(Some)
    }

    fn video(&self, found: Pictures, clip: Option<usize>, taken: &mut Taken) -> Result<Half, Why> {
        let second_per_grid = second_per_grid(found.frames_per_second, self.front.patches.temporal_patch_size)?;
        let frames = self.patches(found.frames, &self.front.video, taken)?;
        Ok(Half::Video { frames, second_per_grid, clip })
    }

    fn check_frames(&self, taken: &Taken) -> Result<(), Why> {
        if taken.frames > self.limits.max_frames {
            let (have, most) = (taken.frames, self.limits.max_frames);
            return Err(Why::Refused(format!(
                "the videos of this request have {have} frames, at most {most} are taken (media.max_frames)"
            )));
        }
        Ok(())
    }

    /// Cuts frames that have their size.
    fn patches(&self, frames: Vec<Picture>, rule: &SizeRule, taken: &mut Taken) -> Result<Patches, Why> {
        let as_it_is = SizeRule { factor: rule.factor, min_pixels: 0, max_pixels: usize::MAX };
        let patches = Patches::new(frames, &as_it_is, &self.front.patches)?;
        taken.tokens += patches.tokens();
        Ok(patches)
    }

    /// Tokens of a prompt with these media.
    pub(super) fn tokens(&self, media: &[Medium]) -> MediaTokens {
        let mut tokens = MediaTokens::default();
        let heard = |frames: usize| audio_tokens(frames, self.front.n_window) as u32;
        for medium in media {
            match medium {
                Medium::Audio(spectrum) => tokens.audio += heard(spectrum.frames()),
                Medium::Image(patches) => tokens.image += patches.tokens() as u32,
                Medium::Video { frames, sound, .. } => {
                    tokens.video += frames.tokens() as u32;
                    tokens.audio += sound.as_ref().map_or(0, |spectrum| heard(spectrum.frames()));
                }
            }
        }
        tokens
    }
}

const NO_VIDEOS: &str =
    "this server decodes no videos but animated GIF and WebP (media.ffmpeg): send the frames as a list";

/// Whether a worker decodes it, by its first bytes: GIF or WebP.
fn is_animation(file: &[u8]) -> bool {
    file.starts_with(b"GIF8") || (file.starts_with(b"RIFF") && file.get(8..12) == Some(b"WEBP"))
}

/// What is wrong with one medium.
enum Why {
    Refused(String),
    Busy(String),
    Gone,
}

impl Why {
    fn at(self, index: usize) -> Trouble {
        match self {
            Why::Refused(reason) => Trouble::Medium(index, reason),
            Why::Busy(reason) => Trouble::Busy(reason),
            Why::Gone => Trouble::Gone,
        }
    }
}

impl From<DecodeError> for Why {
    fn from(error: DecodeError) -> Why {
        match error {
            DecodeError::Refused(reason) => Why::Refused(reason),
            DecodeError::Ended(_) => Why::Refused(error.to_string()),
            DecodeError::Busy | DecodeError::Unavailable(_) => Why::Busy(error.to_string()),
        }
    }
}

impl From<MediaError> for Why {
    fn from(error: MediaError) -> Why {
        Why::Refused(error.to_string())
    }
}
