//! A voice that is described and not recorded: a VoiceDesign model speaks a text in it, and that is the recording.

use super::api::FieldError;
use super::auth::Caller;
use super::budget::Held;
use super::error::ApiError;
use super::response::room;
use super::state::App;
use axum::http::StatusCode;
use omni_audio::{AudioFormat, Sound};
use omni_config::Scope;
use omni_core::ids::Frames;
use omni_engine::{Event, Recording, RequestOptions, Service, Slo, SpeechParams, SpeechRequest, TaskType, TextSource};
use std::sync::Arc;

/// What is said in the recording. Some seconds with most of the sounds of English, a statement and a question.
const TEXT: &str = "The old clock in the hall strikes nine, and a warm light falls through the kitchen window. \
    Who would have thought that such a quiet morning could begin with so much joy?";
/// Most frames of it: twice what the text takes, 20 s.
const MOST_FRAMES: u32 = 250;
/// The same description is the same voice.
const SEED: u64 = 0;

/// Speaks in the described voice.
///
/// # Errors
/// There is no VoiceDesign model, the key may not speak, or the model does not speak.
pub(super) async fn recording(app: &Arc<App>, caller: &Caller, description: &str) -> Result<Recording, ApiError> {
    let task = |service: &dyn Service| service.info().tts.as_ref().map(|tts| tts.task);
    let designs = app.models.iter().find(|model| task(&*model.service) == Some(TaskType::VoiceDesign));
    let Some(model) = designs else {
        let message = "describes a voice, for which this server needs a Qwen3-TTS VoiceDesign model among its [[models]]; \
             send audio_sample";
        return Err(FieldError::invalid("instructions", message).into());
    };
    let (chars, limit) = (description.chars().count(), app.limits().max_instruction_chars);
    FieldError::at_most("instructions", (chars, "characters"), limit, Some("limits.max_instruction_chars"))?;
    if !caller.may(Scope::Speak) {
        let message = "a described voice is spoken first; this key needs the scope \"speak\" too";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "insufficient_scope", message));
    }
    caller.visit.key().map_or(Ok(()), |key| key.may_speak())?;
    model.service.prepare().await?;
    let info = model.service.info();
    let longest = app.references.max_length.as_secs_f64() * f64::from(info.sample_rate);
    let frames = ((longest / f64::from(info.samples_per_frame)) as u32).min(MOST_FRAMES);
    let mut held = Held::nothing(&app.answers);
    // As numbers, and as samples of the file.
    room(&mut held, (frames * info.samples_per_frame) as usize * (size_of::<f32>() + size_of::<i16>())).await?;
    let params = SpeechParams {
        instructions: Some(description.to_owned()),
        task: Some(TaskType::VoiceDesign),
        max_frames: Some(Frames(frames)),
        seed: Some(SEED),
        whole: true,
        options: RequestOptions { tenant: caller.tenant, slo: Slo::BestEffort, ..RequestOptions::default() },
        ..SpeechParams::default()
    };
    let request = SpeechRequest { text: TextSource::Whole(TEXT.to_owned()), params };
    let mut stream = model.service.speak(request).await?;
    let mut samples = Vec::new();
    loop {
        match stream.next().await {
            Some(Event::Audio(chunk)) => {
                caller.spoke(chunk.samples.len(), info.sample_rate);
                samples.extend_from_slice(&chunk.samples);
            }
            Some(Event::Finished { .. }) => break,
            Some(Event::Failed(error)) => return Err(error.into()),
            Some(_) => {}
            None => return Err(ApiError::internal("the speech of the described voice has no end")),
        }
    }
    let mut writer = Sound::from(AudioFormat::Wav).writer(info.sample_rate)?;
    let mut file = writer.push(&samples)?;
    writer.complete(&mut file)?;
    Ok(Recording { audio: file.into(), text: Some(TEXT.to_owned()), x_vector_only: false })
}
