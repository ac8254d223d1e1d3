//! What the fields of a chat request mean together, and against the model.

use super::api::chat::{AudioFields, AudioObject, ChatRequest, Message};
use super::api::parts::Processor;
use super::api::{FieldError, Fields};
use super::chat_parts::{self, Counts, SourceRef};
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
pub(super) struct ChatCall<'a> {
    /// Without its media.
    pub request: GenerateRequest,
    /// Where its media are.
    pub media: Vec<SourceRef<'a>>,
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
pub(super) fn parse<'a>(app: &App, body: &'a Map<String, Value>) -> Result<ChatCall<'a>, ApiError> {
    // Before each of them is looked at.
    check_count(body.get("messages"), app.limits().max_messages)?;
    let (wire, ignored) = ChatRequest::read(&Fields::top(body))?;
    app.check_model(wire.model.model.as_deref())?;
    let (messages, media) = messages(wire.messages.messages, wire.processing.mm_processor_kwargs.as_ref())?;
    let most = Counts { files: app.media.max_files, frames: app.media.max_frames };
    chat_parts::check(&media, app.service.info(), &most)?;
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
        tools: Vec::new(),
        until_call: false,
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
    Ok(ChatCall { request, media, sound, stream, by_modality, include_usage, trace: wire.tracing.trace, ignored })
}

/// Where in a chat request, a JSON object, its sounds, pictures and videos are. Nothing is decoded or fetched and no
/// model is asked: this is what a server reads first of what a stranger sends, for fuzzers.
///
/// # Errors
/// What the answer would say, behind the field that it names.
pub fn media_of_chat(body: &str) -> Result<Vec<String>, String> {
    let body: Map<String, Value> = serde_json::from_str(body).map_err(|error| error.to_string())?;
    let read = || {
        let (wire, _) = ChatRequest::read(&Fields::top(&body))?;
        messages(wire.messages.messages, wire.processing.mm_processor_kwargs.as_ref())
    };
    match read() {
        Ok((_, media)) => Ok(media.into_iter().map(|source| source.param).collect()),
        Err(FieldError { param, message, .. }) => Err(format!("{param}: {message}")),
    }
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

type Conversation<'a> = (Vec<ChatMessage>, Vec<SourceRef<'a>>);

