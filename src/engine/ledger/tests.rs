use super::*;
use crate::encoded::MediaPlan;
use crate::journal::tests::{GROUPS, UNIT, codes, talker, thinker, vocoder};
use omni_config::{Config, Replicas};
use omni_core::ids::{Attempt, Seq};
use omni_core::ledger::{LedgerLimits, Owed};
use omni_stage::{InHands, Outputs, RELEASED, StageFailure, StageHandle, StageReports};
use omni_telemetry::trace::Recorder;

/// The name of the first request of a ledger.
const REQUEST: RequestId = RequestId(1);

/// What a replica reports to, of a stage the only one.
fn reports(ledger: &Arc<Ledger>, replica: impl Into<Replica>) -> Reports {
    Reports { ledger: Arc::clone(ledger), replica: replica.into() }
}

/// A ledger of these stages, which take sequences.
fn ledger(stages: Stages) -> Arc<Ledger> {
    ledger_numbered_by(Arc::new(AtomicU64::new(1)), stages)
}

/// The same with this counter.
fn ledger_numbered_by(next: Arc<AtomicU64>, stages: Stages) -> Arc<Ledger> {
    let limits =
        LedgerLimits { request_timeout: Duration::from_secs(60), stalled_client_timeout: Duration::from_secs(10) };
    let metrics = RequestMetrics::new(Recorder::default());
    let named = |stage: &Arc<StageHandle>| {
        let number = stage.replica().unwrap_or_default().try_into().unwrap();
        Replica { stage: stage.name(), number }
    };
    let replicas: Vec<_> = stages.iter().map(named).collect();
    let ledger = Ledger::new(limits, stages, GROUPS, UNIT, metrics, FaultPlan::new(&[]));
    let ledger = Arc::new(ledger.numbered_by(next));
    for replica in replicas {
        reports(&ledger, replica).stage_up(replica.stage, &mut || {});
    }
    ledger
}

/// A spoken answer that it accepts.
fn asked(ledger: &Arc<Ledger>) -> ResponseStream {
    opened(ledger, Right::default())
}

fn opened(ledger: &Arc<Ledger>, right: impl Into<Right>) -> ResponseStream {
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
    ledger.open_request(plan, RequestKind::Chat, right, Expired::default())
}

/// A ledger of three stages, and a spoken answer that it has accepted.
fn answered() -> (Arc<Ledger>, ResponseStream) {
    let ledger = ledger(Stages::single(&StageName::OF_TEXT));
    let stream = asked(&ledger);
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

#[tokio::test]
async fn what_is_open_at_a_shutdown_and_what_is_opened_after_it_ends_at_once() {
    let (ledger, before) = answered();
    ledger.shut_down();
    let after = asked(&ledger);
    assert_eq!(ledger.held(), (0, 0, 0));
    for mut stream in [before, after] {
        let mut heard = Vec::new();
        while let Some(event) = stream.next().await {
            heard.push(event);
        }
        let ended = matches!(heard[..], [Event::Started { .. }, Event::Failed(RequestError::ShuttingDown)]);
        assert!(ended, "{heard:?}");
    }
}

#[test]
fn a_request_has_talker_and_vocoder_of_one_number_whatever_has_ended() {
    let mut config = Config::default();
    config.stages.iter_mut().for_each(|stage| stage.replicas = Replicas::Count(3));
    let ledger = ledger(Stages::new(&StageName::OF_TEXT, &config));
    let mut streams: Vec<_> = (0..3).map(|_| asked(&ledger)).collect();
    // A talker ends before the vocoder that speaks for it.
    ledger.lock().seats[StageName::Talker as usize].leave(RequestId(3));
    streams.extend((0..3).map(|_| asked(&ledger)));
    let state = ledger.lock();
    let seat = |stage: StageName, request| state.seats[stage as usize].of(RequestId(request));
    for request in [1, 2, 4, 5, 6] {
        let (talker, vocoder) = (seat(StageName::Talker, request), seat(StageName::Vocoder, request));
        assert!(talker.is_some() && talker == vocoder, "{request}: {talker:?}, {vocoder:?}");
    }
    assert_eq!([4, 5, 6].map(|request| seat(StageName::Vocoder, request)), [0, 1, 2].map(Some), "evenly");
}

#[test]
fn ledgers_with_one_counter_number_their_requests_one_by_one() {
    let next = Arc::new(AtomicU64::new(1));
    let load = || ledger_numbered_by(Arc::clone(&next), Stages::single(&StageName::OF_TEXT));
    let (one, other) = (load(), load());
    let streams = [&one, &other, &other, &one].map(asked);
    let numbers = |ledger: &Ledger| ledger.lock().open.keys().map(|request| request.0).collect::<Vec<_>>();
    assert_eq!((numbers(&one), numbers(&other)), (vec![1, 4], vec![2, 3]));
    drop((streams, other));
    // As when a model is unloaded and loaded again.
    let again = load();
    let _stream = asked(&again);
    assert_eq!(numbers(&again), [5]);
}

#[test]
fn a_suspect_that_is_paused_has_its_turn_and_keeps_nobody_waiting() {
    let ledger = ledger(Stages::single(&StageName::OF_TEXT));
    let places = [(); 3].map(|()| Arc::new(Place::default()));
    let _streams = places.clone().map(|place| opened(&ledger, place));
    let talker = reports(&ledger, StageName::Talker);
    let dies = |in_hand: &[u64]| {
        let in_hand = in_hand.iter().map(|request| (RequestId(*request), Some(0))).collect();
        let failure = StageFailure::new("a fault".to_owned(), InHands::These(in_hand));
        talker.stage_down(StageName::Talker, &failure);
    };
    dies(&[1, 2, 3]);
    talker.stage_up(StageName::Talker, &mut || {});
    places[1].pauses(true);
    ledger.settle(&places[1]);
    // Now the three enter one by one, and the second, which has failed once, goes before the others.
    dies(&[1, 3]);
    talker.stage_up(StageName::Talker, &mut || {});
    let has = |request| ledger.lock().seats[StageName::Talker as usize].of(RequestId(request)).is_some();
    for _ in 0..100 {
        ledger.tick();
    }
    assert_eq!([1, 2, 3].map(has), [true, false, true], "they have not waited for it for ever");
    places[1].pauses(false);
    ledger.settle(&places[1]);
    assert!(has(2));
}
