//! `[device]`: what computes, and the defaults that depend on it.

use super::{Config, StageConfig};
use omni_core::ids::StageName;

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum DeviceKind {
    /// This machine's processor.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

/// Element type of weights, activations and caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum Precision {
    /// 32-bit floats.
    F32,
    /// 16-bit floats with the range of 32-bit ones; sums are kept in 32 bits.
    Bf16,
}

/// Element type of what the vocoder multiplies on a GPU where [`Precision::Bf16`] is chosen; it has too few bits there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum VocoderDtype {
    /// 16-bit floats up to 65,504; what is beyond is set to that, and counted.
    #[default]
    F16,
    /// 32-bit floats of which 19 bits count: as many in the mantissa, with the range of f32.
    Tf32,
}

/// `[device]`
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct DeviceConfig {
    /// What computes; `None`: a GPU if one can be used, otherwise the CPU.
    pub kind: Option<DeviceKind>,
    /// Which GPU, as the driver counts them.
    pub index: usize,
    /// Element type; `None`: the default of the device.
    pub dtype: Option<Precision>,
    /// Element type of the vocoder's products.
    pub vocoder_dtype: VocoderDtype,
    /// Bytes of device memory that KV caches may take; `None`: room for all sequences at a usual length.
    pub kv_memory: Option<u64>,
    /// Whether kernels may stay on a GPU, their blocks waiting for each other.
    pub persistent_kernels: bool,
}

impl DeviceKind {
    /// As the config writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Cuda => "cuda",
        }
    }

    /// What "auto" means as the element type.
    pub fn precision(self) -> Precision {
        match self {
            DeviceKind::Cpu => Precision::F32,
            DeviceKind::Cuda => Precision::Bf16,
        }
    }
}

impl Precision {
    /// As the config writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
        }
    }
}

impl VocoderDtype {
    /// As the config writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            VocoderDtype::F16 => "f16",
            VocoderDtype::Tf32 => "tf32",
        }
    }
}

impl Config {
    /// Sequences that advance together in one step of a stage on a device of this kind.
    pub fn max_batch(&self, stage: StageName, on: DeviceKind) -> usize {
        let StageConfig { max_batch, buckets, .. } = self.stage(stage);
        max_batch.unwrap_or(match (on, stage) {
            // On a CPU the vocoder's sequences run one after the other and its steps are long: one sequence at a time,
            // chosen as late as possible, is what keeps the most listeners from running dry (docs/performance.md).
            (DeviceKind::Cpu, StageName::Vocoder) => 1,
            // Likewise: a unit of one sequence after the other, of that which waits longest.
            (DeviceKind::Cpu, StageName::Encoder) => 1,
            // Windows of several clips share the weights; each picture keeps its own memory.
            (DeviceKind::Cuda, StageName::Encoder) => 8,
            (DeviceKind::Cpu, _) => 8,
            (DeviceKind::Cuda, StageName::Talker) => buckets.last().map_or(1, |bucket| *bucket as usize),
            (DeviceKind::Cuda, _) => 32,
        })
    }

    /// Prompt positions of one step of a stage on a device of this kind.
    pub fn prefill_chunk(&self, stage: StageName, on: DeviceKind) -> u32 {
        let suits = match (on, stage) {
            // A pass of a mixture of experts reads nearly all weights, whatever its length.
            (DeviceKind::Cuda, StageName::Thinker) => 1024,
            // The prompts of 54 requests that come together: more would have the first ones wait for the last.
            (DeviceKind::Cuda, StageName::Talker) => 1024,
            _ => 256,
        };
        self.stage(stage).prefill_chunk.unwrap_or(suits)
    }

    /// Steps of a stage launched ahead of the last one whose tokens the host has seen, on a device of this kind.
    pub fn run_ahead(&self, stage: StageName, on: DeviceKind) -> usize {
        let suits = match (on, stage) {
            // Nothing the vocoder makes is its own next input, and a step planned ahead is a choice made too early: a
            // first chunk would wait for it.
            (_, StageName::Vocoder) | (DeviceKind::Cpu, StageName::Encoder) => 1,
            _ => 2,
        };
        self.stage(stage).run_ahead.unwrap_or(suits)
    }
}
