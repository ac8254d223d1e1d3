//! Admission of requests: [`AdmissionCore`] with the clock and the metrics. Every admitted request has a slot in every
//! stage, so that a slow client never keeps another request waiting for one.
//!
//! Only a request that comes waits for the lock, because it needs the answer. What is told of the others, twice for each
//! piece of an answer and when it begins and ends, is posted ([`PostedLock`]): many streams at once would wait for each
//! other otherwise.

mod permit;

pub(super) use permit::{Permit, Watch};

use super::api::{LaterReason, RequestError, RequestOptions, Slo, SubmitError};
use super::ledger::Ledger;
use super::posted_lock::PostedLock;
use omni_config::{AdmissionMode, LimitsConfig};
use omni_core::admission::{
    Accepted, AdmissionCore, AdmissionLimits, AdmissionStatus, Asked, Ended, Kept, Reason, Refusal, Ticket,
};
use omni_telemetry::AdmissionMetrics;
use omni_telemetry::clock::Clock;
use permit::{News, Told};
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::ops::DerefMut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
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
    state: PostedLock<State, Told, Infallible>,
    /// What posts have led to, until a thread does it that does not hold the lock.
    owed: Mutex<VecDeque<Changed>>,
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

    /// What admission wants from now on.
    #[cfg(test)]
    pub fn pauses(&self, paused: bool) {
        self.wanted.store(paused, Ordering::SeqCst);
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

/// What is to be done without the lock when a request comes, goes, or is read.
#[derive(Default)]
struct Changed {
    /// Ends requests whose places are gone: those that nobody waits for make way.
    over: Vec<(Ender, RequestError)>,
    /// The places whose requests are to pause or to go on, which they were told.
    places: Vec<Arc<Place>>,
    /// The deadlines of a request that has left, if it had any.
    kept: Option<Kept>,
    /// What would have ended it: dropped without the lock, too.
    unused: Option<End>,
}

impl Changed {
    fn is_empty(&self) -> bool {
        self.over.is_empty() && self.places.is_empty() && self.kept.is_none() && self.unused.is_none()
    }
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
            state: PostedLock::new(State {
                core,
                ends: BTreeMap::new(),
                places: BTreeMap::new(),
                ticked: None,
                restarts: 0,
            }),
            owed: Mutex::default(),
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
        self.0.follow();
    }

    /// A place now, or why not and when to come again.
    pub fn enter(&self, entrant: Entrant<'_>) -> Result<Permit, SubmitError> {
        let Entrant { options, steady, chat, sounds, restarts } = entrant;
        let shared = &self.0;
        let mut state = shared.lock();
        let now = shared.now();
        if options.slo == Slo::Background {
            let ticket = state.core.ask_background(now);
            state.ends.extend(ticket.map(|ticket| (ticket, End::Unknown)));
            drop(state);
            shared.follow();
            let busy = || SubmitError::Busy("there is no room for what nobody waits for".into());
            let ticket = ticket.ok_or_else(busy)?;
            return Ok(Permit { shared: Arc::clone(shared), ticket, place: Arc::default() });
        }
        if state.restarts != restarts {
            state.restarts = restarts;
            state.core.disturbed(now);
        }
        state.excuse(now);
        let slo = if sounds { options.slo } else { Slo::BestEffort };
        let asked = Asked { tenant: options.tenant, slo, steady, chat, charged: options.charged };
        let answer = state.core.ask(&asked, now);
        let capacity = state.core.capacity();
        let (mut yielded, place) = (None, Arc::<Place>::default());
        if let Ok(Accepted { ticket, instead_of }) = &answer {
            state.ends.insert(*ticket, End::Unknown);
            state.places.insert(*ticket, Arc::clone(&place));
            yielded = instead_of.and_then(|ticket| state.end(ticket, RequestError::Yielded));
            shared.held.send_replace(state.core.held());
        }
        if yielded.is_some() {
            shared.metrics.ended("yielded");
        }
        let mut changed = state.changed();
        drop(state);
        changed.over.extend(yielded);
        shared.settle(changed);
        shared.follow();
        shared.metrics.capacity(capacity);
        match answer {
            Ok(Accepted { ticket, .. }) => Ok(Permit { shared: Arc::clone(shared), ticket, place }),
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
        let mut over = Vec::new();
        for (ticket, why) in ended {
            let (reason, error) = match why {
                Ended::Slow(limit) => ("slow_client", RequestError::SlowClient(limit)),
                Ended::Old(limit) => ("lifetime", RequestError::TimedOut(limit)),
            };
            shared.metrics.ended(reason);
            over.extend(state.end(ticket, error));
        }
        let (capacity, held) = (state.core.capacity(), state.core.held());
        shared.held.send_if_modified(|told| std::mem::replace(told, held) != held);
        let mut changed = state.changed();
        drop(state);
        changed.over.append(&mut over);
        shared.settle(changed);
        shared.follow();
        shared.metrics.capacity(capacity);
    }

    /// The status now.
    pub fn status(&self) -> AdmissionStatus {
        let status = self.0.lock().core.status();
        self.0.follow();
        status
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

    /// The state. [`Shared::follow`] is due when the lock is free.
    fn lock(&self) -> impl DerefMut<Target = State> + '_ {
        self.state.lock(|_, never| match never {}, |state, told| self.carry_out(state, told))
    }

    /// Tells of a request. Never waits for the lock.
    fn tell(&self, ticket: Ticket, news: News) {
        let told = Told { ticket, now: self.now(), news };
        self.state.post(told, |state, told| self.carry_out(state, told));
        self.follow();
    }

    fn carry_out(&self, state: &mut State, Told { ticket, now, news }: Told) {
        let core = &mut state.core;
        let (mut over, mut kept, mut unused) = (None, None, None);
        match news {
            News::Waits => core.waits(ticket, now),
            News::Heard(length) => core.heard(ticket, length, now),
            News::Read(chars) => core.read(ticket, chars, now),
            News::Complete => core.complete(ticket),
            News::WaitsForText => core.waits_for_text(ticket, now),
            News::Wrote(chars) => core.wrote(ticket, chars, now),
            News::EndsBy(ender) => over = state.ends_by(ticket, ender),
            News::Left => {
                kept = core.left(ticket, now);
                self.held.send_replace(core.held());
                state.places.remove(&ticket);
                unused = state.ends.remove(&ticket);
            }
        }
        let mut changed = state.changed();
        changed.over.extend(over);
        (changed.kept, changed.unused) = (kept, unused);
        if !changed.is_empty() {
            self.owed().push_back(changed);
        }
    }

    /// Does what posts have led to, whichever thread carried them out. To be called without any lock held.
    fn follow(&self) {
        while let Some(changed) = self.next_owed() {
            self.settle(changed);
        }
    }

    fn next_owed(&self) -> Option<Changed> {
        self.owed().pop_front()
    }

    /// Locked for a push or a pop and nothing else.
    fn owed(&self) -> impl DerefMut<Target = VecDeque<Changed>> + '_ {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, Changed { over, places, kept, unused: _ }: Changed) {
        over.into_iter().for_each(|(end, error)| end(error));
        if let Some(kept) = kept {
            let deadlines = [("first_audio", kept.first_sound), ("playback", kept.playback)];
            for (deadline, met) in deadlines.into_iter().filter_map(|(deadline, met)| Some((deadline, met?))) {
                self.metrics.deadline(deadline, met);
            }
        }
        let Some(ledger) = self.ledger.get().and_then(Weak::upgrade).filter(|_| !places.is_empty()) else { return };
        places.iter().for_each(|place| ledger.settle(place));
        let paused = places.iter().filter(|place| place.wanted.load(Ordering::SeqCst)).count();
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
            changed.over.extend(self.end(ticket, RequestError::Yielded));
        }
        for (ticket, paused) in self.core.changes() {
            if let Some(place) = self.places.get(&ticket) {
                place.wanted.store(paused, Ordering::SeqCst);
                changed.places.push(Arc::clone(place));
            }
        }
        changed
    }

    /// What ends a request, to be called with the error when the lock is free.
    fn end(&mut self, ticket: Ticket, error: RequestError) -> Option<(Ender, RequestError)> {
        let end = self.ends.get_mut(&ticket)?;
        match std::mem::replace(end, End::Over(error.clone())) {
            End::By(ender) => Some((ender, error)),
            End::Unknown | End::Over(_) => None,
        }
    }

    /// Says what ends a request; returned with the error if it was to be ended before.
    fn ends_by(&mut self, ticket: Ticket, ender: Ender) -> Option<(Ender, RequestError)> {
        let end = self.ends.get_mut(&ticket)?;
        match std::mem::replace(end, End::Unknown) {
            End::Over(error) => Some((ender, error)),
            End::Unknown | End::By(_) => {
                *end = End::By(ender);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Event;
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

    fn entrant(options: &RequestOptions) -> Entrant<'_> {
        Entrant { options, steady: true, chat: false, sounds: true, restarts: 0 }
    }

    #[tokio::test]
    async fn a_request_that_lost_its_place_before_it_began_ends_when_it_does() {
        let admissions = Admissions::new(&Config::default().limits, 24_000);
        let permit = admissions.enter(entrant(&RequestOptions::default())).unwrap();
        let end = admissions.0.lock().end(permit.ticket, RequestError::Yielded);
        assert!(end.is_none(), "nothing is known that could end it");
        let (told, ended) = std::sync::mpsc::channel();
        permit.ends_by(move |error| told.send(error).unwrap());
        assert_eq!(ended.recv().unwrap(), RequestError::Yielded);
    }

    #[tokio::test]
    async fn what_is_told_while_a_request_comes_waits_for_nobody_and_is_done_after_it() {
        let admissions = Admissions::new(&Config::default().limits, 24_000);
        let options = RequestOptions::default();
        let [stays, leaves] = [0; 2].map(|_| admissions.enter(entrant(&options)).unwrap());
        let (told, ended) = std::sync::mpsc::channel();
        let mut state = admissions.0.lock();
        assert!(state.end(stays.ticket, RequestError::Yielded).is_none(), "nothing is known that could end it");
        // This thread would wait for ever if it waited for the lock.
        stays.watch().waits();
        stays.ends_by(move |error| told.send(error).unwrap());
        drop(leaves);
        assert_eq!(state.core.held(), 2);
        drop(state);
        assert!(ended.try_recv().is_err(), "the holder of the lock ends nothing under it");
        assert_eq!(admissions.status().held, 1);
        assert_eq!(ended.try_recv().unwrap(), RequestError::Yielded, "the next one does");
        drop(stays);
        admissions.all_left().await;
    }

    #[tokio::test]
    async fn nothing_is_left_of_requests_of_many_threads() {
        let limits = LimitsConfig { max_requests: 64, ..Config::default().limits };
        let admissions = Admissions::new(&limits, 24_000);
        let options = RequestOptions::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        let permit = admissions.enter(entrant(&options)).unwrap();
                        permit.ends_by(|error| panic!("{error}"));
                        let watch = permit.watch();
                        watch.waits();
                        drop(permit);
                        watch.heard(&Event::Text("late".into()));
                    }
                });
            }
        });
        admissions.all_left().await;
        let state = admissions.0.lock();
        assert_eq!((state.core.held(), state.ends.len(), state.places.len()), (0, 0, 0));
        drop(state);
        assert!(admissions.0.owed().is_empty());
    }
}
