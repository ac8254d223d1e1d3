//! The talker's backbone, its tables and its projection of text.

use super::predictor::CodePredictor;
use super::prompt::{CodecSide, TextSide, prompt_row};
use crate::model::LoadError;
use crate::model::checkpoint::{Loader, Scope};
use crate::model::hf::{ChatTokens, CodecTokens, OmniConfig, SPECIAL_CODEC_IDS};
use crate::model::ops::Linear;
use crate::model::sampling::Suppress;
use crate::model::transformer::{DecoderStack, output_head};
use candle_core::{Result, Tensor};

/// Backbone, head, projection and code predictor.
pub struct Talker {
    embedding: Tensor,
    stack: DecoderStack,
    head: Linear,
    text_projection: ResizeMlp,
    predictor: CodePredictor,
    tokens: CodecTokens,
    /// Projected rows of `<tts_pad>`, `<tts_text_bos>` and `<tts_text_eod>`, `[1, hidden]` each.
    pad: Tensor,
    bos: Tensor,
    eos: Tensor,
}

impl Talker {
    /// Loads everything under `talker`, and three embedding rows of the thinker. The caller finishes the loader.
    ///
    /// # Errors
    /// When the file cannot be read; tensors that do not fit are reported by [`Loader::finish`].
    pub fn load(loader: &Loader, config: &OmniConfig) -> std::result::Result<Talker, LoadError> {
        let (talker, text) = (&config.talker, &config.talker.text);
        let (scope, model) = (loader.scope("talker"), loader.scope("talker.model"));
        // For audio, image and video positions, which are not served yet.
        scope.ignore("hidden_projection");
        let shape = [text.vocab_size, text.hidden_size];
        let sizes = [talker.text_hidden_size, talker.text_projection_size, text.hidden_size];
        let text_projection = ResizeMlp::load(sizes, &scope.at("text_projection"))?;
        let ChatTokens { tts_pad, tts_bos, tts_eos, .. } = config.tokens;
        let thinker = [config.thinker.text.vocab_size, config.thinker.text.hidden_size];
        let special =
            loader.scope("thinker.model.embed_tokens").rows("weight", &thinker, &[tts_pad, tts_bos, tts_eos])?;
        let special = text_projection.forward(&special)?;
        let embedding = model.at("codec_embedding").get("weight", &shape)?;
        Ok(Talker {
            stack: DecoderStack::load(text, &model)?,
            head: output_head(&scope.at("codec_head"), &embedding, text)?,
            embedding,
            predictor: CodePredictor::load(&talker.predictor, talker.num_code_groups, &scope.at("code_predictor"))?,
            tokens: talker.tokens,
            pad: special.narrow(0, 0, 1)?,
            bos: special.narrow(0, 1, 1)?,
            eos: special.narrow(0, 2, 1)?,
            text_projection,
        })
    }

    /// Width of the rows that [`Talker::project`] takes.
    pub fn text_width(&self) -> usize {
        self.text_projection.first.inputs()
    }

    /// The layers.
    pub fn stack(&self) -> &DecoderStack {
        &self.stack
    }

    /// What fills in groups 1.. of a frame.
    pub fn predictor(&self) -> &CodePredictor {
        &self.predictor
    }

    /// Ids of the codec format.
    pub fn tokens(&self) -> &CodecTokens {
        &self.tokens
    }

    /// Ids that the codec head tells apart: `0..vocabulary()`.
    pub fn vocabulary(&self) -> u32 {
        self.embedding.dims()[0] as u32
    }

    /// Ids that are never sampled as code 0: the special ones but the end, and with `no_end` the end as well.
    pub fn suppressed(&self, no_end: bool) -> Suppress {
        let vocabulary = self.vocabulary();
        let codes = vocabulary.saturating_sub(SPECIAL_CODEC_IDS as u32);
        Suppress { range: codes..vocabulary, except: (!no_end).then_some(self.tokens.eos) }
    }

