//! `POST /v1/audio/speech/batch`: several texts in one request, each answered by a file or by an error.

use super::api::batch::{BatchAnswer, BatchResult, MAX_ITEMS, NO_WORDS, NOT_CUT, NOT_TRACED, REFUSED};
use super::api::speech::{Model, SpeechUsage};
use super::api::{FieldError, Fields, kind};
use super::auth::Caller;
use super::body::read_object;
use super::budget::Held;
use super::error::ApiError;
use super::reference::References;
use super::response::{Answer, Whole, ends, note_ignored, whole};
use super::speech_request::{SpeechCall, parse};
use super::state::App;
use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures::{StreamExt, stream};
use omni_engine::{LaterReason, ResponseStream, Slo, SpeechRequest, SubmitError, TextSource, Usage};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Shortest and longest wait for a place among the requests in flight.
const WAIT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// The handler.
pub(super) async fn batch(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    let ends = ends(&request);
    let (body, _held) = read_object(&app, request).await?;
    let (defaults, items) = items(&app, body)?;
    let references = Mutex::new(References::new(&app.references, &app.budget));
    let deadline = Instant::now() + app.limits().request_timeout;
    let batch = Batch { app: &app, defaults, references, caller, deadline, ignored: std::sync::Mutex::default() };
    // Half of the places at most, so that other clients get some.
    let at_once = (app.limits().max_requests / 2).max(1);
    let answers: Vec<_> = stream::iter(items).map(|item| batch.speak(item)).buffered(at_once).collect().await;
    let mut headers = HeaderMap::new();
    note_ignored(&mut headers, &batch.ignored());
    drop(batch);
    // The server is at fault and not the request: the client should try again.
    if let Some(Err(error)) = answers.first()
        && answers.iter().all(|answer| answer.as_ref().is_err_and(ApiError::is_passing))
    {
        return Err(error.clone());
    }
    let succeeded = answers.iter().filter(|answer| answer.is_ok()).count();
    let number = app.batches.fetch_add(1, Ordering::Relaxed);
    let head = BatchAnswer {
        id: format!("speech-batch-{}-{number}", app.started),
        total: answers.len(),
        succeeded,
        failed: answers.len() - succeeded,
        results: Vec::new(),
    };
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok((headers, written(&app, &head, answers, ends)).into_response())
}

/// The answer, written result by result, so that each file is in memory once, and is gone when it has left.
fn written(
    app: &App,
    head: &BatchAnswer<'_>,
    answers: Vec<Result<Spoken, ApiError>>,
    ends: Option<CancellationToken>,
) -> Body {
    // Structs of strings and numbers are always JSON.
    let mut head = serde_json::to_vec(head).unwrap_or_default();
    let tail = head.split_off(head.len().saturating_sub(2));
    let unread = Held::nothing(&app.answers).unread(ends);
    let results = answers.into_iter().enumerate().map(move |(index, answer)| {
        let _unread = &unread;
        let mut json = if index == 0 { Vec::new() } else { vec![b','] };
        json.append(&mut serde_json::to_vec(&result(index, &answer)).unwrap_or_default());
        match answer {
            Ok(spoken) => spoken.held.guard(json, None),
            Err(_) => Bytes::from(json),
        }
    });
    let pieces = std::iter::once(Bytes::from(head)).chain(results).chain([Bytes::from(tail)]);
    Body::from_stream(stream::iter(pieces.map(Ok::<_, Infallible>)))
}

/// An object of a request.
type Object = Map<String, Value>;

/// The fields of a batch for all of its items, and the items.
fn items(app: &App, mut body: Object) -> Result<(Object, Vec<Object>), ApiError> {
    let fields = Fields::top(&body);
    app.check_model(fields.read::<Model>()?.model.as_deref())?;
    fields.refuse(REFUSED)?;
    // The items are moved out of the body: they may have megabytes of recordings.
    let values = match body.remove("items") {
        Some(Value::Array(values)) => values,
        None | Some(Value::Null) => {
            return Err(FieldError::missing("items", "an array of objects, each with its own input").into());
        }
        Some(other) => return Err(FieldError::wrong_type("items", "an array", kind(&other)).into()),
    };
    let found = values.len();
    if found == 0 || found > MAX_ITEMS {
        let message = format_args!("has {found} entries; expected 1 to {MAX_ITEMS}");
        return Err(FieldError::invalid("items", message).into());
    }
    // Each item has a text of its own.
    body.remove("input");
    let item = |(index, value)| match value {
        Value::Object(item) => {
            Fields::top(&item).refuse(&[NOT_TRACED, NOT_CUT, NO_WORDS])?;
            Ok(item)
        }
        other => Err(FieldError::wrong_type(format!("items[{index}]"), "an object", kind(&other))),
    };
    let items = values.into_iter().enumerate().map(item).collect::<Result<_, _>>()?;
    Ok((body, items))
}

