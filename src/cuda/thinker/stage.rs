//! The thinker stage on a GPU: [`StageModel`] around the graphs of [`Steps`].
//!
//! Units and their meaning are those of the CPU's stage ([`omni_model::stages::thinker`]). The last position of a
//! prompt runs with the sequences that decode, because it gives a token too. A launch never waits: a step reads a
//! sequence's last token where the step before left it on the device.
//!
//! Sequences share the pages of what their prompts begin with ([`PagedPrompts`]). All work is queued on one stream, so a
//! page that one step fills is read by later ones alone, and a page that was given back is written behind all that read
//! it. Pages are kept behind the launch that completes them: no step takes over what the same step computes.

use super::host::HostPages;
use super::net::ThinkerNet;
use super::options::{KeptMemory, ThinkerOptions};
use super::pending::{News, Part, Pending, Place, Serial};
use super::persistent::Persistent;
use super::sequence::{Answer, Plan, Sequence, Target};
use super::steps::Steps;
use super::table::{SAMPLED, TokenParams, TokenRow};
use crate::copies::{EmbeddingArena, HostCopies};
use crate::decoder::PAGE;
use crate::spinning::GpuUser;
use crate::talker::ring::Ring;
use crate::talker::table::{LAST, NONE, Record};
use crate::upload::Upload;
use crate::{Priority, Stream};
use omni_core::ids::{FinishReason, Slot, StageName};
use omni_model::embeddings::element_bytes;
use omni_model::error::{not_open, refused};
use omni_model::sampling::History;
use omni_model::stage::{
    Launched, SequenceOutput, SequenceSpec, SequenceWork, StageData, StageFactory, StageModel, ThinkerMode,
};
use omni_model::stages::media::PromptMedia;
use omni_model::stages::thinker::{check, prompt_embeddings};
use omni_model::stages::{PagedPrompts, Planned};
use omni_model::{LoadError, ModelError};
use omni_telemetry::CopyMetrics;
use omni_telemetry::trace::Recorder;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Positions of a sequence that the cache has room for when the config does not say how large it is.
const USUAL_POSITIONS: usize = 2048;
/// Share of the free memory that such a cache takes at most: talker and vocoder need memory too.
const MOST_OF_FREE: f64 = 0.3;
/// Embeddings that usually wait at the talker, per sequence.
const HANDED_ROWS: usize = 256;
/// Copies to the host, one per step, that are under way or not yet used.
const HOST_COPIES: usize = 16;
const MIB: usize = 1 << 20;

/// Makes [`CudaThinker`]s that share weights.
pub struct CudaThinkerFactory {
    net: Arc<ThinkerNet>,
    options: ThinkerOptions,
    kept: KeptMemory,
    recorder: Recorder,
}

impl CudaThinkerFactory {
    /// For weights that are loaded; keeps no prompts.
    pub fn new(net: Arc<ThinkerNet>, options: ThinkerOptions) -> CudaThinkerFactory {
        CudaThinkerFactory { net, options, kept: KeptMemory::default(), recorder: Recorder::default() }
    }

    /// Has each stage keep prompts that no sequence uses, for sequences that begin alike.
    #[must_use]
    pub fn keeping(self, kept: KeptMemory) -> CudaThinkerFactory {
        CudaThinkerFactory { kept, ..self }
    }

    /// Has the stage record its copies there.
    pub fn with_recorder(self, recorder: Recorder) -> CudaThinkerFactory {
        CudaThinkerFactory { recorder, ..self }
    }
}

impl StageFactory for CudaThinkerFactory {
    fn build(&self) -> Result<Box<dyn StageModel>, LoadError> {
        Ok(Box::new(CudaThinker::new(Arc::clone(&self.net), &self.options, &self.kept, self.recorder.clone())?))
    }
}

/// Sequences of the thinker on a GPU.
pub struct CudaThinker {
    pub(super) net: Arc<ThinkerNet>,
    pub(super) stream: Stream,
    pub(super) steps: Steps,
    pub(super) ring: Arc<Ring>,
    sequences: HashMap<Slot, Sequence>,
    /// Sequences that were opened.
    opened: u64,
    pub(super) prompts: PagedPrompts,
    /// `None` where the host keeps no pages.
    pub(super) host: Option<HostPages>,
    /// What steps that have run tell; `None` where no prompts are kept.
    news: Option<(Sender<News>, Receiver<News>)>,
    /// Copies that the next launch makes first.
    pub(super) uploads: Vec<Upload<Target>>,
    pub(super) arena: EmbeddingArena,
    pub(super) embeddings_in_step: bool,
    /// `None` where its launches may take the whole GPU: then they wait for other stages, and not others for them.
    user: Option<GpuUser>,
}

