//! What happens in one simulation, as lists that follow from a seed.

use crate::random::Random;
use std::time::Duration;

/// How large a scenario is.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Nodes.
    pub nodes: usize,
    /// Gateways.
    pub gateways: usize,
    /// `cluster.max_nodes` of the gateways.
    pub max_nodes: usize,
    /// `cluster.gateways` of the nodes.
    pub shares: usize,
    /// Sequences of one gateway that a stage of a node runs at the same time; others wait there.
    pub slots: u32,
    /// Whether nodes are of different sizes: every third has that many slots, others twice and three times as many.
    pub uneven: bool,
    /// How requests come to gateways.
    pub balancer: Balancer,
    /// Requests, evenly over `lasts`.
    pub requests: usize,
    /// Faults, anywhere in `lasts`.
    pub faults: usize,
    /// Whether nothing breaks: nodes are only taken out of service, those without which gateways can do.
    pub planned: bool,
    /// Whether some nodes are of no use: another checkpoint, or another way to compute.
    pub strangers: bool,
    /// How long requests come and things break.
    pub lasts: Duration,
}

/// What is in front of the gateways. It asks those that are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balancer {
    /// Any of them.
    Random,
    /// One after the other.
    Turns,
    /// The one with the fewest open requests.
    Fewest,
}

impl Settings {
    pub(super) fn slots_of(&self, node: usize) -> u32 {
        if self.uneven { self.slots * (1 + node as u32 % 3) } else { self.slots }
    }

    /// A large cluster: gateways that use sixteen nodes each, some nodes to spare, one gateway to a node. Every node has about five sequences, and in half a minute one node in three breaks.
    pub fn large(nodes: usize, gateways: usize) -> Settings {
        Settings {
            nodes,
            gateways,
            max_nodes: 16,
            shares: 1,
            slots: 64,
            uneven: false,
            balancer: Balancer::Turns,
            requests: nodes * 18,
            faults: nodes / 3,
            planned: false,
            strangers: false,
            lasts: Duration::from_secs(30),
        }
    }

    /// A small cluster, drawn from a seed, in which much breaks.
    pub fn small(seed: u64) -> Settings {
        let random = &mut Random::new(seed ^ 0xC1);
        Settings {
            nodes: random.within(1, 12) as usize,
            gateways: random.within(1, 6) as usize,
            max_nodes: random.within(1, 6) as usize,
            shares: random.pick(&[1, 2, 6]),
            slots: random.pick(&[1, 3, 100]),
            balancer: random.pick(&[Balancer::Random, Balancer::Turns, Balancer::Fewest]),
            requests: random.within(1, 80) as usize,
            faults: random.below(16) as usize,
            planned: random.once_in(4),
            strangers: random.once_in(3),
            uneven: random.once_in(2),
            lasts: Duration::from_secs(30),
        }
    }
}

/// One simulation.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it was made from.
    pub seed: u64,
    pub(super) settings: Settings,
    pub(super) requests: Vec<Script>,
    pub(super) faults: Vec<Fault>,
}

/// A client's request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Script {
    pub at: Duration,
    pub seed: u64,
    /// Units of its answer.
    pub units: u32,
}

/// Something breaks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub at: Duration,
    pub what: What,
}

/// What breaks, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    /// A node dies at once.
    Kills(usize, Duration),
    /// A node does nothing.
    Stalls(usize, Duration),
    /// A node is told to stop.
    Drains(usize, Duration),
    /// A node is taken out of service, if all gateways can do without it.
    Retires(usize, Duration),
    /// Nothing passes between a node and a gateway.
    Cuts(usize, usize, Duration),
    /// A gateway dies at once.
    KillsGateway(usize, Duration),
}

impl What {
    pub fn name(self) -> &'static str {
        match self {
            What::Kills(..) => "kills",
            What::Stalls(..) => "stalls",
            What::Drains(..) => "drains",
            What::Retires(..) => "retires",
            What::Cuts(..) => "cuts",
            What::KillsGateway(..) => "kills_gateway",
        }
    }
}

impl Scenario {
    /// The scenario of a seed.
    pub fn new(seed: u64, settings: &Settings) -> Scenario {
        let random = &mut Random::new(seed);
        let span = settings.lasts.as_millis() as u64;
        let request = |number: usize, random: &mut Random| Script {
            at: random.millis(0, span),
            seed: number as u64 + 1,
            units: random.within(1, 41) as u32,
        };
        let mut requests: Vec<Script> = (0..settings.requests).map(|number| request(number, random)).collect();
        requests.sort_by_key(|request| request.at);
        let fault = |random: &mut Random| {
            let (node, gateway) = (random.below(settings.nodes as u64), random.below(settings.gateways as u64));
            let (node, gateway) = (node as usize, gateway as usize);
            let back = random.millis(100, 12_000);
            let what = match random.below(12) {
                _ if settings.planned => What::Retires(node, back),
                0..=2 => What::Kills(node, back),
                3 | 4 => What::Stalls(node, back),
                5 | 6 => What::Drains(node, back),
                7 | 8 => What::Cuts(node, gateway, back),
                9 | 10 => What::Retires(node, back),
                _ => What::KillsGateway(gateway, back),
            };
            Fault { at: random.millis(0, span), what }
        };
        let faults = (0..settings.faults).map(|_| fault(random)).collect();
        Scenario { seed, settings: settings.clone(), requests, faults }
    }

    /// Members that can be left out: requests and faults.
    pub fn members(&self) -> usize {
        self.requests.len() + self.faults.len()
    }

    /// The scenario with these members alone: requests first.
    #[must_use]
    pub fn of(&self, members: &[usize]) -> Scenario {
        let (requests, faults): (Vec<usize>, Vec<usize>) = members.iter().partition(|at| **at < self.requests.len());
        Scenario {
            requests: requests.into_iter().map(|at| self.requests[at]).collect(),
            faults: faults.into_iter().map(|at| self.faults[at - self.requests.len()]).collect(),
            ..self.clone()
        }
    }

    /// What happens in it, one line each.
    pub fn lines(&self) -> Vec<String> {
        let requests = self.requests.iter().map(|request| format!("{request:?}"));
        let faults = self.faults.iter().map(|fault| format!("{:?}: {:?}", fault.at, fault.what));
        std::iter::once(format!("{:?}", self.settings)).chain(requests).chain(faults).collect()
    }
}
