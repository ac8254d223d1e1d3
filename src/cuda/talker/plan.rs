//! Plans a step: its positions and frames, the pages that they need, and the sequences that make room for them.

use super::arrivals::Arrival;
use super::pending::Part;
use super::prompt::{axes, page_keys, position};
use super::stage::{CudaTalker, Target};
use super::swap::Swapped;
use super::table::{LAST, NO_END, NONE, NewPage, PromptEmbedding, StepSequence};
use crate::decoder::PAGE;
use crate::upload::Upload;
use omni_core::ids::{FinishReason, Slot};
use omni_model::ModelError;
use omni_model::error::refused;
use omni_model::stage::{SequenceOutput, SequenceWork};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The data that a step sends to the device.
#[derive(Default)]
pub(super) struct Step {
    pub(super) frames: Vec<StepSequence>,
    pub(super) new_pages: Vec<NewPage>,
    pub(super) prompts: Vec<PromptEmbedding>,
    /// Frames of references that `prompts` are made of.
    pub(super) codes: Vec<u32>,
    /// Codes that `frames` are forced to take.
    pub(super) forced: Vec<u32>,
    pub(super) held: Vec<Swapped>,
    /// Embeddings of a thinker that the step projects first.
    pub(super) arrivals: Vec<Arrival>,
}

impl CudaTalker {
    /// One sequence's part of a step; what the device needs goes into `step`.
    pub(super) fn plan(
        &mut self,
        work: SequenceWork,
        busy: &HashSet<Slot>,
        step: &mut Step,
    ) -> Result<Part, ModelError> {
        let slot = work.slot;
        let Some(sequence) = self.sequences.get_mut(&slot) else { return refused(format!("{slot} is not open")) };
        if sequence.exhausted || sequence.finished.load(Ordering::Acquire) {
            return Ok(Part::Known(Ok(SequenceOutput { stale: true, ..SequenceOutput::default() })));
        }
        if work.advance == 0 {
            if sequence.ended && (sequence.inputs.len() as u32) < sequence.spec.prefill_embeddings() {
                sequence.finished.store(true, Ordering::Release);
                let output = SequenceOutput { finish: Some(FinishReason::Stop), ..SequenceOutput::default() };
                return Ok(Part::Known(Ok(output)));
            }
            return refused(format!("{slot}: asked for 0 units of a sequence that can go on"));
        }
        let len = sequence.spec.prefill_positions();
        let left = len - sequence.prefilled;
        if left > 0 {
            if work.advance > left {
                return refused(format!("asked for {} of {left} prompt positions", work.advance));
            }
            let (have, want) = (sequence.inputs.len() as u32, sequence.spec.prefill_embeddings());
            if have < want {
                return refused(format!("the speech prompt needs {want} input embeddings, {have} have arrived"));
            }
            return self.plan_prompt(slot, work.advance, busy, step);
        }
        if work.advance != 1 {
            return refused(format!("asked for {} units, a decode step is 1", work.advance));
        }
        let Some(side) = sequence.spec.prompt.text_side(
            sequence.count - sequence.spec.generated_len,
            sequence.inputs.len() as u32,
            sequence.ended,
        ) else {
            return refused(format!("frame {} needs one more text embedding or the end of the text", sequence.count));
        };
        let Some(text) = self.special.embedding(side, &sequence.inputs) else {
            return refused(format!("frame {} needs a text sequence that has not arrived", sequence.count));
        };
        self.plan_frame(slot, text, busy, step)
    }

    fn plan_prompt(
        &mut self,
        slot: Slot,
        count: u32,
        busy: &HashSet<Slot>,
        step: &mut Step,
    ) -> Result<Part, ModelError> {
        let groups = self.groups();
        let (readable, special) = (self.net.text_vocabulary().is_some(), self.special);
        let Some(sequence) = self.sequences.get_mut(&slot) else { return refused(format!("{slot} is not open")) };
        let prompt = Arc::clone(&sequence.spec.prompt);
        let (from, to) = (sequence.prefilled, sequence.prefilled + count);
        if from == 0 && readable {
            // Positions that an earlier prompt computed are not computed again.
            sequence.keys = page_keys(&prompt, &sequence.inputs, special, groups);
            sequence.pages = self.pages.share_all(&sequence.keys);
            sequence.kept = sequence.pages.len();
            if !sequence.pages.is_empty() {
                let bytes = sequence.pages.iter().flat_map(|page| page.to_le_bytes()).collect();
                let at = slot.0 as usize * self.frames.cache.max_pages();
                self.uploads.push(Upload { slot, to: Target::PageTable, at, bytes });
            }
        }
        let told = self.grow(slot, to as usize, busy, step)?;
        let max_pages = self.frames.cache.max_pages();
        let Some(sequence) = self.sequences.get_mut(&slot) else { return refused(format!("{slot} is not open")) };
        if sequence.pages.len() > told {
            let bytes = sequence.pages[told..].iter().flat_map(|page| page.to_le_bytes()).collect();
            self.uploads.push(Upload { slot, to: Target::PageTable, at: slot.0 as usize * max_pages + told, bytes });
        }
        let known = (sequence.kept * PAGE) as u32;
        let mut last = 0;
        for at in from.max(known.min(to))..to {
            let inputs = (sequence.inputs.as_slice(), special);
            let Some(entry) = position(&prompt, at, slot, inputs, (&mut step.codes, groups)) else {
                return refused(format!("position {at} of the speech prompt has no text"));
            };
            last = entry.text;
            step.prompts.push(entry);
        }
        sequence.prefilled = to;
        // Pages that are complete once this step has run.
        let complete = (to as usize).min(prompt.positions() as usize - 1) / PAGE;
        let turn = self.pages.turn();
        let known = (0..).zip(sequence.keys.iter().zip(&sequence.pages));
        for (depth, (key, page)) in known.take(complete).skip(sequence.kept) {
            self.pages.keep(*key, *page, (turn, depth));
        }
        sequence.kept = sequence.kept.max(complete.min(sequence.keys.len()));
        if to < prompt.positions() {
            return Ok(Part::Prompt);
        }
        self.plan_frame(slot, last, busy, step)
    }

