//! The vocoder stage on a GPU. Units are frames; each step emits the samples of the frames that it consumed.

use super::contexts::{Context, Contexts};
use super::lease::{Lease, Pool, Span};
use super::net::CudaVocoder;
use super::plan::{Launch, batches, plan};
use super::workspace::{ROW_WORDS, Workspace};
use crate::{CudaError, Graph, Priority, Stream};
use omni_core::ids::Slot;
use omni_model::error::not_open;
use omni_model::launching;
use omni_model::stage::{
    DeviceTimes, Emit, Finish, Launched, PendingStep, RowInput, RowOutput, RowSpec, RowWork, StageFactory, StageModel,
    StepOutcome,
};
use omni_model::{LoadError, ModelError};
use omni_telemetry::{self as telemetry, Phases};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// Launches whose memory is there from the start.
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

/// Rows of the vocoder on one stream of a GPU.
struct CudaVocoderStage {
    net: Arc<CudaVocoder>,
    stream: Stream,
    workspace: Workspace,
    /// By rows and frames.
    graphs: BTreeMap<(usize, usize), Graph>,
    pool: Arc<Pool>,
    rows: HashMap<Slot, Row>,
    /// By slot of the arena.
    places: Vec<Place>,
    free: Vec<usize>,
    contexts: Contexts,
}

/// How far the stream in a slot is, once all that was queued is done.
#[derive(Clone, Copy, Default)]
struct Place {
    frames: usize,
    /// The half of the histories that is current.
    parity: u32,
}

struct Row {
    slot: usize,
    phase: Phase,
    /// Codes of frames that have not been launched, all of them in range.
    waiting: VecDeque<u32>,
    ended: bool,
    finished: bool,
}

/// What a row's next units are.
enum Phase {
    /// Frames of its context, of which it has had so many.
    Context(Rc<RefCell<Context>>, usize),
    /// Frames of its own.
    Speech,
}

/// Frames that a stream decodes in a step.
struct Job {
    slot: usize,
    codes: Vec<u32>,
    /// Which row of the step hears them; nobody hears a context.
    heard_by: Option<usize>,
}

/// What a step has to do before its rows are answered.
#[derive(Default)]
struct Work {
    jobs: Vec<Job>,
    /// Slots of contexts and of the rows that go on from them.
    copies: Vec<(usize, usize)>,
}

