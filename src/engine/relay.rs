//! The relay makes one stream of the requests of one text. The reader of the text, sentence by sentence
//! ([`speak`](super::speak)) or word by word ([`incremental`](super::incremental)), opens a request per piece and
//! passes its events on; the relay joins their sound, adds up their usage and keeps the voice from piece to piece.

use super::Shared;
use super::admission::{Permit, Place, Watch};
use super::api::{AudioChunk, Event, RequestError, ResponseStream, SubmitError, Usage, WordTime};
use super::plan::{CodeLog, FamilyPlanner, RequestPlan, SpeechOptions, SpeechVoice};
use super::stream::Expired;
use super::words::WordTimes;
use omni_audio::TimeStretch;
use omni_core::crossfade::Crossfade;
use omni_core::ids::{FinishReason, Frames};
use omni_core::playback::Playback;
use omni_telemetry::{RequestKind, speech_anew};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// How long before its first sound a piece is due: a talker must read its prompt and a vocoder make its first chunk.
const AHEAD: Duration = Duration::from_millis(500);

/// Samples of silence that are sent in one go: a pause must not fill a queue whose length is counted in chunks.
const SILENCE: usize = 4800;

/// Frames of a piece that wait at most, so that it can be made anew: 64 s, 6 MB. A longer piece goes out as it comes.
const HELD: u32 = 800;

/// What distinguishes the seeds of a piece that is made anew; see [`Relay::goes_astray`].
const ANEW: u64 = 0x9e37_79b9_7f4a_7c15;

