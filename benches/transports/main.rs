//! What frames between hosts cost, and what an edge over a node costs a stream.
//!
//! `cargo bench --features cluster --bench transports` starts itself once more as the peer of each transport, over
//! loopback, and prints for frames of 64 B (codes), 4 KB (sound), 8 KB (an embedding) and 256 KB (a prompt's):
//!
//! 1. the time of a round trip, one at a time; frames per second in one direction, at most 64 under way; and processor
//!    time per frame in one direction, of all processes that take part. The line and the ring are as the engine has them,
//!    with a frame a message. TCP and NATS are plain: the line alone encrypts, so it is shown without QUIC as well.
//! 2. time to first audio and time per frame of the small Qwen3-TTS with its stages in threads, in processes and on a
//!    node; alone with `OMNI_PLACEMENTS=1`.
//!
//! NATS needs the program `nats-server` (Debian: `apt-get install nats-server`); without it its rows are left out.
#![allow(clippy::unwrap_used)]

mod pipes;
mod placements;
#[path = "../support/hosts.rs"]
mod support;

use bytes::Bytes;
use pipes::{KINDS, Kind, Pipe, connected, peer_pipe};
use std::time::{Duration, Instant};

/// Names the transport to the peer, and where.
pub const PEER: &str = "OMNI_BENCH_TRANSPORT_PEER";
const SIZES: [(usize, &str, usize, usize); 4] = [
    (64, "64 B", 3000, 60_000),
    (4 << 10, "4 KB", 3000, 60_000),
    (8 << 10, "8 KB", 3000, 40_000),
    (256 << 10, "256 KB", 400, 1_500),
];
const ROUNDS: usize = 3;
/// Frames that are under way at most, and how often the peer says how far it has come.
const WINDOW: usize = 64;
const EACH: usize = 16;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    if let Ok(what) = std::env::var(PEER) {
        return runtime.block_on(async { serve(peer_pipe(&what).await).await });
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if std::env::var_os("OMNI_PLACEMENTS").is_some() {
        return runtime.block_on(placements::compare());
    }
    println!("1. frames between two processes over loopback, {cores} cores, {ROUNDS} rounds in turns\n");
    println!(
        "{:>8}{:>16}{:>12}{:>12}{:>14}{:>10}{:>16}",
        "frame", "", "p50 us", "p99 us", "frames/s", "MB/s", "us of CPU each"
    );
    runtime.block_on(async {
        let mut table = vec![vec![Row::default(); KINDS.len()]; SIZES.len()];
        for _ in 0..ROUNDS {
            for (at, kind) in KINDS.into_iter().enumerate() {
                if let Some(rows) = measure(kind).await {
                    rows.into_iter().zip(&mut table).for_each(|(row, sizes)| sizes[at].add(row));
                }
            }
        }
        for ((size, name, ..), rows) in SIZES.iter().zip(&mut table) {
            KINDS.iter().zip(rows).for_each(|(kind, row)| row.print(name, *size, *kind));
        }
        println!("\n2. the small Qwen3-TTS (random weights), {cores} cores\n");
        placements::compare().await;
    });
}

/// What was measured of one size of frame.
#[derive(Clone, Default)]
struct Row {
    trips: Vec<Duration>,
    /// Frames a second and processor time of a frame, of each round.
    streams: Vec<(f64, Duration)>,
}

impl Row {
    fn add(&mut self, other: Row) {
        self.trips.extend(other.trips);
        self.streams.extend(other.streams);
    }

    fn print(&mut self, name: &str, size: usize, kind: Kind) {
        if self.trips.is_empty() {
            return;
        }
        self.trips.sort_unstable();
        self.streams.sort_by(|one, other| one.0.total_cmp(&other.0));
        let us = |share: f64| self.trips[((self.trips.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
        let (frames, cpu) = self.streams[self.streams.len() / 2];
        println!(
            "{name:>8}{:>16}{:>12.1}{:>12.1}{frames:>14.0}{:>10.0}{:>16.2}",
            kind.name(),
            us(0.5),
            us(0.99),
            frames * size as f64 / 1e6,
            cpu.as_secs_f64() * 1e6
        );
    }
}

async fn measure(kind: Kind) -> Option<Vec<Row>> {
    let (mut pipe, peers) = connected(kind).await?;
    let mut rows = Vec::new();
    for (size, _, pings, count) in SIZES {
        let frame = Bytes::from(vec![7u8; size]);
        let mut trips = Vec::with_capacity(pings);
        pipe.send(word(b'P', pings)).await;
        for _ in 0..pings {
            let begun = Instant::now();
            pipe.send(frame.clone()).await;
            assert_eq!(pipe.receive().await.len(), size);
            trips.push(begun.elapsed());
        }
        let (begun, before) = (Instant::now(), peers.cpu());
        pipe.send(word(b'T', count)).await;
        let mut under_way = 0;
        for _ in 0..count {
            if under_way == WINDOW {
                pipe.receive().await;
                under_way -= EACH;
            }
            pipe.send(frame.clone()).await;
            under_way += 1;
        }
        while under_way >= EACH {
            pipe.receive().await;
            under_way -= EACH;
        }
        let took = begun.elapsed();
        let cpu = peers.cpu().saturating_sub(before) / count as u32;
        rows.push(Row { trips, streams: vec![(count as f64 / took.as_secs_f64(), cpu)] });
    }
    pipe.send(word(b'Q', 0)).await;
    peers.end();
    Some(rows)
}

fn word(what: u8, count: usize) -> Bytes {
    [&[what][..], &(count as u64).to_le_bytes()].concat().into()
}

/// The peer: echoes, or counts.
async fn serve(mut pipe: Pipe) {
    loop {
        let word = pipe.receive().await;
        let count = u64::from_le_bytes(word[1..9].try_into().unwrap()) as usize;
        let what = word[0];
        // It lies in the ring, which has no room while it does.
        drop(word);
        match what {
            b'P' => {
                for _ in 0..count {
                    let frame = pipe.receive().await;
                    pipe.send(frame).await;
                }
            }
            b'T' => {
                for number in 1..=count {
                    pipe.receive().await;
                    if number % EACH == 0 {
                        pipe.send(Bytes::from_static(b"more")).await;
                    }
                }
            }
            _ => return,
        }
    }
}
