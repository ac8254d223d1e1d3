//! A list of words and how they are said, which replaces them before anything else is made of a text.
//!
//! An entry is a whole word: no letter or digit stands next to it, except in scripts that put no spaces between words.
//! An entry without capital letters stands for the word in any case; one with a capital letter for that spelling alone.
//! The longest entry goes first.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Longest word of an entry, characters.
pub const MAX_WORD: usize = 64;
/// Longest pronunciation, characters.
pub const MAX_SPOKEN: usize = 256;

/// How words are said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pronunciations {
    /// Words in that spelling.
    exact: BTreeMap<String, String>,
    /// Words in any case, in lower case.
    folded: BTreeMap<String, String>,
    /// Lengths of the words, in characters.
    lengths: BTreeSet<usize>,
    /// With which characters they begin, in lower case.
    firsts: BTreeSet<char>,
}

impl Pronunciations {
    /// Whether nothing is replaced.
    pub fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// Adds an entry in place of an earlier one for the same word.
    ///
    /// # Errors
    /// What `word` or `spoken` must be: a word has 1 to [`MAX_WORD`] characters and no white space, a pronunciation 1 to
    /// [`MAX_SPOKEN`] characters without control characters, not all of them white space.
    pub fn insert(&mut self, word: &str, spoken: &str) -> Result<(), String> {
        let chars = word.chars().count();
        if !(1..=MAX_WORD).contains(&chars) || word.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(format!("a word must have 1 to {MAX_WORD} characters and no white space"));
        }
        let spoken = spoken.trim();
        if !(1..=MAX_SPOKEN).contains(&spoken.chars().count()) || spoken.chars().any(char::is_control) {
            return Err(format!("a pronunciation must have 1 to {MAX_SPOKEN} characters on one line"));
        }
        let folds = !word.chars().any(char::is_uppercase);
        let words = if folds { &mut self.folded } else { &mut self.exact };
        words.insert(word.to_owned(), spoken.to_owned());
        self.lengths.insert(chars);
        self.firsts.extend(word.chars().next().and_then(lower));
        Ok(())
    }

    /// Bytes of all words and how they are said.
    pub fn bytes(&self) -> usize {
        self.exact.iter().chain(&self.folded).map(|(word, spoken)| word.len() + spoken.len()).sum()
    }

    /// These entries, and those of `others` for other words.
    #[must_use]
    pub fn over(mut self, others: &Pronunciations) -> Pronunciations {
        for (word, spoken) in &others.exact {
            self.exact.entry(word.clone()).or_insert_with(|| spoken.clone());
        }
        for (word, spoken) in &others.folded {
            self.folded.entry(word.clone()).or_insert_with(|| spoken.clone());
        }
        self.lengths.extend(&others.lengths);
        self.firsts.extend(&others.firsts);
        self
    }

    /// `text` with its words as they are said; `None` if that has more than `most` bytes.
    pub fn apply<'t>(&self, text: &'t str, most: usize) -> Option<Cow<'t, str>> {
        if self.is_empty() {
            return Some(Cow::Borrowed(text));
        }
        let mut out = String::new();
        // Up to where the text is in `out`.
        let mut copied = 0;
        let mut at = 0;
        let mut before = None;
        while let Some(c) = text[at..].chars().next() {
            let begins =
                before.is_none_or(|before| apart(before, c)) && lower(c).is_some_and(|c| self.firsts.contains(&c));
            if begins && let Some((end, spoken)) = self.find(text, at) {
                if out.len() + at - copied + spoken.len() > most {
                    return None;
                }
                out.push_str(&text[copied..at]);
                out.push_str(spoken);
                (copied, at) = (end, end);
                before = text[..end].chars().next_back();
                continue;
            }
            before = Some(c);
            at += c.len_utf8();
        }
        if copied == 0 {
            return Some(Cow::Borrowed(text));
        }
        out.push_str(&text[copied..]);
        (out.len() <= most).then_some(Cow::Owned(out))
    }

    /// The longest entry at `begin`: where its word ends, and how it is said.
    fn find(&self, text: &str, begin: usize) -> Option<(usize, &str)> {
        let rest = &text[begin..];
        let most = *self.lengths.last()?;
        // Where so many characters end, and what is behind them.
        let mut ends = Vec::with_capacity(most + 1);
        ends.extend(rest.char_indices().map(|(at, _)| at).take(most + 1));
        if ends.len() <= most {
            ends.push(rest.len());
        }
        for length in self.lengths.iter().rev() {
            let Some(end) = ends.get(*length) else { continue };
            let word = &rest[..*end];
            let whole = match (word.chars().next_back(), rest[*end..].chars().next()) {
                (Some(last), Some(next)) => apart(last, next),
                _ => true,
            };
            if !whole {
                continue;
            }
            let spoken = self.exact.get(word).or_else(|| self.folded.get(&word.to_lowercase()));
            if let Some(spoken) = spoken {
                return Some((begin + end, spoken));
            }
        }
        None
    }
}

