//! Sampling of tokens and codes, in the order of the processors of transformers.
//!
//! All of it is a function of logits, parameters, the sequence's own history and one number in [0, 1) that comes from
//! [`philox`]: no hidden state, so a token does not depend on what else is in the batch or on how often a stage
//! restarted.
//!
//! Order: penalty on repetition (on raw logits, also where sampling is greedy: above 0 divided, below multiplied; it
//! sees the codes 0 of this generation, each once), least number of new tokens (Qwen3-TTS: no end among the first 2),
//! suppression, temperature, top-k, top-p. Of code 0 the last 1024 of the vocabulary but the end are suppressed: 0 to
//! 2047 and the end are left.
//!
//! [`GenerationDefaults`](crate::hf::GenerationDefaults) says what holds where `generation_config.json` says nothing.
//! With a greedy talker the predictor is greedy, as in transformers 5; 4.57 always samples it.
//!
//! Speech ends with the code 2150, which is not vocoded.

mod history;
pub mod philox;
mod sampler;

pub use history::History;
pub use philox::{Domain, uniform};
pub use sampler::{Sampler, Suppress};

/// How one token is picked from logits. The order is that of the reference: repetition penalty, frequency and presence
/// penalties, suppression, temperature, top-k, top-p, min-p.
#[derive(Clone, Copy, Debug, PartialEq, bincode::Encode, bincode::Decode)]
pub struct SamplingParams {
    /// 0 means greedy (penalties and suppression still apply).
    pub temperature: f32,
    /// Keep the k most likely; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set whose probability reaches this; 1.0 keeps all.
    pub top_p: f32,
    /// Drop tokens less likely than this share of the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens sampled before; 1.0 is off.
    pub repetition_penalty: f32,
    /// Subtracted once per earlier occurrence; 0 is off.
    pub frequency_penalty: f32,
    /// Subtracted from every token sampled before; 0 is off.
    pub presence_penalty: f32,
}

impl SamplingParams {
    /// The most likely token, no penalties.
    pub const GREEDY: SamplingParams = SamplingParams {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
    };

    /// Whether the most likely token is taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Checks the parameters. `top_k` takes any value.
    ///
    /// # Errors
    /// One sentence about the first parameter that is out of range.
    pub fn check(&self) -> Result<(), String> {
        let limits = [
            ("temperature", self.temperature, 0.0, 100.0),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("repetition_penalty", self.repetition_penalty, 0.01, 100.0),
            ("frequency_penalty", self.frequency_penalty, -100.0, 100.0),
            ("presence_penalty", self.presence_penalty, -100.0, 100.0),
        ];
        for (name, value, low, high) in limits {
            // Written so that NaN is refused too.
            if !(low..=high).contains(&value) {
                return Err(format!("{name} = {value}: expected a number from {low} to {high}"));
            }
        }
        Ok(())
    }
}
