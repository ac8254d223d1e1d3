//! What the fields of a chat request mean together, and against the model.

use super::api::chat::{AudioFields, AudioObject, ChatRequest, Message};
use super::api::{FieldError, Fields};
use super::error::ApiError;
use super::options;
use super::speech_request::carried;
use super::state::App;
use omni_audio::{AudioFormat, Sound};
use omni_core::ids::Frames;
use omni_engine::{ChatMessage, GenerateRequest, Output};
use serde_json::{Map, Value};

/// A request, understood.
#[derive(Debug)]
pub(super) struct ChatCall {
    pub request: GenerateRequest,
    pub sound: Sound,
    pub stream: bool,
    /// Whether a stream has text and audio in the same field, told apart by `modality`: clients of vllm-omni send no
    /// `audio` and read that. OpenAI's always send it.
    pub by_modality: bool,
    /// A last chunk tells what was used.
    pub include_usage: bool,
    /// Whether it is to be traced.
    pub trace: Option<bool>,
    /// Fields that mean nothing to this server.
    pub ignored: Vec<String>,
}

/// Reads a request, or says what is wrong with it.
pub(super) fn parse(app: &App, body: &Map<String, Value>) -> Result<ChatCall, ApiError> {
    // Before each of them is looked at.
    check_count(body.get("messages"), app.limits().max_messages)?;
    let (wire, ignored) = ChatRequest::read(&Fields::top(body))?;
    app.check_model(wire.model.model.as_deref())?;
    let messages = messages(wire.messages.messages)?;
    app.check_length("messages", messages.iter().map(ChatMessage::chars).sum())?;
    let answer = wire.answer;
    let stream = answer.stream.unwrap_or(false);
    if answer.stream_options.is_some() && !stream {
        let message = "is only allowed together with \"stream\": true";
        return Err(FieldError::invalid("stream_options", message).into());
    }
    let include_usage = answer.stream_options.and_then(|options| options.include_usage).unwrap_or(false);
    let output = answer.modalities.map_or(Output::Text, |modalities| modalities.0);
    let by_modality = wire.audio.is_none() && output == Output::TextAndAudio;
    let AudioObject { sound: audio, sampling } = wire.audio.unwrap_or_default();
    // These clients read a file in each chunk.
    let sound = if by_modality { AudioFormat::Wav.into() } else { sound(app, &audio, stream)? };
    let max_text_tokens = answer.max_completion_tokens.or(answer.max_tokens).map(|count| count.0);
    let max_frames = audio.max_new_tokens.map(|count| Frames(count.0));
    let ignore_eos = answer.ignore_eos.unwrap_or(false);
    if ignore_eos && max_text_tokens.is_none() {
        return Err(FieldError::invalid("ignore_eos", "needs max_tokens, the number of tokens to make").into());
    }
    if ignore_eos && output == Output::TextAndAudio && max_frames.is_none() {
        let message = "needs audio.max_new_tokens, the number of frames to make";
        return Err(FieldError::invalid("ignore_eos", message).into());
    }
    let request = GenerateRequest {
        messages,
        media: Vec::new(),
        output,
        voice: app.check_voice("audio.voice", audio.voice.as_deref())?,
        text: wire.sampling.into(),
        speech: sampling.into(),
        max_text_tokens,
        max_frames,
        ignore_eos,
        seed: answer.seed.map(|seed| seed.0),
        options: options::read(app, &wire.deadlines, stream && output == Output::TextAndAudio)?,
    };
    Ok(ChatCall { request, sound, stream, by_modality, include_usage, trace: wire.tracing.trace, ignored })
}

/// The limit on messages.
fn check_count(messages: Option<&Value>, limit: usize) -> Result<(), FieldError> {
    let count = messages.and_then(Value::as_array).map_or(0, Vec::len);
    FieldError::at_most("messages", (count, "messages"), limit, Some("limits.max_messages"))
}

fn sound(app: &App, audio: &AudioFields, stream: bool) -> Result<Sound, FieldError> {
    let default = if stream { AudioFormat::Pcm } else { AudioFormat::Wav };
    let format = audio.format.map_or(default, |name| name.0);
    if stream && format != AudioFormat::Pcm {
        let message = "a stream carries \"pcm16\" only; leave stream out for other formats";
        return Err(FieldError::invalid("audio.format", message));
    }
    let sound = format.into();
    carried(app, "audio.format", &sound)?;
    Ok(sound)
}

fn messages(wire: Option<Vec<Message>>) -> Result<Vec<ChatMessage>, FieldError> {
    let wire = wire.ok_or_else(|| FieldError::missing("messages", "an array of messages"))?;
    let messages: Vec<ChatMessage> =
        wire.into_iter().enumerate().map(|(index, wire)| message(index, wire)).collect::<Result<_, _>>()?;
    match messages.last() {
        None => Err(FieldError::invalid("messages", "there must be at least one message")),
        Some(last) if last.role != "user" => {
            Err(FieldError::invalid("messages", "the last message must be the user's"))
        }
        Some(_) => Ok(messages),
    }
}

fn message(index: usize, wire: Message) -> Result<ChatMessage, FieldError> {
    let at = |field: &str, message: &str| FieldError::invalid(format!("messages[{index}]{field}"), message);
    let role = wire.role.ok_or_else(|| at(".role", "expected a string, found nothing"))?.0;
    let content = match wire.content {
        Some(content) => content.text(),
        None if wire.audio.is_some() => {
            return Err(at(".audio", "earlier audio is not kept; send its transcript as content"));
        }
        None => return Err(at(".content", "expected a string or an array of text parts, found nothing")),
    };
    if role == "user" && content.trim().is_empty() {
        return Err(at(".content", "is empty"));
    }
    Ok(ChatMessage::text(role, content))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::chat::Messages;
    use serde_json::json;

    fn read(body: &Value) -> Result<Vec<ChatMessage>, FieldError> {
        messages(Fields::top(body.as_object().unwrap()).read::<Messages>()?.messages)
    }

    #[test]
    fn text_parts_are_joined_and_developer_is_system() {
        let read = read(&json!({"messages": [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "Hello "}, {"type": "text", "text": "there"}]},
        ]}));
        let expected =
            [("system", "be brief"), ("user", "Hello there")].map(|(role, content)| ChatMessage::text(role, content));
        assert_eq!(read.unwrap(), expected);
    }

    #[test]
    fn other_parts_are_refused_by_name_and_place() {
        let error = read(&json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}));
        let error = error.unwrap_err();
        assert_eq!(error.param, "messages[0].content[0]");
        assert!(error.message.contains("\"image_url\" parts are not supported"));
    }

    #[test]
    fn the_user_speaks_last() {
        let error = read(&json!({"messages": [{"role": "assistant", "content": "Hi"}]})).unwrap_err();
        assert!(error.message.contains("last message"));
        assert!(read(&json!({"messages": []})).is_err());
        assert_eq!(read(&json!({})).unwrap_err().code, "missing_required_parameter");
    }
}
