//! What the scheduler plans, case by case.

mod histories;
mod yields;

use super::*;
use std::collections::HashMap;

fn config() -> SchedulerConfig {
    SchedulerConfig {
        slots: 4,
        max_batch: 4,
        prefill_chunk: 64,
        prefill_least: 0,
        yields: Yields::Never,
        joins_prompts: false,
        paced: false,
        run_ahead: 2,
        window: 100,
        max_step_units: None,
        buckets: Vec::new(),
        playback: PlaybackPolicy { unit: Duration::from_millis(80), gathers: 0, lead_cap: None },
    }
}

fn free(prompt: u32) -> SequenceParams {
    SequenceParams { prompt, ..SequenceParams::unprompted(Pace::Free) }
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
    let params = SequenceParams::unprompted(Pace::Chunks(vec![2]));
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
fn a_prompt_is_prefilled_up_to_the_first_position_whose_input_has_not_come() {
    let mut core = SchedulerCore::new(SchedulerConfig { run_ahead: 1, prefill_chunk: 100, ..config() });
    let request = RequestId(3);
    // text, three embeddings, text, two of another medium, text
    let runs = [(5, 0, 3), (10, 3, 2)].map(|(at, input, len)| PromptRun { at, input, len });
    let params = SequenceParams { prompt_input: 5, prompt_runs: runs.into(), ..free(20) };
    let mut effects = core.handle(Event::Admit(request, params, Start::default()), Duration::ZERO);
    let mut advances = Vec::new();
    for units in [0, 1, 1, 1, 1, 1] {
        if units > 0 {
            effects = core.handle(Event::Input { request, units, end: false }, Duration::ZERO);
        }
        for Plan { step, sequences } in launches(&effects) {
            advances.push(sequences[0].advance);
            let sequences = vec![SequenceDone { request, emitted: 0, finished: false }];
            core.handle(Event::StepDone(StepDone { step, sequences }), Duration::ZERO);
        }
    }
    assert_eq!(advances, [5, 1, 1, 3, 1, 9]);
}

#[test]
fn a_small_piece_of_a_prompt_waits_for_the_input_of_the_next() {
    let mut core = SchedulerCore::new(SchedulerConfig { run_ahead: 1, prefill_least: 8, ..config() });
    let request = RequestId(3);
    let runs = [(5, 0, 3), (10, 3, 16)].map(|(at, input, len)| PromptRun { at, input, len });
    let params = SequenceParams { prompt_input: 19, prompt_runs: runs.into(), ..free(28) };
    let mut effects = core.handle(Event::Admit(request, params, Start::default()), Duration::ZERO);
    let mut advances = Vec::new();
    for units in [0, 1, 2, 4, 7, 5] {
        if units > 0 {
            effects = core.handle(Event::Input { request, units, end: false }, Duration::ZERO);
        }
        for Plan { step, sequences } in launches(&effects) {
            advances.push((units, sequences[0].advance));
            let sequences = vec![SequenceDone { request, emitted: 0, finished: false }];
            core.handle(Event::StepDone(StepDone { step, sequences }), Duration::ZERO);
        }
    }
    // Ten positions in front of the second medium; then eleven would leave seven.
    assert_eq!(advances, [(2, 10), (5, 18)]);
}

#[test]
fn a_prompt_whose_input_ends_too_early_is_computed_as_far_as_it_came() {
    let mut core = SchedulerCore::new(SchedulerConfig { run_ahead: 1, prefill_least: 8, ..config() });
    let request = RequestId(3);
    let runs = vec![PromptRun { at: 2, input: 0, len: 3 }];
    let params = SequenceParams { prompt_input: 3, prompt_runs: runs, ..free(20) };
    core.handle(Event::Admit(request, params, Start::default()), Duration::ZERO);
    let advances =
        |effects: &[Effect]| launches(effects).iter().map(|plan| plan.sequences[0].advance).collect::<Vec<_>>();
    assert_eq!(advances(&core.handle(Event::Input { request, units: 1, end: false }, Duration::ZERO)), [0; 0]);
    let effects = core.handle(Event::Input { request, units: 0, end: true }, Duration::ZERO);
    assert_eq!(advances(&effects), [3]);
    let sequences = vec![SequenceDone { request, emitted: 0, finished: false }];
    let done = core.handle(Event::StepDone(StepDone { step: StepId(0), sequences }), Duration::ZERO);
    assert_eq!(advances(&done), [0], "and then it ends");
}

#[test]
fn what_a_prompt_hands_on_is_no_sound_that_its_listener_has() {
    let start = Duration::from_secs(1);
    let mut core = SchedulerCore::new(SchedulerConfig { run_ahead: 1, prefill_chunk: 4, ..config() });
    let request = RequestId(3);
    // Text in front of a picture goes on at once; a stage further up still makes the rows of the picture.
    let runs = vec![PromptRun { at: 4, input: 0, len: 4 }];
    let params = SequenceParams { prompt_input: 4, prompt_runs: runs, prompt_emits: 12, ..free(12) };
    core.handle(Event::Admit(request, params, Start::default()), start);
    let sequences = vec![SequenceDone { request, emitted: 4, finished: false }];
    core.handle_held(Event::StepDone(StepDone { step: StepId(0), sequences }), start, true);
    let effects = core.handle_held(Event::Input { request, units: 4, end: true }, start, true);
    assert_eq!(launches(&effects).len(), 1, "its listener has heard nothing, so nothing holds it back");
    assert!(!core.is_held());
}

#[test]
fn the_vocoder_gets_one_frame_first_then_the_ramp_and_a_short_chunk_only_at_the_end() {
    let mut core = SchedulerCore::new(SchedulerConfig { run_ahead: 8, ..config() });
    let request = RequestId(7);
    let params = SequenceParams::unprompted(Pace::Chunks(vec![1, 2, 4]));
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
    let chunks = SequenceParams::unprompted(Pace::Chunks(vec![1]));
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
fn prompts_that_come_while_one_is_computed_go_together_or_at_once_where_they_fill_a_step() {
    let joining = SchedulerConfig { joins_prompts: true, prefill_chunk: 10, ..config() };
    let mut core = SchedulerCore::new(joining);
    let told = |effects: &[Effect]| -> Vec<Vec<(u64, u32)>> {
        let of = |plan: &Plan| -> Vec<_> {
            let mut all: Vec<_> = plan.sequences.iter().map(|s| (s.request.0, s.advance)).collect();
            all.sort_unstable();
            all
        };
        launches(effects).iter().map(of).collect()
    };
    let admit = |core: &mut SchedulerCore, request, prompt| {
        told(&core.handle(Event::Admit(RequestId(request), free(prompt), Start::default()), Duration::ZERO))
    };
    assert_eq!(admit(&mut core, 1, 4), [[(1, 4)], [(1, 1)]], "its next token needs nobody");
    assert_eq!(admit(&mut core, 2, 4), [] as [Vec<_>; 0]);
    let sequences = vec![SequenceDone { request: RequestId(1), emitted: 1, finished: false }];
    let done = |step, sequences: &[SequenceDone]| {
        Event::StepDone(StepDone { step: StepId(step), sequences: sequences.to_vec() })
    };
    assert_eq!(told(&core.handle(done(0, &sequences), Duration::ZERO)), [vec![(1, 1), (2, 4)]]);
    assert_eq!(told(&core.handle(done(1, &sequences), Duration::ZERO)), [[(1, 1), (2, 1)]], "no prompt");
    assert_eq!(admit(&mut core, 3, 4), [] as [Vec<_>; 0]);
    assert_eq!(admit(&mut core, 4, 7), [] as [Vec<_>; 0], "two steps are out");
    let both = [sequences[0], SequenceDone { request: RequestId(2), ..sequences[0] }];
    assert_eq!(told(&core.handle(done(2, &both), Duration::ZERO)), [vec![(1, 1), (2, 1), (3, 4), (4, 6)]]);
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
    let params = SequenceParams { lead, ..SequenceParams::unprompted(pace) };
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
        core.handle(Event::Admit(request, SequenceParams::unprompted(pace), Start::default()), start);
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

#[test]
fn a_paced_stage_plans_a_step_when_the_one_before_it_is_nearly_over() {
    let mut core = SchedulerCore::new(SchedulerConfig { paced: true, ..config() });
    let admit = |core: &mut SchedulerCore, id| {
        core.handle(Event::Admit(RequestId(id), free(5), Start::default()), Duration::ZERO)
    };
    let nearly = |core: &mut SchedulerCore, step| core.handle(Event::Nearly(StepId(step)), Duration::ZERO);
    assert_eq!(launches(&admit(&mut core, 1)).len(), 1);
    assert!(launches(&admit(&mut core, 2)).is_empty(), "the first step has just begun");
    let plans = launches(&nearly(&mut core, 0));
    assert_eq!(plans.iter().map(|plan| plan.sequences.len()).collect::<Vec<_>>(), [2], "one step, with both");
    assert!(launches(&nearly(&mut core, 0)).is_empty());
    let done = |step, requests: &[u64]| {
        let one = |id: &u64| SequenceDone { request: RequestId(*id), emitted: 1, finished: false };
        Event::StepDone(StepDone { step: StepId(step), sequences: requests.iter().map(one).collect() })
    };
    assert!(launches(&core.handle(done(0, &[1]), Duration::ZERO)).is_empty(), "the second step begins");
    assert!(launches(&nearly(&mut core, 0)).is_empty(), "that one is over");
    assert_eq!(launches(&core.handle(done(1, &[1, 2]), Duration::ZERO)).len(), 1, "one that told nothing");
}
