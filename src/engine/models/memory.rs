//! What models take of `server.model_memory`.

use crate::StartError;
use omni_config::{CheckpointSource, Config, LoadTime, ModelEntry};
use omni_core::residence::Resident;
use std::path::Path;

/// What decides where the model of an entry is.
pub(super) fn resident(entry: &ModelEntry) -> Resident {
    Resident {
        at_start: entry.load == LoadTime::Start,
        unload_after: entry.unload_after,
        bytes: entry.memory.unwrap_or_else(|| {
            let checkpoint = match &entry.config.model.checkpoint {
                CheckpointSource::Folder(folder) => weights_in(folder),
                CheckpointSource::Embedded => 0,
            };
            checkpoint + entry.config.aligner.checkpoint.as_deref().map_or(0, weights_in)
        }),
    }
}

/// Bytes of the files of weights of a checkpoint.
fn weights_in(folder: &Path) -> u64 {
    let list = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let weights = |path: &Path| match path.extension().is_some_and(|ending| ending == "safetensors") {
        true => std::fs::metadata(path).map_or(0, |file| file.len()),
        false => 0,
    };
    let inside = |path: &Path| if path.is_dir() { list(path).map(|path| weights(&path)).sum() } else { weights(path) };
    list(folder).map(|path| inside(&path)).sum()
}

/// Refuses what can never be loaded.
///
/// # Errors
/// [`StartError::Config`] where `server.model_memory` is too small for a model, or for those of the start together.
pub(super) fn check_memory(config: &Config, residents: &[Resident]) -> Result<(), StartError> {
    let Some(memory) = config.server.model_memory else { return Ok(()) };
    let shown = omni_config::format_bytes;
    let too_large = residents.iter().enumerate().find(|(_, resident)| resident.bytes > memory);
    if let Some((index, resident)) = too_large {
        let (bytes, memory) = (shown(resident.bytes), shown(memory));
        let message = format!("models[{index}]: takes {bytes}, and server.model_memory is {memory}");
        return Err(StartError::Config(message));
    }
    let start: u64 = residents.iter().filter(|resident| resident.at_start).map(|resident| resident.bytes).sum();
    if start > memory {
        let (start, memory) = (shown(start), shown(memory));
        let message = format!(
            "server.model_memory: is {memory}, and the models with load = \"start\" take {start}; give some of them \
             load = \"first_use\""
        );
        return Err(StartError::Config(message));
    }
    Ok(())
}
