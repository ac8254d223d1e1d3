//! What the ledger hears of the client that reads a response.

use super::Ledger;
use super::posts::Post;
use crate::admission::Permit;
use crate::api::{Event, Listener};
use crate::stream::Expired;
use omni_core::ids::RequestId;
use omni_core::ledger::Failure;
use omni_fault::{FaultEvent, FaultSite};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Follows how the client reads one response.
pub(super) struct Reader {
    pub ledger: Arc<Ledger>,
    pub request: RequestId,
    /// The fault point of a slow client, and whether the client has heard anything.
    pub pace: FaultSite,
    pub heard: AtomicBool,
    /// Whether it has heard the last event.
    pub ended: AtomicBool,
    /// Set where the stream is dropped because its time is over.
    pub expired: Expired,
    pub _permit: Option<Permit>,
}

impl Listener for Reader {
    fn hesitates(&self, event: &Event) -> Option<Duration> {
        let event = || match event {
            Event::Audio(_) => FaultEvent::output(self.request, !self.heard.swap(true, Ordering::Relaxed), false),
            Event::Finished { .. } | Event::Failed(_) => FaultEvent::output(self.request, false, true),
            Event::Started { .. } | Event::Text(_) | Event::Word(_) => FaultEvent::of(self.request),
        };
        self.pace.occurs(|| [event()])?.kind.delay()
    }

    fn read(&self, event: &Event) {
        // Only text and sound are counted when they are handed over.
        let frames = match event {
            Event::Audio(chunk) => Some(chunk.frames),
            Event::Text(_) => None,
            Event::Finished { .. } | Event::Failed(_) => return self.ended.store(true, Ordering::Relaxed),
            Event::Started { .. } | Event::Word(_) => return,
        };
        self.ledger.post(Post::Read(self.request, frames, self.ledger.now()));
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // The ledger has closed a request before its client reads the last event.
        if *self.ended.get_mut() {
            return;
        }
        let mut state = self.ledger.lock();
        let effect = match self.expired.get() {
            Some(life) => state.core.fail(self.request, Failure::TimedOut(*life)),
            None => state.core.client_gone(self.request),
        };
        self.ledger.carry_out(&mut state, effect.into_iter().collect());
    }
}
