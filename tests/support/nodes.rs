//! Nodes of a cluster: processes that are joined to an engine of the test over loopback, with certificates made for it.
#![allow(dead_code, reason = "each test binary uses its own part")]

use super::engine::engine;
use super::process::Watched;
use crate::support::wait::PATIENCE;
use omni_actors::config::{ClusterTls, Config, Placement};
use omni_actors::core::ids::StageName;
use omni_actors::engine::Engine;
use omni_actors::model::checkpoint::Checkpoint;
use omni_actors::tools::network::{self, Passage, Relay};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use tempfile::TempDir;

/// Signs certificates.
pub struct Authority(network::Authority);

impl Authority {
    pub fn new() -> Authority {
        Authority(network::Authority::new().unwrap())
    }

    pub fn ca(&self) -> PathBuf {
        self.0.ca()
    }

    /// A certificate for this machine, and its key.
    pub fn certify(&self, name: &str) -> ClusterTls {
        self.0.certify(name).unwrap()
    }

    /// The same for a host of another address.
    pub fn certify_at(&self, name: &str, address: Ipv4Addr) -> ClusterTls {
        self.0.certify_at(name, address).unwrap()
    }
}

/// Where a gateway of the test listens, and what its nodes need to know.
pub struct Cluster {
    pub authority: Authority,
    pub address: SocketAddr,
    pub checkpoint: PathBuf,
}

/// An address that nothing listens at now.
pub fn free_address() -> SocketAddr {
    network::free_address().unwrap()
}

impl Cluster {
    pub fn of(checkpoint: &Path) -> Cluster {
        Cluster { authority: Authority::new(), address: free_address(), checkpoint: checkpoint.to_owned() }
    }

    /// The gateway: an engine of this process, with talker and vocoder on nodes. It starts when there is one of each.
    pub async fn gateway(&self, change: impl FnOnce(&mut Config)) -> Engine {
        let checkpoint = Checkpoint::open(&self.checkpoint).unwrap();
        engine(&checkpoint, |config| {
            self.leads(config);
            change(config);
        })
        .await
    }

    /// Makes a config that of the gateway.
    pub fn leads(&self, config: &mut Config) {
        config.cluster.listen = Some(self.address);
        config.cluster.tls = Some(self.authority.certify("gateway"));
        config.cluster.max_nodes = 4;
        for stage in [StageName::Talker, StageName::Vocoder] {
            config.stages[stage as usize].placement = Placement::Nodes;
        }
    }

    /// A node with a certificate of the authority, and more lines in its config.
    pub fn node(&self, name: &str, more: &str) -> Node {
        self.node_of(&self.checkpoint, name, &self.authority.certify(name), more)
    }

    /// The same, joined through something else.
    pub fn node_through(&self, address: SocketAddr, name: &str, more: &str) -> Node {
        let lines = lines(&self.authority.certify(name));
        Node::start(&[address], &self.checkpoint, name, &format!("{lines}\n{more}"))
    }

    /// A node of this checkpoint that shows this certificate.
    pub fn node_of(&self, checkpoint: &Path, name: &str, tls: &ClusterTls, more: &str) -> Node {
        Node::start(&[self.address], checkpoint, name, &format!("{}\n{more}", lines(tls)))
    }
}

/// A certificate in `[cluster]`.
pub fn lines(ClusterTls { ca, certificate, key }: &ClusterTls) -> String {
    format!("ca = {ca:?}\ncertificate = {certificate:?}\nkey = {key:?}")
}

/// A network that can be cut: between a node and the gateway at an address. It runs on the test's runtime.
pub struct Cut {
    pub address: SocketAddr,
    relay: Relay,
}

impl Cut {
    pub async fn towards(gateway: SocketAddr) -> Cut {
        let relay = Relay::towards(gateway, 1).await.unwrap();
        Cut { address: relay.address(), relay }
    }

    /// Whether packets to the gateway arrive, and those to the node.
    pub fn passes(&self, to_gateway: bool, to_node: bool) {
        let way = |passes| if passes { Passage::Open } else { Passage::Cut };
        self.relay.set(way(to_gateway), way(to_node));
    }
}

/// A node. Dropped, it is killed.
pub struct Node {
    child: Child,
    lines: mpsc::Receiver<String>,
    _folder: TempDir,
}

impl Node {
    /// With these lines in `[cluster]`.
    pub fn start(join: &[SocketAddr], checkpoint: &Path, name: &str, lines: &str) -> Node {
        Node::start_by(Command::new(env!("CARGO_BIN_EXE_omni-actors")), join, checkpoint, name, lines)
    }

    /// The same with a command that runs this program.
    pub fn start_by(mut command: Command, join: &[SocketAddr], checkpoint: &Path, name: &str, lines: &str) -> Node {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("node.toml");
        let text = format!(
            "[model]\ncheckpoint = {checkpoint:?}\n[device]\nkind = \"cpu\"\n[telemetry]\nlog = \"info,zenoh::net::runtime::orchestrator=debug\"\n\
             [cluster]\nname = {name:?}\nstages = [\"talker\", \"vocoder\"]\n{lines}\n"
        );
        std::fs::write(&config, text).unwrap();
        command.arg("node").args(join.iter().map(|address| format!("--join={address}"))).arg(&config);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let (tell, lines) = mpsc::channel();
        let log = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || log.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Node { child, lines, _folder: folder }
    }

    pub fn watched(&self) -> Watched {
        Watched::new(self.child.id())
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn kill(&self) {
        self.watched().kill();
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        kill_process(self.pid(), Signal::TERM).unwrap();
    }

    /// Keeps it from running.
    pub fn stop(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
    }

    /// Lets it run again.
    pub fn go_on(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits for a line of its log that has this.
    pub fn says(&self, text: &str) -> String {
        let mut log = Vec::new();
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) if line.contains(text) => return line,
                Ok(line) => log.push(line),
                Err(_) => panic!("a node does not say {text:?}:\n{}", log.join("\n")),
            }
        }
    }

    /// Waits for its end.
    pub fn exit_code(&mut self) -> Option<i32> {
        self.watched().ends_within(Duration::from_secs(60));
        self.child.wait().unwrap().code()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            self.lines.iter().for_each(|line| println!("node: {line}"));
        }
    }
}
