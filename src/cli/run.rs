//! `omni-actors run`: the server.

use super::reload::{Hangups, Watch};
use clap::Args;
use omni_config::{self as config, Config, Override};
use omni_engine::{Engine, Service};
use omni_model::hf::{Family, Variant};
use omni_model::weights::EmbeddedFiles;
use omni_ops::give_large_blocks_back;
use omni_server::Server;
use omni_telemetry as telemetry;
use omni_tools::model;
use omni_tools::signals::Signals;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Serve a model over HTTP and WebSocket
///
/// Speaks OpenAI's API (/v1/audio/speech, /v1/chat/completions), a WebSocket that takes text and gives speech at the
/// same time, and a page to try it at /. Ctrl-C or SIGTERM lets running streams finish within a grace time; a second
/// one stops at once.
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
        if let Some(path) = &self.faults {
            let file = config::load_faults(path)?;
            config.faults.extend(file.rules);
            config.drill.seed = file.seed.unwrap_or(config.drill.seed);
        }
        Ok(config)
    }
}

/// Runs the command until a signal.
pub async fn execute(args: RunArgs, embedded: Option<EmbeddedFiles>) -> anyhow::Result<()> {
    let signals = Signals::catch()?;
    let hangups = Hangups::catch()?;
    let config = args.resolve()?;
    give_large_blocks_back();
    telemetry::init_logging(&config.telemetry.log, config.telemetry.log_format)?;
    telemetry::process_started();
    let checkpoint = model::open(&config, embedded)?;
    let server =
        Server::bind(&config.server)?.with_references(&config.reference_audio).with_telemetry(&config.telemetry);
    println!("{}", greeting(&config, checkpoint.family(), server.scheme(), server.local_addr()));
    if let Some(address) = server.admin_addr() {
        tracing::info!(%address, "health and metrics");
    }
    let watching = tokio::spawn(Watch::new(args, &config).run(hangups, server.reloader()));
    let limits = config.limits.clone();
    let engine = Engine::launch(&checkpoint, &config).await?;
    let service: Arc<dyn Service> = Arc::new(engine.clone());
    let came_up = async {
        match engine.settled().await {
            // Nothing more to say: the server ends this.
            Ok(()) => std::future::pending().await,
            Err(error) => error,
        }
    };
    let outcome = tokio::select! {
        error = came_up => Err(error.into()),
        () = server.serve(service, &limits, signals.first_asks_second_ends()) => Ok(()),
    };
    watching.abort();
    outcome
}

fn greeting(config: &Config, family: &Family, scheme: &str, address: SocketAddr) -> String {
    // A wildcard address is no address that one can open.
    let shown = if address.ip().is_unspecified() {
        SocketAddr::new(std::net::Ipv4Addr::LOCALHOST.into(), address.port())
    } else {
        address
    };
    // The field that a request needs besides the text.
    let voice = match family {
        Family::Tts(tts) if tts.variant == Variant::VoiceDesign => ", \"instructions\": \"a calm, warm voice\"",
        Family::Tts(tts) if tts.variant == Variant::Base && config.model.default_voice.is_none() => {
            ", \"voice\": \"one that you uploaded to /v1/audio/voices\""
        }
        _ => "",
    };
    format!(
        "listening on {scheme}://{shown}, serving {}
  try it in a browser:  {scheme}://{shown}/
  or in a shell:        curl {scheme}://{shown}/v1/audio/speech -H 'content-type: application/json' \\
                          -d '{{\"input\": \"The weather is lovely today.\"{voice}}}' -o hello.wav
  stop it:              Ctrl-C",
        config.model.name
    )
}
