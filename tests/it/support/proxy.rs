//! A bad network: a TCP proxy that stalls, delays, trickles and cuts. It changes and duplicates nothing.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// The handling of bytes in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Direction {
    /// Holds the bytes back; the connection seems open.
    pub stalled: bool,
    /// The delay of each piece.
    pub delay: Duration,
    /// The largest size of a piece; no limit when 0.
    pub piece: usize,
}

#[derive(Default)]
struct ProxyState {
    /// From the client to the server.
    up: Direction,
    /// From the server to the client.
    down: Direction,
    connections: Vec<TcpStream>,
}

/// A proxy that serves as long as the process lives.
pub struct Proxy {
    at: SocketAddr,
    weather: Arc<Mutex<ProxyState>>,
}

impl Proxy {
    /// A proxy before the server on this port of this machine.
    pub fn new(server: u16) -> Self {
        Self::at(Ipv4Addr::LOCALHOST, server)
    }

    /// The same, for clients that reach this machine under this address.
    pub fn at(address: Ipv4Addr, server: u16) -> Self {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let weather: Arc<Mutex<ProxyState>> = Arc::default();
        let shared = Arc::clone(&weather);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // The server may be down.
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)) else { continue };
                let copies = [&client, &server].map(|stream| stream.try_clone().unwrap());
                for stream in [&client, &server] {
                    stream.set_nodelay(true).unwrap();
                }
                shared.lock().unwrap().connections.extend([&client, &server].map(|stream| stream.try_clone().unwrap()));
                let [client_too, server_too] = copies;
                let (up, down) = (Arc::clone(&shared), Arc::clone(&shared));
                thread::spawn(move || carry(client, server, || up.lock().unwrap().up));
                thread::spawn(move || carry(server_too, client_too, || down.lock().unwrap().down));
            }
        });
        Self { at, weather }
    }

    /// The URL of the server through the proxy.
    pub fn url(&self) -> String {
        format!("nats://{}", self.at)
    }

    /// Sets both directions from now on.
    pub fn set(&self, up: Direction, down: Direction) {
        let mut weather = self.weather.lock().unwrap();
        (weather.up, weather.down) = (up, down);
    }

    /// Ends every connection.
    pub fn cut(&self) {
        for connection in self.weather.lock().unwrap().connections.drain(..) {
            // The connection may have ended by itself.
            let _ended = connection.shutdown(Shutdown::Both);
        }
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, way: impl Fn() -> Direction) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            let now = way();
            if now.stalled {
                thread::sleep(Duration::from_millis(10));
                continue;
            }
            thread::sleep(now.delay);
            let piece = if now.piece == 0 { rest.len() } else { now.piece.min(rest.len()) };
            if to.write_all(&rest[..piece]).is_err() {
                break;
            }
            rest = &rest[piece..];
        }
    }
    for stream in [from, to] {
        let _ended = stream.shutdown(Shutdown::Both);
    }
}
