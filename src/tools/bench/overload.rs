//! Overload: more requests than a server carries. It must serve in time what it accepts, and refuse the rest at once.
//! Pure.

use super::stats::{Distribution, Record};
use omni_core::admission::BUFFERED;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// The share of accepted requests that must be in time for the run to pass.
const IN_TIME: f64 = 0.95;

/// What a server carries, measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Carried {
    /// Requests per second.
    pub requests_per_s: f64,
    /// Seconds of speech per second.
    pub audio_s_per_s: f64,
}

/// The figures of an overload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overload {
    /// The rate of requests, in times of `carried`.
    pub factor: f64,
    /// What the server carries.
    pub carried: Carried,
    /// Before these, while the server learned what it carries: requests accepted, and how many of them were in time.
    pub learning: (usize, usize),
    /// Requests sent.
    pub requests: usize,
    /// Requests that were answered in full.
    pub accepted: usize,
    /// Accepted requests with their first sound within the deadline.
    pub first_sound_in_time: usize,
    /// Accepted requests without more silence than a player buffers.
    pub played_in_time: usize,
    /// Accepted requests with both.
    pub in_time: usize,
    /// Refused requests (429).
    pub refused: usize,
    /// Time to the refusal, ms.
    pub refused_ms: Distribution,
    /// Time to first audio of the accepted ones, ms.
    pub ttfa_ms: Distribution,
    /// Longest silence of an accepted one, ms.
    pub worst_silence_ms: f64,
    /// All other ends of a request, of which there should be none.
    pub others: BTreeMap<String, usize>,
}

impl Overload {
    /// Sums a run up. Requests that were due before `learned` do not count. `deadline` is that of the first sound.
    pub fn of(records: &[Record], learned: Duration, factor: f64, carried: Carried, deadline: Duration) -> Overload {
        let (early, records): (Vec<_>, Vec<_>) = records.iter().partition(|record| record.due < learned);
        let ms = |time: Duration| time.as_secs_f64() * 1000.0;
        let spoken: Vec<_> = records.iter().filter_map(|record| record.result.as_ref().ok()).collect();
        let mut others = BTreeMap::new();
        let mut refused = Vec::new();
        for record in &records {
            match &record.result {
                Ok(_) => {}
                Err(error) if error.starts_with("429") => refused.push(ms(record.took)),
                Err(error) => *others.entry(error.clone()).or_insert(0) += 1,
            }
        }
        let soon = |speech: &&&super::stats::Answer| speech.ttfa <= deadline;
        let smooth = |speech: &&&super::stats::Answer| speech.silence <= BUFFERED;
        let early: Vec<_> = early.iter().filter_map(|record| record.result.as_ref().ok()).collect();
        let learning = (early.len(), early.iter().filter(soon).filter(smooth).count());
        Overload {
            factor,
            carried,
            learning,
            requests: records.len(),
            accepted: spoken.len(),
            first_sound_in_time: spoken.iter().filter(soon).count(),
            played_in_time: spoken.iter().filter(smooth).count(),
            in_time: spoken.iter().filter(soon).filter(smooth).count(),
            refused: refused.len(),
            refused_ms: Distribution::of(refused),
            ttfa_ms: Distribution::of(spoken.iter().map(|speech| ms(speech.ttfa)).collect()),
            worst_silence_ms: spoken.iter().map(|speech| ms(speech.silence)).fold(0.0, f64::max),
            others,
        }
    }

    /// Whether the server met its deadlines.
    ///
    /// # Errors
    /// What it did instead.
    pub fn passed(&self) -> Result<(), String> {
        if let Some((error, times)) = self.others.iter().next() {
            return Err(format!("{times} requests were neither accepted nor refused: {error}"));
        }
        let share = self.in_time as f64 / self.accepted.max(1) as f64;
        if self.accepted == 0 || share < IN_TIME {
            return Err(format!("{} of {} accepted requests were in time", self.in_time, self.accepted));
        }
        Ok(())
    }
}

impl std::fmt::Display for Overload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (ttfa, told) = (&self.ttfa_ms, &self.refused_ms);
        writeln!(
            f,
            "carried: {:.2} requests/s, {:.1} seconds of speech/s; sent: {} requests at {} times that rate",
            self.carried.requests_per_s, self.carried.audio_s_per_s, self.requests, self.factor
        )?;
        writeln!(f, "while it learned: accepted {}, {} in time", self.learning.0, self.learning.1)?;
        writeln!(
            f,
            "accepted {}: {} in time ({} first sounds, {} without a gap); TTFA p50/p95/p99/max {:.0}/{:.0}/{:.0}/{:.0} ms, worst silence {:.0} ms",
            self.accepted,
            self.in_time,
            self.first_sound_in_time,
            self.played_in_time,
            ttfa.p50,
            ttfa.p95,
            ttfa.p99,
            ttfa.max,
            self.worst_silence_ms
        )?;
        writeln!(
            f,
            "refused {}: told after p50/p95/p99/max {:.1}/{:.1}/{:.1}/{:.1} ms",
            self.refused, told.p50, told.p95, told.p99, told.max
        )?;
        self.others.iter().try_for_each(|(error, times)| writeln!(f, "{times} x {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::stats::Answer;

    fn record(result: Result<(u64, u64), &str>) -> Record {
        let ms = Duration::from_millis;
        let speech =
            |(ttfa, silence)| Answer { ttfa: ms(ttfa), length: ms(800), silence: ms(silence), ..Answer::default() };
        Record { due: ms(0), result: result.map(speech).map_err(str::to_owned), took: ms(7) }
    }

    #[test]
    fn a_run_passes_only_if_accepted_requests_meet_both_deadlines() {
        let carried = Carried { requests_per_s: 1.0, audio_s_per_s: 2.0 };
        let of = |records: &[Record]| Overload::of(records, Duration::ZERO, 4.0, carried, Duration::from_secs(1));
        let kept = of(&[record(Ok((900, 150))), record(Err("429 full")), record(Ok((10, 0)))]);
        assert_eq!((kept.accepted, kept.in_time, kept.refused, kept.refused_ms.p99), (2, 2, 1, 7.0));
        assert_eq!(kept.passed(), Ok(()));
        let broken = of(&[record(Ok((1100, 0))), record(Ok((10, 300)))]);
        assert_eq!((broken.first_sound_in_time, broken.played_in_time, broken.in_time), (1, 1, 0));
        assert!(broken.passed().is_err());
        assert!(of(&[record(Ok((1, 1))), record(Err("timed out"))]).passed().unwrap_err().contains("timed out"));
        assert!(of(&[record(Err("429 full"))]).passed().is_err(), "a server that refuses all requests does not pass");
    }
}
