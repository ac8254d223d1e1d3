//! What the page shows.

use super::*;
use serde_json::{Value, json};

const NOW: u64 = 1_700_010_000;

fn seen(gateway: &str, told: Value) -> Seen {
    let told = serde_json::from_value(told).unwrap();
    Seen { gateway: gateway.to_owned(), told: Ok((told, Some(Waits::default()))) }
}

fn cluster() -> Value {
    json!({
        "version": "1.2.3", "started": NOW - 7261, "ready": true, "requests": 5, "max_requests": 64,
        "admission": {"capacity": 40},
        "nodes": [
            {"name": "rack-1", "host": "a", "pid": 11, "slots": 32, "joined": NOW - 59, "round_trip_s": 0.00042,
                "stages": [{"name": "talker", "used": true}, {"name": "vocoder", "used": true}]},
            {"name": "rack-2", "host": "b", "pid": 4711, "slots": 8, "joined": NOW - 100_000,
                "stages": [{"name": "talker", "used": false, "reason": "the node is drained"},
                    {"name": "vocoder", "used": false, "reason": "the node is drained"}]},
        ],
        "stages": [
            {"name": "thinker", "state": "running", "since": NOW - 61, "sequences": 2},
            {"name": "talker", "replica": 0, "state": "running", "since": NOW - 5, "sequences": 12, "restarts": 3,
                "node": "rack-1", "last_reason": "it is mended"},
            {"name": "talker", "replica": 1, "state": "restarting", "since": NOW, "last_reason": "the node is drained"},
            {"name": "vocoder", "replica": 0, "state": "restarting", "since": NOW, "last_reason": "its link\u{1b}[2J ended"},
        ],
    })
}

fn text(lines: &[Line]) -> String {
    lines.iter().map(|line| format!("{}\n", line.text)).collect()
}

#[test]
fn it_shows_gateways_nodes_and_replicas() {
    let shown = page(&[seen("http://one:8080", cluster())], NOW, "last 30 s");
    let expected = "\
http://one:8080  1.2.3  ready  up 2h01m  requests 5/64  capacity 40
first sound - / - ms  gap - / - ms  (p50 / p95, last 30 s)
NODE    HOST:PROCESS  SLOTS  RTT MS  JOINED  USED FOR
rack-1  a:11             32     0.4  59s     talker vocoder
rack-2  b:4711            8       -  1d03h   none
  the node is drained
STAGE    REPLICA  ON      STATE       FOR    SEQUENCES  RESTARTS
thinker        -  here    running     1m01s          2         0
talker         0  rack-1  running     5s            12         3
talker         1  -       no node     0s             0         0
vocoder        0  -       restarting  0s             0         0
  its link?[2J ended
";
    assert_eq!(text(&shown), expected);
    let alarms = shown.iter().filter(|line| line.kind == Kind::Alarm).count();
    assert_eq!(alarms, 4, "the node, its reason, the replica, its reason");
}

#[test]
fn a_gateway_that_is_down_hides_no_other_and_one_without_nodes_shows_its_stages() {
    let down = Seen { gateway: "http://two:8080".into(), told: Err("no answer".into()) };
    let alone = json!({"ready": true, "stages": [{"name": "vocoder", "state": "running", "pid": 7, "since": NOW}]});
    let shown = text(&page(&[down, seen("http://three:8080", alone)], NOW, "since the start"));
    assert!(shown.starts_with("http://two:8080  down: no answer\n\nhttp://three:8080  "), "{shown}");
    assert!(shown.contains("vocoder        -  process 7  running  0s           0         0"), "{shown}");
    assert!(!shown.contains("NODE"));
}

#[test]
fn it_fits_any_terminal() {
    let shown = page(&[seen("http://one:8080", cluster())], NOW, "last 30 s");
    for (columns, rows) in [(0, 0), (1, 1), (20, 4), (80, 24), (160, 50)] {
        let fits = fitted(&shown, columns, rows);
        assert!(fits.len() <= rows && fits.iter().all(|line| line.text.chars().count() <= columns.max(1)));
    }
    let short = fitted(&shown, 80, 4);
    assert_eq!(short[3].text, "... 9 more lines: a larger terminal, or --once, shows them");
    assert_eq!(fitted(&shown, 20, 1).len(), 1);
    assert!(fitted(&shown, 20, 9)[0].text.ends_with('>'));
}
