//! What a client is told. Over a WebSocket only events that Pipecat's parser knows: it raises at any other.

use crate::refusal::Refusal;
use serde::Serialize;
use serde_json::{Map, Value};

/// An event with its name.
#[derive(Clone, Debug, Serialize)]
pub struct Sent {
    /// `event_` and a number that counts the events of the session.
    pub event_id: String,
    /// What is told.
    #[serde(flatten)]
    pub event: ServerEvent,
}

/// Where a delta or a part belongs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The response.
    pub response_id: String,
    /// The item.
    pub item_id: String,
    /// Which item of the response.
    pub output_index: u32,
    /// Always 0: an item of a response has one part.
    pub content_index: u32,
}

/// An event of the server.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type")]
#[expect(missing_docs, reason = "the names are OpenAI's; docs/realtime.md tells what they mean")]
pub enum ServerEvent {
    #[serde(rename = "error")]
    Error { error: ErrorObject },
    #[serde(rename = "session.created")]
    SessionCreated { session: Value },
    #[serde(rename = "session.updated")]
    SessionUpdated { session: Value },
    #[serde(rename = "input_audio_buffer.committed")]
    Committed { previous_item_id: Option<String>, item_id: String },
    #[serde(rename = "input_audio_buffer.cleared")]
    Cleared {},
    #[serde(rename = "input_audio_buffer.speech_started")]
    SpeechStarted { audio_start_ms: u64, item_id: String },
    #[serde(rename = "input_audio_buffer.speech_stopped")]
    SpeechStopped { audio_end_ms: u64, item_id: String },
    #[serde(rename = "conversation.item.added")]
    ItemAdded { previous_item_id: Option<String>, item: ItemObject },
    #[serde(rename = "conversation.item.done")]
    ItemDone { previous_item_id: Option<String>, item: ItemObject },
    #[serde(rename = "conversation.item.retrieved")]
    ItemRetrieved { item: ItemObject },
    #[serde(rename = "conversation.item.truncated")]
    ItemTruncated { item_id: String, content_index: u64, audio_end_ms: u64 },
    #[serde(rename = "conversation.item.deleted")]
    ItemDeleted { item_id: String },
    #[serde(rename = "conversation.item.input_audio_transcription.delta")]
    TranscriptionDelta { item_id: String, content_index: u32, delta: String },
    #[serde(rename = "conversation.item.input_audio_transcription.completed")]
    TranscriptionCompleted { item_id: String, content_index: u32, transcript: String, usage: Value },
    #[serde(rename = "conversation.item.input_audio_transcription.failed")]
    TranscriptionFailed { item_id: String, content_index: u32, error: ErrorObject },
    #[serde(rename = "response.created")]
    ResponseCreated { response: ResponseObject },
    #[serde(rename = "response.done")]
    ResponseDone { response: ResponseObject },
    #[serde(rename = "response.output_item.added")]
    OutputItemAdded { response_id: String, output_index: u32, item: ItemObject },
    #[serde(rename = "response.output_item.done")]
    OutputItemDone { response_id: String, output_index: u32, item: ItemObject },
    #[serde(rename = "response.content_part.added")]
    PartAdded {
        #[serde(flatten)]
        place: Place,
        part: PartObject,
    },
    #[serde(rename = "response.content_part.done")]
    PartDone {
        #[serde(flatten)]
        place: Place,
        part: PartObject,
    },
    #[serde(rename = "response.output_text.delta")]
    TextDelta {
        #[serde(flatten)]
        place: Place,
        delta: String,
    },
    #[serde(rename = "response.output_text.done")]
    TextDone {
        #[serde(flatten)]
        place: Place,
        text: String,
    },
    #[serde(rename = "response.output_audio_transcript.delta")]
    TranscriptDelta {
        #[serde(flatten)]
        place: Place,
        delta: String,
        /// Seconds from the beginning of the response's sound at which the talker takes this text.
        start_time: f64,
    },
    #[serde(rename = "response.output_audio_transcript.done")]
    TranscriptDone {
        #[serde(flatten)]
        place: Place,
        transcript: String,
    },
    #[serde(rename = "response.output_audio.delta")]
    AudioDelta {
        #[serde(flatten)]
        place: Place,
        /// Base64.
        delta: String,
    },
    #[serde(rename = "response.output_audio.done")]
    AudioDone {
        #[serde(flatten)]
        place: Place,
    },
    #[serde(rename = "output_audio_buffer.started")]
    OutputStarted { response_id: String },
    #[serde(rename = "output_audio_buffer.stopped")]
    OutputStopped { response_id: String },
    #[serde(rename = "output_audio_buffer.cleared")]
    OutputCleared { response_id: String },
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta { response_id: String, item_id: String, output_index: u32, call_id: String, delta: String },
    #[serde(rename = "response.function_call_arguments.done")]
    ArgumentsDone {
        response_id: String,
        item_id: String,
        output_index: u32,
        call_id: String,
        name: String,
        arguments: String,
    },
}

