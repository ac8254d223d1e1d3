//! Whatever actor dies at whatever moment, the server stays up: the request ends with a clear error or with exactly the
//! samples it would have had, and the next one is served as if nothing had happened.
#![allow(clippy::unwrap_used)]

#[path = "support/engine.rs"]
mod support;

use omni_actors::config::{Config, Placement, TransportKind};
use omni_actors::engine::{Engine, RequestError, Service, StageState};
use omni_actors::fault::{FaultKind, FaultPoint, FaultRule};
use omni_actors::ids::StageName;
use std::time::Duration;
use support::{engine, frames, idle, say, tiny};

const POINTS: [FaultPoint; 5] =
    [FaultPoint::Scheduler, FaultPoint::Runner, FaultPoint::Sampler, FaultPoint::Packager, FaultPoint::Connector];

/// Every third frame, repetitions included, for as long as a test takes.
fn every_third(stage: StageName, kind: FaultKind) -> Vec<FaultRule> {
    (1..200).map(|i| rule(stage, FaultPoint::Edge, kind, i * 3, 1)).collect()
}

/// The bound on how long a request may live after its stage died.
const BOUND: Duration = Duration::from_secs(2);

fn rule(stage: StageName, point: FaultPoint, kind: FaultKind, nth: u64, times: u64) -> FaultRule {
    FaultRule { stage, point, kind, nth, times }
}