impl CudaVocoderStage {
    fn new(net: &Arc<CudaVocoder>) -> Result<CudaVocoderStage, LoadError> {
        net.gpu.bind()?;
        let begun = Instant::now();
        let (rows, contexts) = (net.limits.rows, net.limits.contexts);
        let stream = net.gpu.stream(Priority::High)?;
        let workspace = Workspace::new(&net.gpu, &net.config, &net.weights, &net.limits)?;
        nobody(net, &workspace)?;
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
            stream,
            workspace,
            graphs,
            rows: HashMap::new(),
            places: vec![Place::default(); rows + contexts],
            free: (0..rows).rev().collect(),
            contexts: Contexts::new(rows..rows + contexts),
        })
    }

    fn groups(&self) -> usize {
        self.net.config.num_quantizers
    }

    /// Notes what a row's share of a step needs; answers but for the samples.
    fn advance(&mut self, index: usize, work: RowWork, todo: &mut Work) -> Result<RowOutput, ModelError> {
        let groups = self.groups();
        let row = self.rows.get_mut(&work.slot).ok_or_else(|| not_open(work.slot))?;
        if row.finished {
            return Ok(RowOutput { stale: true, ..RowOutput::default() });
        }
        let want = work.advance as usize;
        if let Phase::Context(context, done) = &mut row.phase {
            let mut context_ = context.borrow_mut();
            let frames = context_.codes.len() / groups;
            let left = frames - *done;
            if want == 0 || want > left {
                let text = format!("{}: asked for {want} of {left} frames of the context", work.slot);
                return Err(ModelError::Row(text));
            }
            *done += want;
            if *done > context_.done {
                todo.context(context_.slot, &context_.codes[context_.done * groups..*done * groups]);
                context_.done = *done;
            }
            let (complete, slot) = (*done == frames, context_.slot);
            drop(context_);
            if complete {
                if slot != row.slot {
                    todo.copies.push((slot, row.slot));
                }
                row.phase = Phase::Speech;
            }
            return Ok(RowOutput::default());
        }
        if want * groups > row.waiting.len() {
            let have = row.waiting.len() / groups;
            return Err(ModelError::Row(format!("{}: asked for {want} frames, {have} are there", work.slot)));
        }
        if want > 0 {
            let codes = row.waiting.drain(..want * groups).collect();
            todo.jobs.push(Job { slot: row.slot, codes, heard_by: Some(index) });
        }
        row.finished = row.ended && row.waiting.is_empty();
        Ok(RowOutput { finish: row.finished.then_some(Finish::Stop), ..RowOutput::default() })
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
        let Some(((rows, _), graph)) =
            self.graphs.iter().find(|((rows, frames), _)| *frames == chunk && *rows >= launch.pieces.len())
        else {
            return Err(CudaError::NoKernel(format!("graph of {} rows by {chunk} frames", launch.pieces.len())));
        };
        let samples = self.net.config.samples_per_frame();
        let lease = self.pool.lease()?;
        let codes_at = limits.batch * ROW_WORDS;
        let mut table = vec![NOBODY; *rows];
        let mut codes = vec![0; rows * chunk * groups];
        for (at, piece) in launch.pieces.iter().enumerate() {
            let job = &jobs[piece.job];
            let place = &mut self.places[job.slot];
            table[at] = [job.slot as u32, place.frames as u32, piece.frames as u32, place.parity];
            let (from, len) = (piece.first * groups, piece.frames * groups);
            codes[at * chunk * groups..][..len].copy_from_slice(&job.codes[from..from + len]);
            if let Some(row) = job.heard_by {
                // What the reference drops at the start of a stream.
                let skip = self.net.weights.drop.saturating_sub(place.frames * samples).min(piece.frames * samples);
                let begin = at * chunk * samples;
                let range = begin + skip..begin + piece.frames * samples;
                step.heard.push(Heard { row, lease: step.leases.len(), range });
            }
            place.frames += piece.frames;
            place.parity ^= 1;
        }
        lease.input.set(0, table.as_flattened());
        lease.input.set(codes_at, &codes);
        self.workspace.input.upload_async(&self.stream, 0, &lease.input, 0, codes_at + codes.len())?;
        graph.launch(&self.stream)?;
        let told = launch.pieces.len() * chunk * samples;
        let copied = self.workspace.samples.download_async(&self.stream, 0, &lease.samples, 0, told);
        step.leases.push(lease);
        copied
    }
}

/// A row that is nobody's.
const NOBODY: [u32; ROW_WORDS] = [u32::MAX, 0, 0, 0];

