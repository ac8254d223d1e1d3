//! One key of the config, as long as the process runs: its limits, what it has used of them, and its series. A reload
//! changes the limits and leaves what was used, so that it takes no stream away and gives nothing twice.

use super::error::ApiError;
use axum::http::StatusCode;
use omni_config::{KeyConfig, Scope};
use omni_core::quota::{Bucket, Rate};
use omni_engine::{Tenant, TenantId};
use omni_telemetry::{KeyMetrics, KeyRefusal};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
/// When a client may come again that has too many connections: the server does not know when one will end.
const SOON: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(super) struct Key {
    name: String,
    number: u32,
    metrics: KeyMetrics,
    began: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None` when the config has it no more.
    config: Option<KeyConfig>,
    requests: Option<Bucket>,
    bytes: Option<Bucket>,
    speech: Option<Bucket>,
    connections: usize,
    /// Speech that is no whole second yet.
    part: Duration,
}

impl Key {
    /// A key that has used nothing. `label` names it in metrics.
    pub fn new(name: &str, number: u32, label: &str) -> Key {
        let state =
            State { config: None, requests: None, bytes: None, speech: None, connections: 0, part: Duration::ZERO };
        Key {
            name: name.to_owned(),
            number,
            metrics: KeyMetrics::new(label),
            began: Instant::now(),
            state: Mutex::new(state),
        }
    }

    /// What the config says of it from now on.
    pub fn configure(&self, config: Option<&KeyConfig>) {
        let now = self.now();
        let mut state = self.lock();
        let rate = |amount: Option<f64>, period| amount.map(|amount| Rate { amount, period });
        let requests = config.and_then(|config| config.requests_per_minute).map(f64::from);
        let bytes = config.and_then(|config| config.bytes_per_minute).map(|bytes| bytes as f64);
        let speech = config.and_then(|config| config.speech_seconds_per_hour).map(f64::from);
        adjust(&mut state.requests, rate(requests, MINUTE), now);
        adjust(&mut state.bytes, rate(bytes, MINUTE), now);
        adjust(&mut state.speech, rate(speech, HOUR), now);
        state.config = config.cloned();
    }

    /// Its name in the config.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whose share its requests take.
    pub fn tenant(&self) -> Tenant {
        let state = self.lock();
        let config = state.config.as_ref();
        Tenant {
            id: TenantId::Key(self.number),
            weight: config.map_or(1, |config| config.weight),
            max_requests: config.and_then(|config| config.max_requests),
            requests_per_minute: config.and_then(|config| config.requests_per_minute),
        }
    }

    /// Whether it is for one of these.
    pub fn has(&self, scopes: &[Scope]) -> bool {
        self.lock().config.as_ref().is_some_and(|config| config.scopes.iter().any(|scope| scopes.contains(scope)))
    }

    /// Refuses what it is not for.
    pub fn check(&self, scopes: &[Scope]) -> Result<(), ApiError> {
        if self.has(scopes) {
            return Ok(());
        }
        let names: Vec<_> = scopes.iter().map(|scope| format!("{:?}", scope.as_str())).collect();
        let message = format!("the key {:?} is not for this; it needs the scope {}", self.name, names.join(" or "));
        Err(self.refuse(KeyRefusal::Scope, ApiError::new(StatusCode::FORBIDDEN, "insufficient_scope", message)))
    }

    /// Takes one of its connections, which it has until the result is dropped.
    pub fn connect(self: &Arc<Key>) -> Result<Connected, ApiError> {
        let mut state = self.lock();
        let most = state.config.as_ref().and_then(|config| config.max_connections);
        if let Some(most) = most.filter(|most| state.connections >= *most) {
            drop(state);
            let message = format!("{most} requests at once are the limit of the key {:?}", self.name);
            return Err(self.refuse(KeyRefusal::Connections, later(message, SOON)));
        }
        state.connections += 1;
        self.metrics.connections.increment(1.0);
        Ok(Connected(Arc::clone(self)))
    }

    /// Counts a request or an utterance that begins, whatever becomes of it.
    pub fn begin(&self) -> Result<(), ApiError> {
        let now = self.now();
        let mut state = self.lock();
        if state.config.is_none() {
            drop(state);
            return Err(self.refuse(KeyRefusal::Removed, removed()));
        }
        let Some(bucket) = &mut state.requests else { return Ok(()) };
        let asked = bucket.ask(1.0, now);
        if asked.is_ok() {
            bucket.spend(1.0, now);
        }
        let most = bucket.rate().amount;
        drop(state);
        asked.map_err(|wait| self.over(KeyRefusal::Requests, format!("{most} requests a minute"), wait))
    }

    /// Whether it may make speech now. What a request will make is not known when it begins.
    pub fn may_speak(&self) -> Result<(), ApiError> {
        let now = self.now();
        let mut state = self.lock();
        let Some(bucket) = &mut state.speech else { return Ok(()) };
        let (any, most) = (bucket.any(now), bucket.rate().amount);
        drop(state);
        any.map_err(|wait| self.over(KeyRefusal::Speech, format!("{most} seconds of speech an hour"), wait))
    }

    /// Whether it may send so many bytes more.
    pub fn may_send(&self, bytes: u64) -> Result<(), ApiError> {
        let now = self.now();
        let mut state = self.lock();
        let Some(bucket) = &mut state.bytes else { return Ok(()) };
        let asked = bucket.any(now).and_then(|()| bucket.ask(bytes as f64, now));
        let most = bucket.rate().amount;
        drop(state);
        asked.map_err(|wait| self.over(KeyRefusal::Bytes, format!("{most} bytes a minute"), wait))
    }

    /// It sent so much.
    pub fn sent(&self, bytes: u64) {
        self.metrics.input_bytes.increment(bytes);
        let now = self.now();
        if let Some(bucket) = &mut self.lock().bytes {
            bucket.spend(bytes as f64, now);
        }
    }

    /// So much speech was made for it.
    pub fn spoke(&self, speech: Duration) {
        let now = self.now();
        let mut state = self.lock();
        if let Some(bucket) = &mut state.speech {
            bucket.spend(speech.as_secs_f64(), now);
        }
        // Counters have no fractions.
        state.part += speech;
        let whole = state.part.as_secs();
        state.part -= Duration::from_secs(whole);
        self.metrics.speech_seconds.increment(whole);
    }

    /// A request of it was answered.
    pub fn answered(&self, status: u16) {
        self.metrics.answered(status);
    }

    fn over(&self, why: KeyRefusal, limit: String, wait: Duration) -> ApiError {
        let error = later(format!("{limit} are the limit of the key {:?}", self.name), wait);
        self.refuse(why, error)
    }

    fn refuse(&self, why: KeyRefusal, error: ApiError) -> ApiError {
        self.metrics.refused(why);
        error
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is whole before the lock is let go.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives a limit to what has one from now on, and keeps what was used of it.
fn adjust(bucket: &mut Option<Bucket>, rate: Option<Rate>, now: Duration) {
    match (&mut *bucket, rate) {
        (Some(bucket), Some(rate)) if bucket.rate() != rate => bucket.change(rate, now),
        (Some(_), Some(_)) => {}
        (_, rate) => *bucket = rate.map(|rate| Bucket::new(rate, now)),
    }
}

/// One of the connections of a key.
#[derive(Debug)]
pub(super) struct Connected(Arc<Key>);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.lock().connections -= 1;
        self.0.metrics.connections.decrement(1.0);
    }
}

fn later(limit: String, wait: Duration) -> ApiError {
    let message = format!("{limit}; try again in {} s", super::error::whole_seconds(wait));
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", message).with_retry_after(wait)
}

fn removed() -> ApiError {
    let message = "this API key is not one of this server's any more";
    ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(change: impl FnOnce(&mut KeyConfig)) -> Arc<Key> {
        let mut config = KeyConfig::new("alice", [0; 32]);
        change(&mut config);
        let key = Key::new("alice", 0, "alice");
        key.configure(Some(&config));
        Arc::new(key)
    }

    #[test]
    fn each_limit_is_told_by_name_with_a_time() {
        let key = key(|config| {
            config.requests_per_minute = Some(1);
            config.bytes_per_minute = Some(1024);
            config.speech_seconds_per_hour = Some(2);
            config.max_connections = Some(1);
        });
        assert_eq!(key.begin(), Ok(()));
        assert_eq!(key.may_send(1 << 30), Ok(()), "no bucket holds it: it may go into debt once");
        key.sent(2048);
        assert_eq!(key.may_speak(), Ok(()));
        key.spoke(Duration::from_millis(2500));
        let connected = key.connect().unwrap();
        for (refused, says) in [
            (key.begin().unwrap_err(), "1 requests a minute are the limit of the key \"alice\"; try again in 60 s"),
            (key.may_send(0).unwrap_err(), "1024 bytes a minute are the limit of the key \"alice\"; try again in 60 s"),
            (key.may_speak().unwrap_err(), "2 seconds of speech an hour are the limit of the key \"alice\""),
            (key.connect().unwrap_err(), "1 requests at once are the limit of the key \"alice\"; try again in 1 s"),
        ] {
            assert_eq!((refused.status.as_u16(), refused.code), (429, "rate_limit_exceeded"));
            assert!(refused.message.contains(says) && refused.retry_after.is_some(), "{refused:?}");
        }
        drop(connected);
        assert!(key.connect().is_ok());
    }

    #[test]
    fn a_new_config_changes_limits_and_keeps_what_was_used() {
        let key = key(|config| config.requests_per_minute = Some(1));
        key.begin().unwrap();
        let mut more = KeyConfig { requests_per_minute: Some(2), ..KeyConfig::new("alice", [0; 32]) };
        key.configure(Some(&more));
        assert_eq!(key.begin(), Ok(()));
        assert!(key.begin().is_err());
        more.scopes = vec![Scope::Drill];
        key.configure(Some(&more));
        assert!(key.has(&[Scope::Speak, Scope::Drill]) && key.check(&[Scope::Speak]).is_err());
        key.configure(None);
        assert_eq!(key.begin().unwrap_err().status, StatusCode::UNAUTHORIZED);
        assert!(!key.has(&Scope::ALL));
    }
}
