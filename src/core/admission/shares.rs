//! Fair shares: how many places each tenant may have while places are scarce.
//!
//! Any tenant may take a free place. But a tenant that has its share takes no place that the server keeps for a tenant
//! with less than its own: as many places as that tenant was refused lately, and one place for all tenants that were
//! here lately, so that the server refuses a burst before it refuses the other tenants.

use super::Reason;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// A tenant that was here within this time counts as there.
const AROUND: Duration = Duration::from_secs(10);
/// Most tenants without a place that are remembered: those that were here last.
pub(super) const REMEMBERED: usize = 4096;

/// Who a tenant is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TenantId {
    /// This process.
    #[default]
    Own,
    /// The client with the key of this number.
    Key(u32),
    /// All clients at this address (IPv6: of its /64 network).
    Address(IpAddr),
}

/// A tenant, and what it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Which tenant.
    pub id: TenantId,
    /// Share of the places, against the weights of the others.
    pub weight: u32,
    /// Places at once.
    pub max_requests: Option<usize>,
    /// Requests in a minute, those that are refused included.
    pub requests_per_minute: Option<u32>,
}

impl Default for Tenant {
    fn default() -> Tenant {
        Tenant { id: TenantId::Own, weight: 1, max_requests: None, requests_per_minute: None }
    }
}

#[derive(Debug)]
struct State {
    weight: u32,
    held: usize,
    seen: Duration,
    /// Places that it was refused, and until when it is expected to come for them.
    wanted: usize,
    expected: Duration,
    /// Requests that may come at this moment, at most a minute's.
    tokens: f64,
    refilled: Duration,
}

impl State {
    /// A tenant that was not here before, or that was forgotten.
    fn new(tenant: &Tenant, now: Duration) -> State {
        State {
            weight: tenant.weight,
            held: 0,
            seen: now,
            wanted: 0,
            expected: now,
            tokens: rate(tenant),
            refilled: now,
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Shares {
    tenants: BTreeMap<TenantId, State>,
    held: usize,
}

impl Shares {
    /// Charges a tenant for a request, whatever becomes of it; if it has used up its rate, when it may come again.
    pub fn charge(&mut self, tenant: &Tenant, now: Duration) -> Result<(), (Reason, Duration)> {
        self.see(tenant, now);
        let (Some(own), Some(rate)) = (self.tenants.get_mut(&tenant.id), tenant.requests_per_minute) else {
            return Ok(());
        };
        if own.tokens < 1.0 {
            let wait = (1.0 - own.tokens) * 60.0 / f64::from(rate.max(1));
            return Err((Reason::OwnRate(rate), Duration::from_secs_f64(wait)));
        }
        own.tokens -= 1.0;
        Ok(())
    }

    /// Whether a tenant may have one of `places`; if not, why, and when to come again if that is known.
    pub fn ask(&mut self, tenant: &Tenant, places: usize, now: Duration) -> Result<(), (Reason, Option<Duration>)> {
        self.see(tenant, now);
        let Some(own) = self.tenants.get(&tenant.id) else { return Ok(()) };
        if let Some(most) = tenant.max_requests
            && own.held >= most
        {
            return Err((Reason::OwnPlaces(most), None));
        }
        if self.held >= places {
            return Err((Reason::Places, None));
        }
        let total = self.weights(now);
        if own.held >= share(own.weight, total, places)
            && places - self.held <= self.kept_for_others(tenant.id, total, places, now)
        {
            return Err((Reason::Share, None));
        }
        Ok(())
    }

    /// It takes a place.
    pub fn takes(&mut self, tenant: &Tenant, now: Duration) {
        self.see(tenant, now);
        if let Some(own) = self.tenants.get_mut(&tenant.id) {
            own.held += 1;
            own.wanted = own.wanted.saturating_sub(1);
            self.held += 1;
        }
    }

    /// It was refused a place, and is expected to ask again until `expected`.
    pub fn wants(&mut self, tenant: &Tenant, places: usize, expected: Duration) {
        if let Some(own) = self.tenants.get_mut(&tenant.id) {
            own.wanted = (own.wanted + 1).min(places);
            own.expected = expected;
        }
    }

    /// It gives a place back.
    pub fn leaves(&mut self, id: TenantId) {
        if let Some(own) = self.tenants.get_mut(&id)
            && own.held > 0
        {
            own.held -= 1;
            self.held -= 1;
        }
    }

    /// It has a place again that [`Shares::leaves`] was told of.
    pub fn stays(&mut self, tenant: &Tenant, now: Duration) {
        // Without a place it may have been forgotten. Its place counts all the same.
        let own = self.tenants.entry(tenant.id).or_insert_with(|| State::new(tenant, now));
        own.held += 1;
        self.held += 1;
    }

    fn see(&mut self, tenant: &Tenant, now: Duration) {
        let rate = rate(tenant);
        let own = self.tenants.entry(tenant.id).or_insert_with(|| State::new(tenant, now));
        // A config that was read again may give it others.
        own.weight = tenant.weight;
        own.seen = now;
        own.tokens = (own.tokens + rate / 60.0 * now.saturating_sub(own.refilled).as_secs_f64()).min(rate);
        own.refilled = now;
        if own.expected < now {
            own.wanted = 0;
        }
        if self.tenants.len() > REMEMBERED {
            let away = self.tenants.iter().filter(|(id, state)| state.held == 0 && **id != tenant.id);
            // Keys are few, and what each has used of its rate must not be forgotten.
            let away = away.filter(|(id, _)| !matches!(id, TenantId::Key(_)));
            if let Some(oldest) = away.min_by_key(|(_, state)| state.seen).map(|(id, _)| *id) {
                self.tenants.remove(&oldest);
            }
        }
    }

    /// The weights of all tenants that are there.
    fn weights(&self, now: Duration) -> u64 {
        self.there(now).map(|(_, state)| u64::from(state.weight)).sum()
    }

    fn there(&self, now: Duration) -> impl Iterator<Item = (&TenantId, &State)> {
        let is_there = move |state: &State| {
            state.held > 0 || now.saturating_sub(state.seen) < AROUND || (state.wanted > 0 && state.expected >= now)
        };
        self.tenants.iter().filter(move |(_, state)| is_there(state))
    }

    fn kept_for_others(&self, id: TenantId, total: u64, places: usize, now: Duration) -> usize {
        let mut wanted = 0;
        let mut around = 0;
        for (_, state) in self.there(now).filter(|(other, _)| **other != id) {
            let room = share(state.weight, total, places).saturating_sub(state.held);
            let wants = if state.expected >= now { state.wanted } else { 0 };
            wanted += room.min(wants);
            around = around.max(room.min(1));
        }
        wanted.max(around)
    }
}

/// Requests that it may make in a minute.
fn rate(tenant: &Tenant) -> f64 {
    f64::from(tenant.requests_per_minute.unwrap_or(u32::MAX))
}

/// At least one place, whatever the weights.
fn share(weight: u32, total: u64, places: usize) -> usize {
    let share = places as u64 * u64::from(weight) / total.max(1);
    (share as usize).max(1)
}
