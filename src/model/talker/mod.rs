//! The talker: embeddings of text in, codec frames out (spec sections 5, 6 and 9).

mod net;
mod predictor;
mod prompt;
mod table;

pub use net::Talker;
pub use predictor::{CodePredictor, Frames, Pass, PredictorCaches};
pub use prompt::{CodecSide, PromptEmbedding, TalkerPrompt, TextSide, Trailing};
