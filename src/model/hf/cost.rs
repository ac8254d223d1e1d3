//! Counts the weights that a frame reads, from the sizes alone: the lower bound of every measurement.
//!
//! The weights of layers and output heads count once for each time that a step of one sequence uses them. Embeddings,
//! biases, norms and KV caches are left out; they are a thousandth, or grow with the stream.

use super::decoder::DecoderConfig;
use super::family::Family;

/// Weights read, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameCost {
    /// By the thinker for a token of text; 0 for a model without one.
    pub thinker: u64,
    /// By the talker for a frame.
    pub talker: u64,
    /// By all passes of the code predictor for a frame.
    pub predictor: u64,
    /// By the predictor if its layers were read once for all passes.
    pub predictor_once: u64,
}

impl FrameCost {
    /// Of a model.
    pub fn of(family: &Family) -> FrameCost {
        let talker = family.talker();
        let passes = talker.num_code_groups as u64 - 1;
        let (outer, inner) = (talker.text.hidden_size as u64, talker.predictor.hidden_size as u64);
        let projection = if outer == inner { 0 } else { outer * inner };
        let layers = layers(&talker.predictor) + projection;
        let heads = passes * head(&talker.predictor);
        FrameCost {
            thinker: match family {
                Family::Omni(config) => step(&config.thinker.text),
                Family::Tts(_) => 0,
            },
            talker: step(&talker.text),
            predictor: passes * layers + heads,
            predictor_once: layers + heads,
        }
    }

    /// Elements that a frame of one sequence reads: as the passes are, and with the predictor's layers read once.
    pub fn frame(&self) -> [u64; 2] {
        [self.talker + self.predictor, self.talker + self.predictor_once]
    }
}

fn step(config: &DecoderConfig) -> u64 {
    layers(config) + head(config)
}

fn head(config: &DecoderConfig) -> u64 {
    (config.vocab_size * config.hidden_size) as u64
}

fn layers(config: &DecoderConfig) -> u64 {
    let hidden = config.hidden_size as u64;
    let d = config.head_dim as u64;
    let (queries, keys) = (config.num_attention_heads as u64 * d, config.num_key_value_heads as u64 * d);
    let attention = hidden * (2 * queries + 2 * keys);
    let dense = 3 * hidden * config.intermediate_size as u64;
    let ffn = |layer| match &config.moe {
        Some(moe) if config.is_sparse(layer) => {
            let experts = (moe.num_experts_per_tok * moe.moe_intermediate_size) as u64;
            let shared = moe.shared_expert_intermediate_size.unwrap_or(0) as u64;
            hidden * moe.num_experts as u64 + 3 * hidden * (experts + shared)
        }
        _ => dense,
    };
    (0..config.num_hidden_layers).map(|layer| attention + ffn(layer)).sum()
}
