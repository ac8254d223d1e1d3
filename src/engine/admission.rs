//! Admission of requests: [`AdmissionCore`] with the clock and the metrics. Every admitted request has a slot in every
//! stage, so that a slow client never keeps another request waiting for one.

use super::api::{Event, LaterReason, RequestError, RequestOptions, Slo, SubmitError};
use super::ledger::Ledger;
use omni_config::{AdmissionMode, LimitsConfig};
use omni_core::admission::{
    Accepted, AdmissionCore, AdmissionLimits, AdmissionStatus, Asked, Ended, Reason, Refusal, Ticket,
};
use omni_telemetry::AdmissionMetrics;
use omni_telemetry::clock::Clock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::watch;

/// How often [`Admissions::tick`] is to be called.
pub(super) const TICK: Duration = Duration::from_millis(250);

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
    /// Pauses requests and lets them go on. Called without any lock held.
    ledger: OnceLock<Weak<Ledger>>,
}

/// The place of one admitted request, for all parts of it.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// Admission wants the request to pause.
    wanted: AtomicBool,
    /// The ledger has paused it; written with the ledger locked.
    paused: AtomicBool,
}

impl Place {
    /// Whether the request is paused. Exact where the ledger is locked.
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::SeqCst)
    }

    /// Makes the state what admission wants last; if that changed it, whether the request is paused now. To be called
    /// with the ledger locked.
    pub fn settle(&self) -> Option<bool> {
        let wanted = self.wanted.load(Ordering::SeqCst);
        (self.paused.swap(wanted, Ordering::SeqCst) != wanted).then_some(wanted)
    }
}

struct State {
    core: AdmissionCore,
    /// Of each permit, what ends its request.
    ends: BTreeMap<Ticket, End>,
    places: BTreeMap<Ticket, Arc<Place>>,
    /// When [`Admissions::tick`] came last, or should have.
    ticked: Option<Duration>,
    /// Restarts of all stages that have been heard of.
    restarts: u32,
}

/// What ends a request whose place is gone. Called without any lock held.
type Ender = Box<dyn FnOnce(RequestError) + Send>;

/// What is to be done for other requests when one comes, goes, or is read.
#[derive(Default)]
struct Changed {
    /// Ends the background requests that make way.
    over: Vec<Box<dyn FnOnce() + Send>>,
    /// The places whose requests are to pause or to go on, which they were told.
    places: Vec<Arc<Place>>,
}

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
    place: Arc<Place>,
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
            state: Mutex::new(State {
                core,
                ends: BTreeMap::new(),
                places: BTreeMap::new(),
                ticked: None,
                restarts: 0,
            }),
            held: watch::Sender::new(0),
            ledger: OnceLock::new(),
        }))
    }

    /// Says what pauses requests and lets them go on. Once, before the first request.
    pub fn settled_by(&self, ledger: &Arc<Ledger>) {
        let _ = self.0.ledger.set(Arc::downgrade(ledger));
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
        if options.slo == Slo::Background {
            let busy = || SubmitError::Busy("there is no room for what nobody waits for".into());
            let ticket = state.core.ask_background(now).ok_or_else(busy)?;
            state.ends.insert(ticket, End::Unknown);
            return Ok(Permit { shared: Arc::clone(shared), ticket, place: Arc::default() });
        }
        if state.restarts != restarts {
            state.restarts = restarts;
            state.core.disturbed(now);
        }
        state.excuse(now);
        let slo = if sounds { options.slo } else { Slo::BestEffort };
        let asked = Asked { tenant: options.tenant, slo, steady, chat };
        let answer = state.core.ask(&asked, now);
        let status = state.core.status();
        let (mut yielded, place) = (None, Arc::<Place>::default());
        if let Ok(Accepted { ticket, instead_of }) = &answer {
            state.ends.insert(*ticket, End::Unknown);
            state.places.insert(*ticket, Arc::clone(&place));
            yielded = instead_of.and_then(|ticket| state.end(ticket, RequestError::Yielded));
        }
        let changed = state.changed();
        drop(state);
        shared.settle(changed);
        if let Some(end) = yielded {
            shared.metrics.ended("yielded");
            end();
        }
        shared.metrics.capacity(status.capacity);
        match answer {
            Ok(Accepted { ticket, .. }) => {
                shared.held.send_replace(status.held);
                Ok(Permit { shared: Arc::clone(shared), ticket, place })
            }
            Err(refusal) => Err(self.told(refusal)),
        }
    }

    /// Ends requests whose clients keep them waiting, and those that are too old.
    pub fn tick(&self) {
        let shared = &self.0;
        let mut state = shared.lock();
        let now = shared.now();
        state.excuse(now);
        state.ticked = Some(now);
        let ended = state.core.tick(now);
        let mut ends = Vec::new();
        for (ticket, why) in ended {
            let (reason, error) = match why {
                Ended::Slow(limit) => ("slow_client", RequestError::SlowClient(limit)),
                Ended::Old(limit) => ("lifetime", RequestError::TimedOut(limit)),
            };
            shared.metrics.ended(reason);
            ends.extend(state.end(ticket, error));
        }
        let (status, changed) = (state.core.status(), state.changed());
        drop(state);
        shared.settle(changed);
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

    /// Tells the core something; then requests are paused or go on as it says.
    fn tell(&self, what: impl FnOnce(&mut AdmissionCore, Duration)) {
        let now = self.now();
        let mut state = self.lock();
        what(&mut state.core, now);
        let changed = state.changed();
        drop(state);
        self.settle(changed);
    }

    fn settle(&self, Changed { over, places: changed }: Changed) {
        over.into_iter().for_each(|end| end());
        let Some(ledger) = self.ledger.get().and_then(Weak::upgrade) else { return };
        changed.iter().for_each(|place| ledger.settle(place));
        let paused = changed.iter().filter(|place| place.wanted.load(Ordering::SeqCst)).count();
        self.metrics.paused(paused);
    }
}

