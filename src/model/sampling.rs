//! Sampling as in spec section 7.

/// How one token is picked from logits. The order is that of the reference: repetition penalty, suppression,
/// temperature, top-k, top-p.
#[derive(Clone, Copy, Debug, PartialEq)]
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
}
