//! Series of the nodes of a cluster. They are made from what there is when somebody asks, and not kept: nodes come and go
//! under new names, and those that have left have no series.

use super::catalogue::{self as c, Kind, Metric};
use super::link::LinkTraffic;
use omni_core::ids::StageName;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

/// A replica that is on a node.
#[derive(Clone, Debug)]
pub struct ReplicaOnNode {
    /// The node's name.
    pub node: String,
    /// Which stage.
    pub stage: StageName,
    /// Which replica of it.
    pub replica: usize,
    /// Sequences that hold a slot.
    pub sequences: usize,
    /// Restarts of the replica after a failure, on whichever node.
    pub restarts: u32,
    /// The link down to the node and up from it.
    pub link: [Arc<LinkTraffic>; 2],
}

/// The series of a gateway, in Prometheus' text format: of replicas on nodes, and of the nodes that have joined, with how
/// long a question to each and its answer take.
pub fn render_nodes(replicas: &[ReplicaOnNode], nodes: &[(&str, Option<Duration>)]) -> String {
    let mut text = String::new();
    family(&mut text, c::NODES, [(String::new(), nodes.len() as f64)]);
    // Of several nodes of one name the one that is farthest away.
    let mut trips: BTreeMap<&str, Duration> = BTreeMap::new();
    for (node, trip) in nodes.iter().filter_map(|(node, trip)| Some((*node, (*trip)?))) {
        let longest = trips.entry(node).or_default();
        *longest = trip.max(*longest);
    }
    let trip = |(node, trip): (&str, Duration)| (format!("node=\"{}\"", escaped(node)), trip.as_secs_f64());
    family(&mut text, c::NODE_ROUND_TRIP, trips.into_iter().map(trip));
    let labels = |its: &ReplicaOnNode| {
        format!("node=\"{}\",stage=\"{}\",replica=\"{}\"", escaped(&its.node), its.stage, its.replica)
    };
    family(&mut text, c::NODE_SEQUENCES, replicas.iter().map(|its| (labels(its), its.sequences as f64)));
    family(&mut text, c::NODE_RESTARTS, replicas.iter().map(|its| (labels(its), f64::from(its.restarts))));
    let directions = |count: fn(&LinkTraffic) -> u64| {
        replicas.iter().flat_map(move |its| {
            let each = its.link.iter().zip(["down", "up"]);
            each.map(move |(link, direction)| {
                (format!("{},direction=\"{direction}\"", labels(its)), count(link) as f64)
            })
        })
    };
    family(&mut text, c::NODE_LINK_FRAMES, directions(LinkTraffic::frames));
    family(&mut text, c::NODE_LINK_BYTES, directions(LinkTraffic::bytes));
    text
}

/// Labels and value of each series.
fn family(text: &mut String, metric: Metric, series: impl IntoIterator<Item = (String, f64)>) {
    let kind = match metric.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram(_) => "histogram",
    };
    let name = metric.name;
    // Writing to a string cannot fail.
    let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", metric.help);
    for (labels, value) in series {
        let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
        let _ = writeln!(text, "{name}{labels} {value}");
    }
    text.push('\n');
}

/// A node says how it is called.
fn escaped(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_series_while_they_are_there_and_no_name_breaks_the_format() {
        let link = [LinkTraffic::new(), LinkTraffic::new()];
        link[0].passed(100);
        link[0].passed(20);
        let replica = |node: &str, replica| {
            let (node, link) = (node.to_owned(), link.clone());
            ReplicaOnNode { node, stage: StageName::Talker, replica, sequences: 3, restarts: 1, link }
        };
        let far = Duration::from_micros(1500);
        let nodes = [("a", Some(far)), ("a", Some(far / 2)), ("b\"\n", None)];
        let text = render_nodes(&[replica("a", 0), replica("b\"\n", 1)], &nodes);
        for line in [
            "omni_nodes 3",
            "omni_node_round_trip_seconds{node=\"a\"} 0.0015",
            "omni_node_sequences{node=\"a\",stage=\"talker\",replica=\"0\"} 3",
            "omni_node_sequences{node=\"b\\\"\\n\",stage=\"talker\",replica=\"1\"} 3",
            "omni_node_restarts_total{node=\"a\",stage=\"talker\",replica=\"0\"} 1",
            "omni_node_link_frames_total{node=\"a\",stage=\"talker\",replica=\"0\",direction=\"down\"} 2",
            "omni_node_link_bytes_total{node=\"a\",stage=\"talker\",replica=\"0\",direction=\"down\"} 120",
            "omni_node_link_bytes_total{node=\"a\",stage=\"talker\",replica=\"0\",direction=\"up\"} 0",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is missing:\n{text}");
        }
        assert!(!render_nodes(&[], &[]).contains("node=\""), "they have left");
    }
}
