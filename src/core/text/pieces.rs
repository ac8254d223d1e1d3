//! Cuts a whole text into as few pieces as a model can speak, each as full as fits: a model that reads a chapter needs
//! what it has read before for its tone.

use super::segments::{forced_end, sentence_end};

/// The pieces of `text`, of at most `most` characters, the first of at most `first` where there are several (each at
/// least 1).
///
/// A text that fits is one piece. A piece ends behind the last paragraph that leaves it half full, else behind its last
/// whole sentence, else as a sentence that is too long is cut. White space is one space, or an empty line between
/// paragraphs, which counts as one character; there is none around a piece.
pub fn pieces(text: &str, first: usize, most: usize) -> Vec<String> {
    let text = spaced(text);
    let mut rest = text.as_slice();
    let mut limit = if rest.len() > most { first.min(most) } else { most }.max(1);
    let mut pieces = Vec::new();
    while rest.len() > limit {
        let end = cut(rest, limit);
        pieces.push(written(&rest[..end]));
        let spaces = rest[end..].iter().take_while(|c| c.is_whitespace()).count();
        rest = &rest[end + spaces..];
        limit = most.max(1);
    }
    if !rest.is_empty() {
        pieces.push(written(rest));
    }
    pieces
}

/// Where the next piece of `text`, which has more than `limit` characters, ends.
fn cut(text: &[char], limit: usize) -> usize {
    // Whether a mark ends a sentence is known from the two characters behind it.
    let window = &text[..text.len().min(limit.saturating_add(2))];
    let mut sentence = None;
    let mut paragraph = None;
    let mut begin = 0;
    while let Some(end) = sentence_end(&window[begin..]).map(|length| begin + length).filter(|end| *end <= limit) {
        sentence = Some(end);
        if window[end] == '\n' {
            paragraph = Some(end);
        }
        begin = end + window[end..].iter().take_while(|c| c.is_whitespace()).count();
    }
    let full = |end: &usize| *end >= limit / 2;
    paragraph.filter(full).or(sentence).unwrap_or_else(|| forced_end(text, limit))
}

/// The text with single spaces, and one newline where a paragraph ends.
fn spaced(text: &str) -> Vec<char> {
    let mut chars = Vec::with_capacity(text.len());
    let mut newlines = None;
    for c in text.trim().chars() {
        if c.is_whitespace() {
            *newlines.get_or_insert(0) += usize::from(c == '\n');
            continue;
        }
        if let Some(newlines) = newlines.take() {
            chars.push(if newlines > 1 { '\n' } else { ' ' });
        }
        chars.push(c);
    }
    chars
}

fn written(piece: &[char]) -> String {
    let mut text = String::with_capacity(piece.len());
    for c in piece {
        if *c == '\n' { text.push_str("\n\n") } else { text.push(*c) }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_text_that_fits_is_one_piece() {
        assert_eq!(pieces(" One.  Two!\nThree? ", 5, 100), ["One. Two! Three?"]);
        assert_eq!(pieces("你好。今天怎么样？", 3, 100), ["你好。今天怎么样？"]);
        assert_eq!(pieces("A title\n \nA text", 5, 100), ["A title\n\nA text"]);
        assert_eq!(pieces(" \n ", 5, 100), Vec::<String>::new());
    }

    #[test]
    fn pieces_are_as_full_as_whole_sentences_make_them() {
        assert_eq!(pieces("One. Two. Three. Four.", 10, 10), ["One. Two.", "Three.", "Four."]);
        assert_eq!(pieces("One. Two. Three. Four.", 4, 16), ["One.", "Two. Three.", "Four."]);
        assert_eq!(pieces("One. Two.", 9, 9), ["One. Two."]);
    }

    #[test]
    fn a_paragraph_is_a_better_border_than_a_sentence_unless_it_comes_early() {
        assert_eq!(pieces("One. Two.\n\nThree. Four. Five.", 16, 16), ["One. Two.", "Three. Four.", "Five."]);
        assert_eq!(pieces("One.\n\nTwo. Three. Four.", 16, 16), ["One.\n\nTwo. Three.", "Four."]);
    }

    #[test]
    fn a_sentence_that_is_too_long_is_cut() {
        assert_eq!(pieces("one two, three four five", 16, 16), ["one two,", "three four five"]);
        assert_eq!(pieces("abcdefghij", 4, 4), ["abcd", "efgh", "ij"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn no_character_is_lost_and_no_piece_is_too_long(
            text in "([a-zA-Z.!?,\" \n]|好|。|é){0,80}", first in 1usize..40, most in 1usize..40,
        ) {
            let pieces = pieces(&text, first, most);
            let solid = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            prop_assert_eq!(solid(&pieces.concat()), solid(&text));
            for piece in &pieces {
                let length = piece.replace("\n\n", "\n").chars().count();
                prop_assert!(!piece.is_empty() && piece.trim() == piece && length <= most, "{piece:?}");
            }
            if pieces.len() > 1 {
                prop_assert!(pieces[0].replace("\n\n", "\n").chars().count() <= first);
            }
        }
    }
}
