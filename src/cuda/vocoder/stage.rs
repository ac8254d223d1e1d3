//! The vocoder stage on a GPU. Units are frames; each step emits the samples of the frames that it consumed.

use super::contexts::{Context, Contexts};
use super::lease::{Lease, Pool, Span};
use super::net::CudaVocoder;
use super::plan::{Launch, batches, plan};
use super::workspace::{HEAD, ROW_WORDS, Workspace};
use crate::spinning::{GpuUse, GpuUser};
use crate::{CudaError, Graph, Priority, Stream};
use omni_core::ids::{FinishReason, Slot};
use omni_model::error::not_open;
use omni_model::no_block;
use omni_model::stage::{
    DeviceTimes, Launched, PendingStep, SequenceOutput, SequenceSpec, SequenceWork, StageData, StageFactory,
    StageModel, StepOutcome,
};
use omni_model::{LoadError, ModelError};
use omni_telemetry::{self as telemetry, Phases};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// Launches whose memory is allocated at the start.
const LEASES: usize = 8;

/// Makes `CudaVocoderStage`s that share one net.
pub struct CudaVocoderFactory {
    net: Arc<CudaVocoder>,
}

impl CudaVocoderFactory {
    /// For a loaded net.
    pub fn new(net: Arc<CudaVocoder>) -> CudaVocoderFactory {
        CudaVocoderFactory { net }
    }
}

impl StageFactory for CudaVocoderFactory {
    fn build(&self) -> Result<Box<dyn StageModel>, LoadError> {
        Ok(Box::new(CudaVocoderStage::new(&self.net)?))
    }
}

/// Sequences of the vocoder on one stream of a GPU.
struct CudaVocoderStage {
    net: Arc<CudaVocoder>,
    stream: Stream,
    user: GpuUser,
    workspace: Workspace,
    /// By sequences and frames.
    graphs: BTreeMap<(usize, usize), Graph>,
    pool: Arc<Pool>,
    sequences: HashMap<Slot, Sequence>,
    /// By slot of the arena.
    places: Vec<Place>,
    free: Vec<usize>,
    contexts: Contexts,
}

/// The position of the stream in a slot after all queued work.
#[derive(Clone, Copy, Default)]
struct Place {
    frames: usize,
    /// The half of the histories that is current.
    parity: u32,
}

struct Sequence {
    slot: usize,
    phase: Phase,
    /// Codes of frames that have not been launched, all of them in range.
    waiting: VecDeque<u32>,
    ended: bool,
    finished: bool,
}

/// What a sequence's next units are.
enum Phase {
    /// Frames of its context; so many are done.
    Context(Rc<RefCell<Context>>, usize),
    /// Frames of its own.
    Speech,
}

/// Frames that a stream decodes in a step.
struct Job {
    slot: usize,
    codes: Vec<u32>,
    /// The sequence of the step that gets the samples; a context gives none.
    heard_by: Option<usize>,
}

/// The launches of a step.
#[derive(Default)]
struct Work {
    jobs: Vec<Job>,
    /// Slots of contexts and of the sequences that continue them.
    copies: Vec<(usize, usize)>,
}

impl CudaVocoderStage {
    fn new(net: &Arc<CudaVocoder>) -> Result<CudaVocoderStage, LoadError> {
        net.gpu.bind()?;
        let begun = Instant::now();
        let (sequences, contexts) = (net.limits.sequences, net.limits.contexts);
        let stream = net.gpu.stream(Priority::High)?;
        let workspace = Workspace::new(&net.gpu, &net.config, &net.weights, &net.limits)?;
        pad_table(net, &workspace)?;
        let mut graphs = BTreeMap::new();
        for chunk in &net.limits.chunks {
            let batches = batches(&net.limits, *chunk);
            // Kernels are loaded when they first run, which must not be while a graph is recorded.
            for batch in batches.first().into_iter().chain(batches.last()) {
                net.queue(&stream, &workspace, *batch, *chunk)?;
            }
            stream.synchronize()?;
            for batch in batches {
                let graph = stream.capture(|| net.queue(&stream, &workspace, batch, *chunk))?;
                graphs.insert((batch, *chunk), graph);
            }
            tracing::debug!(frames = chunk, graphs = graphs.len(), "recorded the vocoder's graphs");
        }
        let megabytes = net.gpu.allocated() >> 20;
        net.gpu.tell_memory()?;
        let elapsed = begun.elapsed();
        tracing::info!(graphs = graphs.len(), ?elapsed, allocated_mib = megabytes, "the vocoder is ready");
        Ok(CudaVocoderStage {
            pool: Pool::new(net, LEASES)?,
            net: Arc::clone(net),
            user: GpuUser::new(&net.gpu),
            stream,
            workspace,
            graphs,
            sequences: HashMap::new(),
            places: vec![Place::default(); sequences + contexts],
            free: (0..sequences).rev().collect(),
            contexts: Contexts::new(sequences..sequences + contexts),
        })
    }

