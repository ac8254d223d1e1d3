//! A process that uses a ring may be killed at any moment: the one that survives notices, is not stuck, and nothing is left
//! behind, neither a segment nor a file nor a descriptor.
//!
//! `OMNI_KILLS=10000 cargo test --test shm_kill -- --nocapture` kills that many; without the variable it is 300.
#![allow(clippy::unwrap_used)]

use omni_actors::transfer::shm::{Chunk, Consumer, Producer, PushError, RingError, RingHandle, ring};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Tells this test program that it is the peer, and which end of the ring it has.
const PEER: &str = "OMNI_TEST_RING_PEER";
/// A survivor that has not noticed by then is stuck.
const PATIENCE: Duration = Duration::from_secs(20);

const RING: usize = 1 << 14;

/// Counter-based, so that kill number `n` is the same in each run.
fn random(n: u64) -> u64 {
    let mut x = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn frame(n: u64) -> Vec<u8> {
    let len = 8 + random(n) as usize % 3000;
    let mut data = vec![n as u8; len];
    data[..8].copy_from_slice(&n.to_le_bytes());
    data
}

/// The peer's part: pushes or pops as fast as it can, until somebody kills it.
#[test]
fn a_peer_works_until_it_is_killed() {
    let Ok(handle) = std::env::var(PEER) else { return };
    let side = handle.as_bytes()[0];
    let handle = RingHandle::from_inherited(&handle).unwrap();
    match side {
        b'p' => {
            let mut producer = handle.into_producer().unwrap();
            for n in 0.. {
                if producer.push_blocking(&[&frame(n)], PATIENCE).is_err() {
                    return;
                }
            }
        }
        _ => {
            let mut consumer = handle.into_consumer().unwrap();
            let mut kept: Vec<Chunk> = Vec::new();
            while let Ok(Some(chunk)) = consumer.pop_blocking(PATIENCE) {
                // Given back out of order.
                kept.push(chunk);
                if kept.len() > 2 {
                    drop(kept.swap_remove(0));
                    kept.clear();
                }
            }
        }
    }
}

/// Pops what the peer pushes until the end; how many there were. `first` hears of the first.
fn survive_as_consumer(consumer: &mut Consumer, first: &flume::Sender<()>) -> u64 {
    let mut popped = 0;
    loop {
        match consumer.pop_blocking(PATIENCE) {
            Ok(Some(chunk)) => {
                assert!(*chunk == frame(popped)[..], "frame {popped} is not what was pushed");
                popped += 1;
                let _ = first.try_send(());
            }
            Ok(None) => panic!("the death of the producer goes unnoticed after {popped} frames"),
            Err(RingError::Closed) => return popped,
            Err(error) => panic!("a killed producer must not look like this: {error}"),
        }
    }
}

/// Pushes until the end; how many went in. `first` hears when more went in than the ring holds.
fn survive_as_producer(producer: &mut Producer, first: &flume::Sender<()>) -> u64 {
    let mut pushed = 0;
    loop {
        match producer.push_blocking(&[&frame(pushed)], PATIENCE) {
            Ok(()) => pushed += 1,
            Err(PushError::Closed) => return pushed,
            Err(error) => panic!("the death of the consumer shows as: {error} (after {pushed} frames)"),
        }
        if pushed > RING as u64 / 8 {
            let _ = first.try_send(());
        }
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().matches("omni-ring").count()
}

fn names(folder: &Path) -> BTreeSet<std::ffi::OsString> {
    std::fs::read_dir(folder)
        .map(|entries| entries.map(|entry| entry.unwrap().file_name()).collect())
        .unwrap_or_default()
}

/// Kills the peer at a random moment; whether frames had gone through, and how long the survivor took to notice.
fn kill_one(n: u64) -> (bool, Duration) {
    let chance = random(n ^ 0x5eed);
    let (mut producer, mut consumer) = ring(RING).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "a_peer_works_until_it_is_killed", "--nocapture"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let peer_produces = chance.is_multiple_of(2);
    let (first, working) = flume::bounded(1);
    let (frames, killer) = if peer_produces {
        let end = producer.into_handle().unwrap().inherit(&mut command);
        command.env(PEER, end);
        let killer = kill(command, chance, working);
        (survive_as_consumer(&mut consumer, &first), killer)
    } else {
        let end = consumer.into_handle().unwrap().inherit(&mut command);
        command.env(PEER, end);
        let killer = kill(command, chance, working);
        (survive_as_producer(&mut producer, &first), killer)
    };
    let noticed = Instant::now();
    let killed = killer.join().unwrap();
    (frames > 0, noticed.saturating_duration_since(killed))
}

/// Starts the peer and kills it from another thread; when that was.
fn kill(mut command: Command, chance: u64, working: flume::Receiver<()>) -> JoinHandle<Instant> {
    let mut child = command.spawn().unwrap();
    // With it goes this process's copy of the peer's end.
    drop(command);
    std::thread::spawn(move || {
        // A quarter dies while it starts, the others at any point of their work.
        if chance & 0x300 != 0 {
            working.recv_timeout(PATIENCE).expect("the peer does nothing");
        }
        #[expect(clippy::disallowed_methods, reason = "a kill at any moment is the test")]
        std::thread::sleep(Duration::from_micros((chance >> 16) % 2500));
        let killed = Instant::now();
        child.kill().unwrap();
        child.wait().unwrap();
        killed
    })
}

#[test]
fn whoever_is_killed_leaves_nothing_and_nobody_is_stuck() {
    if std::env::var_os(PEER).is_some() {
        return;
    }
    let kills = std::env::var("OMNI_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(300);
    kill_one(u64::MAX);
    let (files, segments) = (names(&std::env::temp_dir()), names(Path::new("/dev/shm")));
    let before = (descriptors(), mappings());
    let (mut working, mut slowest) = (0, Duration::ZERO);
    for n in 0..kills {
        let (frames, noticed) = kill_one(n);
        working += u64::from(frames);
        slowest = slowest.max(noticed);
        assert_eq!((descriptors(), mappings()), before, "kill {n} left something behind in the survivor");
    }
    // Others use these folders too: only what a ring would leave counts.
    let ours = |new: BTreeSet<std::ffi::OsString>, old: &BTreeSet<std::ffi::OsString>| {
        new.difference(old).filter(|name| name.to_string_lossy().contains("omni")).cloned().collect::<Vec<_>>()
    };
    assert!(ours(names(Path::new("/dev/shm")), &segments).is_empty());
    assert!(ours(names(&std::env::temp_dir()), &files).is_empty());
    println!("{kills} kills, {working} of them while frames went through; noticed within {slowest:?}");
    assert!(working * 4 > kills, "most peers were killed before they did anything: {working} of {kills}");
}
