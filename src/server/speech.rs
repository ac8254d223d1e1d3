//! `POST /v1/audio/speech`: speaks a text as it is; `GET /v1/audio/speech/{id}`: the same answer once more.

use super::api::Fields;
use super::api::speech::{SpeechEvent, SpeechObject, SpeechUsage, SpokenWord};
use super::auth::Caller;
use super::body::{parse_object, read_object};
use super::budget::Held;
use super::error::ApiError;
use super::kept::Running;
use super::reference::References;
use super::response::{Answer, Piece, Whole, ends, note_ignored, room, whole};
use super::resume::{Cut, Position};
use super::speech_request::{Delivery, parse};
use super::sse;
use super::state::App;
use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures::stream;
use omni_audio::{AudioFormat, AudioWriter};
use omni_config::format_duration;
use omni_engine::{FinishReason, Usage};
use omni_telemetry::HttpMetrics;
use serde_json::{Map, Value};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// The handler.
pub(super) async fn speech(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    let asked = Asked::of(&request);
    let (body, held) = read_object(&app, request).await?;
    answer(app, caller, asked, body, held, None).await
}

/// The same request once more, by the name of its answer.
pub(super) async fn again(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    let asked = Asked::of(&request);
    let found = id.parse().ok().and_then(|id| app.kept.find(id, caller.owner()));
    let (request, kept) = found.ok_or_else(|| not_kept(&app))?;
    let (body, held) = parse_object(request, app.json, Held::nothing(&app.budget)).await?;
    answer(app, caller, asked, body, held, Some(kept)).await
}

fn not_kept(app: &App) -> ApiError {
    let kept = format_duration(app.kept.lifetime());
    let message = format!(
        "this server has no such answer; it keeps the requests of answers for {kept} (server.answers_kept) and not over a \
         restart: send the request again, with the seed that X-Seed told and what you have"
    );
    ApiError::new(StatusCode::NOT_FOUND, "answer_not_found", message)
}

/// What matters of a request beside its body.
struct Asked {
    /// They say from where on.
    headers: HeaderMap,
    ends: Option<CancellationToken>,
}

impl Asked {
    fn of(request: &Request) -> Asked {
        Asked { headers: request.headers().clone(), ends: ends(request) }
    }
}

/// Answers a request, which is in the budget as `held`. `kept` is there if it was kept already.
async fn answer(
    app: Arc<App>,
    caller: Caller,
    asked: Asked,
    mut body: Map<String, Value>,
    held: Held,
    kept: Option<Running>,
) -> Result<Response, ApiError> {
    let ends = asked.ends;
    let app = app.chosen(Fields::top(&body)).await?;
    let mut references = References::new(&app.references, &app.budget);
    let mut call = parse(&app, Fields::top(&body), &mut references).await?;
    let recording_held = references.held();
    drop(references);
    let position = Position::read(&asked.headers, &call)?;
    let recording = app.record(call.trace)?;
    call.request.params.options.tenant = caller.tenant;
    let (sample_rate, words) = (app.service.info().sample_rate, call.request.params.words);
    let writer = app.writer(call.sound)?;
    let owner = caller.owner();
    let answer = Answer::begin(app.service.speak(call.request).await?, caller, sample_rate).await?.recorded(recording);
    body.insert("seed".to_owned(), answer.seed.into());
    let answer = answer.kept(kept.or_else(|| app.kept.keep(owner, &body)));
    drop((body, held, recording_held));
    if let Some(by) = position.given_as(call.sound.start) {
        HttpMetrics::resumed(by);
    }
    let headers = headers(&answer, writer.sample_rate(), &call.ignored);
    let content_type = call.sound.content_type(sample_rate);
    let format = call.sound.format;
    let (length, response) = match call.delivery {
        Delivery::Whole if words => {
            let rate = writer.sample_rate();
            (None, object(whole(&app, answer, writer).await?, format, &content_type, rate, ends).await?)
        }
        Delivery::Whole => {
            let whole = whole(&app, answer, writer).await?;
            let length = whole.file.len() as u64;
            position.within(length)?;
            let from = usize::try_from(position.byte()).unwrap_or(usize::MAX).min(whole.file.len());
            let rest = whole.held.guard(whole.file, ends).slice(from..);
            (Some(length), audio_body(format, &content_type, rest.into()))
        }
        Delivery::Raw => {
            let pieces = Encoded::begin(answer, writer, position).await?;
            (None, audio_body(format, &content_type, raw_body(pieces)))
        }
        Delivery::Events => {
            let pieces = Encoded::begin(answer, writer, position).await?;
            (None, sse::response(events(pieces, format)))
        }
    };
    let (status, range) = position.head(length);
    Ok((status, headers, range, response).into_response())
}

fn headers(answer: &Answer, sample_rate: u32, ignored: &[String]) -> HeaderMap {
    let mut headers = answer.headers();
    headers.insert(HeaderName::from_static("x-sample-rate"), HeaderValue::from(sample_rate));
    note_ignored(&mut headers, ignored);
    headers
}

/// A body with the type of its format, and a name for clients that save it.
fn audio_body(format: AudioFormat, content_type: &str, body: Body) -> Response {
    let mut response = body.into_response();
    let name = format!("inline; filename=\"speech.{}\"", format.as_str());
    // Both consist of constants and numbers, which a header can carry.
    for (header, value) in [(header::CONTENT_TYPE, content_type), (header::CONTENT_DISPOSITION, name.as_str())] {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(header, value);
        }
    }
    response
}

