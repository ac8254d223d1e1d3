//! `POST /v1/audio/speech`, and the groups of its fields that other routes have too.

use super::fields::{FieldError, Fields};
use super::values::{
    Count, Deadline, Encoding, FirstFrames, FormatName, Granularities, Loudness, Penalty, Probability,
    RepetitionPenalty, SampleRate, Seed, Speed, StartSample, StreamFormat, TaskName, Temperature, TopK, TopP, Whole,
};
use super::voice_values::{Embedding, RefAudio, VoiceName};
use super::wording::Wording;
use omni_audio::AudioWriter;
use omni_engine::{FinishReason, SamplingOverrides, Usage, WordTime};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A text to speak. Read group by group: an error is that of the first group that has one.
#[derive(Debug, JsonSchema)]
pub(crate) struct SpeechRequest<'a> {
    #[schemars(flatten)]
    pub model: Model,
    #[schemars(flatten)]
    pub text: SpokenText<'a>,
    #[schemars(flatten)]
    pub wording: Wording,
    #[schemars(flatten)]
    pub measuring: Measuring,
    #[schemars(flatten)]
    pub sound: SoundFields,
    #[schemars(flatten)]
    pub level: Level,
    #[schemars(flatten)]
    pub delivery: Delivery,
    #[schemars(flatten)]
    pub speech: SpeechFields,
    #[schemars(flatten)]
    pub sampling: Sampling,
    #[schemars(flatten)]
    pub voice: VoiceFields<'a>,
    #[schemars(flatten)]
    pub deadlines: Deadlines,
    #[schemars(flatten)]
    pub tracing: Tracing,
    #[schemars(flatten)]
    pub beginning: Beginning,
    #[schemars(flatten)]
    pub words: Words,
}

/// Fields that would change the answer, so that leaving them out in silence would be wrong. An empty one passes.
pub(crate) const REFUSED: &[(&str, &str)] = &[
    ("word_timestamps", "is not supported; ask with timestamp_granularities: [\"word\"]"),
    ("extra_params", "there are no model-specific parameters"),
];

/// Fields of other servers that have no effect here.
pub(crate) const HARMLESS: &[&str] = &["user", "metadata"];

/// Which model.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Model {
    /// The served model, with or without an owner before it. Default: that one.
    pub model: Option<String>,
}

/// What is spoken.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct SpokenText<'a> {
    /// The text to speak, not blank; at most `limits.max_input_chars` characters.
    #[serde(borrow)]
    #[schemars(required)]
    pub input: Option<&'a str>,
}

/// For measuring.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Measuring {
    /// Make exactly `max_new_tokens` frames, which must be given. Default: false.
    pub ignore_eos: Option<bool>,
}

impl SpokenText<'_> {
    /// What `input` must be, for the error of a request without it.
    pub fn missing() -> FieldError {
        FieldError::missing("input", "the text to speak")
    }
}

/// What the sound is.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct SoundFields {
    /// The audio format. Default: `wav`; over the WebSocket `pcm`.
    pub response_format: Option<FormatName>,
    /// How many times as fast, at the same pitch, 0.25 to 4. Default: 1.
    pub speed: Option<Speed>,
    /// Samples per second, as far as the format carries them. Default: the model's; of G.711 8000.
    pub sample_rate: Option<SampleRate>,
    /// How the samples of a `wav` are coded. Default: `pcm16`.
    pub encoding: Option<Encoding>,
}

/// How loud an answer is that comes whole.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Level {
    /// The integrated loudness (EBU R 128), LUFS, -40 to -8: the answer comes whole. Default: as it was spoken.
    pub loudness: Option<Loudness>,
}

/// How the audio is sent.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(crate) struct Delivery {
    /// Whether the audio is sent as it is made. Default: by `stream_format`, else by the audio format.
    pub stream: Option<bool>,
    /// `sse`: server-sent events with base64; `audio`: raw bytes. Default: by `stream`, else by the audio format.
    pub stream_format: Option<StreamFormat>,
}

/// How the talker works.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct SpeechFields {
    /// The same seed and request give the same samples. Default: drawn.
    pub seed: Option<Seed>,
    /// Most frames (80 ms) per piece of text. Default: the model's, and some four times what the text takes to say.
    pub max_new_tokens: Option<Count>,
    /// Frames of the first chunk of audio; 0 is the config's. Default: the config's.
    pub initial_codec_chunk_frames: Option<FirstFrames>,
}

