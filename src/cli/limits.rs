//! What the system lets this process have, and whether that is enough for its config.

use omni_config::{Config, ConfigError, Problem};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors beside those of connections: the checkpoint's files, rings and sockets of stage processes, those kept
/// back for starting them, recordings and voices that are being read, connections that are being refused.
const OTHERS: u64 = 256;

/// Raises this process's own limit on open files to the most that it may have.
///
/// # Errors
/// One problem where the connections that the config allows need more.
pub fn open_files(config: &Config) -> Result<(), ConfigError> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // Refused only by sandboxes that filter the call; then what there is counts.
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    // `None` is no limit.
    let most = if raised.is_ok() { maximum } else { current };
    let needed = config.server.max_connections as u64 + OTHERS;
    match most {
        Some(most) if most < needed => Err(ConfigError::Problems(vec![Problem {
            line: None,
            key: "server.max_connections".to_owned(),
            value: Some(config.server.max_connections.to_string()),
            message: format!(
                "needs {needed} open files, and this process may have {most}: allow fewer connections, or raise the limit \
                 (`ulimit -n`, LimitNOFILE= in a unit of systemd, --ulimit nofile= for a container)"
            ),
        }])),
        _ => Ok(()),
    }
}
