//! Config of one causal language model: thinker, talker backbone, code predictor.

use super::json::Node;
use omni_ops::interleaved_axis;

/// A stack of pre-norm decoder layers with its embedding and head.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// Rows of the embedding table and of the head.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides `num_attention_heads`.
    pub num_key_value_heads: usize,
    /// Width of one head; not `hidden_size / num_attention_heads` in these models.
    pub head_dim: usize,
    /// Width of a dense feed-forward layer. In the Omni talker also the inner width of the text projection.
    pub intermediate_size: usize,
    /// Epsilon of every RMSNorm.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// How rotary frequencies are shared by time, height and width; `None` where positions are plain.
    pub mrope_section: Option<[usize; 3]>,
    /// Longest sequence.
    pub max_position_embeddings: usize,
    /// Whether q, k, v and o projections have biases.
    pub attention_bias: bool,
    /// Whether the head shares the embedding table.
    pub tie_word_embeddings: bool,
    /// Experts; `None` for a dense model.
    pub moe: Option<MoeConfig>,
}

/// Mixture of experts in place of the dense feed-forward layer.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeConfig {
    /// Experts of a layer.
    pub num_experts: usize,
    /// Experts that a token visits.
    pub num_experts_per_tok: usize,
    /// Inner width of an expert.
    pub moe_intermediate_size: usize,
    /// Whether the weights of the chosen experts are scaled to sum to 1.
    pub norm_topk_prob: bool,
    /// Inner width of the expert that every token visits; `None` when there is none.
    pub shared_expert_intermediate_size: Option<usize>,
    /// Every how many layers there are experts; 1 is everywhere.
    pub decoder_sparse_step: usize,
    /// Layers that are dense all the same.
    pub mlp_only_layers: Vec<usize>,
}

impl DecoderConfig {
    /// Reads a `text_config` or `code_predictor_config`.
    pub fn read(node: &Node<'_>) -> DecoderConfig {
        let before = node.problems().len();
        let hidden_size = node.size("hidden_size");
        let num_attention_heads = node.size("num_attention_heads");
        let rope = Rope::read(node);
        let moe = MoeConfig::read(node);
        let config = DecoderConfig {
            vocab_size: node.size("vocab_size"),
            hidden_size,
            num_hidden_layers: node.size("num_hidden_layers"),
            num_attention_heads,
            num_key_value_heads: node.size("num_key_value_heads"),
            head_dim: node.size("head_dim"),
            // A model of experts only may leave it out.
            intermediate_size: if moe.is_some() {
                node.optional_size("intermediate_size").unwrap_or(hidden_size)
            } else {
                node.size("intermediate_size")
            },
            rms_norm_eps: node.positive("rms_norm_eps"),
            rope_theta: rope.theta,
            mrope_section: rope.section,
            max_position_embeddings: node.size("max_position_embeddings"),
            attention_bias: node.optional_flag("attention_bias").unwrap_or(false),
            tie_word_embeddings: node.optional_flag("tie_word_embeddings").unwrap_or(false),
            moe,
        };
        // Placeholders for missing numbers would cause misleading complaints.
        if node.problems().len() == before {
            config.check(node);
        }
        config
    }

    /// Whether layer `index` has experts.
    pub fn is_sparse(&self, index: usize) -> bool {
        self.moe.as_ref().is_some_and(|moe| {
            !moe.mlp_only_layers.contains(&index) && (index + 1).is_multiple_of(moe.decoder_sparse_step)
        })
    }

    /// The axis (0 time, 1 height, 2 width) that each rotary frequency turns with; `None` where positions are plain.
    pub fn rotary_axes(&self) -> Option<Vec<u8>> {
        let section = self.mrope_section?;
        Some((0..self.head_dim / 2).map(|j| interleaved_axis(j, section) as u8).collect())
    }

