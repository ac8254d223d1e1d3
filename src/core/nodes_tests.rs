//! Which nodes are used, refused and spared.

use super::*;
use proptest::prelude::*;

const NOW: Duration = Duration::from_secs(1);
const LATER: Duration = Duration::from_secs(2);

fn terms(checkpoint: u8) -> Terms {
    Terms { protocol: PROTOCOL, program: "1.2.3".into(), checkpoint: [checkpoint; 32] }
}

fn offer(arithmetic: &str) -> Offer {
    let stages = vec![StageName::Talker, StageName::Vocoder];
    let (name, host) = ("one".to_owned(), "rack-1".to_owned());
    Offer { name, host, pid: 7, terms: terms(7), arithmetic: arithmetic.into(), stages, slots: 4, gateways: 1 }
}

fn taken(nodes: &mut Nodes, stage: StageName) -> Option<String> {
    nodes.take(stage, 0, NOW).map(|ticket| ticket.id)
}

#[test]
fn a_node_that_differs_is_listed_with_the_reason_and_never_used() {
    let mut nodes = Nodes::new(terms(7));
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
    let mut nodes = Nodes::new(terms(7));
    assert_eq!(nodes.joined("a".into(), offer("cpu"), NOW), None);
    let ticket = nodes.take(StageName::Talker, 0, NOW).unwrap();
    assert_eq!(nodes.joined("b".into(), offer("gpu"), NOW), None);
    assert_eq!(ticket.id, "a");
    nodes.linked(&ticket);
    nodes.left("a");
    assert_eq!(taken(&mut nodes, StageName::Talker), None, "what its sequences are is settled");
    let told = nodes.list()[0].stages[0].reason.clone().unwrap();
    assert_eq!(told, "it computes in gpu, the talkers here in cpu");
    assert_eq!(taken(&mut nodes, StageName::Vocoder).as_deref(), Some("b"), "the other stage has had none");
}

#[test]
fn a_node_that_has_no_share_left_is_asked_again_later() {
    let mut nodes = Nodes::new(terms(7));
    nodes.joined("a".into(), offer("cpu"), NOW);
    let ticket = nodes.take(StageName::Talker, 0, NOW).unwrap();
    nodes.bar(&ticket, "no share is left".into(), Some(LATER));
    nodes.release(&ticket);
    assert_eq!((taken(&mut nodes, StageName::Talker), nodes.next_look(StageName::Talker)), (None, Some(LATER)));
    assert!(nodes.take(StageName::Talker, 0, LATER).is_some());
}

#[test]
fn what_is_said_of_a_session_that_has_left_says_nothing_of_the_next() {
    let mut nodes = Nodes::new(terms(7));
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
    let mut nodes = Nodes::new(terms(7));
    for id in ["a", "b"] {
        nodes.joined(id.into(), offer("cpu"), NOW);
    }
    let talker = taken(&mut nodes, StageName::Talker).unwrap();
    assert_ne!(taken(&mut nodes, StageName::Vocoder).unwrap(), talker);
}

#[test]
fn a_share_is_one_gateways_whatever_it_uses() {
    let mut shares = Shares::new(1);
    assert_eq!(shares.grant("a", StageName::Talker, 9), Ok(()));
    assert_eq!(shares.grant("a", StageName::Vocoder, 9), Ok(()));
    let told = shares.grant("b", StageName::Talker, 9).unwrap_err();
    assert_eq!(told, "no share is left: cluster.gateways is 1 there, and so many use it");
    assert_eq!(shares.grant("a", StageName::Talker, 9).unwrap_err(), "it still has an earlier link for the talker");
    shares.give_back("a", StageName::Talker);
    assert!(shares.grant("b", StageName::Talker, 9).is_err(), "it still has a vocoder");
    shares.give_back("a", StageName::Vocoder);
    assert_eq!(shares.grant("b", StageName::Talker, 9), Ok(()));
}

/// Two nodes that run both stages.
fn two_that_run() -> Nodes {
    let mut nodes = Nodes::new(terms(7));
    for id in ["a", "b"] {
        nodes.joined(id.into(), offer("cpu"), NOW);
    }
    for stage in [StageName::Talker, StageName::Vocoder] {
        for replica in 0..2 {
            let ticket = nodes.take(stage, replica, NOW).unwrap();
            nodes.linked(&ticket);
            nodes.running(&ticket, true);
        }
    }
    nodes
}

#[test]
fn a_node_may_leave_if_another_one_runs_its_stages_and_the_other_then_stays() {
    let mut nodes = two_that_run();
    assert_eq!(nodes.spare(&["a".into(), "b".into()], NOW), Err(StageName::Talker), "both at once");
    assert_eq!(nodes.spare(&["a".into()], NOW), Ok(()));
    assert_eq!(nodes.spare(&["b".into()], NOW), Err(StageName::Talker), "the first has not gone yet");
    nodes.stay(&["a".into()]);
    assert_eq!(nodes.spare(&["b".into()], NOW), Ok(()), "the first stays after all");
    assert_eq!(nodes.spare(&["a".into()], NOW), Err(StageName::Talker));
    assert_eq!(nodes.spare(&["b".into()], NOW + LEAVING), Ok(()), "it did not go");
    nodes.left("a");
    assert_eq!(nodes.spare(&["b".into()], NOW + 2 * LEAVING), Err(StageName::Talker), "it is the last");
}

