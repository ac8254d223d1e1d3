//! The invariants of docs/architecture.md that live in the actors of one stage, shown with a model that tells each step.
//! Faults do the blocking: an actor that sleeps for a day is an actor that never gets round to it.

use crate::support::stage::{Beside, Launch, Rig, SPEECH, Script, next, rig, scheduler, sequence, serialized, until};
use omni_actors::actors::{Outputs, RELEASED};
use omni_actors::core::ids::{RequestId, StageName};
use omni_actors::core::scheduler::{Ack, Pace, SchedulerConfig};
use omni_actors::fault::{FaultKind, FaultPoint, FaultRule};
use omni_actors::model::stage::SequenceWork;
use omni_actors::transfer::payload::{Kind, Part, Payload};
use std::time::Duration;

const A_DAY: Duration = Duration::from_secs(86_400);
const REQUEST: RequestId = RequestId(1);

fn asleep(point: FaultPoint) -> FaultRule {
    FaultRule::new(StageName::Talker, point, FaultKind::Delay(A_DAY))
}

async fn stage(stop: u32, config: SchedulerConfig, faults: &[FaultRule]) -> (Rig, flume::Receiver<Vec<SequenceWork>>) {
    let (steps, seen) = flume::unbounded();
    (rig(StageName::Talker, Script { steps, stop }, config, faults).await, seen)
}

async fn until_end(rig: &Rig) -> Vec<Payload> {
    let mut payloads = Vec::new();
    loop {
        let payload = next(&rig.output).await;
        let end = payload.header.end.is_some();
        payloads.push(payload);
        if end {
            return payloads;
        }
    }
}

fn codes(payloads: &[Payload]) -> Vec<u32> {
    let parts = payloads.iter().flat_map(|payload| &payload.parts);
    parts.flat_map(|part| if let Part::U32(codes) = part { codes.clone() } else { panic!("{part:?}") }).collect()
}

/// Invariant 1.
#[tokio::test(flavor = "multi_thread")]
async fn the_runner_never_waits_for_a_packager() {
    let (rig, steps) = stage(100, scheduler(), &[asleep(FaultPoint::Packager)]).await;
    rig.admit(sequence(REQUEST, Pace::Free, SPEECH));
    for _ in 0..100 {
        next(&steps).await;
    }
    assert!(rig.output.is_empty(), "the packager has not packed anything");
}

/// What invariant 1 is worth: without early hand-off a launch waits for the packager.
#[tokio::test(flavor = "multi_thread")]
async fn without_early_hand_off_no_launch_follows_a_step_that_is_not_packaged() {
    for run_ahead in [1, 3] {
        let (send, steps) = flume::unbounded();
        let (script, config) = (Script { steps: send, stop: 100 }, SchedulerConfig { run_ahead, ..scheduler() });
        let rig = serialized(StageName::Talker, script, config, &[asleep(FaultPoint::Packager)]).await;
        rig.admit(sequence(REQUEST, Pace::Free, SPEECH));
        // The packager sleeps over the first step; of each other one that is out, output and news wait for it. The news
        // of the first wait too, unless they came before the packager fell asleep.
        let waiting = 2 * (run_ahead as usize - 1);
        until(|| steps.len() >= run_ahead as usize && rig.stage.load().queued >= waiting).await;
        // Whatever else the scheduler hears of, it launches nothing.
        rig.admit(sequence(RequestId(2), Pace::Free, SPEECH));
        until(|| rig.stage.load().sequences == 2).await;
        assert_eq!(steps.len(), run_ahead as usize);
        assert!(rig.output.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn early_hand_off_changes_no_token() {
    for run_ahead in [1, 2, 4] {
        let (steps, _seen) = flume::unbounded();
        let (script, config) = (Script { steps, stop: 100 }, SchedulerConfig { run_ahead, ..scheduler() });
        let rig = serialized(StageName::Talker, script, config, &[]).await;
        rig.admit(sequence(REQUEST, Pace::Free, SPEECH));
        let payloads = until_end(&rig).await;
        assert_eq!(codes(&payloads), (1..=100).collect::<Vec<_>>());
        assert_eq!(payloads.len(), 100, "no two steps share a payload: each is sent before the next is heard of");
    }
}

/// Invariant 2.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_steps_are_launched_before_the_host_has_seen_a_token() {
    let config = SchedulerConfig { run_ahead: 4, ..scheduler() };
    let (launches, steps) = flume::unbounded();
    // A device beside the host: where a launch computes its step, the sampler reads it there.
    let device = Beside { launches, stop: 100 };
    let rig = rig(StageName::Talker, device, config, &[asleep(FaultPoint::Sampler)]).await;
    rig.admit(sequence(REQUEST, Pace::Free, SPEECH));
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(next(&steps).await);
    }
    held.into_iter().for_each(Launch::end);
    assert!(rig.output.is_empty());
}

/// Invariant 3.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_stop_wastes_sequences_and_repeats_nothing() {
    let config = SchedulerConfig { run_ahead: 4, ..scheduler() };
    let (rig, steps) = stage(10, config, &[]).await;
    rig.admit(sequence(REQUEST, Pace::Free, SPEECH));
    assert_eq!(codes(&until_end(&rig).await), (1..=10).collect::<Vec<_>>());
    until(|| rig.stage.load().sequences == 0 && rig.stage.load().slots == 0).await;
    let wasted = steps.len() - 10;
    assert!(wasted <= 3, "{wasted} steps were launched for a sequence that had stopped; run-ahead allows 3");
}

