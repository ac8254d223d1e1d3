//! Which request starts when. Pure.

use serde::Serialize;
use std::time::Duration;

/// One load level.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "loop", rename_all = "lowercase")]
pub enum Load {
    /// A fixed number of clients, each sending its next request when the one before is done.
    Closed {
        /// Clients.
        concurrency: usize,
        /// Requests in all.
        requests: usize,
    },
    /// Requests that arrive whether or not the server keeps up.
    Open {
        /// Mean arrivals per second.
        rate: f64,
        /// For how long they arrive.
        #[serde(rename = "duration_s", serialize_with = "seconds")]
        duration: Duration,
    },
}

/// A level: the load, and the length of each request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Planned {
    /// The load.
    pub load: Load,
    /// Frames of every request; `None`: as many as the model makes.
    pub frames: Option<u32>,
}

fn seconds<S: serde::Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(duration.as_secs_f64())
}

/// Arrival times of a Poisson process: gaps are exponential with mean `1 / rate`. The same seed gives the same times.
pub fn poisson(rate: f64, duration: Duration, seed: u64) -> Vec<Duration> {
    let mut at = 0.0;
    let gaps = (0..).map(|i| exponential(uniform(seed, i), rate));
    gaps.map(|gap| {
        at += gap;
        Duration::from_secs_f64(at)
    })
    .take_while(|at| *at < duration)
    .collect()
}

/// Inverse of the exponential distribution's cumulative function.
fn exponential(uniform: f64, rate: f64) -> f64 {
    -(1.0 - uniform).ln() / rate
}

/// The `i`-th number of a counter-based generator (SplitMix64's finalizer), in [0, 1).
pub fn uniform(seed: u64, i: u64) -> f64 {
    let mut z = seed.wrapping_add(i.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    // 53 bits fill a double's mantissa.
    (z >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_come_at_the_rate_and_in_order() {
        let times = poisson(20.0, Duration::from_secs(500), 7);
        assert!((9_600..=10_400).contains(&times.len()), "{}", times.len());
        assert!(times.windows(2).all(|pair| pair[0] <= pair[1]));
        assert!(times.iter().all(|at| *at < Duration::from_secs(500)));
    }

    #[test]
    fn gaps_are_exponential() {
        // Of an exponential distribution, 1/e lies above the mean.
        let times = poisson(1.0, Duration::from_secs(20_000), 3);
        let long = times.windows(2).filter(|pair| pair[1] - pair[0] > Duration::from_secs(1)).count();
        let share = long as f64 / times.len() as f64;
        assert!((share - 0.3679).abs() < 0.01, "{share}");
    }

    #[test]
    fn a_seed_gives_the_same_arrivals_again() {
        let duration = Duration::from_secs(10);
        assert_eq!(poisson(5.0, duration, 1), poisson(5.0, duration, 1));
        assert_ne!(poisson(5.0, duration, 1), poisson(5.0, duration, 2));
    }
}