/// How tokens are sampled; for a chat those of the text, inside of its `audio` those of the speech.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(crate) struct Sampling {
    /// 0 to 2; 0 is greedy. Default: the model's.
    pub temperature: Option<Temperature>,
    /// Above 0, up to 1. Default: the model's.
    pub top_p: Option<TopP>,
    /// 0 and -1 keep all. Default: the model's.
    pub top_k: Option<TopK>,
    /// 0 to 1. Default: 0.
    pub min_p: Option<Probability>,
    /// 0.1 to 10; 1 is off. Default: the model's.
    pub repetition_penalty: Option<RepetitionPenalty>,
    /// -2 to 2. Default: 0.
    pub frequency_penalty: Option<Penalty>,
    /// -2 to 2. Default: 0.
    pub presence_penalty: Option<Penalty>,
}

impl From<Sampling> for SamplingOverrides {
    fn from(wire: Sampling) -> SamplingOverrides {
        SamplingOverrides {
            temperature: wire.temperature.map(|value| value.0),
            top_k: wire.top_k.map(|k| u32::try_from(k.0).unwrap_or(0)),
            top_p: wire.top_p.map(|value| value.0),
            min_p: wire.min_p.map(|value| value.0),
            repetition_penalty: wire.repetition_penalty.map(|value| value.0),
            frequency_penalty: wire.frequency_penalty.map(|value| value.0),
            presence_penalty: wire.presence_penalty.map(|value| value.0),
        }
    }
}

/// Who speaks, and how.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct VoiceFields<'a> {
    /// A name of `/v1/audio/voices`, any case, or an object with it as `id`. Default: the model's default voice.
    pub voice: Option<VoiceName>,
    /// Another name of `voice`, which goes first.
    pub speaker: Option<VoiceName>,
    /// What the client takes the checkpoint for; another one is an error. Qwen3-TTS only. Default: not checked.
    pub task_type: Option<TaskName>,
    /// One of `languages` of `/v1/audio/voices`, any case, or `auto`. Default: `auto`.
    pub language: Option<String>,
    /// How to speak, in words, or a description of the voice; at most `limits.max_instruction_chars` characters.
    pub instructions: Option<String>,
    /// Another name of `instructions`, which goes first.
    pub instruct: Option<String>,
    /// A recording of the voice to clone: base64, a data URL, or an address that the server may read.
    #[serde(borrow)]
    pub ref_audio: Option<RefAudio<'a>>,
    /// What is said in `ref_audio`: the voice is cloned in context; at most `limits.max_instruction_chars` characters.
    pub ref_text: Option<String>,
    /// Use the sound of the voice alone, although there is a transcript. Default: false.
    pub x_vector_only_mode: Option<bool>,
    /// The x-vector itself, instead of `ref_audio`; as many numbers as the checkpoint has.
    pub speaker_embedding: Option<Embedding>,
    /// Whether the talker sees the whole text before it speaks. Default: as the reference does for the task.
    pub non_streaming_mode: Option<bool>,
}

/// When the answer has to come.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Deadlines {
    /// Milliseconds until the first sound has to come, 1 to a day, or `none`. Default: of a stream
    /// `limits.first_audio_deadline`, of an answer that comes whole none.
    pub deadline_ms: Option<Deadline>,
    /// Milliseconds after which the request is over, at most `limits.request_timeout`. Default: that.
    pub timeout_ms: Option<Whole>,
}

/// Whether the request is traced.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Tracing {
    /// Trace this request, where `telemetry.trace` allows it; the header `X-Trace` tells the path. Default: false.
    pub trace: Option<bool>,
}

/// Where the audio begins.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Beginning {
    /// The first sample that is sent, counted as they are heard; above 0 only with `seed`. What is before it is made
    /// again and left out; at the end there is nothing. Over the WebSocket for the next utterance alone. Default: 0.
    pub start_sample: Option<StartSample>,
}

/// Whether the times of words are told.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Words {
    /// `["word"]`: tell when each word sounds, where the checkpoint has an aligner. An answer that comes whole is then JSON.
    /// Default: none.
    pub timestamp_granularities: Option<Granularities>,
}

impl Words {
    /// Whether they are asked for.
    pub fn asked(&self) -> bool {
        self.timestamp_granularities.is_some_and(|granularities| granularities.words)
    }
}