/// See the module.
pub(super) struct Relay {
    pub shared: Arc<Shared>,
    pub options: SpeechOptions,
    /// Where the reader of the text says that it waits for its writer.
    pub watch: Watch,
    /// Of the whole text: its requests pause together.
    place: Arc<Place>,
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
    /// Whether the text is there before it is spoken, so that its first piece is long enough for the others to go on from.
    pub whole: bool,
    /// Codes of the current piece, where the next pieces keep its voice.
    codes: Option<CodeLog>,
    /// How many times as fast the next piece is.
    pub rate: f32,
    /// Of the current piece, unless its rate is 1.
    stretch: Option<TimeStretch>,
    /// Chunks of the current piece, as long as it may be made anew; `None` where it goes out as it comes.
    held: Option<Vec<AudioChunk>>,
    /// How often the current piece has been made anew.
    tries: u32,
    /// Samples of the pause before the first piece, which goes out when that has begun.
    lead: usize,
    /// Where the client asked for the times of words.
    pub words: Option<WordTimes>,
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
        permit: &Permit,
    ) -> Relay {
        let (usage, reason, crossfade) = (Usage::default(), FinishReason::Stop, Crossfade::default());
        let (playback, born) = (Playback::default(), Instant::now());
        Relay {
            shared,
            options,
            watch: permit.watch(),
            place: permit.place(),
            send,
            usage,
            reason,
            started: false,
            crossfade,
            playback,
            born,
            between: false,
            whole: false,
            codes: None,
            rate: 1.0,
            stretch: None,
            held: None,
            tries: 0,
            lead: 0,
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
                match self.settle_words().await {
                    Ok(()) => Event::Finished { reason: self.reason, usage: self.usage },
                    Err(Stop::Failed(error)) => Event::Failed(error),
                    Err(Stop::Gone) => return,
                }
            }
            Err(Stop::Gone) => return,
            Err(Stop::Failed(error)) => Event::Failed(error),
        };
        let _ = self.send.send_async(last).await;
    }

    /// Opens the request of a piece. Words that sound are told for a piece whose whole text is here.
    pub fn open(&mut self, mut plan: RequestPlan, text: Option<&str>) -> ResponseStream {
        let goes_on = match &self.options.voice {
            SpeechVoice::Tts(voice) => voice.may_change() || self.whole && voice.goes_on(),
            SpeechVoice::Omni(_) => false,
        };
        self.codes = (goes_on || self.words.is_some()).then(CodeLog::default);
        plan.codes.clone_from(&self.codes);
        if let (Some(words), Some(text), Some(codes)) = (&mut self.words, text, &self.codes) {
            words.begin(text, Arc::clone(codes));
        }
        let sample_rate = self.shared.info.sample_rate;
        self.held = (self.options.retries > self.tries).then(Vec::new);
        self.stretch = (self.rate != 1.0).then(|| TimeStretch::new(sample_rate, self.rate));
        plan.follows(self.playback.left(self.born.elapsed()).saturating_sub(AHEAD));
        self.shared.ledger.open_request(plan, RequestKind::Speech, Arc::clone(&self.place), Arc::clone(&self.expired))
    }

    /// After a piece has been made: the following pieces get the voice that spoke it.
    pub fn keep_voice(&mut self, text: &str) {
        let Some(log) = self.codes.take() else { return };
        let codes = log.lock().unwrap_or_else(PoisonError::into_inner);
        if let (FamilyPlanner::Tts(planner), SpeechVoice::Tts(voice)) =
            (&self.shared.planner.family, &self.options.voice)
            && (voice.may_change() || self.whole && voice.goes_on())
            && let Some(voice) = planner.continued(voice, text, &codes, self.shared.planner.common.frame)
        {
            self.options.voice = SpeechVoice::Tts(voice);
        }
    }

    /// Silence before the next piece, or at the end: exactly so many samples. What is around it fades.
    pub async fn pause(&mut self, samples: usize) -> Result<(), Stop> {
        if !self.started {
            self.lead += samples;
            return Ok(());
        }
        let fade = self.shared.info.fade_in.as_secs_f64() * f64::from(self.shared.info.sample_rate);
        let end = self.crossfade.silence(fade.round() as usize);
        self.between = false;
        self.audio(end, Frames(0)).await?;
        let mut left = samples;
        while left > 0 {
            let part = left.min(SILENCE);
            self.audio(vec![0.0; part], Frames(0)).await?;
            left -= part;
        }
        Ok(())
    }

    /// Whether anything of the answer has been sent.
    pub fn has_started(&self) -> bool {
        self.started
    }

    /// Passes an event of the current piece on; `false` when that was its last.
    pub async fn pass_on(&mut self, event: Option<Event>) -> Result<bool, Stop> {
        match event {
            Some(Event::Finished { reason, .. }) if self.goes_astray(reason) => Ok(false),
            Some(Event::Finished { reason, usage }) => {
                self.let_go().await?;
                if let Some(stretch) = self.stretch.take() {
                    self.sound(&stretch.finish(), Frames(0)).await?;
                }
                self.usage.prompt_tokens += usage.prompt_tokens;
                self.usage.text_tokens += usage.text_tokens;
                self.usage.frames.0 += usage.frames.0;
                let left = &mut self.options.frames_left.0;
                *left = left.saturating_sub(usage.frames.0);
                if reason != FinishReason::Stop {
                    self.reason = reason;
                }
                // The same request seed must not make every piece draw the same numbers.
                let tries = u64::from(std::mem::take(&mut self.tries));
                self.options.seed = self.options.seed.wrapping_sub(tries.wrapping_mul(ANEW)).wrapping_add(1);
                self.between = true;
                let words = self.words.as_mut().map(WordTimes::finish);
                self.tell_words(words).await?;
                Ok(false)
            }
            Some(Event::Failed(error)) => Err(Stop::Failed(error)),
            None => Err(Stop::Failed(RequestError::ShuttingDown)),
            Some(Event::Audio(chunk)) => {
                match &mut self.held {
                    None => self.spoken(chunk).await?,
                    Some(held) => {
                        held.push(chunk);
                        if held.iter().map(|chunk| chunk.frames.0).sum::<u32>() > HELD {
                            self.let_go().await?;
                        }
                    }
                }
                Ok(true)
            }
            Some(Event::Started { .. }) if self.started => Ok(true),
            Some(event) => {
                self.started = true;
                self.tell(event).await?;
                match std::mem::take(&mut self.lead) {
                    0 => {}
                    lead => self.pause(lead).await?,
                }
                Ok(true)
            }
        }
    }

    /// Whether a piece that ended like this is made anew: nothing of it has been sent, and it may be tried again. The next
    /// try draws other numbers, which the seed of the request decides.
    fn goes_astray(&mut self, reason: FinishReason) -> bool {
        if !reason.is_astray() || self.held.take().is_none() {
            return false;
        }
        speech_anew();
        self.tries += 1;
        self.options.seed = self.options.seed.wrapping_add(ANEW);
        true
    }

    /// Whether the piece that has just ended is to be made anew.
    pub fn tries_again(&self) -> bool {
        self.tries > 0
    }

    /// Sends what was held of the current piece; the rest of it is not held.
    async fn let_go(&mut self) -> Result<(), Stop> {
        for chunk in self.held.take().unwrap_or_default() {
            self.spoken(chunk).await?;
        }
        Ok(())
    }

    /// A chunk of the current piece.
    async fn spoken(&mut self, AudioChunk { samples, frames }: AudioChunk) -> Result<(), Stop> {
        let words = self.words.as_mut().map(|words| words.hear(&samples));
        self.tell_words(words).await?;
        match self.stretch.as_mut().map(|stretch| stretch.push(&samples)) {
            None => self.sound(&samples, frames).await,
            Some(stretched) => self.sound(&stretched, frames).await,
        }
    }

    /// Samples of the current piece, at its rate.
    async fn sound(&mut self, samples: &[f32], frames: Frames) -> Result<(), Stop> {
        let mut ready = if std::mem::take(&mut self.between) { self.crossfade.border() } else { Vec::new() };
        ready.extend(self.crossfade.push(samples));
        self.audio(ready, frames).await
    }

    async fn audio(&mut self, samples: Vec<f32>, frames: Frames) -> Result<(), Stop> {
        if samples.is_empty() {
            return Ok(());
        }
        let seconds = samples.len() as f64 / f64::from(self.shared.info.sample_rate);
        self.playback.chunk(self.born.elapsed(), Duration::from_secs_f64(seconds));
        self.tell(Event::Audio(AudioChunk { samples: samples.into(), frames })).await
    }

    /// Behind the last sound: the words that are still looked for.
    async fn settle_words(&mut self) -> Result<(), Stop> {
        let Some(words) = &mut self.words else { return Ok(()) };
        let (words, failure) = words.settle().await;
        self.tell_words(Some(words)).await?;
        failure.map_or(Ok(()), |reason| Err(RequestError::Internal(words_missing(&reason)).into()))
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

fn words_missing(reason: &str) -> String {
    format!("the speech is complete, but the times of some of its words are not known: {reason}")
}

/// Text that cannot be spoken, in a request that was accepted before the text came.
pub(super) fn refused(error: SubmitError) -> RequestError {
    match error {
        SubmitError::Internal(reason) => RequestError::Internal(reason),
        other => RequestError::Refused(other.to_string()),
    }
}
