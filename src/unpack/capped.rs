//! A reader with a limit against decompression bombs.

use std::io::{self, ErrorKind, Read};

/// A reader that fails with [`ErrorKind::FileTooLarge`] at its limit, instead of ending.
#[derive(Debug)]
pub struct Capped<R> {
    inner: R,
    left: u64,
}

impl<R> Capped<R> {
    /// Reads at most `limit` bytes of `inner`.
    pub fn new(inner: R, limit: u64) -> Self {
        Self { inner, left: limit }
    }

    /// Returns the inner reader.
    pub fn into_inner(self) -> R {
        self.inner
    }
}

impl<R: Read> Read for Capped<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(count as u64).ok_or(ErrorKind::FileTooLarge)?;
        Ok(count)
    }
}