    fn check(&self, node: &Node<'_>) {
        let problems = node.problems();
        let (heads, kv, dim) = (self.num_attention_heads, self.num_key_value_heads, self.head_dim);
        problems.require(heads.is_multiple_of(kv), || {
            format!("{} = {kv} does not divide num_attention_heads = {heads}", node.path_of("num_key_value_heads"))
        });
        problems.require(dim.is_multiple_of(2), || {
            format!("{} = {dim} is odd: rotary embeddings need pairs", node.path_of("head_dim"))
        });
        if let Some(section) = self.mrope_section {
            problems.require(section.iter().sum::<usize>() == dim / 2, || {
                let path = node.path_of("rope_scaling.mrope_section");
                format!("{path} = {section:?} does not sum to head_dim / 2 = {}", dim / 2)
            });
        }
        only_silu(node);
        let windowed = node.optional_flag("use_sliding_window").unwrap_or(true)
            && node.value("sliding_window").is_some()
            && node.optional_texts("layer_types").is_none_or(|types| types.contains(&"sliding_attention"));
        problems.require(!windowed, || {
            format!("{} is set: sliding windows are served in the vocoder only", node.path_of("sliding_window"))
        });
    }
}

impl MoeConfig {
    fn read(node: &Node<'_>) -> Option<MoeConfig> {
        // transformers 5 writes num_local_experts where 4 wrote num_experts.
        let key = ["num_experts", "num_local_experts"].into_iter().find(|k| node.value(k).is_some())?;
        if node.optional_count(key) == Some(0) {
            return None;
        }
        let moe = MoeConfig {
            num_experts: node.size(key),
            num_experts_per_tok: node.size("num_experts_per_tok"),
            moe_intermediate_size: node.size("moe_intermediate_size"),
            norm_topk_prob: node.flag("norm_topk_prob"),
            shared_expert_intermediate_size: node
                .optional_count("shared_expert_intermediate_size")
                .filter(|width| *width > 0),
            decoder_sparse_step: node.optional_size("decoder_sparse_step").unwrap_or(1),
            mlp_only_layers: node.optional_counts("mlp_only_layers").unwrap_or_default(),
        };
        node.problems().require(moe.num_experts_per_tok <= moe.num_experts, || {
            let path = node.path_of("num_experts_per_tok");
            format!("{path} = {} is more than {key} = {}", moe.num_experts_per_tok, moe.num_experts)
        });
        Some(moe)
    }
}

/// Rotary settings in either spelling: `rope_theta` and `rope_scaling`, or `rope_parameters` (transformers 5).
pub(super) struct Rope {
    pub(super) theta: f64,
    pub(super) section: Option<[usize; 3]>,
}

impl Rope {
    pub(super) fn read(node: &Node<'_>) -> Rope {
        let parameters = node.optional_object("rope_parameters");
        let extra = parameters.clone().or_else(|| node.optional_object("rope_scaling"));
        let theta = match &parameters {
            Some(rope) if rope.value("rope_theta").is_some() => rope.positive("rope_theta"),
            _ => node.positive("rope_theta"),
        };
        let Some(extra) = extra else { return Rope { theta, section: None } };
        for key in ["rope_type", "type"] {
            let kind = extra.optional_text(key).unwrap_or("default");
            node.problems().require(matches!(kind, "default" | "mrope"), || {
                format!("{} = {kind:?} is not served: expected \"default\"", extra.path_of(key))
            });
        }
        let section = extra.optional_sizes("mrope_section").and_then(|sizes| {
            let found = sizes.len();
            let section = <[usize; 3]>::try_from(sizes).ok();
            node.problems().require(section.is_some(), || {
                format!("{} has {found} entries instead of 3", extra.path_of("mrope_section"))
            });
            section
        });
        Rope { theta, section }
    }
}

/// The one activation that these models use.
pub(super) fn only_silu(node: &Node<'_>) {
    let act = node.optional_text("hidden_act").unwrap_or("silu");
    node.problems().require(act == "silu", || {
        format!("{} = {act:?} is not served: expected \"silu\"", node.path_of("hidden_act"))
    });
}
