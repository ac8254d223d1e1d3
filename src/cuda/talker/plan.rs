//! What a step is made of: which positions and frames, which pages they need, and who makes room for them.

use super::arrivals::Arrival;
use super::pending::Part;
use super::prompt::{page_keys, position};
use super::stage::{CudaTalker, Target, Upload};
use super::swap::Swapped;
use super::table::{LAST, NO_END, NONE, NewPage, PromptRow, StepRow};
use crate::decoder::PAGE;
use omni_core::ids::Slot;
use omni_model::ModelError;
use omni_model::error::refused;
use omni_model::stage::{Finish, RowOutput, RowWork};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a step tells the device.
#[derive(Default)]
pub(super) struct Step {
    pub(super) frames: Vec<StepRow>,
    pub(super) new_pages: Vec<NewPage>,
    pub(super) prompts: Vec<PromptRow>,
    /// Frames of references that `prompts` are made of.
    pub(super) codes: Vec<u32>,
    /// Frames that `frames` are forced to say.
    pub(super) forced: Vec<u32>,
    pub(super) held: Vec<Swapped>,
    /// Rows of a thinker that the step projects first.
    pub(super) arrivals: Vec<Arrival>,
}

impl CudaTalker {
    /// One row's part of a step; what the device must be told goes to `step`.
    pub(super) fn plan(&mut self, work: RowWork, busy: &HashSet<Slot>, step: &mut Step) -> Result<Part, ModelError> {
        let slot = work.slot;
        let Some(row) = self.rows.get_mut(&slot) else { return refused(format!("{slot} is not open")) };
        if row.exhausted || row.finished.load(Ordering::Acquire) {
            return Ok(Part::Known(Ok(RowOutput { stale: true, ..RowOutput::default() })));
        }
        if work.advance == 0 {
            if row.ended && (row.inputs.len() as u32) < row.spec.prefill_rows() {
                row.finished.store(true, Ordering::Release);
                let output = RowOutput { finish: Some(Finish::Stop), ..RowOutput::default() };
                return Ok(Part::Known(Ok(output)));
            }
            return refused(format!("{slot}: asked for 0 units of a row that can go on"));
        }
        let len = row.spec.prefill_positions();
        let left = len - row.prefilled;
        if left > 0 {
            if work.advance > left {
                return refused(format!("asked for {} of {left} prompt positions", work.advance));
            }
            let (have, want) = (row.inputs.len() as u32, row.spec.prefill_rows());
            if have < want {
                return refused(format!("the speech prompt needs {want} input rows, {have} have arrived"));
            }
            return self.plan_prompt(slot, work.advance, busy, step);
        }
        if work.advance != 1 {
            return refused(format!("asked for {} units, a decode step is 1", work.advance));
        }
        let Some(side) = row.spec.prompt.text_side(row.count - row.spec.said, row.inputs.len() as u32, row.ended)
        else {
            return refused(format!("frame {} needs one more text row or the end of the text", row.count));
        };
        let Some(text) = self.special.row(side, &row.inputs) else {
            return refused(format!("frame {} needs a text row that has not arrived", row.count));
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
        let Some(row) = self.rows.get_mut(&slot) else { return refused(format!("{slot} is not open")) };
        let prompt = Arc::clone(&row.spec.prompt);
        let (from, to) = (row.prefilled, row.prefilled + count);
        if from == 0 && readable {
            // What begins like an earlier prompt need not be computed.
            row.keys = page_keys(&prompt, &row.inputs, special, groups);
            row.pages = self.pages.shared(&row.keys);
            row.kept = row.pages.len();
            if !row.pages.is_empty() {
                let bytes = row.pages.iter().flat_map(|page| page.to_le_bytes()).collect();
                let at = slot.0 as usize * self.frames.cache.max_pages();
                self.uploads.push(Upload { to: Target::PageTable, at, bytes });
            }
        }
        let told = self.grow(slot, to as usize, busy, step)?;
        let max_pages = self.frames.cache.max_pages();
        let Some(row) = self.rows.get_mut(&slot) else { return refused(format!("{slot} is not open")) };
        if row.pages.len() > told {
            let bytes = row.pages[told..].iter().flat_map(|page| page.to_le_bytes()).collect();
            self.uploads.push(Upload { to: Target::PageTable, at: slot.0 as usize * max_pages + told, bytes });
        }
        let known = (row.kept * PAGE) as u32;
        let mut last = 0;
        for at in from.max(known.min(to))..to {
            let inputs = (row.inputs.as_slice(), special);
            let Some(entry) = position(&prompt, at, slot, inputs, (&mut step.codes, groups)) else {
                return refused(format!("position {at} of the speech prompt has no text"));
            };
            last = entry.text;
            step.prompts.push(entry);
        }
        row.prefilled = to;
        // Pages that are complete once this step has run.
        let complete = (to as usize).min(prompt.positions() as usize - 1) / PAGE;
        for (key, page) in row.keys.iter().zip(&row.pages).take(complete).skip(row.kept) {
            self.pages.keep(*key, *page);
        }
        row.kept = row.kept.max(complete.min(row.keys.len()));
        if to < prompt.positions() {
            return Ok(Part::Prompt);
        }
        self.plan_frame(slot, last, busy, step)
    }

    fn plan_frame(&mut self, slot: Slot, text: u32, busy: &HashSet<Slot>, step: &mut Step) -> Result<Part, ModelError> {
        let Some(row) = self.rows.get(&slot) else { return refused(format!("{slot} is not open")) };
        if step.frames.len() == self.frames.frame_rows() {
            return refused(format!("a step has room for {} rows", self.frames.frame_rows()));
        }
        let groups = self.groups();
        let at = row.spec.prefill_positions() as usize - 1 + (row.count - row.spec.said) as usize;
        let told = self.grow(slot, at + 1, busy, step)?;
        let Some(row) = self.rows.get_mut(&slot) else { return refused(format!("{slot} is not open")) };
        for (index, page) in row.pages.iter().enumerate().skip(told) {
            step.new_pages.push(NewPage { slot: slot.0, index: index as u32, page: *page, unused: 0 });
        }
        let mut flags = 0;
        if row.spec.ignore_eos || row.count < row.spec.min_tokens {
            flags |= NO_END;
        }
        if row.count + 1 >= row.spec.max_tokens {
            flags |= LAST;
            row.exhausted = true;
        }
        let mut forced = NONE;
        if let Some(codes) = row.spec.forced_frame(row.count, groups) {
            forced = step.forced.len() as u32;
            step.forced.extend_from_slice(codes);
        }
        let (position, count) = (at as i32, row.count);
        let entry = StepRow { slot: slot.0, position, text, count, flags, forced, unused: [0; 2] };
        row.count += 1;
        step.frames.push(entry);
        Ok(Part::Frame { at: step.frames.len() - 1, forced: forced != NONE, finished: Arc::clone(&row.finished) })
    }

    /// Gives a row pages for its first `positions` positions, bringing it back if it had to make room. Returns how many of
    /// its pages the device knows of once what is in `uploads` is there: the caller tells it of the others.
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
        let Some(row) = self.rows.get_mut(&slot) else { return refused(format!("{slot} is not open")) };
        let back = row.swapped.take();
        let wanted = positions.div_ceil(PAGE).max(back.as_ref().map_or(0, Swapped::pages));
        let mut pages = std::mem::take(&mut row.pages);
        let mut told = pages.len();
        while pages.len() < wanted {
            match self.pages.take() {
                Some(page) => pages.push(page),
                None if self.make_room(busy)? => {}
                None => {
                    // As before, so that the row can be tried again or closed.
                    let Some(row) = self.rows.get_mut(&slot) else { return refused(format!("{slot} is not open")) };
                    if back.is_some() {
                        pages.drain(..).for_each(|page| self.pages.give_back(page));
                    }
                    (row.pages, row.swapped) = (pages, back);
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
            self.uploads.push(Upload { to: Target::PageTable, at, bytes });
            step.held.push(back);
            told = pages.len();
        }
        if let Some(row) = self.rows.get_mut(&slot) {
            row.pages = pages;
        }
        Ok(told)
    }

    /// Takes the pages of the youngest row that is not part of this step; what they hold waits in the host's memory.
    fn make_room(&mut self, busy: &HashSet<Slot>) -> Result<bool, ModelError> {
        let idle = self.rows.iter_mut().filter(|(slot, row)| !busy.contains(slot) && !row.pages.is_empty());
        let Some((slot, row)) = idle.max_by_key(|(_, row)| row.order) else { return Ok(false) };
        tracing::debug!(slot = slot.0, pages = row.pages.len(), "row makes room in the KV cache");
        let pages = std::mem::take(&mut row.pages);
        row.swapped = Some(Swapped::save(&self.stream, &self.frames.cache, &pages)?);
        row.keys.clear();
        row.kept = 0;
        pages.into_iter().for_each(|page| self.pages.give_back(page));
        Ok(true)
    }
}