/// A table of rows that are nobody's.
fn nobody(net: &CudaVocoder, workspace: &Workspace) -> Result<(), CudaError> {
    workspace.input.write(0, vec![NOBODY; net.limits.batch].as_flattened())
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
    fn open(&mut self, slot: Slot, spec: RowSpec) -> Result<(), ModelError> {
        let RowSpec::Vocoder(spec) = spec else {
            return Err(ModelError::Row(format!("{slot}: the vocoder cannot open {spec:?}")));
        };
        if self.rows.contains_key(&slot) {
            return Err(ModelError::Row(format!("{slot} is open already")));
        }
        let goes_on = spec.goes_on;
        let context = spec.context.filter(|codes| !codes.is_empty());
        if let Some(codes) = &context {
            self.net
                .config
                .check_codes(codes)
                .map_err(|reason| ModelError::Row(format!("{slot}: context: {reason}")))?;
        }
        let Some(own) = self.free.pop() else {
            let most = self.net.limits.rows;
            return Err(ModelError::Row(format!("{slot}: all {most} streams of the vocoder are in use")));
        };
        // What is in the slot is of no account: what lies before a stream's first frame counts as zeros.
        self.places[own] = Place::default();
        let phase = match context {
            None => Phase::Speech,
            Some(codes) => {
                // Without a slot that can be kept the row takes it in itself.
                let alone = || Rc::new(RefCell::new(Context { codes: Arc::clone(&codes), slot: own, done: 0 }));
                let shared = if goes_on { None } else { self.contexts.get(&codes) };
                let context = shared.unwrap_or_else(alone);
                if context.borrow().done == 0 {
                    self.places[context.borrow().slot] = Place::default();
                }
                Phase::Context(context, 0)
            }
        };
        self.rows.insert(slot, Row { slot: own, phase, waiting: VecDeque::new(), ended: false, finished: false });
        Ok(())
    }

    fn feed(&mut self, slot: Slot, input: RowInput, end: bool) -> Result<(), ModelError> {
        let row = self.rows.get_mut(&slot).ok_or_else(|| not_open(slot))?;
        if row.ended {
            return Err(ModelError::Row(format!("{slot}: frames after the end of the stream")));
        }
        row.waiting.extend(input.into_codes(slot, &self.net.config)?);
        row.ended = end;
        Ok(())
    }

    fn launch(&mut self, rows: &[RowWork]) -> Result<Launched, ModelError> {
        let mut todo = Work::default();
        let results: Vec<_> = rows.iter().enumerate().map(|(i, work)| self.advance(i, *work, &mut todo)).collect();
        if todo.jobs.is_empty() && todo.copies.is_empty() {
            return Ok(Launched::Done(results.into()));
        }
        let span = self.pool.span()?;
        span.begin.record(&self.stream)?;
        let mut step =
            Step { results, heard: Vec::new(), leases: Vec::new(), span: Some(span), pool: self.pool.clone() };
        let queued = self.queue(&todo, &mut step);
        if let Some(span) = &step.span {
            // Also when something went wrong: what was queued before must be over before its memory is lent again.
            span.end.record(&self.stream)?;
        }
        queued?;
        Ok(Launched::Pending(Box::new(step)))
    }

    fn close(&mut self, slot: Slot) {
        // Steps that are still queued with this slot of the arena come before all of the row that gets it next.
        if let Some(row) = self.rows.remove(&slot) {
            self.free.push(row.slot);
        }
    }

    fn live_rows(&self) -> usize {
        self.rows.len()
    }

    fn break_device(&mut self) -> Result<(), ModelError> {
        Ok(self.net.gpu.break_context(&self.stream)?)
    }
}

impl Drop for CudaVocoderStage {
    fn drop(&mut self) {
        // Graphs and memory go next; what is queued still uses them. A device that failed has nothing queued.
        let _ = self.stream.synchronize();
    }
}

/// A step that was queued.
struct Step {
    results: Vec<Result<RowOutput, ModelError>>,
    heard: Vec<Heard>,
    leases: Vec<Lease>,
    /// There until the step is over.
    span: Option<Span>,
    pool: Arc<Pool>,
}

/// Samples of a row in the memory of a launch.
struct Heard {
    row: usize,
    lease: usize,
    range: std::ops::Range<usize>,
}

impl PendingStep for Step {
    fn wait(mut self: Box<Self>) -> Result<StepOutcome, ModelError> {
        let mut device_time = None;
        if let Some(span) = &self.span {
            // This is another thread than the one that launched.
            span.end.gpu().bind()?;
            span.end.wait()?;
            device_time = Some(span.end.since(&span.begin)?);
        }
        for heard in std::mem::take(&mut self.heard) {
            let samples = self.leases[heard.lease].samples.get(heard.range);
            if let Some(Ok(output)) = self.results.get_mut(heard.row) {
                match &mut output.emit {
                    Emit::Audio(before) => before.extend(samples),
                    emit if !samples.is_empty() => *emit = Emit::Audio(samples),
                    _ => {}
                }
            }
        }
        let phases = device_time.map(|time| Phases::only(telemetry::Phase::Vocoder, time)).unwrap_or_default();
        let times = DeviceTimes { total: device_time, phases };
        Ok(StepOutcome { rows: std::mem::take(&mut self.results), times })
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        // The memory is lent again only when the device is done with it.
        let _excused =
            launching::excused("a step that is dropped was not waited for: its launch, or the stage, has failed");
        if let Some(span) = self.span.take().filter(|span| span.end.wait().is_ok()) {
            self.pool.give_back(self.leases.drain(..), span);
        }
    }
}
