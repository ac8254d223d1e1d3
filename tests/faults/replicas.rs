//! Stages with several replicas: the sequences of one that goes down go on in the others at once, to the same samples.

use crate::support::engine::{Answer, becomes, collect, engine, frames, idle, say, speech, tiny};
use crate::support::process::Watched;
use crate::support::wait::PATIENCE;
use omni_actors::config::{Config, Placement, Replicas, TransportKind};
use omni_actors::core::ids::{Frames, StageName};
use omni_actors::engine::{Engine, EngineHealth, Event, RequestError, Service, SpeechRequest, StageHealth, StageState};
use omni_actors::fault::{FaultKind, FaultPoint, FaultRule};
use std::time::Duration;

/// Longer than any of these tests: a replica that is down stays down.
const NEVER: Duration = Duration::from_secs(600);

async fn doubled(change: impl FnOnce(&mut Config)) -> Engine {
    engine(&tiny(), |config| {
        config.stages.iter_mut().for_each(|stage| stage.replicas = Replicas::Count(2));
        (config.supervision.backoff, config.supervision.max_backoff) = (NEVER, NEVER);
        change(config);
    })
    .await
}

/// Requests that no two replicas can mistake for each other.
fn asked(number: u64) -> SpeechRequest {
    let mut request = speech(&format!("this is number {number}"), number);
    request.params.max_frames = Some(Frames(12 + number as u32));
    request.params.ignore_eos = true;
    request
}

/// What six requests say where nothing fails.
async fn truth() -> Vec<Answer> {
    let alone = engine(&tiny(), |_| {}).await;
    let mut answers = Vec::new();
    for number in 0..6 {
        answers.push(say(&alone, asked(number)).await);
    }
    answers
}

/// The same six at once.
async fn together(engine: &Engine, case: &str) -> Vec<Answer> {
    let six = futures::future::join_all((0..6).map(|number| say(engine, asked(number))));
    tokio::time::timeout(PATIENCE, six).await.unwrap_or_else(|_| panic!("{case}: hangs; {:?}", engine.health()))
}

fn same(answers: &[Answer], truth: &[Answer], case: &str) {
    for (number, (answer, truth)) in answers.iter().zip(truth).enumerate() {
        assert_eq!(answer.end, truth.end, "{case}: the end of number {number}");
        assert!(answer.samples == truth.samples, "{case}: other samples of number {number}");
    }
}

fn replicas(health: &EngineHealth, stage: StageName) -> Vec<&StageHealth> {
    health.stages.iter().filter(|replica| replica.name == stage).collect()
}

