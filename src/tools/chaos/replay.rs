//! The command line that runs a plan again. Pure.

use super::ChaosArgs;
use super::drill::Until;
use clap::ValueEnum;
use omni_config::format_duration;
use std::path::Path;

impl ChaosArgs {
    /// The command line that runs a plan with the load of this one.
    pub(super) fn replay(&self, plan: &Path, until: Until) -> String {
        let mut words = vec!["omni-actors".to_owned(), "chaos".to_owned()];
        words.extend(self.config.iter().map(|path| path.display().to_string()));
        let mut option = |name: &str, value: Option<String>| {
            words.extend(value.map(|value| [format!("--{name}"), value]).into_iter().flatten());
        };
        option("plan", Some(plan.display().to_string()));
        match until {
            Until::Requests(requests) => option("requests", Some(requests.to_string())),
            Until::Time(duration) => option("duration", Some(format_duration(duration))),
        }
        option("streams", Some(self.streams.to_string()));
        option("seed", Some(self.seed.to_string()));
        option("guilty", self.guilty.map(|guilty| guilty.to_string()));
        option("placement", self.placement.to_possible_value().map(|value| value.get_name().to_owned()));
        option("hang-after", Some(format_duration(self.hang_after)));
        option("texts", self.texts.as_ref().map(|path| path.display().to_string()));
        option("frames", self.frames.map(|frames| frames.to_string()));
        let kinds: Vec<String> = self.ask.iter().map(ToString::to_string).collect();
        option("ask", (!kinds.is_empty()).then(|| kinds.join(",")));
        option("voice", self.voice.clone());
        self.set.iter().for_each(|set| option("set", Some(set.to_string())));
        words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}
