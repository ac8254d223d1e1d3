//! What may change while the server runs: keys with their limits, names, origins and aliases. A request sees one state of it;
//! the next one may see another.

use super::aliases::{AliasError, Aliases};
use super::keys::{Keys, Registry};
use super::origin::Sites;
use omni_config::{AliasesConfig, ServerConfig, TelemetryConfig};
use omni_engine::ModelInfo;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

/// The rules of one config.
#[derive(Debug)]
pub(super) struct Rules {
    pub sites: Sites,
    pub keys: Keys,
    /// Whether each request has a line in the log.
    pub access_log: bool,
    /// Whether clients without a key may list models and voices.
    pub open_lists: bool,
    /// Other names of the model and its voices.
    pub aliases: AliasesConfig,
}

/// Those that hold now.
#[derive(Debug)]
pub(super) struct Current {
    registry: Mutex<Registry>,
    rules: RwLock<Arc<Rules>>,
    /// What is served, once it is known: aliases have to fit it.
    model: OnceLock<ModelInfo>,
}

impl Current {
    pub fn new(config: &ServerConfig, telemetry: &TelemetryConfig) -> Current {
        let mut registry = Registry::default();
        let rules = RwLock::new(Arc::new(Rules::new(&mut registry, config, telemetry)));
        Current { registry: Mutex::new(registry), rules, model: OnceLock::new() }
    }

    pub fn get(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Says what is served.
    pub fn serve(&self, model: &ModelInfo) {
        let _ = self.model.set(model.clone());
    }

    /// Whether the aliases of another config fit what is served.
    pub fn check(&self, config: &ServerConfig) -> Result<(), AliasError> {
        self.model.get().map_or(Ok(()), |model| Aliases::of(&config.aliases, model).check())
    }

    /// Takes another config for all requests that are still to come.
    pub fn set(&self, config: &ServerConfig, telemetry: &TelemetryConfig) {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let rules = Arc::new(Rules::new(&mut registry, config, telemetry));
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = rules;
    }
}

impl Rules {
    fn new(registry: &mut Registry, config: &ServerConfig, telemetry: &TelemetryConfig) -> Rules {
        let keys = registry.configure(&config.keys);
        Rules {
            sites: Sites::new(config),
            keys,
            access_log: telemetry.access_log,
            open_lists: config.access.open_lists,
            aliases: config.aliases.clone(),
        }
    }
}
