//! The talker's backbone, its tables and its projection of text.

use super::predictor::CodePredictor;
use super::prompt::{CodecSide, TalkerPrompt, TextSide};
use super::table::Table;
use crate::LoadError;
use crate::hf::{ChatTokens, Family, SPECIAL_CODEC_IDS, TalkerConfig, TtsTokens};
use crate::sampling::Suppress;
use crate::transformer::{DecoderStack, output_head};
use crate::weights::{Loader, Scope};
use candle_core::{Result, Tensor};
use omni_ops::Linear;
use std::ops::Range;

/// Backbone, head, projection of text and code predictor.
pub struct Talker {
    config: TalkerConfig,
    embedding: Tensor,
    stack: DecoderStack,
    head: Linear,
    /// The table of text of a model that reads text itself; others take a thinker's embeddings.
    text: Option<Table>,
    text_projection: ResizeMlp,
    /// Of the thinker's hidden states at media; `None` where there are none.
    hidden_projection: Option<ResizeMlp>,
    predictor: CodePredictor,
    /// Projected embeddings of `<tts_pad>`, `<tts_text_bos>` and `<tts_text_eod>`, `[1, hidden]` each.
    pad: Tensor,
    bos: Tensor,
    eos: Tensor,
}

impl Talker {
    /// Loads everything under `talker`, and for Qwen3-Omni three embeddings of the thinker. The caller finishes the
    /// loader.
    ///
    /// # Errors
    /// When the file cannot be read; tensors that do not fit are reported by [`Loader::finish`].
    pub fn load(loader: &Loader, family: &Family) -> std::result::Result<Talker, LoadError> {
        match family {
            Family::Omni(config) => {
                let ChatTokens { tts_pad, tts_bos, tts_eos, .. } = config.tokens;
                let thinker = [config.thinker.text.vocab_size, config.thinker.text.hidden_size];
                let scope = loader.scope("thinker.model.embed_tokens");
                let special = scope.rows("weight", &thinker, &[tts_pad, tts_bos, tts_eos])?;
                Talker::with_text(loader, &config.talker, None, &special)
            }
            Family::Tts(config) => {
                let shape = [config.text_vocab_size, config.talker.text_hidden_size];
                let scope = loader.scope("talker.model.text_embedding");
                let TtsTokens { tts_pad, tts_bos, tts_eos, .. } = config.tokens;
                let special = scope.rows("weight", &shape, &[tts_pad, tts_bos, tts_eos])?;
                let table = Table::load(&scope, shape)?;
                Talker::with_text(loader, &config.talker, Some(table), &special)
            }
        }
    }

    /// `special`: embeddings of padding, begin and end of text, before their projection.
    fn with_text(
        loader: &Loader,
        config: &TalkerConfig,
        table: Option<Table>,
        special: &Tensor,
    ) -> std::result::Result<Talker, LoadError> {
        let (scope, model, text) = (loader.scope("talker"), loader.scope("talker.model"), &config.text);
        let sizes = [config.text_hidden_size, config.text_projection_size, text.hidden_size];
        let text_projection = ResizeMlp::load(sizes, &scope.at("text_projection"))?;
        let special = text_projection.forward(special)?;
        let hidden = scope.at("hidden_projection");
        let hears = table.is_none() && hidden.at("linear_fc1").offers("weight");
        let hidden_projection = hears.then(|| ResizeMlp::load(sizes, &hidden)).transpose()?;
        let embedding = model.at("codec_embedding").get("weight", &[text.vocab_size, text.hidden_size])?;
        Ok(Talker {
            stack: DecoderStack::load(text, &model)?,
            head: output_head(&scope.at("codec_head"), &embedding, text)?,
            embedding,
            predictor: CodePredictor::load(config, &scope.at("code_predictor"))?,
            pad: special.narrow(0, 0, 1)?,
            bos: special.narrow(0, 1, 1)?,
            eos: special.narrow(0, 2, 1)?,
            text: table,
            text_projection,
            hidden_projection,
            config: config.clone(),
        })
    }

    /// Sizes and ids.
    pub fn config(&self) -> &TalkerConfig {
        &self.config
    }

