//! Which fault of a cluster when: each kind in its turn, the same for the same seed. Pure.

use super::super::generate::{Draws, Shuffled};
use std::time::Duration;

/// The lengths of a network that is cut.
const SHORT: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(20);

/// Which way of a network is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Both.
    Both,
    /// To the gateways: they do not hear the node.
    ToGateways,
    /// To the node: it does not hear the gateways.
    ToNode,
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A node is killed, and started again later.
    KillNode,
    /// A node does nothing for a while. It goes on with the sequences that it had, which are elsewhere by then.
    StopNode,
    /// A node that joins has its talker hang, while all else of it goes on.
    HangNode,
    /// What a node sends is held, until its sequences are elsewhere, and then arrives.
    LateNode,
    /// The network of a node is cut, for a short or a long time.
    Cut(Side, bool),
    /// All ways between nodes and gateways are slow and lose packets.
    Slow,
    /// A gateway is killed, and started again later.
    KillGateway,
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strike {
    /// Its kind.
    pub kind: Kind,
    /// The node or the gateway that it strikes, from 0.
    pub target: usize,
}

/// What there is to strike.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// How many nodes.
    pub nodes: usize,
    /// How many gateways.
    pub gateways: usize,
    /// After how long a side that says nothing counts as gone.
    pub silence: Duration,
    /// Whether the network can hold packets, and can be slow.
    pub holds_and_slows: (bool, bool),
}

impl Kind {
    /// In the order of a report.
    pub const ALL: [Kind; 12] = [
        Kind::KillNode,
        Kind::KillGateway,
        Kind::Cut(Side::Both, false),
        Kind::Cut(Side::ToGateways, false),
        Kind::Cut(Side::ToNode, false),
        Kind::Cut(Side::Both, true),
        Kind::Cut(Side::ToGateways, true),
        Kind::Cut(Side::ToNode, true),
        Kind::Slow,
        Kind::StopNode,
        Kind::LateNode,
        Kind::HangNode,
    ];

    /// As a report has it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::KillNode => "kill -9 of a node",
            Kind::KillGateway => "kill -9 of a gateway",
            Kind::Cut(Side::Both, false) => "partition of 2 s",
            Kind::Cut(Side::ToGateways, false) => "partition of 2 s, to gateways",
            Kind::Cut(Side::ToNode, false) => "partition of 2 s, to the node",
            Kind::Cut(Side::Both, true) => "partition of 20 s",
            Kind::Cut(Side::ToGateways, true) => "partition of 20 s, to gateways",
            Kind::Cut(Side::ToNode, true) => "partition of 20 s, to the node",
            Kind::Slow => "50 ms more each way, 1 % lost",
            Kind::StopNode => "a node is stopped",
            Kind::LateNode => "a node's old frames come late",
            Kind::HangNode => "a node computes no more",
        }
    }

    /// For how long it lasts: where a node is to be taken for gone, longer than that takes.
    pub fn lasts(self, silence: Duration) -> Duration {
        match self {
            Kind::KillNode | Kind::KillGateway => silence * 3 / 2,
            Kind::StopNode | Kind::LateNode | Kind::HangNode => silence * 2,
            Kind::Slow => silence * 5 / 2,
            Kind::Cut(_, false) => SHORT,
            Kind::Cut(_, true) => LONG,
        }
    }
}

impl Field {
    /// The kinds that can strike.
    pub fn kinds(self) -> Vec<Kind> {
        let (holds, slows) = self.holds_and_slows;
        let can = |kind: &Kind| match kind {
            Kind::LateNode => holds,
            Kind::Slow => slows,
            _ => true,
        };
        Kind::ALL.into_iter().filter(can).collect()
    }

    /// How many there are of what a kind strikes.
    fn targets(self, kind: Kind) -> usize {
        match kind {
            Kind::KillGateway => self.gateways,
            // All ways, and a node of its own.
            Kind::Slow | Kind::HangNode => 1,
            Kind::KillNode | Kind::StopNode | Kind::LateNode | Kind::Cut(..) => self.nodes,
        }
    }
}

