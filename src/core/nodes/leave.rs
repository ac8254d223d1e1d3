//! Which nodes may leave.
//!
//! A node may leave a gateway that has another one for each of its stages. Whether a node that the gateway does not use
//! could be that other one, only this node knows: other gateways may have all of its shares. So it is asked to keep one.

use super::{KEPT, Member, NodeId, Nodes};
use crate::ids::StageName;
use std::time::Duration;

/// How long a node that was asked to leave counts as leaving: longer than it asks gateways before it goes.
const LEAVING: Duration = Duration::from_secs(10);
/// A promise of a share is worth something for so long: a node leaves within that time, or not at all.
const LASTS: Duration = Duration::from_secs(6);

impl Nodes {
    /// Which nodes people mean: all of this name, or the one of this id.
    pub fn meant(&self, node: &str) -> Vec<NodeId> {
        let its = |(id, member): &(&NodeId, &Member)| *id == node || member.offer.name == node;
        self.members.iter().filter(its).map(|(id, _)| id.clone()).collect()
    }

    /// Whether these nodes may leave together: each stage that is on one of them has another node, which runs it, or could
    /// and has a share for this gateway. From then on they count as leaving for a while, so that of two that ask at the
    /// same time one stays.
    ///
    /// # Errors
    /// For which stage there is no other: one of its [`Self::homes`] may keep a share.
    pub fn spare(&mut self, leaving: &[NodeId], now: Duration) -> Result<(), StageName> {
        for stage in StageName::ALL {
            // Promised for a stage of this gateway's that other nodes leave.
            let has_some = self.arithmetic[stage as usize].is_some();
            let needs = |member: &Member| {
                member.is_linked(stage as usize) || has_some && member.keeps_a_share(now) && member.could_run(stage)
            };
            let needed = leaving.iter().filter_map(|id| self.members.get(id)).any(needs);
            let stays = |(id, member): &(&NodeId, &Member)| member.stays(id, leaving, now);
            let takes = |(_, member): (_, &Member)| match &member.used[stage as usize] {
                Some(its) => its.running || member.keeps_a_share(now + LASTS),
                None => self.is_home(member, stage) && member.is_sure(stage, now),
            };
            if needed && !self.members.iter().filter(stays).any(takes) {
                return Err(stage);
            }
        }
        for id in leaving {
            if let Some(member) = self.members.get_mut(id) {
                member.leaving = Some(now + LEAVING);
            }
        }
        Ok(())
    }

    /// Nodes that could run a stage behind those that leave, if they keep a share: first those that answer, each gateway in
    /// an order of its own.
    pub fn homes(&self, stage: StageName, leaving: &[NodeId], now: Duration) -> Vec<NodeId> {
        let is_home = |(id, member): &(&NodeId, &Member)| {
            let asked = member.used[stage as usize].is_some() || member.is_sure(stage, now);
            member.stays(id, leaving, now) && self.is_home(member, stage) && !asked
        };
        let mut homes: Vec<_> = self.members.iter().filter(is_home).collect();
        homes.sort_by_key(|(_, member)| (member.round_trip.is_none(), member.rank));
        homes.into_iter().map(|(id, _)| id.clone()).collect()
    }

    /// A node keeps a share for this gateway from now on, for a while: what was against it is over.
    pub fn kept(&mut self, node: &str, now: Duration) {
        let Some(member) = self.members.get_mut(node) else { return };
        member.kept = Some(now + KEPT);
        for (bar, refusals) in member.bars.iter_mut().zip(&mut member.refusals) {
            if bar.as_ref().is_some_and(|bar| bar.until.is_some()) {
                *bar = None;
            }
            *refusals = 0;
        }
    }

    /// These nodes do not leave after all.
    pub fn stay(&mut self, nodes: &[NodeId]) {
        for id in nodes {
            if let Some(member) = self.members.get_mut(id) {
                member.leaving = None;
            }
        }
    }

    /// Whether a replica is on one of these nodes.
    pub fn uses(&self, nodes: &[NodeId]) -> bool {
        nodes.iter().filter_map(|id| self.members.get(id)).any(Member::is_used)
    }

    /// Whether a node could run a stage as the others of it do.
    fn is_home(&self, member: &Member, stage: StageName) -> bool {
        let others = &self.arithmetic[stage as usize];
        member.could_run(stage) && others.as_ref().is_none_or(|others| *others == member.offer.arithmetic)
    }
}

impl Member {
    fn stays(&self, id: &NodeId, leaving: &[NodeId], now: Duration) -> bool {
        !leaving.contains(id) && self.leaving.is_none_or(|until| until <= now)
    }

    /// Whether this gateway has a share of it that lasts, and the node says nothing against the stage.
    fn is_sure(&self, stage: StageName, now: Duration) -> bool {
        let open = self.bars[stage as usize].as_ref().is_none_or(|bar| !bar.holds(now));
        self.is_used() && open || self.keeps_a_share(now + LASTS)
    }
}

#[cfg(test)]
#[path = "leave_tests.rs"]
mod tests;
