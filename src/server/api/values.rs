//! Values with a rule: numbers within a range, names out of a list. Each rule stands here once: a request is read by it
//! and the schema of the API tells it.

use super::fields::wrong_type;
use omni_audio::{AudioFormat, Law, MAX_LOUDNESS, MAX_SPEED, MIN_LOUDNESS, MIN_SPEED, SAMPLE_RATES};
use omni_engine::TaskType;
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde_json::{Number, Value};
use std::fmt;
use std::ops::RangeInclusive;

/// What a client sent, short enough for a message.
pub(crate) fn short(text: &str) -> String {
    const MOST: usize = 64;
    let mut start: String = text.chars().take(MOST).collect();
    if start.len() < text.len() {
        start.push('…');
    }
    start
}

/// Implements [`schemars::JsonSchema`] for a value that stands in the schema of each field instead of having one of its own.
macro_rules! schema {
    ($name:ident $(<$lifetime:lifetime>)?, $($schema:tt)*) => {
        impl schemars::JsonSchema for $name $(<$lifetime>)? {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ $($schema)* })
            }
        }
    };
}

pub(super) use schema;

/// A number within a range.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $range:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub(crate) struct $name(pub f32);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                float(deserializer, $range).map($name)
            }
        }

        schema!($name, "type": "number", "minimum": $range.start(), "maximum": $range.end());
    };
}

/// A whole number within a range, of which the value itself needs no more than `$inner`.
macro_rules! whole_number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $range:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct $name(pub $inner);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                let number = Whole::deserialize(deserializer)?.within($range).map_err(D::Error::custom)?;
                <$inner>::try_from(number).map($name).map_err(D::Error::custom)
            }
        }

        schema!($name, "type": "integer", "minimum": $range.start(), "maximum": $range.end());
    };
}

fn float<'de, D: Deserializer<'de>>(deserializer: D, allowed: RangeInclusive<f64>) -> Result<f32, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let number = value.as_f64().ok_or_else(|| wrong_type::<D::Error>(&value, "a number"))?;
    if allowed.contains(&number) {
        return Ok(number as f32);
    }
    let (from, to) = (allowed.start(), allowed.end());
    Err(D::Error::custom(format_args!("{number} is not between {from} and {to}")))
}

/// A whole number of any size; what is allowed depends on the config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Whole(Number);

impl Whole {
    /// The number, if it is allowed; otherwise what is.
    pub fn within(&self, allowed: RangeInclusive<i64>) -> Result<i64, String> {
        let within = self.0.as_i64().filter(|number| allowed.contains(number));
        within.ok_or_else(|| format!("{} is not between {} and {}", self.0, allowed.start(), allowed.end()))
    }
}

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Whole, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Number(number) if !number.is_f64() => Ok(Whole(number)),
            other => Err(wrong_type(&other, "a whole number")),
        }
    }
}

schema!(Whole, "type": "integer", "minimum": 1);

number!(/// How many times as fast.
    Speed, f64::from(MIN_SPEED)..=f64::from(MAX_SPEED));
number!(/// LUFS.
    Loudness, f64::from(MIN_LOUDNESS)..=f64::from(MAX_LOUDNESS));
number!(/// 0 is greedy.
    Temperature, 0.0..=2.0);
number!(/// A probability.
    Probability, 0.0..=1.0);
number!(/// A factor; 1 is off.
    RepetitionPenalty, 0.1..=10.0);
number!(/// A summand; 0 is off.
    Penalty, -2.0..=2.0);
whole_number!(/// How many tokens or frames.
    Count(u32), 1..=i64::from(u32::MAX));
whole_number!(/// How many frames; 0 is no wish, as for other servers.
    FirstFrames(u32), 0..=i64::from(u32::MAX));
whole_number!(/// How many tokens to keep; 0 and -1, which other servers say, keep all.
    TopK(i32), -1..=i64::from(i32::MAX));

whole_number!(/// A sample of an answer, from 0.
    StartSample(u64), 0..=MAX_POSITION);

/// The largest position in an answer: every number up to it is exact in the doubles of clients.
pub(crate) const MAX_POSITION: i64 = (1 << 53) - 1;

/// The smallest probability mass to keep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TopP(pub f32);

