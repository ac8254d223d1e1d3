//! `POST /v1/audio/speech/batch`.

use super::speech::{
    Deadlines, Level, Measuring, Model, Sampling, SoundFields, SpeechFields, SpeechUsage, SpokenText, VoiceFields,
};
use super::wording::Wording;
use schemars::JsonSchema;
use serde::Serialize;

/// Most items of a batch.
pub(crate) const MAX_ITEMS: usize = 32;

/// Several texts. The other fields are for all items; an item's own go first. It is read by merging each item with them
/// into a [`SpeechRequest`](super::speech::SpeechRequest).
#[derive(JsonSchema)]
#[expect(dead_code, reason = "the schema alone")]
pub(crate) struct BatchRequest<'a> {
    /// The texts, 1 to 32 of them.
    #[schemars(length(min = 1, max = MAX_ITEMS))]
    items: Vec<BatchItem<'a>>,
    #[schemars(flatten)]
    model: Model,
    #[schemars(flatten)]
    common: ItemFields<'a>,
}

/// One text.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "the schema alone")]
pub(crate) struct BatchItem<'a> {
    #[schemars(flatten)]
    text: SpokenText<'a>,
    #[schemars(flatten)]
    model: Model,
    #[schemars(flatten)]
    own: ItemFields<'a>,
}

/// How a text is spoken.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "the schema alone")]
struct ItemFields<'a> {
    #[schemars(flatten)]
    wording: Wording,
    #[schemars(flatten)]
    measuring: Measuring,
    #[schemars(flatten)]
    sound: SoundFields,
    #[schemars(flatten)]
    level: Level,
    #[schemars(flatten)]
    speech: SpeechFields,
    #[schemars(flatten)]
    sampling: Sampling,
    #[schemars(flatten)]
    voice: VoiceFields<'a>,
    #[schemars(flatten)]
    deadlines: Deadlines,
}

/// Fields of the speech route that a batch cannot have.
pub(crate) const REFUSED: &[(&str, &str)] = &[
    ("stream", "a batch is answered whole; leave the field out"),
    ("stream_format", "a batch is answered whole; leave the field out"),
    NOT_TRACED,
    NOT_CUT,
    NO_WORDS,
];

/// An item is not traced either: there is no header to tell of each.
pub(crate) const NOT_TRACED: (&str, &str) = ("trace", "a batch is not traced; send the request by itself");

/// Nor does an item begin in the middle: it is answered whole.
pub(crate) const NOT_CUT: (&str, &str) = ("start_sample", "an item of a batch begins at its beginning");

/// Nor does it tell the times of its words.
pub(crate) const NO_WORDS: (&str, &str) =
    ("timestamp_granularities", "a batch tells no times of words; send the request by itself");

/// The answer.
#[derive(Serialize, JsonSchema)]
pub(crate) struct BatchAnswer<'a> {
    pub id: String,
    /// Items of the request.
    pub total: usize,
    pub succeeded: usize,
    pub failed: usize,
    /// One for each item, in their order.
    pub results: Vec<BatchResult<'a>>,
}

/// What became of an item.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "status", rename_all = "lowercase")]
pub(crate) enum BatchResult<'a> {
    /// It was spoken.
    Success {
        /// Which item, from 0.
        index: usize,
        /// A whole file, in base64.
        audio_data: String,
        /// Of the file.
        media_type: &'a str,
        usage: SpeechUsage,
        /// The seed that makes it again.
        seed: u64,
    },
    /// It was wrong, or failed.
    Error {
        /// Which item, from 0.
        index: usize,
        /// What happened and what to do, in one sentence.
        error: &'a str,
        /// A stable word for programs.
        code: &'static str,
        /// The field at fault.
        param: Option<&'a str>,
    },
}
