//! Vectors to codes: two chains of codebooks, each codebook quantizing what the ones before it left over.

use crate::LoadError;
use crate::hf::CodecEncoderConfig;
use crate::weights::Scope;
use candle_core::{Result, Tensor};
use omni_ops::Linear;

type Loaded<T> = std::result::Result<T, LoadError>;

/// Least use of a code: its vector is a sum over its uses.
const MIN_USAGE: f64 = 1e-5;

/// The semantic and the acoustic chain; both start from the same vector.
pub(super) struct Quantizer {
    semantic: Chain,
    acoustic: Option<Chain>,
}

impl Quantizer {
    /// Loads the first `valid` codebooks and declares the others.
    pub fn load(scope: &Scope<'_>, config: &CodecEncoderConfig, valid: usize) -> Loaded<Quantizer> {
        let semantic = config.num_semantic_quantizers.min(valid);
        let acoustic = config.num_quantizers - config.num_semantic_quantizers;
        let chain = |name: &str, used, all| Chain::load(&scope.at(name), config, used, all);
        let first = chain("semantic_residual_vector_quantizer", semantic, config.num_semantic_quantizers)?;
        let name = "acoustic_residual_vector_quantizer";
        if valid == semantic {
            scope.ignore(name);
            return Ok(Quantizer { semantic: first, acoustic: None });
        }
        Ok(Quantizer { semantic: first, acoustic: Some(chain(name, valid - semantic, acoustic)?) })
    }

    /// `[frames, hidden]` -> the codes of each frame, frame after frame.
    pub fn codes(&self, x: &Tensor) -> Result<Vec<u32>> {
        let mut groups = self.semantic.codes(x)?;
        if let Some(chain) = &self.acoustic {
            groups.extend(chain.codes(x)?);
        }
        Ok((0..x.dim(0)?).flat_map(|frame| groups.iter().map(move |group| group[frame])).collect())
    }
}

struct Chain {
    /// Missing where vectors are as wide as codes.
    project: Option<Linear>,
    books: Vec<Codebook>,
}

impl Chain {
    fn load(scope: &Scope<'_>, config: &CodecEncoderConfig, used: usize, all: usize) -> Loaded<Chain> {
        let (hidden, width) = (config.transformer.hidden_size, config.codebook_dim);
        // The projection back is the decoder's business, which has its own.
        scope.ignore("output_proj");
        (used..all).for_each(|i| scope.ignore(&format!("layers.{i}")));
        let project = (width != hidden)
            .then(|| scope.at("input_proj").get("weight", &[width, hidden, 1]))
            .transpose()?
            .map(|weight| Linear::from_conv(&weight, None))
            .transpose()?;
        let books = (0..used).map(|i| Codebook::load(&scope.at("layers").at(i).at("codebook"), config));
        Ok(Chain { project, books: books.collect::<Loaded<_>>()? })
    }

    /// Codes of each group.
    fn codes(&self, x: &Tensor) -> Result<Vec<Vec<u32>>> {
        let mut left = match &self.project {
            Some(project) => project.forward(x)?,
            None => x.clone(),
        };
        let mut groups = Vec::with_capacity(self.books.len());
        for book in &self.books {
            let codes = book.nearest(&left)?;
            let chosen = book.vectors.index_select(&Tensor::new(&codes[..], x.device())?, 0)?;
            left = (left - chosen)?;
            groups.push(codes);
        }
        Ok(groups)
    }
}

struct Codebook {
    /// `[codes, width]`.
    vectors: Tensor,
    /// How near each code is to a vector: their product less half the code's square, which orders codes as their
    /// distance does.
    nearness: Linear,
}

impl Codebook {
    fn load(scope: &Scope<'_>, config: &CodecEncoderConfig) -> Loaded<Codebook> {
        let (size, width) = (config.codebook_size, config.codebook_dim);
        // A flag of the training.
        scope.ignore("initialized");
        let usage = scope.get("cluster_usage", &[size])?.clamp(MIN_USAGE, f64::INFINITY)?;
        let vectors = scope.get("embed_sum", &[size, width])?.broadcast_div(&usage.unsqueeze(1)?)?;
        let half_squares = (vectors.sqr()?.sum(1)? * -0.5)?;
        Ok(Codebook { nearness: Linear::new(vectors.clone(), Some(half_squares))?, vectors })
    }

    /// `[frames, width]` -> the nearest code of each, the lowest of several.
    fn nearest(&self, x: &Tensor) -> Result<Vec<u32>> {
        let rows = self.nearness.forward(x)?.to_vec2::<f32>()?;
        let best = |row: &Vec<f32>| {
            let (mut best, mut top) = (0, f32::NEG_INFINITY);
            for (code, nearness) in row.iter().enumerate() {
                if *nearness > top {
                    (best, top) = (code, *nearness);
                }
            }
            best as u32
        };
        Ok(rows.iter().map(best).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn book<const N: usize>(vectors: [[f32; 2]; N]) -> Codebook {
        let vectors = Tensor::new(&vectors, &Device::Cpu).unwrap();
        let half_squares = (vectors.sqr().unwrap().sum(1).unwrap() * -0.5).unwrap();
        Codebook { nearness: Linear::new(vectors.clone(), Some(half_squares)).unwrap(), vectors }
    }

    #[test]
    fn each_codebook_takes_the_code_nearest_to_what_is_left() {
        let books = vec![book([[0., 0.], [4., 0.], [9., 9.]]), book([[1., 1.], [-1., 0.], [-1., 0.]])];
        let chain = Chain { project: None, books };
        let x = Tensor::new(&[[3.2f32, 0.1], [0.9, 1.2]], &Device::Cpu).unwrap();
        // 3.2 is nearest to 4, which leaves -0.8: nearest to -1, the first of two.
        assert_eq!(chain.codes(&x).unwrap(), [[1, 0], [1, 0]]);
        let both =
            Quantizer { semantic: chain, acoustic: Some(Chain { project: None, books: vec![book([[9., 9.]])] }) };
        assert_eq!(both.codes(&x).unwrap(), [1, 1, 0, 0, 0, 0]);
    }
}