impl<'de> Deserialize<'de> for TopP {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TopP, D::Error> {
        match float(deserializer, 0.0..=1.0)? {
            0.0 => Err(D::Error::custom("0 would keep no token; for the most likely one set temperature to 0")),
            mass => Ok(TopP(mass)),
        }
    }
}

schema!(TopP, "type": "number", "exclusiveMinimum": 0, "maximum": 1);

/// Any whole number of 64 bits, signed or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed(pub u64);

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Seed, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let seed = value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned));
        seed.map(Seed).ok_or_else(|| wrong_type(&value, "a whole number of 64 bits"))
    }
}

schema!(Seed, "type": "integer", "minimum": i64::MIN, "maximum": u64::MAX);

/// The number of answers; OpenAI's clients may ask for more than one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OneAnswer;

impl<'de> Deserialize<'de> for OneAnswer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OneAnswer, D::Error> {
        match Whole::deserialize(deserializer)?.within(1..=128).map_err(D::Error::custom)? {
            1 => Ok(OneAnswer),
            _ => Err(D::Error::custom("only 1 answer per request is supported")),
        }
    }
}

schema!(OneAnswer, "type": "integer", "const": 1);

/// When the first sound has to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deadline {
    /// `"none"`: no one listens while it is made.
    None,
    Milliseconds(u64),
}

/// Longest deadline, in milliseconds: a day, in which anything is in time.
const LONGEST_DEADLINE: i64 = 24 * 3600 * 1000;

impl<'de> Deserialize<'de> for Deadline {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Deadline, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(word) if word == "none" => Ok(Deadline::None),
            Value::String(_) => Err(D::Error::custom("expected milliseconds, or \"none\"")),
            Value::Number(number) if !number.is_f64() => {
                let milliseconds = Whole(number).within(1..=LONGEST_DEADLINE).map_err(D::Error::custom)?;
                Ok(Deadline::Milliseconds(milliseconds.unsigned_abs()))
            }
            other => Err(wrong_type(&other, "a whole number")),
        }
    }
}

schema!(Deadline, "oneOf": [
    { "type": "integer", "minimum": 1, "maximum": LONGEST_DEADLINE },
    { "const": "none" }
]);

/// Visits a string and nothing else, so that the error of another type is serde's.
pub(super) struct Text<F>(pub F);

impl<'de, T, F: FnOnce(&str) -> Result<T, String>> Visitor<'de> for Text<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.0)(text).map_err(E::custom)
    }
}

/// The name of an audio format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FormatName(pub AudioFormat);

impl<'de> Deserialize<'de> for FormatName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FormatName, D::Error> {
        deserializer.deserialize_str(Text(|name: &str| AudioFormat::parse(&short(name)).map(FormatName)))
    }
}

schema!(FormatName, "type": "string", "enum": format_names());

fn format_names() -> Vec<&'static str> {
    let names = AudioFormat::built().map(AudioFormat::as_str);
    names.chain(AudioFormat::ALIASES.map(|(alias, _)| alias)).collect()
}

/// How the samples of a wav are coded; `None` is 16 bits, linear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Encoding(pub Option<Law>);

impl<'de> Deserialize<'de> for Encoding {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Encoding, D::Error> {
        deserializer.deserialize_str(Text(|name: &str| match name {
            "pcm16" => Ok(Encoding(None)),
            "mulaw" | "ulaw" => Ok(Encoding(Some(Law::Mu))),
            "alaw" => Ok(Encoding(Some(Law::A))),
            other => Err(format!("{:?} is unknown; ask for \"pcm16\", \"mulaw\" or \"alaw\"", short(other))),
        }))
    }
}

schema!(Encoding, "type": "string", "enum": ["pcm16", "mulaw", "ulaw", "alaw"]);

/// Samples per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SampleRate(pub u32);

impl<'de> Deserialize<'de> for SampleRate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SampleRate, D::Error> {
        let asked = Whole::deserialize(deserializer)?;
        let found = SAMPLE_RATES.into_iter().find(|rate| asked.0.as_u64() == Some(u64::from(*rate)));
        found.map(SampleRate).ok_or_else(|| {
            D::Error::custom(format_args!("{} is no rate that is served; ask for {}", asked.0, or_list(&SAMPLE_RATES)))
        })
    }
}

