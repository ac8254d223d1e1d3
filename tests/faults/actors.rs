//! Whatever actor dies at whatever moment, every stream finishes with exactly the samples that it would have had.

use crate::support::engine::{chat, collect, engine, frames, idle, say, speech, tiny};
use crate::support::wait::{self, PATIENCE};
use omni_actors::config::{Config, Placement, TransportKind};
use omni_actors::core::ids::{Frames, StageName};
use omni_actors::engine::{Engine, Service, StageState};
use omni_actors::fault::{FaultKind, FaultPoint, FaultRule, Phase};
use std::time::Duration;

const POINTS: [FaultPoint; 5] =
    [FaultPoint::Scheduler, FaultPoint::Runner, FaultPoint::Sampler, FaultPoint::Packager, FaultPoint::Connector];

/// Every third payload that comes over the edge behind a stage, those that are sent again included, for as long as a test
/// takes.
fn every_third(stage: StageName, kind: FaultKind) -> Vec<FaultRule> {
    (1..200).map(|i| rule(stage, FaultPoint::Edge, kind, i * 3, 1)).collect()
}

fn rule(stage: StageName, point: FaultPoint, kind: FaultKind, nth: u64, times: u64) -> FaultRule {
    FaultRule::new(stage, point, kind).nth(nth).times(times)
}

async fn broken(rules: Vec<FaultRule>) -> Engine {
    engine(&tiny(), |config| {
        config.faults = rules;
        config.supervision.backoff = Duration::from_millis(1);
    })
    .await
}

