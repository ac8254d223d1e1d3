//! How many bytes the media of a request may take, and the part of all that it holds.

use super::Inner;
use crate::api::{Detail, MediaSource, SubmitError};
use crate::decode::most_pixels;
use omni_media::size::SizeRule;
use omni_telemetry::MediaMetrics;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What is counted at once, in bytes.
const UNIT: usize = 1024;
/// Bytes of a pixel of 8-bit RGB.
const RGB: usize = 3;
/// Pixels of an image that is seen with little detail.
const LOW_PIXELS: usize = 512 * 512;
/// The part of all memory that the frames of one film may take until they have their size.
const FILM_PART: usize = 2;
/// Seconds of the sound of a film are counted as 48 kHz stereo in floats.
const FILM_SOUND: f64 = 2.0 * 4.0 * 48_000.0;

/// Bytes for all requests together.
pub(super) struct Memory {
    all: usize,
    free: Arc<Semaphore>,
}

/// A part of them, given back when it is dropped.
pub(crate) struct Held(OwnedSemaphorePermit);

impl Memory {
    pub fn new(bytes: usize) -> Memory {
        Memory { all: bytes, free: Arc::new(Semaphore::new(bytes / UNIT)) }
    }

    /// Bytes that the frames of one film may take.
    fn film(&self) -> usize {
        self.all / FILM_PART
    }

    /// Takes so many bytes, after those who came before.
    ///
    /// # Errors
    /// [`SubmitError::Invalid`] for more than there are, [`SubmitError::Busy`] where they do not come free in time.
    pub async fn take(&self, bytes: usize, patience: Duration) -> Result<Held, SubmitError> {
        let units = bytes.div_ceil(UNIT);
        let (Ok(count), true) = (u32::try_from(units), units <= self.all / UNIT) else {
            let message = format!(
                "its sounds, pictures and videos may take {bytes} bytes when they are decoded, at most {} are \
                 taken (media.max_memory): send fewer or smaller ones",
                self.all
            );
            return Err(SubmitError::Invalid { param: "messages", message });
        };
        let taking = tokio::time::timeout(patience, Arc::clone(&self.free).acquire_many_owned(count)).await;
        let Ok(Ok(permit)) = taking else {
            return Err(SubmitError::Busy("the memory for sounds and pictures is taken; try again in a second".into()));
        };
        MediaMetrics::holds((units * UNIT) as f64);
        Ok(Held(permit))
    }

    /// Takes so many bytes if they are free.
    pub fn take_at_once(&self, bytes: usize) -> Option<Held> {
        let units = bytes.div_ceil(UNIT);
        let permit = Arc::clone(&self.free).try_acquire_many_owned(u32::try_from(units).ok()?).ok()?;
        MediaMetrics::holds((units * UNIT) as f64);
        Some(Held(permit))
    }

    #[cfg(test)]
    pub fn free(&self) -> usize {
        self.free.available_permits() * UNIT
    }
}

impl Held {
    /// Gives all but so many bytes back.
    pub fn shrink(&mut self, bytes: usize) {
        if let Some(more) = self.0.num_permits().checked_sub(bytes.div_ceil(UNIT))
            && let Some(given_back) = self.0.split(more)
        {
            MediaMetrics::holds(-((more * UNIT) as f64));
            drop(given_back);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        MediaMetrics::holds(-((self.0.num_permits() * UNIT) as f64));
    }
}

impl Inner {
    /// Which size an image gets: `low` is at most 512 x 512 pixels, `high` and `auto` what the checkpoint takes.
    pub(super) fn rule(&self, detail: Detail) -> SizeRule {
        match detail {
            Detail::Auto | Detail::High => self.front.image,
            Detail::Low => SizeRule { max_pixels: self.front.image.max_pixels.min(LOW_PIXELS), ..self.front.image },
        }
    }

    /// Pixels of a film's frames, at most: all that are seen fit into a film's part of the memory.
    pub(super) fn film_pixels(&self) -> u64 {
        let most = self.memory.film() / (RGB * self.limits.max_frames.max(1));
        self.limits.max_pixels.min(most as u64)
    }

    /// Pixels that a prompt has room for: beyond them there are more tokens than the model can take.
    pub(super) fn most_seen(&self) -> usize {
        let block = self.front.patches.factor().pow(2);
        self.max_tokens.saturating_mul(block * self.front.patches.temporal_patch_size)
    }

    /// Bytes that these files may take at most, decoded and prepared. A picture has as many pixels as its rule allows,
    /// and all together have as many as the prompt has tokens; sound is as long as the limit. So the need is known
    /// without a look into a file.
    pub(super) fn need(&self, sources: &[MediaSource]) -> usize {
        let (mut pixels, mut largest, mut film, mut heard, mut spoken) = (0usize, 0, 0, false, 0.0);
        for source in sources {
            let (rule, count) = match source {
                MediaSource::Audio(_) => {
                    heard = true;
                    continue;
                }
                MediaSource::Speech(file) => {
                    spoken += seconds(file);
                    continue;
                }
                MediaSource::Image { detail, .. } => (self.rule(*detail), 1),
                MediaSource::Frames { pictures, .. } => (self.front.video, pictures.len()),
                MediaSource::Video { hear, .. } => {
                    film = self.memory.film();
                    heard |= hear;
                    if *hear {
                        film += (self.limits.max_seconds * FILM_SOUND) as usize;
                    }
                    (self.front.video, self.limits.max_frames)
                }
            };
            largest = largest.max(most_pixels(&rule));
            pixels = pixels.saturating_add(most_pixels(&rule).saturating_mul(count));
        }
        // One that is too much is noticed when it is there.
        let beyond = largest.saturating_mul(self.decoders.side_by_side());
        let seen = pixels.min(self.most_seen().saturating_add(beyond)).saturating_mul(RGB);
        let per_second = self.front.mel.rate as usize * size_of::<f32>()
            + self.front.mel.rate as usize / self.front.mel.hop * self.front.mel.bands * size_of::<f64>();
        // What is longer than the limit is refused when it is decoded.
        let most = self.limits.max_seconds;
        let heard = if heard { most } else { spoken.min(most) };
        let sound = if heard > 0.0 { (heard.ceil() as usize + 1) * per_second } else { 0 };
        seen.saturating_add(film).saturating_add(sound)
    }
}

/// How long a [wav file of this process](MediaSource::Speech) is.
fn seconds(wav: &[u8]) -> f64 {
    let rate = wav.get(24..28).map_or(1, |bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    wav.len() as f64 / 2.0 / f64::from(rate.max(1))
}
