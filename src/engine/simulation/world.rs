//! The world of one simulation: the real ledger, admission and stages, and a clock that jumps from event to event.
//! After each event it carries on what the event put into queues, and looks whether anything is wrong.

mod build;
mod checks;
mod clients;
mod stages;

use super::edges::{Outbox, Windows, Wire, lock};
use super::listener::{Client, End, Woken};
use super::model::Book;
use super::scenario::Scenario;
use super::{Report, Violation};
use crate::admission::Admissions;
use crate::ledger::Ledger;
use crate::plan::MediaPlanner;
use omni_core::ids::{Generation, StageName};
use omni_core::random::{Random, mix};
use omni_stage::StageHandle;
use omni_stage::simulation::{SimulatedActor, SimulatedStage, SimulatedWork};
use omni_transfer::lease::LeaseBook;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
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

/// Bytes of rows that all requests may have: more than any scenario has.
const MEDIA_MEMORY: u64 = 1 << 50;

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
    encodes: MediaPlanner,
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
                self.admissions.tick();
                self.ledger.tick();
                let open = self.clients.iter().any(Client::holds);
                if self.waiting > 0 || open {
                    self.after(TICK, Event::Tick);
                }
            }
        }
        Ok(())
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
