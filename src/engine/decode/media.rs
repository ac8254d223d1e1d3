//! What a model hears and sees, decoded where recordings are: sound, pictures, animations.

use super::job::{Answer, Job, Pictures, Samples, execute, resized};
use super::{
    BYTES_PER_SAMPLE, DecodeError, Decoders, Place, StartError, WORKING_BYTES, WorkerLimits, counted, refused,
};
use omni_config::MediaInputConfig;
use omni_media::MediaLimits;
use omni_media::mel::MelConfig;
use omni_media::picture::Picture;
use omni_media::size::SizeRule;
use omni_model::frontend::MAX_RATE;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Memory of a worker for each pixel: what the decoder may take (16), its picture in RGB, and what resizing takes.
const BYTES_PER_PIXEL: u64 = 24;
/// Memory of a frame of an animation that waits for its size: 720p.
const FRAME_BYTES: u64 = 1280 * 720 * 3;
/// The longest strip: one side so many times as long as the other, before it is resized.
const MAX_ASPECT: usize = 200;

/// The most pixels that a picture may have which this rule has resized: as many as it says, or a strip of blocks.
pub(crate) fn most_pixels(rule: &SizeRule) -> usize {
    let strip = rule.factor.saturating_mul(rule.factor).saturating_mul(2 * MAX_ASPECT);
    rule.max_pixels.max(rule.min_pixels.saturating_mul(4)).max(strip)
}

impl Decoders {
    /// As the config has it. The first worker is started by the first file.
    ///
    /// # Errors
    /// [`StartError::Config`] where processes are asked for and there is no program to start.
    pub(crate) fn for_media(config: &MediaInputConfig) -> Result<Decoders, StartError> {
        let samples = f64::from(config.max_seconds) * f64::from(MAX_RATE);
        let sound = BYTES_PER_SAMPLE * samples as u64;
        let sight = BYTES_PER_PIXEL * config.max_pixels + FRAME_BYTES * config.max_frames as u64;
        let memory = WORKING_BYTES + config.max_bytes as u64 + sound.max(sight);
        let limits = WorkerLimits { memory, time: config.decode_timeout };
        Decoders::placed(config.decode, limits, "media")
    }

    /// Decodes sound for this spectrum: mono samples at its rate. Blocks; not for an async thread.
    ///
    /// # Errors
    /// See [`DecodeError`]. Whatever the bytes do, the next call works.
    pub(crate) fn sound(&self, bytes: &[u8], limits: &MediaLimits, mel: &MelConfig) -> Result<Vec<f32>, DecodeError> {
        // The last sample may round up.
        let most = (limits.max_seconds * f64::from(mel.rate)) as u64 + 2;
        let found = self.run(&Job::sound(limits, mel), bytes, most * size_of::<f32>() as u64);
        counted(
            "sound",
            found.and_then(|answer| match answer {
                Answer::Samples(Samples { rate, samples }) if rate == mel.rate && !samples.is_empty() => Ok(samples),
                _ => Err(nonsense()),
            }),
        )
    }

    /// Decodes a picture, of an animation the first, and resizes it by this rule. Blocks.
    ///
    /// # Errors
    /// As [`Decoders::sound`].
    pub(crate) fn picture(&self, bytes: &[u8], limits: &MediaLimits, rule: &SizeRule) -> Result<Picture, DecodeError> {
        let found = self.sight(&Job::picture(limits, rule), bytes, rule, 1);
        let one = |found: Pictures| found.frames.into_iter().next().ok_or_else(nonsense);
        counted("picture", found.and_then(one))
    }

    /// Decodes an animation, `rate` frames of a second and at most `limits.max_frames`, resized by this rule. Blocks.
    ///
    /// # Errors
    /// As [`Decoders::sound`].
    pub(crate) fn animation(
        &self,
        bytes: &[u8],
        rate: f64,
        limits: &MediaLimits,
        rule: &SizeRule,
    ) -> Result<Pictures, DecodeError> {
        let most = (limits.max_frames & !1).max(2);
        counted("animation", self.sight(&Job::animation(limits, rule, rate), bytes, rule, most))
    }

    fn sight(&self, job: &Job, bytes: &[u8], rule: &SizeRule, frames: usize) -> Result<Pictures, DecodeError> {
        let most = most_pixels(rule) as u64 * 3 * frames as u64;
        let Answer::Pictures(found) = self.run(job, bytes, most)? else { return Err(nonsense()) };
        // A worker that was taken over may answer anything.
        let fits = |frame: &Picture| {
            let size = frame.size();
            let blocks = size.height.is_multiple_of(rule.factor) && size.width.is_multiple_of(rule.factor);
            blocks && size.height * size.width <= most_pixels(rule)
        };
        if found.frames.len() > frames || !found.frames.iter().all(fits) { Err(nonsense()) } else { Ok(found) }
    }

    fn run(&self, job: &Job, bytes: &[u8], most: u64) -> Result<Answer, DecodeError> {
        match &self.0 {
            Place::Process(pool) => pool.get()?.run(job, bytes, most),
            Place::Thread => {
                let done = catch_unwind(AssertUnwindSafe(|| execute(job, bytes)));
                done.unwrap_or_else(|_| Err("its structure makes no sense".to_owned())).map_err(DecodeError::Refused)
            }
        }
    }
}

/// Gives the frames of a film their size.
///
/// # Errors
/// [`DecodeError::Refused`] for a strip.
pub(crate) fn resize_film(frames: Vec<Picture>, rule: &SizeRule) -> Result<Vec<Picture>, DecodeError> {
    resized(frames, rule).map_err(refused)
}

fn nonsense() -> DecodeError {
    DecodeError::Ended("its decoder answered what was not asked for".to_owned())
}
