//! `POST /v1/chat/completions`.

use super::error::ErrorObject;
use super::fields::{FieldError, Fields, wrong_type};
use super::parts::{Content, Processing};
use super::speech::{Deadlines, Finish, Model, Sampling, Tracing};
use super::values::{Count, FormatName, OneAnswer, Seed, TextOnly, short};
use omni_engine::{Output, Usage};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;

/// A conversation to answer. Read group by group: an error is that of the first group that has one.
#[derive(Debug, JsonSchema)]
pub(crate) struct ChatRequest<'a> {
    #[schemars(flatten)]
    pub model: Model,
    #[schemars(flatten)]
    pub messages: Messages<'a>,
    #[schemars(flatten)]
    pub processing: Processing,
    #[schemars(flatten)]
    pub answer: AnswerFields,
    /// The spoken answer. A mistake in it is a mistake even where only text is wanted.
    pub audio: Option<AudioObject>,
    #[schemars(flatten)]
    pub sampling: Sampling,
    #[schemars(flatten)]
    pub deadlines: Deadlines,
    #[schemars(flatten)]
    pub tracing: Tracing,
}

/// Fields that would change the answer, so that leaving them out in silence would be wrong. An empty one passes.
pub(crate) const REFUSED: &[(&str, &str)] = &[
    ("stop", "stop sequences are not supported"),
    ("tools", "tools are not supported"),
    ("functions", "functions are not supported"),
    ("logit_bias", "logit_bias is not supported"),
    ("logprobs", "log probabilities are not supported"),
    ("top_logprobs", "log probabilities are not supported"),
    ("web_search_options", "web search is not supported"),
    ("prediction", "predicted output is not supported"),
];

/// Fields of OpenAI's clients that have no effect here.
pub(crate) const HARMLESS: &[&str] = &[
    "user",
    "store",
    "metadata",
    "service_tier",
    "reasoning_effort",
    "verbosity",
    "parallel_tool_calls",
    "tool_choice",
    "function_call",
    "safety_identifier",
    "prompt_cache_key",
];

/// The conversation so far.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(crate) struct Messages<'a> {
    /// At least one; the last one is the user's. All together at most `limits.max_input_chars` characters.
    #[schemars(required)]
    pub messages: Option<Vec<Message<'a>>>,
}

/// One turn of the conversation.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(crate) struct Message<'a> {
    /// Who speaks.
    #[schemars(required)]
    pub role: Option<Role>,
    /// The text, whole or in parts, which may be sounds, pictures and videos in a user's message. That is not blank.
    #[schemars(required)]
    pub content: Option<Content<'a>>,
    /// Earlier audio, which is not kept: send its transcript as `content`.
    pub audio: Option<Value>,
}

/// Who speaks: `system` (or `developer`), `user`, `assistant`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Role(pub &'static str);

impl<'de> Deserialize<'de> for Role {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Role, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "system" | "developer" => Ok(Role("system")),
            "user" => Ok(Role("user")),
            "assistant" => Ok(Role("assistant")),
            other => Err(D::Error::custom(format_args!(
                "{:?} is not supported; use system, user or assistant",
                short(other)
            ))),
        }
    }
}

impl JsonSchema for Role {
    fn schema_name() -> Cow<'static, str> {
        "Role".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": ["system", "developer", "user", "assistant"] })
    }
}

/// What the answer is, and how it is sent.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct AnswerFields {
    /// `text`, or `text` and `audio`; `audio` alone means both. Default: `text`.
    pub modalities: Option<Modalities>,
    /// Whether the answer is sent as it is made, as server-sent events. Default: false.
    pub stream: Option<bool>,
    /// Only together with `stream`.
    pub stream_options: Option<StreamOptions>,
    /// Most tokens of text. Default: the model's.
    pub max_completion_tokens: Option<Count>,
    /// The older name of `max_completion_tokens`, which goes first.
    pub max_tokens: Option<Count>,
    /// Make exactly `max_tokens` tokens, which must be given, and `audio.max_new_tokens` frames where the answer is
    /// spoken: for measuring. Default: false.
    pub ignore_eos: Option<bool>,
    /// The same seed and request give the same answer. Default: drawn.
    pub seed: Option<Seed>,
    /// How many answers: 1.
    #[expect(dead_code, reason = "reading it checks it")]
    pub n: Option<OneAnswer>,
    /// The format of the text.
    #[expect(dead_code, reason = "reading it checks it")]
    pub response_format: Option<ResponseFormat>,
}

