//! The encoder stage on a GPU: [`StageModel`] around the queues of the towers.
//!
//! Units are those of the CPU's stage ([`omni_model::stages::encoder`]): the schedule follows from sizes and grain alone.
//! All of a layer of a picture is done in its first unit; the further ones of a fine schedule compute nothing.

use super::memory::{Pool, Scratch, Stash};
use super::net::TowersNet;
use super::pending::{Part, Pending, Rows};
use super::pictures::Slice;
use super::queue::{Kernels, Queue};
use super::sound::Window;
use crate::{CudaError, Pinned, Priority, Stream};
use omni_core::ids::{FinishReason, Slot};
use omni_model::encoder::{EncoderSpec, Features, Part as Piece, Schedule, Work};
use omni_model::error::{not_open, refused};
use omni_model::stage::{
    Launched, SequenceOutput, SequenceSpec, SequenceWork, StageData, StageFactory, StageModel, StepOutcome,
};
use omni_model::towers::steps_of_a_layer;
use omni_model::{LoadError, ModelError};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

const F32: usize = size_of::<f32>();

/// Makes encoder stages that share weights.
pub struct CudaEncoderFactory {
    net: Arc<TowersNet>,
    plain: bool,
}

impl CudaEncoderFactory {
    /// For weights that are loaded.
    pub fn new(net: Arc<TowersNet>) -> CudaEncoderFactory {
        CudaEncoderFactory { net, plain: false }
    }

    /// Without the kernels for tensor cores: for tests.
    #[must_use]
    pub fn plain(self) -> CudaEncoderFactory {
        CudaEncoderFactory { plain: true, ..self }
    }
}

