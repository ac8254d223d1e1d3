//! Gives out a text word by word while it is being written, with a border where a sentence ends.
//!
//! The borders are those of [`Segmenter`], but words do not wait for the border behind them. A sentence that becomes
//! too long is cut behind a comma, or behind any word when no comma comes for long.

use super::Segmenter;

/// What to do next with a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextStep {
    /// Whole words, with the white space around them.
    Words(String),
    /// The words since the last border are a complete sentence.
    Border,
}

/// Text in, whole words and borders out. See the module.
#[derive(Clone, Debug)]
pub struct IncrementalText {
    max_chars: usize,
    segments: Segmenter,
    /// Characters of the current sentence that were given out, not counting white space.
    given: usize,
    /// The same with white space, for the limit.
    length: usize,
}

impl IncrementalText {
    /// Sentences longer than `max_chars` characters are cut.
    pub fn new(max_chars: usize) -> IncrementalText {
        IncrementalText { max_chars: max_chars.max(1), segments: Segmenter::new(usize::MAX / 8), given: 0, length: 0 }
    }

    /// More text.
    pub fn push(&mut self, text: &str) -> Vec<TextStep> {
        let mut steps = Vec::new();
        for sentence in self.segments.push(text) {
            self.complete(&sentence, &mut steps);
        }
        let words = self.segments.words();
        self.give(&words, &mut steps);
        let cut = match words.trim_end().chars().last() {
            Some(',' | ';' | ':' | '—' | '–' | '，' | '、' | '；' | '：') => self.length > self.max_chars,
            _ => self.length > self.max_chars.saturating_mul(2),
        };
        if cut {
            steps.extend(self.pause());
        }
        steps
    }

    /// Ends the sentence behind its last whole word: for a writer who pauses while the listener has heard everything.
    pub fn pause(&mut self) -> Option<TextStep> {
        self.segments.pause();
        (self.restart() > 0).then_some(TextStep::Border)
    }

    /// Nothing follows.
    pub fn finish(&mut self) -> Vec<TextStep> {
        let mut steps = Vec::new();
        match self.segments.finish() {
            Some(rest) => self.complete(&rest, &mut steps),
            None => {
                self.restart();
            }
        }
        steps
    }

    fn complete(&mut self, sentence: &str, steps: &mut Vec<TextStep>) {
        self.give(sentence, steps);
        if self.restart() > 0 {
            steps.push(TextStep::Border);
        }
    }

    /// Gives out the part of `begin`, the beginning of the sentence, that was not given out yet.
    fn give(&mut self, begin: &str, steps: &mut Vec<TextStep>) {
        let mut given = self.given;
        let fresh = begin.char_indices().find(|(_, c)| {
            let new = !c.is_whitespace() && given == 0;
            given = given.saturating_sub(usize::from(!c.is_whitespace()));
            new
        });
        let Some((at, _)) = fresh else { return };
        // The space before the word belongs to it: tokens begin with it.
        let at = begin[..at].trim_end().len();
        let words = &begin[at..];
        self.given += words.chars().filter(|c| !c.is_whitespace()).count();
        self.length = begin.chars().count();
        steps.push(TextStep::Words(words.to_owned()));
    }

    /// Forgets the sentence; returns how much of it was given out.
    fn restart(&mut self) -> usize {
        self.length = 0;
        std::mem::take(&mut self.given)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(text: &str) -> TextStep {
        TextStep::Words(text.into())
    }

    #[test]
    fn words_are_given_out_before_their_sentence_is_whole() {
        let mut text = IncrementalText::new(100);
        assert_eq!(text.push("Good mor"), [words("Good")]);
        assert_eq!(text.push("ning, ever"), [words(" morning,")]);
        assert_eq!(text.push("ybody. How"), [words(" everybody."), TextStep::Border]);
        assert_eq!(text.push(" are"), [words("How")]);
        assert_eq!(text.finish(), [words(" are"), TextStep::Border]);
        assert_eq!(text.finish(), []);
    }

    #[test]
    fn a_pause_ends_the_sentence_behind_its_last_whole_word() {
        let mut text = IncrementalText::new(100);
        assert_eq!(text.push("the weather is lov"), [words("the weather is")]);
        assert_eq!(text.pause(), Some(TextStep::Border));
        assert_eq!(text.pause(), None, "half a word is not spoken");
        assert_eq!(text.push("ely today "), [words("lovely today")]);
    }

    #[test]
    fn a_sentence_without_end_is_cut_behind_a_comma() {
        let mut text = IncrementalText::new(20);
        assert_eq!(text.push("one two three four five, "), [words("one two three four five,"), TextStep::Border]);
        let steps = text.push(&"word ".repeat(12));
        assert_eq!(steps.last(), Some(&TextStep::Border), "and behind any word when there is none for long");
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_said_twice(pieces in proptest::collection::vec("[a-z .,!?A-Z\n'\"]{0,12}", 0..20), max in 1..40usize) {
            let mut text = IncrementalText::new(max);
            let mut steps: Vec<_> = pieces.iter().flat_map(|piece| text.push(piece)).collect();
            steps.extend(text.finish());
            let said: String = steps.iter().filter_map(|step| if let TextStep::Words(words) = step { Some(words.as_str()) } else { None }).collect();
            let solid = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            prop_assert_eq!(solid(&said), solid(&pieces.concat()));
            prop_assert!(said.is_empty() || steps.last() == Some(&TextStep::Border));
        }
    }
}
