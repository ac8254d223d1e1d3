//! `omni-actors check`: whether a config is valid, and what it means.

use super::EmbeddedFiles;
use anyhow::Context;
use clap::Args;
use omni_config::{
    CheckpointSource, Config, ConfigError, DeviceKind, LoadTime, Override, Placement, Problem, Replicas, WeightsKind,
    format_duration,
};
use omni_core::ids::StageName;
use omni_engine::cluster::{self, Role};
use omni_engine::device::DeviceChoice;
use omni_engine::placement;
use omni_model::forced_aligner::ForcedAligner;
use omni_model::hf::{Family, Variant};
use omni_model::{Checkpoint, LoadError, aligner};
use omni_server::{Aliases, check_aliases};
use omni_tools::model::{device, open, read};
use std::path::{Path, PathBuf};

/// Check a config and list everything that is wrong with it
///
/// Each error has the line, the key, its value and what is allowed. The checkpoint is opened too, but no weights are
/// loaded. Exit code 0 if `run` would start, or `node` with the config of a node, 2 if not.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  omni-actors check configs/example.toml
  omni-actors check my.toml --set server.listen=0.0.0.0:8080 --set server.allow_anonymous=true")]
pub struct CheckArgs {
    /// Config file
    config: PathBuf,
    /// Override one key, as for `run`
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<Override>,
}

/// Runs the command.
pub fn execute(args: &CheckArgs, embedded: Option<EmbeddedFiles>) -> anyhow::Result<()> {
    let place = args.config.display().to_string();
    let checked = read(Some(&args.config), &args.set).and_then(|config| {
        if config.models.is_empty() {
            return one(&config, embedded);
        }
        several(&config, embedded)
    });
    match checked {
        Ok(summary) => {
            omni_tools::outln!("{place}: ok\n{summary}");
            Ok(())
        }
        Err(error) => {
            for problem in error.problems() {
                omni_tools::outln!("{place}: {problem}");
            }
            let count = error.problems().len();
            match error {
                ConfigError::Io { .. } => Err(error.into()),
                ConfigError::Problems(_) => {
                    Err(omni_tools::exit::Usage(counted(count, "problem"))).with_context(|| place)
                }
            }
        }
    }
}

/// What one model means.
fn one(config: &Config, embedded: Option<EmbeddedFiles>) -> Result<String, ConfigError> {
    let checkpoint = open(config, embedded)?;
    let device = device(config)?;
    let stages = checkpoint.stages();
    let open = placed(config, stages, &device);
    let config = placement::settle(config, stages, device.kind);
    device.fit(&config, stages).map_err(misfit)?;
    let role = cluster::check(&config, stages).map_err(|error| misfit(error.to_string()))?;
    check_aligner(&config, &checkpoint)?;
    omni_server::check_tls(&config.server).map_err(|error| misfit(error.to_string()))?;
    let mut told = summary(&config, &checkpoint, &device, open);
    told.extend(in_cluster(&config, role).map(|role| format!("\n  cluster   {role}")));
    Ok(told)
}

/// What each of several models means. A checkpoint that is wanted later may come later.
fn several(config: &Config, embedded: Option<EmbeddedFiles>) -> Result<String, ConfigError> {
    let (mut told, mut problems, mut infos) = (Vec::new(), Vec::new(), Vec::new());
    for (i, entry) in config.models.iter().enumerate() {
        let mut own = entry.config.clone();
        own.server.aliases.voices.clear();
        let info = open(&own, embedded).map(|checkpoint| omni_engine::model_info(&checkpoint, &own));
        infos.extend(info.into_iter().flatten());
        let mut lines = vec![format!("[[models]] {}", own.model.name)];
        match (one(&own, embedded), entry.load) {
            (Ok(summary), _) => lines.push(summary),
            (Err(error), LoadTime::FirstUse) => {
                lines.extend(error.problems().iter().map(|problem| format!("  warning: {problem}")));
            }
            (Err(error), LoadTime::Start) => problems.extend(error.problems().iter().map(|problem| {
                let key = format!("models[{i}].{}", problem.key.strip_prefix("model.").unwrap_or(&problem.key));
                Problem { key, ..problem.clone() }
            })),
        }
        let load = match entry.load {
            LoadTime::Start => "at the start",
            LoadTime::FirstUse => "by its first request",
        };
        let unload = entry.unload_after.map(|after| format!(", unloaded after {} without one", format_duration(after)));
        lines.push(format!("  loaded    {load}{}", unload.unwrap_or_default()));
        told.push(lines.join("\n"));
    }
    if let Err(error) = check_aliases(&config.server.aliases, infos.iter()) {
        problems.push(Problem { line: None, key: error.key, value: None, message: error.message });
    }
    match problems.is_empty() {
        true => Ok(told.join("\n")),
        false => Err(ConfigError::Problems(problems)),
    }
}

