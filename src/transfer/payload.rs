//! What one stage hands the next about one request.

pub use crate::ids::PayloadKind as Kind;

use super::lease::Lease;
use crate::ids::{Generation, RequestId, Seq, StepId};
use crate::model::rows::Rows;
use crate::telemetry::trace::Chunk;

/// A chunk of a request's stream on one edge.
#[derive(Debug)]
pub struct Payload {
    /// What it is.
    pub header: Header,
    /// The data, in the order that `header.kind` says.
    pub parts: Vec<Part>,
    /// Held until the consumer has taken the data over.
    pub leases: Vec<Lease>,
}

/// The small, typed part of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct Header {
    /// Whose.
    pub request: RequestId,
    /// Of the sending stage, when it packed this.
    pub generation: Generation,
    /// Units that went before on this edge.
    pub seq: Seq,
    /// What the parts are.
    pub kind: Kind,
    /// How much it is, in the units of the receiving stage.
    pub units: u32,
    /// Set on the last payload of the stream, which may have no units.
    pub end: Option<End>,
    /// When it was put on its edge, on the clock of the sender's host; 0 before that.
    pub sent: u64,
}

impl Header {
    /// As a trace knows it.
    pub fn chunk(&self, bytes: usize, step: Option<StepId>) -> Chunk {
        let Header { request, kind, seq, units, .. } = *self;
        Chunk { request, kind, seq, units, bytes: bytes as u64, step }
    }
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum End {
    /// By itself.
    Stop,
    /// At a limit.
    Length,
}

/// A piece of data: a handle wherever one will do.
#[derive(Clone, Debug)]
pub enum Part {
    /// Embedding rows, wherever they are.
    Rows(Rows),
    /// Integers.
    U32(Vec<u32>),
    /// Samples.
    F32(Vec<f32>),
}

impl Part {
    /// Size of the data.
    pub fn bytes(&self) -> usize {
        match self {
            Part::Rows(rows) => rows.bytes(),
            Part::U32(values) => values.len() * 4,
            Part::F32(values) => values.len() * 4,
        }
    }
}

impl Payload {
    /// Copies what lies in a frame, for whoever keeps it for long: a frame holds up the ring that it lies in.
    pub fn detached(mut self) -> Payload {
        for part in &mut self.parts {
            if let Part::Rows(Rows::Bytes(rows)) = part {
                *rows = rows.detached();
            }
        }
        self
    }

    /// Size of the data.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(Part::bytes).sum()
    }
}
