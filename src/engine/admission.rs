//! Admission of requests: [`AdmissionCore`] with the clock and the metrics. Every admitted request has a slot in every
//! stage, so that a slow client never keeps another request waiting for one.

use super::api::{Event, LaterReason, RequestOptions, SubmitError};
use omni_config::{AdmissionMode, LimitsConfig};
use omni_core::admission::{AdmissionCore, AdmissionStatus, Asked, Reason, Refusal, Ticket};
use omni_telemetry::AdmissionMetrics;
use omni_telemetry::clock::Clock;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// The places.
#[derive(Clone)]
pub(super) struct Admissions(Arc<Shared>);

struct Shared {
    limit: usize,
    clock: Clock,
    samples_per_second: f64,
    metrics: AdmissionMetrics,
    state: Mutex<State>,
    /// Places in use, for [`Admissions::all_left`].
    held: watch::Sender<usize>,
}

struct State {
    core: AdmissionCore,
    /// Restarts of all stages that have been heard of.
    restarts: u32,
}

/// The right of one request to be served, given back when dropped.
pub(super) struct Permit {
    shared: Arc<Shared>,
    ticket: Ticket,
}

/// Tells admission when the reader of a response gets its audio, which is how admission learns what the server carries.
pub(super) struct Watch {
    shared: Arc<Shared>,
    ticket: Ticket,
}

impl Admissions {
    /// As the config says, for speech of this sample rate.
    pub fn new(limits: &LimitsConfig, sample_rate: u32) -> Admissions {
        Admissions::on(Clock::system(), limits, sample_rate)
    }

    /// [`Admissions::new`] that tells the time by this clock.
    pub fn on(clock: Clock, limits: &LimitsConfig, sample_rate: u32) -> Admissions {
        let by_deadlines = limits.admission == AdmissionMode::Deadlines;
        let core = AdmissionCore::new(limits.max_requests, by_deadlines);
        let metrics = AdmissionMetrics::new();
        metrics.capacity(limits.max_requests);
        Admissions(Arc::new(Shared {
            limit: limits.max_requests,
            clock,
            samples_per_second: f64::from(sample_rate),
            metrics,
            state: Mutex::new(State { core, restarts: 0 }),
            held: watch::Sender::new(0),
        }))
    }

    /// A place now, or why not and when to come again. `steady` and `chat` as in [`Asked`]; `restarts`: of all stages,
    /// since the process began.
    pub fn enter(
        &self,
        options: &RequestOptions,
        steady: bool,
        chat: bool,
        restarts: u32,
    ) -> Result<Permit, SubmitError> {
        let shared = &self.0;
        let mut state = shared.lock();
        let now = shared.now();
        if state.restarts != restarts {
            state.restarts = restarts;
            state.core.disturbed(now);
        }
        let asked = Asked { tenant: options.tenant, slo: options.slo, steady, chat };
        let answer = state.core.ask(&asked, now);
        let status = state.core.status();
        drop(state);
        shared.metrics.capacity(status.capacity);
        match answer {
            Ok(ticket) => {
                shared.held.send_replace(status.held);
                Ok(Permit { shared: Arc::clone(shared), ticket })
            }
            Err(refusal) => {
                shared.metrics.refused(refusal.reason.as_str());
                Err(self.told(refusal))
            }
        }
    }

    /// The status now.
    pub fn status(&self) -> AdmissionStatus {
        self.0.lock().core.status()
    }

    /// Resolves when no request is left.
    pub async fn all_left(&self) {
        // The sender lives in `self`.
        let _ = self.0.held.subscribe().wait_for(|held| *held == 0).await;
    }

    fn told(&self, Refusal { reason, retry_after }: Refusal) -> SubmitError {
        let reason = match reason {
            Reason::Places => return SubmitError::Full { limit: self.0.limit, retry_after },
            Reason::Streams { capacity } => LaterReason::Streams(capacity),
            Reason::FirstSound { expected, deadline } => LaterReason::FirstSound { expected, deadline },
            Reason::Share => LaterReason::Share,
            Reason::OwnPlaces(limit) => LaterReason::OwnPlaces(limit),
            Reason::OwnRate(limit) => LaterReason::OwnRate(limit),
            Reason::Yields => LaterReason::Yields,
        };
        SubmitError::Later { reason, retry_after }
    }
}

impl Shared {
    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Only a bug in a pure core could panic under the lock; to go on serves every client better.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    /// For the reader of the answer.
    pub fn watch(&self) -> Watch {
        Watch { shared: Arc::clone(&self.shared), ticket: self.ticket }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let kept = state.core.left(self.ticket, self.shared.now());
        let held = state.core.status().held;
        drop(state);
        if let Some(kept) = kept {
            let deadlines = [("first_audio", kept.first_sound), ("playback", kept.playback)];
            for (deadline, met) in deadlines.into_iter().filter_map(|(deadline, met)| Some((deadline, met?))) {
                self.shared.metrics.deadline(deadline, met);
            }
        }
        self.shared.held.send_replace(held);
    }
}

impl Watch {
    /// The reader waits for the next event.
    pub fn waits(&self) {
        let now = self.shared.now();
        self.shared.lock().core.waits(self.ticket, now);
    }

    /// It has read one.
    pub fn heard(&self, event: &Event) {
        match event {
            Event::Audio(chunk) => {
                let length = Duration::from_secs_f64(chunk.samples.len() as f64 / self.shared.samples_per_second);
                let now = self.shared.now();
                self.shared.lock().core.heard(self.ticket, length, now);
            }
            Event::Finished { .. } | Event::Failed(_) => self.shared.lock().core.complete(self.ticket),
            Event::Started { .. } | Event::Text(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_config::Config;

    #[tokio::test]
    async fn a_full_house_says_so_and_when_to_come_again() {
        let limits = LimitsConfig { max_requests: 2, ..Config::default().limits };
        let admissions = Admissions::new(&limits, 24_000);
        let enter = || admissions.enter(&RequestOptions::default(), true, false, 0);
        let (first, second) = (enter().unwrap(), enter().unwrap());
        match enter() {
            Err(SubmitError::Full { limit: 2, retry_after }) => assert!(retry_after <= Duration::from_secs(1)),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("a third place"),
        }
        drop(first);
        assert_eq!(admissions.status().held, 1);
        let third = enter().unwrap();
        drop((second, third));
        admissions.all_left().await;
    }
}