impl CudaThinker {
    /// Room for sequences, and graphs.
    ///
    /// # Errors
    /// When the device has no room.
    pub fn new(
        net: Arc<ThinkerNet>,
        options: &ThinkerOptions,
        kept: &KeptMemory,
        recorder: Recorder,
    ) -> Result<CudaThinker, LoadError> {
        net.gpu.bind()?;
        let began = std::time::Instant::now();
        let stream = net.gpu.stream(Priority::Normal)?;
        let sequence = net.config.hidden_size * element_bytes(net.precision);
        let states = if kept.device > 0 && net.takes_media() { PAGE * sequence } else { 0 };
        let page = net.stack.page_bytes(net.precision) + states;
        let (free, _) = net.gpu.memory()?;
        let usual =
            options.slots * USUAL_POSITIONS.min(net.config.max_position_embeddings).div_ceil(PAGE) + kept.device / page;
        let pages = match options.kv_memory {
            Some(bytes) => bytes as usize / page,
            None => usual.min((free as f64 * MOST_OF_FREE) as usize / page),
        };
        if pages < 2 {
            let have = options.kv_memory.map_or(free, |bytes| bytes as usize) / MIB;
            let reason = format!("{have} MiB hold no KV cache, of which a page takes {} MiB", page.div_ceil(MIB));
            return Err(LoadError::Invalid { file: "device.kv_memory".into(), reason });
        }
        let steps = Steps::new(&net, options, &stream, (pages, states))?;
        let input = (steps.prompt_embeddings() + steps.batch() + 8) * size_of::<TokenRow>() + (1 << 16);
        let ring = Ring::new(&net.gpu, options.run_ahead + 2, input, 2 * steps.batch())?;
        let copied = (steps.prompt_embeddings() + steps.batch()) * sequence;
        let copies = HostCopies::new(&net.gpu, HOST_COPIES, copied, CopyMetrics::new(StageName::Thinker, recorder))?;
        let arena_embeddings = options.slots * HANDED_ROWS + 2 * steps.prompt_embeddings();
        let arena =
            EmbeddingArena::new(&net.gpu, arena_embeddings, net.config.hidden_size, net.precision, Arc::new(copies))?;
        let slots = if kept.device > 0 { (kept.host / page).min(u32::MAX as usize) } else { 0 };
        let host = match slots {
            0 => None,
            slots => Some(HostPages::new(&net.gpu, &kept.memory, slots, page)?),
        };
        let (after, total) = net.gpu.memory()?;
        tracing::info!(
            kv_pages = pages,
            kv_positions = pages * PAGE,
            kv_mib = pages * page / MIB,
            kept_mib = kept.device / MIB,
            kept_host_mib = slots * page / MIB,
            gpu_mib_used = (total - after) / MIB,
            took_ms = began.elapsed().as_millis() as u64,
            "thinker is ready on the GPU"
        );
        Ok(CudaThinker {
            user: steps.persistent.is_none().then(|| GpuUser::new(&net.gpu)),
            stream,
            prompts: PagedPrompts::new(pages as u32, steps.cache.max_pages(), page, kept.device)
                .with_host(slots as u32),
            host,
            steps,
            ring,
            sequences: HashMap::new(),
            opened: 0,
            news: (kept.device > 0).then(channel),
            uploads: Vec::new(),
            arena,
            embeddings_in_step: options.embeddings_in_step,
            net,
        })
    }

    /// Pages of the cache: in use, and in all.
    pub fn kv_pages(&self) -> (usize, usize) {
        self.prompts.count()
    }

    /// Pages that are kept and that no sequence uses.
    pub fn idle_pages(&self) -> usize {
        self.prompts.idle()
    }

