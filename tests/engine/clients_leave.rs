//! Clients that leave, that stop reading, or that are too many do not disturb other clients.

use crate::support::engine::{chat, collect, engine, frames, idle, say, tiny};
use crate::support::wait::{self, PATIENCE};
use omni_actors::core::ids::StageName;
use omni_actors::engine::{Engine, Event, Output, RequestError, ResponseStream, Service, SubmitError, TextSource};
use omni_actors::fault::{FaultKind, FaultPoint, FaultRule};
use omni_actors::model::sampling::{Domain, uniform};
use omni_actors::telemetry::Outcome;
use omni_actors::telemetry::trace::{Session, Track, What};
use std::time::Duration;

/// Reads this many events and leaves.
async fn leave_after(engine: &Engine, kind: usize, events: usize) {
    let stream = match kind {
        0 => engine.speak(frames(40, 3)).await,
        1 => engine.submit(chat("hello there", Output::TextAndAudio)).await,
        _ => engine.submit(chat("hello there", Output::Text)).await,
    };
    let mut stream: ResponseStream = stream.unwrap();
    for _ in 0..events {
        if stream.next().await.is_none() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_200_requests_aborted_at_random_moments_nothing_is_left() {
    let engine = engine(&tiny(), |config| config.limits.max_requests = 16).await;
    for round in 0..25u32 {
        let clients = (0..8u32).map(|client| {
            let random = |group| uniform(9, Domain::Codes, round * 8 + client, group);
            leave_after(&engine, (random(0) * 3.0) as usize, (random(1) * 14.0) as usize)
        });
        futures::future::join_all(clients).await;
    }
    idle(&engine).await;
    assert!(say(&engine, frames(5, 1)).await.end.unwrap().is_ok(), "and the engine serves on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_stops_reading_pauses_its_own_request_only() {
    let engine = engine(&tiny(), |config| {
        config.stages[StageName::Vocoder as usize].window = 8;
        config.stages[StageName::Talker as usize].window = 16;
        config.limits.max_requests = 8;
    })
    .await;
    let undisturbed = say(&engine, frames(200, 5)).await;

    let mut sleepers = Vec::new();
    for _ in 0..4 {
        sleepers.push(engine.speak(frames(200, 5)).await.unwrap());
    }
    for seed in 0..4 {
        let other = say(&engine, frames(60, seed)).await;
        assert!(other.end.unwrap().is_ok(), "a client that reads is served while others sleep");
    }
    for mut sleeper in sleepers {
        let mut samples = Vec::new();
        let mut ended = false;
        while let Some(event) = sleeper.next().await {
            match event {
                Event::Audio(chunk) => samples.extend_from_slice(&chunk.samples),
                Event::Finished { .. } => ended = true,
                Event::Failed(error) => panic!("{error}"),
                _ => {}
            }
        }
        assert!(ended && samples == undisturbed.samples, "a pause changes nothing");
    }
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_a_client_is_bounded_by_the_window() {
    let engine = engine(&tiny(), |config| {
        config.stages[StageName::Vocoder as usize].window = 8;
        config.stages[StageName::Talker as usize].window = 16;
    })
    .await;
    let sleeper = engine.speak(frames(2000, 5)).await.unwrap();
    // The stages come to rest although the request is far from its end.
    let rested = async {
        let mut calm = 0;
        let mut before = engine.load();
        while calm < 2000 {
            tokio::task::yield_now().await;
            let now = engine.load();
            calm = if now == before && now.queued == 0 { calm + 1 } else { 0 };
            before = now;
        }
        before
    };
    let load = tokio::time::timeout(PATIENCE, rested).await.expect("the stages never rest");
    assert!(load.leases <= 8 + 16 + 16, "{load:?}");
    drop(sleeper);
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sleeps_too_long_is_let_go() {
    let engine = engine(&tiny(), |config| {
        config.limits.stalled_client_timeout = Duration::from_millis(300);
        config.stages[StageName::Vocoder as usize].window = 8;
    })
    .await;
    let sleeper = engine.speak(frames(500, 5)).await.unwrap();
    idle(&engine).await;
    let answer = collect(sleeper).await;
    assert!(
        matches!(answer.end.unwrap(), Err(RequestError::TimedOut(_))),
        "what was made is still there, then the reason"
    );
    assert!(!answer.samples.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_lives_too_long_is_ended() {
    let engine = engine(&tiny(), |config| {
        config.limits.request_timeout = Duration::from_millis(600);
        // What is heard earns twice its length: a frame in a second is too slow for that.
        let slow = FaultKind::Delay(Duration::from_secs(1));
        config.faults = vec![FaultRule::new(StageName::Talker, FaultPoint::Runner, slow).times(u64::MAX)];
    })
    .await;
    let answer = tokio::time::timeout(PATIENCE, say(&engine, frames(60_000, 1))).await.unwrap();
    assert!(matches!(answer.end.unwrap(), Err(RequestError::TimedOut(_))));
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_lives_longer_than_it_said_has_timed_out_and_did_not_leave() {
    let engine = engine(&tiny(), |_| {}).await;
    let session = Session::begin(&engine.recorder());
    let life = Duration::from_millis(100);
    // As a whole text, and as one that arrives in pieces.
    let (whole, mut pieces) = (frames(60_000, 1), frames(60_000, 1));
    let (send, text) = flume::unbounded();
    send.send("one two three".to_owned()).unwrap();
    drop(send);
    pieces.text = TextSource::Streamed(text);
    let mut requests = Vec::new();
    for mut request in [whole, pieces] {
        request.params.options.life = Some(life);
        let mut stream = engine.speak(request).await.unwrap();
        let Some(Event::Started { id, .. }) = stream.next().await else { panic!("the first event comes first") };
        let last = last_of(stream).await.unwrap();
        assert!(matches!(&last, Event::Failed(RequestError::TimedOut(after)) if *after == life), "{last:?}");
        requests.push(id);
    }
    idle(&engine).await;
    let trace = session.end();
    for request in requests {
        let own = trace.records.iter().filter(|record| record.track == Track::Request(request));
        let ends: Vec<_> =
            own.filter_map(|record| if let What::Ended(how) = record.what { Some(how) } else { None }).collect();
        assert_eq!(ends, [Outcome::TimedOut], "{request}");
    }
}

async fn last_of(mut stream: ResponseStream) -> Option<Event> {
    let mut last = None;
    while let Some(event) = stream.next().await {
        last = Some(event);
    }
    last
}

#[tokio::test(flavor = "multi_thread")]
async fn when_all_places_are_taken_the_next_client_is_told_when_to_come_again() {
    let engine = engine(&tiny(), |config| config.limits.max_requests = 2).await;
    let (first, _second) = (engine.speak(frames(50, 1)).await.unwrap(), engine.speak(frames(50, 2)).await.unwrap());
    let refused = engine.speak(frames(50, 3)).await.unwrap_err();
    assert!(matches!(refused, SubmitError::Full { limit: 2, .. }), "{refused}");
    drop(first);
    assert!(engine.speak(frames(5, 3)).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_lets_streams_finish_and_refuses_new_ones() {
    let engine = engine(&tiny(), |_| {}).await;
    let stream = engine.speak(frames(40, 1)).await.unwrap();
    let draining = engine.drain(PATIENCE);
    let reading = async {
        let refused = wait::answered(async || match engine.speak(frames(1, 1)).await {
            Err(error) => Ok(error),
            Ok(_) => Err("it is taken"),
        })
        .await;
        assert_eq!(refused, SubmitError::ShuttingDown);
        collect(stream).await
    };
    let ((), answer) = tokio::join!(draining, reading);
    assert!(answer.end.unwrap().is_ok());
    assert_eq!(answer.samples.len(), 40 * 1920 - 555);
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_grace_is_over_streams_are_told_and_ended() {
    let engine = engine(&tiny(), |_| {}).await;
    let stream = engine.speak(frames(60_000, 1)).await.unwrap();
    let ((), answer) = tokio::join!(engine.drain(Duration::from_millis(200)), collect(stream));
    assert_eq!(answer.end, Some(Err(RequestError::ShuttingDown)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_dropped_ends_its_streams_and_stops() {
    let engine = engine(&tiny(), |_| {}).await;
    let stream = engine.speak(frames(60_000, 1)).await.unwrap();
    drop(engine);
    let answer = tokio::time::timeout(PATIENCE, collect(stream)).await.expect("the stream hangs");
    assert_eq!(answer.end, Some(Err(RequestError::ShuttingDown)));
}
