//! Who asks: by key where the config has keys, by address where it has none. Keys are never logged, kept or repeated.

use super::app::App;
use super::error::ApiError;
use super::listen::ConnectionGuard;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use omni_config::{KeyConfig, ServerConfig, hash_key};
use omni_engine::{Tenant, TenantId};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// What answers without a key, tersely: the page, which asks for one, and what orchestrators look at.
const OPEN: [&str; 4] = ["/", "/live", "/ready", "/health"];
/// How OpenAI's browser clients say their key over a WebSocket, which can have no header of theirs.
const IN_PROTOCOL: &str = "openai-insecure-api-key.";

/// Who asks, as handlers see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    pub tenant: Tenant,
    /// May hear what is not for everybody.
    pub trusted: bool,
}

/// Whose share a request takes.
pub(super) fn caller(request: &Request) -> Tenant {
    // Every request has been through the gate.
    request.extensions().get::<Caller>().map(|caller| caller.tenant).unwrap_or_default()
}

/// The keys of the config.
#[derive(Debug)]
pub(super) struct Keys(Vec<KeyConfig>);

impl Keys {
    pub fn new(config: &ServerConfig) -> Keys {
        Keys(config.keys.clone())
    }

    /// The tenant who has this key. Hashes of all keys are compared to their ends, whatever they are.
    fn holder(&self, key: &str) -> Option<Tenant> {
        let hash = hash_key(key);
        let mut holder = None;
        for (number, known) in (0..).zip(&self.0) {
            let difference = hash.iter().zip(&known.sha256).fold(0, |sum, (a, b)| std::hint::black_box(sum | (a ^ b)));
            if difference == 0 {
                holder = Some(Tenant {
                    id: TenantId::Key(number),
                    weight: known.weight,
                    max_requests: known.max_requests,
                    requests_per_minute: known.requests_per_minute,
                });
            }
        }
        holder
    }

    fn caller(&self, headers: &HeaderMap, address: IpAddr) -> Option<Tenant> {
        if self.0.is_empty() {
            return Some(Tenant { id: TenantId::Address(network(address)), ..Tenant::default() });
        }
        said(headers).and_then(|key| self.holder(key))
    }
}

/// The middleware.
pub(super) async fn auth(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let address = request.extensions().get::<ConnectionGuard>().map(ConnectionGuard::address);
    // Every connection has one.
    let address = address.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    let caller = app.keys.caller(request.headers(), address);
    if caller.is_none() && !OPEN.contains(&request.uri().path()) {
        app.metrics.unauthorized.increment(1);
        return refuse(said(request.headers()).is_some());
    }
    let trusted = caller.is_some();
    request.extensions_mut().insert(Caller { tenant: caller.unwrap_or_default(), trusted });
    next.run(request).await
}

fn refuse(said: bool) -> Response {
    let message = if said {
        "this API key is not one of this server's"
    } else {
        "this server asks for an API key; send it as Authorization: Bearer KEY"
    };
    let mut response = ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message).into_response();
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// The key that a request says.
fn said(headers: &HeaderMap) -> Option<&str> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
        return scheme.eq_ignore_ascii_case("bearer").then_some(key.trim());
    }
    let protocols = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    protocols.flat_map(|list| list.split(',')).find_map(|protocol| protocol.trim().strip_prefix(IN_PROTOCOL))
}

/// One tenant has one IPv4 address, or a /64 network of IPv6 addresses to itself.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        let key = |name: &str, weight| KeyConfig {
            name: name.into(),
            sha256: hash_key(name),
            weight,
            max_requests: Some(3),
            requests_per_minute: None,
        };
        Keys(vec![key("first", 1), key("second", 5)])
    }

    fn told(name: header::HeaderName, value: &str) -> Option<Tenant> {
        let headers = HeaderMap::from_iter([(name, value.parse().unwrap())]);
        keys().caller(&headers, IpAddr::from([127, 0, 0, 1]))
    }

    #[test]
    fn a_key_is_found_in_both_places_and_nothing_else_is_one() {
        let second = Tenant { id: TenantId::Key(1), weight: 5, max_requests: Some(3), requests_per_minute: None };
        assert_eq!(told(header::AUTHORIZATION, "Bearer second"), Some(second));
        assert_eq!(told(header::AUTHORIZATION, "bearer  second "), Some(second));
        let protocols = "realtime, openai-insecure-api-key.second, other";
        assert_eq!(told(header::SEC_WEBSOCKET_PROTOCOL, protocols), Some(second));
        for wrong in ["Bearer", "Bearer ", "Basic second", "second", "Bearer secon", "Bearer second2", "Bearer SECOND"]
        {
            assert_eq!(told(header::AUTHORIZATION, wrong), None, "{wrong}");
        }
        assert_eq!(told(header::SEC_WEBSOCKET_PROTOCOL, "realtime"), None);
    }

    #[test]
    fn without_keys_an_address_is_a_neighbour() {
        let of = |address: &str| network(address.parse().unwrap()).to_string();
        assert_eq!(of("192.0.2.7"), "192.0.2.7");
        assert_eq!(of("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(of("::1"), "::1");
    }
}
