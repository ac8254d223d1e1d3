//! What one stage hands the next about one request.

use super::lease::Lease;
use crate::ids::{Generation, RequestId, Seq};
use crate::model::rows::Rows;

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
}

/// What the parts of a payload are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, bincode::Encode, bincode::Decode)]
pub enum Kind {
    /// One tensor `[units, hidden]`: embedding rows for a talker.
    Rows,
    /// Token ids of an answer, for the client.
    Tokens,
    /// Codes, `groups` for each unit, for a vocoder.
    Codes,
    /// Samples, for the client.
    Audio,
}

impl Kind {
    /// The name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Rows => "rows",
            Kind::Tokens => "tokens",
            Kind::Codes => "codes",
            Kind::Audio => "audio",
        }
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
    /// Size of the data.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(Part::bytes).sum()
    }
}