    /// Ids of text that there are embeddings for, `0..text_vocabulary()`; `None` for a model that does not read text
    /// itself.
    pub fn text_vocabulary(&self) -> Option<u32> {
        self.text.as_ref().map(Table::len)
    }

    /// The layers.
    pub fn stack(&self) -> &DecoderStack {
        &self.stack
    }

    /// What fills in groups 1.. of a frame.
    pub fn predictor(&self) -> &CodePredictor {
        &self.predictor
    }

    /// Ids that the codec head tells apart: `0..vocabulary()`.
    pub fn vocabulary(&self) -> u32 {
        self.config.text.vocab_size as u32
    }

    /// Ids that are never sampled as code 0: the special ones but the end, and with `no_end` the end as well.
    pub fn suppressed(&self, no_end: bool) -> Suppress {
        let vocabulary = self.vocabulary();
        let codes = vocabulary.saturating_sub(SPECIAL_CODEC_IDS as u32);
        let end = Some(self.config.tokens.eos);
        Suppress { range: codes..vocabulary, except: end.filter(|_| !no_end), also: end.filter(|_| no_end) }
    }

    /// Input embeddings `[n, hidden]` of text, for a model that reads text itself.
    ///
    /// # Errors
    /// When this model does not read text, and for an id outside the vocabulary.
    pub fn read(&self, tokens: &[u32]) -> Result<Tensor> {
        match &self.text {
            Some(table) => self.project(&table.embed(tokens)?),
            None => candle_core::bail!("this talker takes embeddings of a thinker and no text"),
        }
    }

    /// Input embeddings `[n, hidden]` from embeddings of text `[n, text hidden]`, such as those of a thinker.
    ///
    /// # Errors
    /// When the width is another one.
    pub fn project(&self, embeddings: &Tensor) -> Result<Tensor> {
        self.text_projection.forward(embeddings)
    }

    /// [`Talker::project`] where `embeddings [n, text hidden]` are the input embeddings from `first` on, of which those
    /// in `media` are hidden states.
    ///
    /// # Errors
    /// When the width is another one, or this talker takes no hidden states.
    pub fn project_media(&self, embeddings: &Tensor, first: u32, media: &[Range<u32>]) -> Result<Tensor> {
        let end = first + embeddings.dim(0)? as u32;
        let mut media = media.iter().map(|range| range.start.max(first)..range.end.min(end)).filter(|r| !r.is_empty());
        let (mut parts, mut at) = (Vec::new(), first);
        while at < end {
            let range = media.next().unwrap_or(end..end);
            let part = |range: &Range<u32>| embeddings.narrow(0, (range.start - first) as usize, range.len());
            if at < range.start {
                parts.push(self.project(&part(&(at..range.start))?)?);
            }
            if !range.is_empty() {
                let Some(projection) = &self.hidden_projection else {
                    candle_core::bail!("this talker has no hidden_projection: it takes no hidden states of media");
                };
                parts.push(projection.forward(&part(&range)?)?);
            }
            at = range.end;
        }
        if let [all] = parts.as_slice() { Ok(all.clone()) } else { Tensor::cat(&parts, 0) }
    }

    /// Whether it takes hidden states of media.
    pub fn takes_media(&self) -> bool {
        self.hidden_projection.is_some()
    }

    /// Embeddings `[ids.len(), hidden]` of codec ids.
    ///
    /// # Errors
    /// When an id is outside the vocabulary.
    pub fn embed(&self, ids: &[u32]) -> Result<Tensor> {
        self.embedding.index_select(&Tensor::new(ids, self.embedding.device())?, 0)
    }

    /// The text side `[1, hidden]` of a position, where `input` gives projected input embeddings.
    pub fn text_embedding(&self, side: TextSide, input: impl FnOnce(u32) -> Option<Tensor>) -> Option<Tensor> {
        match side {
            TextSide::Input(at) => input(at),
            TextSide::Pad => Some(self.pad.clone()),
            TextSide::Bos => Some(self.bos.clone()),
            TextSide::Eos => Some(self.eos.clone()),
        }
    }

