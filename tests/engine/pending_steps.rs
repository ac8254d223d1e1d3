//! A stage whose device computes beside the host: steps are launched and end when the test lets them.

use crate::support::stage::{
    Beside, Launch, Rig, SPEECH, Script, next, rig, scheduler, sequence, sharing, soon, until, watched,
};
use omni_actors::actors::{Admission, StageState};
use omni_actors::core::ids::{Generation, RequestId, StageName};
use omni_actors::core::scheduler::{Ack, Pace, SchedulerConfig};
use omni_actors::fault::{FaultKind, FaultPoint, FaultRule};
use omni_actors::model::stage::SequenceSpec;
use omni_actors::transfer::payload::{Part, Payload};
use std::sync::atomic::Ordering;
use std::time::Duration;

const ONE: RequestId = RequestId(1);
const TWO: RequestId = RequestId(2);

fn free(request: RequestId) -> Admission {
    sequence(request, Pace::Free, SPEECH)
}

fn ahead(run_ahead: u32) -> SchedulerConfig {
    SchedulerConfig { run_ahead, ..scheduler() }
}

async fn stage(stop: u32, config: SchedulerConfig, faults: &[FaultRule]) -> (Rig, flume::Receiver<Launch>) {
    let (launches, seen) = flume::unbounded();
    (rig(StageName::Talker, Beside { launches, stop }, config, faults).await, seen)
}

async fn some(launches: &flume::Receiver<Launch>, count: usize) -> Vec<Launch> {
    let mut held = Vec::new();
    for _ in 0..count {
        held.push(next(launches).await);
    }
    held
}

fn codes(payload: &Payload) -> Vec<u32> {
    let parts = payload.parts.iter();
    parts.flat_map(|part| if let Part::U32(codes) = part { codes.clone() } else { panic!("{part:?}") }).collect()
}

/// Codes of a request in the order of their arrival, until `count` are there.
async fn heard(rig: &Rig, request: RequestId, count: usize) -> Vec<u32> {
    let mut all = Vec::new();
    while all.len() < count {
        let payload = next(&rig.output).await;
        if payload.header.request == request {
            let codes = codes(&payload);
            assert_eq!(Some(payload.header.seq.0 + 1), codes.first().copied(), "units come once and in order");
            all.extend(codes);
        }
    }
    all
}

async fn idle(rig: &Rig) {
    until(|| rig.stage.load() == Default::default()).await;
}

fn dead(rig: &Rig) -> bool {
    !rig.context.deaths.lock().unwrap().is_empty()
}

async fn death(rig: &Rig) -> String {
    until(|| dead(rig)).await;
    rig.context.deaths.lock().unwrap()[0].clone()
}

async fn second_life(rig: &Rig) {
    let second = |status: &omni_actors::actors::StageStatus| {
        status.state == StageState::Running && status.generation == Generation(2)
    };
    soon(rig.stage.status().wait_for(second)).await.unwrap();
}

/// Invariants 2 and 3.
#[tokio::test(flavor = "multi_thread")]
async fn as_many_steps_as_run_ahead_allows_are_out_before_the_first_has_ended() {
    let (rig, launches) = stage(100, ahead(3), &[]).await;
    rig.admit(free(ONE));
    let mut held = some(&launches, 3).await;
    assert!(rig.output.is_empty(), "no step has ended");
    held.remove(0).end();
    held.extend(some(&launches, 1).await);
    assert_eq!(heard(&rig, ONE, 1).await, [1]);
    assert!(launches.is_empty() && rig.output.is_empty(), "one ended, so one more is out");
}

#[tokio::test(flavor = "multi_thread")]
async fn outcomes_are_heard_in_the_order_of_the_launches() {
    let (rig, launches) = stage(100, ahead(3), &[]).await;
    rig.admit(free(ONE));
    let mut held = some(&launches, 3).await;
    held.pop().unwrap().end();
    held.pop().unwrap().end();
    assert!(rig.output.is_empty() && launches.is_empty(), "the first step has not ended");
    held.pop().unwrap().end();
    assert_eq!(heard(&rig, ONE, 3).await, [1, 2, 3]);
}

