//! Embeddings of a thinker on their way into the table of text: gathered from host and device, projected together.

use super::net::{TalkerNet, Text};
use super::ring::Lease;
use super::stage::CudaTalker;
use crate::copies::{EmbeddingBuffer, Prefetch, Prefetched};
use crate::linear::{Input, Mode};
use crate::{Buffer, CudaError};
use omni_config::Precision;
use omni_core::ids::Slot;
use omni_model::ModelError;
use omni_model::embeddings::{DeviceEmbeddings, Embeddings, element_bytes};
use omni_model::error::refused;
use omni_telemetry::{CopyMetrics, Direction};

/// Embeddings that are projected together.
const BATCH: usize = 256;
/// Inputs that may be on their way at once; the step copies any more.
const PREFETCHED: usize = 32;

/// Embeddings that the next launch projects.
pub(super) struct Arrival {
    source: Source,
    /// The row of the table of text that each goes to.
    places: Vec<u32>,
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
}

impl Arrival {
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
}

impl Intake {
    /// Room for a batch; `None` for a talker that reads text itself. `ahead`: copy input as soon as it arrives.
    pub fn new(net: &TalkerNet, ahead: bool) -> Result<Option<Intake>, CudaError> {
        let Text::Embeddings { first, .. } = &net.text else { return Ok(None) };
        let room =
            |width: usize| net.gpu.alloc::<u8>("sequences of text", BATCH * width * element_bytes(net.precision));
        let gathered = room(net.config.text_hidden_size)?;
        let prefetch = ahead.then(|| Prefetch::new(&net.gpu, PREFETCHED, gathered.len())).transpose()?;
        Ok(Some(Intake {
            prefetch,
            gathered,
            between: room(first.outputs())?,
            projected: room(net.config.text.hidden_size)?,
        }))
    }

    /// Takes embeddings for the next launch and begins the copies that can begin now.
    pub fn take(
        &self,
        slot: Slot,
        sequences: &Embeddings,
        precision: Precision,
        places: Vec<u32>,
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
        Ok(Arrival { source, places })
    }
}

impl CudaTalker {
    /// Queues the projection of `arrivals` to their rows of the table of text; input that the step copies goes through
    /// the lease's memory from `at` on. The step keeps the arrivals until it is over.
    pub(super) fn project(&self, lease: &Lease, at: &mut usize, arrivals: &[Arrival]) -> Result<(), CudaError> {
        let (Some(intake), stream) = (&self.intake, &self.stream) else { return Ok(()) };
        let sequence = self.net.config.text_hidden_size * element_bytes(self.net.precision);
        let mut places: Vec<u32> = Vec::with_capacity(BATCH);
        for Arrival { source, places: all } in arrivals {
            match source {
                Source::Host(bytes) => lease.input.set(*at, bytes),
                Source::Ahead(ahead) => stream.wait(ahead.arrived())?,
                Source::Device(_) => {}
            }
            let mut done = 0;
            while done < all.len() {
                let some = (all.len() - done).min(BATCH - places.len());
                let (from, to, len) = (done * sequence, places.len() * sequence, some * sequence);
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
                places.extend_from_slice(&all[done..done + some]);
                done += some;
                if places.len() == BATCH {
                    self.project_batch(intake, &places)?;
                    places.clear();
                }
            }
            if let Source::Host(bytes) = source {
                *at += bytes.len().next_multiple_of(16);
            }
        }
        self.project_batch(intake, &places)
    }

    /// Queues the projection of the gathered embeddings.
    fn project_batch(&self, intake: &Intake, places: &[u32]) -> Result<(), CudaError> {
        let (Text::Embeddings { first, second, .. }, Some(pool)) = (&self.net.text, &self.frames.text) else {
            return Ok(());
        };
        let (stream, products, sequences) = (&self.stream, &self.frames.engine.products, places.len());
        if sequences == 0 {
            return Ok(());
        }
        let hidden = self.net.config.text.hidden_size * element_bytes(self.net.precision);
        let Intake { gathered, between, projected, .. } = intake;
        products.run(stream, Mode::Silu, first, Input::Ready(gathered.address()), between.address(), sequences)?;
        products.run(stream, Mode::Store, second, Input::Ready(between.address()), projected.address(), sequences)?;
        for (i, place) in places.iter().enumerate() {
            pool.copy_async(stream, *place as usize * hidden, projected, i * hidden, hidden)?;
        }
        Ok(())
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
