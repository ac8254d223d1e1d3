//! What may change while the server runs: keys with their limits, names, origins and aliases, and the limits that are
//! looked at when a request comes. A request sees one state of it; the next one may see another.

use super::aliases::{AliasError, check_aliases};
use super::keys::{Keys, Registry};
use super::origin::Sites;
use omni_config::{AliasesConfig, Config, LimitsConfig, ServerConfig, TelemetryConfig};
use omni_engine::Service;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};

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
    /// What is served, once it is known: aliases have to fit one of it.
    models: OnceLock<Vec<Weak<dyn Service>>>,
    limits: RwLock<Limits>,
}

/// The limits on requests.
#[derive(Default)]
struct Limits {
    /// Those that hold, once something is served.
    now: Option<Arc<LimitsConfig>>,
    /// Those of the last config that was read while the server ran.
    asked: Option<LimitsConfig>,
    /// What is served. It may end before this does.
    services: Vec<Weak<dyn Service>>,
}

impl std::fmt::Debug for Limits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Limits").field("now", &self.now).field("asked", &self.asked).finish_non_exhaustive()
    }
}

impl Limits {
    /// Takes over what can be.
    fn settle(&mut self) {
        if let (Some(now), Some(asked)) = (&self.now, &self.asked) {
            let settled = Arc::new(now.taking_over(asked));
            for service in self.services.iter().filter_map(Weak::upgrade) {
                service.set_limits(&settled);
            }
            self.now = Some(settled);
        }
    }
}

impl Current {
    pub fn new(config: &ServerConfig, telemetry: &TelemetryConfig) -> Current {
        let mut registry = Registry::default();
        let rules = RwLock::new(Arc::new(Rules::new(&mut registry, config, telemetry)));
        Current { registry: Mutex::new(registry), rules, models: OnceLock::new(), limits: RwLock::default() }
    }

    pub fn get(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Says what is served, and with which limits it was started.
    pub fn serve(&self, services: &[Arc<dyn Service>], limits: &LimitsConfig) {
        let services: Vec<_> = services.iter().map(Arc::downgrade).collect();
        let _ = self.models.set(services.clone());
        let mut held = self.limits.write().unwrap_or_else(PoisonError::into_inner);
        (held.now, held.services) = (Some(Arc::new(limits.clone())), services);
        // A config may have been read again before the service was there.
        held.settle();
    }

    /// The limits on a request that comes now.
    pub fn limits(&self) -> Arc<LimitsConfig> {
        let held = self.limits.read().unwrap_or_else(PoisonError::into_inner);
        held.now.clone().unwrap_or_else(|| Arc::new(Config::default().limits))
    }

    /// Takes those limits of another config that may change, for all requests that are still to come.
    pub fn set_limits(&self, limits: &LimitsConfig) {
        let mut held = self.limits.write().unwrap_or_else(PoisonError::into_inner);
        held.asked = Some(limits.clone());
        held.settle();
    }

    /// Whether the aliases of another config fit a model that is served.
    pub fn check(&self, config: &ServerConfig) -> Result<(), AliasError> {
        let services: Vec<_> = self.models.get().into_iter().flatten().filter_map(Weak::upgrade).collect();
        check_aliases(&config.aliases, services.iter().map(|service| service.info()))
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
