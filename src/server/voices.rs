//! `/v1/audio/voices`: the voices that a request may name; uploading one; deleting it.

use super::app::App;
use super::body::read_all;
use super::error::{ApiError, short};
use super::voice_request;
use super::ws::check_origin;
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use futures::stream;
use multer::Multipart;
use omni_engine::{NewVoice, Recording, VoiceError, VoiceInfo, VoiceSource};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

/// Longest text field of an upload, in bytes.
const MAX_TEXT: usize = 32 << 10;
/// Most parts of an upload: each field once, and some that nobody knows.
const MAX_PARTS: usize = 16;

/// The names, for lists.
pub(super) fn voice_names(app: &App) -> Vec<String> {
    app.service.voices().into_iter().map(|voice| voice.name).collect()
}

/// `GET /v1/audio/voices`
pub(super) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let info = app.service.info();
    let voices = app.service.voices();
    let uploaded: Vec<Value> = voices.iter().filter(|voice| voice.uploaded).map(object).collect();
    let names: Vec<&str> = voices.iter().map(|voice| voice.name.as_str()).collect();
    Json(json!({
        "voices": names,
        "uploaded_voices": uploaded,
        "default": info.default_voice,
        "sample_rate": info.sample_rate,
        "task_type": info.tts.as_ref().map(|tts| tts.task.as_str()),
        "languages": info.tts.as_ref().map(|tts| &tts.languages),
        "instructions": info.tts.as_ref().is_some_and(|tts| tts.instructions),
    }))
}

/// `POST /v1/audio/voices`
pub(super) async fn add(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    check_origin(request.headers())?;
    let boundary = boundary(request.headers())?;
    let (body, _held) = read_all(&app, request).await?;
    let upload = Upload::read(body, boundary).await?;
    let voice = upload.voice(&app)?;
    let added = app.service.add_voice(voice).await.map_err(|error| {
        let error = ApiError::from(error);
        // The engine calls a recording by the name that speech requests have for it.
        match error.param.as_deref() {
            Some("ref_audio") => error.with_param("audio_sample"),
            _ => error,
        }
    })?;
    Ok(Json(json!({ "success": true, "voice": object(&added) })))
}

/// `DELETE /v1/audio/voices/{name}`
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    check_origin(&headers)?;
    // What is no text names no voice.
    let name = name.map_or_else(|_| String::from(char::REPLACEMENT_CHARACTER), |Path(name)| name);
    let lower = name.to_lowercase();
    if app.service.info().voices.contains(&lower) {
        let message = format!("the voice {:?} belongs to the model and cannot be deleted", short(&name));
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", message).with_param("name"));
    }
    app.service.remove_voice(&name).await.map_err(|error| match error {
        VoiceError::Unknown(name) => VoiceError::Unknown(short(&name)),
        other => other,
    })?;
    Ok(Json(json!({ "success": true, "message": format!("the voice {name:?} was deleted") })))
}

/// An uploaded voice as vllm-omni's clients know it; what was not given is left out.
fn object(voice: &VoiceInfo) -> Value {
    let mut object = json!({ "name": voice.name });
    if let Some(upload) = &voice.upload {
        object["consent"] = json!(upload.consent);
        object["created_at"] = json!(upload.created_at);
        object["file_size"] = json!(upload.file_size);
        object["seconds"] = json!((f64::from(upload.seconds) * 1000.0).round() / 1000.0);
        let given = [
            ("mime_type", &upload.mime_type),
            ("ref_text", &upload.ref_text),
            ("speaker_description", &upload.description),
        ];
        for (name, value) in given {
            if let Some(value) = value {
                object[name] = json!(value);
            }
        }
    }
    object
}

fn boundary(headers: &HeaderMap) -> Result<String, ApiError> {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    multer::parse_boundary(value).map_err(|_| {
        let message = "send the voice as a form: Content-Type: multipart/form-data with its boundary, as curl -F does";
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    })
}

/// What a form said.
#[derive(Default)]
struct Upload {
    audio: Option<(Bytes, Option<String>)>,
    texts: BTreeMap<&'static str, String>,
}

const TEXTS: [&str; 5] = ["name", "consent", "ref_text", "speaker_description", "speaker_embedding"];

impl Upload {
    async fn read(body: Vec<u8>, boundary: String) -> Result<Upload, ApiError> {
        let bad = |error: multer::Error| {
            let message = format!("this is not a valid form: {}", error.to_string().to_lowercase());
            ApiError::new(StatusCode::BAD_REQUEST, "invalid_form", message)
        };
        let twice = |name: &str| ApiError::invalid(name, format!("{name}: is there twice"));
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
                    let message = format!("{name}: is longer than {} bytes", limit(name));
                    return Err(ApiError::invalid(name, message));
                }
                let text = String::from_utf8(bytes.into())
                    .map_err(|_| ApiError::invalid(name, format!("{name}: is not UTF-8 text")))?;
                if upload.texts.insert(name, text).is_some() {
                    return Err(twice(name));
                }
            }
            // Other parts are skipped, as unknown fields of JSON are.
        }
        Ok(upload)
    }

    fn voice(mut self, app: &App) -> Result<NewVoice, ApiError> {
        let missing = |name: &'static str, what: &str| {
            let message = format!("{name} is missing; it must be {what}");
            ApiError { code: "missing_required_parameter", ..ApiError::invalid(name, message) }
        };
        let mut text =
            |name| self.texts.remove(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let name = text("name").ok_or_else(|| missing("name", "what requests will call the voice"))?;
        let consent = text("consent").ok_or_else(|| missing("consent", "a note on how the speaker agreed"))?;
        let (ref_text, description, embedding) =
            (text("ref_text"), text("speaker_description"), text("speaker_embedding"));
        let source = match (self.audio, embedding) {
            (Some(_), Some(_)) => {
                let message = "speaker_embedding: cannot be given together with audio_sample; leave one of them out";
                return Err(ApiError::invalid("speaker_embedding", message));
            }
            (Some((audio, mime_type)), None) => {
                if audio.len() > app.references.max_bytes {
                    let limit = app.references.max_bytes;
                    let message = format!("audio_sample: {} bytes are more than the limit of {limit}", audio.len());
                    return Err(ApiError::invalid("audio_sample", message));
                }
                let recording = Recording { audio: Arc::from(audio.as_ref()), text: ref_text, x_vector_only: false };
                VoiceSource::Recording { recording, mime_type }
            }
            (None, Some(embedding)) => {
                let value = serde_json::from_str(&embedding).unwrap_or(Value::String(embedding));
                VoiceSource::Embedding(voice_request::embedding_of("speaker_embedding", &value)?)
            }
            (None, None) => return Err(missing("audio_sample", "a recording of the voice, as a file")),
        };
        Ok(NewVoice { name, source, consent, description })
    }
}

/// An embedding of 8192 numbers, written out, is the longest text.
fn limit(name: &str) -> usize {
    if name == "speaker_embedding" { 8 * MAX_TEXT } else { MAX_TEXT }
}
