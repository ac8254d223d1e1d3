//! Who may use a node.

use crate::ids::StageName;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a share is kept for a gateway that will need it: as long as nodes may take to leave, and longer than it takes
/// to ask for it then.
pub const KEPT: Duration = Duration::from_secs(10);

/// The shares of one node: which gateways use which of its stages. A gateway has one share, whatever it uses. Times are
/// since any fixed moment.
#[derive(Clone, Debug)]
pub struct Shares {
    most: usize,
    used: BTreeMap<String, BTreeSet<StageName>>,
    /// Gateways for which a share is kept, and until when.
    kept: BTreeMap<String, Duration>,
}

impl Shares {
    /// For so many gateways at the same time.
    pub fn new(most: usize) -> Shares {
        Shares { most, used: BTreeMap::new(), kept: BTreeMap::new() }
    }

    /// Gives a gateway a stage, if no more than `beside` others have a share of the node, or one is kept for it.
    ///
    /// # Errors
    /// Why not, for the gateway's list of nodes.
    pub fn grant(&mut self, gateway: &str, stage: StageName, beside: usize, now: Duration) -> Result<(), String> {
        let others = self.others(gateway, now)?;
        let has_one = self.used.contains_key(gateway) || self.kept.contains_key(gateway);
        if !has_one && others > beside {
            return Err(format!("it is shared by {others}, and others may be free"));
        }
        self.kept.remove(gateway);
        let new = self.used.entry(gateway.to_owned()).or_default().insert(stage);
        // The gateway has seen a link end, and this side has not yet.
        new.then_some(()).ok_or_else(|| format!("it still has an earlier link for the {stage}"))
    }

    /// Keeps a share for a gateway, for [`KEPT`]: nobody else gets it.
    ///
    /// # Errors
    /// Why not: none is left.
    pub fn keep(&mut self, gateway: &str, now: Duration) -> Result<(), String> {
        self.others(gateway, now)?;
        self.kept.insert(gateway.to_owned(), now + KEPT);
        Ok(())
    }

    /// How many others have a share, where there is one for this gateway, or it has one.
    fn others(&mut self, gateway: &str, now: Duration) -> Result<usize, String> {
        self.kept.retain(|_, until| *until > now);
        let all: BTreeSet<_> = self.used.keys().chain(self.kept.keys()).filter(|its| *its != gateway).collect();
        if all.len() >= self.most {
            return Err(format!("no share is left: cluster.gateways is {} there, and so many use it", self.most));
        }
        Ok(all.len())
    }

    /// A gateway uses a stage no more.
    pub fn give_back(&mut self, gateway: &str, stage: StageName) {
        if let Some(used) = self.used.get_mut(gateway) {
            used.remove(&stage);
            if used.is_empty() {
                self.used.remove(gateway);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    #[test]
    fn a_share_is_one_gateways_whatever_it_uses() {
        let mut shares = Shares::new(1);
        assert_eq!(shares.grant("a", StageName::Talker, 9, NOW), Ok(()));
        assert_eq!(shares.grant("a", StageName::Vocoder, 9, NOW), Ok(()));
        let told = shares.grant("b", StageName::Talker, 9, NOW).unwrap_err();
        assert_eq!(told, "no share is left: cluster.gateways is 1 there, and so many use it");
        assert_eq!(
            shares.grant("a", StageName::Talker, 9, NOW).unwrap_err(),
            "it still has an earlier link for the talker"
        );
        shares.give_back("a", StageName::Talker);
        assert!(shares.grant("b", StageName::Talker, 9, NOW).is_err(), "it still has a vocoder");
        shares.give_back("a", StageName::Vocoder);
        assert_eq!(shares.grant("b", StageName::Talker, 9, NOW), Ok(()));
    }

    #[test]
    fn a_gateway_that_wants_a_node_for_itself_gets_none_that_another_uses() {
        let mut shares = Shares::new(3);
        assert_eq!(shares.grant("a", StageName::Talker, 0, NOW), Ok(()));
        let told = shares.grant("b", StageName::Talker, 0, NOW).unwrap_err();
        assert_eq!(told, "it is shared by 1, and others may be free");
        assert_eq!(shares.grant("a", StageName::Vocoder, 0, NOW), Ok(()), "it is its own already");
        assert_eq!(shares.grant("b", StageName::Talker, 1, NOW), Ok(()));
    }

    #[test]
    fn a_share_that_is_kept_is_one_gateways_until_its_time_is_over() {
        let mut shares = Shares::new(2);
        assert_eq!(shares.grant("a", StageName::Talker, 0, NOW), Ok(()));
        assert_eq!(shares.keep("b", NOW), Ok(()));
        assert_eq!(shares.keep("b", NOW), Ok(()), "it is kept already");
        let told = shares.keep("c", NOW).unwrap_err();
        assert_eq!(told, "no share is left: cluster.gateways is 2 there, and so many use it");
        assert!(shares.grant("c", StageName::Talker, 9, NOW).is_err());
        assert_eq!(shares.grant("a", StageName::Vocoder, 0, NOW), Ok(()), "it has its own");
        assert_eq!(shares.grant("b", StageName::Talker, 0, NOW), Ok(()), "others are no reason against what was kept");
        shares.give_back("b", StageName::Talker);
        assert_eq!(shares.keep("b", NOW), Ok(()));
        assert_eq!(shares.grant("c", StageName::Talker, 9, NOW + KEPT), Ok(()), "it was not asked for in time");
        assert!(shares.grant("b", StageName::Talker, 9, NOW + KEPT).is_err());
    }
}
