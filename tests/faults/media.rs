//! Answers to sound and pictures when stages die: the encoder at each of its steps, the thinker with embeddings of media
//! in its prompt.

use crate::support::engine::{Answer, engine, idle, tiny};
use crate::support::media::Golden;
use omni_actors::config::{Placement, TransportKind};
use omni_actors::core::ids::StageName::{self, Encoder, Talker, Thinker};
use omni_actors::engine::{Engine, Service};
use omni_actors::fault::{FaultKind, FaultPoint, FaultRule};
use std::time::Duration;

/// Steps of the encoder: `tests/engine/media.rs` counts them.
const STEPS: u64 = 8;

async fn broken(rules: Vec<FaultRule>, change: impl FnOnce(&mut omni_actors::config::Config)) -> Engine {
    engine(&tiny(), |config| {
        config.faults = rules;
        config.supervision.backoff = Duration::from_millis(1);
        // Each request has to be encoded.
        config.media.max_cached_embeddings = 0;
        change(config);
    })
    .await
}

async fn undisturbed(golden: &Golden) -> Answer {
    let answer = golden.ask(&broken(Vec::new(), |_| {}).await, "undisturbed").await;
    golden.check(&answer, "undisturbed");
    answer
}

/// Asks until the fault has struck once; every answer is the same.
async fn strikes(engine: &Engine, golden: &Golden, expected: &Answer, stage: StageName, case: &str) {
    for request in 0.. {
        if engine.health()[stage].restarts > 0 && request > 0 {
            break;
        }
        assert!(request < 20, "{case}: it is not struck");
        let answer = golden.ask(engine, case).await;
        assert_eq!((&answer.end, &answer.text), (&expected.end, &expected.text), "{case}");
        assert!(answer.samples == expected.samples, "{case}: other samples");
    }
    idle(engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encoder_that_dies_at_any_step_goes_on_and_changes_no_sample() {
    let golden = Golden::read("mm_audio_image_ethan");
    let expected = undisturbed(&golden).await;
    let points = [
        FaultPoint::Scheduler,
        FaultPoint::Runner,
        FaultPoint::Sampler,
        FaultPoint::Packager,
        FaultPoint::Outbound,
        FaultPoint::Connector,
    ];
    for point in points {
        for nth in 1..=STEPS {
            let case = format!("encoder {point:?} at occurrence {nth}");
            let rule = FaultRule::new(Encoder, point, FaultKind::Panic).nth(nth);
            let engine = broken(vec![rule], |_| {}).await;
            strikes(&engine, &golden, &expected, Encoder, &case).await;
            assert_eq!(engine.health()[Encoder].restarts, 1, "{case}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stages_behind_that_die_get_the_embeddings_of_media_again() {
    let golden = Golden::read("mm_audio_image_ethan");
    let expected = undisturbed(&golden).await;
    let points = [FaultPoint::Runner, FaultPoint::Sampler, FaultPoint::Packager, FaultPoint::Outbound];
    for stage in [Thinker, Talker] {
        for point in points {
            for nth in 1..=11 {
                let case = format!("{stage} {point:?} at occurrence {nth}");
                let rule = FaultRule::new(stage, point, FaultKind::Panic).nth(nth);
                // The prompt in pieces, so that it dies between them too.
                let engine =
                    broken(vec![rule], |config| config.stages[Thinker as usize].prefill_chunk = Some(30)).await;
                strikes(&engine, &golden, &expected, stage, &case).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encoders_process_that_is_killed_is_replaced_and_its_answers_go_on() {
    let golden = Golden::read("mm_audio_image_ethan");
    let expected = undisturbed(&golden).await;
    for nth in [1, 3, 5, STEPS] {
        let rule = FaultRule::new(Encoder, FaultPoint::Runner, FaultKind::Kill).nth(nth);
        let in_process = |config: &mut omni_actors::config::Config| {
            config.stages[Encoder as usize].placement = Placement::Process;
        };
        let engine = broken(vec![rule], in_process).await;
        strikes(&engine, &golden, &expected, Encoder, &format!("killed at step {nth}")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn embeddings_of_media_that_get_lost_on_the_way_are_sent_again() {
    let golden = Golden::read("mm_audio_image_ethan");
    let expected = undisturbed(&golden).await;
    for kind in [FaultKind::Drop, FaultKind::Duplicate, FaultKind::Reorder, FaultKind::Corrupt] {
        for nth in 1..=3 {
            let rule = FaultRule::new(Encoder, FaultPoint::Edge, kind).nth(nth);
            let engine = broken(vec![rule], |config| config.transfer.transport = TransportKind::Wire).await;
            for round in 0..2 {
                let case = format!("{kind:?} of payload {nth}, request {round}");
                let answer = golden.ask(&engine, &case).await;
                assert!(answer.samples == expected.samples && answer.end == expected.end, "{case}");
            }
            idle(&engine).await;
        }
    }
}
