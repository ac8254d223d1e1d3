//! A network of Linux: hosts in network namespaces of their own, each joined by a pair of veth devices to a router, which
//! is a namespace, too. This program reaches all of them through a pair of its own. The kernel's own stack carries every
//! packet, so what is cut here is cut as a cable or a route is.
//!
//! ```text
//! this program  198.18.N.2 --- 198.18.N.1  router  198.18.N.1 --- 198.18.N.10  host 0
//!                                                  198.18.N.1 --- 198.18.N.11  host 1 ...
//! ```
//!
//! The program `ip` makes them, which needs the rights of root. 198.18.0.0/15 is for benchmarks of networks (RFC 2544): no
//! machine has it on a real one. N is the first that no other network of this machine has.

use super::way::Passage;
use anyhow::{Context, bail, ensure};
use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The first of its addresses that is a host's.
const FIRST: usize = 10;
/// Far more than a device takes to come up.
const UP: Duration = Duration::from_secs(10);
/// Hosts for which there are addresses.
const MOST: usize = 240;
/// A host's end of its pair.
const DEVICE: &str = "eth0";

/// See the module. Dropped, it is removed, while the processes in it go on without a network.
pub struct Namespaces {
    /// What the names of its namespaces begin with.
    name: String,
    /// N.
    number: u8,
    /// This program's end of its pair.
    device: String,
    slows: bool,
    hosts: Vec<[Passage; 2]>,
}

/// One of its hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host(usize);

/// Networks of this process so far.
static MADE: AtomicU32 = AtomicU32::new(0);