/// A whole answer with the times of its words.
async fn object(
    whole: Whole,
    format: AudioFormat,
    media_type: &str,
    sample_rate: u32,
    ends: Option<CancellationToken>,
) -> Result<Response, ApiError> {
    let Whole { file, words, mut held, reason, usage, .. } = whole;
    // The file, the same in base64, and that in JSON.
    room(&mut held, file.capacity() + 2 * (file.len().div_ceil(3) * 4)).await?;
    let object = SpeechObject {
        audio: BASE64_STANDARD.encode(&file),
        response_format: format.as_str(),
        media_type,
        sample_rate,
        words,
        finish_reason: reason.into(),
        usage: usage.into(),
    };
    // A struct of strings and numbers is always JSON.
    let body = held.guard(serde_json::to_vec(&object).unwrap_or_default(), ends);
    Ok(([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response())
}

/// What a streamed answer consists of.
enum Output {
    /// Bytes of the file, never none.
    Bytes(Vec<u8>),
    Word(SpokenWord),
}

/// An answer as the bytes of its format, from a position on.
struct Encoded {
    answer: Answer,
    writer: AudioWriter,
    cut: Cut,
    /// What came up to the first bytes that have been waited for.
    first: VecDeque<Output>,
    /// Set when the last bytes have been given.
    end: Option<(FinishReason, Usage)>,
}

impl Encoded {
    /// An answer that goes on is waited for up to its position, so that one beyond the end is still an HTTP status.
    async fn begin(answer: Answer, writer: AudioWriter, position: Position) -> Result<Encoded, ApiError> {
        let goes_on = writer.start() > 0 || position != Position::Start;
        let mut pieces = Encoded { answer, writer, cut: Cut::new(position), first: VecDeque::new(), end: None };
        let mut first = VecDeque::new();
        while goes_on && !matches!(first.back(), Some(Output::Bytes(_))) {
            let Some(output) = pieces.next().await? else { break };
            first.push_back(output);
        }
        Ok(Encoded { first, ..pieces })
    }

    /// What comes next. `None` is the end.
    async fn next(&mut self) -> Result<Option<Output>, ApiError> {
        if let Some(first) = self.first.pop_front() {
            return Ok(Some(first));
        }
        while self.end.is_none() {
            let bytes = match self.answer.next().await? {
                Piece::Audio(chunk) => self.writer.push(&chunk.samples)?,
                Piece::Word(word) => match SpokenWord::heard(word, &self.writer) {
                    Some(word) => return Ok(Some(Output::Word(word))),
                    None => continue,
                },
                Piece::Text(_) => continue,
                Piece::Finished { reason, usage } => {
                    self.end = Some((reason, usage));
                    self.writer.finish()?
                }
            };
            let bytes = self.cut.rest(bytes);
            if self.end.is_some() {
                self.cut.end()?;
            }
            if !bytes.is_empty() {
                return Ok(Some(Output::Bytes(bytes)));
            }
        }
        Ok(None)
    }
}

/// Chunked. A failure half way is an error of the body: the connection breaks, so that no client takes half for whole.
fn raw_body(pieces: Encoded) -> Body {
    Body::from_stream(stream::try_unfold(pieces, |mut pieces| async move {
        loop {
            match pieces.next().await {
                Ok(Some(Output::Bytes(bytes))) => return Ok(Some((Bytes::from(bytes), pieces))),
                // Bare bytes have no place for words, and no request gets here that asks for them.
                Ok(Some(Output::Word(_))) => {}
                Ok(None) => return Ok(None),
                Err(error) => return Err(std::io::Error::other(error.message)),
            }
        }
    }))
}

/// `speech.audio.delta` ... `speech.audio.done`; or `error`, and then nothing more.
fn events(pieces: Encoded, format: AudioFormat) -> impl futures::Stream<Item = Result<Event, axum::Error>> + Send {
    stream::unfold(Some(pieces), move |state| async move {
        let mut pieces = state?;
        let (event, over) = match pieces.next().await {
            Ok(Some(Output::Word(word))) => (sse::event(&SpeechEvent::Word(word)), false),
            Ok(Some(Output::Bytes(bytes))) => {
                (event(&SpeechEvent::Delta { audio: BASE64_STANDARD.encode(bytes) }, &pieces, format), false)
            }
            Ok(None) => {
                let (reason, usage) = pieces.end.unwrap_or((FinishReason::Stop, Usage::default()));
                let done = SpeechEvent::Done { finish_reason: reason.into(), usage: SpeechUsage::from(usage) };
                (event(&done, &pieces, format), true)
            }
            Err(error) => (sse::event(&SpeechEvent::Error { error: error.object() }), true),
        };
        Some((event, (!over).then_some(pieces)))
    })
}

/// An event that a client can go on behind, where the format allows it.
fn event(event: &SpeechEvent<'_>, pieces: &Encoded, format: AudioFormat) -> Result<Event, axum::Error> {
    if format.is_reproducible() { sse::event_of_file(event, pieces.cut.length()) } else { sse::event(event) }
}
