//! Text on its way to a talker: cut into sentences or into
//! fuller pieces, given out word by word while it is being written, and with its
//! numbers and abbreviations spelled out. Nothing here knows a tokenizer.

mod incremental;
mod length;
mod normalize;
mod pieces;
mod segments;

pub use incremental::{IncrementalText, TextStep};
pub use length::longest_seconds;
pub use normalize::{spell_out, spoken_words};
pub use pieces::pieces;
pub use segments::{Segmenter, segments};
