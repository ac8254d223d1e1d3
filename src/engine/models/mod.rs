//! Several models in one process: each an engine of its own, loaded at the start or when a request wants it, unloaded
//! when it is idle or another one needs its memory. [`Residence`] decides; this loads and unloads.
//!
//! One that fails concerns no other: its requests get the reason, and it is tried again after a growing pause.

mod memory;
mod served;

pub use served::ServedModel;

use super::api::{ModelInfo, SubmitError};
use super::voice::VoiceInfo;
use super::voices;
use super::{Engine, Kept, Service, StartError};
use memory::{check_memory, resident};
use omni_config::{Config, LimitsConfig, ModelEntry};
use omni_core::ids::StageName;
use omni_core::residence::{Effect, Entry, LoadState, Residence, ResidenceLimits, Resident};
use omni_fault::FaultPlan;
use omni_model::checkpoint::Checkpoint;
use omni_model::hf::SAMPLE_RATE;
use omni_telemetry::ModelMetrics;
use omni_telemetry::trace::Recorder;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Opens the checkpoint of a config, headers only: slow, not for an async thread. The error is for people.
pub type Opener = Arc<dyn Fn(&Config) -> Result<Checkpoint, String> + Send + Sync>;

/// Pause before a load that failed is tried again.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The models of a config with `[[models]]`.
#[derive(Clone)]
pub struct Models {
    group: Arc<Group>,
}

struct Group {
    slots: Vec<Slot>,
    residence: Mutex<Residence>,
    began: Instant,
    /// Told after each change of `residence`.
    changed: watch::Sender<()>,
    /// How long a request waits for its model.
    patience: Duration,
    /// How long requests may go on that an engine which gave up still serves.
    grace: Duration,
    open: Opener,
}

/// What outlives the engine of a model.
struct Slot {
    config: Config,
    /// What it is to clients, once its checkpoint has been opened.
    info: OnceLock<ModelInfo>,
    /// The same until then.
    unknown: ModelInfo,
    /// The engine, and what watches it.
    engine: Mutex<Option<(Engine, AbortHandle)>>,
    /// Voices that it had when it was loaded last, or that lie in its folder.
    voices: Mutex<Vec<Arc<VoiceInfo>>>,
    /// Those of a config that was read again.
    limits: Mutex<Option<LimitsConfig>>,
    kept: Kept,
    metrics: ModelMetrics,
}

/// A request uses a model as long as it has this.
struct Use {
    group: Arc<Group>,
    index: usize,
}

impl Drop for Use {
    fn drop(&mut self) {
        self.group.change(|residence, now| residence.left(self.index, now));
    }
}

/// A request waits for a model.
struct Waiting<'a>(&'a Group, usize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.change(|residence, _| residence.stopped_waiting(self.1));
    }
}

impl Models {
    /// Begins to load the models of the start, and returns before any is there. Must be called on a tokio runtime.
    ///
    /// # Errors
    /// [`StartError::Config`] where `server.model_memory` is too small for a model, or for those of the start together.
    pub async fn launch(config: &Config, open: Opener) -> Result<Models, StartError> {
        let (recorder, next_request) = (Recorder::default(), Arc::new(AtomicU64::new(1)));
        let slot = |entry| Slot::new(entry, recorder.clone(), Arc::clone(&next_request));
        let slots: Vec<Slot> = config.models.iter().map(slot).collect();
        let residents: Vec<Resident> = config.models.iter().map(resident).collect();
        check_memory(config, &residents)?;
        let limits = ResidenceLimits { memory: config.server.model_memory, pause: PAUSE, longest_pause: LONGEST_PAUSE };
        let group = Arc::new(Group {
            slots,
            residence: Mutex::new(Residence::new(residents, limits)),
            began: Instant::now(),
            changed: watch::channel(()).0,
            patience: config.server.load_patience,
            grace: config.server.drain_grace,
            open,
        });
        for (index, slot) in group.slots.iter().enumerate() {
            // Told as soon as it is known, also of those that no request has wanted yet.
            if let Err(reason) = group.know(index).await {
                tracing::warn!(model = slot.unknown.id, reason, "the checkpoint of a model cannot be opened");
            }
        }
        tokio::spawn(carry_on(Arc::downgrade(&group)));
        Ok(Models { group })
    }

    /// Each model, in the order of the config.
    pub fn services(&self) -> Vec<Arc<dyn Service>> {
        let served = |index| Arc::new(ServedModel::new(Arc::clone(&self.group), index)) as Arc<dyn Service>;
        (0..self.group.slots.len()).map(served).collect()
    }

    /// Resolves when each model of the start has been loaded or has failed.
    pub async fn settled(&self) {
        let mut changed = self.group.changed.subscribe();
        while !self.group.lock().is_settled() {
            // The sender lives in the group.
            let _ = changed.changed().await;
        }
    }

