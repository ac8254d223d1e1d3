//! `omni-actors run`: the server.

use super::give_up::asked_to_end;
use super::manager::Manager;
use super::reload::{Hangups, Watch};
use super::served::{Opened, Served};
use super::signals::{Upgrades, outlive_others};
use super::upgrade::{self, Named, Predecessor, Program};
use super::{limits, sockets};
use clap::Args;
use omni_config::{self as config, Config, Override, ServerConfig};
use omni_model::hf::{Family, Variant};
use omni_model::weights::EmbeddedFiles;
use omni_ops::give_large_blocks_back;
use omni_server::Server;
use omni_telemetry as telemetry;
use omni_tools::model;
use omni_tools::signals::Signals;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// Serve a model over HTTP and WebSocket
///
/// Speaks OpenAI's API (/v1/audio/speech, /v1/chat/completions), a WebSocket that takes text and gives speech at the
/// same time, and a page to try it at /. Ctrl-C or SIGTERM lets running streams finish within a grace time; a second
/// one stops at once. SIGHUP reads keys and limits of the config again. SIGUSR2 starts the binary anew, which takes over
/// while running streams finish here.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  omni-actors run                                      the embedded voice on 127.0.0.1:8080
  omni-actors run my.toml                              configs/example.toml explains every key
  omni-actors run configs/random-tts-1.7b.toml         a model's real sizes, random weights: for measuring
  omni-actors run --listen 127.0.0.1:0                 a free port; the first line on stdout tells which
  omni-actors run --set model.checkpoint=/models/voice
  omni-actors run --faults drill.toml                  break it on purpose")]
pub struct RunArgs {
    /// Config file; without one the embedded voice with default settings
    config: Option<PathBuf>,
    /// Address to listen on, instead of the config's
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// File with `[[faults]]` rules, in addition to the config's
    #[arg(long, value_name = "FILE")]
    faults: Option<PathBuf>,
    /// Override one key of the config, such as stages.talker.run_ahead=1
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<Override>,
}

