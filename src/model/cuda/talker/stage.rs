//! The talker stage on a GPU: [`StageModel`] around the graphs of [`Frames`].
//!
//! Units and their meaning are those of the CPU's stage ([`crate::model::stages::talker`]). A launch never waits: it
//! packs what the step is told into page-locked memory, queues copies and graphs, and answers with what waits for them.

use super::frame::{Frames, MAX_SAMPLED, head};
use super::net::{TalkerNet, Text};
use super::prompt::{Special, page_keys, position};
use super::ring::{Lease, Ring};
use super::swap::Swapped;
use super::table::{
    BROKEN, EXHAUSTED, LAST, NO_END, NONE, NewPage, PromptRow, Record, STALE, STOPPED, SlotParams, StepRow,
};
use crate::ids::Slot;
use crate::model::cuda::decoder::PAGE;
use crate::model::cuda::linear::{Input, Mode};
use crate::model::cuda::pages::{PageKey, Pages};
use crate::model::cuda::stream::Stream;
use crate::model::cuda::weights::element_size;
use crate::model::cuda::{Buffer, CudaError, Element, Priority};
use crate::model::stage::{
    Emit, Finish, Launched, PendingStep, RowInput, RowOutput, RowSpec, RowWork, StageFactory, StageModel, StepOutcome,
    TalkerRow,
};
use crate::model::{LoadError, ModelError};
use crate::telemetry::DeviceMetrics;
use candle_core::{DType, Tensor};
use metrics::Histogram;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Positions of a row that the cache has room for when the config does not say how large it is.
const USUAL_POSITIONS: usize = 512;
/// Share of the free memory that such a cache takes at most.
const MOST_OF_FREE: f64 = 0.5;
const MIB: usize = 1 << 20;

/// How large a talker is.
#[derive(Clone, Debug)]
pub struct TalkerOptions {
    /// Rows that hold state at once.
    pub slots: usize,
    /// Rows for which graphs are captured, ascending.
    pub buckets: Vec<usize>,
    /// Prompt positions of a step.
    pub prefill_chunk: usize,
    /// Steps launched ahead.
    pub run_ahead: usize,
    /// Bytes for keys and values; `None`: what the slots usually need.
    pub kv_memory: Option<u64>,
    /// Rows of text of a thinker that have arrived and are not used yet, over all slots.
    pub text_rows: usize,
}

impl TalkerOptions {
    /// Rows of the largest graph.
    pub fn batch(&self) -> usize {
        self.buckets.last().copied().unwrap_or(1)
    }
}

/// Makes [`CudaTalker`]s that share weights.
pub struct CudaTalkerFactory {
    net: Arc<TalkerNet>,
    options: TalkerOptions,
}

impl CudaTalkerFactory {
    /// For weights that are loaded.
    pub fn new(net: Arc<TalkerNet>, options: TalkerOptions) -> CudaTalkerFactory {
        CudaTalkerFactory { net, options }
    }
}

impl StageFactory for CudaTalkerFactory {
    fn build(&self) -> Result<Box<dyn StageModel>, LoadError> {
        Ok(Box::new(CudaTalker::new(Arc::clone(&self.net), &self.options)?))
    }
}

/// Rows of the talker on a GPU.
pub struct CudaTalker {
    net: Arc<TalkerNet>,
    stream: Stream,
    frames: Frames,
    ring: Arc<Ring>,
    rows: BTreeMap<Slot, Row>,
    pages: Pages,
    special: Special,
    /// Rows of the table of text that are free, for a talker that does not read itself.
    text_free: Vec<u32>,
    /// Copies that the next launch makes first.
    uploads: Vec<Upload>,
    /// Rows of a thinker that the next launch projects: their bytes, and where they go.
    arrivals: Vec<(Vec<u8>, Vec<u32>)>,
    arrived: Option<[Buffer<u8>; 3]>,
    order: u64,
    /// By bucket: what steps that are a frame and nothing else took.
    timed: Arc<[(usize, Histogram)]>,
}

/// A copy to the device.
struct Upload {
    to: Target,
    /// First element.
    at: usize,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy)]
enum Target {
    Params,
    XVectors,
    PageTable,
}

