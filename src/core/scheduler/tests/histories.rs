//! Random histories against a small world: a runner that answers steps in order but late, an upstream that trickles
//! input, a downstream that takes units over, clients that leave.

use super::super::*;
use proptest::prelude::*;
use std::collections::HashMap;

/// What the world knows of a request, independent of the scheduler.
#[derive(Clone, Debug)]
struct Truth {
    params: SequenceParams,
    /// Units of input it will get in all.
    input_total: u32,
    input_given: u32,
    /// For free and talker sequences: the decode step at which the model stops.
    stops_at: u32,
    slot: Option<Slot>,
    prefilled: u32,
    decoded: u32,
    emitted: u32,
    acked: u32,
    stopped: bool,
    finished: bool,
    aborted: bool,
}

#[derive(Debug)]
struct World {
    core: SchedulerCore,
    config: SchedulerConfig,
    truth: HashMap<RequestId, Truth>,
    slots: HashMap<Slot, RequestId>,
    launched: VecDeque<Plan>,
    now: Duration,
    stale: u64,
    consumed: HashMap<RequestId, u32>,
    /// Whether another stage is more urgent.
    hold: bool,
    /// Sequences that run alone, and the unit up to which they do.
    alone: HashMap<RequestId, u32>,
}

impl World {
    fn new(config: SchedulerConfig) -> World {
        World {
            core: SchedulerCore::new(config.clone()),
            config,
            truth: HashMap::new(),
            slots: HashMap::new(),
            launched: VecDeque::new(),
            now: Duration::ZERO,
            stale: 0,
            consumed: HashMap::new(),
            hold: false,
            alone: HashMap::new(),
        }
    }

    /// Whether a sequence runs alone, as far as steps have returned.
    fn is_alone(&self, request: RequestId) -> bool {
        let truth = &self.truth[&request];
        !truth.aborted && !truth.stopped && self.alone.get(&request).is_some_and(|unit| truth.emitted <= *unit)
    }

    fn tell(&mut self, event: Event) {
        self.now += Duration::from_millis(1);
        let effects = self.core.handle_held(event, self.now, self.hold);
        let tells_others = |effect: &Effect| matches!(effect, Effect::Consumed(_) | Effect::Finished(_));
        assert!(effects.iter().skip_while(|effect| !tells_others(effect)).all(tells_others), "a launch comes too late");
        assert!(effects.iter().filter(|effect| matches!(effect, Effect::Consumed(_))).count() <= 1);
        for effect in effects {
            match effect {
                Effect::Open(request, slot) => {
                    assert!(self.slots.insert(slot, request).is_none(), "{slot} was given twice");
                    self.truth.get_mut(&request).unwrap().slot = Some(slot);
                }
                Effect::Close(slot) => {
                    let request = self.slots.remove(&slot).expect("closed a slot that was not open");
                    self.truth.get_mut(&request).unwrap().slot = None;
                }
                Effect::Launch(plan) => self.launch(plan),
                Effect::Consumed(acks) => {
                    for Ack { request, upto } in acks {
                        let before = self.consumed.insert(request, upto).unwrap_or(0);
                        assert!(upto > before, "{request} was acknowledged up to {before} before");
                    }
                }
                Effect::Finished(request) => self.truth.get_mut(&request).unwrap().finished = true,
            }
        }
        assert!(self.launched.len() <= self.config.run_ahead as usize, "more steps in flight than run-ahead allows");
        assert!(
            self.core.in_flight() > 0 || !self.core.is_awaited(self.now),
            "others would wait for a step that is not there"
        );
        assert!(self.hold || !self.core.is_held());
    }

    /// What the model does when it sees the plan: it already knows who has stopped, the scheduler does not.
    fn launch(&mut self, plan: Plan) {
        assert!(!plan.sequences.is_empty() && plan.sequences.len() <= self.config.max_batch);
        let mut prefill = 0;
        for sequence in &plan.sequences {
            let truth = self.truth.get_mut(&sequence.request).unwrap();
            assert_eq!(truth.slot, Some(sequence.slot), "a sequence was planned in a slot that is not its own");
            assert!(!truth.aborted, "an aborted sequence was planned");
            if truth.prefilled < truth.params.prompt && sequence.advance > 0 {
                let positions = truth.prefilled..truth.prefilled + sequence.advance;
                assert!(
                    positions.clone().all(|at| truth.input_given >= needs(&truth.params, at)),
                    "a prompt was planned before its input was there"
                );
                truth.prefilled += sequence.advance;
                prefill += sequence.advance;
                assert!(truth.prefilled <= truth.params.prompt);
            } else {
                truth.decoded += sequence.advance;
                let needs = match truth.params.pace {
                    Pace::Free => 0,
                    Pace::OnePerStep if truth.input_given == truth.input_total => 0,
                    _ => truth.params.prompt_input + truth.decoded,
                };
                assert!(needs <= truth.input_given, "a step was planned before its input was there");
            }
        }
        assert!(prefill <= self.config.prefill_chunk);
        self.check_chunks(&plan);
        let alone = |plan: &Plan| plan.sequences.iter().any(|sequence| self.is_alone(sequence.request));
        if alone(&plan) {
            assert!(plan.sequences.len() == 1 && self.launched.is_empty(), "it does not run alone");
        }
        assert!(!self.launched.iter().any(alone), "a step runs beside one that is to run alone");
        self.launched.push_back(plan);
    }

