//! Prompts that a stage need not compute again: the keys and values of a conversation outlive the sequence that made
//! them, and a sequence whose prompt begins alike starts with them.
//!
//! Kept are whole blocks of [`BLOCK`] positions, each as soon as a sequence has computed it: the keys and values of all
//! layers. A thinker keeps prompts and answers and, because the talker takes them, the hidden states at media positions.
//! A talker keeps prompts: no later one has the frames of an answer. A block is known by a [chain] of SHA-256 over all
//! that it and the positions before it were computed from, and over whose prompt it is, so that no tenant learns from the
//! time of an answer what another one has asked. The [store] is bounded in bytes, and what was used longest ago goes
//! first. It belongs to one generation of a stage and ends with it.
//!
//! A step takes over the blocks that it finds at the beginning of its part of a prompt, and computes the rest. So the
//! scheduler, the planner and the journal know nothing of it: units are the same, some are cheap. What a sequence finds
//! changes no bit of what it makes, because a position has the same bits however it was computed. The last position of a
//! prompt is always computed, because a token is sampled from it.
//!
//! A CPU copies blocks ([`KeptPrompts`]); where a thinker's cache has pages, as on a GPU, sequences share them
//! ([`PagedPrompts`]). A talker on a GPU keeps nothing.
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
use crate::media::Positions;
use crate::pages::PAGE;
use crate::stage::{TalkerSpec, ThinkerSpec};
use crate::transformer::{KvBlock, KvCache};
use candle_core::{DType, Result, Tensor};
use chain::Chain;
use omni_core::ids::StageName;
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

/// What a sequence needs for its positions to be kept.
pub(super) struct Keeping {
    chain: Chain,
    turn: u64,
    /// Blocks of this sequence that were found or kept, or for which there was no room.
    seen: usize,
    /// Positions of the prompt that it found.
    found: u32,
}

/// The state of a sequence that is kept and taken over.
pub(super) struct Parts<'a> {
    pub cache: &'a mut KvCache,
    /// The media of its prompt, with hidden states `[1, hidden]` by position, see [`Block::hidden`].
    pub media: Option<(&'a mut PromptMedia, &'a mut BTreeMap<u32, Tensor>)>,
}

impl KeptPrompts {
    /// Of a stage, at most so many bytes; `None` for 0.
    pub fn new(stage: StageName, most: usize) -> Option<KeptPrompts> {
        (most > 0).then(|| KeptPrompts { store: Store::new(most), metrics: PromptCacheMetrics::new(stage) })
    }

    /// Bytes that are kept.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.store.bytes()
    }

    /// A sequence of the thinker begins. `None` where its prompt belongs to no one.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] where the spec does not tell all media.
    pub fn begin(&mut self, spec: &ThinkerSpec) -> std::result::Result<Option<Keeping>, ModelError> {
        let chain = Chain::of_thinker(spec)?;
        Ok(chain.map(|chain| Keeping::new(chain, self.store.turn())))
    }

    /// A sequence of the talker begins. `None` where its prompt belongs to no one.
    pub fn begin_speech(&mut self, spec: &TalkerSpec) -> Option<Keeping> {
        Chain::of_talker(spec).map(|chain| Keeping::new(chain, self.store.turn()))
    }

    /// Takes over the blocks behind the cached positions that are kept, as far as the first `upto` of the `prompt`
    /// positions need them.
    ///
    /// # Errors
    /// What the device says.
    pub fn take_over(&mut self, keeping: &mut Keeping, prompt: usize, upto: usize, parts: Parts<'_>) -> Result<()> {
        let Parts { cache, mut media } = parts;
        let before = cache.len();
        while cache.len() < upto && cache.len() + BLOCK < prompt && cache.len().is_multiple_of(BLOCK) {
            let first = cache.len();
            let Some(key) = keeping.chain.keys().get(first / BLOCK) else { break };
            let Some(block) = self.store.get(key, keeping.turn) else { break };
            cache.append(&block.cache)?;
            if let (Some((media, hidden)), Some(states)) = (&mut media, &block.hidden) {
                for (row, at) in media.positions(first as u32, BLOCK as u32).into_iter().enumerate() {
                    hidden.insert(at, states.narrow(0, row, 1)?);
                }
            }
            keeping.seen = cache.len() / BLOCK;
        }
        let found = cache.len() - before;
        if found > 0 {
            if let Some((media, _)) = media {
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
    pub fn keep(&mut self, keeping: &mut Keeping, parts: Parts<'_>) -> Result<u32> {
        let Parts { cache, media } = parts;
        let keys = keeping.chain.keys();
        for number in keeping.seen..keys.len().min(cache.len() / BLOCK) {
            keeping.seen = number + 1;
            let at = (keeping.turn, number as u32);
            if self.store.get(&keys[number], keeping.turn).is_some() {
                continue;
            }
            let (first, before) = (number * BLOCK, number.checked_sub(1).map(|before| &keys[before]));
            let states: Option<Vec<&Tensor>> = match &media {
                None => Some(Vec::new()),
                Some((media, hidden)) => {
                    let of_media = media.positions(first as u32, BLOCK as u32);
                    of_media.iter().map(|at| hidden.get(at)).collect()
                }
            };
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
    /// Of a sequence that begins in this turn.
    fn new(chain: Chain, turn: u64) -> Keeping {
        Keeping { chain, turn, seen: 0, found: 0 }
    }

    /// Positions whose content is known.
    pub fn known(&self) -> u32 {
        self.chain.positions() as u32
    }

    /// The thinker sampled a token.
    pub fn said(&mut self, spec: &ThinkerSpec, token: u32) {
        self.chain.said(spec, token);
    }

    /// The next positions of a talker's prompt have these inputs `[n, hidden]`.
    ///
    /// # Errors
    /// What the device says.
    pub fn inputs(&mut self, inputs: &Tensor, axes: Option<&Positions>) -> Result<()> {
        self.chain.inputs(inputs, axes)
    }
}
