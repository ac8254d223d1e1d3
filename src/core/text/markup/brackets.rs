//! Tags in square brackets, which may come in pieces: `[pause: 0.5s]`, `[voice: NAME]`, `[rate: 80%]`; `[[` is a
//! bracket that is spoken.

use super::limits::{Limits, cut, rate};
use super::{Mark, MarkupError, Place};

/// Longest tag, characters between the brackets.
const LONGEST: usize = 100;
/// What stands for the voice of the request, and for the usual rate.
const DEFAULT: &str = "default";
const KNOWN: &str =
    "known are [pause: 0.5s], [voice: NAME] and [rate: 80%]; a bracket that is to be spoken is written [[";

/// Reads tags as they come.
#[derive(Debug, Default)]
pub(super) struct Brackets {
    limits: Limits,
    /// Where the next character is.
    place: Place,
    /// The tag that is not closed yet, and where its bracket is.
    tag: Option<(Place, Tag)>,
}

/// The inside of a tag so far.
#[derive(Debug, Default)]
struct Tag {
    text: String,
    chars: usize,
}

impl Brackets {
    pub fn push(&mut self, text: &str) -> Result<Vec<Mark>, MarkupError> {
        let mut marks = Vec::new();
        let mut plain = String::new();
        for c in text.chars() {
            let here = self.place;
            self.place = here.behind(c);
            let Some((begin, tag)) = &mut self.tag else {
                match c {
                    '[' => self.tag = Some((here, Tag::default())),
                    c => plain.push(c),
                }
                continue;
            };
            match c {
                '[' if tag.chars == 0 => {
                    plain.push('[');
                    self.tag = None;
                }
                ']' => {
                    let (begin, text) = (*begin, std::mem::take(&mut tag.text));
                    self.tag = None;
                    flush(&mut plain, &mut marks);
                    let mark = self.mark(&text, begin).map_err(|message| MarkupError { place: begin, message })?;
                    marks.push(mark);
                }
                _ if tag.chars == LONGEST => {
                    let message = format!("no ] within {LONGEST} characters; {KNOWN}");
                    return Err(MarkupError { place: *begin, message });
                }
                c => {
                    tag.text.push(c);
                    tag.chars += 1;
                }
            }
        }
        flush(&mut plain, &mut marks);
        Ok(marks)
    }

    pub fn finish(self) -> Result<Vec<Mark>, MarkupError> {
        match self.tag {
            None => Ok(Vec::new()),
            Some((place, _)) => Err(MarkupError { place, message: format!("the tag is not closed with ]; {KNOWN}") }),
        }
    }

    /// What the tag with this inside says.
    fn mark(&mut self, text: &str, place: Place) -> Result<Mark, String> {
        self.limits.tag()?;
        let (name, value) = text.split_once(':').map_or((text, None), |(name, value)| (name, Some(value.trim())));
        let name = name.trim();
        match (name.to_lowercase().as_str(), value.filter(|value| !value.is_empty())) {
            ("pause", Some(value)) => self.limits.pause(value).map(Mark::Pause),
            ("rate", Some(value)) => rate(value).map(Mark::Rate),
            ("voice", Some(value)) if value.eq_ignore_ascii_case(DEFAULT) => Ok(Mark::Voice { name: None, place }),
            ("voice", Some(value)) => {
                self.limits.voice(value)?;
                Ok(Mark::Voice { name: Some(value.to_owned()), place })
            }
            ("pause" | "rate" | "voice", None) => Err(format!("[{name}] needs a value; {KNOWN}")),
            _ => Err(format!("the tag [{}] is unknown; {KNOWN}", cut(text))),
        }
    }
}

fn flush(plain: &mut String, marks: &mut Vec<Mark>) {
    if !plain.is_empty() {
        marks.push(Mark::Text(std::mem::take(plain)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Markup, MarkupReader, marks};
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    fn text(text: &str) -> Mark {
        Mark::Text(text.to_owned())
    }

    fn voice(name: Option<&str>, column: usize) -> Mark {
        Mark::Voice { name: name.map(str::to_owned), place: Place { line: 1, column } }
    }

    fn error(text: &str) -> String {
        marks(Markup::Brackets, text).unwrap_err().to_string()
    }

    #[test]
    fn tags_say_pauses_voices_and_rates() {
        let read =
            marks(Markup::Brackets, "[voice: Heart]Hi.[Pause:0.5s] [rate: 80%]So [[1]. [voice: default]Bye").unwrap();
        let expected = [
            voice(Some("Heart"), 1),
            text("Hi."),
            Mark::Pause(Duration::from_millis(500)),
            text(" "),
            Mark::Rate(0.8),
            text("So [1]. "),
            voice(None, 51),
            text("Bye"),
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn an_error_says_where_it_is_and_what_is_allowed() {
        for (wrong, place, told) in [
            ("a\nbc [laugh] d", "line 2, column 4", "the tag [laugh] is unknown; known are [pause: 0.5s]"),
            ("see [1]", "line 1, column 5", "a bracket that is to be spoken is written [["),
            ("é [pause]", "line 1, column 3", "[pause] needs a value"),
            ("[pause: soon]", "line 1, column 1", "\"soon\" is no time"),
            ("[pause: 11s]", "line 1, column 1", "a pause may have 10 s"),
            ("[rate: 1000%]", "line 1, column 1", "25% to 400%"),
            ("never [closed", "line 1, column 7", "is not closed with ]"),
            (&format!("[{}", "x".repeat(101)), "line 1, column 1", "no ] within 100 characters"),
        ] {
            let error = error(wrong);
            assert!(error.starts_with(place) && error.contains(told), "{error}");
        }
        assert!(error(&"[pause: 1ms]".repeat(501)).contains("500 tags"));
    }

    /// Adjacent texts joined: a text may come in pieces.
    fn joined(marks: Vec<Mark>) -> Vec<Mark> {
        let mut out: Vec<Mark> = Vec::new();
        for mark in marks {
            match (out.last_mut(), mark) {
                (Some(Mark::Text(before)), Mark::Text(text)) => before.push_str(&text),
                (_, mark) => out.push(mark),
            }
        }
        out
    }

    proptest! {
        #[test]
        fn it_is_the_same_however_it_is_cut(
            parts in prop::collection::vec(prop_oneof![
                Just("[pause: 1ms]"), Just("[[x]"), Just("[voice: a]"), Just("é"), Just("\n"), Just("["), Just("] b"),
            ], 0..20),
            cuts in prop::collection::vec(0usize..100, 0..8),
        ) {
            let text = parts.concat();
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| text.is_char_boundary(*cut)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let mut reader = MarkupReader::new(Markup::Brackets);
            let pieces = cuts.windows(2).map(|pair| reader.push(&text[pair[0]..pair[1]]));
            let pieces: Result<Vec<_>, _> = pieces.collect();
            let read = pieces.and_then(|pieces| {
                let mut all = pieces.concat();
                all.extend(reader.finish()?);
                Ok(joined(all))
            });
            prop_assert_eq!(read, marks(Markup::Brackets, &text).map(joined));
        }
    }
}
