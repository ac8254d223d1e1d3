//! Runs the front ends of what Qwen3-Omni hears and sees: files to features, sizes, token counts, prompts, positions.
//! They need no weights, so no net is loaded.
//!
//! Cases were made with the parameters of the real model. A golden folder may bring them along, in a folder `real`
//! (`config.json`, `preprocessor_config.json`, and for prompts a tokenizer and a chat template); otherwise they are those
//! of the checkpoint.

mod audio;
mod chat;
mod checks;
mod picture;
mod table;

use super::manifest::{FrontendKind, Manifest};
use super::report::Verdict;
use super::value::Values;
use omni_media::MediaLimits;
use omni_media::picture::{Grey16, Picture, decode_picture};
use omni_model::hf::MediaConfig;
use omni_model::weights::Files;
use serde_json::Value as Json;
use std::path::{Component, Path, PathBuf};

/// The parameters that a golden folder may bring along.
const REAL: &str = "real";

/// One case while it runs.
struct Case<'a> {
    manifest: &'a Manifest,
    reference: &'a Values,
    golden: &'a Path,
    files: Files,
    config: MediaConfig,
}

/// Runs a case of a golden folder. `checkpoint` is asked for by name where `named`, and then nothing else counts.
pub(super) fn run(
    kind: FrontendKind,
    manifest: &Manifest,
    reference: &Values,
    golden: &Path,
    (checkpoint, named): (&Path, bool),
) -> Result<Verdict, String> {
    let own = golden.join(REAL);
    let folder = if own.is_dir() && !named { own } else { checkpoint.to_owned() };
    let files = Files::folder(&folder).map_err(|e| e.to_string())?;
    let config = MediaConfig::load(&files).map_err(|e| e.to_string())?;
    let case = Case { manifest, reference, golden, files, config };
    let mut notes = Vec::new();
    let checks = match kind {
        FrontendKind::Audio => audio::run(&case, &mut notes)?,
        FrontendKind::Image => picture::image(&case, &mut notes)?,
        FrontendKind::Video => picture::video(&case)?,
        FrontendKind::Table => table::run(&case)?,
        FrontendKind::Chat => match chat::run(&case)? {
            Some(checks) => checks,
            None => {
                let wanted = format!("the tokenizer of the real model, which {} has not", folder.display());
                return Ok(Verdict::Other(wanted));
            }
        },
    };
    Ok(Verdict::Compared { comparison: Box::new(checks.finish(reference)), notes })
}

impl Case<'_> {
    fn meta(&self, key: &str) -> Result<&Json, String> {
        self.manifest.meta.get(key).filter(|v| !v.is_null()).ok_or_else(|| format!("meta.{key} is missing"))
    }

    /// A whole number of `meta`.
    fn whole(&self, key: &str) -> Result<usize, String> {
        whole(self.meta(key)?, key)
    }

    /// A list of whole numbers of `meta`.
    fn wholes(&self, key: &str) -> Result<Vec<usize>, String> {
        list(self.meta(key)?, key)?.iter().map(|value| whole(value, key)).collect()
    }

    /// A file of the golden folder.
    fn file(&self, name: &str) -> Result<Vec<u8>, String> {
        let path = PathBuf::from(name);
        if !path.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(format!("{name:?} leads out of the golden folder"));
        }
        std::fs::read(self.golden.join(path)).map_err(|e| format!("cannot read {name}: {e}"))
    }

    /// A picture of the golden folder, as the reference reads it.
    fn picture(&self, name: &str) -> Result<Picture, String> {
        decode_picture(&self.file(name)?, &MediaLimits::default(), Grey16::Clip).map_err(|e| format!("{name}: {e}"))
    }
}

fn whole(value: &Json, key: &str) -> Result<usize, String> {
    let number = value.as_u64().and_then(|n| usize::try_from(n).ok());
    number.ok_or_else(|| format!("meta.{key} = {value}: expected a whole number"))
}

fn list<'a>(value: &'a Json, key: &str) -> Result<&'a [Json], String> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| format!("meta.{key}: expected a list"))
}

fn text<'a>(value: &'a Json, key: &str) -> Result<&'a str, String> {
    value.as_str().ok_or_else(|| format!("meta.{key} = {value}: expected text"))
}
