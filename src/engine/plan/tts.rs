//! Plans of Qwen3-TTS: a talker that reads the text itself.

use super::{Common, FollowedText, RequestPlan, SpeechOptions};
use crate::api::{SpeechParams, SubmitError};
use crate::voice::VoiceChoice;
use crate::voices::Voiceprint;
use omni_core::text;
use omni_model::hf::TtsConfig;
use omni_model::prompt::{Reference, Speaker, TtsPrepared, TtsPromptError, TtsPrompter, TtsRequest, TtsStream};
use omni_model::talker::TalkerPrompt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// Seconds of speech from which a voice that has a name or a sound of its own goes on: at least as many as the
/// checkpoints' makers ask of a recording, at most twice what a first piece takes. Each later prompt holds all of it.
const EXAMPLE: RangeInclusive<f64> = 3.0..=30.0;

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
    /// One of the others, with a piece that it has spoken.
    Continued {
        voice: Box<TtsSpeaker>,
        spoken: Reference,
    },
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
        let sequences = common.speech_sequences(prompt.prompt, common.most_frames(text, options), options, None)?;
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

    /// The voice that spoke `text` as `codes` (all groups of a frame, frame after frame, each a `frame` long), for the
    /// pieces that follow; `None` where they are better off without.
    pub fn continued(&self, voice: &TtsVoice, text: &str, codes: &[u32], frame: Duration) -> Option<TtsVoice> {
        let frames = codes.len() / self.config.talker.num_code_groups.max(1);
        let fair = fair_example(text, frame.as_secs_f64() * frames as f64);
        if codes.is_empty() || !(fair || voice.may_change()) {
            return None;
        }
        let spoken = Reference { text: text.into(), codes: codes.into() };
        let speaker = TtsSpeaker::Continued { voice: Box::new(voice.speaker.clone()), spoken };
        let mut voice = TtsVoice { speaker, prepared: None, ..voice.clone() };
        // What cannot be prepared is refused when the next piece is planned.
        voice.prepared = self.prompter.prepare(&voice.request("")).ok();
        Some(voice)
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
        let sequences = common.speech_sequences(prompt, options.frames_left, options, None)?;
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

    /// Whether the pieces of a text go on from its first one: the voice has no recording with a transcript, and none of
    /// its own speech yet.
    pub fn goes_on(&self) -> bool {
        matches!(self.speaker, TtsSpeaker::Unnamed | TtsSpeaker::Named(_) | TtsSpeaker::Cloned { reference: None, .. })
    }

    fn request<'a>(&'a self, text: &'a str) -> TtsRequest<'a> {
        TtsRequest {
            text,
            language: self.language.as_deref(),
            speaker: self.speaker.of_prompt(),
            instruct: self.instructions.as_deref(),
            non_streaming: self.non_streaming,
        }
    }
}

impl TtsSpeaker {
    fn of_prompt(&self) -> Speaker<'_> {
        match self {
            TtsSpeaker::Unnamed => Speaker::Unnamed,
            TtsSpeaker::Continued { voice, spoken } => {
                Speaker::Continued { voice: Box::new(voice.of_prompt()), spoken: spoken.clone() }
            }
            TtsSpeaker::Named(name) => Speaker::Named(name),
            TtsSpeaker::Cloned { x_vector, reference } => {
                Speaker::Cloned { x_vector: Arc::clone(x_vector), reference: reference.clone() }
            }
        }
    }
}

/// Whether speech of `seconds` that says `text` shows how its voice speaks: it is as long as a recording to clone should
/// be, and it did not run on behind its text, for which ordinary speech takes a quarter of the longest.
fn fair_example(text: &str, seconds: f64) -> bool {
    EXAMPLE.contains(&seconds) && seconds <= 0.5 * text::longest_seconds(text)
}

fn refuse(error: &TtsPromptError) -> SubmitError {
    SubmitError::Invalid { param: error.field(), message: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_voice_goes_on_from_speech_that_is_neither_short_nor_longer_than_its_text() {
        let piece = "word ".repeat(40);
        for seconds in [3.0, 14.0, 30.0] {
            assert!(fair_example(&piece, seconds), "{seconds}");
        }
        for seconds in [0.0, 2.9, 30.1] {
            assert!(!fair_example(&piece, seconds), "{seconds}");
        }
        assert!(fair_example("Hello, how are you today?", 4.0));
        assert!(!fair_example("Hello, how are you today?", 15.0), "it ran on");
    }
}
