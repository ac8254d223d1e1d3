//! The events of a request as the routes need them. A route sends nothing before the first event with content, so that
//! a failure until then is still an HTTP status.

use super::api::speech::SpokenWord;
use super::auth::Caller;
use super::budget::Held;
use super::connection::ConnectionGuard;
use super::error::ApiError;
use super::kept::Running;
use super::state::App;
use super::traces::Recording;
use super::visit::REQUEST_ID;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use omni_audio::AudioWriter;
use omni_config::format_duration;
use omni_core::ids::RequestId;
use omni_engine::{AudioChunk, Event, FinishReason, ResponseStream, Usage, WordTime};
use tokio_util::sync::CancellationToken;

/// Below which path answers that are kept have their names.
const ANSWERS: &str = "/v1/audio/speech/";

/// One event with content.
#[derive(Debug)]
pub(super) enum Piece {
    Text(String),
    Audio(AudioChunk),
    Word(WordTime),
    Finished { reason: FinishReason, usage: Usage },
}

/// An accepted request whose first piece is there. Dropping it aborts the request.
#[derive(Debug)]
pub(super) struct Answer {
    pub id: RequestId,
    pub seed: u64,
    first: Option<Piece>,
    rest: ResponseStream,
    /// For whom its speech counts.
    caller: Caller,
    sample_rate: u32,
    /// The trace of this request, which ends with the answer.
    recording: Option<Recording>,
    /// Keeps its request, if it can be asked for again.
    kept: Option<Running>,
}

impl Answer {
    /// Waits for the first piece.
    pub async fn begin(mut stream: ResponseStream, caller: Caller, sample_rate: u32) -> Result<Answer, ApiError> {
        let (id, seed) = match stream.next().await {
            Some(Event::Started { id, seed }) => (id, seed),
            Some(Event::Failed(error)) => return Err(error.into()),
            _ => return Err(ended_early()),
        };
        caller.visit.leads_to(id);
        let mut answer =
            Answer { id, seed, first: None, rest: stream, caller, sample_rate, recording: None, kept: None };
        answer.first = Some(answer.next().await?);
        Ok(answer)
    }

    /// Ends a recording with the answer.
    pub fn recorded(self, recording: Option<Recording>) -> Answer {
        Answer { recording, ..self }
    }

    /// Lets it be asked for again under a name.
    pub fn kept(self, kept: Option<Running>) -> Answer {
        Answer { kept, ..self }
    }

    /// The next piece. Not to be called again after [`Piece::Finished`] or an error.
    pub async fn next(&mut self) -> Result<Piece, ApiError> {
        if let Some(first) = self.first.take() {
            return Ok(first);
        }
        match self.rest.next().await {
            Some(Event::Text(text)) => Ok(Piece::Text(text)),
            Some(Event::Audio(chunk)) => {
                self.caller.spoke(chunk.samples.len(), self.sample_rate);
                Ok(Piece::Audio(chunk))
            }
            Some(Event::Word(word)) => Ok(Piece::Word(word)),
            Some(Event::Finished { reason, usage }) => Ok(Piece::Finished { reason, usage }),
            Some(Event::Failed(error)) => Err(error.into()),
            Some(Event::Started { .. }) | None => Err(ended_early()),
        }
    }

    /// Headers that every answer carries: its name, the seed that makes it again, and where it can be had again.
    pub fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let id = self.id.to_string();
        if let Ok(id) = HeaderValue::from_str(&id) {
            headers.insert(REQUEST_ID, id);
        }
        headers.insert(HeaderName::from_static("x-seed"), HeaderValue::from(self.seed));
        let path = self.recording.as_ref().map(Recording::path);
        if let Some(Ok(path)) = path.map(|path| HeaderValue::from_str(&path)) {
            headers.insert(HeaderName::from_static("x-trace"), path);
        }
        let path = self.kept.as_ref().map(|kept| format!("{ANSWERS}{}", kept.id));
        if let Some(Ok(path)) = path.map(|path| HeaderValue::from_str(&path)) {
            headers.insert(header::CONTENT_LOCATION, path);
        }
        headers
    }
}

