//! What is recorded: small facts, not yet slices of a picture.

use crate::{Direction, Outcome, Phase, Phases, Queue, RequestKind};
use bincode::{Decode, Encode};
use omni_core::ids::{Generation, PayloadKind, Replica, RequestId, Seq, StageName, StepId};
use std::time::Duration;

/// Something that happened somewhere at some time.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Record {
    /// The system's number of the process.
    pub process: u32,
    /// Where.
    pub track: Track,
    /// Since when, in nanoseconds of the [host's clock](crate::clock).
    pub began: u64,
    /// Until when; as `began` for what takes no time.
    pub ended: u64,
    /// What.
    pub what: What,
}

/// Where something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
pub enum Track {
    /// In a part of a stage.
    Stage {
        /// Which stage.
        stage: StageName,
        /// Which replica of it.
        replica: u8,
        /// The replica's generation: each counts its steps from 0.
        generation: Generation,
        /// Which part.
        component: Component,
    },
    /// To a request, as its client sees it.
    Request(RequestId),
}

impl Track {
    /// A part of a stage.
    pub fn of(replica: impl Into<Replica>, generation: Generation, component: Component) -> Track {
        let Replica { stage, number } = replica.into();
        Track::Stage { stage, replica: number, generation, component }
    }

    /// The replica in which it happened.
    pub fn place(&self) -> Option<Replica> {
        match *self {
            Track::Stage { stage, replica, .. } => Some(Replica { stage, number: replica }),
            Track::Request(_) => None,
        }
    }
}

/// A part of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
pub enum Component {
    /// Takes payloads off the edge into the stage.
    ConnectorIn,
    /// Plans steps.
    Scheduler,
    /// The thread that launches.
    Launch,
    /// What it launched, while it runs.
    Device,
    /// Copies from the host to the device, beside the steps.
    HostToDevice,
    /// Copies from the device to the host, beside the steps.
    DeviceToHost,
    /// Reads what a step left behind.
    Completion,
    /// Passes tokens on.
    Sampler,
    /// Makes payloads.
    Packager,
    /// Puts payloads on the edges out of the stage.
    ConnectorOut,
}

impl Component {
    /// Every component, from input to output: the order of the tracks in a picture.
    pub const ALL: [Component; 10] = [
        Component::ConnectorIn,
        Component::Scheduler,
        Component::Launch,
        Component::Device,
        Component::HostToDevice,
        Component::DeviceToHost,
        Component::Completion,
        Component::Sampler,
        Component::Packager,
        Component::ConnectorOut,
    ];

    /// The name in the file.
    pub fn as_str(self) -> &'static str {
        match self {
            Component::ConnectorIn => "connector in",
            Component::Scheduler => "scheduler",
            Component::Launch => "launch thread",
            Component::Device => "device compute",
            Component::HostToDevice => "copies to device",
            Component::DeviceToHost => "copies to host",
            Component::Completion => "completion",
            Component::Sampler => "sampler",
            Component::Packager => "packager",
            Component::ConnectorOut => "connector out",
        }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum What {
    /// The scheduler took up the outcome of a step.
    Returned(StepId),
    /// The scheduler planned a step and gave it to the runner.
    Planned {
        /// Which.
        step: StepId,
        /// Its sequences.
        sequences: u32,
        /// The step whose return it was planned at; `None` for other events, such as new input.
        after: Option<StepId>,
    },
    /// The launch call of a step.
    Launched {
        /// Which.
        step: StepId,
        /// Its sequences.
        sequences: u32,
        /// Steps out whose tokens the scheduler had not seen.
        ahead: u32,
    },
    /// A sequence was opened in the device state.
    Opened(RequestId),
    /// Input was given to the device state.
    InputPushed(Chunk),
    /// A step ran.
    Ran(Box<Ran>),
    /// What a step left behind was read and handed to the sampler.
    Read(StepId),
    /// The tokens of a step went to the scheduler, then its outputs to the packager.
    Sampled(StepId),
    /// The packager worked off what waited, delays and all.
    Packaging {
        /// Requests with outputs.
        requests: u32,
    },
    /// A payload was made.
    Packed(Chunk),
    /// A payload was put on its edge.
    Put(Chunk),
    /// A payload was taken off its edge.
    Took(Chunk),
    /// Bytes were copied beside the steps.
    Copied {
        /// Which way.
        direction: Direction,
        /// How many.
        bytes: u64,
    },
    /// A request was accepted.
    Accepted(RequestKind),
    /// A piece of text went to the client.
    Text,
    /// A chunk of speech went to the client.
    Speech {
        /// Its length in nanoseconds.
        length: u64,
    },
    /// The request ended.
    Ended(Outcome),
    /// So many messages wait in a queue of the stage.
    Queued(Queue, u32),
    /// So many records were lost, here or in the process that sends this.
    Missing(u64),
}

/// A piece of a request's stream on an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Chunk {
    /// Whose.
    pub request: RequestId,
    /// What it carries.
    pub kind: PayloadKind,
    /// Units that went before.
    pub seq: Seq,
    /// Its units.
    pub units: u32,
    /// Its bytes; 0 where they are not counted.
    pub bytes: u64,
    /// The last step that is in it, where known.
    pub step: Option<StepId>,
}

impl Chunk {
    /// Its key on its edge, from the packager to the next stage's launch thread.
    pub fn piece(&self) -> (RequestId, PayloadKind, Seq) {
        (self.request, self.kind, self.seq)
    }
}

/// A step that ran. The record's time is that on the device, as far as the device tells: otherwise from its launch, or
/// the end of the step before, until its end was known.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Ran {
    /// Which.
    pub step: StepId,
    /// Its sequences.
    pub sequences: Vec<SequenceShare>,
    /// Whether the device measured it.
    pub measured: bool,
    /// How long the device had nothing to do before it, in nanoseconds; `None` if no sequence had been in the step
    /// before.
    pub bubble: Option<u64>,
    /// Nanoseconds of each phase, in the order of [`Phase::ALL`].
    pub phases: [u64; Phase::ALL.len()],
}

/// A sequence's share of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SequenceShare {
    /// Whose sequence.
    pub request: RequestId,
    /// Units it advanced.
    pub units: u32,
    /// Whether these were of its prompt.
    pub prompt: bool,
    /// Units that it gave.
    pub gave: u32,
}

impl Ran {
    /// The phases as a record carries them.
    pub fn nanos(phases: &Phases) -> [u64; Phase::ALL.len()] {
        Phase::ALL.map(|phase| phases.get(phase).as_nanos() as u64)
    }

    /// Units of all sequences.
    pub fn units(&self) -> u32 {
        self.sequences.iter().map(|sequence| sequence.units).sum()
    }

    /// Units of prompts.
    pub fn prompt(&self) -> u32 {
        self.sequences.iter().filter(|sequence| sequence.prompt).map(|sequence| sequence.units).sum()
    }

    /// What was measured of the phases.
    pub fn measured_phases(&self) -> impl Iterator<Item = (Phase, Duration)> + '_ {
        let time = |(phase, nanos): (Phase, &u64)| (phase, Duration::from_nanos(*nanos));
        Phase::ALL.into_iter().zip(&self.phases).map(time).filter(|(_, time)| !time.is_zero())
    }
}
