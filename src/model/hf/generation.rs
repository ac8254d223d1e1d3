//! `generation_config.json`: how tokens are picked when a request does not say, with the family's own defaults
//! (spec section 7) for what the file leaves out.

use super::json::{Node, Problems};
use crate::sampling::SamplingParams;
use serde_json::Value;

/// What the library that made the checkpoints assumes when neither file nor caller says how to sample.
const LIBRARY_TOP_K: u32 = 50;

/// Defaults of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationDefaults {
    /// The thinker's answer. Temperature 0 when the file does not ask for sampling; the other fields then tell what
    /// holds for a request that sets a temperature.
    pub thinker: SamplingParams,
    /// Tokens that end the answer.
    pub thinker_eos: Vec<u32>,
    /// At most this many answer tokens.
    pub thinker_max_tokens: u32,
    /// Code 0.
    pub talker: SamplingParams,
    /// The other groups. Fixed in the reference, except that a greedy talker makes it greedy.
    pub predictor: SamplingParams,
    /// At most this many code-0 tokens.
    pub talker_max_tokens: u32,
    /// The end is not sampled before this many code-0 tokens.
    pub talker_min_tokens: u32,
}

impl GenerationDefaults {
    /// Reads the file; `None` when the checkpoint has none. `im_end` ends answers if the file does not say what does.
    ///
    /// # Errors
    /// Everything that is wrong, one line each.
    pub fn parse(value: Option<&Value>, im_end: u32) -> Result<GenerationDefaults, Vec<String>> {
        let problems = Problems::default();
        let empty = Value::Object(serde_json::Map::new());
        let node = Node::root(value.unwrap_or(&empty), &problems);

        let thinker = Role { node: &node, prefix: "thinker_", plain: true };
        let talker = Role { node: &node, prefix: "talker_", plain: false };
        let library = SamplingParams { temperature: 1.0, top_k: LIBRARY_TOP_K, ..SamplingParams::GREEDY };
        let omni = SamplingParams { temperature: 0.9, repetition_penalty: 1.05, ..library };
        let predictor = SamplingParams { top_p: 0.8, ..library };
        let greedy_talker = talker.flag("do_sample") == Some(false);

        let mut eos = node.ids("thinker_eos_token_id");
        if eos.is_empty() {
            eos = node.ids("eos_token_id");
        }
        if eos.is_empty() {
            eos = vec![im_end];
        }
        let defaults = GenerationDefaults {
            thinker: thinker.sampling(library, false),
            thinker_eos: eos,
            thinker_max_tokens: thinker.max_tokens().unwrap_or(1024),
            talker: talker.sampling(omni, true),
            predictor: if greedy_talker { SamplingParams { temperature: 0.0, ..predictor } } else { predictor },
            talker_max_tokens: talker.max_tokens().unwrap_or(4096),
            talker_min_tokens: 0,
        };
        let problems = problems.into_vec();
        if problems.is_empty() { Ok(defaults) } else { Err(problems) }
    }
}

impl GenerationDefaults {
    /// Reads the file of a Qwen3-TTS checkpoint, which has no thinker: plain keys are the talker's, `subtalker_` ones the
    /// code predictor's.
    ///
    /// # Errors
    /// Everything that is wrong, one line each.
    pub fn parse_tts(value: Option<&Value>) -> Result<GenerationDefaults, Vec<String>> {
        let problems = Problems::default();
        let empty = Value::Object(serde_json::Map::new());
        let node = Node::root(value.unwrap_or(&empty), &problems);
        let talker = Role { node: &node, prefix: "talker_", plain: true };
        let library = SamplingParams { temperature: 0.9, top_k: LIBRARY_TOP_K, ..SamplingParams::GREEDY };
        let predictor = Role { node: &node, prefix: "subtalker_", plain: false };
        let mut predicted = predictor.sampling(library, true);
        // The reference writes this one key without an underscore.
        if node.optional_flag("subtalker_dosample") == Some(false) {
            predicted.temperature = 0.0;
        }
        let defaults = GenerationDefaults {
            thinker: SamplingParams::GREEDY,
            thinker_eos: Vec::new(),
            thinker_max_tokens: 0,
            talker: talker.sampling(SamplingParams { repetition_penalty: 1.05, ..library }, true),
            predictor: predicted,
            talker_max_tokens: talker.max_tokens().unwrap_or(2048),
            talker_min_tokens: node.optional_count("min_new_tokens").map_or(2, |n| n as u32),
        };
        let problems = problems.into_vec();
        if problems.is_empty() { Ok(defaults) } else { Err(problems) }
    }
}

/// Reads `thinker_KEY` or, for the thinker, plain `KEY`.
struct Role<'a> {
    node: &'a Node<'a>,
    prefix: &'static str,
    plain: bool,
}

impl Role<'_> {
    fn key(&self, key: &str) -> String {
        let own = format!("{}{key}", self.prefix);
        if self.plain && self.node.value(&own).is_none() { key.to_owned() } else { own }
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.node.optional_flag(&self.key(key))
    }

    fn number(&self, key: &str, low: f64, high: f64) -> Option<f32> {
        self.node.optional_between(&self.key(key), low, high)
    }

    fn max_tokens(&self) -> Option<u32> {
        self.node.optional_size(&self.key("max_new_tokens")).map(|n| n as u32)
    }

    fn sampling(&self, base: SamplingParams, samples: bool) -> SamplingParams {
        let sampled = self.flag("do_sample").unwrap_or(samples);
        let temperature = self.number("temperature", 0.0, 100.0).unwrap_or(base.temperature);
        SamplingParams {
            temperature: if sampled { temperature } else { 0.0 },
            top_k: self.node.optional_count(&self.key("top_k")).map_or(base.top_k, |k| k as u32),
            top_p: self.number("top_p", 0.0, 1.0).unwrap_or(base.top_p),
            min_p: self.number("min_p", 0.0, 1.0).unwrap_or(base.min_p),
            repetition_penalty: self.number("repetition_penalty", 0.01, 100.0).unwrap_or(base.repetition_penalty),
            ..base
        }
    }
}
