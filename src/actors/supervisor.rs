//! The StageSupervisor actor: starts the actors of a stage, notices when one dies or hangs, and starts the next
//! generation once the old device state is gone.

use crate::connector::{Inbound, Outbound};
use crate::generation::{Peer, StageGeneration};
use crate::handle::{StageHandle, StageState};
use crate::in_hand::InHands;
use crate::messages::SupervisorMessage;
use crate::model_runner::ModelRunner;
use crate::packager::Packager;
use crate::pulse::Role;
use crate::sampler::Sampler;
use crate::scheduler::Scheduler;
use crate::setup::{StageFailure, StageSetup};
use crate::waits::Waits;
use crate::watchdog::Watchdog;
use futures::future::BoxFuture;
use omni_core::ids::Generation;
use omni_core::restart::{RestartPolicy, Verdict};
use omni_telemetry::clock::Clock;
use omni_transfer::transport::PayloadReceiver;
use ractor::concurrency::JoinHandle;
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SpawnErr, SupervisionEvent};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long the supervisor waits for a launch thread to end. Then it leaves the thread behind, whose results go
/// nowhere: the next generation must not wait for ever.
const RUNNER_GRACE: Duration = Duration::from_secs(2);
/// The same for a thread that is known to hang.
const HUNG_GRACE: Duration = Duration::from_millis(50);

/// Starts a stage. Its state shows in `handle`.
///
/// # Errors
/// When the actor system refuses.
pub fn start(setup: StageSetup, handle: Arc<StageHandle>) -> BoxFuture<'static, Result<(), SpawnErr>> {
    Box::pin(async move {
        let (supervisor, _) = Actor::spawn(None, StageSupervisor, (Arc::new(setup), Arc::clone(&handle))).await?;
        handle.supervised_by(supervisor.get_cell());
        Ok(())
    })
}

struct StageSupervisor;

struct SupervisorState {
    setup: Arc<StageSetup>,
    handle: Arc<StageHandle>,
    policy: RestartPolicy,
    watchdog: Watchdog,
    waits: Waits,
    born: Instant,
    failed_at: Option<Instant>,
    current: Option<Arc<StageGeneration>>,
    /// Whether the current generation has come up.
    up: bool,
    children: Vec<(ActorCell, JoinHandle<()>, Role)>,
    /// Takes input off the edge while the stage is down.
    draining: Option<tokio::task::JoinHandle<()>>,
}