impl Namespaces {
    /// A network without hosts. Removes those of processes that were killed.
    ///
    /// # Errors
    /// The system lets this process make none, or there is no program `ip`.
    pub fn new() -> anyhow::Result<Namespaces> {
        remove_those_of_the_dead()?;
        let name = format!("omni-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let mut network = Namespaces { name, number: 0, device: String::new(), slows: false, hosts: Vec::new() };
        let router = network.router();
        ip(&["netns", "add", &router])?;
        network.take_number(&router)?;
        let (near, far) = (network.own_address().to_string(), network.address(1).to_string());
        let (device, all) = (network.device.clone(), format!("{}/24", network.address(0)));
        ip(&["addr", "add", &near, "peer", &far, "dev", &device])?;
        ip(&["link", "set", &device, "up"])?;
        ip(&["-n", &router, "addr", "add", &far, "peer", &near, "dev", "near"])?;
        ip(&["-n", &router, "link", "set", "near", "up"])?;
        ip(&["route", "add", &all, "via", &far])?;
        // What is for a host whose cable is out is lost; a router without this would tell the one that sent it.
        ip(&["-n", &router, "route", "add", "blackhole", &all])?;
        ran(network.inside(&router, "sh").args(["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]))?;
        network.slows = network.tries_to_slow(&router);
        Ok(network)
    }

    /// Whether [`Passage::Slow`] is possible: `tc` is there, and the kernel has netem.
    pub fn slows(&self) -> bool {
        self.slows
    }

    /// One more host.
    ///
    /// # Errors
    /// There are too many, or the system makes no more.
    pub fn host(&mut self) -> anyhow::Result<Host> {
        let host = Host(self.hosts.len());
        ensure!(host.0 < MOST, "a network of namespaces has at most {MOST} hosts");
        let (router, name, port) = (self.router(), self.name_of(host), port(host));
        let (near, far) = (self.address(1).to_string(), self.address_of(host).to_string());
        ip(&["netns", "add", &name])?;
        self.hosts.push([Passage::Open; 2]);
        ip(&["-n", &router, "link", "add", &port, "type", "veth", "peer", "name", DEVICE, "netns", &name])?;
        ip(&["-n", &router, "addr", "add", &near, "peer", &far, "dev", &port])?;
        ip(&["-n", &router, "link", "set", &port, "up"])?;
        ip(&["-n", &name, "link", "set", "lo", "up"])?;
        ip(&["-n", &name, "addr", "add", &far, "peer", &near, "dev", DEVICE])?;
        ip(&["-n", &name, "link", "set", DEVICE, "up"])?;
        ip(&["-n", &name, "route", "add", "default", "via", &near])?;
        self.is_up(host)?;
        Ok(host)
    }

    /// The address of this program in the network.
    pub fn own_address(&self) -> Ipv4Addr {
        self.address(2)
    }

    /// The address of a host, which all others reach.
    pub fn address_of(&self, host: Host) -> Ipv4Addr {
        self.address(FIRST + host.0)
    }

    /// The file of a host's namespace, which a thread may enter.
    pub fn file_of(&self, host: Host) -> std::path::PathBuf {
        Path::new("/run/netns").join(self.name_of(host))
    }

    /// A command that runs on a host. Its process is the program's own: `ip` becomes it.
    pub fn command(&self, host: Host, program: impl AsRef<OsStr>) -> Command {
        self.inside(&self.name_of(host), program)
    }

    /// From now on: what a host sends, and what is sent to it.
    ///
    /// # Errors
    /// The system does not do it, or cannot: no router holds packets, and only one with netem is slow.
    pub fn set(&mut self, host: Host, from_host: Passage, to_host: Passage) -> anyhow::Result<()> {
        let passages = [from_host, to_host];
        ensure!(!passages.contains(&Passage::Held), "a network of namespaces holds no packets");
        let before = std::mem::replace(&mut self.hosts[host.0], passages);
        for command in self.commands(host, before, false).iter().chain(&self.commands(host, passages, true)) {
            let words: Vec<&str> = command.split(' ').collect();
            ran(Command::new(words[0]).args(&words[1..]))?;
        }
        if passages != [Passage::Cut; 2] { self.is_up(host) } else { Ok(()) }
    }

    /// Waits until packets pass between a host and the router: the kernel lets them some time after a device is up.
    fn is_up(&self, host: Host) -> anyhow::Result<()> {
        for (namespace, device) in [(self.router(), port(host)), (self.name_of(host), DEVICE.to_owned())] {
            let began = Instant::now();
            // Each question is a process, which is pause enough.
            while !output(&["-n", &namespace, "link", "show", &device])?.contains("state UP") {
                ensure!(began.elapsed() < UP, "{device} of {namespace} does not come up");
            }
        }
        Ok(())
    }

    /// What makes the ways of a host so, or makes them open again.
    fn commands(&self, host: Host, [from_host, to_host]: [Passage; 2], makes: bool) -> Vec<String> {
        let (router, name, port, address) =
            (self.router(), self.name_of(host), port(host), self.address_of(host).to_string());
        if [from_host, to_host] == [Passage::Cut; 2] {
            // The cable is out.
            return vec![format!("ip -n {router} link set {port} {}", if makes { "down" } else { "up" })];
        }
        let one = |passage, word: &str, namespace: &str, device: &str| match passage {
            Passage::Open | Passage::Held => None,
            // The router drops what it would route, and tells nobody.
            Passage::Cut => {
                let what = if makes { "add" } else { "del" };
                Some(format!("ip -n {router} rule {what} {word} {address} blackhole"))
            }
            Passage::Slow { delay, lost } => Some(match makes {
                true => format!(
                    "tc -n {namespace} qdisc add dev {device} root netem delay {}us loss {}%",
                    delay.as_micros(),
                    lost * 100.0
                ),
                false => format!("tc -n {namespace} qdisc del dev {device} root"),
            }),
        };
        [one(from_host, "from", &name, DEVICE), one(to_host, "to", &router, &port)].into_iter().flatten().collect()
    }

    /// Makes this program's pair. Its name is what no other network can have at the same time.
    fn take_number(&mut self, router: &str) -> anyhow::Result<()> {
        for number in 0..=u8::MAX {
            let device = format!("omni-net-{number}");
            match ip(&["link", "add", &device, "type", "veth", "peer", "name", "near", "netns", router]) {
                Ok(()) => {
                    (self.number, self.device) = (number, device);
                    return Ok(());
                }
                Err(error) if format!("{error:#}").contains("File exists") => {}
                Err(error) => return Err(error),
            }
        }
        bail!("all networks of 198.18.0.0/16 are taken")
    }

    fn tries_to_slow(&self, router: &str) -> bool {
        let netem = |what: &[&str]| {
            let words = [&["-n", router, "qdisc"], what].concat();
            ran(Command::new("tc").args(words)).is_ok()
        };
        netem(&["add", "dev", "lo", "root", "netem", "delay", "1ms"]) && netem(&["del", "dev", "lo", "root"])
    }

    fn inside(&self, namespace: &str, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).arg(program);
        command
    }

    fn router(&self) -> String {
        format!("{}-router", self.name)
    }

    fn name_of(&self, host: Host) -> String {
        format!("{}-host-{}", self.name, host.0)
    }

    fn address(&self, last: usize) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.number, u8::try_from(last).unwrap_or(u8::MAX))
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        // The number is free at once: the kernel removes what is in a namespace some time after the namespace.
        if !self.device.is_empty() {
            told(ip(&["link", "del", &self.device]));
        }
        for host in 0..self.hosts.len() {
            told(ip(&["netns", "del", &self.name_of(Host(host))]));
        }
        if Path::new("/run/netns").join(self.router()).exists() {
            told(ip(&["netns", "del", &self.router()]));
        }
    }
}

/// The router's end of a host's pair.
fn port(host: Host) -> String {
    format!("host-{}", host.0)
}

/// What stays behind is not worth a panic, and must be known.
fn told(outcome: anyhow::Result<()>) {
    if let Err(error) = outcome {
        tracing::warn!(error = format!("{error:#}"), "a part of a network of namespaces stays behind");
    }
}

/// A process that is killed removes nothing.
fn remove_those_of_the_dead() -> anyhow::Result<()> {
    let listed = output(&["netns", "list"])?;
    let names = listed.lines().filter_map(|line| line.split(' ').next());
    for name in names.filter(|name| maker(name).is_some_and(|pid| !Path::new("/proc").join(pid).exists())) {
        // Two that do so at the same time find it gone.
        let _ = ip(&["netns", "del", name]);
    }
    Ok(())
}

/// The process that made a namespace of this name, if it is one of ours.
fn maker(namespace: &str) -> Option<&str> {
    let pid = namespace.strip_prefix("omni-")?.split('-').next()?;
    pid.bytes().all(|byte| byte.is_ascii_digit()).then_some(pid).filter(|pid| !pid.is_empty())
}

fn ip(words: &[&str]) -> anyhow::Result<()> {
    output(words).map(|_| ())
}

fn output(words: &[&str]) -> anyhow::Result<String> {
    ran(Command::new("ip").args(words))
}

/// Runs a command to its end; what it says.
fn ran(command: &mut Command) -> anyhow::Result<String> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let shown = words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ");
    let output = command.output().with_context(|| format!("cannot run `{shown}`"))?;
    ensure!(output.status.success(), "`{shown}`: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands(from_host: Passage, to_host: Passage, makes: bool) -> Vec<String> {
        let network = Namespaces { name: "n".into(), number: 7, device: String::new(), slows: true, hosts: vec![] };
        network.commands(Host(1), [from_host, to_host], makes)
    }

