//! A device and its listeners in simulated time: the real schedulers of a talker and a vocoder, a device that takes as
//! long as a model of its costs says, clients that play what they get. Nothing here looks at a clock; a seed fixes it
//! all.
#![allow(dead_code, clippy::unwrap_used, reason = "every user needs a part of this")]

mod device;

use device::Sim;
use omni_actors::core::deadline::PlaybackPolicy;
use omni_actors::core::scheduler::{SchedulerConfig, Yields};
use std::time::Duration;

pub const UNIT: Duration = Duration::from_millis(80);

/// Milliseconds, for the models of costs.
type Ms = f64;

/// What steps cost, in the order of an H200 and a model of 1.7B.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// A frame step: `frame.0 + frame.1 * sequences`, the sequences rounded up to the next captured batch.
    pub frame: (Ms, Ms),
    /// A prefill: `prefill.0 + prefill.1 * positions`.
    pub prefill: (Ms, Ms),
    /// A launch of the vocoder, one for each length of chunk in a step: `vocoder.0 + vocoder.1 * frames`.
    pub vocoder: (Ms, Ms),
    /// How fast a talker step and a vocoder step run while both are on the device.
    pub shared: (f64, f64),
    /// From the end of a step to its outcome being with the scheduler, and from one stage to the next.
    pub host: Ms,
}

pub const COSTS: Costs =
    Costs { frame: (2.3, 0.05), prefill: (1.5, 0.02), vocoder: (0.6, 0.045), shared: (0.6, 0.6), host: 0.1 };

/// Who comes when.
#[derive(Clone, Copy, Debug)]
pub enum Arrivals {
    /// So many at a time, the next one when one has heard all.
    Closed(u32),
    /// So many a second, at random.
    Poisson(f64),
}

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub costs: Costs,
    pub talker: SchedulerConfig,
    pub vocoder: SchedulerConfig,
    pub arrivals: Arrivals,
    pub requests: u64,
    /// Frames and prompt positions of a request.
    pub frames: std::ops::RangeInclusive<u64>,
    pub prompt: u32,
    pub seed: u64,
    /// Whether the stages ask an arbiter.
    pub arbiter: bool,
}

impl Scenario {
    pub fn new(arrivals: Arrivals, requests: u64, frames: std::ops::RangeInclusive<u64>) -> Scenario {
        let policy = |gathers| PlaybackPolicy { unit: UNIT, gathers, lead_cap: Some(Duration::from_secs(2)) };
        let talker = SchedulerConfig {
            slots: 128,
            max_batch: 128,
            prefill_chunk: 256,
            prefill_least: 0,
            yields: Yields::Never,
            joins_prompts: false,
            paced: false,
            run_ahead: 2,
            window: 1024,
            max_step_units: None,
            buckets: vec![1, 2, 4, 8, 16, 32, 64, 128],
            playback: policy(8),
        };
        let vocoder = SchedulerConfig {
            max_batch: 64,
            prefill_chunk: 8,
            prefill_least: 0,
            yields: Yields::Never,
            joins_prompts: false,
            paced: false,
            window: 64,
            run_ahead: 1,
            buckets: Vec::new(),
            max_step_units: Some(128),
            playback: policy(0),
            ..talker.clone()
        };
        Scenario { costs: COSTS, talker, vocoder, arrivals, requests, frames, prompt: 24, seed: 1, arbiter: true }
    }

    pub fn lead_cap(mut self, cap: Option<Duration>) -> Scenario {
        self.talker.playback.lead_cap = cap;
        self.vocoder.playback.lead_cap = cap;
        self
    }

    pub fn run(self) -> Report {
        Sim::new(self).run()
    }
}

/// What the listeners say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Milliseconds to first audio, ascending.
    pub ttfa: Vec<Ms>,
    pub heard: u64,
    /// Streams with at least one chunk too late.
    pub underruns: u64,
    /// Of sound, and of the clock.
    pub audio: f64,
    pub seconds: f64,
    /// Longest time that a started stream went without a chunk although its listener had nothing left.
    pub worst_silence: Ms,
    /// Time the device did nothing although a step had been launched or a sequence could have run.
    pub idle: Ms,
    /// By how much the one who was overtaken most had come before the one who was heard first.
    pub overtaken: Ms,
}

impl Report {
    pub fn percentile(&self, p: f64) -> Ms {
        self.ttfa[((self.ttfa.len() - 1) as f64 * p) as usize]
    }
    pub fn rate(&self) -> f64 {
        self.audio / self.seconds
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [p50, p95, p99] = [0.5, 0.95, 0.99].map(|p| self.percentile(p));
        write!(
            f,
            "ttfa {p50:6.1} {p95:6.1} {p99:6.1} ms, {:6.1} audio-s/s, {:3} underruns of {}, worst silence {:.0} ms",
            self.rate(),
            self.underruns,
            self.heard,
            self.worst_silence
        )
    }
}
