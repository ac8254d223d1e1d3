//! What chat turns carry besides text: files of strangers become what the encoder stage reads.
//!
//! ```text
//! sources -> checked -> turn -> memory for the worst case -> decoded -> media, memory for what is there
//!            (no work)  (queue)                             (workers, ffmpeg)
//! ```
//!
//! Nothing of it is done on a thread of the runtime. Only so many requests decode at a time, so many wait, and further
//! ones are refused; memory is counted before anything is decoded and held as long as the request lasts. A client that
//! leaves frees its place in the queue at once, and its turn when the file in hand is done. Requests of text alone never
//! come here.
//!
//! | file | what |
//! | --- | --- |
//! | `memory.rs` | how many bytes a request may need, and the part of all that it holds |
//! | `spectra.rs` | spectra of speech that was heard before |
//! | `work.rs` | one request: its files, decoded |

mod memory;
mod spectra;
#[cfg(test)]
mod tests;
mod work;

use crate::StartError;
use crate::api::{MediaKind, MediaSource, MediaTokens, SubmitError};
use crate::decode::Decoders;
use crate::process::binary;
use memory::{Held, Memory};
use omni_config::{Config, MediaInputConfig};
use omni_media::ffmpeg::{Ffmpeg, ProcessLimits};
use omni_media::medium::MediaHash;
use omni_media::mel::LogMel;
use omni_media::{MediaLimits, Medium};
use omni_model::checkpoint::{Checkpoint, Senses};
use omni_model::hf::{Family, MediaConfig};
use omni_telemetry::MediaMetrics;
use spectra::Spectra;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use work::Trouble;

/// Requests that may wait for a turn: more than there are places by default.
const WAITING: usize = 64;
/// How long one may wait for its turn, and then for memory.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a request that nobody waits for may wait for its turn.
const SPARE_PATIENCE: Duration = Duration::from_secs(2);
/// Requests that nobody waits for have this part of the memory that all others have, besides it.
pub(crate) const SPARE: usize = 4;

/// Prepares the media of requests. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Preparer(Arc<Inner>);

struct Inner {
    front: MediaConfig,
    senses: Senses,
    mel: LogMel,
    spectra: Spectra,
    limits: MediaLimits,
    max_files: usize,
    /// Tokens that a prompt may have.
    max_tokens: usize,
    decoders: Decoders,
    ffmpeg: Option<Ffmpeg>,
    memory: Memory,
    turns: Arc<Semaphore>,
    /// The same for requests that nobody waits for, so that no other request waits for those.
    spare_memory: Memory,
    spare_turns: Arc<Semaphore>,
    waiting: AtomicUsize,
}

/// The media of one request.
#[derive(Default)]
pub(crate) struct Prepared {
    /// In the order of the sources.
    pub media: Vec<Arc<Medium>>,
    /// Tokens that stand for them.
    pub tokens: MediaTokens,
    /// To be held as long as the request lasts.
    pub memory: Option<Held>,
}

/// What chat turns of this checkpoint may carry besides text.
pub(crate) fn served(checkpoint: &Checkpoint) -> Senses {
    match checkpoint.files().exists("preprocessor_config.json") {
        true => checkpoint.senses(),
        false => Senses::default(),
    }
}

/// Whether a model with these senses takes these media.
///
/// # Errors
/// [`SubmitError::Medium`] for the first that it can neither hear nor see.
pub(crate) fn check_senses(senses: Senses, sources: &[MediaSource]) -> Result<(), SubmitError> {
    let lacks = |source: &MediaSource| match source.kind() {
        MediaKind::Audio => (!senses.hears).then_some("hear"),
        _ => (!senses.sees).then_some("see"),
    };
    match sources.iter().enumerate().find_map(|(index, source)| Some((index, lacks(source)?))) {
        None => Ok(()),
        Some((index, sense)) => {
            let message = format!("this model cannot {sense}; send text");
            Err(SubmitError::Medium { index, frame: None, message })
        }
    }
}

