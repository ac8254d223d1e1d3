//! A listener over HTTP that plays what it hears. When its gateway is killed it asks another one for the rest.

use super::super::drill::Stream;
use super::super::listen::{AGAIN, Timing};
use super::super::verdict::{End, Heard};
use super::hosts::Site;
use omni_engine::{FinishReason, Usage};
use reqwest::{Client, Response, StatusCode};
use serde_json::{Map, Value};
use std::time::{Duration, Instant};

/// How far ahead of what it plays a listener reads; its socket holds some more.
const AHEAD: Duration = Duration::from_secs(2);
/// A whole sample.
const BYTES: usize = 2;

/// A stream, and what its player did meanwhile. Times are since the run began.
#[derive(Clone, Debug)]
pub struct Played {
    /// As any drill has it.
    pub stream: Stream,
    /// When something came to play again, and for how long there had been nothing.
    pub gaps: Vec<(Duration, Duration)>,
    /// When its gateway was killed.
    pub moved: Vec<Duration>,
}

/// One stream while it is heard.
pub struct Listener<'a> {
    /// Sends requests.
    pub http: &'a Client,
    /// All gateways.
    pub sites: &'a [Site],
    /// The gateway that is asked first.
    pub home: usize,
    /// What is asked for.
    pub body: &'a Map<String, Value>,
    /// When the run began.
    pub run_began: Instant,
    /// For how long nothing may come.
    pub patience: Duration,
    /// Samples a second.
    pub rate: u32,
}

/// What was heard so far.
struct Ear {
    bytes: Vec<u8>,
    timing: Timing,
    gaps: Vec<(Duration, Duration)>,
    moved: Vec<Duration>,
}

/// How one answer ended.
enum Ended {
    Whole,
    Broken,
    Hung,
}

impl Listener<'_> {
    /// Asks, and listens to the end: what was heard, its times, gaps, and moves to another gateway.
    pub async fn listen(&self) -> (Heard, Timing, Vec<(Duration, Duration)>, Vec<Duration>) {
        let began = self.run_began.elapsed();
        let timing = Timing { began, ..Timing::default() };
        let mut ear = Ear { bytes: Vec::new(), timing, gaps: Vec::new(), moved: Vec::new() };
        let end = self.hear_all(&mut ear).await;
        ear.timing.ended = self.run_began.elapsed();
        let sample = |pair: &[u8]| f32::from(i16::from_le_bytes([pair[0], pair[1]])) / 32_768.0;
        let samples = ear.bytes.chunks_exact(BYTES).map(sample).collect();
        (Heard { samples, text: String::new(), end }, ear.timing, ear.gaps, ear.moved)
    }

    async fn hear_all(&self, ear: &mut Ear) -> End {
        let (mut at, mut last) = (self.home, Instant::now());
        loop {
            let site = &self.sites[at % self.sites.len()];
            let (kills, before) = (site.kills(), ear.bytes.len());
            let refused = match self.ask(site, ear.bytes.len() / BYTES).await {
                Ok(answer) => match self.hear(answer, ear).await {
                    Ended::Whole => return End::Finished(FinishReason::Stop, Usage::default()),
                    Ended::Hung => return End::Hung(self.patience),
                    Ended::Broken if site.kills() == kills => {
                        return End::Failed("the answer of a gateway that was not killed broke off".to_owned());
                    }
                    Ended::Broken => {
                        ear.moved.push(self.run_began.elapsed());
                        "its gateway was killed".to_owned()
                    }
                },
                Err(Asking::Again(why)) => why,
                Err(Asking::Never(why)) if ear.bytes.is_empty() => return End::Refused(why),
                Err(Asking::Never(why)) => return End::Failed(why),
            };
            if ear.bytes.len() > before {
                last = Instant::now();
            }
            if last.elapsed() >= self.patience {
                return if ear.bytes.is_empty() { End::Refused(refused) } else { End::Failed(refused) };
            }
            at += 1;
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Asks a gateway for the answer from this sample on.
    async fn ask(&self, site: &Site, start: usize) -> Result<Response, Asking> {
        let url = site.url().ok_or_else(|| Asking::Again("no gateway is up".to_owned()))?;
        let mut body = self.body.clone();
        if start > 0 {
            body.insert("start_sample".to_owned(), start.into());
        }
        let asked = self.http.post(format!("{url}/v1/audio/speech")).json(&body).send();
        let answer = match tokio::time::timeout(self.patience, asked).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => return Err(Asking::Again("no gateway answers".to_owned())),
            Err(_) => return Err(Asking::Never(format!("no answer begins within {:?}", self.patience))),
        };
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let told: Value = answer.json().await.unwrap_or_default();
        let told = format!("{} {}", status.as_u16(), told["error"]["message"].as_str().unwrap_or_default());
        match status {
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => Err(Asking::Again(told)),
            _ => Err(Asking::Never(told)),
        }
    }

    /// Plays an answer while it comes.
    async fn hear(&self, mut answer: Response, ear: &mut Ear) -> Ended {
        // Half a sample of an answer that broke off comes again.
        ear.bytes.truncate(ear.bytes.len() / BYTES * BYTES);
        loop {
            match tokio::time::timeout(self.patience, answer.chunk()).await {
                Err(_) => return Ended::Hung,
                Ok(Err(_)) => return Ended::Broken,
                Ok(Ok(None)) => return Ended::Whole,
                Ok(Ok(Some(chunk))) => {
                    let now = self.run_began.elapsed();
                    let ahead = ear.take(&chunk, now, self.rate).saturating_sub(AHEAD);
                    tokio::time::sleep(ahead).await;
                }
            }
        }
    }
}

/// Why a gateway gives no answer, and whether it may be asked again.
enum Asking {
    Again(String),
    Never(String),
}

impl Ear {
    /// A chunk came: how much there is to play now.
    fn take(&mut self, chunk: &[u8], now: Duration, rate: u32) -> Duration {
        let before = self.bytes.len() / BYTES;
        self.bytes.extend_from_slice(chunk);
        let fresh = self.bytes.len() / BYTES - before;
        let player = &mut self.timing.player;
        let since_asked = now.saturating_sub(self.timing.began);
        if fresh > 0 {
            let silence = player.silence;
            player.chunk(since_asked, Duration::from_secs_f64(fresh as f64 / f64::from(rate.max(1))));
            let gap = player.silence - silence;
            if !gap.is_zero() {
                self.gaps.push((now, gap));
            }
        }
        player.left(since_asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_late_is_a_gap_at_its_time_and_the_rest_is_ahead() {
        let timing = Timing { began: Duration::from_secs(5), ..Timing::default() };
        let mut ear = Ear { bytes: Vec::new(), timing, gaps: Vec::new(), moved: Vec::new() };
        let ms = Duration::from_millis;
        // 100 ms each.
        let chunk = vec![0; 2 * 2400];
        assert_eq!(ear.take(&chunk, ms(5_200), 24_000), ms(100));
        assert_eq!(ear.take(&chunk, ms(5_250), 24_000), ms(150));
        assert_eq!(ear.gaps, []);
        assert_eq!(ear.take(&chunk, ms(5_700), 24_000), ms(100));
        assert_eq!(ear.gaps, [(ms(5_700), ms(300))]);
        // Half a sample is nothing to play yet.
        let left = ear.take(&[0], ms(5_700), 24_000);
        assert_eq!((left, ear.bytes.len()), (ms(100), 3 * 4800 + 1));
    }
}
