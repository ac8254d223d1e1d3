//! The requests of the listeners: a fixed set, each with its own seed, so that each response has one truth. Pure.

use super::media::{picture, sound};
use omni_core::ids::{Frames, StageName};
use omni_engine::{
    ChatMessage, Content, Detail, GenerateRequest, MediaSource, Output, Part, RequestOptions, SamplingOverrides,
    SpeechParams, SpeechRequest, TextSource, VoiceChoice,
};
use omni_model::hf::{Family, Variant};
use serde::Serialize;

/// Chat answers end here: a drill is not a conversation.
const CHAT_TOKENS: u32 = 48;
/// The same in speech: 8 s.
const CHAT_FRAMES: u32 = 100;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A text to speak.
    Speech,
    /// A chat turn, answered with text and speech.
    Chat,
    /// A chat turn, answered with text alone.
    Text,
    /// A chat turn with a sound and a picture, answered with text and speech.
    Media,
}

/// One request of the set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Case {
    /// What is asked for.
    pub kind: Kind,
    /// What to say, or the user's words.
    pub text: String,
    /// Of its sampling.
    pub seed: u64,
}

/// A request as the engine takes it.
pub enum Asked {
    /// [`Kind::Speech`].
    Speech(SpeechRequest),
    /// The others.
    Chat(GenerateRequest),
}

/// The set, and what all of its requests have in common.
#[derive(Clone, Debug)]
pub struct Load {
    /// Taken in turn.
    pub cases: Vec<Case>,
    /// Stages of the model that requests reach, upstream first.
    pub stages: &'static [StageName],
    voice: Option<String>,
    instructions: Option<String>,
    frames: Option<u32>,
}

impl Load {
    /// One request per text, for the stages that there are. Where the model has a thinker, a third of them are chat
    /// turns; where it has an encoder, a fourth of these have media.
    pub fn new(
        texts: Vec<String>,
        (family, stages): (&Family, &'static [StageName]),
        seed: u64,
        voice: Option<String>,
        frames: Option<u32>,
    ) -> Load {
        let (chats, sees) = (stages.contains(&StageName::Thinker), stages.contains(&StageName::Encoder));
        let kind = |i: usize| match i % 6 {
            1 | 4 if chats && i % 12 == 10 => Kind::Text,
            1 if sees && i % 12 == 1 => Kind::Media,
            1 | 4 if chats => Kind::Chat,
            _ => Kind::Speech,
        };
        let case = |(i, text)| Case { kind: kind(i), text, seed: seed.wrapping_add(i as u64) };
        let designed = matches!(family, Family::Tts(tts) if tts.variant == Variant::VoiceDesign);
        let instructions = designed.then(|| "a calm, warm voice".to_owned());
        Load { cases: texts.into_iter().enumerate().map(case).collect(), stages, voice, instructions, frames }
    }

    /// Which request of the set the `i`-th one is.
    pub fn case(&self, i: usize) -> usize {
        i % self.cases.len()
    }

    /// The stages that a kind of request has sequences in.
    pub fn stages_of(&self, kind: Kind) -> &'static [StageName] {
        match kind {
            Kind::Media => self.stages,
            Kind::Text => &self.of_text()[..1],
            Kind::Speech | Kind::Chat => self.of_text(),
        }
    }

    /// The stages that every request of text can need.
    pub fn of_text(&self) -> &'static [StageName] {
        match self.stages {
            [StageName::Encoder, of_text @ ..] => of_text,
            all => all,
        }
    }

    /// A request of the set, to be given to an engine.
    pub fn asked(&self, case: usize) -> Asked {
        let Case { kind, text, seed } = &self.cases[case];
        if *kind == Kind::Speech {
            let named = |name: &String| VoiceChoice::Named { name: name.clone(), x_vector_only: false };
            return Asked::Speech(SpeechRequest {
                text: TextSource::Whole(text.clone()),
                params: SpeechParams {
                    voice: self.voice.as_ref().map_or(VoiceChoice::Default, named),
                    instructions: self.instructions.clone(),
                    max_frames: self.frames.map(Frames),
                    ignore_eos: self.frames.is_some(),
                    seed: Some(*seed),
                    ..SpeechParams::default()
                },
            });
        }
        let mut turn = ChatMessage::text("user", text.clone());
        let mut media = Vec::new();
        if *kind == Kind::Media {
            turn.content = Content::Parts(vec![Part::Audio, Part::Image, Part::Text(text.clone())]);
            media.push(MediaSource::Audio(sound(*seed)));
            media.push(MediaSource::Image { file: picture(*seed), detail: Detail::Auto });
        }
        Asked::Chat(GenerateRequest {
            messages: vec![turn],
            media,
            tools: Vec::new(),
            until_call: false,
            output: if *kind == Kind::Text { Output::Text } else { Output::TextAndAudio },
            voice: self.voice.clone(),
            text: SamplingOverrides::default(),
            speech: SamplingOverrides::default(),
            max_text_tokens: Some(self.frames.unwrap_or(CHAT_TOKENS)),
            max_frames: Some(Frames(self.frames.unwrap_or(CHAT_FRAMES))),
            ignore_eos: false,
            seed: Some(*seed),
            options: RequestOptions::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_model::Checkpoint;
    use std::path::Path;

    fn load(fixture: &str) -> Load {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(fixture);
        let texts = (0..24).map(|i| format!("text {i}")).collect();
        let checkpoint = Checkpoint::open(&folder).unwrap();
        Load::new(texts, (checkpoint.family(), checkpoint.stages()), 100, None, Some(8))
    }

    fn count(load: &Load, kind: Kind) -> usize {
        load.cases.iter().filter(|case| case.kind == kind).count()
    }

    #[test]
    fn a_third_are_chat_turns_where_there_is_a_thinker() {
        let load = load("qwen3_omni");
        let counts = [Kind::Speech, Kind::Chat, Kind::Text, Kind::Media].map(|kind| count(&load, kind));
        assert_eq!(counts, [16, 4, 2, 2]);
        assert_eq!(load.stages_of(Kind::Media), StageName::ALL);
        assert_eq!(load.stages_of(Kind::Text), [StageName::Thinker]);
        assert_eq!(load.stages_of(Kind::Chat), StageName::OF_TEXT);
    }

    #[test]
    fn a_model_that_only_speaks_is_only_asked_to() {
        let load = load("qwen3_tts/custom_voice");
        assert_eq!(count(&load, Kind::Speech), 24);
        assert_eq!(load.stages_of(Kind::Speech), [StageName::Talker, StageName::Vocoder]);
    }

    #[test]
    fn a_request_of_the_set_is_always_the_same() {
        let load = load("qwen3_omni");
        assert_eq!(load.case(3), load.case(27));
        let Asked::Speech(request) = load.asked(3) else { panic!("{:?}", load.cases[3]) };
        assert_eq!((request.params.seed, request.params.ignore_eos), (Some(103), true));
        let Asked::Chat(request) = load.asked(10) else { panic!("{:?}", load.cases[10]) };
        assert_eq!((request.seed, request.output, request.media.len()), (Some(110), Output::Text, 0));
        let Asked::Chat(request) = load.asked(13) else { panic!("{:?}", load.cases[13]) };
        assert_eq!((request.seed, request.output, request.media.len()), (Some(113), Output::TextAndAudio, 2));
    }
}
