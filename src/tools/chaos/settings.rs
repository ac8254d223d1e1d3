//! The settings that a drill changes in a config; it leaves every key that the user wrote.

use crate::exit::Usage;
use crate::model::read;
use anyhow::Context;
use clap::ValueEnum;
use omni_config::{Config, ConfigError, Override, Placement};
use std::path::Path;

/// Where the stages run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Where {
    /// Each in threads of this process.
    Thread,
    /// Each in a process of its own.
    Process,
    /// As the config says.
    AsConfig,
}

/// What a drill needs, unless the config says otherwise: the meltdown limit must not end it, the watchdog must notice a
/// hang while a listener still waits, no deadline may cut off a listener that waits for a killed stage, no conversation may
/// be refused because the machine is slow, and media that come again are encoded again.
const SET: [(&str, &str); 9] = [
    ("supervision.backoff", "\"1ms\""),
    ("supervision.max_backoff", "\"20ms\""),
    ("supervision.max_restarts", "1000"),
    ("supervision.meltdown_window", "\"1s\""),
    ("supervision.watchdog", "\"1s\""),
    ("limits.request_timeout", "\"1h\""),
    ("limits.first_audio_deadline", "\"1h\""),
    ("limits.admission", "\"places\""),
    ("media.max_cached_embeddings", "0"),
];

/// The config of a drill with so many listeners, and the keys that were set for it.
///
/// # Errors
/// What is wrong in the config, or a limit in it that refuses the listeners.
pub fn settle(
    file: Option<&Path>,
    overrides: &[Override],
    place: Where,
    listeners: usize,
) -> anyhow::Result<(Config, Vec<String>)> {
    let written = match file {
        None => toml::Table::new(),
        // What cannot be read or is no TOML is told below, with its line.
        Some(path) => std::fs::read_to_string(path).ok().and_then(|text| text.parse().ok()).unwrap_or_default(),
    };
    let is_written = |key: &str| {
        let mut keys = key.split('.');
        let first = keys.next().and_then(|key| written.get(key));
        let in_file = keys.fold(first, |value, key| value?.get(key)).is_some();
        in_file || overrides.iter().any(|given| given.key() == key)
    };
    let room = listeners.max(16).to_string();
    let set = SET.into_iter().chain([("limits.max_requests", room.as_str()), ("telemetry.log", "\"off\"")]);
    let set: Vec<String> =
        set.filter(|(key, _)| !is_written(key)).map(|(key, value)| format!("{key}={value}")).collect();
    let ours = set.iter().map(|text| text.parse::<Override>().map_err(anyhow::Error::msg).context("a drill's own key"));
    let all: Vec<Override> = ours.chain(overrides.iter().cloned().map(Ok)).collect::<anyhow::Result<_>>()?;
    let mut config = read(file, &all).map_err(|error: ConfigError| error)?;
    if config.limits.max_requests < listeners {
        let most = config.limits.max_requests;
        return Err(Usage(format!("--streams: the config's limits.max_requests lets in no more than {most}")).into());
    }
    let placement = match place {
        Where::Thread => Some(Placement::Thread),
        Where::Process => Some(Placement::Process),
        Where::AsConfig => None,
    };
    for stage in &mut config.stages {
        stage.placement = placement.unwrap_or(stage.placement);
    }
    Ok((config, set))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn drill(text: &str, overrides: &[&str], listeners: usize) -> anyhow::Result<(Config, Vec<String>)> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("voice.toml");
        std::fs::write(&file, text).unwrap();
        let overrides: Vec<Override> = overrides.iter().map(|text| text.parse().unwrap()).collect();
        settle(Some(&file), &overrides, Where::AsConfig, listeners)
    }

    #[test]
    fn a_drill_is_not_ended_by_limits_that_the_config_does_not_set() {
        let (config, set) = drill("", &[], 40).unwrap();
        assert_eq!(config.supervision.max_restarts, 1000);
        assert_eq!(config.supervision.watchdog, Duration::from_secs(1));
        assert_eq!(config.limits.max_requests, 40);
        assert_eq!(set.len(), 11, "{set:?}");
    }

    #[test]
    fn what_the_user_wrote_stays() {
        let (config, set) = drill("[supervision]\nwatchdog = \"7s\"\n", &["supervision.max_restarts=2"], 16).unwrap();
        assert_eq!(config.supervision.watchdog, Duration::from_secs(7));
        assert_eq!(config.supervision.max_restarts, 2);
        assert!(!set.iter().any(|key| key.contains("watchdog") || key.contains("max_restarts")), "{set:?}");
    }

    #[test]
    fn a_config_with_room_for_fewer_is_refused() {
        let error = drill("[limits]\nmax_requests = 4\n", &[], 5).unwrap_err().to_string();
        assert!(error.contains("no more than 4"), "{error}");
    }

    #[test]
    fn a_placement_that_is_asked_for_is_that_of_all_stages() {
        for (place, expected) in [(Where::Thread, Placement::Thread), (Where::Process, Placement::Process)] {
            let (config, _) = settle(None, &[], place, 1).unwrap();
            assert!(config.stages.iter().all(|stage| stage.placement == expected));
        }
    }
}
