//! What a model hears and sees: files of sound, pictures and videos become features, patches and token counts
//! (docs/spec.md; the numbers are those of `preprocessor_config.json`).
//!
//! | file | what |
//! | --- | --- |
//! | `sound` | files of sound to mono samples |
//! | `resample`, `polyphase` | other sample rates: for voices, and for what is compared with a reference's spectrum |
//! | `fft` | the transform of the speaker encoder's spectrum |
//! | `mel`, `spectrum` | 16 kHz samples to a log-mel spectrum |
//! | `speech` | what a session has heard so far to a spectrum, of which only what is new is computed |
//! | `hearing` | clips of one request to features and token counts |
//! | `picture` | files of pictures to upright RGB; frames of animations |
//! | `size`, `bicubic` | which size a picture gets, and how |
//! | `patches` | pictures and frames of a video to the rows that a vision tower reads |
//! | `video` | which frames of a video are seen, and how far apart they are |
//! | `slaney` | the mel scale of the spectra |
//! | `medium` | what all of these make: one sound, picture or video, ready for the towers |
//! | `ffmpeg` | videos through the `ffmpeg` program, in processes with limits |
//! | `limits` | what a client may send, and the errors that say so |
//!
//! Strangers send the bytes: every size is checked before the work is done that it causes. Everything here is pure but
//! `ffmpeg`, which starts processes: no clock, no files, no network, and the same bytes become the same numbers.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod bicubic;
pub mod ffmpeg;
pub mod fft;
pub mod hearing;
pub mod limits;
pub mod medium;
pub mod mel;
pub mod patches;
pub mod picture;
mod polyphase;
pub mod resample;
pub mod size;
pub mod slaney;
pub mod sound;
pub mod spectrum;
pub mod speech;
pub mod video;

#[cfg(test)]
mod goldens;

pub use limits::{MediaError, MediaLimits};
pub use medium::Medium;
