//! The talker's prompt: which two embeddings are added at each position, in one layout for both families. Pure: indices
//! and numbers, no tensors.
//!
//! A talker takes *input embeddings*, counted from 0: those of the thinker (Qwen3-Omni) or of text tokens (Qwen3-TTS).
//! The prompt uses the first of them. With [`Trailing::Text`] the others follow, one per frame, then the end-of-text
//! embedding once, then padding for as long as the talker speaks.
//!
//! Qwen3-TTS: [`crate::prompt`]. Qwen3-Omni, from the ids of the prompt and of the answer, with `E0` the thinker's
//! input embeddings and `E24` its hidden states of the accepted layer, both without the last sampled token (normally
//! `<|im_end|>`; if the thinker stops by length, the last word is lost too):
//!
//! 1. Turns begin at `<|im_start|>`; the token behind it is the role. Turns of the system and earlier ones of the
//!    assistant are left out; any other role but the user's is an error.
//! 2. Each token of a user's turn is `text_projection(E0)`, at positions of media `hidden_projection(E24)`.
//! 3. The last turn of the assistant, `h = text_projection(E0)` of `<|im_start|>`, `assistant`, `\n`, token 0, token 1
//!    and so on, gives nine positions: text `h0 h1 h2 pad pad pad pad bos h3`, codes `0 0 0 nothink think_bos think_eos
//!    SPEAKER pad bos` (0: none). `pad`, `bos` and `eos` of the text are `text_projection` of the thinker's embeddings
//!    of `tts_*`.
//! 4. Trailing text is `h4`, `h5` and so on, then `eos` once; afterwards padding.
//!
//! So the prefill needs only token 0, and frame `i` waits for token `i + 1`. Positions are 0, 1, 2 and so on; with
//! pictures they are those of the user's ids and nine pads on three axes, from the beginning of the talker's sequence.
//! Frame `i` is at the largest position of the prompt + 1 + `i`.

use crate::hf::{CodecTokens, SPECIAL_CODEC_IDS, TalkerConfig};
use crate::media::Positions;
use std::ops::Range;
use std::sync::Arc;

/// Input embeddings of the assistant header: `<|im_start|>`, `assistant`, newline.
pub(crate) const HEADER_ROWS: u32 = 3;

/// What the text side of a position is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum TextSide {
    /// The projection of this input embedding.
    Input(u32),
    /// `<tts_pad>`.
    Pad,
    /// `<tts_text_bos>`.
    Bos,
    /// `<tts_text_eod>`.
    Eos,
}

/// What the codec side of a prompt position is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum CodecSide {
    /// The embedding of a codec id.
    Token(u32),
    /// The prompt's x-vector as it is.
    XVector,
    /// The sum of the embeddings of all codes of this frame of the reference.
    Frame(u32),
}

/// A position of the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptEmbedding {
    /// Every position has a text side.
    pub text: TextSide,
    /// User turns, instructions and the assistant header have no codec side.
    pub codec: Option<CodecSide>,
}

/// Where the text of the frames after the first comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum Trailing {
    /// The input embeddings that the prompt leaves over, one per frame, then the end of text once, then padding.
    Text,
    /// Padding: the prompt holds the whole text.
    Pad,
}

/// A prompt of the talker, and the voice that it speaks with.
#[derive(Clone, Debug, PartialEq, bincode::Encode, bincode::Decode)]
pub struct TalkerPrompt {
    /// The first positions: input embeddings 0.. as they are.
    plain: u32,
    /// The positions behind them.
    coded: Vec<(TextSide, CodecSide)>,
    inputs: u32,
    trailing: Trailing,
    x_vector: Option<Arc<[f32]>>,
    reference: Option<Arc<[u32]>>,
    /// Input embeddings that are hidden states of media, in order.
    media: Arc<[Range<u32>]>,
    positions: Option<Arc<Positions>>,
}

impl TalkerPrompt {
    /// `plain` input embeddings without a codec side, then `coded` positions.
    pub fn new(plain: u32, coded: Vec<(TextSide, CodecSide)>, trailing: Trailing) -> TalkerPrompt {
        let used = coded
            .iter()
            .filter_map(|(text, _)| if let TextSide::Input(embedding) = text { Some(embedding + 1) } else { None });
        let inputs = used.max().unwrap_or(0).max(plain);
        let media = Arc::default();
        TalkerPrompt { plain, coded, inputs, trailing, x_vector: None, reference: None, media, positions: None }
    }