    /// Where a step is bounded, its chunks are of one length and within the bound.
    fn check_chunks(&self, plan: &Plan) {
        let chunk = |sequence: &&PlannedSequence| matches!(self.truth[&sequence.request].params.pace, Pace::Chunks(_));
        let chunks: Vec<_> =
            plan.sequences.iter().filter(chunk).map(|sequence| sequence.advance).filter(|units| *units > 0).collect();
        if let (Some(most), [first, rest @ ..]) = (self.config.max_step_units, chunks.as_slice()) {
            assert!(rest.iter().all(|units| units == first), "{chunks:?}");
            assert!(chunks.iter().sum::<u32>() <= most, "{chunks:?}");
        }
    }

    /// The oldest step is nearly over, and returns.
    fn step(&mut self) {
        if let Some(step) = self.launched.front().map(|plan| plan.step) {
            self.tell(Event::Nearly(step));
        }
        let Some(plan) = self.launched.pop_front() else { return };
        let sequences = plan.sequences.iter().map(|sequence| self.outcome(sequence)).collect();
        self.tell(Event::StepDone(StepDone { step: plan.step, sequences }));
    }

    fn outcome(&mut self, planned: &PlannedSequence) -> SequenceDone {
        let request = planned.request;
        let truth = self.truth.get_mut(&request).unwrap();
        if truth.stopped || truth.aborted {
            self.stale += 1;
            return SequenceDone { request, emitted: 0, finished: false };
        }
        let window = self.config.window + truth.params.prompt_emits;
        let one_step = planned.advance.max(1);
        assert!(truth.emitted - truth.acked < window + one_step, "a sequence ran past its window by more than a step");
        let (emitted, finished) = match truth.params.pace {
            Pace::Free | Pace::OnePerStep => {
                truth.emitted += 1;
                (1, planned.advance == 0 || truth.emitted >= truth.stops_at)
            }
            Pace::Follow | Pace::Chunks(_) => (planned.advance, planned.advance == 0),
        };
        if !matches!(truth.params.pace, Pace::Free | Pace::OnePerStep) {
            truth.emitted += emitted;
        }
        truth.stopped = finished;
        SequenceDone { request, emitted, finished }
    }

    fn feed(&mut self, request: RequestId, units: u32) {
        let truth = self.truth.get_mut(&request).unwrap();
        let units = units.min(truth.input_total - truth.input_given);
        truth.input_given += units;
        let end = truth.input_given == truth.input_total;
        self.tell(Event::Input { request, units, end });
    }

    fn ack(&mut self, request: RequestId) {
        let truth = self.truth.get_mut(&request).unwrap();
        truth.acked = truth.emitted;
        let upto = truth.emitted;
        self.tell(Event::Acked { request, upto });
    }

    fn abort(&mut self, request: RequestId) {
        self.truth.get_mut(&request).unwrap().aborted = true;
        self.tell(Event::Abort(request));
    }

    /// Gives every request all it needs and lets the stage run dry.
    fn run_out(&mut self) {
        for _ in 0..2_000 {
            let mut ids: Vec<_> = self.truth.keys().copied().collect();
            ids.sort_unstable();
            for request in ids {
                self.feed(request, 3);
                self.ack(request);
            }
            self.step();
            if self.core.sequences() == 0 && self.launched.is_empty() {
                return;
            }
        }
        panic!("the stage never ran dry: {} sequences, {} in flight", self.core.sequences(), self.launched.len());
    }
}

#[derive(Clone, Debug)]
enum Move {
    Arrive(u8, u32, u32, u32, Option<u32>),
    Feed(usize, u32),
    Step,
    Ack(usize),
    Abort(usize),
    Hold(bool),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let step = prop_oneof![
        3 => (0..5u8, 0..20u32, 0..30u32, 1..12u32, proptest::option::weighted(0.2, 0..6u32))
            .prop_map(|(kind, prompt, input, stop, alone)| Move::Arrive(kind, prompt, input, stop, alone)),
        6 => (any::<usize>(), 1..6u32).prop_map(|(who, units)| Move::Feed(who, units)),
        8 => Just(Move::Step),
        5 => any::<usize>().prop_map(Move::Ack),
        1 => any::<usize>().prop_map(Move::Abort),
        2 => any::<bool>().prop_map(Move::Hold),
    ];
    proptest::collection::vec(step, 1..120)
}

