use super::*;
use crate::payload::{Header, Kind, Part, Payload};
use crate::transport::TransportError;
use bytes::Bytes;
use omni_config::Precision;
use omni_core::ids::{Attempt, Generation, Seq, StageName};
use omni_fault::{FaultKind, FaultPlan, FaultPoint, FaultRule};
use omni_model::embeddings::{EmbeddingBytes, Embeddings};
use std::time::Duration;

const STAGE: StageName = StageName::Talker;
/// Every edge has to deliver within this; a test that waits longer hangs.
const PATIENCE: Duration = Duration::from_secs(30);

type Ends = (Arc<dyn PayloadSender>, Arc<dyn PayloadReceiver>);

struct Edge {
    ends: Ends,
    lost: flume::Receiver<(RequestId, String)>,
}

fn options(rules: &[(FaultKind, u64, u64)]) -> (LinkOptions, flume::Receiver<(RequestId, String)>) {
    let rule = |(kind, nth, times): &(FaultKind, u64, u64)| {
        FaultRule::new(STAGE, FaultPoint::Edge, *kind).nth(*nth).times(*times)
    };
    let plan = FaultPlan::new(&rules.iter().map(rule).collect::<Vec<_>>());
    let (send, lost) = flume::unbounded();
    let options = LinkOptions {
        capacity: 4096,
        zero_copy: true,
        fault: plan.site(STAGE, FaultPoint::Edge),
        metrics: RepairMetrics::new(STAGE),
        lost: Arc::new(move |request, reason| {
            let _ = send.send((request, reason));
        }),
    };
    (options, lost)
}

/// The same edge over each channel.
fn edges(rules: &[(FaultKind, u64, u64)]) -> [Edge; 2] {
    let (queue_options, queue_lost) = options(rules);
    let (ring_options, ring_lost) = options(rules);
    let (send, recv) = over_channel(queue_options);
    let queue: Ends = (Arc::new(send), Arc::new(recv));
    let (send, recv) = over_ring(1 << 16, ring_options).unwrap();
    let ring: Ends = (Arc::new(send), Arc::new(recv));
    [Edge { ends: queue, lost: queue_lost }, Edge { ends: ring, lost: ring_lost }]
}

/// Payload number `n`, a request of its own: embeddings for an even number, codes for an odd one.
fn payload(n: u32) -> Payload {
    let kind = if n.is_multiple_of(2) { Kind::Embeddings } else { Kind::Codes };
    let header = Header {
        request: RequestId(n.into()),
        generation: Generation(1),
        attempt: Attempt(0),
        seq: Seq(n),
        kind,
        units: 1,
        end: None,
        sent: 0,
    };
    let part = match kind {
        Kind::Embeddings => {
            let bytes = Bytes::from(vec![n as u8; 512 * 2]);
            Part::Embeddings(Embeddings::Bytes(EmbeddingBytes::new(bytes, 512, Precision::Bf16).unwrap()))
        }
        _ => Part::U32(vec![n; 16]),
    };
    Payload { header, parts: vec![part], leases: Vec::new() }
}

fn same(a: &Payload, b: &Payload) -> bool {
    let data = |payload: &Payload| match &payload.parts[..] {
        [Part::Embeddings(Embeddings::Bytes(embeddings))] => embeddings.data().to_vec(),
        [Part::U32(values)] => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        parts => panic!("{parts:?}"),
    };
    a.header == b.header && data(a) == data(b)
}

async fn get(receiver: &Arc<dyn PayloadReceiver>) -> Result<Payload, TransportError> {
    tokio::time::timeout(PATIENCE, receiver.get()).await.expect("nothing comes")
}

