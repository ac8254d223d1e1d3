//! Which sequences leave the device to the next stage.

use super::*;

#[test]
fn a_thinker_that_has_given_a_talker_its_first_token_waits_until_it_is_used() {
    let mut core = SchedulerCore::new(SchedulerConfig { yields: Yields::Each, ..config() });
    let spoken = SequenceParams { prompt_emits: 5, yields_after: 1, ..free(5) };
    let advances = |effects: &[Effect]| -> Vec<u64> {
        launches(effects).iter().flat_map(|plan| plan.sequences.iter().map(|s| s.request.0)).collect()
    };
    let admit = |core: &mut SchedulerCore, request, params| {
        advances(&core.handle(Event::Admit(RequestId(request), params, Start::default()), Duration::ZERO))
    };
    assert_eq!(admit(&mut core, 1, spoken), [1], "its prompt, and no token beyond that of it");
    assert_eq!(admit(&mut core, 2, free(3)), [2], "a text goes on beside it");
    let done = |step, request, emitted| {
        let sequences = vec![SequenceDone { request: RequestId(request), emitted, finished: false }];
        Event::StepDone(StepDone { step: StepId(step), sequences })
    };
    assert_eq!(advances(&core.handle(done(0, 1, 6), Duration::ZERO)), [2]);
    assert!(!core.is_awaited(Duration::ZERO) || core.in_flight() > 0);
    assert_eq!(advances(&core.handle(done(1, 2, 1), Duration::ZERO)), [2]);
    let used = Event::Acked { request: RequestId(1), upto: 6 };
    assert_eq!(advances(&core.handle(used, Duration::ZERO)), [] as [u64; 0], "two steps are out");
    assert_eq!(advances(&core.handle(done(2, 2, 1), Duration::ZERO)), [1, 2]);
}

#[test]
fn a_talker_alone_waits_with_the_frame_behind_a_first_chunk_until_the_vocoder_has_that() {
    let mut core = SchedulerCore::new(SchedulerConfig { yields: Yields::Alone, ..config() });
    let speech = SequenceParams { yields_after: 2, pace: Pace::OnePerStep, ..free(3) };
    let count = |effects: &[Effect]| launches(effects).len();
    let admit = |core: &mut SchedulerCore, request| {
        let begun = core.handle(Event::Admit(RequestId(request), speech.clone(), Start::default()), Duration::ZERO);
        let text = Event::Input { request: RequestId(request), units: 9, end: true };
        count(&begun) + count(&core.handle(text, Duration::ZERO))
    };
    let done = |core: &mut SchedulerCore, step, requests: &[u64]| {
        let one = |request: &u64| SequenceDone { request: RequestId(*request), emitted: 1, finished: false };
        let sequences = requests.iter().map(one).collect();
        count(&core.handle(Event::StepDone(StepDone { step: StepId(step), sequences }), Duration::ZERO))
    };
    assert_eq!(admit(&mut core, 1), 2, "the prompt with its first frame, and the second one");
    assert_eq!(done(&mut core, 0, &[1]), 0);
    assert_eq!(done(&mut core, 1, &[1]), 0, "the vocoder has its two frames");
    let used = Event::Acked { request: RequestId(1), upto: 2 };
    assert_eq!(count(&core.handle(used, Duration::ZERO)), 2);
    // Beside another one it goes on.
    assert_eq!(done(&mut core, 2, &[1]) + admit(&mut core, 2), 1);
    assert_eq!(done(&mut core, 3, &[1]), 1);
    assert!(core.in_flight() == 2 && core.knows(RequestId(2)));
}