fn messages<'a>(wire: Option<Vec<Message<'a>>>, processor: Option<&Processor>) -> Result<Conversation<'a>, FieldError> {
    let wire = wire.ok_or_else(|| FieldError::missing("messages", "an array of messages"))?;
    let mut media = Vec::new();
    let read = |(index, wire)| chat_parts::message(index, wire, processor, &mut media);
    let messages: Vec<ChatMessage> = wire.into_iter().enumerate().map(read).collect::<Result<_, _>>()?;
    match messages.last() {
        None => Err(FieldError::invalid("messages", "there must be at least one message")),
        Some(last) if last.role != "user" => {
            Err(FieldError::invalid("messages", "the last message must be the user's"))
        }
        Some(_) => Ok((messages, media)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::chat_parts::What;
    use super::*;
    use crate::api::chat::Messages;
    use omni_engine::{Content, Detail, ModelInfo, Part};
    use serde_json::json;

    fn read_all(body: &Value) -> Result<Conversation<'_>, FieldError> {
        messages(Fields::top(body.as_object().unwrap()).read::<Messages<'_>>()?.messages, None)
    }

    fn read(body: &Value) -> Result<Vec<ChatMessage>, FieldError> {
        read_all(body).map(|(messages, _)| messages)
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
    fn every_form_of_media_is_read_in_its_place_and_nothing_is_copied() {
        let body = json!({"messages": [
            {"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,aaaa", "detail": "low"}},
                {"type": "text", "text": "and"},
                {"type": "input_audio", "input_audio": {"data": "bbbb", "format": "wav"}},
            ]},
            {"role": "assistant", "content": [{"type": "text", "text": "Hm."}]},
            {"role": "user", "content": [
                {"type": "audio_url", "audio_url": {"url": "https://a.example/b.wav"}},
                {"type": "audio", "audio": "cccc"},
                {"type": "image", "image": "dddd"},
                {"type": "video_url", "video_url": {"url": "eeee"}, "fps": 4.0},
                {"type": "video", "video": ["ffff", {"url": "gggg"}], "fps": 1.5},
                {"type": "video", "video": "hhhh"},
            ]},
        ]});
        let (messages, media) = read_all(&body).unwrap();
        let parts = vec![Part::Image, Part::Text("and".into()), Part::Audio];
        assert_eq!(messages[0].content, Content::Parts(parts));
        assert_eq!(messages[1], ChatMessage::text("assistant", "Hm."));
        let parts = vec![Part::Audio, Part::Audio, Part::Image, Part::Video, Part::Video, Part::Video];
        assert_eq!(messages[2].content, Content::Parts(parts));
        let film = |url, frames_per_second| What::Video { url, hear: false, frames_per_second };
        let expected = [
            ("messages[0].content[0]", What::Image("data:image/png;base64,aaaa", Detail::Low)),
            ("messages[0].content[2]", What::Audio("bbbb")),
            ("messages[2].content[0]", What::Audio("https://a.example/b.wav")),
            ("messages[2].content[1]", What::Audio("cccc")),
            ("messages[2].content[2]", What::Image("dddd", Detail::Auto)),
            ("messages[2].content[3]", film("eeee", Some(4.0))),
            ("messages[2].content[4]", What::Frames { urls: vec!["ffff", "gggg"], frames_per_second: 1.5 }),
            ("messages[2].content[5]", film("hhhh", None)),
        ];
        assert_eq!(media, expected.map(|(param, what)| SourceRef { param: param.to_owned(), what }));
    }

    #[test]
    fn parts_that_make_no_sense_are_refused_by_name_and_place() {
        for (part, param, says) in [
            (json!({"type": "image_url", "image_url": {}}), "messages[0].content[0].image_url", "is missing"),
            (json!({"type": "image_url", "image_url": {"url": 1}}), "messages[0].content[0].image_url.url", "a string"),
            (
                json!({"type": "image_url", "image_url": {"url": "a", "detail": "most"}}),
                "messages[0].content[0].image_url.detail",
                "\"most\" is unknown",
            ),
            (json!({"type": "file", "file": {}}), "messages[0].content[0]", "\"file\" parts are not supported"),
            (json!({"text": "a"}), "messages[0].content[0]", "has no type"),
            (json!({"type": "text"}), "messages[0].content[0].text", "must be a string"),
            (
                json!({"type": "input_audio", "input_audio": {"data": "https://a.example"}}),
                "messages[0].content[0].input_audio.data",
                "must be base64",
            ),
            (json!({"type": "video", "video": []}), "messages[0].content[0].video", "is missing"),
            (json!({"type": "video", "video": ["a"], "fps": 0}), "messages[0].content[0].fps", "0.05 to 240"),
            (json!("a"), "messages[0].content[0]", "expected an object"),
        ] {
            let body = json!({"messages": [{"role": "user", "content": [part]}]});
            let error = read_all(&body).unwrap_err();
            assert_eq!(error.param, param, "{}", error.message);
            assert!(error.message.contains(says), "{}", error.message);
        }
        let body = json!({"messages": [{"role": "system", "content": [{"type": "image", "image": "aaaa"}]}]});
        assert!(read(&body).unwrap_err().message.contains("only messages of the user"));
    }

    #[test]
    fn a_model_says_what_it_cannot_take_and_how_many_of_the_rest() {
        let body = json!({"messages": [{"role": "user", "content": [
            {"type": "image", "image": "aaaa"}, {"type": "audio", "audio": "aaaa"}, {"type": "image", "image": "aaaa"},
        ]}]});
        let (_, media) = read_all(&body).unwrap();
        let refused = |hears, sees, files| {
            let most = Counts { files, frames: 4 };
            chat_parts::check(&media, &ModelInfo { hears, sees, ..model() }, &most).map_err(|error| error.message)
        };
        let said = refused(true, false, 3).unwrap_err();
        assert_eq!(said, "messages[0].content[0]: the model \"m\" cannot see; send text");
        assert!(refused(false, true, 3).unwrap_err().contains("content[1]: the model \"m\" cannot hear"));
        assert!(refused(true, true, 2).unwrap_err().contains("content[2]: 3 sounds, pictures and videos are more"));
        assert_eq!(refused(true, true, 3), Ok(()));
    }

    fn model() -> ModelInfo {
        ModelInfo {
            id: "m".to_owned(),
            voices: Vec::new(),
            default_voice: None,
            sample_rate: 24_000,
            samples_per_frame: 1920,
            fade_in: std::time::Duration::ZERO,
            word_times: false,
            hears: false,
            window: std::time::Duration::ZERO,
            sees: false,
            tools: false,
            tts: None,
        }
    }

    #[test]
    fn the_user_speaks_last() {
        let error = read(&json!({"messages": [{"role": "assistant", "content": "Hi"}]})).unwrap_err();
        assert!(error.message.contains("last message"));
        assert!(read(&json!({"messages": []})).is_err());
        assert_eq!(read(&json!({})).unwrap_err().code, "missing_required_parameter");
    }
}