impl RunArgs {
    /// The config file.
    pub(super) fn config(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// The config that these arguments mean now.
    pub(super) fn resolve(&self) -> Result<Config, config::ConfigError> {
        // The last override wins, and is checked with the others.
        let listen = self.listen.map(|listen| Override::text("server.listen", listen.to_string()));
        let overrides: Vec<_> = self.set.iter().cloned().chain(listen).collect();
        let mut config = model::read(self.config.as_deref(), &overrides)?;
        model::add_faults(&mut config, self.faults.as_deref())?;
        Ok(config)
    }
}

/// What keeps a supervisor from taking messages in order: it waits for a thread or a process that does not end.
const SUPERVISORS_WAIT: Duration = Duration::from_secs(30);

/// Runs the command until a signal, or until another process has taken over.
pub async fn execute(args: RunArgs, embedded: Option<EmbeddedFiles>) -> anyhow::Result<()> {
    let mut signals = Signals::catch()?;
    let hangups = Hangups::catch()?;
    let upgrades = Upgrades::catch()?;
    outlive_others()?;
    let program = Program::this()?;
    let predecessor = Predecessor::of_this_process()?;
    let (config, watch) = Watch::begin(args)?;
    limits::open_files(&config)?;
    give_large_blocks_back();
    telemetry::init_logging(&config.telemetry.log, config.telemetry.log_format)?;
    telemetry::process_started();
    let opened = Opened::new(&config, embedded)?;
    let server = sockets::open(&config, predecessor.as_ref())?;
    let server =
        server.with_references(&config.reference_audio).with_media(&config.media).with_telemetry(&config.telemetry);
    let address = server.local_addr();
    if predecessor.is_none() {
        greet(greeting(&config, opened.family(), &server));
    }
    if let Some(address) = server.admin_addr() {
        tracing::info!(%address, "health and metrics");
    }
    if let Some(address) = server.wyoming_addr() {
        tracing::info!(%address, "the Wyoming protocol");
    }
    let mut sockets = vec![(server.socket()?, upgrade::http(config.server.listen))];
    sockets.extend(server.wyoming_socket()?.zip(config.wyoming.listen.map(upgrade::wyoming)));
    let watching = tokio::spawn(watch.run(hangups, server.reloader()));
    let engine = Served::launch(opened, &config, embedded).await?;
    let manager = Manager::from_environment();
    let patience = config.supervision.watchdog / 2 + SUPERVISORS_WAIT;
    let telling = manager.keep(|| engine.unsupervised() < patience);

    let lost = OnceLock::new();
    let serving = async {
        if let Some(predecessor) = predecessor {
            tokio::select! {
                settled = engine.settled() => settled?,
                () = signals.next() => return Ok(()),
            }
            predecessor.relieve().await;
            tracing::info!(%address, "took over from the process before");
        }
        let came_up = async {
            match engine.settled().await {
                Ok(()) => manager.ready(),
                Err(error) => return error,
            }
            // Nothing more to say: the server ends this.
            std::future::pending().await
        };
        let succeeded = succeeded(upgrades, &program, &sockets, &config.server, &manager);
        let stopped = async {
            asked_to_end(signals, &engine, &lost).await;
            manager.stopping(config.server.drain_grace);
        };
        tokio::select! {
            error = came_up => Err(anyhow::Error::from(error)),
            () = server.serve_until(engine.models(), &config.limits, Box::pin(succeeded), Box::pin(stopped)) => Ok(()),
        }
    };
    let outcome = tokio::select! {
        outcome = serving => outcome,
        never = telling => match never {},
    };
    watching.abort();
    outcome?;
    lost.into_inner().map_or(Ok(()), |lost| Err(lost.into()))
}

/// Resolves when another process accepts in this one's place.
async fn succeeded(
    mut upgrades: Upgrades,
    program: &Program,
    sockets: &[Named],
    config: &ServerConfig,
    manager: &Manager,
) {
    loop {
        upgrades.next().await;
        tracing::info!("SIGUSR2: another process of this program is started");
        match program.succeed(sockets, config.upgrade_patience).await {
            Ok(successor) => {
                manager.replaced_by(successor.pid());
                successor.go().await;
                return;
            }
            Err(error) => tracing::error!(%error, "no upgrade; this process goes on"),
        }
    }
}

/// On a thread of its own: a stdout that is closed or not read costs the greeting and nothing else.
fn greet(text: String) {
    let say = move || _ = writeln!(std::io::stdout(), "{text}");
    let _ = std::thread::Builder::new().name("greeting".to_owned()).spawn(say);
}

fn greeting(config: &Config, family: Option<&Family>, server: &Server) -> String {
    // A wildcard address is no address that one can open.
    let shown = |address: SocketAddr| match address.ip().is_unspecified() {
        true => SocketAddr::new(std::net::Ipv4Addr::LOCALHOST.into(), address.port()),
        false => address,
    };
    let (scheme, wyoming) = (server.scheme(), server.wyoming_addr().map(shown));
    let wyoming = wyoming.map_or(String::new(), |address| format!("\n  in Home Assistant:    Wyoming at {address}"));
    let shown = shown(server.local_addr());
    // The field that a request needs besides the text.
    let voice = match family {
        Some(Family::Tts(tts)) if tts.variant == Variant::VoiceDesign => ", \"instructions\": \"a calm, warm voice\"",
        Some(Family::Tts(tts)) if tts.variant == Variant::Base && config.model.default_voice.is_none() => {
            ", \"voice\": \"one that you uploaded to /v1/audio/voices\""
        }
        _ => "",
    };
    let names: Vec<&str> = config.models.iter().map(|entry| entry.config.model.name.as_str()).collect();
    let names = if names.is_empty() { config.model.name.clone() } else { names.join(", ") };
    format!(
        "listening on {scheme}://{shown}, serving {names}
  try it in a browser:  {scheme}://{shown}/
  or in a shell:        curl {scheme}://{shown}/v1/audio/speech -H 'content-type: application/json' \\
                          -d '{{\"input\": \"The weather is lovely today.\"{voice}}}' -o hello.wav{wyoming}
  stop it:              Ctrl-C"
    )
}
