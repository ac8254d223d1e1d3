//! What a fault plan is made of: where something goes wrong, what, and when.

use omni_core::ids::StageName;
use std::time::Duration;

/// How long a hang lasts unless its stage is taken down: longer than any watchdog waits.
pub const HANG: Duration = Duration::from_secs(3600);

/// One thing that goes wrong. Made with [`FaultRule::new`], narrowed down by the methods.
#[derive(Clone, Debug, PartialEq, bincode::Encode, bincode::Decode)]
pub struct FaultRule {
    /// In which stage; `None` for a point outside of them.
    pub stage: Option<StageName>,
    /// At which point.
    pub point: FaultPoint,
    /// What happens.
    pub kind: FaultKind,
    /// The first occurrence that is hit, counted from 1. Occurrences that the rule is not about are not counted.
    pub nth: u64,
    /// How many occurrences can be hit from there on; `u64::MAX` for all.
    pub times: u64,
    /// Only while this request is worked on: the n-th that was accepted since the rule was made, from 1.
    pub request: Option<u64>,
    /// Only requests one in so many, chosen by what they ask for: the same request that comes again is one of them again.
    pub one_in: Option<u64>,
    /// Only where it is worked on together with this.
    pub beside: Option<Beside>,
    /// Only while a request, or the engine, is at this.
    pub phase: Option<Phase>,
    /// Not before this long after the rule was made.
    pub after: Duration,
    /// With which probability an occurrence that can be hit is hit, above 0 and at most 1.
    pub chance: f64,
}

impl FaultRule {
    /// A rule that hits the first occurrence. `stage` is a [`StageName`], or `None` for a point outside of them.
    pub fn new(stage: impl Into<Option<StageName>>, point: FaultPoint, kind: FaultKind) -> FaultRule {
        let (stage, after) = (stage.into(), Duration::ZERO);
        let (request, one_in, beside, phase) = (None, None, None, None);
        FaultRule { stage, point, kind, nth: 1, times: 1, request, one_in, beside, phase, after, chance: 1.0 }
    }

    /// From this occurrence on, counted from 1.
    #[must_use]
    pub fn nth(self, nth: u64) -> FaultRule {
        FaultRule { nth, ..self }
    }

    /// So many occurrences.
    #[must_use]
    pub fn times(self, times: u64) -> FaultRule {
        FaultRule { times, ..self }
    }

    /// Only the n-th request from now on, counted from 1.
    #[must_use]
    pub fn request(self, request: u64) -> FaultRule {
        FaultRule { request: Some(request), ..self }
    }

    /// Only requests one in so many, chosen by what they ask for.
    #[must_use]
    pub fn one_in(self, requests: u64) -> FaultRule {
        FaultRule { one_in: Some(requests), ..self }
    }

    /// Only together with this.
    #[must_use]
    pub fn beside(self, neighbour: Beside) -> FaultRule {
        FaultRule { beside: Some(neighbour), ..self }
    }

    /// Only at this.
    #[must_use]
    pub fn phase(self, phase: Phase) -> FaultRule {
        FaultRule { phase: Some(phase), ..self }
    }

    /// Not before this long from now.
    #[must_use]
    pub fn after(self, after: Duration) -> FaultRule {
        FaultRule { after, ..self }
    }

    /// Every occurrence with this probability.
    #[must_use]
    pub fn chance(self, chance: f64) -> FaultRule {
        FaultRule { chance, ..self }
    }
}

/// Another request that is worked on at the same time: in one step, in one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum Beside {
    /// Whichever.
    Any,
    /// The n-th that was accepted since the rule was made, from 1.
    Request(u64),
}

macro_rules! names {
    ($type:ident: $($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        impl $type {
            /// All of them, in the order of the documentation.
            pub const ALL: &[$type] = &[$($type::$name),*];

            /// As files write it.
            pub fn as_str(self) -> &'static str {
                match self { $($type::$name => $text),* }
            }
        }
    };
}

/// Where faults can be injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, bincode::Encode, bincode::Decode)]
pub enum FaultPoint {
    /// The scheduler, handling a message.
    Scheduler,
    /// The runner thread, before it makes the device state of a generation.
    Build,
    /// The runner thread, before it gives a request a sequence.
    Open,
    /// The runner thread, before it launches a step.
    Runner,
    /// The completion side, before a step's tokens are passed on.
    Completion,
    /// The sampler, before it looks at a step.
    Sampler,
    /// The packager, before it packs what waits.
    Packager,
    /// The outbound connector, before it puts a payload on its transport.
    Outbound,
    /// The inbound connector, before it hands a payload to its stage.
    Connector,
    /// The edge behind the stage, where it ends: for each payload that comes over it, those that are sent again
    /// included. Only edges that carry frames can lose one.
    Edge,
    /// No stage: the request ledger, before it looks at what the last stage made for a client.
    Ledger,
    /// No stage: the request ledger, when it has written down what a stage made for a client and the client has not got
    /// it.
    Handover,
    /// No stage: a request is planned: its template is rendered, its text is tokenized.
    Plan,
    /// No stage: a recording of a voice is encoded.
    Encoder,
    /// No stage: the aligner, before it looks for the words of a piece.
    Aligner,
    /// No stage: where an uploaded voice is written to the disk.
    Voices,
    /// No stage: a client, before it takes an event.
    Client,
}

names! { FaultPoint:
    Scheduler = "scheduler";
    Build = "build";
    Open = "open";
    Runner = "runner";
    Completion = "completion";
    Sampler = "sampler";
    Packager = "packager";
    Outbound = "outbound";
    Connector = "connector";
    Edge = "edge";
    Ledger = "ledger";
    Handover = "handover";
    Plan = "plan";
    Encoder = "encoder";
    Aligner = "aligner";
    Voices = "voices";
    Client = "client";
}

