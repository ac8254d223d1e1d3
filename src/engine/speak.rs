//! Speech requests: a text, whole or still arriving, becomes sentences. Each sentence is a request of its own to the
//! stages; a [`Relay`] makes them one stream for the client. The next sentence starts when the one before has been
//! made, which is long before the listener has heard it.

use super::admission::{Permit, Watch};
use super::api::{NO_ALIGNER, RequestError, ResponseStream, SpeechParams, SpeechRequest, SubmitError, TextSource};
use super::incremental;
use super::plan::{FamilyPlanner, Planner, RequestPlan, SpeechOptions, SpeechVoice};
use super::relay::{Relay, Stop, refused};
use super::script::{Item, Piece, Script, Words};
use super::speakers::{Speakers, voiceprint};
use super::stream::Expired;
use super::words::{WordFinder, WordTimes};
use super::{Engine, Shared, caught};
use futures::FutureExt;
use omni_core::text;
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
    }
    let params = &request.params;
    check_wording(params)?;
    let aligner = aligner(shared, params)?;
    let said = shared.words(params.pronunciations.as_deref());
    let markup = params.markup;
    // What is wrong with the text refuses the request before it has a place.
    let mut script = match &request.text {
        TextSource::Whole(text) => {
            let script = Script::whole(text, markup, said.clone());
            let script = script.map_err(|message| SubmitError::Invalid { param: "input", message })?;
            check_piece(params.ignore_eos, script.chars())?;
            Some(script)
        }
        TextSource::Streamed(_) => None,
    };
    let asked = request.params.options;
    let steady = shared.ordinary.speech(&request, shared.max_segment_chars);
    // Encoding a recording takes long: only accepted requests do it.
    let permit = shared.enter(&asked, (steady, false, true))?;
    let watch = permit.watch();
    let print = voiceprint(shared, &request.params).await?;
    let params = request.params;
    let template = params.clone();
    let instructions = params.instructions.as_ref().map_or(0, |text| text.chars().count());
    let plan = move |planner: &Planner| planner.speech_options(&params, print.as_deref());
    let options = shared.plan(instructions, plan).await?;
    let mut speakers = Speakers::of(template, options.voice.clone());
    let expired = Expired::default();
    let max_chars = if options.ignore_eos { usize::MAX } else { shared.max_segment_chars };
    let mut words =
        aligner.map(|finder| WordTimes::new(finder, shared.info.sample_rate, shared.info.samples_per_frame));
    let source = match request.text {
        TextSource::Whole(text) => {
            words.iter_mut().for_each(|words| words.wrote(&text));
            let mut waiting = VecDeque::new();
            if let Some(script) = &mut script {
                speakers.add(shared, script.voices()).await?;
                while let Some(item) = script.next() {
                    waiting.extend(cut(item, &speakers, max_chars));
                }
            }
            match first_of(shared, &waiting, &speakers, &options, (markup.is_some(), words.is_some()))? {
                // One piece needs no relay.
                Some(plan) => {
                    let kind = RequestKind::Speech;
                    let stream = shared.ledger.open_request(plan, kind, permit, Arc::clone(&expired));
                    return Ok(stream.watched(watch).lasting(asked.life, expired));
                }
                None => Sentences { waiting, script: None, speakers, more: None, chars: 0 }.into(),
            }
        }
        TextSource::Streamed(pieces) => match (&shared.planner.family, &options.voice) {
            (FamilyPlanner::Tts(_), SpeechVoice::Tts(voice))
                if markup.is_none() && words.is_none() && !voice.wants_whole_text() =>
            {
                Source::Incremental(pieces, said)
            }
            _ => {
                let script = Some(Script::streamed(markup, said, max_chars));
                Sentences { waiting: VecDeque::new(), script, speakers, more: Some(pieces), chars: 0 }.into()
            }
        },
    };
    let (send, events) = flume::bounded(RELAY);
    let gone = CancellationToken::new();
    let mut relay = Relay::new(Arc::clone(shared), options, send, Arc::clone(&expired), &permit);
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

