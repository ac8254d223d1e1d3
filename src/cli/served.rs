//! What `run` serves: one model, which is there from the start to the end, or those of `[[models]]`.

use omni_config::{Config, ConfigError, LoadTime, Problem};
use omni_core::ids::StageName;
use omni_engine::models::{Models, Opener};
use omni_engine::{Engine, ModelInfo, Service, StartError};
use omni_model::hf::Family;
use omni_model::weights::EmbeddedFiles;
use omni_server::{Model, check_aliases};
use omni_tools::model;
use std::sync::Arc;
use std::time::Duration;

/// See the module.
pub(super) enum Served {
    /// A model whose end is that of the server.
    One(Engine, Vec<String>),
    /// Models that come and go.
    Several(Models, Vec<Vec<String>>),
}

/// What is opened before the server listens.
pub(super) enum Opened {
    /// A checkpoint that can be served.
    One(Box<omni_model::Checkpoint>),
    /// Each is opened when it is loaded.
    Several,
}

impl Opened {
    /// Opens the checkpoint of a config for one model.
    ///
    /// # Errors
    /// As [`model::open`].
    pub fn new(config: &Config, embedded: Option<EmbeddedFiles>) -> Result<Opened, ConfigError> {
        if stays(config) {
            return Ok(Opened::One(Box::new(model::open(config, embedded)?)));
        }
        Ok(Opened::Several)
    }

    /// The family of the only model.
    pub fn family(&self) -> Option<&Family> {
        match self {
            Opened::One(checkpoint) => Some(checkpoint.family()),
            Opened::Several => None,
        }
    }
}

/// Whether there is one model, which stays.
fn stays(config: &Config) -> bool {
    match &config.models[..] {
        [] => true,
        [only] => only.load == LoadTime::Start && only.unload_after.is_none(),
        _ => false,
    }
}

/// Opens the checkpoint of one of several models. Aliases of voices are for one of them, not for each.
pub(super) fn opener(embedded: Option<EmbeddedFiles>) -> Opener {
    Arc::new(move |config| {
        let mut own = config.clone();
        own.server.aliases.voices.clear();
        model::open(&own, embedded).map_err(|error| error.to_string().replace('\n', "; "))
    })
}

impl Served {
    /// Begins to load what was opened.
    ///
    /// # Errors
    /// What can be seen without reading weights.
    pub async fn launch(opened: Opened, config: &Config, embedded: Option<EmbeddedFiles>) -> anyhow::Result<Served> {
        let mut aliases = config.models.iter().map(|entry| entry.aliases.clone());
        if let Opened::One(checkpoint) = opened {
            return Ok(Served::One(Engine::launch(&checkpoint, config).await?, aliases.next().unwrap_or_default()));
        }
        let models = Models::launch(config, opener(embedded)).await?;
        let services = models.services();
        // Nothing is known of a model whose checkpoint cannot be opened yet.
        let known = |info: &&ModelInfo| !info.voices.is_empty() || info.tts.is_some();
        let infos = services.iter().map(|service| service.info()).filter(known);
        check_aliases(&config.server.aliases, infos).map_err(|error| {
            let problem = Problem { line: None, key: error.key, value: None, message: error.message };
            ConfigError::Problems(vec![problem])
        })?;
        Ok(Served::Several(models, aliases.collect()))
    }

    /// For the server.
    pub fn models(&self) -> Vec<Model> {
        match self {
            Served::One(engine, aliases) => {
                vec![Model { service: Arc::new(engine.clone()) as Arc<dyn Service>, aliases: aliases.clone() }]
            }
            Served::Several(models, aliases) => {
                let named = models.services().into_iter().zip(aliases);
                named.map(|(service, aliases)| Model { service, aliases: aliases.clone() }).collect()
            }
        }
    }

    /// Resolves when requests can be served.
    ///
    /// # Errors
    /// The only model does not come up. One of several is tried again.
    pub async fn settled(&self) -> Result<(), StartError> {
        match self {
            Served::One(engine, _) => engine.settled().await,
            Served::Several(models, _) => {
                models.settled().await;
                omni_telemetry::set_ready(true);
                Ok(())
            }
        }
    }

    /// Resolves when the only model has given up a stage that served.
    pub async fn given_up(&self) -> (StageName, String) {
        match self {
            Served::One(engine, _) => engine.given_up().await,
            Served::Several(..) => std::future::pending().await,
        }
    }

    /// How long ago a supervisor took a message.
    pub fn unsupervised(&self) -> Duration {
        match self {
            Served::One(engine, _) => engine.unsupervised(),
            Served::Several(models, _) => models.unsupervised(),
        }
    }
}
