//! Other names of the model and its voices: OpenAI's, which clients send by default, and those of the config. What is
//! served under a name of its own goes before an alias of that name; the callers see to that.

use omni_config::AliasesConfig;
use omni_engine::{ModelInfo, TaskType};

/// OpenAI's models that speak. A name of these and a date behind it is the same model.
const MODELS: [&str; 16] = [
    "gpt-4o-mini-tts",
    "tts-1",
    "tts-1-hd",
    "gpt-audio",
    "gpt-audio-mini",
    "gpt-audio-1.5",
    "gpt-4o-audio-preview",
    "gpt-4o-mini-audio-preview",
    "gpt-realtime",
    "gpt-realtime-mini",
    "gpt-realtime-1.5",
    "gpt-realtime-2",
    "gpt-realtime-2.1",
    "gpt-realtime-2.1-mini",
    "gpt-4o-realtime-preview",
    "gpt-4o-mini-realtime-preview",
];
/// OpenAI's voices. The order decides which voice each stands for, so new ones come at the end.
const VOICES: [&str; 13] =
    ["alloy", "ash", "ballad", "coral", "echo", "fable", "nova", "onyx", "sage", "shimmer", "verse", "marin", "cedar"];

/// An entry of `[aliases]` that does not fit the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
pub struct AliasError {
    /// The key of the config.
    pub key: String,
    /// What is wrong with it, and what is allowed.
    pub message: String,
}

/// The aliases of one model under one config.
#[derive(Clone, Copy, Debug)]
pub struct Aliases<'a> {
    config: &'a AliasesConfig,
    model: &'a ModelInfo,
}

impl<'a> Aliases<'a> {
    /// The aliases, not checked.
    pub fn of(config: &'a AliasesConfig, model: &'a ModelInfo) -> Aliases<'a> {
        Aliases { config, model }
    }

    /// Whether each entry of the config leads somewhere.
    ///
    /// # Errors
    /// The first alias that has the name of a voice of the checkpoint, or that names none of them.
    pub fn check(&self) -> Result<(), AliasError> {
        let voices = &self.model.voices;
        let error = |alias: &str, message| Err(AliasError { key: format!("aliases.voices.{alias}"), message });
        for (alias, voice) in &self.config.voices {
            if voices.contains(alias) {
                return error(alias, "is a voice of the checkpoint, which goes before an alias".to_owned());
            }
            match self.task() {
                // Uploaded voices come and go.
                Some(TaskType::Base) => {}
                Some(TaskType::VoiceDesign) => return error(alias, "this checkpoint has no voices to name".to_owned()),
                _ if voices.contains(voice) => {}
                _ => return error(alias, format!("there is no voice {voice:?}; choose one of: {}", voices.join(", "))),
            }
        }
        Ok(())
    }

    /// Whether a name, with or without an owner before it, stands for the model.
    pub fn has_model(&self, asked: &str) -> bool {
        let asked = own_name(asked);
        let is_openai = || MODELS.iter().any(|name| asked.strip_prefix(name).is_some_and(is_date));
        self.config.models.iter().any(|name| own_name(name) == asked) || (self.config.openai && is_openai())
    }

    /// The voice that a name in lower case stands for. `Some(None)` is the voice that the request describes.
    pub fn voice(&self, asked: &str) -> Option<Option<&'a str>> {
        if let Some(voice) = self.config.voices.get(asked) {
            return Some(Some(voice));
        }
        let index = VOICES.iter().position(|name| *name == asked).filter(|_| self.config.openai)?;
        self.openai_voice(index)
    }

    /// The config's names of the model; with `all` OpenAI's too, without dates.
    pub fn models(self, all: bool) -> impl Iterator<Item = &'a str> {
        let openai = MODELS.into_iter().filter(move |_| all && self.config.openai);
        self.config.models.iter().map(String::as_str).chain(openai)
    }

    /// The config's names of voices with the voices that they stand for; with `all` OpenAI's too. A name that a voice of
    /// the checkpoint has is left out.
    pub fn voices(self, all: bool) -> Vec<(&'a str, &'a str)> {
        let own = self.config.voices.iter().map(|(alias, voice)| (alias.as_str(), voice.as_str()));
        let openai = VOICES.into_iter().enumerate().filter(|_| all && self.config.openai);
        let openai = openai.filter(|(_, name)| !self.config.voices.contains_key(*name));
        let openai = openai.filter_map(|(index, name)| Some((name, self.openai_voice(index)??)));
        own.chain(openai).filter(|(name, _)| !self.model.voices.iter().any(|voice| voice == name)).collect()
    }

    /// The voice of an OpenAI name: the default one for the first name, then the speakers in their order, again and again.
    fn openai_voice(&self, index: usize) -> Option<Option<&'a str>> {
        let default = self.model.default_voice.as_deref();
        match self.task() {
            Some(TaskType::VoiceDesign) => Some(None),
            Some(TaskType::Base) => default.map(Some),
            _ => {
                let others = self.model.voices.iter().map(String::as_str).filter(|voice| Some(*voice) != default);
                let speakers: Vec<&str> = default.into_iter().chain(others).collect();
                (!speakers.is_empty()).then(|| Some(speakers[index % speakers.len()]))
            }
        }
    }

    fn task(&self) -> Option<TaskType> {
        self.model.tts.as_ref().map(|tts| tts.task)
    }
}

