//! Everything that comes in from outside, damaged: bodies and messages of clients, frames of an edge, configs, fault
//! plans and the files of a checkpoint. The program takes it or refuses it with words; it never panics and keeps
//! nothing of it. The tests measure the memory of their own process, so they have an executable to themselves.
//!
//! A few seconds in all; `OMNI_FUZZ_SECONDS=3600 cargo test --test fuzz_entries -- --nocapture` goes on for an hour,
//! and `OMNI_FUZZ_SEED` begins elsewhere. A failure names the seed that shows it at once.
#![allow(clippy::unwrap_used)]

mod clients;
mod files;
mod media;
mod sessions;
#[path = "../support/mod.rs"]
mod support;

#[cfg(feature = "webrtc")]
#[path = "../../src/webrtc/hostile.rs"]
mod hostile;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Growth of a process that is no leak: caches that fill, memory that the allocator keeps.
const GROWTH: u64 = 128 << 20;

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % below.max(1) as u64) as usize
    }

    /// Valid input, damaged in one to four places.
    fn damaged(&mut self, good: &[u8]) -> Vec<u8> {
        const WORDS: [&[u8]; 16] = [
            b"-1",
            b"1e999",
            b"18446744073709551616",
            b"null",
            b"[]",
            b"{}",
            b"\"\"",
            b"NaN",
            b"\xff\xfe",
            b"\0",
            b"\\ud800",
            b"=",
            b"[[",
            b"\n",
            b"../../etc/passwd",
            b"true",
        ];
        let mut bytes = good.to_vec();
        for _ in 0..=self.roll(4) {
            let at = self.roll(bytes.len() + 1);
            match self.roll(6) {
                0 if at < bytes.len() => bytes[at] ^= 1 << self.roll(8),
                1 => bytes.truncate(at),
                2 => _ = bytes.splice(at..at, WORDS[self.roll(WORDS.len())].iter().copied()),
                3 => {
                    let to = (at + self.roll(40)).min(bytes.len());
                    bytes.drain(at..to);
                }
                4 => {
                    let to = (at + self.roll(40)).min(bytes.len());
                    let again = bytes[at..to].repeat(1 + self.roll(20));
                    bytes.splice(at..at, again);
                }
                _ => {
                    // A number becomes another one.
                    let digits: Vec<usize> = (0..bytes.len()).filter(|i| bytes[*i].is_ascii_digit()).collect();
                    if let Some(i) = digits.get(self.roll(digits.len())) {
                        bytes.splice(*i..=*i, WORDS[self.roll(3)].iter().copied());
                    }
                }
            }
        }
        bytes
    }
}

/// Has `one` done with one seed after the other, for a share of the time there is.
fn fuzz(name: &str, share: f64, mut one: impl FnMut(&mut Dice)) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let time = Duration::from_secs_f64(number("OMNI_FUZZ_SECONDS").unwrap_or(6) as f64 * share);
    let (first, begun) = (number("OMNI_FUZZ_SEED").unwrap_or(1), Instant::now());
    let mut seed = first;
    while begun.elapsed() < time {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one(&mut Dice(seed))));
        assert!(outcome.is_ok(), "{name}: OMNI_FUZZ_SEED={seed} shows it");
        seed += 1;
    }
    println!("{name}: {} cases", seed - first);
}

/// Memory of a process in bytes.
fn memory(process: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
}

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}
