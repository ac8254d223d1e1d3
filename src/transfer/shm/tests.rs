use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// Data that tells which frame it is and where in it.
fn data(frame: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (frame * 31 + at * 7) as u8).collect()
}

#[test]
fn frames_come_out_as_they_went_in() {
    let (mut producer, mut consumer) = ring(1).unwrap();
    assert!(consumer.try_pop().unwrap().is_none());
    producer.try_push(&[b"one", b" ", b"piece"]).unwrap();
    producer.try_push(&[]).unwrap();
    let mut place = producer.reserve(4).unwrap();
    place.copy_from_slice(b"here");
    place.commit();
    let _ = producer.reserve(100).unwrap();
    let popped: Vec<_> = std::iter::from_fn(|| consumer.try_pop().unwrap()).map(|chunk| chunk.to_vec()).collect();
    assert_eq!(popped, [&b"one piece"[..], b"", b"here"]);
}

#[test]
fn data_is_aligned_and_read_where_it_lies() {
    let (mut producer, mut consumer) = ring(4096).unwrap();
    producer.try_push(&[&[1; 10]]).unwrap();
    let chunk = consumer.try_pop().unwrap().unwrap();
    let place = chunk.as_ptr();
    assert!((place as usize).is_multiple_of(16));
    let bytes = chunk.into_bytes();
    assert_eq!((bytes.as_ptr(), &bytes[..]), (place, &[1; 10][..]));
}

#[test]
fn space_comes_back_in_order_whatever_is_dropped_first() {
    let (mut producer, mut consumer) = ring(4096).unwrap();
    let quarter = vec![0; 1024 - 16];
    for _ in 0..4 {
        producer.try_push(&[&quarter]).unwrap();
    }
    let mut chunks: Vec<_> = (0..4).map(|_| consumer.try_pop().unwrap().unwrap()).collect();
    assert!(matches!(producer.try_push(&[&[]]), Err(PushError::Full)));
    drop(chunks.remove(1));
    drop(chunks.remove(1));
    assert!(matches!(producer.try_push(&[&[]]), Err(PushError::Full)));
    assert_eq!(consumer.held(), 4096);
    drop(chunks.remove(0));
    assert_eq!(consumer.held(), 1024);
    producer.try_push(&[&vec![0; 3 * 1024 - 16]]).unwrap();
}

#[test]
fn a_frame_may_fill_the_ring_and_no_more() {
    let (mut producer, mut consumer) = ring(4096).unwrap();
    let limit = producer.limit();
    producer.try_push(&[b"off the start"]).unwrap();
    drop(consumer.try_pop().unwrap());
    producer.try_push(&[&data(1, limit)]).unwrap();
    assert_eq!(*consumer.try_pop().unwrap().unwrap(), data(1, limit));
    let error = producer.try_push(&[&data(2, limit + 1)]).unwrap_err();
    assert!(matches!(error, PushError::TooLarge { got, limit: l } if got == limit + 1 && l == limit), "{error}");
}

#[test]
fn what_was_pushed_before_the_end_is_read_and_then_the_end() {
    let (mut producer, mut consumer) = ring(4096).unwrap();
    producer.try_push(&[b"last"]).unwrap();
    drop(producer);
    assert_eq!(*consumer.pop_blocking(LONG).unwrap().unwrap(), *b"last");
    assert!(matches!(consumer.pop_blocking(LONG), Err(RingError::Closed)));
    assert!(matches!(consumer.try_pop(), Err(RingError::Closed)));
}

#[test]
fn a_producer_learns_that_nobody_reads() {
    let (mut producer, consumer) = ring(4096).unwrap();
    drop(consumer);
    assert!(matches!(producer.try_push(&[b"x"]), Err(PushError::Closed)));
    assert!(matches!(producer.push_blocking(&[b"x"], LONG), Err(PushError::Closed)));
}

#[test]
fn chunks_outlive_both_ends() {
    let (mut producer, mut consumer) = ring(4096).unwrap();
    producer.try_push(&[b"still here"]).unwrap();
    let chunk = consumer.try_pop().unwrap().unwrap();
    drop((producer, consumer));
    assert_eq!(*chunk, *b"still here");
}

#[test]
fn a_handle_that_never_arrives_closes_its_end() {
    let (producer, mut consumer) = ring(4096).unwrap();
    drop(producer.into_handle().unwrap());
    assert!(matches!(consumer.pop_blocking(LONG), Err(RingError::Closed)));
}

#[tokio::test]
async fn a_waiting_consumer_is_woken_by_a_frame_and_by_the_end() {
    let (mut producer, mut consumer) = ring(4096).unwrap();
    let reading = tokio::spawn(async move {
        let first = consumer.pop().await.unwrap().to_vec();
        (first, consumer.pop().await.map(|chunk| chunk.to_vec()))
    });
    tokio::task::yield_now().await;
    producer.push(&[b"wake up"]).await.unwrap();
    tokio::task::yield_now().await;
    drop(producer);
    let (first, second) = reading.await.unwrap();
    assert_eq!(first, b"wake up");
    assert!(matches!(second, Err(RingError::Closed)));
}

