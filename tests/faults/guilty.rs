//! A request that brings its stage down each time is found, set apart and ended; no other request is, and no stage is
//! given up because of it.

use crate::support::engine::{Answer, becomes, chat, collect, engine, frames, idle, root, say, speech, tiny};
use crate::support::wait::PATIENCE;
use omni_actors::config::{Config, Placement, VoicesDirectory};
use omni_actors::core::ids::{Frames, StageName};
use omni_actors::engine::{
    Engine, NewVoice, Output, Recording, RequestError, Service, SpeechRequest, StageState, SubmitError, TenantId,
    VoiceChoice, VoiceError, VoiceSource,
};
use omni_actors::fault::{Beside, FaultKind, FaultPoint, FaultRule};
use omni_actors::model::checkpoint::Checkpoint;
use std::time::Duration;

const PLACEMENTS: [Placement; 2] = [Placement::Thread, Placement::Process];

/// Strikes a request each time that it comes by.
fn always(stage: StageName, point: FaultPoint, kind: FaultKind) -> FaultRule {
    FaultRule::new(stage, point, kind).times(u64::MAX)
}

async fn broken(placement: Placement, rules: Vec<FaultRule>) -> Engine {
    engine(&tiny(), |config: &mut Config| {
        config.stages.iter_mut().for_each(|stage| stage.placement = placement);
        config.supervision.backoff = Duration::from_millis(1);
        config.faults = rules;
    })
    .await
}

/// A text of its own for each number, so that no request is another one that comes again.
fn asked(number: u64) -> SpeechRequest {
    let mut request = speech(&format!("this is number {number}"), number);
    request.params.max_frames = Some(Frames(12));
    request.params.ignore_eos = true;
    request
}

async fn heard(engine: &Engine, request: SpeechRequest, case: &str) -> Answer {
    let said = tokio::time::timeout(PATIENCE, say(engine, request)).await;
    said.unwrap_or_else(|_| panic!("{case}: the stream hangs; {:?}", engine.health()))
}

/// That a request was ended because it brought this stage down; how often it did.
fn guilty(answer: &Answer, of: StageName, case: &str) -> u32 {
    match &answer.end {
        Some(Err(RequestError::BroughtDown { stage, times, .. })) if *stage == of => *times,
        other => panic!("{case}: it ended with {other:?}"),
    }
}

