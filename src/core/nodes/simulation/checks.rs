//! What must hold, and how even the load is.

use super::Balance;
use super::world::World;
use std::collections::BTreeSet;
use std::time::Duration;

/// How long a gateway may have no node for a stage while its only one leaves: a question for a node that keeps a share.
const MOVES: Duration = Duration::from_millis(100);

impl World<'_> {
    /// What must hold at each look.
    pub(super) fn check(&mut self) -> Option<String> {
        let up = self.gateways.iter().filter(|gateway| gateway.is_up);
        if let Some(problem) = up.filter_map(|gateway| gateway.problem()).next() {
            return Some(problem);
        }
        if self.scenario.settings.planned {
            let mut up = self.gateways.iter().enumerate().filter(|(_, gateway)| gateway.is_up);
            if let Some((at, stage)) = up.find_map(|(at, its)| Some((at, its.bare_for(MOVES, self.now)?))) {
                return Some(format!("gateway {at} has no {stage} left, and let its node go"));
            }
        }
        for (number, node) in self.nodes.iter().enumerate() {
            let gateways: BTreeSet<_> = node.links.values().map(|link| (link.gateway, link.life)).collect();
            if gateways.len() > self.scenario.settings.shares {
                return Some(format!("node {number} is used by {gateways:?}"));
            }
            let stranger = self.scenario.settings.strangers && number % 3 == 1;
            if stranger && !gateways.is_empty() {
                return Some(format!("node {number}, which has another checkpoint, is used"));
            }
        }
        let lasts = self.scenario.settings.lasts;
        if (lasts / 2..lasts).contains(&self.now) {
            self.weigh();
        }
        None
    }

    /// Looks how even the load is.
    fn weigh(&mut self) {
        let strangers = self.scenario.settings.strangers;
        let of_use = |(number, _): &(usize, _)| !(strangers && number % 3 == 1);
        let nodes = self.nodes.iter().enumerate().filter(of_use).map(|(_, node)| node);
        let nodes: Vec<_> = nodes.filter(|node| node.is_up && node.stalled_until <= self.now).collect();
        let mut loads: Vec<usize> = nodes.iter().map(|node| node.sequences()).collect();
        loads.sort_unstable();
        let gateways = |node: &&super::node::Node| {
            node.links.values().map(|link| (link.gateway, link.life)).collect::<BTreeSet<_>>().len()
        };
        let gateways: Vec<usize> = nodes.iter().map(gateways).collect();
        let Some(last) = loads.len().checked_sub(1) else { return };
        let balance = &mut self.report.balance;
        let looks = balance.looks as f64;
        let mean = |of: &mut f64, value: f64| *of = (*of * looks + value) / (looks + 1.0);
        mean(&mut balance.nodes, nodes.len() as f64);
        mean(&mut balance.used, gateways.iter().filter(|count| **count > 0).count() as f64);
        mean(&mut balance.gateways, gateways.iter().copied().max().unwrap_or(0) as f64);
        mean(&mut balance.mean, loads.iter().sum::<usize>() as f64 / loads.len() as f64);
        mean(&mut balance.p99, loads[last * 99 / 100] as f64);
        mean(&mut balance.most, loads[last] as f64);
        balance.looks += 1;
    }

    /// What is left when all clients are done, which must be nothing.
    pub(super) fn left_over(&mut self) -> Option<String> {
        let gateways = self.gateways.iter().filter(|gateway| gateway.is_up);
        let (open, seated) = gateways
            .fold((0, 0), |(open, seated), gateway| (open + gateway.open_requests(), seated + gateway.seated()));
        self.report.readmitted = self.gateways.iter().map(|gateway| gateway.readmitted).sum();
        self.report.stale = self.gateways.iter().map(|gateway| gateway.stale).sum();
        let sequences: usize = self.nodes.iter().map(|node| node.sequences()).sum();
        ((open, seated, sequences) != (0, 0, 0)).then(|| {
            format!("{open} requests, {seated} seats and {sequences} sequences on nodes are left when all is over")
        })
    }
}

impl Balance {
    /// Over all, the most of a node over the mean.
    pub fn most_over_mean(&self) -> f64 {
        self.most / self.mean.max(f64::MIN_POSITIVE)
    }
}
