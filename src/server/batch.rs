//! `POST /v1/audio/speech/batch`: several texts in one request, each answered by a file or by what was wrong with it.

use super::app::App;
use super::auth::caller;
use super::body::read_object;
use super::error::ApiError;
use super::fields::{Fields, kind};
use super::reference::References;
use super::response::{Answer, note_ignored};
use super::speech::{usage_object, whole};
use super::speech_request::{SpeechCall, parse};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures::{StreamExt, stream};
use omni_engine::{ResponseStream, Slo, SpeechRequest, SubmitError, TextSource, Usage};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Most items of a batch.
const MAX_ITEMS: usize = 32;
/// Shortest and longest wait for a place among the requests in flight.
const WAIT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Why nothing of a batch is traced: there is no header to tell of each.
const NOT_TRACED: &str = "a batch is not traced; send the request by itself";

/// The handler.
pub(super) async fn batch(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let tenant = caller(&request);
    let (body, _held) = read_object(&app, request).await?;
    let (defaults, items) = items(&app, body)?;
    let deadline = Instant::now() + app.limits.request_timeout;
    let mut references = References::new(&app.references);
    let mut calls = Vec::with_capacity(items.len());
    let mut ignored = BTreeSet::new();
    for item in items {
        // One at a time: a recording for all of them would be there for each.
        let mut call = parse(&app, &merged(&defaults, item), &mut references).await;
        if let Ok(call) = &mut call {
            // Nobody listens to a batch.
            call.request.params.options.slo = Slo::BestEffort;
            call.request.params.options.tenant = tenant;
        }
        ignored.extend(call.iter().flat_map(|call| call.ignored.iter().cloned()));
        calls.push(call);
    }
    drop((defaults, references));
    // Half of the places at most, so that others get through.
    let at_once = (app.limits.max_requests / 2).max(1);
    let speak = |call| speak(&app, call, deadline);
    let answers: Vec<_> = stream::iter(calls).map(speak).buffered(at_once).collect().await;
    // Nothing that the client wrote is at fault: it should try again.
    if let Some(Err(error)) = answers.first()
        && answers.iter().all(|answer| answer.as_ref().is_err_and(ApiError::is_passing))
    {
        return Err(error.clone());
    }
    let succeeded = answers.iter().filter(|answer| answer.is_ok()).count();
    let results: Vec<Value> = answers.iter().enumerate().map(|(index, answer)| result(index, answer)).collect();
    let number = app.batches.fetch_add(1, Ordering::Relaxed);
    let body = json!({
        "id": format!("speech-batch-{}-{number}", app.started),
        "total": results.len(),
        "succeeded": succeeded,
        "failed": results.len() - succeeded,
        "results": results,
    });
    let mut headers = HeaderMap::new();
    note_ignored(&mut headers, &ignored.into_iter().collect::<Vec<_>>());
    Ok((headers, Json(body)).into_response())
}

/// An object of a request.
type Object = Map<String, Value>;

/// What a batch says for all of its items, and the items.
fn items(app: &App, mut body: Object) -> Result<(Object, Vec<Object>), ApiError> {
    let fields = Fields::top(&body);
    app.check_model(fields.string("model")?)?;
    for field in ["stream", "stream_format"] {
        fields.refuse(field, "a batch is answered whole; leave the field out")?;
    }
    fields.refuse("trace", NOT_TRACED)?;
    let missing = || fields.missing("items", "an array of objects, each with its own input");
    let found = fields.array("items")?.ok_or_else(missing)?.len();
    if found == 0 || found > MAX_ITEMS {
        return Err(fields.invalid("items", format_args!("has {found} entries; expected 1 to {MAX_ITEMS}")));
    }
    let Some(Value::Array(values)) = body.remove("items") else { return Ok((body, Vec::new())) };
    // A text of the batch is nobody's.
    body.remove("input");
    let item = |(index, value)| match value {
        Value::Object(item) => {
            Fields::top(&item).refuse("trace", NOT_TRACED)?;
            Ok(item)
        }
        other => {
            let name = format!("items[{index}]");
            let message = format!("{name}: expected an object, found {}", kind(&other));
            Err(ApiError { code: "invalid_type", ..ApiError::invalid(name, message) })
        }
    };
    let items = values.into_iter().enumerate().map(item).collect::<Result<_, _>>()?;
    Ok((body, items))
}

/// An item as a request of its own: what it says, and for the rest what the batch says.
fn merged(defaults: &Object, item: Object) -> Object {
    let mut merged = defaults.clone();
    merged.extend(item.into_iter().filter(|(_, value)| !value.is_null()));
    merged
}

/// A file, and how it came about.
struct Spoken {
    file: Vec<u8>,
    media_type: &'static str,
    usage: Usage,
    seed: u64,
}

async fn speak(app: &App, call: Result<SpeechCall, ApiError>, deadline: Instant) -> Result<Spoken, ApiError> {
    let SpeechCall { request, sound, .. } = call?;
    let writer = sound.writer(app.service.info().sample_rate)?;
    let answer = Answer::begin(admitted(app, request, deadline).await?).await?;
    let seed = answer.seed;
    let (file, usage) = whole(answer, writer).await?;
    Ok(Spoken { file, media_type: sound.format.content_type(), usage, seed })
}

/// Waits for a place while others have them all: items of a batch do not fail because of each other.
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

fn result(index: usize, answer: &Result<Spoken, ApiError>) -> Value {
    match answer {
        Ok(spoken) => json!({
            "index": index,
            "status": "success",
            "audio_data": BASE64_STANDARD.encode(&spoken.file),
            "media_type": spoken.media_type,
            "usage": usage_object(spoken.usage),
            "seed": spoken.seed,
        }),
        Err(error) => json!({
            "index": index,
            "status": "error",
            "error": error.message,
            "code": error.code,
            "param": error.param,
        }),
    }
}
