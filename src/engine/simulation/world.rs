//! The world of one simulation: the real ledger, admission and stages, and a clock that jumps from event to event.
//! After each event it carries on what the event put into queues, and looks whether anything is wrong.

use super::super::admission::{Admissions, Entrant};
use super::super::journal::Edge;
use super::super::ledger::{Acks, Ledger, LedgerSink};
use super::super::stages::Stages;
use super::edges::{Counted, CountedAcks, Into, Outbox, Trouble, Windows, Wire, lock};
use super::listener::{Client, End, Read, Woken};
use super::model::{Book, Factory, POISON, UNKNOWN};
use super::plan::{Planned, SAMPLE_RATE, UNIT, plan};
use super::random::{Random, mix};
use super::scenario::{Manner, RequestKind, Scenario, Script, What};
use super::{Report, Violation};
use crate::api::{RequestError, RequestOptions, Slo, SubmitError, Tenant, TenantId};
use crate::stream::Expired;
use omni_config::{AdmissionMode, Config, LimitsConfig};
use omni_core::deadline::PlaybackPolicy;
use omni_core::ids::{Generation, RequestId, StageName};
use omni_core::ledger::LedgerLimits;
use omni_core::restart::Verdict;
use omni_core::scheduler::SchedulerConfig;
use omni_fault::FaultPlan;
use omni_stage::simulation::{SimulatedActor, SimulatedStage, SimulatedWork};
use omni_stage::{AckSink, Arbiter, OutEdge, StageHandle, StageReports, StageSetup, StageState};
use omni_telemetry::clock::Clock;
use omni_telemetry::trace::Recorder;
use omni_telemetry::{EdgeMetrics, RequestMetrics, StageMetrics};
use omni_transfer::lease::LeaseBook;
use omni_transfer::transport::{PayloadSender, inproc};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The ledger looks after late requests so often.
const TICK: Duration = Duration::from_millis(250);
/// No request may take longer: all faults of a scenario together delay less than this.
const LIFE: Duration = Duration::from_secs(300);
/// A client may not read for so long.
const STALL: Duration = Duration::from_secs(10);
/// More events than this of a scenario go in circles.
const MOST_EVENTS: u64 = 3_000_000;

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A client asks, for the first time or again.
    Ask(usize, u32),
    /// An actor has its turn.
    Turn(StageName, Generation, SimulatedActor),
    /// Something arrives over the edge into a stage.
    Arrive(StageName),
    Start(StageName),
    Built(StageName, Generation),
    /// The supervisor hears that the stage has died.
    Heard(StageName, Generation),
    TakeDown(StageName, Generation),
    /// A client reads.
    Read(usize),
    /// More text of a client comes.
    Write(usize),
    Expire(usize),
    Fault(usize),
    ShutDown,
    Tick,
}

struct Stage {
    stage: SimulatedStage,
    handle: Arc<StageHandle>,
    wire: Wire,
    /// A turn of each actor is under way.
    turning: [bool; 5],
    /// Why it has died, which its supervisor will hear.
    dying: Option<&'static str>,
    given_up: bool,
    /// Starts of it that fail, and actors that die as soon as it is up.
    failing_starts: u32,
    again: Option<SimulatedActor>,
    /// The reasons it had to die, where a prompt was the cause.
    poisoned: u32,
}

pub(super) struct World<'a> {
    scenario: &'a Scenario,
    random: Random,
    nanos: Arc<AtomicU64>,
    events: BinaryHeap<Reverse<(Duration, u64, u64)>>,
    what: Vec<Option<Event>>,
    free: Vec<usize>,
    ledger: Arc<Ledger>,
    admissions: Admissions,
    leases: LeaseBook,
    book: Arc<Book>,
    stages: Vec<Stage>,
    outbox: Outbox,
    windows: Arc<std::sync::Mutex<Windows>>,
    clients: Vec<Client>,
    woken: Woken,
    draining: bool,
    stopped: bool,
    /// Events that keep the simulation going: all but ticks.
    waiting: usize,
    number: u64,
    report: Report,
}

