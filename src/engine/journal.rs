//! The journal of a request: what its stages have sent each other, kept until no stage can need it. It is enough to
//! readmit the sequence of any stage at any moment, and the sequence then goes on as if nothing had happened.
//!
//! A request has one [`EdgeLog`] per edge. A unit counts as made once it is on the log, because from then on the next
//! stage, or the client, can have it: a readmitted sequence makes the units behind the log. The input of a stage is on
//! the log of the edge before it, from its first unit. Either end of an edge may be restarted; the log decides which
//! units are new.

mod edge;
mod feed;
mod resume;
#[cfg(test)]
pub(super) mod tests;
mod watch;

pub(crate) use edge::Edge;
pub(crate) use feed::{Encoding, Feed};

use super::plan::SequencePlan;
use edge::EdgeLog;
use omni_core::ids::{Attempt, Content, RequestId, Seq, StageName};
use omni_core::runaway::Guard;
use omni_model::ModelError;
use omni_model::embeddings::Embeddings;
use omni_model::stage::SequenceSpec;
use omni_stage::{Admission, RELEASED};
use omni_telemetry::clock::Clock;
use omni_transfer::payload::{Part, Payload};
use std::time::Duration;

/// How often a sequence may fail at one place.
pub(super) const TRIES: u32 = 4;

/// One sequence of a request.
struct SequenceEntry {
    stage: StageName,
    plan: SequencePlan,
    /// The current admission; 0 before the first.
    attempt: Attempt,
    /// How many units were on its logs when it failed last, and how often it failed there: a sequence that fails at the
    /// same unit every time would fail forever.
    failed_at: (u32, u32),
    /// The unit of its input that got lost last, and how often it did.
    lost_at: (Seq, u32),
    /// It has used all of its input, so it cannot be admitted again before there is more.
    starved: bool,
}

/// See the module.
pub(super) struct Journal {
    request: RequestId,
    sequences: Vec<SequenceEntry>,
    /// One per [`Edge`], in their order.
    logs: [EdgeLog; Edge::ALL.len()],
    /// The encoder's input, until it has finished.
    feed: Option<Feed>,
    attempts: u32,
    groups: usize,
    frame: usize,
    content: Content,
    /// Ends speech that no longer says its text.
    guard: Option<Guard>,
    clock: Clock,
}

/// What a stage needs to go on with a sequence.
pub(super) struct Readmission {
    pub admission: Admission,
    /// Its input so far, in order.
    pub input: Vec<Payload>,
}

impl Journal {
    /// The journal of a request that needs these sequences, upstream first; a frame has `groups` codes and `frame`
    /// samples.
    pub fn new(
        request: RequestId,
        sequences: Vec<(StageName, SequencePlan)>,
        (groups, frame): (usize, usize),
    ) -> Journal {
        let entry = |(stage, plan)| SequenceEntry {
            stage,
            plan,
            attempt: Attempt(0),
            failed_at: (0, 0),
            lost_at: (Seq(0), 0),
            starved: false,
        };
        let sequences = sequences.into_iter().map(entry).collect();
        Journal {
            request,
            sequences,
            logs: Default::default(),
            feed: None,
            attempts: 0,
            groups,
            frame,
            content: Content(0),
            guard: None,
            clock: Clock::system(),
        }
    }

    /// Tells the time by this clock.
    pub fn on(self, clock: Clock) -> Journal {
        Journal { clock, ..self }
    }

    /// The same for a request that asks for this.
    #[must_use]
    pub fn asking_for(self, content: Content) -> Journal {
        Journal { content, ..self }
    }

    /// The same with speech that ends where it no longer says its text. The journal sees every frame once and in order,
    /// whatever stage dies, so it ends at the same frame each time.
    #[must_use]
    pub fn guarded_by(self, guard: Option<Guard>) -> Journal {
        Journal { guard, ..self }
    }

    /// The same with media for its encoder.
    #[must_use]
    pub fn fed_by(self, feed: Option<Feed>) -> Journal {
        Journal { feed, ..self }
    }

    /// What the request asks for.
    pub fn content(&self) -> Content {
        self.content
    }

    /// Units that a stage has made, as its scheduler counts them.
    pub fn made(&self, stage: StageName) -> u32 {
        self.outputs(stage).next().map_or(0, |edge| self.log(edge).units)
    }

    /// Stages that have not finished, downstream first: a consumer must know a request before its producer can send.
    pub fn unfinished(&self) -> impl Iterator<Item = StageName> {
        self.sequences.iter().rev().map(|sequence| sequence.stage).filter(|stage| !self.is_done(*stage))
    }

    /// Whether a stage has finished, or has no part in the request.
    pub fn is_done(&self, stage: StageName) -> bool {
        self.sequence(stage).is_none_or(|sequence| {
            Edge::out_of(stage, sequence.plan.deliver).all(|edge| self.log(edge).ended.is_some())
        })
    }

    /// The edge whose input a stage of the request needs no more, because it has finished; `None` where it has not, or
    /// has no part in the request.
    pub fn released_by(&self, stage: StageName) -> Option<Edge> {
        self.sequence(stage).filter(|_| self.is_done(stage)).map(|_| self.edge_into(stage))
    }

