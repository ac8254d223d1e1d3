//! Speech requests: a text, whole or still arriving, becomes sentences; each is a request of its own to the stages, all
//! of them one stream to the client. The next sentence starts when the one before has been made, which is long before it
//! has been heard.

use super::admission::Place;
use super::api::{Event, FinishReason, RequestError, ResponseStream, SpeechRequest, SubmitError, TextSource, Usage};
use super::plan::SpeechOptions;
use super::{Engine, Shared};
use crate::core::text::{self, Segmenter};
use crate::telemetry::RequestKind;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Events that may wait between a sentence and its reader: hardly any, for the sentence keeps its own.
const RELAY: usize = 2;

/// Accepts a speech request.
pub(super) async fn speak(engine: &Engine, request: SpeechRequest) -> Result<ResponseStream, SubmitError> {
    engine.ready().await?;
    let shared = &engine.shared;
    let params = &request.params;
    let mut options =
        shared.planner.speech_options(params.voice.name(), &params.speech, params.max_frames, params.seed)?;
    options.ignore_eos = params.ignore_eos;
    options.initial_chunk = params.initial_chunk_frames;
    if params.ignore_eos && params.max_frames.is_none() {
        let message = "ignore_eos needs max_new_tokens: how many frames to make".to_string();
        return Err(SubmitError::Invalid { param: "ignore_eos", message });
    }
    let max_chars = if params.ignore_eos { usize::MAX } else { shared.speech.max_segment_chars };
    let (waiting, more) = match request.text {
        TextSource::Whole(text) => {
            shared.planner.check_length("input", text.chars().count())?;
            let waiting: VecDeque<_> = text::segments(&text, max_chars).into();
            // What would be refused in the middle is refused now.
            for text in waiting.iter().skip(1) {
                shared.planner.speech(text, &options)?;
            }
            (waiting, None)
        }
        TextSource::Streamed(pieces) => (VecDeque::new(), Some(pieces)),
    };
    let place = shared.admissions.enter()?;
    match (waiting.len(), &more) {
        // One sentence needs nobody to put it together.
        (0 | 1, None) => {
            let text = waiting.front().map_or("", String::as_str);
            let plan = shared.planner.speech(text, &options)?;
            Ok(shared.ledger.open_request(plan, RequestKind::Speech, Some(place)))
        }
        _ => {
            let (send, events) = flume::bounded(RELAY);
            let gone = CancellationToken::new();
            let reading = Reading {
                shared: Arc::clone(shared),
                options,
                segments: Segmenter::new(max_chars),
                waiting,
                more,
                chars: 0,
                send,
            };
            let listening = gone.clone().drop_guard();
            tokio::spawn(async move {
                tokio::select! {
                    () = gone.cancelled() => {}
                    () = reading.run(place) => {}
                }
            });
            Ok(ResponseStream::new(events, listening))
        }
    }
}

/// A text being read aloud.
struct Reading {
    shared: Arc<Shared>,
    options: SpeechOptions,
    segments: Segmenter,
    waiting: VecDeque<String>,
    more: Option<flume::Receiver<String>>,
    chars: usize,
    send: flume::Sender<Event>,
}

impl Reading {
    async fn run(mut self, _place: Place) {
        let mut usage = Usage::default();
        let mut reason = FinishReason::Stop;
        let mut started = false;
        let last = loop {
            let text = match self.next().await {
                Ok(Some(text)) => text,
                Ok(None) => break Event::Finished { reason, usage },
                Err(error) => break Event::Failed(error),
            };
            let plan = match self.shared.planner.speech(&text, &self.options) {
                Ok(plan) => plan,
                Err(error) => break Event::Failed(RequestError::Refused(error.to_string())),
            };
            let mut sentence = self.shared.ledger.open_request(plan, RequestKind::Speech, None);
            // The same request seed must not make every sentence draw the same numbers.
            self.options.seed = self.options.seed.wrapping_add(1);
            let outcome = loop {
                match sentence.next().await {
                    Some(Event::Finished { reason, usage }) => break Ok((reason, usage)),
                    Some(Event::Failed(error)) => break Err(error),
                    None => break Err(RequestError::ShuttingDown),
                    Some(Event::Started { .. }) if started => {}
                    Some(event) => {
                        started = true;
                        if self.send.send_async(event).await.is_err() {
                            return;
                        }
                    }
                }
            };
            match outcome {
                Ok((why, used)) => {
                    usage.prompt_tokens += used.prompt_tokens;
                    usage.text_tokens += used.text_tokens;
                    usage.frames.0 += used.frames.0;
                    if why == FinishReason::Length {
                        reason = why;
                    }
                }
                Err(error) => break Event::Failed(error),
            }
        };
        let _ = self.send.send_async(last).await;
    }

    /// The next sentence, as soon as it is whole.
    async fn next(&mut self) -> Result<Option<String>, RequestError> {
        loop {
            if let Some(text) = self.waiting.pop_front() {
                return Ok(Some(text));
            }
            let Some(more) = &self.more else { return Ok(None) };
            // Here nothing is being made: if the writer pauses, the listener should have what is there.
            let piece = tokio::time::timeout(self.shared.speech.flush_after, more.recv_async());
            match piece.await {
                Err(_paused) => self.waiting.extend(self.segments.pause()),
                Ok(Ok(piece)) => {
                    self.chars += piece.chars().count();
                    let checked = self.shared.planner.check_length("input", self.chars);
                    checked.map_err(|error| RequestError::Refused(error.to_string()))?;
                    self.waiting.extend(self.segments.push(&piece));
                }
                Ok(Err(flume::RecvError::Disconnected)) => {
                    self.more = None;
                    self.waiting.extend(self.segments.finish());
                }
            }
        }
    }
}
