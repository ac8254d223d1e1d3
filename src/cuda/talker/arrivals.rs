//! Embeddings of a thinker on their way into the table of text: gathered from host and device, projected together.

use super::net::{Projection, TalkerNet, Text};
use super::ring::Lease;
use super::stage::CudaTalker;
use crate::copies::{EmbeddingBuffer, Prefetch, Prefetched};
use crate::kernel::kernel_args;
use crate::linear::{Input, Mode};
use crate::{Buffer, CudaError, Kernel, Shape};
use omni_config::Precision;
use omni_core::ids::Slot;
use omni_model::ModelError;
use omni_model::embeddings::{DeviceEmbeddings, Embeddings, element_bytes};
use omni_model::error::refused;
use omni_telemetry::{CopyMetrics, Direction};
use std::ops::Range;

/// Embeddings that are projected together.
const BATCH: usize = 256;
/// Threads that copy a row.
const PLACE_THREADS: u32 = 256;
/// Inputs that may be on their way at once; the step copies any more.
const PREFETCHED: usize = 32;

/// Embeddings that the next launch projects.
pub(super) struct Arrival {
    slot: Slot,
    source: Source,
    /// The row of the table of text that each goes to.
    places: Vec<u32>,
    /// Those that are hidden states of media, in order.
    hidden: Vec<Range<usize>>,
}

/// Those of the `count` input embeddings from `first` on that are hidden states of `media`, counted from `first`.
pub(super) fn hidden(media: &[Range<u32>], first: u32, count: u32) -> Vec<Range<usize>> {
    let inside = media.iter().map(|range| range.start.max(first)..range.end.min(first + count));
    inside.filter(|r| !r.is_empty()).map(|r| (r.start - first) as usize..(r.end - first) as usize).collect()
}

impl Arrival {
    /// Embeddings of one kind, all of text or all of media: how many from `at` on, and which.
    fn run(&self, at: usize) -> (usize, bool) {
        match self.hidden.iter().find(|range| range.end > at) {
            Some(range) if range.start <= at => (range.end - at, true),
            Some(range) => (range.start - at, false),
            None => (self.places.len() - at, false),
        }
    }
}

enum Source {
    /// In the host's memory: the step copies them.
    Host(Vec<u8>),
    /// On their way.
    Ahead(Prefetched),
    /// On a device, where another stage left them.
    Device(DeviceEmbeddings),
}

/// The way of embeddings into a talker that has a thinker.
pub(super) struct Intake {
    prefetch: Option<Prefetch>,
    gathered: Buffer<u8>,
    between: Buffer<u8>,
    projected: Buffer<u8>,
    place: Kernel,
}

/// `PlaceRowsArgs` of `kernels/token.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
struct PlaceArgs {
    places: u64,
    rows: u64,
    table: u64,
    width: i32,
    unused: i32,
}

impl Arrival {
    /// Whose text it is.
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// Counts the copy. The step that used it is over.
    pub fn count(&self, metrics: &CopyMetrics) {
        match &self.source {
            Source::Host(bytes) => metrics.copied(Direction::HostToDevice, bytes.len(), None),
            Source::Ahead(ahead) => metrics.copied(Direction::HostToDevice, ahead.len(), ahead.took()),
            Source::Device(there) => {
                metrics.copied(Direction::DeviceToDevice, Embeddings::Device(there.clone()).bytes(), None);
            }
        }
    }

    /// Bytes that the step has to copy.
    pub fn bytes_in_step(&self) -> usize {
        if let Source::Host(bytes) = &self.source { bytes.len() } else { 0 }
    }

    /// Bytes of the numbers of the rows that its embeddings go to, which the step reads.
    pub fn bytes_of_places(&self) -> usize {
        self.places.len() * size_of::<u32>()
    }
}

impl Intake {
    /// Room for a batch; `None` for a talker that reads text itself. `ahead`: copy input as soon as it arrives.
    pub fn new(net: &TalkerNet, ahead: bool) -> Result<Option<Intake>, CudaError> {
        let Text::Embeddings { text, hidden, .. } = &net.text else { return Ok(None) };
        let room =
            |width: usize| net.gpu.alloc::<u8>("sequences of text", BATCH * width * element_bytes(net.precision));
        let gathered = room(net.config.text_hidden_size)?;
        let prefetch = ahead.then(|| Prefetch::new(&net.gpu, PREFETCHED, gathered.len())).transpose()?;
        Ok(Some(Intake {
            prefetch,
            gathered,
            between: room(text.first.outputs().max(hidden.as_ref().map_or(0, |hidden| hidden.first.outputs())))?,
            projected: room(net.config.text.hidden_size)?,
            place: net.gpu.kernel(match net.precision {
                Precision::F32 => "place_rows_f32",
                Precision::Bf16 => "place_rows_bf16",
            })?,
        }))
    }

    /// Takes embeddings for the next launch and begins the copies that can begin now.
    pub fn take(
        &self,
        slot: Slot,
        sequences: &Embeddings,
        precision: Precision,
        places: Vec<u32>,
        hidden: Vec<Range<usize>>,
    ) -> Result<Arrival, ModelError> {
        let source = match sequences {
            Embeddings::Device(there) => {
                let known = there.buffer().as_any().is::<EmbeddingBuffer>() && there.buffer().precision() == precision;
                if !known {
                    return refused(format!("{slot}: these sequences are on a device that this talker cannot read"));
                }
                Source::Device(there.clone())
            }
            here => {
                let bytes = sequence_bytes(here, precision)?;
                match self.prefetch.as_ref().map(|prefetch| prefetch.begin(&bytes)).transpose()?.flatten() {
                    Some(ahead) => Source::Ahead(ahead),
                    None => Source::Host(bytes),
                }
            }
        };
        Ok(Arrival { slot, source, places, hidden })
    }
}