impl FaultPoint {
    /// Whether there is one per stage.
    pub fn has_stage(self) -> bool {
        use FaultPoint::{Aligner, Client, Encoder, Handover, Ledger, Plan, Voices};
        !matches!(self, Ledger | Handover | Plan | Encoder | Aligner | Voices | Client)
    }

    /// Whether requests that were accepted are worked on there.
    pub fn has_request(self) -> bool {
        use FaultPoint::{Aligner, Build, Encoder, Plan, Voices};
        !matches!(self, Build | Plan | Encoder | Aligner | Voices)
    }

    /// Whether it is known there what a request is at; the last unit of one only where it has been computed.
    pub fn knows(self, phase: Phase) -> bool {
        match self {
            _ if phase == Phase::Drain => true,
            _ if !self.has_request() => false,
            FaultPoint::Open => phase == Phase::Prefill,
            FaultPoint::Runner => phase != Phase::Last,
            FaultPoint::Scheduler | FaultPoint::Completion | FaultPoint::Sampler => true,
            // Payloads carry what was computed: there are none of a prompt that is still to be computed.
            _ => phase != Phase::Prefill,
        }
    }
}

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, bincode::Encode, bincode::Decode)]
pub enum FaultKind {
    /// A panic.
    Panic,
    /// An error returned by the actor.
    Error,
    /// A pause, whatever happens meanwhile.
    Delay(Duration),
    /// It does not go on, until its stage is taken down.
    Hang,
    /// The device has no memory left.
    Oom,
    /// The device breaks: after an illegal access each of its calls fails, until the process is another one.
    Device,
    /// Logits of a sequence that are not numbers.
    Nan,
    /// The stage's own process is killed, as `kill -9` does.
    Kill,
    /// On an edge: the payload is lost.
    Drop,
    /// On an edge: the payload comes twice.
    Duplicate,
    /// On an edge: the next payload overtakes this one.
    Reorder,
    /// On an edge: bits of the payload's frame change.
    Corrupt,
    /// On an edge: it breaks, and takes with it what is on its way.
    Cut,
    /// The disk is full.
    Full,
    /// A client takes this long for what it is given.
    Slow(Duration),
}

impl FaultKind {
    /// All of them, in the order of the documentation; those that take a time with this one.
    pub fn all(delay: Duration) -> [FaultKind; 15] {
        use FaultKind::*;
        let timed = [Panic, Error, Delay(delay), Hang, Oom, Device, Nan, Kill];
        let others = [Drop, Duplicate, Reorder, Corrupt, Cut, Full, Slow(delay)];
        std::array::from_fn(|at| if at < timed.len() { timed[at] } else { others[at - timed.len()] })
    }

    /// As files write it.
    pub fn as_str(self) -> &'static str {
        match self {
            FaultKind::Panic => "panic",
            FaultKind::Error => "error",
            FaultKind::Delay(_) => "delay",
            FaultKind::Hang => "hang",
            FaultKind::Oom => "oom",
            FaultKind::Device => "device",
            FaultKind::Nan => "nan",
            FaultKind::Kill => "kill",
            FaultKind::Drop => "drop",
            FaultKind::Duplicate => "duplicate",
            FaultKind::Reorder => "reorder",
            FaultKind::Corrupt => "corrupt",
            FaultKind::Cut => "cut",
            FaultKind::Full => "full",
            FaultKind::Slow(_) => "slow",
        }
    }

    /// How long it lasts, if it is of those that take a time.
    pub fn delay(self) -> Option<Duration> {
        match self {
            FaultKind::Delay(delay) | FaultKind::Slow(delay) => Some(delay),
            _ => None,
        }
    }

    /// Whether this can happen at that place.
    pub fn suits(self, point: FaultPoint) -> bool {
        use FaultPoint::{
            Aligner, Build, Client, Completion, Edge, Encoder, Handover, Ledger, Open, Plan, Runner, Voices,
        };
        let in_stage = point.has_stage() && point != Edge;
        match self {
            FaultKind::Panic => in_stage || matches!(point, Ledger | Handover | Plan | Encoder | Aligner),
            FaultKind::Error => in_stage,
            FaultKind::Delay(_) => point.has_stage(),
            // While a stage comes up its supervisor cannot tell a hang from a slow disk.
            FaultKind::Hang | FaultKind::Kill => in_stage && point != Build,
            FaultKind::Oom => matches!(point, Build | Open | Runner),
            FaultKind::Device => point == Runner,
            FaultKind::Nan => point == Completion,
            FaultKind::Drop | FaultKind::Duplicate | FaultKind::Reorder | FaultKind::Corrupt | FaultKind::Cut => {
                point == Edge
            }
            FaultKind::Full => point == Voices,
            FaultKind::Slow(_) => point == Client,
        }
    }
}

/// What a request is at, or the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, bincode::Encode, bincode::Decode)]
pub enum Phase {
    /// Before or inside its prompt.
    Prefill,
    /// Its first unit of output.
    First,
    /// Units between the first and the last.
    Stream,
    /// Its last unit.
    Last,
    /// The engine drains.
    Drain,
}

names! { Phase:
    Prefill = "prefill";
    First = "first";
    Stream = "stream";
    Last = "last";
    Drain = "drain";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_has_something_that_suits_and_every_kind_some_place() {
        let kinds = FaultKind::all(HANG);
        for point in FaultPoint::ALL {
            assert!(kinds.iter().any(|kind| kind.suits(*point)), "{point:?}");
        }
        for kind in kinds {
            assert!(FaultPoint::ALL.iter().any(|point| kind.suits(*point)), "{kind:?}");
        }
    }
}
