//! What integration tests share. Each executable has all of it and uses a part.

pub mod attack;
pub mod engine;
pub mod figures;
pub mod golden;
pub mod http;
pub mod listeners;
pub mod media;
#[cfg(feature = "cluster")]
pub mod nodes;
pub mod omni;
#[cfg(feature = "webrtc")]
pub mod phone;
pub mod pictures;
pub mod process;
pub mod recording;
pub mod sequences;
pub mod stage;
pub mod tts;
pub mod wait;
pub mod wyoming;
