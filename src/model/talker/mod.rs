//! The talker: text rows in, codec frames out (spec sections 5 and 6).

mod net;
mod predictor;
mod prompt;

pub use net::Talker;
pub use predictor::{CodePredictor, Frames, Pass, PredictorCaches};
pub use prompt::{CodecSide, PromptRow, TextSide, prompt_len, prompt_row, text_side};