/// The next payload that was reported as lost; `None` when the edge has ended and told of all.
async fn told(lost: &flume::Receiver<(RequestId, String)>) -> Option<(RequestId, String)> {
    tokio::time::timeout(PATIENCE, lost.recv_async()).await.expect("nothing is reported").ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_arrive_once_and_in_order_whatever_happens_to_their_frames() {
    let every = |kind| (1..500).map(|i| (kind, i * 3, 1)).collect::<Vec<_>>();
    let kinds = [FaultKind::Drop, FaultKind::Duplicate, FaultKind::Reorder, FaultKind::Corrupt];
    let all_in_turns = (1..500).map(|i| (kinds[i as usize % 4], i * 2, 1)).collect();
    for rules in kinds.map(every).into_iter().chain([Vec::new(), all_in_turns]) {
        for Edge { ends: (sender, receiver), lost } in edges(&rules) {
            for n in 0..400 {
                sender.put(payload(n)).unwrap();
            }
            for n in 0..400 {
                let got = get(&receiver).await.unwrap();
                assert!(same(&got, &payload(n)), "{:?} where {n} was due with {:?}", got.header, rules.first());
            }
            assert!(lost.is_empty());
            while sender.queued() > 0 {
                tokio::task::yield_now().await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_delivered_is_reported_and_the_rest_goes_on() {
    // The first frame gets lost as often as it is tried, and so do those behind it until then.
    for Edge { ends: (sender, receiver), lost } in edges(&[(FaultKind::Drop, 1, 18)]) {
        for n in 0..3 {
            sender.put(payload(n)).unwrap();
        }
        let (request, reason) = told(&lost).await.unwrap();
        assert_eq!(request, RequestId(0));
        assert!(reason.contains("did not get through"), "{reason}");
        for n in [1, 2] {
            assert!(same(&get(&receiver).await.unwrap(), &payload(n)));
        }
        assert!(lost.is_empty());
    }
}

#[tokio::test]
async fn a_payload_that_the_ring_never_takes_is_refused_with_what_to_do() {
    let (options, _lost) = options(&[]);
    let (sender, _receiver) = over_ring(1 << 16, options).unwrap();
    let large = Payload { parts: vec![Part::F32(vec![0.0; 1 << 15])], ..payload(1) };
    let error = sender.put(large).unwrap_err();
    assert!(
        matches!(error, TransportError::TooLarge { .. }) && error.to_string().contains("transfer.shm_bytes"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_receiver_goes_everything_on_its_way_is_reported() {
    for Edge { ends: (sender, receiver), lost } in edges(&[]) {
        for n in 0..200 {
            sender.put(payload(n)).unwrap();
        }
        let _ = get(&receiver).await.unwrap();
        drop(receiver);
        // All but those that were acknowledged before.
        let (mut last, reason) = told(&lost).await.expect("the last payload was not acknowledged");
        assert!(reason.contains("closed"), "{last} {reason}");
        // Once the first was given up, no other is taken on.
        assert!(matches!(sender.put(payload(200)), Err(TransportError::Closed)));
        while let Some((next, _)) = told(&lost).await {
            assert_eq!(next, RequestId(last.0 + 1), "in order, each once");
            last = next;
        }
        assert_eq!(last, RequestId(199));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_put_while_the_receiver_goes_is_refused_or_reported() {
    for turn in 0..200 {
        for Edge { ends: (sender, receiver), lost } in edges(&[]) {
            // Never waits, as those who put payloads do not: it is in the middle of it when the edge closes.
            let putting = std::thread::spawn(move || {
                let mut taken = 0;
                loop {
                    match sender.put(payload(taken)) {
                        Ok(()) => taken += 1,
                        Err(TransportError::Full(_)) => std::thread::yield_now(),
                        Err(error) => break (taken, error),
                    }
                }
            });
            let mut got = 0;
            while got <= turn % 8 {
                assert!(same(&get(&receiver).await.unwrap(), &payload(got)));
                got += 1;
            }
            drop(receiver);
            let mut reported = Vec::new();
            while let Some((request, _)) = told(&lost).await {
                reported.push(request.0);
            }
            let (taken, error) = putting.join().unwrap();
            assert!(matches!(error, TransportError::Closed), "{error}");
            // What is acknowledged is reported no more, and what was handed out may be reported nevertheless.
            let first = reported.first().map_or(u64::from(taken), |first| *first);
            assert!(first <= u64::from(got), "{got} came, {first} is the first that was reported");
            let (told, all) = (reported.len(), first..u64::from(taken));
            assert!(reported.into_iter().eq(all), "{taken} were taken on, {told} reported from {first} on");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edge_that_is_cut_tells_its_reader_once_and_goes_on_with_what_comes_after() {
    for Edge { ends: (sender, receiver), lost } in edges(&[(FaultKind::Cut, 5, 1)]) {
        for n in 0..5 {
            sender.put(payload(n)).unwrap();
        }
        let mut heard = 0;
        let broken = loop {
            match get(&receiver).await {
                Ok(got) => assert!(same(&got, &payload(heard))),
                Err(error) => break error,
            }
            heard += 1;
        };
        assert!(heard < 5 && matches!(broken, TransportError::Closed), "{heard} {broken}");
        for n in 5..100 {
            sender.put(payload(n)).unwrap();
        }
        for n in 5..100 {
            assert!(same(&get(&receiver).await.unwrap(), &payload(n)), "{n}");
        }
        assert!(lost.is_empty(), "whoever reads was told");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_sender_goes_what_it_took_on_still_arrives() {
    for Edge { ends: (sender, receiver), .. } in edges(&[(FaultKind::Drop, 20, 1)]) {
        for n in 0..20 {
            sender.put(payload(n)).unwrap();
        }
        drop(sender);
        for n in 0..20 {
            assert!(same(&get(&receiver).await.unwrap(), &payload(n)));
        }
        assert!(matches!(get(&receiver).await, Err(TransportError::Closed)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn embeddings_that_stay_in_the_ring_are_not_written_over() {
    let (options, _lost) = options(&[]);
    let (sender, receiver) = over_ring(1 << 16, options).unwrap();
    let mut kept = Vec::new();
    for n in 0..2000 {
        sender.put(payload(n)).unwrap();
        kept.push(tokio::time::timeout(PATIENCE, receiver.get()).await.expect("the ring is stuck").unwrap());
        if kept.len() > 20 {
            let oldest = kept.remove(0);
            assert!(same(&oldest, &payload(oldest.header.seq.0)));
        }
    }
}
