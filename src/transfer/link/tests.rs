use super::edge::{EdgeOptions, over_queue, over_ring};
use super::frames::{CONTROL, SENT, decode};
use super::*;
use crate::payload::{Header, Kind, Part, Payload};
use crate::shm::{PushError, ring};
use crate::transport::{Delivery, PayloadReceiver, PayloadSender, Sent, TransportError};
use crate::wire::{self, WireError};
use bytes::Bytes;
use omni_config::Precision;
use omni_core::ids::{Attempt, FinishReason, Generation, RequestId, Seq};
use omni_model::embeddings::{EmbeddingBytes, Embeddings};
use proptest::prelude::*;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Every link has to deliver within this; a test that waits longer hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// A control message about a request, with something to carry.
#[derive(Debug, bincode::Encode, bincode::Decode)]
struct Word(RequestId, Vec<u8>);

impl Control for Word {
    fn request(&self) -> Option<RequestId> {
        Some(self.0)
    }
}

fn word(request: u64, bytes: usize) -> Word {
    Word(RequestId(request), vec![7; bytes])
}

/// One unit of a request of its own: embeddings for an even number, codes for an odd one.
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
        cached: 0,
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

fn large(request: u32) -> Payload {
    Payload { parts: vec![Part::F32(vec![0.0; 1 << 15])], ..payload(request) }
}

fn same(a: &Payload, b: &Payload) -> bool {
    let data = |payload: &Payload| match &payload.parts[..] {
        [Part::Embeddings(Embeddings::Bytes(embeddings))] => embeddings.data().to_vec(),
        [Part::U32(values)] => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        parts => panic!("{parts:?}"),
    };
    a.header == b.header && data(a) == data(b)
}

/// What arrives of what `say` puts in, what is reported as lost, and in how many frames it came.
async fn over(
    (sink, source): (Sink, Source),
    say: impl FnOnce(&Outbox<Word>),
) -> (Vec<String>, Vec<(RequestId, String)>, usize) {
    let (out, queue) = outbox(1000);
    say(&out);
    out.finish();
    let sending = tokio::spawn(async move {
        let lost = Mutex::new(Vec::new());
        let mut to = FrameWriter::new(sink, None);
        queue.send_all(&mut to, |request, reason| lost.lock().unwrap().push((request, reason))).await.unwrap();
        lost.into_inner().unwrap()
    });
    let (mut from, mut heard, mut frames) = (FrameReader::new(source, None, true), Vec::new(), 0);
    while let Ok(received) = receive::<Word>(&mut from).await {
        match received {
            Received::Control(words) => heard.extend(words.iter().map(|word| format!("word {}", word.0))),
            Received::Delivery(Delivery::Payload(payload)) => heard.push(format!("payload {}", payload.header.request)),
            Received::Delivery(other) => heard.push(format!("{other:?}")),
        }
        frames += 1;
    }
    (heard, sending.await.unwrap(), frames)
}

fn channels(bytes: usize) -> [(Sink, Source); 2] {
    let (producer, consumer) = ring(bytes).unwrap();
    [queue(), (producer.into(), consumer.into())]
}

#[tokio::test]
async fn a_control_message_is_never_overtaken_by_the_payloads_behind_it() {
    for channel in channels(1 << 16) {
        let (heard, lost, _) = over(channel, |out| {
            for request in 0..200 {
                assert!(out.tell(word(request, 100)));
                out.put(payload(request as u32)).unwrap();
                out.tell(word(request, 1));
            }
        })
        .await;
        let expected: Vec<String> =
            (0..200).flat_map(|n| [format!("word r{n}"), format!("payload r{n}"), format!("word r{n}")]).collect();
        assert_eq!((heard, lost), (expected, Vec::new()));
    }
}

#[tokio::test]
async fn control_messages_that_wait_together_share_a_frame() {
    for channel in channels(1 << 16) {
        let (heard, _, frames) = over(channel, |out| (0..1000).for_each(|n| _ = out.tell(word(n, 1)))).await;
        assert_eq!((heard.len(), frames), (1000, 1));
    }
}

