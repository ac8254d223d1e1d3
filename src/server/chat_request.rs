//! The fields of `POST /v1/chat/completions`.

use super::app::App;
use super::error::{ApiError, short};
use super::fields::{Fields, kind};
use super::speech_request::format;
use super::{options, sampling};
use omni_audio::AudioFormat;
use omni_core::ids::Frames;
use omni_engine::{ChatMessage, GenerateRequest, Output, SamplingOverrides};
use serde_json::{Map, Value};

/// A request, understood.
#[derive(Debug)]
pub(super) struct ChatCall {
    pub request: GenerateRequest,
    pub format: AudioFormat,
    pub stream: bool,
    /// A last chunk tells what was used.
    pub include_usage: bool,
    /// Fields that mean nothing to this server.
    pub ignored: Vec<String>,
}

const FIELDS: [&str; 12] = [
    "model",
    "messages",
    "modalities",
    "audio",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "seed",
    "n",
    "response_format",
    "trace",
];
const AUDIO_FIELDS: [&str; 3] = ["voice", "format", "max_new_tokens"];
/// They would change the answer, so leaving them out silently would be wrong.
const REFUSED: [(&str, &str); 8] = [
    ("stop", "stop sequences are not supported"),
    ("tools", "tools are not supported"),
    ("functions", "functions are not supported"),
    ("logit_bias", "logit_bias is not supported"),
    ("logprobs", "log probabilities are not supported"),
    ("top_logprobs", "log probabilities are not supported"),
    ("web_search_options", "web search is not supported"),
    ("prediction", "predicted output is not supported"),
];
/// Known to OpenAI's clients, without meaning here.
const HARMLESS: [&str; 11] = [
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

/// Reads a request, or says what is wrong with it.
pub(super) fn parse(app: &App, body: &Map<String, Value>) -> Result<ChatCall, ApiError> {
    let fields = Fields::top(body);
    app.check_model(fields.string("model")?)?;
    let messages = messages(&fields)?;
    app.check_length("messages", messages.iter().map(|message| message.content.chars().count()).sum())?;
    for (field, why) in REFUSED {
        fields.refuse(field, why)?;
    }
    if fields.integer("n", 1..=128)?.unwrap_or(1) != 1 {
        return Err(fields.invalid("n", "only 1 answer per request is supported"));
    }
    if let Some(wanted) = fields.object("response_format", "response_format.")?
        && wanted.string("type")?.unwrap_or("text") != "text"
    {
        return Err(wanted.invalid("type", "only \"text\" is supported"));
    }
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let options = fields.object("stream_options", "stream_options.")?;
    if options.is_some() && !stream {
        return Err(fields.invalid("stream_options", "is only allowed together with \"stream\": true"));
    }
    let include_usage = match options {
        Some(options) => options.boolean("include_usage")?.unwrap_or(false),
        None => false,
    };
    let output = modalities(&fields)?;
    let audio = audio(app, &fields, stream)?;
    let mut ignored =
        fields.unknown(&[&FIELDS, &sampling::FIELDS, &options::FIELDS, &REFUSED.map(|(field, _)| field), &HARMLESS]);
    ignored.extend(audio.ignored);
    let request = GenerateRequest {
        messages,
        output,
        voice: audio.voice,
        text: sampling::overrides(&fields)?,
        speech: audio.sampling,
        max_text_tokens: fields.count("max_completion_tokens")?.or(fields.count("max_tokens")?),
        max_frames: audio.max_frames,
        seed: fields.seed()?,
        options: options::read(app, &fields, stream && output == Output::TextAndAudio)?,
    };
    Ok(ChatCall { request, format: audio.format, stream, include_usage, ignored })
}

fn modalities(fields: &Fields<'_>) -> Result<Output, ApiError> {
    let Some(names) = fields.array("modalities")? else { return Ok(Output::Text) };
    let mut output = Output::Text;
    for name in names {
        match name.as_str() {
            Some("text") => {}
            Some("audio") => output = Output::TextAndAudio,
            _ => {
                return Err(
                    fields.invalid("modalities", format_args!("{name} is unknown; choose \"text\" and \"audio\""))
                );
            }
        }
    }
    if names.is_empty() {
        return Err(fields.invalid("modalities", "must name \"text\", or \"text\" and \"audio\""));
    }
    Ok(output)
}

struct Audio {
    voice: Option<String>,
    format: AudioFormat,
    sampling: SamplingOverrides,
    max_frames: Option<Frames>,
    ignored: Vec<String>,
}

/// The `audio` object. It is checked even when only text is wanted: a mistake in it is a mistake.
fn audio(app: &App, fields: &Fields<'_>, stream: bool) -> Result<Audio, ApiError> {
    let default = if stream { AudioFormat::Pcm } else { AudioFormat::Wav };
    let Some(audio) = fields.object("audio", "audio.")? else {
        let (sampling, ignored) = (SamplingOverrides::default(), Vec::new());
        return Ok(Audio { voice: None, format: default, sampling, max_frames: None, ignored });
    };
    let format = format(app, &audio, "format", default)?;
    if stream && format != AudioFormat::Pcm {
        return Err(audio.invalid("format", "a stream carries \"pcm16\" only; leave stream out for other formats"));
    }
    Ok(Audio {
        voice: app.check_voice("audio.voice", audio.string("voice")?)?,
        format,
        sampling: sampling::overrides(&audio)?,
        max_frames: audio.count("max_new_tokens")?.map(Frames),
        ignored: audio.unknown(&[&AUDIO_FIELDS, &sampling::FIELDS]),
    })
}

fn messages(fields: &Fields<'_>) -> Result<Vec<ChatMessage>, ApiError> {
    let missing = || fields.missing("messages", "an array of messages");
    let values = fields.array("messages")?.ok_or_else(missing)?;
    let messages =
        values.iter().enumerate().map(|(index, value)| message(index, value)).collect::<Result<Vec<_>, _>>()?;
    match messages.last() {
        None => Err(fields.invalid("messages", "there must be at least one message")),
        Some(last) if last.role != "user" => Err(fields.invalid("messages", "the last message must be the user's")),
        Some(_) => Ok(messages),
    }
}

fn message(index: usize, value: &Value) -> Result<ChatMessage, ApiError> {
    let at = |field: &str, message: String| {
        let name = format!("messages[{index}]{field}");
        ApiError::invalid(name.clone(), format!("{name}: {message}"))
    };
    let map = value.as_object().ok_or_else(|| at("", format!("expected an object, found {}", kind(value))))?;
    let role = match map.get("role") {
        Some(Value::String(role)) => match role.as_str() {
            "system" | "developer" => "system",
            "user" => "user",
            "assistant" => "assistant",
            other => {
                return Err(at(".role", format!("{:?} is not supported; use system, user or assistant", short(other))));
            }
        },
        other => return Err(at(".role", format!("expected a string, found {}", other.map_or("nothing", kind)))),
    };
    let content = match map.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let parts = parts
                .iter()
                .enumerate()
                .map(|(part, value)| text_part(value).map_err(|why| at(&format!(".content[{part}]"), why)));
            parts.collect::<Result<String, _>>()?
        }
        None | Some(Value::Null) if map.get("audio").is_some_and(|audio| !audio.is_null()) => {
            return Err(at(".audio", "earlier audio is not kept; send its transcript as content".to_owned()));
        }
        other => {
            let found = other.map_or("nothing", kind);
            return Err(at(".content", format!("expected a string or an array of text parts, found {found}")));
        }
    };
    if role == "user" && content.trim().is_empty() {
        return Err(at(".content", "is empty".to_owned()));
    }
    Ok(ChatMessage { role: role.to_owned(), content })
}

