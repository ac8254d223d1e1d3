//! Client secrets: keys for a short time, with which a browser opens sessions of the realtime protocol without knowing
//! the key of the server that it talks for. They are kept by their hashes and lost with the process.

use omni_config::hash_key;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What every secret begins with; no key of the config needs to.
pub(super) const PREFIX: &str = "ek_";
/// Secrets that are kept at the same time.
const MOST: usize = 4096;
/// Of one key, so that it does not displace those of the others.
const MOST_OF_A_KEY: usize = 512;
/// Bytes of a secret's session as JSON.
pub(super) const MAX_SESSION_BYTES: usize = 16 << 10;

/// What a secret is good for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Secret {
    /// The name of the key that made it; `None` on a server without keys.
    pub key: Option<String>,
    /// Until when it opens sessions, Unix seconds.
    pub expires_at: u64,
    /// With what they begin: the fields of `session.update`.
    pub session: Map<String, Value>,
}

/// There are too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{most} client secrets are in use already; try again in {} s, when one expires, or let them live shorter \
     (expires_after)",
    wait.as_secs()
)]
pub(super) struct TooMany {
    most: usize,
    /// Until one of them expires, so that there is room.
    pub wait: Duration,
}

/// Why one opens nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unusable {
    /// It was never made, or long ago.
    Unknown,
    /// Its time is over.
    Expired,
}

/// Those of a process.
#[derive(Debug, Default)]
pub(super) struct Secrets(Mutex<HashMap<[u8; 32], Arc<Secret>>>);

impl Secrets {
    /// Keeps a secret until it expires; `now` in Unix seconds.
    ///
    /// # Errors
    /// When there are too many, of all keys or of this one.
    pub fn add(&self, value: &str, secret: Secret, now: u64) -> Result<(), TooMany> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = secret.key.as_deref();
        if has_room(&all, key, now).is_err() {
            all.retain(|_, secret| secret.expires_at > now);
            has_room(&all, key, now)?;
        }
        all.insert(hash_key(value), Arc::new(secret));
        Ok(())
    }

    /// What a secret is good for at `now`, in Unix seconds.
    ///
    /// # Errors
    /// Why it is good for nothing.
    pub fn find(&self, value: &str, now: u64) -> Result<Arc<Secret>, Unusable> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let secret = all.get(&hash_key(value)).ok_or(Unusable::Unknown)?;
        if secret.expires_at > now { Ok(Arc::clone(secret)) } else { Err(Unusable::Expired) }
    }
}

/// Whether a secret more of this key may be kept.
fn has_room(all: &HashMap<[u8; 32], Arc<Secret>>, key: Option<&str>, now: u64) -> Result<(), TooMany> {
    let of_a_key = if key.is_some() { MOST_OF_A_KEY } else { MOST };
    let own = || all.values().filter(|secret| secret.key.as_deref() == key);
    // The key's own first: one of them that expires makes room among all, too.
    if own().count() >= of_a_key {
        return Err(TooMany { most: of_a_key, wait: until_one_expires(own(), now) });
    }
    if all.len() >= MOST {
        return Err(TooMany { most: MOST, wait: until_one_expires(all.values(), now) });
    }
    Ok(())
}

fn until_one_expires<'a>(secrets: impl Iterator<Item = &'a Arc<Secret>>, now: u64) -> Duration {
    let first = secrets.map(|secret| secret.expires_at).min();
    Duration::from_secs(first.unwrap_or(now).saturating_sub(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(key: &str, expires_at: u64) -> Secret {
        Secret { key: Some(key.to_owned()), expires_at, session: Map::new() }
    }

    #[test]
    fn a_secret_is_found_until_it_expires_and_by_its_own_value_only() {
        let secrets = Secrets::default();
        secrets.add("ek_a", secret("app", 100), 40).unwrap();
        assert_eq!(*secrets.find("ek_a", 99).unwrap(), secret("app", 100));
        assert_eq!(secrets.find("ek_a", 100), Err(Unusable::Expired));
        assert_eq!(secrets.find("ek_b", 99), Err(Unusable::Unknown));
    }

    #[test]
    fn a_key_has_its_part_and_expired_ones_make_room() {
        let secrets = Secrets::default();
        for i in 0..MOST_OF_A_KEY {
            secrets.add(&format!("ek_{i}"), secret("greedy", 100), 0).unwrap();
        }
        let full = TooMany { most: MOST_OF_A_KEY, wait: Duration::from_secs(1) };
        assert_eq!(secrets.add("ek_more", secret("greedy", 100), 99), Err(full));
        secrets.add("ek_other", secret("other", 200), 99).unwrap();
        secrets.add("ek_more", secret("greedy", 300), 100).unwrap();
        assert_eq!(secrets.find("ek_0", 99), Err(Unusable::Unknown), "it made room");
        assert!(secrets.find("ek_other", 150).is_ok() && secrets.find("ek_more", 150).is_ok());
    }

    #[test]
    fn who_gets_no_secret_is_told_when_the_first_that_is_in_the_way_expires() {
        let secrets = Secrets::default();
        let refused = |key: &str, now| secrets.add("ek_more", secret(key, 9999), now).unwrap_err();
        let keys = MOST / MOST_OF_A_KEY;
        for key in 0..keys as u64 {
            for i in 0..MOST_OF_A_KEY as u64 {
                let expires_at = 1000 + 100 * (keys as u64 - key) + i;
                secrets.add(&format!("ek_{key}_{i}"), secret(&key.to_string(), expires_at), 0).unwrap();
            }
        }
        // A key that has its part waits for its own; one that has none for the first of all.
        assert_eq!(refused("0", 900), TooMany { most: MOST_OF_A_KEY, wait: Duration::from_secs(900) });
        assert_eq!(refused("other", 900), TooMany { most: MOST, wait: Duration::from_secs(200) });
        let told = refused("other", 900).to_string();
        assert!(told.contains("4096 client secrets") && told.contains("try again in 200 s"), "{told}");
        assert!(secrets.add("ek_more", secret("other", 9999), 900 + 200).is_ok());
    }
}