    /// Sets the vector that [`CodecSide::XVector`] stands for.
    #[must_use]
    pub fn with_x_vector(self, x_vector: Arc<[f32]>) -> TalkerPrompt {
        TalkerPrompt { x_vector: Some(x_vector), ..self }
    }

    /// Sets the codes that [`CodecSide::Frame`] stands for, frame after frame, all groups of each.
    #[must_use]
    pub fn with_reference(self, codes: Arc<[u32]>) -> TalkerPrompt {
        TalkerPrompt { reference: Some(codes), ..self }
    }

    /// Says which input embeddings are hidden states of media, and which positions the prompt has if not 0, 1, 2, ...
    #[must_use]
    pub fn with_media(self, media: Arc<[Range<u32>]>, positions: Option<Positions>) -> TalkerPrompt {
        TalkerPrompt { media, positions: positions.map(Arc::new), ..self }
    }

    /// The prompt of Qwen3-Omni, points 3 and 4 above. Input embeddings: `user_embeddings` of the user turns, the three of
    /// the assistant header, one per answer token, the first of which is part of the prompt.
    pub fn omni(user_embeddings: u32, speaker: u32, tokens: &CodecTokens) -> TalkerPrompt {
        let plain = user_embeddings + HEADER_ROWS;
        let mut coded: Vec<_> = [tokens.nothink, tokens.think_bos, tokens.think_eos, speaker]
            .map(|id| (TextSide::Pad, CodecSide::Token(id)))
            .into();
        coded.push((TextSide::Bos, CodecSide::Token(tokens.pad)));
        coded.push((TextSide::Input(plain), CodecSide::Token(tokens.bos)));
        TalkerPrompt::new(plain, coded, Trailing::Text)
    }

    /// The prompt that resumes a sequence: behind this prompt stand the frames that the sequence has generated (all
    /// `groups` codes of each), each with the text side that it had. `inputs` input embeddings have arrived, and are
    /// all there are if `ended`. The talker computes at each position what it computed when it generated them, all at
    /// once; the last position gives the frame that follows.
    ///
    /// `None` if the frames cannot have been generated with so much input.
    pub fn resume(&self, generated: &[u32], groups: usize, inputs: u32, ended: bool) -> Option<TalkerPrompt> {
        let (old, frames) = (self.reference.as_deref().unwrap_or_default(), generated.len() / groups.max(1));
        if frames == 0 {
            return Some(self.clone());
        }
        let first = (old.len() / groups.max(1)) as u32;
        let mut coded = self.coded.clone();
        let mut text_ended = false;
        for frame in 0..frames as u32 {
            let text = self.text_side(frame + 1, inputs, ended)?;
            text_ended |= text == TextSide::Eos;
            coded.push((text, CodecSide::Frame(first + frame)));
        }
        let trailing = if text_ended { Trailing::Pad } else { self.trailing };
        let mut prompt = TalkerPrompt::new(self.plain, coded, trailing);
        prompt.x_vector.clone_from(&self.x_vector);
        prompt.reference = Some([old, generated].concat().into());
        prompt.media = Arc::clone(&self.media);
        prompt.positions.clone_from(&self.positions);
        Some(prompt)
    }

    /// Input embeddings that are hidden states of media, in order.
    pub fn media(&self) -> &[Range<u32>] {
        &self.media
    }

    /// Positions on three axes; `None`: 0, 1, 2, ...
    pub fn axes(&self) -> Option<&Positions> {
        self.positions.as_deref()
    }

    /// Positions of the prompt.
    pub fn positions(&self) -> u32 {
        self.plain + self.coded.len() as u32
    }

    /// Input embeddings that the prompt is made of: the first ones.
    pub fn inputs(&self) -> u32 {
        self.inputs
    }

    /// Its first positions that need none but the first `inputs` input embeddings.
    pub fn positions_of(&self, inputs: u32) -> u32 {
        if inputs < self.plain {
            return inputs;
        }
        let there = |(text, _): &&(TextSide, CodecSide)| !matches!(text, TextSide::Input(at) if *at >= inputs);
        self.plain + self.coded.iter().take_while(there).count() as u32
    }

    /// Where the text of later frames comes from.
    pub fn trailing(&self) -> Trailing {
        self.trailing
    }

    /// What [`CodecSide::XVector`] stands for.
    pub fn x_vector(&self) -> Option<&Arc<[f32]>> {
        self.x_vector.as_ref()
    }

    /// What [`CodecSide::Frame`] stands for: frame after frame, all groups of each.
    pub fn reference(&self) -> Option<&Arc<[u32]>> {
        self.reference.as_ref()
    }

