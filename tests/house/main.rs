//! What the source promises about itself: the crates and their arrows, and that launch threads do not wait.
#![allow(clippy::unwrap_used)]

mod architecture;
mod documents;
mod no_waiting;
