//! Which device the stages run on: what the config asks for, held against what this binary and this machine have.

use omni_config::{Config, DeviceConfig, DeviceKind, Precision, VocoderDtype};
use omni_core::ids::StageName;
use omni_model::budget;

/// What the stages run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceChoice {
    /// What computes.
    pub kind: DeviceKind,
    /// Which GPU, as the driver counts them; 0 on a CPU.
    pub index: usize,
    /// Element type of weights and caches.
    pub dtype: Precision,
    /// Element type of the vocoder's products on a GPU, where `dtype` is bf16.
    pub vocoder_dtype: VocoderDtype,
    /// Bytes of device memory that KV caches may take; `None`: room for all sequences at a usual length.
    pub kv_memory: Option<u64>,
    /// Whether kernels may stay on a GPU, their blocks waiting for each other.
    pub persistent_kernels: bool,
    /// The device in words, and why it was chosen.
    pub why: String,
}

/// A GPU was asked for and there is none to be had. The text says why and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}; use \"cpu\" or \"auto\" to run without a GPU")]
pub struct NoDevice {
    reason: String,
}

impl DeviceChoice {
    /// Decides. Looks for a driver and its devices; opens none.
    ///
    /// # Errors
    /// [`NoDevice`] when the config insists on a GPU that cannot be used.
    pub fn resolve(config: &DeviceConfig) -> Result<DeviceChoice, NoDevice> {
        DeviceChoice::among(config, find)
    }

    /// Whether all processes of a pipeline find room on the device: [`budget::fit`].
    ///
    /// # Errors
    /// What to write into the config, as text.
    pub fn fit(&self, config: &Config, family: &[StageName]) -> Result<(), String> {
        budget::fit(config, family, |index| if self.kind == DeviceKind::Cuda { memory(index) } else { None })
    }

    fn among(config: &DeviceConfig, find: impl Fn(usize) -> Result<String, String>) -> Result<DeviceChoice, NoDevice> {
        let (kind, why) = match config.kind {
            Some(DeviceKind::Cpu) => (DeviceKind::Cpu, "as configured".to_owned()),
            Some(DeviceKind::Cuda) => (DeviceKind::Cuda, find(config.index).map_err(|reason| NoDevice { reason })?),
            None if config.dtype == Some(Precision::Bf16) => {
                let no = |reason| NoDevice { reason: format!("device.dtype is \"bf16\", which needs a GPU: {reason}") };
                (DeviceKind::Cuda, find(config.index).map_err(no)?)
            }
            None => match find(config.index) {
                Ok(gpu) => (DeviceKind::Cuda, gpu),
                Err(reason) => (DeviceKind::Cpu, reason),
            },
        };
        Ok(DeviceChoice {
            kind,
            index: if kind == DeviceKind::Cuda { config.index } else { 0 },
            dtype: config.dtype.unwrap_or(kind.precision()),
            vocoder_dtype: config.vocoder_dtype,
            kv_memory: config.kv_memory,
            persistent_kernels: config.persistent_kernels,
            why,
        })
    }
}

/// Memory of a GPU in bytes.
#[cfg(feature = "cuda")]
fn memory(index: usize) -> Option<u64> {
    omni_cuda::total_memory(index).ok()
}

#[cfg(not(feature = "cuda"))]
fn memory(_: usize) -> Option<u64> {
    None
}

/// How many GPUs the driver shows. It is not opened where a CPU computes.
#[cfg(feature = "cuda")]
pub fn gpus(device: DeviceKind) -> usize {
    if device == DeviceKind::Cuda { omni_cuda::Gpu::count().unwrap_or(0) } else { 0 }
}

/// Without the feature `cuda` there is no GPU.
#[cfg(not(feature = "cuda"))]
pub fn gpus(_: DeviceKind) -> usize {
    0
}

/// A GPU in words.
///
/// # Errors
/// Why there is none, in words.
#[cfg(feature = "cuda")]
pub fn find(index: usize) -> Result<String, String> {
    omni_cuda::probe(index).map_err(|error| error.to_string())
}

/// Without the feature `cuda` there is no GPU.
///
/// # Errors
/// Always, with that text.
#[cfg(not(feature = "cuda"))]
pub fn find(_: usize) -> Result<String, String> {
    Err("this program was built without the feature `cuda` (docs/cuda.md)".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const AUTO: DeviceConfig = DeviceConfig {
        kind: None,
        index: 0,
        dtype: None,
        vocoder_dtype: VocoderDtype::F16,
        kv_memory: None,
        persistent_kernels: true,
    };

    fn here(_: usize) -> Result<String, String> {
        Ok("a GPU".to_owned())
    }

    fn nowhere(_: usize) -> Result<String, String> {
        Err("no driver".to_owned())
    }

    #[test]
    fn auto_takes_a_gpu_if_there_is_one_and_says_why_if_not() {
        let gpu = DeviceChoice::among(&DeviceConfig { index: 3, ..AUTO }, here).unwrap();
        assert_eq!((gpu.kind, gpu.index, gpu.dtype), (DeviceKind::Cuda, 3, Precision::Bf16));
        let cpu = DeviceChoice::among(&DeviceConfig { index: 3, ..AUTO }, nowhere).unwrap();
        assert_eq!((cpu.kind, cpu.index, cpu.dtype), (DeviceKind::Cpu, 0, Precision::F32));
        assert_eq!(cpu.why, "no driver");
    }

    #[test]
    fn what_is_asked_for_is_had_or_refused() {
        let cuda = DeviceConfig { kind: Some(DeviceKind::Cuda), dtype: Some(Precision::F32), ..AUTO };
        assert_eq!(DeviceChoice::among(&cuda, here).unwrap().dtype, Precision::F32);
        let told = DeviceChoice::among(&cuda, nowhere).unwrap_err().to_string();
        assert_eq!(told, "no driver; use \"cpu\" or \"auto\" to run without a GPU");
        let cpu = DeviceConfig { kind: Some(DeviceKind::Cpu), ..AUTO };
        assert_eq!(DeviceChoice::among(&cpu, here).unwrap().kind, DeviceKind::Cpu);
        let half = DeviceConfig { dtype: Some(Precision::Bf16), ..AUTO };
        assert!(DeviceChoice::among(&half, nowhere).unwrap_err().to_string().contains("bf16"));
    }
}