    /// How long ago a supervisor took a message, of that stage of all engines for which it is longest.
    pub fn unsupervised(&self) -> Duration {
        self.group.engines().iter().map(Engine::unsupervised).max().unwrap_or_default()
    }

    /// The engine of a model, where that is loaded.
    pub fn engine(&self, index: usize) -> Option<Engine> {
        self.group.slots.get(index)?.engine()
    }
}

impl Slot {
    fn new(entry: &ModelEntry, recorder: Recorder, next_request: Arc<AtomicU64>) -> Slot {
        let config = entry.config.clone();
        let unknown = ModelInfo {
            id: config.model.name.clone(),
            voices: Vec::new(),
            default_voice: None,
            sample_rate: SAMPLE_RATE,
            // Of every checkpoint that is served: 12.5 frames a second.
            samples_per_frame: SAMPLE_RATE * 2 / 25,
            fade_in: config.speech.fade_in,
            word_times: false,
            hears: false,
            window: Duration::ZERO,
            sees: false,
            tools: false,
            tts: None,
        };
        let faults = FaultPlan::with(config.drill.seed, config.drill.enabled, &config.faults);
        Slot {
            info: OnceLock::new(),
            engine: Mutex::default(),
            voices: Mutex::default(),
            limits: Mutex::default(),
            kept: Kept { recorder, faults, next_request },
            metrics: ModelMetrics::new(&unknown.id),
            unknown,
            config,
        }
    }

    fn engine(&self) -> Option<Engine> {
        lock(&self.engine).as_ref().map(|(engine, _)| engine.clone())
    }

    /// Takes the engine out, and keeps what is to be told without it.
    fn take(&self) -> Option<Engine> {
        let (engine, watch) = lock(&self.engine).take()?;
        watch.abort();
        *lock(&self.voices) = engine.voices();
        self.metrics.loaded(false);
        Some(engine)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Group {
    fn lock(&self) -> MutexGuard<'_, Residence> {
        lock(&self.residence)
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Residence, Duration) -> T) -> T {
        let changed = change(&mut self.lock(), self.now());
        self.changed.send_replace(());
        changed
    }

    fn engines(&self) -> Vec<Engine> {
        self.slots.iter().filter_map(Slot::engine).collect()
    }

    /// Opens the checkpoint of a model, if that has not been done: what it is to clients.
    async fn know(self: &Arc<Self>, index: usize) -> Result<(), String> {
        if self.slots[index].info.get().is_some() {
            return Ok(());
        }
        let group = Arc::clone(self);
        let knowing = tokio::task::spawn_blocking(move || group.open(index).map(|_| ()));
        knowing.await.unwrap_or_else(|error| Err(format!("it could not be opened: {error}")))
    }

    /// Slow.
    fn open(&self, index: usize) -> Result<Checkpoint, String> {
        let slot = &self.slots[index];
        let checkpoint = (self.open)(&slot.config)?;
        let info = super::model_info(&checkpoint, &slot.config).map_err(|error| error.to_string())?;
        if slot.info.get().is_none() {
            let built_in = |name: &String| Arc::new(VoiceInfo { name: name.clone(), uploaded: false, upload: None });
            let folder = voices::folder(&slot.config.voices.directory, &info.id);
            let clones = info.tts.as_ref().is_some_and(|tts| tts.task == super::TaskType::Base);
            let uploaded = folder.filter(|_| clones).map_or_else(Vec::new, |folder| voices::kept(&folder));
            *lock(&slot.voices) = info.voices.iter().map(built_in).chain(uploaded).collect();
            let _ = slot.info.set(info);
        }
        Ok(checkpoint)
    }

    /// The engine of a model, loaded if it is not, and what keeps it loaded.
    async fn enter(self: &Arc<Self>, index: usize) -> Result<(Engine, Use), SubmitError> {
        let slot = &self.slots[index];
        let (mut changed, until) = (self.changed.subscribe(), Instant::now() + self.patience);
        let mut waiting: Option<Waiting<'_>> = None;
        loop {
            let (entry, closed) = {
                let mut residence = self.lock();
                (residence.enter(index, self.now(), waiting.is_some()), residence.is_closed())
            };
            if entry != Entry::Wait
                && let Some(waiting) = waiting.take()
            {
                // It has been counted out.
                std::mem::forget(waiting);
            }
            match entry {
                Entry::Entered => {
                    let used = Use { group: Arc::clone(self), index };
                    let gone = || SubmitError::NotReady(format!("the model {:?} is being unloaded", slot.unknown.id));
                    return Ok((slot.engine().ok_or_else(gone)?, used));
                }
                Entry::Failed { reason, pause } => {
                    return Err(SubmitError::NotReady(format!(
                        "the model {:?} failed: {reason}; it is tried again in {} s",
                        slot.unknown.id,
                        pause.as_secs_f32().ceil()
                    )));
                }
                Entry::Wait if closed => {
                    // One that did not wait before has been counted as waiting now.
                    drop(waiting.unwrap_or(Waiting(self, index)));
                    return Err(SubmitError::ShuttingDown);
                }
                Entry::Wait if waiting.is_none() => {
                    waiting = Some(Waiting(self, index));
                    self.changed.send_replace(());
                }
                Entry::Wait => {}
            }
            if tokio::time::timeout_at(until, changed.changed()).await.is_err() {
                return Err(SubmitError::NotReady(format!(
                    "the model {:?} is being loaded, or waits for memory, for longer than {} s (server.load_patience)",
                    slot.unknown.id,
                    self.patience.as_secs()
                )));
            }
        }
    }

