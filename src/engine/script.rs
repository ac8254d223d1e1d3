//! A text as what is done for it, one thing after another: pieces to speak, each by a voice at a rate, and pauses. It
//! reads markup and applies pronunciations; it knows voices by number alone and no sample rate.

use omni_core::text::markup::{self, Mark, Markup, MarkupReader, Place};
use omni_core::text::{self, Pronunciations, Segmenter};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// What is done next.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Item {
    /// A text that one voice speaks in one go.
    Piece(Piece),
    /// Silence.
    Pause(Duration),
}

/// See [`Item::Piece`].
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Piece {
    /// As it is said.
    pub text: String,
    /// 0 is the request's, the others are those of [`Script::voices`], from 1.
    pub voice: usize,
    /// How many times as fast as usual.
    pub rate: f32,
}

/// What the words become.
#[derive(Clone, Debug)]
pub(super) struct Words {
    /// How words are said.
    pub pronunciations: Arc<Pronunciations>,
    /// Most characters of a text with its pronunciations.
    pub max_chars: usize,
}

/// A text on its way. See the module.
#[derive(Debug)]
pub(super) struct Script {
    words: Words,
    /// Of a text with markup that is not at its end.
    reader: Option<MarkupReader>,
    is_marked: bool,
    /// Whether a run of text comes whole, so that its words are known before it is cut.
    whole_runs: bool,
    cutter: Cutter,
    voice: usize,
    rate: f32,
    voices: Vec<(String, Place)>,
    /// Characters of the text as it is said.
    chars: usize,
    waiting: VecDeque<Item>,
}

#[derive(Debug)]
enum Cutter {
    /// Text between two tags is one piece.
    Whole(String),
    /// It is cut into sentences of at most so many characters.
    Sentences(Segmenter, usize),
}

impl Cutter {
    fn push(&mut self, text: &str) -> Vec<String> {
        match self {
            Cutter::Whole(whole) => {
                whole.push_str(text);
                Vec::new()
            }
            Cutter::Sentences(segments, _) => segments.push(text),
        }
    }

    fn finish(&mut self) -> Option<String> {
        match self {
            Cutter::Whole(whole) => Some(std::mem::take(whole)).filter(|text| !text.trim().is_empty()),
            Cutter::Sentences(segments, _) => segments.finish(),
        }
    }
}

impl Script {
    /// A whole text; its pieces are as long as the text between two tags.
    ///
    /// # Errors
    /// What is wrong with its markup, with the place.
    pub fn whole(text: &str, markup: Option<Markup>, words: Words) -> Result<Script, String> {
        let mut script = Script::new(markup, words, Cutter::Whole(String::new()), true);
        match markup {
            None => script.say(text, false)?,
            Some(markup) => script.take(markup::marks(markup, text).map_err(|error| error.to_string())?)?,
        }
        script.end()?;
        Ok(script)
    }

    /// A text that comes in pieces, as sentences of at most `most` characters.
    pub fn streamed(markup: Option<Markup>, words: Words, most: usize) -> Script {
        Script::new(markup, words, Cutter::Sentences(Segmenter::new(most), most), markup == Some(Markup::Ssml))
    }

    fn new(markup: Option<Markup>, words: Words, cutter: Cutter, whole_runs: bool) -> Script {
        Script {
            words,
            reader: markup.map(MarkupReader::new),
            is_marked: markup.is_some(),
            whole_runs,
            cutter,
            voice: 0,
            rate: 1.0,
            voices: Vec::new(),
            chars: 0,
            waiting: VecDeque::new(),
        }
    }

    /// More text.
    ///
    /// # Errors
    /// As for [`Script::whole`]; nothing may be pushed behind it.
    pub fn push(&mut self, text: &str) -> Result<(), String> {
        match &mut self.reader {
            None => self.say(text, false),
            Some(reader) => {
                let marks = reader.push(text).map_err(|error| error.to_string())?;
                self.take(marks)
            }
        }
    }

    /// The writer pauses: the whole words that wait become a piece.
    pub fn pause(&mut self) -> Result<(), String> {
        let Cutter::Sentences(segments, _) = &mut self.cutter else { return Ok(()) };
        segments.pause().map_or(Ok(()), |words| self.piece(words))
    }

