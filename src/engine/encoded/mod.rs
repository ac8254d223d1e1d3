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
use omni_model::embeddings::Embeddings;
use omni_model::stage::EncodedPart;
use omni_telemetry::clock;
use omni_transfer::payload::{Header, Kind, Part, Payload};
use std::ops::Range;
use std::sync::Arc;

/// What the ledger must know of a request's media. Empty for a request of text.
#[derive(Default)]
pub(crate) struct MediaPlan {
    /// What the encoder is given; `None` where it has nothing to do.
    pub feed: Option<Feed>,
    /// Embeddings of the first parts, which were encoded before.
    pub known: Vec<Known>,
    /// What is encoded, span by span: as a part of what the request asks for, and what its prompt is known by.
    pub spans: Arc<[Arc<[EncodedPart]>]>,
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
            cached: 0,
        };
        Payload { header, parts: vec![part], leases: Vec::new() }
    }
}

/// Where the embeddings of a request's media are kept for requests to come.
pub(crate) struct MediaStore {
    cache: Arc<MediaCache>,
    /// Of each part that is not kept yet, the next one last: what it is known by, and which of all embeddings are its.
    parts: Vec<(MediaHash, Range<u32>)>,
}

impl MediaStore {
    /// For these parts, in their order.
    pub fn new(cache: Arc<MediaCache>, mut parts: Vec<(MediaHash, Range<u32>)>) -> MediaStore {
        parts.reverse();
        MediaStore { cache, parts }
    }

    /// Keeps the parts whose embeddings are all in the host's memory by now: `pieces` from the first one on, each of one
    /// part. A request that ends before its media are encoded leaves what was.
    pub fn keep(&mut self, pieces: &[(u32, Part)]) {
        let here = |(_, part): &&(u32, Part)| !matches!(part, Part::Embeddings(Embeddings::Device(_)));
        let there: u32 = pieces.iter().take_while(here).map(|(units, _)| units).sum();
        while let Some((key, rows)) = self.parts.pop_if(|(_, rows)| rows.end <= there) {
            let mut at = 0;
            let of_part = pieces.iter().filter(|(units, _)| {
                let first = at;
                at += units;
                rows.contains(&first)
            });
            self.cache.insert(key, of_part.cloned().collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_kept_as_soon_as_all_of_it_is_there() {
        let cache = MediaCache::new(1 << 20);
        let mut store = MediaStore::new(Arc::clone(&cache), vec![([1; 32], 2..5), ([2; 32], 5..6)]);
        // The first two embeddings were known.
        let pieces: Vec<(u32, Part)> =
            [2, 2, 1, 1].into_iter().map(|units| (units, Part::F32(vec![units as f32]))).collect();
        let kept = |there: usize, store: &mut MediaStore| {
            store.keep(&pieces[..there]);
            [1, 2].map(|key| cache.get(&[key; 32]).map(|rows| rows.iter().map(|(units, _)| *units).collect::<Vec<_>>()))
        };
        assert_eq!(kept(2, &mut store), [None, None], "a piece of it");
        assert_eq!(kept(3, &mut store), [Some(vec![2, 1]), None]);
        assert_eq!(kept(4, &mut store), [Some(vec![2, 1]), Some(vec![1])]);
    }
}