/// Whether the aligner of the config can be used, as far as that is seen without its weights.
fn check_aligner(config: &Config, checkpoint: &Checkpoint) -> Result<(), ConfigError> {
    let wanted = config.aligner.checkpoint.as_ref().filter(|_| !aligner::exists(checkpoint));
    let Some(folder) = wanted else { return Ok(()) };
    let problem = |error: LoadError| {
        let key = "aligner.checkpoint".to_owned();
        ConfigError::Problems(vec![Problem { line: None, key, value: None, message: error.to_string() }])
    };
    ForcedAligner::check(folder).map(|_| ()).map_err(problem)
}

/// `1 node`, `2 nodes`.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Whose part a process of this config has in a cluster, if any.
fn in_cluster(config: &Config, role: Role) -> Option<String> {
    let cluster = &config.cluster;
    let part = match role {
        Role::Alone => return None,
        Role::Gateway => format!("a gateway, with at most {}", counted(cluster.max_nodes, "node")),
        Role::Node => {
            let stages: Vec<_> = cluster.stages.iter().map(|stage| stage.as_str()).collect();
            format!("a node, which runs {} for {} at a time", stages.join(", "), counted(cluster.gateways, "gateway"))
        }
    };
    let listens = cluster.listen.map(|address| format!("; listens at {address}")).unwrap_or_default();
    let joins = if cluster.join.is_empty() { String::new() } else { format!("; joins {}", cluster.join.join(", ")) };
    Some(format!("{part}{listens}{joins}"))
}

/// Where the times of words come from.
fn words(config: &Config, checkpoint: &Checkpoint) -> String {
    match &config.aligner.checkpoint {
        _ if aligner::exists(checkpoint) => "timed by the aligner beside the weights".to_owned(),
        Some(folder) => format!("timed by {}, on the CPU", folder.display()),
        None => "not timed: no aligner (aligner.checkpoint)".to_owned(),
    }
}

/// What is wrong with several keys together.
fn misfit(message: String) -> ConfigError {
    ConfigError::Problems(vec![Problem { line: None, key: String::new(), value: None, message }])
}