/// An item as what is spoken in one go. Qwen3-TTS reads as much as fits, as its reference does; a thinker that follows a
/// text does so sentence by sentence.
fn cut(item: Item, speakers: &Speakers, max_chars: usize) -> Vec<Item> {
    let Item::Piece(Piece { text, voice, rate }) = item else { return vec![item] };
    let texts = match speakers.voice(voice) {
        // The voice of the pieces that follow is that of the first, which they carry along.
        Some(SpeechVoice::Tts(voice)) if voice.goes_on() => text::pieces(&text, SPOKEN_REFERENCE, max_chars),
        Some(SpeechVoice::Tts(_)) => text::pieces(&text, max_chars, max_chars),
        Some(SpeechVoice::Omni(_)) | None => text::segments(&text, max_chars),
    };
    texts.into_iter().map(|text| Item::Piece(Piece { text, voice, rate })).collect()
}

/// The plan of a whole text that is one piece; `None` for one that has more, each of which is planned when its turn
/// comes.
///
/// # Errors
/// What cannot be spoken refuses the request now, not in the middle of it: if a piece is too long for the model, the
/// longest is.
fn first_of(
    shared: &Shared,
    items: &VecDeque<Item>,
    speakers: &Speakers,
    options: &SpeechOptions,
    (marked, timed): (bool, bool),
) -> Result<Option<RequestPlan>, SubmitError> {
    let longest = items.iter().filter_map(Item::piece).max_by_key(|piece| piece.text.len());
    match longest {
        None if marked => {
            let message = "there is nothing to speak between the tags".to_owned();
            Err(SubmitError::Invalid { param: "input", message })
        }
        None => shared.planner.speech("", options).map(Some),
        Some(piece) => {
            let alone = items.len() == 1 && piece.rate == 1.0 && options.retries == 0 && !timed;
            let voice = speakers.voice(piece.voice).unwrap_or(&options.voice).clone();
            let plan = shared.planner.speech(&piece.text, &SpeechOptions { voice, ..options.clone() });
            plan.map(|plan| alone.then_some(plan))
        }
    }
}

/// Refuses a text that is to be spoken in one piece and is longer than any piece.
fn check_piece(ignore_eos: bool, chars: usize) -> Result<(), SubmitError> {
    if !ignore_eos || chars <= MAX_PIECE {
        return Ok(());
    }
    let message = format!("{chars} characters are more than the {MAX_PIECE} that ignore_eos speaks in one piece");
    Err(SubmitError::Invalid { param: "input", message })
}

/// Refuses what does not go together.
fn check_wording(params: &SpeechParams) -> Result<(), SubmitError> {
    let refused = |param, message: &str| Err(SubmitError::Invalid { param, message: message.to_owned() });
    match params {
        SpeechParams { markup: Some(_), ignore_eos: true, .. } => {
            refused("markup", "has pieces of its own; leave ignore_eos out")
        }
        SpeechParams { markup: Some(_), words: true, .. } => {
            refused("markup", "changes what is spoken; leave timestamp_granularities out")
        }
        SpeechParams { pronunciations: Some(_), words: true, .. } => {
            refused("pronunciations", "change what is spoken; leave timestamp_granularities out")
        }
        _ => Ok(()),
    }
}

/// What finds the words of a request that asks for them.
fn aligner(shared: &Shared, params: &SpeechParams) -> Result<Option<WordFinder>, SubmitError> {
    if !params.words {
        return Ok(None);
    }
    let missing = || SubmitError::Invalid { param: "timestamp_granularities", message: NO_ALIGNER.into() };
    shared.aligner.clone().ok_or_else(missing).map(Some)
}

enum Source {
    /// Spoken one after the other, each when it is whole.
    Sentences(Box<Sentences>),
    /// Spoken word by word.
    Incremental(flume::Receiver<String>, Words),
}

