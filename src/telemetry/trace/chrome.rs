//! A trace as a file: Chrome's trace events as JSON, which ui.perfetto.dev and chrome://tracing open.
//!
//! Each stage is a process of the picture with its tracks as threads, and so are the requests, one thread each. Times
//! are microseconds since the trace began.

use super::flows::{Arrow, arrows};
use super::layout::{Slice, slices};
use super::record::{Component, Record, What};
use super::recorder::Trace;
use super::requests::{Life, lives};
use super::steps::Summary;
use omni_core::ids::{Replica, RequestId, StageName};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::time::Duration;

/// The number of the requests' process; stages follow.
const REQUESTS: u32 = 1;

fn process(place: Replica) -> u32 {
    REQUESTS + 1 + place.stage as u32 + u32::from(place.number) * StageName::ALL.len() as u32
}

fn name(place: Replica) -> String {
    match place.number {
        0 => place.stage.to_string(),
        number => format!("{} {number}", place.stage),
    }
}

fn thread(component: Component) -> u32 {
    component as u32 + 1
}

/// Writes a trace.
///
/// # Errors
/// Those of the writer.
pub fn write(trace: &Trace, out: &mut impl Write) -> io::Result<()> {
    let slices = slices(&trace.records);
    let mut file = File { out, trace, any: false };
    file.head()?;
    file.names(&slices)?;
    slices.iter().try_for_each(|slice| file.slice(slice))?;
    for (id, arrow) in arrows(&slices).iter().enumerate() {
        file.arrow(id, arrow, &slices)?;
    }
    for (place, (request, life)) in lives(&trace.records).iter().enumerate() {
        file.request(place, *request, life)?;
    }
    trace.records.iter().try_for_each(|record| file.counters(record))?;
    file.foot()
}

/// The summary of a stage, for readers of the file who do not open the picture.
fn summary(stage: &Summary) -> Value {
    let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
    let pair = |pair: Option<(Duration, Duration)>| {
        pair.map(|(p50, p99)| json!({ "p50_us": micros(p50), "p99_us": micros(p99) }))
    };
    json!({
        "stage": stage.stage.as_str(),
        "steps": stage.steps,
        "run_ahead": stage.ahead,
        "launched_early": stage.early,
        "cadence": pair(stage.cadence),
        "bubble": pair(stage.bubble),
    })
}

struct File<'a, W> {
    out: &'a mut W,
    trace: &'a Trace,
    any: bool,
}