    /// How often the layers were one launch that stays on the GPU, and were not because another stage used it; `None` where
    /// there is no such launch.
    pub fn persisted(&self) -> Option<[u64; 2]> {
        self.steps.persistent.as_ref().map(Persistent::launches)
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
        if samples && plan.tokens.len() + plan.samples.len() == self.steps.batch() {
            return refused(format!("a step has room for {} sequences", self.steps.batch()));
        }
        let positions = if left > 0 { from + advance } else { len + count - sequence.spec.generated_len };
        let planned = self.room(slot, positions)?;
        let states = self.steps.hidden.is_some();
        let sequence = self.sequences.get_mut(&slot).ok_or_else(|| not_open(slot))?;
        if let Some(media) = sequence.media.as_mut().filter(|_| left > 0) {
            if !planned.found.is_empty() {
                media.need_none_before(planned.found.end);
            }
            media.check_arrived(planned.compute.start, planned.compute.len() as u32)?;
        }
        let prompt = Arc::clone(&sequence.spec.prompt);
        let entry = |sequence: &Sequence, at: u32, token: u32| {
            let axes = sequence.axes(at);
            TokenRow { slot: slot.0, position: at as i32, token, axes, ..TokenRow::PADDING }
        };
        let mut handed = 0..0;
        let (mut token, mut place) = (NONE, Place::Alone(plan.tokens.len()));
        if left > 0 {
            sequence.prefilled += advance;
            handed = plan.hand(prompt_embeddings(&sequence.spec, from, advance));
            if sequence.spec.sampling.repetition_penalty != 1.0 {
                plan.marked.extend(planned.found.clone().map(|at| entry(sequence, at, prompt[at as usize])));
            }
            let (start, upto) = (planned.compute.start, planned.compute.end - u32::from(samples));
            let first = plan.prompts.len();
            plan.prompts.extend((start..upto).map(|at| entry(sequence, at, prompt[at as usize])));
            sequence.take_media(from..from + advance, start..upto, (first, handed.start), states, plan)?;
            token = prompt[upto as usize % prompt.len()];
            if samples && start < upto {
                place = Place::Behind(plan.samples.len());
            }
            if let Answer::Sampled { held, .. } = &mut sequence.answer {
                held.computes(&planned);
            }
            plan.prefills.push(slot);
        }
        if !samples {
            return Ok(Part::Known(Ok(SequenceOutput::default()), handed));
        }
        let mut cached = 0;
        if let Answer::Sampled { count, held } = &mut sequence.answer {
            cached = if left > 0 { held.found() } else { 0 };
            *count += 1;
            sequence.exhausted = *count >= sequence.spec.max_tokens;
        }
        let flags = if sequence.exhausted { LAST } else { 0 };
        let row = TokenRow { count, flags, ..entry(sequence, positions - 1, token) };
        match place {
            // In one pass with the positions before it: the weights are read once.
            Place::Behind(_) => {
                plan.samples.push((plan.prompts.len(), row));
                plan.prompts.push(row);
            }
            Place::Alone(_) => plan.tokens.push(row),
        }
        if sequence.spec.emit.is_some() {
            let own = plan.hand([SAMPLED | slot.0]);
            handed = if handed.is_empty() { own } else { handed.start..own.end };
        }
        let (finished, of) = (Arc::clone(&sequence.finished), Serial { slot, number: sequence.number });
        Ok(Part::Token { place, sequences: handed, finished, of, cached })
    }

    /// Gives a sequence pages for its first `positions` positions, in a prompt those that are kept. Returns what the step
    /// has to compute.
    fn room(&mut self, slot: Slot, positions: u32) -> Result<Planned, ModelError> {
        let model = self.net.config.max_position_embeddings;
        if positions as usize > model {
            return refused(format!(
                "the context is full: {positions} positions are wanted and the model has {model} (max_position_embeddings)"
            ));
        }
        let sequence = self.sequences.get_mut(&slot).ok_or_else(|| not_open(slot))?;
        let Answer::Sampled { held, .. } = &mut sequence.answer else {
            return refused(format!("{slot}: a sequence that follows an answer has no cache"));
        };
        let planned = if (sequence.prefilled as usize) < sequence.spec.prompt.len() {
            self.prompts.prompt(held, &sequence.spec, positions)
        } else {
            let told = self.prompts.answer(held, positions);
            told.map(|told| Planned { found: 0..0, compute: positions - 1..positions, told })
        };
        let Some(planned) = planned else {
            return refused(format!(
                "the thinker's KV cache is full: {} pages of {PAGE} positions are in use; raise device.kv_memory or lower limits.max_requests",
                self.prompts.count().0
            ));
        };
        if !planned.told.is_empty() {
            if let Some(host) = &mut self.host {
                host.give(&self.stream, &held.pages()[planned.told.clone()])?;
            }
            let bytes = held.pages()[planned.told.clone()].iter().flat_map(|page| page.to_le_bytes()).collect();
            let at = slot.0 as usize * self.steps.cache.max_pages() + planned.told.start;
            self.uploads.push(Upload { slot, to: Target::PageTable, at, bytes });
        }
        Ok(planned)
    }

