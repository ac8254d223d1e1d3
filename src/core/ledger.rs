//! What every accepted request is owed, and what becomes of it when a stage is given up, its client leaves or its time
//! is up.
//!
//! The ledger outlives every stage. A request is *open* until its client has been told the end, good or bad; nothing
//! else closes it, so nothing can hang unseen.

use crate::ids::{RequestId, StageName};
use crate::patience::life;
use std::collections::BTreeMap;
use std::time::Duration;

/// Time limits of a request.
#[derive(Clone, Copy, Debug)]
pub struct LedgerLimits {
    /// Life of a request, besides what its client hears.
    pub request_timeout: Duration,
    /// Longest time that output may wait for its client to read it.
    pub stalled_client_timeout: Duration,
}

/// What a request was accepted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owed {
    /// The answer as text.
    pub text: bool,
    /// The answer as speech.
    pub audio: bool,
}

/// Why a request ends badly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A stage that held a part of it died, and will not come back.
    StageFailed(StageName, String),
    /// Its own sequence could not go on.
    SequenceFailed(StageName, String),
    /// It brought a stage down so often.
    BroughtDown(StageName, u32, String),
    /// It lived for longer than allowed, or its output was not read for longer than allowed.
    TimedOut(Duration),
    /// Its client kept it waiting for longer than allowed.
    SlowClient(Duration),
    /// It waited for its client while others waited for a place.
    Yielded,
    /// The server stops.
    ShuttingDown,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// All that was owed was delivered: tell the client.
    Complete(RequestId),
    /// Tell the client, and free its sequences in every stage.
    Fail(RequestId, Failure),
    /// Free its sequences in every stage; the client has left.
    Release(RequestId),
}

#[derive(Debug)]
struct Entry {
    accepted: Duration,
    /// Parts of the answer still to be delivered.
    owed: Owed,
    /// Stages that still hold a part of it.
    stages: Vec<StageName>,
    /// Output handed over and not yet read, and since when nothing was read.
    unread: u64,
    stalled_since: Duration,
    /// Sound that was read.
    heard: Duration,
}

/// The state machine.
#[derive(Debug)]
pub struct LedgerCore {
    limits: LedgerLimits,
    open: BTreeMap<RequestId, Entry>,
}

impl LedgerCore {
    /// No request.
    pub fn new(limits: LedgerLimits) -> LedgerCore {
        LedgerCore { limits, open: BTreeMap::new() }
    }

    /// Opens a request that no other has the number of and that `stages` will have a part in.
    pub fn accept(&mut self, request: RequestId, owed: Owed, stages: Vec<StageName>, now: Duration) {
        let entry = Entry { accepted: now, owed, stages, unread: 0, stalled_since: now, heard: Duration::ZERO };
        self.open.insert(request, entry);
    }

    /// Everything that `stage` had to give for this request is written down, or delivered.
    pub fn stage_done(&mut self, request: RequestId, stage: StageName) {
        if let Some(entry) = self.open.get_mut(&request) {
            entry.stages.retain(|holder| *holder != stage);
        }
    }

    /// The last text was handed to the client.
    pub fn text_done(&mut self, request: RequestId) -> Option<Effect> {
        self.delivered(request, |owed| owed.text = false)
    }

    /// The last sample was handed to the client.
    pub fn audio_done(&mut self, request: RequestId) -> Option<Effect> {
        self.delivered(request, |owed| owed.audio = false)
    }

    /// Output was handed over that the client has to read.
    pub fn handed_over(&mut self, request: RequestId, now: Duration) {
        if let Some(entry) = self.open.get_mut(&request) {
            if entry.unread == 0 {
                entry.stalled_since = now;
            }
            entry.unread += 1;
        }
    }

    /// The client read one piece of output.
    pub fn read(&mut self, request: RequestId, now: Duration) {
        if let Some(entry) = self.open.get_mut(&request) {
            entry.unread = entry.unread.saturating_sub(1);
            entry.stalled_since = now;
        }
    }

