//! The floor under time per frame: reading a frame's weights once at a memory bandwidth. Pure.

use omni_config::Precision;
use omni_model::hf::{Family, FrameCost};
use serde::Serialize;
use std::fmt;

/// See the module. For one sequence; more sequences share the weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Floor {
    /// Bytes per second, as given on the command line.
    pub bandwidth: f64,
    /// Bytes that a frame reads, each pass of the code predictor its own.
    pub frame_bytes: f64,
    /// Milliseconds to read them.
    pub frame_ms: f64,
    /// Milliseconds if the predictor's layers were read once for all passes.
    pub once_ms: f64,
    /// Milliseconds for a token of text, of a model with a thinker.
    pub token_ms: Option<f64>,
}

impl Floor {
    /// Of a model whose weights have this element type.
    pub fn new(family: &Family, dtype: Precision, bandwidth: f64) -> Floor {
        let width = match dtype {
            Precision::F32 => 4.0,
            Precision::Bf16 => 2.0,
        };
        let cost = FrameCost::of(family);
        let ms = |elements: u64| elements as f64 * width / bandwidth * 1e3;
        let [frame, once] = cost.frame();
        Floor {
            bandwidth,
            frame_bytes: frame as f64 * width,
            frame_ms: ms(frame),
            once_ms: ms(once),
            token_ms: (cost.thinker > 0).then(|| ms(cost.thinker)),
        }
    }
}

impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Floor { bandwidth, frame_bytes, frame_ms, once_ms, token_ms } = self;
        write!(
            f,
            "floor: {:.2} GB of weights per frame at {:.2} TB/s are {frame_ms:.2} ms; {once_ms:.2} ms if the code \
             predictor's layers were read once",
            frame_bytes / 1e9,
            bandwidth / 1e12
        )?;
        token_ms.map_or(Ok(()), |token_ms| write!(f, "; {token_ms:.2} ms per token of text"))
    }
}