/// What a stream tells besides the answer.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct StreamOptions {
    /// A last chunk with the usage. Default: false.
    pub include_usage: Option<bool>,
}

/// The format of the text.
#[derive(Debug, Deserialize, JsonSchema)]
#[expect(dead_code, reason = "reading it checks it")]
pub(crate) struct ResponseFormat {
    /// Only `text`.
    #[serde(rename = "type")]
    pub kind: Option<TextOnly>,
}

/// What the answer is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Modalities(pub Output);

impl<'de> Deserialize<'de> for Modalities {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Modalities, D::Error> {
        let names = match Value::deserialize(deserializer)? {
            Value::Array(names) => names,
            other => return Err(wrong_type(&other, "an array")),
        };
        if names.is_empty() {
            return Err(D::Error::custom("must name \"text\", or \"text\" and \"audio\""));
        }
        let mut output = Output::Text;
        for name in &names {
            match name.as_str() {
                Some("text") => {}
                Some("audio") => output = Output::TextAndAudio,
                _ => {
                    return Err(D::Error::custom(format_args!("{name} is unknown; choose \"text\" and \"audio\"")));
                }
            }
        }
        Ok(Modalities(output))
    }
}

impl JsonSchema for Modalities {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Modalities".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "array", "items": { "type": "string", "enum": ["text", "audio"] }, "minItems": 1 })
    }
}

/// How the answer is spoken.
#[derive(Debug, Default, JsonSchema)]
pub(crate) struct AudioObject {
    #[schemars(flatten)]
    pub sound: AudioFields,
    #[schemars(flatten)]
    pub sampling: Sampling,
}

/// Which voice, in which format.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(crate) struct AudioFields {
    /// A name of `/v1/audio/voices`, any case. Default: the model's default voice.
    pub voice: Option<String>,
    /// The audio format; a stream carries `pcm16` only. Default: `wav`, of a stream `pcm16`.
    pub format: Option<FormatName>,
    /// Most frames (80 ms) of speech. Default: the model's.
    pub max_new_tokens: Option<Count>,
}

impl<'a> ChatRequest<'a> {
    /// Reads the object of a request; and the names of fields that it does not know.
    pub fn read(fields: &Fields<'a>) -> Result<(ChatRequest<'a>, Vec<String>), FieldError> {
        let (model, messages, processing) = (fields.read()?, fields.read()?, fields.read()?);
        fields.refuse(REFUSED)?;
        let answer = fields.read()?;
        let (mut audio, mut ignored) = (None, Vec::new());
        if let Some(inner) = fields.object("audio")? {
            audio = Some(AudioObject { sound: inner.read()?, sampling: inner.read()? });
            ignored = inner.unknown(&[]);
        }
        let (sampling, deadlines, tracing) = (fields.read()?, fields.read()?, fields.read()?);
        ignored.splice(0..0, fields.unknown(HARMLESS));
        Ok((ChatRequest { model, messages, processing, answer, audio, sampling, deadlines, tracing }, ignored))
    }
}

/// A whole answer.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Completion<'a> {
    pub id: &'a str,
    /// `chat.completion`.
    pub object: &'static str,
    /// Unix seconds.
    pub created: u64,
    pub model: &'a str,
    /// One.
    pub choices: [Choice<'a>; 1],
    pub usage: ChatUsage,
}

/// The answer.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Choice<'a> {
    /// 0.
    pub index: u32,
    pub message: Answer<'a>,
    /// Null.
    pub logprobs: (),
    pub finish_reason: Finish,
}