/// How often an actor is struck in the course of one answer, at most: later occurrences belong to the next one.
const MOMENTS: [u64; 5] = [1, 2, 5, 9, 14];

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_that_dies_goes_on_and_changes_no_sample() {
    let undisturbed = say(&broken(Vec::new()).await, frames(12, 5)).await;
    for stage in StageName::OF_TEXT {
        for point in POINTS {
            for (nth, kind) in MOMENTS.into_iter().zip([FaultKind::Panic, FaultKind::Error].into_iter().cycle()) {
                let case = format!("{stage} {point:?} {kind:?} at occurrence {nth}");
                let engine = broken(vec![rule(stage, point, kind, nth, 1)]).await;
                // Some actors have little to do for one request.
                for request in 0.. {
                    if engine.health()[stage].restarts > 0 && request >= 2 {
                        break;
                    }
                    assert!(request < 20, "{case}: it is not struck");
                    let answer = tokio::time::timeout(PATIENCE, say(&engine, frames(12, 5))).await;
                    let answer = answer.unwrap_or_else(|_| panic!("{case}: the request hangs"));
                    assert_eq!(answer.end, undisturbed.end, "{case}");
                    assert!(answer.samples == undisturbed.samples, "{case}: other samples");
                }
                idle(&engine).await;
                let health = engine.health();
                let stage = &health[stage];
                assert_eq!((stage.state, stage.restarts, stage.generation), (StageState::Running, 1, 2), "{case}");
                let reason = stage.last_reason.as_deref().unwrap_or_default();
                assert!(health.ready && reason.contains("injected fault"), "{case}: {health:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_goes_on_in_the_middle_of_its_text() {
    let chat = || chat("tell me something long", omni_actors::engine::Output::TextAndAudio);
    let asked =
        || omni_actors::engine::GenerateRequest { max_text_tokens: Some(24), max_frames: Some(Frames(30)), ..chat() };
    let undisturbed = collect(broken(Vec::new()).await.submit(asked()).await.unwrap()).await;
    assert!(undisturbed.end.as_ref().unwrap().is_ok());
    for stage in StageName::OF_TEXT {
        for point in POINTS {
            for nth in [1, 4, 11, 23] {
                let case = format!("{stage} {point:?} at occurrence {nth}");
                let engine = broken(vec![rule(stage, point, FaultKind::Panic, nth, 1)]).await;
                let stream = engine.submit(asked()).await.unwrap();
                let answer = tokio::time::timeout(PATIENCE, collect(stream)).await;
                let answer = answer.unwrap_or_else(|_| panic!("{case}: the request hangs"));
                assert_eq!(answer.end, undisturbed.end, "{case}");
                assert_eq!(answer.text, undisturbed.text, "{case}");
                assert!(answer.samples == undisturbed.samples, "{case}: other samples");
                idle(&engine).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_streams_outlive_many_deaths() {
    let alone = broken(Vec::new()).await;
    let rules = StageName::OF_TEXT.into_iter().flat_map(|stage| {
        (1..8).map(move |i| rule(stage, POINTS[i % POINTS.len()], FaultKind::Panic, 5 * i as u64, 1))
    });
    let engine = engine(&tiny(), |config| {
        config.faults = rules.collect();
        config.supervision.backoff = Duration::from_millis(1);
        config.supervision.max_restarts = 1000;
    })
    .await;
    let streams = (0..8).map(|seed| say(&engine, frames(20 + seed as u32, seed)));
    let answers = tokio::time::timeout(PATIENCE, futures::future::join_all(streams)).await.expect("somebody hangs");
    for (seed, answer) in (0..).zip(answers) {
        let undisturbed = say(&alone, frames(20 + seed as u32, seed)).await;
        assert_eq!(answer.end, undisturbed.end, "seed {seed}");
        assert!(answer.samples == undisturbed.samples, "seed {seed}: other samples");
    }
    idle(&engine).await;
    let health = engine.health();
    assert!(StageName::OF_TEXT.into_iter().all(|stage| health[stage].restarts > 0), "{health:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn others_are_not_disturbed_by_a_stage_they_have_left() {
    // A text-only request never enters the talker.
    let engine = broken(vec![rule(StageName::Talker, FaultPoint::Runner, FaultKind::Panic, 3, 1)]).await;
    let text = engine.submit(chat("hello", omni_actors::engine::Output::Text));
    let (text, speech) = tokio::join!(async { collect(text.await.unwrap()).await }, say(&engine, frames(12, 5)));
    assert!(text.end.unwrap().is_ok() && speech.end.unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_that_fails_again_and_again_is_given_up_and_says_why() {
    let engine = broken(vec![rule(StageName::Talker, FaultPoint::Runner, FaultKind::Error, 1, u64::MAX)]).await;
    let mut refused = None;
    // One request, sent again and again, would not have it given up: each of these is another.
    for number in 0..20 {
        let mut request = speech(&format!("number {number}"), 1);
        request.params.max_frames = Some(Frames(5));
        match engine.speak(request).await {
            Ok(stream) => drop(collect(stream).await),
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
    assert_eq!(health[StageName::Talker].state, StageState::Failed);
    assert_eq!(health[StageName::Thinker].state, StageState::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_that_hangs_is_noticed_and_replaced() {
    let hang = FaultKind::Delay(Duration::from_secs(3600));
    let engine = engine(&tiny(), |config| {
        config.faults = vec![rule(StageName::Vocoder, FaultPoint::Runner, hang, 2, 1)];
        config.supervision.watchdog = Duration::from_millis(400);
        config.supervision.max_restarts = 1000;
    })
    .await;
    let undisturbed = say(&broken(Vec::new()).await, frames(12, 5)).await;
    let hung =
        tokio::time::timeout(PATIENCE, say(&engine, frames(12, 5))).await.expect("the request hangs with the runner");
    assert_eq!(hung.end, undisturbed.end);
    assert!(hung.samples == undisturbed.samples, "other samples");
    let reason = engine.health()[StageName::Vocoder].last_reason.clone().unwrap_or_default();
    assert!(reason.contains("has not turned"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_actor_that_hangs_is_noticed_and_its_stage_goes_on() {
    let undisturbed = say(&broken(Vec::new()).await, frames(12, 5)).await;
    for (at, point) in POINTS.into_iter().chain([FaultPoint::Outbound, FaultPoint::Completion]).enumerate() {
        let stage = StageName::OF_TEXT[at % 3];
        let engine = engine(&tiny(), |config| {
            config.faults = vec![rule(stage, point, FaultKind::Hang, 1, 1)];
            config.supervision.watchdog = Duration::from_millis(500);
            config.supervision.max_restarts = 1000;
            config.supervision.backoff = Duration::from_millis(1);
        })
        .await;
        let hung = tokio::time::timeout(PATIENCE, say(&engine, frames(12, 5))).await;
        let hung = hung.unwrap_or_else(|_| panic!("{stage} {point:?}: the request hangs with it"));
        assert_eq!(hung.end, undisturbed.end, "{stage} {point:?}");
        assert!(hung.samples == undisturbed.samples, "{stage} {point:?}: other samples");
        let reason = engine.health()[stage].last_reason.clone().unwrap_or_default();
        assert!(reason.contains("has not turned"), "{stage} {point:?}: {reason}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_whose_numbers_are_none_is_tried_once_more_and_then_fails_alone() {
    let undisturbed = say(&broken(Vec::new()).await, frames(12, 5)).await;
    let nan = |times| broken(vec![rule(StageName::Talker, FaultPoint::Completion, FaultKind::Nan, 5, times)]);
    let once = nan(1).await;
    let answer = say(&once, frames(12, 5)).await;
    assert_eq!(answer.end, undisturbed.end);
    assert!(answer.samples == undisturbed.samples, "other samples");
    idle(&once).await;
    let always = nan(u64::MAX).await;
    let Err(error) = say(&always, frames(12, 5)).await.end.unwrap() else { panic!("it cannot have finished") };
    assert!(error.to_string().contains("talker"), "{error}");
    idle(&always).await;
    assert!(always.health().stages.iter().all(|stage| stage.restarts == 0), "no stage dies of it");
}

/// The ways over which payloads travel as frames.
#[derive(Clone, Copy, Debug)]
enum Way {
    Threads(TransportKind),
    Processes,
}

const WAYS: [Way; 3] = [Way::Threads(TransportKind::Wire), Way::Threads(TransportKind::Shm), Way::Processes];

async fn on_a_bad_edge(way: Way, rules: Vec<FaultRule>) -> Engine {
    engine(&tiny(), |config| {
        let placement = match way {
            Way::Threads(transport) => {
                config.transfer.transport = transport;
                Placement::Thread
            }
            Way::Processes => Placement::Process,
        };
        config.stages.iter_mut().for_each(|stage| stage.placement = placement);
        config.supervision.backoff = Duration::from_millis(1);
        config.faults = rules;
    })
    .await
}

/// Waits until a rule has hit; a stage process tells of that with its next sign of life.
async fn strikes(engine: &Engine) {
    wait::comes("the fault strikes", || engine.faults().counts().iter().any(|count| count.hits > 0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_that_are_lost_repeated_overtaken_or_damaged_on_an_edge_change_no_sample() {
    let undisturbed = say(&broken(Vec::new()).await, frames(20, 5)).await;
    let slow = FaultKind::Delay(Duration::from_millis(20));
    for way in WAYS {
        for kind in [FaultKind::Drop, FaultKind::Duplicate, FaultKind::Reorder, FaultKind::Corrupt, slow] {
            for stage in [StageName::Thinker, StageName::Talker] {
                let engine = on_a_bad_edge(way, every_third(stage, kind)).await;
                let answer = tokio::time::timeout(PATIENCE, say(&engine, frames(20, 5))).await;
                let case = format!("{kind:?} behind {stage} over {way:?}");
                let answer = answer.unwrap_or_else(|_| panic!("{case}: the request hangs"));
                assert_eq!(answer.end, undisturbed.end, "{case}");
                let differs = answer.samples.iter().zip(&undisturbed.samples).position(|(a, b)| a != b);
                let lengths = [answer.samples.len(), undisturbed.samples.len()];
                let same = answer.samples == undisturbed.samples;
                assert!(same, "{case}: from {differs:?} on, of {lengths:?} samples, in chunks {:?}", answer.chunks);
                idle(&engine).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_last_payload_that_is_lost_or_broken_is_missed_and_changes_no_sample() {
    let undisturbed = say(&broken(Vec::new()).await, frames(20, 5)).await;
    for way in WAYS {
        for kind in [FaultKind::Drop, FaultKind::Reorder, FaultKind::Corrupt] {
            for stage in [StageName::Thinker, StageName::Talker] {
                let case = format!("{kind:?} behind {stage} over {way:?}");
                let rules = vec![FaultRule::new(stage, FaultPoint::Edge, kind).phase(Phase::Last)];
                let engine = on_a_bad_edge(way, rules).await;
                let answer = tokio::time::timeout(PATIENCE, say(&engine, frames(20, 5))).await;
                let answer = answer.unwrap_or_else(|_| panic!("{case}: the request hangs"));
                assert_eq!(answer.end, undisturbed.end, "{case}");
                assert!(answer.samples == undisturbed.samples, "{case}: other samples");
                strikes(&engine).await;
                idle(&engine).await;
                let metrics = engine.metrics().await;
                let counted = format!("omni_edge_lost_total{{stage=\"{stage}\"}} ");
                assert!(metrics.lines().any(|line| line.starts_with(&counted)), "{case}: {counted}");
                let stages = engine.health().stages;
                assert!(stages.iter().all(|stage| stage.restarts == 0), "{case}: a stage died of it: {stages:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_edge_cannot_deliver_fails_its_request_clearly_and_no_other() {
    for way in WAYS {
        // More payloads than the first request sends in all attempts of the sequence that does not get them.
        let rules = vec![rule(StageName::Talker, FaultPoint::Edge, FaultKind::Drop, 1, 60)];
        let engine = on_a_bad_edge(way, rules).await;
        let lost = tokio::time::timeout(PATIENCE, say(&engine, frames(12, 5))).await.expect("the request hangs");
        let Err(error) = lost.end.unwrap() else { panic!("it cannot have finished") };
        let error = error.to_string();
        assert!(error.contains("vocoder") && error.contains("did not get through"), "{error}");
        let mut heard = false;
        for _ in 0..20 {
            heard |= say(&engine, frames(12, 5)).await.end.unwrap().is_ok();
        }
        assert!(heard, "the edge never recovers");
        idle(&engine).await;
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
        let rules = StageName::OF_TEXT.map(|stage| rule(stage, point, slow, 1, u64::MAX)).to_vec();
        let slowed = say(&broken(rules).await, frames(20, 5)).await;
        assert!(slowed.samples == undisturbed.samples, "a slow {point:?} changed the samples");
        assert_eq!(slowed.end, undisturbed.end);
    }
}
