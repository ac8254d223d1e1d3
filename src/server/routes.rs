//! Every route on one page: its path, who may use it, what its body is, its handler, and what it means for
//! `/openapi.json`.
//!
//! A body of any kind is at most `server.max_body_bytes` long and must arrive within `server.read_timeout`; so is a
//! message of the WebSocket. No other body is read.

use super::api::batch::{self as batch_api, BatchAnswer, BatchRequest};
use super::api::chat::{self as chat_api, ChatEvent, ChatRequest, Completion};
use super::api::cluster::{Cluster, DrainNode, DrainedNodes};
use super::api::realtime::{ClientSecret, NewCall, NewClientSecret, RealtimeClientEvent, RealtimeServerEvent};
use super::api::service::{AudioModelList, Faults, Health, Live, ModelList, ModelObject, NewFaults, Ready};
use super::api::session::{ClientMessage, ServerMessage};
use super::api::speech::{self as speech_api, SpeechEvent, SpeechObject, SpeechRequest};
use super::api::voices::{VoiceAdded, VoiceForm, VoiceList, VoiceRemoved};
use super::auth::{Access, Asked, auth, trust};
use super::error::{self, ApiError};
use super::openapi::{Operation, document};
use super::state::App;
use super::visit::{Peer, Visit};
use super::{admin, batch, chat, cluster, debug, faults, meta, realtime, speech, voices, ws};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post};
use axum::{Json, Router};
use futures::FutureExt;
use omni_config::Scope;
use std::net::{IpAddr, Ipv6Addr};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

const JSON: &str = "application/json";
const FORM: &str = "multipart/form-data";
const EVENTS: &str = "text/event-stream";
const TEXT: &str = "text/plain";

/// One route.
struct Route {
    /// As the API and the metrics name it.
    path: &'static str,
    access: Access,
    /// Who may use methods that change something, where these are others.
    changes: Option<Access>,
    /// Whether it always makes speech.
    speaks: bool,
    handler: MethodRouter<Arc<App>>,
    operations: Vec<Operation>,
    /// Whether this server has it.
    exists: bool,
}

impl Route {
    /// The path as axum has it: a model's name may have slashes.
    fn mounted(&self) -> String {
        match self.path.strip_suffix("{id}") {
            Some(before) => format!("{before}{{*id}}"),
            None => self.path.to_owned(),
        }
    }
}

