//! Turns the codes of a frame into the vector that the transformer reads.
//!
//! - Qwen3-Omni: the *mean* over the groups `g` of `code_embedding[code + 2048 * g]`; its transformer has no
//!   projections.
//! - Qwen3-TTS: an entry of a codebook is `embedding_sum / max(cluster_usage, 1e-5)`; that of group 0 through
//!   `rvq_first.output_proj` plus the sum of the others through `rvq_rest.output_proj` (1x1, no bias; `input_proj` is
//!   unused), then a causal convolution of kernel 3 from 512 to 1024. Its transformer has `input_proj` to 512, and
//!   `output_proj` back behind the norm.

use super::Probe;
use super::conv::CausalConv;
use super::state::{Plan, Stream};
use crate::LoadError;
use crate::hf::{VocoderConfig, VocoderInput};
use crate::weights::Scope;
use candle_core::{Result, Tensor};
use omni_ops::Linear;

type Loaded<T> = std::result::Result<T, LoadError>;

/// Taps of the convolution before the transformer; not in the config.
const PRE_TAPS: usize = 3;
/// Codewords that the training hardly used count as used this much.
const LEAST_USAGE: f64 = 1e-5;

pub(super) struct Input {
    /// A vector for each code of each group: `[groups * codebook_size, width]`.
    table: Tensor,
    groups: usize,
    codebook_size: usize,
    kind: Kind,
}

enum Kind {
    /// The mean of the vectors.
    Mean,
    /// The vector of the first group and the sum of the others, each projected, added up; then a causal convolution.
    Residual {
        /// Both projections side by side: `2 * width` to the width of the sum.
        projections: Linear,
        conv: CausalConv,
    },
}

impl Input {
    pub fn load(scope: &Scope<'_>, config: &VocoderConfig, plan: &mut Plan) -> Loaded<Input> {
        let (groups, codebook_size) = (config.num_quantizers, config.codebook_size);
        let (table, kind) = match config.input {
            VocoderInput::EmbeddingMean => {
                let shape = [groups * codebook_size, config.transformer.hidden_size];
                (scope.at("code_embedding").get("weight", &shape)?, Kind::Mean)
            }
            VocoderInput::Residual { code_width, sum_width, latent_width } => {
                let (mut codebooks, mut projections) = (Vec::with_capacity(groups), Vec::with_capacity(2));
                for (name, groups) in [("rvq_first", 1), ("rvq_rest", groups - 1)] {
                    let scope = scope.at("quantizer").at(name);
                    // The projection into the codebook is for the encoder, which has its own.
                    scope.ignore("input_proj");
                    let shape = [sum_width, code_width, 1];
                    projections.push(scope.at("output_proj").get("weight", &shape)?.squeeze(2)?);
                    for layer in 0..groups {
                        let scope = scope.at("vq").at("layers").at(layer).at("_codebook");
                        codebooks.push(codebook(&scope, codebook_size, code_width)?);
                    }
                }
                let projections = Linear::new(Tensor::cat(&projections, 1)?, None)?;
                let conv = CausalConv::load(&scope.at("pre_conv"), (sum_width, latent_width), (PRE_TAPS, 1), plan)?;
                (Tensor::cat(&codebooks, 0)?, Kind::Residual { projections, conv })
            }
        };
        Ok(Input { table, groups, codebook_size, kind })
    }

    /// The stream's next frames: `[frames * groups]`, checked, to `[frames, latent]`.
    pub fn forward(&self, codes: &[u32], stream: &mut Stream, probe: Probe<'_>) -> Result<Tensor> {
        let ids: Vec<u32> =
            codes.iter().enumerate().map(|(i, code)| code + (i % self.groups * self.codebook_size) as u32).collect();
        let frames = codes.len() / self.groups;
        let rows = self.table.index_select(&Tensor::from_vec(ids, codes.len(), self.table.device())?, 0)?;
        let rows = rows.reshape((frames, self.groups, self.table.dim(1)?))?;
        match &self.kind {
            Kind::Mean => {
                let x = rows.mean(1)?;
                probe(format_args!("embed_mean"), &x);
                Ok(x)
            }
            Kind::Residual { projections, conv } => {
                let (first, rest) = (rows.narrow(1, 0, 1)?.squeeze(1)?, rows.narrow(1, 1, self.groups - 1)?.sum(1)?);
                let x = projections.forward(&Tensor::cat(&[first, rest], 1)?)?;
                probe(format_args!("quantizer"), &x);
                let x = conv.forward(&x, stream)?;
                probe(format_args!("pre_conv"), &x);
                Ok(x)
            }
        }
    }
}

/// The vectors of one codebook: training stores their sums and counts.
fn codebook(scope: &Scope<'_>, size: usize, width: usize) -> Loaded<Tensor> {
    let usage = scope.get("cluster_usage", &[size])?.maximum(LEAST_USAGE)?.unsqueeze(1)?;
    Ok(scope.get("embedding_sum", &[size, width])?.broadcast_div(&usage)?)
}
