//! The talker stage on a GPU: [`StageModel`] around the graphs of [`Frames`].
//!
//! Units and their meaning are those of the CPU's stage ([`omni_model::stages::talker`]). A launch never waits: it
//! packs the step's input into page-locked memory, queues copies and graphs, and returns the pending step.

use super::arrivals::{Arrival, Intake, hidden};
use super::frame::{Frames, MAX_SAMPLED};
use super::net::{TalkerNet, Text};
use super::pending::{Part, Pending, out_words, time_words};
use super::persistent::Persistent;
use super::plan::Step;
use super::prompt::{PageKey, Special};
use super::ring::Ring;
use super::swap::Swapped;
use super::table::{Record, SlotParams};
use crate::Priority;
use crate::decoder::PAGE;
use crate::persistent::LIMIT;
use crate::spinning::GpuUser;
use crate::stream::Stream;
use crate::upload::Upload;
use metrics::Histogram;
use omni_core::ids::{Slot, StageName};
use omni_model::error::refused;
use omni_model::pages::Pages;
use omni_model::stage::{Launched, SequenceSpec, SequenceWork, StageData, StageFactory, StageModel, TalkerSpec};
use omni_model::{LoadError, ModelError};
use omni_telemetry::trace::Recorder;
use omni_telemetry::{CopyMetrics, DeviceMetrics};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Positions of a sequence that the cache has room for when the config does not say how large it is.
const USUAL_POSITIONS: usize = 512;
/// Share of the free memory that such a cache takes at most.
const MOST_OF_FREE: f64 = 0.5;
const MIB: usize = 1 << 20;

/// How large a talker is.
#[derive(Clone, Debug)]
pub struct TalkerOptions {
    /// Sequences that hold state at once.
    pub slots: usize,
    /// Sequences for which graphs are captured, ascending.
    pub buckets: Vec<usize>,
    /// Prompt positions of a step.
    pub prefill_chunk: usize,
    /// Steps launched ahead.
    pub run_ahead: usize,
    /// Bytes for keys and values; `None`: what the slots usually need.
    pub kv_memory: Option<u64>,
    /// Embeddings of a thinker that have arrived and are not used yet, over all slots.
    pub text_embeddings: usize,
    /// Whether such embeddings are copied to the device as soon as they arrive, beside the steps.
    pub async_h2d: bool,
    /// The longest time of a launch of a persistent kernel; `None`: everything runs as a graph.
    pub persistent: Option<Duration>,
}

impl TalkerOptions {
    /// The limit of a persistent kernel's launches.
    pub const PERSISTENT: Duration = LIMIT;

    /// Sequences of the largest graph.
    pub fn batch(&self) -> usize {
        self.buckets.last().copied().unwrap_or(1)
    }
}

/// Makes [`CudaTalker`]s that share weights.
pub struct CudaTalkerFactory {
    net: Arc<TalkerNet>,
    options: TalkerOptions,
    recorder: Recorder,
}

impl CudaTalkerFactory {
    /// For weights that are loaded.
    pub fn new(net: Arc<TalkerNet>, options: TalkerOptions) -> CudaTalkerFactory {
        CudaTalkerFactory { net, options, recorder: Recorder::default() }
    }

    /// Has the stage record its copies there.
    pub fn with_recorder(self, recorder: Recorder) -> CudaTalkerFactory {
        CudaTalkerFactory { recorder, ..self }
    }
}

impl StageFactory for CudaTalkerFactory {
    fn build(&self) -> Result<Box<dyn StageModel>, LoadError> {
        Ok(Box::new(CudaTalker::new(Arc::clone(&self.net), &self.options, self.recorder.clone())?))
    }
}

/// Sequences of the talker on a GPU.
pub struct CudaTalker {
    pub(super) net: Arc<TalkerNet>,
    pub(super) stream: Stream,
    user: GpuUser,
    pub(super) frames: Frames,
    pub(super) ring: Arc<Ring>,
    /// The place of a frame's times in the output of a step.
    pub(super) times_at: usize,
    pub(super) sequences: BTreeMap<Slot, Sequence>,
    pub(super) pages: Pages<PageKey>,
    pub(super) special: Special,
    /// Free rows of the table of text, for a talker that does not read itself.
    pub(super) text_free: Vec<u32>,
    /// Copies that the next launch makes first.
    pub(super) uploads: Vec<Upload<Target>>,
    /// Embeddings of a thinker that the next launch projects.
    pub(super) arrivals: Vec<Arrival>,
    /// For a talker that has a thinker.
    pub(super) intake: Option<Intake>,
    pub(super) order: u64,
    pub(super) copies: CopyMetrics,
    /// By bucket: how long steps took that had only a frame.
    pub(super) timed: Arc<[(usize, Histogram)]>,
}

