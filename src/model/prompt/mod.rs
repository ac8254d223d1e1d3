//! Prompts. Qwen3-Omni: from a conversation, or from a text to be spoken, to the token ids of the thinker and the embeddings
//! that the talker takes from them. Qwen3-TTS: from a text and a voice to the tokens and the layout of the talker.
//!
//! Nothing that a client writes is structure, whatever it looks like.

mod chat;
mod tts;

pub use chat::{ChatPrompt, Message, PromptError, Prompter, Role, SpeechPrompt};
pub use tts::{Reference, Speaker, TtsPrompt, TtsPromptError, TtsPrompter, TtsRequest, TtsStream};
