//! Waiting for a state that a test can only ask for, of another process or of an engine that runs. The pauses leave the
//! cores to what is waited for: two tests that ask without a pause take both cores of a small machine.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fmt::Debug;
use std::panic::Location;
use std::time::{Duration, Instant};

/// Far beyond what anything takes that is waited for, on the slowest machine too: a test that waits longer hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Between two questions: short beside a request, long beside a question.
const PAUSE: Duration = Duration::from_millis(1);

/// Asks until it is answered. Panics with the last refusal where that takes longer than [`PATIENCE`].
#[track_caller]
pub fn answer<T, E: Debug>(mut ask: impl FnMut() -> Result<T, E>) -> T {
    let begun = Instant::now();
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(refusal) => assert!(begun.elapsed() < PATIENCE, "waited in vain: {refusal:?}"),
        }
        pause();
    }
}

/// Returns once it is so; `what` is said where it does not become so.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    answer(|| is_so().then_some(()).ok_or(what));
}

/// [`answer`] in a task, for a question that waits itself. Panics with the place of the call.
#[track_caller]
pub fn answered<T, E: Debug, F: Future<Output = Result<T, E>>>(mut ask: impl FnMut() -> F) -> impl Future<Output = T> {
    let place = Location::caller();
    async move {
        let begun = Instant::now();
        loop {
            match ask().await {
                Ok(answer) => return answer,
                Err(refusal) => assert!(begun.elapsed() < PATIENCE, "waited in vain at {place}: {refusal:?}"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// [`answer`] in a task. Panics with the place of the call.
#[track_caller]
pub fn seen<T, E: Debug>(mut ask: impl FnMut() -> Result<T, E>) -> impl Future<Output = T> {
    answered(move || std::future::ready(ask()))
}

/// [`until`] in a task.
#[track_caller]
pub fn comes(what: &str, mut is_so: impl FnMut() -> bool) -> impl Future<Output = ()> {
    seen(move || is_so().then_some(()).ok_or(what))
}

/// Before a question is asked again.
#[expect(clippy::disallowed_methods, reason = "the one pause between two questions to another process")]
pub fn pause() {
    std::thread::sleep(PAUSE);
}
