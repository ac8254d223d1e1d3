//! Whose request it is: by its key where the config has keys, by its address where it has none. Keys are never logged,
//! kept or repeated.

use super::quota::Key;
use axum::http::{HeaderMap, header};
use omni_config::{KeyConfig, hash_key};
use omni_engine::{Tenant, TenantId};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// How OpenAI's browser clients send their key over a WebSocket, where they cannot set a header.
const IN_PROTOCOL: &str = "openai-insecure-api-key.";
/// Keys that have series of their own in the metrics; those that come later, after many reloads, share one.
const LABELLED: usize = 256;
/// The label of the others. No key can be called so: names of keys have no parentheses.
const OTHERS: &str = "(others)";

/// Every key that the process has seen, by name: a key that comes back after a reload has used what it had used.
#[derive(Debug, Default)]
pub(super) struct Registry(BTreeMap<String, Arc<Key>>);

impl Registry {
    /// The keys of a config, which holds from now on.
    pub fn configure(&mut self, configs: &[KeyConfig]) -> Keys {
        for config in configs {
            let number = self.0.len();
            let label = if number < LABELLED { &config.name } else { OTHERS };
            // A config has less keys than numbers.
            let new = || Arc::new(Key::new(&config.name, u32::try_from(number).unwrap_or(u32::MAX), label));
            self.0.entry(config.name.clone()).or_insert_with(new);
        }
        for (name, key) in &self.0 {
            key.configure(configs.iter().find(|config| config.name == *name));
        }
        let known = |config: &KeyConfig| Some((config.sha256, Arc::clone(self.0.get(&config.name)?)));
        Keys(configs.iter().filter_map(known).collect())
    }
}

/// The keys of a config, by their hashes.
#[derive(Debug)]
pub(super) struct Keys(Vec<([u8; 32], Arc<Key>)>);

/// Whose request it is.
#[derive(Debug)]
pub(super) enum Holder {
    /// That of a key.
    Key(Arc<Key>),
    /// That of an address; the server has no keys.
    Address(Tenant),
}

impl Keys {
    /// The holder of this key. Compares the hashes of all keys to their ends, so that the time tells nothing.
    fn holder(&self, key: &str) -> Option<&Arc<Key>> {
        let hash = hash_key(key);
        let mut holder = None;
        for (known, key) in &self.0 {
            let difference = hash.iter().zip(known).fold(0, |sum, (a, b)| std::hint::black_box(sum | (a ^ b)));
            if difference == 0 {
                holder = Some(key);
            }
        }
        holder
    }

    /// Whose request it is; `None` where the config has keys and this is none of them.
    pub fn caller(&self, headers: &HeaderMap, address: IpAddr) -> Option<Holder> {
        if self.0.is_empty() {
            return Some(Holder::Address(by_address(address)));
        }
        key(headers).and_then(|key| self.holder(key)).cloned().map(Holder::Key)
    }

    /// Whose request it is that comes for the key of this name; `None` where the config has keys and this is none of
    /// them any more.
    pub fn named(&self, name: Option<&str>, address: IpAddr) -> Option<Holder> {
        if self.0.is_empty() {
            return Some(Holder::Address(by_address(address)));
        }
        let (_, key) = self.0.iter().find(|(_, key)| Some(key.name()) == name)?;
        Some(Holder::Key(Arc::clone(key)))
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

/// Whose request it is, where its client sends no key.
pub(super) fn by_address(address: IpAddr) -> Tenant {
    Tenant { id: TenantId::Address(network(address)), ..Tenant::default() }
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

    fn config(name: &str, weight: u32) -> KeyConfig {
        KeyConfig { weight, max_requests: Some(3), ..KeyConfig::new(name, hash_key(name)) }
    }

    fn of(keys: &Keys, name: header::HeaderName, value: &str) -> Option<Tenant> {
        let headers = HeaderMap::from_iter([(name, value.parse().unwrap())]);
        match keys.caller(&headers, IpAddr::from([127, 0, 0, 1]))? {
            Holder::Key(key) => Some(key.tenant()),
            Holder::Address(tenant) => Some(tenant),
        }
    }

    #[test]
    fn a_key_comes_in_a_header_or_as_a_protocol() {
        let keys = Registry::default().configure(&[config("first", 1), config("second", 5)]);
        let second = Tenant { id: TenantId::Key(1), weight: 5, max_requests: Some(3), requests_per_minute: None };
        assert_eq!(of(&keys, header::AUTHORIZATION, "Bearer second"), Some(second));
        assert_eq!(of(&keys, header::AUTHORIZATION, "bearer  second "), Some(second));
        let protocols = "realtime, openai-insecure-api-key.second, other";
        assert_eq!(of(&keys, header::SEC_WEBSOCKET_PROTOCOL, protocols), Some(second));
        for wrong in ["Bearer", "Bearer ", "Basic second", "second", "Bearer secon", "Bearer second2", "Bearer SECOND"]
        {
            assert_eq!(of(&keys, header::AUTHORIZATION, wrong), None, "{wrong}");
        }
        assert_eq!(of(&keys, header::SEC_WEBSOCKET_PROTOCOL, "realtime"), None);
    }

    #[test]
    fn without_keys_a_tenant_is_an_address() {
        let of = |address: &str| network(address.parse().unwrap()).to_string();
        assert_eq!(of("192.0.2.7"), "192.0.2.7");
        assert_eq!(of("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(of("::1"), "::1");
    }

    #[test]
    fn a_key_keeps_its_number_when_others_go() {
        let mut registry = Registry::default();
        registry.configure(&[config("first", 1), config("second", 1)]);
        let keys = registry.configure(&[config("third", 1), config("second", 1)]);
        let number = |name: &str| of(&keys, header::AUTHORIZATION, &format!("Bearer {name}")).map(|tenant| tenant.id);
        assert_eq!(["first", "second", "third"].map(number), [None, Some(TenantId::Key(1)), Some(TenantId::Key(2))]);
    }
}