    /// The client heard sound of this length.
    pub fn heard(&mut self, request: RequestId, length: Duration) {
        if let Some(entry) = self.open.get_mut(&request) {
            entry.heard += length;
        }
    }

    /// The client left. Does nothing for a request that has ended.
    pub fn client_gone(&mut self, request: RequestId) -> Option<Effect> {
        self.open.remove(&request).map(|_| Effect::Release(request))
    }

    /// One sequence could not go on.
    pub fn sequence_failed(&mut self, request: RequestId, stage: StageName, reason: String) -> Option<Effect> {
        self.fail(request, Failure::SequenceFailed(stage, reason))
    }

    /// A stage is given up: the requests with a part of their answer there cannot go on.
    pub fn stage_lost(&mut self, stage: StageName, reason: &str) -> Vec<Effect> {
        self.fail_where(|entry| entry.stages.contains(&stage), |_| Failure::StageFailed(stage, reason.to_string()))
    }

    /// Ends what has taken too long.
    pub fn tick(&mut self, now: Duration) -> Vec<Effect> {
        let LedgerLimits { request_timeout, stalled_client_timeout, .. } = self.limits;
        let stalled =
            |entry: &Entry| entry.unread > 0 && now.saturating_sub(entry.stalled_since) > stalled_client_timeout;
        self.fail_where(
            |entry| now.saturating_sub(entry.accepted) > life(request_timeout, entry.heard) || stalled(entry),
            |entry| Failure::TimedOut(if stalled(entry) { stalled_client_timeout } else { request_timeout }),
        )
    }

    /// Ends everything.
    pub fn shut_down(&mut self) -> Vec<Effect> {
        self.fail_where(|_| true, |_| Failure::ShuttingDown)
    }

