//! Speech requests: a text, whole or still arriving, becomes sentences. Each sentence is a request of its own to the
//! stages; a [`Relay`] makes them one stream for the client. The next sentence starts when the one before has been
//! made, which is long before the listener has heard it.

use super::admission::{Permit, Watch};
use super::api::{NO_ALIGNER, RequestError, ResponseStream, SpeechParams, SpeechRequest, SubmitError, TextSource};
use super::incremental;
use super::plan::{FamilyPlanner, Planner, SpeechVoice};
use super::relay::{Relay, Stop, refused};
use super::stream::Expired;
use super::voice::VoiceChoice;
use super::voices::Voiceprint;
use super::words::Words;
use super::{Engine, Shared, caught};
use futures::FutureExt;
use omni_core::align::Aligner;
use omni_core::text::{self, Segmenter};
use omni_telemetry::RequestKind;
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// Events that may wait between a sentence and its reader: hardly any, for the sentence keeps its own.
const RELAY: usize = 2;

/// Longest text that is not cut into pieces, in characters: the largest `speech.max_segment_chars`. The cache of its
/// sequence grows with it.
const MAX_PIECE: usize = 4000;

/// Characters of a first piece that gives its voice to the next ones: some 15 s of speech, as a reference has.
const SPOKEN_REFERENCE: usize = 200;

