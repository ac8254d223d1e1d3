//! What a stage is made of: everything that outlives its actors.

use crate::arbiter::Arbiter;
use crate::in_hand::InHands;
use crate::watchdog::Strike;
use omni_core::ids::{Attempt, RequestId, Seq, StageName};
use omni_core::restart::RestartLimits;
use omni_core::scheduler::{Ack, SchedulerConfig};
use omni_core::suspects::Attribution;
use omni_fault::FaultPlan;
use omni_model::stage::StageFactory;
use omni_telemetry::trace::Recorder;
use omni_telemetry::{EdgeMetrics, StageMetrics};
use omni_transfer::lease::LeaseBook;
use omni_transfer::payload::Kind;
use omni_transfer::shm::Notes;
use omni_transfer::transport::{PayloadReceiver, PayloadSender};
use std::sync::Arc;
use std::time::Duration;

/// An acknowledgement of all units that may ever come: the consumer is done with the request, so the producer need not
/// wait for it any more.
pub const RELEASED: u32 = u32::MAX;

/// What the actors of a stage are started with, in each generation.
pub struct StageSetup {
    /// Which stage.
    pub name: StageName,
    /// Which replica of it; 0 where there is one.
    pub replica: u8,
    /// Its batching and windows.
    pub scheduler: SchedulerConfig,
    /// The arbiter of the device, where other stages compute on it at the same time.
    pub arbiter: Option<Arc<Arbiter>>,
    /// Makes the device state; holds the weights.
    pub factory: Arc<dyn StageFactory>,
    /// When to start again, and when to give up.
    pub restart: RestartLimits,
    /// An actor or thread that has been busy with one thing for longer than this, and could have run, counts as hung.
    pub watchdog: Duration,
    /// The faults to inject.
    pub faults: FaultPlan,
    /// The metrics of the stage.
    pub metrics: StageMetrics,
    /// Records what the stage does when: the engine's.
    pub recorder: Recorder,
    /// The edges to the next stage and to the client.
    pub outbound: Arc<[OutEdge]>,
    /// The edge from the previous stage.
    pub inbound: Arc<dyn PayloadReceiver>,
    /// Whether the scheduler hears of a step's tokens before the packager packs its payloads. False is the serialized
    /// order, for measurements: the scheduler hears of them once the payloads of the step are on their transport.
    pub early_handoff: bool,
    /// Hears which input was taken over.
    pub acks: Arc<dyn AckSink>,
    /// Hears what becomes of requests.
    pub reports: Arc<dyn StageReports>,
    /// Where it is written down what the actors have in hand, if another process is to see it.
    pub notes: Option<Notes>,
    /// Counts output that is still in use.
    pub leases: LeaseBook,
    /// Whether the stage has its process to itself: a failure that new actors do not mend then ends in
    /// [`StageState::Failed`](crate::StageState::Failed), and the parent replaces the process.
    pub own_process: bool,
}

/// One edge out of a stage.
pub struct OutEdge {
    /// What travels on it.
    pub kind: Kind,
    /// Its transport.
    pub sender: Arc<dyn PayloadSender>,
    /// Whether the consumer can use what is on the producer's device; if not, the packager brings it to the host.
    pub handles: bool,
    /// The metrics of the edge.
    pub metrics: EdgeMetrics,
}

/// A consumer tells it which units it took over, so that the producer may go on.
pub trait AckSink: Send + Sync {
    /// Takes the acknowledgements of one event; one up to [`RELEASED`] is of all units that may ever come.
    /// Implementations must not block: a scheduler calls this.
    fn acked(&self, acks: &[Ack]);
}

/// Why a stage went down.
#[derive(Clone, Debug, bincode::Encode, bincode::Decode)]
pub struct StageFailure {
    /// What was seen.
    pub reason: String,
    /// The sequences that the failing actor had in hand.
    pub in_hands: InHands,
    /// An actor, or the process, was taken for hung.
    pub hung: bool,
    /// It may only have been slow, by no doing of a request: that ends none.
    pub slow: bool,
}

impl StageFailure {
    /// An actor ended, or a process.
    pub fn new(reason: String, in_hands: InHands) -> StageFailure {
        StageFailure { reason, in_hands, hung: false, slow: false }
    }

    /// An actor, or a process, has shown no life for too long. `what` says of it what it has not done.
    pub(super) fn silent(what: &str, strike: Strike, in_hands: InHands) -> StageFailure {
        let mut reason = format!("{what} for {:.1} s", strike.silent.as_secs_f32());
        if strike.is_starved() {
            let kept = strike.kept.as_secs_f32();
            reason.push_str(&format!(", and for {kept:.1} s of them the machine had no processor for it"));
        }
        StageFailure { reason, in_hands, hung: true, slow: strike.may_be_slow() }
    }
}

/// What a stage tells the engine. Implementations must not block.
pub trait StageReports: Send + Sync {
    /// One sequence cannot go on: the stage has dropped it, and takes another attempt.
    fn sequence_failed(&self, request: RequestId, stage: StageName, reason: String);
    /// Input of one attempt of a sequence, from `unit` on, got lost on its edge: the stage has dropped the sequence,
    /// and takes another attempt.
    fn input_lost(&self, request: RequestId, stage: StageName, attempt: Attempt, unit: Seq);
    /// The stage takes sequences from now on; those it had before are lost. `show` makes its status say so: who sees it
    /// running may rely on that it is used, and a sequence that goes on can end only after its restart is seen.
    fn stage_up(&self, stage: StageName, show: &mut dyn FnMut());
    /// All sequences of the stage are lost. How that counts against the stage.
    fn stage_down(&self, stage: StageName, failure: &StageFailure) -> Attribution;
    /// A stage that is down will not come up again.
    fn stage_given_up(&self, stage: StageName, reason: &str);
}
