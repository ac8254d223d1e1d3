//! Which of several models are in memory: loaded at the start or when a request wants them, unloaded when they are idle
//! or another one needs their memory. A model that is in use is never unloaded, and one that fails concerns no other.
//!
//! The owner carries out the [`Effect`]s and reports how they ended. Times are since any fixed moment.

use std::time::Duration;

/// What the config says of one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Whether it is loaded before a request wants it, and loaded again by itself where that failed.
    pub at_start: bool,
    /// Unloaded after so long without use; `None`: only where another model needs its memory.
    pub unload_after: Option<Duration>,
    /// What it takes of the memory for all models.
    pub bytes: u64,
}

/// What the config says of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResidenceLimits {
    /// Bytes of all loaded models together; `None`: no limit.
    pub memory: Option<u64>,
    /// Pause before a load that failed is tried again; doubles with each failure in a row.
    pub pause: Duration,
    /// Longest pause.
    pub longest_pause: Duration,
}

/// Where a model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadState {
    /// The next request loads it.
    Unloaded,
    /// It is being loaded, or waits for memory.
    Loading,
    /// It serves.
    Loaded,
    /// It is being unloaded.
    Unloading,
    /// It did not load, or gave up. Tried again not before `again`.
    Failed {
        /// Why, for people.
        reason: String,
        /// When it may be loaded again.
        again: Duration,
    },
}

/// What the owner has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Load this model; report [`Residence::loaded`] or [`Residence::failed`].
    Load(usize),
    /// Unload it; report [`Residence::unloaded`].
    Unload(usize),
}

/// The answer to who wants to use a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It is in use until [`Residence::left`].
    Entered,
    /// It is not there yet: enter again when something has changed, until then the request counts as one that waits.
    Wait,
    /// It failed and is not tried again before this pause is over.
    Failed {
        /// Why.
        reason: String,
        /// When to come again.
        pause: Duration,
    },
}

#[derive(Debug)]
struct Model {
    resident: Resident,
    state: LoadState,
    /// Requests that use it.
    uses: usize,
    /// Requests that wait for it. It is not unloaded before they have had it.
    waits: usize,
    /// Whether it is to be loaded although no request waits.
    wanted: bool,
    /// The order in which models were asked for.
    asked: Option<u64>,
    /// When it was last used, or loaded.
    used: Duration,
    /// When it was loaded last.
    loaded: Duration,
    /// Failures in a row.
    failures: u32,
}

impl Model {
    fn takes_memory(&self) -> bool {
        match self.state {
            LoadState::Loading => self.asked.is_none(),
            LoadState::Loaded | LoadState::Unloading => true,
            LoadState::Unloaded | LoadState::Failed { .. } => false,
        }
    }

    fn is_idle(&self) -> bool {
        self.state == LoadState::Loaded && self.uses == 0 && self.waits == 0
    }

    fn idle_until(&self) -> Option<Duration> {
        self.resident.unload_after.filter(|_| self.is_idle()).map(|after| self.used.saturating_add(after))
    }
}

/// See the module.
#[derive(Debug)]
pub struct Residence {
    models: Vec<Model>,
    limits: ResidenceLimits,
    next_asked: u64,
    closed: bool,
}

impl Residence {
    /// None is loaded yet; [`Residence::effects`] begins with those of the start.
    pub fn new(residents: impl IntoIterator<Item = Resident>, limits: ResidenceLimits) -> Residence {
        let model = |resident: Resident| Model {
            resident,
            state: LoadState::Unloaded,
            uses: 0,
            waits: 0,
            wanted: resident.at_start,
            asked: None,
            used: Duration::ZERO,
            loaded: Duration::ZERO,
            failures: 0,
        };
        Residence { models: residents.into_iter().map(model).collect(), limits, next_asked: 0, closed: false }
    }

    /// Where a model is.
    pub fn state(&self, index: usize) -> &LoadState {
        &self.models[index].state
    }

    /// Requests that use a model.
    pub fn uses(&self, index: usize) -> usize {
        self.models[index].uses
    }

    /// Whether each model of the start has been loaded or has failed.
    pub fn is_settled(&self) -> bool {
        let settled = |model: &Model| matches!(model.state, LoadState::Loaded | LoadState::Failed { .. });
        self.models.iter().all(|model| !model.wanted || settled(model))
    }

    /// A request wants to use a model. One that waits already says so.
    pub fn enter(&mut self, index: usize, now: Duration, waits: bool) -> Entry {
        let model = &mut self.models[index];
        let entry = match &model.state {
            LoadState::Loaded => {
                (model.uses, model.used, model.wanted) = (model.uses + 1, now, false);
                Entry::Entered
            }
            LoadState::Failed { reason, again } if *again > now => {
                Entry::Failed { reason: reason.clone(), pause: again.saturating_sub(now) }
            }
            _ => Entry::Wait,
        };
        match (waits, entry == Entry::Wait) {
            (false, true) => model.waits += 1,
            (true, false) => model.waits = model.waits.saturating_sub(1),
            _ => {}
        }
        entry
    }

