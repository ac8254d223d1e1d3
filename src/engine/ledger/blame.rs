//! Which requests a failure of a stage concerns, which of them is guilty of it, and in what order the stage gets those
//! again that may be ([`omni_core::suspects`]).

use super::{Ledger, Open, State};
use omni_core::ids::{RequestId, StageName};
use omni_core::ledger::Failure;
use omni_core::suspects::{Attribution, Concerned, Judgement};
use omni_stage::{InHands, StageFailure};
use omni_telemetry::request_guilty;
use std::hash::{DefaultHasher, Hasher};

impl Ledger {
    /// Finds out what a failure of a replica of a stage, which is down now and had the sequences of these requests, means
    /// for them; ends the one that is guilty. Returns how the failure counts against the stage.
    pub(super) fn blame(
        &self,
        state: &mut State,
        stage: StageName,
        failure: &StageFailure,
        lost: &[RequestId],
    ) -> Attribution {
        let StageFailure { reason, in_hands, slow, .. } = failure;
        let gone = |request: &RequestId| !state.open.contains_key(request);
        let had_it = |request: RequestId, unit: Option<u32>| {
            let Some(Open { journal, .. }) = state.open.get(&request) else {
                let (_, content) = *state.ended.iter().rev().find(|(ended, _)| *ended == request)?;
                return Some(Concerned { request, content, unit: unit.unwrap_or(0) });
            };
            let (content, made) = (journal.content(), journal.made(stage));
            (!journal.is_done(stage)).then_some(Concerned { request, content, unit: unit.unwrap_or(made).max(made) })
        };
        let concerned: Vec<Concerned> = match in_hands {
            InHands::These(these) => these.iter().filter_map(|(request, unit)| had_it(*request, *unit)).collect(),
            InHands::All => lost.iter().filter_map(|request| had_it(*request, None)).collect(),
        };
        let left: Vec<RequestId> = concerned.iter().map(|one| one.request).filter(gone).collect();
        let suspects = &mut state.suspects[stage as usize];
        let seats = &state.seats[stage as usize];
        let Judgement { guilty, attribution } =
            suspects.failed_beside(&concerned, (!slow).then(|| cause(reason)), |request| seats.of(request).is_some());
        left.into_iter().for_each(|request| suspects.gone(request));
        if let Some((request, times)) = guilty {
            tracing::warn!(%request, %stage, times, reason, "the request brought the stage down each time and is ended");
            request_guilty(stage);
            let effect = state.core.fail(request, Failure::BroughtDown(stage, times, reason.clone()));
            self.carry_out(state, effect.into_iter().collect());
        }
        attribution
    }

    /// Admits suspects that had to wait for others.
    pub(super) fn let_in(&self, state: &mut State, stage: StageName) {
        while state.seats[stage as usize].is_up()
            && let Some(request) = state.suspects[stage as usize].next_to_enter()
        {
            self.admit(state, request, stage);
        }
    }
}

/// A number for what was seen, without the counts and positions in it, which differ from one time to the next.
fn cause(reason: &str) -> u64 {
    let mut hash = DefaultHasher::new();
    // Behind the first line may be a backtrace.
    let said = reason.lines().next().unwrap_or_default();
    said.bytes().filter(|byte| !byte.is_ascii_digit()).for_each(|byte| hash.write_u8(byte));
    hash.finish()
}
