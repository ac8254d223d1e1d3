//! The voices that clients are told, and who speaks a request.

use super::event::{Attribution, Info, Program, Voice, VoiceEntry};
use crate::api::{FieldError, short};
use crate::error::ApiError;
use crate::state::App;
use omni_config::WyomingConfig;
use omni_engine::{RequestOptions, Slo, SpeechParams, Tenant, TtsInfo, VoiceChoice};

/// Most voices that a client is told.
const TOLD: usize = 1000;
/// The name that stands for the voice of a model that has none by name: a client can only choose from a list.
const DESCRIBED: &str = "described";
/// Who made the program. The voices are attributed to the model that is served.
const PROGRAM: &str = "omni-actors";

/// What clients call the languages that checkpoints name.
const LANGUAGES: [(&str, &str); 10] = [
    ("zh", "chinese"),
    ("en", "english"),
    ("fr", "french"),
    ("de", "german"),
    ("it", "italian"),
    ("ja", "japanese"),
    ("ko", "korean"),
    ("pt", "portuguese"),
    ("ru", "russian"),
    ("es", "spanish"),
];

/// What the server is, for `describe`.
pub(super) fn info(app: &App, config: &WyomingConfig) -> Info {
    let model = app.service.info();
    let languages = languages(config, model.tts.as_ref());
    let entry = |name: &str, description: Option<&str>| VoiceEntry {
        name: name.to_owned(),
        attribution: Attribution { name: model.id.clone(), url: "" },
        installed: true,
        description: Some(shown(description, name)),
        version: None,
        languages: languages.clone(),
        speakers: None,
    };
    let known = app.service.voices();
    let mut voices: Vec<_> = known
        .iter()
        .take(TOLD)
        .map(|voice| {
            let described = voice.upload.as_ref().and_then(|upload| upload.description.as_deref());
            entry(&voice.name, described)
        })
        .collect();
    if voices.is_empty() {
        voices.push(entry(DESCRIBED, config.instructions.as_deref().or(Some("the voice of the model"))));
    }
    let program = Program {
        name: PROGRAM,
        attribution: Attribution { name: PROGRAM.to_owned(), url: "" },
        installed: true,
        description: format!("{PROGRAM} with {}", model.id),
        version: env!("CARGO_PKG_VERSION"),
        voices,
        supports_synthesize_streaming: true,
    };
    Info { tts: vec![program], ..Info::default() }
}

/// What clients show in the place of a voice's name: the beginning of its description, since the answer has all voices.
fn shown(description: Option<&str>, name: &str) -> String {
    description.filter(|text| !text.is_empty()).map_or_else(|| name.to_owned(), short)
}

/// The codes of the languages that are spoken.
fn languages(config: &WyomingConfig, tts: Option<&TtsInfo>) -> Vec<String> {
    if !config.languages.is_empty() {
        return config.languages.clone();
    }
    let Some(tts) = tts else { return vec!["en".to_owned()] };
    tts.languages.iter().map(|name| code(name).to_owned()).collect()
}

/// What clients call a language of a checkpoint.
fn code(name: &str) -> &str {
    LANGUAGES.iter().find(|(_, known)| *known == name).map_or(name, |(code, _)| code)
}

/// A request of this voice, without its text.
///
/// # Errors
/// A voice or a language that the model does not have.
pub(super) fn params(
    app: &App,
    config: &WyomingConfig,
    tenant: Tenant,
    asked: &Voice,
) -> Result<SpeechParams, ApiError> {
    let model = app.service.info();
    let (field, name) = match &asked.speaker {
        Some(speaker) => ("voice.speaker", Some(speaker.as_str())),
        None => ("voice.name", asked.name.as_deref()),
    };
    let voice = match name {
        Some(DESCRIBED) if app.service.voices().is_empty() => VoiceChoice::Default,
        name => VoiceChoice::named(app.check_voice(field, name)?),
    };
    // Qwen3-Omni hears the language in the text.
    let language = match (&asked.language, &model.tts) {
        (Some(asked), Some(tts)) => Some(language(asked, tts)?),
        _ => None,
    };
    let options =
        RequestOptions { tenant, slo: Slo::Realtime(app.limits().first_audio_deadline), ..RequestOptions::default() };
    let instructions = config.instructions.clone();
    Ok(SpeechParams { voice, language, instructions, seed: config.seed, options, ..SpeechParams::default() })
}

/// The language of a checkpoint that a client calls `de`, `de-DE`, `de_DE` or `German`.
fn language(asked: &str, tts: &TtsInfo) -> Result<String, FieldError> {
    let lower = asked.to_lowercase();
    let code = lower.split(['-', '_']).next().unwrap_or_default();
    let name = LANGUAGES.iter().find(|(known, _)| *known == code).map_or(lower.as_str(), |(_, name)| name);
    if name == "auto" || tts.languages.iter().any(|known| known == name) {
        return Ok(name.to_owned());
    }
    let known = languages(&WyomingConfig::default(), Some(tts)).join(", ");
    let message = format_args!("{:?} is not spoken by this model; choose one of: auto, {known}", short(asked));
    Err(FieldError::invalid("voice.language", message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_engine::TaskType;

    #[test]
    fn a_voice_is_shown_by_the_beginning_of_its_description() {
        assert_eq!(
            [shown(None, "heart"), shown(Some(""), "heart"), shown(Some("low"), "heart")],
            ["heart", "heart", "low"]
        );
        let long = shown(Some(&"ü".repeat(4000)), "heart");
        assert_eq!((long.chars().count(), long.chars().last()), (65, Some('…')));
    }

    #[test]
    fn languages_have_codes_for_clients_and_names_for_the_model() {
        let languages_of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let known = languages_of(&["english", "german", "klingon"]);
        let tts = TtsInfo { task: TaskType::CustomVoice, languages: known, instructions: false };
        assert_eq!(languages(&WyomingConfig::default(), Some(&tts)), ["en", "de", "klingon"]);
        assert_eq!(languages(&WyomingConfig::default(), None), ["en"]);
        let config = WyomingConfig { languages: languages_of(&["de"]), ..WyomingConfig::default() };
        assert_eq!(languages(&config, Some(&tts)), ["de"]);
        for (asked, name) in [("de", "german"), ("de-AT", "german"), ("en_US", "english"), ("German", "german")] {
            assert_eq!(language(asked, &tts).as_deref(), Ok(name), "{asked}");
        }
        assert_eq!(language("auto", &tts).as_deref(), Ok("auto"));
        let error = language("fr", &tts).unwrap_err();
        assert_eq!(
            error.message,
            "voice.language: \"fr\" is not spoken by this model; choose one of: auto, en, de, klingon"
        );
    }
}
