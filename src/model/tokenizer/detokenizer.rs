//! Ids to text, one token at a time.

use super::Tokenizer;

/// Turns a stream of tokens into a stream of text. A token may end inside a character; its bytes wait until the
/// character is whole. All deltas together are exactly [`Tokenizer::decode`] of all tokens.
#[derive(Clone, Debug, Default)]
pub struct Detokenizer {
    /// Begins a character and does not end it: at most three bytes.
    pending: Vec<u8>,
}

impl Detokenizer {
    /// The text that this token completes; empty for special tokens.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        if !tokenizer.is_special(id) {
            self.pending.extend_from_slice(tokenizer.token_bytes(id));
        }
        let mut text = String::new();
        let mut done = 0;
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            done += chunk.valid().len();
            // Bytes that cannot be completed any more are replaced; those that can still be wait.
            let (broken, last) = (chunk.invalid(), done + chunk.invalid().len() == self.pending.len());
            let waits = last && may_go_on(broken);
            if !broken.is_empty() && !waits {
                text.push(char::REPLACEMENT_CHARACTER);
                done += broken.len();
            }
        }
        self.pending.drain(..done);
        text
    }

    /// Ends the text: what is left.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }
}

/// Whether more bytes could make a character of these, which are no character yet.
fn may_go_on(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_none())
}
