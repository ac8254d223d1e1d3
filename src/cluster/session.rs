//! A session of Zenoh that finds nobody by itself.

use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;
use zenoh::Session;

/// Batches of 64 KiB that wait for a connection: Zenoh takes no more.
const LARGEST_QUEUE: usize = 16;

/// Where a session meets others, and how.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `HOST:PORT` at which it listens.
    pub listen: Option<String>,
    /// `HOST:PORT` of others, to which it connects again and again.
    pub join: Vec<String>,
    /// `None`: without certificates, for tests on one machine.
    pub tls: Option<Tls>,
    /// How long the other side may say nothing before it counts as gone.
    pub silence: Duration,
}

/// Files of PEM.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Has signed the certificates of all sides.
    pub ca: PathBuf,
    /// Of this side.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// What does not work between hosts.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The session cannot be opened as the settings say; it may be later.
    #[error("{0}")]
    Session(String),
    /// A file of the certificates cannot be used.
    #[error("{0}")]
    Certificate(String),
    /// The other side does not open a link, and why.
    #[error("{0}")]
    Refused(String),
}

impl From<zenoh::Error> for ClusterError {
    fn from(error: zenoh::Error) -> ClusterError {
        ClusterError::Session(error.to_string())
    }
}

impl Settings {
    pub(super) async fn open(&self) -> Result<Session, ClusterError> {
        if let Some(tls) = &self.tls {
            tls.check()?;
        }
        Ok(zenoh::open(self.config()?).await?)
    }

    fn config(&self) -> Result<zenoh::Config, ClusterError> {
        // Not TLS over TCP: Zenoh's is not sound (eclipse-zenoh/zenoh#2557).
        let scheme = if self.tls.is_some() { "quic" } else { "tcp" };
        let endpoint = |address: &String| format!("{scheme}/{address}");
        let at = |addresses: &mut dyn Iterator<Item = &String>| Value::from_iter(addresses.map(endpoint));
        let silence = u64::try_from(self.silence.as_millis()).unwrap_or(u64::MAX);
        let mut config = zenoh::Config::default();
        let mut set = |key: &str, value: Value| config.insert_json5(key, &value.to_string());
        set("mode", json!("peer"))?;
        set("listen/endpoints", at(&mut self.listen.iter()))?;
        set("connect/endpoints", at(&mut self.join.iter()))?;
        set("connect/exit_on_failure", json!(false))?;
        // Who is there is told by tokens, later.
        set("open/return_conditions", json!({ "connect_scouted": false, "declares": false }))?;
        // One that comes back is used within a second.
        set("connect/retry", json!({ "period_init_ms": 100, "period_max_ms": 500, "period_increase_factor": 2 }))?;
        set("scouting/multicast/enabled", json!(false))?;
        set("scouting/gossip/enabled", json!(false))?;
        set("transport/shared_memory/enabled", json!(false))?;
        // A connection without a sign of life for so long is closed.
        set("transport/link/tx/lease", json!(silence))?;
        // Zenoh waits for a connection that takes nothing, and threads that serve the others wait with it. Lines send no
        // more than there is room for in front of each, so it does not have to; if it has to all the same, then for half
        // of the time after which others miss a sign of life.
        set("transport/link/tx/queue/size/data", json!(LARGEST_QUEUE))?;
        // What waits for a connection shares batches, and what finds none waiting does not wait for more.
        set("transport/link/tx/queue/batching/time_limit", json!(0))?;
        set("transport/link/tx/queue/congestion_control/block/wait_before_close", json!(silence * 500))?;
        if let Some(tls) = &self.tls {
            let (ca, certificate, key) = (json!(tls.ca), json!(tls.certificate), json!(tls.key));
            set("transport/link/tls/root_ca_certificate", ca)?;
            for side in ["listen", "connect"] {
                set(&format!("transport/link/tls/{side}_certificate"), certificate.clone())?;
                set(&format!("transport/link/tls/{side}_private_key"), key.clone())?;
            }
            set("transport/link/tls/enable_mtls", json!(true))?;
            set("transport/link/tls/verify_name_on_connect", json!(true))?;
            set("transport/link/tls/close_link_on_expiration", json!(true))?;
        }
        Ok(config)
    }
}