impl Preparer {
    /// For a checkpoint that hears and sees.
    ///
    /// # Errors
    /// [`StartError`] for a `preprocessor_config.json` that describes no front end, and for `media.decode`.
    pub fn new(checkpoint: &Checkpoint, config: &Config) -> Result<Option<Preparer>, StartError> {
        let senses = served(checkpoint);
        if !senses.any() {
            return Ok(None);
        }
        let front = MediaConfig::load(checkpoint.files())?;
        let Family::Omni(omni) = checkpoint.family() else { return Ok(None) };
        let max_tokens = omni.thinker.text.max_position_embeddings;
        let decoders = Decoders::for_media(&config.media)?;
        Preparer::with(front, senses, max_tokens, &config.media, decoders).map(Some)
    }

    fn with(
        mut front: MediaConfig,
        senses: Senses,
        max_tokens: usize,
        config: &MediaInputConfig,
        decoders: Decoders,
    ) -> Result<Preparer, StartError> {
        for rule in [&mut front.image, &mut front.video] {
            rule.max_pixels = rule.max_pixels.min(config.max_seen_pixels).max(rule.min_pixels);
        }
        let mel = LogMel::new(front.mel).map_err(|error| StartError::Config(error.to_string()))?;
        let limits = MediaLimits {
            max_bytes: config.max_bytes,
            max_pixels: config.max_pixels,
            max_seconds: f64::from(config.max_seconds),
            max_frames: config.max_frames,
        };
        let process = ProcessLimits { time: config.decode_timeout, ..ProcessLimits::default() };
        let film = |program| Ffmpeg { program, limits: process, launcher: binary() };
        Ok(Preparer(Arc::new(Inner {
            front,
            senses,
            mel,
            spectra: Spectra::new(config.max_cached_spectra),
            limits,
            max_files: config.max_files,
            max_tokens,
            turns: Arc::new(Semaphore::new(decoders.at_once())),
            decoders,
            ffmpeg: config.ffmpeg.clone().map(film),
            memory: Memory::new(config.max_memory),
            spare_memory: Memory::new(config.max_memory / SPARE),
            spare_turns: Arc::new(Semaphore::new(1)),
            waiting: AtomicUsize::new(0),
        })))
    }

    /// Prepares the media of a request of this owner. Dropping the future gives all up that it has not begun to decode.
    ///
    /// # Errors
    /// [`SubmitError::Medium`] for one that cannot be heard or seen, [`SubmitError::Invalid`] for too many,
    /// [`SubmitError::Busy`] where too many wait or there is no room in time.
    pub async fn prepare(&self, sources: Vec<MediaSource>, owner: MediaHash) -> Result<Prepared, SubmitError> {
        let kinds: Vec<&'static str> = sources.iter().map(|source| name(source.kind())).collect();
        let prepared = self.take_turn(sources, owner).await;
        for (index, kind) in kinds.into_iter().enumerate() {
            let outcome = match &prepared {
                Ok(_) => "prepared",
                Err(SubmitError::Medium { index: at, .. }) if *at == index => "refused",
                Err(SubmitError::Busy(_)) => "busy",
                Err(_) => "dropped",
            };
            MediaMetrics::ended(kind, outcome);
        }
        prepared
    }

