//! Tells the local network where the Wyoming listener is: DNS-SD over multicast DNS (RFC 6762, RFC 6763), which Home
//! Assistant asks for services of the type `_wyoming._tcp`.

use mdns_sd::{DaemonEvent, IfKind, Receiver, ServiceDaemon, ServiceInfo};
use std::net::SocketAddr;
use std::time::Duration;
use tracing::{info, warn};

const SERVICE: &str = "_wyoming._tcp.local.";

/// How long the last word may take.
const GOODBYE_TIME: Duration = Duration::from_secs(1);

/// Most bytes of a label of DNS.
const MAX_LABEL: usize = 63;

/// A thread that announces the listener and answers who asks for it. Dropping it ends both.
pub(crate) struct Announcement(ServiceDaemon);

impl Announcement {
    /// Announces the listener at `address` as `name`: at all addresses of the machine where `address` is none of them.
    /// The server is not worth less without it, so a failure is a line of the log.
    ///
    /// Must be called inside a Tokio runtime.
    pub fn begin(name: &str, address: SocketAddr) -> Option<Announcement> {
        let failed = |error: mdns_sd::Error| warn!(%error, %address, "Wyoming is not announced");
        Self::try_begin(name, address).map_err(failed).ok()
    }

    fn try_begin(name: &str, address: SocketAddr) -> mdns_sd::Result<Announcement> {
        let announcement = Announcement(ServiceDaemon::new()?);
        let daemon = &announcement.0;
        if !address.ip().is_loopback() {
            daemon.disable_interface(vec![IfKind::LoopbackV4, IfKind::LoopbackV6])?;
        }
        if address.is_ipv4() {
            daemon.disable_interface(IfKind::IPv6)?;
        }
        let host = format!("{}.local.", host(name, &machine()));
        let everywhere = address.ip().is_unspecified();
        let at = if everywhere { String::new() } else { address.ip().to_string() };
        let service = ServiceInfo::new(SERVICE, name, &host, at, address.port(), None)?;
        let events = daemon.monitor()?;
        daemon.register(if everywhere { service.enable_addr_auto() } else { service })?;
        tokio::spawn(tell(events));
        Ok(announcement)
    }

    /// Ends it; with `goodbye` clients forget the service at once.
    pub async fn end(self, goodbye: bool) {
        if !goodbye {
            // Nowhere left to say it.
            let _ = self.0.disable_interface(IfKind::All);
        }
        if let Ok(ended) = self.0.shutdown() {
            // An announcement that is not taken back ends with its time to live.
            let _ = tokio::time::timeout(GOODBYE_TIME, ended.recv_async()).await;
        }
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.shutdown();
    }
}

/// Writes down what becomes of the announcement, until it ends.
async fn tell(events: Receiver<DaemonEvent>) {
    while let Ok(event) = events.recv_async().await {
        match event {
            DaemonEvent::Announce(name, interfaces) => info!(name, interfaces, "Wyoming is announced"),
            DaemonEvent::NameChange(change) => {
                warn!(name = change.new_name, taken = change.original, "Wyoming is announced under another name");
            }
            DaemonEvent::Error(error) => warn!(%error, "Wyoming may not be announced"),
            _ => {}
        }
    }
}

/// The first label of the machine's name.
fn machine() -> String {
    let names = rustix::system::uname();
    names.nodename().to_string_lossy().split('.').next().unwrap_or_default().to_owned()
}

/// The host that the service is at: a name of its own, because the machine's belongs to its responder, where it has one.
fn host(name: &str, machine: &str) -> String {
    let plain = |text: &str| -> String {
        text.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect()
    };
    let mut host = format!("{}-{}", plain(machine), plain(name));
    host.truncate(MAX_LABEL);
    host.trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_one_label() {
        assert_eq!(host("omni-actors", "kitchen"), "kitchen-omni-actors");
        assert_eq!(host("Kitchen's voice. (2)", "Pi"), "pi-kitchen-s-voice---2");
        assert_eq!(host(&"ü".repeat(31), &"a".repeat(64)), "a".repeat(63));
    }
}
