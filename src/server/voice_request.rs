//! Who speaks, and how: what the fields of a request mean together.

use super::api::speech::VoiceFields;
use super::api::{FieldError, short};
use super::error::ApiError;
use super::reference::References;
use super::state::App;
use omni_engine::{Recording, TaskType, VoiceChoice};

/// What a request asks for.
pub(super) struct Asked {
    pub voice: VoiceChoice,
    pub task: Option<TaskType>,
    pub language: Option<String>,
    pub instructions: Option<String>,
    pub non_streaming: Option<bool>,
}

/// Resolves the fields; fetches a recording that is elsewhere. Whether the model can do it the engine decides.
pub(super) async fn resolve(
    app: &App,
    wire: VoiceFields<'_>,
    references: &mut References<'_>,
) -> Result<Asked, ApiError> {
    let task = wire.task_type.and_then(|name| name.0);
    // No language has a long name; the error would repeat it.
    let language = text(app, "language", wire.language)?.map(|name| short(&name));
    let instructions = before_each_piece(app, "instructions", wire.instructions)?;
    let instructions = instructions.or(before_each_piece(app, "instruct", wire.instruct)?);
    let ref_text = before_each_piece(app, "ref_text", wire.ref_text)?;
    let name = wire.voice.and_then(|name| name.0).or(wire.speaker.and_then(|name| name.0));
    let x_vector_only = wire.x_vector_only_mode.unwrap_or(false);
    let voice = match (wire.ref_audio, wire.speaker_embedding) {
        (Some(_), Some(_)) => {
            let message = "cannot be given together with ref_audio; leave one of them out";
            return Err(FieldError::invalid("speaker_embedding", message).into());
        }
        // A recording is the voice, whatever name a client sends with it by habit.
        (Some(ref_audio), None) => {
            let audio = references.load(ref_audio.0).await?;
            VoiceChoice::Clone(Recording { audio, text: ref_text, x_vector_only })
        }
        (None, Some(embedding)) => VoiceChoice::Embedding(embedding.0),
        (None, None) if ref_text.is_some() => {
            return Err(FieldError::invalid("ref_text", "is the transcript of ref_audio, which is missing").into());
        }
        // So is a description.
        (None, None) if task == Some(TaskType::VoiceDesign) => VoiceChoice::Default,
        (None, None) => match app.check_voice("voice", name.as_deref())? {
            Some(name) => VoiceChoice::Named { name, x_vector_only },
            None => VoiceChoice::Default,
        },
    };
    Ok(Asked { voice, task, language, instructions, non_streaming: wire.non_streaming_mode })
}

/// A text that each piece of the input begins with, of at most the length that the config allows.
fn before_each_piece(app: &App, field: &str, text: Option<String>) -> Result<Option<String>, ApiError> {
    let Some(text) = present(text) else { return Ok(None) };
    let (chars, limit) = (text.chars().count(), app.limits().max_instruction_chars);
    FieldError::at_most(field, (chars, "characters"), limit, Some("limits.max_instruction_chars"))?;
    Ok(Some(text))
}

/// A blank text counts as absent.
fn present(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.trim().is_empty())
}

/// A text of at most the length of an input.
fn text(app: &App, field: &str, text: Option<String>) -> Result<Option<String>, ApiError> {
    let Some(text) = present(text) else { return Ok(None) };
    app.check_length(field, text.chars().count())?;
    Ok(Some(text))
}
