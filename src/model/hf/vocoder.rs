//! Config of the vocoder: a windowed transformer over code frames, then upsampling to a waveform.

use super::decoder::{Rope, only_silu};
use super::json::Node;

/// Codes to waveform.
#[derive(Clone, Debug, PartialEq)]
pub struct VocoderConfig {
    /// Code groups of a frame.
    pub num_quantizers: usize,
    /// Codes of a group.
    pub codebook_size: usize,
    /// What the codes of a frame become.
    pub input: VocoderInput,
    /// The transformer over frames.
    pub transformer: WindowedTransformerConfig,
    /// Factors of the ConvNeXt upsampling stages.
    pub upsampling_ratios: Vec<usize>,
    /// Factors of the decoder blocks.
    pub upsample_rates: Vec<usize>,
    /// Channels before the first decoder block; each block halves them.
    pub decoder_dim: usize,
}

/// How the codes of a frame become the transformer's input.
#[derive(Clone, Debug, PartialEq)]
pub enum VocoderInput {
    /// The mean of their embeddings, as wide as the transformer (code2wav of Qwen3-Omni).
    EmbeddingMean,
    /// The sum of residual codebooks, a causal convolution and a projection into the transformer and out of it again
    /// (the 12 Hz decoder of Qwen3-TTS).
    Residual {
        /// Width of a code's vector in its codebook: half of `codebook_dim`.
        code_width: usize,
        /// Width of the sum, `codebook_dim`.
        sum_width: usize,
        /// Width outside of the transformer.
        latent_width: usize,
    },
}

/// A causal transformer in which a position sees the last `sliding_window` positions, itself included.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowedTransformerConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Positions that a position sees.
    pub sliding_window: usize,
    /// Epsilon of every RMSNorm.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Whether the projections of attention have biases.
    pub attention_bias: bool,
}

impl VocoderConfig {
    /// Reads a `code2wav_config`.
    pub fn read(node: &Node<'_>) -> VocoderConfig {
        VocoderConfig::with_input(node, VocoderInput::EmbeddingMean)
    }

    /// Reads the `decoder_config` of a 12 Hz codec.
    pub fn read_12hz(node: &Node<'_>) -> VocoderConfig {
        let sum_width = node.size("codebook_dim");
        let input = VocoderInput::Residual {
            code_width: (sum_width / 2).max(1),
            sum_width,
            latent_width: node.size("latent_dim"),
        };
        let config = VocoderConfig::with_input(node, input);
        let (problems, groups) = (node.problems(), config.num_quantizers);
        problems.require(groups > 1 || node.value("num_quantizers").is_none(), || {
            format!("{} = {groups}: expected at least 2", node.path_of("num_quantizers"))
        });
        // The reference splits off one group whatever the config says.
        let semantic = node.optional_size("num_semantic_quantizers").unwrap_or(1);
        problems.require(semantic == 1, || {
            format!("{} = {semantic} is not served: expected 1", node.path_of("num_semantic_quantizers"))
        });
        config
    }

    fn with_input(node: &Node<'_>, input: VocoderInput) -> VocoderConfig {
        let before = node.problems().len();
        let config = VocoderConfig {
            num_quantizers: node.size("num_quantizers"),
            codebook_size: node.size("codebook_size"),
            input,
            transformer: WindowedTransformerConfig::read(node),
            upsampling_ratios: node.sizes("upsampling_ratios"),
            upsample_rates: node.sizes("upsample_rates"),
            decoder_dim: node.size("decoder_dim"),
        };
        if node.problems().len() == before {
            config.check(node);
            config.transformer.check(node);
        }
        config
    }

    /// Width of what goes into the upsampling.
    pub fn latent_width(&self) -> usize {
        match self.input {
            VocoderInput::EmbeddingMean => self.transformer.hidden_size,
            VocoderInput::Residual { latent_width, .. } => latent_width,
        }
    }

    /// Whether the reference drops the start of what its transposed convolutions give (spec section 8): it does for
    /// Qwen3-Omni, so that speech is 555 samples shorter than its frames.
    pub fn drops_start(&self) -> bool {
        self.input == VocoderInput::EmbeddingMean
    }

    /// Samples of one frame.
    pub fn samples_per_frame(&self) -> usize {
        self.upsampling_ratios.iter().chain(&self.upsample_rates).product()
    }

    /// Checks that these are whole frames of codes inside the codebooks.
    ///
    /// # Errors
    /// What is wrong with them, as text.
    pub fn check_codes(&self, codes: &[u32]) -> Result<(), String> {
        let (groups, size) = (self.num_quantizers, self.codebook_size);
        if !codes.len().is_multiple_of(groups) {
            return Err(format!("{} codes are no whole frames of {groups}", codes.len()));
        }
        match codes.iter().find(|code| **code as usize >= size) {
            Some(code) => Err(format!("code {code} is outside the codebook of {size}")),
            None => Ok(()),
        }
    }

    fn check(&self, node: &Node<'_>) {
        let (dim, blocks) = (self.decoder_dim, self.upsample_rates.len());
        node.problems().require(blocks < 24 && dim.is_multiple_of(1 << blocks), || {
            let path = node.path_of("decoder_dim");
            format!("{path} = {dim} cannot be halved {blocks} times, once for each of upsample_rates")
        });
        let factors = || self.upsampling_ratios.iter().chain(&self.upsample_rates);
        let samples = factors().try_fold(1usize, |n, f| n.checked_mul(*f)).filter(|n| *n <= 1 << 20);
        node.problems().require(samples.is_some(), || {
            format!("{} and upsampling_ratios multiply to too many samples", node.path_of("upsample_rates"))
        });
    }
}

impl WindowedTransformerConfig {
    fn read(node: &Node<'_>) -> WindowedTransformerConfig {
        let hidden_size = node.size("hidden_size");
        let num_attention_heads = node.size("num_attention_heads");
        let rope = Rope::read(node);
        only_silu(node);
        WindowedTransformerConfig {
            hidden_size,
            num_hidden_layers: node.size("num_hidden_layers"),
            num_attention_heads,
            num_key_value_heads: node.size("num_key_value_heads"),
            // Absent in the Omni vocoder, where the heads share the width; present in the 12 Hz decoder.
            head_dim: node.optional_size("head_dim").unwrap_or(hidden_size / num_attention_heads),
            intermediate_size: node.size("intermediate_size"),
            sliding_window: node.size("sliding_window"),
            rms_norm_eps: node.positive("rms_norm_eps"),
            rope_theta: rope.theta,
            attention_bias: node.optional_flag("attention_bias").unwrap_or(false),
        }
    }

    fn check(&self, node: &Node<'_>) {
        let (heads, kv, dim) = (self.num_attention_heads, self.num_key_value_heads, self.head_dim);
        node.problems().require(heads.is_multiple_of(kv), || {
            format!("{} = {kv} does not divide num_attention_heads = {heads}", node.path_of("num_key_value_heads"))
        });
        node.problems().require(dim > 0 && dim.is_multiple_of(2), || {
            let path = node.path_of("num_attention_heads");
            format!("{path} = {heads} leaves heads of width {dim}: expected an even width")
        });
    }
}
