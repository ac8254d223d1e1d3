//! Checkpoints, prompts, nets and front ends, without the engine: what they read, what they refuse, and that they compute what the
//! reference computes.
#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

mod checkpoint;
mod checkpoint_embedded;
mod checkpoint_tts;
mod decoder_options;
mod encoder_codes;
mod forced_aligner;
mod frontend;
mod media;
mod parity_lm;
mod parity_media;
mod parity_tts;
mod parity_vocoder;
mod prompts;
mod prompts_tts;
mod random_weights;
mod requests;
mod stages_kept;
mod stages_lm;
mod stages_media;
mod stages_tts;
mod verify_device;
