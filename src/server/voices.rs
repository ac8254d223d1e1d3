//! `/v1/audio/voices`: the voices that a request may name; uploading one; deleting it.

use super::aliases::Aliases;
use super::api::service::{ListQuery, Named};
use super::api::voice_values::Embedding;
use super::api::voices::{Choices, ModelQuery, PageQuery, Voice, VoiceAdded, VoiceList, VoiceRemoved};
use super::api::{FieldError, short};
use super::auth::Caller;
use super::body::{MAX_PARTS, read_all};
use super::described;
use super::error::ApiError;
use super::state::App;
use axum::body::{Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures::stream;
use multer::Multipart;
use omni_config::Scope;
use omni_engine::{NewVoice, Recording, VoiceError, VoiceInfo, VoiceSource};
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;

/// Longest text field of an upload, in bytes.
const MAX_TEXT: usize = 32 << 10;

/// `GET /v1/audio/voices`, written voice by voice: with transcripts and consents a list has megabytes, and a client
/// that reads it slowly must not make the server keep them.
pub(super) async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<ListQuery>,
    Query(asked): Query<PageQuery>,
) -> Result<Response, ApiError> {
    let app = app.choose(asked.model.as_deref()).await?;
    let info = app.service.info();
    let voices = app.service.voices();
    let rules = app.rules.get();
    let aliases = Aliases::of(&rules.aliases, info);
    let named: HashSet<String> = voices.iter().map(|voice| voice.name.to_lowercase()).collect();
    let unnamed = |all| aliases.voices(all).into_iter().filter(|(alias, _)| !named.contains(*alias));
    let (voices, has_more) = page(voices, asked.after.as_deref(), asked.limit()?);
    let own = voices.iter().map(|voice| Named::plain(&voice.name));
    let others = unnamed(query.aliases()).filter(|_| !has_more).map(|(alias, voice)| Named::alias(alias, voice));
    let choices: Vec<Named<'_>> = own.chain(others).collect();
    let names: Vec<&str> = choices.iter().map(|choice| choice.id).collect();
    let tts = info.tts.as_ref();
    let list = VoiceList {
        voices: if query.legacy() { Choices::Names(names.clone()) } else { Choices::Objects(choices) },
        names,
        aliases: unnamed(true).collect(),
        has_more,
        last_id: voices.last().map(|voice| voice.name.as_str()),
        uploaded_voices: Vec::new(),
        default: info.default_voice.as_deref(),
        sample_rate: info.sample_rate,
        task_type: tts.map(|tts| tts.task.as_str()),
        languages: tts.map(|tts| tts.languages.as_slice()),
        instructions: tts.is_some_and(|tts| tts.instructions),
    };
    // Structs of strings and numbers are always JSON. The list of uploaded voices is its last field.
    let mut head = serde_json::to_vec(&list).unwrap_or_default();
    let tail = head.split_off(head.len().saturating_sub(2));
    // Transcripts and notes of consent are no list of names.
    let uploaded =
        voices.into_iter().filter(move |voice| voice.uploaded && caller.trusted).enumerate().map(|(index, voice)| {
            let mut json = if index == 0 { Vec::new() } else { vec![b','] };
            json.append(&mut serde_json::to_vec(&Voice::from(&*voice)).unwrap_or_default());
            Bytes::from(json)
        });
    let pieces = std::iter::once(Bytes::from(head)).chain(uploaded).chain([Bytes::from(tail)]);
    let body = Body::from_stream(stream::iter(pieces.map(Ok::<_, Infallible>)));
    Ok(([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response())
}

/// At most `limit` of the voices behind `after`, and whether there are more. The model's voices come first, in its order,
/// then the uploaded ones by their lower-case names; so a page goes on where it should, also when the voice that was the
/// last one has been deleted meanwhile.
fn page(mut voices: Vec<Arc<VoiceInfo>>, after: Option<&str>, limit: usize) -> (Vec<Arc<VoiceInfo>>, bool) {
    if let Some(after) = after.map(str::to_lowercase) {
        let known = voices.iter().position(|voice| voice.name.to_lowercase() == after);
        let next = || voices.iter().position(|voice| voice.uploaded && voice.name.to_lowercase() > after);
        let begin = known.map(|at| at + 1).or_else(next).unwrap_or(voices.len());
        voices.drain(..begin);
    }
    let has_more = voices.len() > limit;
    voices.truncate(limit);
    (voices, has_more)
}

/// `POST /v1/audio/voices`
pub(super) async fn add(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Query(of): Query<ModelQuery>,
    request: Request,
) -> Result<Response, ApiError> {
    let app = app.choose_for_voices(of.model.as_deref()).await?;
    let boundary = boundary(request.headers())?;
    let (body, mut held) = read_all(&app, request).await?;
    let length = body.len();
    // Twice while it is read: its parts are copied to a buffer, and from there to where they stay.
    if !held.take(length) {
        return Err(held.exhausted());
    }
    let upload = Upload::read(body, boundary).await?;
    let voice = upload.voice(&app, &caller).await?;
    held.resize(length); // not more than before
    let added = app.service.add_voice(voice).await.map_err(|error| {
        let error = ApiError::from(error);
        // The engine names the field of speech requests.
        match error.param.as_deref() {
            Some("ref_audio") => error.with_param("audio_sample"),
            _ => error,
        }
    })?;
    caller.visit.audit("voice_added", &added.name);
    Ok(Json(VoiceAdded { success: true, voice: Voice::from(&added) }).into_response())
}

/// `DELETE /v1/audio/voices/{name}`
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Query(of): Query<ModelQuery>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<VoiceRemoved>, ApiError> {
    let app = app.choose_for_voices(of.model.as_deref()).await?;
    // Bytes that are no text name no voice.
    let name = name.map_or_else(|_| String::from(char::REPLACEMENT_CHARACTER), |Path(name)| name);
    let lower = name.to_lowercase();
    if app.service.info().voices.contains(&lower) {
        let message = format!("the voice {:?} belongs to the model and cannot be deleted", short(&name));
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", message).with_param("name"));
    }
    check_owner(&app, &caller, &lower)?;
    app.service.remove_voice(&name).await.map_err(|error| match error {
        VoiceError::Unknown(name) => VoiceError::Unknown(short(&name)),
        other => other,
    })?;
    caller.visit.audit("voice_removed", &name);
    Ok(Json(VoiceRemoved { success: true, message: format!("the voice {name:?} was deleted") }))
}

/// A key deletes its own voices, and those that no key has; those of others only with a scope of its own.
fn check_owner(app: &App, caller: &Caller, lower: &str) -> Result<(), ApiError> {
    let voices = app.service.voices();
    let voice = voices.iter().find(|voice| voice.name.to_lowercase() == lower);
    let owner = voice.and_then(|voice| voice.upload.as_ref()?.owner.as_deref());
    if owner.is_none() || owner == caller.key_name() || caller.may(Scope::AllVoices) {
        return Ok(());
    }
    caller.visit.audit("voice_not_removed", lower);
    let message = "this voice was uploaded with another key; deleting it needs the scope \"voices:all\"";
    Err(ApiError::new(StatusCode::FORBIDDEN, "insufficient_scope", message).with_param("name"))
}

fn boundary(headers: &HeaderMap) -> Result<String, ApiError> {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    multer::parse_boundary(value).map_err(|_| {
        let message = "send the voice as a form: Content-Type: multipart/form-data with its boundary, as curl -F does";
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    })
}

/// The parts of a form.
#[derive(Default)]
struct Upload {
    audio: Option<(Bytes, Option<String>)>,
    texts: BTreeMap<&'static str, String>,
}

const TEXTS: [&str; 6] = ["name", "consent", "ref_text", "speaker_description", "speaker_embedding", "instructions"];
/// The note of consent of a voice that no speaker has.
const NO_SPEAKER: &str = "described, not recorded: there is no speaker";

impl Upload {
    async fn read(body: Vec<u8>, boundary: String) -> Result<Upload, ApiError> {
        let bad = |error: multer::Error| {
            let message = format!("this is not a valid form: {}", error.to_string().to_lowercase());
            ApiError::new(StatusCode::BAD_REQUEST, "invalid_form", message)
        };
        let twice = |name: &str| ApiError::from(FieldError::invalid(name, "is there twice"));
        let mut form = Multipart::new(stream::iter([Ok::<_, Infallible>(Bytes::from(body))]), boundary);
        let mut upload = Upload::default();
        let mut parts = 0;
        while let Some(part) = form.next_field().await.map_err(bad)? {
            parts += 1;
            if parts > MAX_PARTS {
                return Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_form", "the form has too many parts"));
            }
            let name = part.name().unwrap_or("").to_owned();
            if name == "audio_sample" {
                let media_type = part.content_type().map(|kind| short(kind.as_ref()));
                let bytes = part.bytes().await.map_err(bad)?;
                if upload.audio.replace((bytes, media_type)).is_some() {
                    return Err(twice("audio_sample"));
                }
            } else if let Some(name) = TEXTS.into_iter().find(|known| *known == name) {
                let bytes = part.bytes().await.map_err(bad)?;
                if bytes.len() > limit(name) {
                    let message = format_args!("is longer than {} bytes", limit(name));
                    return Err(FieldError::invalid(name, message).into());
                }
                let text =
                    String::from_utf8(bytes.into()).map_err(|_| FieldError::invalid(name, "is not UTF-8 text"))?;
                if upload.texts.insert(name, text).is_some() {
                    return Err(twice(name));
                }
            }
            // Unknown parts are skipped, as unknown fields of JSON are.
        }
        Ok(upload)
    }

    async fn voice(mut self, app: &Arc<App>, caller: &Caller) -> Result<NewVoice, ApiError> {
        let mut text =
            |name| self.texts.remove(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let name = text("name").ok_or_else(|| FieldError::missing("name", "what requests will call the voice"))?;
        let instructions = text("instructions");
        let no_speaker = || instructions.as_ref().map(|_| NO_SPEAKER.to_owned());
        let consent = text("consent")
            .or_else(no_speaker)
            .ok_or_else(|| FieldError::missing("consent", "a note on how the speaker agreed"))?;
        let (ref_text, description, embedding) =
            (text("ref_text"), text("speaker_description"), text("speaker_embedding"));
        if instructions.is_some() && (self.audio.is_some() || embedding.is_some() || ref_text.is_some()) {
            let message = "describes a voice without a recording; leave out audio_sample, ref_text and \
                speaker_embedding, or instructions";
            return Err(FieldError::invalid("instructions", message).into());
        }
        let description = description.or_else(|| instructions.clone());
        let source = match (self.audio, embedding) {
            (None, None) if instructions.is_some() => {
                let recording = described::recording(app, caller, instructions.as_deref().unwrap_or_default()).await?;
                VoiceSource::Recording { recording, mime_type: Some("audio/wav".to_owned()) }
            }
            (Some(_), Some(_)) => {
                let message = "cannot be given together with audio_sample; leave one of them out";
                return Err(FieldError::invalid("speaker_embedding", message).into());
            }
            (Some((audio, mime_type)), None) => {
                if audio.len() > app.references.max_bytes {
                    let limit = app.references.max_bytes;
                    let message = format_args!("{} bytes are more than the limit of {limit}", audio.len());
                    return Err(FieldError::invalid("audio_sample", message).into());
                }
                let recording = Recording { audio: Arc::from(audio.as_ref()), text: ref_text, x_vector_only: false };
                VoiceSource::Recording { recording, mime_type }
            }
            (None, Some(embedding)) => {
                let value = serde_json::from_str(&embedding).unwrap_or(Value::String(embedding));
                let embedding =
                    Embedding::of(&value).map_err(|message| FieldError::invalid("speaker_embedding", message))?;
                VoiceSource::Embedding(embedding.0)
            }
            (None, None) => {
                return Err(FieldError::missing("audio_sample", "a recording of the voice, as a file").into());
            }
        };
        Ok(NewVoice {
            name,
            source,
            consent,
            description,
            owner: caller.key_name().map(str::to_owned),
            tenant: caller.tenant.id,
        })
    }
}

/// Longest text of a part; an embedding of 8192 numbers, written out, needs more than the others.
fn limit(name: &str) -> usize {
    if name == "speaker_embedding" { 8 * MAX_TEXT } else { MAX_TEXT }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voices(own: &[&str], uploaded: &[&str]) -> Vec<Arc<VoiceInfo>> {
        let voice =
            |uploaded| move |name: &&str| Arc::new(VoiceInfo { name: (*name).to_owned(), uploaded, upload: None });
        own.iter().map(voice(false)).chain(uploaded.iter().map(voice(true))).collect()
    }

    fn names(own: &[&str], uploaded: &[&str], after: Option<&str>, limit: usize) -> (Vec<String>, bool) {
        let (voices, more) = page(voices(own, uploaded), after, limit);
        (voices.iter().map(|voice| voice.name.clone()).collect(), more)
    }

    #[test]
    fn pages_together_are_the_list() {
        let (own, uploaded) = (["vivian", "Ryan"], ["anna", "Bert", "carl"]);
        let mut all = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let (page, more) = names(&own, &uploaded, after.as_deref(), 2);
            after = page.last().cloned();
            all.extend(page);
            if !more {
                break;
            }
        }
        assert_eq!(all, ["vivian", "Ryan", "anna", "Bert", "carl"]);
        assert_eq!(names(&own, &uploaded, None, 5), (all, false));
    }

    #[test]
    fn a_page_goes_on_behind_a_voice_that_was_deleted() {
        assert_eq!(names(&["vivian"], &["anna", "carl"], Some("BERT"), 9), (vec!["carl".to_owned()], false));
        assert_eq!(names(&["vivian"], &["anna", "carl"], Some("zoe"), 9), (Vec::new(), false));
    }
}
