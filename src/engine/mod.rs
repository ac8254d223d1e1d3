//! Assembles the stages of a config, keeps the request ledger, and gives server and commands one handle.

pub mod api;

pub use api::{
    AudioChunk, ChatMessage, EngineHealth, Event, FinishReason, GenerateRequest, ModelInfo, Output, RequestError,
    ResponseStream, SamplingOverrides, Service, SpeechRequest, StageHealth, StageState, SubmitError, TextSource, Usage,
};
