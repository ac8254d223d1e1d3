//! What the stages report to the ledger, and what they send through it.

use super::posts::Post;
use super::{Ledger, State};
use crate::journal::Edge;
use omni_core::ids::{Attempt, Replica, RequestId, Seq, StageName};
use omni_core::scheduler::Ack;
use omni_core::suspects::Attribution;
use omni_model::embeddings::Embeddings;
use omni_stage::{RELEASED, StageFailure, StageReports};
use omni_transfer::payload::{Kind, Part, Payload};
use omni_transfer::transport::{PayloadSender, TransportError};
use std::sync::{Arc, Weak};

impl Ledger {
    /// The sequence of a request cannot go on in a replica. Never waits.
    pub fn sequence_failed(&self, replica: Replica, request: RequestId, reason: String) {
        self.post(Post::SequenceFailed(replica, request, reason));
    }

    fn stage_up(&self, replica: Replica, show: &mut dyn FnMut()) {
        let Replica { stage, number } = replica;
        // Replicas here all have as many.
        let slots = self.stages.replicas(stage).get(usize::from(number)).and_then(|its| its.slots()).unwrap_or(1);
        let mut state = self.lock();
        state.seats[stage as usize].up(number.into(), slots);
        // Under the lock: a request that comes when the status is seen finds the seats.
        show();
        let unfinished =
            state.open.iter().filter(|(_, open)| !open.journal.is_done(stage)).map(|(request, _)| *request);
        let waiting = unfinished.filter(|request| state.seats[stage as usize].of(*request).is_none()).collect();
        self.go_on(&mut state, stage, waiting);
    }

    fn stage_down(&self, replica: Replica, failure: &StageFailure) -> Attribution {
        let Replica { stage, number } = replica;
        let mut state = self.lock();
        let lost = state.seats[stage as usize].down(number.into());
        let Attribution { number: failed, counts, excused } = self.blame(&mut state, stage, failure, &lost);
        let excuses = &mut state.excuses[stage as usize];
        excuses.iter_mut().for_each(|excuses| excuses.extend(&excused));
        let excused = std::mem::take(&mut excuses[usize::from(number)]);
        if state.seats[stage as usize].is_up() {
            // Other replicas have them at once.
            self.go_on(&mut state, stage, lost);
            self.let_in(&mut state, stage);
        }
        Attribution { number: failed, counts, excused }
    }

    fn stage_given_up(&self, replica: Replica, reason: &str) {
        let stage = replica.stage;
        if !self.stages.is_given_up(stage) {
            tracing::error!(%stage, replica = replica.number, reason, "given up; the stage's other replicas go on");
            return;
        }
        let mut state = self.lock();
        let effects = state.core.stage_lost(stage, reason);
        self.carry_out(&mut state, effects);
        // Those that go on have all that they need of it.
        self.release(&mut state, stage);
    }

    /// Lets the producers of sequences go on that this stage has finished: it may have died between its last payload and
    /// the news that it needs no more input.
    fn release(&self, state: &mut State, stage: StageName) {
        let released =
            state.open.iter().filter_map(|(request, open)| Some((open.journal.released_by(stage)?, *request)));
        for (edge, request) in released.collect::<Vec<_>>() {
            self.ack(state, edge, vec![Ack { request, upto: RELEASED }]);
        }
    }

    /// Gives a stage the sequences that none of its replicas has.
    fn go_on(&self, state: &mut State, stage: StageName, mut waiting: Vec<RequestId>) {
        // Those that are least likely to bring it down again get through first.
        waiting.sort_by_key(|request| state.suspects[stage as usize].failures_of(*request));
        self.release(state, stage);
        if !waiting.is_empty() {
            tracing::info!(%stage, requests = waiting.len(), "the stage goes on with its requests");
        }
        for request in waiting {
            self.admit(state, request, stage);
        }
    }
}

/// What a replica reports to the ledger.
pub(crate) struct Reports {
    pub ledger: Arc<Ledger>,
    pub replica: Replica,
}

impl StageReports for Reports {
    fn sequence_failed(&self, request: RequestId, _: StageName, reason: String) {
        self.ledger.sequence_failed(self.replica, request, reason);
    }

    fn input_lost(&self, request: RequestId, _: StageName, attempt: Attempt, unit: Seq) {
        self.ledger.post(Post::InputLost(self.replica, request, attempt, unit));
    }

    fn stage_up(&self, _: StageName, show: &mut dyn FnMut()) {
        self.ledger.stage_up(self.replica, show);
    }

    fn stage_down(&self, _: StageName, failure: &StageFailure) -> Attribution {
        self.ledger.stage_down(self.replica, failure)
    }

    fn stage_given_up(&self, _: StageName, reason: &str) {
        self.ledger.stage_given_up(self.replica, reason);
    }
}

/// The sending end of every stage: its payloads go through the ledger.
pub(crate) struct LedgerSink(pub Arc<Ledger>);

impl PayloadSender for LedgerSink {
    fn put(&self, payload: Payload) -> Result<(), TransportError> {
        match payload.header.kind {
            Kind::Tokens | Kind::Audio => self.0.deliver(payload),
            kind @ (Kind::Features | Kind::Media | Kind::Embeddings | Kind::Codes) => {
                let request = payload.header.request;
                let mut state = self.0.lock();
                self.0.pass(&mut state, Edge::of(kind), payload);
                if kind == Kind::Media
                    && let Some((number, there)) = state.left_on_device(request)
                {
                    tokio::spawn(bring_home(Arc::downgrade(&self.0), request, number, there));
                }
            }
        }
        Ok(())
    }
}

/// Copies a piece of the embeddings of media that a request's encoder left on its device to the host: for a sequence that
/// resumes and for conversations to come. The device's memory is free when the thinker has taken them, too.
async fn bring_home(ledger: Weak<Ledger>, request: RequestId, number: usize, there: Embeddings) {
    // What cannot be copied stays a handle: its device has failed, and with it whoever could read it there.
    let Ok(here) = there.fetched().await else { return };
    let here = Part::Embeddings(here).detached();
    if let Some(ledger) = ledger.upgrade() {
        ledger.lock().brought_home(request, number, here);
    }
}

impl State {
    fn left_on_device(&self, request: RequestId) -> Option<(usize, Embeddings)> {
        self.open.get(&request)?.journal.left_on_device()
    }

    fn brought_home(&mut self, request: RequestId, number: usize, here: Part) {
        let Some(open) = self.open.get_mut(&request) else { return };
        open.journal.brought_home(number, here);
        if let Some(store) = &mut open.store {
            store.keep(open.journal.embeddings_of_media());
        }
    }
}
