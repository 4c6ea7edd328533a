//! A socket in a directory that leads to a TCP port: the way from a node, which has no network, to a server of the test.

use std::io::copy;
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Accepts connections at the path `socket` until the test ends, and joins each with one to the server at `address`.
pub fn relay(socket: &Path, address: String) {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for inner in listener.incoming().map_while(Result::ok) {
            // A server that is down refuses: the node sees a closed connection.
            let Ok(outer) = TcpStream::connect(&address) else { continue };
            join(&inner, &outer);
        }
    });
}

fn join(inner: &UnixStream, outer: &TcpStream) {
    let (mut from_inner, mut to_inner) = (inner.try_clone().unwrap(), inner.try_clone().unwrap());
    let (mut from_outer, mut to_outer) = (outer.try_clone().unwrap(), outer.try_clone().unwrap());
    std::thread::spawn(move || {
        let _ended = copy(&mut from_inner, &mut to_outer);
        let _closed = to_outer.shutdown(Shutdown::Both);
    });
    std::thread::spawn(move || {
        let _ended = copy(&mut from_outer, &mut to_inner);
        let _closed = to_inner.shutdown(Shutdown::Both);
    });
}
