//! A trace as slices in tracks. Slices of one track nest or follow each other, as viewers demand: where two clocks (a
//! device's duration, a host's wake-up) make neighbouring slices overlap by microseconds, the later one begins where
//! the earlier one ends, and keeps its measured length in its arguments.

use super::record::{Chunk, Component, Ran, Record, Track, What};
use omni_core::ids::{Generation, PayloadKind, Replica, StepId};
use serde_json::{Map, Value, json};

/// A box in a track; times in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Slice {
    pub place: Replica,
    pub generation: Generation,
    pub component: Component,
    pub name: String,
    pub category: &'static str,
    pub began: u64,
    pub ended: u64,
    pub args: Map<String, Value>,
    /// What arrows find it by.
    pub about: About,
}

/// What a slice is about, for the arrows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum About {
    Planned { step: StepId, after: Option<StepId> },
    Launched(StepId),
    Ran(StepId),
    Sampled(StepId),
    Returned(StepId),
    Packed(Chunk),
    Put(Chunk),
    Took(Chunk),
    InputPushed(Chunk),
    Nothing,
}

/// The slices of all stages, track by track, each track by time and the outer before the inner.
pub(super) fn slices(records: &[Record]) -> Vec<Slice> {
    let mut slices: Vec<Slice> = records.iter().filter_map(slice).collect();
    slices.sort_by_key(|slice| (slice.place, slice.component, slice.began, std::cmp::Reverse(slice.ended)));
    for track in slices.chunk_by_mut(|a, b| (a.place, a.component) == (b.place, b.component)) {
        untangle(track);
    }
    let inner = slices.iter().flat_map(phases).collect::<Vec<_>>();
    slices.extend(inner);
    slices.sort_by_key(|slice| (slice.place, slice.component, slice.began, std::cmp::Reverse(slice.ended)));
    slices
}

/// Makes slices of one track, ordered by their beginning, nest or follow each other.
fn untangle(track: &mut [Slice]) {
    // Ends of the slices that the current one may lie in, the innermost last.
    let mut open: Vec<u64> = Vec::new();
    let mut last = 0;
    for slice in track {
        slice.began = slice.began.max(last);
        slice.ended = slice.ended.max(slice.began);
        while let Some(end) = open.last().copied() {
            if slice.began >= end {
                open.pop();
            } else if slice.ended <= end {
                break;
            } else {
                // It overlaps: it begins where the open one ends.
                slice.began = end;
                open.pop();
            }
        }
        (slice.ended, last) = (slice.ended.max(slice.began), slice.began);
        open.push(slice.ended);
    }
}

/// The phases of a step as slices inside its own, laid end to end in their order: only their lengths are known.
fn phases(slice: &Slice) -> Vec<Slice> {
    let (About::Ran(_), Some(Value::Object(phases))) = (slice.about, slice.args.get("phases_us")) else {
        return Vec::new();
    };
    let mut began = slice.began;
    let of = |(name, micros): (&String, &Value)| {
        let length = (micros.as_f64().unwrap_or_default() * 1e3) as u64;
        let ended = began.saturating_add(length).min(slice.ended);
        let inner = Slice {
            name: name.clone(),
            category: "phase",
            began,
            ended,
            args: Map::new(),
            about: About::Nothing,
            ..slice.clone()
        };
        began = ended;
        inner
    };
    phases.iter().map(of).filter(|inner| inner.ended > inner.began).collect()
}

