//! Prompts that the thinker need not compute again: the keys and values of a conversation outlive the sequence that made
//! them, and a sequence whose prompt begins alike starts with them.
//!
//! Kept are whole blocks of [`BLOCK`] positions, of prompts and of answers, each as soon as a sequence has computed it:
//! the keys and values of all layers and, because the talker takes them, the hidden states at media positions. A block is
//! known by a [chain] of SHA-256 over all that it and the positions before it were computed from, and over whose
//! prompt it is, so that no tenant learns from the time of an answer what another one has asked. The [store] is
//! bounded in bytes, and what was used longest ago goes first. It belongs to one generation of a stage and ends with it.
//!
//! A step takes over the blocks that it finds at the beginning of its part of a prompt, and computes the rest. So the
//! scheduler, the planner and the journal know nothing of it: units are the same, some are cheap. What a sequence finds
//! changes no bit of what it makes, because a position has the same bits however it was computed. The last position of a
//! prompt is always computed, because a token is sampled from it.
//!
//! A CPU copies blocks ([`KeptPrompts`]); where a cache has pages, as on a GPU, sequences share them ([`PagedPrompts`]).
//!
//! Must never: find a block by less than all that it was computed from; keep what a sequence has computed that failed;
//! hold up a step by more than copies of its own positions.

mod chain;
mod host;
mod paged;
mod store;
#[cfg(test)]
mod tests;

pub use host::HostCopy;
pub use paged::{Held, PagedPrompts, Planned};

use super::media::PromptMedia;
use crate::ModelError;
use crate::pages::PAGE;
use crate::stage::ThinkerSpec;
use crate::transformer::{KvBlock, KvCache};
use candle_core::{DType, Result, Tensor};
use chain::Chain;
use omni_telemetry::PromptCacheMetrics;
use std::collections::BTreeMap;
use store::Store;

/// Positions of a block: few enough that little of a conversation is computed again, as many as a page has on a GPU.
const BLOCK: usize = PAGE;
/// Memory of a block besides its numbers: its key, twice, and the nodes of the store.
const OVERHEAD: usize = 512;

/// See the module.
pub(super) struct KeptPrompts {
    store: Store<Block>,
    metrics: PromptCacheMetrics,
}

/// What is kept of a block.
struct Block {
    cache: KvBlock,
    /// Hidden states `[n, hidden]` that the talker takes at its media positions, in their order; `None` without such.
    hidden: Option<Tensor>,
}

/// What a sequence needs for its prompt and answer to be kept.
pub(super) struct Keeping {
    chain: Chain,
    /// Tokens that were sampled behind the prompt.
    said: Vec<u32>,
    turn: u64,
    /// Blocks of this sequence that were found or kept, or for which there was no room.
    seen: usize,
    /// Positions of the prompt that it found.
    found: u32,
}

/// The state of a sequence that is kept and taken over.
pub(super) struct Parts<'a> {
    pub cache: &'a mut KvCache,
    pub media: Option<&'a mut PromptMedia>,
    /// Hidden states `[1, hidden]` by position, see [`Block::hidden`].
    pub hidden: &'a mut BTreeMap<u32, Tensor>,
}

impl KeptPrompts {
    /// Of at most so many bytes; `None` for 0.
    pub fn new(most: usize) -> Option<KeptPrompts> {
        (most > 0).then(|| KeptPrompts { store: Store::new(most), metrics: PromptCacheMetrics::new() })
    }

