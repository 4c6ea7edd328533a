//! Ports of loopback for servers whose address must be known before they are there, or that come back to where they were.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the ports that Linux gives to connections, and to whoever asks for any (32768 and above).
const FIRST: u32 = 11_000;
const COUNT: u32 = 20_000;

/// A port that nobody else gets as long as this value lives, also while nobody listens there.
///
/// A port that was free a moment ago may be somebody's connection by now, or another test's server.
pub struct Port {
    number: u16,
    /// Locked; other processes are other tests.
    _claim: File,
}

impl Port {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let claims = std::env::temp_dir().join(format!("ensign-test-ports-{}", nix::unistd::geteuid()));
        std::fs::create_dir_all(&claims).unwrap();
        // Processes begin at different places, so that they seldom try the same.
        let start = std::process::id().wrapping_mul(97);
        for _ in 0..COUNT {
            let next = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
            let number = u16::try_from(FIRST + next % COUNT).unwrap();
            let claim = File::options().create(true).append(true).open(claims.join(number.to_string())).unwrap();
            // Somebody who claims nothing may listen there.
            if claim.try_lock().is_ok() && TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Self { number, _claim: claim };
            }
        }
        panic!("no port is free");
    }

    pub fn number(&self) -> u16 {
        self.number
    }

    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}