/// The message of the answer.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Answer<'a> {
    /// `assistant`.
    pub role: &'static str,
    /// The text, also where there is audio.
    pub content: &'a str,
    /// Null.
    pub refusal: (),
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audio: Option<AnswerAudio<'a>>,
}

/// The spoken answer.
#[derive(Serialize, JsonSchema)]
pub(crate) struct AnswerAudio<'a> {
    pub id: &'a str,
    /// A whole file, in base64.
    pub data: String,
    /// The text.
    pub transcript: &'a str,
    /// Unix seconds: at once, for no audio is kept.
    pub expires_at: u64,
}

/// An event of a streamed answer.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Chunk<'a> {
    pub id: &'a str,
    /// `chat.completion.chunk`.
    pub object: &'static str,
    /// Unix seconds.
    pub created: u64,
    pub model: &'a str,
    /// `text` or `audio`: what `delta.content` is, in a stream that speaks and was asked for without `audio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modality: Option<&'static str>,
    /// One, or none in the chunk with the usage.
    pub choices: Vec<ChunkChoice<'a>>,
    /// Present where `include_usage` asks for it; null but in the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<ChatUsage>>,
}

/// What a chunk adds.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ChunkChoice<'a> {
    /// 0.
    pub index: u32,
    pub delta: Delta<'a>,
    /// Null.
    pub logprobs: (),
    /// In the last chunk with a choice.
    pub finish_reason: Option<Finish>,
}

/// More of the message.
#[derive(Default, Serialize, JsonSchema)]
pub(crate) struct Delta<'a> {
    /// `assistant`, in the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// More of the text; where `modality` is `audio`, a whole wav file of the next samples in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<&'a str>,
    /// Null, in the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audio: Option<DeltaAudio<'a>>,
}

/// More of the speech.
#[derive(Default, Serialize, JsonSchema)]
pub(crate) struct DeltaAudio<'a> {
    pub id: &'a str,
    /// More of the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transcript: Option<&'a str>,
    /// More of the samples, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// Unix seconds: at once, for no audio is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
}

/// An event of a stream: a chunk, or the error that ends it.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum ChatEvent<'a> {
    Chunk(Chunk<'a>),
    Error { error: ErrorObject<'a> },
}

/// What an answer used, under OpenAI's names.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub(crate) struct ChatUsage {
    pub prompt_tokens: u32,
    /// Tokens of text and frames of speech.
    pub completion_tokens: u32,
    pub total_tokens: u32,
    pub prompt_tokens_details: PromptTokens,
    pub completion_tokens_details: CompletionTokens,
}

/// What the tokens of a prompt are.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub(crate) struct PromptTokens {
    pub text_tokens: u32,
    /// Those that stand for sound.
    pub audio_tokens: u32,
    /// Those that stand for pictures.
    pub image_tokens: u32,
    /// Those that stand for frames of videos.
    pub video_tokens: u32,
    /// Those that were kept of an earlier request and not computed again.
    pub cached_tokens: u32,
}

/// What the tokens of an answer are.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub(crate) struct CompletionTokens {
    pub text_tokens: u32,
    /// Frames of speech.
    pub audio_tokens: u32,
    /// 0.
    pub reasoning_tokens: u32,
}

impl From<Usage> for ChatUsage {
    fn from(usage: Usage) -> ChatUsage {
        let (prompt, text, audio) = (usage.prompt_tokens, usage.text_tokens, usage.frames.0);
        let (completion, seen) = (text.saturating_add(audio), usage.media);
        ChatUsage {
            prompt_tokens: prompt,
            completion_tokens: completion,
            total_tokens: prompt.saturating_add(completion),
            prompt_tokens_details: PromptTokens {
                text_tokens: prompt.saturating_sub(seen.audio + seen.image + seen.video),
                audio_tokens: seen.audio,
                image_tokens: seen.image,
                video_tokens: seen.video,
                cached_tokens: usage.cached_tokens,
            },
            completion_tokens_details: CompletionTokens { text_tokens: text, audio_tokens: audio, reasoning_tokens: 0 },
        }
    }
}
