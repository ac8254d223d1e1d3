//! One listener of one stream.

use super::load::Asked;
use super::verdict::{End, Heard};
use omni_core::ids::RequestId;
use omni_core::playback::Playback;
use omni_engine::{Engine, Event, RequestError, Service, SubmitError, Usage};
use std::time::{Duration, Instant};

/// How long a listener waits before it asks again after a refusal that will pass.
pub const AGAIN: Duration = Duration::from_millis(50);

/// Only longer waits between chunks are kept.
const PAUSE: Duration = Duration::from_millis(20);

/// The times of a stream, since the run began.
#[derive(Clone, Debug, Default)]
pub struct Timing {
    /// When it was asked for.
    pub began: Duration,
    /// When its last event came.
    pub ended: Duration,
    /// The player of its listener.
    pub player: Playback,
    /// From chunk to chunk.
    pub pauses: Vec<(Duration, Duration)>,
}

/// Asks and listens to the end. Gives up when nothing comes for `patience`.
pub async fn listen(
    engine: &Engine,
    asked: impl Fn() -> Asked,
    run_began: Instant,
    patience: Duration,
) -> (Option<RequestId>, Heard, Timing) {
    let mut timing = Timing { began: run_began.elapsed(), ..Timing::default() };
    let mut heard = Heard { samples: Vec::new(), text: String::new(), end: End::Hung(patience) };
    let mut name = None;
    let mut stream = match accepted(engine, asked, patience).await {
        Ok(stream) => stream,
        Err(end) => {
            timing.ended = run_began.elapsed();
            heard.end = end;
            return (name, heard, timing);
        }
    };
    let rate = f64::from(engine.info().sample_rate);
    let mut last_chunk = None;
    loop {
        let event = tokio::time::timeout(patience, stream.next()).await;
        let now = run_began.elapsed();
        timing.ended = now;
        match event {
            Err(_) => heard.end = End::Hung(patience),
            Ok(None) => heard.end = End::Failed("the stream ended without a last event".to_owned()),
            Ok(Some(Event::Started { id, .. })) => {
                name = Some(id);
                continue;
            }
            Ok(Some(Event::Text(more))) => {
                heard.text.push_str(&more);
                continue;
            }
            Ok(Some(Event::Word(_))) => continue,
            Ok(Some(Event::Audio(chunk))) => {
                let length = Duration::from_secs_f64(chunk.samples.len() as f64 / rate);
                timing.player.chunk(now.saturating_sub(timing.began), length);
                let pause = last_chunk.replace(now).map(|before| (before, now));
                timing.pauses.extend(pause.filter(|(from, to)| *to - *from > PAUSE));
                heard.samples.extend_from_slice(&chunk.samples);
                continue;
            }
            Ok(Some(Event::Finished { reason, usage })) => {
                // What was kept of earlier prompts depends on what ran before, and on what died.
                heard.end = End::Finished(reason, Usage { cached_tokens: 0, ..usage });
            }
            Ok(Some(Event::Failed(RequestError::BroughtDown { stage, times, .. }))) => {
                heard.end = End::Ended(stage, times);
            }
            Ok(Some(Event::Failed(error))) => heard.end = End::Failed(first_line(&error)),
        }
        return (name, heard, timing);
    }
}

/// Asks until the engine accepts the request: while a stage restarts, the engine may refuse for a moment.
async fn accepted(
    engine: &Engine,
    asked: impl Fn() -> Asked,
    patience: Duration,
) -> Result<omni_engine::ResponseStream, End> {
    let first = Instant::now();
    loop {
        let answer = match asked() {
            Asked::Speech(request) => engine.speak(request).await,
            Asked::Chat(request) => engine.submit(request).await,
        };
        match answer {
            Ok(stream) => return Ok(stream),
            Err(SubmitError::NotReady(_) | SubmitError::Full { .. } | SubmitError::Busy(_))
                if first.elapsed() < patience && !given_up(engine) =>
            {
                tokio::time::sleep(AGAIN).await;
            }
            Err(error) => return Err(End::Refused(first_line(&error))),
        }
    }
}

/// Some errors carry a backtrace in the lines behind the first.
fn first_line(error: &impl std::fmt::Display) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// Whether a stage stays down for good.
pub fn given_up(engine: &Engine) -> bool {
    engine.health().stages.iter().any(|stage| stage.state == omni_engine::StageState::Failed)
}