impl<'a> World<'a> {
    pub fn new(scenario: &'a Scenario) -> World<'a> {
        let shape = &scenario.shape;
        let nanos = Arc::new(AtomicU64::new(0));
        let clock = Clock::Simulated(Arc::clone(&nanos));
        let book = Arc::new(Book::default());
        for script in &scenario.requests {
            book.enter(script.seed, script.lengths, script.sick);
        }
        let handles = Stages::new(shape.names());
        let outbox = Outbox::default();
        let windows = Arc::new(std::sync::Mutex::new(Windows::default()));
        let (leases, recorder) = (LeaseBook::default(), Recorder::default());
        let limits = LedgerLimits { request_timeout: LIFE, stalled_client_timeout: STALL };
        let metrics = RequestMetrics::new(recorder.clone());
        let faults = FaultPlan::new(&[]);
        let ledger = Ledger::new(limits, handles.clone(), super::model::GROUPS, UNIT, metrics, faults.clone());
        let ledger = Arc::new(ledger.on(clock.clone()));
        let into = |stage: &Arc<StageHandle>| {
            Arc::new(Into { stage: stage.name(), outbox: Arc::clone(&outbox) }) as Arc<dyn PayloadSender>
        };
        ledger.leads_into(handles.iter().map(into).collect());
        let arbiter = shape.arbiter.then(Arbiter::new);
        let largest = shape.ramp.iter().copied().max().unwrap_or(1);
        let stages = handles.iter().map(|handle| {
            let (name, of) = (handle.name(), shape.stage(handle.name()));
            let most = match name {
                // A text is followed in pieces; a sampled token comes with the end of its prompt.
                StageName::Thinker => of.window - 1 + of.prefill_chunk.max(2),
                StageName::Talker => of.window,
                StageName::Vocoder => of.window - 1 + largest,
            };
            let out = |edge: Edge| {
                let to = Arc::new(LedgerSink(Arc::clone(&ledger))) as Arc<dyn PayloadSender>;
                let sender = Arc::new(Counted { to, windows: Arc::clone(&windows), most });
                OutEdge { kind: edge.kind(), sender, handles: false, metrics: EdgeMetrics::new(name, edge.kind()) }
            };
            let edge = Edge::into_stage(name, handles.before(name).is_none());
            let acks = Arc::new(Acks { ledger: Arc::clone(&ledger), edge }) as Arc<dyn AckSink>;
            let setup = StageSetup {
                notes: None,
                name,
                scheduler: SchedulerConfig {
                    slots: shape.places as u32,
                    max_batch: of.max_batch,
                    prefill_chunk: of.prefill_chunk,
                    run_ahead: of.run_ahead,
                    window: of.window,
                    buckets: if shape.arbiter { vec![1, 2, 4, 8] } else { Vec::new() },
                    max_step_units: of.max_step_units,
                    playback: PlaybackPolicy {
                        unit: UNIT,
                        gathers: if name == StageName::Talker { largest } else { 0 },
                        lead_cap: (name != StageName::Thinker).then_some(Duration::from_secs(2)),
                    },
                },
                arbiter: arbiter.clone(),
                factory: Arc::new(Factory { stage: name, book: Arc::clone(&book) }),
                restart: shape.restart,
                watchdog: shape.watchdog,
                faults: faults.clone(),
                metrics: StageMetrics::new(name, recorder.clone()),
                recorder: recorder.clone(),
                outbound: Edge::from_stage(name).map(out).collect(),
                // Never read: the world fills the inbox.
                inbound: Arc::new(inproc(1).1),
                early_handoff: shape.early_handoff,
                acks: Arc::new(CountedAcks { to: acks, windows: Arc::clone(&windows), edge }),
                reports: Arc::clone(&ledger) as Arc<dyn StageReports>,
                leases: leases.clone(),
                own_process: false,
            };
            Stage {
                stage: SimulatedStage::new(setup, Arc::clone(handle), clock.clone()),
                handle: Arc::clone(handle),
                wire: Wire::new(of.frames),
                turning: [false; 5],
                dying: None,
                given_up: false,
                failing_starts: 0,
                again: None,
                poisoned: 0,
            }
        });
        let limits = LimitsConfig {
            max_requests: shape.places,
            admission: if shape.by_deadlines { AdmissionMode::Deadlines } else { AdmissionMode::Places },
            ..Config::default().limits
        };
        let mut world = World {
            scenario,
            random: Random::new(mix(0x3D, scenario.seed)),
            nanos,
            events: BinaryHeap::new(),
            what: Vec::new(),
            free: Vec::new(),
            admissions: Admissions::on(clock.clone(), &limits, SAMPLE_RATE),
            stages: stages.collect(),
            ledger,
            leases,
            book,
            outbox,
            windows,
            clients: Vec::new(),
            woken: Woken::default(),
            draining: false,
            stopped: false,
            waiting: 0,
            number: 0,
            report: Report::default(),
        };
        for stage in shape.names() {
            world.at(Duration::ZERO, Event::Start(*stage));
        }
        for (at, script) in scenario.requests.iter().enumerate() {
            world.at(script.at, Event::Ask(at, script.again));
        }
        for (at, fault) in scenario.faults.iter().enumerate() {
            world.at(fault.at, Event::Fault(at));
        }
        world.at(TICK, Event::Tick);
        world
    }

    /// Plays the scenario to its end.
    ///
    /// # Errors
    /// What went wrong first.
    pub fn play(mut self) -> Result<Report, Violation> {
        while let Some(Reverse((at, _, place))) = self.events.pop() {
            self.nanos.store(at.as_nanos() as u64, Ordering::Relaxed);
            let Some(event) = self.what.get_mut(place as usize).and_then(Option::take) else { continue };
            self.free.push(place as usize);
            self.report.events += 1;
            let number = self.report.events;
            if !matches!(event, Event::Tick) {
                self.waiting -= 1;
            }
            self.report.digest = mix(self.report.digest, mix(at.as_nanos() as u64, kind(&event)));
            let happened = self.happen(event).and_then(|()| self.settle());
            let happened = match number {
                MOST_EVENTS.. => Err("it goes in circles".into()),
                _ => happened,
            };
            if let Err(what) = happened {
                return Err(self.violation(what));
            }
        }
        let at = self.now();
        self.last().map_err(|what| self.violation(what))?;
        self.report.lasted = at;
        Ok(self.report)
    }

    fn violation(&self, what: String) -> Violation {
        let stages = self.stages.iter().map(|stage| stage.stage.describe()).collect();
        Violation { seed: self.scenario.seed, at: self.now(), event: self.report.events, what, stages }
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }

    fn at(&mut self, at: Duration, event: Event) {
        if !matches!(event, Event::Tick) {
            self.waiting += 1;
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.what.push(None);
            self.what.len() - 1
        });
        self.what[place] = Some(event);
        // Events of one moment happen in an order that the seed decides.
        self.events.push(Reverse((at, self.random.next(), place as u64)));
    }

