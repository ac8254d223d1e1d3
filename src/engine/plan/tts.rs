//! Plans of Qwen3-TTS: a talker that reads the text itself.

use super::{Common, FollowedText, RequestPlan, SpeechOptions};
use crate::api::{SpeechParams, SubmitError};
use crate::voice::VoiceChoice;
use crate::voices::Voiceprint;
use omni_model::hf::TtsConfig;
use omni_model::prompt::{Reference, Speaker, TtsPrepared, TtsPromptError, TtsPrompter, TtsRequest, TtsStream};
use omni_model::talker::TalkerPrompt;
use std::sync::Arc;

/// See the module.
pub(crate) struct TtsPlanner {
    pub prompter: TtsPrompter,
    pub config: Arc<TtsConfig>,
    pub default_voice: Option<String>,
}

/// All that a prompt says besides the text.
#[derive(Clone, Debug)]
pub(crate) struct TtsVoice {
    speaker: TtsSpeaker,
    language: Option<String>,
    instructions: Option<String>,
    non_streaming: Option<bool>,
    /// All of it, tokenized once for all pieces of a text. `None` until it is needed.
    prepared: Option<TtsPrepared>,
}

#[derive(Clone, Debug)]
enum TtsSpeaker {
    Unnamed,
    /// Described, with a piece that it has spoken.
    Continued(Reference),
    Named(String),
    Cloned {
        x_vector: Arc<[f32]>,
        reference: Option<Reference>,
    },
}

impl TtsPlanner {
    /// One piece of a text to be spoken.
    pub fn speech(
        &self,
        common: &Common,
        text: &str,
        voice: &TtsVoice,
        options: &SpeechOptions,
    ) -> Result<RequestPlan, SubmitError> {
        let prompt = match &voice.prepared {
            Some(prepared) => self.prompter.prompt_for(prepared, text),
            None => self.prompter.prompt(&voice.request(text)),
        };
        let prompt = prompt.map_err(|error| refuse(&error))?;
        let sequences = common.speech_sequences(prompt.prompt, common.most_frames(text, options), options)?;
        let used = prompt.tokens.len() as u32;
        Ok(common.spoken(sequences.into(), used, FollowedText { tokens: prompt.tokens, ended: true }, options))
    }

    /// A text that is spoken while it is being written.
    pub fn stream(&self, voice: &TtsVoice) -> Result<TtsStream, SubmitError> {
        let stream = match &voice.prepared {
            Some(prepared) => self.prompter.stream_for(prepared, ""),
            None => self.prompter.stream(&voice.request("")),
        };
        stream.map_err(|error| refuse(&error))
    }

    /// The voice that spoke `text` as `codes`, for the pieces that follow.
    pub fn continued(&self, voice: &TtsVoice, text: &str, codes: &[u32]) -> TtsVoice {
        let spoken = Reference { text: text.into(), codes: codes.into() };
        let mut voice = TtsVoice { speaker: TtsSpeaker::Continued(spoken), prepared: None, ..voice.clone() };
        // What cannot be prepared is refused when the next piece is planned.
        voice.prepared = self.prompter.prepare(&voice.request("")).ok();
        voice
    }

    /// The sequences of such a text, when it has begun; unless it has `ended`, more tokens follow.
    pub fn begun(
        &self,
        common: &Common,
        prompt: Arc<TalkerPrompt>,
        tokens: Vec<u32>,
        ended: bool,
        options: &SpeechOptions,
    ) -> Result<RequestPlan, SubmitError> {
        let sequences = common.speech_sequences(prompt, options.frames_left, options)?;
        let used = tokens.len() as u32;
        Ok(common.spoken(sequences.into(), used, FollowedText { tokens, ended }, options))
    }

    /// Checks what a request asks of this checkpoint. `print` is the voice that the client gives, encoded.
    pub fn voice(&self, params: &SpeechParams, print: Option<&Voiceprint>) -> Result<TtsVoice, SubmitError> {
        let task = self.config.variant;
        if let Some(asked) = params.task.filter(|asked| *asked != task) {
            let message = format!("{asked} needs another checkpoint: this one is for {task}");
            return Err(SubmitError::Invalid { param: "task_type", message });
        }
        let speaker = match (print, &params.voice) {
            (Some(print), _) => {
                let reference = print
                    .reference
                    .as_ref()
                    .map(|spoken| Reference { text: Arc::clone(&spoken.text), codes: Arc::clone(&spoken.codes) });
                TtsSpeaker::Cloned { x_vector: Arc::clone(&print.x_vector), reference }
            }
            (None, VoiceChoice::Embedding(x_vector)) => {
                TtsSpeaker::Cloned { x_vector: Arc::clone(x_vector), reference: None }
            }
            (None, VoiceChoice::Named { name, .. }) => TtsSpeaker::Named(name.clone()),
            (None, VoiceChoice::Default) => self.default_voice.clone().map_or(TtsSpeaker::Unnamed, TtsSpeaker::Named),
            // It was not encoded, because this checkpoint has no encoders.
            (None, VoiceChoice::Clone(_)) => return Err(refuse(&TtsPromptError::NoCloning(task))),
        };
        let mut voice = TtsVoice {
            speaker,
            language: params.language.clone(),
            instructions: params.instructions.clone(),
            non_streaming: params.non_streaming,
            prepared: None,
        };
        match (self.prompter.prepare(&voice.request("")), &params.voice) {
            (Ok(prepared), _) => {
                voice.prepared = Some(prepared);
                Ok(voice)
            }
            (Err(error @ TtsPromptError::Voice(_)), VoiceChoice::Embedding(_)) => {
                Err(SubmitError::Invalid { param: "speaker_embedding", message: error.to_string() })
            }
            (Err(error), _) => Err(refuse(&error)),
        }
    }
}

impl TtsVoice {
    /// Whether the talker is to have the whole text before it speaks.
    pub fn wants_whole_text(&self) -> bool {
        self.non_streaming == Some(true)
    }

    /// Whether each piece of a text could get another voice: many voices fit a description.
    pub fn may_change(&self) -> bool {
        matches!(self.speaker, TtsSpeaker::Unnamed)
    }

    fn request<'a>(&'a self, text: &'a str) -> TtsRequest<'a> {
        let speaker = match &self.speaker {
            TtsSpeaker::Unnamed => Speaker::Unnamed,
            TtsSpeaker::Continued(before) => Speaker::Continued(before.clone()),
            TtsSpeaker::Named(name) => Speaker::Named(name),
            TtsSpeaker::Cloned { x_vector, reference } => {
                Speaker::Cloned { x_vector: Arc::clone(x_vector), reference: reference.clone() }
            }
        };
        TtsRequest {
            text,
            language: self.language.as_deref(),
            speaker,
            instruct: self.instructions.as_deref(),
            non_streaming: self.non_streaming,
        }
    }
}

fn refuse(error: &TtsPromptError) -> SubmitError {
    SubmitError::Invalid { param: error.field(), message: error.to_string() }
}