    /// Loads a model. A task of its own: that its requests leave changes nothing.
    async fn load(self: Arc<Self>, index: usize) {
        let (slot, began) = (&self.slots[index], Instant::now());
        tracing::info!(model = slot.unknown.id, "a model is loaded");
        let group = Arc::clone(&self);
        // A task, so that a panic is a failure of this model.
        let starting = tokio::spawn(async move {
            let opener = Arc::clone(&group);
            let opened = tokio::task::spawn_blocking(move || opener.open(index)).await;
            let checkpoint = opened.unwrap_or_else(|error| Err(error.to_string()))?;
            let slot = &group.slots[index];
            let started = Engine::start_keeping(&checkpoint, &slot.config, slot.kept.clone()).await;
            started.map_err(|error| error.to_string())
        });
        match starting.await.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(engine) => {
                if let Some(limits) = &*lock(&slot.limits) {
                    engine.set_limits(limits);
                }
                let watch = tokio::spawn(watch(Arc::downgrade(&self), index, engine.clone())).abort_handle();
                *lock(&slot.engine) = Some((engine, watch));
                slot.metrics.loaded(true);
                slot.metrics.load_ended("loaded");
                tracing::info!(model = slot.unknown.id, seconds = began.elapsed().as_secs_f32(), "a model is loaded");
                self.change(|residence, now| residence.loaded(index, now));
            }
            Err(reason) => {
                slot.metrics.load_ended("failed");
                tracing::error!(model = slot.unknown.id, reason, "a model does not load");
                self.change(|residence, now| residence.failed(index, reason, now));
            }
        }
    }

    async fn unload(self: Arc<Self>, index: usize) {
        let slot = &self.slots[index];
        if let Some(engine) = slot.take() {
            engine.stop(Duration::ZERO).await;
        }
        tracing::info!(model = slot.unknown.id, "a model is unloaded");
        self.change(|residence, _| residence.unloaded(index));
    }

    /// An engine has given up a stage. What does not need that may end.
    async fn give_up(self: Arc<Self>, index: usize, (stage, reason): (StageName, String)) {
        let slot = &self.slots[index];
        tracing::error!(model = slot.unknown.id, %stage, reason, "a model is given up");
        self.change(|residence, _| residence.given_up(index));
        if let Some(engine) = slot.take() {
            engine.stop(self.grace).await;
        }
        let reason = format!("its {stage} stage failed too often and was given up: {reason}");
        self.change(|residence, now| residence.failed(index, reason, now));
    }

    fn carry_out(self: &Arc<Self>) -> Option<Duration> {
        let (effects, next) = {
            let (mut residence, now) = (self.lock(), self.now());
            (residence.effects(now), residence.next())
        };
        for effect in effects {
            match effect {
                Effect::Load(index) => drop(tokio::spawn(Arc::clone(self).load(index))),
                Effect::Unload(index) => drop(tokio::spawn(Arc::clone(self).unload(index))),
            }
        }
        next
    }

    fn state(&self, index: usize) -> LoadState {
        self.lock().state(index).clone()
    }
}

/// Does what the residence says, until the group is gone.
async fn carry_on(group: Weak<Group>) {
    let Some(mut changed) = group.upgrade().map(|group| group.changed.subscribe()) else { return };
    loop {
        let Some((began, next)) = group.upgrade().map(|group| (group.began, group.carry_out())) else { return };
        let told = match next {
            Some(next) => tokio::time::timeout_at(began + next, changed.changed()).await.unwrap_or(Ok(())),
            None => changed.changed().await,
        };
        if told.is_err() {
            return;
        }
    }
}

/// Waits for an engine to give up. It is aborted when the engine is unloaded.
async fn watch(group: Weak<Group>, index: usize, engine: Engine) {
    let lost = engine.given_up().await;
    drop(engine);
    if let Some(group) = group.upgrade() {
        // Not here: giving it up aborts this task.
        tokio::spawn(group.give_up(index, lost));
    }
}