/// A text as sentences.
struct Sentences {
    waiting: VecDeque<Item>,
    /// Of a text that is still being written.
    script: Option<Script>,
    speakers: Speakers,
    more: Option<flume::Receiver<String>>,
    chars: usize,
}

impl From<Sentences> for Source {
    fn from(sentences: Sentences) -> Source {
        Source::Sentences(Box::new(sentences))
    }
}

/// Reads a text to its end, unless its place is taken away before. The permit is held for as long.
async fn read(mut relay: Relay, source: Source, _permit: Permit, ended: oneshot::Receiver<RequestError>) {
    let reading = async {
        match source {
            Source::Sentences(sentences) => read_sentences(&mut relay, *sentences).await,
            Source::Incremental(pieces, words) => incremental::read(&mut relay, pieces, words).await,
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
    relay.whole = sentences.more.is_none();
    while relay.may_go_on() {
        let Some(item) = sentences.next(&relay.shared, &relay.watch, &mut relay.words).await? else {
            return sentences.check_end(relay);
        };
        let Piece { text, voice, rate } = match item {
            Item::Piece(piece) => piece,
            Item::Pause(pause) => {
                let samples = pause.as_secs_f64() * f64::from(relay.shared.info.sample_rate);
                relay.pause(samples.round() as usize).await?;
                continue;
            }
        };
        sentences.speakers.switch(relay, voice);
        relay.rate = rate;
        loop {
            let plan = relay.shared.planner.speech(&text, &relay.options).map_err(refused)?;
            let mut sentence = relay.open(plan, Some(&text));
            while relay.pass_on(sentence.next().await).await? {}
            if !relay.tries_again() {
                break;
            }
        }
        relay.keep_voice(&text);
    }
    Ok(())
}

impl Sentences {
    /// The next one, as soon as it is whole, when its voice is known.
    async fn next(
        &mut self,
        shared: &Arc<Shared>,
        watch: &Watch,
        words: &mut Option<WordTimes>,
    ) -> Result<Option<Item>, RequestError> {
        // Whether admission believes that its writer keeps it waiting.
        let mut waits = false;
        loop {
            if let Some(item) = self.waiting.pop_front() {
                return Ok(Some(item));
            }
            let Some(script) = &mut self.script else { return Ok(None) };
            if let Some(item) = script.next() {
                if waits {
                    // What is spoken meanwhile waits for nobody: it must not pause in the middle of a word.
                    watch.wrote(0);
                }
                self.speakers.add(shared, script.voices()).await.map_err(refused)?;
                return Ok(Some(item));
            }
            let Some(more) = &self.more else { return Ok(None) };
            watch.waits_for_text();
            // No sentence is being made: if the writer pauses, the listener should hear the words so far.
            let written = tokio::time::timeout(shared.speech.flush_after, more.recv_async()).await;
            waits = written.is_err();
            let read = match written {
                Err(_paused) => script.pause(),
                Ok(Ok(piece)) => {
                    let chars = piece.chars().count();
                    self.chars += chars;
                    watch.wrote(chars);
                    words.iter_mut().for_each(|words| words.wrote(&piece));
                    shared.planner.check_length("input", self.chars).map_err(refused)?;
                    script.push(&piece)
                }
                Ok(Err(flume::RecvError::Disconnected)) => {
                    watch.wrote(0);
                    self.more = None;
                    script.finish()
                }
            };
            read.map_err(RequestError::Refused)?;
        }
    }

    /// Refuses a marked text without words, which has come in pieces.
    fn check_end(&self, relay: &Relay) -> Result<(), Stop> {
        let wordless = self.script.as_ref().is_some_and(Script::is_marked) && !relay.has_started();
        if !wordless {
            return Ok(());
        }
        Err(RequestError::Refused("there is nothing to speak between the tags".to_owned()).into())
    }
}
