//! In which order gateways ask nodes, and how often.

use super::*;
use std::collections::BTreeSet;

const NOW: Duration = Duration::from_secs(1);

fn nodes(gateway: &str, count: u8, gateways: usize) -> Nodes {
    let terms = Terms { protocol: PROTOCOL, program: "1.2.3".into(), checkpoint: [7; 32] };
    let mut nodes = Nodes::new(terms.clone()).in_order_of(gateway);
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
        let next = nodes.next_look(StageName::Talker).unwrap();
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

#[test]
fn a_gateway_that_wants_a_node_for_itself_gets_none_that_another_uses() {
    let mut shares = Shares::new(3);
    assert_eq!(shares.grant("a", StageName::Talker, 0), Ok(()));
    let told = shares.grant("b", StageName::Talker, 0).unwrap_err();
    assert_eq!(told, "it is shared by 1, and others may be free");
    assert_eq!(shares.grant("a", StageName::Vocoder, 0), Ok(()), "it is its own already");
    assert_eq!(shares.grant("b", StageName::Talker, 1), Ok(()));
}
