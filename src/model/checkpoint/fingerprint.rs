//! What tells two checkpoints apart without reading all of their weights.

use super::{CODEC, CONFIG, Checkpoint, GENERATION};
use crate::LoadError;
use crate::weights::{Source, Weights};
use sha2::{Digest, Sha256};

/// Bytes that are read of a tensor at its beginning, in its middle and at its end.
const SAMPLE: u64 = 4096;

impl Checkpoint {
    /// The SHA-256 of the configs, of the names, types and shapes of all tensors, and of samples of each: its beginning,
    /// its middle and its end. Checkpoints of one model that were trained differently differ in it, whatever the folders
    /// are called. Reads some kilobytes of each tensor.
    ///
    /// # Errors
    /// [`LoadError`] for what cannot be read.
    pub fn fingerprint(&self) -> Result<[u8; 32], LoadError> {
        let mut hash = Sha256::new();
        let mut add = |part: &[u8]| {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        };
        add(self.origin.overrides().as_bytes());
        for (files, name) in [(&self.files, CONFIG), (&self.files, GENERATION), (&self.files.nested(CODEC), CONFIG)] {
            add(files.read(name)?.as_deref().unwrap_or_default());
        }
        for source in [Some(&self.weights), self.codec.as_ref()].into_iter().flatten() {
            match source {
                Source::Random { seed } => add(&seed.to_le_bytes()),
                Source::Stored(weights) => sampled(weights, &mut add)?,
            }
        }
        Ok(hash.finalize().into())
    }
}

fn sampled(weights: &Weights, add: &mut impl FnMut(&[u8])) -> Result<(), LoadError> {
    for name in weights.names() {
        let Some(entry) = weights.entry(name) else { continue };
        add(format!("{name} {:?} {:?}", entry.dtype, entry.shape).as_bytes());
        let size = entry.bytes();
        let length = size.min(SAMPLE);
        let mut sample = vec![0; length as usize];
        for at in [0, (size - length) / 2, size - length] {
            weights.read(name, at, &mut sample)?;
            add(&sample);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    #[test]
    fn a_checkpoint_is_known_wherever_it_lies_and_another_one_is_not() {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen3_omni");
        let copy = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(&fixture).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
            fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        let of = |folder: &Path| Checkpoint::open(folder).unwrap().fingerprint().unwrap();
        assert_eq!(of(&fixture), of(copy.path()));
        let changed = serde_json::from_str(r#"{"talker_config.accept_hidden_layer": 1}"#).unwrap();
        assert_ne!(Checkpoint::open_with(&fixture, &changed).unwrap().fingerprint().unwrap(), of(&fixture));
        // One number of one tensor, the very last.
        let weights = copy.path().join("model.safetensors");
        let mut bytes = fs::read(&weights).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&weights, bytes).unwrap();
        assert_ne!(of(&fixture), of(copy.path()));
    }
}
