//! Which nodes are used, refused and spared.

use super::*;
use proptest::prelude::*;

pub(super) const NOW: Duration = Duration::from_secs(1);
pub(super) const LATER: Duration = Duration::from_secs(2);

pub(super) fn terms(checkpoint: u8) -> Terms {
    Terms { protocol: PROTOCOL, program: "1.2.3".into(), checkpoint: [checkpoint; 32] }
}

pub(super) fn offer(arithmetic: &str) -> Offer {
    let stages = vec![StageName::Talker, StageName::Vocoder];
    let (name, host) = ("one".to_owned(), "rack-1".to_owned());
    Offer { name, host, pid: 7, terms: terms(7), arithmetic: arithmetic.into(), stages, slots: 4, gateways: 1 }
}

fn taken(nodes: &mut Nodes, stage: StageName) -> Option<String> {
    nodes.take(stage, 0, NOW).map(|ticket| ticket.id)
}

#[test]
fn a_node_that_differs_is_listed_with_the_reason_and_never_used() {
    let mut nodes = Nodes::new(terms(7), 8);
    let other = Offer { terms: terms(8), ..offer("cpu") };
    let reason = nodes.joined("a".into(), other, NOW).unwrap();
    assert_eq!(reason, "its checkpoint has fingerprint 080808080808, the gateway's 070707070707");
    let newer = Offer { terms: Terms { protocol: PROTOCOL + 1, ..terms(7) }, ..offer("cpu") };
    let told = nodes.joined("b".into(), newer, NOW).unwrap();
    let next = PROTOCOL + 1;
    assert_eq!(told, format!("it runs version 1.2.3 (protocol {next}), the gateway 1.2.3 (protocol {PROTOCOL})"));
    assert_eq!(taken(&mut nodes, StageName::Talker), None);
    let listed = OfferedStage { name: StageName::Talker, replica: None, used: false, reason: Some(reason) };
    assert_eq!(nodes.list()[0].stages[0], listed);
}

#[test]
fn replicas_of_a_stage_compute_as_its_first_one_did() {
    let mut nodes = Nodes::new(terms(7), 8);
    assert_eq!(nodes.joined("a".into(), offer("cpu"), NOW), None);
    let ticket = nodes.take(StageName::Talker, 0, NOW).unwrap();
    assert_eq!(nodes.joined("b".into(), offer("gpu"), NOW), None);
    assert_eq!(ticket.id, "a");
    assert!(nodes.linked(&ticket));
    nodes.left("a");
    assert_eq!(taken(&mut nodes, StageName::Talker), None, "what its sequences are is settled");
    let told = nodes.list()[0].stages[0].reason.clone().unwrap();
    assert_eq!(told, "it computes in gpu, the talkers here in cpu");
    assert_eq!(taken(&mut nodes, StageName::Vocoder).as_deref(), Some("b"), "the other stage has had none");
}

#[test]
fn a_node_that_has_no_share_left_is_asked_again_later() {
    let mut nodes = Nodes::new(terms(7), 8);
    nodes.joined("a".into(), offer("cpu"), NOW);
    let ticket = nodes.take(StageName::Talker, 0, NOW).unwrap();
    nodes.bar(&ticket, "no share is left".into(), Some(LATER));
    nodes.release(&ticket);
    assert_eq!((taken(&mut nodes, StageName::Talker), nodes.next_look(StageName::Talker, NOW)), (None, Some(LATER)));
    assert!(nodes.take(StageName::Talker, 0, LATER).is_some());
}

#[test]
fn what_is_said_of_a_session_that_has_left_says_nothing_of_the_next() {
    let mut nodes = Nodes::new(terms(7), 8);
    nodes.joined("a".into(), offer("cpu"), NOW);
    let old = nodes.take(StageName::Talker, 0, NOW).unwrap();
    nodes.joined("a".into(), offer("cpu"), NOW);
    let new = nodes.take(StageName::Talker, 0, NOW).unwrap();
    nodes.bar(&old, "it failed".into(), None);
    nodes.release(&old);
    assert_eq!(taken(&mut nodes, StageName::Talker), None, "it is used");
    nodes.release(&new);
    assert!(taken(&mut nodes, StageName::Talker).is_some(), "nothing is against it");
}

