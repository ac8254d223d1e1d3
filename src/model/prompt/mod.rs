//! Prompts of both families. For Qwen3-Omni: token ids of the thinker from a conversation or a text to be spoken, which
//! of their embeddings the talker takes, and where rows of sound, images and videos go. For Qwen3-TTS: tokens and layout
//! of the talker from a text and a voice.
//!
//! Text of a client is never structure, even where it looks like a special token.

mod chat;
mod media;
mod tts;

pub use chat::{ChatPrompt, Message, PromptError, Prompter, Role, SpeechPrompt};
pub use media::{
    Content, Expanded, MediaItem, MediaMessage, MediaPrompt, Part, Side, ToolCall, audio_in_video, expand, positions,
};
pub use tts::{Reference, Speaker, TtsPrepared, TtsPrompt, TtsPromptError, TtsPrompter, TtsRequest, TtsStream};