    async fn take_turn(&self, sources: Vec<MediaSource>, owner: MediaHash) -> Result<Prepared, SubmitError> {
        self.0.check(&sources)?;
        let need = self.0.need(&sources);
        let waiting = Waiting::new(&self.0)?;
        let turn = tokio::time::timeout(PATIENCE, Arc::clone(&self.0.turns).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else {
            let told = "too many sounds and pictures are being decoded; try again in a second";
            return Err(SubmitError::Busy(told.into()));
        };
        let memory = self.0.memory.take(need, PATIENCE).await?;
        drop(waiting);
        self.work((sources, owner), turn, memory).await
    }

    /// Prepares speech for a request that nobody waits for: one at a time, with memory of its own.
    ///
    /// # Errors
    /// As [`Preparer::prepare`]; [`SubmitError::Busy`] also for what is no speech.
    pub async fn prepare_aside(&self, sources: Vec<MediaSource>, owner: MediaHash) -> Result<Prepared, SubmitError> {
        let busy = || SubmitError::Busy("there is no room for media that nobody waits for".into());
        self.0.check(&sources)?;
        if !sources.iter().all(|source| matches!(source, MediaSource::Speech(_))) {
            return Err(busy());
        }
        let turn = tokio::time::timeout(SPARE_PATIENCE, Arc::clone(&self.0.spare_turns).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else { return Err(busy()) };
        let memory = self.0.spare_memory.take_at_once(self.0.need(&sources)).ok_or_else(busy)?;
        self.work((sources, owner), turn, memory).await
    }

    async fn work(
        &self,
        (sources, owner): (Vec<MediaSource>, MediaHash),
        turn: OwnedSemaphorePermit,
        memory: Held,
    ) -> Result<Prepared, SubmitError> {
        let (inner, left) = (Arc::clone(&self.0), Left::default());
        let gone = Arc::clone(&left.0);
        // Memory and turn are the work's, which goes on for a while when its client has left.
        let working = tokio::task::spawn_blocking(move || {
            let made = inner.work(&sources, &owner, &gone);
            drop(turn);
            (made, memory)
        });
        let (made, mut memory) = working
            .await
            .map_err(|error| SubmitError::Internal(format!("the sounds and pictures were not prepared: {error}")))?;
        let media = made.map_err(|trouble| match trouble {
            Trouble::Medium { index, frame, message } => SubmitError::Medium { index, frame, message },
            Trouble::Busy(message) => SubmitError::Busy(message),
            Trouble::Gone => SubmitError::ShuttingDown,
        })?;
        let tokens = self.0.tokens(&media);
        memory.shrink(media.iter().map(Medium::bytes).sum());
        Ok(Prepared { media: media.into_iter().map(Arc::new).collect(), tokens, memory: Some(memory) })
    }
}

impl Inner {
    /// What can be seen without work.
    fn check(&self, sources: &[MediaSource]) -> Result<(), SubmitError> {
        if sources.len() > self.max_files {
            let message = format!(
                "{} sounds, pictures and videos are more than the limit of {} (media.max_files)",
                sources.len(),
                self.max_files
            );
            return Err(SubmitError::Invalid { param: "messages", message });
        }
        check_senses(self.senses, sources)?;
        for (index, source) in sources.iter().enumerate() {
            let kind = name(source.kind());
            let refused = |frame: Option<usize>, error: omni_media::MediaError| SubmitError::Medium {
                index,
                frame,
                message: error.to_string(),
            };
            match source {
                MediaSource::Audio(file)
                | MediaSource::Speech(file)
                | MediaSource::Image { file, .. }
                | MediaSource::Video { file, .. } => {
                    self.limits.check_bytes(kind, file).map_err(|error| refused(None, error))?;
                }
                MediaSource::Frames { pictures, .. } => {
                    if pictures.is_empty() || pictures.len() > self.limits.max_frames {
                        let (have, most) = (pictures.len(), self.limits.max_frames);
                        let message = format!("the video has {have} frames, 1 to {most} are taken (media.max_frames)");
                        return Err(SubmitError::Medium { index, frame: None, message });
                    }
                    for (frame, file) in pictures.iter().enumerate() {
                        self.limits.check_bytes(kind, file).map_err(|error| refused(Some(frame), error))?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The kind of a medium in metrics and errors.
fn name(kind: MediaKind) -> &'static str {
    match kind {
        MediaKind::Audio => "audio",
        MediaKind::Image => "image",
        MediaKind::Video => "video",
    }
}

/// A place in the queue.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(inner: &'a Inner) -> Result<Waiting<'a>, SubmitError> {
        let place = Waiting(&inner.waiting);
        // Counted first: the place is given back however this ends.
        if inner.waiting.fetch_add(1, Ordering::Relaxed) >= WAITING {
            return Err(SubmitError::Busy(format!(
                "{WAITING} requests with sounds and pictures wait already; try again in a second"
            )));
        }
        Ok(place)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tells the work that its client has left, when it is dropped.
#[derive(Default)]
struct Left(Arc<AtomicBool>);

impl Drop for Left {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
