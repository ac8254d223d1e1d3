//! Keeps pages of other sites out. A browser lets any page send a request anywhere, but says by which name it calls the
//! server (`Host`) and which page asks (`Origin`). A page whose own name leads to this machine has the same of both, so
//! a server without keys answers to names that are its own, and no page can take such a name.

use super::api::short;
use super::error::ApiError;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use omni_config::ServerConfig;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Headers of an answer that a page of another origin may read: those that the documentation names.
const READABLE: HeaderValue = HeaderValue::from_static(
    "X-Request-Id, X-Seed, X-Sample-Rate, X-Trace, X-Ignored-Fields, Retry-After, Content-Disposition, \
     Content-Location, Content-Range, Location",
);
/// What such a page may send: what the documentation names, and what OpenAI's clients send.
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE");
const HEADERS: [&str; 12] = [
    "authorization",
    "content-type",
    "x-request-id",
    "range",
    "last-event-id",
    "traceparent",
    "accept",
    "user-agent",
    "idempotency-key",
    "openai-organization",
    "openai-project",
    "openai-beta",
];
/// How OpenAI's package for JavaScript begins the names of headers that tell its version and platform.
const CLIENT: &str = "x-stainless-";
/// Seconds for which a browser need not ask again.
const REMEMBER: HeaderValue = HeaderValue::from_static("600");

/// Names of this server and pages that may use it.
#[derive(Clone, Debug)]
pub(super) struct Sites {
    hosts: Vec<String>,
    /// Whether every name is taken.
    any_host: bool,
    origins: Vec<String>,
}

/// The origin of a page elsewhere that may use the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Guest(HeaderValue);

impl Sites {
    pub fn new(config: &ServerConfig) -> Sites {
        let access = &config.access;
        // A page has no key, whatever its name.
        let any_host = access.hosts.is_empty() && !config.keys.is_empty();
        Sites { hosts: access.hosts.clone(), any_host, origins: access.origins.clone() }
    }

    /// The same where no key is asked for: only names of the server.
    pub fn strict(&self) -> Sites {
        Sites { any_host: false, ..self.clone() }
    }

    /// Refuses a request to a name that is not the server's, or of a page that may not use it. `Ok(Some)` is a page of
    /// another origin that may. A program, which sends no `Origin`, passes.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<Option<Guest>, ApiError> {
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = hosts.next().map(|host| authority(host).filter(|_| hosts.next().is_none()));
        // A request target with a name in it counts more than the header.
        for host in [uri.authority().cloned().map(Some), host.clone()].into_iter().flatten() {
            let name = host.as_ref().map_or("", Authority::as_str);
            if !host.as_ref().is_some_and(|host| self.is_ours(host)) {
                let message = format!(
                    "this server does not answer to the name {:?}; call it by an address or localhost, or add the name \
                     to server.hosts in its config",
                    short(name)
                );
                return Err(ApiError::new(StatusCode::MISDIRECTED_REQUEST, "host_not_allowed", message));
            }
        }
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(None) };
        let text = origin.to_str().unwrap_or_default().to_ascii_lowercase();
        if self.origins.contains(&text) {
            return Ok(Some(Guest(origin.clone())));
        }
        let page = text.parse::<Uri>().ok();
        let own = page.as_ref().zip(host.flatten()).is_some_and(|(page, host)| is_page_of(page, &host));
        own.then_some(None).ok_or_else(|| {
            let message = "pages of other origins may not use this server; open its own page, connect from a program \
                           that sends no Origin header, or add the page's origin to server.origins in its config";
            ApiError::new(StatusCode::FORBIDDEN, "origin_not_allowed", message)
        })
    }

    fn is_ours(&self, host: &Authority) -> bool {
        let name = host.host().trim_end_matches('.').to_ascii_lowercase();
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        // No page can let an address lead elsewhere, and browsers keep names below localhost on the machine.
        let fixed = bare.parse::<Ipv4Addr>().is_ok()
            || bare.parse::<Ipv6Addr>().is_ok()
            || name == "localhost"
            || name.ends_with(".localhost");
        self.any_host || fixed || self.hosts.contains(&name)
    }
}

/// A `Host` that is a name or an address, perhaps with a port.
fn authority(host: &HeaderValue) -> Option<Authority> {
    let host = host.to_str().ok().filter(|host| !host.contains('@'))?;
    host.parse().ok()
}

/// Whether a page comes from where a request goes to.
fn is_page_of(page: &Uri, host: &Authority) -> bool {
    let usual = match page.scheme_str() {
        Some("https") => 443,
        Some("http") => 80,
        _ => return false,
    };
    page.authority().is_some_and(|page| {
        let port = |authority: &Authority| authority.port_u16().unwrap_or(usual);
        page.host().eq_ignore_ascii_case(host.host()) && port(page) == port(host)
    })
}

impl Guest {
    /// Lets the page read the answer.
    pub fn admit(&self, response: &mut Response) {
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, self.0.clone());
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, READABLE);
        headers.append(header::VARY, HeaderValue::from_static("Origin"));
    }

    /// The answer to a browser that asks what the page may send; `None` if the request is no such question.
    pub fn preflight(method: &Method, headers: &HeaderMap) -> Option<Response> {
        let asks = method == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        asks.then(|| {
            let allowed = [
                (header::ACCESS_CONTROL_ALLOW_METHODS, METHODS),
                (header::ACCESS_CONTROL_ALLOW_HEADERS, allowed_headers(headers)),
                (header::ACCESS_CONTROL_MAX_AGE, REMEMBER),
            ];
            (StatusCode::NO_CONTENT, allowed).into_response()
        })
    }
}

