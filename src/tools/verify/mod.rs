//! Checks a checkpoint against what a reference implementation computed from it: a folder of cases, each a manifest
//! `NAME.json` and tensors `NAME.safetensors`. Tokens and codes must be equal, floats close.

mod batch;
mod case;
pub mod command;
mod compare;
mod device;
mod encode;
mod frontend;
mod generate;
mod manifest;
mod media;
mod nets;
#[cfg(feature = "cuda")]
mod on_gpu;
mod report;
mod speak;
mod thought;
mod towers;
mod tts;
mod value;
mod vocode;
mod voice;

pub use compare::{Comparison, Difference, FloatError, compare};
pub use device::{StageSource, gpu};
pub use generate::{Request, Trace, generate};
pub use media::Media;
pub use report::{Judgement, Picks, Report, Share, Summary, Verdict};
pub use value::{Data, Value, Values, read_values};

use manifest::{Kind, Manifest};
use nets::Nets;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Why no case could be run. An error of one case is in its [`Report`].
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// A folder cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The folder has no cases.
    #[error("{0} has no cases: expected manifests NAME.json with tensors NAME.safetensors beside them")]
    NoCases(PathBuf),
    /// There is no such device.
    #[error("{0}; without a GPU, verify on the CPU (--device cpu)")]
    Device(String),
}

/// Runs the cases of a folder one after the other and shows each outcome as it comes. With a checkpoint, only the cases
/// that name its folder, or `.`, are run, on it; otherwise each runs on the checkpoint beside the golden folder that it
/// names.
///
/// # Errors
/// [`VerifyError`] when a folder cannot be read or there are no cases.
pub fn verify(golden: &Path, checkpoint: Option<&Path>, show: impl FnMut(&Report)) -> Result<Summary, VerifyError> {
    run(golden, checkpoint, None, show)
}

/// [`verify`] on the stages of a device: requests of either family, with the thinker's answer from the reference, and
/// vocoders. In f32 codes must be equal and waveforms close. Otherwise the reference's codes are forced: sequences are
/// judged by how often they would have picked them ([`Summary::passed_all`]), waveforms by how much of the sound is
/// lost.
///
/// # Errors
/// Those of [`verify`].
pub fn verify_on(
    stages: &dyn StageSource,
    golden: &Path,
    checkpoint: Option<&Path>,
    show: impl FnMut(&Report),
) -> Result<Summary, VerifyError> {
    run(golden, checkpoint, Some(stages), show)
}

fn run(
    golden: &Path,
    checkpoint: Option<&Path>,
    stages: Option<&dyn StageSource>,
    mut show: impl FnMut(&Report),
) -> Result<Summary, VerifyError> {
    let golden = absolute(golden)?;
    let checkpoint = checkpoint.map(absolute).transpose()?;
    let manifests = manifests(&golden)?;
    if manifests.is_empty() {
        return Err(VerifyError::NoCases(golden));
    }
    let mut verifier = Verifier { golden, checkpoint, stages, nets: None };
    let mut summary = Summary::default();
    for path in manifests {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        // One broken case must not keep the others from being checked.
        let outcome = catch_unwind(AssertUnwindSafe(|| verifier.case(&path)));
        let verdict = match outcome {
            Ok(Ok(verdict)) => verdict,
            Ok(Err(reason)) => Verdict::Broken(reason),
            Err(_) => Verdict::Broken("the run panicked: please report this as a bug".into()),
        };
        let report = Report { name, verdict };
        summary.count(&report);
        show(&report);
    }
    Ok(summary)
}

struct Verifier<'a> {
    golden: PathBuf,
    checkpoint: Option<PathBuf>,
    /// The stages of a device; `None` for the CPU's nets.
    stages: Option<&'a dyn StageSource>,
    /// The nets of the last case: neighbouring cases mostly share them.
    nets: Option<Nets>,
}

impl Verifier<'_> {
    fn case(&mut self, path: &Path) -> Result<Verdict, String> {
        let mut manifest = Manifest::read(path)?;
        let folder = match &self.checkpoint {
            Some(folder) => {
                if !manifest.is_for(&folder.file_name().unwrap_or_default().to_string_lossy()) {
                    return Ok(Verdict::Other(manifest.checkpoint));
                }
                folder.clone()
            }
            None => manifest.checkpoint_in(self.golden.parent().unwrap_or(&self.golden))?,
        };
        let file = format!("{}.safetensors", manifest.name);
        let bytes =
            std::fs::read(path.with_extension("safetensors")).map_err(|e| format!("cannot read {file}: {e}"))?;
        let reference = read_values(&bytes).map_err(|e| format!("{file}: {e}"))?;
        if let Kind::Frontend(kind) = manifest.kind {
            let checkpoint = (folder.as_path(), self.checkpoint.is_some());
            return frontend::run(kind, &manifest, &reference, &self.golden, checkpoint);
        }
        // A server with a GPU computes these on its CPU.
        let on_cpu = manifest.kind == Kind::TtsFrontend;
        let Some(stages) = self.stages.filter(|_| !on_cpu) else {
            return case::run(&manifest, reference, self.nets(&folder, &manifest)?);
        };
        let end = match device::end(&manifest) {
            Ok(end) => end,
            Err(reason) => return Ok(Verdict::Skipped(reason)),
        };
        // Cases may end with another token than the config's.
        let own = self.nets(&folder, &manifest)?.checkpoint.family().talker().tokens.eos;
        if let Some(end) = end.filter(|end| *end != own) {
            manifest.overrides.insert("talker_config.codec_eos_token_id".into(), end.into());
        }
        device::run(&manifest, reference, self.nets(&folder, &manifest)?, stages)
    }

    fn nets(&mut self, folder: &Path, manifest: &Manifest) -> Result<&Nets, String> {
        let kept = self.nets.take().filter(|nets| nets.are(folder, &manifest.overrides));
        let nets = match kept {
            Some(nets) => nets,
            None => Nets::open(folder, &manifest.overrides).map_err(|e| e.to_string())?,
        };
        Ok(self.nets.insert(nets))
    }
}

/// Every `*.json` of a folder, by name.
fn manifests(golden: &Path) -> Result<Vec<PathBuf>, VerifyError> {
    let io = |source| VerifyError::Io { path: golden.to_owned(), source };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(golden).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.extension().is_some_and(|ending| ending == "json") && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn absolute(path: &Path) -> Result<PathBuf, VerifyError> {
    path.canonicalize().map_err(|source| VerifyError::Io { path: path.to_owned(), source })
}
