//! Sprig: encodings and digests.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use sha2::{Digest, Sha256, Sha512};

use super::arguments::{as_text, one_argument};
use super::function::{GoFunction, function};
use crate::template::files::go::value::GoValue;

pub(super) static TABLE: &[GoFunction] = &[
    function("b64enc", 1, 1, |c, args| Ok(GoValue::text(STANDARD.encode(as_text(c, one_argument(args)?)?.as_bytes())))),
    function("b64dec", 1, 1, |c, args| {
        let bytes =
            STANDARD.decode(as_text(c, one_argument(args)?)?.as_bytes()).map_err(|error| format!("not base64: {error}"))?;
        String::from_utf8(bytes).map(GoValue::text).map_err(|_| "the decoded bytes are not UTF-8 text".to_owned())
    }),
    function("b32enc", 1, 1, |c, args| Ok(GoValue::text(base32(as_text(c, one_argument(args)?)?.as_bytes())))),
    function("b32dec", 1, 1, |c, args| {
        let bytes = from_base32(&as_text(c, one_argument(args)?)?).ok_or("not base32")?;
        String::from_utf8(bytes).map(GoValue::text).map_err(|_| "the decoded bytes are not UTF-8 text".to_owned())
    }),
    function("adler32sum", 1, 1, |c, args| Ok(GoValue::text(adler32(as_text(c, one_argument(args)?)?.as_bytes()).to_string()))),
    // SHA-1 gives no protection: it only compares with digests that others have made.
    function("sha1sum", 1, 1, |c, args| {
        Ok(hex(digest(&SHA1_FOR_LEGACY_USE_ONLY, as_text(c, one_argument(args)?)?.as_bytes()).as_ref()))
    }),
    function("sha256sum", 1, 1, |c, args| Ok(hex(&Sha256::digest(as_text(c, one_argument(args)?)?.as_bytes())))),
    function("sha512sum", 1, 1, |c, args| Ok(hex(&Sha512::digest(as_text(c, one_argument(args)?)?.as_bytes())))),
];

/// RFC 4648, section 6.
const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

fn base32(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.chunks(5) {
        let bits = (0..5).fold(0_u64, |bits, at| bits << 8 | u64::from(chunk.get(at).copied().unwrap_or(0)));
        let letters = (chunk.len() * 8).div_ceil(5);
        for at in 0..8 {
            let index = usize::try_from(bits >> (35 - 5 * at) & 31).unwrap_or(0);
            out.push(if at < letters { char::from(BASE32.get(index).copied().unwrap_or(b'=')) } else { '=' });
        }
    }
    out
}

fn from_base32(text: &str) -> Option<Vec<u8>> {
    let letters = text.trim_end_matches('=');
    if !text.len().is_multiple_of(8) || matches!(letters.len() % 8, 1 | 3 | 6) || text.len() - letters.len() > 6 {
        return None;
    }
    let mut out = Vec::new();
    for chunk in letters.as_bytes().chunks(8) {
        let mut bits = 0_u64;
        for at in 0..8 {
            let value = match chunk.get(at) {
                Some(letter) => BASE32.iter().position(|known| known == letter)?,
                None => 0,
            };
            bits = bits << 5 | u64::try_from(value).ok()?;
        }
        out.extend(bits.to_be_bytes().into_iter().skip(3).take(chunk.len() * 5 / 8));
    }
    Some(out)
}

/// RFC 1950, section 8.2.
fn adler32(bytes: &[u8]) -> u32 {
    let (one, two) = bytes.iter().fold((1_u32, 0_u32), |(one, two), byte| {
        let one = (one + u32::from(*byte)) % 65521;
        (one, (two + one) % 65521)
    });
    two << 16 | one
}

fn hex(bytes: &[u8]) -> GoValue {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string can't fail.
        let _written = write!(text, "{byte:02x}");
    }
    GoValue::text(text)
}