#[test]
fn a_node_that_could_run_a_stage_counts_and_one_that_may_not_does_not() {
    let mut nodes = Nodes::new(terms(7));
    nodes.joined("a".into(), offer("cpu"), NOW);
    let ticket = nodes.take(StageName::Talker, 0, NOW).unwrap();
    nodes.linked(&ticket);
    nodes.running(&ticket, true);
    nodes.joined("b".into(), offer("gpu"), NOW);
    assert_eq!(nodes.spare(&["a".into()], NOW), Err(StageName::Talker), "it computes in another way");
    nodes.joined("b".into(), offer("cpu"), NOW);
    assert_eq!(nodes.spare(&["a".into()], NOW), Ok(()));
    let asked = nodes.take(StageName::Talker, 1, NOW).unwrap();
    assert_eq!(nodes.spare(&["a".into()], NOW + LEAVING), Err(StageName::Talker), "it is being asked");
    nodes.bar(&asked, "no share is left".into(), Some(LATER));
    nodes.release(&asked);
    assert_eq!(nodes.spare(&["a".into()], NOW + LEAVING), Err(StageName::Talker), "it has said no");
    assert_eq!(nodes.spare(&["b".into()], NOW + LEAVING), Ok(()), "it is not used");
}

#[test]
fn a_node_that_is_asked_again_is_listed_as_it_was() {
    let mut nodes = Nodes::new(terms(7));
    nodes.joined("a".into(), offer("cpu"), NOW);
    let ticket = nodes.take(StageName::Talker, 0, NOW).unwrap();
    nodes.bar(&ticket, "it is drained".into(), Some(LATER));
    nodes.release(&ticket);
    let again = nodes.take(StageName::Talker, 3, LATER).unwrap();
    let (name, reason) = (StageName::Talker, Some("it is drained".to_owned()));
    assert_eq!(nodes.list()[0].stages[0], OfferedStage { name, replica: None, used: false, reason });
    nodes.linked(&again);
    assert_eq!(nodes.list()[0].stages[0], OfferedStage { name, replica: Some(3), used: true, reason: None });
    assert_eq!(nodes.meant("one"), ["a"]);
    assert_eq!((nodes.meant("a"), nodes.meant("b").len()), (vec!["a".to_owned()], 0));
}

proptest! {
    #[test]
    fn a_node_is_used_for_a_stage_once_and_only_if_it_may_be(
        moves in proptest::collection::vec((0..6u8, 0..4usize, 2..4usize, any::<bool>(), any::<bool>()), 1..200),
    ) {
        let mut nodes = Nodes::new(terms(7));
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
                    nodes.linked(&ticket);
                    let twice = held.iter().any(|other| (&other.id, other.stage) == (&ticket.id, stage));
                    prop_assert!(!twice, "it was used already");
                    held.push(ticket);
                }
            }
        }
    }

    #[test]
    fn nodes_that_may_leave_leave_one_for_each_stage(
        nodes_of in proptest::collection::vec((any::<bool>(), any::<bool>(), any::<bool>()), 1..5),
        leave in proptest::collection::vec(proptest::collection::vec(0..5usize, 1..3), 1..8),
    ) {
        let mut nodes = Nodes::new(terms(7));
        let ids: Vec<String> = (0..nodes_of.len()).map(|node| node.to_string()).collect();
        for id in &ids {
            nodes.joined(id.clone(), offer("cpu"), NOW);
        }
        let stages = [StageName::Talker, StageName::Vocoder];
        let mut runs = [false; 2];
        for stage in stages {
            while let Some(ticket) = nodes.take(stage, 0, NOW) {
                let (talks, sounds, fails) = nodes_of[ticket.id.parse::<usize>().unwrap()];
                if if stage == StageName::Talker { talks } else { sounds } {
                    nodes.linked(&ticket);
                    nodes.running(&ticket, !fails);
                    runs[stage as usize - StageName::Talker as usize] |= !fails;
                } else {
                    nodes.bar(&ticket, "it may not".into(), None);
                    nodes.release(&ticket);
                }
            }
        }
        let mut gone = Vec::new();
        for ids_of in leave {
            let leaving: Vec<_> = ids_of.iter().filter_map(|node| ids.get(*node)).cloned().collect();
            if nodes.spare(&leaving, NOW).is_ok() {
                gone.extend(leaving);
            }
        }
        for id in &gone {
            nodes.left(id);
        }
        for (stage, ran) in stages.into_iter().zip(runs) {
            let runs = nodes.members.values().any(|member| {
                member.used[stage as usize].as_ref().is_some_and(|its| its.running)
            });
            prop_assert_eq!(runs, ran, "{} after {:?} have gone", stage, gone);
        }
    }
}
