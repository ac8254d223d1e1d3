//! The stages' implementations of [`StageModel`](super::stage::StageModel): rows and their bookkeeping around the nets.

pub mod vocoder;