    /// A request that waited has left. A load that has begun goes on.
    pub fn stopped_waiting(&mut self, index: usize) {
        let model = &mut self.models[index];
        model.waits = model.waits.saturating_sub(1);
    }

    /// A request that used a model has ended.
    pub fn left(&mut self, index: usize, now: Duration) {
        let model = &mut self.models[index];
        (model.uses, model.used) = (model.uses.saturating_sub(1), now);
    }

    /// From now on nothing is loaded or unloaded.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Whether [`Residence::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// What has to be done now.
    pub fn effects(&mut self, now: Duration) -> Vec<Effect> {
        if self.closed {
            return Vec::new();
        }
        let mut effects = Vec::new();
        for (index, model) in self.models.iter_mut().enumerate() {
            if model.idle_until().is_some_and(|until| until <= now) {
                model.state = LoadState::Unloading;
                effects.push(Effect::Unload(index));
            }
            let asked_for = model.wanted || model.waits > 0;
            match &model.state {
                LoadState::Unloaded if asked_for => model.state = LoadState::Loading,
                LoadState::Failed { again, .. } if asked_for && *again <= now => model.state = LoadState::Loading,
                // It waited for memory, and so did requests that have left meanwhile.
                LoadState::Loading if model.asked.is_some() && !asked_for => {
                    (model.state, model.asked) = (LoadState::Unloaded, None);
                    continue;
                }
                _ => continue,
            }
            model.asked = Some(self.next_asked);
            self.next_asked += 1;
        }
        // In the order in which they were asked for: a small model must not keep a large one out for ever.
        while let Some(index) = self.first_asked() {
            if !self.make_room(index, &mut effects) {
                break;
            }
            self.models[index].asked = None;
            effects.push(Effect::Load(index));
        }
        effects
    }

    fn first_asked(&self) -> Option<usize> {
        let asked = self.models.iter().enumerate().filter_map(|(index, model)| Some((model.asked?, index)));
        asked.min().map(|(_, index)| index)
    }

    /// Whether a model fits now; if not, unloads idle ones, those first whose last use is the longest ago.
    fn make_room(&mut self, index: usize, effects: &mut Vec<Effect>) -> bool {
        let Some(memory) = self.limits.memory else { return true };
        let bytes = self.models[index].resident.bytes;
        let sum = |models: &[Model], counts: fn(&Model) -> bool| -> u64 {
            models.iter().filter(|model| counts(model)).map(|model| model.resident.bytes).sum()
        };
        if sum(&self.models, Model::takes_memory).saturating_add(bytes) <= memory {
            return true;
        }
        // What is being unloaded is free soon.
        let mut left = sum(&self.models, |model| model.takes_memory() && model.state != LoadState::Unloading);
        while left.saturating_add(bytes) > memory {
            let idle = self.models.iter().enumerate().filter(|(_, model)| model.is_idle());
            let Some((oldest, _)) = idle.min_by_key(|(_, model)| model.used) else { break };
            self.models[oldest].state = LoadState::Unloading;
            left -= self.models[oldest].resident.bytes;
            effects.push(Effect::Unload(oldest));
        }
        false
    }

    /// A model serves.
    pub fn loaded(&mut self, index: usize, now: Duration) {
        let model = &mut self.models[index];
        (model.state, model.used, model.loaded, model.wanted) = (LoadState::Loaded, now, now, false);
    }

    /// A model that was served has given up and takes no more requests; [`Residence::failed`] follows when its memory is
    /// free.
    pub fn given_up(&mut self, index: usize) {
        self.models[index].state = LoadState::Unloading;
    }

    /// A model did not load, or has given up.
    pub fn failed(&mut self, index: usize, reason: impl Into<String>, now: Duration) {
        let ResidenceLimits { pause, longest_pause, .. } = self.limits;
        let model = &mut self.models[index];
        // One that served for long has failed for the first time again.
        if model.loaded > Duration::ZERO && now.saturating_sub(model.loaded) > longest_pause {
            model.failures = 0;
        }
        let doublings = model.failures.min(16);
        model.failures += 1;
        model.wanted = model.resident.at_start;
        let pause = (pause * 2u32.pow(doublings)).min(longest_pause);
        model.state = LoadState::Failed { reason: reason.into(), again: now.saturating_add(pause) };
    }

    /// A model is out of memory.
    pub fn unloaded(&mut self, index: usize) {
        self.models[index].state = LoadState::Unloaded;
    }

    /// When [`Residence::effects`] has something to do although nothing is reported.
    pub fn next(&self) -> Option<Duration> {
        let again = |model: &Model| match &model.state {
            LoadState::Failed { again, .. } if model.wanted || model.waits > 0 => Some(*again),
            _ => None,
        };
        let open = self.models.iter().filter(|_| !self.closed);
        open.filter_map(|model| model.idle_until().or_else(|| again(model))).min()
    }
}

#[cfg(test)]
#[path = "residence_tests.rs"]
mod tests;
