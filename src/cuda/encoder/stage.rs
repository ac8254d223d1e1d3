//! The encoder stage on a GPU: [`StageModel`] around the queues of the towers.
//!
//! Units are those of the CPU's stage ([`omni_model::stages::encoder`]): the schedule follows from sizes and grain alone.
//! All of a layer of a picture is done in its first unit; the further ones of a fine schedule compute nothing.

use super::memory::{Pool, Room, Scratch, Stash};
use super::net::{TowersNet, VisionNet};
use super::pending::{Part, Pending, Rows};
use super::pictures::{Piece, Slice, Target};
use super::products::Cores;
use super::queue::{Kernels, Queue};
use super::sound::Window;
use crate::copies::{EmbeddingArena, HostCopies};
use crate::spinning::GpuUser;
use crate::weights::plain;
use crate::{CudaError, Pinned, Priority, Stream};
use omni_config::Precision;
use omni_core::ids::{FinishReason, Slot, StageName};
use omni_model::encoder::{Unit, Walk};
use omni_model::error::{not_open, refused};
use omni_model::stage::{
    Launched, SequenceOutput, SequenceSpec, SequenceWork, StageData, StageFactory, StageModel, StepOutcome,
};
use omni_model::{LoadError, ModelError};
use omni_telemetry::CopyMetrics;
use omni_telemetry::trace::Recorder;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

const F32: usize = size_of::<f32>();
/// Rows that may be left on the device: those of some thirteen pictures of 640 x 480.
const LEFT_ROWS: usize = 4096;
/// Copies of them to the host that may lie in page-locked memory, and rows of each: what one step emits.
const LEFT_COPIES: usize = 4;
const LEFT_PIECE: usize = 128;

/// Makes encoder stages that share weights.
pub struct CudaEncoderFactory {
    net: Arc<TowersNet>,
    cores: Cores,
    /// Records the copies of rows that are left on the device; `None`: none are.
    leaving: Option<Recorder>,
}

impl CudaEncoderFactory {
    /// For weights that are loaded.
    pub fn new(net: Arc<TowersNet>) -> CudaEncoderFactory {
        CudaEncoderFactory { net, cores: Cores::Best, leaving: None }
    }

    /// Leaves the rows of pictures on the device, for a thinker that reads them there, while there is room for them.
    #[must_use]
    pub fn leaving_rows(self, recorder: Recorder) -> CudaEncoderFactory {
        CudaEncoderFactory { leaving: Some(recorder), ..self }
    }

    /// Without the kernels for tensor cores: for tests.
    #[must_use]
    pub fn plain(self) -> CudaEncoderFactory {
        CudaEncoderFactory { cores: Cores::Plain, ..self }
    }

    /// Without the kernels that need more than compute capability 8.0, for tests: the same bits.
    #[must_use]
    pub fn portable(self) -> CudaEncoderFactory {
        CudaEncoderFactory { cores: Cores::Any, ..self }
    }
}

impl StageFactory for CudaEncoderFactory {
    fn build(&self) -> Result<Box<dyn StageModel>, LoadError> {
        self.net.gpu.bind()?;
        let gpu = &self.net.gpu;
        let arena = |(recorder, vision): (&Recorder, &VisionNet)| {
            let width = vision.row();
            let copies = CopyMetrics::new(StageName::Encoder, recorder.clone());
            let copies = HostCopies::new(gpu, LEFT_COPIES, LEFT_PIECE * width * F32, copies)?;
            EmbeddingArena::new(gpu, LEFT_ROWS, width, Precision::F32, copies.into())
        };
        let stage = CudaEncoder {
            // Of towers without pictures no rows are left.
            arena: self.leaving.as_ref().zip(self.net.vision().ok()).map(arena).transpose()?,
            stream: gpu.stream(Priority::Low)?,
            user: GpuUser::new(gpu),
            kernels: Kernels::new(gpu, self.net.precision, self.cores)?,
            scratch: Scratch::new(gpu),
            pool: Pool::new(gpu),
            stash: Stash::new(gpu),
            sequences: HashMap::new(),
            net: Arc::clone(&self.net),
        };
        gpu.tell_memory()?;
        tracing::info!(allocated_mib = gpu.allocated() >> 20, "the encoder is ready on the GPU");
        Ok(Box::new(stage))
    }
}

