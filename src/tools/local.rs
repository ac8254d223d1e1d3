//! An engine, or a whole server, inside this process: for `run`, `say` and `bench`.

use super::EmbeddedFiles;
use super::model::{self, ModelArgs};
use futures::future::BoxFuture;
use omni_config::{AdmissionMode, Config, LimitsConfig};
use omni_engine::{Engine, Service};
use omni_server::Server;
use omni_telemetry as telemetry;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Sets logging up and starts the engine of a config; returns when every stage can serve.
pub fn start_ready(
    config: Config,
    embedded: Option<EmbeddedFiles>,
) -> BoxFuture<'static, anyhow::Result<Arc<dyn Service>>> {
    Box::pin(async move {
        telemetry::init_logging(&config.telemetry.log, config.telemetry.log_format)?;
        let checkpoint = model::open(&config, embedded)?;
        Ok(Arc::new(Engine::start(&checkpoint, &config).await?) as Arc<dyn Service>)
    })
}

/// A server on a free loopback port of this process.
pub(crate) struct LocalServer {
    address: SocketAddr,
    model: String,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

impl LocalServer {
    /// Starts it, ready to serve. Without a config file it accepts `at_once` requests together, so that a measurement
    /// is not one of refusals; `None`: as the config says.
    pub async fn start(
        args: &ModelArgs,
        embedded: Option<EmbeddedFiles>,
        at_once: Option<usize>,
    ) -> anyhow::Result<LocalServer> {
        let mut config = args.resolve()?;
        config.server.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        if args.config.is_none() {
            if at_once.is_some() {
                config.limits.admission = AdmissionMode::Places;
            }
            config.limits.max_requests = config.limits.max_requests.max(at_once.unwrap_or(0));
            config.server.max_connections = config.server.max_connections.max(at_once.unwrap_or(0) + 8);
            config.server.realtime.max_sessions = config.server.realtime.max_sessions.max(at_once.unwrap_or(0));
        }
        let server = Server::bind(&config.server)?
            .with_references(&config.reference_audio)
            .with_media(&config.media)
            .with_telemetry(&config.telemetry);
        let (limits, model) = (config.limits.clone(), config.model.name.clone());
        let service = start_ready(config, embedded).await?;
        Ok(LocalServer::around(server, service, limits, model))
    }

    /// A server of an engine that runs already, open to this machine alone, without keys, for so many sessions; limits
    /// are those of the config.
    pub fn beside(engine: &Engine, config: &Config, sessions: usize) -> anyhow::Result<LocalServer> {
        let mut settings = Config::default().server;
        settings.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        settings.realtime.max_sessions = settings.realtime.max_sessions.max(sessions);
        settings.max_connections = settings.max_connections.max(sessions + 8);
        let server = Server::bind(&settings)?.with_media(&config.media);
        let service = Arc::new(engine.clone()) as Arc<dyn Service>;
        Ok(LocalServer::around(server, service, config.limits.clone(), config.model.name.clone()))
    }

    fn around(server: Server, service: Arc<dyn Service>, limits: LimitsConfig, model: String) -> LocalServer {
        let address = server.local_addr();
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            server.serve(service, &limits, stopped).await;
        });
        LocalServer { address, model, stop, serving }
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it serves.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Drains it.
    pub async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.serving.await;
    }
}
