//! Requests that wait for their clients give their places to others, and go on when their clients are back.
//!
//! A paused request keeps what it has made and what it owes; stages hold nothing for it. So a pause costs a listener
//! nothing as long as there is something to be read, and a stage a prefill when the request goes on.

use super::{AdmissionCore, Stream, Tenant, TenantId, Ticket};
use std::time::Duration;

/// A request that has waited so long for its client gives its place up while all are taken.
pub(super) const YIELDS: Duration = Duration::from_secs(2);

impl Stream {
    /// For how long it has waited for its client, who has not come back for more sound, or has not written more text.
    fn idle(&self, now: Duration) -> Duration {
        self.reads.waited(now).max(self.writes.waited(now))
    }

    /// It is paused, and its client has read everything and waits for more. One that waits for its client does not.
    fn wants_to_go_on(&self) -> bool {
        let waits_for_client = self.reads.is_waiting() || self.writes.is_waiting();
        self.paused.is_some() && self.waits.is_some() && !self.complete && !waits_for_client
    }
}

impl AdmissionCore {
    /// The requests that were paused (true) or go on (false) since the last call, in this order.
    pub fn changes(&mut self) -> Vec<(Ticket, bool)> {
        std::mem::take(&mut self.changes)
    }

    /// The server stood still for so much of the time until `now`: what clients did not do meanwhile they could not.
    pub fn excuse(&mut self, late: Duration, now: Duration) {
        for stream in self.streams.values_mut() {
            stream.reads.excuse(late, now);
            stream.writes.excuse(late, now);
        }
    }

    /// Streams that hold a place.
    pub(super) fn running(&self) -> usize {
        self.streams.values().filter(|stream| stream.paused.is_none()).count()
    }

    /// Requests of a tenant that hold none.
    pub(super) fn paused_of(&self, tenant: TenantId) -> usize {
        self.streams.values().filter(|stream| stream.paused.is_some() && stream.tenant.id == tenant).count()
    }

    /// Streams that hold a place and use it.
    pub(super) fn in_use(&self, now: Duration) -> usize {
        self.streams.values().filter(|stream| stream.paused.is_none() && stream.idle(now) < YIELDS).count()
    }

    /// The stream that has waited longest for its client, if it may lose its place, and whose it is.
    pub(super) fn idlest(&self, now: Duration) -> Option<(Ticket, Tenant)> {
        let holds = self.streams.iter().filter(|(_, stream)| stream.paused.is_none() && stream.idle(now) >= YIELDS);
        let (ticket, stream) = holds.max_by_key(|(ticket, stream)| (stream.idle(now), **ticket))?;
        Some((*ticket, stream.tenant))
    }

    /// Takes the place of a stream; its share was told. As many requests may be paused as there are places: returns one
    /// that must end for it, which has been paused for longest and whose client is not back.
    pub(super) fn pause(&mut self, ticket: Ticket, now: Duration) -> Option<Ticket> {
        let paused = self.streams.iter().filter_map(|(ticket, stream)| Some((stream.paused?, stream, *ticket)));
        let (count, longest) = paused.fold((0, None), |(count, longest), (since, stream, ticket)| {
            let key = (stream.wants_to_go_on(), since, ticket);
            (count + 1, Some(longest.map_or(key, |other| key.min(other))))
        });
        let ended = longest.filter(|_| count >= self.limits.places).map(|(.., ticket)| ticket);
        ended.iter().for_each(|ticket| _ = self.streams.remove(ticket));
        if let Some(stream) = self.streams.get_mut(&ticket) {
            stream.paused = Some(now);
            // From now on its times tell of others.
            stream.steady = false;
            self.changes.push((ticket, true));
        }
        ended
    }

    /// The client of a request is back. If that was paused, it goes on as soon as there is a place.
    pub(super) fn comes_back(&mut self, ticket: Ticket, now: Duration) {
        if self.streams.get(&ticket).is_some_and(Stream::wants_to_go_on) {
            self.resume(now);
        }
    }

    /// Lets paused requests go on whose clients are back, those first that were paused first, where there is a place or
    /// another request waits for its client.
    pub(super) fn resume(&mut self, now: Duration) {
        loop {
            let back = self.streams.iter().filter(|(_, stream)| stream.wants_to_go_on());
            let Some((ticket, stream)) = back.min_by_key(|(ticket, stream)| (stream.paused, **ticket)) else { return };
            let (ticket, tenant, places) = (*ticket, stream.tenant, self.places(stream.slo));
            if self.running() >= places {
                let Some((idle, its_tenant)) = self.idlest(now).filter(|_| self.in_use(now) < places) else { return };
                self.shares.leaves(its_tenant.id);
                if let Some(stream) = self.streams.get_mut(&idle) {
                    (stream.paused, stream.steady) = (Some(now), false);
                    self.changes.push((idle, true));
                }
            }
            self.shares.stays(&tenant, now);
            if let Some(stream) = self.streams.get_mut(&ticket) {
                stream.paused = None;
                self.changes.push((ticket, false));
            }
        }
    }
}
