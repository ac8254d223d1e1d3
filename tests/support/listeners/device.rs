//! The device and its clients: what happens when, step by step and message by message.

use super::{Arrivals, Costs, Ms, Report, Scenario, UNIT};
use omni_actors::core::arbiter::{ArbiterCore, Turn};
use omni_actors::core::ids::{RequestId, StageName};
use omni_actors::core::scheduler::{
    Ack, Effect, Event, Pace, Plan, SchedulerConfig, SchedulerCore, SequenceDone, SequenceParams, Start, StepDone,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

/// A player forgives this much.
const LATE: Duration = Duration::from_millis(20);
const RAMP: [u32; 4] = [1, 2, 4, 8];

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

/// The device, its schedulers and the clients.
pub(super) struct Sim {
    scenario: Scenario,
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
    pub fn new(scenario: Scenario) -> Sim {
        let stage = |config: &SchedulerConfig| Stage {
            core: SchedulerCore::new(config.clone()),
            queue: VecDeque::new(),
            running: None,
        };
        let stages = [(Which::Talker, stage(&scenario.talker)), (Which::Vocoder, stage(&scenario.vocoder))].into();
        let random = scenario.seed;
        Sim {
            scenario,
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

    pub fn run(mut self) -> Report {
        match self.scenario.arrivals {
            Arrivals::Closed(count) => (0..count).for_each(|_| self.send(0.0, Message::Arrive)),
            Arrivals::Poisson(_) => self.send(0.0, Message::Arrive),
        }
        while self.report.heard < self.scenario.requests {
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
            (_, None) => panic!("nothing happens any more, with {} requests heard", self.report.heard),
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
        let Costs { frame, prefill, vocoder, .. } = self.scenario.costs;
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
            Which::Talker => self.scenario.costs.shared.0,
            Which::Vocoder => self.scenario.costs.shared.1,
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
        let host = self.scenario.costs.host;
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
        let (least, most) = (*self.scenario.frames.start(), *self.scenario.frames.end());
        let frames = least + self.draw() % (most - least + 1);
        let state = Request {
            came: self.now,
            frames,
            prefill: self.scenario.prompt,
            made: 0,
            talked: false,
            waiting: 0,
            codes_ended: false,
            vocoded: false,
            playing: None,
            late: false,
        };
        self.requests.insert(request, state);
        let chunks = SequenceParams::unprompted(Pace::Chunks(RAMP.to_vec()));
        self.tell(Which::Vocoder, Event::Admit(request, chunks, Start::default()));
        let prompt = self.scenario.prompt;
        let talk = SequenceParams { prompt, prompt_input: 1, ..SequenceParams::unprompted(Pace::OnePerStep) };
        self.tell(Which::Talker, Event::Admit(request, talk, Start::default()));
        self.tell(Which::Talker, Event::Input { request, units: 1, end: true });
        if let Arrivals::Poisson(rate) = self.scenario.arrivals
            && self.came < self.scenario.requests
        {
            let uniform = (self.draw() >> 11) as f64 / (1_u64 << 53) as f64;
            self.send(-(1.0 - uniform).ln() / rate * 1e3, Message::Arrive);
        }
    }

    fn tell(&mut self, which: Which, event: Event) {
        let returned = matches!(event, Event::StepDone(_));
        let hold = self.scenario.arbiter && self.arbiter.holds(which.stage());
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
            if let Arrivals::Closed(_) = self.scenario.arrivals {
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