/// An answer in one piece.
pub(super) struct Whole {
    pub text: String,
    /// The file of its speech.
    pub file: Vec<u8>,
    /// Its words, where they were asked for.
    pub words: Vec<SpokenWord>,
    /// The part of the budget for text and file.
    pub held: Held,
    pub reason: FinishReason,
    pub usage: Usage,
}

/// Waits for an answer to its end, within the limits on its speech and on the bytes of all answers.
pub(super) async fn whole(app: &App, mut answer: Answer, mut writer: AudioWriter) -> Result<Whole, ApiError> {
    let most = app.limits().max_whole_audio;
    let most_samples = (most.as_secs_f64() * f64::from(app.service.info().sample_rate)) as u64;
    let (mut text, mut file, mut held) = (String::new(), Vec::new(), Held::nothing(&app.answers));
    // No more than the text of the request has.
    let mut words = Vec::new();
    let (reason, usage) = loop {
        match answer.next().await? {
            Piece::Text(delta) => {
                room(&mut held, file.capacity() + text.len() + delta.len()).await?;
                text.push_str(&delta);
            }
            Piece::Word(word) => words.extend(SpokenWord::heard(word, &writer)),
            Piece::Audio(chunk) => {
                let mut bytes = writer.push(&chunk.samples)?;
                if writer.heard() > most_samples {
                    let message = format!(
                        "the speech is longer than {} (limits.max_whole_audio), too long for an answer in one piece; \
                         ask for a stream, or speak the text in parts",
                        format_duration(most)
                    );
                    return Err(ApiError::new(StatusCode::BAD_REQUEST, "answer_too_long", message));
                }
                room(&mut held, file.capacity() + text.len() + writer.waiting_bytes()).await?;
                let total = file.len() + bytes.len();
                if file.capacity() < total {
                    // A quarter more than is needed, so that it seldom grows.
                    let wanted = total + total / 4;
                    room(&mut held, wanted + text.len()).await?;
                    file.reserve_exact(wanted - file.len());
                }
                file.append(&mut bytes);
            }
            Piece::Finished { reason, usage } => break (reason, usage),
        }
    };
    let file = if writer.waiting_bytes() == 0 {
        writer.complete(&mut file)?;
        file
    } else {
        // Minutes of speech are measured and encoded at once: that is no work for a thread that serves connections.
        let complete = move || writer.complete(&mut file).map(|()| file);
        let done = tokio::task::spawn_blocking(complete).await;
        done.map_err(|_| ApiError::internal("the answer could not be encoded"))??
    };
    Ok(Whole { text, file, words, held, reason, usage })
}

/// Makes a part of the budget of answers as large as this.
pub(super) async fn room(held: &mut Held, bytes: usize) -> Result<(), ApiError> {
    let more = bytes.saturating_sub(held.bytes());
    if held.take_patiently(more).await { Ok(()) } else { Err(held.exhausted()) }
}

/// What ends the connection of a request, where its client reads the answer too slowly.
pub(super) fn ends(request: &Request) -> Option<CancellationToken> {
    request.extensions().get::<ConnectionGuard>().map(|guard| guard.activity().ended.clone())
}

fn ended_early() -> ApiError {
    ApiError::internal("the answer ended before it was complete")
}

/// Lists the fields that the server does not know, so that a typo can be found.
pub(super) fn note_ignored(headers: &mut HeaderMap, ignored: &[String]) {
    // Names come from the client: only what a header can carry, and not too many.
    let plain = |name: &&String| name.bytes().all(|byte| byte.is_ascii_graphic()) && name.len() <= 64;
    let names: Vec<&str> = ignored.iter().filter(plain).take(16).map(String::as_str).collect();
    if let Ok(value) = HeaderValue::from_str(&names.join(", "))
        && !names.is_empty()
    {
        headers.insert(HeaderName::from_static("x-ignored-fields"), value);
    }
}
