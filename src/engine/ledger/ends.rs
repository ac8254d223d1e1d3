//! How requests end.

use super::{Ledger, State};
use crate::api::{Event, RequestError};
use omni_core::ids::{RequestId, StageName};
use omni_core::ledger::{Effect, Failure};
use omni_core::scheduler::Ack;
use omni_stage::RELEASED;
use omni_telemetry::Outcome;

/// Requests that ended and whose contents are remembered.
const ENDED: usize = 64;

impl Ledger {
    /// Frees the sequence of a stage that has not noticed that its output is over. Those before it need not wait for it.
    pub(super) fn cut_short(&self, state: &mut State, request: RequestId, stage: StageName) {
        self.abort(state, request, stage);
        if let Some(edge) = state.open.get(&request).and_then(|open| open.journal.released_by(stage)) {
            self.ack(state, edge, vec![Ack { request, upto: RELEASED }]);
        }
    }

    /// Frees what requests held that have ended, and tells their clients.
    pub(super) fn carry_out(&self, state: &mut State, effects: Vec<Effect>) {
        for effect in effects {
            let (request, last, outcome) = match effect {
                Effect::Complete(request) => (request, None, Outcome::Finished),
                Effect::Release(request) => (request, None, Outcome::Aborted),
                Effect::Fail(request, failure) => {
                    let outcome = outcome(&failure);
                    (request, Some(Event::Failed(error(failure))), outcome)
                }
            };
            if outcome != Outcome::Finished {
                self.stages.iter().for_each(|stage| stage.abort(request));
            }
            state.suspects.iter_mut().for_each(|suspects| suspects.gone(request));
            state.seats.iter_mut().for_each(|seats| seats.leave(request));
            if let Some(open) = state.open.remove(&request) {
                if state.ended.len() >= ENDED {
                    state.ended.pop_front();
                }
                state.ended.push_back((request, open.journal.content()));
                if outcome == Outcome::Finished {
                    // What a stage still makes is not needed, and no consumer is left that would take it over.
                    let left = open.journal.unfinished().flat_map(|stage| self.stages.replicas(stage));
                    left.for_each(|replica| replica.abort(request));
                }
                open.client.end(last, outcome);
            }
        }
    }
}

fn outcome(failure: &Failure) -> Outcome {
    match failure {
        Failure::StageFailed(..) | Failure::SequenceFailed(..) | Failure::BroughtDown(..) => Outcome::Failed,
        Failure::TimedOut(_) | Failure::SlowClient(_) | Failure::Yielded => Outcome::TimedOut,
        Failure::ShuttingDown => Outcome::ShutDown,
    }
}

fn error(failure: Failure) -> RequestError {
    match failure {
        Failure::StageFailed(stage, reason) => RequestError::StageFailed { stage, reason },
        Failure::SequenceFailed(stage, reason) => RequestError::SequenceFailed { stage, reason },
        Failure::BroughtDown(stage, times, reason) => RequestError::BroughtDown { stage, times, reason },
        Failure::TimedOut(limit) => RequestError::TimedOut(limit),
        Failure::SlowClient(limit) => RequestError::SlowClient(limit),
        Failure::Yielded => RequestError::Yielded,
        Failure::ShuttingDown => RequestError::ShuttingDown,
    }
}
