//! Spans of time as manifests and configuration write them: `500ms`, `1h30m`, `1d`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A text that is not a duration.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("invalid duration \"{0}\": expected a number with a unit, as 500ms, 30s, 5m, 1h30m, 1d or 1w")]
pub struct InvalidDuration(String);

/// A duration, written as a sum of numbers with units.
///
/// Units: `ns us µs ms s m h`, `d` or `D` (24 h), `w` or `W` (7 d), `M` (30 d), `y` or `Y` (365 d). Only `0` needs none.
/// Unlike the Go system's parser, text between the parts is refused, not ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct HumanDuration(Duration);

impl HumanDuration {
    /// Creates a duration of whole seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// Returns the shortest duration.
    pub const fn shortest() -> Self {
        Self(Duration::from_nanos(1))
    }

    /// Returns the duration as a limit: zero means no limit.
    pub const fn limit(self) -> Option<Duration> {
        if self.0.is_zero() { None } else { Some(self.0) }
    }

    /// Returns the duration of the standard library.
    pub const fn as_std(self) -> Duration {
        self.0
    }
}

fn unit_nanos(unit: &str) -> Option<f64> {
    const S: f64 = 1e9;
    Some(match unit {
        "ns" => 1.0,
        "us" | "µs" | "μs" => 1e3,
        "ms" => 1e6,
        "s" => S,
        "m" => 60.0 * S,
        "h" => 3600.0 * S,
        "d" | "D" => 86_400.0 * S,
        "w" | "W" => 7.0 * 86_400.0 * S,
        "M" => 30.0 * 86_400.0 * S,
        "y" | "Y" => 365.0 * 86_400.0 * S,
        _ => return None,
    })
}

impl FromStr for HumanDuration {
    type Err = InvalidDuration;

    fn from_str(text: &str) -> Result<Self, InvalidDuration> {
        let invalid = || InvalidDuration(text.to_owned());
        let mut rest = text.trim();
        if rest == "0" {
            return Ok(Self::default());
        }
        if rest.is_empty() {
            return Err(invalid());
        }
        let mut nanos = 0.0;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(invalid)?;
            let (number, after) = rest.split_at(digits);
            let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
            let (unit, after) = after.split_at(end);
            let number: f64 = number.parse().map_err(|_| invalid())?;
            nanos += number * unit_nanos(unit.trim()).ok_or_else(invalid)?;
            rest = after;
        }
        // 100 years: beyond any use, and far from where arithmetic on deadlines overflows.
        if !nanos.is_finite() || nanos > 100.0 * 365.0 * 86_400.0 * 1e9 {
            return Err(invalid());
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded above, parsed without a sign")]
        Ok(Self(Duration::from_nanos(nanos.round() as u64)))
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut nanos = self.0.as_nanos();
        if nanos == 0 {
            return f.write_str("0s");
        }
        for (unit, size) in [
            ("d", 86_400_000_000_000),
            ("h", 3_600_000_000_000),
            ("m", 60_000_000_000),
            ("s", 1_000_000_000),
            ("ms", 1_000_000),
            ("us", 1_000),
            ("ns", 1),
        ] {
            if nanos >= size {
                write!(f, "{}{unit}", nanos / size)?;
                nanos %= size;
            }
        }
        Ok(())
    }
}

impl Serialize for HumanDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HumanDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl schemars::JsonSchema for HumanDuration {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "A span of time: numbers with units, as 500ms, 30s, 1h30m, 1d.",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_parse_and_print() {
        for (text, seconds, printed) in [
            ("30s", 30.0, "30s"),
            ("500ms", 0.5, "500ms"),
            ("1h30m", 5400.0, "1h30m"),
            ("1d", 86_400.0, "1d"),
            ("1w", 604_800.0, "7d"),
            ("1M", 30.0 * 86_400.0, "30d"),
            ("1y1d", 366.0 * 86_400.0, "366d"),
            ("1.5s", 1.5, "1s500ms"),
            ("0", 0.0, "0s"),
        ] {
            let span: HumanDuration = text.parse().unwrap();
            assert!((span.as_std().as_secs_f64() - seconds).abs() < 1e-6, "{text}");
            assert_eq!(span.to_string(), printed);
            assert_eq!(printed.parse::<HumanDuration>().unwrap(), span);
        }
        for bad in ["", "soon", "5", "s", "5 parsecs", "-5s", "1h junk", "9999999y"] {
            assert!(bad.parse::<HumanDuration>().is_err(), "{bad}");
        }
    }
}