/// The table. Routes that this server does not have are in it too: metrics and `/openapi.json` name them.
fn routes(app: &App) -> Vec<Route> {
    use Access::{Key, Open};
    const SPEAK: Access = Access::Scope(&[Scope::Speak]);
    const CHAT: Access = Access::Scope(&[Scope::Chat]);
    const VOICES: Access = Access::Scope(&[Scope::Voices, Scope::AllVoices]);
    const NAMES: Access = Access::List(&[Scope::Speak, Scope::Chat, Scope::Voices, Scope::AllVoices]);
    const LIST: Access = Access::List(&[]);
    const ALL: (&str, &str, &str) = ("aliases", "boolean", "lists OpenAI's names too; false by default");
    const MODEL: (&str, &str, &str) =
        ("model", "string", "of which model, where there are several; the first by default");
    const METRICS: Access = Access::Scope(&[Scope::Metrics]);
    const DRILL: Access = Access::Scope(&[Scope::Drill]);
    const CLUSTER: Access = Access::Scope(&[Scope::Cluster]);
    let route = |path, access, handler, operations| {
        let speaks = [SPEAK, CHAT].contains(&access);
        Route { path, access, changes: None, speaks, handler, operations, exists: true }
    };
    let only_if = |exists, route| Route { exists, ..route };
    // It makes no speech, or its handler finds out whether it does.
    let silent = |route| Route { speaks: false, ..route };
    let changed_by = |access, route| Route { changes: Some(access), ..route };
    let (traces, drill) = (app.traces.is_some(), app.service.faults().is_some());
    vec![
        route(
            "/",
            Open,
            get(meta::page),
            vec![Operation::new("get", "a page that speaks what you type").answers_file("text/html")],
        ),
        route(
            "/live",
            Open,
            get(meta::live),
            vec![Operation::new("get", "200 as long as the process runs").answers::<Live>(JSON)],
        ),
        route("/livez", Open, get(meta::live), vec![Operation::new("get", "the same as /live").answers::<Live>(JSON)]),
        route(
            "/ready",
            Open,
            get(meta::ready),
            vec![Operation::new("get", "200 if a request would be taken now, else 503").answers::<Ready<'_>>(JSON)],
        ),
        route(
            "/readyz",
            Open,
            get(meta::ready),
            vec![Operation::new("get", "the same as /ready").answers::<Ready<'_>>(JSON)],
        ),
        route(
            "/health",
            Open,
            get(meta::health),
            vec![
                Operation::new("get", "how the server is, 200 as long as the process runs").answers::<Health<'_>>(JSON),
            ],
        ),
        route(
            "/metrics",
            METRICS,
            get(meta::metrics),
            vec![Operation::new("get", "metrics for Prometheus").answers_file(TEXT)],
        ),
        route(
            "/cluster",
            Key,
            get(cluster::show),
            vec![
                Operation::new("get", "the nodes of this gateway; 404 where no stage is on nodes")
                    .answers::<Cluster<'_>>(JSON),
            ],
        ),
        route(
            "/cluster/drain",
            CLUSTER,
            post(cluster::drain),
            vec![
                Operation::new("post", "takes a node out of service for all gateways, or puts it back")
                    .takes::<DrainNode>(JSON)
                    .answers::<DrainedNodes<'_>>(JSON),
            ],
        ),
        // `router` gives it the document of this table.
        route(
            "/openapi.json",
            Key,
            MethodRouter::new(),
            vec![Operation::new("get", "this description").answers_file(JSON)],
        ),
        route(
            "/v1/models",
            LIST,
            get(meta::models),
            vec![Operation::new("get", "what is served").asks(ALL.0, ALL.1, ALL.2).answers::<ModelList<'_>>(JSON)],
        ),
        route(
            "/v1/models/{id}",
            LIST,
            get(meta::model),
            vec![Operation::new("get", "the served model").answers::<ModelObject<'_>>(JSON)],
        ),
        route(
            "/v1/audio/models",
            LIST,
            get(meta::audio_models),
            vec![
                Operation::new("get", "what is served, as clients of speech ask")
                    .asks(ALL.0, ALL.1, ALL.2)
                    .answers::<AudioModelList<'_>>(JSON),
            ],
        ),
        changed_by(
            VOICES,
            route(
                "/v1/audio/voices",
                NAMES,
                get(voices::list).post(voices::add),
                vec![
                    Operation::new("get", "which voices there are")
                        .asks("legacy", "boolean", "names instead of objects in `voices`; false by default")
                        .asks("limit", "integer", "most voices, 1 to 1000; 1000 by default")
                        .asks("after", "string", "the voice behind which the list begins: `last_id` of the page before")
                        .asks(MODEL.0, MODEL.1, MODEL.2)
                        .asks(ALL.0, ALL.1, ALL.2)
                        .answers::<VoiceList<'_>>(JSON),
                    Operation::new("post", "uploads a voice").takes::<VoiceForm>(FORM).answers::<VoiceAdded<'_>>(JSON),
                ],
            ),
        ),
        route(
            "/v1/audio/voices/{name}",
            VOICES,
            delete(voices::remove),
            vec![Operation::new("delete", "deletes an uploaded voice").answers::<VoiceRemoved>(JSON)],
        ),
        route(
            "/v1/audio/speech",
            SPEAK,
            post(speech::speech),
            vec![
                Operation::new("post", "speaks a text, whole or streamed")
                    .takes::<SpeechRequest<'_>>(JSON)
                    .refuses(speech_api::REFUSED)
                    .ignores(speech_api::HARMLESS)
                    .answers_file("audio/*")
                    .answers::<SpeechObject<'_>>(JSON)
                    .answers::<SpeechEvent<'_>>(EVENTS),
            ],
        ),
        route(
            "/v1/audio/speech/batch",
            SPEAK,
            post(batch::batch),
            vec![
                Operation::new("post", "speaks several texts, answered in one piece")
                    .takes::<BatchRequest<'_>>(JSON)
                    .refuses(batch_api::REFUSED)
                    .ignores(speech_api::HARMLESS)
                    .answers::<BatchAnswer<'_>>(JSON),
            ],
        ),
        route(
            "/v1/audio/speech/stream",
            SPEAK,
            get(ws::connect),
            vec![
                Operation::new("get", "a WebSocket: text in as it is written, speech out before the text is complete")
                    .talks::<ClientMessage, ServerMessage<'_>>(),
            ],
        ),
        route(
            "/v1/audio/speech/{id}",
            SPEAK,
            get(speech::again),
            vec![
                Operation::new("get", "an answer of /v1/audio/speech once more, from where it broke")
                    .answers_file("audio/*")
                    .answers::<SpeechObject<'_>>(JSON)
                    .answers::<SpeechEvent<'_>>(EVENTS),
            ],
        ),
        silent(route(
            "/v1/chat/completions",
            CHAT,
            post(chat::completions),
            vec![
                Operation::new("post", "answers in text, or in text and speech")
                    .takes::<ChatRequest>(JSON)
                    .refuses(chat_api::REFUSED)
                    .ignores(chat_api::HARMLESS)
                    .answers::<Completion<'_>>(JSON)
                    .answers::<ChatEvent<'_>>(EVENTS),
            ],
        )),
        route(
            "/v1/realtime",
            CHAT,
            get(realtime::connect),
            vec![
                Operation::new("get", "a WebSocket: OpenAI's realtime protocol; docs/realtime.md has its events")
                    .asks("model", "string", "which model, where there are several; the first by default")
                    .asks("seed", "integer", "makes the answers of a session again; a random one by default")
                    .talks::<RealtimeClientEvent, RealtimeServerEvent>(),
            ],
        ),
        silent(route(
            "/v1/realtime/client_secrets",
            CHAT,
            post(realtime::make_client_secret),
            vec![
                Operation::new("post", "a key for a short time that opens realtime sessions, for browsers")
                    .takes::<NewClientSecret>(JSON)
                    .answers::<ClientSecret>(JSON),
            ],
        )),
        route(
            "/v1/realtime/calls",
            CHAT,
            post(realtime::call),
            vec![
                Operation::new(
                    "post",
                    "a session over WebRTC: an SDP offer, answered with 201, an SDP answer and Location",
                )
                .asks("model", "string", "which model, where there are several; the first by default")
                .asks("seed", "integer", "makes the answers of a session again; a random one by default")
                .takes::<NewCall>(FORM)
                .answers_file("application/sdp"),
            ],
        ),
        silent(route(
            "/v1/realtime/calls/{id}/hangup",
            CHAT,
            post(realtime::hang_up),
            vec![Operation::new("post", "ends a call")],
        )),
        only_if(
            traces,
            route(
                "/debug/trace",
                METRICS,
                get(debug::now),
                vec![
                    Operation::new(
                        "get",
                        "what the stages do, as a file for a Perfetto viewer; with telemetry.trace = true",
                    )
                    .asks("seconds", "number", "how long, above 0 and at most 60; 5 by default")
                    .answers_file(JSON),
                ],
            ),
        ),
        only_if(
            traces,
            route(
                "/debug/trace/{id}",
                METRICS,
                get(debug::of_request),
                vec![Operation::new("get", "the trace of one request; with telemetry.trace = true").answers_file(JSON)],
            ),
        ),
        only_if(
            drill,
            route(
                "/debug/faults",
                DRILL,
                get(faults::list).post(faults::add).delete(faults::clear),
                vec![
                    Operation::new("get", "what breaks on purpose; with drill.enabled = true").answers::<Faults>(JSON),
                    Operation::new("post", "adds faults").takes::<NewFaults>(JSON).answers::<Faults>(JSON),
                    Operation::new("delete", "takes all faults away").answers::<Faults>(JSON),
                ],
            ),
        ),
    ]
}

/// What the middleware knows of the routes.
struct Table(Vec<Row>);

#[derive(Clone, Copy)]
struct Row {
    path: &'static str,
    access: Access,
    changes: Option<Access>,
    speaks: bool,
}

impl Row {
    fn of(route: &Route) -> Row {
        Row { path: route.path, access: route.access, changes: route.changes, speaks: route.speaks }
    }

    fn asked(&self, method: &Method) -> Asked {
        let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(method);
        let access = self.changes.filter(|_| !reads).unwrap_or(self.access);
        Asked { access, counts: self.path.starts_with("/v1/"), speaks: self.speaks }
    }
}

impl Table {
    /// The route of a path. It is found before axum looks for a handler, so that a wrong method has its route too.
    fn find(&self, path: &str) -> Option<Row> {
        let exact = self.0.iter().find(|row| row.path == path);
        let inside = |row: &&Row| row.path.split_once('{').is_some_and(|(prefix, _)| path.starts_with(prefix));
        exact.or_else(|| self.0.iter().find(inside)).copied()
    }
}

/// The routes of a server.
pub(super) fn router(app: Arc<App>) -> Router {
    let routes = routes(&app);
    let table = Table(routes.iter().map(Row::of).collect());
    let described = routes.iter().map(|route| (route.path, route.access == Access::Open, route.operations.as_slice()));
    let description = Json(document(described));
    let mut router = Router::new();
    for route in routes {
        let path = route.mounted();
        router = match route.path {
            "/openapi.json" => {
                let description = description.clone();
                router.route(&path, get(async || description))
            }
            _ if route.exists => router.route(&path, route.handler),
            _ => router,
        };
    }
    router
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(app.clone(), auth))
        .layer(middleware::from_fn_with_state((app.clone(), Arc::new(table)), common))
        .with_state(app)
}

/// The routes of the admin listener. `open` asks for no key.
pub(super) fn admin_router(app: Arc<App>, open: bool) -> Router {
    const ROUTES: [&str; 7] = ["/live", "/livez", "/ready", "/readyz", "/health", "/metrics", "/cluster"];
    let mut router = Router::new();
    let mut table = Table(Vec::new());
    for route in routes(&app).into_iter().filter(|route| ROUTES.contains(&route.path)) {
        table.0.push(Row::of(&route));
        router = router.route(route.path, route.handler);
    }
    let router = router.fallback(admin::not_here).method_not_allowed_fallback(wrong_method);
    let router = match open {
        true => router.layer(middleware::from_fn_with_state(app.clone(), trust)),
        false => router.layer(middleware::from_fn_with_state(app.clone(), auth)),
    };
    router.layer(middleware::from_fn_with_state((app.clone(), Arc::new(table)), common)).with_state(app)
}

async fn not_found(request: Request) -> ApiError {
    let message = format!("there is nothing at {}; docs/api.md lists the routes", request.uri().path());
    ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
}

async fn wrong_method(request: Request) -> Response {
    if request.method() == Method::OPTIONS {
        // axum adds the Allow header. There is no CORS header on purpose: other origins are not let in.
        return StatusCode::NO_CONTENT.into_response();
    }
    let message = format!("{} does not take {}", request.uri().path(), request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message).into_response()
}

/// Tells the request who may use its route, names and counts the answer, and gives it the headers that all have.
async fn common(State((app, table)): State<(Arc<App>, Arc<Table>)>, mut request: Request, next: Next) -> Response {
    let row = table.find(request.uri().path());
    let route = row.map_or("other", |row| row.path);
    // Every connection has one.
    let address = request.extensions().get::<Peer>().map_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED), |peer| peer.0);
    let logged = app.rules.get().access_log;
    let visit = Visit::new(request.method(), request.headers(), route, address, logged);
    let visit = Arc::new(visit.linked(app.links.clone()));
    request.extensions_mut().insert(Arc::clone(&visit));
    let asked = row.map_or(Asked::NOTHING, |row| row.asked(request.method()));
    request.extensions_mut().insert(asked);
    let response = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    let response = response.unwrap_or_else(|_| {
        tracing::error!(route, "a handler panicked");
        ApiError::internal("the server failed while it worked on this request").into_response()
    });
    let mut response = error::structured(response).await;
    app.metrics.response(route, response.status().as_u16());
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    visit.answer(response, || app.fresh_id())
}