    fn groups(&self) -> usize {
        self.net.config.num_quantizers
    }

    /// Plans a sequence's share of a step and makes its output without the samples.
    fn advance(&mut self, index: usize, work: SequenceWork, todo: &mut Work) -> Result<SequenceOutput, ModelError> {
        let groups = self.groups();
        let sequence = self.sequences.get_mut(&work.slot).ok_or_else(|| not_open(work.slot))?;
        if sequence.finished {
            return Ok(SequenceOutput { stale: true, ..SequenceOutput::default() });
        }
        let want = work.advance as usize;
        if let Phase::Context(context, done) = &mut sequence.phase {
            let mut context_ = context.borrow_mut();
            let frames = context_.codes.len() / groups;
            let left = frames - *done;
            if want == 0 || want > left {
                let text = format!("{}: asked for {want} of {left} frames of the context", work.slot);
                return Err(ModelError::Sequence(text));
            }
            *done += want;
            if *done > context_.done {
                todo.context(context_.slot, &context_.codes[context_.done * groups..*done * groups]);
                context_.done = *done;
            }
            let (complete, slot) = (*done == frames, context_.slot);
            drop(context_);
            if complete {
                if slot != sequence.slot {
                    todo.copies.push((slot, sequence.slot));
                }
                sequence.phase = Phase::Speech;
            }
            return Ok(SequenceOutput::default());
        }
        if want * groups > sequence.waiting.len() {
            let have = sequence.waiting.len() / groups;
            return Err(ModelError::Sequence(format!("{}: asked for {want} frames, {have} are there", work.slot)));
        }
        if want > 0 {
            let codes = sequence.waiting.drain(..want * groups).collect();
            todo.jobs.push(Job { slot: sequence.slot, codes, heard_by: Some(index) });
        }
        sequence.finished = sequence.ended && sequence.waiting.is_empty();
        Ok(SequenceOutput { finish: sequence.finished.then_some(FinishReason::Stop), ..SequenceOutput::default() })
    }

    /// Queues all of a step.
    fn queue(&mut self, todo: &Work, step: &mut Step) -> Result<(), CudaError> {
        let groups = self.groups();
        let frames: Vec<usize> = todo.jobs.iter().map(|job| job.codes.len() / groups).collect();
        for launch in plan(&frames, &self.net.limits) {
            self.queue_launch(&launch, &todo.jobs, step)?;
        }
        let floats = self.net.weights.layout.slot();
        for (from, to) in &todo.copies {
            let arena = &self.workspace.arena;
            arena.copy_async(&self.stream, to * floats, arena, from * floats, floats)?;
            self.places[*to] = self.places[*from];
        }
        Ok(())
    }

