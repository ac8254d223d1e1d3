//! Text on its way to a talker: cut into sentences or into
//! fuller pieces, given out word by word while it is being written, and with its
//! numbers and abbreviations spelled out; its markup and its pronunciations. Nothing here knows a tokenizer.

mod incremental;
mod length;
pub mod markup;
mod normalize;
mod pieces;
mod pronounce;
mod segments;

pub use incremental::{IncrementalText, TextStep};
pub use length::{longest_seconds, shortest_seconds};
pub use normalize::{spell_out, spoken_words};
pub use pieces::pieces;
pub use pronounce::{MAX_SPOKEN, MAX_WORD, Pronunciations};
pub use segments::{Segmenter, segments};
