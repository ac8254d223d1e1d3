//! What the source promises about itself: the crates and their arrows, that launch threads do not wait, and that the
//! documents lead to what there is.
#![allow(clippy::unwrap_used)]

mod architecture;
mod deploy;
mod documents;
mod no_waiting;