fn lower(c: char) -> Option<char> {
    c.to_lowercase().next()
}

/// Whether a word may end between two characters.
fn apart(left: char, right: char) -> bool {
    !(left.is_alphanumeric() && right.is_alphanumeric()) || is_unspaced(left) || is_unspaced(right)
}

/// Characters of scripts that put no spaces between words: Chinese, Japanese, Thai; Korean joins words and particles.
fn is_unspaced(c: char) -> bool {
    matches!(c, '\u{E00}'..='\u{EFF}' | '\u{2E80}'..='\u{9FFF}' | '\u{AC00}'..='\u{D7AF}' | '\u{F900}'..='\u{FAFF}'
        | '\u{20000}'..='\u{3FFFF}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(entries: &[(&str, &str)]) -> Pronunciations {
        let mut list = Pronunciations::default();
        for (word, spoken) in entries {
            list.insert(word, spoken).unwrap();
        }
        list
    }

    fn said(list: &Pronunciations, text: &str) -> String {
        list.apply(text, usize::MAX).unwrap().into_owned()
    }

    #[test]
    fn a_text_that_grows_too_long_is_refused() {
        let list = list(&[("a", &"b".repeat(256))]);
        assert!(list.apply(&"a ".repeat(10), 2570).is_some());
        assert!(list.apply(&"a ".repeat(10), 2569).is_none());
        assert!(list.apply(&"a ".repeat(1_000_000), 2569).is_none());
    }

    #[test]
    fn whole_words_are_replaced() {
        let list = list(&[("GIF", "jif"), ("nginx", "engine x"), ("C++", "C plus plus"), ("重庆", "chóng qìng")]);
        for (text, expected) in [
            ("A GIF, two GIFs, GIF's and gif.", "A jif, two GIFs, jif's and gif."),
            ("NGINX or nginx; xnginx", "engine x or engine x; xnginx"),
            ("C++ and C+", "C plus plus and C+"),
            ("我在重庆住", "我在chóng qìng住"),
            ("GIFGIF GIF", "GIFGIF jif"),
            ("", ""),
        ] {
            assert_eq!(said(&list, text), expected);
        }
        assert!(matches!(list.apply("nothing here", 0), Some(Cow::Borrowed(_))));
    }

    #[test]
    fn a_capital_letter_asks_for_that_spelling_and_goes_before_any_case() {
        let list = list(&[("Polish", "Pole-ish"), ("polish", "pollish")]);
        assert_eq!(said(&list, "Polish polish POLISH"), "Pole-ish pollish pollish");
    }

    #[test]
    fn the_longest_entry_goes_first_and_nothing_is_replaced_twice() {
        let list = list(&[("a", "b"), ("a-b", "c"), ("b", "a")]);
        assert_eq!(said(&list, "a-b a b"), "c b a");
    }

    #[test]
    fn a_request_goes_before_the_config() {
        let own = list(&[("gif", "jif")]);
        let both = own.over(&list(&[("gif", "ghif"), ("sql", "sequel")]));
        assert_eq!(said(&both, "gif sql"), "jif sequel");
    }

    #[test]
    fn entries_are_limited() {
        let mut list = Pronunciations::default();
        for (word, spoken) in [("", "a"), ("a b", "a"), (&*"a".repeat(65), "a"), ("a", " "), ("a", "x\ny")] {
            assert!(list.insert(word, spoken).is_err(), "{word:?} {spoken:?}");
        }
        assert!(list.insert("a", &"b".repeat(257)).unwrap_err().contains("1 to 256"));
        assert!(list.is_empty());
    }

    proptest! {
        #[test]
        fn replacing_words_by_themselves_changes_nothing(
            words in prop::collection::vec("[a-cé好.İß]{1,4}", 0..6), text in "[a-cé好. İß]{0,40}",
        ) {
            let mut list = Pronunciations::default();
            for word in &words {
                // In that spelling only, for any case would give another one.
                list.exact.insert(word.clone(), word.clone());
                list.lengths.insert(word.chars().count());
                list.firsts.extend(word.chars().next().and_then(lower));
            }
            prop_assert_eq!(said(&list, &text), text);
        }
    }
}
