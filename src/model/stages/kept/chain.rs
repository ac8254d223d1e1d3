//! What blocks of positions are known by: a chain of SHA-256 over all that their keys and values depend on.
//!
//! These are, of the position and of all before it: whose prompt it is, its place on the three axes of the rotation, and
//! what the net is given there. Of a thinker that is the token and, where it stands for media, the hash of the part that
//! was encoded and which row of that it is. A part is a window of a sound: so a sound that goes on has the keys that it
//! had. Of a talker it is the input, text side and codec side together. Whatever a net comes to look at besides has to
//! enter the chain as well.

use super::BLOCK;
use super::store::Key;
use crate::ModelError;
use crate::error::refused;
use crate::media::{MediaKind, Positions};
use crate::stage::{EncodedPart, Reuse, TalkerSpec, ThinkerSpec};
use candle_core::{Result, Tensor};
use sha2::{Digest, Sha256};

/// Changes with what enters the chain of a thinker.
const OF_THINKER: &[u8] = b"omni-actors kept prompt 3";
/// Changes with what enters the chain of a talker.
const OF_TALKER: &[u8] = b"omni-actors kept speech prompt 1";

/// Row `row` of a part of a prompt's media stands at position `at`.
struct Row<'a> {
    at: usize,
    kind: u8,
    part: &'a Key,
    row: u32,
}

/// The chain of one sequence, as far as its positions are known.
#[derive(Debug)]
pub(super) struct Chain {
    keys: Vec<Key>,
    /// Of the block that is not whole yet.
    hash: Sha256,
    positions: usize,
}

impl Chain {
    fn new(scheme: &[u8], owner: &[u8; 32]) -> Chain {
        let begin = Sha256::new_with_prefix(scheme).chain_update(owner).finalize();
        Chain { keys: Vec::new(), hash: Sha256::new_with_prefix(begin), positions: 0 }
    }

    /// Of all tokens of a thinker's prompt; `None` where it belongs to no one.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] where the media of the prompt are not all told.
    pub fn of_thinker(spec: &ThinkerSpec) -> std::result::Result<Option<Chain>, ModelError> {
        let Some(reuse) = &spec.reuse else { return Ok(None) };
        let mut rows = media_rows(spec, reuse)?.into_iter().peekable();
        let mut chain = Chain::new(OF_THINKER, &reuse.owner);
        for (at, token) in spec.prompt.iter().enumerate() {
            chain.token(spec, *token, rows.next_if(|row| row.at == at));
        }
        Ok(Some(chain))
    }

    /// Of a talker's prompt, of which no position is known yet; `None` where it belongs to no one.
    pub fn of_talker(spec: &TalkerSpec) -> Option<Chain> {
        spec.owner.as_ref().map(|owner| Chain::new(OF_TALKER, owner))
    }

    /// Blocks that have a key.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// Positions that are known.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// The next position has a token that the thinker sampled.
    pub fn said(&mut self, spec: &ThinkerSpec, token: u32) {
        self.token(spec, token, None);
    }

    /// The next positions have these inputs `[n, hidden]` of the talker.
    ///
    /// # Errors
    /// What the device says.
    pub fn inputs(&mut self, inputs: &Tensor, axes: Option<&Positions>) -> Result<()> {
        for input in inputs.to_vec2::<f32>()? {
            self.push(axes, |hash| input.iter().for_each(|number| hash.update(number.to_le_bytes())));
        }
        Ok(())
    }

    fn token(&mut self, spec: &ThinkerSpec, token: u32, media: Option<Row<'_>>) {
        let axes = spec.media.as_ref().and_then(|layout| layout.positions.as_ref());
        self.push(axes, |hash| {
            hash.update(token.to_le_bytes());
            match media {
                None => hash.update([0u8]),
                Some(Row { kind, part, row, .. }) => {
                    hash.update([kind]);
                    hash.update(part);
                    hash.update(row.to_le_bytes());
                }
            }
        });
    }

    /// The next position; `given` hashes what the net is given there besides its place.
    fn push(&mut self, axes: Option<&Positions>, given: impl FnOnce(&mut Sha256)) {
        let place = axes.map_or([self.positions as f32; 3], |positions| positions.at(self.positions));
        place.iter().for_each(|axis| self.hash.update(axis.to_le_bytes()));
        given(&mut self.hash);
        self.positions += 1;
        if self.positions.is_multiple_of(BLOCK) {
            let key: Key = self.hash.finalize_reset().into();
            self.hash.update(key);
            self.keys.push(key);
        }
    }
}

/// The rows of the media of a prompt, by their position.
fn media_rows<'a>(spec: &ThinkerSpec, reuse: &'a Reuse) -> std::result::Result<Vec<Row<'a>>, ModelError> {
    let spans = spec.media.as_ref().map_or(&[][..], |layout| &layout.spans);
    if spans.len() != reuse.media.len() {
        let (told, there) = (reuse.media.len(), spans.len());
        return refused(format!("{told} media of a prompt are told: it has {there}"));
    }
    let mut rows = Vec::new();
    for (span, told) in spans.iter().zip(reuse.media.iter()) {
        let count: u64 = told.iter().map(|part| u64::from(part.rows)).sum();
        if count != span.len() as u64 {
            return refused(format!("{count} rows of a medium are told: it has {}", span.len()));
        }
        let kind = match span.kind {
            MediaKind::Audio => 1,
            MediaKind::Image => 2,
            MediaKind::Video => 3,
        };
        let mut at = span.at.iter().cloned().flatten();
        for EncodedPart { rows: count, hash: part } in told.iter() {
            rows.extend((0..*count).zip(&mut at).map(|(row, at)| Row { at, kind, part, row }));
        }
    }
    rows.sort_unstable_by_key(|row| row.at);
    Ok(rows)
}
