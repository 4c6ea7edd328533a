//! Durations in Go's notation: `1h30m`, `-1.5s`, `300ms`.

/// A second, in nanoseconds.
pub(in crate::template) const SECOND: i64 = 1_000_000_000;

/// The units of a duration, in nanoseconds. A longer unit comes before its prefix.
const UNITS: &[(&str, i64)] = &[
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", SECOND),
    ("m", 60 * SECOND),
    ("h", 3600 * SECOND),
];

/// Parses a duration as Go's `time.ParseDuration` does. Returns nanoseconds.
pub(in crate::template) fn parse_duration(text: &str) -> Result<i64, String> {
    let invalid = || format!("invalid duration \"{text}\", expected one like 1h30m or -1.5s");
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if digits == "0" {
        return Ok(0);
    }
    let (mut rest, mut total) = (digits, 0_i128);
    while !rest.is_empty() || rest.len() == digits.len() {
        let (number, behind) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(invalid)?);
        let (unit, length) = UNITS.iter().find(|(unit, _)| behind.starts_with(unit)).ok_or_else(invalid)?;
        total = units_to_nanoseconds(number, *length).and_then(|part| total.checked_add(part)).ok_or_else(invalid)?;
        rest = behind.get(unit.len()..).unwrap_or_default();
    }
    i64::try_from(if negative { -total } else { total }).map_err(|_| invalid())
}

/// Converts a number of units to nanoseconds. A fraction of a nanosecond is dropped.
fn units_to_nanoseconds(number: &str, unit: i64) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    // Further digits add less than a nanosecond.
    let fraction = fraction.get(..fraction.len().min(18))?;
    let scale = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
    let fraction: i128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    whole.checked_mul(unit.into())?.checked_add(fraction * i128::from(unit) / scale)
}

/// Formats a duration of nanoseconds as Go's `Duration.String` does.
pub(in crate::template) fn format_duration(nanoseconds: i64) -> String {
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let all = nanoseconds.unsigned_abs();
    let decimal = |value: u64, unit: u64, digits: usize| {
        let fraction = format!("{:0digits$}", value % unit);
        let text = format!("{}.{fraction}", value / unit);
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match all {
        0 => "0s".to_owned(),
        1..1_000 => format!("{sign}{all}ns"),
        1_000..1_000_000 => format!("{sign}{}\u{b5}s", decimal(all, 1_000, 3)),
        1_000_000..1_000_000_000 => format!("{sign}{}ms", decimal(all, 1_000_000, 6)),
        _ => {
            let (minutes, rest) = (all / (60 * SECOND.unsigned_abs()), all % (60 * SECOND.unsigned_abs()));
            let seconds = decimal(rest, SECOND.unsigned_abs(), 9);
            match (minutes / 60, minutes % 60) {
                (0, 0) => format!("{sign}{seconds}s"),
                (0, minutes) => format!("{sign}{minutes}m{seconds}s"),
                (hours, minutes) => format!("{sign}{hours}h{minutes}m{seconds}s"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_as_in_go() {
        for (text, expected) in [
            ("0", "0s"),
            ("-0", "0s"),
            ("90s", "1m30s"),
            ("1h0m1.50s", "1h0m1.5s"),
            ("-1.5h", "-1h30m0s"),
            ("+.5s", "500ms"),
            ("1.s", "1s"),
            ("1us2ns", "1.002\u{b5}s"),
            ("1\u{b5}s1\u{3bc}s", "2\u{b5}s"),
            ("0.1234567891s", "123.456789ms"),
            ("2562047h47m16.854775807s", "2562047h47m16.854775807s"),
            ("-2562047h47m16.854775808s", "-2562047h47m16.854775808s"),
        ] {
            assert_eq!(parse_duration(text).map(format_duration).as_deref(), Ok(expected), "{text}");
        }
        for text in ["", "-", "1", "s", ".s", "1.1.1s", "1d", "1h ", " 1h", "2562047h47m16.854775808s", "1h-1m"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