    fn plan_frame(&mut self, slot: Slot, text: u32, busy: &HashSet<Slot>, step: &mut Step) -> Result<Part, ModelError> {
        let Some(sequence) = self.sequences.get(&slot) else { return refused(format!("{slot} is not open")) };
        if step.frames.len() == self.frames.graphs.most_rows() {
            return refused(format!("a step has room for {} sequences", self.frames.graphs.most_rows()));
        }
        let groups = self.groups();
        let at =
            sequence.spec.prefill_positions() as usize - 1 + (sequence.count - sequence.spec.generated_len) as usize;
        let told = self.grow(slot, at + 1, busy, step)?;
        let Some(sequence) = self.sequences.get_mut(&slot) else { return refused(format!("{slot} is not open")) };
        for (index, page) in sequence.pages.iter().enumerate().skip(told) {
            step.new_pages.push(NewPage { slot: slot.0, index: index as u32, page: *page, unused: 0 });
        }
        let mut flags = 0;
        if sequence.spec.ignore_eos || sequence.count < sequence.spec.min_tokens {
            flags |= NO_END;
        }
        if sequence.count + 1 >= sequence.spec.max_tokens {
            flags |= LAST;
            sequence.exhausted = true;
        }
        let mut forced = NONE;
        if let Some(codes) = sequence.spec.forced_frame(sequence.count, groups) {
            forced = step.forced.len() as u32;
            step.forced.extend_from_slice(codes);
        }
        let (position, count, axes) = (at as i32, sequence.count, axes(&sequence.spec.prompt, at));
        let entry = StepSequence { slot: slot.0, position, text, count, flags, forced, axes, of: 0, unused: [0; 2] };
        sequence.count += 1;
        step.frames.push(entry);
        Ok(Part::Frame { at: step.frames.len() - 1, forced: forced != NONE, finished: Arc::clone(&sequence.finished) })
    }

    /// Gives a sequence pages for its first `positions` positions, bringing it back if it had to make room. Returns how
    /// many of its pages the device knows after the copies in `uploads`; the caller sends the others.
    fn grow(
        &mut self,
        slot: Slot,
        positions: usize,
        busy: &HashSet<Slot>,
        step: &mut Step,
    ) -> Result<usize, ModelError> {
        let limit = self.net.config.text.max_position_embeddings.min(self.frames.cache.max_pages() * PAGE);
        if positions > limit {
            return refused(format!(
                "the context is full: {positions} positions are wanted and there are {limit} (max_position_embeddings, device.kv_memory)"
            ));
        }
        let Some(sequence) = self.sequences.get_mut(&slot) else { return refused(format!("{slot} is not open")) };
        let back = sequence.swapped.take();
        let wanted = positions.div_ceil(PAGE).max(back.as_ref().map_or(0, Swapped::pages));
        let mut pages = std::mem::take(&mut sequence.pages);
        let mut told = pages.len();
        while pages.len() < wanted {
            match self.pages.take() {
                Some(page) => pages.push(page),
                None if self.make_room(busy)? => {}
                None => {
                    // Restored, so that the sequence can be tried again or closed.
                    let Some(sequence) = self.sequences.get_mut(&slot) else {
                        return refused(format!("{slot} is not open"));
                    };
                    if back.is_some() {
                        pages.drain(..).for_each(|page| self.pages.give_back(page));
                    }
                    (sequence.pages, sequence.swapped) = (pages, back);
                    return refused(format!(
                        "the KV cache is full: {} pages of {PAGE} positions are in use; raise device.kv_memory or lower limits.max_requests",
                        self.pages.count()
                    ));
                }
            }
        }
        if let Some(back) = back {
            back.restore(&self.stream, &self.frames.cache, &pages)?;
            let bytes = pages.iter().flat_map(|page| page.to_le_bytes()).collect();
            let at = slot.0 as usize * self.frames.cache.max_pages();
            self.uploads.push(Upload { slot, to: Target::PageTable, at, bytes });
            step.held.push(back);
            told = pages.len();
        }
        if let Some(sequence) = self.sequences.get_mut(&slot) {
            sequence.pages = pages;
        }
        Ok(told)
    }

    /// Takes the pages of the youngest sequence that is not part of this step; their contents wait in the host's
    /// memory.
    fn make_room(&mut self, busy: &HashSet<Slot>) -> Result<bool, ModelError> {
        let idle =
            self.sequences.iter_mut().filter(|(slot, sequence)| !busy.contains(slot) && !sequence.pages.is_empty());
        let Some((slot, sequence)) = idle.max_by_key(|(_, sequence)| sequence.order) else { return Ok(false) };
        tracing::debug!(slot = slot.0, pages = sequence.pages.len(), "sequence makes room in the KV cache");
        let pages = std::mem::take(&mut sequence.pages);
        sequence.swapped = Some(Swapped::save(&self.stream, &self.frames.cache, &pages)?);
        sequence.keys.clear();
        sequence.kept = 0;
        pages.into_iter().for_each(|page| self.pages.give_back(page));
        Ok(true)
    }
}
