//! A client of the SSH agent: lists its keys, and requests signatures.
//!
//! The protocol is draft-miller-ssh-agent. A message has a length (4 bytes, big endian), a type and its content. The socket
//! belongs to the same user. Signing needs only two of the requests. Here keys and signatures are bytes; `trust` parses and
//! verifies them.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

const FAILURE: u8 = 5;
const REQUEST_IDENTITIES: u8 = 11;
const IDENTITIES_ANSWER: u8 = 12;
const SIGN_REQUEST: u8 = 13;
const SIGN_RESPONSE: u8 = 14;

/// The longest message of OpenSSH's agent, in bytes.
const MAX_MESSAGE: usize = 256 * 1024;
/// The longest wait for an answer: the agent may be asking its user (`ssh-add -c`).
const PATIENCE: Duration = Duration::from_secs(120);

/// A failed request to an agent.
#[derive(Debug, thiserror::Error)]
pub enum SshAgentError {
    /// The socket has no listener, or the listener went away.
    #[error("could not reach the ssh-agent at {}", path.display())]
    Io {
        /// The path of the socket.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The agent refused, or has no such key any more.
    #[error("the ssh-agent refused: the key is not there any more, the agent is locked, or a user denied it")]
    Refused,
    /// The answer violates the protocol.
    #[error("the ssh-agent violated its protocol: {0}")]
    Protocol(&'static str),
}

/// A key that an agent holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshIdentity {
    /// The public key in the form of RFC 4253: its algorithm, then the fields of the algorithm.
    pub blob: Vec<u8>,
    /// The comment, for the user.
    pub comment: String,
}

/// The agent behind a socket. Every request opens a connection of its own.
#[derive(Debug, Clone)]
pub struct SshAgent {
    socket: PathBuf,
}

impl SshAgent {
    /// Creates a client for this socket (`SSH_AUTH_SOCK`).
    pub fn at(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    /// The keys in the agent.
    ///
    /// # Errors
    /// When the agent can't be reached, or violates the protocol.
    pub fn identities(&self) -> Result<Vec<SshIdentity>, SshAgentError> {
        let answer = self.request(&[REQUEST_IDENTITIES])?;
        let mut rest = expect(&answer, IDENTITIES_ANSWER)?;
        let count = take_number(&mut rest)?;
        // Not `with_capacity`: the number comes from the agent and is not trusted.
        let mut found = Vec::new();
        for _ in 0..count {
            let blob = take_string(&mut rest)?.to_vec();
            found.push(SshIdentity { blob, comment: String::from_utf8_lossy(take_string(&mut rest)?).into_owned() });
        }
        Ok(found)
    }

    /// Requests a signature over `data` with the key of this blob. Returns the name of the signature format, and the signature.
    ///
    /// # Errors
    /// When the agent can't be reached, or refuses.
    pub fn sign(&self, blob: &[u8], data: &[u8]) -> Result<(String, Vec<u8>), SshAgentError> {
        let mut request = vec![SIGN_REQUEST];
        append_string(&mut request, blob);
        append_string(&mut request, data);
        // No flags: they select digests of RSA.
        request.extend_from_slice(&[0; 4]);
        let answer = self.request(&request)?;
        let mut rest = expect(&answer, SIGN_RESPONSE)?;
        let mut signature = take_string(&mut rest)?;
        let form = String::from_utf8_lossy(take_string(&mut signature)?).into_owned();
        Ok((form, take_string(&mut signature)?.to_vec()))
    }

    fn request(&self, request: &[u8]) -> Result<Vec<u8>, SshAgentError> {
        self.exchange(request).map_err(|source| SshAgentError::Io { path: self.socket.clone(), source })
    }

    fn exchange(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        let mut socket = UnixStream::connect(&self.socket)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        let mut message = Vec::with_capacity(request.len() + 4);
        append_string(&mut message, request);
        socket.write_all(&message)?;
        let mut length = [0; 4];
        socket.read_exact(&mut length)?;
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length == 0 || length > MAX_MESSAGE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it announced a message of {length} bytes")));
        }
        let mut answer = vec![0; length];
        socket.read_exact(&mut answer)?;
        Ok(answer)
    }
}

/// Returns the content of an answer of the expected type.
fn expect(answer: &[u8], wanted: u8) -> Result<&[u8], SshAgentError> {
    match answer.split_first() {
        Some((kind, rest)) if *kind == wanted => Ok(rest),
        Some((&FAILURE, _)) => Err(SshAgentError::Refused),
        _ => Err(SshAgentError::Protocol("unexpected message type")),
    }
}

/// Takes a number of 4 bytes from the front.
fn take_number(rest: &mut &[u8]) -> Result<u32, SshAgentError> {
    let (number, tail) = rest.split_first_chunk::<4>().ok_or(SshAgentError::Protocol("message too short"))?;
    *rest = tail;
    Ok(u32::from_be_bytes(*number))
}

/// Takes bytes with a length prefix from the front.
fn take_string<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], SshAgentError> {
    let length = usize::try_from(take_number(rest)?).unwrap_or(usize::MAX);
    let (bytes, tail) = rest.split_at_checked(length).ok_or(SshAgentError::Protocol("message too short"))?;
    *rest = tail;
    Ok(bytes)
}

/// Appends bytes with a length prefix.
fn append_string(message: &mut Vec<u8>, bytes: &[u8]) {
    // The longest are envelopes and keys: some 64 KiB at most.
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    message.extend_from_slice(&length.to_be_bytes());
    message.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Starts an agent that answers with these bytes.
    fn answered(answer: Vec<u8>) -> (SshAgent, std::thread::JoinHandle<Vec<u8>>, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let heard = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut length = [0; 4];
            socket.read_exact(&mut length).unwrap();
            let mut request = vec![0; u32::from_be_bytes(length) as usize];
            socket.read_exact(&mut request).unwrap();
            socket.write_all(&answer).unwrap();
            request
        });
        (SshAgent::at(&path), heard, dir)
    }

    fn message(parts: &[&[u8]]) -> Vec<u8> {
        let mut whole = Vec::new();
        append_string(&mut whole, &parts.concat());
        whole
    }

    #[test]
    fn broken_answers_are_errors() {
        for (answer, wanted) in [
            (message(&[&[IDENTITIES_ANSWER], &[0, 0, 0, 0]]), Ok(0)),
            (message(&[&[FAILURE]]), Err("refused")),
            (message(&[&[SIGN_RESPONSE]]), Err("unexpected message type")),
            (message(&[&[IDENTITIES_ANSWER], &[0, 0]]), Err("message too short")),
            (message(&[&[IDENTITIES_ANSWER], &[0xff; 4]]), Err("message too short")),
            (message(&[&[IDENTITIES_ANSWER], &[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 1]]), Err("message too short")),
            (vec![0xff; 8], Err("4294967295 bytes")),
            (vec![0, 0, 0, 9, 12], Err("could not reach the ssh-agent")),
            (vec![], Err("could not reach the ssh-agent")),
        ] {
            let (agent, heard, _dir) = answered(answer.clone());
            let found = agent.identities().map(|all| all.len()).map_err(|error| crate::diag::error_chain(&error));
            match (found, wanted) {
                (Ok(found), Ok(wanted)) => assert_eq!(found, wanted),
                (Err(found), Err(wanted)) => assert!(found.contains(wanted), "{answer:?}: {found}"),
                (found, _) => panic!("{answer:?}: {found:?}"),
            }
            assert_eq!(heard.join().unwrap(), [REQUEST_IDENTITIES]);
        }
        assert!(SshAgent::at(Path::new("/nonesuch")).identities().is_err());
    }
}
