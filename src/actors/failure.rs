//! Why an actor, or a thread that belongs to one, ends itself.

use omni_fault::{FaultKind, Injected};
use omni_model::ModelError;
use omni_transfer::transport::TransportError;
use std::panic::AssertUnwindSafe;

/// Why an actor ends itself.
#[derive(Debug, thiserror::Error)]
pub(super) enum ActorFailure {
    /// More in a queue than the windows allow.
    #[error("the {0} queue is full")]
    Queue(&'static str),
    /// A fault plan asks for it.
    #[error(transparent)]
    Injected(#[from] Injected),
    /// An edge broke.
    #[error("edge: {0}")]
    Edge(#[from] TransportError),
    /// The actor's thread ended.
    #[error("{0}")]
    Thread(String),
}

/// Why a thread of a stage ends itself.
#[derive(Debug, thiserror::Error)]
pub(super) enum ThreadError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Stage(#[from] ActorFailure),
}

/// A fault that a plan asks for, as the launch thread would see a real one.
pub(super) fn injected(injected: Injected) -> ThreadError {
    match injected.kind {
        FaultKind::Oom => ModelError::Device(candle_core::Error::msg(format!("out of memory ({injected})"))).into(),
        _ => ActorFailure::from(injected).into(),
    }
}

/// Why `work` failed or panicked, if it did.
pub(super) fn failure<E: std::fmt::Display>(work: impl FnOnce() -> Result<(), E>) -> Option<String> {
    match std::panic::catch_unwind(AssertUnwindSafe(work)) {
        Ok(outcome) => outcome.err().map(|error| error.to_string()),
        Err(panic) => Some(format!("panic: {}", panic_text(panic.as_ref()))),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}
