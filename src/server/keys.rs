//! Whose request it is: by its key where the config has keys, by its address where it has none. Keys are never logged,
//! kept or repeated.

use axum::http::{HeaderMap, header};
use omni_config::{KeyConfig, ServerConfig, hash_key};
use omni_engine::{Tenant, TenantId};
use std::net::{IpAddr, Ipv6Addr};

/// How OpenAI's browser clients send their key over a WebSocket, where they cannot set a header.
const IN_PROTOCOL: &str = "openai-insecure-api-key.";

/// The keys of the config.
#[derive(Debug)]
pub(super) struct Keys(Vec<KeyConfig>);

impl Keys {
    /// Those of a config.
    pub fn new(config: &ServerConfig) -> Keys {
        Keys(config.keys.clone())
    }

    /// The tenant who has this key. Compares the hashes of all keys to their ends, so that the time tells nothing.
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

    /// Whose request it is; `None` where the config has keys and this is none of them.
    pub fn caller(&self, headers: &HeaderMap, address: IpAddr) -> Option<Tenant> {
        if self.0.is_empty() {
            return Some(Tenant { id: TenantId::Address(network(address)), ..Tenant::default() });
        }
        key(headers).and_then(|key| self.holder(key))
    }
}

/// The key that a request sends.
pub(super) fn key(headers: &HeaderMap) -> Option<&str> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
        return scheme.eq_ignore_ascii_case("bearer").then_some(key.trim());
    }
    let protocols = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    protocols.flat_map(|list| list.split(',')).find_map(|protocol| protocol.trim().strip_prefix(IN_PROTOCOL))
}

/// One tenant has one IPv4 address, or a /64 network of IPv6 addresses to itself.
pub(super) fn network(address: IpAddr) -> IpAddr {
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
        let config = |name: &str, weight| KeyConfig {
            name: name.into(),
            sha256: hash_key(name),
            weight,
            max_requests: Some(3),
            requests_per_minute: None,
        };
        Keys(vec![config("first", 1), config("second", 5)])
    }

    fn tenant(name: header::HeaderName, value: &str) -> Option<Tenant> {
        let headers = HeaderMap::from_iter([(name, value.parse().unwrap())]);
        keys().caller(&headers, IpAddr::from([127, 0, 0, 1]))
    }

    #[test]
    fn a_key_comes_in_a_header_or_as_a_protocol() {
        let second = Tenant { id: TenantId::Key(1), weight: 5, max_requests: Some(3), requests_per_minute: None };
        assert_eq!(tenant(header::AUTHORIZATION, "Bearer second"), Some(second));
        assert_eq!(tenant(header::AUTHORIZATION, "bearer  second "), Some(second));
        let protocols = "realtime, openai-insecure-api-key.second, other";
        assert_eq!(tenant(header::SEC_WEBSOCKET_PROTOCOL, protocols), Some(second));
        for wrong in ["Bearer", "Bearer ", "Basic second", "second", "Bearer secon", "Bearer second2", "Bearer SECOND"]
        {
            assert_eq!(tenant(header::AUTHORIZATION, wrong), None, "{wrong}");
        }
        assert_eq!(tenant(header::SEC_WEBSOCKET_PROTOCOL, "realtime"), None);
    }

    #[test]
    fn without_keys_a_tenant_is_an_address() {
        let of = |address: &str| network(address.parse().unwrap()).to_string();
        assert_eq!(of("192.0.2.7"), "192.0.2.7");
        assert_eq!(of("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(of("::1"), "::1");
    }
}