/// Where an upload goes.
#[derive(Clone, Copy)]
pub(super) enum Target {
    Params,
    XVectors,
    PageTable,
    Counts,
}

/// One sequence.
pub(super) struct Sequence {
    pub(super) spec: TalkerSpec,
    /// Rows of the table of text.
    pub(super) inputs: Vec<u32>,
    /// The first input from a thinker that is not used yet.
    pub(super) unused: usize,
    pub(super) ended: bool,
    /// Prompt positions launched.
    pub(super) prefilled: u32,
    /// Codes 0 launched.
    pub(super) count: u32,
    pub(super) pages: Vec<u32>,
    /// Known pages at the beginning of the prompt.
    pub(super) keys: Vec<PageKey>,
    pub(super) kept: usize,
    pub(super) swapped: Option<Swapped>,
    /// The limit was reached by a launch.
    pub(super) exhausted: bool,
    /// Set by the step that saw the end.
    pub(super) finished: Arc<AtomicBool>,
    pub(super) order: u64,
}

impl Sequence {
    /// Inputs that no later launch reads.
    fn used(&self) -> usize {
        if self.prefilled < self.spec.prefill_positions() {
            return self.unused;
        }
        (self.spec.prompt.used(self.count - self.spec.generated_len) as usize).min(self.inputs.len())
    }
}

impl CudaTalker {
    /// Room for sequences, and graphs.
    ///
    /// # Errors
    /// When the device has no room, or the sizes are beyond what the kernels take.
    pub fn new(net: Arc<TalkerNet>, options: &TalkerOptions, recorder: Recorder) -> Result<CudaTalker, LoadError> {
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
        let user = GpuUser::new(&net.gpu);
        // Persistent kernels run before they are captured.
        let using = user.begin(&stream)?;
        let frames = Frames::new(&net, options, &stream, pages)?;
        using.ended();
        let (frame, prompt) = (frames.frame_layout.bytes, frames.prompt_layout.bytes);
        let times_at = options.batch() * out_words(config.num_code_groups);
        let words = times_at + time_words(config.num_code_groups);
        let ring = Ring::new(&net.gpu, options.run_ahead + 2, frame + 2 * prompt + (1 << 16), words)?;
        let (special, text_free) = match net.text {
            Text::Table { pad, bos, eos, .. } => (Special { pad, bos, eos }, Vec::new()),
            Text::Embeddings { .. } => {
                (Special { pad: 0, bos: 1, eos: 2 }, (3..3 + options.text_embeddings as u32).rev().collect())
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
            user,
            frames,
            ring,
            times_at,
            sequences: BTreeMap::new(),
            pages: Pages::new(pages as u32, pages),
            special,
            text_free,
            uploads: Vec::new(),
            arrivals: Vec::new(),
            copies: CopyMetrics::new(StageName::Talker, recorder),
            intake: Intake::new(&net, options.async_h2d)?,
            order: 0,
            net,
        })
    }

    /// Pages of the cache: in use, and in all.
    pub fn kv_pages(&self) -> (usize, usize) {
        (self.pages.in_use(), self.pages.count())
    }

    /// Whether the layers, and the predictor, stay on the GPU.
    pub fn persists(&self) -> [bool; 2] {
        self.frames.persistent.as_ref().map_or([false; 2], Persistent::has)
    }

    pub(super) fn groups(&self) -> usize {
        self.net.config.num_code_groups
    }
}

impl StageModel for CudaTalker {
    fn open(&mut self, slot: Slot, spec: SequenceSpec) -> Result<(), ModelError> {
        let SequenceSpec::Talker(spec) = spec else {
            return refused(format!("{slot}: the talker cannot open {spec:?}"));
        };
        if self.sequences.contains_key(&slot) {
            return refused(format!("{slot} is open already"));
        }
        let config = &self.net.config;
        spec.check(config)?;
        if !spec.prompt.media().is_empty() && !self.net.takes_media() {
            return refused("this checkpoint's talker has no hidden_projection: it takes no hidden states of media");
        }
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
        // Queued behind all earlier steps, which may still write what this clears.
        self.frames.done.zero_async(&self.stream, at, 1)?;
        self.frames.counts.zero_async(&self.stream, at * vocabulary, vocabulary)?;
        if spec.generated_len > 0 {
            // The counts that penalties use.
            let mut counts = vec![0u32; vocabulary];
            spec.said_codes(config.num_code_groups).for_each(|code| counts[code as usize] += 1);
            let bytes = counts.iter().flat_map(|count| count.to_le_bytes()).collect();
            self.uploads.push(Upload { slot, to: Target::Counts, at: at * vocabulary, bytes });
        }
        let bytes = params.bytes().to_vec();
        self.uploads.push(Upload { slot, to: Target::Params, at: at * size_of::<SlotParams>(), bytes });
        if let Some(vector) = spec.prompt.x_vector() {
            let bytes = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
            self.uploads.push(Upload { slot, to: Target::XVectors, at: at * hidden, bytes });
        }
        self.order += 1;
        let sequence = Sequence {
            inputs: Vec::new(),
            unused: 0,
            ended: false,
            prefilled: 0,
            count: spec.generated_len,
            pages: Vec::new(),
            keys: Vec::new(),
            kept: 0,
            swapped: None,
            exhausted: false,
            finished: Arc::default(),
            order: self.order,
            spec,
        };
        self.sequences.insert(slot, sequence);
        Ok(())
    }

