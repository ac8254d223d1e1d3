//! What a client may send, and the errors that say what is wrong with it.

use crate::sound::AudioError;

/// Limits on one file or list of frames. Each is checked before the work that it bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MediaLimits {
    /// Encoded bytes of one file.
    pub max_bytes: usize,
    /// Width times height of a picture or frame as it is encoded.
    pub max_pixels: u64,
    /// Seconds of sound or of a video.
    pub max_seconds: f64,
    /// Frames of a video that are seen.
    pub max_frames: usize,
}

impl Default for MediaLimits {
    /// 64 MB; the pixels of 8K; ten minutes; the 768 frames that the reference takes at most.
    fn default() -> MediaLimits {
        MediaLimits { max_bytes: 64 << 20, max_pixels: 7680 * 4320, max_seconds: 600.0, max_frames: 768 }
    }
}

/// Why something is not heard or seen. The message is one line and says what to do.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MediaError {
    /// The sound is no file of sound, or not within the limits.
    #[error(transparent)]
    Audio(#[from] AudioError),
    /// More than a limit, whose name stands in parentheses.
    #[error("the {media} has {have} {unit}, at most {limit} are taken ({name})")]
    TooMuch {
        /// `image`, `video` or `audio`.
        media: &'static str,
        /// Bytes, pixels, frames or seconds.
        unit: &'static str,
        /// What was sent; of something that is read step by step, at least so much.
        have: u64,
        /// What is taken.
        limit: u64,
        /// The limit's field in [`MediaLimits`].
        name: &'static str,
    },
    /// Less than there must be.
    #[error("the {media} has {have} {unit}, at least {least} are needed")]
    TooLittle {
        /// `image`, `video` or `audio`.
        media: &'static str,
        /// Bytes, pixels, frames or samples.
        unit: &'static str,
        /// What was sent.
        have: u64,
        /// What is needed.
        least: u64,
    },
    /// The bytes are no picture that is read here.
    #[error("this is not an image file: expected png, jpeg, gif, webp or bmp")]
    NotAPicture,
    /// A picture is damaged or cut short.
    #[error("the {format} cannot be decoded ({reason}): export or upload it again")]
    Damaged {
        /// `png`, `jpeg`, `gif`, `webp` or `bmp`.
        format: &'static str,
        /// What the decoder says.
        reason: String,
    },
    /// A picture much longer than wide, or the other way round.
    #[error("the image has {width} x {height} pixels: one side may be at most {most} times as long as the other")]
    Aspect {
        /// Pixels.
        width: u64,
        /// Pixels.
        height: u64,
        /// The largest ratio.
        most: u64,
    },
    /// A number of the checkpoint's `preprocessor_config.json` or of the request that no front end can work with.
    #[error("{field} = {value}: expected {expected}")]
    Number {
        /// Which.
        field: &'static str,
        /// What it is.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// There is no program that decodes videos.
    #[error(
        "videos need the program ffmpeg, version 6 or newer, and {program} cannot be started ({reason}): \
         install the package ffmpeg, or send the frames of the video as images"
    )]
    NoFfmpeg {
        /// Its name or path.
        program: String,
        /// What the system says.
        reason: String,
    },
    /// The program that decodes videos failed or reached a limit of its process.
    #[error("the video cannot be decoded: {0}")]
    Video(String),
}

impl MediaError {
    /// Refuses what is beyond a limit.
    pub(crate) fn at_most(
        media: &'static str,
        unit: &'static str,
        name: &'static str,
        have: u64,
        limit: u64,
    ) -> Result<(), MediaError> {
        if have > limit { Err(MediaError::TooMuch { media, unit, have, limit, name }) } else { Ok(()) }
    }
}

impl MediaLimits {
    /// Refuses a file that is empty or has too many bytes.
    ///
    /// # Errors
    /// [`MediaError::TooLittle`] or [`MediaError::TooMuch`].
    pub fn check_bytes(&self, media: &'static str, bytes: &[u8]) -> Result<(), MediaError> {
        if bytes.is_empty() {
            return Err(MediaError::TooLittle { media, unit: "bytes", have: 0, least: 1 });
        }
        MediaError::at_most(media, "bytes", "max_bytes", bytes.len() as u64, self.max_bytes as u64)
    }

    /// Refuses a picture or frame that is empty or has too many pixels.
    ///
    /// # Errors
    /// [`MediaError::TooLittle`] or [`MediaError::TooMuch`].
    pub fn check_pixels(&self, media: &'static str, width: u32, height: u32) -> Result<(), MediaError> {
        let pixels = u64::from(width) * u64::from(height);
        if pixels == 0 {
            return Err(MediaError::TooLittle { media, unit: "pixels", have: 0, least: 1 });
        }
        MediaError::at_most(media, "pixels", "max_pixels", pixels, self.max_pixels)
    }

    /// Refuses more seconds than the limit.
    ///
    /// # Errors
    /// [`MediaError::TooMuch`].
    pub fn check_seconds(&self, media: &'static str, seconds: f64) -> Result<(), MediaError> {
        if seconds > self.max_seconds || seconds.is_nan() {
            let (have, limit) = (seconds.ceil() as u64, self.max_seconds as u64);
            return Err(MediaError::TooMuch { media, unit: "seconds", have, limit, name: "max_seconds" });
        }
        Ok(())
    }
}
