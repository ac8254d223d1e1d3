//! Where the hosts of a drill are: on loopback, with relays of this program between nodes and gateways, or each in a
//! network namespace of its own.

use crate::network::{Authority, Host, Namespaces, Passage, Relay, free_address};
use anyhow::Context;
use omni_config::ClusterTls;
use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

/// At which a gateway in a namespace of its own is joined: every port is free there.
const PORT: u16 = 7447;

/// The network of a drill.
pub enum Network {
    /// Loopback. The seed decides which packets are lost.
    Loopback(u64),
    /// Of the kernel.
    Namespaces(Box<Namespaces>),
}

/// Where a process of the drill is.
pub struct Place {
    /// At which it listens.
    pub address: Ipv4Addr,
    kind: Kind,
}

enum Kind {
    /// Of a node: a way to each gateway.
    Loopback(Vec<Relay>),
    Namespace(Host),
}

impl Network {
    /// Whether packets can be [held](Passage::Held), and can be [slow](Passage::Slow).
    pub fn holds_and_slows(&self) -> (bool, bool) {
        match self {
            Network::Loopback(_) => (true, true),
            Network::Namespaces(network) => (false, network.slows()),
        }
    }

    /// A place for a gateway, and where nodes join it.
    pub fn gateway(&mut self) -> anyhow::Result<(Place, SocketAddr)> {
        match self {
            Network::Loopback(_) => {
                let place = Place { address: Ipv4Addr::LOCALHOST, kind: Kind::Loopback(Vec::new()) };
                Ok((place, free_address()?))
            }
            Network::Namespaces(network) => {
                let place = in_namespace(network)?;
                let joined_at = (place.address, PORT).into();
                Ok((place, joined_at))
            }
        }
    }

    /// A place for this node, with its ways to the gateways that are joined there.
    pub async fn node(&mut self, number: u64, gateways: &[SocketAddr]) -> anyhow::Result<Place> {
        match self {
            Network::Loopback(seed) => {
                let mut ways = Vec::new();
                for (gateway, way) in gateways.iter().zip(0..) {
                    let seed = seed.wrapping_add(number * 64 + way);
                    ways.push(Relay::towards(*gateway, seed).await.context("no socket for the network")?);
                }
                Ok(Place { address: Ipv4Addr::LOCALHOST, kind: Kind::Loopback(ways) })
            }
            Network::Namespaces(network) => in_namespace(network),
        }
    }

    /// A command that runs there.
    pub fn command(&self, place: &Place, program: impl AsRef<OsStr>) -> Command {
        match (self, &place.kind) {
            (Network::Namespaces(network), Kind::Namespace(host)) => network.command(*host, program),
            _ => Command::new(program),
        }
    }

    /// What becomes of packets between a node and all gateways.
    pub fn set(&mut self, node: &Place, to_gateways: Passage, to_node: Passage) -> anyhow::Result<()> {
        match (self, &node.kind) {
            (Network::Namespaces(network), Kind::Namespace(host)) => network.set(*host, to_gateways, to_node),
            (_, Kind::Loopback(ways)) => {
                ways.iter().for_each(|way| way.set(to_gateways, to_node));
                Ok(())
            }
            (Network::Loopback(_), Kind::Namespace(_)) => Ok(()),
        }
    }
}

impl Place {
    /// Where a node of this place joins the gateways that are joined there.
    pub fn joins(&self, gateways: &[SocketAddr]) -> Vec<SocketAddr> {
        match &self.kind {
            Kind::Loopback(ways) => ways.iter().map(Relay::address).collect(),
            Kind::Namespace(_) => gateways.to_vec(),
        }
    }

    /// A certificate for it.
    pub fn certified(&self, authority: &Authority, name: &str) -> anyhow::Result<ClusterTls> {
        authority.certify_at(name, self.address)
    }
}

fn in_namespace(network: &mut Namespaces) -> anyhow::Result<Place> {
    let host = network.host().context("no namespace for a host")?;
    Ok(Place { address: network.address_of(host), kind: Kind::Namespace(host) })
}
