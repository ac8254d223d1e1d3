//! A network of this machine that can be broken, and certificates for it: what drills and tests of clusters need.
//!
//! Packets of UDP pass through a [`Relay`], each way in a state of its own: QUIC, which clusters speak, cannot tell it from
//! a network between two machines. [`Namespaces`] are a network of the kernel's own, where this process may make one.

mod authority;
mod namespaces;
mod relay;
mod way;

pub use authority::Authority;
pub use namespaces::{Host, Namespaces};
pub use relay::Relay;
pub use way::{Passage, Way};

use std::io;
use std::net::{SocketAddr, UdpSocket};

/// An address of this machine at which nothing listens for UDP now.
///
/// # Errors
/// The system has none.
pub fn free_address() -> io::Result<SocketAddr> {
    UdpSocket::bind("127.0.0.1:0")?.local_addr()
}