    /// The consumer of an edge and the attempt that its payloads are for now; `None` where no stage waits for them.
    pub fn consumer(&self, edge: Edge) -> Option<(StageName, Attempt)> {
        let stage = match edge {
            Edge::Text => self.sequences.first()?.stage,
            between => between.ends().1?,
        };
        self.sequence(stage).map(|sequence| (stage, sequence.attempt))
    }

    /// Records a payload. Returns the part of it that is new, addressed to the consumer's current attempt; `None` where
    /// nothing is new.
    ///
    /// # Errors
    /// When part of a payload is known and the payload cannot be split.
    pub fn record(&mut self, edge: Edge, payload: Payload) -> Result<Option<Payload>, ModelError> {
        let EdgeLog { units, ended, .. } = *self.log(edge);
        if ended.is_some() || payload.header.seq.0 > units {
            // An earlier attempt sent it, although a later one has taken its place.
            return Ok(None);
        }
        let Some(mut payload) = payload.from_unit(Seq(units), self.frame)? else { return Ok(None) };
        if let (Edge::Codes, Some(guard)) = (edge, &mut self.guard) {
            watch::watch(guard, &mut payload, self.groups);
        }
        let header = &mut payload.header;
        header.attempt = self.consumer(edge).map_or(Attempt(0), |(_, attempt)| attempt);
        let keep = !self.consumer_is_done(edge);
        let now = self.clock.now();
        let log = self.log_mut(edge);
        log.units += header.units;
        log.ended = header.end;
        if header.units > 0 {
            log.began.get_or_insert(now);
        }
        // The client has the samples; no stage needs them again.
        if keep && edge != Edge::Audio {
            for part in &payload.parts {
                match part {
                    Part::U32(values) => log.values.extend_from_slice(values),
                    Part::Embeddings(embeddings) => {
                        log.kept.push((embeddings.shape().0 as u32, Part::Embeddings(embeddings.clone()).detached()));
                    }
                    Part::F32(_) | Part::Features(_) => {}
                }
            }
        }
        if payload.header.end.is_some() {
            self.forget();
        }
        Ok(Some(payload))
    }

    /// The consumer has acknowledged all units before this one, in this attempt or an earlier one: it may be known.
    pub fn acked(&mut self, edge: Edge, upto: u32) {
        let log = self.log_mut(edge);
        log.acked = log.acked.max(upto);
    }

    /// How many units the consumer has acknowledged.
    pub fn acknowledged(&self, edge: Edge) -> u32 {
        self.log(edge).acked
    }

    /// Codes so far, frame after frame.
    pub fn codes(&self) -> &[u32] {
        &self.log(Edge::Codes).values
    }

    /// Embeddings of media so far, in pieces that belong to one span each.
    pub fn embeddings_of_media(&self) -> &[(u32, Part)] {
        &self.log(Edge::Media).kept
    }

    /// The last embeddings of media, where they are kept on a device, and which of the pieces they are.
    pub fn left_on_device(&self) -> Option<(usize, Embeddings)> {
        let kept = &self.log(Edge::Media).kept;
        match kept.last()? {
            (_, Part::Embeddings(there @ Embeddings::Device(_))) => Some((kept.len() - 1, there.clone())),
            _ => None,
        }
    }

    /// A piece that was left on a device has come to the host.
    pub fn brought_home(&mut self, number: usize, here: Part) {
        if let Some((_, part)) = self.log_mut(Edge::Media).kept.get_mut(number)
            && matches!(part, Part::Embeddings(Embeddings::Device(_)))
        {
            *part = here;
        }
    }

    /// Bytes kept.
    pub fn bytes(&self) -> usize {
        self.logs.iter().map(EdgeLog::bytes).sum::<usize>() + self.feed.as_ref().map_or(0, Feed::bytes)
    }

    /// Whether a sequence that failed gets another attempt: not after it failed [`TRIES`] times at the same unit.
    pub fn may_try_again(&mut self, stage: StageName) -> bool {
        let at: u32 = self.outputs(stage).map(|edge| self.log(edge).units).sum();
        let Some(sequence) = self.sequences.iter_mut().find(|sequence| sequence.stage == stage) else { return false };
        let times = if sequence.failed_at.0 == at { sequence.failed_at.1 + 1 } else { 1 };
        sequence.failed_at = (at, times);
        times < TRIES
    }

    /// Whether a sequence whose input got lost from `unit` on is given it again: not if this very unit got lost
    /// [`TRIES`] times. What counts is how far the input came, not the output: on an edge that loses much, a sequence
    /// may be admitted again before the attempt that has more of its input than the one before has made anything of it.
    pub fn may_send_again(&mut self, stage: StageName, unit: Seq) -> bool {
        let Some(sequence) = self.sequences.iter_mut().find(|sequence| sequence.stage == stage) else { return false };
        let times = if sequence.lost_at.0 == unit { sequence.lost_at.1 + 1 } else { 1 };
        sequence.lost_at = (unit, times);
        times < TRIES
    }

