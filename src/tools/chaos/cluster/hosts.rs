//! The hosts of a drill: gateways and nodes, each a process of this program, and the network between them.

use super::places::{Network, Place};
use crate::network::{Authority, Passage};
use anyhow::{Context, bail};
use omni_config::{ClusterTls, FaultFile, Override};
use omni_core::ids::StageName;
use omni_fault::{FaultKind, FaultPoint, FaultRule};
use reqwest::Client;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long a gateway may take to say where it listens.
const STARTING: Duration = Duration::from_secs(60);
/// How long a gateway may take to say how it is.
const ANSWER: Duration = Duration::from_secs(5);
/// How often gateways are asked.
const LOOK: Duration = Duration::from_millis(50);
/// The stages that are on nodes.
const STAGES: [&str; 2] = ["talker", "vocoder"];
/// What people call the node that computes no more.
pub const HANGING: &str = "node-that-hangs";
/// The step of its talker with which that begins: it has sequences by then.
const HANGS_AT: u64 = 20;

/// What all hosts are started with.
pub struct Setup {
    /// The config file of the user.
    pub config: Option<PathBuf>,
    /// Keys over it.
    pub set: Vec<Override>,
    /// How many nodes.
    pub nodes: usize,
    /// How many gateways.
    pub gateways: usize,
    /// Listeners at once, all of which a gateway and a node have room for.
    pub listeners: usize,
    /// See [`Field::silence`](super::plan::Field).
    pub silence: Duration,
    /// Between them.
    pub network: Network,
}

/// Where a gateway takes requests, for those that send them.
#[derive(Default)]
pub struct Site {
    url: Mutex<Option<String>>,
    kills: AtomicU64,
}

