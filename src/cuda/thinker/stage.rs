//! The thinker stage on a GPU: [`StageModel`] around the graphs of [`Steps`].
//!
//! Units and their meaning are those of the CPU's stage ([`omni_model::stages::thinker`]). The last position of a
//! prompt runs with the sequences that decode, because it gives a token too. A launch never waits: a step reads a
//! sequence's last token where the step before left it on the device.

use super::net::ThinkerNet;
use super::pending::{Part, Pending};
use super::steps::Steps;
use super::table::{SAMPLED, TokenParams, TokenRow};
use crate::copies::{EmbeddingArena, HostCopies};
use crate::decoder::PAGE;
use crate::pages::Pages;
use crate::talker::ring::Ring;
use crate::talker::table::{LAST, NONE, Record};
use crate::{Priority, Stream};
use omni_core::ids::{FinishReason, Slot, StageName};
use omni_model::embeddings::element_bytes;
use omni_model::error::{not_open, refused};
use omni_model::sampling::History;
use omni_model::stage::{
    Launched, SequenceOutput, SequenceSpec, SequenceWork, StageData, StageFactory, StageModel, ThinkerMode, ThinkerSpec,
};
use omni_model::stages::media::PromptMedia;
use omni_model::stages::thinker::{check, prompt_embeddings, prompt_positions};
use omni_model::{LoadError, ModelError};
use omni_telemetry::CopyMetrics;
use omni_telemetry::trace::Recorder;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Positions of a sequence that the cache has room for when the config does not say how large it is.
const USUAL_POSITIONS: usize = 2048;
/// Share of the free memory that such a cache takes at most: talker and vocoder need memory too.
const MOST_OF_FREE: f64 = 0.3;
/// Embeddings that usually wait at the talker, per sequence.
const HANDED_ROWS: usize = 256;
/// Copies to the host, one per step, that are under way or not yet used.
const HOST_COPIES: usize = 16;
const MIB: usize = 1 << 20;

/// How large a thinker is.
#[derive(Clone, Copy, Debug)]
pub struct ThinkerOptions {
    /// Sequences that hold state at once.
    pub slots: usize,
    /// Sequences that a step samples for; there is a graph for every power of two up to it.
    pub batch: usize,
    /// Prompt positions of a pass.
    pub prefill_chunk: usize,
    /// Steps launched ahead.
    pub run_ahead: usize,
    /// Bytes for keys and values; `None`: what the slots usually need.
    pub kv_memory: Option<u64>,
    /// Whether embeddings for the talker are copied to the host in the step that made them.
    pub embeddings_in_step: bool,
}

/// Makes [`CudaThinker`]s that share weights.
pub struct CudaThinkerFactory {
    net: Arc<ThinkerNet>,
    options: ThinkerOptions,
    recorder: Recorder,
}

impl CudaThinkerFactory {
    /// For weights that are loaded.
    pub fn new(net: Arc<ThinkerNet>, options: ThinkerOptions) -> CudaThinkerFactory {
        CudaThinkerFactory { net, options, recorder: Recorder::default() }
    }

    /// Has the stage record its copies there.
    pub fn with_recorder(self, recorder: Recorder) -> CudaThinkerFactory {
        CudaThinkerFactory { recorder, ..self }
    }
}

impl StageFactory for CudaThinkerFactory {
    fn build(&self) -> Result<Box<dyn StageModel>, LoadError> {
        Ok(Box::new(CudaThinker::new(Arc::clone(&self.net), &self.options, self.recorder.clone())?))
    }
}

/// Sequences of the thinker on a GPU.
pub struct CudaThinker {
    pub(super) net: Arc<ThinkerNet>,
    pub(super) stream: Stream,
    pub(super) steps: Steps,
    pub(super) ring: Arc<Ring>,
    sequences: HashMap<Slot, Sequence>,
    pages: Pages,
    /// Copies that the next launch makes first.
    pub(super) uploads: Vec<Upload>,
    pub(super) arena: EmbeddingArena,
    pub(super) embeddings_in_step: bool,
}

