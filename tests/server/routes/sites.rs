//! To which names the server answers, and pages of which sites may use it.

use super::Site;
use super::openapi::{PAGE, code};
use omni_actors::config::{KeyConfig, hash_key};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

const ROUTES: [(Method, &str); 9] = [
    (Method::GET, "/"),
    (Method::GET, "/live"),
    (Method::GET, "/health"),
    (Method::GET, "/metrics"),
    (Method::GET, "/v1/audio/voices"),
    (Method::POST, "/v1/audio/voices"),
    (Method::DELETE, "/v1/audio/voices/a"),
    (Method::POST, "/v1/audio/speech"),
    (Method::GET, "/nowhere"),
];
const APP: &str = "https://app.example";
const TALK: &str = include_str!("../../../docs/realtime.md");
/// Headers that docs/api.md and docs/realtime.md have clients send.
const SENT: [&str; 5] = ["Authorization", "Content-Type", "X-Request-Id", "Range", "Last-Event-ID"];
/// Those that clients read.
const READ: [&str; 9] = [
    "X-Request-Id",
    "X-Seed",
    "X-Sample-Rate",
    "X-Trace",
    "X-Ignored-Fields",
    "Retry-After",
    "Content-Location",
    "Content-Range",
    "Location",
];
/// One that is about the connection: no page sees it.
const HIDDEN: &str = "Connection";

fn open_to_app() -> Site {
    Site::with(|server, _| {
        server.access.hosts = vec!["voice.example".to_owned()];
        server.access.origins = vec![APP.to_owned()];
    })
}

async fn ask(site: &Site, method: Method, path: &str, headers: &[(&str, &str)]) -> Response {
    let request = site.client.request(method, site.url(path));
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    request.send().await.unwrap()
}

async fn is_refused(response: Response, status: u16, code: &str) {
    assert_eq!(response.status(), status);
    assert!(!response.headers().contains_key("access-control-allow-origin"));
    let body: Value = response.json().await.unwrap();
    assert_eq!((&body["error"]["code"], &body["error"]["type"]), (&json!(code), &json!("invalid_request_error")));
}

