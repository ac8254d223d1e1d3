//! What a connection hears for which there is no place: whether the server lives and is ready, so that a full server is
//! not taken for a dead one; of anything else why it is refused.

use super::connection::NoPlace;
use super::error::ApiError;
use super::reader::drain;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tower_service::Service;

/// How long a refused client may take to ask and to read the answer.
const TIME: Duration = Duration::from_secs(1);
/// Longest head of a request.
const HEAD: usize = 16 << 10;
/// Longest answer.
const BODY: usize = 64 << 10;
/// What is answered all the same.
const PROBES: [&str; 4] = ["/live", "/ready", "/livez", "/readyz"];

/// Reads the head of the request, answers, and closes. A client that is too slow goes without.
pub(super) async fn refuse(socket: impl AsyncRead + AsyncWrite + Unpin, router: Router, why: NoPlace) {
    let _ = tokio::time::timeout(TIME, answer(socket, router, why)).await;
}

async fn answer(mut socket: impl AsyncRead + AsyncWrite + Unpin, mut router: Router, why: NoPlace) {
    // Clients take an answer to a request that they have not sent for garbage: read its head first.
    let mut head = Vec::new();
    let mut piece = [0; 4096];
    while head.len() < HEAD && !head.windows(4).any(|window| window == b"\r\n\r\n") {
        match socket.read(&mut piece).await {
            Ok(count @ 1..) => head.extend_from_slice(&piece[..count]),
            _ => return,
        }
    }
    let response = match probe(&head).and_then(|path| Request::get(path).body(Body::empty()).ok()) {
        Some(request) => match router.call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        },
        None => refusal(why),
    };
    let (status, retry) = (response.status(), response.headers().get("retry-after").cloned());
    let retry = retry.and_then(|after| Some(format!("Retry-After: {}\r\n", after.to_str().ok()?))).unwrap_or_default();
    let Ok(body) = to_bytes(response.into_body(), BODY).await else { return };
    let mut response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{retry}Connection: close\r\n\r\n",
        body.len()
    )
    .into_bytes();
    response.extend_from_slice(&body);
    if socket.write_all(&response).await.is_err() || socket.shutdown().await.is_err() {
        return;
    }
    drain(&mut socket).await;
}

fn refusal(why: NoPlace) -> Response {
    let error =
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_connections", format!("{why}; try again later"));
    error.with_retry_after(Duration::from_secs(1)).into_response()
}

/// The path of a request that is answered all the same.
fn probe(head: &[u8]) -> Option<&'static str> {
    let path = head.strip_prefix(b"GET ")?.split(|byte| matches!(byte, b' ' | b'?')).next()?;
    PROBES.into_iter().find(|probe| probe.as_bytes() == path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;

    async fn asked(request: &str) -> String {
        let (mut client, server) = tokio::io::duplex(1024);
        let router = Router::new().route("/ready", get(async || (StatusCode::OK, "{\"ready\":true}")));
        let refusing = tokio::spawn(refuse(server, router, NoPlace::All(7)));
        client.write_all(request.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        refusing.await.unwrap();
        answer
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_server_still_says_how_it_is_and_refuses_the_rest_with_the_limit() {
        let ready = asked("GET /ready HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(ready.starts_with("HTTP/1.1 200 OK\r\n") && ready.ends_with("{\"ready\":true}"), "{ready}");
        for other in ["GET /v1/models HTTP/1.1\r\n\r\n", "POST /ready HTTP/1.1\r\n\r\n", "GET /readyx HTTP/1.1\r\n\r\n"]
        {
            let refused = asked(other).await;
            assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("Retry-After: 1\r\n"), "{refused}");
            assert!(refused.contains("too_many_connections") && refused.contains("7 connections"), "{refused}");
        }
        assert_eq!(asked("").await, "");
    }
}