#[tokio::test]
async fn what_fits_no_ring_is_reported_and_the_rest_arrives() {
    let [_, ring] = channels(1 << 16);
    let (heard, lost, _) = over(ring, |out| {
        out.tell(word(1, 1));
        out.tell(word(2, 100_000));
        out.put(large(3)).unwrap();
        out.tell(word(4, 1));
    })
    .await;
    assert_eq!(heard, ["word r1", "word r4"]);
    assert_eq!(lost.iter().map(|(request, _)| request.0).collect::<Vec<_>>(), [2, 3]);
    assert!(lost.iter().all(|(_, why)| why.ends_with("raise transfer.shm_bytes")), "{lost:?}");
}

#[test]
fn no_more_payloads_wait_than_windows_allow() {
    let (out, _queue) = outbox::<Word>(2);
    assert!(out.put(payload(1)).is_ok() && out.put(payload(1)).is_ok());
    assert!(matches!(out.put(payload(1)), Err(TransportError::Full(2))));
    assert_eq!(out.waiting(), 2);
}

type Ends = (Arc<dyn PayloadSender>, Arc<dyn PayloadReceiver>);
type Lost = flume::Receiver<(RequestId, String)>;

/// An edge over each channel, and what it reports as lost.
fn edges() -> [(Ends, Lost); 2] {
    let options = || {
        let (send, lost) = flume::unbounded();
        let report = Arc::new(move |request, reason| _ = send.send((request, reason)));
        (EdgeOptions { capacity: 4096, zero_copy: true, lost: report }, lost)
    };
    let ((first, first_lost), (second, second_lost)) = (options(), options());
    let (send, recv) = over_queue(first);
    let queue: Ends = (Arc::new(send), Arc::new(recv));
    let (send, recv) = over_ring(1 << 16, second).unwrap();
    let ring: Ends = (Arc::new(send), Arc::new(recv));
    [(queue, first_lost), (ring, second_lost)]
}

async fn get(receiver: &Arc<dyn PayloadReceiver>) -> Result<Delivery, TransportError> {
    tokio::time::timeout(PATIENCE, receiver.get()).await.expect("nothing comes")
}

