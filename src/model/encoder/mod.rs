//! What the encoder stage is asked for: media of a request, cut into steps of work.
//!
//! | file | what |
//! | --- | --- |
//! | `schedule` | the parts of the media that do not see each other, their input in pieces, their steps, their rows |
//! | `features` | a piece of input: a range of a medium, whose numbers are computed where they are used |
//! | `walk` | a sequence's way through its schedule: units, their input, what is over behind them |

mod features;
mod schedule;
mod walk;

pub use features::Features;
pub use schedule::{Encodable, Grain, Part, Piece, Schedule, Work};
pub use walk::{Over, Unit, Walk};

use std::sync::Arc;

/// An encoder sequence: the media of one prompt, in the order of its spans. Input: [`Features`], piece after piece of
/// the [`Schedule`]; output: the embeddings of each span, those of pictures with what each deepstack level adds.
#[derive(Clone, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct EncoderSpec {
    /// What is encoded, a span each.
    pub media: Arc<[Encodable]>,
    /// Frames of the longest clip of the request: its chunks are padded to no more.
    pub longest: u32,
    /// Parts of the schedule that were encoded before: the sequence begins behind them.
    pub done: u32,
    /// How large its units are.
    pub grain: Grain,
}
