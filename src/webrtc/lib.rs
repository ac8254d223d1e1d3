//! A call over WebRTC without its socket and its clock: an offer goes in, an answer comes out; then packets and the time
//! go in, and packets, sound and messages come out. The server is the side that is called: it answers the checks of ICE
//! and sends none of its own (ICE lite), so that an offer makes it write to no address.
//!
//! | file | what |
//! | --- | --- |
//! | `offer` | what is asked of an offer before anything is done with it |
//! | `call` | a call from its answer to its end |
//! | `sound` | Opus, and what is heard where packets are missing |
//! | `stun` | to which call a packet of an unknown address belongs |
//! | `bounds` | what no peer may do |
//! | `crypto` | the cryptography of DTLS and SRTP, by `ring` |

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bounds;
mod call;
pub mod crypto;
#[cfg(test)]
mod hostile;
mod offer;
#[cfg(test)]
mod peer;
mod sound;
mod stun;
#[cfg(test)]
mod tests;

pub use call::{Call, News, Step};
pub use offer::OfferError;
pub use sound::{BIT_RATE, FRAME, RATE};
pub use stun::called;
