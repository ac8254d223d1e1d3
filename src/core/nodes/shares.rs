//! Who may use a node.

use crate::ids::StageName;
use std::collections::{BTreeMap, BTreeSet};

/// The shares of one node: which gateways use which of its stages. A gateway has one share, whatever it uses.
#[derive(Clone, Debug)]
pub struct Shares {
    most: usize,
    used: BTreeMap<String, BTreeSet<StageName>>,
}

impl Shares {
    /// For so many gateways at the same time.
    pub fn new(most: usize) -> Shares {
        Shares { most, used: BTreeMap::new() }
    }

    /// Gives a gateway a stage, if no more than `beside` others use the node.
    ///
    /// # Errors
    /// Why not, for the gateway's list of nodes.
    pub fn grant(&mut self, gateway: &str, stage: StageName, beside: usize) -> Result<(), String> {
        if !self.used.contains_key(gateway) {
            let others = self.used.len();
            if others >= self.most {
                return Err(format!("no share is left: cluster.gateways is {} there, and so many use it", self.most));
            }
            if others > beside {
                return Err(format!("it is shared by {others}, and others may be free"));
            }
        }
        let new = self.used.entry(gateway.to_owned()).or_default().insert(stage);
        // The gateway has seen a link end, and this side has not yet.
        new.then_some(()).ok_or_else(|| format!("it still has an earlier link for the {stage}"))
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
