//! Kept prompts of a thinker whose cache has pages: sequences that begin alike use the same pages. Nothing is copied, and
//! what a sequence has computed is kept where it lies. Pure: it owns which page holds what, and knows no device.
//!
//! A page is kept when the step that completes it has been queued, so that a later step of any sequence reads it behind
//! that one; pages of an answer are kept when their tokens are known. Only complete pages are kept, so a sequence writes
//! pages of its own alone: where it goes on behind those that it found, a page begins.
//!
//! What sequences use is not counted as kept: it takes no memory besides theirs. What no sequence uses any more is
//! bounded, and goes before a sequence that needs a page gets none. Where the [host](super::host) has room for pages, it
//! has a copy of what goes, and a sequence that begins with it gets it back instead of computing it.
//!
//! The caller makes the copies: those [to the host](PagedPrompts::to_save) behind all steps that are queued and before it
//! queues another one, those [back](PagedPrompts::to_restore) before the step that was planned.

#[cfg(test)]
mod tests;

use super::Keeping;
use super::chain::Chain;
use super::host::{HostCopy, HostPages};
use super::store::Key;
use crate::ModelError;
use crate::pages::{PAGE, Pages};
use crate::stage::ThinkerSpec;
use omni_core::ids::StageName;
use omni_telemetry::PromptCacheMetrics;
use std::ops::Range;

/// The pages of a thinker's cache, and which prompts they hold.
pub struct PagedPrompts {
    pages: Pages<Key>,
    /// Pages that a sequence has at most.
    most: usize,
    page_bytes: usize,
    /// Without slots where the host keeps none.
    host: HostPages,
    to_save: Vec<HostCopy>,
    to_restore: Vec<HostCopy>,
    /// `None` where nothing is kept.
    metrics: Option<PromptCacheMetrics>,
}

/// The pages of one sequence.
#[derive(Default)]
pub struct Held {
    pages: Vec<u32>,
    /// Positions of the prompt that were taken over, or that steps compute which have been planned.
    computed: usize,
    /// `None` where its prompt is not kept.
    keeping: Option<Keeping>,
}

/// What a step does to positions of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Those that are taken over in this step.
    pub found: Range<u32>,
    /// Those that it has to compute.
    pub compute: Range<u32>,
    /// The places of the sequence's table that the device has to be told of.
    pub told: Range<usize>,
}

impl PagedPrompts {
    /// Of `count` pages of so many bytes each, of which a sequence has at most `most`; keeps up to `kept` bytes that no
    /// sequence uses, 0: nothing.
    pub fn new(count: u32, most: usize, page_bytes: usize, kept: usize) -> PagedPrompts {
        let metrics = (kept > 0).then(|| PromptCacheMetrics::new(StageName::Thinker));
        PagedPrompts {
            pages: Pages::new(count, kept / page_bytes.max(1)),
            most,
            page_bytes,
            host: HostPages::new(0),
            to_save: Vec::new(),
            to_restore: Vec::new(),
            metrics,
        }
    }

    /// Keeps pages that the device has no room for in so many slots of the host's memory.
    #[must_use]
    pub fn with_host(self, slots: u32) -> PagedPrompts {
        PagedPrompts { host: HostPages::new(slots), ..self }
    }

    /// The copies to the host that are to be made now.
    pub fn to_save(&mut self) -> Vec<HostCopy> {
        std::mem::take(&mut self.to_save)
    }

    /// The copies to the device that are to be made before what was planned.
    pub fn to_restore(&mut self) -> Vec<HostCopy> {
        std::mem::take(&mut self.to_restore)
    }

    /// Pages: in use, and in all.
    pub fn count(&self) -> (usize, usize) {
        (self.pages.in_use(), self.pages.count())
    }

    /// Pages that are kept and that no sequence uses.
    pub fn idle(&self) -> usize {
        self.pages.idle()
    }

    /// A sequence begins.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] where the spec does not tell all media.
    pub fn begin(&mut self, spec: &ThinkerSpec) -> Result<Held, ModelError> {
        let chain = if self.metrics.is_some() { Chain::of_thinker(spec)? } else { None };
        let keeping = chain.map(|chain| Keeping::new(chain, self.pages.turn()));
        Ok(Held { keeping, ..Held::default() })
    }

    /// Takes over what is kept of the first `upto` positions of the prompt, as far as earlier steps have not computed
    /// them, and gives the sequence pages for the others. `None`, and nothing has changed, if there are too few.
    pub fn prompt(&mut self, held: &mut Held, spec: &ThinkerSpec, upto: u32) -> Option<Planned> {
        let (before, first, mut restored) = (held.pages.len(), held.computed, 0);
        while let Some((page, copied)) = self.next_found(held, spec, upto as usize) {
            held.pages.push(page);
            held.computed += PAGE;
            restored += if copied { PAGE as u64 } else { 0 };
        }
        if !self.grow(held, upto as usize) {
            self.shrink(held, before);
            held.computed = first;
            return None;
        }
        let (found, upto) = (first as u32..held.computed as u32, upto.max(held.computed as u32));
        if let (Some(metrics), Some(keeping), false) = (&self.metrics, &mut held.keeping, found.is_empty()) {
            metrics.positions.increment(found.len() as u64);
            metrics.restored.increment(restored);
            keeping.found += found.len() as u32;
            keeping.seen = held.computed / PAGE;
        }
        Some(Planned { compute: found.end..upto, found, told: before..held.pages.len() })
    }

