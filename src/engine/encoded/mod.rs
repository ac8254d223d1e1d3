//! The media of a request between the planner and the ledger: what of them is known already, what the encoder is given,
//! and the memory that all of it takes.
//!
//! | file | what |
//! | --- | --- |
//! | `cache` | embeddings of media that were encoded before, for all conversations |
//! | `memory` | how much the media of all open requests may take |

mod cache;
mod memory;

pub(super) use cache::{Cached, MediaCache};
pub(super) use memory::{MediaMemory, MediaPermit};

use super::journal::Feed;
use omni_core::ids::{Attempt, FinishReason, Generation, RequestId, Seq};
use omni_media::medium::MediaHash;
use omni_telemetry::clock;
use omni_transfer::payload::{Header, Kind, Part, Payload};
use std::ops::Range;
use std::sync::Arc;

/// What the ledger must know of a request's media. Empty for a request of text.
#[derive(Default)]
pub(crate) struct MediaPlan {
    /// What the encoder is given; `None` where it has nothing to do.
    pub feed: Option<Feed>,
    /// Embeddings of the first spans, which were encoded before.
    pub known: Vec<Known>,
    /// What is encoded, span by span: as a part of what the request asks for.
    pub hashes: Vec<MediaHash>,
    /// Takes what the encoder makes.
    pub store: Option<MediaStore>,
    /// Memory of the request's media, until it ends.
    pub permit: Option<MediaPermit>,
}

/// Embeddings that a thinker is given without an encoder.
pub(crate) struct Known {
    part: Part,
    seq: u32,
    units: u32,
    end: bool,
}

impl Known {
    /// As payloads behind `seq` embeddings, in their order; `end` says that nothing follows.
    pub fn all(cached: &Cached, seq: u32, end: bool) -> Vec<Known> {
        let mut at = seq;
        let last = cached.len();
        let known = cached.iter().enumerate().map(|(i, (units, part))| {
            let known = Known { part: part.clone(), seq: at, units: *units, end: end && i + 1 == last };
            at += units;
            known
        });
        known.collect()
    }

    /// How many embeddings.
    pub fn units(&self) -> u32 {
        self.units
    }

    /// Of a request.
    pub fn named(self, request: RequestId) -> Payload {
        let Known { part, seq, units, end } = self;
        let header = Header {
            request,
            generation: Generation(0),
            attempt: Attempt(0),
            seq: Seq(seq),
            kind: Kind::Media,
            units,
            end: end.then_some(FinishReason::Stop),
            sent: clock::now(),
        };
        Payload { header, parts: vec![part], leases: Vec::new() }
    }
}

/// Where the embeddings of a request's media are kept for requests to come.
pub(crate) struct MediaStore {
    pub cache: Arc<MediaCache>,
    /// Of each span: what it is known by, and which of all embeddings are its.
    pub spans: Vec<(MediaHash, Range<u32>)>,
}

impl MediaStore {
    /// All embeddings are there, in pieces that belong to one span each.
    pub fn keep(&self, pieces: &[(u32, Part)]) {
        for (key, rows) in &self.spans {
            let mut at = 0;
            let of_span = pieces.iter().filter(|(units, _)| {
                let first = at;
                at += units;
                rows.contains(&first)
            });
            self.cache.insert(*key, of_span.cloned().collect());
        }
    }
}