    /// Takes note of what the steps that have run tell: pages of answers are kept, what has failed is dropped.
    fn hear(&mut self) {
        let Some((_, news)) = &self.news else { return };
        while let Ok(News { of, sampled }) = news.try_recv() {
            // A slot may have been given to another sequence since.
            if let Some(Sequence { spec, answer: Answer::Sampled { held, .. }, .. }) =
                self.sequences.get_mut(&of.slot).filter(|sequence| sequence.number == of.number)
            {
                match sampled {
                    Some(token) => self.prompts.said(held, spec, token),
                    None => self.prompts.failed(held),
                }
            }
        }
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
                let (params, held) = (TokenParams::new(&spec)?, self.prompts.begin(&spec)?);
                // Queued behind all earlier steps, which may still write what this clears.
                self.steps.done.zero_async(&self.stream, at, 1)?;
                let size = self.net.config.vocab_size;
                self.steps.counts.zero_async(&self.stream, at * size, size)?;
                let (first, bytes) = (at * size_of::<TokenParams>(), params.bytes().to_vec());
                self.uploads.push(Upload { slot, to: Target::Params, at: first, bytes });
                // The counts that penalties use; the steps that compute the prompt mark its tokens.
                let mut history = History::default();
                spec.answered().iter().for_each(|token| history.push(*token));
                let told = |(token, count): &(u32, u32)| {
                    let (at, bytes) = (at * size + *token as usize, count.to_le_bytes().into());
                    Upload { slot, to: Target::Counts, at, bytes }
                };
                self.uploads.extend(history.counts().iter().map(told));
                Answer::Sampled { held, count: spec.generated_len }
            }
            ThinkerMode::Follow => Answer::Followed { waiting: VecDeque::new(), ended: false },
        };
        self.opened += 1;
        let (number, finished) = (self.opened, Arc::default());
        self.sequences.insert(slot, Sequence { number, spec, prefilled: 0, exhausted: false, finished, answer, media });
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
        self.hear();
        let mut plan = Plan::default();
        let mut parts = Vec::with_capacity(work.len());
        for work in work {
            match self.plan(*work, &mut plan) {
                Ok(part) => parts.push(part),
                Err(ModelError::Sequence(reason)) => parts.push(Part::Known(refused(reason), 0..0)),
                Err(error) => return Err(error),
            }
        }
        let using = self.user.as_ref().map(|user| user.begin(&self.stream)).transpose()?;
        let (lease, handed) = self.queue(&plan)?;
        for slot in &plan.prefills {
            if let Some(Sequence { spec, answer: Answer::Sampled { held, .. }, .. }) = self.sequences.get_mut(slot) {
                self.prompts.queued(held, spec);
            }
        }
        let (ring, shape) = (Arc::clone(&self.ring), (self.net.config.hidden_size, self.net.precision));
        let news = self.news.as_ref().map(|(news, _)| news.clone());
        let stalled = self.steps.persistent.as_ref().map(|persistent| Arc::clone(persistent.stalled()));
        let (behind, _media, lease) = (plan.samples.len(), plan.media, Some(lease));
        let pending = Pending { ring, lease, parts, behind, handed, shape, using, stalled, _media, news };
        Ok(Launched::Pending(Box::new(pending)))
    }

    fn close(&mut self, slot: Slot) {
        self.hear();
        // What no launch has copied yet is not about the sequence that gets the slot next.
        self.uploads.retain(|upload| upload.slot != slot);
        if let Some(Sequence { answer: Answer::Sampled { held, .. }, .. }) = self.sequences.remove(&slot) {
            // Steps with the sequence are queued before any step of the sequence that gets the pages next.
            self.prompts.end(held);
            let copies = self.prompts.to_save();
            if let Some(host) = &mut self.host
                && let Err(error) = host.save(&self.stream, &self.steps, &copies)
            {
                // The next step fails with the same error.
                tracing::error!(%error, "cannot copy kept prompts to the host");
            }
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
        self.host = None;
    }
}