/// Units of input that a position of a prompt needs.
fn needs(params: &SequenceParams, at: u32) -> u32 {
    if params.prompt_runs.is_empty() {
        return params.prompt_input;
    }
    // Its own, and those of the positions before it.
    let before = params.prompt_runs.iter().filter(|run| run.at <= at);
    before.map(|run| run.input + (at + 1 - run.at).min(run.len)).max().unwrap_or(0)
}

fn params(kind: u8, prompt: u32) -> (SequenceParams, bool) {
    let prompt = prompt + 1;
    match kind {
        // Two clips that stand across each other, with text around and between them.
        4 => {
            let runs =
                [(2, 0, 3), (9, 3, 1), (6, 4, 2), (10, 6, 2)].map(|(at, input, len)| PromptRun { at, input, len });
            let params = SequenceParams {
                prompt: prompt + 12,
                prompt_input: 8,
                prompt_runs: runs.into(),
                prompt_emits: prompt,
                yields_after: 1,
                ..SequenceParams::unprompted(Pace::Free)
            };
            (params, true)
        }
        0 => (SequenceParams { prompt, ..SequenceParams::unprompted(Pace::Free) }, false),
        1 => (
            SequenceParams {
                prompt,
                prompt_input: prompt / 2 + 1,
                yields_after: prompt % 3,
                ..SequenceParams::unprompted(Pace::OnePerStep)
            },
            true,
        ),
        2 => (SequenceParams { prompt, prompt_emits: prompt, ..SequenceParams::unprompted(Pace::Follow) }, true),
        _ => (SequenceParams::unprompted(Pace::Chunks(vec![1, 2, 4])), true),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5000, ..ProptestConfig::default() })]

    #[test]
    fn any_history_of_arrivals_late_stops_aborts_and_stalls_keeps_the_invariants(
        moves in moves(), slots in 1..5u32, max_batch in 1..4usize, prefill_chunk in 1..8u32, prefill_least in 0..9u32, yields in proptest::sample::select(vec![Yields::Never, Yields::Alone, Yields::Each]), joins_prompts: bool, paced: bool, run_ahead in 1..4u32,
        window in 1..9u32, max_step_units in proptest::option::of(1..9u32), gathers in 0..2u32, cap in proptest::option::of(0..500u64),
    ) {
        let playback = PlaybackPolicy { unit: Duration::from_millis(80), gathers: gathers * 4, lead_cap: cap.map(Duration::from_millis) };
        let config = SchedulerConfig { slots, max_batch, prefill_chunk, prefill_least, yields, joins_prompts, paced, run_ahead, window, max_step_units, buckets: vec![2, 3], playback };
        let mut world = World::new(config);
        for step in moves {
            let ids: Vec<_> = (0..world.truth.len() as u64).map(RequestId).collect();
            let who = |index: usize| ids.get(index % ids.len().max(1)).copied();
            match step {
                Move::Arrive(kind, prompt, input, stop, alone) => {
                    let request = RequestId(world.truth.len() as u64);
                    let (params, takes_input) = params(kind, prompt);
                    let truth = Truth {
                        params: params.clone(),
                        input_total: if takes_input { input } else { 0 },
                        input_given: 0, stops_at: stop, slot: None, prefilled: 0, decoded: 0, emitted: 0, acked: 0,
                        stopped: false, finished: false, aborted: false,
                    };
                    world.truth.insert(request, truth);
                    world.alone.extend(alone.map(|unit| (request, unit)));
                    world.tell(Event::Admit(request, params, Start { alone, ..Start::default() }));
                }
                Move::Feed(index, units) => if let Some(request) = who(index) { world.feed(request, units) },
                Move::Step => world.step(),
                Move::Ack(index) => if let Some(request) = who(index) { world.ack(request) },
                Move::Hold(hold) => {
                    world.hold = hold;
                    world.tell(Event::Wake);
                }
                Move::Abort(index) => if let Some(request) = who(index) { world.abort(request) },
            }
        }
        world.hold = false;
        world.tell(Event::Wake);
        world.run_out();
        prop_assert_eq!(world.core.waiting(), 0);
        prop_assert_eq!(world.core.free.len(), slots as usize, "a slot leaked");
        prop_assert_eq!(world.core.stale(), world.stale, "stale outcomes are counted, and nothing else is");
        for (request, truth) in &world.truth {
            prop_assert!(truth.finished || truth.aborted, "{} neither finished nor was aborted", request);
            if truth.finished && !truth.aborted && matches!(truth.params.pace, Pace::Follow | Pace::Chunks(_)) {
                let all = truth.params.prompt + truth.input_total;
                prop_assert_eq!(truth.emitted, all, "{} lost or repeated units", request);
                prop_assert_eq!(world.consumed.get(request).copied().unwrap_or(0), truth.input_total);
            }
        }
    }
}
