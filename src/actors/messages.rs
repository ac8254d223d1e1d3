//! The protocol of a stage: what others give it, and what its actors say to each other.
//!
//! Messages travel in mailboxes without a bound, so they carry no payload bytes. Commands, steps, outputs and payloads
//! travel in bounded queues; [`Ready`] tells the reader of a queue that there is something in it.

use omni_core::ids::{Attempt, Content, FinishReason, Generation, RequestId, Seq, Slot, StepId};
use omni_core::scheduler::{Ack, Plan, SequenceParams, Start, StepDone};
use omni_model::stage::{Launched, SequenceSpec, StageData};
use omni_transfer::lease::Lease;
use omni_transfer::payload::Header;
use omni_transfer::transport::TransportError;
use std::time::Instant;

/// A sequence that a request needs in one stage.
#[derive(Clone, Debug, bincode::Encode, bincode::Decode)]
pub struct Admission {
    /// Of which request.
    pub request: RequestId,
    /// For the scheduler.
    pub params: SequenceParams,
    /// For the model.
    pub spec: SequenceSpec,
    /// Where the sequence's output goes.
    pub deliver: Outputs,
    /// Where it resumes, if an earlier attempt had come some way.
    pub from: Resume,
    /// What the request asks for: fault plans choose by it.
    pub content: Content,
}

/// Where a sequence resumes. All zero for one that begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct Resume {
    /// Which admission this is.
    pub attempt: Attempt,
    /// For the scheduler.
    pub start: Start,
    /// Number of the first unit that the model emits.
    pub first: u32,
    /// Number of the first unit to deliver: earlier attempts delivered those before it.
    pub deliver_from: u32,
    /// Tokens that earlier attempts delivered.
    pub tokens: u32,
}

/// Where a sequence's output goes.
#[derive(Clone, Copy, Debug, bincode::Encode, bincode::Decode)]
pub struct Outputs {
    /// Sampled tokens go to the client.
    pub tokens: bool,
    /// What the sequence emits goes to the next stage.
    pub speech: bool,
}

/// To the scheduler.
#[derive(Debug)]
pub(super) enum SchedulerMessage {
    /// From the inbound connector, which knows the request already.
    Admit(Box<Admission>),
    /// From the inbound connector: input is in the runner's queue.
    Input { request: RequestId, units: u32, end: bool },
    /// The next stage, or the client, took output over.
    Acked {
        acks: Vec<Ack>,
        /// Whether they came by way of the inbound connector, and so behind the admissions that went ahead of them.
        behind: bool,
    },
    /// From the sampler: a step is nearly over.
    Nearly(StepId),
    /// From the sampler: the outcome of a step. No other actor has heard of it.
    Done { done: StepDone, failed: Vec<(RequestId, String)> },
    /// A sequence failed outside a step.
    SequenceFailed { request: RequestId, reason: String },
    /// From the inbound connector, which has forgotten the request already.
    Abort(RequestId),
    /// From the arbiter of the device: the reason to hold a step back may be over.
    Wake,
}

/// To the inbound connector.
pub(super) enum InboundMessage {
    /// From the engine: payloads of this request will come.
    Admit(Box<Admission>),
    /// From the scheduler: the model has a sequence for it now.
    Opened(RequestId, Attempt),
    /// From the scheduler: the sequence has ended and needs no payload that still comes.
    Closed(RequestId, Attempt),
    /// From the scheduler: the sequence could not go on; another attempt may come.
    Lost(RequestId, Attempt),
    /// From the scheduler, which does not know these requests yet.
    Acked(Vec<Ack>),
    /// From the engine: the request is gone.
    Abort(RequestId),
    /// Something is in the inbox.
    Arrived,
    /// The transport broke.
    Broken(TransportError),
}

/// To the packager and the outbound connector: there is something in the queue.
#[derive(Debug)]
pub(super) struct Ready;

/// To the model runner, from its thread.
#[derive(Debug)]
pub(super) enum RunnerMessage {
    /// The model is built.
    Built,
    /// The thread ended without being asked to.
    Died(String),
}

/// To the sampler, from the thread that it runs on.
#[derive(Debug)]
pub(super) enum SamplerMessage {
    /// It ended without being asked to.
    Died(String),
}

/// To the supervisor of the stage.
#[derive(Debug)]
pub(super) enum SupervisorMessage {
    /// Start the next generation.
    Start,
    /// From the model runner: the model of this generation is built.
    Ready(Generation),
    /// Look whether an actor or a thread hangs.
    Watch,
}

/// To the launch thread, from the scheduler and the inbound connector. One queue for all of them, so that input is
/// there before the plan that needs it, and the model closes a slot before it opens it again.
pub(super) enum Command {
    Open {
        slot: Slot,
        request: RequestId,
        spec: Box<SequenceSpec>,
        deliver: Outputs,
        from: Resume,
    },
    Input {
        header: Header,
        input: Option<StageData>,
        end: bool,
        leases: Vec<Lease>,
    },
    Step(Plan),
    Close(Slot),
    /// Only wakes the thread, which then sees that it has to stop.
    Wake,
}

/// To the sampler, from the launch thread: what that did, in its order.
pub(super) enum LaunchEvent {
    /// A slot has a new sequence.
    Opened { slot: Slot, deliver: Outputs, from: Resume },
    /// The model could not open a sequence, or did not take its input.
    SequenceFailed { request: RequestId, reason: String },
    /// The model launched a step.
    Step(LaunchedStep),
    /// A slot is free.
    Closed(Slot),
}

/// A step, and when its launch began and returned.
pub(super) struct LaunchedStep {
    pub plan: Plan,
    pub launched: Launched,
    pub began: Instant,
    pub returned: Instant,
}

/// To the packager: what one step made for one sequence.
pub(super) struct Output {
    pub request: RequestId,
    /// Which of the request's sequences made it.
    pub attempt: Attempt,
    /// The step that made it.
    pub step: StepId,
    pub deliver: Outputs,
    /// Position and number of the units of `emit`.
    pub seq: Seq,
    pub units: u32,
    pub emit: Option<StageData>,
    /// The sampled token and its position, for the client.
    pub token: Option<(Seq, u32)>,
    /// With the first token behind a prompt: positions of it that were kept and not computed.
    pub cached: u32,
    pub end: Option<FinishReason>,
    /// Held for as long as the output is in use.
    pub lease: Lease,
}
