//! Random histories against a small world: a runner that answers steps in order but late, an upstream that trickles
//! input, a downstream that takes units over, clients that leave.

use super::*;
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
                assert!(
                    truth.input_given >= truth.params.prompt_input,
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

    /// The oldest step returns.
    fn step(&mut self) {
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
        3 => (0..4u8, 0..20u32, 0..30u32, 1..12u32, proptest::option::weighted(0.2, 0..6u32))
            .prop_map(|(kind, prompt, input, stop, alone)| Move::Arrive(kind, prompt, input, stop, alone)),
        6 => (any::<usize>(), 1..6u32).prop_map(|(who, units)| Move::Feed(who, units)),
        8 => Just(Move::Step),
        5 => any::<usize>().prop_map(Move::Ack),
        1 => any::<usize>().prop_map(Move::Abort),
        2 => any::<bool>().prop_map(Move::Hold),
    ];
    proptest::collection::vec(step, 1..120)
}

fn params(kind: u8, prompt: u32) -> (SequenceParams, bool) {
    let prompt = prompt + 1;
    match kind {
        0 => {
            (SequenceParams { prompt, prompt_input: 0, prompt_emits: 0, pace: Pace::Free, lead: Duration::ZERO }, false)
        }
        1 => (
            SequenceParams {
                prompt,
                prompt_input: prompt / 2 + 1,
                prompt_emits: 0,
                pace: Pace::OnePerStep,
                lead: Duration::ZERO,
            },
            true,
        ),
        2 => (
            SequenceParams { prompt, prompt_input: 0, prompt_emits: prompt, pace: Pace::Follow, lead: Duration::ZERO },
            true,
        ),
        _ => (
            SequenceParams {
                prompt: 0,
                prompt_input: 0,
                prompt_emits: 0,
                pace: Pace::Chunks(vec![1, 2, 4]),
                lead: Duration::ZERO,
            },
            true,
        ),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5000, ..ProptestConfig::default() })]

    #[test]
    fn any_history_of_arrivals_late_stops_aborts_and_stalls_keeps_the_invariants(
        moves in moves(), slots in 1..5u32, max_batch in 1..4usize, prefill_chunk in 1..8u32, run_ahead in 1..4u32, window in 1..9u32,
        max_step_units in proptest::option::of(1..9u32), gathers in 0..2u32, cap in proptest::option::of(0..500u64),
    ) {
        let playback = PlaybackPolicy { unit: Duration::from_millis(80), gathers: gathers * 4, lead_cap: cap.map(Duration::from_millis) };
        let config = SchedulerConfig { slots, max_batch, prefill_chunk, run_ahead, window, max_step_units, buckets: vec![2, 3], playback };
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

fn config() -> SchedulerConfig {
    SchedulerConfig {
        slots: 4,
        max_batch: 4,
        prefill_chunk: 64,
        run_ahead: 2,
        window: 100,
        max_step_units: None,
        buckets: Vec::new(),
        playback: PlaybackPolicy { unit: Duration::from_millis(80), gathers: 0, lead_cap: None },
    }
}

fn free(prompt: u32) -> SequenceParams {
    SequenceParams { prompt, prompt_input: 0, prompt_emits: 0, pace: Pace::Free, lead: Duration::ZERO }
}

fn launches(effects: &[Effect]) -> Vec<Plan> {
    effects
        .iter()
        .filter_map(|effect| if let Effect::Launch(plan) = effect { Some(plan.clone()) } else { None })
        .collect()
}

#[test]
fn the_next_step_is_launched_before_the_tokens_of_the_last_are_known() {
    let mut core = SchedulerCore::new(config());
    let plans = launches(&core.handle(Event::Admit(RequestId(1), free(5), Start::default()), Duration::ZERO));
    assert_eq!(plans.len(), 2, "prefill and first decode step are both in flight");
    assert_eq!(plans[0].sequences[0].advance, 5);
    assert_eq!(plans[1].sequences[0].advance, 1);
}

#[test]
fn a_late_stop_wastes_one_sequence_and_its_outcome_is_dropped_as_stale() {
    let mut core = SchedulerCore::new(config());
    let request = RequestId(1);
    core.handle(Event::Admit(request, free(5), Start::default()), Duration::ZERO);
    let done = |step, finished| {
        Event::StepDone(StepDone {
            step: StepId(step),
            sequences: vec![SequenceDone { request, emitted: 1, finished }],
        })
    };
    let effects = core.handle(done(0, true), Duration::ZERO);
    assert_eq!(effects, [Effect::Close(Slot(0)), Effect::Finished(request)]);
    assert_eq!(core.in_flight(), 1, "the step that was launched too early is still out");
    assert_eq!(core.handle(done(1, false), Duration::ZERO), []);
    assert_eq!((core.stale(), core.sequences(), core.in_flight()), (1, 0, 0));
}

#[test]
fn a_slot_reused_while_an_old_step_is_in_flight_does_not_take_its_outcome() {
    let mut core = SchedulerCore::new(SchedulerConfig { slots: 1, ..config() });
    let (old, new) = (RequestId(1), RequestId(2));
    core.handle(Event::Admit(old, free(5), Start::default()), Duration::ZERO);
    core.handle(Event::Admit(new, free(3), Start::default()), Duration::ZERO);
    let sequences = |request, finished| vec![SequenceDone { request, emitted: 1, finished }];
    let effects =
        core.handle(Event::StepDone(StepDone { step: StepId(0), sequences: sequences(old, true) }), Duration::ZERO);
    assert!(effects.contains(&Effect::Open(new, Slot(0))), "{effects:?}");
    core.handle(Event::StepDone(StepDone { step: StepId(1), sequences: sequences(old, false) }), Duration::ZERO);
    assert_eq!(core.stale(), 1);
    assert_eq!(core.sequences(), 1, "the new sequence lives");
}

#[test]
fn a_new_request_goes_before_streams_with_lead_and_the_earliest_deadline_before_the_rest() {
    let mut core = SchedulerCore::new(SchedulerConfig { max_batch: 1, run_ahead: 1, ..config() });
    let ids: Vec<_> = (1..=3).map(RequestId).collect();
    let done = |core: &mut SchedulerCore, step, request, emitted, at| {
        let sequences = vec![SequenceDone { request, emitted, finished: false }];
        launches(&core.handle(Event::StepDone(StepDone { step: StepId(step), sequences }), Duration::from_millis(at)))
    };
    core.handle(Event::Admit(ids[0], free(1), Start::default()), Duration::ZERO);
    core.handle(Event::Admit(ids[1], free(1), Start::default()), Duration::ZERO);
    // The first sequence has ten units of lead, the second has none yet, then one.
    let plans = done(&mut core, 0, ids[0], 10, 1);
    assert_eq!(plans[0].sequences[0].request, ids[1]);
    let plans = done(&mut core, 1, ids[1], 1, 2);
    assert_eq!(plans[0].sequences[0].request, ids[1], "its listener runs dry first");
    core.handle(Event::Admit(ids[2], free(1), Start::default()), Duration::from_millis(3));
    let plans = done(&mut core, 2, ids[1], 1, 4);
    assert_eq!(plans[0].sequences[0].request, ids[2], "nobody has waited longer than a listener who has heard nothing");
}

#[test]
fn a_reader_that_stops_pauses_its_own_sequence_only() {
    let mut core = SchedulerCore::new(SchedulerConfig { window: 3, run_ahead: 1, ..config() });
    let (slow, quick) = (RequestId(1), RequestId(2));
    let mut plan = launches(&core.handle(Event::Admit(slow, free(1), Start::default()), Duration::ZERO));
    core.handle(Event::Admit(quick, free(1), Start::default()), Duration::ZERO);
    let mut steps = HashMap::new();
    for step in 1..=20 {
        let current = plan.pop().expect("the quick sequence always runs");
        let sequences = current
            .sequences
            .iter()
            .map(|sequence| SequenceDone { request: sequence.request, emitted: 1, finished: false })
            .collect();
        for sequence in &current.sequences {
            *steps.entry(sequence.request).or_insert(0) += 1;
        }
        plan = launches(&core.handle(Event::StepDone(StepDone { step: current.step, sequences }), Duration::ZERO));
        let more = launches(&core.handle(Event::Acked { request: quick, upto: step }, Duration::ZERO));
        plan.extend(more);
    }
    assert_eq!(steps[&slow], 3, "the window");
    assert!(steps[&quick] >= 19);
}

#[test]
fn an_acknowledgement_that_comes_twice_or_late_counts_once() {
    let mut core = SchedulerCore::new(SchedulerConfig { window: 3, run_ahead: 1, ..config() });
    let request = RequestId(1);
    // Another attempt, behind five units of which the consumer had taken four over.
    let start = Start { emitted: 5, acked: 4, ..Start::default() };
    let mut plans = launches(&core.handle(Event::Admit(request, free(1), start), Duration::ZERO));
    let mut steps = 0;
    while let Some(Plan { step, .. }) = plans.pop() {
        steps += 1;
        let sequences = vec![SequenceDone { request, emitted: 1, finished: false }];
        plans = launches(&core.handle(Event::StepDone(StepDone { step, sequences }), Duration::ZERO));
        for upto in [4, 4, 2] {
            plans.extend(launches(&core.handle(Event::Acked { request, upto }, Duration::ZERO)));
        }
    }
    assert_eq!(steps, 2, "four units were taken over and the window is three, so seven may be made");
    assert_eq!(launches(&core.handle(Event::Acked { request, upto: 5 }, Duration::ZERO)).len(), 1);
}

#[test]
fn a_consumer_says_how_far_it_has_used_its_input_not_how_much_of_it_its_attempt_has_used() {
    let mut core = SchedulerCore::new(SchedulerConfig { run_ahead: 1, ..config() });
    let request = RequestId(1);
    let params = SequenceParams {
        prompt: 0,
        prompt_input: 0,
        prompt_emits: 0,
        pace: Pace::Chunks(vec![2]),
        lead: Duration::ZERO,
    };
    // An earlier attempt had used nine units and could not deliver what it made of the last three.
    let start = Start { input: 6, consumed: 9, emitted: 6, acked: 6, ..Start::default() };
    core.handle(Event::Admit(request, params, start), Duration::ZERO);
    let mut plans = launches(&core.handle(Event::Input { request, units: 6, end: false }, Duration::ZERO));
    let mut told = Vec::new();
    while let Some(Plan { step, .. }) = plans.pop() {
        let sequences = vec![SequenceDone { request, emitted: 2, finished: false }];
        let effects = core.handle(Event::StepDone(StepDone { step, sequences }), Duration::ZERO);
        told.push(effects.iter().find_map(|effect| match effect {
            Effect::Consumed(acks) => Some(acks[0].upto),
            _ => None,
        }));
        plans = launches(&effects);
    }
    assert_eq!(told, [None, Some(10), Some(12)]);
}

#[test]
fn the_vocoder_gets_one_frame_first_then_the_ramp_and_a_short_chunk_only_at_the_end() {
    let mut core = SchedulerCore::new(SchedulerConfig { run_ahead: 8, ..config() });
    let request = RequestId(7);
    let params = SequenceParams {
        prompt: 0,
        prompt_input: 0,
        prompt_emits: 0,
        pace: Pace::Chunks(vec![1, 2, 4]),
        lead: Duration::ZERO,
    };
    core.handle(Event::Admit(request, params, Start::default()), Duration::ZERO);
    let sizes = |effects: &[Effect]| launches(effects).iter().map(|plan| plan.sequences[0].advance).collect::<Vec<_>>();
    let input = |units, end| Event::Input { request, units, end };
    assert_eq!(sizes(&core.handle(input(2, false), Duration::ZERO)), [1]);
    assert_eq!(sizes(&core.handle(input(1, false), Duration::ZERO)), [2]);
    assert_eq!(sizes(&core.handle(input(9, false), Duration::ZERO)), [4, 4]);
    assert_eq!(sizes(&core.handle(input(0, true), Duration::ZERO)), [1]);
}

/// A vocoder of chunks of one, with sequences of which `frames` have been emitted, at `now`.
fn vocoder(config: SchedulerConfig, sequences: &[u32], now: Duration) -> SchedulerCore {
    let mut core = SchedulerCore::new(SchedulerConfig { run_ahead: 1, ..config });
    let chunks = SequenceParams {
        prompt: 0,
        prompt_input: 0,
        prompt_emits: 0,
        pace: Pace::Chunks(vec![1]),
        lead: Duration::ZERO,
    };
    for (request, emitted) in (0..).map(RequestId).zip(sequences) {
        core.handle(Event::Admit(request, chunks.clone(), Start::default()), now);
        if *emitted > 0 {
            let plans = launches(&core.handle(Event::Input { request, units: 1, end: false }, now));
            let sequences = vec![SequenceDone { request, emitted: *emitted, finished: false }];
            core.handle(Event::StepDone(StepDone { step: plans[0].step, sequences }), now);
            core.handle(Event::Acked { request, upto: *emitted }, now);
        }
    }
    core
}

fn input(core: &mut SchedulerCore, request: u64, units: u32, now: Duration, hold: bool) -> Vec<Vec<u64>> {
    let event = Event::Input { request: RequestId(request), units, end: false };
    let plans = launches(&core.handle_held(event, now, hold));
    plans.iter().map(|plan| plan.sequences.iter().map(|sequence| sequence.request.0).collect()).collect()
}

#[test]
fn a_step_that_nobody_waits_for_is_held_and_goes_when_its_listener_gets_short_of_sound() {
    let (start, later) = (Duration::from_secs(1), Duration::from_millis(1800));
    let mut core = vocoder(config(), &[10], start);
    assert_eq!(input(&mut core, 0, 1, start, true), Vec::<Vec<u64>>::new());
    assert!(core.is_held() && !core.is_awaited(start));
    assert_eq!(launches(&core.handle_held(Event::Wake, later, true)).len(), 1, "800 ms of sound are nearly over");
    assert!(!core.is_held());
}

#[test]
fn nobody_who_has_heard_nothing_is_held() {
    let start = Duration::from_secs(1);
    let mut core = vocoder(config(), &[0], start);
    assert_eq!(input(&mut core, 0, 1, start, true), [[0]]);
    assert!(core.is_awaited(start));
}

#[test]
fn where_slots_are_scarce_nobody_is_held_or_parked() {
    let start = Duration::from_secs(1);
    let playback = PlaybackPolicy { lead_cap: Some(Duration::from_millis(500)), ..config().playback };
    let mut core = vocoder(SchedulerConfig { slots: 3, playback, ..config() }, &[20, 0], start);
    assert_eq!(input(&mut core, 0, 1, start, true), [[0]]);
}

#[test]
fn a_parked_sequence_waits_for_those_who_are_due_runs_when_nobody_is_and_fills_what_is_free() {
    let start = Duration::from_secs(1);
    let playback = PlaybackPolicy { lead_cap: Some(Duration::from_millis(500)), ..config().playback };
    let config = SchedulerConfig { slots: 8, playback, ..config() };
    for (buckets, together) in [(vec![], vec![vec![1]]), (vec![1, 2], vec![vec![1]]), (vec![2], vec![vec![1, 0]])] {
        let mut core = vocoder(SchedulerConfig { buckets: buckets.clone(), ..config.clone() }, &[20, 0, 0], start);
        assert_eq!(input(&mut core, 0, 2, start, false), [[0]], "nobody is due");
        assert_eq!(input(&mut core, 1, 2, start, false), Vec::<Vec<u64>>::new(), "one step at a time");
        let sequences = vec![SequenceDone { request: RequestId(0), emitted: 1, finished: false }];
        let step = core.in_flight.front().unwrap().step;
        let next = launches(&core.handle(Event::StepDone(StepDone { step, sequences }), start));
        let next: Vec<Vec<u64>> =
            next.iter().map(|plan| plan.sequences.iter().map(|sequence| sequence.request.0).collect()).collect();
        assert_eq!(next, together, "buckets {buckets:?}");
    }
}

#[test]
fn a_chunk_longer_than_a_step_may_be_is_cut() {
    let start = Duration::from_secs(1);
    let config = SchedulerConfig { max_step_units: Some(3), run_ahead: 1, ..config() };
    let mut core = SchedulerCore::new(config);
    let (pace, lead) = (Pace::Chunks(vec![600]), Duration::ZERO);
    let params = SequenceParams { prompt: 0, prompt_input: 0, prompt_emits: 0, pace, lead };
    core.handle(Event::Admit(RequestId(0), params, Start::default()), start);
    assert!(input(&mut core, 0, 2, start, false).is_empty(), "a chunk is not made of less");
    let input = Event::Input { request: RequestId(0), units: 700, end: false };
    let plan = launches(&core.handle(input, start)).pop().unwrap();
    assert_eq!(plan.sequences[0].advance, 3);
}

#[test]
fn a_bounded_step_takes_the_most_urgent_chunk_and_those_of_its_length() {
    let start = Duration::from_secs(1);
    let config = SchedulerConfig { max_step_units: Some(3), run_ahead: 1, slots: 8, max_batch: 8, ..config() };
    let mut core = SchedulerCore::new(config);
    for (request, size) in (0..6).map(RequestId).zip([2, 1, 2, 1, 1, 1]) {
        let pace = Pace::Chunks(vec![size]);
        core.handle(
            Event::Admit(
                request,
                SequenceParams { prompt: 0, prompt_input: 0, prompt_emits: 0, pace, lead: Duration::ZERO },
                Start::default(),
            ),
            start,
        );
    }
    let mut steps = input(&mut core, 5, 1, start, false);
    for request in 0..5 {
        input(&mut core, request, 2, start, false);
    }
    while let Some(plan) = core.in_flight.front().cloned() {
        let done = |sequence: &PlannedSequence| SequenceDone {
            request: sequence.request,
            emitted: sequence.advance,
            finished: false,
        };
        let sequences = plan.sequences.iter().map(done).collect();
        let plans = launches(&core.handle(Event::StepDone(StepDone { step: plan.step, sequences }), start));
        steps.extend(
            plans.iter().map(|plan| plan.sequences.iter().map(|sequence| sequence.request.0).collect::<Vec<_>>()),
        );
    }
    assert_eq!(steps, [vec![5], vec![0], vec![1, 3, 4], vec![2], vec![1, 3, 4]], "first come, alike together");
}

#[test]
fn a_sequence_whose_listener_still_has_sound_is_due_when_that_is_over() {
    let (start, config) = (Duration::from_secs(1), SchedulerConfig { run_ahead: 1, max_batch: 1, ..config() });
    let mut core = SchedulerCore::new(config);
    let later = SequenceParams { lead: Duration::from_secs(3), ..free(1) };
    core.handle(Event::Admit(RequestId(0), free(1), Start::default()), start);
    core.handle(Event::Admit(RequestId(1), later, Start::default()), start);
    core.handle(Event::Admit(RequestId(2), free(1), Start::default()), start);
    let mut next = |step, request, at| {
        let sequences = vec![SequenceDone { request: RequestId(request), emitted: 20, finished: false }];
        let plans = launches(&core.handle(Event::StepDone(StepDone { step: StepId(step), sequences }), at));
        plans[0].sequences[0].request.0
    };
    assert_eq!(next(0, 0, start), 2, "who has heard nothing goes first");
    assert_eq!(next(1, 2, start), 0, "then those with the least lead, 1.6 s of it");
    assert_eq!(next(2, 0, start), 2, "who is further ahead now");
    assert_eq!(next(3, 2, start), 1, "3 s of lead");
}