    /// Bytes that are kept.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.store.bytes()
    }

    /// A sequence begins. `None` where its prompt belongs to no one.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] where the spec does not tell all media.
    pub fn begin(&mut self, spec: &ThinkerSpec) -> std::result::Result<Option<Keeping>, ModelError> {
        Keeping::new(spec, self.store.turn())
    }

    /// Takes over the blocks behind the cached positions that are kept, as far as the first `upto` positions of the
    /// prompt need them.
    ///
    /// # Errors
    /// What the device says.
    pub fn take_over(
        &mut self,
        keeping: &mut Keeping,
        spec: &ThinkerSpec,
        upto: usize,
        parts: Parts<'_>,
    ) -> Result<()> {
        let Parts { cache, mut media, hidden } = parts;
        let before = cache.len();
        while cache.len() < upto && cache.len() + BLOCK < spec.prompt.len() && cache.len().is_multiple_of(BLOCK) {
            let first = cache.len();
            let Some(key) = keeping.chain.keys().get(first / BLOCK) else { break };
            let Some(block) = self.store.get(key, keeping.turn) else { break };
            cache.append(&block.cache)?;
            if let (Some(media), Some(states)) = (&mut media, &block.hidden) {
                for (row, at) in media.positions(first as u32, BLOCK as u32).into_iter().enumerate() {
                    hidden.insert(at, states.narrow(0, row, 1)?);
                }
            }
            keeping.seen = cache.len() / BLOCK;
        }
        let found = cache.len() - before;
        if found > 0 {
            if let Some(media) = media {
                media.need_none_before(cache.len() as u32);
            }
            keeping.found += found as u32;
            self.metrics.positions.increment(found as u64);
        }
        Ok(())
    }

    /// Keeps the blocks that are whole by now. Returns the position from which on hidden states are still needed for
    /// that.
    ///
    /// # Errors
    /// What the device says.
    pub fn keep(&mut self, keeping: &mut Keeping, spec: &ThinkerSpec, parts: Parts<'_>) -> Result<u32> {
        let Parts { cache, media, hidden } = parts;
        for number in keeping.seen..cache.len() / BLOCK {
            if !keeping.knows(number, spec) {
                break;
            }
            keeping.seen = number + 1;
            let (keys, at) = (keeping.chain.keys(), (keeping.turn, number as u32));
            if self.store.get(&keys[number], keeping.turn).is_some() {
                continue;
            }
            let (first, before) = (number * BLOCK, number.checked_sub(1).map(|before| &keys[before]));
            let of_media = media.as_ref().map_or_else(Vec::new, |media| media.positions(first as u32, BLOCK as u32));
            let states: Option<Vec<&Tensor>> = of_media.iter().map(|at| hidden.get(at)).collect();
            let Some(states) = states else { candle_core::bail!("the hidden states of block {number} are gone") };
            let width = states.first().map_or(Ok(0), |state| state.dim(1))?;
            let bytes = cache.block_bytes(BLOCK) + states.len() * width * size_of::<f32>() + OVERHEAD;
            if self.store.make_room(before, at, bytes, drop) {
                // Copies: a view would keep the whole step alive.
                let copied = || -> Result<Tensor> {
                    let copy = Tensor::zeros((states.len(), width), DType::F32, states[0].device())?;
                    states.iter().enumerate().try_for_each(|(row, state)| copy.slice_set(state, 0, row))?;
                    Ok(copy)
                };
                let hidden = (!states.is_empty()).then(copied).transpose()?;
                let block = Block { cache: cache.block(first, BLOCK)?, hidden };
                self.store.insert(keys[number], block, at, bytes);
            }
        }
        self.metrics.holds(self.store.bytes(), 0);
        Ok((keeping.seen * BLOCK) as u32)
    }

    /// The prompt of a sequence is complete. Returns how many positions of it were found.
    pub fn prefilled(&self, keeping: &Keeping) -> u32 {
        self.metrics.looked_up(keeping.found > 0);
        keeping.found
    }

    /// Drops all that a sequence has used or kept, because it failed: what it has computed is suspect.
    pub fn forget(&mut self, keeping: &Keeping) {
        keeping.chain.keys().iter().rev().for_each(|key| drop(self.store.remove(key)));
        self.metrics.holds(self.store.bytes(), 0);
    }

    /// A sequence has ended: its conversation was used now.
    pub fn end(&mut self, keeping: &Keeping) {
        let turn = self.store.turn();
        // Without one of them those behind it are of no use.
        let _gone = keeping.chain.keys().iter().find(|key| self.store.get(key, turn).is_none());
    }
}

impl Keeping {
    /// Of a sequence that begins in this turn. `None` where its prompt belongs to no one.
    fn new(spec: &ThinkerSpec, turn: u64) -> std::result::Result<Option<Keeping>, ModelError> {
        let Some(reuse) = &spec.reuse else { return Ok(None) };
        let chain = Chain::new(spec, reuse)?;
        let mut keeping = Keeping { chain, said: Vec::new(), turn, seen: 0, found: 0 };
        while keeping.extend(spec) {}
        Ok(Some(keeping))
    }

    /// A token was sampled.
    pub fn said(&mut self, token: u32) {
        self.said.push(token);
    }

    /// Whether block `number`, of which those before it are known, has a key: all of its tokens are known.
    fn knows(&mut self, number: usize, spec: &ThinkerSpec) -> bool {
        number < self.chain.keys().len() || self.extend(spec)
    }

    /// Extends the chain by the next block; `false` if not all of its tokens are known.
    fn extend(&mut self, spec: &ThinkerSpec) -> bool {
        let first = self.chain.keys().len() * BLOCK;
        let token = |at: usize| spec.prompt.get(at).or_else(|| self.said.get(at - spec.prompt.len())).copied();
        let mut tokens = [0; BLOCK];
        for (at, known) in (first..).zip(&mut tokens) {
            let Some(token) = token(at) else { return false };
            *known = token;
        }
        self.chain.extend(tokens, spec.media.as_ref().and_then(|layout| layout.positions.as_ref()));
        true
    }
}