    /// Embeddings `[range.len(), hidden]` of positions of a prompt that fits ([`TalkerPrompt::check`]); `None` when an
    /// input embedding is missing.
    ///
    /// # Errors
    /// What the device says.
    pub fn prompt_embeddings(
        &self,
        prompt: &TalkerPrompt,
        range: Range<u32>,
        input: impl Fn(u32) -> Option<Tensor>,
    ) -> Result<Option<Tensor>> {
        let (mut text, mut codec) = (Vec::new(), Vec::new());
        for position in range.map_while(|at| prompt.embedding(at)) {
            let Some(side) = self.text_embedding(position.text, &input) else { return Ok(None) };
            text.push(side);
            codec.extend(position.codec);
        }
        // Positions without a codec side come first.
        let plain = text.len() - codec.len();
        let text = Tensor::cat(&text, 0)?;
        if codec.is_empty() {
            return Ok(Some(text));
        }
        let coded = (text.narrow(0, plain, codec.len())? + self.codec_embeddings(prompt, &codec)?)?;
        if plain == 0 { Ok(Some(coded)) } else { Tensor::cat(&[text.narrow(0, 0, plain)?, coded], 0).map(Some) }
    }

    /// Codec sides `[sides.len(), hidden]`.
    fn codec_embeddings(&self, prompt: &TalkerPrompt, sides: &[CodecSide]) -> Result<Tensor> {
        let groups = self.config.num_code_groups;
        let same = |a: &CodecSide, b: &CodecSide| std::mem::discriminant(a) == std::mem::discriminant(b);
        let runs = sides.chunk_by(same).map(|run| {
            let numbers = run.iter().map(|side| match side {
                CodecSide::Token(id) | CodecSide::Frame(id) => *id,
                CodecSide::XVector => 0,
            });
            match (run[0], prompt.x_vector(), prompt.reference()) {
                (CodecSide::Token(_), ..) => self.embed(&numbers.collect::<Vec<_>>()),
                (CodecSide::XVector, Some(vector), _) => {
                    let vector = Tensor::new(&vector[..], self.embedding.device())?.unsqueeze(0)?;
                    vector.repeat((run.len(), 1))
                }
                (CodecSide::Frame(_), _, Some(codes)) => {
                    let frames = numbers.map(|frame| codes.get(frame as usize * groups..(frame as usize + 1) * groups));
                    match frames.collect::<Option<Vec<_>>>() {
                        Some(frames) => self.embed_frames(&frames.concat()),
                        None => candle_core::bail!("the prompt needs frames that the reference does not have"),
                    }
                }
                (side, ..) => candle_core::bail!("the prompt does not have what {side:?} stands for"),
            }
        });
        let runs = runs.collect::<Result<Vec<_>>>()?;
        if let [run] = runs.as_slice() { Ok(run.clone()) } else { Tensor::cat(&runs, 0) }
    }

    /// Embeddings `[frames, hidden]` of whole frames: the sum over their groups, `codes` being frame after frame.
    fn embed_frames(&self, codes: &[u32]) -> Result<Tensor> {
        let first: Vec<u32> = codes.iter().step_by(self.config.num_code_groups).copied().collect();
        self.embed(&first)? + self.predictor.embed(codes)?
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
}

/// `fc2(silu(fc1 x))`, both with bias.
struct ResizeMlp {
    first: Linear,
    second: Linear,
}

impl ResizeMlp {
    fn load([input, inner, output]: [usize; 3], scope: &Scope<'_>) -> std::result::Result<ResizeMlp, LoadError> {
        Ok(ResizeMlp {
            first: biased(&scope.at("linear_fc1"), input, inner)?,
            second: biased(&scope.at("linear_fc2"), inner, output)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.second.forward(&self.first.forward(x)?.silu()?)
    }
}

/// A linear layer with bias, from `inputs` to `outputs`.
pub(super) fn biased(scope: &Scope<'_>, inputs: usize, outputs: usize) -> std::result::Result<Linear, LoadError> {
    Ok(Linear::new(scope.get("weight", &[outputs, inputs])?, Some(scope.get("bias", &[outputs])?))?)
}
