//! What the stages report to the ledger, and what they send through it.

use super::Ledger;
use super::posts::Post;
use crate::journal::Edge;
use omni_core::ids::{Attempt, RequestId, Seq, StageName};
use omni_core::scheduler::Ack;
use omni_core::suspects::Attribution;
use omni_stage::{RELEASED, StageFailure, StageReports};
use omni_transfer::payload::{Kind, Payload};
use omni_transfer::transport::{PayloadSender, TransportError};
use std::sync::Arc;

impl StageReports for Ledger {
    fn sequence_failed(&self, request: RequestId, stage: StageName, reason: String) {
        self.post(Post::SequenceFailed(request, stage, reason));
    }

    fn input_lost(&self, request: RequestId, stage: StageName, attempt: Attempt, unit: Seq) {
        self.post(Post::InputLost(request, stage, attempt, unit));
    }

    fn stage_up(&self, stage: StageName) {
        let mut state = self.lock();
        state.up[stage as usize] = true;
        let mut waiting: Vec<_> =
            state.open.iter().filter(|(_, open)| !open.journal.is_done(stage)).map(|(request, _)| *request).collect();
        // Those that are least likely to bring it down again get through first.
        waiting.sort_by_key(|request| state.suspects[stage as usize].failures_of(*request));
        // A stage may die between its last payload and the news that it needs no more input.
        let released =
            state.open.iter().filter_map(|(request, open)| Some((open.journal.released_by(stage)?, *request)));
        for (edge, request) in released.collect::<Vec<_>>() {
            self.ack(&mut state, edge, vec![Ack { request, upto: RELEASED }]);
        }
        if !waiting.is_empty() {
            tracing::info!(%stage, requests = waiting.len(), "the stage goes on with its requests");
        }
        for request in waiting {
            self.admit(&mut state, request, stage);
        }
    }

    fn stage_down(&self, stage: StageName, failure: &StageFailure) -> Attribution {
        let mut state = self.lock();
        state.up[stage as usize] = false;
        self.blame(&mut state, stage, failure)
    }

    fn stage_given_up(&self, stage: StageName, reason: &str) {
        let mut state = self.lock();
        let effects = state.core.stage_lost(stage, reason);
        self.carry_out(&mut state, effects);
    }
}

/// The sending end of every stage: its payloads go through the ledger.
pub(crate) struct LedgerSink(pub Arc<Ledger>);

impl PayloadSender for LedgerSink {
    fn put(&self, payload: Payload) -> Result<(), TransportError> {
        match payload.header.kind {
            Kind::Tokens | Kind::Audio => self.0.deliver(payload),
            kind @ (Kind::Features | Kind::Media | Kind::Embeddings | Kind::Codes) => {
                let mut state = self.0.lock();
                self.0.pass(&mut state, Edge::of(kind), payload);
            }
        }
        Ok(())
    }
}