impl<W: Write> File<'_, W> {
    fn head(&mut self) -> io::Result<()> {
        let stages: Vec<_> = Summary::of(&self.trace.steps()).iter().map(summary).collect();
        let about = json!({
            "program": concat!("omni-actors ", env!("CARGO_PKG_VERSION")),
            "clock": "CLOCK_MONOTONIC",
            "began_ns": self.trace.began,
            "length_us": self.micros(self.trace.ended),
            "records": self.trace.records.len(),
            "records_missing": self.trace.missing,
            "stages": stages,
        });
        write!(self.out, "{{\"displayTimeUnit\":\"ns\",\"otherData\":{about},\"traceEvents\":[")
    }

    fn foot(&mut self) -> io::Result<()> {
        writeln!(self.out, "\n]}}")?;
        self.out.flush()
    }

    fn micros(&self, nanos: u64) -> f64 {
        nanos.saturating_sub(self.trace.began) as f64 / 1e3
    }

    fn event(&mut self, event: &Value) -> io::Result<()> {
        write!(self.out, "{}\n{event}", if self.any { "," } else { "" })?;
        self.any = true;
        Ok(())
    }

    /// The names of processes and tracks, and their order from top to bottom.
    fn names(&mut self, slices: &[Slice]) -> io::Result<()> {
        self.process(REQUESTS, "requests", None)?;
        let places: BTreeSet<_> = slices.iter().map(|slice| slice.place).collect();
        let mut own: BTreeMap<Replica, BTreeSet<u32>> = BTreeMap::new();
        for record in &self.trace.records {
            if let Some(place) = record.track.place() {
                own.entry(place).or_default().insert(record.process);
            }
        }
        for place in places {
            let numbers = own.get(&place).into_iter().flatten().map(|id| format!("process {id}"));
            let nodes = self.trace.nodes.get(&place).into_iter().flatten();
            let nodes = nodes.map(|(node, wrong)| format!("node {node}, clock +-{} us", wrong.as_micros()));
            let labels = numbers.chain(nodes).collect::<Vec<_>>().join(", ");
            self.process(process(place), &name(place), Some(labels))?;
            // All of them, empty or not, so that every trace has the same picture.
            for component in Component::ALL {
                self.thread(process(place), thread(component), component.as_str())?;
            }
        }
        Ok(())
    }

    fn process(&mut self, pid: u32, name: &str, labels: Option<String>) -> io::Result<()> {
        self.event(&json!({ "ph": "M", "name": "process_name", "pid": pid, "args": { "name": name } }))?;
        self.event(&json!({ "ph": "M", "name": "process_sort_index", "pid": pid, "args": { "sort_index": pid } }))?;
        match labels {
            Some(labels) => {
                self.event(&json!({ "ph": "M", "name": "process_labels", "pid": pid, "args": { "labels": labels } }))
            }
            None => Ok(()),
        }
    }

    fn thread(&mut self, pid: u32, tid: u32, name: &str) -> io::Result<()> {
        let about = |what: &str, args: Value| json!({ "ph": "M", "name": what, "pid": pid, "tid": tid, "args": args });
        self.event(&about("thread_name", json!({ "name": name })))?;
        self.event(&about("thread_sort_index", json!({ "sort_index": tid })))
    }

    fn slice(&mut self, slice: &Slice) -> io::Result<()> {
        let (pid, tid) = (process(slice.place), thread(slice.component));
        let event = self.complete(pid, tid, &slice.name, slice.category, (slice.began, slice.ended), &slice.args);
        self.event(&event)
    }

    fn complete(
        &self,
        pid: u32,
        tid: u32,
        name: &str,
        category: &str,
        (began, ended): (u64, u64),
        args: &Map<String, Value>,
    ) -> Value {
        let took = ended.saturating_sub(began) as f64 / 1e3;
        json!({
            "ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid,
            "ts": self.micros(began), "dur": took, "args": args,
        })
    }

    /// Leads from the end of its first slice to the beginning of each other one.
    fn arrow(&mut self, id: usize, arrow: &Arrow, slices: &[Slice]) -> io::Result<()> {
        let last = arrow.over.len() - 1;
        let mut at = 0;
        for (i, place) in arrow.over.iter().enumerate() {
            let slice = &slices[*place];
            // Inside its slice, and never back in time.
            let wanted = if i == 0 { slice.ended.saturating_sub(1) } else { slice.began };
            at = wanted.max(at).clamp(slice.began, slice.ended);
            let kind = if i == 0 {
                "s"
            } else if i == last {
                "f"
            } else {
                "t"
            };
            let mut event = json!({
                "ph": kind, "id": id, "name": arrow.name, "cat": "flow",
                "pid": process(slice.place), "tid": thread(slice.component), "ts": self.micros(at),
            });
            if i == last {
                event["bp"] = "e".into();
            }
            self.event(&event)?;
        }
        Ok(())
    }

    fn request(&mut self, place: usize, request: RequestId, life: &Life) -> io::Result<()> {
        let tid = place as u32 + 1;
        self.thread(REQUESTS, tid, &format!("request {}", request.0))?;
        let kind = life.kind.map_or("request", |kind| kind.as_str());
        let outcome = life.ended.map(|(_, outcome)| outcome.as_str());
        let args = json!({ "request": request.0, "outcome": outcome, "chunks": life.pieces.len() });
        let args = if let Value::Object(args) = args { args } else { Map::new() };
        let whole = (life.began(), life.until());
        let event = self.complete(REQUESTS, tid, &format!("{kind} {}", request.0), "request", whole, &args);
        self.event(&event)?;
        for (name, began, ended) in life.stretches() {
            let event = self.complete(REQUESTS, tid, name, "request", (began, ended), &Map::new());
            self.event(&event)?;
        }
        for (at, length) in &life.pieces {
            let name = if length.is_some() { "chunk" } else { "text" };
            let args = length.map_or_else(|| json!({}), |length| json!({ "sound_ms": length as f64 / 1e6 }));
            self.event(&json!({
                "ph": "i", "s": "t", "name": name, "cat": "request",
                "pid": REQUESTS, "tid": tid, "ts": self.micros(*at), "args": args,
            }))?;
        }
        Ok(())
    }

    fn counters(&mut self, record: &Record) -> io::Result<()> {
        let Some(place) = record.track.place() else { return Ok(()) };
        let mut count = |name: &str, value: u32| {
            let ts = self.micros(record.began);
            self.event(&json!({
                "ph": "C", "name": name, "pid": process(place), "ts": ts, "args": { "value": value },
            }))
        };
        match &record.what {
            What::Launched { sequences, ahead, .. } => {
                count("sequences", *sequences)?;
                count("run-ahead", *ahead)
            }
            What::Queued(queue, depth) => count(&format!("queue: {}", queue.as_str()), *depth),
            _ => Ok(()),
        }
    }
}
