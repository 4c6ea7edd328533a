//! Time zones for expressions: in the place of the crate `chrono-tz`, with what `expr-lang` uses of its interface.
//!
//! The crate itself has every change of every clock until 2100 as a table with an address for each: 1.5 MB of program, and half
//! of that memory of every process, since the loader writes the addresses. This one asks `jiff`, which reads the host's own
//! `/usr/share/zoneinfo`, as Go does, and has a copy (0.2 MB, without addresses) for names that the host does not know.
//!
//! In: names of zones (IANA), times of `chrono`. Out: offsets from UTC, their abbreviations, whether it is summer time.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::{LazyLock, Mutex, PoisonError};

use chrono::{Datelike, Duration, FixedOffset, LocalResult, NaiveDate, NaiveDateTime, NaiveTime, Offset, TimeZone, Timelike};
use jiff::tz::{self, AmbiguousOffset, TimeZoneDatabase};
use jiff::{Timestamp, civil};

/// Coordinated universal time; needs no database.
pub const UTC: Tz = Tz("UTC");

/// The zones of the program, for hosts that have none, or fewer.
static BUNDLED: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// Names that were asked for and exist: a [`Tz`] is copied freely, so its name must last. There are some 600 of them in all.
static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// A time zone, by its name: `Europe/Berlin`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tz(&'static str);

/// No zone has this name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError(());

impl fmt::Display for ParseError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("failed to parse timezone")
    }
}

impl std::error::Error for ParseError {}

impl FromStr for Tz {
    type Err = ParseError;

    fn from_str(name: &str) -> Result<Self, ParseError> {
        if name == UTC.0 {
            return Ok(UTC);
        }
        // `jiff` takes any case; names in expressions have one.
        let known = rules(name).is_some_and(|zone| zone.iana_name() == Some(name));
        if !known {
            return Err(ParseError(()));
        }
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = names.get(name).copied().unwrap_or_else(|| Box::leak(Box::from(name)));
        names.insert(kept);
        Ok(Self(kept))
    }
}

/// The rules of a zone: the host's, else the program's. `jiff` keeps what it has read, and looks again after a while.
fn rules(name: &str) -> Option<tz::TimeZone> {
    tz::TimeZone::get(name).or_else(|_| BUNDLED.get(name)).ok()
}

impl Tz {
    /// The name, as in the IANA database.
    pub fn name(self) -> &'static str {
        self.0
    }

    /// A zone that was known, but is no longer, is UTC.
    fn rules(self) -> tz::TimeZone {
        let named = if self == UTC { None } else { rules(self.0) };
        named.unwrap_or(tz::TimeZone::UTC)
    }

    /// What holds at an instant, in seconds since 1970; before and after the years -9999 to 9999 what holds at their ends.
    fn at(self, rules: &tz::TimeZone, seconds: i64) -> TzOffset {
        let end = if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX };
        let info = rules.to_offset_info(Timestamp::from_second(seconds).unwrap_or(end));
        TzOffset { zone: self, seconds: info.offset().seconds(), abbreviation: info.abbreviation().into(), dst: info.dst().is_dst() }
    }
}

impl fmt::Debug for Tz {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.0)
    }
}

impl fmt::Display for Tz {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.0)
    }
}

/// What a zone's clocks are away from UTC at an instant.
#[derive(Clone, PartialEq, Eq)]
pub struct TzOffset {
    zone: Tz,
    seconds: i32,
    abbreviation: Box<str>,
    dst: bool,
}

/// What an offset is made of.
pub trait OffsetComponents {
    /// What summer time adds: an hour or nothing, since compiled zone files say only whether it is summer time.
    fn dst_offset(&self) -> Duration;
}

impl OffsetComponents for TzOffset {
    fn dst_offset(&self) -> Duration {
        Duration::hours(i64::from(self.dst))
    }
}

impl Offset for TzOffset {
    fn fix(&self) -> FixedOffset {
        // `jiff` has up to 26 hours, `chrono` less than 24; no zone ever had 16.
        FixedOffset::east_opt(self.seconds).unwrap_or_else(|| chrono::Utc.fix())
    }
}

impl fmt::Display for TzOffset {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.abbreviation)
    }
}

impl fmt::Debug for TzOffset {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, to)
    }
}

impl TimeZone for Tz {
    type Offset = TzOffset;

    fn from_offset(offset: &TzOffset) -> Self {
        offset.zone
    }

    fn offset_from_local_date(&self, local: &NaiveDate) -> LocalResult<TzOffset> {
        self.offset_from_local_datetime(&local.and_time(NaiveTime::MIN))
    }