schema!(SampleRate, "type": "integer", "enum": SAMPLE_RATES);

/// Numbers in words: `1, 2 or 3`.
pub(crate) fn or_list(numbers: &[u32]) -> String {
    let words: Vec<String> = numbers.iter().map(u32::to_string).collect();
    match words.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{} or {last}", before.join(", ")),
        _ => words.concat(),
    }
}

/// How a stream of audio is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamFormat {
    /// Server-sent events.
    Sse,
    /// The bytes themselves.
    Audio,
}

impl<'de> Deserialize<'de> for StreamFormat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<StreamFormat, D::Error> {
        deserializer.deserialize_str(Text(|name: &str| match name {
            "sse" => Ok(StreamFormat::Sse),
            "audio" => Ok(StreamFormat::Audio),
            other => Err(format!("{:?} is unknown; ask for \"sse\" or \"audio\"", short(other))),
        }))
    }
}

schema!(StreamFormat, "type": "string", "enum": ["sse", "audio"]);

/// What a client takes a checkpoint of Qwen3-TTS for; an empty name is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskName(pub Option<TaskType>);

const TASKS: [TaskType; 3] = [TaskType::CustomVoice, TaskType::VoiceDesign, TaskType::Base];

impl<'de> Deserialize<'de> for TaskName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TaskName, D::Error> {
        deserializer.deserialize_str(Text(|name: &str| {
            let found = TASKS.into_iter().find(|task| task.as_str().eq_ignore_ascii_case(name));
            match found {
                None if !name.is_empty() => {
                    Err(format!("{:?} is unknown; choose CustomVoice, VoiceDesign or Base", short(name)))
                }
                found => Ok(TaskName(found)),
            }
        }))
    }
}

schema!(TaskName, "type": "string", "enum": TASKS.map(TaskType::as_str));

/// How finely the times of a text are told: `["word"]`, or an empty list for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Granularities {
    pub words: bool,
}

impl<'de> Deserialize<'de> for Granularities {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Granularities, D::Error> {
        let found = match Value::deserialize(deserializer)? {
            Value::Array(names) => names,
            other => return Err(wrong_type(&other, "an array")),
        };
        match found.iter().find(|name| name.as_str() != Some("word")) {
            Some(Value::String(other)) => {
                Err(D::Error::custom(format_args!("{:?} is unknown; ask for [\"word\"]", short(other))))
            }
            Some(other) => Err(wrong_type(other, "strings")),
            None if found.len() > 1 => Err(D::Error::custom("names \"word\" more than once")),
            None => Ok(Granularities { words: !found.is_empty() }),
        }
    }
}

schema!(Granularities, "type": "array", "items": { "const": "word" }, "maxItems": 1);

/// `"text"`, the only format of a text that there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TextOnly;

impl<'de> Deserialize<'de> for TextOnly {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TextOnly, D::Error> {
        deserializer.deserialize_str(Text(|name: &str| match name {
            "text" => Ok(TextOnly),
            _ => Err("only \"text\" is supported".to_owned()),
        }))
    }
}

schema!(TextOnly, "const": "text");

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read<'de, T: Deserialize<'de>>(value: &'de Value) -> Result<T, String> {
        T::deserialize(value).map_err(|error| error.to_string())
    }

    #[test]
    fn numbers_out_of_range_say_the_range() {
        assert_eq!(read::<Temperature>(&json!(3)), Err("3 is not between 0 and 2".to_owned()));
        assert_eq!(read::<Count>(&json!(0)), Err("0 is not between 1 and 4294967295".to_owned()));
        assert!(read::<Count>(&json!(u64::MAX)).is_err());
        assert_eq!(read::<TopK>(&json!(-1)), Ok(TopK(-1)));
        assert!(read::<TopP>(&json!(0)).unwrap_err().contains("temperature"));
    }

    #[test]
    fn seeds_take_all_64_bits() {
        assert_eq!(read(&json!(u64::MAX)), Ok(Seed(u64::MAX)));
        assert_eq!(read(&json!(-1)), Ok(Seed(u64::MAX)));
        assert!(read::<Seed>(&json!(1.5)).is_err());
        assert!(read::<Seed>(&json!("7")).is_err());
    }
}
