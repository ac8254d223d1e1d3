//! `WS /v1/realtime` and `POST /v1/realtime/calls`: OpenAI's realtime protocol. What a session decides is in `omni-realtime`, which knows no socket and
//! no engine; here are the two, and the time.

mod client_secret;
mod connection;
mod link;
mod measured;
mod running;
mod socket;
#[cfg(feature = "webrtc")]
mod webrtc;
#[cfg(not(feature = "webrtc"))]
#[path = "without_webrtc.rs"]
mod webrtc;

use super::auth::Caller;
use super::budget::Held;
use super::connection::ConnectionGuard;
use super::error::ApiError;
use super::reader::Reader;
use super::secrets::Secret;
use super::state::{App, unix_seconds};
use super::ws::{Counted, upgrade};
use super::ws_frames::Decoder;
use super::ws_socket::queue;
use axum::Extension;
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
pub(super) use client_secret::make as make_client_secret;
use connection::Connection;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use omni_realtime::{Abilities, Effect, Limits, Opening, Session};
use serde_json::{Map, Value};
use socket::Socket;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
pub(super) use webrtc::{Calls, call, hang_up};

/// Answers of a session that are made at the same time.
const JOBS: usize = 4;
/// Parts of an item.
const PARTS: usize = 64;
/// When a client for which there is no place may try again. Sessions and calls last minutes: of the 64 that there may
/// be by default one ends every few seconds.
const WAIT: Duration = Duration::from_secs(5);
/// Seeds from 0 to below this are read as they are by every client.
const SEEDS: u64 = 1 << 53;

/// The handler.
pub(super) async fn connect(
    State(app): State<Arc<App>>,
    Extension(guard): Extension<ConnectionGuard>,
    Extension(caller): Extension<Caller>,
    secret: Option<Extension<Arc<Secret>>>,
    Query(query): Query<BTreeMap<String, String>>,
    request: Request,
) -> Result<Response, ApiError> {
    let session = secret.map(|Extension(secret)| secret.session.clone()).unwrap_or_default();
    let (app, session) = begin(&app, &query, session, false).await?;
    upgrade(request, guard, move |socket, guard| serve(app, socket, caller, guard, session))
}

/// A session, its first effects, and its place among those that are open.
type Begun = ((Session, Vec<Effect>), OwnedSemaphorePermit);

/// Begins a session with these fields of `session.update`. `plays`: whether it is a call.
async fn begin(
    app: &Arc<App>,
    query: &BTreeMap<String, String>,
    session: Map<String, Value>,
    plays: bool,
) -> Result<(Arc<App>, Begun), ApiError> {
    let asked = query.get("model").map(String::as_str).or_else(|| session.get("model")?.as_str());
    app.check_model(asked)?;
    let app = app.choose(asked).await?;
    check_answers(&app)?;
    let seed = match query.get("seed") {
        Some(text) => text.parse().ok().filter(|seed| *seed < SEEDS).ok_or_else(|| {
            ApiError::invalid("seed", format!("seed: must be a whole number from 0 to {}", SEEDS - 1))
        })?,
        None => RandomState::new().build_hasher().finish() % SEEDS,
    };
    let most = app.realtime.max_sessions;
    if most == 0 {
        let message = "this server has no sessions (realtime.max_sessions = 0)";
        return Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, "realtime_unavailable", message));
    }
    let place = Arc::clone(&app.realtime_places)
        .try_acquire_owned()
        .map_err(|_| no_place(format!("{most} sessions are open already (realtime.max_sessions)")))?;
    let opening = Opening { plays, ..opening(&app, seed) };
    let session = Session::configured(opening, session).map_err(client_secret::refused)?;
    Ok((app, (session, place)))
}

/// The error of a client for which there is no place.
fn no_place(message: String) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_connections", message).with_retry_after(WAIT)
}

/// Whether the model has conversations.
fn check_answers(app: &App) -> Result<(), ApiError> {
    match app.service.info().tts {
        None => Ok(()),
        Some(_) => {
            let message = "this model speaks but does not answer: use WS /v1/audio/speech/stream";
            Err(ApiError::invalid("model", message))
        }
    }
}

/// With what a session begins.
fn opening(app: &Arc<App>, seed: u64) -> Opening {
    let info = app.service.info();
    let voices = app.voice_finder();
    let models = Arc::clone(app);
    let limits = app.limits();
    let config = &app.realtime;
    Opening {
        id: format!("sess_{}", app.fresh_id()),
        seed,
        expires_at: unix_seconds() + config.max_time.as_secs(),
        abilities: Abilities {
            model: info.id.clone(),
            hears: info.hears,
            sees: info.sees,
            calls: info.tools,
            default_voice: info.default_voice.clone(),
            frame_ms: f64::from(info.samples_per_frame) * 1000.0 / f64::from(info.sample_rate.max(1)),
            is_model: Arc::new(move |name| {
                models.model(Some(name)).is_ok_and(|model| model.service.info().id == models.service.info().id)
            }),
            find_voice: Arc::new(move |name| voices.find(name)),
        },
        limits: Limits {
            // A prompt has the instructions beside the items.
            items: config.max_items.min(limits.max_messages.saturating_sub(2)).max(1),
            bytes: config.max_conversation_bytes,
            audio_ms: u64::try_from(config.max_audio.as_millis()).unwrap_or(u64::MAX),
            instruction_chars: limits.max_input_chars,
            item_chars: limits.max_input_chars,
            parts: PARTS,
            media: app.media.max_files,
            media_ms: u64::from(app.media.max_seconds) * 1000,
            window_ms: if config.prepare { info.window.as_millis() as u64 } else { 0 },
            jobs: JOBS,
        },
        plays: false,
    }
}

async fn serve(app: Arc<App>, socket: Upgraded, caller: Caller, guard: ConnectionGuard, (session, _place): Begun) {
    let (source, sink) = tokio::io::split(TokioIo::new(socket));
    let held = Held::nothing(&app.budget);
    let mut reader = Reader::new(source, Decoder::new(app.max_body_bytes, held), app.read_timeout);
    let (out, writer) = queue();
    let mut writing = std::pin::pin!(writer.run(Counted { sink, visit: Arc::clone(&caller.visit) }));
    let mut connection = Connection::new(Arc::clone(&app), caller, &guard, session);
    let mut link = Socket::new(app, &mut reader, out);
    tokio::select! {
        _ = connection.run(&mut link) => {}
        // The client is gone.
        () = &mut writing => return,
    }
    drop((connection, link));
    writing.await;
    reader.linger().await;
}