    /// Nothing follows.
    pub fn finish(&mut self) -> Result<(), String> {
        if let Some(reader) = self.reader.take() {
            self.take(reader.finish().map_err(|error| error.to_string())?)?;
        }
        self.end()
    }

    /// What is done next, as far as it is known.
    pub fn next(&mut self) -> Option<Item> {
        self.waiting.pop_front()
    }

    /// The voices that its tags have named so far, and where each is named first.
    pub fn voices(&self) -> &[(String, Place)] {
        &self.voices
    }

    /// Whether tags mean anything in it.
    pub fn is_marked(&self) -> bool {
        self.is_marked
    }

    fn take(&mut self, marks: Vec<Mark>) -> Result<(), String> {
        for mark in marks {
            match mark {
                Mark::Text(text) => self.say(&text, false)?,
                Mark::Literal(text) => self.say(&text, true)?,
                Mark::Pause(pause) => {
                    self.end()?;
                    self.waiting.push_back(Item::Pause(pause));
                }
                Mark::Voice { name, place } => {
                    let voice = name.map_or(0, |name| self.number(name, place));
                    if voice != self.voice {
                        self.end()?;
                        self.voice = voice;
                    }
                }
                Mark::Rate(rate) if rate == self.rate => {}
                Mark::Rate(rate) => {
                    self.end()?;
                    self.rate = rate;
                }
            }
        }
        Ok(())
    }

    /// The number of a voice.
    fn number(&mut self, name: String, place: Place) -> usize {
        let lower = name.to_lowercase();
        let known = self.voices.iter().position(|(known, _)| known.to_lowercase() == lower);
        let at = known.unwrap_or_else(|| {
            self.voices.push((name, place));
            self.voices.len() - 1
        });
        at + 1
    }

    /// Text of the current piece; a `literal` one is written as it is said.
    fn say(&mut self, text: &str, literal: bool) -> Result<(), String> {
        let pieces = if self.whole_runs && !literal {
            let said = self.words.apply(text)?;
            self.cutter.push(&said)
        } else {
            self.cutter.push(text)
        };
        pieces.into_iter().try_for_each(|piece| self.piece(piece))
    }

    /// The current piece ends here.
    fn end(&mut self) -> Result<(), String> {
        self.cutter.finish().map_or(Ok(()), |text| self.piece(text))
    }

    fn piece(&mut self, text: String) -> Result<(), String> {
        let cut = match &self.cutter {
            // Sentences of a text that comes in pieces, with their words as they are said, may have become too long.
            Cutter::Sentences(_, most) if !self.whole_runs => {
                let said = self.words.apply(&text)?.into_owned();
                if said == text { vec![text] } else { text::segments(&said, *most) }
            }
            _ => vec![text],
        };
        for text in cut {
            self.chars += text.chars().count();
            if self.chars > self.words.max_chars {
                return Err(self.words.too_long());
            }
            // Nothing but marks between two tags: a model would make words of it.
            if self.is_marked && !text.chars().any(char::is_alphanumeric) {
                continue;
            }
            self.waiting.push_back(Item::Piece(Piece { text, voice: self.voice, rate: self.rate }));
        }
        Ok(())
    }
}

