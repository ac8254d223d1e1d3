//! From single requests to the figures of a load level. Pure.

use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Length of a frame: every supported model makes 12.5 a second.
const FRAME: Duration = Duration::from_millis(80);

/// How one request went. Times are since it was due: in an open loop, waiting for a free connection counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// When it was due, since the level began.
    pub due: Duration,
    /// The answer, or the error.
    pub result: Result<Answer, String>,
    /// Until its last byte or its error.
    pub took: Duration,
}

/// The answer to a successful request: speech, text, or both.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Time to first audio.
    pub ttfa: Duration,
    /// Length of the speech; zero where there is none.
    pub length: Duration,
    /// Chunks that a player starting at the first one would have waited for, by more than 20 ms.
    pub underruns: u32,
    /// All the silence of that player.
    pub silence: Duration,
    /// The text of a chat.
    pub text: Option<Text>,
}

/// When the text of an answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text {
    /// Time to the first token.
    pub first: Duration,
    /// Time to the last one.
    pub last: Duration,
    /// How many there were.
    pub tokens: u32,
}

impl Text {
    /// Tokens per second after the first; `None` where the text came at once.
    fn pace(&self) -> Option<f64> {
        let time = self.last.saturating_sub(self.first).as_secs_f64();
        (time > 0.0 && self.tokens > 1).then(|| f64::from(self.tokens - 1) / time)
    }
}

impl Answer {
    /// Its length in frames. A model that leaves out the first samples of a frame still made that frame.
    pub fn frames(&self) -> u32 {
        (self.length.as_secs_f64() / FRAME.as_secs_f64()).round() as u32
    }
}

/// Percentiles of a set of times, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Distribution {
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

/// The figures of one level.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Requests sent.
    pub requests: usize,
    /// Requests that were answered.
    pub succeeded: usize,
    /// How many ended in which other way.
    pub errors: BTreeMap<String, usize>,
    /// From the first request's start to the last one's end, seconds.
    pub wall_s: f64,
    /// Time to first audio, ms.
    pub ttfa_ms: Distribution,
    /// Whole request, ms.
    pub request_ms: Distribution,
    /// Time per frame after the first audio, (whole request - TTFA) / (frames - 1), ms: how others count it too.
    pub frame_ms: Distribution,
    /// Time per second of speech, request by request.
    pub real_time_factor: Distribution,
    /// Successful requests per second.
    pub requests_per_s: f64,
    /// Seconds of speech per second.
    pub audio_s_per_s: f64,
    /// Seconds of speech in all.
    pub audio_s: f64,
    /// Streams with at least one underrun.
    pub streams_with_underrun: usize,
    /// Underruns in all.
    pub underruns: u32,
    /// Longest silence of one stream, ms.
    pub worst_silence_ms: f64,
    /// Of chats.
    pub text: Option<TextFigures>,
}

/// The figures of the text of a level.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TextFigures {
    /// Time to first token, ms.
    pub ttft_ms: Distribution,
    /// Tokens per second of one stream after its first token.
    pub tokens_per_s_of_stream: Distribution,
    /// Tokens per second of all streams.
    pub tokens_per_s: f64,
    /// Tokens in all.
    pub tokens: u64,
}

impl Figures {
    /// Sums a level up.
    pub fn of(records: &[Record]) -> Figures {
        let answered: Vec<(&Record, &Answer)> =
            records.iter().filter_map(|record| record.result.as_ref().ok().map(|answer| (record, answer))).collect();
        let spoken: Vec<(&Record, &Answer)> =
            answered.iter().filter(|(_, answer)| !answer.length.is_zero()).copied().collect();
        let texts: Vec<&Text> = answered.iter().filter_map(|(_, answer)| answer.text.as_ref()).collect();
        let mut errors = BTreeMap::new();
        for error in records.iter().filter_map(|record| record.result.as_ref().err()) {
            *errors.entry(error.clone()).or_insert(0) += 1;
        }
        let begin = records.iter().map(|record| record.due).min().unwrap_or_default();
        let end = records.iter().map(|record| record.due + record.took).max().unwrap_or_default();
        let wall_s = (end - begin).as_secs_f64();
        let per_second = |amount: f64| if wall_s > 0.0 { amount / wall_s } else { 0.0 };
        let audio_s = spoken.iter().map(|(_, speech)| speech.length.as_secs_f64()).sum();
        let tokens: u64 = texts.iter().map(|text| u64::from(text.tokens)).sum();
        let text = TextFigures {
            ttft_ms: Distribution::of(texts.iter().map(|text| ms(text.first)).collect()),
            tokens_per_s_of_stream: Distribution::of(texts.iter().filter_map(|text| text.pace()).collect()),
            tokens_per_s: per_second(tokens as f64),
            tokens,
        };
        let factor = |(record, speech): &(&Record, &Answer)| {
            let length = speech.length.as_secs_f64();
            (length > 0.0).then(|| record.took.as_secs_f64() / length)
        };
        let pace = |(record, speech): &(&Record, &Answer)| {
            let others = speech.frames().checked_sub(1).filter(|others| *others > 0)?;
            Some(ms(record.took.saturating_sub(speech.ttfa)) / f64::from(others))
        };
        Figures {
            requests: records.len(),
            succeeded: answered.len(),
            errors,
            wall_s,
            ttfa_ms: Distribution::of(spoken.iter().map(|(_, speech)| ms(speech.ttfa)).collect()),
            request_ms: Distribution::of(answered.iter().map(|(record, _)| ms(record.took)).collect()),
            frame_ms: Distribution::of(spoken.iter().filter_map(pace).collect()),
            real_time_factor: Distribution::of(spoken.iter().filter_map(factor).collect()),
            requests_per_s: per_second(answered.len() as f64),
            audio_s_per_s: per_second(audio_s),
            audio_s,
            streams_with_underrun: spoken.iter().filter(|(_, speech)| speech.underruns > 0).count(),
            underruns: spoken.iter().map(|(_, speech)| speech.underruns).sum(),
            worst_silence_ms: spoken.iter().map(|(_, speech)| ms(speech.silence)).fold(0.0, f64::max),
            text: (!texts.is_empty()).then_some(text),
        }
    }
}

