//! What the ledger hears of the client that reads a response.

use super::Ledger;
use crate::admission::Permit;
use crate::api::{Event, Listener};
use crate::journal::Edge;
use crate::stream::Expired;
use omni_core::ids::RequestId;
use omni_core::ledger::Failure;
use omni_core::scheduler::Ack;
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
        // Only these are counted when they are handed over.
        if !matches!(event, Event::Audio(_) | Event::Text(_)) {
            return;
        }
        let now = self.ledger.now();
        let mut state = self.ledger.lock();
        state.core.read(self.request, now);
        if let Event::Audio(chunk) = event {
            state.core.heard(self.request, self.ledger.unit * chunk.frames.0);
            let before = state.open.get(&self.request).map(|open| open.journal.acknowledged(Edge::Audio));
            let upto = before.unwrap_or(0).saturating_add(chunk.frames.0);
            self.ledger.ack(&mut state, Edge::Audio, vec![Ack { request: self.request, upto }]);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.ledger.lock();
        let effect = match self.expired.get() {
            Some(life) => state.core.fail(self.request, Failure::TimedOut(*life)),
            None => state.core.client_gone(self.request),
        };
        self.ledger.carry_out(&mut state, effect.into_iter().collect());
    }
}
