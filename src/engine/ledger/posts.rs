//! What threads tell the ledger without ever waiting for it, and how requests come in
//! ([`PostedLock`](crate::posted_lock::PostedLock)). A scheduler posts acknowledgements on its way to the next launch; any
//! actor posts the failure of a sequence; the reader of an answer posts what it has read.

use super::{Arrival, Ledger, State};
use crate::journal::Edge;
use omni_core::ids::{Attempt, Frames, Replica, RequestId, Seq, StageName};
use omni_core::scheduler::Ack;
use omni_stage::AckSink;
use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Duration;

/// A message to the ledger.
pub(super) enum Post {
    /// A stage acknowledged units of its input.
    Acked(StageName, Vec<Ack>),
    /// A sequence cannot go on in this attempt.
    SequenceFailed(Replica, RequestId, String),
    /// Input of an attempt, from this unit on, did not get over its edge.
    InputLost(Replica, RequestId, Attempt, Seq),
    /// A client has read one piece of its answer, at this time: text, or sound of so many frames.
    Read(RequestId, Option<Frames>, Duration),
}

impl Ledger {
    /// Takes the lock; opens the requests that have arrived, and carries out the posts before and after.
    pub(super) fn lock(&self) -> impl DerefMut<Target = State> + '_ {
        self.state.lock(|state, arrival| self.begin(state, arrival), |state, post| self.carry_post(state, post))
    }

    /// Opens a request, or leaves that to the thread that opens others. Waits for the lock, but not behind them.
    pub(super) fn come_in(&self, arrival: Arrival) {
        let carry_out = |state: &mut State, post| self.carry_post(state, post);
        self.state.arrive(arrival, |state, arrival| self.begin(state, arrival), carry_out);
    }

    /// Posts to the ledger. Never waits for its lock.
    pub(super) fn post(&self, post: Post) {
        self.state.post(post, |state, post| self.carry_post(state, post));
    }

    fn carry_post(&self, state: &mut State, post: Post) {
        match post {
            Post::Acked(stage, acks) => self.used(state, stage, acks),
            // What a replica says of a sequence that another one has by now is dropped.
            Post::SequenceFailed(replica, request, reason) if state.has(replica, request) => {
                self.sequence_lost(state, request, replica.stage, reason);
            }
            Post::InputLost(replica, request, attempt, unit) if state.has(replica, request) => {
                self.input_lost(state, request, replica.stage, attempt, unit);
            }
            Post::SequenceFailed(..) | Post::InputLost(..) => {}
            Post::Read(request, frames, now) => {
                state.core.read(request, now);
                if let Some(frames) = frames {
                    self.heard(state, request, frames);
                }
            }
        }
    }

    /// A client has so much more of its sound.
    fn heard(&self, state: &mut State, request: RequestId, frames: Frames) {
        state.core.heard(request, self.unit * frames.0);
        let before = state.open.get(&request).map(|open| open.journal.acknowledged(Edge::Audio));
        let upto = before.unwrap_or(0).saturating_add(frames.0);
        self.ack(state, Edge::Audio, vec![Ack { request, upto }]);
    }

    /// A stage has used units of its input. Over which edge they came differs between requests.
    fn used(&self, state: &mut State, stage: StageName, acks: Vec<Ack>) {
        let mut by_edge: Vec<(Edge, Vec<Ack>)> = Vec::new();
        for ack in acks {
            let Some(open) = state.open.get(&ack.request) else { continue };
            let edge = open.journal.edge_into(stage);
            match by_edge.iter_mut().find(|(of, _)| *of == edge) {
                Some((_, acks)) => acks.push(ack),
                None => by_edge.push((edge, vec![ack])),
            }
        }
        for (edge, acks) in by_edge {
            let requests: Vec<_> = acks.iter().map(|ack| ack.request).collect();
            self.ack(state, edge, acks);
            if edge == Edge::Features {
                requests.into_iter().for_each(|request| self.feed(state, request));
            }
        }
    }

    /// Gives the encoder more of a request's media, as far as it has come.
    fn feed(&self, state: &mut State, request: RequestId) {
        // One without a seat gets its input when it is admitted again.
        let Some(seat) = state.seats[StageName::Encoder as usize].of(request) else { return };
        let Some(open) = state.open.get_mut(&request).filter(|open| !open.is_paused()) else { return };
        for payload in open.journal.feed() {
            if let Err(error) = self.put(StageName::Encoder, seat, payload) {
                return self.sequence_lost(state, request, StageName::Encoder, error.to_string());
            }
        }
    }

    /// The consumer of an edge has acknowledged units.
    pub(super) fn ack(&self, state: &mut State, edge: Edge, mut acks: Vec<Ack>) {
        acks.retain(|ack| {
            let open = state.open.get_mut(&ack.request);
            open.map(|open| open.journal.acked(edge, ack.upto)).is_some()
        });
        let Some(producer) = edge.producer().filter(|_| !acks.is_empty()) else { return };
        match self.stages.replicas(producer) {
            [only] => only.acked(&acks),
            replicas => {
                let seats = &state.seats[producer as usize];
                for (number, replica) in replicas.iter().enumerate() {
                    let its = |ack: &&Ack| seats.of(ack.request) == Some(number);
                    let its: Vec<Ack> = acks.iter().filter(its).copied().collect();
                    if !its.is_empty() {
                        replica.acked(&its);
                    }
                }
            }
        }
    }
}

/// The acknowledgements of a stage pass the journal on their way to the producer.
pub(crate) struct Acks {
    pub ledger: Arc<Ledger>,
    pub stage: StageName,
}

impl AckSink for Acks {
    fn acked(&self, acks: &[Ack]) {
        self.ledger.post(Post::Acked(self.stage, acks.to_vec()));
    }
}
