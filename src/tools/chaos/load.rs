//! The requests of the listeners: a fixed set, each with its own seed, so that each response has one truth. Pure.

use super::media::{picture, sound};
use super::talk::Conversation;
use clap::ValueEnum;
use omni_core::ids::{Frames, StageName};
use omni_engine::{
    ChatMessage, Content, Detail, GenerateRequest, MediaSource, Output, Part, RequestOptions, SamplingOverrides,
    SpeechParams, SpeechRequest, TextSource, VoiceChoice,
};
use omni_model::hf::{Family, Variant};
use serde::Serialize;
use std::fmt;

/// Chat answers end here: a drill is not a conversation.
const CHAT_TOKENS: u32 = 48;
/// The same in speech: 8 s.
const CHAT_FRAMES: u32 = 100;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
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
    /// A conversation over `WS /v1/realtime`.
    Talk,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As the command line has it: no kind is hidden there.
        self.to_possible_value().map_or(Ok(()), |kind| f.write_str(kind.get_name()))
    }
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
    hears: bool,
    voice: Option<String>,
    instructions: Option<String>,
    frames: Option<u32>,
}

/// What a model can do, as far as a load depends on it.
#[derive(Clone, Copy, Debug)]
pub struct Able<'a> {
    /// What it is.
    pub family: &'a Family,
    /// Stages that requests reach.
    pub stages: &'static [StageName],
    /// Whether it hears.
    pub hears: bool,
    /// Whether conversations are to be held with it, if it answers.
    pub talks: bool,
}

impl Able<'_> {
    /// Whether it can be asked for this.
    pub fn can(&self, kind: Kind) -> bool {
        let reaches = |stage| self.stages.contains(&stage);
        match kind {
            Kind::Speech => reaches(StageName::Talker),
            Kind::Chat | Kind::Text => reaches(StageName::Thinker),
            Kind::Media => reaches(StageName::Encoder),
            Kind::Talk => self.talks && reaches(StageName::Thinker),
        }
    }

    /// What its `i`-th request asks for where nobody says: with a thinker a third are chat turns and one in twelve a
    /// conversation; with an encoder a fourth of the chat turns have media.
    fn usual(&self, i: usize) -> Kind {
        let wished = match i % 12 {
            10 => &[Kind::Text][..],
            1 => &[Kind::Media, Kind::Chat],
            4 | 7 => &[Kind::Chat],
            3 => &[Kind::Talk],
            _ => &[],
        };
        wished.iter().copied().find(|&kind| self.can(kind)).unwrap_or(Kind::Speech)
    }
}

impl Load {
    /// One request per text, for the stages that there are: of the kinds in `asked` in turn, each of which the model can
    /// be asked for; of all that it can where there are none.
    pub fn new(
        texts: Vec<String>,
        able: Able<'_>,
        asked: &[Kind],
        seed: u64,
        voice: Option<String>,
        frames: Option<u32>,
    ) -> Load {
        let Able { family, stages, hears, .. } = able;
        let kind = |i: usize| if asked.is_empty() { able.usual(i) } else { asked[i % asked.len()] };
        let case = |(i, text)| Case { kind: kind(i), text, seed: seed.wrapping_add(i as u64) };
        let designed = matches!(family, Family::Tts(tts) if tts.variant == Variant::VoiceDesign);
        let instructions = designed.then(|| "a calm, warm voice".to_owned());
        let cases = texts.into_iter().enumerate().map(case).collect();
        Load { cases, stages, hears, voice, instructions, frames }
    }

    /// Which request of the set the `i`-th one is.
    pub fn case(&self, i: usize) -> usize {
        i % self.cases.len()
    }