/// Invariant 6.
#[tokio::test(flavor = "multi_thread")]
async fn a_text_only_request_sends_nothing_to_the_speech_stages() {
    let (rig, _steps) = stage(10, scheduler(), &[]).await;
    rig.admit(sequence(REQUEST, Pace::Free, Outputs { tokens: true, speech: false }));
    let payloads = until_end(&rig).await;
    assert!(payloads.iter().all(|payload| payload.header.kind == Kind::Tokens && payload.leases.is_empty()));
    assert_eq!(codes(&payloads), (1..=10).collect::<Vec<_>>(), "the tokens are all there");
}

/// Invariant 9.
#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_pauses_when_its_output_is_not_taken_over() {
    let (rig, steps) = stage(100, SchedulerConfig { window: 5, run_ahead: 1, ..scheduler() }, &[]).await;
    rig.admit(sequence(REQUEST, Pace::Free, SPEECH));
    for _ in 0..5 {
        next(&steps).await;
    }
    // The second sequence shares every step that the first one takes part in.
    let other = RequestId(2);
    rig.admit(sequence(other, Pace::Free, SPEECH));
    for _ in 0..5 {
        let step = next(&steps).await;
        assert_eq!(step.len(), 1, "the first sequence has used up its window");
    }
    omni_actors::actors::AckSink::acked(rig.stage.as_ref(), &[Ack { request: REQUEST, upto: RELEASED }]);
    for _ in 0..95 {
        next(&steps).await;
    }
}

/// Invariant 10, and "at least once becomes exactly once".
#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_comes_twice_is_used_once() {
    let (rig, steps) = stage(100, scheduler(), &[]).await;
    rig.admit(sequence(REQUEST, Pace::Chunks(vec![1]), SPEECH));
    for seq in [0, 1, 1, 0, 2] {
        rig.push_input(REQUEST, seq, Part::U32(vec![seq]), 1, seq == 2);
    }
    assert_eq!(until_end(&rig).await.iter().map(|payload| payload.header.units).sum::<u32>(), 4, "three and the flush");
    let advanced: u32 = steps.drain().flatten().map(|sequence| sequence.advance).sum();
    assert_eq!(advanced, 3);
    assert!(rig.context.failed.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_is_missing_fails_its_request_clearly_and_no_other() {
    let (rig, _steps) = stage(100, scheduler(), &[]).await;
    let other = RequestId(2);
    rig.admit(sequence(REQUEST, Pace::Chunks(vec![1]), SPEECH));
    rig.admit(sequence(other, Pace::Chunks(vec![1]), SPEECH));
    rig.push_input(REQUEST, 1, Part::U32(vec![0]), 1, true);
    rig.push_input(other, 0, Part::U32(vec![0]), 1, true);
    let payloads = until_end(&rig).await;
    assert!(payloads.iter().all(|payload| payload.header.request == other));
    until(|| !rig.context.failed.lock().unwrap().is_empty()).await;
    let failed = rig.context.failed.lock().unwrap().clone();
    assert_eq!(failed, [(REQUEST, "input unit #0 was lost".to_owned())]);
}
