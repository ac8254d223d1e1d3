//! Keeps pages of other sites out: a browser lets any page open a WebSocket or send a form anywhere, but says which
//! page it was.

use super::error::ApiError;
use axum::http::{HeaderMap, StatusCode, Uri, header};

/// Refuses a request of a page of another origin. A program, which sends no `Origin`, passes.
pub(super) fn check_origin(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let from = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
    let from = from.as_ref().and_then(Uri::authority);
    match (from, host) {
        (Some(from), Some(host)) if from.as_str().eq_ignore_ascii_case(host) => Ok(()),
        _ => {
            let message = "pages of other origins may not connect; open the page of this server, or connect from a \
                           program that sends no Origin header";
            Err(ApiError::new(StatusCode::FORBIDDEN, "origin_not_allowed", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(origin: Option<&str>, host: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        check_origin(&headers).is_ok()
    }

    #[test]
    fn programs_and_our_own_page_may_connect() {
        assert!(origin(None, "127.0.0.1:8080"));
        assert!(origin(Some("http://127.0.0.1:8080"), "127.0.0.1:8080"));
        assert!(origin(Some("https://Voice.example"), "voice.example"));
    }

    #[test]
    fn other_pages_may_not() {
        for other in
            ["http://evil.example", "http://127.0.0.1:9", "null", "file://", "http://127.0.0.1:8080.evil.example"]
        {
            assert!(!origin(Some(other), "127.0.0.1:8080"), "{other}");
        }
    }
}
