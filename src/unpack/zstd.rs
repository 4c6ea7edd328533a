//! zstd (RFC 8878): reads frame after frame, skips skippable frames, and verifies checksums.

use std::io::{self, BufRead, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// The content of all frames.
pub(super) struct Frames<R> {
    packed: R,
    decoder: FrameDecoder,
    within: bool,
}

impl<R: BufRead> Frames<R> {
    /// Reads frames whose windows have at most `window` bytes.
    pub(super) fn new(packed: R, window: u64) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(window);
        Self { packed, decoder, within: false }
    }

    /// Goes to the next frame with content; false at the end.
    fn next(&mut self) -> io::Result<bool> {
        while !self.packed.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.packed) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let length = u64::from(length);
                    let skipped = io::copy(&mut self.packed.by_ref().take(length), &mut io::sink())?;
                    if skipped != length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }

    fn check(&self) -> io::Result<()> {
        match (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum()) {
            (Some(written), Some(found)) if written != found => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "the checksum of a zstd frame is wrong"))
            }
            _ => Ok(()),
        }
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.within && self.decoder.can_collect() > 0 {
                return self.decoder.read(buffer);
            }
            if self.within && self.decoder.is_finished() {
                self.check()?;
                self.within = false;
            }
            if !self.within {
                self.within = self.next()?;
                if !self.within {
                    return Ok(0);
                }
            }
            if !self.decoder.is_finished() {
                self.decoder.decode_blocks(&mut self.packed, BlockDecodingStrategy::UptoBlocks(1)).map_err(io::Error::other)?;
            }
        }
    }
}