    #[test]
    fn each_state_of_a_hosts_ways_is_made_and_taken_back() {
        use Passage::{Cut, Open};
        assert_eq!(commands(Open, Open, true), [""; 0]);
        assert_eq!(commands(Cut, Cut, true), ["ip -n n-router link set host-1 down"]);
        assert_eq!(commands(Cut, Cut, false), ["ip -n n-router link set host-1 up"]);
        assert_eq!(commands(Cut, Open, true), ["ip -n n-router rule add from 198.18.7.11 blackhole"]);
        assert_eq!(commands(Open, Cut, false), ["ip -n n-router rule del to 198.18.7.11 blackhole"]);
        let slow = Passage::Slow { delay: Duration::from_millis(50), lost: 0.01 };
        let both = ["tc -n n-host-1 qdisc add dev eth0 root netem", "tc -n n-router qdisc add dev host-1 root netem"];
        let both = both.map(|command| format!("{command} delay 50000us loss 1%"));
        assert_eq!(commands(slow, slow, true), both);
        assert_eq!(commands(Open, slow, false), ["tc -n n-router qdisc del dev host-1 root"]);
    }

    #[test]
    fn a_namespace_tells_who_made_it() {
        assert_eq!(maker("omni-123-0-router"), Some("123"));
        assert_eq!((maker("omni--0"), maker("omni-x"), maker("blue")), (None, None, None));
    }
}
