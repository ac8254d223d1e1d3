//! Finds out when each word of a text sounds.
//!
//! An [`Aligner`] hears the speech while it is made, piece by piece, beside the text that is spoken, and says of each
//! word when it begins and ends, soon after it was spoken. [`CodeAligner`] reads the talker's codes: a small net scores
//! which phoneme sounds in each quarter of a frame, another reads the phonemes of a word from its letters, and the best
//! path through the phonemes of the text says which quarter belongs to which word.
//!
//! Word times are a function of text and codes alone: they do not depend on how the codes come in chunks.

mod net;
mod path;
mod source;

pub use net::{CodeAligner, Tensors};
pub use source::SourceText;

/// Parts of a frame that the times of an [`Alignment`] count.
pub const QUARTERS: u64 = 4;

/// Makes an [`Alignment`] for each piece of speech, while that is spoken. Qwen3-ForcedAligner is of another kind: it hears
/// whole pieces (`forced_aligner` in omni-model).
pub trait Aligner: Send + Sync {
    /// Begins with a piece that says these words, each as it is spoken ("twelve", not "12").
    fn begin(&self, words: &[String]) -> Box<dyn Alignment>;
}

/// More of the speech of a piece.
#[derive(Clone, Copy, Debug)]
pub struct Heard<'a> {
    /// Codes of whole frames, frame after frame, all groups of each.
    pub codes: &'a [u32],
    /// The sound that was delivered meanwhile, mono, at the model's rate. It may lag behind the codes.
    pub samples: &'a [f32],
}

/// The alignment of one piece.
pub trait Alignment: Send + Sync {
    /// Takes more of the speech; returns the words that are final now, in their order.
    fn hear(&mut self, heard: Heard<'_>) -> Vec<WordSpan>;

    /// The piece is over; returns the other words. Those that were not spoken have no length.
    fn finish(&mut self) -> Vec<WordSpan>;
}

/// When a word sounds, from the beginning of its piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordSpan {
    /// Which word of the piece, from 0. One that has no letters is left out.
    pub word: usize,
    /// Its first quarter of a frame.
    pub start: u64,
    /// The first quarter behind it.
    pub end: u64,
}
