//! What a model hears and sees, decoded where recordings are: sound, pictures, animations.

use super::helpers::Helpers;
use super::job::{Answer, Job, Pictures, Samples, execute};
use super::{
    BYTES_PER_SAMPLE, DecodeError, Decoders, Place, StartError, WORKING_BYTES, WorkerLimits, counted, nonsense, one,
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
        Decoders::placed(config.decode, limits, "media", Helpers::usual())
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
        let bytes_of_all = most_bytes(rule) * most as u64;
        let found =
            self.run(&Job::animation(limits, rule, rate), bytes, bytes_of_all).and_then(|answer| match answer {
                Answer::Pictures(found)
                    if found.frames.len() <= most && found.frames.iter().all(|frame| fits(frame, rule)) =>
                {
                    Ok(found)
                }
                _ => Err(nonsense()),
            });
        counted("animation", found)
    }

    fn run(&self, job: &Job, bytes: &[u8], most: u64) -> Result<Answer, DecodeError> {
        match &self.place {
            Place::Process(pool) => one(pool.get()?, job, bytes, most),
            Place::Thread => here(job, bytes),
        }
    }
}

/// Has this thread do a job with one answer.
pub(super) fn here(job: &Job, bytes: &[u8]) -> Result<Answer, DecodeError> {
    let mut found = Err("nothing was answered".to_owned());
    let answer = &mut |answer| {
        found = answer;
        Ok(())
    };
    let done = catch_unwind(AssertUnwindSafe(|| execute(job, bytes, answer)));
    match done {
        Ok(Ok(())) => found.map_err(DecodeError::Refused),
        Ok(Err(error)) => Err(DecodeError::Ended(error.to_string())),
        Err(_) => Err(DecodeError::Refused("its structure makes no sense".to_owned())),
    }
}

/// The bytes that a picture has at most which this rule has resized.
pub(super) fn most_bytes(rule: &SizeRule) -> u64 {
    most_pixels(rule) as u64 * 3
}

/// Whether a picture has a size that this rule gives: a worker that was taken over may answer anything.
pub(super) fn fits(picture: &Picture, rule: &SizeRule) -> bool {
    let size = picture.size();
    let blocks = size.height.is_multiple_of(rule.factor) && size.width.is_multiple_of(rule.factor);
    blocks && size.height * size.width <= most_pixels(rule)
}
