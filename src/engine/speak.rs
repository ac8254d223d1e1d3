//! Speech requests: a text, whole or still arriving, becomes sentences; each is a request of its own to the stages, all
//! of them one stream to the client. The next sentence starts when the one before has been made, which is long before it
//! has been heard.

use super::admission::Permit;
use super::api::{
    AudioChunk, Event, RequestError, ResponseStream, SpeechParams, SpeechRequest, SubmitError, TextSource, Usage,
};
use super::incremental;
use super::plan::{CodeLog, FamilyPlanner, RequestPlan, SpeechOptions, SpeechVoice};
use super::stream::Expired;
use super::voice::VoiceChoice;
use super::voices::Voiceprint;
use super::{Engine, Shared};
use omni_core::crossfade::Crossfade;
use omni_core::ids::{FinishReason, Frames};
use omni_core::playback::Playback;
use omni_core::text::{self, Segmenter};
use omni_telemetry::RequestKind;
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Events that may wait between a sentence and its reader: hardly any, for the sentence keeps its own.
const RELAY: usize = 2;

/// How long before a piece is to be heard it is due: its prompt must be read and its first chunk be made.
const AHEAD: Duration = Duration::from_millis(500);

/// Accepts a speech request.
pub(super) async fn speak(engine: &Engine, request: SpeechRequest) -> Result<ResponseStream, SubmitError> {
    engine.ready().await?;
    let shared = &engine.shared;
    if let TextSource::Whole(text) = &request.text {
        shared.planner.check_length("input", text.chars().count())?;
    }
    // A recording is encoded for those only who will be served.
    let asked = request.params.options;
    // Text that is still being written says itself when its sound comes.
    // And a recording is encoded first.
    let steady = matches!(request.text, TextSource::Whole(_)) && !matches!(request.params.voice, VoiceChoice::Clone(_));
    let permit = shared.enter(&asked, steady, false)?;
    let watch = permit.watch();
    let print = voiceprint(shared, &request.params).await?;
    let options = shared.planner.speech_options(&request.params, print.as_deref())?;
    let expired = Expired::default();
    let max_chars = if options.ignore_eos { usize::MAX } else { shared.max_segment_chars };
    let source = match request.text {
        TextSource::Whole(text) => {
            let waiting: VecDeque<_> = text::segments(&text, max_chars).into();
            // What would be refused in the middle is refused now.
            for text in waiting.iter().skip(1) {
                shared.planner.speech(text, &options)?;
            }
            if waiting.len() <= 1 {
                // One sentence needs nobody to put it together.
                let text = waiting.front().map_or("", String::as_str);
                let plan = shared.planner.speech(text, &options)?;
                let kind = RequestKind::Speech;
                let stream = shared.ledger.open_request(plan, kind, Some(permit), Arc::clone(&expired));
                return Ok(stream.watched(watch).lasting(asked.life, expired));
            }
            Source::Sentences(Sentences { waiting, segments: Segmenter::new(max_chars), more: None, chars: 0 })
        }
        TextSource::Streamed(pieces) => match (&shared.planner.family, &options.voice) {
            (FamilyPlanner::Tts(_), SpeechVoice::Tts(voice)) if !voice.wants_whole_text() => {
                Source::Incremental(pieces)
            }
            _ => {
                let segments = Segmenter::new(max_chars);
                Source::Sentences(Sentences { waiting: VecDeque::new(), segments, more: Some(pieces), chars: 0 })
            }
        },
    };
    let (send, events) = flume::bounded(RELAY);
    let gone = CancellationToken::new();
    let relay = Relay::new(Arc::clone(shared), options, send, Arc::clone(&expired));
    let listening = gone.clone().drop_guard();
    tokio::spawn(async move {
        tokio::select! {
            () = gone.cancelled() => {}
            () = relay.run(source, permit) => {}
        }
    });
    Ok(ResponseStream::new(events, listening).watched(watch).lasting(asked.life, expired))
}

/// The voice that the client brought or uploaded before, encoded; `None` for those that the checkpoint knows itself.
async fn voiceprint(shared: &Shared, params: &SpeechParams) -> Result<Option<Arc<Voiceprint>>, SubmitError> {
    let Some(voices) = &shared.voices else { return Ok(None) };
    let print = match &params.voice {
        VoiceChoice::Embedding(_) => return Ok(None),
        VoiceChoice::Default => match &shared.info.default_voice {
            Some(name) if voices.has(name) => voices.named(name).await?,
            _ => return Ok(None),
        },
        VoiceChoice::Named { name, .. } if !voices.has(name) => return Ok(None),
        VoiceChoice::Named { name, x_vector_only } => {
            let print = voices.named(name).await?;
            if *x_vector_only { Arc::new(Voiceprint { reference: None, ..Voiceprint::clone(&print) }) } else { print }
        }
        VoiceChoice::Clone(recording) => voices.once(recording.clone()).await?,
    };
    Ok(Some(print))
}

enum Source {
    /// Spoken one after the other, each when it is whole.
    Sentences(Sentences),
    /// Spoken word by word.
    Incremental(flume::Receiver<String>),
}

/// A text as sentences.
struct Sentences {
    waiting: VecDeque<String>,
    segments: Segmenter,
    more: Option<flume::Receiver<String>>,
    chars: usize,
}

/// Puts the requests of one text together to one stream.
pub(super) struct Relay {
    pub shared: Arc<Shared>,
    pub options: SpeechOptions,
    send: flume::Sender<Event>,
    usage: Usage,
    reason: FinishReason,
    started: bool,
    crossfade: Crossfade,
    /// What the client has heard by now, on this clock.
    playback: Playback,
    born: Instant,
    /// Whether a piece has been passed on that another may follow.
    between: bool,
    /// Of the current piece, if the voice is to be kept.
    codes: Option<CodeLog>,
    expired: Expired,
}