/// Invariant 3.
#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_that_stops_while_later_steps_are_out_is_heard_to_its_end_and_no_further() {
    let (rig, launches) = stage(2, ahead(4), &[]).await;
    rig.admit(free(ONE));
    let held = some(&launches, 4).await;
    held.into_iter().for_each(Launch::end);
    assert_eq!(heard(&rig, ONE, 2).await, [1, 2]);
    idle(&rig).await;
    assert!(rig.output.is_empty(), "what was computed in vain is not heard");
    assert!(rig.context.failed.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_closed_and_given_away_while_its_step_is_out_confuses_nobody() {
    let (rig, launches) = stage(3, SchedulerConfig { slots: 1, ..ahead(2) }, &[]).await;
    rig.admit(free(ONE));
    let held = some(&launches, 2).await;
    // An admission, an abort and the end of a step take different ways to the scheduler.
    rig.stage.abort(ONE);
    until(|| rig.stage.load().sequences == 0).await;
    rig.admit(free(TWO));
    until(|| rig.stage.load().sequences == 1).await;
    held.into_iter().for_each(Launch::end);
    for _ in 0..3 {
        some(&launches, 1).await.remove(0).end();
    }
    assert_eq!(heard(&rig, TWO, 3).await, [1, 2, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn sequences_join_a_step_while_others_are_out() {
    let (rig, launches) = stage(100, ahead(2), &[]).await;
    rig.admit(free(ONE));
    let mut held = some(&launches, 2).await;
    rig.admit(free(TWO));
    // Its admission and the end of a step take different ways to the scheduler.
    until(|| rig.stage.load().sequences == 2).await;
    held.remove(0).end();
    let joined = some(&launches, 1).await;
    assert_eq!(joined[0].sequences.len(), 2);
    held.into_iter().chain(joined).for_each(Launch::end);
    assert_eq!(heard(&rig, TWO, 1).await, [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_fails_in_a_pending_step_ends_the_stage_and_the_next_one_works() {
    let (rig, launches) = stage(3, ahead(2), &[]).await;
    rig.context.may_die.store(true, Ordering::Relaxed);
    rig.admit(free(ONE));
    drop(some(&launches, 2).await);
    let reason = death(&rig).await;
    assert!(reason.contains("the device is gone"), "{reason}");
    second_life(&rig).await;
    rig.admit(free(TWO));
    for _ in 0..3 {
        some(&launches, 1).await.remove(0).end();
    }
    assert_eq!(heard(&rig, TWO, 3).await, [1, 2, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_sent_to_a_stage_that_is_down_for_good_holds_no_lease() {
    let (rig, launches) = stage(3, ahead(1), &[]).await;
    rig.context.may_die.store(true, Ordering::Relaxed);
    rig.admit(free(ONE));
    drop(some(&launches, 1).await);
    second_life(&rig).await;
    rig.admit(free(TWO));
    drop(some(&launches, 1).await);
    let given_up = |status: &omni_actors::actors::StageStatus| status.state == StageState::Failed;
    soon(rig.stage.status().wait_for(given_up)).await.unwrap();
    for seq in 0..200 {
        rig.push_input(TWO, seq, Part::U32(vec![seq]), 1, false);
    }
    until(|| rig.leases.live() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_on_the_completion_thread_ends_the_stage() {
    let (rig, launches) = stage(3, ahead(1), &[]).await;
    rig.context.may_die.store(true, Ordering::Relaxed);
    rig.admit(free(ONE));
    some(&launches, 1).await.remove(0).panic();
    let reason = death(&rig).await;
    assert!(reason.contains("panic: the waiting thread dies"), "{reason}");
    second_life(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_that_dies_with_steps_out_is_replaced_once_they_have_ended() {
    let third = FaultRule::new(StageName::Talker, FaultPoint::Runner, FaultKind::Error).nth(3);
    let (rig, launches) = stage(100, ahead(3), &[third]).await;
    rig.context.may_die.store(true, Ordering::Relaxed);
    rig.admit(free(ONE));
    let held = some(&launches, 2).await;
    let reason = death(&rig).await;
    assert!(reason.contains("injected fault"), "told at once: {reason}");
    assert!(held.iter().all(Launch::model_lives), "a model outlives its steps");
    assert_eq!(rig.stage.status().borrow().generation, Generation(1));
    held.into_iter().for_each(Launch::end);
    second_life(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_that_is_stopped_waits_for_its_steps() {
    let (rig, launches) = stage(100, ahead(2), &[]).await;
    rig.admit(free(ONE));
    let held = some(&launches, 2).await;
    let stage = std::sync::Arc::clone(&rig.stage);
    let stopped = tokio::spawn(async move { stage.stop().await });
    assert!(held.iter().all(Launch::model_lives));
    held.into_iter().for_each(Launch::end);
    stopped.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_never_ends_is_noticed_by_the_watchdog() {
    let (launches, seen) = flume::unbounded();
    let factory = Beside { launches, stop: 100 };
    let rig = watched(StageName::Talker, factory, ahead(2), &[], Duration::from_millis(200)).await;
    rig.context.may_die.store(true, Ordering::Relaxed);
    rig.admit(free(ONE));
    let held = some(&seen, 2).await;
    let reason = death(&rig).await;
    assert!(reason.contains("has not turned"), "{reason}");
    held.into_iter().for_each(Launch::end);
    second_life(&rig).await;
}

mod on_a_shared_device {
    use super::*;
    use omni_actors::actors::Arbiter;
    use omni_actors::core::deadline::PlaybackPolicy;
    use std::sync::Arc;

    /// A listener who hears one unit an hour: one unit is a lead.
    fn patient() -> SchedulerConfig {
        let playback = PlaybackPolicy { unit: Duration::from_secs(3600), ..scheduler().playback };
        SchedulerConfig { playback, ..ahead(1) }
    }

    async fn stages(arbiter: &Arc<Arbiter>) -> [(Rig, flume::Receiver<Launch>); 2] {
        let (talks, talked) = flume::unbounded();
        let (vocodes, vocoded) = flume::unbounded();
        let talker = Beside { launches: talks, stop: 100 };
        let talker = sharing(StageName::Talker, talker, patient(), &[], arbiter).await;
        let vocoder = Beside { launches: vocodes, stop: 100 };
        let vocoder = sharing(StageName::Vocoder, vocoder, patient(), &[], arbiter).await;
        [(talker, talked), (vocoder, vocoded)]
    }

    /// Waits until a request's unit of this number has been sent on.
    async fn sent(rig: &Rig, request: RequestId, number: u32) {
        let header = loop {
            let header = next(&rig.output).await.header;
            if header.request == request {
                break header;
            }
        };
        assert_eq!((header.seq.0, header.units), (number, 1));
    }

    /// A sequence of the vocoder that is ahead of its listener, its next step out; a sequence of the talker that waits for its
    /// first step to return.
    async fn one_ahead_and_one_new() -> ([(Rig, flume::Receiver<Launch>); 2], Launch, Launch) {
        let [(talker, talked), (vocoder, vocoded)] = stages(&Arbiter::new()).await;
        vocoder.admit(free(ONE));
        some(&vocoded, 1).await.remove(0).end();
        sent(&vocoder, ONE, 0).await;
        let ahead = some(&vocoded, 1).await.remove(0);
        talker.admit(free(TWO));
        let new = some(&talked, 1).await.remove(0);
        ([(talker, talked), (vocoder, vocoded)], ahead, new)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_step_with_lead_waits_until_a_first_sound_upstream_has_been_taken_over() {
        let ([(talker, talked), (vocoder, vocoded)], ahead, new) = one_ahead_and_one_new().await;
        ahead.end();
        sent(&vocoder, ONE, 1).await;
        assert!(vocoded.is_empty(), "what was out comes back, and the next one is held");
        new.end();
        sent(&talker, TWO, 0).await;
        let second = some(&talked, 1).await.remove(0);
        assert!(vocoded.is_empty(), "the next stage has not taken the first unit over");
        omni_actors::actors::AckSink::acked(talker.stage.as_ref(), &[Ack { request: TWO, upto: 1 }]);
        some(&vocoded, 1).await.remove(0).end();
        second.end();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_first_sound_is_never_held() {
        let ([(_talker, _talked), (vocoder, vocoded)], ahead, new) = one_ahead_and_one_new().await;
        let three = RequestId(3);
        vocoder.admit(free(three));
        ahead.end();
        let first = some(&vocoded, 1).await.remove(0);
        first.end();
        sent(&vocoder, three, 0).await;
        drop(new);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_stage_that_dies_is_waited_for_no_longer() {
        let ([(talker, _talked), (vocoder, vocoded)], ahead, new) = one_ahead_and_one_new().await;
        talker.context.may_die.store(true, Ordering::Relaxed);
        ahead.end();
        sent(&vocoder, ONE, 1).await;
        assert!(vocoded.is_empty());
        drop(new);
        assert!(death(&talker).await.contains("the device is gone"));
        some(&vocoded, 1).await.remove(0).end();
        second_life(&talker).await;
    }
}

/// Nothing in a launch waits for the device: a call that may wait says so to the launch section.
mod in_a_launch {
    use super::*;
    use omni_actors::core::ids::Slot;
    use omni_actors::model::stage::{
        Launched, PendingStep, SequenceWork, StageData, StageFactory, StageModel, StepOutcome,
    };
    use omni_actors::model::{LoadError, ModelError, no_block};
    use omni_actors::telemetry;

    /// Where a model does what it must not.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Place {
        Build,
        Open,
        Feed,
        Launch,
        Wait,
        Close,
    }

    /// A model that waits for its device in one place.
    struct Waits(Place, Script);

    impl StageFactory for Waits {
        fn build(&self) -> Result<Box<dyn StageModel>, LoadError> {
            if self.0 == Place::Build {
                no_block::waits("cuCtxSynchronize");
            }
            Ok(Box::new(WaitsModel(self.0, self.1.build()?)))
        }
    }

    struct WaitsModel(Place, Box<dyn StageModel>);

    impl WaitsModel {
        fn at(&self, place: Place) {
            if self.0 == place {
                no_block::waits("cuCtxSynchronize");
            }
        }
    }

    struct Step(Place, StepOutcome);

    impl PendingStep for Step {
        fn wait(self: Box<Self>) -> Result<StepOutcome, ModelError> {
            if self.0 == Place::Wait {
                no_block::waits("cuCtxSynchronize");
            }
            Ok(self.1)
        }
    }

    impl StageModel for WaitsModel {
        fn open(&mut self, slot: Slot, spec: SequenceSpec) -> Result<(), ModelError> {
            self.at(Place::Open);
            self.1.open(slot, spec)
        }
        fn push_input(&mut self, slot: Slot, input: Option<StageData>, end: bool) -> Result<(), ModelError> {
            self.at(Place::Feed);
            self.1.push_input(slot, input, end)
        }
        fn launch(&mut self, sequences: &[SequenceWork]) -> Result<Launched, ModelError> {
            self.at(Place::Launch);
            Ok(Launched::Pending(Box::new(Step(self.0, self.1.launch(sequences)?.wait()?))))
        }
        fn close(&mut self, slot: Slot) {
            self.at(Place::Close);
            self.1.close(slot);
        }
        fn live_sequences(&self) -> usize {
            self.1.live_sequences()
        }
    }

    fn counted() -> f64 {
        let name = telemetry::catalogue::LAUNCH_WAITS.name;
        let text = telemetry::render();
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0.0)
    }

    /// One sequence from its opening to its closing, on a model that waits at `place`; why the stage died, if it did.
    async fn life(place: Place) -> Option<String> {
        let script = Script { steps: flume::unbounded().0, stop: 3 };
        let rig = rig(StageName::Talker, Waits(place, script), scheduler(), &[]).await;
        rig.context.may_die.store(true, Ordering::Relaxed);
        rig.admit(sequence(ONE, Pace::OnePerStep, SPEECH));
        rig.push_input(ONE, 0, Part::U32(vec![1]), 1, true);
        until(|| dead(&rig) || rig.output.drain().any(|payload| payload.header.end.is_some())).await;
        until(|| dead(&rig) || rig.stage.load().slots == 0).await;
        // A stage that dies while it closes its last sequence is told of as dead a little later.
        until(|| dead(&rig) || place != Place::Close || !cfg!(debug_assertions)).await;
        rig.stage.stop().await;
        rig.context.deaths.lock().unwrap().first().cloned()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_model_that_waits_for_its_device_in_a_launch_does_not_get_far() {
        for place in [Place::Open, Place::Feed, Place::Launch, Place::Close] {
            let before = counted();
            let died = life(place).await;
            assert!(counted() > before, "{place:?} was not counted");
            if cfg!(debug_assertions) {
                let reason = died.unwrap_or_else(|| panic!("{place:?}: the stage lives on"));
                assert!(reason.contains("cuCtxSynchronize in a launch"), "{reason}");
            }
        }
        // While it is built, and where steps are waited for, a stage may wait.
        for place in [Place::Build, Place::Wait] {
            let before = counted();
            assert_eq!(life(place).await, None, "{place:?}");
            assert_eq!(counted(), before, "{place:?}");
        }
    }
}