fn summary(config: &Config, checkpoint: &Checkpoint, device: &DeviceChoice, open: Option<String>) -> String {
    let listen = config.server.listen;
    let access = match config.server.keys.len() {
        0 => ", without a key".to_owned(),
        1 => ", with 1 key".to_owned(),
        keys => format!(", with {keys} keys"),
    };
    let reach = match listen.ip().is_loopback() {
        true if config.server.keys.is_empty() => "this machine only".to_owned(),
        true => format!("this machine only{access}"),
        false => format!("reachable from outside{access}"),
    };
    let source = match &config.model.checkpoint {
        CheckpointSource::Embedded => "embedded".to_owned(),
        CheckpointSource::Folder(folder) => folder.display().to_string(),
    };
    let family = checkpoint.family();
    let tls = if config.server.access.tls.is_some() { ", TLS" } else { "" };
    let admin = config.server.access.admin_listen.map_or(String::new(), |address| format!("; admin at {address}"));
    let wyoming = config.wyoming.listen.map_or(String::new(), |address| format!("; Wyoming at {address}"));
    let mut lines = vec![
        format!("listens   {listen} ({reach}{tls}){admin}{wyoming}"),
        format!("model     {} ({source}){}", config.model.name, weights(config)),
        format!("device    {} {}, {} ({})", device.kind.as_str(), device.index, device.dtype.as_str(), device.why),
        format!("voices    {}", voices(config, family)),
        format!("aliases   {}", aliases(config, checkpoint)),
        format!("words     {}", words(config, checkpoint)),
        format!(
            "limits    {} requests of at most {} characters and {}",
            config.limits.max_requests,
            config.limits.max_input_chars,
            format_duration(config.limits.request_timeout)
        ),
    ];
    lines.extend(media(config, checkpoint).map(|media| format!("media     {media}")));
    lines.extend(open.map(|open| format!("placement {open}")));
    for name in checkpoint.stages() {
        let stage = config.stage(*name);
        let ramp: Vec<String> = stage.chunk_ramp.iter().map(|frames| frames.0.to_string()).collect();
        let ramp = if ramp.is_empty() { String::new() } else { format!(", chunks of {} frames", ramp.join(", ")) };
        let placement = match stage.placement {
            Placement::Auto | Placement::Thread => "",
            Placement::Process => "a process of its own, ",
            Placement::Nodes => "on nodes that join, at most ",
        };
        let replicas = replicas(config, *name, device.kind);
        lines.push(format!(
            "{:<9} {placement}{replicas}batch {}, run-ahead {}, window {}{ramp}",
            name.as_str(),
            config.max_batch(*name, device.kind),
            config.run_ahead(*name, device.kind),
            stage.window
        ));
    }
    if !config.faults.is_empty() {
        lines.push(format!("faults    {} rules: this server will break on purpose", config.faults.len()));
    }
    lines.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

/// How many replicas of a stage there are, and where.
fn replicas(config: &Config, stage: StageName, device: DeviceKind) -> String {
    if config.stage(stage).placement == Placement::Nodes {
        return format!("{}, ", config.cluster.max_nodes);
    }
    match (&config.stage(stage).replicas, device) {
        (Replicas::Auto, DeviceKind::Cuda) => "a replica on each GPU, ".to_owned(),
        (Replicas::On(gpus), DeviceKind::Cuda) => {
            let gpus: Vec<String> = gpus.iter().map(usize::to_string).collect();
            format!("on GPU {}, ", gpus.join(" and "))
        }
        _ => match config.replicas(stage) {
            1 => String::new(),
            several => format!("{several} replicas, "),
        },
    }
}

/// What `placement = "auto"` means here, and why; stages with the same answer together.
fn placed(config: &Config, stages: &[StageName], device: &DeviceChoice) -> Option<String> {
    let mut answers: Vec<(String, Vec<&str>)> = Vec::new();
    for placed in placement::look(config, stages, device.kind) {
        let Some(why) = placed.why else { continue };
        let answer = format!("{} ({why})", placed.placement.as_str());
        match answers.iter_mut().find(|(known, _)| *known == answer) {
            Some((_, stages)) => stages.push(placed.stage.as_str()),
            None => answers.push((answer, vec![placed.stage.as_str()])),
        }
    }
    let told: Vec<_> = answers.iter().map(|(answer, stages)| format!("{}: {answer}", stages.join(", "))).collect();
    (!told.is_empty()).then(|| told.join("; "))
}

fn weights(config: &Config) -> String {
    match config.model.weights {
        WeightsKind::Stored => String::new(),
        WeightsKind::Random { seed } => format!(", random weights of seed {seed}: what it says is noise"),
    }
}

/// What a checkpoint with an encoder hears and sees, and what that takes; `None` for one without.
fn media(config: &Config, checkpoint: &Checkpoint) -> Option<String> {
    if !checkpoint.stages().contains(&StageName::Encoder) {
        return None;
    }
    let info = omni_engine::model_info(checkpoint, config).ok()?;
    let what = match (info.hears, info.sees) {
        (true, true) => "hears and sees",
        (true, false) => "hears; pictures are refused, there is no vision tower",
        (false, true) => "sees; sound is refused, there is no audio tower",
        (false, false) => return Some("refused: the checkpoint has no preprocessor_config.json".to_owned()),
    };
    let media = &config.media;
    let films = match &media.ffmpeg {
        Some(program) if is_there(program) => format!("films by {}", program.display()),
        Some(program) => format!("no films: {} is not there", program.display()),
        None => "no films (media.ffmpeg)".to_owned(),
    };
    let mib = |bytes: usize| bytes >> 20;
    Some(format!(
        "{what}; at most {} files, {} s, pictures seen at {:.1} megapixels; {films}; at most {} MiB decoded, {} MiB of embeddings, \
         {} MiB kept, and {} MiB of spectra",
        media.max_files,
        media.max_seconds,
        media.max_seen_pixels as f64 / 1e6,
        mib(media.max_memory),
        mib(media.max_embeddings),
        mib(media.max_cached_embeddings),
        mib(media.max_cached_spectra)
    ))
}

/// Whether there is such a program, by path or in the folders of `PATH`.
fn is_there(program: &Path) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    // A path with a folder in it is not looked for.
    program.is_file() || std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

/// The other names of the model and its voices.
fn aliases(config: &Config, checkpoint: &Checkpoint) -> String {
    // `open` has seen that there is one.
    let Ok(info) = omni_engine::model_info(checkpoint, config) else { return String::new() };
    let aliases = Aliases::of(&config.server.aliases, &info);
    let models: Vec<&str> = aliases.models(true).collect();
    let voices: Vec<String> =
        aliases.voices(true).into_iter().map(|(alias, voice)| format!("{alias} = {voice}")).collect();
    match (models.is_empty(), voices.is_empty()) {
        (true, true) => "none".to_owned(),
        (false, true) => format!("of the model: {}; of voices: none", models.join(", ")),
        (true, false) => format!("of voices: {}", voices.join(", ")),
        (false, false) => format!("of the model: {}; of voices: {}", models.join(", "), voices.join(", ")),
    }
}

fn voices(config: &Config, family: &Family) -> String {
    let talker = family.talker();
    let chosen = config.model.default_voice.as_deref();
    match family {
        Family::Tts(tts) if tts.variant == Variant::VoiceDesign => "described by each request (VoiceDesign)".into(),
        Family::Tts(tts) if tts.variant == Variant::Base => {
            let default = chosen.map_or(String::new(), |voice| format!("; default {voice}"));
            format!("cloned from recordings (Base){default}")
        }
        _ => {
            let default = chosen.unwrap_or(talker.default_speaker());
            format!("{}; default {default}", talker.speaker_names().join(", "))
        }
    }
}
