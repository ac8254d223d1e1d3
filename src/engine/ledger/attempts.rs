//! How stages are given the sequences of requests, and again when one was lost.

use super::{Ledger, Open, State};
use crate::caught::caught;
use crate::journal::{Readmission, TRIES};
use omni_core::ids::{Attempt, RequestId, Seq, StageName};
use omni_core::scheduler::Ack;
use omni_telemetry::edge_lost;
use omni_transfer::payload::Payload;
use omni_transfer::transport::TransportError;

impl Ledger {
    /// Admits the sequence of a request to a stage that is up, with its input so far.
    pub(super) fn admit(&self, state: &mut State, request: RequestId, stage: StageName) {
        if !state.seats[stage as usize].is_up() || !state.suspects[stage as usize].may_enter(request) {
            return;
        }
        // One that is paused is admitted when it goes on. If it is a suspect it has had its turn to enter: who lets
        // suspects in would find it for ever.
        if state.open.get(&request).is_some_and(Open::is_paused) {
            return;
        }
        let alone = state.suspects[stage as usize].alone(request);
        let Some(open) = state.open.get_mut(&request) else { return };
        let readmission = match caught(|| open.journal.admit(stage, self.unit, alone)) {
            Ok(Some(readmission)) => readmission,
            Ok(None) => {
                // The producer must not wait for a stage that has no sequence.
                if let Some((edge, upto)) = open.journal.used_up(stage) {
                    self.ack(state, edge, vec![Ack { request, upto }]);
                }
                return;
            }
            Err(reason) => {
                // Those who call this have other requests to admit.
                let effect = state.core.sequence_failed(request, stage, reason);
                return self.carry_out(state, effect.into_iter().collect());
            }
        };
        let Readmission { admission, input } = readmission;
        let beside = self.partner(stage).and_then(|partner| state.seats[partner as usize].of(request));
        let Some(seat) = state.seats[stage as usize].take_beside(request, beside) else { return };
        // A stage that has just gone down drops this; it is admitted again when the stage is up.
        self.stages.replicas(stage)[seat].admit(admission);
        for payload in input {
            if let Err(error) = self.put(stage, seat, payload) {
                self.sequence_lost(state, request, stage, error.to_string());
                return;
            }
        }
    }

    /// The stage whose replicas are in pairs with those of this one: talker and vocoder, where there are as many of both
    /// here. A node's replica may be of any size.
    fn partner(&self, stage: StageName) -> Option<StageName> {
        let partner = match stage {
            StageName::Talker => StageName::Vocoder,
            StageName::Vocoder => StageName::Talker,
            StageName::Encoder | StageName::Thinker => return None,
        };
        let [own, other] = [stage, partner].map(|stage| self.stages.replicas(stage));
        let here = || own.iter().chain(other).all(|replica| !replica.is_on_nodes());
        (own.len() == other.len() && here()).then_some(partner)
    }

    /// Frees the sequence of a request in a stage, if there is one.
    pub(super) fn abort(&self, state: &mut State, request: RequestId, stage: StageName) {
        state.seats[stage as usize].leave(request);
        self.stages.replicas(stage).iter().for_each(|replica| replica.abort(request));
    }

    /// Puts a payload on the edge into a replica.
    pub(super) fn put(&self, stage: StageName, replica: usize, payload: Payload) -> Result<(), TransportError> {
        let place = self.stages.iter().position(|handle| handle.name() == stage);
        let edge = place.and_then(|first| self.into.get()?.get(first + replica));
        edge.map_or(Ok(()), |edge| edge.put(payload))
    }

    /// A sequence failed. It gets another attempt, unless it has failed at the same unit too often.
    pub(super) fn sequence_lost(&self, state: &mut State, request: RequestId, stage: StageName, reason: String) {
        let Some(open) = state.open.get_mut(&request) else { return };
        if open.journal.may_try_again(stage) {
            tracing::warn!(%request, %stage, reason, "sequence failed; it is tried again");
            self.admit(state, request, stage);
            return;
        }
        tracing::warn!(%request, %stage, reason, "sequence failed");
        let effect = state.core.sequence_failed(request, stage, reason);
        self.carry_out(state, effect.into_iter().collect());
    }

    /// Input of a sequence got lost on its edge. The sequence gets another attempt with all of its input, unless this
    /// unit has been lost too often.
    pub(super) fn input_lost(
        &self,
        state: &mut State,
        request: RequestId,
        stage: StageName,
        attempt: Attempt,
        unit: Seq,
    ) {
        let Some(open) = state.open.get_mut(&request) else { return };
        let edge = open.journal.edge_into(stage);
        // Of an attempt that another one has taken the place of.
        if open.journal.consumer(edge) != Some((stage, attempt)) {
            return;
        }
        let from = edge.producer();
        edge_lost(from);
        if open.journal.may_send_again(stage, unit) {
            tracing::warn!(%request, %stage, %unit, "input got lost on its edge; the sequence is tried again");
            self.admit(state, request, stage);
            return;
        }
        let reason = format!("input from unit {unit} on did not get through the edge in {TRIES} attempts");
        tracing::warn!(%request, %stage, reason, "sequence failed");
        let effect = state.core.sequence_failed(request, stage, reason);
        self.carry_out(state, effect.into_iter().collect());
    }
}