struct Row {
    spec: TalkerRow,
    /// Rows of the table of text.
    inputs: Vec<u32>,
    /// Where inputs that came from a thinker and are not used yet begin.
    unused: usize,
    ended: bool,
    /// Prompt positions launched.
    prefilled: u32,
    /// Codes 0 launched.
    count: u32,
    pages: Vec<u32>,
    /// Known pages at the beginning of the prompt.
    keys: Vec<PageKey>,
    kept: usize,
    swapped: Option<Swapped>,
    /// The limit was reached by a launch.
    exhausted: bool,
    /// Set by the step that saw the end.
    finished: Arc<AtomicBool>,
    order: u64,
}

/// One row's part in a step.
enum Part {
    /// Known without the device.
    Known(Result<RowOutput, ModelError>),
    /// A frame: the row of the step's output.
    Frame { at: usize, forced: bool, finished: Arc<AtomicBool> },
    /// Positions of a prompt.
    Prompt,
}

/// What a step tells the device.
#[derive(Default)]
struct Step {
    frames: Vec<StepRow>,
    new_pages: Vec<NewPage>,
    prompts: Vec<PromptRow>,
    /// Frames of references that `prompts` are made of.
    codes: Vec<u32>,
    /// Frames that `frames` are forced to say.
    forced: Vec<u32>,
    held: Vec<Swapped>,
}

fn refused<T>(text: impl Into<String>) -> Result<T, ModelError> {
    Err(ModelError::Row(text.into()))
}

impl CudaTalker {
    /// Room for rows, and graphs.
    ///
    /// # Errors
    /// When the device has no room, or the sizes are beyond what the kernels take.
    pub fn new(net: Arc<TalkerNet>, options: &TalkerOptions) -> Result<CudaTalker, LoadError> {
        let config = &net.config;
        let largest = config.text.vocab_size.max(config.predictor.vocab_size);
        if largest > MAX_SAMPLED {
            let reason =
                format!("a vocabulary of {largest} codes is not served on a GPU: expected at most {MAX_SAMPLED}");
            return Err(LoadError::Invalid { file: "config.json".into(), reason });
        }
        net.gpu.bind()?;
        let began = std::time::Instant::now();
        let stream = net.gpu.stream(Priority::Normal)?;
        let page = net.stack.page_bytes(net.precision);
        let (free, _) = net.gpu.memory()?;
        let usual = options.slots * USUAL_POSITIONS.min(config.text.max_position_embeddings).div_ceil(PAGE);
        let pages = match options.kv_memory {
            Some(bytes) => bytes as usize / page,
            None => usual.min((free as f64 * MOST_OF_FREE) as usize / page),
        };
        if pages < 2 {
            let reason = format!(
                "{} MiB hold no KV cache, of which a page takes {} MiB",
                options.kv_memory.unwrap_or(free as u64) as usize / MIB,
                page.div_ceil(MIB)
            );
            return Err(LoadError::Invalid { file: "device.kv_memory".into(), reason });
        }
        let frames = Frames::new(&net, options, &stream, pages)?;
        let (frame, prompt) = (frames.frame_layout.bytes, frames.prompt_layout.bytes);
        let words = options.batch() * out_words(config.num_code_groups);
        let ring = Ring::new(&net.gpu, options.run_ahead + 2, frame + 2 * prompt + (1 << 16), words)?;
        let (special, text_free) = match net.text {
            Text::Table { pad, bos, eos, .. } => (Special { pad, bos, eos }, Vec::new()),
            Text::Rows { .. } => {
                (Special { pad: 0, bos: 1, eos: 2 }, (3..3 + options.text_rows as u32).rev().collect())
            }
        };
        let (after, total) = net.gpu.memory()?;
        net.gpu.tell_memory()?;
        tracing::info!(
            buckets = ?options.buckets,
            kv_pages = pages,
            kv_positions = pages * PAGE,
            kv_mib = pages * page / MIB,
            gpu_mib_used = (total - after) / MIB,
            took_ms = began.elapsed().as_millis() as u64,
            "talker is ready on the GPU"
        );
        Ok(CudaTalker {
            timed: options.buckets.iter().map(|bucket| (*bucket, DeviceMetrics::frame_seconds(*bucket))).collect(),
            stream,
            frames,
            ring,
            rows: BTreeMap::new(),
            pages: Pages::new(pages as u32),
            special,
            text_free,
            uploads: Vec::new(),
            arrivals: Vec::new(),
            arrived: None,
            order: 0,
            net,
        })
    }

    /// Pages of the cache: in use, and in all.
    pub fn kv_pages(&self) -> (usize, usize) {
        (self.pages.in_use(), self.pages.count())
    }

    fn groups(&self) -> usize {
        self.net.config.num_code_groups
    }

