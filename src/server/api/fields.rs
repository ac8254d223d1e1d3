//! One JSON object of a request, read as one or several groups of fields.
//!
//! `null` counts as absent, as in OpenAI's API. A field that no group has is not an error; [`Fields::unknown`] lists
//! it.

use super::json::{Fields as Named, Layers, Object, Problem};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde_json::{Map, Value};
use std::cell::RefCell;

/// What is wrong with a field of a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FieldError {
    /// `invalid_type`, `invalid_value`, `missing_required_parameter`, `unsupported_parameter`.
    pub code: &'static str,
    /// The field, such as `messages[0].content[1]`.
    pub param: String,
    /// The field, what is wrong with its value and what is allowed.
    pub message: String,
}

impl FieldError {
    /// A value that is not allowed.
    pub fn invalid(param: impl Into<String>, message: impl std::fmt::Display) -> FieldError {
        let param = param.into();
        FieldError { code: "invalid_value", message: format!("{param}: {message}"), param }
    }

    /// A required field that is not there.
    pub fn missing(param: impl Into<String>, expected: &str) -> FieldError {
        let param = param.into();
        let message = format!("{param} is missing; it must be {expected}");
        FieldError { code: "missing_required_parameter", message, param }
    }

    /// A value of another type.
    pub fn wrong_type(param: impl Into<String>, expected: &str, found: &str) -> FieldError {
        let error = FieldError::invalid(param, format_args!("expected {expected}, found {found}"));
        FieldError { code: "invalid_type", ..error }
    }

    /// Refuses more of something (`what`: characters, messages) than a key of the config allows, which the message names
    /// if it is given.
    pub fn at_most(
        param: &str,
        (count, what): (usize, &str),
        limit: usize,
        key: Option<&str>,
    ) -> Result<(), FieldError> {
        if count <= limit {
            return Ok(());
        }
        let key = key.map_or(String::new(), |key| format!(" ({key})"));
        let message = format_args!("{count} {what} are more than the limit of {limit}{key}");
        Err(FieldError { code: "text_too_long", ..FieldError::invalid(param, message) })
    }
}

/// Most unknown fields that are told; a request may have a hundred thousand.
const MAX_UNKNOWN: usize = 16;

/// One JSON object of a request.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    layers: Layers<'a>,
    /// Path of the object with a dot behind, such as `audio.`; empty at the top.
    path: String,
    /// Names of fields that a group has read.
    known: RefCell<Vec<&'static str>>,
}

impl<'a> Fields<'a> {
    /// The object of a request or a message itself.
    pub fn top(map: &'a Map<String, Value>) -> Fields<'a> {
        Fields { layers: Layers { map, under: None }, path: String::new(), known: RefCell::default() }
    }

    /// The object of an item, whose fields go before those that all items of its request share.
    pub fn item(map: &'a Map<String, Value>, shared: &'a Map<String, Value>) -> Fields<'a> {
        Fields { layers: Layers { map, under: Some(shared) }, ..Fields::top(map) }
    }

