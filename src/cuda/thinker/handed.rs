//! The embeddings that a step hands on to the talker: on the device, or copied to the host in the step.

use crate::copies::{EmbeddingBuffer, HostBytes, Memory};
use bytes::Bytes;
use omni_config::Precision;
use omni_model::embeddings::{DeviceEmbeddings, EmbeddingBytes, Embeddings, element_bytes};
use omni_model::stage::StageData;
use std::ops::Range;
use std::sync::Arc;

/// Embeddings that a step hands on.
pub(super) enum Handed {
    Nothing,
    /// On the device.
    There(Arc<EmbeddingBuffer>),
    /// Copied to the host in the step; the device's memory is free when the step ends.
    Here {
        bytes: HostBytes,
        _memory: Memory,
    },
}

/// The embeddings that a step handed on, after the step.
pub(super) enum Arrived {
    Nothing,
    There(Arc<EmbeddingBuffer>),
    Here(Bytes, (usize, Precision)),
}

impl Handed {
    pub fn arrived(self, shape: (usize, Precision)) -> Arrived {
        match self {
            Handed::Nothing => Arrived::Nothing,
            Handed::There(buffer) => Arrived::There(buffer),
            Handed::Here { bytes, .. } => Arrived::Here(bytes.arrived(), shape),
        }
    }
}

impl Arrived {
    pub fn sequences(&self, range: Range<usize>) -> Option<StageData> {
        let sequences = match self {
            _ if range.is_empty() => None,
            Arrived::Nothing => None,
            Arrived::There(buffer) => DeviceEmbeddings::new(buffer.clone(), range).map(Embeddings::Device),
            Arrived::Here(bytes, (width, precision)) => {
                let sequence = width * element_bytes(*precision);
                EmbeddingBytes::new(bytes.slice(range.start * sequence..range.end * sequence), *width, *precision)
                    .map(Embeddings::Bytes)
            }
        };
        sequences.map(StageData::Embeddings)
    }
}
