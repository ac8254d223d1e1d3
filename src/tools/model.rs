//! Which config and which checkpoint a command works with, and whether the two fit.

use super::EmbeddedFiles;
use clap::Args;
use omni_config::{self as config, CheckpointSource, Config, ConfigError, DeviceKind, Override, Problem};
use omni_engine::device::{DeviceChoice, NoDevice};
use omni_model::Checkpoint;
use omni_server::Aliases;
use std::path::{Path, PathBuf};

/// Where the model of a command comes from.
#[derive(Args, Clone, Debug, Default)]
pub struct ModelArgs {
    /// Config file; without one the embedded voice with default settings
    #[arg(long, value_name = "FILE", conflicts_with = "checkpoint")]
    pub config: Option<PathBuf>,
    /// Checkpoint folder in Hugging Face form, instead of the embedded voice
    #[arg(long, value_name = "DIR")]
    pub checkpoint: Option<PathBuf>,
    /// Override one key of the config, such as stages.talker.run_ahead=1
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Override>,
}

impl ModelArgs {
    /// The config that these arguments mean.
    pub fn resolve(&self) -> Result<Config, ConfigError> {
        let checkpoint =
            self.checkpoint.iter().map(|folder| Override::text("model.checkpoint", folder.to_string_lossy()));
        let overrides: Vec<_> = checkpoint.chain(self.set.iter().cloned()).collect();
        let mut config = read(self.config.as_deref(), &overrides)?;
        // A command that is not a server talks to a person, who needs to see errors and warnings only.
        if self.config.is_none() && self.set.is_empty() {
            "warn".clone_into(&mut config.telemetry.log);
        }
        Ok(config)
    }
}

/// Reads a config file, or the defaults if there is none.
pub fn read(path: Option<&Path>, overrides: &[Override]) -> Result<Config, ConfigError> {
    match path {
        Some(path) => config::load(path, overrides),
        None => config::parse("", Path::new(""), overrides),
    }
}

/// Adds the rules of a file with `[[faults]]`, if there is one; its seed wins.
///
/// # Errors
/// What is wrong in the file.
pub fn add_faults(config: &mut Config, file: Option<&Path>) -> Result<(), ConfigError> {
    let Some(path) = file else { return Ok(()) };
    let file = config::load_faults(path)?;
    config.faults.extend(file.rules);
    config.drill.seed = file.seed.unwrap_or(config.drill.seed);
    Ok(())
}

fn problem(key: &str, value: String, message: String) -> ConfigError {
    ConfigError::Problems(vec![Problem { line: None, key: key.to_owned(), value: Some(value), message }])
}

/// What the stages of a config would run on.
///
/// # Errors
/// One problem when the config insists on a GPU that cannot be used.
pub fn device(config: &Config) -> Result<DeviceChoice, ConfigError> {
    let asked = config.device.kind.map_or("auto", DeviceKind::as_str);
    let refused = |error: NoDevice| problem("device.kind", format!("{asked:?}"), error.to_string());
    DeviceChoice::resolve(&config.device).map_err(refused)
}

/// Opens the checkpoint of a config, headers only, and checks what the config says about it.
///
/// # Errors
/// One problem each for a checkpoint that cannot be opened and for keys that do not fit it or this machine.
pub fn open(config: &Config, embedded: Option<EmbeddedFiles>) -> Result<Checkpoint, ConfigError> {
    device(config)?;
    let opened = match (&config.model.checkpoint, embedded) {
        (CheckpointSource::Folder(folder), _) => {
            Checkpoint::open_as(folder, config.model.weights, config.model.tokenizer.as_deref())
        }
        (CheckpointSource::Embedded, Some(files)) => Checkpoint::embedded(files),
        (CheckpointSource::Embedded, None) => {
            let message = "this build carries no voice; give the path of a checkpoint folder, \
                           or build with the feature `embedded-voice`";
            return Err(problem("model.checkpoint", "\"embedded\"".to_owned(), message.to_owned()));
        }
    };
    let shown = match &config.model.checkpoint {
        CheckpointSource::Embedded => "\"embedded\"".to_owned(),
        CheckpointSource::Folder(folder) => format!("{:?}", folder.display().to_string()),
    };
    let checkpoint = opened.map_err(|error| problem("model.checkpoint", shown, error.to_string()))?;
    // A checkpoint without speakers speaks with uploaded voices, which are not looked at here.
    if let Some(voice) = &config.model.default_voice
        && !checkpoint.family().talker().speakers.is_empty()
        && checkpoint.family().talker().speaker(voice).is_err()
    {
        let known = checkpoint.family().talker().speaker_names().join(", ");
        return Err(problem("model.default_voice", format!("{voice:?}"), format!("must be one of: {known}")));
    }
    let unfit = |key: &str, message: String| {
        ConfigError::Problems(vec![Problem { line: None, key: key.to_owned(), value: None, message }])
    };
    let info = omni_engine::model_info(&checkpoint, config)
        .map_err(|error| unfit("model.default_voice", error.to_string()))?;
    let aliases = Aliases::of(&config.server.aliases, &info);
    aliases.check().map_err(|error| unfit(&error.key, error.message))?;
    Ok(checkpoint)
}
