//! OpenAI's realtime protocol as a pure state machine. Events of a client and parts of answers go in, effects come out:
//! events to send, requests to begin, requests to end. A [`Session`] knows no clock, no socket and no engine, so that a
//! script of events can play any conversation against it.
//!
//! | file | what |
//! | --- | --- |
//! | `client_event` | what a client may send, as it came |
//! | `server_event` | what a client is told |
//! | `refusal` | why an event was not followed |
//! | `settings` | what a session and a response are asked for, checked |
//! | `tools`, `calls` | the functions that the model may call, and its calls in what it writes |
//! | `item`, `conversation` | the turns, in their order |
//! | `sound` | formats of sound on the wire, wav files for the model |
//! | `detector`, `turns`, `listening` | the input audio buffer, and where speech begins and ends in it |
//! | `job` | requests to the engine, and what comes back |
//! | `playback` | sound that waits to be played, where the server plays it |
//! | `response`, `spoken` | an answer that is being made, and its sound |
//! | `session` | all of it together |

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod calls;
mod client_event;
mod conversation;
mod detector;
mod item;
mod job;
mod listening;
mod playback;
mod refusal;
mod response;
mod server_event;
mod session;
mod settings;
mod sound;
mod spoken;
#[cfg(test)]
mod tests;
mod tools;
mod turns;

pub use calls::{Call, CallFinder, Found, MAX_CALL_BYTES, MAX_CALLS};
pub use client_event::ClientEvent;
pub use item::Detail;
pub use job::{AnswerPart, Ending, Job, JobId, PromptPart, PromptTurn, Usage};
pub use playback::PLAYED;
pub use refusal::Refusal;
pub use server_event::{Sent, ServerEvent};
pub use session::{Abilities, Effect, FindVoice, IsModel, Limits, Opening, Session};
pub use sound::WireFormat;