#[tokio::test]
async fn a_waiting_producer_is_woken_by_room_and_by_the_end() {
    let (mut producer, mut consumer) = ring(4096).unwrap();
    producer.try_push(&[&data(0, 4000)]).unwrap();
    let writing = tokio::spawn(async move {
        producer.push(&[&data(1, 4000)]).await.unwrap();
        producer.push(&[&data(2, 4000)]).await
    });
    tokio::task::yield_now().await;
    assert_eq!(consumer.pop().await.unwrap().to_vec(), data(0, 4000));
    assert_eq!(consumer.pop().await.unwrap().to_vec(), data(1, 4000));
    drop(consumer);
    // It may have got its last frame in before the end.
    assert!(matches!(writing.await.unwrap(), Ok(()) | Err(PushError::Closed)));
}

#[test]
fn two_threads_that_wait_for_each_other_lose_nothing() {
    const FRAMES: usize = 30_000;
    let (mut producer, mut consumer) = ring(4096).unwrap();
    let len = |frame: usize| (frame * frame) % 1500;
    let writing = std::thread::spawn(move || {
        for frame in 0..FRAMES {
            producer.push_blocking(&[&data(frame, len(frame))], LONG).unwrap();
        }
    });
    let mut even = None;
    for frame in 0..FRAMES {
        let chunk = consumer.pop_blocking(LONG).unwrap().expect("the producer is stuck");
        assert!(*chunk == data(frame, len(frame))[..], "frame {frame}");
        match even.take() {
            None => even = Some(chunk),
            // In turns the older and the newer of two goes first.
            Some(older) if frame % 4 == 1 => drop((older, chunk)),
            Some(older) => drop((chunk, older)),
        }
    }
    drop(even);
    writing.join().unwrap();
    assert!(matches!(consumer.pop_blocking(LONG), Err(RingError::Closed)));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tasks_that_wait_for_each_other_lose_nothing() {
    const FRAMES: usize = 20_000;
    let (mut producer, mut consumer) = ring(4096).unwrap();
    let len = |frame: usize| (frame * 17) % 3000;
    let writing = tokio::spawn(async move {
        for frame in 0..FRAMES {
            producer.push(&[&data(frame, len(frame))]).await.unwrap();
        }
    });
    for frame in 0..FRAMES {
        assert!(*consumer.pop().await.unwrap() == data(frame, len(frame))[..], "frame {frame}");
    }
    writing.await.unwrap();
}

/// A ring and a second look at its memory.
fn with_map() -> (Producer, Consumer, Map) {
    let (memory, map) = Map::create(4096).unwrap();
    let (ours, theirs) = Bell::pair().unwrap();
    let consumer = Consumer::new(memory.try_clone().unwrap(), Map::open(&memory).unwrap(), theirs).unwrap();
    let producer = Producer::new(memory.try_clone().unwrap(), Map::open(&memory).unwrap(), ours).unwrap();
    (producer, consumer, map)
}

#[test]
fn a_broken_other_side_is_an_error() {
    let broken = |scribble: &dyn Fn(&Map)| {
        let (mut producer, mut consumer, map) = with_map();
        producer.try_push(&[b"good"]).unwrap();
        scribble(&map);
        let first = consumer.try_pop().unwrap_err().to_string();
        map.header().produced.0.tail.store(64, Ordering::Relaxed);
        assert_eq!(consumer.try_pop().unwrap_err().to_string(), first, "corruption does not pass");
        first
    };
    let tail = |to: u64| move |map: &Map| map.header().produced.0.tail.store(to, Ordering::Relaxed);
    let word = |to: u64| move |map: &Map| map.frame_words(0).unwrap().0.store(to, Ordering::Relaxed);
    assert!(broken(&tail(1 << 40)).contains("where it cannot be"));
    assert!(broken(&tail(4096 + 64)).contains("where it cannot be"));
    assert!(broken(&tail(1)).contains("not aligned"));
    assert!(broken(&word(0)).contains("no frame"));
    let sealed = |len: u64| word(len | u64::from(SEAL) << 32);
    assert!(broken(&sealed(49)).contains("longer"));
    assert!(broken(&sealed(u64::from(u32::MAX))).contains("longer"));
    assert!(broken(&|map: &Map| map.frame_words(0).unwrap().1.store(64, Ordering::Relaxed)).contains("no frame"));

    let (mut producer, _consumer, map) = with_map();
    while producer.try_push(&[&[0; 1000]]).is_ok() {}
    map.header().consumed.0.head.store(1 << 40, Ordering::Relaxed);
    assert!(matches!(producer.try_push(&[&[0; 1000]]), Err(PushError::Corrupt(_))));
}

#[test]
fn memory_that_is_no_ring_is_refused() {
    let file: std::os::fd::OwnedFd = tempfile::tempfile().unwrap().into();
    assert!(Map::open(&file).is_err());
    let plain = rustix::fs::memfd_create("plain", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&plain, 3 * 4096).unwrap();
    assert!(Map::open(&plain).unwrap_err().to_string().contains("not sealed"));
    let seals = rustix::fs::SealFlags::SHRINK | rustix::fs::SealFlags::GROW;
    rustix::fs::fcntl_add_seals(&plain, seals).unwrap();
    assert!(Map::open(&plain).unwrap_err().to_string().contains("not a ring"));
    assert!(ring(1 << 32).is_err());
}

#[test]
fn only_the_child_that_is_meant_inherits_an_end() {
    let listing = |command: &mut Command| {
        let output = command.arg("-l").arg("/proc/self/fd").output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let (producer, mut consumer) = ring(4096).unwrap();
    let mut heir = Command::new("ls");
    let text = producer.into_handle().unwrap().inherit(&mut heir);
    assert!(!listing(&mut Command::new("ls")).contains("omni-ring"));
    let inherited = listing(&mut heir);
    let fields: Vec<_> = text.split(':').collect();
    for descriptor in &fields[1..] {
        assert!(inherited.contains(&format!(" {descriptor} -> ")), "{text}: {inherited}");
    }
    // The child is gone, but its command still has the descriptors.
    assert!(consumer.pop_blocking(Duration::ZERO).unwrap().is_none());
    drop(heir);
    assert!(matches!(consumer.pop_blocking(LONG), Err(RingError::Closed)));
}

#[test]
fn what_was_not_inherited_is_refused() {
    for text in ["", "p", "x:3:4", "p:3", "p:1:2", "p:9:9", "c:3:4:5", "c:-3:4", "p:100000:100001"] {
        assert!(RingHandle::from_inherited(text).is_err(), "{text}");
    }
    let (producer, _consumer) = ring(4096).unwrap();
    let mut command = Command::new("true");
    let own = producer.into_handle().unwrap().inherit(&mut command);
    let error = RingHandle::from_inherited(&own).unwrap_err().to_string();
    assert!(error.contains("not inherited"), "{error}");
}

#[derive(Clone, Debug)]
enum Act {
    Push(usize),
    Pop,
    Drop(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![3 => (0..2500usize).prop_map(Act::Push), 1 => Just(Act::Push(4080)), 3 => Just(Act::Pop), 3 => any::<usize>().prop_map(Act::Drop)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_pushed_popped_and_dropped_in_whatever_order_is_right(acts in proptest::collection::vec(act(), 0..300)) {
        let (mut producer, mut consumer) = ring(4096).unwrap();
        let (mut pushed, mut popped) = (0, 0);
        // Frames in the ring: length, and whether they were given back.
        let mut frames: VecDeque<(usize, bool)> = VecDeque::new();
        let mut chunks: Vec<(usize, Chunk)> = Vec::new();
        let mut first = 0;
        for act in acts {
            match act {
                Act::Push(len) => {
                    let used: u64 = frames.iter().map(|(len, _)| footprint(*len)).sum();
                    let fits = used + footprint(len) <= 4096;
                    prop_assert_eq!(producer.try_push(&[&data(pushed, len)]).is_ok(), fits);
                    if fits {
                        frames.push_back((len, false));
                        pushed += 1;
                    }
                }
                Act::Pop => match consumer.try_pop().unwrap() {
                    Some(chunk) => {
                        chunks.push((popped, chunk));
                        popped += 1;
                    }
                    None => prop_assert_eq!(popped, pushed),
                },
                Act::Drop(which) if !chunks.is_empty() => {
                    let which = which % chunks.len();
                    let (frame, chunk) = chunks.swap_remove(which);
                    prop_assert_eq!(&*chunk, &data(frame, frames[frame - first].0)[..]);
                    frames[frame - first].1 = true;
                    while frames.pop_front_if(|(_, dropped)| *dropped).is_some() {
                        first += 1;
                    }
                }
                Act::Drop(_) => {}
            }
            for (frame, chunk) in &chunks {
                prop_assert_eq!(&**chunk, &data(*frame, frames[frame - first].0)[..]);
            }
        }
    }

    #[test]
    fn no_scribbling_makes_a_reader_or_a_writer_fall_over(words in proptest::collection::vec((0..5usize, prop_oneof![any::<u64>(), (0..200u64).prop_map(|n| n * 64), 0..200u64]), 1..20)) {
        let (mut producer, mut consumer, map) = with_map();
        let mut chunks = Vec::new();
        for (which, value) in words {
            let _ = producer.try_push(&[&[7; 100]]);
            match which {
                0 => map.header().produced.0.tail.store(value, Ordering::Relaxed),
                1 => map.header().consumed.0.head.store(value, Ordering::Relaxed),
                2 => map.header().producer_wants.0.store(value, Ordering::Relaxed),
                3 => map.frame_words(value % 64 * 64).unwrap().0.store(value | u64::from(SEAL) << 32, Ordering::Relaxed),
                _ => map.frame_words(value % 64 * 64).unwrap().1.store(value, Ordering::Relaxed),
            }
            if let Ok(Some(chunk)) = consumer.try_pop() {
                let _ = chunk.iter().map(|byte| u64::from(*byte)).sum::<u64>();
                chunks.push(chunk);
            }
            if value % 3 == 0 {
                chunks.clear();
            }
        }
    }
}