    /// A time that clocks skipped has none, one that they showed twice has two, the earlier first.
    fn offset_from_local_datetime(&self, local: &NaiveDateTime) -> LocalResult<TzOffset> {
        let (rules, seconds) = (self.rules(), local.and_utc().timestamp());
        let Some(shown) = civil(local) else { return LocalResult::Single(self.at(&rules, seconds)) };
        let at = |offset: tz::Offset| self.at(&rules, seconds - i64::from(offset.seconds()));
        match rules.to_ambiguous_timestamp(shown).offset() {
            AmbiguousOffset::Unambiguous { offset } => LocalResult::Single(at(offset)),
            AmbiguousOffset::Gap { .. } => LocalResult::None,
            AmbiguousOffset::Fold { before, after } => LocalResult::Ambiguous(at(before), at(after)),
        }
    }

    fn offset_from_utc_date(&self, utc: &NaiveDate) -> TzOffset {
        self.offset_from_utc_datetime(&utc.and_time(NaiveTime::MIN))
    }

    fn offset_from_utc_datetime(&self, utc: &NaiveDateTime) -> TzOffset {
        self.at(&self.rules(), utc.and_utc().timestamp())
    }
}

/// The same time on the clock, within the years that `jiff` has.
fn civil(local: &NaiveDateTime) -> Option<civil::DateTime> {
    let small = |number: u32| i8::try_from(number).ok();
    civil::DateTime::new(
        i16::try_from(local.year()).ok()?,
        small(local.month())?,
        small(local.day())?,
        small(local.hour())?,
        small(local.minute())?,
        small(local.second())?,
        0,
    )
    .ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    fn zone(name: &str) -> Tz {
        name.parse().unwrap()
    }

    fn time(text: &str) -> NaiveDateTime {
        text.parse().unwrap()
    }

    #[test]
    fn offsets_of_instants() {
        let cases = [
            ("UTC", "2026-07-01T12:00:00", "2026-07-01 12:00:00 UTC", 0),
            ("Europe/Berlin", "2026-07-01T12:00:00", "2026-07-01 14:00:00 CEST", 1),
            ("Europe/Berlin", "2026-01-01T12:00:00", "2026-01-01 13:00:00 CET", 0),
            ("America/New_York", "2150-07-01T12:00:00", "2150-07-01 08:00:00 EDT", 1),
            ("America/Sao_Paulo", "2026-01-01T12:00:00", "2026-01-01 09:00:00 -03", 0),
            ("Asia/Kolkata", "2026-01-01T12:00:00", "2026-01-01 17:30:00 IST", 0),
            ("Europe/Berlin", "1800-01-01T12:00:00", "1800-01-01 12:53:28 LMT", 0),
            ("Europe/Berlin", "+20000-01-01T12:00:00", "+20000-01-01 13:00:00 CET", 0),
        ];
        for (name, utc, expected, summer) in cases {
            let shown = zone(name).from_utc_datetime(&time(utc));
            assert_eq!(shown.to_string(), expected);
            assert_eq!(shown.offset().dst_offset(), Duration::hours(summer), "{expected}");
        }
    }

    #[test]
    fn what_clocks_show_never_once_or_twice() {
        let berlin = zone("Europe/Berlin");
        assert_eq!(berlin.from_local_datetime(&time("2026-03-29T02:30:00")), LocalResult::None);
        let twice = berlin.from_local_datetime(&time("2026-10-25T02:30:00"));
        let shown = |time: Option<chrono::DateTime<Tz>>| time.map(|time| time.to_string());
        assert_eq!(shown(twice.clone().earliest()).as_deref(), Some("2026-10-25 02:30:00 CEST"));
        assert_eq!(shown(twice.latest()).as_deref(), Some("2026-10-25 02:30:00 CET"));
        let once = berlin.from_local_datetime(&time("2026-10-25T03:30:00")).single();
        assert_eq!(shown(once).as_deref(), Some("2026-10-25 03:30:00 CET"));
    }

    #[test]
    fn names() {
        for known in ["UTC", "Etc/UTC", "GMT", "US/Eastern", "Etc/GMT+5", "Antarctica/South_Pole"] {
            assert_eq!(zone(known).name(), known);
            assert_eq!(zone(known), zone(known));
        }
        for unknown in ["", "utc", "europe/berlin", "Europe/Nowhere", "../etc/passwd", "/etc/localtime"] {
            assert_eq!(unknown.parse::<Tz>(), Err(ParseError(())), "{unknown}");
        }
    }
}