/// Bytes for the device, and the element that they begin at.
pub(super) enum Upload {
    Params(usize, Vec<u8>),
    PageTable(usize, Vec<u8>),
    Counts(usize, Vec<u8>),
}

struct Sequence {
    spec: ThinkerSpec,
    /// Prompt positions launched.
    prefilled: u32,
    /// The limit on tokens was reached by a launch.
    exhausted: bool,
    /// Set by the step that ended the sequence.
    finished: Arc<AtomicBool>,
    answer: Answer,
    /// `None` for a prompt of text.
    media: Option<PromptMedia>,
}

impl Sequence {
    /// Puts the embeddings of the media at some positions of the prompt into a step, whose rows of these positions begin
    /// with `first`, and what it hands on of them with `handed`.
    fn take_media(
        &mut self,
        positions: Range<u32>,
        first: usize,
        handed: usize,
        plan: &mut Plan,
    ) -> Result<(), ModelError> {
        let Some(media) = &mut self.media else { return Ok(()) };
        let hands: Vec<u32> = prompt_positions(&self.spec, positions.start, positions.len() as u32).collect();
        for at in media.positions(positions.start, positions.len() as u32) {
            let Some(row) = media.take(at) else {
                return refused(format!("the embedding of prompt position {at} is gone"));
            };
            let place = first + (at - positions.start) as usize;
            plan.media.push((place, row.flatten_all()?.to_vec1::<f32>()?));
            if let Ok(hand) = hands.binary_search(&at) {
                plan.handed[handed + hand] = NONE;
                plan.prompts[place].hand = (handed + hand) as u32;
            }
        }
        Ok(())
    }

    /// The positions that the rotation takes of position `at`.
    fn axes(&self, at: u32) -> [f32; 3] {
        let own = self.media.as_ref().and_then(PromptMedia::axes);
        own.map_or([at as f32; 3], |positions| positions.at(at as usize))
    }
}

enum Answer {
    /// `count`: tokens launched.
    Sampled {
        pages: Vec<u32>,
        count: u32,
    },
    Followed {
        waiting: VecDeque<u32>,
        ended: bool,
    },
}

/// The data that a step sends to the device.
#[derive(Default)]
pub(super) struct Plan {
    pub prompts: Vec<TokenRow>,
    pub tokens: Vec<TokenRow>,
    /// The embeddings of media that `prompts` take, in their order, with the place among them.
    pub media: Vec<(usize, Vec<f32>)>,
    /// The sources of the embeddings to hand on: tokens, slots with [`SAMPLED`], or [`NONE`] for hidden states, which
    /// the layers hand on.
    pub handed: Vec<u32>,
}

impl Plan {
    /// Adds embeddings to hand on; returns their places.
    fn hand(&mut self, tokens: impl IntoIterator<Item = u32>) -> Range<usize> {
        let from = self.handed.len();
        self.handed.extend(tokens);
        from..self.handed.len()
    }
}