impl Site {
    /// Its address; `None` while it is down.
    pub fn url(&self) -> Option<String> {
        self.url.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How often it was killed.
    pub fn kills(&self) -> u64 {
        self.kills.load(Ordering::SeqCst)
    }

    fn set(&self, url: Option<String>) {
        *self.url.lock().unwrap_or_else(PoisonError::into_inner) = url;
    }
}

/// A process. Dropped, it is killed.
struct Process(Child);

impl Process {
    fn start(mut command: Command) -> anyhow::Result<Process> {
        // Ctrl-C is for this program alone, which ends them.
        let started = command.stdin(Stdio::null()).process_group(0).spawn();
        Ok(Process(started.context("cannot start another process of this program")?))
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        kill_process(Pid::from_child(&self.0), signal).context("a host has ended by itself")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself, which is told elsewhere.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Gateway {
    place: Place,
    /// Where nodes join it.
    joined_at: SocketAddr,
    tls: ClusterTls,
    process: Option<Process>,
}

struct Node {
    place: Place,
    tls: ClusterTls,
    process: Option<Process>,
}

/// See the module. All of it ends when it is dropped, the processes first.
pub struct Hosts {
    gateways: Vec<Gateway>,
    nodes: Vec<Node>,
    /// Beside them, once it has been there.
    hanging: Option<Node>,
    setup: Setup,
    authority: Authority,
    sites: Arc<[Site]>,
    http: Client,
}

impl Hosts {
    /// Starts all of them. They may not have found each other when this returns.
    ///
    /// # Errors
    /// A process or a socket cannot be had, or a gateway ends at once.
    pub async fn start(mut setup: Setup) -> anyhow::Result<Hosts> {
        let authority = Authority::new().context("cannot make certificates")?;
        let gateway = |number: usize| {
            let (place, joined_at) = setup.network.gateway()?;
            let tls = place.certified(&authority, &format!("gateway-{}", number + 1))?;
            anyhow::Ok(Gateway { place, joined_at, tls, process: None })
        };
        let gateways: Vec<Gateway> = (0..setup.gateways).map(gateway).collect::<anyhow::Result<_>>()?;
        let sites = gateways.iter().map(|_| Site::default()).collect();
        let http = Client::builder().no_proxy().timeout(ANSWER).build()?;
        let mut hosts = Hosts { setup, authority, gateways, nodes: Vec::new(), hanging: None, sites, http };
        for number in 0..hosts.setup.nodes {
            let node = hosts.joining(&name(number), number as u64).await?;
            hosts.nodes.push(node);
            hosts.start_node(number)?;
        }
        for number in 0..hosts.setup.gateways {
            hosts.start_gateway(number).await?;
        }
        Ok(hosts)
    }

    /// Where requests are taken.
    pub fn sites(&self) -> Arc<[Site]> {
        Arc::clone(&self.sites)
    }

    /// A node that is not started, with its network.
    async fn joining(&mut self, name: &str, number: u64) -> anyhow::Result<Node> {
        let gateways = self.joined_at();
        let place = self.setup.network.node(number, &gateways).await?;
        Ok(Node { tls: place.certified(&self.authority, name)?, place, process: None })
    }

    fn joined_at(&self) -> Vec<SocketAddr> {
        self.gateways.iter().map(|gateway| gateway.joined_at).collect()
    }

    /// A command of this program with the user's config and keys over it; those that come last win.
    fn command(&self, place: &Place, name: &str, more: &[Override]) -> Command {
        let own = std::process::id();
        // This program, whatever becomes of its file.
        let mut command = self.setup.network.command(place, format!("/proc/{own}/exe"));
        // However this program ends, they do: it starts them on its main thread.
        command.arg(format!("--parent={own}")).arg(name).args(&self.setup.config);
        for set in self.setup.set.iter().chain(more) {
            command.arg("--set").arg(set.to_string());
        }
        command
    }

    fn node_command(&self, node: &Node, name: &str) -> anyhow::Result<Command> {
        let join = node.place.joins(&self.joined_at()).into_iter().map(|address| format!("{:?}", address.to_string()));
        let mut keys = shown(&node.tls);
        keys.push(Override::text("cluster.name", name));
        keys.push(Override::text("cluster.listen", ""));
        keys.push(toml("cluster.join", &format!("[{}]", join.collect::<Vec<_>>().join(", ")))?);
        keys.push(toml("cluster.stages", &format!("{STAGES:?}"))?);
        keys.push(toml("cluster.gateways", &self.setup.gateways.to_string())?);
        // Each gateway has its part, and must find room for all there: the others may be down.
        keys.push(toml("limits.max_requests", &(self.setup.listeners * self.setup.gateways).to_string())?);
        let mut command = self.command(&node.place, "node", &keys);
        if name == HANGING {
            let rule = FaultRule::new(StageName::Talker, FaultPoint::Runner, FaultKind::Hang);
            let rules = vec![rule.nth(HANGS_AT).times(u64::MAX)];
            let path = self.authority.folder().join("hangs.toml");
            std::fs::write(&path, FaultFile { seed: None, rules }.to_string())?;
            command.arg("--faults").arg(path);
        }
        command.stdout(Stdio::null());
        Ok(command)
    }

    /// Starts a node that is not running.
    pub fn start_node(&mut self, number: usize) -> anyhow::Result<()> {
        let command = self.node_command(&self.nodes[number], &name(number))?;
        self.nodes[number].process = Some(Process::start(command)?);
        Ok(())
    }

    /// Kills a node.
    pub fn kill_node(&mut self, number: usize) {
        self.nodes[number].process = None;
    }

    /// Keeps a node from running, or lets it go on.
    pub fn stop_node(&self, number: usize, stops: bool) -> anyhow::Result<()> {
        match &self.nodes[number].process {
            Some(process) => process.signal(if stops { Signal::STOP } else { Signal::CONT }),
            None => Ok(()),
        }
    }

    /// What becomes of packets between a node and all gateways.
    pub fn set_ways(&mut self, node: usize, to_gateways: Passage, to_node: Passage) -> anyhow::Result<()> {
        self.setup.network.set(&self.nodes[node].place, to_gateways, to_node)
    }

    /// The same of all nodes.
    pub fn set_all_ways(&mut self, passage: Passage) -> anyhow::Result<()> {
        (0..self.nodes.len()).try_for_each(|node| self.set_ways(node, passage, passage))
    }

    /// Starts one more node, whose talker hangs soon and whenever it runs again, or ends it.
    pub async fn hanging_node(&mut self, joins: bool) -> anyhow::Result<()> {
        let mut node = match self.hanging.take() {
            Some(node) => node,
            None => self.joining(HANGING, self.nodes.len() as u64).await?,
        };
        node.process = None;
        if joins {
            node.process = Some(Process::start(self.node_command(&node, HANGING)?)?);
        }
        self.hanging = Some(node);
        Ok(())
    }

    /// Kills a gateway. Who was listening to it learns that it was killed.
    pub fn kill_gateway(&mut self, number: usize) {
        let site = &self.sites[number];
        site.set(None);
        site.kills.fetch_add(1, Ordering::SeqCst);
        self.gateways[number].process = None;
    }

    /// Starts a gateway that is not running.
    pub async fn start_gateway(&mut self, number: usize) -> anyhow::Result<()> {
        let gateway = &self.gateways[number];
        let mut keys = shown(&gateway.tls);
        keys.push(Override::text("server.listen", format!("{}:0", gateway.place.address)));
        if !gateway.place.address.is_loopback() {
            // Only this machine reaches it.
            keys.push(toml("server.allow_anonymous", "true")?);
        }
        keys.push(toml("server.max_connections", &(2 * self.setup.listeners + 64).to_string())?);
        keys.push(toml("server.max_connections_per_address", "0")?);
        keys.push(Override::text("cluster.listen", gateway.joined_at.to_string()));
        keys.push(toml("cluster.join", "[]")?);
        // And one that hangs.
        keys.push(toml("cluster.max_nodes", &(self.setup.nodes + 1).to_string())?);
        keys.extend(STAGES.map(|stage| Override::text(&format!("stages.{stage}.placement"), "nodes")));
        let mut command = self.command(&gateway.place, "run", &keys);
        command.stdout(Stdio::piped());
        let mut process = Process::start(command)?;
        let (tell, told) = oneshot::channel();
        if let Some(stdout) = process.0.stdout.take() {
            std::thread::spawn(move || {
                let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
                let _ = tell.send(lines.find_map(|line| address_in(&line)));
                // Nobody waits for what else it says, and it must not wait either.
                lines.for_each(drop);
            });
        }
        let url = tokio::time::timeout(STARTING, told).await.ok().and_then(Result::ok).flatten();
        let url = url.with_context(|| format!("gateway-{} does not start; what it said is above", number + 1))?;
        self.gateways[number].process = Some(process);
        self.sites[number].set(Some(url));
        Ok(())
    }

    /// Ends every fault that has not ended.
    ///
    /// # Errors
    /// A way does not open again.
    pub fn mend(&mut self) -> anyhow::Result<()> {
        // One that has ended by itself is told by what becomes of the streams.
        (0..self.nodes.len()).for_each(|node| _ = self.stop_node(node, false));
        self.set_all_ways(Passage::Open)
    }

    /// Waits until every gateway uses every stage of every node, and has done so for as long as it may take to notice that
    /// it does not; since when.
    ///
    /// # Errors
    /// What is missing after this patience.
    pub async fn whole(&self, began: Instant, patience: Duration) -> anyhow::Result<Duration> {
        let asked = Instant::now();
        let mut since: Option<Duration> = None;
        loop {
            let missing = self.missing().await;
            let now = began.elapsed();
            match (missing, since) {
                (None, None) => since = Some(now),
                (None, Some(since)) if now - since >= self.setup.silence => return Ok(since),
                (None, Some(_)) => {}
                (Some(missing), _) if asked.elapsed() >= patience => bail!(missing),
                (Some(_), _) => since = None,
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// What a gateway does not use of a node.
    async fn missing(&self) -> Option<String> {
        for (site, number) in self.sites.iter().zip(1..) {
            let Some(cluster) = self.look(site).await else { return Some(format!("gateway-{number} says nothing")) };
            if let Some(missing) = unused(&cluster, (0..self.nodes.len()).map(name)) {
                return Some(format!("gateway-{number}: {missing}"));
            }
        }
        None
    }

    /// Whether a gateway sees the talker of the node that hangs go down after it ran, within this time.
    pub async fn hung(&self, patience: Duration) -> bool {
        let asked = Instant::now();
        let mut ran: Vec<Option<u64>> = vec![None; self.sites.len()];
        while asked.elapsed() < patience {
            for (site, ran) in self.sites.iter().zip(&mut ran) {
                let runs = self.look(site).await.and_then(|cluster| talker_runs(&cluster, HANGING));
                if ran.is_some() && *ran != runs {
                    return true;
                }
                *ran = runs;
            }
            tokio::time::sleep(LOOK).await;
        }
        false
    }

    /// Waits until a gateway makes an answer, so that its end is heard; for this time at most.
    pub async fn answers(&self, number: usize, patience: Duration) {
        let asked = Instant::now();
        while asked.elapsed() < patience {
            let cluster = self.look(&self.sites[number]).await;
            if cluster.is_some_and(|cluster| cluster["requests"].as_u64() > Some(0)) {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// How a gateway says the cluster is.
    async fn look(&self, site: &Site) -> Option<Value> {
        let url = site.url()?;
        self.http.get(format!("{url}/cluster")).send().await.ok()?.json().await.ok()
    }
}

/// What people call a node.
pub fn name(number: usize) -> String {
    format!("node-{}", number + 1)
}

fn shown(ClusterTls { ca, certificate, key }: &ClusterTls) -> Vec<Override> {
    let files = [("ca", ca), ("certificate", certificate), ("key", key)];
    let file = |(name, path): (&str, &PathBuf)| Override::text(&format!("cluster.{name}"), path.to_string_lossy());
    files.map(file).to_vec()
}

fn toml(key: &str, value: &str) -> anyhow::Result<Override> {
    format!("{key}={value}").parse().map_err(anyhow::Error::msg)
}

/// The address in a server's greeting.
fn address_in(line: &str) -> Option<String> {
    line.split([' ', ',']).find(|word| word.starts_with("http://")).map(str::to_owned)
}

/// The replicas that are on nodes of this name, of what a gateway answers to `GET /cluster`.
fn on<'a>(cluster: &'a Value, node: &str) -> impl Iterator<Item = &'a Value> {
    let nodes = cluster["nodes"].as_array().map_or(&[][..], Vec::as_slice).iter();
    let its = nodes.filter(move |listed| listed["name"] == node);
    its.flat_map(|listed| listed["stages"].as_array().map_or(&[][..], Vec::as_slice))
}

/// The first stage of a node that a gateway does not use, by what it answers to `GET /cluster`.
fn unused(cluster: &Value, nodes: impl Iterator<Item = String>) -> Option<String> {
    if cluster["ready"] != true {
        return Some("it is not ready".to_owned());
    }
    let mut all = nodes.flat_map(|node| STAGES.map(|stage| (node.clone(), stage)));
    let runs = |node: &str, stage: &str| on(cluster, node).any(|on| on["name"] == stage && on["state"] == "running");
    let (node, stage) = all.find(|(node, stage)| !runs(node, stage))?;
    Some(format!("the {stage} of {node} does not run"))
}

/// Which generation of the talker runs on a node.
fn talker_runs(cluster: &Value, node: &str) -> Option<u64> {
    let mut running = on(cluster, node).filter(|on| on["name"] == "talker" && on["state"] == "running");
    running.find_map(|on| on["generation"].as_u64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cluster(talker: &str, vocoder: &str) -> Value {
        let stages = json!([{"name": "talker", "used": true, "state": talker},
            {"name": "vocoder", "used": true, "state": vocoder}]);
        json!({"ready": true, "nodes": [{"name": "node-1", "stages": stages}]})
    }

    #[test]
    fn a_cluster_is_whole_when_every_stage_of_every_node_runs() {
        let whole = cluster("running", "running");
        assert_eq!(unused(&whole, [name(0)].into_iter()), None);
        let missing = unused(&cluster("running", "restarting"), [name(0)].into_iter());
        assert_eq!(missing.as_deref(), Some("the vocoder of node-1 does not run"));
        let missing = unused(&whole, [name(0), name(1)].into_iter());
        assert_eq!(missing.as_deref(), Some("the talker of node-2 does not run"));
        assert!(unused(&json!({"ready": false}), std::iter::empty()).is_some());
    }

    #[test]
    fn another_generation_of_a_talker_is_one_that_went_down() {
        let mut one = cluster("running", "running");
        assert_eq!(talker_runs(&one, "node-1"), None);
        one["nodes"][0]["stages"][0]["generation"] = json!(3);
        assert_eq!((talker_runs(&one, "node-1"), talker_runs(&one, "node-2")), (Some(3), None));
        one["nodes"][0]["stages"][0]["state"] = json!("restarting");
        assert_eq!(talker_runs(&one, "node-1"), None);
    }

    #[test]
    fn the_address_is_in_the_greeting() {
        assert_eq!(address_in("listening on http://127.0.0.1:80, serving x").as_deref(), Some("http://127.0.0.1:80"));
        assert_eq!(address_in("  stop it:  Ctrl-C"), None);
    }
}
