//! Voices by the names that clients give: in a field, and in the markup of a text.

use super::aliases::Aliases;
use super::api::short;
use super::rules::Current;
use omni_engine::{Service, TaskType, VoiceChoice, VoiceNames};
use std::sync::Arc;

/// Voices that a message lists.
const LISTED: usize = 20;

/// Finds voices under the rules that hold.
#[derive(Clone)]
pub(super) struct VoiceFinder {
    pub service: Arc<dyn Service>,
    pub rules: Arc<Current>,
}

impl VoiceFinder {
    /// A voice of the checkpoint or an uploaded one, in any case, or what an alias stands for; `None` is the default, or
    /// the voice that a request describes.
    ///
    /// # Errors
    /// There is none of this name; the text lists the voices.
    pub fn find(&self, asked: &str) -> Result<Option<String>, String> {
        let info = self.service.info();
        let lower = asked.to_lowercase();
        let voices = self.service.voices();
        let find = |lower: &str| {
            let own = info.voices.iter().find(|name| *name == lower).cloned();
            let uploaded = || voices.iter().find(|voice| voice.name.to_lowercase() == lower);
            own.or_else(|| uploaded().map(|voice| voice.name.clone()))
        };
        if let Some(found) = find(&lower) {
            return Ok(Some(found));
        }
        let rules = self.rules.get();
        let stands_for = match Aliases::of(&rules.aliases, info).voice(&lower) {
            Some(None) => return Ok(None),
            Some(Some(voice)) => match find(&voice.to_lowercase()) {
                Some(found) => return Ok(Some(found)),
                None => format!(", which stands for {:?}", short(voice)),
            },
            None => String::new(),
        };
        let mut names: Vec<&str> = voices.iter().take(LISTED).map(|voice| voice.name.as_str()).collect();
        if voices.len() > LISTED {
            names.push("... (see /v1/audio/voices)");
        }
        let advice = match info.tts.as_ref().map(|tts| tts.task) {
            _ if !names.is_empty() => format!("choose one of: {}", names.join(", ")),
            Some(TaskType::Base) => "upload one, or send ref_audio or speaker_embedding".to_owned(),
            Some(TaskType::VoiceDesign) => "describe the voice in instructions instead".to_owned(),
            _ => "this model has none".to_owned(),
        };
        Err(format!("there is no voice {:?}{stands_for}; {advice}", short(asked)))
    }

    /// The same for the markup of a text.
    pub fn names(self) -> VoiceNames {
        VoiceNames::new(move |name| self.find(name).map(VoiceChoice::named))
    }
}
