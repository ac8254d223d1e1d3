//! `POST /v1/audio/speech/batch`: several texts in one request, each answered by a file or by an error.

use super::api::batch::{BatchAnswer, BatchResult, MAX_ITEMS, NOT_TRACED, REFUSED};
use super::api::speech::{Model, SpeechUsage};
use super::api::{FieldError, Fields, kind};
use super::auth::Caller;
use super::body::read_object;
use super::error::ApiError;
use super::reference::References;
use super::response::{Answer, note_ignored};
use super::speech::whole;
use super::speech_request::{SpeechCall, parse};
use super::state::App;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures::{StreamExt, stream};
use omni_engine::{ResponseStream, Slo, SpeechRequest, SubmitError, TextSource, Usage};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Shortest and longest wait for a place among the requests in flight.
const WAIT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// The handler.
pub(super) async fn batch(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    let (body, _held) = read_object(&app, request).await?;
    let (defaults, items) = items(&app, body)?;
    let deadline = Instant::now() + app.limits.request_timeout;
    let mut references = References::new(&app.references);
    let mut calls = Vec::with_capacity(items.len());
    let mut ignored = BTreeSet::new();
    for item in items {
        // One at a time, so that a recording of the batch is not in memory once for each item.
        let mut call = parse(&app, &merged(&defaults, item), &mut references).await;
        if let Ok(call) = &mut call {
            // No client listens while a batch is made.
            call.request.params.options.slo = Slo::BestEffort;
            call.request.params.options.tenant = caller.tenant;
        }
        ignored.extend(call.iter().flat_map(|call| call.ignored.iter().cloned()));
        calls.push(call);
    }
    drop((defaults, references));
    // Half of the places at most, so that other clients get some.
    let at_once = (app.limits.max_requests / 2).max(1);
    let speak = |call| speak(&app, &caller, call, deadline);
    let answers: Vec<_> = stream::iter(calls).map(speak).buffered(at_once).collect().await;
    // The server is at fault and not the request: the client should try again.
    if let Some(Err(error)) = answers.first()
        && answers.iter().all(|answer| answer.as_ref().is_err_and(ApiError::is_passing))
    {
        return Err(error.clone());
    }
    let succeeded = answers.iter().filter(|answer| answer.is_ok()).count();
    let results: Vec<BatchResult<'_>> =
        answers.iter().enumerate().map(|(index, answer)| result(index, answer)).collect();
    let number = app.batches.fetch_add(1, Ordering::Relaxed);
    let body = BatchAnswer {
        id: format!("speech-batch-{}-{number}", app.started),
        total: results.len(),
        succeeded,
        failed: results.len() - succeeded,
        results,
    };
    let mut headers = HeaderMap::new();
    note_ignored(&mut headers, &ignored.into_iter().collect::<Vec<_>>());
    Ok((headers, Json(body)).into_response())
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
            Fields::top(&item).refuse(&[NOT_TRACED])?;
            Ok(item)
        }
        other => Err(FieldError::wrong_type(format!("items[{index}]"), "an object", kind(&other))),
    };
    let items = values.into_iter().enumerate().map(item).collect::<Result<_, _>>()?;
    Ok((body, items))
}

/// An item as a request of its own: its fields, and for the others those of the batch.
fn merged(defaults: &Object, item: Object) -> Object {
    let mut merged = defaults.clone();
    merged.extend(item.into_iter().filter(|(_, value)| !value.is_null()));
    merged
}

/// A spoken item.
struct Spoken {
    file: Vec<u8>,
    media_type: &'static str,
    usage: Usage,
    seed: u64,
}

async fn speak(
    app: &App,
    caller: &Caller,
    call: Result<SpeechCall, ApiError>,
    deadline: Instant,
) -> Result<Spoken, ApiError> {
    let SpeechCall { request, sound, .. } = call?;
    let sample_rate = app.service.info().sample_rate;
    let writer = sound.writer(sample_rate)?;
    let answer = Answer::begin(admitted(app, request, deadline).await?, caller.clone(), sample_rate).await?;
    let seed = answer.seed;
    let (file, usage) = whole(answer, writer).await?;
    Ok(Spoken { file, media_type: sound.format.content_type(), usage, seed })
}

/// Waits for a place while there is none: items of a batch must not fail because of each other.
async fn admitted(app: &App, request: SpeechRequest, deadline: Instant) -> Result<ResponseStream, ApiError> {
    let SpeechRequest { text, params } = request;
    let TextSource::Whole(text) = text else { return Err(ApiError::internal("a batch has whole texts")) };
    loop {
        let request = SpeechRequest { text: TextSource::Whole(text.clone()), params: params.clone() };
        match app.service.speak(request).await {
            Ok(stream) => return Ok(stream),
            Err(SubmitError::Full { retry_after, .. } | SubmitError::Later { retry_after, .. })
                if Instant::now() + WAIT.1 < deadline =>
            {
                sleep(retry_after.clamp(WAIT.0, WAIT.1)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn result(index: usize, answer: &Result<Spoken, ApiError>) -> BatchResult<'_> {
    match answer {
        Ok(spoken) => BatchResult::Success {
            index,
            audio_data: BASE64_STANDARD.encode(&spoken.file),
            media_type: spoken.media_type,
            usage: SpeechUsage::from(spoken.usage),
            seed: spoken.seed,
        },
        Err(error) => {
            BatchResult::Error { index, error: &error.message, code: error.code, param: error.param.as_deref() }
        }
    }
}
