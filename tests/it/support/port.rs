//! Ports of loopback for servers whose address must be known before their start, or that restart on the same port.

use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// The first port. Linux gives other ports to connections, and to servers that ask for any (32768 and above).
const FIRST: u32 = 11_000;
const COUNT: u32 = 20_000;

/// A port that no other test gets as long as this value lives, also while no server listens there.
///
/// A port that was free a moment ago may now be a connection, or the server of another test.
pub struct Port {
    number: u16,
    /// A name in the abstract namespace of sockets, which is unique across processes. The kernel frees the name with the
    /// process.
    _claim: UnixListener,
}

impl Port {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Processes begin at different numbers, so that they seldom try the same.
        let start = std::process::id().wrapping_mul(97);
        for _ in 0..COUNT {
            let next = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
            let number = u16::try_from(FIRST + next % COUNT).unwrap();
            let name = SocketAddr::from_abstract_name(format!("ensign-test-port-{number}")).unwrap();
            let Ok(claim) = UnixListener::bind_addr(&name) else { continue };
            // A server without a claim may listen there.
            if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Self { number, _claim: claim };
            }
        }
        panic!("no port is free");
    }

    pub fn number(&self) -> u16 {
        self.number
    }

    pub fn address(&self) -> std::net::SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}