    fn queue_launch(&mut self, launch: &Launch, jobs: &[Job], step: &mut Step) -> Result<(), CudaError> {
        let (groups, limits, chunk) = (self.groups(), &self.net.limits, launch.chunk);
        // The plan makes no launch larger than the largest graph of its chunk.
        let Some(((sequences, _), graph)) =
            self.graphs.iter().find(|((sequences, frames), _)| *frames == chunk && *sequences >= launch.pieces.len())
        else {
            return Err(CudaError::NoKernel(format!("graph of {} sequences by {chunk} frames", launch.pieces.len())));
        };
        let samples = self.net.config.samples_per_frame();
        let lease = self.pool.lease()?;
        let codes_at = HEAD + limits.batch * ROW_WORDS;
        let mut table = vec![PADDING; *sequences];
        let mut codes = vec![0; sequences * chunk * groups];
        for (at, piece) in launch.pieces.iter().enumerate() {
            let job = &jobs[piece.job];
            let place = &mut self.places[job.slot];
            table[at] = [job.slot as u32, place.frames as u32, piece.frames as u32, place.parity];
            let (from, len) = (piece.first * groups, piece.frames * groups);
            codes[at * chunk * groups..][..len].copy_from_slice(&job.codes[from..from + len]);
            if let Some(sequence) = job.heard_by {
                // What the reference drops at the start of a stream.
                let skip = self.net.weights.drop.saturating_sub(place.frames * samples).min(piece.frames * samples);
                let begin = HEAD + at * chunk * samples;
                let range = begin + skip..begin + piece.frames * samples;
                step.heard.push(Heard { sequence, lease: step.leases.len(), range });
            }
            place.frames += piece.frames;
            place.parity ^= 1;
        }
        lease.input.set(0, &[0; HEAD]);
        lease.input.set(HEAD, table.as_flattened());
        lease.input.set(codes_at, &codes);
        self.workspace.input.upload_async(&self.stream, 0, &lease.input, 0, codes_at + codes.len())?;
        graph.launch(&self.stream)?;
        let told = HEAD + launch.pieces.len() * chunk * samples;
        let copied = self.workspace.samples.download_async(&self.stream, 0, &lease.samples, 0, told);
        step.leases.push(lease);
        copied
    }
}

/// A row of padding.
const PADDING: [u32; ROW_WORDS] = [u32::MAX, 0, 0, 0];

/// A table of padding.
fn pad_table(net: &CudaVocoder, workspace: &Workspace) -> Result<(), CudaError> {
    workspace.input.write(HEAD, vec![PADDING; net.limits.batch].as_flattened())
}

impl Work {
    /// Frames of a context; those of one slot are one job.
    fn context(&mut self, slot: usize, codes: &[u32]) {
        match self.jobs.iter_mut().find(|job| job.slot == slot && job.heard_by.is_none()) {
            Some(job) => job.codes.extend_from_slice(codes),
            None => self.jobs.push(Job { slot, codes: codes.to_vec(), heard_by: None }),
        }
    }
}

impl StageModel for CudaVocoderStage {
    fn open(&mut self, slot: Slot, spec: SequenceSpec) -> Result<(), ModelError> {
        let SequenceSpec::Vocoder(spec) = spec else {
            return Err(ModelError::Sequence(format!("{slot}: the vocoder cannot open {spec:?}")));
        };
        if self.sequences.contains_key(&slot) {
            return Err(ModelError::Sequence(format!("{slot} is open already")));
        }
        let goes_on = spec.goes_on;
        let context = spec.context.filter(|codes| !codes.is_empty());
        if let Some(codes) = &context {
            self.net
                .config
                .check_codes(codes)
                .map_err(|reason| ModelError::Sequence(format!("{slot}: context: {reason}")))?;
        }
        let Some(own) = self.free.pop() else {
            let most = self.net.limits.sequences;
            return Err(ModelError::Sequence(format!("{slot}: all {most} streams of the vocoder are in use")));
        };
        // The slot needs no clearing: what lies before a stream's first frame counts as zeros.
        self.places[own] = Place::default();
        let phase = match context {
            None => Phase::Speech,
            Some(codes) => {
                // Without a free slot for the context, the sequence takes it in itself.
                let alone = || Rc::new(RefCell::new(Context { codes: Arc::clone(&codes), slot: own, done: 0 }));
                let shared = if goes_on { None } else { self.contexts.get(&codes) };
                let context = shared.unwrap_or_else(alone);
                if context.borrow().done == 0 {
                    self.places[context.borrow().slot] = Place::default();
                }
                Phase::Context(context, 0)
            }
        };
        self.sequences
            .insert(slot, Sequence { slot: own, phase, waiting: VecDeque::new(), ended: false, finished: false });
        Ok(())
    }

