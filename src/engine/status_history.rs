//! Since when each stage is in its state, and how long it took to recover last.

use omni_stage::{StageHandle, State};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::task::JoinHandle;

/// When a stage entered its state, and how long it took to recover.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatusHistory {
    /// Unix seconds.
    pub began: u64,
    /// Of the last restart.
    pub recovery: Option<Duration>,
}

/// Follows one stage.
pub(super) struct Follower {
    known: Arc<Mutex<StatusHistory>>,
    task: JoinHandle<()>,
}

impl Follower {
    /// Until the stage or this is gone. Must be called on a tokio runtime.
    pub fn new(stage: &StageHandle) -> Follower {
        let known = Arc::new(Mutex::new(StatusHistory { began: unix_seconds(), recovery: None }));
        let mut status = stage.status();
        let task = tokio::spawn({
            let known = Arc::clone(&known);
            async move {
                let now = |status: &omni_stage::StageStatus| (status.state, status.generation);
                let mut last = now(&status.borrow_and_update());
                let mut failed = None;
                while status.changed().await.is_ok() {
                    let next = now(&status.borrow_and_update());
                    if next == last {
                        continue;
                    }
                    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
                    known.began = unix_seconds();
                    match next.0 {
                        State::Running => {
                            let failed: Option<Instant> = failed.take();
                            known.recovery = failed.map(|failed| failed.elapsed()).or(known.recovery);
                        }
                        State::Restarting => _ = failed.get_or_insert_with(Instant::now),
                        State::Starting | State::Failed => {}
                    }
                    last = next;
                }
            }
        });
        Follower { known, task }
    }

    /// The history so far.
    pub fn known(&self) -> StatusHistory {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
