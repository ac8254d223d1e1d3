//! Replicas on two GPUs: what a sequence becomes depends neither on its GPU nor on whether it stays there.

use crate::support::engine::{Answer, collect, engine, idle, say, speech, tiny};
use crate::support::process::Watched;
use crate::support::wait::PATIENCE;
use omni_actors::config::{Config, DeviceKind, Placement, Precision, Replicas};
use omni_actors::core::ids::{Frames, StageName};
use omni_actors::engine::{Engine, Event, Service, SpeechRequest, StageState};
use omni_actors::fault::{FaultKind, FaultPoint, FaultRule};
use std::time::Duration;

/// Longer than any of these tests: a replica that is down stays down.
const NEVER: Duration = Duration::from_secs(600);

async fn on(gpus: &[usize], dtype: Precision, change: impl FnOnce(&mut Config)) -> Engine {
    engine(&tiny(), |config| {
        (config.device.kind, config.device.dtype) = (Some(DeviceKind::Cuda), Some(dtype));
        config.stages.iter_mut().for_each(|stage| {
            (stage.replicas, stage.placement) = (Replicas::On(gpus.to_vec()), Placement::Thread);
        });
        (config.supervision.backoff, config.supervision.max_backoff) = (NEVER, NEVER);
        change(config);
    })
    .await
}

/// Requests that no two replicas can mistake for each other.
fn asked(number: u64) -> SpeechRequest {
    let mut request = speech(&format!("this is number {number}"), number);
    request.params.max_frames = Some(Frames(24 + number as u32));
    request.params.ignore_eos = true;
    request
}

/// What eight requests say, all at once.
async fn together(engine: &Engine, case: &str) -> Vec<Answer> {
    let all = futures::future::join_all((0..8).map(|number| say(engine, asked(number))));
    tokio::time::timeout(PATIENCE, all).await.unwrap_or_else(|_| panic!("{case}: hangs; {:?}", engine.health()))
}

fn same(answers: &[Answer], truth: &[Answer], case: &str) {
    for (number, (answer, truth)) in answers.iter().zip(truth).enumerate() {
        assert_eq!(answer.end, truth.end, "{case}: the end of number {number}");
        assert!(answer.samples == truth.samples, "{case}: other samples of number {number}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two GPUs"]
async fn two_gpus_say_what_one_says() {
    for dtype in [Precision::F32, Precision::Bf16] {
        let truth = together(&on(&[0], dtype, |_| {}).await, "one").await;
        for gpus in [&[1][..], &[0, 1], &[1, 0]] {
            let case = format!("{dtype:?} on {gpus:?}");
            let engine = on(gpus, dtype, |_| {}).await;
            same(&together(&engine, &case).await, &truth, &case);
            idle(&engine).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two GPUs"]
async fn streams_of_a_replica_that_dies_go_on_on_the_other_of_two_gpus() {
    let dtype = Precision::Bf16;
    let truth = together(&on(&[0], dtype, |_| {}).await, "one").await;
    for stage in StageName::OF_TEXT {
        for (point, kind, nth) in
            [(FaultPoint::Runner, FaultKind::Panic, 3), (FaultPoint::Packager, FaultKind::Error, 2)]
        {
            let case = format!("{stage} {point:?} {kind:?}");
            let rule = FaultRule::new(stage, point, kind).nth(nth).times(1);
            let engine = on(&[0, 1], dtype, |config| config.faults = vec![rule]).await;
            same(&together(&engine, &case).await, &truth, &case);
            let down = engine.health().stages.iter().filter(|replica| replica.state != StageState::Running).count();
            assert_eq!(down, 1, "{case}: {:?}", engine.health());
            same(&together(&engine, &case).await, &truth, &format!("{case}, afterwards"));
            idle(&engine).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two GPUs"]
async fn a_stream_whose_process_is_killed_goes_on_on_the_other_of_two_gpus() {
    let dtype = Precision::Bf16;
    let request = || {
        let mut request = asked(5);
        request.params.max_frames = Some(Frames(100));
        request
    };
    let undisturbed = say(&on(&[0], dtype, |_| {}).await, request()).await;
    let engine = on(&[0, 1], dtype, |config| {
        let talker = &mut config.stages[StageName::Talker as usize];
        (talker.placement, talker.device_memory) = (Placement::Process, Some(8 << 30));
        for stage in [StageName::Encoder, StageName::Thinker, StageName::Vocoder] {
            config.stages[stage as usize].device_memory = Some(4 << 30);
        }
        config.stages[StageName::Vocoder as usize].window = 1;
    })
    .await;
    let mut stream = engine.speak(request()).await.unwrap();
    let first = loop {
        if let Event::Audio(chunk) = stream.next().await.unwrap() {
            break chunk;
        }
    };
    // The only stream is with the first of them.
    let pid = engine.health().stages.iter().find(|replica| replica.name == StageName::Talker).unwrap().pid.unwrap();
    Watched::new(pid).kill();
    let rest = tokio::time::timeout(PATIENCE, collect(stream)).await.expect("the request hangs");
    assert_eq!(rest.end, undisturbed.end);
    assert_eq!(first.samples.len() + rest.samples.len(), undisturbed.samples.len());
    assert!(undisturbed.samples.ends_with(&rest.samples), "other samples");
    idle(&engine).await;
}