    fn push_input(&mut self, slot: Slot, input: Option<StageData>, end: bool) -> Result<(), ModelError> {
        let sequence = self.sequences.get_mut(&slot).ok_or_else(|| not_open(slot))?;
        if sequence.ended {
            return Err(ModelError::Sequence(format!("{slot}: frames after the end of the stream")));
        }
        if let Some(input) = input {
            sequence.waiting.extend(input.into_codes(slot, &self.net.config)?);
        }
        sequence.ended = end;
        Ok(())
    }

    fn launch(&mut self, sequences: &[SequenceWork]) -> Result<Launched, ModelError> {
        let mut todo = Work::default();
        let results: Vec<_> = sequences.iter().enumerate().map(|(i, work)| self.advance(i, *work, &mut todo)).collect();
        if todo.jobs.is_empty() && todo.copies.is_empty() {
            return Ok(Launched::Done(results.into()));
        }
        let span = self.pool.span()?;
        let using = self.user.begin(&self.stream)?;
        span.begin.record(&self.stream)?;
        let (heard, leases, span, pool) = (Vec::new(), Vec::new(), Some(span), Arc::clone(&self.pool));
        let mut step = Step { results, heard, leases, span, using, pool };
        let queued = self.queue(&todo, &mut step);
        if let Some(span) = &step.span {
            // Also after an error: queued work must end before its memory is lent again.
            span.end.record(&self.stream)?;
        }
        queued?;
        Ok(Launched::Pending(Box::new(step)))
    }

    fn close(&mut self, slot: Slot) {
        // Steps that are queued with this slot of the arena run before those of the sequence that gets it next.
        if let Some(sequence) = self.sequences.remove(&slot) {
            self.free.push(sequence.slot);
        }
    }

    fn live_sequences(&self) -> usize {
        self.sequences.len()
    }

    fn break_device(&mut self) -> Result<(), ModelError> {
        Ok(self.net.gpu.break_context(&self.stream)?)
    }
}

impl Drop for CudaVocoderStage {
    fn drop(&mut self) {
        // Graphs and memory are dropped next; queued work still uses them. A device that failed has nothing queued.
        let _ = self.stream.synchronize();
    }
}

/// A step that was queued.
struct Step {
    results: Vec<Result<SequenceOutput, ModelError>>,
    heard: Vec<Heard>,
    leases: Vec<Lease>,
    /// Kept until the step is over.
    span: Option<Span>,
    using: GpuUse,
    pool: Arc<Pool>,
}

/// Samples of a sequence in the memory of a launch.
struct Heard {
    sequence: usize,
    lease: usize,
    range: std::ops::Range<usize>,
}

impl PendingStep for Step {
    fn wait(mut self: Box<Self>) -> Result<StepOutcome, ModelError> {
        let mut device_time = None;
        if let Some(span) = &self.span {
            // The completion thread runs this, not the one that launched.
            span.end.gpu().bind()?;
            span.end.wait()?;
            self.using.ended();
            device_time = Some(span.end.since(&span.begin)?);
        }
        for heard in std::mem::take(&mut self.heard) {
            let samples = self.leases[heard.lease].samples.get(heard.range);
            if let Some(Ok(output)) = self.results.get_mut(heard.sequence) {
                match &mut output.emit {
                    Some(StageData::Audio(before)) => before.extend(samples),
                    emit if !samples.is_empty() => *emit = Some(StageData::Audio(samples)),
                    _ => {}
                }
            }
        }
        // Where it fails, what was not counted is not heard either.
        if let Some(span) = &self.span {
            let counts = self.leases.iter().map(|lease| u64::from(lease.samples.settled(1)[0].to_bits()));
            span.end.gpu().count_clipped(counts.sum());
        }
        let phases = device_time.map(|time| Phases::only(telemetry::Phase::Vocoder, time)).unwrap_or_default();
        let times = DeviceTimes { total: device_time, phases };
        Ok(StepOutcome { sequences: std::mem::take(&mut self.results), times })
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        // The memory is lent again only when the device is done with it.
        let _excused =
            no_block::allow("a step that is dropped was not waited for: its launch, or the stage, has failed");
        if let Some(span) = self.span.take().filter(|span| span.end.wait().is_ok()) {
            self.using.ended();
            self.pool.give_back(self.leases.drain(..), span);
        }
    }
}