impl State {
    /// Clients are not to blame for time in which this process stood still, as it does where a machine has no processor
    /// for it: ticks are late then.
    fn excuse(&mut self, now: Duration) {
        let Some(ticked) = self.ticked else { return };
        let late = now.saturating_sub(ticked + TICK);
        if late > TICK {
            self.core.excuse(late, now);
            self.ticked = Some(ticked + late);
        }
    }

    /// What follows from what the core was told.
    fn changed(&mut self) -> Changed {
        let mut changed = Changed::default();
        for ticket in self.core.make_way() {
            changed.over.extend(self.end(ticket, RequestError::Yielded).map(|end| Box::new(end) as Box<_>));
        }
        for (ticket, paused) in self.core.changes() {
            if let Some(place) = self.places.get(&ticket) {
                place.wanted.store(paused, Ordering::SeqCst);
                changed.places.push(Arc::clone(place));
            }
        }
        changed
    }

    /// What ends a request, to be called when the lock is free.
    fn end(&mut self, ticket: Ticket, error: RequestError) -> Option<impl FnOnce() + Send + use<>> {
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

    /// For what is made for the request.
    pub fn place(&self) -> Arc<Place> {
        Arc::clone(&self.place)
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
        state.places.remove(&self.ticket);
        let (held, changed) = (state.core.status().held, state.changed());
        drop(state);
        self.shared.settle(changed);
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
        self.shared.tell(|core, now| core.waits(self.ticket, now));
    }

    /// It has read one.
    pub fn heard(&self, event: &Event) {
        match event {
            Event::Audio(chunk) => {
                let length = Duration::from_secs_f64(chunk.samples.len() as f64 / self.shared.samples_per_second);
                self.shared.tell(|core, now| core.heard(self.ticket, length, now));
            }
            Event::Text(text) => self.shared.tell(|core, now| core.read(self.ticket, text.chars().count(), now)),
            Event::Finished { .. } | Event::Failed(_) => self.shared.tell(|core, _| core.complete(self.ticket)),
            Event::Started { .. } | Event::Word(_) => {}
        }
    }

    /// The request waits for text that its client is still writing.
    pub fn waits_for_text(&self) {
        self.shared.tell(|core, now| core.waits_for_text(self.ticket, now));
    }

    /// Its client wrote so many characters.
    pub fn wrote(&self, chars: usize) {
        self.shared.tell(|core, now| core.wrote(self.ticket, chars, now));
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