    /// Reads a group of fields.
    pub fn read<T: Deserialize<'a>>(&self) -> Result<T, FieldError> {
        T::deserialize(Group(self)).map_err(|Problem { code, path, message }| {
            let param = self.name(&path);
            FieldError { code, message: format!("{param}: {message}"), param }
        })
    }

    /// An object inside of this one.
    pub fn object(&self, field: &'static str) -> Result<Option<Fields<'a>>, FieldError> {
        self.known.borrow_mut().push(field);
        let path = format!("{}.", self.name(field));
        match self.layers.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Fields { path, ..Fields::top(map) })),
            Some(other) => Err(FieldError::wrong_type(self.name(field), "an object", kind(other))),
        }
    }

    /// Refuses fields that would change the answer and that the server cannot honour. Empty values and `false` pass.
    pub fn refuse(&self, refused: &[(&'static str, &str)]) -> Result<(), FieldError> {
        for (field, why) in refused {
            self.known.borrow_mut().push(field);
            let empty = match self.layers.get(field) {
                None | Some(Value::Null | Value::Bool(false)) => true,
                Some(Value::String(text)) => text.is_empty(),
                Some(Value::Array(values)) => values.is_empty(),
                Some(Value::Object(map)) => map.is_empty(),
                Some(_) => false,
            };
            if !empty {
                return Err(FieldError { code: "unsupported_parameter", ..FieldError::invalid(self.name(field), why) });
            }
        }
        Ok(())
    }

    /// Names of the fields that no group has read and that are not `harmless`, and not more of them than are told.
    pub fn unknown(&self, harmless: &[&str]) -> Vec<String> {
        let known = self.known.borrow();
        let is_known = |name: &str| known.contains(&name) || harmless.contains(&name);
        let names = self.layers.names().filter(|name| !is_known(name));
        names.take(MAX_UNKNOWN).map(|name| self.name(name)).collect()
    }

    /// The full name of a field.
    fn name(&self, field: &str) -> String {
        format!("{}{field}", self.path)
    }
}

/// Notes which fields the struct that reads the object has.
struct Group<'f, 'a>(&'f Fields<'a>);

impl<'de> Deserializer<'de> for Group<'_, 'de> {
    type Error = Problem;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        Object(self.0.layers.map).deserialize_any(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Problem> {
        self.0.known.borrow_mut().extend(fields);
        visitor.visit_map(Named::new(self.0.layers, fields))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// What a JSON value is, in words.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The error of a value that is of another type than `expected`.
pub(super) fn wrong_type<E: de::Error>(value: &Value, expected: &str) -> E {
    let found = match value {
        Value::Null => de::Unexpected::Unit,
        Value::Bool(value) => de::Unexpected::Bool(*value),
        Value::Number(number) => de::Unexpected::Float(number.as_f64().unwrap_or(f64::NAN)),
        Value::String(text) => de::Unexpected::Str(text),
        Value::Array(_) => de::Unexpected::Seq,
        Value::Object(_) => de::Unexpected::Map,
    };
    E::invalid_type(found, &expected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Inner {
        word: Option<String>,
    }

    #[derive(Debug, Default, PartialEq, serde::Deserialize)]
    struct Outer {
        flag: Option<bool>,
        list: Option<Vec<Inner>>,
    }

    fn read(value: &Value) -> Result<Outer, FieldError> {
        Fields::top(value.as_object().unwrap()).read()
    }

    #[test]
    fn null_counts_as_absent() {
        assert_eq!(read(&json!({"flag": null, "list": null})), Ok(Outer::default()));
        let null = json!({"a": null});
        assert_eq!(Fields::top(null.as_object().unwrap()).refuse(&[("a", "no")]), Ok(()));
    }

    #[test]
    fn an_error_names_the_place_what_was_expected_and_what_was_found() {
        for (value, param, message) in [
            (json!({"flag": 1}), "flag", "flag: expected true or false, found a number"),
            (json!({"list": {}}), "list", "list: expected an array, found an object"),
            (json!({"list": [{}, "a"]}), "list[1]", "list[1]: expected an object, found a string"),
            (json!({"list": [{"word": []}]}), "list[0].word", "list[0].word: expected a string, found an array"),
        ] {
            let error = read(&value).unwrap_err();
            assert_eq!((error.code, error.param.as_str(), error.message.as_str()), ("invalid_type", param, message));
        }
    }

    #[test]
    fn fields_of_no_group_are_unknown() {
        let value = json!({"flag": true, "flog": true, "user": "a", "stop": [], "inner": {"word": "a", "ward": "b"}});
        let fields = Fields::top(value.as_object().unwrap());
        fields.read::<Outer>().unwrap();
        fields.refuse(&[("stop", "no")]).unwrap();
        let inner = fields.object("inner").unwrap().unwrap();
        inner.read::<Inner>().unwrap();
        assert_eq!(fields.unknown(&["user"]), ["flog"]);
        assert_eq!(inner.unknown(&[]), ["inner.ward"]);
    }

    #[test]
    fn the_fields_of_an_item_go_before_those_that_all_share() {
        let item = json!({"flag": null, "list": [{"word": "own"}], "mine": 1, "ours": null});
        let shared = json!({"flag": true, "list": [], "inner": {}, "ours": 2});
        let fields = Fields::item(item.as_object().unwrap(), shared.as_object().unwrap());
        let read: Outer = fields.read().unwrap();
        let own = Inner { word: Some("own".to_owned()) };
        assert_eq!(read, Outer { flag: Some(true), list: Some(vec![own]) });
        assert_eq!(fields.unknown(&["inner"]), ["mine", "ours"]);
        assert!(fields.refuse(&[("ours", "no")]).is_err());
    }

    #[test]
    fn only_so_many_unknown_fields_are_told() {
        let many: Map<String, Value> = (0..1000).map(|number| (format!("field-{number}"), json!(number))).collect();
        assert_eq!(Fields::top(&many).unknown(&[]).len(), MAX_UNKNOWN);
    }
}
