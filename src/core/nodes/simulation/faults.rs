//! What becomes of nodes and gateways that break, or are taken out of service.

use super::gateway::{Gateway, name};
use super::scenario::What;
use super::world::{Event, RETRY, World, index};
use crate::nodes::NodeId;

impl World<'_> {
    /// Something breaks, or is taken out of service.
    pub(super) fn breaks(&mut self, what: What) {
        *self.report.faults.entry(what.name()).or_default() += 1;
        match what {
            What::Kills(node, back) | What::Drains(node, back) | What::Retires(node, back) => {
                if !self.nodes[node].is_up || matches!(what, What::Retires(..)) && !self.may_retire(node) {
                    return;
                }
                let session = self.nodes[node].session;
                self.nodes[node].ends(self.scenario.settings.shares);
                if !matches!(what, What::Kills(..)) {
                    // It says that it leaves, to those that it reaches.
                    for at in 0..self.gateways.len() {
                        let cut = self.cuts.get(&(at, node)).is_some_and(|until| *until > self.now);
                        if self.gateways[at].is_up && self.gateways[at].seen[node].0 == Some(session) && !cut {
                            self.gateways[at].seen[node].0 = None;
                            self.gateways[at].leaves(node, session, self.now);
                            self.carry_out(at);
                        }
                    }
                }
                self.at(self.now + back, Event::Back(what));
            }
            What::Stalls(node, back) => {
                let its = &mut self.nodes[node];
                its.stalled_until = its.stalled_until.max(self.now + back);
            }
            What::Cuts(node, gateway, back) => {
                let until = self.cuts.entry((gateway, node)).or_default();
                *until = (*until).max(self.now + back);
            }
            What::KillsGateway(at, back) => {
                let gateway = &mut self.gateways[at];
                if !gateway.is_up {
                    return;
                }
                let clients = gateway.clients();
                (gateway.is_up, gateway.life) = (false, gateway.life + 1);
                clients.into_iter().for_each(|client| self.at(self.now + RETRY, Event::Request(client)));
                self.at(self.now + back, Event::Back(what));
            }
        }
    }

    /// Whether all gateways can do without a node, which asks them.
    fn may_retire(&mut self, node: usize) -> bool {
        let leaving = [format!("{node}-{}", self.nodes[node].session)];
        let sees = |gateway: &Gateway| gateway.is_up && gateway.seen[node].0 == Some(self.nodes[node].session);
        let gateways: Vec<usize> = (0..self.gateways.len()).filter(|at| sees(&self.gateways[*at])).collect();
        let retires = gateways.iter().all(|at| self.hears(*at, node) && self.spares(*at, &leaving));
        if !retires {
            self.report.stay += 1;
            for at in gateways {
                if self.hears(at, node) {
                    self.gateways[at].nodes.stay(&leaving);
                }
            }
        }
        retires
    }

    /// Whether a gateway can do without nodes: it asks others to keep a share.
    fn spares(&mut self, at: usize, leaving: &[NodeId]) -> bool {
        while let Err(stage) = self.gateways[at].nodes.spare(leaving, self.now) {
            let homes = self.gateways[at].nodes.homes(stage, leaving, self.now);
            let (now, name) = (self.now, name(at, self.gateways[at].life));
            let keeps = |home: &&NodeId| {
                let (node, session) = index(home);
                self.hears(at, node)
                    && self.nodes[node].session == session
                    && self.nodes[node].shares.keep(&name, now).is_ok()
            };
            let Some(home) = homes.iter().find(keeps) else { return false };
            self.gateways[at].nodes.kept(home, now);
        }
        true
    }
}
