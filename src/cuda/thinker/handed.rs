//! What a step hands on to the talker: rows on the device, or copied to the host in the step.

use crate::copies::{HostBytes, Memory, RowBuffer};
use bytes::Bytes;
use omni_config::Precision;
use omni_model::rows::{DeviceRows, RowBytes, Rows, element_bytes};
use omni_model::stage::Emit;
use std::ops::Range;
use std::sync::Arc;

/// Rows that a step hands on.
pub(super) enum Handed {
    Nothing,
    /// On the device.
    There(Arc<RowBuffer>),
    /// Copied to the host in the step, which is when the device's memory is free again.
    Here {
        bytes: HostBytes,
        _memory: Memory,
    },
}

/// Rows that a step handed on, when it is over.
pub(super) enum Arrived {
    Nothing,
    There(Arc<RowBuffer>),
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
    pub fn rows(&self, range: Range<usize>) -> Emit {
        let rows = match self {
            _ if range.is_empty() => None,
            Arrived::Nothing => None,
            Arrived::There(buffer) => DeviceRows::new(buffer.clone(), range).map(Rows::Device),
            Arrived::Here(bytes, (width, precision)) => {
                let row = width * element_bytes(*precision);
                RowBytes::new(bytes.slice(range.start * row..range.end * row), *width, *precision).map(Rows::Bytes)
            }
        };
        rows.map_or(Emit::None, Emit::Rows)
    }
}
