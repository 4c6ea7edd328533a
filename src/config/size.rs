//! Numbers of bytes, written as `1000` or `64MiB`.

use serde::{Deserialize, Deserializer, de};

/// Deserializes a number of bytes: an integer, or a text as `64MiB`.
pub(super) fn byte_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a number of bytes, or a text as \"64MiB\"")]
    enum Written {
        Bytes(u64),
        Text(String),
    }
    match Written::deserialize(deserializer)? {
        Written::Bytes(bytes) => Ok(bytes),
        Written::Text(text) => parse_size(&text)
            .ok_or_else(|| de::Error::custom(format!("invalid size \"{text}\": expected a number with KiB, MiB or GiB"))),
    }
}

/// Parses a number of bytes: `1000`, `64MiB`.
pub fn parse_size(text: &str) -> Option<u64> {
    let (digits, shift) = [("KiB", 10), ("MiB", 20), ("GiB", 30)]
        .into_iter()
        .find_map(|(unit, shift)| text.strip_suffix(unit).map(|digits| (digits, shift)))
        .unwrap_or((text, 0));
    let number: u64 = digits.trim().parse().ok()?;
    number.checked_mul(1 << shift)
}
