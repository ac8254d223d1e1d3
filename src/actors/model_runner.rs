//! The ModelRunner actor and its OS thread, which owns the device state and does nothing but launch. It waits for
//! commands and for nobody else: never for a packager, a connector, the server or a client.

use super::packager::Output;
use super::sampler::{SamplerMessage, Ticket, TicketRow};
use super::stage::{ActorFailure, Incarnation, Wants};
use super::supervisor::SupervisorMessage;
use crate::core::scheduler::{Plan, PlannedRow, RowDone};
use crate::fault::{FaultPoint, FaultSite};
use crate::ids::{RequestId, Seq, Slot};
use crate::model::ModelError;
use crate::model::stage::{Emit, Finish, RowInput, RowOutput, RowSpec, RowWork, StageModel};
use crate::telemetry::Queue;
use crate::transfer::lease::Lease;
use crate::transfer::payload::End;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What the thread is told. All commands of a stage travel in one channel, so that input is always there before the plan
/// that needs it, and a slot is closed before it is opened again.
pub(super) enum Command {
    Open {
        slot: Slot,
        request: RequestId,
        spec: Box<RowSpec>,
        wants: Wants,
    },
    Feed {
        request: RequestId,
        input: RowInput,
        end: bool,
        leases: Vec<Lease>,
    },
    Step(Plan),
    Close(Slot),
    /// Only wakes the thread, which then sees that it has to stop.
    Wake,
}

/// Signs of life, read by the watchdog.
#[derive(Default)]
pub(super) struct RunnerPulse {
    /// Milliseconds after birth at which the current command was taken, plus one; 0 while waiting.
    busy_since: AtomicU64,
    stopping: AtomicBool,
    gone: tokio::sync::watch::Sender<bool>,
}

impl RunnerPulse {
    /// For how long the thread has been at its current command.
    pub fn busy_for(&self, now: Duration) -> Duration {
        match self.busy_since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => now.saturating_sub(Duration::from_millis(since - 1)),
        }
    }

    /// Asks the thread to end before its next command.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Resolves when the thread has ended and its device state is gone.
    pub async fn gone(&self) {
        let mut gone = self.gone.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = gone.wait_for(|gone| *gone).await;
    }

    fn take(&self, now: Duration) {
        self.busy_since.store(now.as_millis() as u64 + 1, Ordering::Relaxed);
    }

    fn rest(&self) {
        self.busy_since.store(0, Ordering::Relaxed);
    }
}

/// What the thread tells its actor.
#[derive(Debug)]
pub(super) enum RunnerMessage {
    /// The model is built.
    Ready,
    /// The thread ended without being asked to.
    Died(String),
}

pub(super) struct ModelRunner;

impl Actor for ModelRunner {
    type Msg = RunnerMessage;
    type State = Arc<Incarnation>;
    type Arguments = Arc<Incarnation>;

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        stage: Arc<Incarnation>,
    ) -> Result<Self::State, ActorProcessingErr> {
        let shared = Arc::clone(&stage);
        std::thread::Builder::new()
            .name(format!("{}-runner", stage.setup.name))
            .spawn(move || run(&shared, &myself))?;
        Ok(stage)
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        message: RunnerMessage,
        stage: &mut Arc<Incarnation>,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            RunnerMessage::Ready => {
                let _ = stage.supervisor.cast(SupervisorMessage::Ready(stage.generation));
                Ok(())
            }
            RunnerMessage::Died(reason) => Err(ActorFailure::Runner(reason).into()),
        }
    }
}

