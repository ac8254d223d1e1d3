//! What integration tests share.

pub mod omni;