impl CudaThinker {
    /// Room for sequences, and graphs.
    ///
    /// # Errors
    /// When the device has no room.
    pub fn new(net: Arc<ThinkerNet>, options: &ThinkerOptions, recorder: Recorder) -> Result<CudaThinker, LoadError> {
        net.gpu.bind()?;
        let began = std::time::Instant::now();
        let stream = net.gpu.stream(Priority::Normal)?;
        let page = net.stack.page_bytes(net.precision);
        let (free, _) = net.gpu.memory()?;
        let usual = options.slots * USUAL_POSITIONS.min(net.config.max_position_embeddings).div_ceil(PAGE);
        let pages = match options.kv_memory {
            Some(bytes) => bytes as usize / page,
            None => usual.min((free as f64 * MOST_OF_FREE) as usize / page),
        };
        if pages < 2 {
            let have = options.kv_memory.map_or(free, |bytes| bytes as usize) / MIB;
            let reason = format!("{have} MiB hold no KV cache, of which a page takes {} MiB", page.div_ceil(MIB));
            return Err(LoadError::Invalid { file: "device.kv_memory".into(), reason });
        }
        let steps = Steps::new(&net, options, &stream, pages)?;
        let input = (steps.prompt_embeddings() + steps.batch() + 8) * size_of::<TokenRow>() + (1 << 16);
        let ring = Ring::new(&net.gpu, options.run_ahead + 2, input, 2 * steps.batch())?;
        let sequence = net.config.hidden_size * element_bytes(net.precision);
        let copied = (steps.prompt_embeddings() + steps.batch()) * sequence;
        let copies = HostCopies::new(&net.gpu, HOST_COPIES, copied, CopyMetrics::new(StageName::Thinker, recorder))?;
        let arena_embeddings = options.slots * HANDED_ROWS + 2 * steps.prompt_embeddings();
        let arena =
            EmbeddingArena::new(&net.gpu, arena_embeddings, net.config.hidden_size, net.precision, Arc::new(copies))?;
        let (after, total) = net.gpu.memory()?;
        tracing::info!(
            kv_pages = pages,
            kv_positions = pages * PAGE,
            kv_mib = pages * page / MIB,
            gpu_mib_used = (total - after) / MIB,
            took_ms = began.elapsed().as_millis() as u64,
            "thinker is ready on the GPU"
        );
        Ok(CudaThinker {
            stream,
            steps,
            ring,
            sequences: HashMap::new(),
            pages: Pages::new(pages as u32),
            uploads: Vec::new(),
            arena,
            embeddings_in_step: options.embeddings_in_step,
            net,
        })
    }

    /// Pages of the cache: in use, and in all.
    pub fn kv_pages(&self) -> (usize, usize) {
        (self.pages.in_use(), self.pages.count())
    }

    /// One sequence's part of a step; what the device needs goes into `plan`.
    fn plan(&mut self, work: SequenceWork, plan: &mut Plan) -> Result<Part, ModelError> {
        let SequenceWork { slot, advance } = work;
        let sequence = self.sequences.get_mut(&slot).ok_or_else(|| not_open(slot))?;
        if sequence.exhausted || sequence.finished.load(Ordering::Acquire) {
            return Ok(Part::Known(Ok(SequenceOutput { stale: true, ..SequenceOutput::default() }), 0..0));
        }
        let len = sequence.spec.prompt.len() as u32;
        let (from, left) = (sequence.prefilled, len - sequence.prefilled);
        if left > 0 && (advance == 0 || advance > left) {
            return refused(format!("{slot}: asked for {advance} of {left} prompt positions"));
        }
        let count = match &mut sequence.answer {
            Answer::Followed { .. } if left > 0 => {
                sequence.prefilled += advance;
                let handed = plan.hand(prompt_embeddings(&sequence.spec, from, advance));
                return Ok(Part::Known(Ok(SequenceOutput::default()), handed));
            }
            Answer::Followed { waiting, ended } => {
                let want = advance as usize;
                if want > waiting.len() || (want == 0 && !*ended) {
                    return refused(format!("{slot}: asked for {want} tokens, {} are there", waiting.len()));
                }
                let followed: Vec<u32> = waiting.drain(..want).collect();
                let finish = (*ended && waiting.is_empty()).then_some(FinishReason::Stop);
                sequence.finished.store(finish.is_some(), Ordering::Release);
                let output = SequenceOutput { sampled: followed.last().copied(), finish, ..SequenceOutput::default() };
                let handed = plan.hand(followed.into_iter().filter(|_| sequence.spec.emit.is_some()));
                return Ok(Part::Known(Ok(output), handed));
            }
            Answer::Sampled { count, .. } => *count,
        };
        if left == 0 && advance != 1 {
            return refused(format!("{slot}: asked for {advance} units, a decode step is 1"));
        }
        let samples = left <= advance;
        if samples && plan.tokens.len() == self.steps.batch() {
            return refused(format!("a step has room for {} sequences", self.steps.batch()));
        }
        let positions = if left > 0 { from + advance } else { len + count - sequence.spec.generated_len };
        self.grow(slot, positions as usize)?;
        let sequence = self.sequences.get_mut(&slot).ok_or_else(|| not_open(slot))?;
        if let Some(media) = sequence.media.as_ref().filter(|_| left > 0) {
            media.check_arrived(from, advance)?;
        }
        let prompt = Arc::clone(&sequence.spec.prompt);
        let entry = |sequence: &Sequence, at: u32, token: u32| {
            let axes = sequence.axes(at);
            TokenRow { slot: slot.0, position: at as i32, token, axes, ..TokenRow::PADDING }
        };
        let mut handed = 0..0;
        let mut token = NONE;
        if left > 0 {
            sequence.prefilled += advance;
            handed = plan.hand(prompt_embeddings(&sequence.spec, from, advance));
            let upto = sequence.prefilled - u32::from(samples);
            let first = plan.prompts.len();
            plan.prompts.extend((from..upto).map(|at| entry(sequence, at, prompt[at as usize])));
            sequence.take_media(from..upto, first, handed.start, plan)?;
            token = prompt[upto as usize % prompt.len()];
        }
        if !samples {
            return Ok(Part::Known(Ok(SequenceOutput::default()), handed));
        }
        if let Answer::Sampled { count, .. } = &mut sequence.answer {
            *count += 1;
            sequence.exhausted = *count >= sequence.spec.max_tokens;
        }
        let flags = if sequence.exhausted { LAST } else { 0 };
        plan.tokens.push(TokenRow { count, flags, ..entry(sequence, positions - 1, token) });
        if sequence.spec.emit.is_some() {
            let own = plan.hand([SAMPLED | slot.0]);
            handed = if handed.is_empty() { own } else { handed.start..own.end };
        }
        Ok(Part::Token { at: plan.tokens.len() - 1, sequences: handed, finished: Arc::clone(&sequence.finished) })
    }

