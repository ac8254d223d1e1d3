//! What became of requests as spans of OpenTelemetry, in the JSON of OTLP: one for the request, and below it one for each
//! stretch that it waited for something. The words are those of the tracks in a Perfetto viewer.

use super::record::Record;
use super::requests::{Life, lives};
use crate::{Outcome, clock};
use omni_core::ids::RequestId;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// Requests that are followed at once: those that began longest ago are let go first.
const OPEN: usize = 4096;
/// Kinds of spans, by the numbers of OTLP.
const INTERNAL: u32 = 1;
const SERVER: u32 = 2;

/// The span of a client that a request belongs below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parent {
    /// 32 hexadecimal digits.
    pub trace_id: String,
    /// 16 hexadecimal digits.
    pub span_id: String,
}

/// Makes spans of records, which may come in pieces: a request has its spans when it has ended.
#[derive(Debug)]
pub struct Spans {
    open: BTreeMap<RequestId, Life>,
    /// Keeps the ids of two processes apart.
    seed: u64,
    /// What to add to the clock of the host for nanoseconds since 1970.
    offset: u64,
}

impl Default for Spans {
    fn default() -> Spans {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let now = clock::now();
        Spans {
            open: BTreeMap::new(),
            seed: mixed(unix ^ u64::from(std::process::id()) << 32),
            offset: unix - now.min(unix),
        }
    }
}

impl Spans {
    /// Takes records and gives the spans of the requests that have ended with them. `parent` tells of each such request
    /// below which span it belongs: `Some(None)` is a trace of its own, `None` is a request that its client wants in none.
    pub fn absorb(
        &mut self,
        records: &[Record],
        mut parent: impl FnMut(RequestId) -> Option<Option<Parent>>,
    ) -> Vec<Value> {
        for (request, life) in lives(records) {
            self.open.entry(request).or_default().merge(life);
        }
        let ended = |(request, life): (&RequestId, &Life)| life.ended.is_some().then_some(*request);
        let ended: Vec<RequestId> = self.open.iter().filter_map(ended).collect();
        let mut spans = Vec::new();
        for request in ended {
            if let (Some(life), Some(parent)) = (self.open.remove(&request), parent(request)) {
                spans.append(&mut self.spans(request, &life, parent));
            }
        }
        while self.open.len() > OPEN {
            self.open.pop_first();
        }
        spans
    }

    fn spans(&self, request: RequestId, life: &Life, parent: Option<Parent>) -> Vec<Value> {
        let trace_id = parent.as_ref().map_or_else(
            || format!("{:016x}{:016x}", self.seed, mixed(self.seed ^ request.0)),
            |parent| parent.trace_id.clone(),
        );
        let id = |number: u64| format!("{:016x}", mixed(self.seed.wrapping_add(request.0 << 8 | number)));
        let time = |nanos: u64| nanos.wrapping_add(self.offset).to_string();
        let sound: u64 = life.pieces.iter().filter_map(|(_, length)| *length).sum();
        let outcome = life.ended.map_or(Outcome::Aborted, |(_, outcome)| outcome);
        let first = |sound: bool, name: &str| {
            let at = life.pieces.iter().find(|(_, length)| length.is_some() == sound).map(|(at, _)| *at)?;
            Some(json!({ "name": name, "timeUnixNano": time(at) }))
        };
        let events: Vec<_> = [first(false, "first text"), first(true, "first sound")].into_iter().flatten().collect();
        let mut spans = vec![json!({
            "traceId": trace_id,
            "spanId": id(0),
            "parentSpanId": parent.map_or(String::new(), |parent| parent.span_id),
            "name": life.kind.map_or("request", |kind| kind.as_str()),
            "kind": SERVER,
            "startTimeUnixNano": time(life.began()),
            "endTimeUnixNano": time(life.until()),
            "attributes": [
                text("omni.request", &request.to_string()),
                text("omni.outcome", outcome.as_str()),
                { "key": "omni.speech_seconds", "value": { "doubleValue": sound as f64 / 1e9 } },
                { "key": "omni.chunks", "value": { "intValue": life.pieces.len().to_string() } },
            ],
            "events": events,
            // 2 is an error; what a client ended is none.
            "status": { "code": if matches!(outcome, Outcome::Failed | Outcome::TimedOut) { 2 } else { 1 } },
        })];
        spans.extend(life.stretches().into_iter().zip(1..).map(|((name, began, ended), number)| {
            json!({
                "traceId": trace_id,
                "spanId": id(number),
                "parentSpanId": id(0),
                "name": name,
                "kind": INTERNAL,
                "startTimeUnixNano": time(began),
                "endTimeUnixNano": time(ended),
            })
        }));
        spans
    }
}