/// What a page may send: the usual headers, and those of a known client that it asks for.
fn allowed_headers(headers: &HeaderMap) -> HeaderValue {
    /// Most names of a client that are answered.
    const MOST: usize = 32;
    let asked = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS).and_then(|names| names.to_str().ok());
    let asked = asked.unwrap_or_default().split(',').map(|name| name.trim().to_ascii_lowercase());
    let plain = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let of_client = asked.filter(|name| name.starts_with(CLIENT) && name.len() < 64 && plain(name)).take(MOST);
    let names: Vec<String> = HEADERS.into_iter().map(str::to_owned).chain(of_client).collect();
    // Letters, digits and marks only.
    HeaderValue::from_str(&names.join(", ")).unwrap_or(HeaderValue::from_static("authorization, content-type"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_config::{AccessConfig, Config, KeyConfig};
    use proptest::prelude::*;

    fn sites(keys: bool) -> Sites {
        let access = AccessConfig {
            hosts: vec!["voice.example".to_owned()],
            origins: vec!["https://app.example".to_owned(), "http://app.example:3000".to_owned()],
            ..AccessConfig::default()
        };
        let keys = if keys { vec![KeyConfig::new("a", [0; 32])] } else { Vec::new() };
        Sites::new(&ServerConfig { access, keys, ..Config::default().server })
    }

    fn check(sites: &Sites, host: &str, origin: Option<&str>) -> Result<Option<Guest>, &'static str> {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        sites.check(&Uri::from_static("/"), &headers).map_err(|error| error.code)
    }

    #[test]
    fn only_names_of_the_server_are_taken() {
        let sites = sites(false);
        for host in [
            "localhost",
            "LOCALHOST:8080",
            "me.localhost",
            "localhost.",
            "127.0.0.1:80",
            "192.0.2.7",
            "[::1]:8080",
            "voice.example",
            "Voice.Example.:443",
        ] {
            assert_eq!(check(&sites, host, None), Ok(None), "{host}");
        }
        for host in [
            "rebound.example",
            "localhost.rebound.example",
            "127.0.0.1.rebound.example",
            "voice.example.rebound.example",
            "evil@localhost",
            "localhost:80:80",
            "notlocalhost",
            "1.2.3",
            "",
        ] {
            assert_eq!(check(&sites, host, None), Err("host_not_allowed"), "{host}");
        }
    }

    #[test]
    fn a_name_in_the_request_target_and_a_second_host_count_too() {
        let sites = sites(false);
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("localhost"));
        assert!(sites.check(&Uri::from_static("http://rebound.example/"), &headers).is_err());
        assert!(sites.check(&Uri::from_static("http://localhost/"), &headers).is_ok());
        headers.append(header::HOST, HeaderValue::from_static("localhost"));
        assert!(sites.check(&Uri::from_static("/"), &headers).is_err());
        assert!(sites.check(&Uri::from_static("/"), &HeaderMap::new()).is_ok(), "a browser always names a host");
    }

    #[test]
    fn programs_our_own_page_and_named_pages_may_connect() {
        let sites = sites(false);
        for (origin, host) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080"),
            ("https://Voice.example", "voice.example"),
            ("https://voice.example", "voice.example:443"),
            ("http://[::1]:8080", "[::1]:8080"),
        ] {
            assert_eq!(check(&sites, host, Some(origin)), Ok(None), "{origin}");
        }
        for origin in ["https://app.example", "https://App.example", "http://app.example:3000"] {
            assert!(matches!(check(&sites, "voice.example", Some(origin)), Ok(Some(_))), "{origin}");
        }
    }

    #[test]
    fn other_pages_may_not() {
        for other in [
            "http://evil.example",
            "http://127.0.0.1:9",
            "null",
            "file://",
            "http://127.0.0.1:8080.evil.example",
            "https://127.0.0.1:8080.",
            "http://app.example",
            "https://app.example:3000",
            "https://app.example.evil.example",
            "",
        ] {
            assert_eq!(check(&sites(false), "127.0.0.1:8080", Some(other)), Err("origin_not_allowed"), "{other}");
        }
    }

    #[test]
    fn with_keys_an_empty_list_takes_any_name() {
        let mut config = ServerConfig { keys: vec![KeyConfig::new("a", [0; 32])], ..Config::default().server };
        assert!(check(&Sites::new(&config), "voice.example", None).is_ok());
        config.keys.clear();
        assert!(check(&Sites::new(&config), "voice.example", None).is_err());
        assert_eq!(check(&sites(true), "rebound.example", None), Err("host_not_allowed"));
    }

    proptest! {
        /// Whatever a page is called, its name is not ours unless it is listed, an address, or below localhost.
        #[test]
        fn no_other_name_passes(name in "[a-z0-9.-]{1,24}\\.(com|example|local|internal)\\.?(:[0-9]{1,5})?") {
            prop_assume!(!name.starts_with("voice.example"));
            let origin = format!("http://{name}");
            prop_assert!(check(&sites(false), &name, Some(&origin)).is_err());
        }
    }
}