    /// The stages that a kind of request has sequences in.
    pub fn stages_of(&self, kind: Kind) -> &'static [StageName] {
        match kind {
            Kind::Media => self.stages,
            Kind::Talk if self.hears => self.stages,
            Kind::Text => &self.of_text()[..1],
            Kind::Speech | Kind::Chat | Kind::Talk => self.of_text(),
        }
    }

    /// The stages that every request of text can need.
    pub fn of_text(&self) -> &'static [StageName] {
        match self.stages {
            [StageName::Encoder, of_text @ ..] => of_text,
            all => all,
        }
    }

    /// Whether there are conversations in it.
    pub fn talks(&self) -> bool {
        self.cases.iter().any(|case| case.kind == Kind::Talk)
    }

    /// A conversation of the set, with a model whose frames have so many samples at 24 kHz; `None` if that is none.
    pub fn conversation(&self, case: usize, frame: u32) -> Option<Conversation> {
        let Case { kind, text, seed } = &self.cases[case];
        let length = self.frames.unwrap_or(CHAT_TOKENS);
        (*kind == Kind::Talk).then(|| Conversation {
            text: text.clone(),
            seed: *seed,
            voice: self.voice.clone(),
            length,
            counted: length.div_ceil(2),
            frame,
            hears: self.hears,
        })
    }

    /// The body with which any server is asked to speak the text of a request of the set, as bare samples.
    #[cfg(feature = "cluster")]
    pub fn body(&self, case: usize) -> serde_json::Map<String, serde_json::Value> {
        let Case { text, seed, .. } = &self.cases[case];
        let mut body = serde_json::Map::new();
        let mut field = |name: &str, value: serde_json::Value| _ = body.insert(name.to_owned(), value);
        field("input", text.as_str().into());
        field("seed", (*seed).into());
        field("stream", true.into());
        field("stream_format", "audio".into());
        field("response_format", "pcm".into());
        if let Some(frames) = self.frames {
            field("max_new_tokens", frames.into());
            field("ignore_eos", true.into());
        }
        if let Some(voice) = &self.voice {
            field("voice", voice.as_str().into());
        }
        if let Some(instructions) = &self.instructions {
            field("instructions", instructions.as_str().into());
        }
        body
    }

    /// A request of the set that is no conversation, to be given to an engine.
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

    fn load(fixture: &str, talks: bool, asked: &[Kind]) -> Load {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(fixture);
        let texts = (0..24).map(|i| format!("text {i}")).collect();
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let able = Able { family: checkpoint.family(), stages: checkpoint.stages(), hears: true, talks };
        Load::new(texts, able, asked, 100, None, Some(8))
    }

    fn count(load: &Load, kind: Kind) -> usize {
        load.cases.iter().filter(|case| case.kind == kind).count()
    }

    #[test]
    fn a_third_are_chat_turns_where_there_is_a_thinker() {
        let all = [Kind::Speech, Kind::Chat, Kind::Text, Kind::Media, Kind::Talk];
        assert_eq!(all.map(|kind| count(&load("qwen3_omni", false, &[]), kind)), [16, 4, 2, 2, 0]);
        let load = load("qwen3_omni", true, &[]);
        assert_eq!(all.map(|kind| count(&load, kind)), [14, 4, 2, 2, 2]);
        assert_eq!(load.stages_of(Kind::Talk), StageName::ALL);
        assert_eq!(load.stages_of(Kind::Media), StageName::ALL);
        assert_eq!(load.stages_of(Kind::Text), [StageName::Thinker]);
        assert_eq!(load.stages_of(Kind::Chat), StageName::OF_TEXT);
    }

    #[test]
    fn a_model_that_only_speaks_is_only_asked_to() {
        let load = load("qwen3_tts/custom_voice", true, &[]);
        assert_eq!(count(&load, Kind::Speech), 24);
        assert_eq!(load.stages_of(Kind::Speech), [StageName::Talker, StageName::Vocoder]);
    }

    #[test]
    fn kinds_that_are_asked_for_take_turns_and_no_other_comes() {
        let load = load("qwen3_omni", true, &[Kind::Text, Kind::Speech, Kind::Text]);
        assert_eq!((count(&load, Kind::Text), count(&load, Kind::Speech)), (16, 8));
        assert!(!load.talks());
    }

    #[test]
    fn a_request_of_the_set_is_always_the_same() {
        let load = load("qwen3_omni", true, &[]);
        assert_eq!(load.case(3), load.case(27));
        let Asked::Speech(request) = load.asked(2) else { panic!("{:?}", load.cases[2]) };
        assert_eq!((request.params.seed, request.params.ignore_eos), (Some(102), true));
        let talk = load.conversation(3, 1_920).unwrap();
        assert_eq!((talk.seed, talk.length, talk.counted, talk.hears), (103, 8, 4, true));
        assert!(load.talks() && load.conversation(2, 1_920).is_none());
        let Asked::Chat(request) = load.asked(10) else { panic!("{:?}", load.cases[10]) };
        assert_eq!((request.seed, request.output, request.media.len()), (Some(110), Output::Text, 0));
        let Asked::Chat(request) = load.asked(13) else { panic!("{:?}", load.cases[13]) };
        assert_eq!((request.seed, request.output, request.media.len()), (Some(113), Output::TextAndAudio, 2));
    }
}