/// A spoken item.
struct Spoken {
    file: Vec<u8>,
    held: Held,
    media_type: Cow<'static, str>,
    usage: Usage,
    seed: u64,
}

/// What the items of a batch share.
struct Batch<'a> {
    app: &'a Arc<App>,
    /// Fields of the batch, for items that have none of their own.
    defaults: Object,
    references: Mutex<References<'a>>,
    caller: Caller,
    deadline: Instant,
    ignored: std::sync::Mutex<BTreeSet<String>>,
}

impl Batch<'_> {
    /// Plans an item when its turn has come, and speaks it.
    async fn speak(&self, item: Object) -> Result<Spoken, ApiError> {
        let app = &self.app.chosen(Fields::item(&item, &self.defaults)).await?;
        let (call, recording) = self.plan(app, &item).await?;
        drop(item);
        let SpeechCall { request, sound, .. } = call;
        let (caller, sample_rate) = (self.caller.clone(), app.service.info().sample_rate);
        let writer = app.writer(sound)?;
        let stream = admitted(app, &caller, request, self.deadline).await?;
        let answer = Answer::begin(stream, caller, sample_rate).await?;
        drop(recording);
        let seed = answer.seed;
        let Whole { file, held, usage, .. } = whole(app, answer, writer).await?;
        Ok(Spoken { file, held, media_type: sound.content_type(sample_rate), usage, seed })
    }

    /// Reads an item, and its recording when there is room for it.
    async fn plan(&self, app: &App, item: &Object) -> Result<(SpeechCall, Option<Arc<Held>>), ApiError> {
        loop {
            // One at a time, so that a recording of the batch is not in memory once for each item.
            let mut references = self.references.lock().await;
            let call = parse(app, Fields::item(item, &self.defaults), &mut references).await;
            let recording = references.held();
            drop(references);
            match call {
                Ok(mut call) => {
                    self.ignored.lock().unwrap_or_else(PoisonError::into_inner).extend(call.ignored.iter().cloned());
                    // No client listens while a batch is made.
                    call.request.params.options.slo = Slo::BestEffort;
                    call.request.params.options.tenant = self.caller.tenant;
                    return Ok((call, recording));
                }
                Err(error) if error.code == "too_much_input" && Instant::now() + WAIT.1 < self.deadline => {
                    sleep(WAIT.1).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The fields that meant nothing to any item that was read.
    fn ignored(&self) -> Vec<String> {
        self.ignored.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// Waits for a place while there is none: items of a batch must not fail because of each other.
async fn admitted(
    app: &App,
    caller: &Caller,
    request: SpeechRequest,
    deadline: Instant,
) -> Result<ResponseStream, ApiError> {
    let SpeechRequest { text, mut params } = request;
    let TextSource::Whole(text) = text else { return Err(ApiError::internal("a batch has whole texts")) };
    loop {
        // What the items before it spoke counts.
        caller.may_speak()?;
        let request = SpeechRequest { text: TextSource::Whole(text.clone()), params: params.clone() };
        let (retry_after, charged) = match app.service.speak(request).await {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() + WAIT.1 >= deadline => return Err(error.into()),
            Err(SubmitError::Later { reason: LaterReason::OwnRate(_), retry_after }) => (retry_after, false),
            Err(SubmitError::Full { retry_after, .. } | SubmitError::Later { retry_after, .. }) => (retry_after, true),
            Err(error) => return Err(error.into()),
        };
        // It is one request, however often it asks.
        params.options.charged |= charged;
        sleep(retry_after.clamp(WAIT.0, WAIT.1)).await;
    }
}

fn result(index: usize, answer: &Result<Spoken, ApiError>) -> BatchResult<'_> {
    match answer {
        Ok(spoken) => BatchResult::Success {
            index,
            audio_data: BASE64_STANDARD.encode(&spoken.file),
            media_type: &spoken.media_type,
            usage: SpeechUsage::from(spoken.usage),
            seed: spoken.seed,
        },
        Err(error) => {
            BatchResult::Error { index, error: &error.message, code: error.code, param: error.param.as_deref() }
        }
    }
}
