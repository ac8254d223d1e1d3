//! What the command line asks for: loads, route, length and fields of the requests.

use super::chat::Length;
use super::client::Route;
use super::plan::{Load, Planned};
use super::realtime::RealtimeArgs;
use crate::exit::Usage;
use crate::model::ModelArgs;
use clap::{Args, ValueEnum};
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::time::Duration;

/// Measure a server as its listeners hear it
///
/// Streams raw PCM from the speech route of any server that has OpenAI's API and reports, per load level: time to first
/// audio (TTFA), whole request, time per frame, requests per second, seconds of audio per second, real-time factor, and
/// underruns of a player that starts with the first chunk. A server of this program also gives its metrics: steps,
/// launch bubbles, device memory. --chat measures answers instead: time to first token, tokens per second of a stream
/// and of all, and time to first audio where they are spoken. --realtime holds conversations: from the end of speech to
/// the first sound, how soon an interruption is followed, and the cadence of the others. Without --url, a server starts
/// inside this process and shares its cores with the load.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  omni-actors bench                                           the embedded voice, one request at a time
  omni-actors bench --concurrency 1,4,8 --requests 32         closed loop, three levels
  omni-actors bench --rate 1,2,4 --duration 30                open loop, Poisson arrivals
  omni-actors bench --overload 4                              more than the server carries: what it accepts and refuses, and how soon
  omni-actors bench --url http://127.0.0.1:8080 --sweep --rates --frames 100 --rate-frames 57
                                                              1 to 128 clients, then 4 to 40 requests per second
  omni-actors bench --chat --tokens 100 --concurrency 1,8     answers in text, of exactly 100 tokens
  omni-actors bench --chat audio --tokens 40 --frames 60      answers in text and speech
  omni-actors bench --realtime --concurrency 1,4,8            conversations, a quarter of their answers interrupted
  omni-actors bench --url http://127.0.0.1:8091 --extra '{\"max_new_tokens\":100,\"ignore_eos\":true}' --json out.json")]
pub struct BenchArgs {
    /// Address of a running server, such as http://127.0.0.1:8080
    #[arg(long, value_name = "URL")]
    pub(super) url: Option<String>,
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// Closed loop: clients at once; several levels with commas
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1", conflicts_with = "rate")]
    concurrency: Vec<usize>,
    /// Closed loop: requests per level, at least one per client; 16 by default
    #[arg(long, value_name = "N", conflicts_with = "rate")]
    pub(super) requests: Option<usize>,
    /// Open loop: mean arrivals per second; several levels with commas
    #[arg(long, value_name = "R,..", value_delimiter = ',')]
    rate: Vec<f64>,
    /// Closed loops with so many clients, three requests each or more, then what --rates says
    #[arg(long, value_name = "N,..", value_delimiter = ',', num_args = 0..=1, conflicts_with_all = ["rate", "concurrency"])]
    #[arg(default_missing_values = ["1", "4", "8", "16", "32", "64", "128"])]
    sweep: Vec<usize>,
    /// Open loops with so many arrivals per second
    #[arg(long, value_name = "R,..", value_delimiter = ',', num_args = 0..=1, conflicts_with_all = ["rate", "concurrency"])]
    #[arg(default_missing_values = ["4", "10", "20", "40"])]
    rates: Vec<f64>,
    /// Open loop: seconds during which requests arrive
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    pub(super) duration: f64,
    /// Measure what the server carries, then send --requests (1000 by default) at so many times that rate, after a
    /// tenth as many from which it learns; fails if accepted requests miss the deadline, or if a request is neither
    /// accepted nor refused
    #[arg(long, value_name = "X", conflicts_with_all = ["rate", "rates", "sweep", "concurrency"])]
    pub(super) overload: Option<f64>,
    /// Overload: when the first sound of an accepted request has to come, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    pub(super) deadline: f64,
    /// Make every request exactly so many frames of 80 ms long, whatever the model would say; conversations: at most so
    /// many frames and tokens of an answer, 50 by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) frames: Option<u32>,
    /// Ask questions instead of having texts spoken: answers in text, or in text and audio
    #[arg(long, value_enum, num_args = 0..=1, default_missing_value = "text", conflicts_with = "overload")]
    chat: Option<Chat>,
    /// Chat: make every answer exactly so many tokens long, whatever the model would say; spoken ones need --frames too
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000), requires = "chat")]
    pub(super) tokens: Option<u32>,
    #[command(flatten)]
    pub(super) realtime: RealtimeArgs,
    /// Open loop: the same as --frames, instead of it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate_frames: Option<u32>,
    /// Print the floor beside the figures: the time in which a device with this memory bandwidth, in bytes per second
    /// such as 4.3e12, reads what a frame needs; with --url the model is the one of --config or --checkpoint
    #[arg(long, value_name = "BYTES")]
    pub(super) bandwidth: Option<f64>,
    /// One text per line, taken in turn; a list of short sentences by default
    #[arg(long, value_name = "FILE")]
    pub(super) texts: Option<PathBuf>,
    /// Speaker
    #[arg(long)]
    pub(super) voice: Option<String>,
    /// Seed of the arrivals; request i is sent with this seed plus i
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Fields for every request's body, as a JSON object; they replace this program's fields, null leaves a field out
    #[arg(long, value_name = "JSON")]
    extra: Option<String>,
    /// Requests sent before the measurement
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(super) warmup: usize,
    /// Seconds after which a request counts as failed
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0)]
    pub(super) timeout: f64,
    /// Also write the figures to a file
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// What a chat is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Chat {
    /// Text alone.
    Text,
    /// Text and speech.
    Audio,
}