    fn push_input(&mut self, slot: Slot, input: Option<StageData>, end: bool) -> Result<(), ModelError> {
        let Some(sequence) = self.sequences.get_mut(&slot) else { return refused(format!("{slot} is not open")) };
        if sequence.ended {
            return refused(format!("{slot}: sequences after the end of the text"));
        }
        match (input, self.net.text_vocabulary()) {
            (None, _) => {}
            (Some(StageData::Tokens(tokens)), Some(vocabulary)) => {
                if let Some(token) = tokens.iter().find(|token| **token >= vocabulary) {
                    return refused(format!("token {token} is outside the vocabulary of {vocabulary}"));
                }
                sequence.inputs.extend(tokens);
            }
            (Some(StageData::Embeddings(sequences)), None) => {
                let wanted = self.net.config.text_hidden_size;
                let count = match sequences.shape() {
                    (n, width) if n > 0 && width == wanted => n,
                    shape => return refused(format!("{slot}: expected sequences [n, {wanted}], got {shape:?}")),
                };
                // Text behind the end of the speech is not read.
                if !sequence.finished.load(Ordering::Acquire) && !sequence.exhausted {
                    if self.text_free.len() < count {
                        return refused(
                            "there is no room for so much text at once on the GPU: try again, or send less",
                        );
                    }
                    let places = self.text_free.split_off(self.text_free.len() - count);
                    let hidden = hidden(sequence.spec.prompt.media(), sequence.inputs.len() as u32, count as u32);
                    sequence.inputs.extend(&places);
                    if let Some(intake) = &self.intake {
                        self.arrivals.push(intake.take(slot, &sequences, self.net.precision, places, hidden)?);
                    }
                }
            }
            (_, Some(_)) => return refused(format!("{slot}: this talker takes tokens of text only")),
            (_, None) => return refused(format!("{slot}: this talker takes sequences of its thinker only")),
        }
        sequence.ended = end;
        Ok(())
    }

    fn launch(&mut self, work: &[SequenceWork]) -> Result<Launched, ModelError> {
        let busy: HashSet<Slot> = work.iter().map(|work| work.slot).collect();
        let mut step = Step::default();
        let mut parts = Vec::with_capacity(work.len());
        for work in work {
            match self.plan(*work, &busy, &mut step) {
                Ok(part) => parts.push(part),
                Err(ModelError::Sequence(reason)) => parts.push(Part::Known(refused(reason))),
                Err(error) => return Err(error),
            }
        }
        let using = self.user.begin(&self.stream)?;
        let lease = self.queue(&mut step)?;
        // Queued behind the step: its memory can be used again.
        for work in work {
            if let (Some(sequence), true) = (self.sequences.get_mut(&work.slot), self.net.text_vocabulary().is_none()) {
                let used = sequence.used();
                self.text_free.extend_from_slice(&sequence.inputs[sequence.unused..used]);
                sequence.unused = used;
            }
        }
        Ok(Launched::Pending(Box::new(Pending {
            ring: Arc::clone(&self.ring),
            lease: Some(lease),
            parts,
            timed: Arc::clone(&self.timed),
            using,
            stalled: self.frames.persistent.as_ref().map(|persistent| Arc::clone(persistent.stalled())),
            groups: self.groups(),
            times_at: self.times_at,
            _held: step.held,
            arrivals: step.arrivals,
            copies: self.copies.clone(),
        })))
    }

    fn close(&mut self, slot: Slot) {
        if let Some(sequence) = self.sequences.remove(&slot) {
            sequence.pages.into_iter().for_each(|page| self.pages.give_back(page));
            // What no launch has copied or projected yet is not for the sequence that gets the slot, or the rows, next.
            self.uploads.retain(|upload| upload.slot != slot);
            self.arrivals.retain(|arrival| arrival.slot() != slot);
            if self.net.text_vocabulary().is_none() {
                self.text_free.extend_from_slice(&sequence.inputs[sequence.unused..]);
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

impl Drop for CudaTalker {
    fn drop(&mut self) {
        // Queued work uses the memory that is dropped here. A step reports any error.
        let _ = self.stream.synchronize();
    }
}