/// Accepts a speech request.
pub(super) async fn speak(engine: &Engine, request: SpeechRequest) -> Result<ResponseStream, SubmitError> {
    engine.ready().await?;
    let shared = &engine.shared;
    if let TextSource::Whole(text) = &request.text {
        shared.planner.check_length("input", text.chars().count())?;
        check_piece(&request.params, text)?;
    }
    let aligner = aligner(shared, &request.params)?;
    let asked = request.params.options;
    let steady = shared.ordinary.speech(&request, shared.max_segment_chars);
    // Encoding a recording takes long: only accepted requests do it.
    let permit = shared.enter(&asked, (steady, false, true))?;
    let watch = permit.watch();
    let print = voiceprint(shared, &request.params).await?;
    let params = request.params;
    let instructions = params.instructions.as_ref().map_or(0, |text| text.chars().count());
    let plan = move |planner: &Planner| planner.speech_options(&params, print.as_deref());
    let options = shared.plan(instructions, plan).await?;
    let expired = Expired::default();
    let max_chars = if options.ignore_eos { usize::MAX } else { shared.max_segment_chars };
    let mut words = aligner.map(|aligner| Words::new(aligner, shared.info.samples_per_frame));
    let source = match request.text {
        TextSource::Whole(text) => {
            words.iter_mut().for_each(|words| words.wrote(&text));
            let waiting: VecDeque<_> = cut(&text, &options.voice, max_chars).into();
            // What cannot be spoken refuses the request now, not in the middle of it. Each piece is planned when its
            // turn comes; if one is too long for the model, the longest is.
            if let Some(longest) = waiting.iter().max_by_key(|text| text.len()).filter(|_| waiting.len() > 1) {
                shared.planner.speech(longest, &options)?;
            }
            if waiting.len() <= 1 && words.is_none() {
                // One piece needs no relay.
                let text = waiting.front().map_or("", String::as_str);
                let plan = shared.planner.speech(text, &options)?;
                let kind = RequestKind::Speech;
                let stream = shared.ledger.open_request(plan, kind, Some(permit), Arc::clone(&expired));
                return Ok(stream.watched(watch).lasting(asked.life, expired));
            }
            Source::Sentences(Sentences { waiting, segments: Segmenter::new(max_chars), more: None, chars: 0 })
        }
        TextSource::Streamed(pieces) => match (&shared.planner.family, &options.voice) {
            (FamilyPlanner::Tts(_), SpeechVoice::Tts(voice)) if !voice.wants_whole_text() && words.is_none() => {
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
    let mut relay = Relay::new(Arc::clone(shared), options, send, Arc::clone(&expired), permit.watch());
    relay.words = words;
    let listening = gone.clone().drop_guard();
    let (end, ended) = oneshot::channel();
    // A reader that is gone needs no end.
    permit.ends_by(move |error| drop(end.send(error)));
    tokio::spawn(async move {
        tokio::select! {
            () = gone.cancelled() => {}
            () = read(relay, source, permit, ended) => {}
        }
    });
    Ok(ResponseStream::new(events, listening).watched(watch).lasting(asked.life, expired))
}

/// A whole text as what is spoken in one go. Qwen3-TTS reads as much as fits, as its reference does; a thinker that
/// follows a text does so sentence by sentence.
fn cut(text: &str, voice: &SpeechVoice, max_chars: usize) -> Vec<String> {
    match voice {
        SpeechVoice::Omni(_) => text::segments(text, max_chars),
        // The voice of the pieces that follow is that of the first, which they carry along.
        SpeechVoice::Tts(voice) if voice.may_change() => text::pieces(text, SPOKEN_REFERENCE, max_chars),
        SpeechVoice::Tts(_) => text::pieces(text, max_chars, max_chars),
    }
}

/// Refuses a text that is to be spoken in one piece and is longer than any piece.
fn check_piece(params: &SpeechParams, text: &str) -> Result<(), SubmitError> {
    let chars = text.chars().count();
    if !params.ignore_eos || chars <= MAX_PIECE {
        return Ok(());
    }
    let message = format!("{chars} characters are more than the {MAX_PIECE} that ignore_eos speaks in one piece");
    Err(SubmitError::Invalid { param: "input", message })
}

/// What finds the words of a request that asks for them.
fn aligner(shared: &Shared, params: &SpeechParams) -> Result<Option<Arc<dyn Aligner>>, SubmitError> {
    if !params.words {
        return Ok(None);
    }
    let missing = || SubmitError::Invalid { param: "timestamp_granularities", message: NO_ALIGNER.into() };
    shared.aligner.clone().ok_or_else(missing).map(Some)
}

/// The voice that the client gives or has uploaded, encoded; `None` for a speaker of the checkpoint.
async fn voiceprint(shared: &Shared, params: &SpeechParams) -> Result<Option<Arc<Voiceprint>>, SubmitError> {
    let Some(voices) = &shared.voices else { return Ok(None) };
    let tenant = params.options.tenant.id;
    let print = match &params.voice {
        VoiceChoice::Embedding(_) => return Ok(None),
        VoiceChoice::Default => match &shared.info.default_voice {
            Some(name) if voices.has(name) => voices.named(name, tenant).await?,
            _ => return Ok(None),
        },
        VoiceChoice::Named { name, .. } if !voices.has(name) => return Ok(None),
        VoiceChoice::Named { name, x_vector_only } => {
            let print = voices.named(name, tenant).await?;
            if *x_vector_only { Arc::new(Voiceprint { reference: None, ..Voiceprint::clone(&print) }) } else { print }
        }
        VoiceChoice::Clone(recording) => voices.once(recording.clone(), tenant).await?,
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

/// Reads a text to its end, unless its place is taken away before. The permit is held for as long.
async fn read(mut relay: Relay, source: Source, _permit: Permit, ended: oneshot::Receiver<RequestError>) {
    let reading = async {
        match source {
            Source::Sentences(sentences) => read_sentences(&mut relay, sentences).await,
            Source::Incremental(pieces) => incremental::read(&mut relay, pieces).await,
        }
    };
    // A panic in a tokenizer ends this text, and tells its client so.
    let reading = AssertUnwindSafe(reading).catch_unwind().map(|outcome| {
        outcome.unwrap_or_else(|panic| {
            let reason = format!("the text could not be read: {}", caught::text(panic.as_ref()));
            Err(Stop::Failed(RequestError::Internal(reason)))
        })
    });
    let outcome = tokio::select! {
        outcome = reading => outcome,
        Ok(error) = ended => Err(Stop::Failed(error)),
    };
    relay.finish(outcome).await;
}

async fn read_sentences(relay: &mut Relay, mut sentences: Sentences) -> Result<(), Stop> {
    while relay.may_go_on() {
        let Some(text) = sentences.next(&relay.shared, &relay.watch, &mut relay.words).await? else { return Ok(()) };
        let plan = relay.shared.planner.speech(&text, &relay.options).map_err(refused)?;
        let mut sentence = relay.open(plan, Some(&text));
        while relay.pass_on(sentence.next().await).await? {}
        relay.keep_voice(&text);
    }
    Ok(())
}

impl Sentences {
    /// The next one, as soon as it is whole.
    async fn next(
        &mut self,
        shared: &Shared,
        watch: &Watch,
        words: &mut Option<Words>,
    ) -> Result<Option<String>, RequestError> {
        loop {
            if let Some(text) = self.waiting.pop_front() {
                return Ok(Some(text));
            }
            let Some(more) = &self.more else { return Ok(None) };
            watch.waits_for_text();
            // No sentence is being made: if the writer pauses, the listener should hear the words so far.
            match tokio::time::timeout(shared.speech.flush_after, more.recv_async()).await {
                Err(_paused) => self.waiting.extend(self.segments.pause()),
                Ok(Ok(piece)) => {
                    let chars = piece.chars().count();
                    self.chars += chars;
                    watch.wrote(chars);
                    words.iter_mut().for_each(|words| words.wrote(&piece));
                    shared.planner.check_length("input", self.chars).map_err(refused)?;
                    self.waiting.extend(self.segments.push(&piece));
                }
                Ok(Err(flume::RecvError::Disconnected)) => {
                    watch.wrote(0);
                    self.more = None;
                    self.waiting.extend(self.segments.finish());
                }
            }
        }
    }
}
