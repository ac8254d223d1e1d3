//! Markup in a text that is spoken: pauses, other voices, another rate, and how a word is said. Two notations, both
//! only where a request asks for them: a subset of SSML 1.1, and tags in square brackets.
//!
//! A reader turns marked text into [`Mark`]s in the order in which they are spoken. It knows no voices and no sample
//! rate. What it takes is limited: the tags, the pauses, the voices and the depth of a text are counted before anything
//! is made of them, and no entity is expanded.

mod brackets;
mod limits;
mod place;
mod say_as;
mod ssml;

pub use limits::{MAX_DEPTH, MAX_PAUSE, MAX_PAUSES, MAX_RATE, MAX_TAGS, MAX_VOICES, MIN_RATE};
pub use place::Place;

use brackets::Brackets;
use ssml::Ssml;
use std::time::Duration;

/// A notation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Markup {
    /// `<speak>` with `p`, `s`, `break`, `say-as`, `sub`, `voice` and `prosody rate`.
    Ssml,
    /// `[pause: 0.5s]`, `[voice: NAME]`, `[rate: 80%]`.
    Brackets,
}

impl Markup {
    /// Every notation.
    pub const ALL: [Markup; 2] = [Markup::Ssml, Markup::Brackets];

    /// As a request names it.
    pub fn as_str(self) -> &'static str {
        match self {
            Markup::Ssml => "ssml",
            Markup::Brackets => "brackets",
        }
    }

    /// The notation of this name.
    pub fn parse(name: &str) -> Option<Markup> {
        Markup::ALL.into_iter().find(|markup| markup.as_str() == name)
    }
}

/// What comes next in a marked text.
#[derive(Clone, Debug, PartialEq)]
pub enum Mark {
    /// Words as they are written, which pronunciations apply to.
    Text(String),
    /// Words that are already written as they are said.
    Literal(String),
    /// Silence; [`MAX_PAUSE`] at most.
    Pause(Duration),
    /// Who speaks from here on.
    Voice {
        /// Its name as it was written; `None` is the voice of the request.
        name: Option<String>,
        /// Where it is named.
        place: Place,
    },
    /// How many times as fast as usual, [`MIN_RATE`] to [`MAX_RATE`], from here on.
    Rate(f32),
}

/// Marked text that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkupError {
    /// Where.
    pub place: Place,
    /// What is wrong and what is allowed.
    pub message: String,
}

impl std::fmt::Display for MarkupError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

impl std::error::Error for MarkupError {}

/// Reads a marked text that may come in pieces, cut anywhere.
#[derive(Debug)]
pub struct MarkupReader(Notation);

#[derive(Debug)]
enum Notation {
    /// Read when it is whole.
    Ssml(String),
    Brackets(Brackets),
}

impl MarkupReader {
    /// A reader of a text in this notation.
    pub fn new(markup: Markup) -> MarkupReader {
        MarkupReader(match markup {
            Markup::Ssml => Notation::Ssml(String::new()),
            Markup::Brackets => Notation::Brackets(Brackets::default()),
        })
    }

    /// The marks that more text completes. SSML is one element, which is complete at its end: its marks come from
    /// [`MarkupReader::finish`].
    ///
    /// # Errors
    /// A tag that is unknown or has a wrong value, or one too many. The reader is then at its end.
    pub fn push(&mut self, text: &str) -> Result<Vec<Mark>, MarkupError> {
        match &mut self.0 {
            Notation::Ssml(whole) => {
                whole.push_str(text);
                Ok(Vec::new())
            }
            Notation::Brackets(brackets) => brackets.push(text),
        }
    }

    /// The last marks.
    ///
    /// # Errors
    /// Those of [`MarkupReader::push`], and a tag that is not closed.
    pub fn finish(self) -> Result<Vec<Mark>, MarkupError> {
        match self.0 {
            Notation::Ssml(whole) => Ssml::read(&whole),
            Notation::Brackets(brackets) => brackets.finish(),
        }
    }
}

/// All marks of a text that is known as a whole.
///
/// # Errors
/// Those of [`MarkupReader`].
pub fn marks(markup: Markup, text: &str) -> Result<Vec<Mark>, MarkupError> {
    match markup {
        Markup::Ssml => Ssml::read(text),
        Markup::Brackets => {
            let mut brackets = Brackets::default();
            let mut marks = brackets.push(text)?;
            marks.extend(brackets.finish()?);
            Ok(marks)
        }
    }
}
