//! Finds calls of functions in what a model writes: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as
//! Qwen's models were trained to write them. Pure, and fed with pieces of any length.

use serde_json::Value;
use std::collections::VecDeque;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
/// Longest call, bytes.
pub const MAX_CALL_BYTES: usize = 64 * 1024;
/// Most calls of an answer.
pub const MAX_CALLS: usize = 16;
/// Longest name of a function, bytes: OpenAI's.
const MAX_NAME: usize = 64;

/// A function that the model calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Which.
    pub name: String,
    /// A JSON object, as the model wrote it.
    pub arguments: String,
}

/// What a piece of an answer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Text for the user.
    Text(String),
    /// A call that is complete.
    Call(Call),
    /// What cannot be read as a call, and why. Nothing is found behind it.
    Broken(String),
}

/// See the module. Of the text behind the first call nothing is for the user.
#[derive(Clone, Debug, Default)]
pub struct CallFinder {
    /// What may begin a call, or is one that is not complete.
    waiting: String,
    /// How much of `waiting` has no end of a call.
    searched: usize,
    place: Place,
    calls: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// In front of the first call.
    #[default]
    Text,
    Call,
    /// Behind a call.
    Between,
    Broken,
}

impl CallFinder {
    /// What the next piece completes.
    pub fn push(&mut self, piece: &str) -> VecDeque<Found> {
        let mut found = VecDeque::new();
        if self.place == Place::Broken {
            return found;
        }
        self.waiting.push_str(piece);
        loop {
            match self.place {
                Place::Text | Place::Between => {
                    let at = self.waiting.find(OPEN);
                    let end = at.unwrap_or_else(|| self.waiting.len() - begun(&self.waiting, OPEN));
                    let text: String = self.waiting.drain(..end).collect();
                    if self.place == Place::Text && !text.is_empty() {
                        found.push_back(Found::Text(text));
                    }
                    if at.is_none() {
                        return found;
                    }
                    self.waiting.drain(..OPEN.len());
                    (self.place, self.searched) = (Place::Call, 0);
                }
                Place::Call => {
                    let Some(at) = self.waiting[self.searched..].find(CLOSE).map(|at| at + self.searched) else {
                        if self.waiting.len() > MAX_CALL_BYTES {
                            found.push_back(self.broken(format!("a call has more than {MAX_CALL_BYTES} bytes")));
                        }
                        self.searched = self.waiting.len() - begun(&self.waiting, CLOSE);
                        return found;
                    };
                    let text: String = self.waiting.drain(..at + CLOSE.len()).collect();
                    self.calls += 1;
                    let call = match self.calls > MAX_CALLS {
                        true => Err(format!("an answer has more than {MAX_CALLS} calls")),
                        false => read(&text[..at]),
                    };
                    match call {
                        Ok(call) => found.push_back(Found::Call(call)),
                        Err(why) => {
                            found.push_back(self.broken(why));
                            return found;
                        }
                    }
                    self.place = Place::Between;
                }
                Place::Broken => return found,
            }
        }
    }

    /// The end of the answer: text that looked like the beginning of a call. A call that is not complete is broken.
    pub fn finish(&mut self) -> Option<Found> {
        let rest = std::mem::take(&mut self.waiting);
        match self.place {
            Place::Text if !rest.is_empty() => Some(Found::Text(rest)),
            Place::Call => Some(self.broken("the answer ended within a call".to_owned())),
            _ => None,
        }
    }

    /// Whether a call has begun.
    pub fn has_called(&self) -> bool {
        self.place != Place::Text
    }

    fn broken(&mut self, why: String) -> Found {
        (self.place, self.searched) = (Place::Broken, 0);
        self.waiting = String::new();
        Found::Broken(why)
    }
}

/// Bytes at the end of a text that begin `token`. It begins with ASCII and repeats its first character nowhere.
fn begun(text: &str, token: &str) -> usize {
    let Some(at) = text.rfind('<') else { return 0 };
    let rest = &text[at..];
    if rest.len() < token.len() && token.starts_with(rest) { rest.len() } else { 0 }
}

fn read(text: &str) -> Result<Call, String> {
    let value: Value = serde_json::from_str(text.trim()).map_err(|error| format!("a call is no JSON: {error}"))?;
    let name = value.get("name").and_then(Value::as_str).unwrap_or_default();
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(format!("a call has no name of 1 to {MAX_NAME} bytes"));
    }
    let arguments = match value.get("arguments") {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(object @ Value::Object(_)) => as_written(text).unwrap_or_else(|| object.to_string()),
        Some(Value::String(text)) if text.trim_start().starts_with('{') => text.clone(),
        Some(_) => return Err("the arguments of a call are no object".to_owned()),
    };
    Ok(Call { name: name.to_owned(), arguments })
}