    /// Gives a sequence pages for its first `positions` positions.
    fn grow(&mut self, slot: Slot, positions: usize) -> Result<(), ModelError> {
        let (max_pages, model) = (self.steps.cache.max_pages(), self.net.config.max_position_embeddings);
        if positions > model {
            return refused(format!(
                "the context is full: {positions} positions are wanted and the model has {model} (max_position_embeddings)"
            ));
        }
        let sequence = self.sequences.get_mut(&slot).ok_or_else(|| not_open(slot))?;
        let Answer::Sampled { pages, .. } = &mut sequence.answer else { return Ok(()) };
        let before = pages.len();
        while pages.len() < positions.div_ceil(PAGE) {
            let page = if pages.len() < max_pages { self.pages.take() } else { None };
            match page {
                Some(page) => pages.push(page),
                None => {
                    pages.drain(before..).for_each(|page| self.pages.give_back(page));
                    return refused(format!(
                        "the thinker's KV cache is full: {} pages of {PAGE} positions are in use; raise device.kv_memory or lower limits.max_requests",
                        self.pages.in_use()
                    ));
                }
            }
        }
        if pages.len() > before {
            let bytes = pages[before..].iter().flat_map(|page| page.to_le_bytes()).collect();
            self.uploads.push(Upload::PageTable(slot.0 as usize * max_pages + before, bytes));
        }
        Ok(())
    }
}