/// Why a relay stops early.
pub(super) enum Stop {
    /// The client left.
    Gone,
    /// The request fails.
    Failed(RequestError),
}

impl From<RequestError> for Stop {
    fn from(error: RequestError) -> Stop {
        Stop::Failed(error)
    }
}

impl Relay {
    fn new(shared: Arc<Shared>, options: SpeechOptions, send: flume::Sender<Event>, expired: Expired) -> Relay {
        let (usage, reason, crossfade) = (Usage::default(), FinishReason::Stop, Crossfade::default());
        let (playback, born) = (Playback::default(), Instant::now());
        Relay {
            shared,
            options,
            send,
            usage,
            reason,
            started: false,
            crossfade,
            playback,
            born,
            between: false,
            codes: None,
            expired,
        }
    }

    async fn run(mut self, source: Source, _permit: Permit) {
        let outcome = match source {
            Source::Sentences(sentences) => self.read(sentences).await,
            Source::Incremental(pieces) => incremental::read(&mut self, pieces).await,
        };
        let last = match outcome {
            Ok(()) => {
                let end = self.crossfade.finish();
                if self.audio(end, Frames(0)).await.is_err() {
                    return;
                }
                Event::Finished { reason: self.reason, usage: self.usage }
            }
            Err(Stop::Gone) => return,
            Err(Stop::Failed(error)) => Event::Failed(error),
        };
        let _ = self.send.send_async(last).await;
    }

    async fn read(&mut self, mut sentences: Sentences) -> Result<(), Stop> {
        while let Some(text) = sentences.next(&self.shared).await? {
            let plan = self.shared.planner.speech(&text, &self.options).map_err(refused)?;
            let mut sentence = self.open(plan);
            while self.pass_on(sentence.next().await).await? {}
            self.keep_voice(&text);
        }
        Ok(())
    }

    /// Gives a piece to the stages.
    pub fn open(&mut self, mut plan: RequestPlan) -> ResponseStream {
        let may_change = matches!(&self.options.voice, SpeechVoice::Tts(voice) if voice.may_change());
        self.codes = may_change.then(CodeLog::default);
        plan.codes.clone_from(&self.codes);
        plan.follows(self.playback.left(self.born.elapsed()).saturating_sub(AHEAD));
        self.shared.ledger.open_request(plan, RequestKind::Speech, None, Arc::clone(&self.expired))
    }

    /// After a piece has been made: those that follow are spoken by whoever spoke it.
    pub fn keep_voice(&mut self, text: &str) {
        let Some(log) = self.codes.take() else { return };
        let codes = log.lock().unwrap_or_else(PoisonError::into_inner);
        if let SpeechVoice::Tts(voice) = &self.options.voice
            && !codes.is_empty()
        {
            self.options.voice = SpeechVoice::Tts(voice.that_said(text, &codes));
        }
    }

    /// Passes an event of the current piece on; `false` when that was its last.
    pub async fn pass_on(&mut self, event: Option<Event>) -> Result<bool, Stop> {
        match event {
            Some(Event::Finished { reason, usage }) => {
                self.usage.prompt_tokens += usage.prompt_tokens;
                self.usage.text_tokens += usage.text_tokens;
                self.usage.frames.0 += usage.frames.0;
                if reason == FinishReason::Length {
                    self.reason = reason;
                }
                // The same request seed must not make every piece draw the same numbers.
                self.options.seed = self.options.seed.wrapping_add(1);
                self.between = true;
                Ok(false)
            }
            Some(Event::Failed(error)) => Err(Stop::Failed(error)),
            None => Err(Stop::Failed(RequestError::ShuttingDown)),
            Some(Event::Audio(AudioChunk { samples, frames })) => {
                let mut ready = if std::mem::take(&mut self.between) { self.crossfade.border() } else { Vec::new() };
                ready.extend(self.crossfade.push(&samples));
                self.audio(ready, frames).await?;
                Ok(true)
            }
            Some(Event::Started { .. }) if self.started => Ok(true),
            Some(event) => {
                self.started = true;
                self.tell(event).await?;
                Ok(true)
            }
        }
    }

    async fn audio(&mut self, samples: Vec<f32>, frames: Frames) -> Result<(), Stop> {
        if samples.is_empty() {
            return Ok(());
        }
        let seconds = samples.len() as f64 / f64::from(self.shared.info.sample_rate);
        self.playback.chunk(self.born.elapsed(), Duration::from_secs_f64(seconds));
        self.tell(Event::Audio(AudioChunk { samples: samples.into(), frames })).await
    }

    async fn tell(&self, event: Event) -> Result<(), Stop> {
        self.send.send_async(event).await.map_err(|_| Stop::Gone)
    }
}

impl Sentences {
    /// The next one, as soon as it is whole.
    async fn next(&mut self, shared: &Shared) -> Result<Option<String>, RequestError> {
        loop {
            if let Some(text) = self.waiting.pop_front() {
                return Ok(Some(text));
            }
            let Some(more) = &self.more else { return Ok(None) };
            // Here nothing is being made: if the writer pauses, the listener should have what is there.
            match tokio::time::timeout(shared.speech.flush_after, more.recv_async()).await {
                Err(_paused) => self.waiting.extend(self.segments.pause()),
                Ok(Ok(piece)) => {
                    self.chars += piece.chars().count();
                    shared.planner.check_length("input", self.chars).map_err(refused)?;
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

/// What cannot be spoken, found out after the request had been accepted.
pub(super) fn refused(error: SubmitError) -> RequestError {
    RequestError::Refused(error.to_string())
}
