//! What may change while the server runs: keys with their limits, names and origins. A request sees one state of it;
//! the next one may see another.

use super::keys::{Keys, Registry};
use super::origin::Sites;
use omni_config::{ServerConfig, TelemetryConfig};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// The rules of one config.
#[derive(Debug)]
pub(super) struct Rules {
    pub sites: Sites,
    pub keys: Keys,
    /// Whether each request has a line in the log.
    pub access_log: bool,
}

/// Those that hold now.
#[derive(Debug)]
pub(super) struct Current {
    registry: Mutex<Registry>,
    rules: RwLock<Arc<Rules>>,
}

impl Current {
    pub fn new(config: &ServerConfig, telemetry: &TelemetryConfig) -> Current {
        let mut registry = Registry::default();
        let rules = RwLock::new(Arc::new(Rules::new(&mut registry, config, telemetry)));
        Current { registry: Mutex::new(registry), rules }
    }

    pub fn get(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner))
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
        Rules { sites: Sites::new(config), keys, access_log: telemetry.access_log }
    }
}
