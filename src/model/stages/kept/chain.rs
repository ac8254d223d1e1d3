//! What blocks of positions are known by: a chain of SHA-256 over all that their keys and values depend on.
//!
//! These are, of the position and of all before it: whose prompt it is, its token, its place on the three axes of the
//! rotation, and, where it stands for media, the hash of the part that was encoded and which row of that it is. A part is
//! a window of a sound: so a sound that goes on has the keys that it had. Whatever a net comes to look at besides has to
//! enter the chain as well.

use super::BLOCK;
use super::store::Key;
use crate::ModelError;
use crate::error::refused;
use crate::media::{MediaKind, Positions};
use crate::stage::{EncodedPart, Reuse, ThinkerSpec};
use sha2::{Digest, Sha256};

/// Changes with what enters the chain.
const SCHEME: &[u8] = b"omni-actors kept prompt 2";

/// Row `row` of part `part` of a prompt's media stands at position `at`.
#[derive(Clone, Copy, Debug)]
struct Row {
    at: usize,
    part: usize,
    row: u32,
}

/// The chain of one sequence.
#[derive(Debug)]
pub(super) struct Chain {
    begin: Key,
    keys: Vec<Key>,
    /// By position.
    rows: Vec<Row>,
    /// What each part of the media is, by its number in the prompt.
    parts: Vec<(u8, Key)>,
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
        let (mut parts, mut rows) = (Vec::new(), Vec::new());
        for (span, told) in spans.iter().zip(reuse.media.iter()) {
            let count: u64 = told.iter().map(|part| u64::from(part.rows)).sum();
            if count != span.len() as u64 {
                return refused(format!("{count} rows of a medium are told: it has {}", span.len()));
            }
            let mut at = span.at.iter().cloned().flatten();
            for EncodedPart { rows: count, hash } in told.iter() {
                let part = parts.len();
                parts.push((kind(span.kind), *hash));
                rows.extend((0..*count).zip(&mut at).map(|(row, at)| Row { at, part, row }));
            }
        }
        rows.sort_unstable_by_key(|row: &Row| row.at);
        let begin = Sha256::new_with_prefix(SCHEME).chain_update(reuse.owner).finalize().into();
        Ok(Chain { begin, keys: Vec::new(), rows, parts })
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
                Some(Row { part, row, .. }) => {
                    let (kind, content) = &self.parts[*part];
                    hash.update([*kind]);
                    hash.update(content);
                    hash.update(row.to_le_bytes());
                }
            }
        }
        self.keys.push(hash.finalize().into());
    }
}