    /// The page behind the computed positions, if it is kept and the first `upto` positions need it, and whether it is
    /// copied from the host.
    fn next_found(&mut self, held: &Held, spec: &ThinkerSpec, upto: usize) -> Option<(u32, bool)> {
        let (keeping, at) = (held.keeping.as_ref()?, held.computed);
        // The last position is computed: a token is sampled from it. A page that is there was begun by a step.
        let wanted = at < upto && at + PAGE < spec.prompt.len() && at == held.pages.len() * PAGE;
        let (key, turn) = (keeping.chain.keys().get(at / PAGE).filter(|_| wanted)?, keeping.turn);
        if let Some(page) = self.pages.share(key, turn) {
            return Some((page, false));
        }
        let slot = self.host.find(key, turn).filter(|_| held.pages.len() < self.most)?;
        let page = self.take()?;
        self.pages.keep(*key, page, (turn, (at / PAGE) as u32));
        self.to_restore.push(HostCopy { page, slot });
        Some((page, true))
    }

    /// A page for one sequence. What was to be copied into it is of no use any more.
    fn take(&mut self) -> Option<u32> {
        let page = self.pages.take()?;
        self.to_restore.retain(|copy| copy.page != page);
        Some(page)
    }

    /// Gives the sequence pages for its first `positions` positions, its answer's too. Returns the places of its table
    /// that the device has to be told of; `None`, and nothing has changed, if there are too few.
    pub fn answer(&mut self, held: &mut Held, positions: u32) -> Option<Range<usize>> {
        let before = held.pages.len();
        self.grow(held, positions as usize).then_some(before..held.pages.len())
    }

    fn grow(&mut self, held: &mut Held, positions: usize) -> bool {
        let before = held.pages.len();
        while held.pages.len() < positions.div_ceil(PAGE) {
            let page = if held.pages.len() < self.most { self.take() } else { None };
            let Some(page) = page else {
                self.shrink(held, before);
                return false;
            };
            held.pages.push(page);
        }
        true
    }

    fn shrink(&mut self, held: &mut Held, pages: usize) {
        held.pages.drain(pages..).for_each(|page| self.pages.give_back(page));
    }

    /// The steps that compute the positions of its prompt that were planned have been queued: what is complete of it is
    /// kept.
    pub fn queued(&mut self, held: &mut Held, spec: &ThinkerSpec) {
        let computed = held.computed;
        self.keep(held, computed);
        if let (Some(metrics), Some(keeping)) = (&self.metrics, &held.keeping)
            && computed == spec.prompt.len()
        {
            metrics.looked_up(keeping.found > 0);
        }
        self.tell();
    }

    /// A token was sampled, in a step that has run.
    pub fn said(&mut self, held: &mut Held, spec: &ThinkerSpec, token: u32) {
        let Some(keeping) = &mut held.keeping else { return };
        // No step has to have taken the token itself; one that has ended the answer is taken by none that counts.
        let computed = keeping.chain.positions();
        keeping.said(spec, token);
        self.keep(held, computed);
    }

    /// Keeps the pages that the first `computed` positions fill.
    fn keep(&mut self, held: &mut Held, computed: usize) {
        let Some(keeping) = &mut held.keeping else { return };
        let (keys, turn) = (keeping.chain.keys(), keeping.turn);
        for number in keeping.seen..keys.len().min(computed / PAGE) {
            keeping.seen = number + 1;
            // Behind a page that has gone it would be found by none.
            let reached = number.checked_sub(1).is_none_or(|before| self.pages.touch(&keys[before], turn));
            if reached && !self.pages.touch(&keys[number], turn) {
                self.pages.keep(keys[number], held.pages[number], (turn, number as u32));
            }
        }
    }

    /// A sequence has failed: what it has used or computed is suspect and is found no more.
    pub fn failed(&mut self, held: &mut Held) {
        if let Some(keeping) = held.keeping.take() {
            for key in keeping.chain.keys().iter().rev() {
                self.pages.forget(key);
                self.host.forget(key);
            }
            self.tell();
        }
    }

    /// A sequence has ended: its conversation was used now.
    pub fn end(&mut self, held: Held) {
        if let Some(keeping) = &held.keeping {
            let (turn, mut before) = (self.pages.turn(), None);
            for (depth, key) in keeping.chain.keys().iter().enumerate() {
                // Without one of them those behind it are of no use.
                if !self.pages.touch(key, turn) {
                    break;
                }
                self.save(before, *key, (turn, depth as u32));
                before = Some(key);
            }
        }
        held.pages.into_iter().for_each(|page| self.pages.give_back(page));
        self.tell();
    }

    /// Has the host keep a page, if there is room for it.
    fn save(&mut self, before: Option<&Key>, key: Key, at: (u64, u32)) {
        if self.host.find(&key, at.0).is_none()
            && let Some(page) = self.pages.find(&key)
            && let Some(slot) = self.host.put(before, key, at)
        {
            self.to_save.push(HostCopy { page, slot });
        }
    }

    fn tell(&mut self) {
        let [idle, saved] = [self.pages.idle(), self.host.len()].map(|pages| pages * self.page_bytes);
        if let Some(metrics) = &mut self.metrics {
            metrics.holds(idle, saved);
        }
    }
}

impl Held {
    /// Its table of pages.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// Positions of its prompt that were taken over.
    pub fn found(&self) -> u32 {
        self.keeping.as_ref().map_or(0, |keeping| keeping.found)
    }

    /// The row of a position in memory that has [`PAGE`] rows for each page of the cache.
    pub fn row(&self, position: u32) -> Option<u32> {
        let page = self.pages.get(position as usize / PAGE)?;
        Some(page * PAGE as u32 + position % PAGE as u32)
    }

    /// The positions of [`Planned::compute`] are part of a step.
    pub fn computes(&mut self, planned: &Planned) {
        self.computed = self.computed.max(planned.compute.end as usize);
    }
}
