//! The talker: embeddings of text in, codec frames out.
//!
//! Frame `t`: `hidden[t]` is the last hidden state *behind the final norm*, code 0 is picked from
//! `codec_head(hidden[t])`, and the end code ends the speech. The [`CodePredictor`] makes the other codes. The next
//! input is the sum of the embeddings of all codes, that of code 0 from the talker's table, those of the others from
//! the predictor's tables, and of the trailing text's embedding `t` while there is one, else padding.
//!
//! The reference runs the predictor at the start of step `t + 1`, so its last token (the end, or the one at the limit)
//! has no frame: it makes one frame less than it samples codes 0.

mod net;
mod predictor;
mod prompt;
mod table;

pub use net::Talker;
pub use predictor::{CodePredictor, Frames, Pass, PredictorCaches};
pub use prompt::{CodecSide, PromptEmbedding, TalkerPrompt, TextSide, Trailing};
