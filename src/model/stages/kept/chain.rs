//! What blocks of positions are known by: a chain of SHA-256 over all that their keys and values depend on.
//!
//! These are, of the position and of all before it: whose prompt it is, its token, its place on the three axes of the
//! rotation, and, where it stands for media, the hash of what was encoded and which row of that it is. Whatever a net
//! comes to look at besides has to enter the chain as well.

use super::BLOCK;
use super::store::Key;
use crate::ModelError;
use crate::error::refused;
use crate::media::{MediaKind, Positions};
use crate::stage::{Reuse, ThinkerSpec};
use sha2::{Digest, Sha256};
use std::ops::Range;

/// Changes with what enters the chain.
const SCHEME: &[u8] = b"omni-actors kept prompt 1";

/// Row `row` of medium `span` of a prompt stands at position `at`.
#[derive(Clone, Copy, Debug)]
struct Row {
    at: usize,
    span: usize,
    row: u32,
}

/// The chain of one sequence.
#[derive(Debug)]
pub(super) struct Chain {
    begin: Key,
    keys: Vec<Key>,
    /// By position.
    rows: Vec<Row>,
    /// What each medium is, by its number in the prompt.
    media: Vec<(u8, Key)>,
}

impl Chain {
    /// Of a prompt that belongs to `reuse.owner`.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] where the media of the prompt are not all told.
    pub fn new(spec: &ThinkerSpec, reuse: &Reuse) -> Result<Chain, ModelError> {
        let spans = spec.media.as_ref().map_or(&[][..], |layout| &layout.spans);
        if spans.len() != reuse.media.len() {
            let (told, there) = (reuse.media.len(), spans.len());
            return refused(format!("{told} media of a prompt are told: it has {there}"));
        }
        let kind = |kind: MediaKind| match kind {
            MediaKind::Audio => 1,
            MediaKind::Image => 2,
            MediaKind::Video => 3,
        };
        let media = spans.iter().zip(reuse.media.iter()).map(|(span, hash)| (kind(span.kind), *hash)).collect();
        let of_span = |(span, at): (usize, &Vec<Range<usize>>)| {
            let at: Vec<usize> = at.iter().cloned().flatten().collect();
            at.into_iter().zip(0..).map(move |(at, row)| Row { at, span, row })
        };
        let mut rows: Vec<Row> = spans.iter().map(|span| &span.at).enumerate().flat_map(of_span).collect();
        rows.sort_unstable_by_key(|row| row.at);
        let begin = Sha256::new_with_prefix(SCHEME).chain_update(reuse.owner).finalize().into();
        Ok(Chain { begin, keys: Vec::new(), rows, media })
    }

    /// Blocks that have a key.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// Extends the chain by the next block, whose positions have these tokens.
    pub fn extend(&mut self, tokens: [u32; BLOCK], axes: Option<&Positions>) {
        let first = self.keys.len() * BLOCK;
        let mut hash = Sha256::new_with_prefix(self.keys.last().unwrap_or(&self.begin));
        let mut rows = self.rows[self.rows.partition_point(|row| row.at < first)..].iter().peekable();
        for (at, token) in (first..).zip(tokens) {
            hash.update(token.to_le_bytes());
            let place = axes.map_or([at as f32; 3], |positions| positions.at(at));
            place.iter().for_each(|axis| hash.update(axis.to_le_bytes()));
            match rows.next_if(|row| row.at == at) {
                None => hash.update([0u8]),
                Some(Row { span, row, .. }) => {
                    let (kind, content) = &self.media[*span];
                    hash.update([*kind]);
                    hash.update(content);
                    hash.update(row.to_le_bytes());
                }
            }
        }
        self.keys.push(hash.finalize().into());
    }
}