impl StageModel for CudaThinker {
    fn open(&mut self, slot: Slot, spec: SequenceSpec) -> Result<(), ModelError> {
        let SequenceSpec::Thinker(spec) = spec else {
            return refused(format!("{slot}: the thinker cannot open {spec:?}"));
        };
        if self.sequences.contains_key(&slot) {
            return refused(format!("{slot} is open already"));
        }
        check(&spec, self.net.vocabulary(), self.net.config.max_position_embeddings)?;
        let media = match &spec.media {
            Some(layout) => {
                self.net.whole.check_media(layout, spec.asked().len())?;
                let last = spec.prompt.len() - 1;
                if layout.spans.iter().flat_map(|span| &span.at).any(|range| range.contains(&last)) {
                    return refused("a prompt that ends with media is not served on a GPU");
                }
                Some(PromptMedia::new(&self.net.whole, layout))
            }
            None => None,
        };
        let at = slot.0 as usize;
        if at >= self.steps.done.len() {
            return refused(format!("{slot}: there are {} slots", self.steps.done.len()));
        }
        let answer = match spec.mode {
            ThinkerMode::Sample => {
                let params = TokenParams::new(&spec)?;
                // Queued behind all earlier steps, which may still write what this clears.
                self.steps.done.zero_async(&self.stream, at, 1)?;
                let size = self.net.config.vocab_size;
                self.steps.counts.zero_async(&self.stream, at * size, size)?;
                self.uploads.push(Upload::Params(at * size_of::<TokenParams>(), params.bytes().to_vec()));
                // The counts that penalties use; the steps that compute the prompt mark its tokens.
                let mut history = History::default();
                spec.answered().iter().for_each(|token| history.push(*token));
                let told = |(token, count): &(u32, u32)| {
                    Upload::Counts(at * size + *token as usize, count.to_le_bytes().into())
                };
                self.uploads.extend(history.counts().iter().map(told));
                Answer::Sampled { pages: Vec::new(), count: spec.generated_len }
            }
            ThinkerMode::Follow => Answer::Followed { waiting: VecDeque::new(), ended: false },
        };
        self.sequences
            .insert(slot, Sequence { spec, prefilled: 0, exhausted: false, finished: Arc::default(), answer, media });
        Ok(())
    }

    fn push_input(&mut self, slot: Slot, input: Option<StageData>, end: bool) -> Result<(), ModelError> {
        let vocabulary = self.net.vocabulary();
        let sequence = self.sequences.get_mut(&slot).ok_or_else(|| not_open(slot))?;
        let Answer::Followed { waiting, ended } = &mut sequence.answer else {
            return match (&mut sequence.media, input) {
                (None, _) => refused(format!("{slot}: a thinker sequence that samples its answer takes no input")),
                (Some(media), Some(StageData::Embeddings(embeddings))) => media.push(Some(embeddings), end),
                (Some(media), None) => media.push(None, end),
                (Some(_), Some(_)) => refused(format!("{slot}: a prompt with media takes their embeddings only")),
            };
        };
        if *ended {
            return refused(format!("{slot}: tokens after the end of the answer"));
        }
        if let Some(input) = input {
            waiting.extend(input.into_tokens(slot, vocabulary)?);
        }
        *ended = end;
        Ok(())
    }

    fn launch(&mut self, work: &[SequenceWork]) -> Result<Launched, ModelError> {
        let mut plan = Plan::default();
        let mut parts = Vec::with_capacity(work.len());
        for work in work {
            match self.plan(*work, &mut plan) {
                Ok(part) => parts.push(part),
                Err(ModelError::Sequence(reason)) => parts.push(Part::Known(refused(reason), 0..0)),
                Err(error) => return Err(error),
            }
        }
        let (lease, handed) = self.queue(&plan)?;
        let shape = (self.net.config.hidden_size, self.net.precision);
        Ok(Launched::Pending(Box::new(Pending { ring: self.ring.clone(), lease: Some(lease), parts, handed, shape })))
    }

    fn close(&mut self, slot: Slot) {
        if let Some(Sequence { answer: Answer::Sampled { pages, .. }, .. }) = self.sequences.remove(&slot) {
            // Steps with the sequence are queued before any step of the sequence that gets the pages next.
            pages.into_iter().for_each(|page| self.pages.give_back(page));
        }
    }

    fn live_sequences(&self) -> usize {
        self.sequences.len()
    }

    fn break_device(&mut self) -> Result<(), ModelError> {
        Ok(self.net.gpu.break_context(&self.stream)?)
    }
}

impl Drop for CudaThinker {
    fn drop(&mut self) {
        // Queued work uses the memory that is dropped here. A step reports any error.
        let _ = self.stream.synchronize();
    }
}