/// The status with which a WebSocket is refused.
async fn websocket(site: &Site, headers: &[(&'static str, &str)]) -> u16 {
    let mut request = format!("ws://{}/v1/audio/speech/stream", site.address).into_client_request().unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    match tokio_tungstenite::connect_async(request).await {
        Ok((_, response)) => response.status().as_u16(),
        Err(Error::Http(response)) => response.status().as_u16(),
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_page_whose_name_is_made_to_lead_here_gets_nothing() {
    let site = Site::new();
    // What a browser sends for such a page: its own name as the host, and so the same origin.
    let rebound = [("host", "rebound.example:8080"), ("origin", "http://rebound.example:8080")];
    for (method, path) in ROUTES {
        is_refused(ask(&site, method.clone(), path, &rebound[..1]).await, 421, "host_not_allowed").await;
        is_refused(ask(&site, method, path, &rebound).await, 421, "host_not_allowed").await;
    }
    assert_eq!(websocket(&site, &rebound).await, 421);
    assert_eq!(websocket(&site, &rebound[..1]).await, 421);
    assert_eq!(site.service.accepted(), 0);
    // The names of this machine go on as before.
    for host in ["localhost", "127.0.0.1:1", "[::1]", "[::1]:8080"] {
        assert_eq!(ask(&site, Method::GET, "/live", &[("host", host)]).await.status(), 200, "{host}");
    }
    let own = format!("http://{}", site.address);
    assert_eq!(websocket(&site, &[("origin", &own)]).await, 101);
}

#[tokio::test]
async fn a_server_behind_a_proxy_answers_to_the_names_of_its_config() {
    let site = open_to_app();
    for (host, status) in [("Voice.Example", 200), ("voice.example:443", 200), ("other.example", 421)] {
        assert_eq!(live_status(&site, host).await, status, "{host}");
    }
}

async fn live_status(site: &Site, host: &str) -> u16 {
    ask(site, Method::GET, "/live", &[("host", host)]).await.status().as_u16()
}

#[tokio::test]
async fn with_keys_any_name_is_taken_unless_the_config_lists_some() {
    let keyed = |hosts: &[&str]| {
        let hosts = hosts.iter().map(|&host| host.to_owned()).collect();
        Site::with(|server, _| {
            server.keys = vec![KeyConfig::new("alice", hash_key("sk-alice"))];
            server.access.hosts = hosts;
        })
    };
    assert_eq!(live_status(&keyed(&[]), "voice.example").await, 200);
    let listed = keyed(&["voice.example"]);
    assert_eq!(live_status(&listed, "voice.example").await, 200);
    assert_eq!(live_status(&listed, "other.example").await, 421);
}

#[tokio::test]
async fn pages_of_other_sites_may_do_nothing() {
    let site = open_to_app();
    for origin in ["http://elsewhere.example", "null", "http://app.example", "http://127.0.0.1:1"] {
        for (method, path) in ROUTES {
            let response = ask(&site, method, path, &[("origin", origin)]).await;
            is_refused(response, 403, "origin_not_allowed").await;
        }
        assert_eq!(websocket(&site, &[("origin", origin)]).await, 403, "{origin}");
        let asks = [("origin", origin), ("access-control-request-method", "POST")];
        is_refused(ask(&site, Method::OPTIONS, "/v1/audio/speech", &asks).await, 403, "origin_not_allowed").await;
    }
    assert_eq!(site.service.accepted(), 0);
}

#[tokio::test]
async fn a_page_that_the_config_names_may_use_the_server_and_read_its_answers() {
    let site = open_to_app();
    let asks = [("origin", APP), ("access-control-request-method", "POST")];
    let preflight = ask(&site, Method::OPTIONS, "/v1/audio/speech", &asks).await;
    assert_eq!(preflight.status(), 204);
    let header = |name: &str| preflight.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(header("access-control-allow-origin"), APP);
    assert!(header("access-control-allow-methods").contains("POST"));
    assert!(header("access-control-allow-headers").contains("authorization"));
    assert_eq!(header("vary"), "Origin");
    // Refusals can be read too.
    for (path, status) in [("/v1/models", 200), ("/nowhere", 404)] {
        let response = ask(&site, Method::GET, path, &[("origin", APP)]).await;
        assert_eq!(response.status(), status);
        assert_eq!(response.headers()["access-control-allow-origin"], APP);
        assert!(response.headers()["access-control-expose-headers"].to_str().unwrap().contains("X-Request-Id"));
    }
    assert_eq!(websocket(&site, &[("origin", APP)]).await, 101);
}

/// OpenAI's package for JavaScript sends headers with its version and platform from a page, too.
#[tokio::test]
async fn such_a_page_may_use_openais_package_and_send_nothing_that_is_not_known() {
    let site = open_to_app();
    let wanted = "authorization,content-type,X-Stainless-Lang,x-stainless-package-version,x-secret,x-stainless-a b";
    let asks = [("origin", APP), ("access-control-request-method", "POST"), ("access-control-request-headers", wanted)];
    let preflight = ask(&site, Method::OPTIONS, "/v1/audio/speech", &asks).await;
    assert_eq!(preflight.status(), 204);
    let allowed = preflight.headers()["access-control-allow-headers"].to_str().unwrap();
    let allowed: Vec<&str> = allowed.split(", ").collect();
    for name in ["authorization", "content-type", "x-stainless-lang", "x-stainless-package-version", "openai-beta"] {
        assert!(allowed.contains(&name), "{name}: {allowed:?}");
    }
    assert!(!allowed.iter().any(|name| name.contains("secret") || name.contains(' ')), "{allowed:?}");
    assert_ne!(preflight.headers()["access-control-allow-origin"], "*");
    assert!(!preflight.headers().contains_key("access-control-allow-credentials"));
}

/// A header in the text of a page: a name of several words, or one with its value.
fn header(span: &'static str) -> Option<&'static str> {
    let (name, value) = span.split_once(": ").map_or((span, None), |(name, value)| (name, Some(value)));
    let mut words = name.split('-');
    let is_word = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_uppercase()) && word.bytes().all(|byte| byte.is_ascii_alphabetic())
    };
    (words.all(is_word) && (name.contains('-') || value.is_some())).then_some(name)
}

#[tokio::test]
async fn such_a_page_may_send_and_read_every_header_of_the_documentation() {
    let told: Vec<&str> = code(PAGE).chain(code(TALK)).filter_map(header).collect();
    for name in ["Last-Event-ID", "Range", "Content-Location", "Location"] {
        assert!(told.contains(&name), "{name} is not found in {told:?}");
    }
    let known: Vec<&str> = SENT.into_iter().chain(READ).chain([HIDDEN]).collect();
    for name in told {
        assert!(known.contains(&name), "{name} is not among the headers that a page may send or read");
    }
    let site = open_to_app();
    let asks = [("origin", APP), ("access-control-request-method", "POST")];
    let preflight = ask(&site, Method::OPTIONS, "/v1/audio/speech", &asks).await;
    let answer = ask(&site, Method::GET, "/v1/models", &[("origin", APP)]).await;
    for (response, list, names) in
        [(preflight, "access-control-allow-headers", &SENT[..]), (answer, "access-control-expose-headers", &READ[..])]
    {
        let listed = response.headers()[list].to_str().unwrap();
        for name in names {
            assert!(listed.split(", ").any(|listed| listed.eq_ignore_ascii_case(name)), "{name}: {listed}");
        }
    }
}

#[tokio::test]
async fn a_browser_asks_what_a_page_may_do_before_it_has_a_key() {
    let site = Site::with(|server, _| {
        server.keys = vec![KeyConfig::new("alice", hash_key("sk-alice"))];
        server.access.origins = vec![APP.to_owned()];
    });
    let asks = [("origin", APP), ("access-control-request-method", "GET")];
    assert_eq!(ask(&site, Method::OPTIONS, "/v1/models", &asks).await.status(), 204);
    let refused = ask(&site, Method::GET, "/v1/models", &[("origin", APP)]).await;
    assert_eq!((refused.status().as_u16(), refused.headers().contains_key("access-control-allow-origin")), (401, true));
    // A question that no page asks needs a key, as before.
    assert_eq!(ask(&site, Method::OPTIONS, "/v1/models", &[]).await.status(), 401);
}