    /// Readmits the stage's sequence: it goes on where its output on the log ends, with its input so far, `alone` up to
    /// a unit if it may have brought the stage down. A listener hears one unit for `unit`. `None` if the stage has
    /// nothing left to do for the request, or is [starved](Journal::starved).
    pub fn admit(&mut self, stage: StageName, unit: Duration, alone: Option<u32>) -> Option<Readmission> {
        if self.is_done(stage) {
            return None;
        }
        self.attempts += 1;
        let attempt = Attempt(self.attempts);
        let sequence = self.sequences.iter_mut().find(|sequence| sequence.stage == stage)?;
        sequence.attempt = attempt;
        let sequence = self.sequence(stage)?;
        let mut admission = sequence.plan.named(self.request);
        admission.from.attempt = attempt;
        admission.from.start.alone = alone;
        admission.content = self.content;
        match stage {
            StageName::Encoder => self.resume_encoder(&mut admission),
            StageName::Thinker => self.resume_thinker(&mut admission),
            StageName::Talker => {
                let resumed = self.resume_talker(&mut admission);
                self.starves(stage, resumed.is_none());
                resumed?;
            }
            StageName::Vocoder => self.resume_vocoder(&mut admission),
        }
        if let Some(edge) = self.outputs(stage).next() {
            let log = self.log(edge);
            let start = &mut admission.from.start;
            (start.emitted, start.acked) = (log.units, log.acked.min(log.units));
            if log.acked == u32::MAX {
                start.acked = u32::MAX;
            }
            // No listener hears what an encoder makes: its sequences go in the order in which they came.
            start.ahead = if stage == StageName::Encoder { None } else { log.ahead(unit, self.clock.now()) };
        }
        let input = self.input(stage, &mut admission, attempt);
        Some(Readmission { admission, input })
    }

    /// Whether a stage cannot be given its sequence again before more of its input comes: a talker reads its last frame
    /// together with the text behind it. The edge of that input, and how many units of it there are: all of them are
    /// used.
    pub fn starved(&self, stage: StageName) -> Option<(Edge, u32)> {
        self.sequence(stage).filter(|sequence| sequence.starved)?;
        let edge = self.edge_into(stage);
        Some((edge, self.log(edge).units))
    }

    /// What the producer must hear of a stage that is not given its sequence: the edge between them, and the number
    /// before which all units are used. A stage that has finished may lose its sequence before it says so itself; it
    /// needs nothing more. A [starved](Journal::starved) one has used what there is.
    pub fn used_up(&self, stage: StageName) -> Option<(Edge, u32)> {
        self.released_by(stage).map(|edge| (edge, RELEASED)).or_else(|| self.starved(stage))
    }

    fn starves(&mut self, stage: StageName, starved: bool) {
        if let Some(sequence) = self.sequences.iter_mut().find(|sequence| sequence.stage == stage) {
            sequence.starved = starved;
        }
    }

    /// Drops the data that no consumer can need any more.
    fn forget(&mut self) {
        if self.is_done(StageName::Encoder) {
            self.feed = None;
        }
        for edge in [Edge::Text, Edge::Media, Edge::Embeddings, Edge::Codes] {
            if self.consumer_is_done(edge) {
                let log = self.log_mut(edge);
                (log.kept, log.values) = (Vec::new(), Vec::new());
            }
        }
    }

    /// Whether the consumer of this edge has finished. The talker itself, too, resumes from its codes.
    fn consumer_is_done(&self, edge: Edge) -> bool {
        match edge {
            // The thinker resumes from its answer.
            Edge::Tokens => self.is_done(StageName::Thinker),
            Edge::Audio => true,
            Edge::Codes => self.is_done(StageName::Vocoder),
            Edge::Text | Edge::Features | Edge::Media | Edge::Embeddings => {
                self.consumer(edge).is_none_or(|(stage, _)| self.is_done(stage))
            }
        }
    }

    /// The edge over which a stage gets the input of this request.
    pub fn edge_into(&self, stage: StageName) -> Edge {
        if stage == StageName::Thinker && self.has_media() {
            return Edge::Media;
        }
        Edge::into_stage(stage, self.sequences.first().is_some_and(|sequence| sequence.stage == stage))
    }

    /// Whether the thinker's prompt has media.
    fn has_media(&self) -> bool {
        let thinker = self.sequence(StageName::Thinker).map(|sequence| &sequence.plan.spec);
        matches!(thinker, Some(SequenceSpec::Thinker(spec)) if spec.media.is_some())
    }

    fn outputs(&self, stage: StageName) -> impl Iterator<Item = Edge> {
        self.sequence(stage).map(|sequence| Edge::out_of(stage, sequence.plan.deliver)).into_iter().flatten()
    }

    fn sequence(&self, stage: StageName) -> Option<&SequenceEntry> {
        self.sequences.iter().find(|sequence| sequence.stage == stage)
    }

    fn log(&self, edge: Edge) -> &EdgeLog {
        &self.logs[edge as usize]
    }

    fn log_mut(&mut self, edge: Edge) -> &mut EdgeLog {
        &mut self.logs[edge as usize]
    }
}
