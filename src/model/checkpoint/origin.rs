//! How a checkpoint was opened: what another process of the same program needs to open it again.

use super::Checkpoint;
use crate::LoadError;
use crate::weights::{EmbeddedFiles, Files};
use omni_config::WeightsKind;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// What [`Checkpoint::reopen`] needs.
#[derive(Clone, Debug, PartialEq, bincode::Encode, bincode::Decode)]
pub struct Origin {
    /// `None` for the files inside the binary.
    folder: Option<PathBuf>,
    /// Fields of `config.json` that were changed, as JSON.
    overrides: String,
    weights: WeightsKind,
    tokenizer: Option<PathBuf>,
}

impl Origin {
    pub(super) fn new(files: &Files, overrides: &Map<String, Value>, weights: WeightsKind) -> Origin {
        let folder = match files {
            Files::Folder(folder) => Some(folder.clone()),
            Files::Embedded(_) => None,
        };
        Origin { folder, overrides: Value::from(overrides.clone()).to_string(), weights, tokenizer: None }
    }

    pub(super) fn overrides(&self) -> &str {
        &self.overrides
    }

    pub(super) fn with_tokenizer(&self, folder: &Path) -> Origin {
        Origin { tokenizer: Some(folder.to_owned()), ..self.clone() }
    }
}

impl Checkpoint {
    /// Opens the checkpoint that another process of this program opened. `embedded` are the files inside this binary.
    ///
    /// # Errors
    /// Those of [`Checkpoint::open`]; [`LoadError::Invalid`] when the origin is embedded and this binary carries no
    /// files.
    pub fn reopen(origin: &Origin, embedded: Option<EmbeddedFiles>) -> Result<Checkpoint, LoadError> {
        let invalid = |reason: String| LoadError::Invalid { file: "model.checkpoint".into(), reason };
        let overrides = serde_json::from_str(&origin.overrides).map_err(|error| invalid(error.to_string()))?;
        let files = match (&origin.folder, embedded) {
            (Some(folder), _) => Files::folder(folder)?,
            (None, Some(files)) => Files::Embedded(files),
            (None, None) => return Err(invalid("is embedded, and this binary carries no voice".into())),
        };
        Checkpoint::from_files(files, &overrides, origin.weights)?.with_tokenizer(origin.tokenizer.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_opened_again_as_it_was() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let overrides = serde_json::from_str(r#"{"talker_config.accept_hidden_layer": 1}"#).unwrap();
        let first = Checkpoint::open_with(&root.join("tests/fixtures/qwen3_omni"), &overrides).unwrap();
        let bytes = bincode::encode_to_vec(first.origin(), bincode::config::standard()).unwrap();
        let (origin, _): (Origin, usize) = bincode::decode_from_slice(&bytes, bincode::config::standard()).unwrap();
        assert_eq!(Checkpoint::reopen(&origin, None).unwrap().origin(), first.origin());
    }

    #[test]
    fn what_was_embedded_needs_a_binary_that_carries_it() {
        let origin = Origin { folder: None, overrides: "{}".into(), weights: WeightsKind::Stored, tokenizer: None };
        let told = Checkpoint::reopen(&origin, None).unwrap_err().to_string();
        assert!(told.contains("carries no voice"), "{told}");
    }
}