impl CudaTalker {
    /// Queues the projection of `arrivals` to their rows of the table of text; input that the step copies goes through
    /// the lease's memory from `at` on. The step keeps the arrivals until it is over.
    pub(super) fn project(&self, lease: &Lease, at: &mut usize, arrivals: &[Arrival]) -> Result<(), CudaError> {
        let (Some(intake), stream) = (&self.intake, &self.stream) else { return Ok(()) };
        let sequence = self.net.config.text_hidden_size * element_bytes(self.net.precision);
        // Where the numbers of the rows of what is gathered lie, and how many there are.
        let (mut places, mut gathered) = (*at, 0);
        for arrival in arrivals {
            for place in &arrival.places {
                lease.input.set(*at, &place.to_le_bytes());
                *at += size_of::<u32>();
            }
        }
        *at = at.next_multiple_of(16);
        let mut batch = |gathered: &mut usize, media: bool| {
            let from = lease.input.device_at(places);
            places += *gathered * size_of::<u32>();
            self.project_batch(intake, from, std::mem::take(gathered), media)
        };
        // Of what is gathered.
        let mut media = false;
        for arrival in arrivals {
            let Arrival { source, places: all, .. } = arrival;
            match source {
                Source::Host(bytes) => lease.input.set(*at, bytes),
                Source::Ahead(ahead) => stream.wait(ahead.arrived())?,
                Source::Device(_) => {}
            }
            let mut done = 0;
            while done < all.len() {
                let (same, kind) = arrival.run(done);
                if kind != media {
                    batch(&mut gathered, media)?;
                    media = kind;
                }
                let some = same.min(BATCH - gathered);
                let (from, to, len) = (done * sequence, gathered * sequence, some * sequence);
                match source {
                    Source::Host(_) => intake.gathered.upload_async(stream, to, &lease.input, *at + from, len)?,
                    Source::Ahead(ahead) => intake.gathered.copy_async(stream, to, ahead.device(), from, len)?,
                    Source::Device(there) => {
                        // Its size was checked when it arrived.
                        let Some(buffer) = there.buffer().as_any().downcast_ref::<EmbeddingBuffer>() else { break };
                        let first = there.range().start + done;
                        buffer.copy_to(stream, first..first + some, &intake.gathered, to)?;
                    }
                }
                (gathered, done) = (gathered + some, done + some);
                if gathered == BATCH {
                    batch(&mut gathered, media)?;
                }
            }
            if let Source::Host(bytes) = source {
                *at += bytes.len().next_multiple_of(16);
            }
        }
        batch(&mut gathered, media)
    }

    /// Queues the projection of the gathered embeddings, which are of text or hidden states of `media`, to the rows of the
    /// table whose numbers lie at `places`.
    fn project_batch(&self, intake: &Intake, places: u64, sequences: usize, media: bool) -> Result<(), CudaError> {
        let (Text::Embeddings { text, hidden, .. }, Some(pool)) = (&self.net.text, &self.frames.text) else {
            return Ok(());
        };
        // A sequence with media is refused where there is no projection of its own for them.
        let Projection { first, second } = hidden.as_deref().filter(|_| media).unwrap_or(text);
        let (stream, products) = (&self.stream, &self.frames.engine.products);
        if sequences == 0 {
            return Ok(());
        }
        let Intake { gathered, between, projected, place, .. } = intake;
        products.run(stream, Mode::Silu, first, Input::Ready(gathered.address()), between.address(), sequences)?;
        products.run(stream, Mode::Store, second, Input::Ready(between.address()), projected.address(), sequences)?;
        let (rows, table, width) = (projected.address(), pool.address(), self.net.config.text.hidden_size as i32);
        let args = PlaceArgs { places, rows, table, width, unused: 0 };
        // SAFETY: the argument is `PlaceRowsArgs`; the lease has a number of a row of the table for each of these rows.
        unsafe { place.launch(stream, Shape::new(sequences, PLACE_THREADS), kernel_args![args]) }
    }
}

/// Embeddings in the engine's element type.
fn sequence_bytes(sequences: &Embeddings, precision: Precision) -> Result<Vec<u8>, ModelError> {
    if let Embeddings::Bytes(same) = sequences
        && same.precision() == precision
    {
        return Ok(same.data().to_vec());
    }
    let flat = sequences.tensor()?.flatten_all()?;
    Ok(match precision {
        Precision::F32 => flat.to_vec1::<f32>()?.iter().flat_map(|x| x.to_le_bytes()).collect(),
        // Rounded to nearest even, as the device does.
        Precision::Bf16 => {
            let rounded = flat.to_dtype(candle_core::DType::BF16)?.to_dtype(candle_core::DType::F32)?;
            rounded.to_vec1::<f32>()?.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embeddings_are_projected_with_those_of_their_kind() {
        let media = [3..5, 9..12];
        let arrival = |first: u32, count: u32| Arrival {
            slot: Slot(0),
            source: Source::Host(Vec::new()),
            places: (0..count).collect(),
            hidden: hidden(&media, first, count),
        };
        let runs = |arrival: &Arrival| {
            let (mut at, mut runs) = (0, Vec::new());
            while at < arrival.places.len() {
                let (len, kind) = arrival.run(at);
                runs.push((len, kind));
                at += len;
            }
            runs
        };
        assert_eq!(runs(&arrival(0, 14)), [(3, false), (2, true), (4, false), (3, true), (2, false)]);
        assert_eq!(runs(&arrival(4, 6)), [(1, true), (4, false), (1, true)]);
        assert_eq!(runs(&arrival(5, 4)), [(4, false)]);
        assert_eq!(runs(&arrival(9, 3)), [(3, true)]);
    }
}