fn states(engine: &Engine, stage: StageName) -> Vec<StageState> {
    let health = engine.health();
    let mut states: Vec<_> = replicas(&health, stage).iter().map(|replica| replica.state).collect();
    states.sort_by_key(|state| *state != StageState::Running);
    states
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_say_what_one_stage_says_over_every_transport() {
    let truth = truth().await;
    for transport in [TransportKind::Inproc, TransportKind::Wire, TransportKind::Shm] {
        let engine = doubled(|config| config.transfer.transport = transport).await;
        let case = format!("{transport:?}");
        same(&together(&engine, &case).await, &truth, &case);
        idle(&engine).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sequences_are_spread_evenly_over_the_replicas() {
    // No client reads and no stage is far ahead, so all of them stay, talkers too.
    let engine = doubled(|config| {
        for stage in [StageName::Talker, StageName::Vocoder] {
            config.stages[stage as usize].window = 2;
        }
    })
    .await;
    let mut streams = Vec::new();
    for seed in 0..4 {
        streams.push(engine.speak(frames(400, seed)).await.unwrap());
    }
    becomes(&engine, "spread", |health| {
        replicas(health, StageName::Vocoder).iter().all(|replica| replica.sequences == 2)
            && replicas(health, StageName::Talker).iter().all(|replica| replica.sequences == 2)
    })
    .await;
    let numbers: Vec<_> = replicas(&engine.health(), StageName::Talker).iter().map(|replica| replica.replica).collect();
    assert_eq!(numbers, [Some(0), Some(1)]);
    drop(streams);
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_a_replica_that_dies_go_on_in_the_other_while_it_is_down() {
    let truth = truth().await;
    for stage in StageName::OF_TEXT {
        for (point, kind, nth) in [
            (FaultPoint::Runner, FaultKind::Panic, 3),
            (FaultPoint::Scheduler, FaultKind::Panic, 5),
            (FaultPoint::Packager, FaultKind::Error, 2),
            (FaultPoint::Connector, FaultKind::Panic, 2),
        ] {
            let case = format!("{stage} {point:?} {kind:?}");
            let rule = FaultRule::new(stage, point, kind).nth(nth).times(1);
            let engine = doubled(|config| config.faults = vec![rule]).await;
            same(&together(&engine, &case).await, &truth, &case);
            becomes(&engine, &case, |health| {
                replicas(health, stage).iter().any(|replica| replica.state == StageState::Restarting)
            })
            .await;
            assert_eq!(states(&engine, stage), [StageState::Running, StageState::Restarting], "{case}");
            assert!(engine.health().ready, "{case}: it serves");
            same(&together(&engine, &case).await, &truth, &format!("{case}, afterwards"));
            idle(&engine).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_a_replica_whose_process_is_killed_go_on_in_the_other() {
    let undisturbed = say(&engine(&tiny(), |_| {}).await, frames(40, 5)).await;
    for stage in [StageName::Talker, StageName::Vocoder] {
        let engine = doubled(|config| {
            config.stages.iter_mut().for_each(|stage| stage.placement = Placement::Process);
            config.stages[StageName::Vocoder as usize].window = 1;
        })
        .await;
        let mut stream = engine.speak(frames(40, 5)).await.unwrap();
        let first = loop {
            if let Event::Audio(chunk) = stream.next().await.unwrap() {
                break chunk;
            }
        };
        // The only stream is where there was nobody: with the first.
        let pid = replicas(&engine.health(), stage)[0].pid.unwrap();
        Watched::new(pid).kill();
        let rest = tokio::time::timeout(PATIENCE, collect(stream)).await.expect("the request hangs");
        assert_eq!(rest.end, undisturbed.end, "{stage}");
        assert_eq!(first.samples.len() + rest.samples.len(), undisturbed.samples.len(), "{stage}");
        assert!(undisturbed.samples.ends_with(&rest.samples), "{stage}: other samples");
        assert_eq!(states(&engine, stage), [StageState::Running, StageState::Restarting], "{stage}");
        idle(&engine).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_given_up_leaves_the_others_and_the_last_one_takes_the_stage_with_it() {
    let truth = truth().await;
    let rule = |nth| FaultRule::new(StageName::Talker, FaultPoint::Runner, FaultKind::Panic).nth(nth).times(1);
    let engine = doubled(|config| {
        config.supervision.max_restarts = 0;
        config.faults = vec![rule(3), rule(600)];
    })
    .await;
    same(&together(&engine, "one of two").await, &truth, "one of two");
    becomes(&engine, "one of two", |health| {
        replicas(health, StageName::Talker).iter().any(|replica| replica.state == StageState::Failed)
    })
    .await;
    assert!(engine.health().ready, "one replica serves");
    // Until the other one goes as well.
    let lost = loop {
        let answer = tokio::time::timeout(PATIENCE, say(&engine, frames(100, 3))).await.expect("the request hangs");
        if let Some(Err(error)) = answer.end {
            break error;
        }
    };
    assert!(matches!(lost, RequestError::StageFailed { stage: StageName::Talker, .. }), "{lost}");
    let (stage, _) = tokio::time::timeout(PATIENCE, engine.given_up()).await.expect("it is given up");
    assert_eq!(stage, StageName::Talker);
    assert!(!engine.health().ready);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_brings_each_replica_down_is_ended_and_no_replica_is_given_up() {
    let truth = truth().await;
    let rule = FaultRule::new(StageName::Talker, FaultPoint::Runner, FaultKind::Panic).times(u64::MAX).request(1);
    let engine = doubled(|config| {
        (config.supervision.backoff, config.supervision.max_backoff) = (Duration::from_millis(1), NEVER);
        config.faults = vec![rule];
    })
    .await;
    let guilty = engine.speak(asked(9)).await.unwrap();
    let (guilty, others) = tokio::join!(collect(guilty), together(&engine, "beside a guilty one"));
    same(&others, &truth, "beside a guilty one");
    let Some(Err(RequestError::BroughtDown { stage, times, .. })) = guilty.end else { panic!("{:?}", guilty.end) };
    assert_eq!((stage, times), (StageName::Talker, 3));
    becomes(&engine, "guilty", |health| {
        replicas(health, StageName::Talker).iter().all(|one| one.state == StageState::Running)
    })
    .await;
    idle(&engine).await;
}