/// Sequences of the encoder on a GPU.
struct CudaEncoder {
    net: Arc<TowersNet>,
    stream: Stream,
    user: GpuUser,
    kernels: Kernels,
    scratch: Scratch,
    pool: Rc<Pool>,
    stash: Arc<Stash>,
    arena: Option<EmbeddingArena>,
    sequences: HashMap<Slot, Sequence>,
}

struct Sequence {
    walk: Walk,
    /// Of the part that is encoded.
    slice: Option<Slice>,
}

/// What a step gathers before it is queued.
#[derive(Default)]
struct Step {
    parts: Vec<Part>,
    inputs: Vec<Pinned<u8>>,
    /// Windows, each with the part of the step that it is.
    windows: Vec<(usize, Window)>,
    /// Something was queued.
    queued: bool,
}

impl StageModel for CudaEncoder {
    fn open(&mut self, slot: Slot, spec: SequenceSpec) -> Result<(), ModelError> {
        let SequenceSpec::Encoder(spec) = spec else {
            return refused(format!("{slot}: the encoder cannot open {spec:?}"));
        };
        if self.sequences.contains_key(&slot) {
            return refused(format!("{slot} is open already"));
        }
        let walk = Walk::open(&self.net.config, slot, &spec)?;
        // Its weights may lack what its config describes.
        let [sound, pictures] = walk.has();
        if sound {
            self.net.audio()?;
        }
        if pictures {
            self.net.vision()?;
        }
        self.sequences.insert(slot, Sequence { walk, slice: None });
        Ok(())
    }

    fn push_input(&mut self, slot: Slot, input: Option<StageData>, _: bool) -> Result<(), ModelError> {
        self.sequences.get_mut(&slot).ok_or_else(|| not_open(slot))?.walk.push(slot, input)
    }

    fn launch(&mut self, sequences: &[SequenceWork]) -> Result<Launched, ModelError> {
        let events = [self.stash.event()?, self.stash.event()?];
        let using = self.user.begin(&self.stream)?;
        events[0].record(&self.stream)?;
        let mut step = Step::default();
        for work in sequences {
            let (output, rows) = match self.advance(*work, &mut step) {
                Ok((output, rows)) => (Ok(output), rows),
                Err(ModelError::Sequence(reason)) => (refused(reason), None),
                Err(error) => return Err(error),
            };
            step.parts.push(Part { output, rows });
        }
        self.encode_windows(&mut step)?;
        if !step.queued {
            self.stash.give_back([], events);
            using.unused();
            let sequences = step.parts.into_iter().map(|part| part.output).collect::<Vec<_>>();
            return Ok(Launched::Done(StepOutcome::from(sequences)));
        }
        events[1].record(&self.stream)?;
        let stash = Arc::clone(&self.stash);
        let pending = Pending { stash, inputs: step.inputs, events: Some(events), using, parts: step.parts };
        Ok(Launched::Pending(Box::new(pending)))
    }

    fn close(&mut self, slot: Slot) {
        // What is queued with its memory runs before whatever takes the memory next.
        self.sequences.remove(&slot);
    }

    fn live_sequences(&self) -> usize {
        self.sequences.len()
    }

    fn break_device(&mut self) -> Result<(), ModelError> {
        Ok(self.net.gpu.break_context(&self.stream)?)
    }
}

impl CudaEncoder {
    /// Advances a sequence by a unit.
    fn advance(&mut self, work: SequenceWork, step: &mut Step) -> Result<(SequenceOutput, Option<Rows>), ModelError> {
        let sequence = self.sequences.get_mut(&work.slot).ok_or_else(|| not_open(work.slot))?;
        let Some((unit, over)) = sequence.walk.next(&self.net.config, work)? else {
            return Ok((SequenceOutput { stale: true, ..SequenceOutput::default() }, None));
        };
        let queue = Queue { stream: &self.stream, kernels: &self.kernels, scratch: &self.scratch };
        let tools = Tools { net: &self.net, queue, pool: &self.pool, stash: &self.stash, arena: self.arena.as_ref() };
        let rows = tools.queue(unit, &mut sequence.slice, step)?;
        if over.part {
            sequence.slice = None;
        }
        Ok((SequenceOutput { finish: over.all.then_some(FinishReason::Stop), ..SequenceOutput::default() }, rows))
    }

