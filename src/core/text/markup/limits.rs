//! What one marked text may ask for, and the values that both notations share.

use std::collections::BTreeSet;
use std::time::Duration;

/// The longest pause.
pub const MAX_PAUSE: Duration = Duration::from_secs(10);
/// All pauses of a text together.
pub const MAX_PAUSES: Duration = Duration::from_secs(60);
/// Tags of a text, end tags not counted.
pub const MAX_TAGS: usize = 500;
/// Elements of SSML inside of each other.
pub const MAX_DEPTH: usize = 16;
/// Different voices that a text names.
pub const MAX_VOICES: usize = 8;
/// The slowest rate.
pub const MIN_RATE: f32 = 0.25;
/// The fastest rate.
pub const MAX_RATE: f32 = 4.0;

/// What a text has asked for so far. Its errors say what is wrong and what is allowed.
#[derive(Debug, Default)]
pub(super) struct Limits {
    tags: usize,
    pauses: Duration,
    voices: BTreeSet<String>,
}

impl Limits {
    /// One tag more.
    pub fn tag(&mut self) -> Result<(), String> {
        self.tags += 1;
        if self.tags <= MAX_TAGS { Ok(()) } else { Err(format!("a text may have {MAX_TAGS} tags")) }
    }

    /// A pause of this length, as it was written.
    pub fn pause(&mut self, text: &str) -> Result<Duration, String> {
        let pause = time(text).ok_or_else(|| {
            let most = MAX_PAUSE.as_secs();
            format!("{:?} is no time; write seconds or milliseconds, such as 0.5s or 500ms, up to {most}s", cut(text))
        })?;
        self.rests(pause)
    }

    /// A pause of this length.
    pub fn rests(&mut self, pause: Duration) -> Result<Duration, String> {
        if pause > MAX_PAUSE {
            return Err(format!("a pause may have {} s; this one has {} s", MAX_PAUSE.as_secs(), pause.as_secs_f32()));
        }
        self.pauses += pause;
        if self.pauses > MAX_PAUSES {
            return Err(format!("the pauses of a text may have {} s together", MAX_PAUSES.as_secs()));
        }
        Ok(pause)
    }

    /// The name of a voice.
    pub fn voice(&mut self, name: &str) -> Result<(), String> {
        if name.is_empty() {
            return Err("a voice needs a name".to_owned());
        }
        self.voices.insert(name.to_lowercase());
        let fits = self.voices.len() <= MAX_VOICES;
        if fits { Ok(()) } else { Err(format!("a text may name {MAX_VOICES} voices")) }
    }
}

/// `500ms`, `0.5s`.
fn time(text: &str) -> Option<Duration> {
    let text = text.trim();
    let (number, second) = match text.strip_suffix("ms") {
        Some(number) => (number, 1000.0),
        None => (text.strip_suffix('s')?, 1.0),
    };
    let seconds = decimal(number.trim_end())? / second;
    Duration::try_from_secs_f64(seconds).ok()
}

/// Digits, with one point at most: `parse` would take signs, exponents and words.
fn decimal(text: &str) -> Option<f64> {
    let plain = text.len() <= 12 && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|_| plain)
}

/// A rate: a share of the usual one, or a word of SSML.
pub(super) fn rate(text: &str) -> Result<f32, String> {
    let text = text.trim();
    let rate = match text {
        "x-slow" => Some(0.5),
        "slow" => Some(0.75),
        "medium" | "default" => Some(1.0),
        "fast" => Some(1.25),
        "x-fast" => Some(1.5),
        text => text.strip_suffix('%').and_then(decimal).map(|percent| (percent / 100.0) as f32),
    };
    rate.filter(|rate| (MIN_RATE..=MAX_RATE).contains(rate)).ok_or_else(|| {
        let (least, most) = (MIN_RATE * 100.0, MAX_RATE * 100.0);
        let words = "x-slow, slow, medium, fast, x-fast";
        format!("{:?} is no rate; write {least}% to {most}% of the usual one, or {words}", cut(text))
    })
}

/// What a client sent, short enough for a message.
pub(super) fn cut(text: &str) -> String {
    const MOST: usize = 40;
    let mut start: String = text.chars().take(MOST).collect();
    if start.len() < text.len() {
        start.push('…');
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_or_milliseconds() {
        let ms = |text: &str| time(text).map(|time| time.as_millis());
        assert_eq!((ms("0.5s"), ms("500ms"), ms(" 2 s "), ms("0s")), (Some(500), Some(500), Some(2000), Some(0)));
        for wrong in ["", "s", "1", "-1s", "+1s", "1e3s", "infs", "nans", "1.2.3s", "1m", ".s", "9999999999999s"] {
            assert_eq!(ms(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn pauses_are_limited_one_by_one_and_together() {
        let mut limits = Limits::default();
        assert!(limits.pause("10001ms").unwrap_err().contains("a pause may have 10 s"));
        for _ in 0..6 {
            assert_eq!(limits.pause("10s"), Ok(MAX_PAUSE));
        }
        assert!(limits.pause("1ms").unwrap_err().contains("60 s together"));
    }

    #[test]
    fn rates_are_shares_and_words() {
        assert_eq!((rate("80%"), rate("slow"), rate("400%")), (Ok(0.8), Ok(0.75), Ok(4.0)));
        for wrong in ["24%", "401%", "+10%", "0.8", "", "%", "quick", "nan%"] {
            assert!(rate(wrong).unwrap_err().contains("25% to 400%"), "{wrong}");
        }
    }

    #[test]
    fn voices_are_counted_once_whatever_their_case() {
        let mut limits = Limits::default();
        for number in 0..MAX_VOICES {
            limits.voice(&format!("Voice {number}")).unwrap();
        }
        assert_eq!(limits.voice("voice 0"), Ok(()));
        assert!(limits.voice("another").unwrap_err().contains("8 voices"));
    }
}
