//! Text that arrives word by word.

use super::layout::Plan;
use super::{TtsPromptError, TtsPrompter};
use crate::talker::TalkerPrompt;
use crate::tokenizer::Words;
use std::sync::Arc;

/// A text that is being written while it is spoken.
#[derive(Clone, Debug)]
pub struct TtsStream {
    prompter: TtsPrompter,
    /// Its tokens are those that the talker has not taken yet.
    plan: Plan,
    words: Words,
    /// Tokens of text so far.
    text: u32,
    ended: bool,
    started: bool,
}

impl TtsStream {
    pub(super) fn new(prompter: TtsPrompter, plan: Plan, text: &str) -> Result<TtsStream, TtsPromptError> {
        let words = Words::default();
        let mut stream = TtsStream { prompter, plan, words, text: 0, ended: false, started: false };
        stream.push(text)?;
        Ok(stream)
    }

    /// Appends text. Has no effect after [`TtsStream::finish`].
    ///
    /// # Errors
    /// [`TtsPromptError::Tokenize`], which a byte-level tokenizer never returns.
    pub fn push(&mut self, text: &str) -> Result<(), TtsPromptError> {
        if !self.ended {
            let tokens = self.words.push(&self.prompter.tokenizer, text)?;
            self.add(tokens);
        }
        Ok(())
    }

    /// Ends the text.
    ///
    /// # Errors
    /// [`TtsPromptError::NothingToSpeak`] when there was no text at all.
    pub fn finish(&mut self) -> Result<(), TtsPromptError> {
        if !self.ended {
            self.ended = true;
            let tokens = std::mem::take(&mut self.words).finish(&self.prompter.tokenizer)?;
            self.add(tokens);
        }
        if self.text == 0 { Err(TtsPromptError::NothingToSpeak) } else { Ok(()) }
    }

    /// The prompt, once: as soon as its layout no longer depends on text that is still to come. Without a reference
    /// that is when the first word is whole; with one, when the text is longer than the recording or ends.
    pub fn prompt(&mut self) -> Option<Arc<TalkerPrompt>> {
        if self.started || self.text == 0 {
            return None;
        }
        let tokens = &self.prompter.config.talker.tokens;
        let prompt = if self.ended {
            Some(self.plan.whole_prompt(self.text, tokens))
        } else {
            self.plan.open_prompt(self.text, tokens)
        };
        self.started = prompt.is_some();
        prompt.map(Arc::new)
    }

    /// Tokens for the talker since the last call: everything before the text first.
    pub fn take_tokens(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.plan.tokens)
    }

    fn add(&mut self, tokens: Vec<u32>) {
        self.text += tokens.len() as u32;
        self.plan.tokens.extend(tokens);
    }
}
