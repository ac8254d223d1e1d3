use super::*;
use crate::encoded::MediaPlan;
use crate::journal::tests::{GROUPS, UNIT, codes, talker, thinker, vocoder};
use omni_core::ids::{Attempt, Seq};
use omni_core::ledger::{LedgerLimits, Owed};
use omni_stage::{Outputs, RELEASED, StageReports};
use omni_telemetry::trace::Recorder;

/// The name of the first request of a ledger.
const REQUEST: RequestId = RequestId(1);

/// What the only replica of a stage reports to.
fn reports(ledger: &Arc<Ledger>, stage: StageName) -> Reports {
    Reports { ledger: Arc::clone(ledger), replica: stage.into() }
}

/// A ledger of three stages that take sequences, and a spoken answer that it has accepted.
fn answered() -> (Arc<Ledger>, ResponseStream) {
    let limits =
        LedgerLimits { request_timeout: Duration::from_secs(60), stalled_client_timeout: Duration::from_secs(10) };
    let metrics = RequestMetrics::new(Recorder::default());
    let ledger = Ledger::new(limits, Stages::single(&StageName::OF_TEXT), GROUPS, UNIT, metrics, FaultPlan::new(&[]));
    let ledger = Arc::new(ledger);
    StageName::OF_TEXT.into_iter().for_each(|stage| reports(&ledger, stage).stage_up(stage, &mut || {}));
    let plan = RequestPlan {
        owed: Owed { text: true, audio: true },
        seed: 1,
        text: None,
        prompt_tokens: 3,
        samples_per_second: 25,
        max_events: 100,
        sequences: vec![thinker(Outputs { tokens: true, speech: true }), talker(), vocoder()],
        follow: None,
        codes: None,
        guard: None,
        media: MediaPlan::default(),
    };
    let stream = ledger.open_request(plan, RequestKind::Chat, Right::default(), Expired::default());
    (ledger, stream)
}

/// How far the talker has taken the thinker's embeddings over, and its attempt.
fn talks(ledger: &Ledger) -> (u32, Attempt) {
    let state = ledger.lock();
    let journal = &state.open[&REQUEST].journal;
    (journal.acknowledged(Edge::Embeddings), journal.consumer(Edge::Embeddings).unwrap().1)
}

#[test]
fn a_sequence_that_is_lost_after_its_stage_has_finished_releases_the_stage_before() {
    type Loss = fn(&Reports, Attempt);
    let fails: Loss = |talker, _| talker.sequence_failed(REQUEST, StageName::Talker, "a number that is none".into());
    let starves: Loss = |talker, at| talker.input_lost(REQUEST, StageName::Talker, at, Seq(0));
    for loses in [fails, starves] {
        let (ledger, _stream) = answered();
        // An attempt that another one has taken the place of has sent the end.
        let mut payload = codes(0, 1, true);
        payload.header.request = REQUEST;
        LedgerSink(Arc::clone(&ledger)).put(payload).unwrap();
        let (acked, attempt) = talks(&ledger);
        assert_eq!(acked, 0);
        loses(&reports(&ledger, StageName::Talker), attempt);
        assert_eq!(talks(&ledger).0, RELEASED, "the thinker must not wait for a talker that will take nothing over");
    }
}