fn slice(record: &Record) -> Option<Slice> {
    let Track::Stage { stage, replica, generation, component } = record.track else { return None };
    let (name, category, args, about) = match &record.what {
        What::Returned(step) => {
            (format!("seen {}", step.0), "scheduler", json!({ "step": step.0 }), About::Returned(*step))
        }
        What::Planned { step, sequences, after } => {
            let args = json!({ "step": step.0, "sequences": sequences, "after": after.map(|step| step.0) });
            (format!("plan {}", step.0), "scheduler", args, About::Planned { step: *step, after: *after })
        }
        What::Launched { step, sequences, ahead } => {
            let args = json!({ "step": step.0, "sequences": sequences, "run_ahead": ahead });
            (format!("launch {}", step.0), "launch", args, About::Launched(*step))
        }
        What::Opened(request) => ("open".to_owned(), "launch", json!({ "request": request.0 }), About::Nothing),
        What::InputPushed(chunk) => {
            (chunk_name("feed", chunk), "launch", chunk_args(chunk), About::InputPushed(*chunk))
        }
        What::Ran(ran) => {
            let kind = if ran.prompt() > 0 { "prefill" } else { "step" };
            (format!("{kind} {}", ran.step.0), "device", ran_args(ran, record), About::Ran(ran.step))
        }
        What::Read(step) => (format!("read {}", step.0), "completion", json!({ "step": step.0 }), About::Nothing),
        What::Sampled(step) => {
            (format!("tokens {}", step.0), "sampler", json!({ "step": step.0 }), About::Sampled(*step))
        }
        What::Packaging { requests } => {
            ("packaging".to_owned(), "packager", json!({ "requests": requests }), About::Nothing)
        }
        What::Packed(chunk) => (chunk_name("pack", chunk), "packager", chunk_args(chunk), About::Packed(*chunk)),
        What::Put(chunk) => (chunk_name("put", chunk), "connector", chunk_args(chunk), About::Put(*chunk)),
        What::Took(chunk) => (chunk_name("take", chunk), "connector", chunk_args(chunk), About::Took(*chunk)),
        What::Copied { direction, bytes } => {
            (format!("copy {}", direction.as_str()), "copy", json!({ "bytes": bytes }), About::Nothing)
        }
        _ => return None,
    };
    let args = if let Value::Object(args) = args { args } else { Map::new() };
    let Record { began, ended, .. } = *record;
    let place = Replica { stage, number: replica };
    Some(Slice { place, generation, component, name, category, began, ended, args, about })
}

fn chunk_name(verb: &str, chunk: &Chunk) -> String {
    format!("{verb} {}", chunk.kind.as_str())
}

fn chunk_args(chunk: &Chunk) -> Value {
    json!({
        "request": chunk.request.0,
        "seq": chunk.seq.0,
        "units": chunk.units,
        "bytes": chunk.bytes,
        "step": chunk.step.map(|step| step.0),
    })
}

fn ran_args(ran: &Ran, record: &Record) -> Value {
    let micros = |nanos: u64| nanos as f64 / 1e3;
    let phases = ran.measured_phases();
    let phases: Map<_, _> =
        phases.map(|(phase, time)| (phase.as_str().to_owned(), json!(micros(time.as_nanos() as u64)))).collect();
    let requests: Vec<u64> = ran.sequences.iter().map(|sequence| sequence.request.0).collect();
    json!({
        "step": ran.step.0,
        "sequences": ran.sequences.len(),
        "units": ran.units(),
        "prompt": ran.prompt(),
        "measured": ran.measured,
        "took_us": micros(record.ended - record.began),
        "bubble_us": ran.bubble.map(micros),
        "phases_us": phases,
        "requests": requests,
    })
}

/// Whether payloads of this kind go to a client.
pub(super) fn to_client(kind: PayloadKind) -> bool {
    matches!(kind, PayloadKind::Tokens | PayloadKind::Audio)
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_core::ids::StageName;
    use proptest::prelude::*;

    fn read(step: u64, began: u64, ended: u64) -> Record {
        let track = Track::of(StageName::Talker, Generation(1), Component::Completion);
        Record { process: 1, track, began, ended, what: What::Read(StepId(step)) }
    }

    /// Whether every two slices are apart or one inside the other.
    pub(in crate::trace) fn is_tidy(track: &[Slice]) -> bool {
        let mut open: Vec<u64> = Vec::new();
        track.iter().all(|slice| {
            while open.last().is_some_and(|end| slice.began >= *end) {
                open.pop();
            }
            let inside = open.last().is_none_or(|end| slice.ended <= *end);
            open.push(slice.ended);
            inside && slice.began <= slice.ended
        })
    }

    #[test]
    fn a_slice_that_begins_too_early_waits_for_the_one_before() {
        let slices = slices(&[read(0, 0, 10), read(1, 8, 20), read(2, 21, 30), read(3, 22, 25)]);
        let times: Vec<_> = slices.iter().map(|slice| (slice.began, slice.ended)).collect();
        assert_eq!(times, [(0, 10), (10, 20), (21, 30), (22, 25)]);
    }

    proptest! {
        #[test]
        fn whatever_was_recorded_every_track_is_tidy(times in prop::collection::vec((0u64..200, 0u64..60), 0..40)) {
            let records: Vec<_> =
                times.iter().enumerate().map(|(i, (began, took))| read(i as u64, *began, began + took)).collect();
            let slices = slices(&records);
            prop_assert_eq!(slices.len(), records.len());
            prop_assert!(is_tidy(&slices), "{:?}", slices.iter().map(|s| (s.began, s.ended)).collect::<Vec<_>>());
        }
    }
}
