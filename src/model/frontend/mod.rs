//! From a recording of a speaker to what a cloned voice needs (spec section 10).
//!
//! A file is decoded to mono samples ([`decode_audio`]) and brought to 24 kHz ([`resample`]). All of it is pure: bytes
//! or samples in, samples out, no clock and no files, and everything that comes from a stranger is bounded before it is
//! believed.

mod audio;
mod resample;

pub use audio::{AudioError, AudioLimits, Clip, decode_audio};
pub use resample::{resample, resampled_len};
