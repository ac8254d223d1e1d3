//! The request ledger: [`LedgerCore`] with the clients, the clock and the stages. It is a lock and not an actor: what it
//! does is short, it must be reachable from wherever output arrives or a client leaves, and it must outlive every stage.
//!
//! Rows are admitted and aborted under the lock, so a request that has ended can never be given to a stage afterwards.

use super::admission::Place;
use super::api::{Event, FinishReason, Listener, RequestError, ResponseStream};
use super::client::Client;
use super::plan::{CodeLog, FollowedText, RequestPlan};
use super::stages::Stages;
use crate::actors::{AckSink, StageReports};
use crate::core::ledger::{Effect, Failure, LedgerCore, LedgerLimits};
use crate::ids::{RequestId, StageName};
use crate::telemetry::{Outcome, RequestKind, RequestMetrics};
use crate::transfer::payload::{End, Kind, Part, Payload};
use crate::transfer::transport::{PayloadSender, TransportError};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// See the module.
pub(super) struct Ledger {
    born: Instant,
    stages: Stages,
    /// Where the tokens of a followed text enter the first stage.
    text_in: Arc<dyn PayloadSender>,
    metrics: RequestMetrics,
    books: Mutex<Books>,
}

struct Books {
    core: LedgerCore,
    clients: HashMap<RequestId, Client>,
    /// Of requests whose codes somebody wants.
    codes: HashMap<RequestId, CodeLog>,
}

impl Ledger {
    pub fn new(
        limits: LedgerLimits,
        stages: Stages,
        text_in: Arc<dyn PayloadSender>,
        metrics: RequestMetrics,
    ) -> Ledger {
        let books = Mutex::new(Books { core: LedgerCore::new(limits), clients: HashMap::new(), codes: HashMap::new() });
        Ledger { born: Instant::now(), stages, text_in, metrics, books }
    }

    /// Accepts a request and gives it a row in every stage that it needs.
    pub fn open_request(
        self: &Arc<Self>,
        plan: RequestPlan,
        kind: RequestKind,
        place: Option<Place>,
    ) -> ResponseStream {
        let mut books = self.lock();
        let stages = plan.rows.iter().map(|(stage, _)| *stage).collect();
        let request = books.core.accept(plan.owed, stages, self.now());
        let (send, events) = flume::bounded(plan.max_events);
        let meter = self.metrics.accepted(request, kind, Instant::now());
        let mut client =
            Client::new(send, plan.text, plan.owed.audio, plan.prompt_tokens, plan.samples_per_second, meter);
        client.event(Event::Started { id: request, seed: plan.seed });
        client.followed(plan.follow.as_ref().map_or(0, |text| text.tokens.len() as u32));
        books.clients.insert(request, client);
        books.codes.extend(plan.codes.map(|log| (request, log)));
        books.core.handed_over(request, self.now());

        // Downstream first: whoever receives must know the request before anything can be sent.
        let mut refused = None;
        for (stage, admission) in plan.rows.into_iter().rev() {
            let admitted = self.stages.get(stage).is_some_and(|stage| stage.admit(admission.named(request)));
            if !admitted {
                refused = Some(stage);
            }
        }
        if let Some(text) = plan.follow
            && self.text_in.put(text.payload(request, 0)).is_err()
        {
            refused = self.stages.first().map(|stage| stage.name());
        }
        if let Some(stage) = refused {
            // It went down after the request had been found servable.
            let failure = Failure::StageFailed(stage, "it went down just now".into());
            let effect = books.core.fail(request, failure);
            self.carry_out(&mut books, effect.into_iter().collect());
        }
        drop(books);
        let listener = Reader { ledger: Arc::clone(self), request, _place: place };
        ResponseStream::heard_by(events, listener)
    }

    /// More text for a request that follows one, `before` tokens of which it has. Does nothing for one that has ended.
    pub fn feed(&self, request: RequestId, before: u32, text: FollowedText) {
        let mut books = self.lock();
        let Some(client) = books.clients.get_mut(&request) else { return };
        client.followed(text.tokens.len() as u32);
        if self.text_in.put(text.payload(request, before)).is_err()
            && let Some(first) = self.stages.first()
        {
            let failure = Failure::RowFailed(first.name(), "its text came faster than it could be taken".into());
            let effect = books.core.fail(request, failure);
            self.carry_out(&mut books, effect.into_iter().collect());
        }
    }

    /// Ends what has taken too long.
    pub fn tick(&self) {
        let mut books = self.lock();
        let effects = books.core.tick(self.now());
        self.carry_out(&mut books, effects);
    }

    /// Ends everything.
    pub fn shut_down(&self) {
        let mut books = self.lock();
        let effects = books.core.shut_down();
        self.carry_out(&mut books, effects);
    }

    /// Requests open now.
    pub fn open(&self) -> usize {
        self.lock().core.open()
    }

