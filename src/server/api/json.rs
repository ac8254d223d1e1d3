//! Deserializes a JSON value that has been parsed already, and says where in it an error is.
//!
//! serde_json's own deserializer of a value names no place. The text of an error here has no place in front either: the
//! caller puts it there, with the path of the object that it reads.

use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeSeed, Deserializer, Expected, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value};
use std::fmt;

/// What is wrong with a value inside of an object.
#[derive(Debug)]
pub(super) struct Problem {
    pub code: &'static str,
    /// Where, from the object on: `content[1]`.
    pub path: String,
    pub message: String,
}

impl Problem {
    /// The same problem, seen from the object or the array around it.
    fn inside(self, step: String) -> Problem {
        let path = match self.path.chars().next() {
            None => step,
            Some('[') => step + &self.path,
            Some(_) => format!("{step}.{}", self.path),
        };
        Problem { path, ..self }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Problem {}

impl de::Error for Problem {
    fn custom<T: fmt::Display>(message: T) -> Problem {
        Problem { code: "invalid_value", path: String::new(), message: message.to_string() }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Problem {
        // Serde has its own words for what JSON calls by other names.
        let expected = match expected.to_string() {
            words if words == "a borrowed string" => "a string".to_owned(),
            words if words == "a boolean" => "true or false".to_owned(),
            words if words == "a sequence" => "an array".to_owned(),
            words if words == "a map" || words.starts_with("struct ") => "an object".to_owned(),
            words => words,
        };
        let found = match found {
            Unexpected::Unit | Unexpected::Option => "null",
            Unexpected::Bool(_) => "a boolean",
            Unexpected::Unsigned(_) | Unexpected::Signed(_) | Unexpected::Float(_) => "a number",
            Unexpected::Str(_) | Unexpected::Char(_) => "a string",
            Unexpected::Seq => "an array",
            _ => "an object",
        };
        Problem { code: "invalid_type", ..Problem::custom(format_args!("expected {expected}, found {found}")) }
    }
}

/// The fields of an object as a deserializer.
pub(super) struct Object<'de>(pub &'de Map<String, Value>);

impl<'de> Deserializer<'de> for Object<'de> {
    type Error = Problem;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        visitor.visit_map(Entries { rest: self.0.iter(), value: None })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// The fields of an object, and below them those of another one that it does not have itself. A field that is null
/// counts as absent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layers<'de> {
    pub map: &'de Map<String, Value>,
    pub under: Option<&'de Map<String, Value>>,
}

impl<'de> Layers<'de> {
    /// A field.
    pub fn get(self, name: &str) -> Option<&'de Value> {
        let own = self.map.get_key_value(name).filter(|(_, value)| self.under.is_none() || !value.is_null());
        own.or_else(|| self.under?.get_key_value(name)).map(|(_, value)| value)
    }

    /// The names of all fields.
    pub fn names(self) -> impl Iterator<Item = &'de String> {
        let own = self.map.iter().filter(move |(_, value)| self.under.is_none() || !value.is_null());
        let under = self.under.into_iter().flatten();
        own.map(|(name, _)| name).chain(under.map(|(name, _)| name).filter(move |name| self.is_missing(name)))
    }

    fn is_missing(self, name: &str) -> bool {
        self.map.get(name).is_none_or(Value::is_null)
    }
}

/// The fields of these names. It looks for each, so that unknown fields cost nothing.
pub(super) struct Fields<'de> {
    layers: Layers<'de>,
    names: std::slice::Iter<'static, &'static str>,
    value: Option<(&'static str, &'de Value)>,
}

impl<'de> Fields<'de> {
    pub fn new(layers: Layers<'de>, names: &'static [&'static str]) -> Fields<'de> {
        Fields { layers, names: names.iter(), value: None }
    }
}

impl<'de> MapAccess<'de> for Fields<'de> {
    type Error = Problem;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Problem> {
        let Some((name, value)) = self.names.by_ref().find_map(|name| Some((*name, self.layers.get(name)?))) else {
            return Ok(None);
        };
        self.value = Some((name, value));
        seed.deserialize(StrDeserializer::new(name)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Problem> {
        let (name, value) = self.value.take().unwrap_or(("", &Value::Null));
        seed.deserialize(Node(value)).map_err(|problem| problem.inside(name.to_owned()))
    }
}

/// One value as a deserializer.
struct Node<'de>(&'de Value);

impl<'de> Deserializer<'de> for Node<'de> {
    type Error = Problem;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
                (Some(number), ..) => visitor.visit_u64(number),
                (None, Some(number), _) => visitor.visit_i64(number),
                (None, None, number) => visitor.visit_f64(number.unwrap_or(f64::NAN)),
            },
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Array(values) => visitor.visit_seq(Items { rest: values.iter().enumerate() }),
            Value::Object(map) => Object(map).deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Problem> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct enum identifier
    }
}

struct Entries<'de> {
    rest: serde_json::map::Iter<'de>,
    value: Option<(&'de str, &'de Value)>,
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = Problem;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Problem> {
        let Some((key, value)) = self.rest.next() else { return Ok(None) };
        self.value = Some((key, value));
        seed.deserialize(StrDeserializer::new(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Problem> {
        let (key, value) = self.value.take().unwrap_or(("", &Value::Null));
        seed.deserialize(Node(value)).map_err(|problem| problem.inside(key.to_owned()))
    }
}

struct Items<'de> {
    rest: std::iter::Enumerate<std::slice::Iter<'de, Value>>,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Problem;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Problem> {
        let Some((index, value)) = self.rest.next() else { return Ok(None) };
        seed.deserialize(Node(value)).map(Some).map_err(|problem| problem.inside(format!("[{index}]")))
    }
}
