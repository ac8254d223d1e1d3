//! The control messages of parent and child. Both are the same binary, so there is no version to agree on.

use crate::{Admission, StageFailure, StageLoad, StageStatus};
use bincode::{Decode, Encode};
use omni_config::Config;
use omni_core::ids::{Attempt, Generation, RequestId, Seq, StageName};
use omni_fault::{PlanState, RuleCount};
use omni_model::checkpoint::Origin;
use omni_telemetry::trace::Record;
use omni_transfer::link::Control;

/// The first thing that a child hears: which stage it is, and everything that makes one.
#[derive(Clone, Debug, Encode, Decode)]
pub struct Setup {
    /// Which stage.
    pub stage: StageName,
    /// Which replica of it; 0 where there is one.
    pub replica: u8,
    /// As the parent resolved it, overrides included.
    pub config: Config,
    /// What it serves.
    pub checkpoint: Origin,
    /// Of the last generation before this process.
    pub generation: Generation,
    /// What breaks on purpose, as far as it was counted.
    pub faults: PlanState,
    /// The process that must live for this one to live.
    pub parent: u32,
}

/// What the parent tells its child.
#[derive(Clone, Debug, Encode, Decode)]
pub enum ToStage {
    /// Admits a sequence.
    Admit(Box<Admission>),
    /// Frees a request's sequence.
    Abort(RequestId),
    /// The next stage, or the client, took output over, up to this unit.
    Acked(RequestId, u32),
    /// The parent begins to take a trace, or ends it.
    Trace(bool),
    /// Asks a node for its clock, at this time of the gateway's.
    Clock(u64),
    /// What breaks on purpose has changed.
    Faults(PlanState),
    /// Asks for the child's metrics.
    Metrics,
    /// Ends the stage and the process.
    Stop,
}

/// What a child tells its parent.
#[derive(Clone, Debug, Encode, Decode)]
pub enum FromStage {
    /// The stage's state changed.
    Status(StageStatus),
    /// All sequences of a generation are lost, and why; what the fault plan had counted by then, for the process may
    /// end with it.
    StageDown(Generation, StageFailure, Vec<RuleCount>),
    /// Input was taken over, up to this unit.
    Acked(RequestId, u32),
    /// One sequence cannot go on.
    SequenceFailed(RequestId, String),
    /// Input of one sequence, from this unit on, got lost on the way to it.
    InputLost(RequestId, Attempt, Seq),
    /// What the stage holds, and what the fault plan has counted. Also a sign of life.
    Pulse(Pulse),
    /// What was recorded for the parent's trace.
    Trace(Vec<Record>),
    /// The answer to [`ToStage::Clock`]: the time at which that was asked, and that of the node.
    Clock(u64, u64),
    /// The answer to [`ToStage::Metrics`].
    Metrics(String),
    /// A fault plan has this process killed; the counts of its rules.
    Doomed(Vec<RuleCount>),
}

/// See [`FromStage::Pulse`].
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode)]
pub struct Pulse {
    /// What the stage holds.
    pub load: StageLoad,
    /// Admissions heard.
    pub admitted: u64,
    /// See [`FaultPlan::counts`](omni_fault::FaultPlan::counts).
    pub faults: Vec<RuleCount>,
}

impl Control for ToStage {
    fn request(&self) -> Option<RequestId> {
        match self {
            ToStage::Admit(admission) => Some(admission.request),
            ToStage::Abort(request) | ToStage::Acked(request, _) => Some(*request),
            ToStage::Trace(_) | ToStage::Clock(_) | ToStage::Faults(_) | ToStage::Metrics | ToStage::Stop => None,
        }
    }
}

impl Control for FromStage {
    fn request(&self) -> Option<RequestId> {
        match self {
            FromStage::Acked(request, _)
            | FromStage::SequenceFailed(request, _)
            | FromStage::InputLost(request, ..) => Some(*request),
            FromStage::Status(_)
            | FromStage::StageDown(..)
            | FromStage::Pulse(_)
            | FromStage::Trace(_)
            | FromStage::Clock(..)
            | FromStage::Metrics(_)
            | FromStage::Doomed(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Outputs, Resume};
    use omni_core::ids::Content;
    use omni_core::scheduler::{Pace, SequenceParams};
    use omni_model::stage::{SequenceSpec, VocoderSpec};
    use omni_transfer::link::{append, take};
    use proptest::prelude::*;

    fn admission() -> ToStage {
        let params = SequenceParams::unprompted(Pace::Free);
        let spec = SequenceSpec::Vocoder(VocoderSpec { context: Some(vec![7; 20].into()), goes_on: false });
        let (deliver, from) = (Outputs { tokens: false, speech: true }, Resume::default());
        ToStage::Admit(Box::new(Admission { request: RequestId(5), params, spec, deliver, from, content: Content(9) }))
    }

    #[test]
    fn an_admission_arrives_as_it_was_sent() {
        let mut bytes = Vec::new();
        append(&admission(), &mut bytes).unwrap();
        let mut rest = bytes.as_slice();
        let ToStage::Admit(back) = take(&mut rest).unwrap() else { panic!("another message") };
        assert_eq!((back.request, back.params.pace, rest), (RequestId(5), Pace::Free, &[][..]));
    }

    proptest! {
        #[test]
        fn hostile_messages_are_an_error_and_never_a_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200), flip in any::<(usize, u8)>()
        ) {
            let _ = take::<ToStage>(&mut bytes.as_slice());
            let _ = take::<FromStage>(&mut bytes.as_slice());
            let mut good = Vec::new();
            append(&admission(), &mut good).unwrap();
            let at = flip.0 % good.len();
            good[at] ^= flip.1;
            let _ = take::<ToStage>(&mut good.as_slice());
        }
    }
}
