//! The fields of a speech request that say who speaks, and how.

use super::app::App;
use super::error::{ApiError, short};
use super::fields::{Fields, kind};
use super::reference::References;
use omni_engine::{Recording, TaskType, VoiceChoice};
use serde_json::Value;
use std::sync::Arc;

/// Their names; `speaker` and `instruct` are what peers also call `voice` and `instructions`.
pub(super) const FIELDS: [&str; 11] = [
    "voice",
    "speaker",
    "task_type",
    "language",
    "instructions",
    "instruct",
    "ref_audio",
    "ref_text",
    "x_vector_only_mode",
    "speaker_embedding",
    "non_streaming_mode",
];
/// Numbers of the largest embedding that is looked at; what the model needs is the engine's to say.
const MAX_EMBEDDING: usize = 8192;

/// What was asked, understood.
pub(super) struct Asked {
    pub voice: VoiceChoice,
    pub task: Option<TaskType>,
    pub language: Option<String>,
    pub instructions: Option<String>,
    pub non_streaming: Option<bool>,
}

/// Reads them; a recording that is elsewhere is fetched. Whether the model can do it is the engine's to say.
pub(super) async fn read(app: &App, fields: &Fields<'_>, references: &mut References<'_>) -> Result<Asked, ApiError> {
    let task = task(fields)?;
    // No language has a long name; the error would repeat it.
    let language = text(app, fields, "language")?.map(|name| short(&name));
    let instructions = either(text(app, fields, "instructions")?, text(app, fields, "instruct")?);
    let non_streaming = fields.boolean("non_streaming_mode")?;
    let voice = voice(app, fields, task, references).await?;
    Ok(Asked { voice, task, language, instructions, non_streaming })
}

async fn voice(
    app: &App,
    fields: &Fields<'_>,
    task: Option<TaskType>,
    references: &mut References<'_>,
) -> Result<VoiceChoice, ApiError> {
    let name = either(name(fields, "voice")?, name(fields, "speaker")?);
    let x_vector_only = fields.boolean("x_vector_only_mode")?.unwrap_or(false);
    let ref_text = text(app, fields, "ref_text")?;
    let ref_audio = ref_audio(fields)?;
    let embedding = embedding(fields)?;
    match (ref_audio, embedding) {
        (Some(_), Some(_)) => {
            Err(fields.invalid("speaker_embedding", "cannot be given together with ref_audio; leave one of them out"))
        }
        // A voice that comes along is the voice, whatever name clients send with it by habit.
        (Some(ref_audio), None) => {
            let audio = references.load(ref_audio).await?;
            Ok(VoiceChoice::Clone(Recording { audio, text: ref_text, x_vector_only }))
        }
        (None, Some(embedding)) => Ok(VoiceChoice::Embedding(embedding)),
        (None, None) if ref_text.is_some() => {
            Err(fields.invalid("ref_text", "is the transcript of ref_audio, which is missing"))
        }
        // So is one that is described.
        (None, None) if task == Some(TaskType::VoiceDesign) => Ok(VoiceChoice::Default),
        (None, None) => match app.check_voice(&fields.name("voice"), name.as_deref())? {
            Some(name) => Ok(VoiceChoice::Named { name, x_vector_only }),
            None => Ok(VoiceChoice::Default),
        },
    }
}

fn either<T>(first: Option<T>, second: Option<T>) -> Option<T> {
    first.or(second)
}

fn task(fields: &Fields<'_>) -> Result<Option<TaskType>, ApiError> {
    const ALL: [TaskType; 3] = [TaskType::CustomVoice, TaskType::VoiceDesign, TaskType::Base];
    let Some(name) = fields.string("task_type")?.filter(|name| !name.is_empty()) else { return Ok(None) };
    let found = ALL.into_iter().find(|task| task.as_str().eq_ignore_ascii_case(name));
    let unknown = || {
        fields
            .invalid("task_type", format_args!("{:?} is unknown; choose CustomVoice, VoiceDesign or Base", short(name)))
    };
    found.map(Some).ok_or_else(unknown)
}

/// A text of at most the length of an input; an empty one counts as absent.
fn text(app: &App, fields: &Fields<'_>, field: &str) -> Result<Option<String>, ApiError> {
    let Some(text) = fields.string(field)?.filter(|text| !text.trim().is_empty()) else { return Ok(None) };
    app.check_length(&fields.name(field), text.chars().count())?;
    Ok(Some(text.to_owned()))
}

/// A voice's name: a string, or an object with it as OpenAI has it for custom voices.
fn name(fields: &Fields<'_>, field: &str) -> Result<Option<String>, ApiError> {
    match fields.get(field) {
        Some(Value::Object(object)) => match object.get("id") {
            Some(Value::String(id)) => Ok(Some(id.clone())),
            _ => Err(fields.invalid(field, "an object must have the voice's name as \"id\"")),
        },
        _ => Ok(fields.string(field)?.filter(|name| !name.is_empty()).map(str::to_owned)),
    }
}

/// A string; peers also take a list of them, of which we can use one.
fn ref_audio<'a>(fields: &Fields<'a>) -> Result<Option<&'a str>, ApiError> {
    match fields.get("ref_audio") {
        Some(Value::Array(list)) => match list.as_slice() {
            [Value::String(one)] => Ok(Some(one)),
            _ => Err(fields.invalid("ref_audio", "expected one recording, as a string")),
        },
        _ => fields.string("ref_audio"),
    }
}

fn embedding(fields: &Fields<'_>) -> Result<Option<Arc<[f32]>>, ApiError> {
    let Some(value) = fields.get("speaker_embedding") else { return Ok(None) };
    embedding_of(&fields.name("speaker_embedding"), value).map(Some)
}

/// A list of finite numbers.
pub(super) fn embedding_of(name: &str, value: &Value) -> Result<Arc<[f32]>, ApiError> {
    let problem = |message: String| Err(ApiError::invalid(name, format!("{name}: {message}")));
    let Value::Array(values) = value else {
        return problem(format!("expected a list of numbers, found {}", kind(value)));
    };
    if values.is_empty() || values.len() > MAX_EMBEDDING {
        return problem(format!("has {} numbers; expected 1 to {MAX_EMBEDDING}", values.len()));
    }
    let mut numbers = Vec::with_capacity(values.len());
    for (at, value) in values.iter().enumerate() {
        match value.as_f64().map(|number| number as f32) {
            Some(number) if number.is_finite() => numbers.push(number),
            Some(_) => return problem(format!("number {at} is too large")),
            None => return problem(format!("number {at} is {}; expected a list of numbers", kind(value))),
        }
    }
    Ok(numbers.into())
}