impl Distribution {
    /// Of any number of values, in any order; zeros for none.
    pub fn of(mut values: Vec<f64>) -> Distribution {
        values.sort_by(f64::total_cmp);
        let at = |percent: f64| percentile(&values, percent);
        Distribution { p50: at(50.0), p95: at(95.0), p99: at(99.0), max: at(100.0) }
    }
}

/// Of sorted values, with linear interpolation between neighbours (as numpy does by default).
fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let place = percent / 100.0 * last as f64;
    let low = place.floor() as usize;
    let high = (low + 1).min(last);
    sorted[low] + (sorted[high] - sorted[low]) * (place - low as f64)
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spoke(due: u64, ttfa: u64, took: u64, length: u64) -> Record {
        let ms = Duration::from_millis;
        let speech = Answer { ttfa: ms(ttfa), length: ms(length), ..Answer::default() };
        Record { due: ms(due), result: Ok(speech), took: ms(took) }
    }

    #[test]
    fn percentiles_are_those_of_numpy() {
        let values: Vec<f64> = (1..=10).rev().map(f64::from).collect();
        let found = Distribution::of(values);
        assert_eq!(found.p50, 5.5);
        assert!((found.p95 - 9.55).abs() < 1e-12);
        assert!((found.p99 - 9.91).abs() < 1e-12);
        assert_eq!(found.max, 10.0);
        assert_eq!(Distribution::of(vec![7.0]), Distribution { p50: 7.0, p95: 7.0, p99: 7.0, max: 7.0 });
        assert_eq!(Distribution::of(vec![]), Distribution::default());
    }

    #[test]
    fn rates_are_over_the_time_from_first_to_last() {
        let figures = Figures::of(&[spoke(1000, 50, 500, 2000), spoke(1500, 70, 1500, 4000)]);
        assert_eq!(figures.wall_s, 2.0);
        assert_eq!(figures.requests_per_s, 1.0);
        assert_eq!(figures.audio_s_per_s, 3.0);
        assert_eq!(figures.ttfa_ms.p50, 60.0);
        assert_eq!(figures.real_time_factor.max, 0.375);
        // 450 ms for 24 frames, 1430 ms for 49.
        assert_eq!((figures.frame_ms.p50 * 1e3).round(), ((450.0 / 24.0 + 1430.0 / 49.0) / 2.0 * 1e3f64).round());
    }

    #[test]
    fn text_has_a_pace_of_its_own_and_no_sound() {
        let ms = Duration::from_millis;
        let wrote = |due, first, last, tokens| {
            let text = Some(Text { first: ms(first), last: ms(last), tokens });
            Record { due: ms(due), result: Ok(Answer { text, ..Answer::default() }), took: ms(last) }
        };
        let figures = Figures::of(&[wrote(0, 100, 1_100, 21), wrote(1_000, 300, 1_000, 8)]);
        let text = figures.text.unwrap();
        assert_eq!((text.ttft_ms.p50, text.tokens, text.tokens_per_s), (200.0, 29, 14.5));
        assert_eq!((text.tokens_per_s_of_stream.p50, text.tokens_per_s_of_stream.max), (15.0, 20.0));
        assert_eq!((figures.succeeded, figures.requests_per_s, figures.audio_s), (2, 1.0, 0.0));
        assert_eq!(figures.ttfa_ms, Distribution::default());
    }

    #[test]
    fn failures_are_counted_by_what_they_were_and_not_timed() {
        let failed =
            |error: &str| Record { due: Duration::ZERO, result: Err(error.to_owned()), took: Duration::from_secs(9) };
        let figures = Figures::of(&[failed("429"), spoke(0, 10, 100, 1000), failed("429"), failed("connect")]);
        assert_eq!((figures.requests, figures.succeeded), (4, 1));
        assert_eq!(figures.errors, BTreeMap::from([("429".to_owned(), 2), ("connect".to_owned(), 1)]));
        assert_eq!(figures.request_ms.max, 100.0);
    }

    #[test]
    fn a_level_without_requests_has_no_figures() {
        assert_eq!(Figures::of(&[]), Figures::default());
    }
}
