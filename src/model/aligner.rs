//! The aligner of a checkpoint: which word of a text sounds when, read from the talker's codes.

use crate::LoadError;
use crate::checkpoint::Checkpoint;
use candle_core::{DType, Device};
use omni_core::align::{CodeAligner, Tensors};

/// The file beside the weights, made by `training/train_aligner.py`.
const ALIGNER: &str = "aligner.safetensors";

/// Whether the checkpoint's folder holds an aligner.
pub fn exists(checkpoint: &Checkpoint) -> bool {
    checkpoint.files().exists(ALIGNER)
}

/// Reads the aligner that lies in the checkpoint's folder; `None` where there is none.
///
/// # Errors
/// [`LoadError`] naming the file and what is wrong with it.
pub fn read(checkpoint: &Checkpoint) -> Result<Option<CodeAligner>, LoadError> {
    let files = checkpoint.files();
    let Some(bytes) = files.read(ALIGNER)? else { return Ok(None) };
    let invalid = |error: candle_core::Error| files.invalid(ALIGNER, error.to_string());
    let mut tensors = Tensors::new();
    for (name, tensor) in candle_core::safetensors::load_buffer(&bytes, &Device::Cpu).map_err(invalid)? {
        let values = tensor.flatten_all().and_then(|tensor| tensor.to_dtype(DType::F32)?.to_vec1());
        tensors.insert(name, (tensor.dims().to_vec(), values.map_err(invalid)?));
    }
    let aligner = CodeAligner::new(tensors, checkpoint.family().talker().num_code_groups);
    aligner.map(Some).map_err(|reason| files.invalid(ALIGNER, reason))
}
