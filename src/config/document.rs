//! A TOML file as a flat list of dotted paths, each with its line: easy to look up, easy to tell what was not looked
//! up.

use super::error::Problem;
use std::collections::BTreeMap;
use toml::Spanned;
use toml::Value;
use toml::de::{DeTable, DeValue};

/// A value of the file or the command line.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    pub value: Value,
    pub line: Option<usize>,
}

/// What the user wrote: values by path, and the sections they stand in.
#[derive(Debug, Default)]
pub(super) struct Document {
    pub leaves: BTreeMap<String, Leaf>,
    pub sections: BTreeMap<String, Option<usize>>,
}

impl Document {
    /// Reads TOML; what is not TOML at all is the one problem.
    pub fn parse(text: &str) -> Result<Document, Problem> {
        let table = DeTable::parse(text).map_err(|error| Problem {
            line: error.span().map(|span| line_of(text, span.start)),
            key: String::new(),
            value: None,
            message: format!("not TOML: {}", error.message()),
        })?;
        let mut document = Document::default();
        document.table(text, "", table.get_ref());
        Ok(document)
    }

    /// Sets one value over what the file says.
    pub fn set(&mut self, path: &str, value: Value) {
        self.leaves.insert(path.to_owned(), Leaf { value, line: None });
    }

    fn table(&mut self, text: &str, prefix: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let path =
                if prefix.is_empty() { key.get_ref().to_string() } else { format!("{prefix}.{}", key.get_ref()) };
            self.value(text, path, line_of(text, key.span().start), value);
        }
    }

    fn value(&mut self, text: &str, path: String, line: usize, value: &Spanned<DeValue<'_>>) {
        match value.get_ref() {
            DeValue::Table(table) => {
                self.table(text, &path, table);
                self.sections.insert(path, Some(line));
            }
            DeValue::Array(list) if !list.is_empty() && list.iter().all(|item| item.get_ref().is_table()) => {
                for (i, item) in list.iter().enumerate() {
                    self.value(text, format!("{path}[{i}]"), line_of(text, item.span().start), item);
                }
            }
            other => {
                // A DeValue keeps numbers as text, so that an error can show one of any size. A number that fits no i64
                // stays text here, and the reader refuses it where a key needs a number.
                let value = plain(other);
                self.leaves.insert(path, Leaf { value, line: Some(line) });
            }
        }
    }
}

fn plain(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or_else(|_| Value::String(number.to_string()), Value::Integer),
        DeValue::Float(number) => {
            number.as_str().parse().map_or_else(|_| Value::String(number.to_string()), Value::Float)
        }
        DeValue::Boolean(value) => Value::Boolean(*value),
        DeValue::Datetime(value) => Value::Datetime(*value),
        DeValue::Array(list) => Value::Array(list.iter().map(|item| plain(item.get_ref())).collect()),
        DeValue::Table(table) => {
            Value::Table(table.iter().map(|(key, value)| (key.get_ref().to_string(), plain(value.get_ref()))).collect())
        }
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset.min(text.len())].iter().filter(|&&byte| byte == b'\n').count() + 1
}