impl<'a> SpeechRequest<'a> {
    /// Reads the object of a request.
    pub fn read(fields: &Fields<'a>) -> Result<SpeechRequest<'a>, FieldError> {
        let (model, text) = (fields.read()?, fields.read()?);
        fields.refuse(REFUSED)?;
        Ok(SpeechRequest {
            model,
            text,
            wording: fields.read()?,
            measuring: fields.read()?,
            sound: fields.read()?,
            level: fields.read()?,
            delivery: fields.read()?,
            speech: fields.read()?,
            sampling: fields.read()?,
            voice: fields.read()?,
            deadlines: fields.read()?,
            tracing: fields.read()?,
            beginning: fields.read()?,
            words: fields.read()?,
        })
    }
}

/// An event of a streamed answer.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "type")]
pub(crate) enum SpeechEvent<'a> {
    /// The next bytes of the file.
    #[serde(rename = "speech.audio.delta")]
    Delta {
        /// Base64.
        audio: String,
    },
    /// A word of the text, where they are asked for. It comes before or soon after its sound.
    #[serde(rename = "speech.word")]
    Word(SpokenWord),
    /// The last event of a stream that went well.
    #[serde(rename = "speech.audio.done")]
    Done {
        /// Why it ended.
        finish_reason: Finish,
        /// What it used.
        usage: SpeechUsage,
    },
    /// The last event of a stream that failed.
    #[serde(rename = "error")]
    Error {
        /// Why.
        error: super::error::ErrorObject<'a>,
    },
}

/// When a word sounds, counted from the beginning of the answer as `start_sample` is.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct SpokenWord {
    /// As it was written, with its punctuation: what is between white space.
    pub word: String,
    /// Its first character in the text, counted in Unicode code points from 0.
    pub text_start: u64,
    /// The first character behind it.
    pub text_end: u64,
    /// Seconds at which it begins.
    pub start: f64,
    /// Seconds at which it ends.
    pub end: f64,
    /// Its first sample.
    pub start_sample: u64,
    /// The first sample behind it.
    pub end_sample: u64,
}

impl SpokenWord {
    /// In the file that `writer` writes; `None` for a word that ends before the first sample that is sent.
    pub fn heard(word: WordTime, writer: &AudioWriter) -> Option<SpokenWord> {
        let (start_sample, end_sample) = (writer.heard_at(word.start), writer.heard_at(word.end));
        let seconds = |sample: u64| (sample as f64 / f64::from(writer.sample_rate().max(1)) * 1e4).round() / 1e4;
        (end_sample > writer.start() || writer.start() == 0).then(|| SpokenWord {
            word: word.word,
            text_start: word.text.start,
            text_end: word.text.end,
            start: seconds(start_sample),
            end: seconds(end_sample),
            start_sample,
            end_sample,
        })
    }
}

/// A whole answer with the times of its words.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SpeechObject<'a> {
    /// The file, in base64.
    pub audio: String,
    /// The audio format.
    pub response_format: &'static str,
    /// Of the file.
    pub media_type: &'a str,
    /// Samples per second.
    pub sample_rate: u32,
    /// In their order; words that are not spoken, such as a dash, are left out.
    pub words: Vec<SpokenWord>,
    /// Why it ended.
    pub finish_reason: Finish,
    /// What it used.
    pub usage: SpeechUsage,
}

/// Why an answer ended well.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Finish {
    /// The model said so.
    Stop,
    /// A limit on tokens or frames.
    Length,
    /// The speech repeated itself, or was silent, without end, or went on for longer than its text takes.
    Runaway,
    /// The speech ended before it could have said its text.
    Unspoken,
}

impl From<FinishReason> for Finish {
    fn from(reason: FinishReason) -> Finish {
        match reason {
            FinishReason::Stop => Finish::Stop,
            FinishReason::Length => Finish::Length,
            FinishReason::Runaway => Finish::Runaway,
            FinishReason::Unspoken => Finish::Unspoken,
        }
    }
}

/// What speech used, under OpenAI's names.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub(crate) struct SpeechUsage {
    /// Tokens of the prompt.
    pub input_tokens: u32,
    /// Frames of speech.
    pub output_tokens: u32,
    /// Both.
    pub total_tokens: u32,
    /// Tokens of the spoken text.
    pub text_tokens: u32,
    /// What `input_tokens` are.
    pub input_token_details: InputTokens,
}

/// What the tokens of a prompt are.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub(crate) struct InputTokens {
    /// Of text.
    pub text_tokens: u32,
    /// Of audio: 0.
    pub audio_tokens: u32,
}

impl From<Usage> for SpeechUsage {
    fn from(usage: Usage) -> SpeechUsage {
        let (input, output) = (usage.prompt_tokens, usage.frames.0);
        SpeechUsage {
            input_tokens: input,
            output_tokens: output,
            total_tokens: input.saturating_add(output),
            text_tokens: usage.text_tokens,
            input_token_details: InputTokens { text_tokens: input, audio_tokens: 0 },
        }
    }
}