    /// Position `at`; `None` behind the end.
    pub fn embedding(&self, at: u32) -> Option<PromptEmbedding> {
        if at < self.plain {
            return Some(PromptEmbedding { text: TextSide::Input(at), codec: None });
        }
        let (text, codec) = *self.coded.get((at - self.plain) as usize)?;
        Some(PromptEmbedding { text, codec: Some(codec) })
    }

    /// The text side of decode step `step` (1 is the first after the prompt), when `inputs` embeddings have arrived and
    /// `ended` says whether they are all. `None`: the embedding is not there yet.
    pub fn text_side(&self, step: u32, inputs: u32, ended: bool) -> Option<TextSide> {
        if self.trailing == Trailing::Pad {
            return Some(TextSide::Pad);
        }
        let embedding = self.inputs + step - 1;
        if embedding < inputs {
            return Some(TextSide::Input(embedding));
        }
        ended.then_some(if embedding == inputs { TextSide::Eos } else { TextSide::Pad })
    }

    /// The input embeddings that are read no more when the first `frames` frames behind the prompt, the first of which
    /// comes with its last position, are computed: so many of the first ones. There may be fewer.
    pub fn used(&self, frames: u32) -> u32 {
        self.inputs + frames.saturating_sub(1)
    }

    fn check_media(&self, config: &TalkerConfig) -> Result<(), String> {
        let mut end = 0;
        for range in self.media.iter() {
            if range.start < end || range.end < range.start || range.end > self.plain {
                return Err(format!("media has {range:?}: out of order or beyond {} input embeddings", self.plain));
            }
            end = range.end;
        }
        match &self.positions {
            Some(_) if config.text.mrope_section.is_none() => {
                Err("the talker has no mrope_section: its positions have one axis".into())
            }
            // A sequence that resumes has more positions than its prompt had.
            Some(positions) => {
                let lens = self.plain as usize..=self.positions() as usize;
                positions.check(lens).map_err(|error| error.to_string())
            }
            None => Ok(()),
        }
    }