impl ServerEvent {
    /// The types that there are. Those of the output audio buffer come in calls alone.
    pub const TYPES: [&str; 32] = [
        "error",
        "session.created",
        "session.updated",
        "input_audio_buffer.committed",
        "input_audio_buffer.cleared",
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.retrieved",
        "conversation.item.truncated",
        "conversation.item.deleted",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.completed",
        "conversation.item.input_audio_transcription.failed",
        "response.created",
        "response.done",
        "response.output_item.added",
        "response.output_item.done",
        "response.content_part.added",
        "response.content_part.done",
        "response.output_text.delta",
        "response.output_text.done",
        "response.output_audio_transcript.delta",
        "response.output_audio_transcript.done",
        "response.output_audio.delta",
        "response.output_audio.done",
        "output_audio_buffer.started",
        "output_audio_buffer.stopped",
        "output_audio_buffer.cleared",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
    ];
}

/// An error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ErrorObject {
    /// `invalid_request_error` or `server_error`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// For programs.
    pub code: String,
    /// What is wrong and what is allowed.
    pub message: String,
    /// The field at fault.
    pub param: Option<String>,
    /// The event of the client that caused it.
    pub event_id: Option<String>,
}

impl ErrorObject {
    pub(crate) fn new(refusal: Refusal, event_id: Option<String>) -> ErrorObject {
        let Refusal { internal, code, message, param } = refusal;
        let kind = if internal { "server_error" } else { "invalid_request_error" };
        ErrorObject { kind, code, message, param, event_id }
    }
}

/// An item of the conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ItemObject {
    /// Its name.
    pub id: String,
    /// `realtime.item`
    pub object: &'static str,
    /// `message`, `function_call` or `function_call_output`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// `in_progress`, `completed` or `incomplete`.
    pub status: &'static str,
    /// `system`, `user` or `assistant`, of a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// The parts of a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Vec<PartObject>>,
    /// Of a call and its result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// Of a call: the function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Of a call: JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
    /// Of a result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

/// A part of an item.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PartObject {
    /// Which of the fields it has.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Of text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Base64 of sound, where the item was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audio: Option<String>,
    /// Of sound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transcript: Option<String>,
    /// Of a picture, where the item was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_url: Option<String>,
    /// Of a picture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<&'static str>,
}

/// A response.
#[derive(Clone, Debug, Serialize)]
pub struct ResponseObject {
    /// Its name.
    pub id: String,
    /// `realtime.response`
    pub object: &'static str,
    /// `in_progress`, `completed`, `cancelled`, `incomplete` or `failed`.
    pub status: &'static str,
    /// Why it has that status, where it has ended.
    pub status_details: Option<Value>,
    /// Its items; none before they are done.
    pub output: Vec<ItemObject>,
    /// The conversation that it is part of.
    pub conversation_id: Option<String>,
    /// `text` or `audio`.
    pub output_modalities: [&'static str; 1],
    /// The format and the voice.
    pub audio: Value,
    /// A number or `inf`.
    pub max_output_tokens: Value,
    /// As the client sent it.
    pub metadata: Option<Map<String, Value>>,
    /// Which seed makes it again: this field is not OpenAI's.
    pub seed: u64,
    /// What it used, where it has ended.
    pub usage: Option<Value>,
}

impl ResponseObject {
    /// Whether the user's speech ended it.
    pub fn was_interrupted(&self) -> bool {
        self.status_details.as_ref().is_some_and(|details| details["reason"] == "turn_detected")
    }
}