/// The request that brings spans to a collector.
pub fn document(spans: &[Value]) -> Value {
    let version = env!("CARGO_PKG_VERSION");
    json!({ "resourceSpans": [{
        "resource": { "attributes": [text("service.name", "omni-actors"), text("service.version", version)] },
        "scopeSpans": [{ "scope": { "name": "omni-actors", "version": version }, "spans": spans }],
    }] })
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// A number that looks like no other (SplitMix64), and is not 0, which no id may be.
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ z >> 31).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RequestKind;
    use crate::trace::{Track, What};

    fn told(at: u64, what: What) -> Record {
        Record { process: 1, track: Track::Request(RequestId(7)), began: at, ended: at, what }
    }

    fn life() -> Vec<Record> {
        vec![
            told(1_000, What::Accepted(RequestKind::Speech)),
            told(3_000, What::Speech { length: 80_000_000 }),
            told(5_000, What::Speech { length: 80_000_000 }),
            told(6_000, What::Ended(Outcome::Finished)),
        ]
    }

    #[test]
    fn a_request_is_a_span_with_what_it_waited_for_below_it() {
        let parent = Parent { trace_id: "4bf92f3577b34da6a3ce929d0e0e4736".into(), span_id: "00f067aa0ba902b7".into() };
        let mut maker = Spans { offset: 0, ..Spans::default() };
        let spans = maker.absorb(&life(), |_| Some(Some(parent.clone())));
        let request = &spans[0];
        assert_eq!(request["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(request["parentSpanId"], "00f067aa0ba902b7");
        assert_eq!((&request["name"], &request["kind"]), (&json!("speech"), &json!(2)));
        assert_eq!((&request["startTimeUnixNano"], &request["endTimeUnixNano"]), (&json!("1000"), &json!("6000")));
        assert_eq!(request["events"], json!([{ "name": "first sound", "timeUnixNano": "3000" }]));
        assert!(request["attributes"].to_string().contains("\"finished\""));
        let below: Vec<_> = spans[1..].iter().map(|span| span["name"].as_str().unwrap()).collect();
        assert_eq!(below, ["to first chunk", "chunks"]);
        assert!(spans[1..].iter().all(|span| span["parentSpanId"] == request["spanId"]));
        let ids: std::collections::BTreeSet<_> = spans.iter().map(|span| span["spanId"].to_string()).collect();
        assert_eq!(ids.len(), spans.len());
        assert_eq!(document(&spans)["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().len(), 3);
    }

    #[test]
    fn records_may_come_in_pieces() {
        let mut whole = Spans { offset: 0, seed: 1, ..Spans::default() };
        let expected = whole.absorb(&life(), |_| Some(None));
        let mut pieces = Spans { offset: 0, seed: 1, ..Spans::default() };
        let told: Vec<_> = life().chunks(1).flat_map(|records| pieces.absorb(records, |_| Some(None))).collect();
        assert_eq!(told, expected);
        assert!(pieces.open.is_empty());
        assert_eq!(told[0]["parentSpanId"], "");
        assert_eq!(told[0]["traceId"].as_str().unwrap().len(), 32);
    }

    #[test]
    fn a_request_that_its_client_wants_in_no_trace_has_no_span() {
        assert!(Spans::default().absorb(&life(), |_| None).is_empty());
    }

    #[test]
    fn requests_that_never_end_are_let_go() {
        let mut spans = Spans::default();
        let begin = |request| Record {
            track: Track::Request(RequestId(request)),
            ..told(1, What::Accepted(RequestKind::Chat))
        };
        let many: Vec<_> = (0..OPEN as u64 + 10).map(begin).collect();
        assert!(spans.absorb(&many, |_| Some(None)).is_empty());
        assert_eq!(spans.open.len(), OPEN);
    }
}