    /// Requests open now.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    fn delivered(&mut self, request: RequestId, settle: impl Fn(&mut Owed)) -> Option<Effect> {
        let entry = self.open.get_mut(&request)?;
        settle(&mut entry.owed);
        if entry.owed.text || entry.owed.audio {
            return None;
        }
        self.open.remove(&request);
        Some(Effect::Complete(request))
    }

    /// Ends one request.
    pub fn fail(&mut self, request: RequestId, failure: Failure) -> Option<Effect> {
        self.open.remove(&request).map(|_| Effect::Fail(request, failure))
    }

    fn fail_where(&mut self, hit: impl Fn(&Entry) -> bool, failure: impl Fn(&Entry) -> Failure) -> Vec<Effect> {
        let doomed: Vec<_> =
            self.open.iter().filter(|(_, entry)| hit(entry)).map(|(id, entry)| (*id, failure(entry))).collect();
        doomed.into_iter().filter_map(|(request, failure)| self.fail(request, failure)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SPEECH: Owed = Owed { text: false, audio: true };
    const CHAT: Owed = Owed { text: true, audio: true };
    const TEXT: Owed = Owed { text: true, audio: false };
    const T0: Duration = Duration::ZERO;

    fn ledger() -> LedgerCore {
        LedgerCore::new(LedgerLimits {
            request_timeout: Duration::from_secs(60),
            stalled_client_timeout: Duration::from_secs(10),
        })
    }

    fn stages(owed: Owed) -> Vec<StageName> {
        if owed.audio { StageName::OF_TEXT.to_vec() } else { vec![StageName::Thinker] }
    }

    fn accept(ledger: &mut LedgerCore, owed: Owed) -> RequestId {
        let request = RequestId(ledger.open() as u64 + 1);
        ledger.accept(request, owed, stages(owed), T0);
        request
    }

    #[test]
    fn a_request_is_complete_when_all_that_was_owed_is_delivered() {
        let mut ledger = ledger();
        let chat = accept(&mut ledger, CHAT);
        assert_eq!(ledger.text_done(chat), None);
        assert_eq!(ledger.audio_done(chat), Some(Effect::Complete(chat)));
        assert_eq!(ledger.audio_done(chat), None, "only once");
        assert_eq!(ledger.open(), 0);
    }

    #[test]
    fn a_lost_stage_fails_those_who_had_a_part_there_and_nobody_else() {
        let mut ledger = ledger();
        let (text, speech) = (accept(&mut ledger, TEXT), accept(&mut ledger, SPEECH));
        ledger.stage_done(speech, StageName::Thinker);
        assert_eq!(ledger.stage_lost(StageName::Vocoder, "panic").len(), 1);
        let failed = ledger.stage_lost(StageName::Thinker, "panic");
        assert_eq!(failed, [Effect::Fail(text, Failure::StageFailed(StageName::Thinker, "panic".into()))]);
    }

    #[test]
    fn a_client_that_reads_lives_longer_than_one_that_does_not() {
        let mut ledger = ledger();
        let (reader, sleeper) = (accept(&mut ledger, SPEECH), accept(&mut ledger, SPEECH));
        for second in 1..=50 {
            let now = Duration::from_secs(second);
            ledger.handed_over(reader, now);
            ledger.handed_over(sleeper, now);
            ledger.read(reader, now);
            let ended = ledger.tick(now);
            let expected = (second == 12).then(|| Effect::Fail(sleeper, Failure::TimedOut(Duration::from_secs(10))));
            assert_eq!(ended, expected.into_iter().collect::<Vec<_>>(), "at second {second}");
        }
        assert_eq!(ledger.tick(Duration::from_secs(61)).len(), 1, "but nobody lives for ever");
    }

    #[test]
    fn a_client_that_waits_for_the_first_output_is_not_stalled() {
        let mut ledger = ledger();
        accept(&mut ledger, SPEECH);
        assert_eq!(ledger.tick(Duration::from_secs(59)), []);
    }

    proptest! {
        #[test]
        fn every_request_ends_exactly_once_whatever_happens(moves in proptest::collection::vec((0..9u8, 0..6usize), 1..200)) {
            let mut ledger = ledger();
            let (mut accepted, mut ended, mut now) = (Vec::new(), Vec::new(), T0);
            for (kind, who) in moves {
                now += Duration::from_secs(1);
                let request = accepted.get(who % accepted.len().max(1)).copied().unwrap_or(RequestId(0));
                let effects: Vec<_> = match kind {
                    0 | 1 => {
                        let (owed, request) = ([SPEECH, CHAT, TEXT][who % 3], RequestId(accepted.len() as u64 + 1));
                        ledger.accept(request, owed, stages(owed), now);
                        accepted.push(request);
                        vec![]
                    }
                    2 => ledger.text_done(request).into_iter().collect(),
                    3 => ledger.audio_done(request).into_iter().collect(),
                    4 => ledger.client_gone(request).into_iter().collect(),
                    5 => ledger.sequence_failed(request, StageName::Talker, "nan".into()).into_iter().collect(),
                    6 => ledger.stage_lost(StageName::OF_TEXT[who % 3], "panic"),
                    7 => { ledger.handed_over(request, now); ledger.tick(now) }
                    _ => { ledger.read(request, now); ledger.stage_done(request, StageName::OF_TEXT[who % 3]); vec![] }
                };
                for effect in effects {
                    let (Effect::Complete(id) | Effect::Fail(id, _) | Effect::Release(id)) = effect;
                    prop_assert!(!ended.contains(&id), "{} ended twice", id);
                    ended.push(id);
                }
            }
            for effect in ledger.shut_down() {
                let (Effect::Complete(id) | Effect::Fail(id, _) | Effect::Release(id)) = effect;
                prop_assert!(!ended.contains(&id));
                ended.push(id);
            }
            prop_assert_eq!(ended.len(), accepted.len());
            prop_assert_eq!(ledger.open(), 0);
        }
    }
}
