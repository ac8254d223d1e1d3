//! What a client may send, as it came: names and shapes of OpenAI's general availability. Fields that mean nothing here
//! (`tracing`, `include`, `noise_reduction`, ...) are ignored.

use crate::refusal::{Refusal, short};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// An event of a client.
#[derive(Clone, Debug)]
pub enum ClientEvent {
    /// `session.update`
    Update(Box<SessionFields>),
    /// `input_audio_buffer.append`: base64.
    Append(String),
    /// `input_audio_buffer.commit`
    Commit,
    /// `input_audio_buffer.clear`
    Clear,
    /// `output_audio_buffer.clear`
    ClearOutput,
    /// `conversation.item.create`
    Create(Box<CreateFields>),
    /// `conversation.item.retrieve`: the item's id.
    Retrieve(String),
    /// `conversation.item.truncate`
    Truncate(TruncateFields),
    /// `conversation.item.delete`: the item's id.
    Delete(String),
    /// `response.create`
    Respond(Box<ResponseFields>),
    /// `response.cancel`: of this response, or of the active one.
    Cancel(Option<String>),
}

impl ClientEvent {
    /// The types that there are.
    pub const TYPES: [&str; 11] = [
        "session.update",
        "input_audio_buffer.append",
        "input_audio_buffer.commit",
        "input_audio_buffer.clear",
        "output_audio_buffer.clear",
        "conversation.item.create",
        "conversation.item.retrieve",
        "conversation.item.truncate",
        "conversation.item.delete",
        "response.create",
        "response.cancel",
    ];

    /// Reads an event. Its `event_id`, where it has one, names it in the error.
    ///
    /// # Errors
    /// [`Refusal`] with the field at fault.
    pub fn read(mut map: Map<String, Value>) -> (Option<String>, Result<ClientEvent, Refusal>) {
        let id = map.remove("event_id").and_then(|id| id.as_str().map(short));
        (id, ClientEvent::parse(map))
    }

    fn parse(map: Map<String, Value>) -> Result<ClientEvent, Refusal> {
        let kind = map.get("type").ok_or_else(|| Refusal::missing("type"))?;
        let kind = kind.as_str().ok_or_else(|| Refusal::value("type", "expected a string"))?.to_owned();
        Ok(match kind.as_str() {
            "session.update" => ClientEvent::Update(Box::new(body::<Update>(map)?.session)),
            "input_audio_buffer.append" => ClientEvent::Append(body::<Append>(map)?.audio),
            "input_audio_buffer.commit" => ClientEvent::Commit,
            "input_audio_buffer.clear" => ClientEvent::Clear,
            "output_audio_buffer.clear" => ClientEvent::ClearOutput,
            "conversation.item.create" => ClientEvent::Create(Box::new(body(map)?)),
            "conversation.item.retrieve" => ClientEvent::Retrieve(body::<Named>(map)?.item_id),
            "conversation.item.truncate" => ClientEvent::Truncate(body(map)?),
            "conversation.item.delete" => ClientEvent::Delete(body::<Named>(map)?.item_id),
            "response.create" => ClientEvent::Respond(Box::new(body::<Respond>(map)?.response.unwrap_or_default())),
            "response.cancel" => ClientEvent::Cancel(body::<Cancel>(map)?.response_id),
            other => {
                let message =
                    format!("there is no event {:?}; send one of: {}", short(other), ClientEvent::TYPES.join(", "));
                return Err(Refusal::new("invalid_value", "type", message));
            }
        })
    }
}

fn body<T: DeserializeOwned>(map: Map<String, Value>) -> Result<T, Refusal> {
    serde_path_to_error::deserialize(Value::Object(map)).map_err(|error| {
        let path = error.path().to_string();
        let message = error.inner().to_string();
        let param = Some(path.clone()).filter(|path| path != ".");
        let message = if param.is_some() { format!("{path}: {message}") } else { message };
        Refusal { internal: false, code: "invalid_value".to_owned(), message: long(&message), param }
    })
}

/// Messages of serde may repeat what the client sent.
fn long(message: &str) -> String {
    message.chars().take(400).collect()
}

#[derive(Deserialize)]
struct Update {
    session: SessionFields,
}

#[derive(Deserialize)]
struct Append {
    audio: String,
}

#[derive(Deserialize)]
struct Named {
    item_id: String,
}

#[derive(Deserialize)]
struct Respond {
    response: Option<ResponseFields>,
}

#[derive(Deserialize)]
struct Cancel {
    response_id: Option<String>,
}

