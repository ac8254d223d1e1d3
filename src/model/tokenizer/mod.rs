//! Text to token ids and back: byte-level BPE as in the Qwen models.
//!
//! Two functions encode. [`Tokenizer::encode_text`] takes text from clients: `<|im_end|>` in it is eleven ordinary
//! characters. [`Tokenizer::encode_structure`] takes text that the program wrote, in which such names are tokens.

mod bytes;
mod detokenizer;
mod files;
mod words;

pub use detokenizer::Detokenizer;
pub use words::Words;

use crate::LoadError;
use crate::weights::Files;
use bytes::TokenBytes;

/// Words to ids and ids to bytes. Immutable and shared by all requests.
#[derive(Debug)]
pub struct Tokenizer {
    /// Knows no added tokens, so no text can turn into one.
    plain: tokenizers::Tokenizer,
    /// Longest first, so that the first match is the longest.
    added: Vec<AddedToken>,
    bytes: TokenBytes,
}

/// A token that stands for itself and is not made by merging bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedToken {
    /// How it is written, such as `<|im_start|>`.
    pub content: String,
    /// Its id.
    pub id: u32,
    /// Whether it is structure and no text: left out when ids become text.
    pub special: bool,
}

/// Text that could not be turned into ids.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot tokenize: {0}")]
pub struct TokenizeError(String);

impl Tokenizer {
    /// Reads `tokenizer.json`, or `vocab.json` with `merges.txt` and the added tokens of `tokenizer_config.json`.
    ///
    /// # Errors
    /// [`LoadError`] when neither is there, or it is not a byte-level BPE.
    pub fn load(files: &Files) -> Result<Tokenizer, LoadError> {
        files::load(files)
    }

    /// Ids of text from clients. Nothing in it is structure.
    ///
    /// # Errors
    /// [`TokenizeError`] when the vocabulary cannot express the text, which a byte-level one can.
    pub fn encode_text(&self, text: &str) -> Result<Vec<u32>, TokenizeError> {
        let encoding = self.plain.encode_fast(text, false).map_err(|e| TokenizeError(e.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Ids of text in which added tokens are recognized. Never give it text from clients.
    ///
    /// # Errors
    /// Those of [`Tokenizer::encode_text`].
    pub fn encode_structure(&self, text: &str) -> Result<Vec<u32>, TokenizeError> {
        self.encode_pieces(text, |piece| self.encode_text(piece))
    }

    /// [`Tokenizer::encode_structure`] with another encoder for the text between added tokens.
    pub(super) fn encode_pieces(
        &self,
        text: &str,
        encode: impl Fn(&str) -> Result<Vec<u32>, TokenizeError>,
    ) -> Result<Vec<u32>, TokenizeError> {
        let (mut ids, mut from, mut at) = (Vec::new(), 0, 0);
        while at < text.len() {
            let rest = &text[at..];
            if let Some(token) = self.added.iter().find(|t| rest.starts_with(&t.content)) {
                if from < at {
                    ids.extend(encode(&text[from..at])?);
                }
                ids.push(token.id);
                at += token.content.len();
                from = at;
            } else {
                at += rest.chars().next().map_or(1, char::len_utf8);
            }
        }
        if from < text.len() {
            ids.extend(encode(&text[from..])?);
        }
        Ok(ids)
    }

    /// The text of `ids`, without special tokens. Bytes that are no UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut detokenizer = Detokenizer::default();
        let mut text: String = ids.iter().map(|id| detokenizer.push(self, *id)).collect();
        text.push_str(&detokenizer.finish());
        text
    }

    /// The bytes that a token stands for; none for ids outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.bytes.get(id)
    }

    /// Whether a token is structure and no text.
    pub fn is_special(&self, id: u32) -> bool {
        self.added.iter().any(|t| t.id == id && t.special)
    }

    /// Tokens that are not made by merging bytes, longest first.
    pub fn added(&self) -> &[AddedToken] {
        &self.added
    }

    /// One more than the largest id.
    pub fn vocabulary_size(&self) -> usize {
        self.bytes.len()
    }
}
