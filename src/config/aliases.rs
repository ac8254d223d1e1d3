//! `[aliases]`: other names under which clients ask for the model and its voices.

use super::access::texts;
use super::reader::Reader;
use std::collections::BTreeMap;

/// Longest alias, bytes.
const LONGEST: usize = 128;

/// `[aliases]`. What OpenAI's names stand for depends on the model, so the server resolves them.
#[derive(Clone, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct AliasesConfig {
    /// Whether OpenAI's names of models and voices lead to what is served.
    pub openai: bool,
    /// More names of the model.
    pub models: Vec<String>,
    /// More names of voices, each with the voice that it stands for; both in lower case.
    pub voices: BTreeMap<String, String>,
}

impl Default for AliasesConfig {
    fn default() -> AliasesConfig {
        AliasesConfig { openai: true, models: Vec::new(), voices: BTreeMap::new() }
    }
}

pub(super) fn aliases(r: &mut Reader) -> AliasesConfig {
    let openai = r.switch("aliases.openai", true);
    let allowed = format!("a list of names of 1 to {LONGEST} bytes, such as [\"kokoro\"]");
    let models = r.value("aliases.models", "[]", allowed, |value| texts(value, name)).unwrap_or_default();
    let allowed = format!("a table of names of 1 to {LONGEST} bytes, such as {{ narrator = \"ryan\" }}");
    let voices = r.names("aliases.voices", allowed, |alias, voice| {
        Some((name(alias)?.to_lowercase(), name(voice)?.to_lowercase()))
    });
    AliasesConfig { openai, models, voices }
}

pub(super) fn name(text: &str) -> Option<String> {
    let text = text.trim();
    ((1..=LONGEST).contains(&text.len()) && !text.chars().any(char::is_control)).then(|| text.to_owned())
}
