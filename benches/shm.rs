//! What a ring in shared memory costs between two processes.
//!
//! `cargo bench --bench shm` starts itself once more as the peer and prints two tables.
//!
//! 1. Throughput: the peer pushes messages of one size, this process reads each where it lies (it adds up one byte of every
//!    cache line). Beside it, in the same run: copying as much between two buffers of one process (`memcpy`), and a Unix stream socket between the same two processes. The goal is 80 % of memcpy at 1 MB.
//! 2. Latency: half of a ping-pong of 4 KB. The goal is a median under 15 us. "blocking" looks for 20 us before it sleeps;
//!    "async" is a tokio task on either side.
#![allow(clippy::unwrap_used)]

use omni_actors::transfer::shm::{Consumer, Producer, RingHandle, ring};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const PEER: &str = "OMNI_BENCH_RING_PEER";
const LONG: Duration = Duration::from_secs(60);
const RING: usize = 8 << 20;
const ROUNDS: usize = 5;
const PINGS: usize = 20_000;
const SIZES: [(usize, &str, usize); 3] =
    [(4 << 10, "4 KB", 200_000), (64 << 10, "64 KB", 30_000), (1 << 20, "1 MB", 2_000)];

fn main() {
    if let Ok(what) = std::env::var(PEER) {
        return peer(&what);
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("1. throughput between two processes, {cores} cores, best of {ROUNDS} rounds in turns: GB/s\n");
    println!("{:>8}{:>12}{:>12}{:>12}{:>18}", "size", "memcpy", "ring", "socket", "ring / memcpy");
    for (size, name, count) in SIZES {
        let (mut copied, mut rung, mut sent) = (0f64, 0f64, 0f64);
        for _ in 0..ROUNDS {
            copied = copied.max(gigabytes(size, count, memcpy(size, count)));
            rung = rung.max(gigabytes(size, count, ring_stream(size, count)));
            sent = sent.max(gigabytes(size, count, socket_stream(size, count)));
        }
        println!("{name:>8}{copied:>12.2}{rung:>12.2}{sent:>12.2}{:>16.0} %", 100.0 * rung / copied);
    }

    println!("\n2. one way, half of a ping-pong of 4 KB, {PINGS} times: us\n");
    println!("{:>16}{:>10}{:>10}{:>10}", "", "p50", "p90", "p99");
    report("ring, blocking", ring_pings("pong"));
    report("ring, async", async_pings());
    report("unix socket", socket_pings());
}

fn gigabytes(size: usize, count: usize, took: Duration) -> f64 {
    (size * count) as f64 / took.as_secs_f64() / 1e9
}

/// Looks at every cache line.
fn read(data: &[u8]) -> u64 {
    data.iter().step_by(64).map(|byte| u64::from(*byte)).sum()
}

fn memcpy(size: usize, count: usize) -> Duration {
    // As many buffers as the ring holds, so that both go through the same amount of memory.
    let source = vec![7u8; size];
    let mut places = vec![vec![0u8; size]; (RING / size).max(1)];
    let start = Instant::now();
    for n in 0..count {
        let at = n % places.len();
        let place = &mut places[at];
        place.copy_from_slice(std::hint::black_box(&source));
        std::hint::black_box(place);
    }
    start.elapsed()
}

/// This program once more; `give` says what it inherits and how it is told.
fn start(give: impl FnOnce(&mut Command) -> String) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let told = give(&mut command);
    command.env(PEER, told).spawn().unwrap()
}

fn ring_stream(size: usize, count: usize) -> Duration {
    let (producer, mut consumer) = ring(RING).unwrap();
    let mut child = start(|command| {
        let end = producer.into_handle().unwrap().inherit(command);
        format!("push {size} {count} {end}")
    });
    // The first one says that the peer runs.
    drop(consumer.pop_blocking(LONG).unwrap().unwrap());
    let start = Instant::now();
    for _ in 0..count {
        let chunk = consumer.pop_blocking(LONG).unwrap().unwrap();
        std::hint::black_box(read(&chunk));
    }
    let took = start.elapsed();
    child.wait().unwrap();
    took
}

