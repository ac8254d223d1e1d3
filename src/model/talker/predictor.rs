//! The code predictor: from the talker's hidden state and code 0 to the other codes of a frame.
//!
//! For each frame it begins with an empty cache. Inputs at positions 0 and 1 are the talker's hidden state and the
//! embedding of code 0 from the *talker's* table; head 0 gives code 1 from the last position. Pass `s` (from 1 to
//! `groups - 2`) takes `codec_embedding[s - 1]` of code `s` (the predictor's tables: table `i` embeds group `i + 1`) at
//! position `s + 1`, and head `s` gives code `s + 1`. With 16 groups these are 15 passes and 16 cached positions; all
//! heads share one final norm.
//!
//! Of Qwen3-TTS 1.7B every input goes through `small_to_mtp_projection` (2048 to 1024, with bias), but the talker's sum
//! takes the embeddings as they are. Of 0.6B and Qwen3-Omni both widths are the same and there is no projection.

use super::net::biased;
use super::table::Table;
use crate::LoadError;
use crate::hf::TalkerConfig;
use crate::transformer::{DecoderStack, KvCache, Segment};
use crate::weights::Scope;
use candle_core::{Result, Tensor};
use omni_ops::Linear;

/// A small decoder that runs afresh for every frame: a prompt of two positions gives code 1, each further pass one code
/// more. Every group but the first has its own embedding table and its own head.
pub struct CodePredictor {
    stack: DecoderStack,
    /// Table `i` embeds group `i + 1`, in the talker's width.
    embeddings: Vec<Table>,
    /// From the talker's width to this model's, where they differ.
    projection: Option<Linear>,
    /// Head `i` gives group `i + 1`.
    heads: Vec<Linear>,
}

/// One small cache per sequence of a batch, kept between frames only for its memory.
#[derive(Debug, Default)]
pub struct PredictorCaches(Vec<KvCache>);

/// The state of one pass before its codes are picked.
#[derive(Debug)]
pub struct Pass<'a> {
    /// The group that is picked, counted from 1.
    pub group: usize,
    /// Last hidden state after the final norm, `[sequences, hidden]`.
    pub hidden: &'a Tensor,
    /// `[sequences, codes]`.
    pub logits: &'a Tensor,
}

/// The frames of a batch.
#[derive(Debug)]
pub struct Frames {
    /// Groups 1.. of each sequence.
    pub codes: Vec<Vec<u32>>,
    /// Sum of the embeddings of those groups, `[sequences, talker hidden]`.
    pub embedded: Tensor,
}

impl CodePredictor {
    /// Loads a talker's predictor, which is below `scope`.
    ///
    /// # Errors
    /// What the scope and the device say; tensors that do not fit are reported by the loader.
    pub fn load(talker: &TalkerConfig, scope: &Scope<'_>) -> std::result::Result<CodePredictor, LoadError> {
        let (config, groups) = (&talker.predictor, talker.num_code_groups);
        let (outer, inner) = (talker.text.hidden_size, config.hidden_size);
        let (tables, weights) = (scope.at("model").at("codec_embedding"), scope.at("lm_head"));
        let embeddings = (0..groups - 1).map(|i| Table::load(&tables.at(i), [config.vocab_size, outer]));
        let heads =
            (0..groups - 1).map(|i| Ok(Linear::new(weights.at(i).get("weight", &[config.vocab_size, inner])?, None)?));
        let projection = (outer != inner).then(|| biased(&scope.at("small_to_mtp_projection"), outer, inner));
        Ok(CodePredictor {
            stack: DecoderStack::load(config, &scope.at("model"))?,
            projection: projection.transpose()?,
            embeddings: embeddings.collect::<std::result::Result<_, _>>()?,
            heads: heads.collect::<std::result::Result<_, LoadError>>()?,
        })
    }

    /// Codes that each group has.
    pub fn codes(&self) -> u32 {
        self.embeddings.first().map_or(0, Table::len)
    }

    /// Sum of the embeddings of groups 1.. of whole frames, `[frames, talker hidden]`; `codes` is frame after frame
    /// with group 0, which is left out.
    ///
    /// # Errors
    /// When a code is outside its table.
    pub fn embed(&self, codes: &[u32]) -> Result<Tensor> {
        let groups = self.embeddings.len() + 1;
        let of_group = |group: usize| codes.iter().skip(group).step_by(groups).copied().collect::<Vec<u32>>();
        let mut sum: Option<Tensor> = None;
        for (i, table) in self.embeddings.iter().enumerate() {
            let part = table.embed(&of_group(i + 1))?;
            sum = Some(match sum {
                Some(sum) => (sum + part)?,
                None => part,
            });
        }
        sum.map_or_else(|| candle_core::bail!("the code predictor has no groups"), Ok)
    }

    /// Completes one frame for each sequence: `hidden [sequences, talker hidden]` of the talker after its final norm,
    /// `first` of the same shape the talker's embeddings of the codes 0. `pick` chooses one code per sequence from each
    /// pass.
    ///
    /// # Errors
    /// What the device says, and a code that `pick` took from outside its table.
    pub fn frame(
        &self,
        caches: &mut PredictorCaches,
        hidden: &Tensor,
        first: &Tensor,
        mut pick: impl FnMut(Pass<'_>) -> Result<Vec<u32>>,
    ) -> Result<Frames> {
        let (sequences, outer) = hidden.dims2()?;
        let width = self.stack.config().hidden_size;
        caches.start(sequences, &self.stack)?;
        let mut codes = vec![Vec::with_capacity(self.heads.len()); sequences];
        let mut embedded: Option<Tensor> = None;
        // The prompt of a sequence: hidden state, then code 0.
        let mut input = self.narrow(&Tensor::stack(&[hidden, first], 1)?.reshape((2 * sequences, outer))?)?;
        for (i, (head, table)) in self.heads.iter().zip(&self.embeddings).enumerate() {
            let len = if i == 0 { 2 } else { 1 };
            let mut segments: Vec<_> = caches.0[..sequences].iter_mut().map(|cache| Segment { cache, len }).collect();
            let mut residual = self.stack.forward(&input, &mut segments)?;
            if i == 0 {
                residual = residual.reshape((sequences, 2, width))?.narrow(1, 1, 1)?.reshape((sequences, width))?;
            }
            let last = self.stack.norm(&residual)?;
            let logits = head.forward(&last)?;
            let picked = pick(Pass { group: i + 1, hidden: &last, logits: &logits })?;
            for (codes, code) in codes.iter_mut().zip(&picked) {
                codes.push(*code);
            }
            let code = table.embed(&picked)?;
            // The last code is only embedded.
            if i + 1 < self.heads.len() {
                input = self.narrow(&code)?;
            }
            embedded = Some(match embedded {
                Some(sum) => (sum + code)?,
                None => code,
            });
        }
        let Some(embedded) = embedded else { candle_core::bail!("the code predictor has no groups") };
        Ok(Frames { codes, embedded })
    }

    /// Projects embeddings from the talker's width to this model's.
    fn narrow(&self, x: &Tensor) -> Result<Tensor> {
        self.projection.as_ref().map_or_else(|| Ok(x.clone()), |projection| projection.forward(x))
    }
}

impl PredictorCaches {
    /// Makes as many caches empty as there are sequences.
    fn start(&mut self, sequences: usize, stack: &DecoderStack) -> Result<()> {
        while self.0.len() < sequences {
            self.0.push(stack.new_cache()?);
        }
        self.0[..sequences].iter_mut().for_each(KvCache::clear);
        Ok(())
    }
}
