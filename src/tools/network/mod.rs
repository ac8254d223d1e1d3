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
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the ports that systems give to sockets which ask for any (Linux from 32768 on): none of those takes an address
/// between its choice and its use.
const PORTS: Range<u16> = 12_000..32_000;

/// An address of this machine at which nothing listens for UDP now. No two calls give the same one, and processes begin at
/// different ports.
///
/// # Errors
/// The system has none.
pub fn free_address() -> io::Result<SocketAddr> {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let count = u32::from(PORTS.end - PORTS.start);
    let first = std::process::id().wrapping_mul(97);
    for _ in PORTS {
        let place = first.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % count;
        match UdpSocket::bind((Ipv4Addr::LOCALHOST, PORTS.start + place as u16)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            bound => return bound?.local_addr(),
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_address_is_given_once_and_never_to_a_socket_that_asks_for_any() {
        let given: BTreeSet<_> = (0..64).map(|_| free_address().unwrap()).collect();
        assert_eq!(given.len(), 64);
        assert!(given.iter().all(|address| PORTS.contains(&address.port())));
        let next = free_address().unwrap();
        let _taken = UdpSocket::bind((Ipv4Addr::LOCALHOST, next.port() + 1)).ok();
        assert_ne!(free_address().unwrap().port(), next.port() + 1, "that one is taken");
    }
}
