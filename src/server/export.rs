//! Sends what the recorder sees of requests to a collector of OpenTelemetry, as OTLP over HTTP. A collector that is slow
//! or gone costs spans, counted, and nothing else.

use super::fetch::tls;
use super::trace_context::TraceContext;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use omni_core::ids::RequestId;
use omni_telemetry::SpanMetrics;
use omni_telemetry::trace::{Parent, Recorder, Session, Spans, document};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_rustls::rustls::pki_types::ServerName;
use tracing::{debug, warn};
use url::Url;

/// How often records are turned into spans.
const EVERY: Duration = Duration::from_secs(1);
/// Spans of one request to the collector.
const BATCH: usize = 512;
/// Such requests that may wait for the one before.
const WAITING: usize = 16;
/// How long the collector may take for one.
const PATIENCE: Duration = Duration::from_secs(10);
/// Requests whose clients named a trace, and that have not ended.
const LINKS: usize = 4096;

/// What clients say of the traces that their requests are part of.
#[derive(Debug, Default)]
pub(super) struct Links(Mutex<BTreeMap<RequestId, TraceContext>>);

impl Links {
    /// The request of the engine that a client's request became.
    pub fn put(&self, request: RequestId, context: &TraceContext) {
        let mut links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        links.insert(request, context.clone());
        while links.len() > LINKS {
            links.pop_first();
        }
    }

    /// See [`Spans::absorb`].
    fn parent(&self, request: RequestId) -> Option<Option<Parent>> {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&request) {
            Some(context) => context.parent().map(Some),
            None => Some(None),
        }
    }
}

/// Begins to export; ends when the result is dropped.
pub(super) fn start(recorder: &Recorder, links: Arc<Links>, endpoint: &str) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let endpoint = match Url::parse(endpoint) {
        Ok(endpoint) => endpoint,
        Err(error) => {
            warn!(%error, endpoint, "telemetry.otlp_endpoint is no address; no traces are exported");
            return tasks;
        }
    };
    let metrics = SpanMetrics::new();
    let (send, batches) = mpsc::channel(WAITING);
    tasks.spawn(collect(Session::begin(recorder), links, send, metrics.clone()));
    tasks.spawn(deliver(endpoint, batches, metrics));
    tasks
}

/// Turns records into spans, and those into batches. Never waits for the collector.
async fn collect(session: Session, links: Arc<Links>, send: mpsc::Sender<Vec<Value>>, metrics: SpanMetrics) {
    let mut state = (session, Spans::default());
    loop {
        tokio::time::sleep(EVERY).await;
        let links = Arc::clone(&links);
        let turned = tokio::task::spawn_blocking(move || {
            let spans = state.1.absorb(&state.0.collect(), |request| links.parent(request));
            (state, spans)
        });
        // Only a panic ends it otherwise, and then there is nothing to go on with.
        let Ok((back, spans)) = turned.await else { return warn!("traces are exported no more") };
        state = back;
        for batch in spans.chunks(BATCH) {
            if send.try_send(batch.to_vec()).is_err() {
                metrics.dropped.increment(batch.len() as u64);
            }
        }
    }
}

async fn deliver(endpoint: Url, mut batches: mpsc::Receiver<Vec<Value>>, metrics: SpanMetrics) {
    while let Some(batch) = batches.recv().await {
        let body = document(&batch).to_string();
        let delivered = tokio::time::timeout(PATIENCE, post(&endpoint, body)).await;
        let count = match delivered.unwrap_or_else(|_| Err("it takes too long".to_owned())) {
            Ok(()) => &metrics.exported,
            Err(error) => {
                debug!(error, "the collector of traces did not take a batch");
                &metrics.dropped
            }
        };
        count.increment(batch.len() as u64);
    }
}

/// One request over a connection of its own.
async fn post(endpoint: &Url, body: String) -> Result<(), String> {
    let host = endpoint.host_str().unwrap_or_default();
    let port = endpoint.port_or_known_default().unwrap_or(4318);
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let socket = TcpStream::connect((bare, port)).await.map_err(|error| error.to_string())?;
    if endpoint.scheme() != "https" {
        return exchange(socket, endpoint, body).await;
    }
    let name = ServerName::try_from(bare.to_owned()).map_err(|error| error.to_string())?;
    let socket = tls().connect(name, socket).await.map_err(|error| error.to_string())?;
    exchange(socket, endpoint, body).await
}

async fn exchange<S>(socket: S, endpoint: &Url, body: String) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await.map_err(|error| error.to_string())?;
    let request = Request::post(&endpoint[url::Position::BeforePath..url::Position::AfterQuery])
        .header(header::HOST, &endpoint[url::Position::BeforeHost..url::Position::AfterPort])
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONNECTION, "close")
        .body(Body::from(body))
        .map_err(|error| error.to_string())?;
    let answered = async {
        match sender.send_request(request).await.map_err(|error| error.to_string())?.status() {
            StatusCode::OK | StatusCode::ACCEPTED => Ok(()),
            status => Err(format!("it answers {status}")),
        }
    };
    // The connection is polled only while the exchange waits, and is dropped with the answer.
    tokio::select! {
        answered = answered => answered,
        _ = async { let _ = connection.await; std::future::pending::<()>().await } => Err("it hung up".to_owned()),
    }
}
