//! Answers to sound and pictures through every actor: the encoder stage, its cache, and what others notice of it.

use crate::support::engine::{chat, collect, engine, idle, tiny};
use crate::support::media::Golden;
use omni_actors::config::{Placement, TransportKind};
use omni_actors::core::ids::StageName::Encoder;
use omni_actors::engine::{Output, Service, SubmitError};
use omni_actors::fault::{FaultKind, FaultPoint, FaultRule};
use std::time::Duration;

/// Steps of the encoder for `mm_audio_image_ethan`: two windows of sound; a piece of patches, four layers and a piece of
/// rows of the picture.
const STEPS: u64 = 8;

#[tokio::test(flavor = "multi_thread")]
async fn answers_to_sound_and_pictures_are_the_references_sample_for_sample() {
    let engine = engine(&tiny(), |_| {}).await;
    for case in Golden::CASES {
        let golden = Golden::read(case);
        golden.check(&golden.ask(&engine, case).await, case);
    }
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_at_once_and_other_transports_change_no_sample() {
    for transport in [TransportKind::Inproc, TransportKind::Wire, TransportKind::Shm] {
        let engine = engine(&tiny(), |config| {
            config.transfer.transport = transport;
            config.stages[Encoder as usize].max_batch = Some(4);
            config.stages[omni_actors::core::ids::StageName::Thinker as usize].prefill_chunk = Some(7);
        })
        .await;
        let all = Golden::CASES.map(Golden::read);
        let answers = all.iter().zip(Golden::CASES).map(|(golden, case)| golden.ask(&engine, case));
        let answers = futures::future::join_all(answers).await;
        for ((golden, answer), case) in all.iter().zip(&answers).zip(Golden::CASES) {
            golden.check(answer, &format!("{case} over {transport:?}"));
        }
        idle(&engine).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encoder_in_a_process_of_its_own_makes_the_same() {
    let engine = engine(&tiny(), |config| {
        config.stages[Encoder as usize].placement = Placement::Process;
    })
    .await;
    assert!(engine.health()[Encoder].pid.is_some());
    for case in ["mm_audio_image_ethan", "mm_image_avvideo_chelsie"] {
        let golden = Golden::read(case);
        golden.check(&golden.ask(&engine, case).await, case);
    }
    idle(&engine).await;
}

/// An engine whose encoder dies in its first step behind so many.
async fn dies_after(steps: u64) -> omni_actors::engine::Engine {
    engine(&tiny(), |config| {
        config.faults = vec![FaultRule::new(Encoder, FaultPoint::Runner, FaultKind::Panic).nth(steps + 1)];
        config.supervision.backoff = Duration::from_millis(1);
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn media_that_come_again_are_not_encoded_again() {
    let (golden, other) = (Golden::read("mm_audio_image_ethan"), Golden::read("audio_ethan"));
    let engine = dies_after(STEPS).await;
    let first = golden.ask(&engine, "first").await;
    golden.check(&first, "first");
    let mut again = golden.request();
    again.seed = Some(2);
    let again = engine.submit_decoded(again, golden.media.clone()).await.unwrap();
    assert!(collect(again).await.samples == first.samples, "greedy, so the seed changes nothing");
    assert_eq!(engine.health()[Encoder].restarts, 0, "a step of the encoder would have ended it");
    other.check(&other.ask(&engine, "another").await, "another");
    idle(&engine).await;
    assert_eq!(engine.health()[Encoder].restarts, 1, "what is new is encoded");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_stands_behind_known_media_is_encoded() {
    let golden = Golden::read("mm_three_images_chelsie");
    let engine = engine(&tiny(), |config| {
        // The first picture, then the two others: each is a piece, four layers and a piece of rows.
        config.faults = vec![FaultRule::new(Encoder, FaultPoint::Runner, FaultKind::Panic).nth(3 * 6 + 1)];
        config.supervision.backoff = Duration::from_millis(1);
    })
    .await;
    let mut alone = golden.request();
    alone.messages = vec![omni_actors::engine::ChatMessage {
        role: "user".into(),
        content: omni_actors::engine::Content::Parts(vec![omni_actors::engine::Part::Image]),
        calls: Vec::new(),
    }];
    let alone = engine.submit_decoded(alone, golden.media[..1].to_vec()).await.unwrap();
    assert!(collect(alone).await.end.unwrap().is_ok());
    golden.check(&golden.ask(&engine, "behind a known one").await, "behind a known one");
    idle(&engine).await;
    assert_eq!(engine.health()[Encoder].restarts, 0, "the first picture was encoded once");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_cache_media_are_encoded_each_time() {
    let golden = Golden::read("mm_audio_image_ethan");
    let engine = engine(&tiny(), |config| {
        config.media.max_cached_embeddings = 0;
        config.faults = vec![FaultRule::new(Encoder, FaultPoint::Runner, FaultKind::Panic).nth(STEPS + 1)];
        config.supervision.backoff = Duration::from_millis(1);
    })
    .await;
    for case in ["first", "second"] {
        golden.check(&golden.ask(&engine, case).await, case);
    }
    idle(&engine).await;
    assert_eq!(engine.health()[Encoder].restarts, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_text_open_no_sequence_in_the_encoder() {
    let points = [FaultPoint::Scheduler, FaultPoint::Runner, FaultPoint::Sampler, FaultPoint::Connector];
    let engine = engine(&tiny(), |config| {
        config.faults = points.map(|point| FaultRule::new(Encoder, point, FaultKind::Panic)).to_vec();
        config.supervision.backoff = Duration::from_millis(1);
    })
    .await;
    for output in [Output::Text, Output::TextAndAudio] {
        let request = omni_actors::engine::GenerateRequest {
            max_text_tokens: Some(6),
            max_frames: Some(omni_actors::core::ids::Frames(5)),
            ..chat("hello", output)
        };
        assert!(collect(engine.submit(request).await.unwrap()).await.end.unwrap().is_ok());
    }
    idle(&engine).await;
    assert_eq!(engine.health()[Encoder].restarts, 0, "anything that it did would have ended it");
    let golden = Golden::read("mm_audio_image_ethan");
    golden.check(&golden.ask(&engine, "with media").await, "with media");
    assert!(engine.health()[Encoder].restarts > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_to_text_go_on_while_an_encoder_stands_still() {
    let text = || omni_actors::engine::GenerateRequest {
        max_text_tokens: Some(12),
        max_frames: Some(omni_actors::core::ids::Frames(12)),
        ..chat("hello", Output::TextAndAudio)
    };
    let undisturbed = collect(engine(&tiny(), |_| {}).await.submit(text()).await.unwrap()).await;
    let engine = engine(&tiny(), |config| {
        config.supervision.watchdog = Duration::from_secs(600);
        config.faults = vec![FaultRule::new(Encoder, FaultPoint::Runner, FaultKind::Hang).nth(2)];
    })
    .await;
    let golden = Golden::read("mm_audio_image_ethan");
    let waiting = engine.submit_decoded(golden.request(), golden.media.clone()).await.unwrap();
    let answers =
        futures::future::join_all((0..3).map(|_| async { collect(engine.submit(text()).await.unwrap()).await }));
    for answer in answers.await {
        assert!(answer.samples == undisturbed.samples && answer.end == undisturbed.end);
    }
    drop(waiting);
}

#[tokio::test(flavor = "multi_thread")]
async fn media_beyond_the_memory_are_refused_with_the_limit() {
    let golden = Golden::read("mm_three_images_chelsie");
    let engine = engine(&tiny(), |config| config.media.max_embeddings = 10_000).await;
    match engine.submit_decoded(golden.request(), golden.media.clone()).await {
        Err(SubmitError::Invalid { param: "messages", message }) => {
            assert!(message.contains("media.max_embeddings"), "{message}");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("accepted"),
    }
    let mut fewer = golden.request();
    fewer.messages.pop();
    assert!(engine.submit_decoded(fewer, golden.media.clone()).await.is_err(), "media without a place");
    idle(&engine).await;
}
