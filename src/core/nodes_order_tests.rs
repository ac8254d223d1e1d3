//! In which order gateways ask nodes, and how often.

use super::*;
use std::collections::BTreeSet;

const NOW: Duration = Duration::from_secs(1);

fn nodes(gateway: &str, count: u8, gateways: usize) -> Nodes {
    let terms = Terms { protocol: PROTOCOL, program: "1.2.3".into(), checkpoint: [7; 32] };
    let mut nodes = Nodes::new(terms.clone(), 8).in_order_of(gateway);
    for id in 0..count {
        let (name, host, arithmetic) = ("one".to_owned(), "here".to_owned(), "cpu".to_owned());
        let stages = vec![StageName::Talker, StageName::Vocoder];
        let offer = Offer { name, host, pid: 7, terms: terms.clone(), arithmetic, stages, slots: 4, gateways };
        assert_eq!(nodes.joined(id.to_string(), offer, NOW), None);
    }
    nodes
}

#[test]
fn a_node_that_is_full_is_asked_less_and_less_often() {
    let mut nodes = nodes("gateway", 1, 1);
    let (mut now, mut pauses) = (NOW, Vec::new());
    for _ in 0..8 {
        let ticket = nodes.take(StageName::Talker, 0, now).unwrap();
        nodes.refused(&ticket, "no share is left".into(), now);
        nodes.release(&ticket);
        assert_eq!(nodes.take(StageName::Talker, 0, now), None);
        let next = nodes.next_look(StageName::Talker, now).unwrap();
        pauses.push((next - now).as_millis());
        now = next;
    }
    assert_eq!(pauses, [200, 400, 800, 1600, 3200, 6400, 6400, 6400]);
}

#[test]
fn a_node_that_no_other_gateway_uses_is_asked_for_first() {
    let mut nodes = nodes("gateway", 2, 4);
    let mut asked = Vec::new();
    while let Some(ticket) = nodes.take(StageName::Talker, 0, NOW) {
        nodes.refused(&ticket, "it is shared".into(), NOW);
        nodes.release(&ticket);
        asked.push((ticket.id, ticket.beside));
    }
    let (first, second) = (asked[0].0.clone(), asked[1].0.clone());
    let each = |beside| [(first.clone(), beside), (second.clone(), beside)];
    assert_eq!(asked, [each(0), each(1), each(3)].concat());
    assert_ne!(first, second);
}

#[test]
fn gateways_ask_in_different_orders() {
    let first = |gateway: u8| nodes(&gateway.to_string(), 8, 1).take(StageName::Talker, 0, NOW).unwrap().id;
    let firsts: BTreeSet<_> = (0..64).map(first).collect();
    assert_eq!(firsts.len(), 8, "of 64 gateways, some begin with each node");
}

/// Has the nodes open what is asked of them, and lists what each stage got.
fn taken(nodes: &mut Nodes, asks: &[StageName]) -> Vec<(StageName, Option<Ticket>)> {
    let take = |stage: &StageName| {
        let ticket = nodes.take(*stage, 0, NOW);
        ticket.iter().for_each(|ticket| assert!(nodes.linked(ticket)));
        (*stage, ticket)
    };
    asks.iter().map(take).collect()
}

#[test]
fn a_gateway_has_as_many_nodes_as_it_may_have_whatever_it_uses_them_for() {
    let (talker, vocoder) = (StageName::Talker, StageName::Vocoder);
    let mut nodes = Nodes { most: 2, ..nodes("gateway", 4, 1) };
    // Without the bound the second vocoder would get a fourth node, or the third.
    let got = taken(&mut nodes, &[talker, vocoder, talker, vocoder, talker]);
    assert_eq!(got[4].1, None, "two nodes have one already");
    let ids: BTreeSet<_> = got[..4].iter().map(|(_, ticket)| ticket.clone().unwrap().id).collect();
    assert_eq!(ids.len(), 2, "{ids:?}");
    // One that is gone makes room for another.
    nodes.left(ids.first().unwrap());
    let again = taken(&mut nodes, &[vocoder, talker, talker]);
    assert!(again[0].1.is_some() && again[0].1.as_ref().map(|its| &its.id) == again[1].1.as_ref().map(|its| &its.id));
    assert_eq!(again[2].1, None);
}

#[test]
fn a_node_counts_for_the_stages_that_it_could_run() {
    let mut nodes = Nodes { most: 1, ..nodes("gateway", 2, 1) };
    let runs = |nodes: &mut Nodes, id: &str, stage| nodes.members.get_mut(id).unwrap().offer.stages = vec![stage];
    runs(&mut nodes, "0", StageName::Talker);
    runs(&mut nodes, "1", StageName::Vocoder);
    let got = taken(&mut nodes, &[StageName::Talker, StageName::Vocoder]);
    assert!(got.iter().all(|(_, ticket)| ticket.is_some()), "{got:?}");

    // One whose vocoder was given up is none of the vocoders.
    let mut nodes = Nodes { most: 1, ..self::nodes("gateway", 2, 1) };
    let ticket = nodes.take(StageName::Vocoder, 0, NOW).unwrap();
    nodes.bar(&ticket, "it failed".into(), None);
    nodes.release(&ticket);
    let failed = nodes.members.get_mut(&ticket.id).unwrap();
    failed.refusals = Default::default();
    let other = nodes.take(StageName::Talker, 0, NOW).unwrap();
    let (at, talks) = (other.id != ticket.id, nodes.take(StageName::Vocoder, 0, NOW).unwrap());
    assert!(talks.id != ticket.id, "{at} {talks:?}");
}

#[test]
fn one_who_waits_for_a_node_of_its_own_is_not_woken_by_those_that_it_may_not_have() {
    let mut nodes = Nodes { most: 1, ..nodes("gateway", 2, 1) };
    let refused = nodes.take(StageName::Talker, 0, NOW).unwrap();
    nodes.refused(&refused, "no share is left".into(), NOW);
    nodes.release(&refused);
    let own = nodes.take(StageName::Talker, 0, NOW).unwrap();
    assert!(nodes.linked(&own));
    assert_eq!(nodes.take(StageName::Talker, 1, NOW), None);
    let next = nodes.next_look(StageName::Talker, NOW).unwrap();
    assert_eq!((nodes.take(StageName::Talker, 1, next), nodes.next_look(StageName::Talker, next)), (None, None));
    nodes.release(&own);
    assert!(nodes.take(StageName::Talker, 1, next).is_some());
}