impl Actor for StageSupervisor {
    type Msg = SupervisorMessage;
    type State = SupervisorState;
    type Arguments = (Arc<StageSetup>, Arc<StageHandle>);

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        (setup, handle): Self::Arguments,
    ) -> Result<SupervisorState, ActorProcessingErr> {
        myself.cast(SupervisorMessage::Start)?;
        let (policy, watchdog) = (RestartPolicy::new(setup.restart), Watchdog::new(setup.watchdog));
        myself.send_interval(watchdog.period(), || SupervisorMessage::Watch);
        let waits = Waits::own();
        let (born, children) = (Instant::now(), Vec::new());
        let (failed_at, current, up, draining) = (None, None, false, None);
        Ok(SupervisorState { setup, handle, policy, watchdog, waits, born, failed_at, current, up, children, draining })
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: SupervisorMessage,
        state: &mut SupervisorState,
    ) -> Result<(), ActorProcessingErr> {
        state.handle.supervisor_turned();
        match message {
            SupervisorMessage::Start => {
                if let Err(error) = state.start(&myself).await {
                    let failure = StageFailure::new(error.to_string(), InHands::nothing());
                    state.failed(&myself, failure, false).await;
                }
            }
            SupervisorMessage::Ready(generation) => state.ready(generation),
            SupervisorMessage::Watch => {
                let Some(stage) = state.current.as_ref() else { return Ok(()) };
                let (pulse, waited) = (&stage.life.pulse, state.waits.since_last());
                if let Some((at, strike)) = state.watchdog.look(pulse.now(), waited, &pulse.busy_since()) {
                    let role = Role::ALL[at];
                    state.watchdog.limit.struck(stage.life.gauges.made.load(Ordering::Relaxed));
                    let what = format!("the {} has not turned", role.as_str());
                    let failure = StageFailure::silent(&what, strike, stage.life.in_hand.of_role(Some(role)));
                    state.failed(&myself, failure, role.is_thread()).await;
                }
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        state: &mut SupervisorState,
    ) -> Result<(), ActorProcessingErr> {
        let (child, reason) = match event {
            SupervisionEvent::ActorFailed(child, error) => (child, error.to_string()),
            SupervisionEvent::ActorTerminated(child, _, reason) => (child, reason.unwrap_or_else(|| "stopped".into())),
            _ => return Ok(()),
        };
        // An actor of a generation that was taken down is no child any more.
        if let Some((.., role)) = state.children.iter().find(|(cell, ..)| cell.get_id() == child.get_id()) {
            let name = child.get_name().unwrap_or_default();
            let in_hands = state.current.as_ref().map(|stage| stage.life.in_hand.of_role(Some(*role)));
            let in_hands = in_hands.unwrap_or_else(InHands::nothing);
            let failure = StageFailure::new(format!("{name}: {reason}"), in_hands);
            state.failed(&myself, failure, false).await;
        }
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<Self::Msg>, state: &mut SupervisorState) -> Result<(), ActorProcessingErr> {
        state.stop_draining().await;
        state.take_down(RUNNER_GRACE).await;
        Ok(())
    }
}

/// Drops what comes over the edge of a stage that is down. It is for attempts that the ledger has given up, and the
/// next generation would drop it as stale; until then its leases would be held, for ever if no generation comes.
async fn drain(edge: Arc<dyn PayloadReceiver>) {
    while edge.get().await.is_ok() {}
}

impl SupervisorState {
    async fn start(&mut self, myself: &ActorRef<SupervisorMessage>) -> Result<(), SpawnErr> {
        self.stop_draining().await;
        let generation = Generation(self.handle.status().borrow().generation.0 + 1);
        self.handle.update(|status| status.generation = generation);
        self.setup.metrics.generation.set(f64::from(generation.0));
        let own = Peer::new();
        own.set(myself.clone());
        let (stage, ends) = StageGeneration::new(&self.setup, generation, &own, Clock::system());
        let (scheduler, inbound) = (stage.scheduler.clone(), stage.inbound.clone());
        self.current = Some(Arc::new(stage));
        self.watchdog.begin();
        self.up = false;

        // An actor starts before those that speak to it; the scheduler and the inbound connector speak to each other.
        ends.to_outbound.set(self.spawn(Outbound, Role::Outbound, ends.outbound, myself).await?);
        ends.to_packager.set(self.spawn(Packager, Role::Packager, ends.packager, myself).await?);
        scheduler.set(self.spawn(Scheduler, Role::Scheduler, ends.scheduler, myself).await?);
        ends.sampler.set(self.spawn(Sampler, Role::Sampler, (), myself).await?);
        inbound.set(self.spawn(Inbound, Role::Inbound, ends.inbound, myself).await?);
        self.spawn(ModelRunner, Role::Runner, ends.runner, myself).await?;
        Ok(())
    }

    async fn spawn<A: Actor>(
        &mut self,
        actor: A,
        role: Role,
        ends: A::Arguments,
        myself: &ActorRef<SupervisorMessage>,
    ) -> Result<ActorRef<A::Msg>, SpawnErr> {
        // Names are unique in a process and several engines may live in one: the supervisor's id makes them so.
        let generation = self.handle.status().borrow().generation;
        let name = format!("{}.{}.{generation}.{}", self.setup.name, role.actor(), myself.get_id());
        let (child, joined) = Actor::spawn_linked(Some(name), actor, ends, myself.get_cell()).await?;
        self.children.push((child.get_cell(), joined, role));
        Ok(child)
    }

    fn ready(&mut self, generation: Generation) {
        let Some(stage) = self.current.clone().filter(|stage| stage.life.generation == generation) else { return };
        let recovered = self.failed_at.take();
        if let Some(failed) = recovered {
            self.setup.metrics.restarts.increment(1);
            self.setup.metrics.recovery_seconds.record(failed.elapsed());
        }
        self.up = true;
        self.handle.set_current(Some(stage));
        self.setup.reports.stage_up(self.setup.name, &mut || {
            // At once: a watcher that sees the restart must see it running.
            self.handle.update(|status| {
                status.restarts += u32::from(recovered.is_some());
                status.state = StageState::Running;
            });
        });
        tracing::info!(stage = %self.setup.name, replica = self.handle.replica(), generation = generation.0, "stage running");
    }

    async fn failed(&mut self, myself: &ActorRef<SupervisorMessage>, failure: StageFailure, hangs: bool) {
        self.failed_at.get_or_insert_with(Instant::now);
        // The handle first, so that no sequence is admitted any more; then the ledger hears that its sequences are
        // lost, and finds out whose fault that may be; then the actors end. What they deliver meanwhile is as good as
        // what they delivered before.
        self.handle.set_current(None);
        let attribution = self.setup.reports.stage_down(self.setup.name, &failure);
        let reason = failure.reason;
        let counted = self.policy.failed(self.born.elapsed(), &attribution);
        // A thread that hangs, or a device that cannot be had, is beyond what new actors mend; a new process is not.
        let hopeless = self.setup.own_process && (hangs || !self.up);
        let verdict = if hopeless { Verdict::GiveUp } else { counted };
        self.handle.update(|status| {
            status.state = if verdict == Verdict::GiveUp { StageState::Failed } else { StageState::Restarting };
            status.last_reason = Some(reason.clone());
        });
        if verdict == Verdict::GiveUp {
            self.setup.reports.stage_given_up(self.setup.name, &reason);
        }
        // What is lost is told to those who act on it before it is told to people.
        tracing::error!(stage = %self.setup.name, replica = self.handle.replica(), reason, ?verdict, "stage failed");
        self.take_down(if hangs { HUNG_GRACE } else { RUNNER_GRACE }).await;
        self.draining = Some(tokio::spawn(drain(Arc::clone(&self.setup.inbound))));
        if let Verdict::Restart(pause) = verdict {
            myself.send_after(pause, || SupervisorMessage::Start);
        }
    }

    /// From here on the edge is the next generation's alone.
    async fn stop_draining(&mut self) {
        if let Some(draining) = self.draining.take() {
            draining.abort();
            let _ = draining.await;
        }
    }

    /// Ends every actor of the current generation and waits until its device state is gone.
    async fn take_down(&mut self, grace: Duration) {
        self.handle.set_current(None);
        let children = std::mem::take(&mut self.children);
        for (child, ..) in &children {
            child.kill();
        }
        for (_, joined, _) in children {
            // An actor that panicked has already been reported.
            let _ = joined.await;
        }
        if let Some(arbiter) = &self.setup.arbiter {
            arbiter.leave(self.setup.name);
        }
        let Some(stage) = self.current.take() else { return };
        stage.stop();
        if tokio::time::timeout(grace, stage.life.pulse.gone()).await.is_err() {
            tracing::error!(stage = %self.setup.name, replica = self.handle.replica(), "the launch thread hangs and is left behind");
        }
    }
}
