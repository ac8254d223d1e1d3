//! Looks values up by path. A wrong value does not stop it: it notes the problem, takes the default, and returns all
//! problems at the end. Each look-up also declares the key, so that unknown keys and the documentation need no second
//! list.

use super::document::{Document, Leaf};
use super::error::Problem;
use super::units::{format_duration, parse_duration};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;
use toml::Value;

/// A key that a config may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// Dotted path.
    pub key: String,
    /// The default as TOML; empty where there is none.
    pub default: String,
    /// What is allowed, as error messages say it.
    pub allowed: String,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Reader {
    document: Document,
    pub declared: Vec<Declared>,
    problems: Vec<Problem>,
}

impl Reader {
    pub fn new(document: Document) -> Reader {
        Reader { document, declared: Vec::new(), problems: Vec::new() }
    }

    /// A whole number.
    pub fn int<T>(&mut self, key: &str, default: T, range: RangeInclusive<T>) -> T
    where
        T: Copy + PartialOrd + Display + TryFrom<i64>,
    {
        let allowed = format!("a whole number from {} to {}", range.start(), range.end());
        let read = |value: &Value| T::try_from(value.as_integer()?).ok().filter(|number| range.contains(number));
        self.value(key, &default.to_string(), allowed, read).unwrap_or(default)
    }

    /// A whole number, or `"auto"`: `None`.
    pub fn auto_int<T>(&mut self, key: &str, range: RangeInclusive<T>) -> Option<T>
    where
        T: Copy + PartialOrd + Display + TryFrom<i64>,
    {
        let allowed = format!("\"auto\" or a whole number from {} to {}", range.start(), range.end());
        self.value(key, "\"auto\"", allowed, |value| match value {
            Value::String(word) if word == "auto" => Some(None),
            other => Some(Some(T::try_from(other.as_integer()?).ok().filter(|number| range.contains(number))?)),
        })
        .flatten()
    }

    /// A duration in quotes.
    pub fn duration(&mut self, key: &str, default: Duration, range: RangeInclusive<Duration>) -> Duration {
        let allowed = format!(
            "a duration in quotes from {} to {}, such as \"{}\"",
            format_duration(*range.start()),
            format_duration(*range.end()),
            format_duration(default)
        );
        let read = |value: &Value| parse_duration(value.as_str()?).filter(|duration| range.contains(duration));
        self.value(key, &format!("\"{}\"", format_duration(default)), allowed, read).unwrap_or(default)
    }

    /// A boolean.
    pub fn switch(&mut self, key: &str, default: bool) -> bool {
        self.value(key, &default.to_string(), "true or false".to_owned(), Value::as_bool).unwrap_or(default)
    }

    /// One of a few names.
    pub fn choice<T: Copy>(&mut self, key: &str, default: &str, choices: &[(&str, T)]) -> Option<T> {
        let names: Vec<_> = choices.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        let pick = |wanted: &str| choices.iter().find(|(name, _)| *name == wanted).map(|(_, meaning)| *meaning);
        let default_text = if default.is_empty() { String::new() } else { format!("\"{default}\"") };
        self.value(key, &default_text, names.join(" or "), |value| pick(value.as_str()?)).or_else(|| pick(default))
    }

    /// Text that `parse` understands.
    pub fn text<T>(&mut self, key: &str, default: &str, allowed: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let shown = Value::String(default.to_owned()).to_string();
        self.value(key, &shown, allowed.to_owned(), |value| parse(value.as_str()?)).or_else(|| parse(default))
    }

    /// A value of any other kind.
    pub fn value<T>(
        &mut self,
        key: &str,
        default: &str,
        allowed: String,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Option<T> {
        let leaf = self.document.leaves.remove(key);
        let section = self.document.sections.remove(key);
        let mut found = None;
        if let Some(Leaf { value, line }) = leaf {
            found = read(&value);
            if found.is_none() {
                self.problem(line, key, Some(value.to_string()), format!("must be {allowed}"));
            }
        } else if let Some(line) = section {
            self.drop_below(key);
            self.problem(line, key, None, format!("is a section here; must be {allowed}"));
        }
        self.declared.push(Declared { key: key.to_owned(), default: default.to_owned(), allowed });
        found
    }

    /// A section of names that the user chooses, each with a text; `parse` understands both. Empty by default.
    pub fn names(
        &mut self,
        key: &str,
        allowed: String,
        parse: impl Fn(&str, &str) -> Option<(String, String)>,
    ) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        self.document.sections.remove(key);
        let below = format!("{key}.");
        let paths: Vec<String> = self.document.leaves.keys().filter(|path| path.starts_with(&below)).cloned().collect();
        for path in paths {
            let Some(Leaf { value, line }) = self.document.leaves.remove(&path) else { continue };
            let name = &path[below.len()..];
            match value.as_str().and_then(|text| parse(name, text)) {
                Some((name, other)) => {
                    if found.insert(name, other).is_some() {
                        self.problem(line, &path, None, "is there twice, in upper and lower case".to_owned());
                    }
                }
                _ => self.problem(line, key, Some(format!("{name} = {value}")), format!("must be {allowed}")),
            }
        }
        if let Some(Leaf { value, line }) = self.document.leaves.remove(key) {
            self.problem(line, key, Some(value.to_string()), format!("must be {allowed}"));
        }
        self.declared.push(Declared { key: key.to_owned(), default: "{}".to_owned(), allowed });
        found
    }