/// The arguments of what is JSON, with their fields in the order of the model's, so that a history has what it wrote.
fn as_written(text: &str) -> Option<String> {
    let (mut depth, mut quoted, mut escaped) = (0, false, false);
    let (mut word, mut key, mut begin) = (0, false, None);
    for (at, c) in text.char_indices() {
        match (quoted, c) {
            (true, _) if escaped => escaped = false,
            (true, '\\') => escaped = true,
            (true, '"') => (quoted, key) = (false, depth == 1 && &text[word..at] == "arguments"),
            (true, _) => {}
            (false, '"') => (quoted, word) = (true, at + 1),
            (false, ':') if key && begin.is_none() => begin = Some(at + 1),
            (false, '{' | '[') => depth += 1,
            (false, ',') if depth == 1 && begin.is_some() => return begin.map(|from| text[from..at].trim().to_owned()),
            (false, '}' | ']') => {
                if depth == 1 && begin.is_some() {
                    return begin.map(|from| text[from..at].trim().to_owned());
                }
                depth -= 1;
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(pieces: &[&str]) -> (String, Vec<Call>, Option<String>) {
        let mut finder = CallFinder::default();
        let mut found: Vec<Found> = pieces.iter().flat_map(|piece| finder.push(piece)).collect();
        found.extend(finder.finish());
        let (mut text, mut calls, mut broken) = (String::new(), Vec::new(), None);
        for found in found {
            assert!(broken.is_none(), "{found:?} behind what is broken");
            match found {
                Found::Text(piece) => {
                    assert!(calls.is_empty() && !piece.is_empty());
                    text.push_str(&piece);
                }
                Found::Call(call) => calls.push(call),
                Found::Broken(why) => broken = Some(why),
            }
        }
        (text, calls, broken)
    }

    fn call(name: &str, arguments: &str) -> Call {
        Call { name: name.to_owned(), arguments: arguments.to_owned() }
    }

    const TWO: &str = "Let me see, 1 < 2.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"to\": \"é\", \"at\": \
        1}}\n</tool_call>\n<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call> and so on";

    #[test]
    fn calls_are_found_and_told_from_text_and_their_arguments_are_as_the_model_wrote_them() {
        let expected = vec![call("weather", "{\"to\": \"é\", \"at\": 1}"), call("time", "{}")];
        assert_eq!(all(&[TWO]), ("Let me see, 1 < 2.\n".to_owned(), expected, None));
        let (text, calls, broken) =
            all(&["<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>"]);
        assert_eq!((text.as_str(), calls, broken), ("", vec![call("f", "{\"a\": 1}")], None));
        assert_eq!(all(&["<tool_call>{\"name\": \"f\"}</tool_call>"]).1, [call("f", "{}")]);
    }

    #[test]
    fn what_only_looks_like_a_call_is_text() {
        for text in ["a <tool", "<tool_cal l>", "<<tool_", "</tool_call>", "<"] {
            assert_eq!(all(&[text]), (text.to_owned(), Vec::new(), None));
        }
    }

    #[test]
    fn what_cannot_be_read_says_why_and_nothing_of_it_is_text() {
        let long = format!("<tool_call>{}", "x".repeat(MAX_CALL_BYTES + 1));
        let many = "<tool_call>{\"name\": \"f\"}</tool_call>".repeat(MAX_CALLS + 1);
        for (text, says) in [
            ("a<tool_call>f()</tool_call>b", "no JSON"),
            ("a<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>", "no object"),
            ("a<tool_call>{\"arguments\": {}}</tool_call>", "no name"),
            ("a<tool_call>{\"name\": \"f\"", "ended within a call"),
            (&format!("a{long}"), "more than 65536 bytes"),
            (&format!("a{many}"), "more than 16 calls"),
        ] {
            let (said, _, broken) = all(&[text]);
            assert_eq!(said, "a");
            assert!(broken.as_ref().is_some_and(|why| why.contains(says)), "{broken:?}");
        }
    }

    proptest! {
        #[test]
        fn it_does_not_matter_how_an_answer_is_cut(cuts in prop::collection::vec(1usize..12, 1..80)) {
            let (mut pieces, mut rest, mut cuts) = (Vec::new(), TWO, cuts.into_iter().cycle());
            while !rest.is_empty() {
                let at = (cuts.next().unwrap()..).find(|at| rest.is_char_boundary(*at.min(&rest.len()))).unwrap();
                let (piece, more) = rest.split_at(at.min(rest.len()));
                pieces.push(piece);
                rest = more;
            }
            prop_assert_eq!(all(&pieces), all(&[TWO]));
        }
    }
}
