//! Config of the encoder of the 12 Hz codec (Mimi): waveform to codes.

use super::json::Node;
use super::omni::SAMPLE_RATE;
use serde_json::Value;

/// Waveform to codes.
#[derive(Clone, Debug, PartialEq)]
pub struct CodecEncoderConfig {
    /// Channels of the first convolution; each downsampling doubles them.
    pub num_filters: usize,
    /// Residual blocks before each downsampling.
    pub num_residual_layers: usize,
    /// Factors of the downsamplings, last first, as the decoder would use them.
    pub upsampling_ratios: Vec<usize>,
    /// Taps of the first convolution.
    pub kernel_size: usize,
    /// Taps of the last one.
    pub last_kernel_size: usize,
    /// Taps of a residual block's first one.
    pub residual_kernel_size: usize,
    /// By what the distance of those taps grows from one block to the next.
    pub dilation_growth_rate: usize,
    /// What a residual block divides its channels by.
    pub compress: usize,
    /// The transformer behind the convolutions.
    pub transformer: CodecTransformerConfig,
    /// Codebooks in the file.
    pub num_quantizers: usize,
    /// How many of them, the first ones, quantize meaning apart from sound.
    pub num_semantic_quantizers: usize,
    /// Codes of a codebook.
    pub codebook_size: usize,
    /// Width of a code's vector.
    pub codebook_dim: usize,
}

/// A causal transformer with layer norms.
#[derive(Clone, Debug, PartialEq)]
pub struct CodecTransformerConfig {
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
    /// Positions that a position sees, itself included; `None`: all before it.
    pub sliding_window: Option<usize>,
    /// Epsilon of the layer norms.
    pub norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
}

impl CodecEncoderConfig {
    /// Reads an `encoder_config`.
    pub fn read(node: &Node<'_>) -> CodecEncoderConfig {
        let before = node.problems().len();
        for (key, expected) in [
            ("audio_channels", Value::from(1)),
            ("sampling_rate", SAMPLE_RATE.into()),
            ("use_causal_conv", true.into()),
            ("use_conv_shortcut", false.into()),
            ("pad_mode", "constant".into()),
            ("hidden_act", "gelu".into()),
            ("attention_bias", false.into()),
        ] {
            let found = node.value(key).filter(|found| **found != expected);
            node.problems().require(found.is_none(), || {
                let found = found.map(Value::to_string).unwrap_or_default();
                format!("{} = {found} is not served: expected {expected}", node.path_of(key))
            });
        }
        let config = CodecEncoderConfig {
            num_filters: node.size("num_filters"),
            num_residual_layers: node.size("num_residual_layers"),
            upsampling_ratios: node.sizes("upsampling_ratios"),
            kernel_size: node.size("kernel_size"),
            last_kernel_size: node.size("last_kernel_size"),
            residual_kernel_size: node.size("residual_kernel_size"),
            dilation_growth_rate: node.size("dilation_growth_rate"),
            compress: node.size("compress"),
            transformer: CodecTransformerConfig::read(node),
            num_quantizers: node.size("num_quantizers"),
            num_semantic_quantizers: node.size("num_semantic_quantizers"),
            codebook_size: node.size("codebook_size"),
            codebook_dim: node.size("codebook_dim"),
        };
        if node.problems().len() == before {
            config.check(node);
        }
        config
    }

    /// Samples of one position of the transformer.
    pub fn hop(&self) -> usize {
        self.upsampling_ratios.iter().product()
    }

    /// Samples of one frame of codes: behind the transformer, two positions become one.
    pub fn samples_per_frame(&self) -> usize {
        2 * self.hop()
    }

    fn check(&self, node: &Node<'_>) {
        let problems = node.problems();
        let ratios = &self.upsampling_ratios;
        let hop = ratios.iter().try_fold(1usize, |n, r| n.checked_mul(*r)).filter(|n| *n <= 1 << 19);
        let widest = self.num_filters.checked_shl(ratios.len() as u32).filter(|n| *n <= 1 << 20);
        problems.require(ratios.len() < 16 && hop.is_some() && widest.is_some(), || {
            format!("{} = {ratios:?} are too many or multiply to too many samples", node.path_of("upsampling_ratios"))
        });
        problems.require(self.num_filters.is_multiple_of(self.compress), || {
            format!("{} = {} does not divide num_filters", node.path_of("compress"), self.compress)
        });
        let blocks = self.num_residual_layers as u32;
        let reach = self.dilation_growth_rate.checked_pow(blocks).filter(|n| blocks < 16 && *n <= 1 << 16);
        problems.require(reach.is_some() && self.residual_kernel_size <= 64, || {
            format!("{} = {blocks} reach too far", node.path_of("num_residual_layers"))
        });
        problems.require(self.num_semantic_quantizers < self.num_quantizers, || {
            format!("{} must be below num_quantizers", node.path_of("num_semantic_quantizers"))
        });
        let CodecTransformerConfig { num_attention_heads: heads, num_key_value_heads: kv, head_dim, .. } =
            self.transformer;
        problems.require(heads.is_multiple_of(kv), || {
            format!("{} = {kv} does not divide num_attention_heads = {heads}", node.path_of("num_key_value_heads"))
        });
        problems.require(head_dim > 0 && head_dim.is_multiple_of(2), || {
            format!("{} = {head_dim}: expected an even number", node.path_of("head_dim"))
        });
    }
}

impl CodecTransformerConfig {
    fn read(node: &Node<'_>) -> CodecTransformerConfig {
        let (hidden_size, num_attention_heads) = (node.size("hidden_size"), node.size("num_attention_heads"));
        CodecTransformerConfig {
            hidden_size,
            num_hidden_layers: node.size("num_hidden_layers"),
            num_attention_heads,
            num_key_value_heads: node.size("num_key_value_heads"),
            head_dim: node.optional_size("head_dim").unwrap_or(hidden_size / num_attention_heads),
            intermediate_size: node.size("intermediate_size"),
            sliding_window: node.optional_size("sliding_window"),
            norm_eps: node.positive("norm_eps"),
            rope_theta: node.positive("rope_theta"),
        }
    }
}
