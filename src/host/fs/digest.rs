//! Digests of contents.

use std::fs::File;
use std::io::{self, ErrorKind, Read};

use sha2::{Digest, Sha256};

/// SHA-256 of a file of `size` bytes, in lower-case hex.
pub(in crate::host) fn digest_open_file(file: &mut File, size: u64) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; usize::try_from(size).unwrap_or(usize::MAX).clamp(512, 1 << 16)];
    let mut seen = 0;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                hasher.update(buffer.get(..count).unwrap_or_default());
                seen += count as u64;
                // The kernel reported the size, so reading up to the end of the file would cost another call. A size of 0 tells
                // nothing (as in /proc).
                if seen == size {
                    break;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(hex(&hasher.finalize()))
}

/// Bytes as lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| *DIGITS.get(usize::from(nibble)).unwrap_or(&b'0');
    let mut text = vec![0; 2 * bytes.len()];
    for (pair, byte) in text.chunks_exact_mut(2).zip(bytes) {
        pair.copy_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
    }
    String::from_utf8(text).unwrap_or_default()
}

/// SHA-256 of the rest of an open file, in lower-case hex.
///
/// # Errors
/// When the file can't be read.
pub fn sha256_of(file: &mut File) -> io::Result<String> {
    let size = file.metadata()?.len();
    digest_open_file(file, size)
}

/// SHA-256 of some bytes, in lower-case hex.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}