    /// Takes what the last stage made for a client.
    fn deliver(&self, payload: Payload) {
        let request = payload.header.request;
        let (kind, end, units) = (payload.header.kind, payload.header.end, payload.header.units);
        let mut books = self.lock();
        let Some(client) = books.clients.get_mut(&request) else {
            // The client left: nobody will read this, so nobody needs to wait for it to be read.
            return;
        };
        let events = client.take(payload);
        let text_only = client.is_text_only();
        let now = self.now();
        for _ in 0..events {
            books.core.handed_over(request, now);
        }
        // The thinker of a spoken answer is paced by the talker, and done when the talker has it all. A text-only one has
        // nobody but the client: its text is read by the piece but counted by the token, so it goes on at once.
        if let Some(thinker) = self.stages.get(StageName::Thinker)
            && kind == Kind::Tokens
            && text_only
        {
            thinker.acked(request, units);
            if end.is_some() {
                books.core.stage_done(request, StageName::Thinker);
            }
        }
        let effect = match (kind, end) {
            (Kind::Tokens, Some(_)) => books.core.text_done(request),
            (Kind::Audio, Some(_)) => books.core.audio_done(request),
            _ => None,
        };
        self.carry_out(&mut books, effect.into_iter().collect());
    }

    fn carry_out(&self, books: &mut Books, effects: Vec<Effect>) {
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
            books.codes.remove(&request);
            if let Some(client) = books.clients.remove(&request) {
                client.end(last, outcome);
            }
        }
    }

    fn now(&self) -> Duration {
        self.born.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        // A panic while the lock is held would be a bug in a pure core; going on serves everybody else better than
        // refusing to speak to any client again.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StageReports for Ledger {
    fn row_failed(&self, request: RequestId, stage: StageName, reason: String) {
        tracing::warn!(%request, %stage, reason, "row failed");
        let mut books = self.lock();
        let effect = books.core.row_failed(request, stage, reason);
        self.carry_out(&mut books, effect.into_iter().collect());
    }

    fn stage_done(&self, request: RequestId, stage: StageName, end: End) {
        let mut books = self.lock();
        books.core.stage_done(request, stage);
        if let Some(client) = books.clients.get_mut(&request) {
            client.stage_ended(match end {
                End::Stop => FinishReason::Stop,
                End::Length => FinishReason::Length,
            });
        }
    }

    fn stage_down(&self, stage: StageName, reason: &str) {
        let mut books = self.lock();
        let effects = books.core.stage_down(stage, reason);
        self.carry_out(&mut books, effects);
    }
}

/// An edge on which codes travel, with an eye on those that somebody wants.
pub(super) struct CodesTap {
    pub ledger: Arc<Ledger>,
    pub edge: Arc<dyn PayloadSender>,
}

impl PayloadSender for CodesTap {
    fn put(&self, payload: Payload) -> Result<(), TransportError> {
        let log = self.ledger.lock().codes.get(&payload.header.request).map(Arc::clone);
        if let (Some(log), Some(Part::U32(codes))) = (log, payload.parts.first()) {
            log.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(codes);
        }
        self.edge.put(payload)
    }

    fn queued(&self) -> usize {
        self.edge.queued()
    }
}

/// The client's end of the edges that lead to it.
pub(super) struct ClientSink(pub Arc<Ledger>);

impl PayloadSender for ClientSink {
    fn put(&self, payload: Payload) -> Result<(), TransportError> {
        self.0.deliver(payload);
        Ok(())
    }

    fn queued(&self) -> usize {
        0
    }
}

/// Follows the reading of one response.
struct Reader {
    ledger: Arc<Ledger>,
    request: RequestId,
    _place: Option<Place>,
}

impl Listener for Reader {
    fn read(&self, event: &Event) {
        let now = self.ledger.now();
        self.ledger.lock().core.read(self.request, now);
        if let Event::Audio(chunk) = event
            && let Some(vocoder) = self.ledger.stages.get(StageName::Code2wav)
        {
            vocoder.acked(self.request, chunk.frames.0);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut books = self.ledger.lock();
        let effect = books.core.client_gone(self.request);
        self.ledger.carry_out(&mut books, effect.into_iter().collect());
    }
}

fn outcome(failure: &Failure) -> Outcome {
    match failure {
        Failure::StageFailed(..) | Failure::RowFailed(..) => Outcome::Failed,
        Failure::TimedOut(_) => Outcome::TimedOut,
        Failure::ShuttingDown => Outcome::ShutDown,
    }
}

fn error(failure: Failure) -> RequestError {
    match failure {
        Failure::StageFailed(stage, reason) => RequestError::StageFailed { stage, reason },
        Failure::RowFailed(stage, reason) => RequestError::RowFailed { stage, reason },
        Failure::TimedOut(limit) => RequestError::TimedOut(limit),
        Failure::ShuttingDown => RequestError::ShuttingDown,
    }
}