    fn after(&mut self, pause: Duration, event: Event) {
        self.at(self.now() + pause, event);
    }

    fn place(&self, name: StageName) -> usize {
        self.stages.iter().position(|stage| stage.stage.name() == name).unwrap_or_default()
    }

    fn stage(&mut self, name: StageName) -> &mut Stage {
        let place = self.place(name);
        &mut self.stages[place]
    }

    fn is_at(&mut self, name: StageName, generation: Generation) -> bool {
        self.stage(name).stage.generation() == Some(generation)
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Ask(script, again) => self.ask(script, again),
            Event::Turn(name, generation, actor) => {
                if self.is_at(name, generation) {
                    self.turn(name, actor)?;
                }
            }
            Event::Arrive(name) => self.arrive(name),
            Event::Start(name) => {
                if !self.stopped {
                    let stage = self.stage(name);
                    stage.stage.start();
                    stage.turning = [false; 5];
                    if let Some(generation) = stage.stage.generation() {
                        let takes = self.random.millis(1, 60);
                        self.after(takes, Event::Built(name, generation));
                    }
                }
            }
            Event::Built(name, generation) => {
                if self.is_at(name, generation) && self.stage(name).dying.is_none() {
                    self.built(name)?;
                }
            }
            Event::Heard(name, generation) => {
                if self.is_at(name, generation) {
                    self.heard(name);
                }
            }
            Event::TakeDown(name, generation) => {
                if self.is_at(name, generation) {
                    let stage = self.stage(name);
                    stage.stage.take_down();
                    stage.dying = None;
                }
            }
            Event::Read(client) => self.read(client)?,
            Event::Write(client) => self.write(client),
            Event::Expire(client) => {
                let client = &mut self.clients[client];
                if client.holds() && client.end.is_none() {
                    let _ = client.expired.set(Duration::from_secs(1));
                    client.leave(End::Expired);
                    let (request, units) = (client.request, client.units());
                    self.report.left += 1;
                    self.ended(request, units);
                }
            }
            Event::Fault(fault) => self.strike(self.scenario.faults[fault].what),
            Event::ShutDown => {
                self.ledger.shut_down();
                self.stopped = true;
                for stage in self.stages.iter_mut().rev() {
                    stage.stage.take_down();
                    stage.dying = None;
                    stage.wire.cut();
                }
            }
            Event::Tick => {
                self.ledger.tick();
                let open = self.clients.iter().any(Client::holds);
                if self.waiting > 0 || open {
                    self.after(TICK, Event::Tick);
                }
            }
        }
        Ok(())
    }

    fn ask(&mut self, at: usize, again: u32) {
        let scenario = self.scenario;
        let script = &scenario.requests[at];
        self.report.asked += 1;
        let state = |stage: &Stage| stage.handle.status().borrow().state;
        let refuses = |stage: &Stage| matches!(state(stage), StageState::Starting | StageState::Failed);
        if self.draining || self.stages.iter().any(refuses) {
            self.report.refused += 1;
            return;
        }
        let options = RequestOptions {
            tenant: Tenant { id: tenant(script), ..Tenant::default() },
            slo: script.deadline.map_or(Slo::BestEffort, Slo::Realtime),
            life: None,
        };
        let chat = matches!(script.kind, RequestKind::Chat | RequestKind::Text);
        let steady = !matches!(script.kind, RequestKind::Pieces(..));
        let restarts = self.stages.iter().map(|stage| stage.handle.status().borrow().restarts).sum();
        let sounds = script.kind != RequestKind::Text;
        let permit = match self.admissions.enter(Entrant { options: &options, steady, chat, sounds, restarts }) {
            Ok(permit) => permit,
            Err(SubmitError::Full { retry_after, .. } | SubmitError::Later { retry_after, .. }) => {
                self.report.refused += 1;
                if again > 0 {
                    let pause = retry_after + self.random.millis(0, 100);
                    self.after(pause, Event::Ask(at, again - 1));
                }
                return;
            }
            Err(_) => return,
        };
        let Planned { plan, expected, later, prompts } = plan(script, &scenario.shape);
        let kind = if chat { omni_telemetry::RequestKind::Chat } else { omni_telemetry::RequestKind::Speech };
        let (watch, expired) = (permit.watch(), Expired::default());
        let stream = self.ledger.open_request(plan, kind, Some(permit), Arc::clone(&expired)).watched(watch);
        let place = self.clients.len();
        let (now, manner) = (self.now(), script.client);
        let mut client = Client::new(place, at, manner, again, (expected, later), stream, &self.woken);
        (client.accepted, client.expired) = (now, expired);
        // The first event says the name, and is read at once.
        client.scheduled = true;
        self.number += 1;
        let request = RequestId(self.number);
        client.request = request;
        self.clients.push(client);
        lock(&self.windows).prompts.insert(request, prompts);
        self.at(now, Event::Read(place));
        if !self.clients[place].later.is_empty() {
            let pause = self.random.millis(0, 300);
            self.after(pause, Event::Write(place));
        }
        if let Manner::Expires(life) = manner {
            self.after(life, Event::Expire(place));
        }
        self.report.accepted += 1;
    }

    fn write(&mut self, place: usize) {
        let client = &mut self.clients[place];
        if !client.holds() || client.end.is_some() {
            return;
        }
        let Some((before, text)) = client.later.pop_front() else { return };
        let request = client.request;
        let more = !client.later.is_empty();
        self.ledger.push_text(request, before, text);
        if more {
            let pause = self.random.millis(0, 300);
            self.after(pause, Event::Write(place));
        }
    }

    fn read(&mut self, place: usize) -> Result<(), String> {
        let client = &mut self.clients[place];
        client.scheduled = false;
        if !client.holds() {
            return Ok(());
        }
        let (before, script) = (client.end.clone(), client.script);
        let read = client.read().map_err(|what| format!("{} of script {script}: {what}", client.request))?;
        let (request, units) = (client.request, client.units());
        let new_end = if before.is_none() { client.end.clone() } else { None };
        match read {
            Read::Nothing => {}
            Read::Something(pause, frames) => {
                client.scheduled = true;
                if frames > 0 {
                    lock(&self.windows).heard(request, frames);
                }
                let pause = pause + self.random.micros(200);
                self.after(pause, Event::Read(place));
            }
            Read::Over => {}
        }
        if let Some(end) = new_end {
            self.judge(place, &end)?;
            self.ended(request, units);
            let again = self.clients[place].again;
            if end != End::Finished && again > 0 {
                let pause = self.random.millis(0, 500);
                self.after(pause, Event::Ask(script, again - 1));
            }
        }
        Ok(())
    }

    /// A request has ended for its client.
    fn ended(&mut self, request: RequestId, units: u64) {
        self.report.ended += 1;
        self.report.units += units;
        lock(&self.windows).forget(request);
    }

    /// Whether the end of a request has a cause.
    fn judge(&mut self, place: usize, end: &End) -> Result<(), String> {
        let client = &self.clients[place];
        let (request, manner) = (client.request, client.manner());
        let script = &self.scenario.requests[client.script];
        let took = self.now().saturating_sub(client.accepted);
        let unjustified = |error: &RequestError| Err(format!("{request} failed without a cause: {error}"));
        match end {
            End::Finished => self.report.finished += 1,
            End::Left | End::Expired => self.report.left += 1,
            End::Failed(error) => {
                self.report.failed += 1;
                match error {
                    RequestError::StageFailed { stage, .. } if self.stage(*stage).given_up => {}
                    RequestError::SequenceFailed { stage, .. } => {
                        let sick = script.sick.is_some_and(|sick| sick.stage == *stage);
                        let failed = lock(&self.book.failed);
                        let times = |prompt: u32| failed.get(&prompt).copied().unwrap_or(0);
                        let made_to = times(script.seed as u32) + times(UNKNOWN);
                        drop(failed);
                        let lost = self.stage(*stage).wire.struck.get(&request).copied().unwrap_or(0);
                        if !sick && made_to < 4 && lost < 4 {
                            return unjustified(error);
                        }
                    }
                    RequestError::TimedOut(_) if matches!(manner, Manner::Stops(..)) && took < LIFE => {}
                    // Only of those that do not read at once.
                    RequestError::Yielded | RequestError::SlowClient(_)
                        if matches!(manner, Manner::Stops(..) | Manner::Slowly(_)) => {}
                    RequestError::ShuttingDown if self.stopped => {}
                    error => return unjustified(error),
                }
            }
        }
        Ok(())
    }

    fn turn(&mut self, name: StageName, actor: SimulatedActor) -> Result<(), String> {
        let stage = self.stage(name);
        stage.turning[actor as usize] = false;
        let Err(reason) = stage.stage.turn(actor) else { return Ok(()) };
        if !reason.contains(POISON) {
            return Err(format!("the {actor:?} of the {name} died by itself: {reason}"));
        }
        self.report.poisoned += 1;
        self.stage(name).poisoned += 1;
        self.dies(name, POISON);
        Ok(())
    }

    fn arrive(&mut self, name: StageName) {
        let (now, stopped) = (self.now(), self.stopped);
        let stage = self.stage(name);
        if stopped || stage.given_up {
            stage.wire.cut();
            return;
        }
        let mut deliveries = stage.wire.take(now).into_iter();
        while let Some(delivery) = deliveries.next() {
            if let Err(delivery) = stage.stage.receive(delivery) {
                let rest = std::iter::once(delivery).chain(deliveries).collect();
                stage.wire.give_back(now, rest);
                break;
            }
        }
        let Some(next) = stage.wire.next() else { return };
        // While the stage is down or its inbox is full, things wait on the edge.
        let next = if next <= now { now + Duration::from_millis(1) } else { next };
        self.at(next, Event::Arrive(name));
    }

    fn built(&mut self, name: StageName) -> Result<(), String> {
        let stage = self.stage(name);
        if stage.failing_starts > 0 {
            stage.failing_starts -= 1;
            self.dies(name, "it cannot be built");
            return Ok(());
        }
        stage.stage.build()?;
        if let Some(actor) = stage.again.take() {
            stage.stage.kill(actor);
            self.dies(name, "an actor died again");
        }
        Ok(())
    }

    /// A stage has died, and its supervisor hears of it soon.
    fn dies(&mut self, name: StageName, reason: &'static str) {
        let pause = self.random.micros(1500);
        self.dies_after(name, reason, pause);
    }

    fn dies_after(&mut self, name: StageName, reason: &'static str, pause: Duration) {
        let stage = self.stage(name);
        let Some(generation) = stage.stage.generation().filter(|_| stage.dying.is_none()) else { return };
        stage.dying = Some(reason);
        self.after(pause, Event::Heard(name, generation));
    }

    fn heard(&mut self, name: StageName) {
        let stage = self.stage(name);
        let Some(generation) = stage.stage.generation() else { return };
        let verdict = stage.stage.fail(stage.dying.unwrap_or("it died"));
        stage.given_up |= verdict == Verdict::GiveUp;
        self.report.restarts += 1;
        if self.scenario.shape.stage(name).process {
            self.stage(name).wire.cut();
        }
        let takes = self.random.micros(3000);
        self.after(takes, Event::TakeDown(name, generation));
        if let Verdict::Restart(pause) = verdict {
            self.after(takes + pause + Duration::from_micros(1), Event::Start(name));
        } else {
            self.report.given_up += 1;
        }
    }

    fn strike(&mut self, what: What) {
        *self.report.faults.entry(what.name()).or_default() += 1;
        let shape = &self.scenario.shape;
        match what {
            What::Dies(name, actor) => {
                self.stage(name).stage.kill(actor);
                self.dies(name, "an actor died");
            }
            What::DiesTwice(name, actor) => {
                let stage = self.stage(name);
                stage.stage.kill(actor);
                stage.again = Some(actor);
                self.dies(name, "an actor died");
            }
            What::DiesStarting(name) => {
                let stage = self.stage(name);
                stage.failing_starts += 1;
                stage.stage.kill(SimulatedActor::Runner);
                self.dies(name, "the runner died");
            }
            What::DieTogether(one, other) => {
                for name in [one, other] {
                    self.stage(name).stage.kill(SimulatedActor::Scheduler);
                    self.dies(name, "it died with another");
                }
            }
            What::Hangs(name, actor) => {
                self.stage(name).stage.kill(actor);
                self.dies_after(name, "an actor hangs", shape.watchdog);
            }
            What::Fails(name, times) => _ = self.book.failing[name as usize].fetch_add(times, Ordering::Relaxed),
            What::Doubles(name, times) => self.stage(name).wire.trouble(Trouble::Doubled, times),
            What::Loses(name, times) => self.trouble(name, Trouble::Lost, times),
            What::Overtakes(name, times) => self.trouble(name, Trouble::Overtaken, times),
            What::Damages(name, times) => self.trouble(name, Trouble::Damaged, times),
            What::Delays(name, pause) => {
                let until = self.stage(name).wire.delay(pause);
                self.at(until.max(self.now()), Event::Arrive(name));
            }
            What::Stops(grace) => {
                if !self.draining {
                    self.draining = true;
                    self.after(grace, Event::ShutDown);
                }
            }
        }
    }

    /// An edge of handles loses nothing.
    fn trouble(&mut self, name: StageName, trouble: Trouble, times: u32) {
        let stage = self.stage(name);
        if stage.wire.frames {
            stage.wire.trouble(trouble, times);
        }
    }

    /// Carries on what the last event put into queues, and checks what must always hold.
    fn settle(&mut self) -> Result<(), String> {
        let now = self.now();
        let put = std::mem::take(&mut *lock(&self.outbox));
        for (name, payload) in put {
            let place = self.place(name);
            let (random, stage) = (&mut self.random, &mut self.stages[place]);
            let was_empty = stage.wire.is_empty();
            let at = stage.wire.put(payload, now, random);
            if was_empty {
                self.at(at, Event::Arrive(name));
            }
        }
        for place in 0..self.stages.len() {
            for actor in SimulatedActor::ALL {
                let stage = &mut self.stages[place];
                if stage.turning[actor as usize] || !stage.stage.has_work(actor) {
                    continue;
                }
                let Some(generation) = stage.stage.generation() else { continue };
                stage.turning[actor as usize] = true;
                let name = stage.stage.name();
                let shape = self.scenario.shape.stage(name);
                let mut pause = self.random.micros(shape.pause.as_micros() as u64);
                if actor == SimulatedActor::Runner
                    && let Some(SimulatedWork::Step(sequences, units)) = self.stages[place].stage.take_up()
                {
                    pause += shape.step + shape.unit * (units + sequences as u32);
                }
                self.after(pause, Event::Turn(name, generation, actor));
            }
        }
        let woken = std::mem::take(&mut *lock(&self.woken));
        for client in woken {
            if !std::mem::replace(&mut self.clients[client].scheduled, true) {
                let pause = self.random.micros(100);
                self.after(pause, Event::Read(client));
            }
        }
        self.check()
    }

    fn check(&mut self) -> Result<(), String> {
        let over = std::mem::take(&mut lock(&self.windows).over);
        if let Some((request, edge, acked, made)) = over.first() {
            return Err(format!("{request}: {acked} units of {made} were taken over on {edge:?}"));
        }
        let ahead = std::mem::take(&mut lock(&self.windows).ahead);
        if let Some((request, edge, made, most)) = ahead.first() {
            return Err(format!("{request} is {made} units far on {edge:?}, beyond its window, which ends at {most}"));
        }
        // Counting them each time would take longer than all the rest.
        if self.report.events.is_multiple_of(64) {
            let (held, places) =
                (self.clients.iter().filter(|client| client.holds()).count(), self.scenario.shape.places);
            let status = self.admissions.status();
            let (entries, rows, _) = self.ledger.held();
            // A stream whose place another one took is there until its client has heard so.
            if !(entries..=held).contains(&status.held) || status.held > places {
                return Err(format!("{} permits for {entries} of {held} streams, of {places} places", status.held));
            }
            if entries != rows || entries > held {
                return Err(format!("{entries} entries and {rows} journals in the ledger for {held} streams"));
            }
        }
        Ok(())
    }

    /// What must hold when all is over.
    fn last(&mut self) -> Result<(), String> {
        if let Some(client) = self.clients.iter().find(|client| client.holds()) {
            return Err(format!("{} never ended; its stream has {:?}", client.request, client.end));
        }
        if self.report.ended != self.report.accepted {
            return Err(format!("{} requests were accepted and {} ended", self.report.accepted, self.report.ended));
        }
        let held = self.ledger.held();
        if held != (0, 0, 0) {
            return Err(format!("the ledger holds {held:?}: entries, journals, bytes"));
        }
        for stage in &self.stages {
            let (load, entries) = (stage.stage.load(), stage.stage.entries());
            let left = load.sequences + load.slots + load.inputs + load.queued + entries;
            if left > 0 {
                return Err(format!("the {} holds {load:?} and {entries} entries", stage.stage.name()));
            }
            let status = stage.handle.status().borrow().state;
            if !self.stopped && !stage.given_up && status != StageState::Running {
                return Err(format!("the {} is {status:?}", stage.stage.name()));
            }
        }
        // A payload that was to be overtaken, and that nothing followed.
        self.stages.iter_mut().for_each(|stage| stage.wire.cut());
        if self.leases.live() > 0 {
            return Err(format!("{} leases", self.leases.live()));
        }
        let status = self.admissions.status();
        if status.held > 0 {
            return Err(format!("admission counts {status:?}"));
        }
        // What was learned under load and faults must not shut an idle server for long.
        let later = self.now() + Duration::from_secs(120);
        self.nanos.store(later.as_nanos() as u64, Ordering::Relaxed);
        let options = RequestOptions { slo: Slo::Realtime(Duration::from_secs(2)), ..RequestOptions::default() };
        let entrant = Entrant { options: &options, steady: true, chat: false, sounds: true, restarts: 0 };
        match self.admissions.enter(entrant) {
            Ok(permit) => drop(permit),
            Err(refused) => return Err(format!("an idle server refuses: {refused}")),
        }
        Ok(())
    }
}

fn tenant(script: &Script) -> TenantId {
    TenantId::Address(IpAddr::V4(Ipv4Addr::new(10, 0, 0, script.tenant)))
}

/// An event for the digest.
fn kind(event: &Event) -> u64 {
    match event {
        Event::Ask(at, _) => 1 << 32 | *at as u64,
        Event::Turn(stage, generation, actor) => {
            2 << 32 | u64::from(generation.0) << 8 | (*stage as u64) << 4 | *actor as u64
        }
        Event::Arrive(stage) => 3 << 32 | *stage as u64,
        Event::Start(stage) => 4 << 32 | *stage as u64,
        Event::Built(stage, _) => 5 << 32 | *stage as u64,
        Event::Heard(stage, _) => 6 << 32 | *stage as u64,
        Event::TakeDown(stage, _) => 7 << 32 | *stage as u64,
        Event::Read(client) => 8 << 32 | *client as u64,
        Event::Write(client) => 9 << 32 | *client as u64,
        Event::Expire(client) => 10 << 32 | *client as u64,
        Event::Fault(fault) => 11 << 32 | *fault as u64,
        Event::ShutDown => 12 << 32,
        Event::Tick => 13 << 32,
    }
}
