//! A device and its listeners in simulated time: the real schedulers of a talker and a vocoder, a device that takes as
//! long as a model of its costs says, clients that play what they get. Nothing here looks at a clock; a seed fixes it
//! all.
#![allow(dead_code, clippy::unwrap_used, reason = "every user needs a part of this")]

use omni_actors::core::arbiter::{ArbiterCore, Turn};
use omni_actors::core::deadline::PlaybackPolicy;
use omni_actors::core::ids::{RequestId, StageName};
use omni_actors::core::scheduler::{
    Ack, Effect, Event, Pace, Plan, SchedulerConfig, SchedulerCore, SequenceDone, SequenceParams, Start, StepDone,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

pub const UNIT: Duration = Duration::from_millis(80);
/// A player forgives this much.
const LATE: Duration = Duration::from_millis(20);
const RAMP: [u32; 4] = [1, 2, 4, 8];

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

#[derive(Clone, Debug)]
pub struct FaultContext {
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

impl FaultContext {
    pub fn new(arrivals: Arrivals, requests: u64, frames: std::ops::RangeInclusive<u64>) -> FaultContext {
        let policy = |gathers| PlaybackPolicy { unit: UNIT, gathers, lead_cap: Some(Duration::from_secs(2)) };
        let talker = SchedulerConfig {
            slots: 128,
            max_batch: 128,
            prefill_chunk: 256,
            run_ahead: 2,
            window: 1024,
            max_step_units: None,
            buckets: vec![1, 2, 4, 8, 16, 32, 64, 128],
            playback: policy(8),
        };
        let vocoder = SchedulerConfig {
            max_batch: 64,
            prefill_chunk: 8,
            window: 64,
            run_ahead: 1,
            buckets: Vec::new(),
            max_step_units: Some(128),
            playback: policy(0),
            ..talker.clone()
        };
        FaultContext { costs: COSTS, talker, vocoder, arrivals, requests, frames, prompt: 24, seed: 1, arbiter: true }
    }

    pub fn lead_cap(mut self, cap: Option<Duration>) -> FaultContext {
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Which {
    Talker,
    Vocoder,
}

impl Which {
    fn stage(self) -> StageName {
        match self {
            Which::Talker => StageName::Talker,
            Which::Vocoder => StageName::Vocoder,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Message {
    Arrive,
    /// A step's outcome reaches its scheduler: sequences as (request, emitted, finished).
    Done(Which, u64, Vec<(RequestId, u32, bool)>),
    Codes(RequestId, u32, bool),
    Audio(RequestId, u32, bool),
    Wake(Which),
}

struct Request {
    came: Duration,
    frames: u64,
    prefill: u32,
    made: u64,
    talked: bool,
    waiting: u32,
    codes_ended: bool,
    vocoded: bool,
    /// When the player began, and what it has got.
    playing: Option<(Duration, u32)>,
    late: bool,
}

struct Stage {
    core: SchedulerCore,
    queue: VecDeque<Plan>,
    /// The step on the device and how much of it is left, in milliseconds alone.
    running: Option<(Plan, Ms)>,
}

struct Sim {
    context: FaultContext,
    now: Duration,
    stages: BTreeMap<Which, Stage>,
    arbiter: ArbiterCore,
    requests: HashMap<RequestId, Request>,
    messages: BinaryHeap<Reverse<(Duration, u64, Message)>>,
    sent: u64,
    came: u64,
    random: u64,
    report: Report,
    /// When the youngest came who has been heard.
    youngest: Duration,
}

fn ms(ms: Ms) -> Duration {
    Duration::from_secs_f64(ms / 1e3)
}

fn in_ms(time: Duration) -> Ms {
    time.as_secs_f64() * 1e3
}

impl Sim {
    fn new(context: FaultContext) -> Sim {
        let stage = |config: &SchedulerConfig| Stage {
            core: SchedulerCore::new(config.clone()),
            queue: VecDeque::new(),
            running: None,
        };
        let stages = [(Which::Talker, stage(&context.talker)), (Which::Vocoder, stage(&context.vocoder))].into();
        let random = context.seed;
        Sim {
            context,
            now: Duration::ZERO,
            stages,
            arbiter: ArbiterCore::default(),
            requests: HashMap::new(),
            messages: BinaryHeap::new(),
            sent: 0,
            came: 0,
            random,
            report: Report::default(),
            youngest: Duration::ZERO,
        }
    }

    fn run(mut self) -> Report {
        match self.context.arrivals {
            Arrivals::Closed(count) => (0..count).for_each(|_| self.send(0.0, Message::Arrive)),
            Arrivals::Poisson(_) => self.send(0.0, Message::Arrive),
        }
        while self.report.heard < self.context.requests {
            self.next();
        }
        self.report.seconds = self.now.as_secs_f64();
        self.report.ttfa.sort_by(f64::total_cmp);
        self.report
    }

    fn next(&mut self) {
        self.start_steps();
        let step = self.next_end();
        let message = self.messages.peek().map(|Reverse((at, ..))| *at);
        match (step, message) {
            (Some((which, at)), message) if message.is_none_or(|message| at <= message) => {
                self.advance(at);
                self.end_step(which);
            }
            (_, Some(at)) => {
                self.advance(at);
                let Reverse((_, _, message)) = self.messages.pop().unwrap();
                self.receive(message);
            }
            (_, None) => panic!("the context stands still with {} requests heard", self.report.heard),
        }
    }

    fn start_steps(&mut self) {
        let stages: Vec<_> = self.stages.keys().copied().collect();
        for which in stages {
            let stage = &self.stages[&which];
            if stage.running.is_none()
                && let Some(plan) = stage.queue.front()
            {
                let cost = self.cost(which, plan);
                let stage = self.stages.get_mut(&which).unwrap();
                let plan = stage.queue.pop_front().unwrap();
                stage.running = Some((plan, cost));
            }
        }
    }

    fn cost(&self, which: Which, plan: &Plan) -> Ms {
        let Costs { frame, prefill, vocoder, .. } = self.context.costs;
        match which {
            Which::Talker => {
                let (mut positions, mut sequences) = (0, 0_u32);
                for sequence in &plan.sequences {
                    let left = self.requests[&sequence.request].prefill;
                    positions += if left > 0 { sequence.advance } else { 0 };
                    sequences += u32::from(left <= sequence.advance);
                }
                let prefills = if positions > 0 { prefill.0 + prefill.1 * f64::from(positions) } else { 0.0 };
                let frames =
                    if sequences > 0 { frame.0 + frame.1 * f64::from(sequences.next_power_of_two()) } else { 0.0 };
                prefills + frames
            }
            Which::Vocoder => {
                let mut sizes: BTreeMap<u32, u32> = BTreeMap::new();
                for sequence in plan.sequences.iter().filter(|sequence| sequence.advance > 0) {
                    *sizes.entry(sequence.advance).or_default() += sequence.advance;
                }
                sizes.values().map(|frames| vocoder.0 + vocoder.1 * f64::from(*frames)).sum()
            }
        }
    }

    fn speed(&self, which: Which) -> f64 {
        let both = self.stages.values().all(|stage| stage.running.is_some());
        match which {
            _ if !both => 1.0,
            Which::Talker => self.context.costs.shared.0,
            Which::Vocoder => self.context.costs.shared.1,
        }
    }

    fn next_end(&self) -> Option<(Which, Duration)> {
        let ends = self.stages.iter().filter_map(|(which, stage)| {
            let (_, left) = stage.running.as_ref()?;
            Some((*which, self.now + ms(left / self.speed(*which))))
        });
        ends.min_by_key(|(_, at)| *at)
    }

    fn advance(&mut self, to: Duration) {
        let passed = in_ms(to - self.now);
        let lazy = |stage: &Stage| stage.core.in_flight() == 0 && stage.core.is_held();
        if self.stages.values().all(|stage| stage.running.is_none()) && self.stages.values().any(lazy) {
            self.report.idle += passed;
        }
        for which in [Which::Talker, Which::Vocoder] {
            let speed = self.speed(which);
            if let Some((_, left)) = &mut self.stages.get_mut(&which).unwrap().running {
                *left = (*left - passed * speed).max(0.0);
            }
        }
        self.now = to;
    }

    fn send(&mut self, after: Ms, message: Message) {
        self.sent += 1;
        self.messages.push(Reverse((self.now + ms(after), self.sent, message)));
    }

    fn end_step(&mut self, which: Which) {
        let (plan, _) = self.stages.get_mut(&which).unwrap().running.take().unwrap();
        let host = self.context.costs.host;
        let mut sequences = Vec::new();
        for sequence in &plan.sequences {
            let request = self.requests.get_mut(&sequence.request).unwrap();
            let (emitted, finished) = match which {
                Which::Talker => request.talk(sequence.advance),
                Which::Vocoder => request.vocode(sequence.advance),
            };
            sequences.push((sequence.request, emitted, finished));
            if emitted == 0 && !finished {
                continue;
            }
            match which {
                Which::Talker => self.send(2.0 * host, Message::Codes(sequence.request, emitted, finished)),
                Which::Vocoder => self.send(2.0 * host, Message::Audio(sequence.request, emitted, finished)),
            }
        }
        self.send(host, Message::Done(which, plan.step.0, sequences));
    }

    fn receive(&mut self, message: Message) {
        match message {
            Message::Arrive => self.arrive(),
            Message::Done(which, step, sequences) => {
                let sequences = sequences.into_iter().map(|(request, emitted, finished)| SequenceDone {
                    request,
                    emitted,
                    finished,
                });
                let done = StepDone { step: omni_actors::core::ids::StepId(step), sequences: sequences.collect() };
                self.tell(which, Event::StepDone(done));
            }
            Message::Codes(request, units, end) => {
                let state = self.requests.get_mut(&request).unwrap();
                state.waiting += units;
                state.codes_ended |= end;
                self.tell(Which::Vocoder, Event::Input { request, units, end });
            }
            Message::Wake(which) => self.tell(which, Event::Wake),
            Message::Audio(request, frames, end) => self.hear(request, frames, end),
        }
    }

    fn arrive(&mut self) {
        let request = RequestId(self.came);
        self.came += 1;
        let (least, most) = (*self.context.frames.start(), *self.context.frames.end());
        let frames = least + self.draw() % (most - least + 1);
        let state = Request {
            came: self.now,
            frames,
            prefill: self.context.prompt,
            made: 0,
            talked: false,
            waiting: 0,
            codes_ended: false,
            vocoded: false,
            playing: None,
            late: false,
        };
        self.requests.insert(request, state);
        let chunks = SequenceParams {
            prompt: 0,
            prompt_input: 0,
            prompt_emits: 0,
            pace: Pace::Chunks(RAMP.to_vec()),
            lead: Duration::ZERO,
        };
        self.tell(Which::Vocoder, Event::Admit(request, chunks, Start::default()));
        let prompt = self.context.prompt;
        let talk =
            SequenceParams { prompt, prompt_input: 1, prompt_emits: 0, pace: Pace::OnePerStep, lead: Duration::ZERO };
        self.tell(Which::Talker, Event::Admit(request, talk, Start::default()));
        self.tell(Which::Talker, Event::Input { request, units: 1, end: true });
        if let Arrivals::Poisson(rate) = self.context.arrivals
            && self.came < self.context.requests
        {
            let uniform = (self.draw() >> 11) as f64 / (1_u64 << 53) as f64;
            self.send(-(1.0 - uniform).ln() / rate * 1e3, Message::Arrive);
        }
    }

    fn tell(&mut self, which: Which, event: Event) {
        let returned = matches!(event, Event::StepDone(_));
        let hold = self.context.arbiter && self.arbiter.holds(which.stage());
        let core = &mut self.stages.get_mut(&which).unwrap().core;
        let effects = core.handle_held(event, self.now, hold);
        let turn = Turn { returned, awaited: core.is_awaited(self.now), held: core.is_held() };
        for woken in self.arbiter.settle(which.stage(), turn) {
            assert_eq!(woken, StageName::Vocoder, "a talker does not wait here");
            self.send(0.0, Message::Wake(Which::Vocoder));
        }
        for effect in effects {
            match effect {
                Effect::Launch(plan) => self.stages.get_mut(&which).unwrap().queue.push_back(plan),
                Effect::Consumed(acks) if which == Which::Vocoder => {
                    for Ack { request, upto } in acks {
                        self.tell(Which::Talker, Event::Acked { request, upto });
                    }
                }
                _ => {}
            }
        }
    }

    fn hear(&mut self, request: RequestId, frames: u32, end: bool) {
        let before = self.requests[&request].playing.map_or(0, |(_, got)| got);
        self.tell(Which::Vocoder, Event::Acked { request, upto: before + frames });
        let now = self.now;
        let state = self.requests.get_mut(&request).unwrap();
        match &mut state.playing {
            None => {
                self.report.ttfa.push(in_ms(now - state.came));
                self.report.overtaken = self.report.overtaken.max(in_ms(self.youngest.saturating_sub(state.came)));
                self.youngest = self.youngest.max(state.came);
                state.playing = Some((now, frames));
            }
            Some((since, got)) => {
                let dry = *since + UNIT * *got;
                let silence = now.saturating_sub(dry);
                self.report.worst_silence = self.report.worst_silence.max(in_ms(silence));
                state.late |= frames > 0 && silence > LATE;
                *got += frames;
            }
        }
        if end {
            self.report.heard += 1;
            self.report.underruns += u64::from(state.late);
            self.report.audio += state.frames as f64 * UNIT.as_secs_f64();
            if let Arrivals::Closed(_) = self.context.arrivals {
                self.send(0.0, Message::Arrive);
            }
        }
    }

    /// SplitMix64.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

impl Request {
    fn talk(&mut self, advance: u32) -> (u32, bool) {
        if self.talked {
            return (0, false);
        }
        self.prefill -= advance.min(self.prefill);
        if self.prefill > 0 {
            return (0, false);
        }
        // The last code is the stop token, which makes no frame.
        self.talked = self.made == self.frames;
        self.made += u64::from(!self.talked);
        (u32::from(!self.talked), self.talked)
    }

    fn vocode(&mut self, advance: u32) -> (u32, bool) {
        if self.vocoded {
            return (0, false);
        }
        self.waiting -= advance;
        self.vocoded = self.codes_ended && self.waiting == 0;
        (advance, self.vocoded)
    }
}