/// Faults one after the other, with a rest before each and behind the last, as many as fit. Kinds take turns in an order
/// that is drawn anew for each round of all of them, and so do the targets of each; a kind that is too long for what is
/// left of the time is passed over.
pub fn plan(field: Field, seed: u64, rest: Duration, duration: Duration) -> Vec<Strike> {
    let mut draws = Draws::new(seed);
    let all = field.kinds();
    let mut kinds = Shuffled::new(all.len());
    let mut targets: Vec<_> = all.iter().map(|kind| Shuffled::new(field.targets(*kind))).collect();
    let (mut strikes, mut left) = (Vec::new(), duration.saturating_sub(rest));
    let mut passed = 0;
    while passed < 2 * all.len() {
        let drawn = kinds.draw(&mut draws);
        let kind = all[drawn];
        match left.checked_sub(rest + kind.lasts(field.silence)) {
            None => passed += 1,
            Some(less) => {
                (left, passed) = (less, 0);
                strikes.push(Strike { kind, target: targets[drawn].draw(&mut draws) });
            }
        }
    }
    strikes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn field(nodes: usize) -> Field {
        Field { nodes, gateways: 2, silence: Duration::from_secs(2), holds_and_slows: (true, true) }
    }

    const fn s(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn times(strikes: &[Strike], kind: Kind) -> usize {
        strikes.iter().filter(|strike| strike.kind == kind).count()
    }

    #[test]
    fn a_time_too_short_for_a_long_cut_has_each_of_the_others_once() {
        let silence = Duration::from_millis(500);
        let short = |kind: &Kind| !matches!(kind, Kind::Cut(_, true));
        let needed: Duration = Kind::ALL.iter().filter(|kind| short(kind)).map(|kind| kind.lasts(silence)).sum();
        for seed in 0..100 {
            let strikes = plan(Field { silence, ..field(2) }, seed, Duration::from_millis(100), needed + s(1));
            assert!(Kind::ALL.iter().filter(|kind| short(kind)).all(|kind| times(&strikes, *kind) == 1), "{strikes:?}");
            assert_eq!(strikes.len(), 9);
        }
    }

    #[test]
    fn without_time_nothing_is_planned() {
        assert!(plan(field(3), 1, s(1), s(0)).is_empty());
        assert!(plan(field(3), 1, s(1), s(3)).is_empty());
    }

    #[test]
    fn what_the_network_cannot_do_is_not_planned() {
        let kinds = |holds_and_slows| {
            let strikes = plan(Field { holds_and_slows, ..field(2) }, 1, s(1), s(1000));
            let mut kinds: Vec<_> = strikes.iter().map(|strike| strike.kind.name()).collect();
            kinds.sort_unstable();
            kinds.dedup();
            kinds
        };
        let missing =
            |has: (bool, bool)| kinds((true, true)).into_iter().filter(move |kind| !kinds(has).contains(kind));
        assert_eq!(missing((true, true)).count(), 0);
        assert_eq!(missing((false, true)).collect::<Vec<_>>(), [Kind::LateNode.name()]);
        assert_eq!(missing((true, false)).collect::<Vec<_>>(), [Kind::Slow.name()]);
    }

    proptest! {
        #[test]
        fn every_kind_and_every_target_gets_its_turn(seed: u64, nodes in 2usize..6) {
            let round: Duration = Kind::ALL.iter().map(|kind| kind.lasts(field(nodes).silence) + s(1)).sum();
            let rounds = 6;
            let strikes = plan(field(nodes), seed, s(1), round * rounds + s(1));
            for kind in Kind::ALL {
                prop_assert_eq!(times(&strikes, kind), rounds as usize, "{:?}", kind);
                for target in 0..field(nodes).targets(kind) {
                    prop_assert!(strikes.contains(&Strike { kind, target }), "{:?} {}", kind, target);
                }
            }
        }

        #[test]
        fn a_seed_gives_the_same_plan_and_all_of_it_fits(seed: u64, duration in 0u64..400) {
            let strikes = plan(field(3), seed, s(3), s(duration));
            prop_assert_eq!(&strikes, &plan(field(3), seed, s(3), s(duration)));
            let needed: Duration = strikes.iter().map(|strike| s(3) + strike.kind.lasts(s(2))).sum();
            prop_assert!(strikes.is_empty() || needed + s(3) <= s(duration));
        }
    }
}