async fn one_is_ended_and_the_others_go_on(placement: Placement, rule: FaultRule) {
    let stage = rule.stage.unwrap();
    let case = format!("{placement:?} {stage} {:?} {:?}", rule.point, rule.kind);
    let undisturbed = broken(placement, Vec::new()).await;
    let truth = [heard(&undisturbed, asked(2), &case).await, heard(&undisturbed, asked(3), &case).await];
    drop(undisturbed);
    let engine = broken(placement, vec![rule.request(1)]).await;
    // The engine numbers them in the order in which they come.
    let first = engine.speak(asked(1)).await.unwrap();
    let second = engine.speak(asked(2)).await.unwrap();
    let both = async { tokio::join!(collect(first), collect(second)) };
    let (first, second) = tokio::time::timeout(PATIENCE, both).await.unwrap_or_else(|_| panic!("{case}: hangs"));
    assert_eq!(guilty(&first, stage, &case), 3, "{case}: the first failure, and two more");
    assert_eq!(second, Answer { chunks: second.chunks.clone(), ..truth[0].clone() }, "{case}: the other stream");
    // The stream ends before the stage's status says why.
    becomes(&engine, &case, |health| health.ready && health[stage].restarts >= 3).await;
    let health = &engine.health()[stage];
    assert_eq!((health.state, health.restarts), (StageState::Running, 3), "{case}: {health:?}");
    assert!(heard(&engine, asked(3), &case).await.samples == truth[1].samples, "{case}: the one after");
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_crashes_its_stage_in_a_thread_is_ended_and_the_others_are_heard_to_the_sample() {
    for stage in StageName::OF_TEXT {
        one_is_ended_and_the_others_go_on(Placement::Thread, always(stage, FaultPoint::Runner, FaultKind::Panic)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_crashes_its_stage_in_a_process_is_ended_and_the_others_are_heard_to_the_sample() {
    for stage in StageName::OF_TEXT {
        one_is_ended_and_the_others_go_on(Placement::Process, always(stage, FaultPoint::Runner, FaultKind::Panic))
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_kills_the_process_of_its_stage_is_found_by_what_the_process_left_behind() {
    for stage in StageName::OF_TEXT {
        one_is_ended_and_the_others_go_on(Placement::Process, always(stage, FaultPoint::Runner, FaultKind::Kill)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whichever_actor_a_request_crashes_it_is_the_one_that_is_ended() {
    // The connector not at the thinker: that may think on before its input comes, and fails at other places each time.
    for (at, point) in [
        FaultPoint::Open,
        FaultPoint::Completion,
        FaultPoint::Sampler,
        FaultPoint::Scheduler,
        FaultPoint::Packager,
        FaultPoint::Connector,
        FaultPoint::Outbound,
    ]
    .into_iter()
    .enumerate()
    {
        let stage = StageName::OF_TEXT[at % 3];
        one_is_ended_and_the_others_go_on(Placement::Thread, always(stage, point, FaultKind::Panic)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_sent_again_and_again_never_has_its_stage_given_up() {
    let rule = always(StageName::Talker, FaultPoint::Runner, FaultKind::Panic).one_in(1);
    let engine = broken(Placement::Thread, vec![rule]).await;
    for round in 0..8 {
        let again = heard(&engine, asked(1), "again").await;
        // It is known by then, runs alone from its first step and has one try less.
        assert_eq!(guilty(&again, StageName::Talker, "again"), 3, "round {round}");
    }
    becomes(&engine, "again", |health| health.ready).await;
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_request_in_so_many_brings_its_stage_down_and_all_others_are_heard() {
    // More of them than restarts are allowed.
    let chosen = |engine: &Engine| engine.health()[StageName::Talker].restarts;
    let undisturbed = broken(Placement::Thread, Vec::new()).await;
    let rule = always(StageName::Talker, FaultPoint::Runner, FaultKind::Panic).one_in(4);
    let engine = broken(Placement::Thread, vec![rule]).await;
    let (mut ended, mut heard_well) = (0, 0);
    for round in 0..5 {
        let numbers: Vec<u64> = (round * 8..round * 8 + 8).collect();
        let answers = numbers.iter().map(|number| heard(&engine, asked(*number), "one in four"));
        let answers = futures::future::join_all(answers).await;
        for (number, answer) in numbers.into_iter().zip(answers) {
            if answer.end.as_ref().is_some_and(Result::is_err) {
                guilty(&answer, StageName::Talker, "one in four");
                ended += 1;
            } else {
                let truth = heard(&undisturbed, asked(number), "undisturbed").await;
                assert!(answer.samples == truth.samples && answer.end == truth.end, "request {number}");
                heard_well += 1;
            }
        }
    }
    assert!(ended >= 3 && heard_well >= 20, "{ended} ended, {heard_well} heard");
    assert!(chosen(&engine) > 5, "more restarts than supervision.max_restarts, and the stage is there");
    becomes(&engine, "one in four", |health| health.ready).await;
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_requests_that_crash_only_together_are_both_heard() {
    let rule = always(StageName::Talker, FaultPoint::Runner, FaultKind::Panic).beside(Beside::Any);
    let engine = broken(Placement::Thread, vec![rule.request(1)]).await;
    let undisturbed = broken(Placement::Thread, Vec::new()).await;
    let answers = tokio::join!(heard(&engine, asked(1), "together"), heard(&engine, asked(2), "together"));
    let truth = (heard(&undisturbed, asked(1), "alone").await, heard(&undisturbed, asked(2), "alone").await);
    assert!(answers.0.samples == truth.0.samples && answers.0.end == truth.0.end);
    assert!(answers.1.samples == truth.1.samples && answers.1.end == truth.1.end);
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_leave_after_each_crash_do_not_have_the_stage_given_up() {
    let rule = always(StageName::Talker, FaultPoint::Runner, FaultKind::Panic).one_in(1);
    let engine = broken(Placement::Thread, vec![rule]).await;
    for round in 1..=8 {
        let stream = engine.speak(asked(1)).await.unwrap();
        let case = format!("round {round}");
        becomes(&engine, &case, |health| health[StageName::Talker].restarts >= round).await;
        drop(stream);
    }
    becomes(&engine, "clients that leave", |health| health.ready).await;
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_down_and_not_handed_over_is_handed_over_again_or_the_request_fails() {
    let point = || FaultRule::new(None, FaultPoint::Handover, FaultKind::Panic).request(1);
    for placement in PLACEMENTS {
        let undisturbed = heard(&broken(placement, Vec::new()).await, frames(12, 5), "undisturbed").await;
        for nth in [1, 2, 4] {
            let engine = broken(placement, vec![point().nth(nth)]).await;
            let answer = heard(&engine, frames(12, 5), "handed over again").await;
            assert!(answer.samples == undisturbed.samples && answer.end == undisturbed.end, "occurrence {nth}");
            // What waits is handed over at once, so there may be no fourth time.
            let hits = engine.faults().counts()[0].hits;
            assert!(hits == 1 || nth == 4 && hits == 0, "occurrence {nth}: {hits}");
            idle(&engine).await;
        }
        let engine = broken(placement, vec![point().nth(2).times(u64::MAX)]).await;
        let answer = heard(&engine, frames(12, 5), "never handed over").await;
        let error = answer.end.unwrap().unwrap_err();
        assert!(matches!(error, RequestError::SequenceFailed { .. }), "{error}");
        assert!(heard(&engine, frames(12, 5), "the next one").await.end == undisturbed.end);
        idle(&engine).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_a_template_or_a_tokenizer_ends_its_request_and_no_other() {
    let planning = || FaultRule::new(None, FaultPoint::Plan, FaultKind::Panic);
    let engine = broken(Placement::Thread, vec![planning()]).await;
    let refused = engine.speak(frames(12, 5)).await.unwrap_err();
    assert!(matches!(&refused, SubmitError::Internal(why) if why.contains("injected fault: plan")), "{refused}");
    assert!(heard(&engine, frames(12, 5), "the next one").await.end.unwrap().is_ok());
    idle(&engine).await;
    let engine = broken(Placement::Thread, vec![planning()]).await;
    let refused = engine.submit(chat("hello", Output::Text)).await.unwrap_err();
    assert!(matches!(refused, SubmitError::Internal(_)), "{refused}");
    assert!(collect(engine.submit(chat("hello", Output::Text)).await.unwrap()).await.end.unwrap().is_ok());
    idle(&engine).await;
    // The second sentence of a text that comes in pieces.
    let engine = broken(Placement::Thread, vec![planning().nth(2)]).await;
    let (send, pieces) = flume::bounded(4);
    let mut request = frames(4, 5);
    request.text = omni_actors::engine::TextSource::Streamed(pieces);
    let stream = engine.speak(request).await.unwrap();
    for sentence in ["one is said. ", "two is not. "] {
        send.send(sentence.to_owned()).unwrap();
    }
    drop(send);
    let ended = tokio::time::timeout(PATIENCE, collect(stream)).await.expect("it hangs").end;
    assert!(matches!(&ended, Some(Err(RequestError::Internal(_)))), "{ended:?}");
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_the_encoder_of_recordings_ends_its_request_and_no_other() {
    let base = Checkpoint::open(&root().join("tests/fixtures/qwen3_tts/base")).unwrap();
    let rule = FaultRule::new(None, FaultPoint::Encoder, FaultKind::Panic).times(2);
    let engine = engine(&base, |config| {
        config.voices.directory = VoicesDirectory::Memory;
        config.faults = vec![rule];
    })
    .await;
    let recording = Recording { audio: crate::support::recording::good(1).into(), text: None, x_vector_only: false };
    let voice = || NewVoice {
        name: "Clara".into(),
        consent: "yes".into(),
        description: None,
        owner: None,
        source: VoiceSource::Recording { recording: recording.clone(), mime_type: None },
        tenant: TenantId::default(),
    };
    let refused = engine.add_voice(voice()).await.unwrap_err();
    assert!(matches!(&refused, VoiceError::Internal(why) if why.contains("injected fault: encoder")), "{refused}");
    let mut cloned = frames(4, 5);
    cloned.params.voice = VoiceChoice::Clone(recording.clone());
    let refused = engine.speak(cloned).await.unwrap_err();
    assert!(matches!(refused, SubmitError::Internal(_)), "{refused}");
    // The name is free, the place in the queue too, and the encoders work.
    engine.add_voice(voice()).await.unwrap();
    idle(&engine).await;
}