#[test]
fn stages_spread_over_the_nodes() {
    let mut nodes = Nodes::new(terms(7), 8);
    for id in ["a", "b"] {
        nodes.joined(id.into(), offer("cpu"), NOW);
    }
    let talker = taken(&mut nodes, StageName::Talker).unwrap();
    assert_ne!(taken(&mut nodes, StageName::Vocoder).unwrap(), talker);
}

#[test]
fn a_node_that_is_asked_again_is_listed_as_it_was() {
    let mut nodes = Nodes::new(terms(7), 8);
    nodes.joined("a".into(), offer("cpu"), NOW);
    let ticket = nodes.take(StageName::Talker, 0, NOW).unwrap();
    nodes.bar(&ticket, "it is drained".into(), Some(LATER));
    nodes.release(&ticket);
    let again = nodes.take(StageName::Talker, 3, LATER).unwrap();
    let (name, reason) = (StageName::Talker, Some("it is drained".to_owned()));
    assert_eq!(nodes.list()[0].stages[0], OfferedStage { name, replica: None, used: false, reason });
    assert!(nodes.linked(&again));
    assert_eq!(nodes.list()[0].stages[0], OfferedStage { name, replica: Some(3), used: true, reason: None });
    assert_eq!(nodes.meant("one"), ["a"]);
    assert_eq!((nodes.meant("a"), nodes.meant("b").len()), (vec!["a".to_owned()], 0));
}

proptest! {
    #[test]
    fn a_node_is_used_for_a_stage_once_and_only_if_it_may_be(
        moves in proptest::collection::vec((0..6u8, 0..4usize, 2..4usize, any::<bool>(), any::<bool>()), 1..200),
    ) {
        let mut nodes = Nodes::new(terms(7), 8);
        let mut held: Vec<Ticket> = Vec::new();
        let mut settled: [Option<String>; 4] = Default::default();
        for (kind, node, stage, alike, gpu) in moves {
            let (id, stage) = (node.to_string(), StageName::ALL[stage]);
            let its = held.iter().position(|ticket| (&ticket.id, ticket.stage) == (&id, stage));
            match (kind, its) {
                (0, _) => {
                    let offer = offer(if gpu { "gpu" } else { "cpu" });
                    let offer = Offer { terms: terms(if alike { 7 } else { 8 }), ..offer };
                    prop_assert_eq!(nodes.joined(id.clone(), offer, NOW).is_none(), alike);
                    held.retain(|ticket| ticket.id != id);
                }
                (1, _) => {
                    nodes.left(&id);
                    held.retain(|ticket| ticket.id != id);
                }
                (2 | 3, Some(its)) => {
                    let ticket = held.remove(its);
                    if kind == 3 {
                        nodes.bar(&ticket, "barred".into(), alike.then_some(LATER));
                    }
                    nodes.release(&ticket);
                }
                _ => if let Some(ticket) = nodes.take(stage, 0, NOW) {
                    let member = &nodes.members[&ticket.id];
                    let barred = member.bars[stage as usize].as_ref().is_some_and(|bar| bar.holds(NOW));
                    prop_assert!(!barred && member.offer.terms == terms(7));
                    let settled = settled[stage as usize].get_or_insert(member.offer.arithmetic.clone());
                    prop_assert_eq!(&*settled, &member.offer.arithmetic);
                    assert!(nodes.linked(&ticket));
                    let twice = held.iter().any(|other| (&other.id, other.stage) == (&ticket.id, stage));
                    prop_assert!(!twice, "it was used already");
                    held.push(ticket);
                }
            }
        }
    }
}
