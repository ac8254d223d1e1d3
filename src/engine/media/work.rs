//! The files of one request, decoded, and what they become: pictures and frames side by side, then sounds and films one
//! after the other.

use super::{Inner, name};
use crate::api::{MediaSource, MediaTokens};
use crate::decode::{DecodeError, Pictures, Sight};
use omni_media::hearing::audio_tokens;
use omni_media::medium::MediaHash;
use omni_media::patches::Patches;
use omni_media::picture::Picture;
use omni_media::size::SizeRule;
use omni_media::spectrum::Spectrum;
use omni_media::speech::Speech;
use omni_media::video::{USUAL_RATE, second_per_grid};
use omni_media::{MediaError, MediaLimits, Medium};
use omni_telemetry::MediaMetrics;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::vec::IntoIter;

/// Frames that a film has at least, if it has them.
const LEAST_FRAMES: usize = 4;

/// Why there are no media.
#[derive(Debug, PartialEq)]
pub(super) enum Trouble {
    /// One of them is at fault: its number, of a list of frames that of the frame, and what is wrong.
    Medium { index: usize, frame: Option<usize>, message: String },
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

/// The sound of a medium.
enum Clip {
    /// Samples at the rate of the spectrum.
    Pcm(Vec<f32>),
    /// Of a session.
    Speech(Speech),
}

impl Clip {
    /// Samples at the rate of the spectrum.
    fn samples(&self) -> usize {
        match self {
            Clip::Pcm(pcm) => pcm.len(),
            Clip::Speech(speech) => speech.samples(),
        }
    }
}

/// What is left of the decoded pictures, and what the files so far have taken of the limits.
struct Taken {
    /// In the order of the request: up to the first that cannot be decoded, or that was not wanted any more.
    pictures: IntoIter<Result<Picture, DecodeError>>,
    clips: Vec<Clip>,
    frames: usize,
    /// Tokens of what is seen.
    tokens: usize,
}

impl Inner {
    /// Decodes and prepares; blocks. It looks at `gone` before each file.
    pub(super) fn work(
        &self,
        sources: &[MediaSource],
        owner: &MediaHash,
        gone: &AtomicBool,
    ) -> Result<Vec<Medium>, Trouble> {
        let began = Instant::now();
        let pictures = self.pictures(sources, gone).into_iter();
        let decoding = began.elapsed();
        let mut taken = Taken { pictures, clips: Vec::new(), frames: 0, tokens: 0 };
        let mut halves = Vec::with_capacity(sources.len());
        for (index, source) in sources.iter().enumerate() {
            if gone.load(Ordering::Relaxed) {
                return Err(Trouble::Gone);
            }
            let began = Instant::now();
            halves.push(self.half(source, &mut taken, gone).map_err(|why| why.at(index))?);
            if taken.tokens > self.max_tokens {
                return Err(self.too_many_tokens().at(index));
            }
            let before = match source {
                MediaSource::Image { .. } | MediaSource::Frames { .. } => decoding,
                MediaSource::Audio(_) | MediaSource::Speech(_) | MediaSource::Video { .. } => Duration::ZERO,
            };
            MediaMetrics::took(name(source.kind()), before + began.elapsed());
        }
        let spectra = self.spectra_of(&taken.clips, owner).map_err(|error| Why::from(error).at(0))?;
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

    /// The spectra of all clips of a request, in their order. The reference pads them with zeros to the longest before it
    /// computes anything, so a shorter clip may have a frame more than alone, and other numbers in its last one.
    fn spectra_of(&self, clips: &[Clip], owner: &MediaHash) -> Result<Vec<Spectrum>, MediaError> {
        let longest = clips.iter().map(Clip::samples).max().unwrap_or(0);
        let spectrum = |clip: &Clip| match clip {
            Clip::Pcm(pcm) => self.mel.spectrum_by(pcm, longest, |count, block| {
                self.decoders.helpers().each(count, |number| (block(number), true))
            }),
            Clip::Speech(speech) => speech.spectrum(&self.mel, longest, owner, &self.spectra),
        };
        clips.iter().map(spectrum).collect()
    }

    /// Decodes the pictures and lists of frames of a request, as long as its client is there and they are no more than
    /// the model takes.
    fn pictures(&self, sources: &[MediaSource], gone: &AtomicBool) -> Vec<Result<Picture, DecodeError>> {
        let mut sights = Vec::new();
        let mut listed = 0;
        for source in sources {
            match source {
                MediaSource::Image { file, detail } => sights.push(Sight { file, rule: self.rule(*detail) }),
                MediaSource::Frames { pictures, .. } => {
                    listed += pictures.len();
                    // The request is refused when its turn comes.
                    if listed > self.limits.max_frames {
                        break;
                    }
                    sights.extend(pictures.iter().map(|file| Sight { file, rule: self.front.video }));
                }
                MediaSource::Audio(_) | MediaSource::Speech(_) | MediaSource::Video { .. } => {}
            }
        }
        let (seen, most) = (AtomicUsize::new(0), self.most_seen());
        let wanted = |pixels: usize| {
            let before = seen.fetch_add(pixels, Ordering::Relaxed);
            before.saturating_add(pixels) <= most && !gone.load(Ordering::Relaxed)
        };
        self.decoders.pictures(&sights, &self.limits, &wanted)
    }

    /// The next of the decoded pictures.
    fn next(&self, taken: &mut Taken, gone: &AtomicBool) -> Result<Picture, Why> {
        match taken.pictures.next() {
            Some(picture) => Ok(picture?),
            None if gone.load(Ordering::Relaxed) => Err(Why::Gone),
            None => Err(self.too_many_tokens()),
        }
    }

    fn too_many_tokens(&self) -> Why {
        Why::refused(format!(
            "the pictures up to this one take more tokens than the {} that the model can take: send fewer or smaller \
             ones, or \"detail\": \"low\"",
            self.max_tokens
        ))
    }

    fn half(&self, source: &MediaSource, taken: &mut Taken, gone: &AtomicBool) -> Result<Half, Why> {
        match source {
            MediaSource::Audio(file) => self.sent(file, &self.limits, taken).map(Half::Audio),
            MediaSource::Speech(file) => {
                let speech = |limits: &MediaLimits| Speech::of_wav(file, limits, &self.mel);
                self.clip_of(|limits| Ok(Clip::Speech(speech(limits)?)), &self.limits, taken).map(Half::Audio)
            }
            MediaSource::Image { detail, .. } => {
                let picture = self.next(taken, gone)?;
                Ok(Half::Image(self.patches(vec![picture], &self.rule(*detail), taken)?))
            }
            MediaSource::Frames { pictures, frames_per_second } => {
                taken.frames += pictures.len();
                self.check_frames(taken)?;
                let frame = |number| self.next(taken, gone).map_err(|why: Why| why.in_frame(number));
                let frames = (0..pictures.len()).map(frame).collect::<Result<Vec<_>, _>>()?;
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
                let Some(ffmpeg) = &self.ffmpeg else { return Err(Why::refused(NO_VIDEOS)) };
                let limits = MediaLimits { max_pixels: self.film_pixels(), ..limits };
                let film = ffmpeg.film(file, rate, LEAST_FRAMES.min(left)..=left, &limits)?;
                taken.frames += film.frames.len();
                let frames = self.decoders.resize_film(film.frames, &self.front.video)?;
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
        self.clip_of(|limits| self.decoded(file, limits), limits, taken)
    }

    fn decoded(&self, file: &[u8], limits: &MediaLimits) -> Result<Clip, Why> {
        Ok(Clip::Pcm(self.decoders.sound(file, limits, &self.front.mel)?))
    }

    /// A file of a client. Plain samples of 16 bits need no decoder, which takes longer to answer than they take to copy;
    /// one that finds something wrong with them says what.
    fn sent(&self, file: &Arc<[u8]>, limits: &MediaLimits, taken: &mut Taken) -> Result<usize, Why> {
        let decode = |limits: &MediaLimits| match Speech::of_wav(file, limits, &self.mel) {
            Ok(plain) => Ok(Clip::Pcm(plain.at_rate(self.front.mel.rate)?)),
            Err(_) => self.decoded(file, limits),
        };
        self.clip_of(decode, limits, taken)
    }

    fn clip_of(
        &self,
        decode: impl FnOnce(&MediaLimits) -> Result<Clip, Why>,
        limits: &MediaLimits,
        taken: &mut Taken,
    ) -> Result<usize, Why> {
        let rate = f64::from(self.front.mel.rate);
        let before = taken.clips.iter().map(|clip| clip.samples() as f64 / rate).sum::<f64>();
        let limits = MediaLimits { max_seconds: (self.limits.max_seconds - before).max(0.0), ..*limits };
        let clip = decode(&limits).map_err(|why| match why {
            Why::Refused { message, .. } if before > 0.0 => {
                let most = self.limits.max_seconds;
                Why::refused(format!("{message}; all sound of a request may last {most} s (media.max_seconds)"))
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
            return Err(Why::refused(format!(
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

/// What is wrong with one medium, or with a frame of it.
enum Why {
    Refused { frame: Option<usize>, message: String },
    Busy(String),
    Gone,
}

impl Why {
    fn refused(message: impl Into<String>) -> Why {
        Why::Refused { frame: None, message: message.into() }
    }

    fn in_frame(self, number: usize) -> Why {
        match self {
            Why::Refused { message, .. } => Why::Refused { frame: Some(number), message },
            other => other,
        }
    }

    fn at(self, index: usize) -> Trouble {
        match self {
            Why::Refused { frame, message } => Trouble::Medium { index, frame, message },
            Why::Busy(reason) => Trouble::Busy(reason),
            Why::Gone => Trouble::Gone,
        }
    }
}

impl From<DecodeError> for Why {
    fn from(error: DecodeError) -> Why {
        match error {
            DecodeError::Refused(reason) => Why::refused(reason),
            DecodeError::Ended(_) => Why::refused(error.to_string()),
            DecodeError::Busy | DecodeError::Unavailable(_) => Why::Busy(error.to_string()),
        }
    }
}

impl From<MediaError> for Why {
    fn from(error: MediaError) -> Why {
        Why::refused(error.to_string())
    }
}
