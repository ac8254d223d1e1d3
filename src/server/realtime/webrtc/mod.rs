//! `POST /v1/realtime/calls`: a session over WebRTC. The offer comes and the answer goes by HTTP; everything else is
//! packets at the one UDP port of all calls.
//!
//! | file | what |
//! | --- | --- |
//! | `calls` | the port, and to which call a packet belongs |
//! | `link` | a call as the way on which a session and its client talk |

mod calls;
mod link;

use super::connection::Connection;
use super::{Begun, begin, no_place};
use crate::auth::Caller;
use crate::body::{MAX_PARTS, parse_object, read_all};
use crate::budget::Held;
use crate::connection::ConnectionGuard;
use crate::error::ApiError;
use crate::secrets::Secret;
use crate::state::App;
use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
pub(crate) use calls::Calls;
use calls::{Entry, Full};
use futures::stream;
use link::CallLink;
use multer::Multipart;
use omni_webrtc::{Call, OfferError};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tracing::{Instrument, debug, debug_span};

/// How long a call that has to end at once may take to say so.
const GOODBYE: Duration = Duration::from_millis(250);

/// The handler: answers an offer.
pub(crate) async fn call(
    State(app): State<Arc<App>>,
    Extension(guard): Extension<ConnectionGuard>,
    Extension(caller): Extension<Caller>,
    secret: Option<Extension<Arc<Secret>>>,
    Query(query): Query<BTreeMap<String, String>>,
    request: Request,
) -> Result<Response, ApiError> {
    let calls = Arc::clone(app.calls.as_ref().ok_or_else(off)?);
    let Asked { offer, session: asked, held } = read(&app, request).await?;
    let most = app.realtime.webrtc.max_sdp_bytes;
    if offer.len() > most {
        let message =
            format!("sdp: has {} bytes; an offer has at most {most} (realtime.webrtc.max_sdp_bytes)", offer.len());
        return Err(ApiError::invalid("sdp", message));
    }
    // What the offer asks for wins over what the secret was made with.
    let mut session = secret.map(|Extension(secret)| secret.session.clone()).unwrap_or_default();
    session.extend(asked);
    let entry = calls.enter(caller.owner()).map_err(|full| full_error(full, &app))?;
    let (app, session) = begin(&app, &query, session, true).await?;
    drop(held);
    let addresses = calls.addresses(guard.address());
    let (call, answer) =
        Call::answer(&offer, &addresses, app.max_body_bytes.min(link::LARGEST), Instant::now().into_std())
            .map_err(refused)?;
    let entry = entry.named(call.name());
    let location = format!("/v1/realtime/calls/{}", entry.id());
    let span = debug_span!("call", id = entry.id());
    tokio::spawn(
        async move {
            let mut serving = std::pin::pin!(serve(app, (call, entry), caller, guard.clone(), session));
            tokio::select! {
                () = &mut serving => return,
                () = guard.closing() => {}
            }
            // The session has seen it too and tells its client.
            let _ = timeout(GOODBYE, serving).await;
        }
        .instrument(span),
    );
    let mut response = Response::new(Body::from(answer));
    *response.status_mut() = StatusCode::CREATED;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/sdp"));
    // Of letters and digits.
    if let Ok(location) = HeaderValue::try_from(location) {
        headers.insert(header::LOCATION, location);
    }
    Ok(response)
}

/// The handler: ends a call.
pub(crate) async fn hang_up(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let calls = app.calls.as_ref().ok_or_else(off)?;
    match calls.hang_up(&id, caller.owner()) {
        true => Ok(StatusCode::OK),
        false => {
            let message = "there is no such call, or it is over";
            Err(ApiError::new(StatusCode::NOT_FOUND, "call_not_found", message))
        }
    }
}

fn off() -> ApiError {
    let message = "this server takes no calls; set realtime.webrtc.listen in its config, or use WS /v1/realtime";
    ApiError::new(StatusCode::NOT_IMPLEMENTED, "webrtc_unavailable", message)
}

fn full_error(full: Full, app: &App) -> ApiError {
    match full {
        Full::Calls => {
            let most = app.realtime.webrtc.max_calls;
            no_place(format!("{most} calls are open already (realtime.webrtc.max_calls)"))
        }
        Full::Closed => {
            let message = "the port of calls is not free yet: the process before this one finishes its own; use WS \
                           /v1/realtime, or try again later";
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "webrtc_unavailable", message)
                .with_retry_after(Duration::from_secs(10))
        }
        Full::NoRandom => ApiError::internal("the system has no random numbers"),
    }
}

fn refused(error: OfferError) -> ApiError {
    match error {
        OfferError::Internal(message) => ApiError::internal(message),
        error => ApiError::invalid("sdp", format!("sdp: {error}")),
    }
}

/// The offer, the fields of the session that came with it, and the part of the budget that they have.
struct Asked {
    offer: String,
    session: Map<String, Value>,
    held: Held,
}

async fn read(app: &App, request: Request) -> Result<Asked, ApiError> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.to_owned();
    let media_type = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match media_type.as_str() {
        "application/sdp" => {
            let (bytes, held) = read_all(app, request).await?;
            Ok(Asked { offer: text(bytes)?, session: Map::new(), held })
        }
        "multipart/form-data" => {
            let (bytes, _held) = read_all(app, request).await?;
            form(app, &kind, bytes).await
        }
        _ => {
            let message =
                "send the offer as application/sdp, or as multipart/form-data with the fields sdp and session";
            Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message))
        }
    }
}

fn text(bytes: Vec<u8>) -> Result<String, ApiError> {
    String::from_utf8(bytes).map_err(|_| ApiError::invalid("sdp", "sdp: is not UTF-8"))
}

/// Beside the part of the budget that the bytes have, what is read of them takes its own.
async fn form(app: &App, kind: &str, bytes: Vec<u8>) -> Result<Asked, ApiError> {
    let bad = |error: multer::Error| ApiError::invalid("sdp", format!("this is not a form: {error}"));
    let boundary = multer::parse_boundary(kind).map_err(bad)?;
    let mut form = Multipart::new(stream::iter([Ok::<_, Infallible>(bytes)]), boundary);
    let (mut offer, mut session, mut held) = (None, Map::new(), Held::nothing(&app.budget));
    let mut parts = 0;
    while let Some(field) = form.next_field().await.map_err(bad)? {
        parts += 1;
        if parts > MAX_PARTS {
            return Err(ApiError::invalid("sdp", "this is not a form: it has too many parts"));
        }
        let name = field.name().unwrap_or_default().to_owned();
        let content = field.bytes().await.map_err(bad)?;
        match name.as_str() {
            "sdp" => offer = Some(content.to_vec()),
            "session" => {
                let parsed = parse_object(content.to_vec(), app.json, held.another()).await;
                (session, held) = parsed.map_err(|error| error.with_param("session"))?;
            }
            // Others mean nothing here.
            _ => {}
        }
    }
    let offer = offer.ok_or_else(|| ApiError::invalid("sdp", "sdp: the form has no such field"))?;
    Ok(Asked { offer: text(offer)?, session, held })
}

async fn serve(
    app: Arc<App>,
    (call, entry): (Call, Entry),
    caller: Caller,
    guard: ConnectionGuard,
    (session, _place): Begun,
) {
    let visit = Arc::clone(&caller.visit);
    let mut connection = Connection::new(Arc::clone(&app), caller, &guard, session);
    let mut link = CallLink::new(app, call, entry, visit);
    let _ = connection.run(&mut link).await;
    debug!("the call is over");
}
