//! Where the words of spoken pieces stand in the text of the client.

use std::collections::VecDeque;
use std::ops::Range;

/// A text as a client wrote it, whole or piece by piece, of which the words are found in their order. It keeps what was
/// not found yet.
#[derive(Clone, Debug, Default)]
pub struct SourceText {
    left: VecDeque<char>,
    /// Characters in front of `left`.
    gone: u64,
}

impl SourceText {
    /// More of the text.
    pub fn push(&mut self, text: &str) {
        self.left.extend(text.chars());
    }

    /// The place of the next word, in characters (Unicode scalar values) from the beginning of the text: that of the
    /// first of its characters, and that behind the last. White space before it is passed over; a word that does not
    /// follow has no length.
    pub fn find(&mut self, word: &str) -> Range<u64> {
        let spaces = self.left.iter().take_while(|c| c.is_whitespace()).count();
        let follows = word.chars().count() <= self.left.len() - spaces
            && word.chars().zip(self.left.iter().skip(spaces)).all(|(a, b)| a == *b);
        if !follows {
            return self.gone..self.gone;
        }
        let length = word.chars().count();
        self.left.drain(..spaces + length);
        self.gone += (spaces + length) as u64;
        self.gone - length as u64..self.gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_in_their_order_whatever_white_space_is_between() {
        let mut text = SourceText::default();
        text.push("  One\n\ntwo, zwölf");
        assert_eq!([text.find("One"), text.find("two,")], [2..5, 7..11]);
        text.push(" drei");
        assert_eq!([text.find("zwölf"), text.find("drei")], [12..17, 18..22]);
    }

    #[test]
    fn a_word_that_was_cut_is_found_part_by_part() {
        let mut text = SourceText::default();
        text.push("donaudampf schiff");
        assert_eq!([text.find("donau"), text.find("dampf"), text.find("schiff")], [0..5, 5..10, 11..17]);
    }

    #[test]
    fn a_word_that_does_not_follow_has_no_length() {
        let mut text = SourceText::default();
        text.push("a b");
        assert_eq!([text.find("a"), text.find("c"), text.find("b")], [0..1, 1..1, 2..3]);
    }
}
