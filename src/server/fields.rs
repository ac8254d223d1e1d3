//! Reads the fields of a JSON object one by one, so that every error names its field and says what is allowed.
//!
//! `null` counts as absent, as in OpenAI's API. Fields nobody asked for are not errors; [`Fields::unknown`] lists them.

use super::error::ApiError;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// One JSON object of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// Path of the object with a dot behind, such as `audio.`; empty at the top.
    path: &'static str,
}

impl<'a> Fields<'a> {
    pub fn top(map: &'a Map<String, Value>) -> Fields<'a> {
        Fields { map, path: "" }
    }

    /// The full name of a field, for errors.
    pub fn name(&self, field: &str) -> String {
        format!("{}{field}", self.path)
    }

    /// The field's value unless it is absent or null.
    pub fn get(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    pub fn invalid(&self, field: &str, message: impl std::fmt::Display) -> ApiError {
        let name = self.name(field);
        ApiError::invalid(name.clone(), format!("{name}: {message}"))
    }

    fn wrong_type(&self, field: &str, expected: &str) -> ApiError {
        let found = self.get(field).map_or("nothing", kind);
        ApiError { code: "invalid_type", ..self.invalid(field, format_args!("expected {expected}, found {found}")) }
    }

    /// The error of a required field that is not there.
    pub fn missing(&self, field: &str, expected: &str) -> ApiError {
        let name = self.name(field);
        let message = format!("{name} is missing; it must be {expected}");
        ApiError { code: "missing_required_parameter", ..ApiError::invalid(name, message) }
    }

    pub fn string(&self, field: &str) -> Result<Option<&'a str>, ApiError> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong_type(field, "a string")),
        }
    }

    pub fn boolean(&self, field: &str) -> Result<Option<bool>, ApiError> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(_) => Err(self.wrong_type(field, "true or false")),
        }
    }

    pub fn float(&self, field: &str, allowed: RangeInclusive<f64>) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let number = value.as_f64().filter(|_| value.is_number()).ok_or_else(|| self.wrong_type(field, "a number"))?;
        if !allowed.contains(&number) {
            let message = format_args!("{number} is not between {} and {}", allowed.start(), allowed.end());
            return Err(self.invalid(field, message));
        }
        Ok(Some(number as f32))
    }

    pub fn integer(&self, field: &str, allowed: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        if !value.is_number() || value.is_f64() {
            return Err(self.wrong_type(field, "a whole number"));
        }
        match value.as_i64().filter(|number| allowed.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let message = format_args!("{value} is not between {} and {}", allowed.start(), allowed.end());
                Err(self.invalid(field, message))
            }
        }
    }

    /// A seed: any whole number of 64 bits, signed or not.
    pub fn seed(&self) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.get("seed") else { return Ok(None) };
        let seed = value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned));
        seed.map(Some).ok_or_else(|| self.wrong_type("seed", "a whole number of 64 bits"))
    }

    /// A count that fits 32 bits and is at least 1.
    pub fn count(&self, field: &str) -> Result<Option<u32>, ApiError> {
        let count = self.integer(field, 1..=i64::from(u32::MAX))?;
        Ok(count.and_then(|count| u32::try_from(count).ok()))
    }

    pub fn array(&self, field: &str) -> Result<Option<&'a [Value]>, ApiError> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::Array(values)) => Ok(Some(values)),
            Some(_) => Err(self.wrong_type(field, "an array")),
        }
    }

    /// An inner object. `path` is its full name with a dot behind.
    pub fn object(&self, field: &str, path: &'static str) -> Result<Option<Fields<'a>>, ApiError> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Fields { map, path })),
            Some(_) => Err(self.wrong_type(field, "an object")),
        }
    }

    /// Refuses a field that would change the answer and that we cannot honour. Empty values and `false` are fine.
    pub fn refuse(&self, field: &str, why: &str) -> Result<(), ApiError> {
        let empty = match self.get(field) {
            None | Some(Value::Bool(false)) => true,
            Some(Value::String(text)) => text.is_empty(),
            Some(Value::Array(values)) => values.is_empty(),
            Some(Value::Object(map)) => map.is_empty(),
            Some(_) => false,
        };
        if empty {
            return Ok(());
        }
        Err(ApiError { code: "unsupported_parameter", ..self.invalid(field, why) })
    }

    /// Names of present fields that are not in `known`.
    pub fn unknown(&self, known: &[&[&str]]) -> Vec<String> {
        let is_known = |name: &str| known.iter().any(|group| group.contains(&name));
        self.map.keys().filter(|name| !is_known(name)).map(|name| self.name(name)).collect()
    }
}

/// What a JSON value is, in words.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn with<T>(value: &Value, read: impl Fn(Fields<'_>) -> T) -> T {
        read(Fields::top(value.as_object().unwrap()))
    }

    #[test]
    fn null_counts_as_absent() {
        assert_eq!(with(&json!({"a": null}), |f| f.float("a", 0.0..=1.0)), Ok(None));
        assert_eq!(with(&json!({"a": null}), |f| f.refuse("a", "no")), Ok(()));
    }

    #[test]
    fn a_wrong_type_says_what_was_expected_and_found() {
        let error = with(&json!({"a": "1"}), |f| f.float("a", 0.0..=1.0)).unwrap_err();
        assert_eq!(error.message, "a: expected a number, found a string");
        assert_eq!(error.param.as_deref(), Some("a"));
        let error = with(&json!({"n": 1.5}), |f| f.count("n")).unwrap_err();
        assert_eq!(error.message, "n: expected a whole number, found a number");
    }

    #[test]
    fn numbers_out_of_range_say_the_range() {
        let error = with(&json!({"a": 3}), |f| f.float("a", 0.0..=2.0)).unwrap_err();
        assert_eq!(error.message, "a: 3 is not between 0 and 2");
        assert!(with(&json!({"n": u64::MAX}), |f| f.count("n")).is_err());
        assert!(with(&json!({"n": 0}), |f| f.count("n")).is_err());
    }

    #[test]
    fn seeds_take_all_64_bits() {
        assert_eq!(with(&json!({"seed": u64::MAX}), |f| f.seed()), Ok(Some(u64::MAX)));
        assert_eq!(with(&json!({"seed": -1}), |f| f.seed()), Ok(Some(u64::MAX)));
        assert!(with(&json!({"seed": 1.5}), |f| f.seed()).is_err());
        assert!(with(&json!({"seed": "7"}), |f| f.seed()).is_err());
    }
}
