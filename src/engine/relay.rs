//! The relay makes one stream of the requests of one text. The reader of the text, sentence by sentence
//! ([`speak`](super::speak)) or word by word ([`incremental`](super::incremental)), opens a request per piece and
//! passes its events on; the relay joins their sound, adds up their usage and keeps the voice from piece to piece.

use super::Shared;
use super::admission::Watch;
use super::api::{AudioChunk, Event, RequestError, ResponseStream, SubmitError, Usage, WordTime};
use super::plan::{CodeLog, FamilyPlanner, RequestPlan, SpeechOptions, SpeechVoice};
use super::stream::Expired;
use super::words::Words;
use omni_core::crossfade::Crossfade;
use omni_core::ids::{FinishReason, Frames};
use omni_core::playback::Playback;
use omni_telemetry::RequestKind;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// How long before its first sound a piece is due: a talker must read its prompt and a vocoder make its first chunk.
const AHEAD: Duration = Duration::from_millis(500);

/// See the module.
pub(super) struct Relay {
    pub shared: Arc<Shared>,
    pub options: SpeechOptions,
    /// Where the reader of the text says that it waits for its writer.
    pub watch: Watch,
    send: flume::Sender<Event>,
    usage: Usage,
    reason: FinishReason,
    started: bool,
    crossfade: Crossfade,
    /// What the client has heard by now, on this clock.
    playback: Playback,
    born: Instant,
    /// Whether a piece has ended and the next one has not begun to sound.
    between: bool,
    /// Codes of the current piece, where the next piece must keep its voice.
    codes: Option<CodeLog>,
    /// Where the client asked for the times of words.
    pub words: Option<Words>,
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
    pub fn new(
        shared: Arc<Shared>,
        options: SpeechOptions,
        send: flume::Sender<Event>,
        expired: Expired,
        watch: Watch,
    ) -> Relay {
        let (usage, reason, crossfade) = (Usage::default(), FinishReason::Stop, Crossfade::default());
        let (playback, born) = (Playback::default(), Instant::now());
        Relay {
            shared,
            options,
            watch,
            send,
            usage,
            reason,
            started: false,
            crossfade,
            playback,
            born,
            between: false,
            codes: None,
            words: None,
            expired,
        }
    }

    /// Whether another piece may be opened: one answer has so much speech at most.
    pub fn may_go_on(&mut self) -> bool {
        let over = self.options.frames_left == Frames(0);
        if over {
            self.reason = FinishReason::Length;
        }
        !over
    }

    /// Ends the stream: with the last sound and the usage, with the error, or in silence where the client has left.
    pub async fn finish(mut self, outcome: Result<(), Stop>) {
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

    /// Opens the request of a piece. Words that sound are told for a piece whose whole text is here.
    pub fn open(&mut self, mut plan: RequestPlan, text: Option<&str>) -> ResponseStream {
        let may_change = matches!(&self.options.voice, SpeechVoice::Tts(voice) if voice.may_change());
        self.codes = (may_change || self.words.is_some()).then(CodeLog::default);
        plan.codes.clone_from(&self.codes);
        if let (Some(words), Some(text), Some(codes)) = (&mut self.words, text, &self.codes) {
            words.begin(text, Arc::clone(codes));
        }
        plan.follows(self.playback.left(self.born.elapsed()).saturating_sub(AHEAD));
        self.shared.ledger.open_request(plan, RequestKind::Speech, None, Arc::clone(&self.expired))
    }

    /// After a piece has been made: the following pieces get the voice that spoke it.
    pub fn keep_voice(&mut self, text: &str) {
        let Some(log) = self.codes.take() else { return };
        let codes = log.lock().unwrap_or_else(PoisonError::into_inner);
        if let (FamilyPlanner::Tts(planner), SpeechVoice::Tts(voice)) =
            (&self.shared.planner.family, &self.options.voice)
            && voice.may_change()
            && !codes.is_empty()
        {
            self.options.voice = SpeechVoice::Tts(planner.continued(voice, text, &codes));
        }
    }

    /// Passes an event of the current piece on; `false` when that was its last.
    pub async fn pass_on(&mut self, event: Option<Event>) -> Result<bool, Stop> {
        match event {
            Some(Event::Finished { reason, usage }) => {
                self.usage.prompt_tokens += usage.prompt_tokens;
                self.usage.text_tokens += usage.text_tokens;
                self.usage.frames.0 += usage.frames.0;
                let left = &mut self.options.frames_left.0;
                *left = left.saturating_sub(usage.frames.0);
                if reason == FinishReason::Length {
                    self.reason = reason;
                }
                // The same request seed must not make every piece draw the same numbers.
                self.options.seed = self.options.seed.wrapping_add(1);
                self.between = true;
                let words = self.words.as_mut().map(Words::finish);
                self.tell_words(words).await?;
                Ok(false)
            }
            Some(Event::Failed(error)) => Err(Stop::Failed(error)),
            None => Err(Stop::Failed(RequestError::ShuttingDown)),
            Some(Event::Audio(AudioChunk { samples, frames })) => {
                let words = self.words.as_mut().map(|words| words.hear(&samples));
                self.tell_words(words).await?;
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

    async fn tell_words(&self, words: Option<Vec<WordTime>>) -> Result<(), Stop> {
        for word in words.into_iter().flatten() {
            self.tell(Event::Word(word)).await?;
        }
        Ok(())
    }

    async fn tell(&self, event: Event) -> Result<(), Stop> {
        self.send.send_async(event).await.map_err(|_| Stop::Gone)
    }
}

/// Text that cannot be spoken, in a request that was accepted before the text came.
pub(super) fn refused(error: SubmitError) -> RequestError {
    match error {
        SubmitError::Internal(reason) => RequestError::Internal(reason),
        other => RequestError::Refused(other.to_string()),
    }
}