    /// How many sections `[[name]]` there are.
    pub fn repeated(&self, name: &str) -> usize {
        (0..).take_while(|i| self.document.sections.contains_key(&format!("{name}[{i}]"))).count()
    }

    /// Notes a problem if there is a single section or value of this name.
    pub fn refuse(&mut self, name: &str, message: &str) {
        let leaf = self.document.leaves.remove(name).map(|leaf| leaf.line);
        if let Some(line) = leaf.or_else(|| self.document.sections.remove(name)) {
            self.drop_below(name);
            self.problem(line, name, None, message.to_owned());
        }
    }

    /// Notes a problem that no single look-up sees.
    pub fn complain(&mut self, key: &str, message: impl Into<String>) {
        self.problem(None, key, None, message.into());
    }

    /// Every problem, those about keys that were never looked up included, by line.
    pub fn finish(mut self) -> (Vec<Declared>, Vec<Problem>) {
        let sections: BTreeSet<String> = self.declared.iter().flat_map(|declared| parents(&declared.key)).collect();
        let unknown: Vec<(String, Option<usize>)> = self
            .document
            .sections
            .iter()
            .filter(|(path, _)| !sections.contains(*path))
            .map(|(path, line)| (path.clone(), *line))
            .collect();
        let section_names: Vec<&str> = sections.iter().map(String::as_str).collect();
        let declared = std::mem::take(&mut self.declared);
        let key_names: Vec<&str> = declared.iter().map(|declared| declared.key.as_str()).collect();
        // One problem per subtree is enough.
        for (path, line) in unknown {
            if self.document.sections.remove(&path).is_some() {
                self.drop_below(&path);
                let hint = nearest(&path, &section_names);
                self.problem(line, &path, None, format!("unknown section{hint}"));
            }
        }
        for (path, leaf) in std::mem::take(&mut self.document.leaves) {
            if sections.contains(&path) {
                self.problem(leaf.line, &path, Some(leaf.value.to_string()), format!("must be a section, [{path}]"));
            } else {
                let hint = nearest(&path, &key_names);
                self.problem(leaf.line, &path, None, format!("unknown key{hint}"));
            }
        }
        self.problems.sort_by_key(|problem| problem.line.unwrap_or(usize::MAX));
        (declared, self.problems)
    }

    fn drop_below(&mut self, path: &str) {
        let below = |other: &String| other.starts_with(&format!("{path}.")) || other.starts_with(&format!("{path}["));
        self.document.leaves.retain(|other, _| !below(other));
        self.document.sections.retain(|other, _| !below(other));
    }

    fn problem(&mut self, line: Option<usize>, key: &str, value: Option<String>, message: String) {
        self.problems.push(Problem { line, key: key.to_owned(), value, message });
    }
}

/// `a.b.c` stands in `a` and `a.b`.
fn parents(path: &str) -> impl Iterator<Item = String> + '_ {
    path.match_indices('.').map(|(at, _)| path[..at].to_owned())
}

/// A hint if something known is spelled nearly like `path`, or has the same last part elsewhere.
fn nearest(path: &str, known: &[&str]) -> String {
    let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
    // A third of the letters wrong is another word.
    let near = known
        .iter()
        .map(|name| (distance(path, name), *name))
        .filter(|(distance, name)| *distance * 3 <= name.len().max(3))
        .min()
        .map(|(_, name)| name);
    let moved = || known.iter().copied().find(|name| last(name) == last(path));
    near.or_else(moved).map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

/// Letters to insert, delete or change.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = corner + usize::from(x != *y);
            corner = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits() {
        assert_eq!(distance("sever", "server"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }

    #[test]
    fn a_key_in_the_wrong_section_is_found() {
        let known = ["server.listen", "stages.talker.window"];
        assert_eq!(nearest("listen", &known), "; did you mean `server.listen`?");
        assert_eq!(nearest("server.lisen", &known), "; did you mean `server.listen`?");
        assert_eq!(nearest("colour", &known), "");
    }
}
