use super::*;
use crate::nodes::tests::{LATER, NOW, offer, terms};
use crate::nodes::{Bar, Offer};
use proptest::prelude::*;

/// Two nodes that run both stages.
fn two_that_run() -> Nodes {
    let mut nodes = Nodes::new(terms(7), 8);
    for id in ["a", "b"] {
        nodes.joined(id.into(), offer("cpu"), NOW);
    }
    for stage in [StageName::Talker, StageName::Vocoder] {
        for replica in 0..2 {
            let ticket = nodes.take(stage, replica, NOW).unwrap();
            assert!(nodes.linked(&ticket));
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
fn a_node_that_keeps_a_share_counts_and_one_that_may_not_run_the_stage_does_not() {
    let mut nodes = Nodes::new(terms(7), 8);
    nodes.joined("a".into(), offer("cpu"), NOW);
    let ticket = nodes.take(StageName::Talker, 0, NOW).unwrap();
    assert!(nodes.linked(&ticket));
    nodes.running(&ticket, true);
    nodes.joined("b".into(), offer("gpu"), NOW);
    let a = ["a".into()];
    nodes.kept("b", NOW);
    assert_eq!(nodes.spare(&a, NOW), Err(StageName::Talker), "it computes in another way");
    assert_eq!(nodes.homes(StageName::Talker, &a, NOW).len(), 0);
    nodes.joined("b".into(), offer("cpu"), NOW);
    assert_eq!(nodes.spare(&a, NOW), Err(StageName::Talker), "others may have its shares");
    assert_eq!(nodes.homes(StageName::Talker, &a, NOW), ["b"]);
    let asked = nodes.take(StageName::Talker, 1, NOW).unwrap();
    assert_eq!(nodes.homes(StageName::Talker, &a, NOW).len(), 0, "it is being asked for more than that");
    nodes.refused(&asked, "no share is left".into(), NOW);
    nodes.release(&asked);
    assert_eq!(nodes.homes(StageName::Talker, &a, NOW), ["b"], "it may have one by now");
    assert_eq!(nodes.spare(&["b".into()], NOW), Ok(()), "it is not used");
    nodes.stay(&["b".into()]);
    nodes.kept("b", NOW);
    assert_eq!(nodes.spare(&a, NOW), Ok(()));
    assert_eq!(nodes.spare(&["b".into()], NOW), Err(StageName::Talker), "it was promised");
    let soon_over = NOW + KEPT - LASTS;
    assert_eq!(nodes.spare(&a, soon_over), Err(StageName::Talker), "it may be over before the other has left");
    assert_eq!(nodes.homes(StageName::Talker, &a, soon_over), ["b"], "it may keep it for longer");
}

#[test]
fn a_promise_is_for_the_stages_that_this_gateway_has_on_nodes() {
    let mut nodes = Nodes::new(terms(7), 8);
    nodes.joined("a".into(), Offer { stages: vec![StageName::Vocoder], ..offer("cpu") }, NOW);
    let ticket = nodes.take(StageName::Vocoder, 0, NOW).unwrap();
    assert!(nodes.linked(&ticket));
    nodes.running(&ticket, true);
    nodes.joined("b".into(), offer("cpu"), NOW);
    nodes.kept("b", NOW);
    assert_eq!(nodes.spare(&["b".into()], NOW), Ok(()), "the talker is in the gateway");
}

#[test]
fn a_node_that_says_no_for_now_is_no_home_for_now() {
    let mut nodes = two_that_run();
    let barred = nodes.members.get_mut("b").unwrap();
    barred.used[StageName::Vocoder as usize] = None;
    barred.bars[StageName::Vocoder as usize] = Some(Bar { reason: "an earlier link".into(), until: Some(LATER) });
    assert_eq!(nodes.spare(&["a".into()], NOW), Err(StageName::Vocoder));
    assert_eq!(nodes.spare(&["a".into()], LATER), Ok(()));
}

#[test]
fn a_node_that_keeps_a_share_is_asked_first_and_at_once() {
    let mut nodes = Nodes::new(terms(7), 8);
    for id in ["a", "b", "c"] {
        nodes.joined(id.into(), offer("cpu"), NOW);
    }
    let order: Vec<_> = (0..3).map(|replica| nodes.take(StageName::Talker, replica, NOW).unwrap()).collect();
    for ticket in &order {
        nodes.refused(ticket, "no share is left".into(), NOW);
        nodes.release(ticket);
    }
    nodes.measured(&order[2].id, Some(NOW));
    assert_eq!(nodes.homes(StageName::Vocoder, &[], NOW)[0], order[2].id, "the one that answers");
    nodes.kept(&order[2].id, NOW);
    assert_eq!(nodes.take(StageName::Talker, 0, NOW).unwrap().id, order[2].id);
    assert_eq!(nodes.take(StageName::Talker, 1, NOW), None);
}

proptest! {
    #[test]
    fn nodes_that_may_leave_leave_one_for_each_stage(
        nodes_of in proptest::collection::vec((any::<bool>(), any::<bool>(), any::<bool>()), 1..5),
        leave in proptest::collection::vec(proptest::collection::vec(0..5usize, 1..3), 1..8),
    ) {
        let mut nodes = Nodes::new(terms(7), 8);
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
                    assert!(nodes.linked(&ticket));
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
