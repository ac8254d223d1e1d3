//! One request, from its head to the last byte of its answer: its name, who sent it, and the line of the access log that
//! tells of it. A WebSocket's lasts as long as its session.

use super::export::Links;
use super::quota::{Connected, Key};
use super::trace_context::TraceContext;
use super::watched::{Watch, watched};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::response::Response;
use omni_core::ids::RequestId;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// The name of a request, the client's or one of the server's.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// No request of the engine has this number.
const NO_REQUEST: u64 = u64::MAX;
/// Longest name of a request that the server takes over.
const LONGEST_ID: usize = 128;

/// From where a connection comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub IpAddr);

/// See the module.
#[derive(Debug)]
pub(super) struct Visit {
    method: Method,
    /// The pattern, never the path that the client sent.
    route: &'static str,
    address: IpAddr,
    /// The client's name for the request, if it is one that a log can have.
    given: Option<String>,
    /// The name that the answer has.
    id: OnceLock<String>,
    trace: Option<TraceContext>,
    links: Option<Arc<Links>>,
    /// The last request of the engine that it led to.
    request: AtomicU64,
    began: Instant,
    status: AtomicU16,
    bytes: AtomicU64,
    /// Whether the answer has gone out to its end.
    whole: AtomicBool,
    key: OnceLock<(Arc<Key>, Option<Connected>)>,
    logged: bool,
}

impl Visit {
    pub fn new(method: &Method, headers: &HeaderMap, route: &'static str, address: IpAddr, logged: bool) -> Visit {
        Visit {
            method: method.clone(),
            route,
            address,
            given: headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).filter(|id| is_sane(id)).map(str::to_owned),
            id: OnceLock::new(),
            trace: TraceContext::of(headers),
            links: None,
            request: AtomicU64::new(NO_REQUEST),
            began: Instant::now(),
            status: AtomicU16::new(0),
            bytes: AtomicU64::new(0),
            whole: AtomicBool::new(false),
            key: OnceLock::new(),
            logged,
        }
    }

    /// Says whose request it is. It holds one of the connections of its key, if that had one left.
    pub fn belongs_to(&self, key: Arc<Key>, connected: Option<Connected>) {
        // Once for each request.
        let _ = self.key.set((key, connected));
    }

    /// Its key, where the server has keys.
    pub fn key(&self) -> Option<&Arc<Key>> {
        self.key.get().map(|(key, _)| key)
    }

    /// Lets spans of it be exported below that of its client.
    pub fn linked(mut self, links: Option<Arc<Links>>) -> Visit {
        self.links = links;
        self
    }

    /// The engine works on it under this name.
    pub fn leads_to(&self, request: RequestId) {
        self.request.store(request.0, Ordering::Relaxed);
        if let (Some(links), Some(trace)) = (&self.links, &self.trace) {
            links.put(request, trace);
        }
    }

    /// From where it came.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Bytes that left beside the body of an answer.
    pub fn sent(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Nothing is missing of what it had to answer.
    pub fn complete(&self) {
        self.whole.store(true, Ordering::Relaxed);
    }

    /// Begins the answer: names it, and counts its bytes until its end. `fresh` makes a name for an answer without one.
    pub fn answer(self: &Arc<Visit>, mut response: Response, fresh: impl FnOnce() -> String) -> Response {
        let status = response.status().as_u16();
        self.status.store(status, Ordering::Relaxed);
        if let Some(key) = self.key() {
            key.answered(status);
        }
        let named = response.headers().get(&REQUEST_ID).and_then(|id| id.to_str().ok());
        let id = self.given.clone().or_else(|| named.map(str::to_owned)).unwrap_or_else(fresh);
        // All of them are of letters, digits and marks that a header can carry.
        if let Ok(value) = HeaderValue::from_str(&id) {
            response.headers_mut().insert(REQUEST_ID, value);
        }
        let _ = self.id.set(id);
        response.map(|body| watched(body, Arc::clone(self)))
    }

    /// Begins an answer that is none of HTTP, under this name.
    pub fn begin(&self, status: u16, id: String) {
        self.status.store(status, Ordering::Relaxed);
        let _ = self.id.set(id);
    }

    /// The name of the engine's request.
    fn engine(&self) -> Option<String> {
        let request = self.request.load(Ordering::Relaxed);
        (request != NO_REQUEST).then(|| RequestId(request).to_string())
    }

    /// Tells who did something that others may ask about later. `what` names what it was done to, never its content.
    pub fn audit(&self, action: &'static str, what: &str) {
        tracing::info!(
            target: "omni_audit",
            action,
            what,
            key = self.key().map(|key| key.name()),
            address = %self.address,
            request_id = self.given.as_deref(),
            trace_id = self.trace.as_ref().map(TraceContext::trace_id),
            "audit"
        );
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if !self.logged {
            return;
        }
        let seconds = (self.began.elapsed().as_secs_f64() * 1e6).round() / 1e6;
        tracing::info!(
            target: "omni_access",
            method = self.method.as_str(),
            route = self.route,
            status = self.status.load(Ordering::Relaxed),
            bytes = self.bytes.load(Ordering::Relaxed),
            seconds,
            whole = self.whole.load(Ordering::Relaxed),
            key = self.key().map(|key| key.name()),
            address = %self.address,
            request_id = self.id.get().map(String::as_str),
            engine = self.engine(),
            trace_id = self.trace.as_ref().map(TraceContext::trace_id),
            "request"
        );
    }
}

/// What a header and a line of a log can carry, and no more than a name needs.
fn is_sane(id: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(&byte);
    (1..=LONGEST_ID).contains(&id.len()) && id.bytes().all(plain)
}

/// Of the body of an answer, which keeps its visit until the last byte has gone or the client has.
impl Watch for Arc<Visit> {
    fn passed(&self, bytes: usize) {
        self.sent(bytes);
    }

    fn ended(&self) {
        self.complete();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_name_is_taken_over() {
        for name in ["a", "7c0f5c1e-1df2-4f0e", "Root=1-67891233-abcdef012345678912345678", "user@host/3:4+5"] {
            assert!(is_sane(name), "{name}");
        }
        for name in ["", "a b", "a\"b", "a,b", "a;b", "<a>", "ä", &"x".repeat(129)] {
            assert!(!is_sane(name), "{name}");
        }
    }
}
