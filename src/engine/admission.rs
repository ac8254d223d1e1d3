//! Admission of requests: [`AdmissionCore`] with the clock and the metrics. Every admitted request has a slot in every
//! stage, so that a slow client never keeps another request waiting for one.

use super::api::{Event, LaterReason, RequestError, RequestOptions, Slo, SubmitError};
use omni_config::{AdmissionMode, LimitsConfig};
use omni_core::admission::{
    Accepted, AdmissionCore, AdmissionLimits, AdmissionStatus, Asked, Ended, Reason, Refusal, Ticket,
};
use omni_telemetry::AdmissionMetrics;
use omni_telemetry::clock::Clock;
use std::collections::BTreeMap;
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
    /// Of each permit, what ends its request.
    ends: BTreeMap<Ticket, End>,
    /// Restarts of all stages that have been heard of.
    restarts: u32,
}

/// What ends a request whose place is gone. Called without any lock held.
type Ender = Box<dyn FnOnce(RequestError) + Send>;

enum End {
    /// Nothing yet: the request is being planned.
    Unknown,
    By(Ender),
    /// It was to be ended before anything could.
    Over(RequestError),
}

/// A request, as [`Admissions::enter`] is told of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entrant<'a> {
    pub options: &'a RequestOptions,
    /// As in [`Asked`].
    pub steady: bool,
    pub chat: bool,
    /// Whether it owes sound. Without any no deadline can be missed.
    pub sounds: bool,
    /// Restarts of all stages, since the process began.
    pub restarts: u32,
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
        let core = AdmissionCore::new(AdmissionLimits {
            places: limits.max_requests,
            by_deadlines: limits.admission == AdmissionMode::Deadlines,
            first_audio: limits.first_audio_deadline,
            slow_client: limits.stalled_client_timeout,
            life: limits.request_timeout,
        });
        let metrics = AdmissionMetrics::new();
        metrics.capacity(limits.max_requests);
        Admissions(Arc::new(Shared {
            limit: limits.max_requests,
            clock,
            samples_per_second: f64::from(sample_rate),
            metrics,
            state: Mutex::new(State { core, ends: BTreeMap::new(), restarts: 0 }),
            held: watch::Sender::new(0),
        }))
    }

    /// When first sounds are expected from now on, where requests do not say.
    pub fn set_first_audio(&self, deadline: Duration) {
        self.0.lock().core.set_first_audio(deadline);
    }

    /// A place now, or why not and when to come again.
    pub fn enter(&self, entrant: Entrant<'_>) -> Result<Permit, SubmitError> {
        let Entrant { options, steady, chat, sounds, restarts } = entrant;
        let shared = &self.0;
        let mut state = shared.lock();
        let now = shared.now();
        if state.restarts != restarts {
            state.restarts = restarts;
            state.core.disturbed(now);
        }
        let slo = if sounds { options.slo } else { Slo::BestEffort };
        let asked = Asked { tenant: options.tenant, slo, steady, chat };
        let answer = state.core.ask(&asked, now);
        let status = state.core.status();
        let mut yielded = None;
        if let Ok(Accepted { ticket, instead_of }) = &answer {
            state.ends.insert(*ticket, End::Unknown);
            yielded = instead_of.and_then(|ticket| state.end(ticket, RequestError::Yielded));
        }
        drop(state);
        if let Some(end) = yielded {
            shared.metrics.ended("yielded");
            end();
        }
        shared.metrics.capacity(status.capacity);
        match answer {
            Ok(Accepted { ticket, .. }) => {
                shared.held.send_replace(status.held);
                Ok(Permit { shared: Arc::clone(shared), ticket })
            }
            Err(refusal) => Err(self.told(refusal)),
        }
    }

    /// Ends requests whose clients keep them waiting, and those that are too old.
    pub fn tick(&self) {
        let shared = &self.0;
        let mut state = shared.lock();
        let ended = state.core.tick(shared.now());
        let mut ends = Vec::new();
        for (ticket, why) in ended {
            let (reason, error) = match why {
                Ended::Slow(limit) => ("slow_client", RequestError::SlowClient(limit)),
                Ended::Old(limit) => ("lifetime", RequestError::TimedOut(limit)),
            };
            shared.metrics.ended(reason);
            ends.extend(state.end(ticket, error));
        }
        let status = state.core.status();
        drop(state);
        ends.into_iter().for_each(|end| end());
        shared.metrics.capacity(status.capacity);
        shared.held.send_if_modified(|held| std::mem::replace(held, status.held) != status.held);
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
        self.0.metrics.refused(reason.as_str());
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

impl State {
    /// What ends a request, to be called when the lock is free.
    fn end(&mut self, ticket: Ticket, error: RequestError) -> Option<impl FnOnce() + use<>> {
        let end = self.ends.get_mut(&ticket)?;
        match std::mem::replace(end, End::Over(error.clone())) {
            End::By(ender) => Some(move || ender(error)),
            End::Unknown | End::Over(_) => None,
        }
    }
}

impl Permit {
    /// Says what ends the request when its place is taken away.
    pub fn ends_by(&self, ender: impl FnOnce(RequestError) + Send + 'static) {
        let mut state = self.shared.lock();
        let Some(end) = state.ends.get_mut(&self.ticket) else { return };
        match std::mem::replace(end, End::Unknown) {
            End::Over(error) => {
                drop(state);
                ender(error);
            }
            End::Unknown | End::By(_) => *end = End::By(Box::new(ender)),
        }
    }

    /// For the reader of the answer.
    pub fn watch(&self) -> Watch {
        Watch { shared: Arc::clone(&self.shared), ticket: self.ticket }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let kept = state.core.left(self.ticket, self.shared.now());
        let ender = state.ends.remove(&self.ticket);
        let held = state.core.status().held;
        drop(state);
        drop(ender);
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
            Event::Text(text) => {
                let now = self.shared.now();
                self.shared.lock().core.read(self.ticket, text.chars().count(), now);
            }
            Event::Finished { .. } | Event::Failed(_) => self.shared.lock().core.complete(self.ticket),
            Event::Started { .. } | Event::Word(_) => {}
        }
    }

    /// The request waits for text that its client is still writing.
    pub fn waits_for_text(&self) {
        let now = self.shared.now();
        self.shared.lock().core.waits_for_text(self.ticket, now);
    }

    /// Its client wrote so many characters.
    pub fn wrote(&self, chars: usize) {
        let now = self.shared.now();
        self.shared.lock().core.wrote(self.ticket, chars, now);
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
        let options = RequestOptions::default();
        let enter =
            || admissions.enter(Entrant { options: &options, steady: true, chat: false, sounds: true, restarts: 0 });
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

    #[tokio::test]
    async fn a_request_that_lost_its_place_before_it_began_ends_when_it_does() {
        let admissions = Admissions::new(&Config::default().limits, 24_000);
        let options = RequestOptions::default();
        let entrant = Entrant { options: &options, steady: true, chat: false, sounds: true, restarts: 0 };
        let permit = admissions.enter(entrant).unwrap();
        let end = admissions.0.lock().end(permit.ticket, RequestError::Yielded);
        assert!(end.is_none(), "nothing is known that could end it");
        let (told, ended) = std::sync::mpsc::channel();
        permit.ends_by(move |error| told.send(error).unwrap());
        assert_eq!(ended.recv().unwrap(), RequestError::Yielded);
    }
}