impl StageFactory for CudaEncoderFactory {
    fn build(&self) -> Result<Box<dyn StageModel>, LoadError> {
        self.net.gpu.bind()?;
        let gpu = &self.net.gpu;
        let stage = CudaEncoder {
            stream: gpu.stream(Priority::Low)?,
            kernels: Kernels::new(gpu, self.net.precision, self.plain)?,
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
    kernels: Kernels,
    scratch: Scratch,
    pool: Rc<Pool>,
    stash: Arc<Stash>,
    sequences: HashMap<Slot, Sequence>,
}

struct Sequence {
    schedule: Schedule,
    longest: usize,
    /// The part that is encoded, and its units done.
    part: usize,
    unit: usize,
    /// Pieces that have come and were not used.
    waiting: VecDeque<Features>,
    /// Of the part that is encoded.
    slice: Option<Slice>,
    /// Rows of the part that were emitted.
    emitted: usize,
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

/// What a unit came to.
enum Unit {
    Nothing,
    Rows(Rows),
    Window(Window),
}

impl StageModel for CudaEncoder {
    fn open(&mut self, slot: Slot, spec: SequenceSpec) -> Result<(), ModelError> {
        let SequenceSpec::Encoder(spec) = spec else {
            return refused(format!("{slot}: the encoder cannot open {spec:?}"));
        };
        if self.sequences.contains_key(&slot) {
            return refused(format!("{slot} is open already"));
        }
        let EncoderSpec { media, longest, done, grain } = spec;
        let schedule = Schedule::of(&self.net.config, &media, grain)?;
        if done as usize >= schedule.parts().len() {
            return refused(format!("{slot}: {done} parts of {} are done", schedule.parts().len()));
        }
        for part in schedule.parts() {
            // Its weights may lack what its config describes.
            match part.work {
                Work::Window(_) if self.net.audio.is_none() => return refused("this checkpoint has no audio tower"),
                Work::Slice { .. } if self.net.vision.is_none() => {
                    return refused("this checkpoint has no vision tower");
                }
                _ => {}
            }
        }
        let (part, longest) = (done as usize, longest as usize);
        let sequence = Sequence { schedule, longest, part, unit: 0, waiting: VecDeque::new(), slice: None, emitted: 0 };
        self.sequences.insert(slot, sequence);
        Ok(())
    }

    fn push_input(&mut self, slot: Slot, input: Option<StageData>, _: bool) -> Result<(), ModelError> {
        let sequence = self.sequences.get_mut(&slot).ok_or_else(|| not_open(slot))?;
        match input {
            Some(StageData::Features(features)) => sequence.waiting.push_back(features),
            // The schedule says when it ends.
            None => {}
            Some(_) => return refused(format!("{slot}: the encoder takes features only")),
        }
        Ok(())
    }

    fn launch(&mut self, sequences: &[SequenceWork]) -> Result<Launched, ModelError> {
        let events = [self.stash.event()?, self.stash.event()?];
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
            let sequences = step.parts.into_iter().map(|part| part.output).collect::<Vec<_>>();
            return Ok(Launched::Done(StepOutcome::from(sequences)));
        }
        events[1].record(&self.stream)?;
        let stash = Arc::clone(&self.stash);
        let pending = Pending { stash, inputs: step.inputs, events: Some(events), parts: step.parts };
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
    /// Advances a sequence by a unit; a window waits for the others of the step.
    fn advance(&mut self, work: SequenceWork, step: &mut Step) -> Result<(SequenceOutput, Option<Rows>), ModelError> {
        let sequence = self.sequences.get_mut(&work.slot).ok_or_else(|| not_open(work.slot))?;
        let Some(part) = sequence.schedule.parts().get(sequence.part).cloned() else {
            return Ok((SequenceOutput { stale: true, ..SequenceOutput::default() }, None));
        };
        if work.advance != 1 {
            return refused(format!("{}: asked for {} units, a step is 1", work.slot, work.advance));
        }
        let queue = Queue { stream: &self.stream, kernels: &self.kernels, scratch: &self.scratch };
        let encoder = Tools { net: &self.net, queue, pool: &self.pool, stash: &self.stash };
        let rows = match encoder.unit(sequence, &part, step)? {
            Unit::Nothing => None,
            Unit::Rows(rows) => Some(rows),
            Unit::Window(window) => {
                step.windows.push((step.parts.len(), window));
                None
            }
        };
        sequence.unit += 1;
        if sequence.unit == part.units() as usize {
            (sequence.part, sequence.unit) = (sequence.part + 1, 0);
            (sequence.slice, sequence.emitted) = (None, 0);
        }
        let finished = sequence.part == sequence.schedule.parts().len();
        Ok((SequenceOutput { finish: finished.then_some(FinishReason::Stop), ..SequenceOutput::default() }, rows))
    }

    /// Queues the windows of a step together, and the copies of their rows.
    fn encode_windows(&self, step: &mut Step) -> Result<(), ModelError> {
        let (Some(audio), false) = (&self.net.audio, step.windows.is_empty()) else { return Ok(()) };
        let (at, windows): (Vec<usize>, Vec<Window>) = step.windows.drain(..).unzip();
        let queue = Queue { stream: &self.stream, kernels: &self.kernels, scratch: &self.scratch };
        let tables = filled(&self.stash, &audio.tables(&windows))?;
        let tokens = audio.queue(queue, &windows, &tables)?;
        step.queued = true;
        step.inputs.push(tables);
        step.inputs.extend(windows.into_iter().map(|window| window.features));
        let (width, mut before) = (audio.config.output_dim, 0);
        for (at, rows) in at.into_iter().zip(tokens) {
            let bytes = rows * width * F32;
            let memory = self.stash.pinned(bytes)?;
            self.scratch.download(&self.stream, super::memory::Room::Rows, before, &memory, bytes)?;
            step.parts[at].rows = Some(Rows { memory, rows, width });
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
}

impl Tools<'_> {
    /// Queues the next unit of a part.
    fn unit(&self, sequence: &mut Sequence, part: &Piece, step: &mut Step) -> Result<Unit, ModelError> {
        match &part.work {
            Work::Window(frames) => {
                let Some(audio) = &self.net.audio else { return refused("this checkpoint has no audio tower") };
                let (bins, frames) = (audio.config.num_mel_bins, frames.len());
                let features = self.next(sequence, bins * frames)?;
                let chunk = audio.config.chunk_frames().min(sequence.longest);
                Ok(Unit::Window(Window { features, frames, chunk }))
            }
            Work::Slice { patches, sides, piece, cut, steps, layers, emits } => {
                let Some(vision) = &self.net.vision else { return refused("this checkpoint has no vision tower") };
                let (pieces, layers) = (patches.len().div_ceil(*piece), *layers as usize);
                if sequence.unit < pieces {
                    let count = (*piece).min(patches.len() - sequence.unit * piece);
                    let features = self.next(sequence, count * vision.config.patch_width())?;
                    step.queued = true;
                    if sequence.slice.is_none() {
                        let tables = vision.tables(*sides);
                        let (bytes, tables) = (tables.len(), filled(self.stash, &tables)?);
                        let slice = Slice::begin(vision, self.queue, self.pool, *sides, &tables, bytes);
                        step.inputs.push(tables);
                        sequence.slice = Some(slice.or_else(no_room)?);
                    }
                    if let Some(slice) = &mut sequence.slice {
                        slice.feed(vision, self.queue, &features, count)?;
                    }
                    step.inputs.push(features);
                    return Ok(Unit::Nothing);
                }
                let Some(slice) = &mut sequence.slice else { return refused("a slice without patches") };
                let unit = sequence.unit - pieces;
                if unit < layers {
                    // All of a layer is done in the first of its steps.
                    let of_a_layer = steps_of_a_layer(patches.len(), *cut);
                    let behind = ((unit + 1) * *steps as usize).div_ceil(of_a_layer);
                    while slice.layers() < behind.min(vision.layers.len()) {
                        slice.advance(vision, self.queue, *sides)?;
                        step.queued = true;
                    }
                    return Ok(Unit::Nothing);
                }
                let rows = (*emits).min(part.rows as usize - sequence.emitted);
                let memory = self.stash.pinned(rows * vision.row() * F32)?;
                slice.emit(vision, self.queue, [sequence.emitted, rows], &memory)?;
                step.queued = true;
                sequence.emitted += rows;
                Ok(Unit::Rows(Rows { memory, rows, width: vision.row() }))
            }
        }
    }

    /// The next piece of input, of so many numbers, in page-locked memory.
    fn next(&self, sequence: &mut Sequence, wanted: usize) -> Result<Pinned<u8>, ModelError> {
        let Some(features) = sequence.waiting.pop_front() else {
            return refused("the features of a part have not come");
        };
        let numbers = features.numbers();
        if numbers.len() != wanted {
            return refused(format!("features have {} numbers: expected {wanted}", numbers.len()));
        }
        let mut memory = self.stash.pinned(wanted * F32)?;
        memory.fill(wanted * F32, |bytes| {
            bytes.chunks_exact_mut(F32).zip(&numbers).for_each(|(to, x)| to.copy_from_slice(&x.to_le_bytes()));
            Ok::<_, ModelError>(())
        })?;
        Ok(memory)
    }
}

/// Page-locked memory with these bytes at its beginning.
fn filled(stash: &Stash, bytes: &[u8]) -> Result<Pinned<u8>, CudaError> {
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
