//! Reads fields of a JSON document, keeping the path of each, and collects everything that is wrong.
//!
//! A missing or mistyped field is recorded and replaced by a harmless value, so that one run reports every problem.

use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// No field that a net is built from is larger; a typo must not become an allocation.
const MAX_SIZE: u64 = 1 << 24;

/// What is wrong with one document.
#[derive(Debug, Default)]
pub struct Problems(RefCell<Vec<String>>);

impl Problems {
    /// Records one problem.
    pub fn add(&self, text: impl Into<String>) {
        self.0.borrow_mut().push(text.into());
    }

    /// Records `text` unless `holds`.
    pub fn require(&self, holds: bool, text: impl FnOnce() -> String) {
        if !holds {
            self.add(text());
        }
    }

    /// Problems so far.
    pub fn len(&self) -> usize {
        self.0.borrow().len()
    }

    /// All of it, in the order in which it was found.
    pub fn into_vec(self) -> Vec<String> {
        self.0.into_inner()
    }
}

/// An object of the document, or the place where one should be.
#[derive(Clone, Debug)]
pub struct Node<'a> {
    problems: &'a Problems,
    /// `None` where the object is missing, which was recorded once.
    fields: Option<&'a Map<String, Value>>,
    path: String,
}

impl<'a> Node<'a> {
    /// The document itself.
    pub fn root(value: &'a Value, problems: &'a Problems) -> Node<'a> {
        if value.as_object().is_none() {
            problems.add("is not a JSON object");
        }
        Node { problems, fields: value.as_object(), path: String::new() }
    }

    /// Where problems go.
    pub fn problems(&self) -> &'a Problems {
        self.problems
    }

    /// The path of a field of this object.
    pub fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// A field that is there and not null.
    pub fn value(&self, key: &str) -> Option<&'a Value> {
        self.fields.and_then(|f| f.get(key)).filter(|v| !v.is_null())
    }

    /// A nested object; a missing one is a problem.
    pub fn object(&self, key: &str) -> Node<'a> {
        let found = self.value(key);
        if found.is_none() {
            self.missing(key, "an object");
        }
        self.nested(key, found)
    }

    /// A nested object that may be missing.
    pub fn optional_object(&self, key: &str) -> Option<Node<'a>> {
        self.value(key).map(|v| self.nested(key, Some(v)))
    }

    fn nested(&self, key: &str, found: Option<&'a Value>) -> Node<'a> {
        let fields = found.and_then(Value::as_object);
        if let (Some(value), None) = (found, fields) {
            self.mistyped(key, "an object", value);
        }
        Node { problems: self.problems, fields, path: self.path_of(key) }
    }

    /// A size of at least 1.
    pub fn size(&self, key: &str) -> usize {
        self.required(key, "a whole number from 1 to 16777216", 1, as_size)
    }

    /// A size of at least 1 that may be missing.
    pub fn optional_size(&self, key: &str) -> Option<usize> {
        self.optional(key, "a whole number from 1 to 16777216", as_size)
    }

    /// A whole number, 0 allowed, that may be missing.
    pub fn optional_count(&self, key: &str) -> Option<usize> {
        self.optional(key, "a whole number from 0 to 16777216", |v| {
            v.as_u64().filter(|n| *n <= MAX_SIZE).map(|n| n as usize)
        })
    }

    /// A whole number, 0 allowed.
    pub fn count(&self, key: &str) -> usize {
        self.required(key, "a whole number", 0, |v| v.as_u64().filter(|n| *n <= MAX_SIZE).map(|n| n as usize))
    }

    /// A token id.
    pub fn id(&self, key: &str) -> u32 {
        self.required(key, "a token id", 0, as_id)
    }

    /// A token id that may be missing.
    pub fn optional_id(&self, key: &str) -> Option<u32> {
        self.optional(key, "a token id", as_id)
    }

    /// One token id or a list of them; empty when missing.
    pub fn ids(&self, key: &str) -> Vec<u32> {
        let ids = self.optional(key, "a token id or a list of token ids", |v| match v {
            Value::Array(list) => list.iter().map(as_id).collect(),
            one => as_id(one).map(|id| vec![id]),
        });
        ids.unwrap_or_default()
    }

    /// A finite number above 0.
    pub fn positive(&self, key: &str) -> f64 {
        self.required(key, "a number above 0", 1.0, as_positive)
    }

    /// A number in `low..=high` that may be missing.
    pub fn optional_between(&self, key: &str, low: f64, high: f64) -> Option<f32> {
        let what = format!("a number from {low} to {high}");
        self.optional(key, &what, |v| v.as_f64().filter(|x| (low..=high).contains(x)).map(|x| x as f32))
    }

    /// True or false.
    pub fn flag(&self, key: &str) -> bool {
        self.required(key, "true or false", false, Value::as_bool)
    }

    /// True or false; may be missing.
    pub fn optional_flag(&self, key: &str) -> Option<bool> {
        self.optional(key, "true or false", Value::as_bool)
    }

    /// Text that may be missing.
    pub fn optional_text(&self, key: &str) -> Option<&'a str> {
        self.optional(key, "a string", Value::as_str)
    }

    /// A list of sizes of at least 1, not empty.
    pub fn sizes(&self, key: &str) -> Vec<usize> {
        self.required(key, "a list of whole numbers of at least 1", vec![1], as_sizes)
    }

    /// A list of whole numbers that may be missing.
    pub fn optional_counts(&self, key: &str) -> Option<Vec<usize>> {
        self.optional(key, "a list of whole numbers", |v| {
            v.as_array()?.iter().map(|x| x.as_u64().map(|n| n as usize)).collect()
        })
    }

    /// A list of sizes that may be missing.
    pub fn optional_sizes(&self, key: &str) -> Option<Vec<usize>> {
        self.optional(key, "a list of whole numbers of at least 1", as_sizes)
    }

    /// A list of finite numbers that may be missing.
    pub fn optional_numbers(&self, key: &str) -> Option<Vec<f64>> {
        let number = |v: &Value| v.as_f64().filter(|x| x.is_finite());
        self.optional(key, "a list of numbers", |v| v.as_array()?.iter().map(number).collect())
    }

    /// A list of strings that may be missing.
    pub fn optional_texts(&self, key: &str) -> Option<Vec<&'a str>> {
        self.optional(key, "a list of strings", |v| v.as_array()?.iter().map(Value::as_str).collect())
    }

    /// An object whose values are token ids.
    pub fn id_map(&self, key: &str) -> BTreeMap<String, u32> {
        self.required(key, "an object of token ids", BTreeMap::new(), |v| {
            v.as_object()?.iter().map(|(k, v)| as_id(v).map(|id| (k.clone(), id))).collect()
        })
    }

    fn required<T>(&self, key: &str, what: &str, stand_in: T, read: impl Fn(&'a Value) -> Option<T>) -> T {
        if self.fields.is_some() && self.value(key).is_none() {
            self.missing(key, what);
        }
        self.optional(key, what, read).unwrap_or(stand_in)
    }

    fn optional<T>(&self, key: &str, what: &str, read: impl Fn(&'a Value) -> Option<T>) -> Option<T> {
        let value = self.value(key)?;
        let read = read(value);
        if read.is_none() {
            self.mistyped(key, what, value);
        }
        read
    }

    fn missing(&self, key: &str, what: &str) {
        if self.fields.is_some() {
            self.problems.add(format!("{} is missing: expected {what}", self.path_of(key)));
        }
    }

    fn mistyped(&self, key: &str, what: &str, value: &Value) {
        let mut shown = value.to_string();
        if shown.len() > 60 {
            shown = shown.chars().take(57).collect::<String>() + "...";
        }
        self.problems.add(format!("{} = {shown}: expected {what}", self.path_of(key)));
    }
}

fn as_size(v: &Value) -> Option<usize> {
    v.as_u64().filter(|n| (1..=MAX_SIZE).contains(n)).map(|n| n as usize)
}

fn as_sizes(v: &Value) -> Option<Vec<usize>> {
    v.as_array().filter(|list| !list.is_empty())?.iter().map(as_size).collect()
}

fn as_id(v: &Value) -> Option<u32> {
    v.as_u64().and_then(|n| u32::try_from(n).ok())
}

fn as_positive(v: &Value) -> Option<f64> {
    v.as_f64().filter(|x| x.is_finite() && *x > 0.0)
}
