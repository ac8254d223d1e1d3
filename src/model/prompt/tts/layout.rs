//! The layout of a prompt: which token is added to which code. Pure.

use crate::hf::CodecTokens;
use crate::talker::{CodecSide, TalkerPrompt, TextSide, Trailing};
use std::sync::Arc;

/// A request without its text.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// Tokens of everything before the text.
    pub tokens: Vec<u32>,
    /// How many of them have no codec side: instruction and header.
    pub plain: u32,
    /// Codec sides of the embeddings behind those; padding is the last.
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

    /// The begin token and the frames of the reference, to which the text is added.
    fn codec_embeddings(&self, tokens: &CodecTokens) -> Vec<CodecSide> {
        let frames = self.reference.as_ref().map_or(0, |reference| reference.frames);
        [CodecSide::Token(tokens.bos)].into_iter().chain((0..frames).map(CodecSide::Frame)).collect()
    }

    /// The prompt of a text of at least `text` tokens that may go on; `None` while the layout depends on what follows.
    pub fn open_prompt(&self, text: u32, tokens: &CodecTokens) -> Option<TalkerPrompt> {
        let beside = self.codec_embeddings(tokens);
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
        let beside = self.codec_embeddings(tokens);
        let embeddings = if self.whole {
            let read = words.map(|word| (word, CodecSide::Token(tokens.pad)));
            read.chain(pads.zip(beside)).collect()
        } else {
            words.chain(pads).zip(beside).collect()
        };
        self.prompt(embeddings, Trailing::Pad)
    }

    /// Opening and `embeddings`.
    pub fn prompt(&self, embeddings: Vec<(TextSide, CodecSide)>, trailing: Trailing) -> TalkerPrompt {
        let last = self.opening.len().saturating_sub(1);
        let side = |at| if at == last { TextSide::Bos } else { TextSide::Pad };
        let opening = self.opening.iter().enumerate().map(|(at, codec)| (side(at), *codec));
        let mut prompt = TalkerPrompt::new(self.plain, opening.chain(embeddings).collect(), trailing);
        if let Some(vector) = &self.x_vector {
            prompt = prompt.with_x_vector(Arc::clone(vector));
        }
        if let Some(reference) = &self.reference {
            prompt = prompt.with_reference(Arc::clone(&reference.codes));
        }
        prompt
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use TextSide::{Bos, Eos, Input, Pad};

    const TOKENS: CodecTokens =
        CodecTokens { pad: 100, bos: 101, eos: 102, think: Some(103), nothink: 104, think_bos: 105, think_eos: 106 };
    const PAD: CodecSide = CodecSide::Token(100);
    const BOS: CodecSide = CodecSide::Token(101);
    const NO_LANGUAGE: [CodecSide; 3] = [CodecSide::Token(104), CodecSide::Token(105), CodecSide::Token(106)];

    /// Four tokens of instruction, three of the header.
    fn plan(whole: bool, reference: Option<(u32, u32)>) -> Plan {
        let opening = NO_LANGUAGE.into_iter().chain([CodecSide::XVector, PAD]).collect();
        let reference = reference.map(|(tokens, frames)| PlannedReference {
            tokens,
            frames,
            codes: vec![0; 2 * frames as usize].into(),
        });
        Plan { tokens: vec![], plain: 7, opening, x_vector: Some(vec![0.0].into()), reference, whole }
    }

    /// The embeddings behind the opening, which is the same in all of them.
    fn body(prompt: &TalkerPrompt) -> Vec<(TextSide, CodecSide)> {
        let embeddings: Vec<_> = (0..).map_while(|at| prompt.embedding(at)).collect();
        assert_eq!(embeddings.len() as u32, prompt.positions());
        for (at, embedding) in embeddings[..7].iter().enumerate() {
            assert_eq!((embedding.text, embedding.codec), (Input(at as u32), None));
        }
        let coded: Vec<_> =
            embeddings[7..].iter().map(|embedding| (embedding.text, embedding.codec.unwrap())).collect();
        let [a, b, c] = NO_LANGUAGE;
        assert_eq!(coded[..5], [(Pad, a), (Pad, b), (Pad, c), (Pad, CodecSide::XVector), (Bos, PAD)]);
        coded[5..].to_vec()
    }

    #[test]
    fn streamed_text_begins_with_one_token() {
        let prompt = plan(false, None).whole_prompt(3, &TOKENS);
        assert_eq!(body(&prompt), [(Input(7), BOS)]);
        assert_eq!((prompt.inputs(), prompt.trailing()), (8, Trailing::Text));
        assert_eq!(plan(false, None).open_prompt(1, &TOKENS), Some(prompt));
        assert_eq!(plan(false, None).open_prompt(0, &TOKENS), None);
    }

    #[test]
    fn whole_text_is_read_before_the_speech_begins() {
        let prompt = plan(true, None).whole_prompt(3, &TOKENS);
        assert_eq!(body(&prompt), [(Input(7), PAD), (Input(8), PAD), (Input(9), PAD), (Eos, PAD), (Pad, BOS)]);
        assert_eq!((prompt.inputs(), prompt.trailing()), (10, Trailing::Pad));
        assert_eq!(plan(true, None).open_prompt(3, &TOKENS), None);
    }

    #[test]
    fn text_longer_than_the_recording_goes_on_behind_it() {
        // Transcript of 2, text of 2 and the end of text beside the begin and 3 frames.
        let prompt = plan(false, Some((2, 3))).whole_prompt(2, &TOKENS);
        let frame = CodecSide::Frame;
        assert_eq!(body(&prompt), [(Input(7), BOS), (Input(8), frame(0)), (Input(9), frame(1)), (Input(10), frame(2))]);
        assert_eq!((prompt.inputs(), prompt.trailing()), (11, Trailing::Text));
        assert_eq!(prompt.text_side(1, 11, true), Some(Eos), "the end of text comes behind");
        // Longer text has the same prompt, so speech may begin before the text has ended.
        assert_eq!(plan(false, Some((2, 3))).whole_prompt(9, &TOKENS), prompt);
        assert_eq!(plan(false, Some((2, 3))).open_prompt(2, &TOKENS), Some(prompt));
    }

    #[test]
    fn text_no_longer_than_the_recording_is_padded() {
        let frame = CodecSide::Frame;
        let even = plan(false, Some((2, 3))).whole_prompt(1, &TOKENS);
        assert_eq!(body(&even), [(Input(7), BOS), (Input(8), frame(0)), (Input(9), frame(1)), (Eos, frame(2))]);
        assert_eq!((even.inputs(), even.trailing()), (10, Trailing::Pad));
        assert_eq!(plan(false, Some((2, 3))).open_prompt(1, &TOKENS), None, "more text would change the layout");
        let short = plan(false, Some((1, 3))).whole_prompt(1, &TOKENS);
        assert_eq!(body(&short), [(Input(7), BOS), (Input(8), frame(0)), (Eos, frame(1)), (Pad, frame(2))]);
    }

    #[test]
    fn whole_text_stands_before_the_recording() {
        let prompt = plan(true, Some((1, 2))).whole_prompt(1, &TOKENS);
        let frame = CodecSide::Frame;
        let read = [(Input(7), PAD), (Input(8), PAD), (Eos, PAD)];
        assert_eq!(body(&prompt), [&read[..], &[(Pad, BOS), (Pad, frame(0)), (Pad, frame(1))]].concat());
        assert_eq!((prompt.inputs(), prompt.trailing()), (9, Trailing::Pad));
    }
}
