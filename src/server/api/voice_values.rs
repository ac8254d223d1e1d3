//! Values that say whose voice speaks: a name, a recording, an embedding.

use super::fields::{kind, wrong_type};
use super::values::schema;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde_json::Value;
use std::fmt;
use std::sync::Arc;

/// A voice's name: a string, or an object with it as OpenAI has it for custom voices. An empty string is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VoiceName(pub Option<String>);

impl<'de> Deserialize<'de> for VoiceName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<VoiceName, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(name) => Ok(VoiceName(Some(name).filter(|name| !name.is_empty()))),
            Value::Object(mut object) => match object.remove("id") {
                Some(Value::String(id)) => Ok(VoiceName(Some(id))),
                _ => Err(D::Error::custom("an object must have the voice's name as \"id\"")),
            },
            other => Err(wrong_type(&other, "a string")),
        }
    }
}

schema!(VoiceName, "oneOf": [
    { "type": "string" },
    { "type": "object", "properties": { "id": { "type": "string" } }, "required": ["id"] }
]);

/// A recording: base64, a data URL or an address. Clients of other servers put it in a list of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RefAudio<'a>(pub &'a str);

impl<'de: 'a, 'a> Deserialize<'de> for RefAudio<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RefAudio<'a>, D::Error> {
        /// Borrows the text, which may be megabytes.
        struct Borrowed;

        impl<'de> Visitor<'de> for Borrowed {
            type Value = RefAudio<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<RefAudio<'de>, E> {
                Ok(RefAudio(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<RefAudio<'de>, A::Error> {
                // An element that is no string is as wrong as a second one.
                let one = list.next_element::<&str>().ok().flatten();
                match (one, list.next_element::<serde::de::IgnoredAny>()?) {
                    (Some(one), None) => Ok(RefAudio(one)),
                    _ => Err(A::Error::custom("expected one recording, as a string")),
                }
            }
        }

        deserializer.deserialize_any(Borrowed)
    }
}

schema!(RefAudio<'_>, "oneOf": [
    { "type": "string" },
    { "type": "array", "items": { "type": "string" }, "minItems": 1, "maxItems": 1 }
]);

/// Numbers of the largest embedding that the server looks at; what the model needs the engine decides.
const MAX_EMBEDDING: usize = 8192;

/// An x-vector.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Embedding(pub Arc<[f32]>);

impl Embedding {
    /// A list of finite numbers.
    pub fn of(value: &Value) -> Result<Embedding, String> {
        let Value::Array(values) = value else {
            return Err(format!("expected a list of numbers, found {}", kind(value)));
        };
        if values.is_empty() || values.len() > MAX_EMBEDDING {
            return Err(format!("has {} numbers; expected 1 to {MAX_EMBEDDING}", values.len()));
        }
        let mut numbers = Vec::with_capacity(values.len());
        for (at, value) in values.iter().enumerate() {
            match value.as_f64().map(|number| number as f32) {
                Some(number) if number.is_finite() => numbers.push(number),
                Some(_) => return Err(format!("number {at} is too large")),
                None => return Err(format!("number {at} is {}; expected a list of numbers", kind(value))),
            }
        }
        Ok(Embedding(numbers.into()))
    }
}

impl<'de> Deserialize<'de> for Embedding {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Embedding, D::Error> {
        Embedding::of(&Value::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

schema!(Embedding, "type": "array", "items": { "type": "number" }, "minItems": 1, "maxItems": MAX_EMBEDDING);

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read<'de, T: Deserialize<'de>>(value: &'de Value) -> Result<T, String> {
        T::deserialize(value).map_err(|error| error.to_string())
    }

    #[test]
    fn a_recording_comes_alone_or_in_a_list_of_one() {
        assert_eq!(read(&json!("a")), Ok(RefAudio("a")));
        assert_eq!(read(&json!(["a"])), Ok(RefAudio("a")));
        for wrong in [json!([]), json!(["a", "b"]), json!([7]), json!([7, "a"])] {
            assert_eq!(read::<RefAudio<'_>>(&wrong), Err("expected one recording, as a string".to_owned()), "{wrong}");
        }
    }
}