/// Fields of `conversation.item.create`.
#[derive(Clone, Debug, Deserialize)]
pub struct CreateFields {
    /// Behind which item; `root`: in front of all; at the end by default.
    pub(crate) previous_item_id: Option<String>,
    pub(crate) item: ItemFields,
}

/// Fields of `conversation.item.truncate`.
#[derive(Clone, Debug, Deserialize)]
pub struct TruncateFields {
    pub(crate) item_id: String,
    pub(crate) content_index: u64,
    pub(crate) audio_end_ms: u64,
}

/// A field that may be null on purpose: `None` where it is left out.
#[expect(clippy::option_option, reason = "left out and null are two things")]
fn nullable<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(from).map(Some)
}

/// Fields of a session; those that are left out stay as they are.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct SessionFields {
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) output_modalities: Option<Vec<String>>,
    pub(crate) instructions: Option<String>,
    pub(crate) audio: Option<AudioFields>,
    pub(crate) tools: Option<Vec<Value>>,
    pub(crate) tool_choice: Option<Value>,
    pub(crate) max_output_tokens: Option<Value>,
    pub(crate) seed: Option<u64>,
}

/// `audio`
#[derive(Clone, Debug, Default, Deserialize)]
pub struct AudioFields {
    pub(crate) input: Option<InputFields>,
    pub(crate) output: Option<OutputFields>,
}

/// `audio.input`
#[derive(Clone, Debug, Default, Deserialize)]
pub struct InputFields {
    pub(crate) format: Option<FormatFields>,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) transcription: Option<Option<TranscriptionFields>>,
    #[serde(default, deserialize_with = "turn_detection")]
    pub(crate) turn_detection: Option<Option<TurnFields>>,
}

/// Null, or false as some clients write it, is none.
#[expect(clippy::option_option, reason = "left out and null are two things")]
fn turn_detection<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<TurnFields>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Switch(bool),
        Fields(TurnFields),
    }
    match Option::<Either>::deserialize(from)? {
        None | Some(Either::Switch(false)) => Ok(Some(None)),
        Some(Either::Switch(true)) => Err(serde::de::Error::custom("expected an object, null or false")),
        Some(Either::Fields(fields)) => Ok(Some(Some(fields))),
    }
}

/// `audio.output`
#[derive(Clone, Debug, Default, Deserialize)]
pub struct OutputFields {
    pub(crate) format: Option<FormatFields>,
    pub(crate) voice: Option<VoiceName>,
    pub(crate) speed: Option<f32>,
}

/// A voice by its name, or as an object with its id.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum VoiceName {
    Name(String),
    Object { id: String },
}

/// A format of sound.
#[derive(Clone, Debug, Deserialize)]
pub struct FormatFields {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) rate: Option<u32>,
}

/// `audio.input.transcription`
#[derive(Clone, Debug, Default, Deserialize)]
pub struct TranscriptionFields {
    pub(crate) model: Option<String>,
    pub(crate) language: Option<String>,
    pub(crate) prompt: Option<String>,
}

/// `audio.input.turn_detection`
#[derive(Clone, Debug, Deserialize)]
pub struct TurnFields {
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) threshold: Option<f32>,
    pub(crate) prefix_padding_ms: Option<u64>,
    pub(crate) silence_duration_ms: Option<u64>,
    pub(crate) create_response: Option<bool>,
    pub(crate) interrupt_response: Option<bool>,
    pub(crate) idle_timeout_ms: Option<u64>,
    pub(crate) eagerness: Option<String>,
}

/// Fields of a response; those that are left out are the session's.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct ResponseFields {
    pub(crate) conversation: Option<String>,
    pub(crate) input: Option<Vec<ItemFields>>,
    pub(crate) instructions: Option<String>,
    pub(crate) metadata: Option<Map<String, Value>>,
    pub(crate) output_modalities: Option<Vec<String>>,
    pub(crate) audio: Option<AudioFields>,
    pub(crate) tools: Option<Vec<Value>>,
    pub(crate) tool_choice: Option<Value>,
    pub(crate) max_output_tokens: Option<Value>,
    pub(crate) temperature: Option<f32>,
}

/// An item of the conversation.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct ItemFields {
    pub(crate) id: Option<String>,
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) role: Option<String>,
    pub(crate) content: Option<Vec<ContentFields>>,
    pub(crate) call_id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) arguments: Option<String>,
    pub(crate) output: Option<String>,
}

/// A part of a message.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct ContentFields {
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) text: Option<String>,
    pub(crate) audio: Option<String>,
    pub(crate) transcript: Option<String>,
    pub(crate) image_url: Option<String>,
    pub(crate) detail: Option<String>,
}
