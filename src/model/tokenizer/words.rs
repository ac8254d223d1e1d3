//! Text to ids while the text is still being written.

use super::{TokenizeError, Tokenizer};

/// Turns a stream of text into a stream of tokens. Text is held back until no text behind it can change its tokens:
/// mostly until the next word begins. All tokens together are exactly those of the whole text without the space around
/// it ([`Tokenizer::encode_text`]).
///
/// The Qwen models cut text into words before they merge bytes. A word never reaches over the begin of white space,
/// except that line ends belong to the punctuation before them, nor from a letter or digit to punctuation; and no
/// normalization joins characters there.
#[derive(Clone, Debug, Default)]
pub struct Words {
    pending: String,
    /// Bytes of `pending` that have been looked at, and the last place among them where it may be cut.
    seen: usize,
    cut: usize,
    last: Option<char>,
}

impl Words {
    /// The tokens that this text makes certain.
    ///
    /// # Errors
    /// Those of [`Tokenizer::encode_text`].
    pub fn push(&mut self, tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, TokenizeError> {
        // Space before the first word is not part of the text.
        self.pending.push_str(if self.last.is_none() { text.trim_start() } else { text });
        for (at, next) in self.pending[self.seen..].char_indices() {
            if self.last.is_some_and(|last| separate(last, next)) {
                self.cut = self.seen + at;
            }
            self.last = Some(next);
        }
        let certain: String = self.pending.drain(..self.cut).collect();
        self.cut = 0;
        self.seen = self.pending.len();
        tokenizer.encode_text(&certain)
    }

    /// Ends the text: the tokens of what is left.
    ///
    /// # Errors
    /// Those of [`Tokenizer::encode_text`].
    pub fn finish(self, tokenizer: &Tokenizer) -> Result<Vec<u32>, TokenizeError> {
        tokenizer.encode_text(self.pending.trim_end())
    }
}

/// Whether no word and no composed character ever reaches from `last` to `next`.
fn separate(last: char, next: char) -> bool {
    if next.is_whitespace() {
        return !last.is_whitespace() && !matches!(next, '\r' | '\n');
    }
    let punctuation = next.is_ascii_punctuation() || matches!(next, '，' | '。' | '！' | '？' | '；' | '：' | '、');
    punctuation && is_plain_letter_or_digit(last)
}

/// Letters and digits of which it is certain that every version of Unicode agrees.
fn is_plain_letter_or_digit(c: char) -> bool {
    c.is_ascii_alphanumeric()
        || matches!(c, '\u{3041}'..='\u{3096}' | '\u{30A1}'..='\u{30FA}' | '\u{4E00}'..='\u{9FA5}' | '\u{AC00}'..='\u{D7A3}')
}