/// The thread, whatever happens on it.
fn run(stage: &Arc<Incarnation>, actor: &ActorRef<RunnerMessage>) {
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let mut runner = Runner::new(Arc::clone(stage)).map_err(|error| error.to_string())?;
        let _ = actor.cast(RunnerMessage::Ready);
        runner.turn().map_err(|error| error.to_string())
    }));
    let died = match outcome {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error),
        Err(panic) => Some(format!("panic: {}", panic_text(panic.as_ref()))),
    };
    stage.gauges.slots.store(0, Ordering::Relaxed);
    stage.pulse.rest();
    stage.pulse.gone.send_replace(true);
    if let Some(reason) = died {
        let _ = actor.cast(RunnerMessage::Died(reason));
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

/// What ends the thread.
#[derive(Debug, thiserror::Error)]
enum RunnerError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Stage(#[from] ActorFailure),
}

/// The state of the thread.
struct Runner {
    stage: Arc<Incarnation>,
    model: Box<dyn StageModel>,
    rows: HashMap<Slot, Row>,
    slots: HashMap<RequestId, Slot>,
    fault: FaultSite,
    last_step: Option<(Instant, Vec<Slot>)>,
}

struct Row {
    request: RequestId,
    wants: Wants,
    units: u32,
    tokens: u32,
}

impl Runner {
    fn new(stage: Arc<Incarnation>) -> Result<Runner, crate::model::LoadError> {
        let model = stage.setup.factory.build()?;
        let fault = stage.setup.faults.site(stage.setup.name, FaultPoint::Runner);
        Ok(Runner { stage, model, rows: HashMap::new(), slots: HashMap::new(), fault, last_step: None })
    }

    fn turn(&mut self) -> Result<(), RunnerError> {
        loop {
            let Ok(command) = self.stage.commands.recv.recv() else { return Ok(()) };
            if self.stage.pulse.stopping.load(Ordering::Relaxed) {
                return Ok(());
            }
            self.stage.pulse.take(self.stage.now());
            self.obey(command)?;
            self.stage.pulse.rest();
        }
    }

    fn obey(&mut self, command: Command) -> Result<(), RunnerError> {
        match command {
            Command::Open { slot, request, spec, wants } => {
                self.rows.insert(slot, Row { request, wants, units: 0, tokens: 0 });
                self.slots.insert(request, slot);
                let opened = self.model.open(slot, *spec);
                self.row_result(request, opened)?;
            }
            Command::Feed { request, input, end, leases } => {
                // A row that ended early takes no more input.
                if let Some(slot) = self.slots.get(&request) {
                    let fed = self.model.feed(*slot, input, end);
                    self.row_result(request, fed)?;
                }
                drop(leases);
            }
            Command::Step(plan) => self.step(&plan)?,
            Command::Close(slot) => {
                self.model.close(slot);
                if let Some(row) = self.rows.remove(&slot) {
                    self.slots.remove(&row.request);
                }
            }
            Command::Wake => {}
        }
        self.stage.gauges.slots.store(self.model.live_rows(), Ordering::Relaxed);
        Ok(())
    }

    fn step(&mut self, plan: &Plan) -> Result<(), RunnerError> {
        self.fault.strike().map_err(ActorFailure::from)?;
        let started = Instant::now();
        let work: Vec<_> = plan.rows.iter().map(|row| RowWork { slot: row.slot, advance: row.advance }).collect();
        let results = self.model.step(&work)?;
        let ended = Instant::now();
        let rows = plan.rows.iter().zip(results).map(|(planned, result)| self.ticket_row(planned, result)).collect();
        self.measure(plan, started, ended);
        self.hand_over(Ticket::Step { step: plan.step, ended, rows })?;
        Ok(())
    }

    fn ticket_row(&mut self, planned: &PlannedRow, result: Result<RowOutput, ModelError>) -> TicketRow {
        let request = planned.request;
        let output = match result {
            Ok(output) => output,
            Err(error) => return TicketRow::Failed { request, reason: error.to_string() },
        };
        let idle = TicketRow::Done { done: RowDone { request, emitted: 0, finished: false }, output: None };
        let Some(row) = self.rows.get_mut(&planned.slot) else { return idle };
        if output.stale {
            return idle;
        }
        let (units, bytes) = match &output.emit {
            Emit::None => (0, 0),
            Emit::Rows(rows) => (rows.dim(0).unwrap_or(0) as u32, rows.elem_count() * rows.dtype().size_in_bytes()),
            Emit::Codes(codes) => (1, codes.len() * 4),
            Emit::Audio(samples) => (planned.advance, samples.len() * 4),
        };
        let end = output.finish.map(|finish| match finish {
            Finish::Stop => End::Stop,
            Finish::Length => End::Length,
        });
        let token = output.sampled.filter(|_| row.wants.tokens).map(|token| (Seq(row.tokens), token));
        let seq = Seq(row.units);
        row.units += units;
        row.tokens += u32::from(token.is_some());
        let emitted = if row.wants.speech { units } else { u32::from(token.is_some()) };
        let done = RowDone { request, emitted, finished: end.is_some() };
        let nothing = units == 0 && token.is_none() && end.is_none();
        let output = (!nothing).then(|| {
            let lease = self.stage.setup.leases.lease(bytes);
            Output { request, wants: row.wants, seq, units, emit: output.emit, token, end, lease }
        });
        TicketRow::Done { done, output }
    }

    fn row_result(&self, request: RequestId, result: Result<(), ModelError>) -> Result<(), RunnerError> {
        match result {
            Ok(()) => Ok(()),
            Err(ModelError::Row(reason)) => Ok(self.hand_over(Ticket::RowFailed { request, reason })?),
            Err(error) => Err(error.into()),
        }
    }

    /// The only wake-up that this thread pays for.
    fn hand_over(&self, ticket: Ticket) -> Result<(), ActorFailure> {
        self.stage.tickets.send.try_send(ticket).map_err(|_| ActorFailure::Queue("ticket"))?;
        if let Some(sampler) = self.stage.sampler.get() {
            let _ = sampler.cast(SamplerMessage::Ready);
        }
        Ok(())
    }

    fn measure(&mut self, plan: &Plan, started: Instant, ended: Instant) {
        let metrics = &self.stage.setup.metrics;
        metrics.steps.increment(1);
        metrics.step_seconds.record(ended - started);
        metrics.batch_rows.record(plan.rows.len() as f64);
        metrics.units.increment(plan.rows.iter().map(|row| u64::from(row.advance)).sum());
        metrics.run_ahead.record(plan.step.0.saturating_sub(self.stage.gauges.seen.load(Ordering::Relaxed)) as f64);
        metrics.queue_depth(Queue::Plans, self.stage.commands.recv.len());
        let slots: Vec<_> = plan.rows.iter().map(|row| row.slot).collect();
        if let Some((last, before)) = &self.last_step
            && slots.iter().any(|slot| before.contains(slot))
        {
            metrics.bubble_seconds.record(started.saturating_duration_since(*last));
        }
        self.last_step = Some((ended, slots));
    }
}