    /// One row's part of a step; what the device must be told goes to `step`.
    fn plan(&mut self, work: RowWork, busy: &HashSet<Slot>, step: &mut Step) -> Result<Part, ModelError> {
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
        let Some(side) = row.spec.prompt.text_side(row.count, row.inputs.len() as u32, row.ended) else {
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
        let before = row.pages.len();
        self.grow(slot, to as usize, busy, step)?;
        let max_pages = self.frames.cache.max_pages();
        let Some(row) = self.rows.get_mut(&slot) else { return refused(format!("{slot} is not open")) };
        if row.pages.len() > before {
            let bytes = row.pages[before..].iter().flat_map(|page| page.to_le_bytes()).collect();
            self.uploads.push(Upload { to: Target::PageTable, at: slot.0 as usize * max_pages + before, bytes });
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
        if step.frames.len() == self.frames_limit() {
            return refused(format!("a step has room for {} rows", self.frames_limit()));
        }
        let groups = self.groups();
        let at = row.spec.prefill_positions() as usize - 1 + row.count as usize;
        let before = row.pages.len();
        self.grow(slot, at + 1, busy, step)?;
        let Some(row) = self.rows.get_mut(&slot) else { return refused(format!("{slot} is not open")) };
        for (index, page) in row.pages.iter().enumerate().skip(before) {
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

    fn frames_limit(&self) -> usize {
        self.ring_rows()
    }

    fn ring_rows(&self) -> usize {
        (self.frames.frame_layout.pages - self.frames.frame_layout.rows) / size_of::<StepRow>()
    }

    /// Gives a row pages for its first `positions` positions, bringing it back if it had to make room.
    fn grow(&mut self, slot: Slot, positions: usize, busy: &HashSet<Slot>, step: &mut Step) -> Result<(), ModelError> {
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
        }
        if let Some(row) = self.rows.get_mut(&slot) {
            row.pages = pages;
        }
        Ok(())
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

    /// Queues everything that a step needs; returns what the device was lent.
    fn queue(&mut self, step: &Step) -> Result<Lease, CudaError> {
        let (frame, prompt) = (self.frames.frame_layout, self.frames.prompt_layout);
        let passes: Vec<&[PromptRow]> = step.prompts.chunks(self.frames.prompt_rows().max(1)).collect();
        let uploads: usize = self.uploads.iter().map(|upload| upload.bytes.len().next_multiple_of(16)).sum();
        let arrivals: usize = self.arrivals.iter().map(|(bytes, _)| bytes.len().next_multiple_of(16)).sum();
        let lease = self.ring.lease(frame.bytes + passes.len() * prompt.bytes + uploads + arrivals)?;
        let stream = &self.stream;
        lease.begin.record(stream)?;
        let mut at = 0;
        for upload in self.uploads.drain(..) {
            lease.input.set(at, &upload.bytes);
            let (frames, bytes) = (&self.frames, upload.bytes.len());
            match upload.to {
                Target::Params => bytes_to(&frames.params, stream, upload.at, &lease, at, bytes)?,
                Target::XVectors => bytes_to(&frames.x_vectors, stream, upload.at, &lease, at, bytes)?,
                Target::PageTable => bytes_to(frames.cache.tables_buffer(), stream, upload.at, &lease, at, bytes)?,
            }
            at += bytes.next_multiple_of(16);
        }
        for (bytes, rows) in std::mem::take(&mut self.arrivals) {
            lease.input.set(at, &bytes);
            self.project(&lease, at, &bytes, &rows)?;
            at += bytes.len().next_multiple_of(16);
        }
        let stream = &self.stream;
        for rows in passes {
            let Some((bucket, graph)) = self.frames.prompt_graph(rows.len()) else { continue };
            // The codes of this pass only, counted from its own beginning.
            let first = rows.iter().find(|row| row.kind == super::table::REFERENCE_FRAME).map_or(0, |row| row.codes);
            let mut table = vec![0u8; prompt.bytes];
            table[..size_of_val(&head(0, 0))].copy_from_slice(head(0, 0).bytes());
            let mut codes = Vec::new();
            for (i, row) in (0..bucket).map(|i| (i, rows.get(i).copied().unwrap_or(PromptRow::PADDING))) {
                let mut row = row;
                if row.kind == super::table::REFERENCE_FRAME && row.slot != NONE {
                    let groups = self.net.config.num_code_groups;
                    codes.extend_from_slice(&step.codes[row.codes as usize..row.codes as usize + groups]);
                    row.codes -= first;
                }
                put(&mut table, prompt.rows + i * size_of::<PromptRow>(), row.bytes());
            }
            for (i, code) in codes.iter().enumerate() {
                put(&mut table, prompt.codes + i * 4, &code.to_le_bytes());
            }
            lease.input.set(at, &table);
            self.frames.prompt_inbox.upload_async(stream, 0, &lease.input, at, table.len())?;
            at += table.len().next_multiple_of(16);
            graph.launch(stream)?;
        }
        if let Some((bucket, graph)) = self.frames.frame_graph(step.frames.len()).filter(|_| !step.frames.is_empty()) {
            // Forced codes are at the end: most steps have none.
            let mut table = vec![0u8; frame.codes + step.forced.len() * 4];
            put(&mut table, 0, head(lease.out.device_at(0), step.new_pages.len()).bytes());
            for i in 0..bucket {
                let row = step.frames.get(i).copied().unwrap_or(StepRow::PADDING);
                put(&mut table, frame.rows + i * size_of::<StepRow>(), row.bytes());
            }
            for (i, page) in step.new_pages.iter().enumerate() {
                put(&mut table, frame.pages + i * size_of::<NewPage>(), page.bytes());
            }
            for (i, code) in step.forced.iter().enumerate() {
                put(&mut table, frame.codes + i * 4, &code.to_le_bytes());
            }
            lease.input.set(at, &table);
            self.frames.inbox.upload_async(stream, 0, &lease.input, at, table.len())?;
            graph.launch(stream)?;
        }
        lease.end.record(stream)?;
        Ok(lease)
    }

    /// Queues the projection of a thinker's rows to their places in the table of text.
    fn project(&mut self, lease: &Lease, at: usize, bytes: &[u8], rows: &[u32]) -> Result<(), CudaError> {
        let (Text::Rows { first, second, .. }, Some(pool)) = (&self.net.text, &self.frames.text) else { return Ok(()) };
        let size = element_size(self.net.precision);
        let (inner, hidden) = (first.outputs() * size, self.net.config.text.hidden_size * size);
        let room = [bytes.len(), rows.len() * inner, rows.len() * hidden];
        if self.arrived.as_ref().is_none_or(|have| have.iter().zip(room).any(|(have, room)| have.len() < room)) {
            let made = room.map(|room| self.net.gpu.alloc::<u8>("rows of text", room.next_power_of_two()));
            let [a, b, c] = made;
            // What is queued may still use the old ones.
            self.stream.synchronize()?;
            self.arrived = Some([a?, b?, c?]);
        }
        let Some([from, middle, to]) = &self.arrived else { return Ok(()) };
        let (stream, products) = (&self.stream, &self.frames.engine.products);
        from.upload_async(stream, 0, &lease.input, at, bytes.len())?;
        products.run(stream, Mode::Silu, first, Input::Ready(from.address()), middle.address(), rows.len())?;
        products.run(stream, Mode::Store, second, Input::Ready(middle.address()), to.address(), rows.len())?;
        for (i, row) in rows.iter().enumerate() {
            pool.copy_async(stream, *row as usize * hidden, to, i * hidden, hidden)?;
        }
        Ok(())
    }
}

fn put(table: &mut [u8], at: usize, bytes: &[u8]) {
    table[at..at + bytes.len()].copy_from_slice(bytes);
}

fn bytes_to<T: Element>(
    to: &Buffer<T>,
    stream: &Stream,
    at: usize,
    lease: &Lease,
    from: usize,
    bytes: usize,
) -> Result<(), CudaError> {
    to.upload_bytes_async(stream, at, &lease.input, from, bytes)
}

impl StageModel for CudaTalker {
    fn open(&mut self, slot: Slot, spec: RowSpec) -> Result<(), ModelError> {
        let RowSpec::Talker(spec) = spec else { return refused(format!("{slot}: the talker cannot open {spec:?}")) };
        if self.rows.contains_key(&slot) {
            return refused(format!("{slot} is open already"));
        }
        let config = &self.net.config;
        let (len, limit) = (spec.prefill_positions(), config.text.max_position_embeddings);
        if len as usize > limit {
            return refused(format!(
                "the speech prompt has {len} positions, the talker {limit}: shorten the conversation"
            ));
        }
        if spec.max_tokens == 0 {
            return refused("max_tokens is 0: expected at least 1");
        }
        spec.sampling.check().and_then(|()| spec.predictor.check()).map_err(ModelError::Row)?;
        spec.prompt.check(config).map_err(ModelError::Row)?;
        spec.check_forced(config).map_err(ModelError::Row)?;
        let params = SlotParams {
            first: (&spec.sampling).into(),
            others: (&spec.predictor).into(),
            seed: [spec.seed as u32, (spec.seed >> 32) as u32],
            unused: [0; 2],
        };
        let (at, vocabulary, hidden) = (slot.0 as usize, config.text.vocab_size, config.text.hidden_size);
        if at >= self.frames.done.len() {
            return refused(format!("{slot}: there are {} slots", self.frames.done.len()));
        }
        // Behind every step that was launched before, and that may still write what is cleared here.
        self.frames.done.zero_async(&self.stream, at, 1)?;
        self.frames.counts.zero_async(&self.stream, at * vocabulary, vocabulary)?;
        let bytes = params.bytes().to_vec();
        self.uploads.push(Upload { to: Target::Params, at: at * size_of::<SlotParams>(), bytes });
        if let Some(vector) = spec.prompt.x_vector() {
            let bytes = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
            self.uploads.push(Upload { to: Target::XVectors, at: at * hidden, bytes });
        }
        self.order += 1;
        let row = Row {
            spec,
            inputs: Vec::new(),
            unused: 0,
            ended: false,
            prefilled: 0,
            count: 0,
            pages: Vec::new(),
            keys: Vec::new(),
            kept: 0,
            swapped: None,
            exhausted: false,
            finished: Arc::default(),
            order: self.order,
        };
        self.rows.insert(slot, row);
        Ok(())
    }

    fn feed(&mut self, slot: Slot, input: RowInput, end: bool) -> Result<(), ModelError> {
        let Some(row) = self.rows.get_mut(&slot) else { return refused(format!("{slot} is not open")) };
        if row.ended {
            return refused(format!("{slot}: rows after the end of the text"));
        }
        match (input, self.net.text_vocabulary()) {
            (RowInput::Nothing, _) => {}
            (RowInput::Tokens(tokens), Some(vocabulary)) => {
                if let Some(token) = tokens.iter().find(|token| **token >= vocabulary) {
                    return refused(format!("token {token} is outside the vocabulary of {vocabulary}"));
                }
                row.inputs.extend(tokens);
            }
            (RowInput::Rows(rows), None) => {
                let wanted = self.net.config.text_hidden_size;
                let count = match rows.dims() {
                    &[n, width] if n > 0 && width == wanted => n,
                    dims => return refused(format!("{slot}: expected rows [n, {wanted}], got {dims:?}")),
                };
                // What follows speech that has stopped is not read any more.
                if !row.finished.load(Ordering::Acquire) && !row.exhausted {
                    if self.text_free.len() < count {
                        return refused(
                            "there is no room for so much text at once on the GPU: try again, or send less",
                        );
                    }
                    let places = self.text_free.split_off(self.text_free.len() - count);
                    row.inputs.extend(&places);
                    self.arrivals.push((row_bytes(&rows, self.net.precision)?, places));
                }
            }
            (_, Some(_)) => return refused(format!("{slot}: this talker takes tokens of text only")),
            (_, None) => return refused(format!("{slot}: this talker takes rows of its thinker only")),
        }
        row.ended = end;
        Ok(())
    }

    fn launch(&mut self, work: &[RowWork]) -> Result<Launched, ModelError> {
        let busy: HashSet<Slot> = work.iter().map(|work| work.slot).collect();
        let mut step = Step::default();
        let mut parts = Vec::with_capacity(work.len());
        for work in work {
            match self.plan(*work, &busy, &mut step) {
                Ok(part) => parts.push(part),
                Err(ModelError::Row(reason)) => parts.push(Part::Known(refused(reason))),
                Err(error) => return Err(error),
            }
        }
        let lease = self.queue(&step)?;
        // Behind the step in the stream: what it used can be used again.
        for work in work {
            if let (Some(row), true) = (self.rows.get_mut(&work.slot), self.net.text_vocabulary().is_none()) {
                let used =
                    (row.spec.prompt.inputs() + row.count.saturating_sub(1)).min(row.inputs.len() as u32) as usize;
                if row.prefilled == row.spec.prefill_positions() && used > row.unused {
                    self.text_free.extend_from_slice(&row.inputs[row.unused..used]);
                    row.unused = used;
                }
            }
        }
        Ok(Launched::Pending(Box::new(Pending {
            ring: Arc::clone(&self.ring),
            lease: Some(lease),
            parts,
            timed: Arc::clone(&self.timed),
            groups: self.groups(),
            _held: step.held,
        })))
    }

    fn close(&mut self, slot: Slot) {
        if let Some(row) = self.rows.remove(&slot) {
            row.pages.into_iter().for_each(|page| self.pages.give_back(page));
            if self.net.text_vocabulary().is_none() {
                self.text_free.extend_from_slice(&row.inputs[row.unused..]);
            }
        }
    }

    fn live_rows(&self) -> usize {
        self.rows.len()
    }
}

impl Drop for CudaTalker {
    fn drop(&mut self) {
        // What is queued uses memory that goes now. An error was or will be told by a step.
        let _ = self.stream.synchronize();
    }
}

/// Rows of a thinker in the engine's element type.
fn row_bytes(rows: &Tensor, precision: crate::config::Precision) -> Result<Vec<u8>, ModelError> {
    use crate::config::Precision;
    let flat = rows.flatten_all()?;
    Ok(match precision {
        Precision::F32 => flat.to_dtype(DType::F32)?.to_vec1::<f32>()?.iter().flat_map(|x| x.to_le_bytes()).collect(),
        // Rounded to nearest even, as the device does.
        Precision::Bf16 => {
            let rounded = flat.to_dtype(DType::BF16)?.to_dtype(DType::F32)?.to_vec1::<f32>()?;
            rounded.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect()
        }
    })
}

/// A step on its way.
struct Pending {
    ring: Arc<Ring>,
    lease: Option<Lease>,
    parts: Vec<Part>,
    timed: Arc<[(usize, Histogram)]>,
    groups: usize,
    /// Page-locked memory that the step reads.
    _held: Vec<Swapped>,
}

impl PendingStep for Pending {
    fn wait(mut self: Box<Self>) -> Result<StepOutcome, ModelError> {
        let Some(lease) = &self.lease else { return Ok(StepOutcome::default()) };
        lease.end.gpu().bind()?;
        lease.end.wait()?;
        let device_time = lease.end.since(&lease.begin).ok();
        let (groups, width) = (self.groups, out_words(self.groups));
        let parts = std::mem::take(&mut self.parts);
        let frames = parts.iter().filter(|part| matches!(part, Part::Frame { .. })).count();
        let alone = frames > 0 && !parts.iter().any(|part| matches!(part, Part::Prompt));
        if let (true, Some(time)) = (alone, device_time)
            && let Some((_, histogram)) = self.timed.iter().find(|(bucket, _)| *bucket >= frames)
        {
            histogram.record(time);
        }
        let rows = parts
            .into_iter()
            .map(|part| match part {
                Part::Known(result) => result,
                Part::Prompt => Ok(RowOutput::default()),
                Part::Frame { at, forced, finished } => {
                    let words = if forced { width } else { groups + 2 };
                    read(&lease.out.get(at * width..at * width + words), groups, &finished)
                }
            })
            .collect();
        Ok(StepOutcome { rows, device_time })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.ring.give_back(lease);
        }
    }
}

/// Words of a row in the output of a step.
fn out_words(groups: usize) -> usize {
    2 * groups + 2
}

/// What the device says of one row: codes, code 0 again, status; with forced codes those that it would have picked.
fn read(words: &[u32], groups: usize, finished: &AtomicBool) -> Result<RowOutput, ModelError> {
    let Some((codes, [sampled, status, picked @ ..])) = words.split_at_checked(groups) else {
        return refused("the step has no output");
    };
    let picked = |count: usize| picked.get(..count).map(Box::from);
    if status & STALE != 0 {
        return Ok(RowOutput { stale: true, ..RowOutput::default() });
    }
    if status & BROKEN != 0 {
        finished.store(true, Ordering::Release);
        return refused("a logit is not a number or no code is allowed, so no code can be sampled");
    }
    let finish = match status {
        status if status & STOPPED != 0 => Some(Finish::Stop),
        status if status & EXHAUSTED != 0 => Some(Finish::Length),
        _ => None,
    };
    if finish.is_some() {
        finished.store(true, Ordering::Release);
        // Nothing was said but code 0.
        return Ok(RowOutput { sampled: Some(*sampled), finish, picked: picked(1), ..RowOutput::default() });
    }
    let emit = Emit::Codes(codes.to_vec());
    Ok(RowOutput { sampled: Some(*sampled), emit, picked: picked(groups), ..RowOutput::default() })
}