impl Words {
    /// `text` as it is said.
    ///
    /// # Errors
    /// It would be longer than a text may be.
    pub fn apply<'t>(&self, text: &'t str) -> Result<std::borrow::Cow<'t, str>, String> {
        // A character has 4 bytes at most.
        self.pronunciations.apply(text, self.max_chars.saturating_mul(4)).ok_or_else(|| self.too_long())
    }

    pub fn too_long(&self) -> String {
        format!(
            "with its pronunciations the text has more than the {} characters that this server takes",
            self.max_chars
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(entries: &[(&str, &str)]) -> Words {
        let mut pronunciations = Pronunciations::default();
        for (word, spoken) in entries {
            pronunciations.insert(word, spoken).unwrap();
        }
        Words { pronunciations: Arc::new(pronunciations), max_chars: 1000 }
    }

    /// What is done, in short.
    fn told(script: &mut Script) -> Vec<String> {
        let mut told = Vec::new();
        while let Some(item) = script.next() {
            told.push(match item {
                Item::Pause(pause) => format!("{} ms", pause.as_millis()),
                Item::Piece(Piece { text, voice, rate }) => format!("{voice} x{rate} {}", text.trim()),
            });
        }
        told
    }

    fn whole(markup: Markup, text: &str) -> Vec<String> {
        told(&mut Script::whole(text, Some(markup), words(&[("GIF", "jif")])).unwrap())
    }

    #[test]
    fn a_text_is_cut_where_the_voice_the_rate_or_a_pause_says_so() {
        let text = "One. Two! [pause: 0.1s]Three [voice: a]four [rate: 50%]five[voice: B] six [voice: A]seven \
                    [voice: default] [rate: 100%]eight GIF";
        let expected =
            ["0 x1 One. Two!", "100 ms", "0 x1 Three", "1 x1 four", "1 x0.5 five", "2 x0.5 six", "1 x0.5 seven"];
        let read = whole(Markup::Brackets, text);
        assert_eq!((&read[..7], &read[7..]), (&expected.map(String::from)[..], &["0 x1 eight jif".to_owned()][..]));
    }

    #[test]
    fn nothing_is_cut_where_nothing_changes_and_marks_alone_are_not_spoken() {
        assert_eq!(whole(Markup::Brackets, "One [rate: 100%]two[voice: default] three"), ["0 x1 One two three"]);
        assert_eq!(whole(Markup::Brackets, "One[pause: 1s]. [pause: 1s]"), ["0 x1 One", "1000 ms", "1000 ms"]);
        assert_eq!(whole(Markup::Brackets, " [pause: 1s] ..."), ["1000 ms"]);
    }

    #[test]
    fn pronunciations_leave_alone_what_markup_says() {
        let text = "<speak>GIF <sub alias='GIF'>x</sub> <say-as interpret-as='characters'>GIF</say-as></speak>";
        assert_eq!(whole(Markup::Ssml, text), ["0 x1 jif GIF G I F"]);
    }

    #[test]
    fn a_plain_text_is_what_it_was() {
        let mut script = Script::whole(" A [pause: 1s] <b>!\n\n? ", None, words(&[])).unwrap();
        let piece = Piece { text: " A [pause: 1s] <b>!\n\n? ".to_owned(), voice: 0, rate: 1.0 };
        assert_eq!((script.next(), script.next()), (Some(Item::Piece(piece)), None));
    }

    #[test]
    fn a_text_that_comes_in_pieces_is_the_same_sentence_by_sentence() {
        let text = "One GIF. [voice: a]Two, [pause: 0.2s] three. Four";
        let expected = ["0 x1 One jif.", "1 x1 Two,", "200 ms", "1 x1 three.", "1 x1 Four"];
        for size in [1, 3, 100] {
            let mut script = Script::streamed(Some(Markup::Brackets), words(&[("GIF", "jif")]), 100);
            for piece in text.as_bytes().chunks(size) {
                script.push(std::str::from_utf8(piece).unwrap()).unwrap();
            }
            script.finish().unwrap();
            assert_eq!(told(&mut script), expected, "{size}");
        }
        let mut script = Script::streamed(Some(Markup::Ssml), words(&[("GIF", "jif")]), 100);
        for piece in ["<speak>One G", "IF. <br", "eak time='1s'/>Two. Three</sp", "eak>"] {
            script.push(piece).unwrap();
            assert_eq!(script.next(), None);
        }
        script.finish().unwrap();
        assert_eq!(told(&mut script), ["0 x1 One jif.", "1000 ms", "0 x1 Two.", "0 x1 Three"]);
    }

    #[test]
    fn pronunciations_do_not_make_a_text_or_a_sentence_longer_than_it_may_be() {
        let grows = || words(&[("a", &"b ".repeat(50))]);
        let mut script = Script::streamed(None, grows(), 20);
        script.push("a. ").unwrap();
        script.finish().unwrap();
        assert!(told(&mut script).iter().all(|told| told.len() <= 25));
        for text in ["a ".repeat(50), "a ".repeat(100_000)] {
            let error = Script::whole(&text, None, grows()).unwrap_err();
            assert!(error.contains("more than the 1000 characters"), "{error}");
        }
    }
}
