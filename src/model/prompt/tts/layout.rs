//! Which token stands beside which code. Pure.

use crate::model::hf::CodecTokens;
use crate::model::talker::{CodecSide, TalkerPrompt, TextSide, Trailing};
use std::sync::Arc;

/// A request without its text.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// Tokens of everything before the text.
    pub tokens: Vec<u32>,
    /// How many of them stand alone, without codes: instruction and header.
    pub plain: u32,
    /// Codec sides of the rows behind those; padding is the last.
    pub opening: Vec<CodecSide>,
    pub x_vector: Option<Arc<[f32]>>,
    pub reference: Option<PlannedReference>,
    /// The prompt holds the whole text.
    pub whole: bool,
}

#[derive(Clone, Debug)]
pub(super) struct PlannedReference {
    /// Of the transcript.
    pub tokens: u32,
    pub frames: u32,
    pub codes: Arc<[u32]>,
}

impl Plan {
    pub fn reference_len(&self) -> u32 {
        self.reference.as_ref().map_or(0, |reference| reference.tokens)
    }

    /// Begin and frames of the reference, which the text stands beside.
    fn codec_rows(&self, tokens: &CodecTokens) -> Vec<CodecSide> {
        let frames = self.reference.as_ref().map_or(0, |reference| reference.frames);
        [CodecSide::Token(tokens.bos)].into_iter().chain((0..frames).map(CodecSide::Frame)).collect()
    }

    /// The prompt of a text of at least `text` tokens that may go on; `None` while the layout depends on what follows.
    pub fn open_prompt(&self, text: u32, tokens: &CodecTokens) -> Option<TalkerPrompt> {
        let beside = self.codec_rows(tokens);
        if self.whole || text == 0 || ((self.reference_len() + text) as usize) < beside.len() {
            return None;
        }
        let words = (self.plain..).map(TextSide::Input);
        Some(self.prompt(words.zip(beside).collect(), Trailing::Text))
    }

    /// The prompt of a text of exactly `text` tokens.
    pub fn whole_prompt(&self, text: u32, tokens: &CodecTokens) -> TalkerPrompt {
        if let Some(prompt) = self.open_prompt(text, tokens) {
            return prompt;
        }
        let words = (self.plain..self.plain + self.reference_len() + text).map(TextSide::Input).chain([TextSide::Eos]);
        let pads = std::iter::repeat(TextSide::Pad);
        let beside = self.codec_rows(tokens);
        let rows = if self.whole {
            let read = words.map(|word| (word, CodecSide::Token(tokens.pad)));
            read.chain(pads.zip(beside)).collect()
        } else {
            words.chain(pads).zip(beside).collect()
        };
        self.prompt(rows, Trailing::Pad)
    }

    /// Opening and `rows`.
    pub fn prompt(&self, rows: Vec<(TextSide, CodecSide)>, trailing: Trailing) -> TalkerPrompt {
        let last = self.opening.len().saturating_sub(1);
        let side = |at| if at == last { TextSide::Bos } else { TextSide::Pad };
        let opening = self.opening.iter().enumerate().map(|(at, codec)| (side(at), *codec));
        let mut prompt = TalkerPrompt::new(self.plain, opening.chain(rows).collect(), trailing);
        if let Some(vector) = &self.x_vector {
            prompt = prompt.with_x_vector(Arc::clone(vector));
        }
        if let Some(reference) = &self.reference {
            prompt = prompt.with_reference(Arc::clone(&reference.codes));
        }
        prompt
    }
}
