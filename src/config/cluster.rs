//! `[cluster]`: stages on other hosts. A gateway, `omni-actors run`, uses the nodes that are joined to it; a node,
//! `omni-actors node`, runs the stages that it names for any gateway.

use super::access::texts;
use super::reader::Reader;
use super::replicas::MOST;
use super::{Placement, StageConfig};
use omni_core::ids::StageName;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `[cluster]`
#[derive(Clone, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct ClusterConfig {
    /// Where others join; `None`: nowhere.
    pub listen: Option<SocketAddr>,
    /// Where others listen, `HOST:PORT` each.
    pub join: Vec<String>,
    /// Who each side of a connection is and whom it trusts; `None`: it asks nobody, see `insecure`.
    pub tls: Option<ClusterTls>,
    /// Whether connections need no certificates.
    pub insecure: bool,
    /// Gateway: most nodes that it uses at the same time, of those that run a stage: a node counts for each that it runs.
    pub max_nodes: usize,
    /// How long the other side of a link may say nothing before it counts as gone.
    pub silence: Duration,
    /// Node: its name in logs and `/health`; `None`: that of the machine.
    pub name: Option<String>,
    /// Node: the stages that it runs.
    pub stages: Vec<StageName>,
    /// Node: gateways that may use it at the same time; each has an equal share of `limits.max_requests`.
    pub gateways: usize,
}

/// The files of `[cluster]`, PEM each.
#[derive(Clone, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct ClusterTls {
    /// The authority that has signed the certificates of all gateways and nodes.
    pub ca: PathBuf,
    /// The certificate of this one.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl ClusterConfig {
    /// Whether this config has a place at which gateways and nodes meet.
    pub fn is_set(&self) -> bool {
        self.listen.is_some() || !self.join.is_empty()
    }

    /// Why it cannot be used, if it cannot: the key and what is wrong.
    pub fn problem(&self) -> Option<(&'static str, &'static str)> {
        if !self.is_set() {
            return None;
        }
        if self.tls.is_none() && !self.insecure {
            return Some(("cluster", "needs `ca`, `certificate` and `key`: nobody joins without a certificate"));
        }
        if self.tls.is_some() && self.insecure {
            return Some(("cluster.insecure", "is true, and there are certificates: leave one of them out"));
        }
        let stays = |address: &String| {
            let host = address.rsplit_once(':').map_or("", |(host, _)| host);
            matches!(host, "localhost" | "127.0.0.1" | "[::1]")
        };
        if self.insecure && !(self.listen.is_none_or(|at| at.ip().is_loopback()) && self.join.iter().all(stays)) {
            return Some(("cluster.insecure", "is for tests on one machine: between machines certificates are needed"));
        }
        None
    }
}