fn ring_pings(how: &str) -> Vec<Duration> {
    let (mut to, their_in) = ring(1 << 20).unwrap();
    let (their_out, mut from) = ring(1 << 20).unwrap();
    let mut child = start(|command| {
        let (there, back) = (their_in.into_handle().unwrap(), their_out.into_handle().unwrap());
        format!("{how} {PINGS} {} {}", there.inherit(command), back.inherit(command))
    });
    let message = vec![1u8; 4 << 10];
    let times = (0..=PINGS).map(|_| {
        let start = Instant::now();
        to.push_blocking(&[&message], LONG).unwrap();
        std::hint::black_box(read(&from.pop_blocking(LONG).unwrap().unwrap()));
        start.elapsed() / 2
    });
    let times = times.skip(1).collect();
    child.wait().unwrap();
    times
}

fn async_pings() -> Vec<Duration> {
    let (mut to, their_in) = ring(1 << 20).unwrap();
    let (their_out, mut from) = ring(1 << 20).unwrap();
    let mut child = start(|command| {
        let (there, back) = (their_in.into_handle().unwrap(), their_out.into_handle().unwrap());
        format!("async {PINGS} {} {}", there.inherit(command), back.inherit(command))
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let times = runtime.block_on(async {
        let message = vec![1u8; 4 << 10];
        let mut times = Vec::with_capacity(PINGS);
        for _ in 0..=PINGS {
            let start = Instant::now();
            to.push(&[&message]).await.unwrap();
            std::hint::black_box(read(&from.pop().await.unwrap()));
            times.push(start.elapsed() / 2);
        }
        times.split_off(1)
    });
    child.wait().unwrap();
    times
}

/// A connected pair, one of which is the child's standard input.
fn socket(what: &str) -> (UnixStream, Child) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let child = start(|command| {
        command.stdin(OwnedFd::from(theirs));
        what.to_owned()
    });
    (ours, child)
}

fn socket_stream(size: usize, count: usize) -> Duration {
    let (mut socket, mut child) = socket(&format!("write {size} {count}"));
    let mut place = vec![0u8; size];
    socket.read_exact(&mut place).unwrap();
    let start = Instant::now();
    for _ in 0..count {
        socket.read_exact(&mut place).unwrap();
        std::hint::black_box(read(&place));
    }
    let took = start.elapsed();
    child.wait().unwrap();
    took
}

fn socket_pings() -> Vec<Duration> {
    let (mut socket, mut child) = socket(&format!("echo {PINGS}"));
    let mut message = vec![1u8; 4 << 10];
    let times = (0..=PINGS).map(|_| {
        let start = Instant::now();
        socket.write_all(&message).unwrap();
        socket.read_exact(&mut message).unwrap();
        std::hint::black_box(read(&message));
        start.elapsed() / 2
    });
    let times = times.skip(1).collect();
    child.wait().unwrap();
    times
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let us = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    println!("{what:>16}{:>10.1}{:>10.1}{:>10.1}", us(0.5), us(0.9), us(0.99));
}

/// The other process.
fn peer(what: &str) {
    let words: Vec<&str> = what.split(' ').collect();
    let number = |at: usize| words[at].parse::<usize>().unwrap();
    let end = |at: usize| RingHandle::from_inherited(words[at]).unwrap();
    let ends = || -> (Consumer, Producer) { (end(2).into_consumer().unwrap(), end(3).into_producer().unwrap()) };
    let socket = || UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    match words[0] {
        "push" => {
            let (source, mut producer) = (vec![7u8; number(1)], end(3).into_producer().unwrap());
            for _ in 0..=number(2) {
                producer.push_blocking(&[std::hint::black_box(&source)], LONG).unwrap();
            }
        }
        "pong" => {
            let (mut consumer, mut producer) = ends();
            for _ in 0..=number(1) {
                let chunk = consumer.pop_blocking(LONG).unwrap().unwrap();
                producer.push_blocking(&[&chunk], LONG).unwrap();
            }
        }
        "async" => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (mut consumer, mut producer) = ends();
                for _ in 0..=number(1) {
                    let chunk = consumer.pop().await.unwrap();
                    producer.push(&[&chunk]).await.unwrap();
                }
            });
        }
        "write" => {
            let (source, mut socket) = (vec![7u8; number(1)], socket());
            for _ in 0..=number(2) {
                socket.write_all(std::hint::black_box(&source)).unwrap();
            }
        }
        "echo" => {
            let (mut place, mut socket) = (vec![0u8; 4 << 10], socket());
            for _ in 0..=number(1) {
                socket.read_exact(&mut place).unwrap();
                socket.write_all(&place).unwrap();
            }
        }
        other => panic!("no peer does {other}"),
    }
}