    /// Whether a talker of this size can compute the prompt.
    ///
    /// # Errors
    /// What does not fit, as text for the client that sent the voice.
    pub fn check(&self, config: &TalkerConfig) -> Result<(), String> {
        let (groups, hidden) = (config.num_code_groups, config.text.hidden_size);
        let vocabulary = config.text.vocab_size;
        if let Some(vector) = &self.x_vector {
            if vector.len() != hidden {
                return Err(format!("the speaker embedding has {} numbers: expected {hidden}", vector.len()));
            }
            if let Some(at) = vector.iter().position(|number| !number.is_finite()) {
                return Err(format!("number {at} of the speaker embedding is {}: expected finite numbers", vector[at]));
            }
        }
        self.check_media(config)?;
        let codes: &[u32] = self.reference.as_deref().unwrap_or_default();
        if !codes.len().is_multiple_of(groups) {
            return Err(format!("the reference has {} codes: expected frames of {groups}", codes.len()));
        }
        let sizes = [vocabulary.saturating_sub(SPECIAL_CODEC_IDS), config.predictor.vocab_size];
        for (at, code) in codes.iter().enumerate() {
            let size = sizes[usize::from(at % groups > 0)];
            if *code as usize >= size {
                let (frame, group) = (at / groups, at % groups);
                return Err(format!(
                    "frame {frame} of the reference has code {code} in group {group}: expected 0..{size}"
                ));
            }
        }
        for (_, codec) in &self.coded {
            match codec {
                CodecSide::Token(id) if *id as usize >= vocabulary => {
                    return Err(format!("codec id {id} is outside the vocabulary of {vocabulary}"));
                }
                CodecSide::XVector if self.x_vector.is_none() => {
                    return Err("the prompt has a place for a speaker embedding and none came with it".into());
                }
                CodecSide::Frame(frame) if *frame as usize >= codes.len() / groups => {
                    return Err(format!("the prompt needs frame {frame} of a reference of {}", codes.len() / groups));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENS: CodecTokens =
        CodecTokens { pad: 1, bos: 2, eos: 3, think: None, nothink: 4, think_bos: 5, think_eos: 6 };

    fn omni(user_embeddings: u32) -> TalkerPrompt {
        TalkerPrompt::omni(user_embeddings, 9, &TOKENS)
    }

    #[test]
    fn a_prompt_is_user_embeddings_header_and_six_coded_embeddings() {
        let prompt = omni(2);
        let embeddings: Vec<PromptEmbedding> = (0..).map_while(|at| prompt.embedding(at)).collect();
        assert_eq!((embeddings.len() as u32, prompt.inputs()), (prompt.positions(), 6));
        let plain = |i| PromptEmbedding { text: TextSide::Input(i), codec: None };
        assert_eq!(embeddings[..5], [plain(0), plain(1), plain(2), plain(3), plain(4)]);
        let coded = |text, id| PromptEmbedding { text, codec: Some(CodecSide::Token(id)) };
        assert_eq!(
            embeddings[5..],
            [
                coded(TextSide::Pad, 4),
                coded(TextSide::Pad, 5),
                coded(TextSide::Pad, 6),
                coded(TextSide::Pad, 9),
                coded(TextSide::Bos, 1),
                coded(TextSide::Input(5), 2),
            ]
        );
    }

    #[test]
    fn each_input_embedding_completes_the_positions_that_waited_for_it_alone() {
        // Two user embeddings, three of the header, then five positions that need none, then the last one.
        let prompt = omni(2);
        let positions: Vec<u32> = (0..8).map(|inputs| prompt.positions_of(inputs)).collect();
        assert_eq!(positions, [0, 1, 2, 3, 4, 10, 11, 11]);
    }

    #[test]
    fn the_end_of_text_comes_exactly_once() {
        // No user embeddings, 3 header embeddings, answer tokens in embeddings 3, 4, 5; embedding 3 is part of the
        // prompt.
        let sides: Vec<_> = (1..6).map(|step| omni(0).text_side(step, 6, true)).collect();
        let wanted = [TextSide::Input(4), TextSide::Input(5), TextSide::Eos, TextSide::Pad, TextSide::Pad];
        assert_eq!(sides, wanted.map(Some));
    }

    #[test]
    fn an_embedding_that_has_not_arrived_is_waited_for() {
        assert_eq!(omni(7).text_side(1, 11, false), None);
        assert_eq!(omni(7).text_side(1, 12, false), Some(TextSide::Input(11)));
        assert_eq!(omni(7).text_side(1, 11, true), Some(TextSide::Eos));
    }

    #[test]
    fn a_sequence_that_goes_on_has_its_frames_behind_its_prompt_and_the_same_text_after_them() {
        // Text of three embeddings behind the prompt's own; then the end of text, then padding.
        let (prompt, inputs, groups) = (omni(2), 9, 2);
        for generated_len in 0..8 {
            let codes: Vec<u32> = (0..generated_len * groups).collect();
            let resume = prompt.resume(&codes, groups as usize, inputs, true).unwrap();
            assert_eq!(resume.positions(), prompt.positions() + generated_len);
            for step in 1..12 {
                let expected = prompt.text_side(step, inputs, true);
                let got = match step.checked_sub(generated_len + 1) {
                    // Its own prompt has it.
                    None => resume.embedding(prompt.positions() + step - 1).map(|embedding| embedding.text),
                    Some(after) => resume.text_side(after + 1, inputs, true),
                };
                assert_eq!(got, expected, "step {step} after {generated_len} frames");
            }
        }
        let embedding = prompt.resume(&[1, 2, 3, 4], 2, 9, false).unwrap().embedding(prompt.positions() + 1).unwrap();
        assert_eq!(embedding.codec, Some(CodecSide::Frame(1)));
        assert_eq!(prompt.resume(&[1, 2, 3, 4, 5, 6, 7, 8], 2, 9, false), None, "its text has not come");
    }

    #[test]
    fn an_embedding_is_used_up_by_the_frame_that_reads_it_and_by_none_before() {
        let (prompt, inputs) = (omni(2), 12);
        for generated_len in 0..10 {
            let resume = prompt.resume(&vec![0; generated_len * 2], 2, inputs, true).unwrap();
            let read = |text| if let TextSide::Input(at) = text { at + 1 } else { 0 };
            let of_prompt =
                (0..).map_while(|at| resume.embedding(at)).map(|embedding| read(embedding.text)).max().unwrap();
            for frames in 1..12 {
                let later = (1..frames).filter_map(|step| resume.text_side(step, inputs, true)).map(read);
                let used = resume.used(frames).min(inputs);
                assert_eq!(used, later.fold(of_prompt, u32::max), "{frames} frames after {generated_len}");
            }
        }
    }

    #[test]
    fn a_prompt_that_holds_its_whole_text_waits_for_nothing() {
        let prompt = TalkerPrompt::new(3, vec![(TextSide::Eos, CodecSide::Token(2))], Trailing::Pad);
        assert_eq!((prompt.inputs(), prompt.positions()), (3, 4));
        assert_eq!(prompt.text_side(1, 3, false), Some(TextSide::Pad));
    }
}
