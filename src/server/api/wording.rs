//! What the text of a request means: its markup, and how its words are said.

use super::fields::{kind, wrong_type};
use super::values::{Text, schema, short};
use omni_core::text::MAX_SPOKEN;
use omni_engine::{Markup, Pronunciations};
use schemars::JsonSchema;
use serde::de::{Deserialize, Deserializer, Error};
use serde_json::Value;
use std::sync::Arc;

/// What the text means.
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
pub(crate) struct Wording {
    /// What of the text is markup: `ssml` or `brackets`. Default: `none`.
    pub markup: Option<MarkupName>,
    /// Whole words and how they are said, at most 100; a word without capital letters stands for any case. They go
    /// before those of the config. Default: those alone.
    pub pronunciations: Option<PronunciationList>,
}

/// The markup of a text; `None` speaks it as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MarkupName(pub Option<Markup>);

impl<'de> Deserialize<'de> for MarkupName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MarkupName, D::Error> {
        deserializer.deserialize_str(Text(|name: &str| match Markup::parse(name) {
            None if name != "none" => {
                Err(format!("{:?} is unknown; ask for \"ssml\", \"brackets\" or \"none\"", short(name)))
            }
            markup => Ok(MarkupName(markup)),
        }))
    }
}

schema!(MarkupName, "type": "string", "enum": ["ssml", "brackets", "none"]);

/// Most words of a request's list.
const MAX_PRONUNCIATIONS: usize = 100;

/// Words, and how they are said.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PronunciationList(pub Arc<Pronunciations>);

impl<'de> Deserialize<'de> for PronunciationList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PronunciationList, D::Error> {
        let words = match Value::deserialize(deserializer)? {
            Value::Object(words) => words,
            other => return Err(wrong_type(&other, "an object of words and how they are said")),
        };
        if words.len() > MAX_PRONUNCIATIONS {
            let message = format_args!("has {} words; expected {MAX_PRONUNCIATIONS} at most", words.len());
            return Err(D::Error::custom(message));
        }
        let mut list = Pronunciations::default();
        for (word, spoken) in &words {
            let inserted = match spoken {
                Value::String(spoken) => list.insert(word, spoken),
                other => Err(format!("expected a string, found {}", kind(other))),
            };
            inserted.map_err(|message| D::Error::custom(format_args!("{:?}: {message}", short(word))))?;
        }
        Ok(PronunciationList(Arc::new(list)))
    }
}

schema!(PronunciationList, "type": "object", "additionalProperties": { "type": "string", "maxLength": MAX_SPOKEN },
    "maxProperties": MAX_PRONUNCIATIONS);