    /// Queues the windows of a step together, and the copies of their rows.
    fn encode_windows(&self, step: &mut Step) -> Result<(), ModelError> {
        if step.windows.is_empty() {
            return Ok(());
        }
        let audio = self.net.audio()?;
        let (at, windows): (Vec<usize>, Vec<Window>) = step.windows.drain(..).unzip();
        let queue = Queue { stream: &self.stream, kernels: &self.kernels, scratch: &self.scratch };
        let tables = filled(&self.stash, &audio.tables(queue, &windows))?;
        let tokens = audio.queue(queue, &windows, &tables)?;
        step.queued = true;
        step.inputs.push(tables);
        step.inputs.extend(windows.into_iter().map(|window| window.features));
        let (width, mut before) = (audio.config.output_dim, 0);
        for (at, rows) in at.into_iter().zip(tokens) {
            let bytes = rows * width * F32;
            let memory = self.stash.pinned(bytes)?;
            self.scratch.download(&self.stream, Room::Rows, before, &memory, bytes)?;
            step.parts[at].rows = Some(Rows::Here { memory, rows, width });
            before += bytes;
        }
        Ok(())
    }
}

/// What a unit is queued with.
struct Tools<'a> {
    net: &'a TowersNet,
    queue: Queue<'a>,
    pool: &'a Rc<Pool>,
    stash: &'a Stash,
    arena: Option<&'a EmbeddingArena>,
}

impl Tools<'_> {
    /// Queues a unit, but for a window, which waits for the others of the step. Returns the rows that it emits.
    fn queue(&self, unit: Unit, slice: &mut Option<Slice>, step: &mut Step) -> Result<Option<Rows>, ModelError> {
        match unit {
            Unit::Window { features, frames, chunk } => {
                let features = filled(self.stash, plain(&features.numbers()))?;
                step.windows.push((step.parts.len(), Window { features, frames, chunk }));
            }
            Unit::Patches { features, count, sides } => {
                let vision = self.net.vision()?;
                let piece = Piece::new(self.stash, features, count)?;
                step.queued = true;
                if slice.is_none() {
                    let tables = vision.tables(self.queue, sides);
                    let (bytes, tables) = (tables.len(), filled(self.stash, &tables)?);
                    let begun = Slice::begin(vision, self.queue, self.pool, sides, &tables, bytes);
                    step.inputs.push(tables);
                    *slice = Some(begun.or_else(no_room)?);
                }
                if let Some(slice) = slice {
                    slice.feed(vision, self.queue, &piece)?;
                }
                step.inputs.push(piece.memory);
            }
            Unit::Layers { begun, sides, .. } => {
                let (vision, Some(slice)) = (self.net.vision()?, slice) else {
                    return refused("a slice without patches");
                };
                // All of a layer is done in the first of its steps.
                while slice.layers() < begun.min(vision.layers.len()) {
                    slice.advance(vision, self.queue, sides)?;
                    step.queued = true;
                }
            }
            Unit::Rows(rows) => {
                let (vision, Some(slice)) = (self.net.vision()?, slice) else {
                    return refused("a slice without rows");
                };
                let (range, width) = ([rows.start, rows.len()], vision.row());
                step.queued = true;
                let left = self.arena.map(|arena| Ok::<_, CudaError>(arena.take_free(rows.len())?.map(|m| (arena, m))));
                if let Some((arena, memory)) = left.transpose()?.flatten() {
                    slice.emit(vision, self.queue, range, Target::Device(&memory))?;
                    return Ok(Some(Rows::There(arena.written(self.queue.stream, memory, rows.len())?)));
                }
                let memory = self.stash.pinned(rows.len() * width * F32)?;
                slice.emit(vision, self.queue, range, Target::Host(&memory))?;
                return Ok(Some(Rows::Here { memory, rows: rows.len(), width }));
            }
        }
        Ok(None)
    }
}

/// Page-locked memory with these bytes at its beginning.
pub(super) fn filled(stash: &Stash, bytes: &[u8]) -> Result<Pinned<u8>, CudaError> {
    let memory = stash.pinned(bytes.len())?;
    memory.set(0, bytes);
    Ok(memory)
}

/// A picture for which the device has no room fails alone.
fn no_room<T>(error: CudaError) -> Result<T, ModelError> {
    match error {
        CudaError::OutOfMemory { .. } | CudaError::OverBudget(_) => refused(error.to_string()),
        error => Err(error.into()),
    }
}

impl Drop for CudaEncoder {
    fn drop(&mut self) {
        // Queued work uses the memory that is dropped here. A step reports any error.
        let _ = self.stream.synchronize();
    }
}
