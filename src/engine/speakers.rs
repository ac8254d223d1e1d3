//! Who speaks the pieces of a text: the voice of the request, and those that its markup names.

use super::Shared;
use super::api::{SpeechParams, SubmitError};
use super::plan::SpeechVoice;
use super::relay::Relay;
use super::voice::VoiceChoice;
use super::voices::Voiceprint;
use omni_core::text::markup::Place;
use std::sync::Arc;

/// The voices of one text, by the numbers of its [`Script`](super::script::Script).
pub(super) struct Speakers {
    /// The request, without its text.
    params: SpeechParams,
    voices: Vec<SpeechVoice>,
    /// Which of them the relay has.
    current: usize,
}

impl Speakers {
    /// The voice of the request alone, which the relay begins with.
    pub fn of(params: SpeechParams, voice: SpeechVoice) -> Speakers {
        Speakers { params, voices: vec![voice], current: 0 }
    }

    /// Reads those of `named` that are not known yet.
    ///
    /// # Errors
    /// A name that means no voice of this model.
    pub async fn add(&mut self, shared: &Arc<Shared>, named: &[(String, Place)]) -> Result<(), SubmitError> {
        for (name, place) in named.iter().skip(self.voices.len() - 1) {
            let at = |message: String| SubmitError::Invalid { param: "input", message: format!("{place}: {message}") };
            let voice = self.params.voice_names.find(name).map_err(at)?;
            let params = SpeechParams { voice, ..self.params.clone() };
            let voice = read(shared, params).await.map_err(|error| match error {
                SubmitError::Invalid { message, .. } => at(message),
                other => other,
            })?;
            self.voices.push(voice);
        }
        Ok(())
    }

    /// The voice of this number.
    pub fn voice(&self, number: usize) -> Option<&SpeechVoice> {
        self.voices.get(number)
    }

    /// Lets the relay speak with the voice of this number. A described voice keeps how it has sounded.
    pub fn switch(&mut self, relay: &mut Relay, number: usize) {
        if number != self.current
            && let Some(next) = self.voices.get(number).cloned()
        {
            self.voices[self.current] = std::mem::replace(&mut relay.options.voice, next);
            self.current = number;
        }
    }
}

async fn read(shared: &Arc<Shared>, params: SpeechParams) -> Result<SpeechVoice, SubmitError> {
    let print = voiceprint(shared, &params).await?;
    let instructions = params.instructions.as_ref().map_or(0, |text| text.chars().count());
    shared.plan(instructions, move |planner| planner.speech_options(&params, print.as_deref())).await.map(|o| o.voice)
}

/// The voice that the client gives or has uploaded, encoded; `None` for a speaker of the checkpoint.
pub(super) async fn voiceprint(shared: &Shared, params: &SpeechParams) -> Result<Option<Arc<Voiceprint>>, SubmitError> {
    let Some(voices) = &shared.voices else { return Ok(None) };
    let tenant = params.options.tenant.id;
    let print = match &params.voice {
        VoiceChoice::Embedding(_) => return Ok(None),
        VoiceChoice::Default => match &shared.info.default_voice {
            Some(name) if voices.has(name) => voices.named(name, tenant).await?,
            _ => return Ok(None),
        },
        VoiceChoice::Named { name, .. } if !voices.has(name) => return Ok(None),
        VoiceChoice::Named { name, x_vector_only } => {
            let print = voices.named(name, tenant).await?;
            if *x_vector_only { Arc::new(Voiceprint { reference: None, ..Voiceprint::clone(&print) }) } else { print }
        }
        VoiceChoice::Clone(recording) => voices.once(recording.clone(), tenant).await?,
    };
    Ok(Some(print))
}