pub(super) fn cluster(r: &mut Reader, base: &Path) -> ClusterConfig {
    let allowed = "an address and a port, such as \"0.0.0.0:7447\", or empty for none";
    let listen = r.text("cluster.listen", "", allowed, |text| match text {
        "" => Some(None),
        text => text.parse().ok().map(Some),
    });
    let allowed = "a list of hosts with ports, such as [\"gateway.example.org:7447\"]".to_owned();
    let join = r.value("cluster.join", "[]", allowed, |value| texts(value, host_and_port));
    let file = |text: &str| Some(Some(base.join(text)).filter(|_| !text.trim().is_empty()));
    let mut file = |key: &str| r.text(key, "", "a file of PEM, or empty for none", file).flatten();
    let (ca, certificate, key) = (file("cluster.ca"), file("cluster.certificate"), file("cluster.key"));
    let tls = match (ca, certificate, key) {
        (Some(ca), Some(certificate), Some(key)) => Some(ClusterTls { ca, certificate, key }),
        (None, None, None) => None,
        _ => {
            r.complain("cluster", "needs all of `ca`, `certificate` and `key`, or none");
            None
        }
    };
    let (ms, secs) = (Duration::from_millis, Duration::from_secs);
    let name = |text: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        (text.len() <= 64 && text.chars().all(plain)).then(|| Some(text.to_owned()).filter(|text| !text.is_empty()))
    };
    let allowed = "a list of stages, such as [\"talker\", \"vocoder\"]".to_owned();
    let stage = |text: &str| StageName::ALL.into_iter().find(|stage| stage.as_str() == text);
    let config = ClusterConfig {
        listen: listen.flatten(),
        join: join.unwrap_or_default(),
        tls,
        insecure: r.switch("cluster.insecure", false),
        max_nodes: r.int("cluster.max_nodes", 8, 1..=MOST),
        // Less than a listener of an answer under way has in hand, more than a busy machine keeps a thread waiting.
        silence: r.duration("cluster.silence", secs(2), ms(200)..=secs(600)),
        name: r.text("cluster.name", "", "at most 64 letters, digits, dots, - or _, or empty", name).flatten(),
        stages: r.value("cluster.stages", "[]", allowed, |value| texts(value, stage)).unwrap_or_default(),
        gateways: r.int("cluster.gateways", 1, 1..=64),
    };
    if let Some((key, message)) = config.problem() {
        r.complain(key, message);
    }
    config
}

/// Complains of stages that are on nodes where there can be none.
pub(super) fn check(r: &mut Reader, cluster: &ClusterConfig, stages: &[StageConfig]) {
    for (stage, name) in stages.iter().zip(StageName::ALL) {
        if stage.placement != Placement::Nodes {
            continue;
        }
        if !cluster.is_set() {
            r.complain(&format!("stages.{name}.placement"), "is \"nodes\": say in [cluster] where nodes join");
        }
        if stage.replicas != super::Replicas::Count(1) {
            let message = "is set, and the stage is on nodes: cluster.max_nodes says how many";
            r.complain(&format!("stages.{name}.replicas"), message);
        }
    }
}

fn host_and_port(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '[' | ']');
    (!host.is_empty() && host.chars().all(plain) && port.parse::<u16>().is_ok()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use crate::parse;
    use std::path::Path;

    fn told(text: &str) -> String {
        parse(text, Path::new(""), &[]).map_or_else(|error| error.to_string(), |_| "fine".to_owned())
    }

    const KEYS: &str = "ca = \"ca.pem\"\ncertificate = \"own.pem\"\nkey = \"own.key\"\n";

    #[test]
    fn nobody_joins_without_a_certificate() {
        let listen = |address: &str, rest: &str| told(&format!("[cluster]\nlisten = \"{address}\"\n{rest}"));
        assert_eq!(listen("0.0.0.0:7447", KEYS), "fine");
        assert_eq!(listen("127.0.0.1:0", "insecure = true"), "fine");
        assert!(listen("0.0.0.0:7447", "").contains("nobody joins without a certificate"));
        assert!(listen("0.0.0.0:7447", "insecure = true").contains("between machines certificates are needed"));
        assert!(listen("127.0.0.1:0", "join = [\"far:1\"]\ninsecure = true").contains("between machines"));
        assert!(listen("0.0.0.0:7447", "ca = \"ca.pem\"").contains("needs all of"));
        assert!(listen("127.0.0.1:0", &format!("{KEYS}insecure = true")).contains("leave one of them out"));
    }

    #[test]
    fn stages_on_nodes_need_a_place_where_nodes_join() {
        let on_nodes = "[stages.talker]\nplacement = \"nodes\"\n";
        assert!(told(on_nodes).contains("say in [cluster] where nodes join"));
        let cluster = format!("{on_nodes}replicas = 2\n[cluster]\njoin = [\"[::1]:7447\"]\n{KEYS}");
        assert!(told(&cluster).contains("cluster.max_nodes says how many"));
        assert_eq!(told(&cluster.replace("replicas = 2\n", "")), "fine");
    }
}
