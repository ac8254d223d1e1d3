//! The listening sockets of `run`: from the process before it, from the service manager, or new ones.

use super::upgrade::{self, Predecessor};
use omni_config::Config;
use omni_engine::process;
use omni_server::Server;
use std::net::TcpListener;

/// The first descriptor that a service manager hands over.
const FIRST: i32 = 3;

/// A server on its sockets. A socket of the service manager wins over `server.listen`, whose address then is that of
/// the socket.
pub(super) fn open(config: &Config, predecessor: Option<&Predecessor>) -> anyhow::Result<Server> {
    let inherited = |name: &str| match predecessor {
        Some(predecessor) => predecessor.socket(name),
        None => Ok(None),
    };
    let server = match (inherited(&upgrade::http(config.server.listen))?, from_manager()?) {
        (Some(socket), _) | (None, Some(socket)) => Server::on(socket, &config.server)?,
        (None, None) => Server::bind(&config.server)?,
    };
    let wyoming = config.wyoming.listen.map(|address| inherited(&upgrade::wyoming(address))).transpose()?;
    Ok(server.with_wyoming(&config.wyoming, wyoming.flatten())?)
}

/// The socket of a `.socket` unit, by systemd's protocol: `$LISTEN_FDS` of them from 3 on, for process `$LISTEN_PID`.
fn from_manager() -> anyhow::Result<Option<TcpListener>> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    let (Some(pid), Some(count)) = (number("LISTEN_PID"), number("LISTEN_FDS")) else { return Ok(None) };
    if pid != std::process::id() || count == 0 {
        return Ok(None);
    }
    if count > 1 {
        tracing::warn!(count, "the service manager handed over several sockets; the first is used");
    }
    Ok(Some(TcpListener::from(process::inherited(FIRST)?)))
}
