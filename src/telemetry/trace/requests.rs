//! A track for each request: what the request waited for, from its acceptance to its end.

use super::record::{Record, Track, What};
use crate::{Outcome, RequestKind};
use omni_core::ids::RequestId;
use std::collections::BTreeMap;

/// What became of a request, in the order of time; times in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Life {
    pub kind: Option<RequestKind>,
    pub accepted: Option<u64>,
    /// Input arrived in its first stage.
    input: Option<u64>,
    /// The first step with it was launched.
    launched: Option<u64>,
    /// The end of the first step that gave output.
    gave: Option<u64>,
    /// Pieces that went to the client: when, and the length of their sound.
    pub pieces: Vec<(u64, Option<u64>)>,
    pub ended: Option<(u64, Outcome)>,
    /// The end of its last record.
    seen: u64,
}

/// What happened to each request, by the time they came.
pub(super) fn lives(records: &[Record]) -> Vec<(RequestId, Life)> {
    let mut lives: BTreeMap<RequestId, Life> = BTreeMap::new();
    // Launches come before what ran: a step's sequences are known only with the latter.
    let mut launches = BTreeMap::new();
    for record in records {
        match (&record.what, record.track) {
            (What::Launched { step, .. }, Track::Stage { stage, replica, generation, .. }) => {
                launches.insert((stage, replica, generation, *step), record.began);
            }
            (What::InputPushed(chunk), _) => {
                life(&mut lives, chunk.request, record).input.get_or_insert(record.began);
            }
            _ => {}
        }
    }
    for record in records {
        match (&record.what, record.track) {
            (What::Ran(ran), Track::Stage { stage, replica, generation, .. }) => {
                let launched = launches.get(&(stage, replica, generation, ran.step)).copied().unwrap_or(record.began);
                for sequence in &ran.sequences {
                    let life = life(&mut lives, sequence.request, record);
                    life.launched = Some(life.launched.map_or(launched, |before| before.min(launched)));
                    if sequence.gave > 0 {
                        life.gave.get_or_insert(record.ended);
                    }
                }
            }
            (what, Track::Request(request)) => life(&mut lives, request, record).heard(what, record.began),
            _ => {}
        }
    }
    let mut lives: Vec<_> = lives.into_iter().collect();
    lives.sort_by_key(|(request, life)| (life.began(), *request));
    lives
}

fn life<'a>(lives: &'a mut BTreeMap<RequestId, Life>, request: RequestId, record: &Record) -> &'a mut Life {
    let life = lives.entry(request).or_default();
    life.seen = life.seen.max(record.ended);
    life
}

impl Life {
    /// Adds what later records tell.
    pub fn merge(&mut self, later: Life) {
        self.kind = self.kind.or(later.kind);
        let mark = |known: &mut Option<u64>, other: Option<u64>| *known = known.or(other);
        mark(&mut self.accepted, later.accepted);
        mark(&mut self.input, later.input);
        mark(&mut self.launched, later.launched);
        mark(&mut self.gave, later.gave);
        self.pieces.extend(later.pieces);
        self.ended = later.ended.or(self.ended);
        self.seen = self.seen.max(later.seen);
    }

    fn heard(&mut self, what: &What, at: u64) {
        match what {
            What::Accepted(kind) => (self.kind, self.accepted) = (Some(*kind), Some(at)),
            What::Text => self.pieces.push((at, None)),
            What::Speech { length } => self.pieces.push((at, Some(*length))),
            What::Ended(outcome) => self.ended = Some((at, *outcome)),
            _ => {}
        }
    }

    /// Its first record.
    pub fn began(&self) -> u64 {
        let first = self.pieces.first().map(|(at, _)| *at);
        let known = [self.accepted, self.input, self.launched, self.gave, first];
        known.into_iter().flatten().min().unwrap_or(self.seen)
    }

    /// Its end, or its last record.
    pub fn until(&self) -> u64 {
        self.ended.map_or(self.seen, |(at, _)| at).max(self.began())
    }

    /// What it waited for, one after the other. A stretch whose end is not known runs into the next one.
    pub fn stretches(&self) -> Vec<(&'static str, u64, u64)> {
        let (first, end) = (self.pieces.first().map(|(at, _)| *at), self.until());
        let stretches = [
            ("to first input", self.input),
            ("to first launch", self.launched),
            ("prefill", self.gave),
            ("to first chunk", first),
            ("chunks", Some(end)),
        ];
        let mut began = self.began();
        let mut told = Vec::new();
        for (name, until) in stretches {
            let Some(until) = until.map(|until| until.min(end)).filter(|until| *until > began) else { continue };
            told.push((name, began, until));
            began = until;
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Chunk, Component, Ran, SequenceShare};
    use omni_core::ids::{Generation, PayloadKind, Seq, StageName, StepId};

    #[test]
    fn a_life_is_cut_where_something_came() {
        let request = RequestId(4);
        let stage = |component, began, ended, what| {
            let track = Track::of(StageName::Talker, Generation(1), component);
            Record { process: 1, track, began, ended, what }
        };
        let told = |at, what| Record { process: 1, track: Track::Request(request), began: at, ended: at, what };
        let ran = |step, gave, began, ended| {
            let sequences = vec![SequenceShare { request, units: 1, prompt: gave == 0, gave }];
            let ran = Ran { step: StepId(step), sequences, measured: true, bubble: None, phases: [0; 6] };
            stage(Component::Device, began, ended, What::Ran(Box::new(ran)))
        };
        let chunk = Chunk { request, kind: PayloadKind::Tokens, seq: Seq(0), units: 3, bytes: 12, step: None };
        let records = [
            told(10, What::Accepted(RequestKind::Speech)),
            stage(Component::Launch, 12, 13, What::InputPushed(chunk)),
            stage(Component::Launch, 15, 16, What::Launched { step: StepId(0), sequences: 1, ahead: 0 }),
            ran(0, 0, 16, 30),
            ran(1, 1, 30, 40),
            told(50, What::Speech { length: 80 }),
            told(70, What::Speech { length: 80 }),
            told(71, What::Ended(Outcome::Finished)),
        ];
        let lives = lives(&records);
        let [(id, life)] = lives.as_slice() else { panic!("{lives:?}") };
        assert_eq!((*id, life.began(), life.until(), life.pieces.len()), (request, 10, 71, 2));
        let stretches = life.stretches();
        assert_eq!(
            stretches,
            [
                ("to first input", 10, 12),
                ("to first launch", 12, 15),
                ("prefill", 15, 40),
                ("to first chunk", 40, 50),
                ("chunks", 50, 71),
            ]
        );
    }

    #[test]
    fn of_a_request_that_came_before_the_trace_the_rest_is_told() {
        let told = |at, what| Record { process: 1, track: Track::Request(RequestId(1)), began: at, ended: at, what };
        let lives = lives(&[told(5, What::Speech { length: 80 }), told(9, What::Speech { length: 80 })]);
        assert_eq!(lives[0].1.stretches(), [("chunks", 5, 9)]);
    }
}
