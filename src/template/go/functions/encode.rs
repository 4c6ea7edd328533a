//! Sprig: encodings and digests.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256, Sha512};

use super::super::item::Item;
use super::{Function, function, one, string};

pub(super) static TABLE: &[Function] = &[
    function("b64enc", 1, 1, |c, args| Ok(Item::text(STANDARD.encode(string(c, one(args)?)?.as_bytes())))),
    function("b64dec", 1, 1, |c, args| {
        let bytes = STANDARD.decode(string(c, one(args)?)?.as_bytes()).map_err(|error| format!("not base64: {error}"))?;
        String::from_utf8(bytes).map(Item::text).map_err(|_| "what is decoded is not UTF-8 text".to_owned())
    }),
    function("sha256sum", 1, 1, |c, args| Ok(hex(&Sha256::digest(string(c, one(args)?)?.as_bytes())))),
    function("sha512sum", 1, 1, |c, args| Ok(hex(&Sha512::digest(string(c, one(args)?)?.as_bytes())))),
];

fn hex(bytes: &[u8]) -> Item {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string can't fail.
        let _written = write!(text, "{byte:02x}");
    }
    Item::text(text)
}
