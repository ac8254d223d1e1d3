//! Text on its way to a talker: cut into sentences, given out word by word while it is being written, and with its
//! numbers and abbreviations spelled out. Nothing here knows a tokenizer.

mod incremental;
mod normalize;
mod segments;

pub use incremental::{IncrementalText, TextStep};
pub use normalize::spell_out;
pub use segments::{Segmenter, segments};