/// The next payload; announcements are passed over.
async fn next_payload(receiver: &Arc<dyn PayloadReceiver>) -> Payload {
    loop {
        match get(receiver).await.unwrap() {
            Delivery::Payload(payload) => return payload,
            Delivery::Sent(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_arrive_once_and_in_order() {
    for ((sender, receiver), lost) in edges() {
        for n in 0..400 {
            sender.put(payload(n)).unwrap();
        }
        for n in 0..400 {
            assert!(same(&next_payload(&receiver).await, &payload(n)), "{n}");
        }
        assert!(lost.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edge_says_how_far_it_has_come_when_it_has_nothing_more_to_send() {
    let unit = |n: u32, end| {
        let header = Header { request: RequestId(u64::from(n % 2)), seq: Seq(n / 2), end, ..payload(1).header };
        Payload { header, ..payload(1) }
    };
    for ((sender, receiver), _lost) in edges() {
        for n in 0..300 {
            sender.put(unit(n, (n == 299).then_some(FinishReason::Stop))).unwrap();
        }
        let (mut payloads, mut last) = (0, [None, None]);
        while last != [Some((Seq(150), false)), Some((Seq(150), true))] {
            match get(&receiver).await.unwrap() {
                Delivery::Payload(_) => payloads += 1,
                Delivery::Sent(positions) => {
                    for Sent { request, next, ended, .. } in positions {
                        assert!(u64::from(next.0) * 2 <= payloads + 1, "announced before it was sent");
                        last[request.0 as usize] = Some((next, ended));
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(payloads, 300);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_no_ring_takes_is_reported_with_what_to_do() {
    let [_, ((sender, receiver), lost)] = edges();
    sender.put(large(1)).unwrap();
    sender.put(payload(2)).unwrap();
    assert!(same(&next_payload(&receiver).await, &payload(2)));
    let (request, reason) = lost.recv().unwrap();
    assert!(request == RequestId(1) && reason.contains("transfer.shm_bytes"), "{request} {reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_put_after_the_receiver_has_gone_is_refused() {
    for ((sender, receiver), _lost) in edges() {
        sender.put(payload(0)).unwrap();
        drop(receiver);
        let refused = async {
            // The sending task finds out with one of the next frames.
            while !matches!(sender.put(payload(1)), Err(TransportError::Closed)) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, refused).await.expect("it is taken on");
    }
}

#[test]
fn a_full_outbox_whose_link_has_gone_says_that_it_has_gone() {
    let (out, waiting) = outbox::<Word>(2);
    out.put(payload(0)).unwrap();
    out.put(payload(1)).unwrap();
    drop(waiting);
    assert!(matches!(out.put(payload(2)), Err(TransportError::Closed)));
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_sender_goes_what_it_took_on_still_arrives() {
    for ((sender, receiver), _lost) in edges() {
        for n in 0..20 {
            sender.put(payload(n)).unwrap();
        }
        drop(sender);
        for n in 0..20 {
            assert!(same(&next_payload(&receiver).await, &payload(n)));
        }
        assert!(matches!(get(&receiver).await, Ok(Delivery::Sent(_))), "the last ones can be missed");
        assert!(matches!(get(&receiver).await, Err(TransportError::Closed)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn embeddings_that_stay_in_the_ring_are_not_written_over() {
    let [_, ((sender, receiver), _lost)] = edges();
    let mut kept = Vec::new();
    for n in 0..2000 {
        sender.put(payload(n)).unwrap();
        kept.push(next_payload(&receiver).await);
        if kept.len() > 20 {
            let oldest = kept.remove(0);
            assert!(same(&oldest, &payload(oldest.header.seq.0)));
        }
    }
}

#[test]
fn a_payload_that_arrives_broken_is_told_as_such_and_the_link_goes_on() {
    let good = wire::encode(&payload(1)).unwrap();
    for at in 4..good.len() {
        let mut broken = good.to_vec();
        broken[at] ^= 0x55;
        let received = decode::<Word>(broken.into(), true);
        let foreign = matches!(received, Err(LinkError::Wire(WireError::Foreign(_))));
        let told = matches!(received, Ok(Received::Delivery(Delivery::Broken(_))));
        assert!(told || (foreign && at < 6), "byte {at}: {received:?}");
    }
}

#[test]
fn a_frame_that_may_have_been_a_control_message_ends_the_link() {
    let mut frame = CONTROL.to_vec();
    append(&word(1, 20), &mut frame).unwrap();
    assert!(matches!(decode::<Word>(frame.clone().into(), true), Ok(Received::Control(_))));
    for at in 0..4 {
        let mut damaged = frame.clone();
        damaged[at] ^= 0x55;
        assert!(decode::<Word>(damaged.into(), true).is_err(), "byte {at}");
    }
    assert!(decode::<Word>(frame[..10].to_vec().into(), true).is_err());
}

#[tokio::test]
async fn a_link_whose_receiver_has_gone_ends() {
    let (producer, consumer) = ring(1 << 16).unwrap();
    drop(consumer);
    let (out, waiting) = outbox::<Word>(10);
    out.tell(word(1, 1));
    let ended = waiting.send_all(&mut FrameWriter::new(producer, None), |_, _| {}).await;
    assert!(matches!(ended, Err(LinkError::Push(PushError::Closed))), "{ended:?}");
    assert!(!out.tell(word(2, 1)));
}

proptest! {
    #[test]
    fn hostile_frames_are_an_error_and_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), flip in any::<(usize, u8)>()) {
        for magic in [CONTROL, SENT] {
            let _ = decode::<Word>([magic.as_slice(), &bytes].concat().into(), true);
        }
        let mut good = CONTROL.to_vec();
        append(&word(5, 20), &mut good).unwrap();
        let at = flip.0 % good.len();
        good[at] ^= flip.1;
        let _ = decode::<Word>(good.into(), true);
    }
}