impl BenchArgs {
    /// The levels to be measured, in their order.
    pub(super) fn loads(&self) -> anyhow::Result<Vec<Planned>> {
        if self.overload.is_some() {
            return Ok(Vec::new());
        }
        let sweeping = !self.sweep.is_empty() || !self.rates.is_empty();
        let (levels, rates): (&[usize], _) = match () {
            () if sweeping => (&self.sweep, &self.rates),
            () if self.rate.is_empty() => (&self.concurrency, &self.rate),
            () => (&[], &self.rate),
        };
        let duration = positive("--duration", self.duration)?;
        let least = if sweeping { 3 } else { 1 };
        let closed = |&concurrency: &usize| {
            // The upper end is more than there are ports.
            let fits = (1..=60_000).contains(&concurrency);
            let load = Load::Closed { concurrency, requests: self.requests.unwrap_or(16).max(least * concurrency) };
            fits.then_some(Planned { load, frames: self.frames })
                .ok_or_else(|| Usage("--concurrency: must be at least 1 and at most 60000".to_owned()).into())
        };
        let open = |&rate: &f64| {
            // The upper end keeps the list of arrivals small; no server speaks that fast.
            let fits = rate > 0.0 && rate <= 10_000.0;
            let load = Load::Open { rate, duration };
            fits.then_some(Planned { load, frames: self.rate_frames.or(self.frames) })
                .ok_or_else(|| Usage("--rate: must be above 0 and at most 10000".to_owned()).into())
        };
        levels.iter().map(closed).chain(rates.iter().map(open)).collect()
    }

    /// How many conversations are held at once, level by level.
    pub(super) fn conversations(&self) -> anyhow::Result<Vec<usize>> {
        // More are more sockets than most systems give a process.
        let fit = self.concurrency.iter().all(|conversations| (1..=1_000).contains(conversations));
        fit.then(|| self.concurrency.clone())
            .ok_or_else(|| Usage("--concurrency: must be at least 1 and at most 1000 conversations".to_owned()).into())
    }

    /// What is asked for.
    pub(super) fn route(&self) -> anyhow::Result<Route> {
        let refuse = |told: &str| Err(Usage(told.to_owned()).into());
        match self.chat {
            None => Ok(Route::Speech),
            Some(Chat::Text) if self.frames.or(self.rate_frames).is_some() => {
                refuse("--frames: answers in text have none; say --chat audio")
            }
            Some(Chat::Audio) if self.tokens.is_some() != self.frames.or(self.rate_frames).is_some() => {
                refuse("--tokens: spoken answers of a fixed length need --tokens and --frames")
            }
            Some(chat) => Ok(Route::Chat { speaks: chat == Chat::Audio }),
        }
    }

    /// How long each answer has to be.
    pub(super) fn length(&self) -> Length {
        Length { tokens: self.tokens, frames: self.frames }
    }

    /// Fields of the user for every request.
    pub(super) fn body(&self) -> anyhow::Result<Map<String, Value>> {
        let mut body = Map::new();
        if let Some(extra) = &self.extra {
            let fields: Map<String, Value> = serde_json::from_str(extra)
                .map_err(|error| Usage(format!("--extra: must be a JSON object such as {{\"a\": 1}}: {error}")))?;
            body.extend(fields);
        }
        Ok(body)
    }
}

/// A time that an option gives in seconds.
pub(super) fn positive(option: &str, seconds: f64) -> anyhow::Result<Duration> {
    let duration = Duration::try_from_secs_f64(seconds).ok().filter(|duration| !duration.is_zero());
    duration.ok_or_else(|| Usage(format!("{option}: must be above 0 seconds")).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn planned(words: &str) -> anyhow::Result<Vec<(Load, Option<u32>)>> {
        let line = Line::try_parse_from(std::iter::once("bench").chain(words.split_whitespace()))?;
        Ok(line.bench.loads()?.into_iter().map(|planned| (planned.load, planned.frames)).collect())
    }

    #[test]
    fn a_sweep_is_closed_loops_then_open_ones() {
        let all = planned("--sweep --rates --frames 100 --rate-frames 57").unwrap();
        assert_eq!(all.len(), 11);
        assert_eq!(all[0], (Load::Closed { concurrency: 1, requests: 16 }, Some(100)));
        assert_eq!(all[6], (Load::Closed { concurrency: 128, requests: 384 }, Some(100)));
        assert_eq!(all[10], (Load::Open { rate: 40.0, duration: Duration::from_secs(30) }, Some(57)));
        let chosen = planned("--sweep 2,3 --rates 5 --frames 9 --duration 2").unwrap();
        assert_eq!(chosen.len(), 3);
        assert_eq!(chosen[2], (Load::Open { rate: 5.0, duration: Duration::from_secs(2) }, Some(9)));
        assert_eq!(planned("").unwrap(), [(Load::Closed { concurrency: 1, requests: 16 }, None)]);
    }

    #[test]
    fn levels_that_make_no_sense_are_refused() {
        for words in ["--sweep 0", "--rates 0", "--sweep --concurrency 2", "--frames 0", "--sweep x"] {
            assert!(planned(words).is_err(), "{words}");
        }
    }
}