/// Whether each entry of the config leads somewhere, with one of these models.
///
/// # Errors
/// What is wrong with the entries for the first model, where they fit none.
pub fn check_aliases<'a>(
    config: &AliasesConfig,
    models: impl Iterator<Item = &'a ModelInfo>,
) -> Result<(), AliasError> {
    let mut first = Ok(());
    for (i, model) in models.enumerate() {
        match Aliases::of(config, model).check() {
            Ok(()) => return Ok(()),
            wrong if i == 0 => first = wrong,
            _ => {}
        }
    }
    first
}

/// A model's name without its owner: clients say `Qwen/Qwen3-TTS-12Hz-1.7B-Base` for a folder of the last name.
pub(super) fn own_name(model: &str) -> &str {
    model.rsplit('/').next().unwrap_or(model)
}

/// What stands behind the name of a model: nothing, or `-` and a date.
fn is_date(rest: &str) -> bool {
    let digits = |date: &str| (4..=10).contains(&date.len()) && date.bytes().all(|b| b.is_ascii_digit() || b == b'-');
    rest.is_empty() || rest.strip_prefix('-').is_some_and(digits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_engine::TtsInfo;

    fn model(voices: &[&str], default: Option<&str>, task: Option<TaskType>) -> ModelInfo {
        ModelInfo {
            id: "served".to_owned(),
            voices: voices.iter().map(|&name| name.to_owned()).collect(),
            default_voice: default.map(str::to_owned),
            sample_rate: 24_000,
            samples_per_frame: 1920,
            fade_in: std::time::Duration::ZERO,
            word_times: true,
            hears: false,
            window: std::time::Duration::ZERO,
            sees: false,
            tools: false,
            tts: task.map(|task| TtsInfo { task, languages: Vec::new(), instructions: true }),
        }
    }

    fn config(voices: &[(&str, &str)]) -> AliasesConfig {
        let voices = voices.iter().map(|(alias, voice)| ((*alias).to_owned(), (*voice).to_owned())).collect();
        AliasesConfig { models: vec!["kokoro".to_owned()], voices, ..AliasesConfig::default() }
    }

    #[test]
    fn openais_voices_are_spread_over_the_speakers_and_alloy_is_the_default() {
        let (config, model) = (config(&[]), model(&["a", "b", "c"], Some("b"), Some(TaskType::CustomVoice)));
        let aliases = Aliases::of(&config, &model);
        let expected = ["b", "a", "c", "b", "a", "c", "b", "a", "c", "b", "a", "c", "b"];
        assert_eq!(aliases.voices(true), VOICES.into_iter().zip(expected).collect::<Vec<_>>());
        for (name, voice) in VOICES.into_iter().zip(expected) {
            assert_eq!(aliases.voice(name), Some(Some(voice)), "{name}");
        }
        assert_eq!(aliases.voice("a voice of nobody"), None);
    }

    #[test]
    fn all_lead_to_the_only_speaker() {
        let (config, model) = (config(&[]), model(&["heart"], Some("heart"), None));
        assert!(VOICES.iter().all(|name| Aliases::of(&config, &model).voice(name) == Some(Some("heart"))));
    }

    #[test]
    fn a_checkpoint_without_speakers_has_its_default_or_the_described_voice_or_none() {
        let config = config(&[]);
        let base = |default| model(&[], default, Some(TaskType::Base));
        assert_eq!(Aliases::of(&config, &base(None)).voice("alloy"), None);
        assert_eq!(Aliases::of(&config, &base(None)).voices(true), []);
        assert_eq!(Aliases::of(&config, &base(Some("mine"))).voice("cedar"), Some(Some("mine")));
        let design = model(&[], None, Some(TaskType::VoiceDesign));
        assert_eq!(Aliases::of(&config, &design).voice("alloy"), Some(None));
        assert_eq!(Aliases::of(&config, &design).voices(true), []);
    }

    #[test]
    fn entries_of_the_config_go_before_openais_which_can_be_turned_off() {
        let model = model(&["a", "b"], Some("a"), None);
        let mut config = config(&[("alloy", "b"), ("narrator", "a")]);
        let aliases = Aliases::of(&config, &model);
        assert_eq!((aliases.voice("alloy"), aliases.voice("ash")), (Some(Some("b")), Some(Some("b"))));
        assert_eq!(aliases.voices(false), [("alloy", "b"), ("narrator", "a")]);
        assert_eq!(aliases.voices(true).len(), 14);
        assert!(aliases.has_model("kokoro") && aliases.has_model("tts-1"));
        config.openai = false;
        let aliases = Aliases::of(&config, &model);
        assert_eq!((aliases.voice("alloy"), aliases.voice("ash")), (Some(Some("b")), None));
        assert!(aliases.has_model("kokoro") && !aliases.has_model("tts-1"));
        assert_eq!(aliases.models(true).collect::<Vec<_>>(), ["kokoro"]);
    }

    #[test]
    fn a_dated_model_is_the_model() {
        let (config, model) = (config(&[]), model(&["a"], Some("a"), None));
        let aliases = Aliases::of(&config, &model);
        for name in [
            "tts-1",
            "tts-1-1106",
            "tts-1-hd-1106",
            "gpt-4o-mini-tts-2025-12-15",
            "gpt-audio-2025-08-28",
            "openai/tts-1",
        ] {
            assert!(aliases.has_model(name), "{name}");
        }
        for name in ["tts-2", "tts-1-", "tts-1-x", "tts-11", "gpt-4o-mini-tts-latest", "gpt-4o", "whisper-1", ""] {
            assert!(!aliases.has_model(name), "{name}");
        }
    }

    #[test]
    fn an_entry_that_leads_nowhere_or_is_never_used_is_an_error() {
        let check = |entry: (&str, &str), model: &ModelInfo| Aliases::of(&config(&[entry]), model).check();
        let speakers = model(&["a", "b"], Some("a"), None);
        assert_eq!(check(("narrator", "b"), &speakers), Ok(()));
        let error = check(("narrator", "c"), &speakers).unwrap_err();
        assert_eq!(error.to_string(), "aliases.voices.narrator: there is no voice \"c\"; choose one of: a, b");
        assert!(check(("a", "b"), &speakers).unwrap_err().message.contains("is a voice of the checkpoint"));
        // OpenAI's names are no voices.
        assert!(check(("narrator", "alloy"), &speakers).is_err());
        assert_eq!(check(("narrator", "mine"), &model(&[], None, Some(TaskType::Base))), Ok(()));
        assert!(check(("narrator", "x"), &model(&[], None, Some(TaskType::VoiceDesign))).is_err());
    }
}
