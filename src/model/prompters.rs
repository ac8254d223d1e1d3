//! What turns text into tokens for one checkpoint: its tokenizer, and the prompter of its family.
//!
//! This is the one module that knows both the checkpoint and the text side, so that neither has to know the other. Each
//! call reads the files again: a caller keeps what it gets.

use crate::checkpoint::{CONFIG, Checkpoint};
use crate::prompt::{Prompter, TtsPrompter};
use crate::template::ChatTemplate;
use crate::{LoadError, Tokenizer};

impl Checkpoint {
    /// Reads the tokenizer and the chat template of a Qwen3-Omni checkpoint.
    ///
    /// # Errors
    /// [`LoadError`] when one of them is missing or malformed, or does not fit `config.json`.
    pub fn prompter(&self) -> Result<Prompter, LoadError> {
        let tokenizer = self.tokenizer()?;
        let template = ChatTemplate::load(self.files())?;
        Ok(Prompter::new(tokenizer.into(), template.into(), self.omni()?))
    }

    /// Reads the tokenizer of a Qwen3-TTS checkpoint, whose prompts have a fixed form.
    ///
    /// # Errors
    /// Those of [`Checkpoint::tokenizer`]; [`LoadError::Invalid`] when this is a Qwen3-Omni model.
    pub fn tts_prompter(&self) -> Result<TtsPrompter, LoadError> {
        TtsPrompter::new(self.tokenizer()?.into(), self.tts()?.clone(), self.tokenizer_files())
    }

    /// Reads the tokenizer and checks its ids against `config.json`.
    ///
    /// # Errors
    /// [`LoadError`] when it is missing or malformed, or its ids do not fit `config.json`.
    pub fn tokenizer(&self) -> Result<Tokenizer, LoadError> {
        let files = self.tokenizer_files();
        let tokenizer = Tokenizer::load(files)?;
        let misfit = |reason| Err(files.invalid("tokenizer.json", reason));
        let (have, room) = (tokenizer.vocabulary_size(), self.family().text_vocab_size());
        if have > room {
            return misfit(format!("has {have} ids, but the text vocabulary of {CONFIG} has {room}"));
        }
        for (text, id) in ["<|im_start|>", "<|im_end|>"].into_iter().zip(self.family().turn_tokens()) {
            match tokenizer.encode_structure(text) {
                Ok(ids) if ids == [id] => {}
                _ => return misfit(format!("does not give {text} the id {id} that {CONFIG} says")),
            }
        }
        Ok(tokenizer)
    }
}