    /// Projects thinker rows `[n, thinker hidden]` into the talker's width, `[n, hidden]`.
    ///
    /// # Errors
    /// When the width is another one.
    pub fn project(&self, rows: &Tensor) -> Result<Tensor> {
        self.text_projection.forward(rows)
    }

    /// Embeddings `[ids.len(), hidden]` of codec ids.
    ///
    /// # Errors
    /// When an id is outside the vocabulary.
    pub fn embed(&self, ids: &[u32]) -> Result<Tensor> {
        self.embedding.index_select(&Tensor::new(ids, self.embedding.device())?, 0)
    }

    /// One text row `[1, hidden]`, where `input` gives projected input rows.
    pub fn text_row(&self, side: TextSide, input: impl FnOnce(u32) -> Option<Tensor>) -> Option<Tensor> {
        match side {
            TextSide::Input(row) => input(row),
            TextSide::Pad => Some(self.pad.clone()),
            TextSide::Bos => Some(self.bos.clone()),
            TextSide::Eos => Some(self.eos.clone()),
        }
    }

    /// Rows `[range.len(), hidden]` of a prompt for a speaker; `None` when one of the input rows is not there.
    ///
    /// # Errors
    /// What the device says.
    pub fn prompt_rows(
        &self,
        user_rows: u32,
        speaker: u32,
        range: std::ops::Range<u32>,
        input: impl Fn(u32) -> Option<Tensor>,
    ) -> Result<Option<Tensor>> {
        let (mut text, mut codec) = (Vec::new(), Vec::new());
        for row in range.map_while(|at| prompt_row(user_rows, at)) {
            let Some(side) = self.text_row(row.text, &input) else { return Ok(None) };
            text.push(side);
            codec.extend(row.codec.map(|side| self.codec_id(side, speaker)));
        }
        // Positions without a codec side come first.
        let plain = text.len() - codec.len();
        let text = Tensor::cat(&text, 0)?;
        if codec.is_empty() {
            return Ok(Some(text));
        }
        let coded = (text.narrow(0, plain, codec.len())? + self.embed(&codec)?)?;
        if plain == 0 { Ok(Some(coded)) } else { Tensor::cat(&[text.narrow(0, 0, plain)?, coded], 0).map(Some) }
    }

    /// Last hidden states after the final norm and logits of code 0, `[n, hidden]` and `[n, vocabulary]`, from the
    /// residual stream `[n, hidden]`.
    ///
    /// # Errors
    /// What the device says.
    pub fn logits(&self, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        let hidden = self.stack.norm(residual)?;
        let logits = self.head.forward(&hidden)?;
        Ok((hidden, logits))
    }

    fn codec_id(&self, side: CodecSide, speaker: u32) -> u32 {
        match side {
            CodecSide::Nothink => self.tokens.nothink,
            CodecSide::ThinkBos => self.tokens.think_bos,
            CodecSide::ThinkEos => self.tokens.think_eos,
            CodecSide::Speaker => speaker,
            CodecSide::Pad => self.tokens.pad,
            CodecSide::Bos => self.tokens.bos,
        }
    }
}

/// `fc2(silu(fc1 x))`, both with bias.
struct ResizeMlp {
    first: Linear,
    second: Linear,
}

impl ResizeMlp {
    fn load([input, inner, output]: [usize; 3], scope: &Scope<'_>) -> std::result::Result<ResizeMlp, LoadError> {
        let linear = |scope: Scope<'_>, from, to| -> std::result::Result<Linear, LoadError> {
            Ok(Linear::new(scope.get("weight", &[to, from])?, Some(scope.get("bias", &[to])?))?)
        };
        Ok(ResizeMlp {
            first: linear(scope.at("linear_fc1"), input, inner)?,
            second: linear(scope.at("linear_fc2"), inner, output)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.second.forward(&self.first.forward(x)?.silu()?)
    }
}
