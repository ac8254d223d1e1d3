//! What finds the words of a model's speech: the aligner beside its weights, or that of the config.

use super::StartError;
use super::setup::restart_limits;
use super::threads::background;
use super::words::WordFinder;
use omni_config::Config;
use omni_fault::{FaultPlan, FaultPoint};
use omni_model::aligner;
use omni_model::checkpoint::Checkpoint;
use omni_model::forced_aligner::ForcedAligner;
use omni_stage::aligner::{self as actor, AlignerSetup};
use omni_telemetry::AlignerMetrics;
use std::sync::Arc;

/// Loads what there is; `None` where there is neither.
///
/// # Errors
/// [`StartError`] for an aligner that cannot be read, with what is wrong with it.
pub(super) async fn finder(
    checkpoint: &Checkpoint,
    config: &Config,
    faults: &FaultPlan,
) -> Result<Option<WordFinder>, StartError> {
    if let Some(aligner) = aligner::read(checkpoint)? {
        return Ok(Some(WordFinder::Codes(Arc::new(aligner))));
    }
    let Some(folder) = config.aligner.checkpoint.clone() else { return Ok(None) };
    let wrong = |error: String| StartError::Config(format!("aligner.checkpoint: {error}"));
    let loading = tokio::task::spawn_blocking(move || ForcedAligner::load(&folder));
    let loaded = loading.await.map_err(|error| wrong(error.to_string()))?;
    let threads = background("aligner")?;
    let setup = AlignerSetup {
        aligner: loaded.map_err(|error| wrong(error.to_string()))?,
        restart: restart_limits(config),
        timeout: config.aligner.timeout,
        run: Box::new(move |work| threads.install(work)),
        fault: faults.site(None, FaultPoint::Aligner),
        metrics: AlignerMetrics::new(),
    };
    let started = actor::start(setup).await.map_err(|error| wrong(error.to_string()))?;
    Ok(Some(WordFinder::Sound(started)))
}
