//! What one stage hands the next about one request.

pub use omni_core::ids::PayloadKind as Kind;

use super::lease::Lease;
use omni_core::ids::{Attempt, FinishReason, Generation, RequestId, Seq, StepId};
use omni_model::ModelError;
use omni_model::embeddings::Embeddings;
use omni_model::encoder::Features;
use omni_telemetry::trace::Chunk;

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
    /// Which request it belongs to.
    pub request: RequestId,
    /// Of the sending stage, when it packed this.
    pub generation: Generation,
    /// Of the receiving sequence: the attempt that this is meant for.
    pub attempt: Attempt,
    /// Units that went before on this edge.
    pub seq: Seq,
    /// What the parts are.
    pub kind: Kind,
    /// How much it is, in the units of the receiving stage.
    pub units: u32,
    /// Set on the last payload of the stream, which may have no units.
    pub end: Option<FinishReason>,
    /// When it was put on its edge, on the clock of the sender's host; 0 before that.
    pub sent: u64,
    /// With the first token of an answer: positions of its prompt that were kept and not computed.
    pub cached: u32,
}

impl Header {
    /// As a trace knows it.
    pub fn chunk(&self, bytes: usize, step: Option<StepId>) -> Chunk {
        let Header { request, kind, seq, units, .. } = *self;
        Chunk { request, kind, seq, units, bytes: bytes as u64, step }
    }
}

/// A piece of data: a handle wherever one will do. The numbers alone: what they are, `header.kind` says. A stage's
/// [`StageData`](omni_model::stage::StageData) says it itself; a wire could only repeat the header and contradict it.
#[derive(Clone, Debug)]
pub enum Part {
    /// Embeddings, wherever they are.
    Embeddings(Embeddings),
    /// Features for an encoder.
    Features(Features),
    /// Integers.
    U32(Vec<u32>),
    /// Samples.
    F32(Vec<f32>),
}

impl Part {
    /// Size of the data.
    pub fn bytes(&self) -> usize {
        match self {
            Part::Embeddings(embeddings) => embeddings.bytes(),
            Part::Features(features) => features.bytes(),
            Part::U32(values) => values.len() * 4,
            Part::F32(values) => values.len() * 4,
        }
    }

    /// Copies data out of the frame that it lies in. A consumer that keeps data for long must do so: a frame holds up
    /// its ring.
    #[must_use]
    pub fn detached(self) -> Part {
        match self {
            Part::Embeddings(Embeddings::Bytes(embeddings)) => {
                Part::Embeddings(Embeddings::Bytes(embeddings.detached()))
            }
            part => part,
        }
    }
}

impl Payload {
    /// [`Part::detached`] for all of it.
    #[must_use]
    pub fn detached(mut self) -> Payload {
        self.parts = self.parts.into_iter().map(Part::detached).collect();
        self
    }

    /// Size of the data.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(Part::bytes).sum()
    }

    /// The payload but for its units before `seq`; `None` if that leaves nothing that is new. Units of sound have `frame`
    /// samples each, but for the first ones of a stream, which can have fewer.
    ///
    /// # Errors
    /// When the tensor library says no.
    pub fn from_unit(mut self, seq: Seq, frame: usize) -> Result<Option<Payload>, ModelError> {
        let Header { seq: Seq(first), units, end, .. } = self.header;
        let known = seq.0.saturating_sub(first).min(units);
        if known == 0 {
            return Ok(Some(self));
        }
        if known == units && end.is_none() {
            return Ok(None);
        }
        let mut left = known as usize;
        let parts = std::mem::take(&mut self.parts);
        for part in parts {
            match part {
                Part::Embeddings(embeddings) => {
                    let count = embeddings.shape().0;
                    if let Some(rest) = embeddings.behind(left)? {
                        self.parts.push(Part::Embeddings(rest));
                    }
                    left = left.saturating_sub(count);
                }
                // The journal sends each of these once.
                part @ Part::Features(_) => self.parts.push(part),
                Part::U32(mut values) => {
                    values.drain(..values.len() / units as usize * known as usize);
                    self.parts.push(Part::U32(values));
                }
                Part::F32(mut values) => {
                    // From the end: where a stream begins, some frames are shorter.
                    let rest = frame.saturating_mul((units - known) as usize);
                    values.drain(..values.len().saturating_sub(rest));
                    self.parts.push(Part::F32(values));
                }
            }
        }
        (self.header.seq, self.header.units) = (Seq(first + known), units - known);
        Ok(Some(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_frame_of_a_stream_is_cut_off_with_its_own_length() {
        let header = Header {
            request: RequestId(1),
            generation: Generation(1),
            attempt: Attempt(0),
            seq: Seq(0),
            kind: Kind::Audio,
            units: 3,
            end: None,
            sent: 0,
            cached: 0,
        };
        // The first frame has 4 samples, the others 10.
        let samples: Vec<f32> = (0..24u8).map(f32::from).collect();
        for (known, rest) in [(0, 0), (1, 4), (2, 14)] {
            let payload = Payload { header, parts: vec![Part::F32(samples.clone())], leases: Vec::new() };
            let left = payload.from_unit(Seq(known), 10).unwrap().unwrap();
            assert_eq!((left.header.seq, left.header.units), (Seq(known), 3 - known));
            assert!(matches!(&left.parts[..], [Part::F32(left)] if left[..] == samples[rest..]), "{known}");
        }
    }
}