fn text_part(part: &Value) -> Result<&str, String> {
    match (part.get("type").and_then(Value::as_str), part.get("text").and_then(Value::as_str)) {
        (Some("text"), Some(text)) => Ok(text),
        (Some("text"), None) => Err("a text part needs a string \"text\"".to_owned()),
        (Some(other), _) => {
            Err(format!("{:?} parts are not supported; this server takes text parts only", short(other)))
        }
        (None, _) => Err("expected {\"type\": \"text\", \"text\": ...}".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(body: &Value) -> Result<Vec<ChatMessage>, ApiError> {
        messages(&Fields::top(body.as_object().unwrap()))
    }

    #[test]
    fn text_parts_are_joined_and_developer_is_system() {
        let read = read(&json!({"messages": [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "Hello "}, {"type": "text", "text": "there"}]},
        ]}));
        let expected = [("system", "be brief"), ("user", "Hello there")]
            .map(|(role, content)| ChatMessage { role: role.to_owned(), content: content.to_owned() });
        assert_eq!(read.unwrap(), expected);
    }

    #[test]
    fn other_parts_are_refused_by_name_and_place() {
        let error = read(&json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}));
        let error = error.unwrap_err();
        assert_eq!(error.param.as_deref(), Some("messages[0].content[0]"));
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
