//! A step of the encoder under way: waits for it and reads the rows that it emits.

use super::memory::Stash;
use crate::copies::EmbeddingBuffer;
use crate::spinning::GpuUse;
use crate::weights::numbers;
use crate::{Event, Pinned};
use candle_core::{Device, Tensor};
use omni_model::ModelError;
use omni_model::embeddings::{DeviceBuffer, DeviceEmbeddings, Embeddings};
use omni_model::error::refused;
use omni_model::no_block;
use omni_model::stage::{PendingStep, SequenceOutput, StageData, StepOutcome};
use std::sync::Arc;

/// One sequence's part in a step.
pub(super) struct Part {
    /// Its outcome without rows.
    pub output: Result<SequenceOutput, ModelError>,
    /// The rows that it emits.
    pub rows: Option<Rows>,
}

/// Rows that a step emits: `[rows, width]` of f32.
pub(super) enum Rows {
    /// On their way to the host.
    Here { memory: Pinned<u8>, rows: usize, width: usize },
    /// On the device.
    There(Arc<EmbeddingBuffer>),
}

/// A step under way.
pub(super) struct Pending {
    pub stash: Arc<Stash>,
    /// Page-locked memory that its copies read.
    pub inputs: Vec<Pinned<u8>>,
    /// Its begin and end on the device. `None` only while this is being dropped.
    pub events: Option<[Event; 2]>,
    pub using: GpuUse,
    pub parts: Vec<Part>,
}

impl PendingStep for Pending {
    fn wait(mut self: Box<Self>) -> Result<StepOutcome, ModelError> {
        let Some([begin, end]) = &self.events else { return Ok(StepOutcome::default()) };
        end.gpu().bind()?;
        end.wait()?;
        self.using.ended();
        let device_time = end.since(begin).ok();
        let mut sequences = Vec::with_capacity(self.parts.len());
        for part in &mut self.parts {
            let output = std::mem::replace(&mut part.output, Ok(SequenceOutput::default()));
            sequences.push(match (output, &part.rows) {
                (Ok(output), Some(rows)) => Ok(SequenceOutput { emit: Some(rows.read()?), ..output }),
                (output, _) => output,
            });
        }
        Ok(StepOutcome { sequences, times: device_time.into() })
    }
}

impl Rows {
    fn read(&self) -> Result<StageData, ModelError> {
        Ok(StageData::Embeddings(match self {
            Rows::Here { memory, rows, width } => {
                let bytes = memory.settled(rows * width * size_of::<f32>());
                Embeddings::Host(Tensor::from_vec(numbers(bytes), (*rows, *width), &Device::Cpu)?)
            }
            Rows::There(buffer) => {
                let all = 0..buffer.embeddings();
                let Some(rows) = DeviceEmbeddings::new(Arc::<EmbeddingBuffer>::clone(buffer), all) else {
                    return refused("rows beyond their buffer");
                };
                Embeddings::Device(rows)
            }
        }))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // The memory is lent again only when the device is done with it.
        let _excused =
            no_block::allow("a step that is dropped was not waited for: its launch, or the stage, has failed");
        let Some(events) = self.events.take().filter(|[_, end]| end.wait().is_ok()) else { return };
        let rows = self.parts.drain(..).filter_map(|part| match part.rows {
            Some(Rows::Here { memory, .. }) => Some(memory),
            Some(Rows::There(_)) | None => None,
        });
        self.stash.give_back(self.inputs.drain(..).chain(rows), events);
    }
}