async fn broken(rules: Vec<FaultRule>) -> Engine {
    engine(&tiny(), |config| {
        config.faults = rules;
        config.supervision.backoff = Duration::from_millis(1);
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_actor_fails_its_requests_clearly_and_is_replaced() {
    let undisturbed = say(&broken(Vec::new()).await, frames(12, 5)).await;
    for stage in StageName::ALL {
        for point in POINTS {
            for (kind, nth) in [(FaultKind::Panic, 1), (FaultKind::Error, 2)] {
                let case = format!("{stage} {point:?} {kind:?} at occurrence {nth}");
                let engine = broken(vec![rule(stage, point, kind, nth, 1)]).await;
                let mut failed = 0;
                for _ in 0..3 {
                    let answer = tokio::time::timeout(BOUND * 5, say(&engine, frames(12, 5))).await;
                    let answer = answer.unwrap_or_else(|_| panic!("{case}: the request hangs"));
                    match answer.end.unwrap() {
                        Ok(_) => assert!(answer.samples == undisturbed.samples, "{case}: wrong samples"),
                        Err(RequestError::StageFailed { stage: broken, reason }) => {
                            assert_eq!(broken, stage, "{case}");
                            assert!(reason.contains("injected fault"), "{case}: {reason}");
                            let right = undisturbed.samples.starts_with(&answer.samples);
                            assert!(right, "{case}: wrong samples before the end");
                            failed += 1;
                        }
                        Err(other) => panic!("{case}: {other}"),
                    }
                }
                // An actor that had done its part when it died takes nobody with it.
                assert!(failed <= 1, "{case}: {failed} requests failed for one fault");
                let health = engine.health();
                let stage = &health.stages[stage as usize];
                assert_eq!((stage.state, stage.restarts, stage.generation), (StageState::Running, 1, 2), "{case}");
                assert!(health.ready, "{case}: {health:?}");
                idle(&engine, BOUND).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn others_are_not_disturbed_by_a_stage_they_have_left() {
    // A text-only request never enters the talker.
    let engine = broken(vec![rule(StageName::Talker, FaultPoint::Runner, FaultKind::Panic, 3, 1)]).await;
    let text = engine.submit(support::chat("hello", omni_actors::engine::Output::Text));
    let (text, speech) =
        tokio::join!(async { support::collect(text.await.unwrap()).await }, say(&engine, frames(12, 5)));
    assert!(text.end.unwrap().is_ok());
    assert!(matches!(speech.end.unwrap(), Err(RequestError::StageFailed { stage: StageName::Talker, .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_that_fails_again_and_again_is_given_up_and_says_why() {
    let engine = broken(vec![rule(StageName::Talker, FaultPoint::Runner, FaultKind::Error, 1, u64::MAX)]).await;
    let mut refused = None;
    for _ in 0..20 {
        match engine.speak(frames(5, 1)).await {
            Ok(stream) => drop(support::collect(stream).await),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    let refused = refused.expect("a stage that never works is not offered for ever").to_string();
    assert!(refused.contains("talker") && refused.contains("injected fault"), "{refused}");
    let health = engine.health();
    assert!(!health.ready);
    assert_eq!(health.stages[StageName::Talker as usize].state, StageState::Failed);
    assert_eq!(health.stages[StageName::Thinker as usize].state, StageState::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_that_hangs_is_noticed_and_replaced() {
    let hang = FaultKind::Delay(Duration::from_secs(4));
    let engine = engine(&tiny(), |config| {
        config.faults = vec![rule(StageName::Code2wav, FaultPoint::Runner, hang, 2, 1)];
        config.supervision.watchdog = Duration::from_millis(400);
    })
    .await;
    let hung =
        tokio::time::timeout(BOUND, say(&engine, frames(12, 5))).await.expect("the request hangs with the runner");
    let Err(RequestError::StageFailed { reason, .. }) = hung.end.unwrap() else { panic!("it cannot have finished") };
    assert!(reason.contains("has not turned"), "{reason}");
    engine.settled().await.unwrap();
    let next = say(&engine, frames(12, 5)).await;
    assert!(next.end.unwrap().is_ok());
}

async fn on_a_bad_edge(transport: TransportKind, rules: Vec<FaultRule>) -> Engine {
    engine(&tiny(), |config| {
        // Wherever other tests have their stages: the link to a process loses nothing.
        config.stages.iter_mut().for_each(|stage| stage.placement = Placement::Thread);
        config.transfer.transport = transport;
        config.faults = rules;
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_that_are_lost_repeated_overtaken_or_damaged_on_an_edge_change_no_sample() {
    let undisturbed = say(&broken(Vec::new()).await, frames(20, 5)).await;
    let slow = FaultKind::Delay(Duration::from_millis(20));
    for transport in [TransportKind::Wire, TransportKind::Shm] {
        for kind in [FaultKind::Drop, FaultKind::Duplicate, FaultKind::Reorder, FaultKind::Corrupt, slow] {
            for stage in [StageName::Thinker, StageName::Talker] {
                let engine = on_a_bad_edge(transport, every_third(stage, kind)).await;
                let answer = say(&engine, frames(20, 5)).await;
                let case = format!("{kind:?} behind {stage} over {transport:?}");
                assert_eq!(answer.end, undisturbed.end, "{case}");
                assert!(answer.samples == undisturbed.samples, "{case}: other samples");
                idle(&engine, BOUND).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_edge_cannot_deliver_fails_its_request_clearly_and_no_other() {
    for transport in [TransportKind::Wire, TransportKind::Shm] {
        // As many as one frame is tried, and nothing after that: the last frame of an answer is the only one on its way.
        let rules = vec![rule(StageName::Talker, FaultPoint::Edge, FaultKind::Drop, 1, 40)];
        let engine = on_a_bad_edge(transport, rules).await;
        let lost = tokio::time::timeout(BOUND * 5, say(&engine, frames(12, 5))).await.expect("the request hangs");
        let Err(error) = lost.end.unwrap() else { panic!("it cannot have finished") };
        let error = error.to_string();
        assert!(error.contains("talker") && error.contains("did not get through"), "{error}");
        let mut heard = false;
        for _ in 0..10 {
            heard |= say(&engine, frames(12, 5)).await.end.unwrap().is_ok();
        }
        assert!(heard, "the edge never recovers");
        idle(&engine, BOUND).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edge_without_frames_cannot_lose_any_and_says_so() {
    let faults = vec![rule(StageName::Talker, FaultPoint::Edge, FaultKind::Drop, 1, 1)];
    let config = Config { faults, ..Config::default() };
    let error = Engine::start(&tiny(), &config).await.err().expect("it cannot start").to_string();
    assert!(error.contains("transfer.transport"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_actors_change_no_sample() {
    let undisturbed = say(&broken(Vec::new()).await, frames(20, 5)).await;
    let slow = FaultKind::Delay(Duration::from_millis(20));
    for point in
        [FaultPoint::Scheduler, FaultPoint::Runner, FaultPoint::Sampler, FaultPoint::Packager, FaultPoint::Connector]
    {
        let rules = StageName::ALL.map(|stage| rule(stage, point, slow, 1, u64::MAX)).to_vec();
        let slowed = say(&broken(rules).await, frames(20, 5)).await;
        assert!(slowed.samples == undisturbed.samples, "a slow {point:?} changed the samples");
        assert_eq!(slowed.end, undisturbed.end);
    }
}
