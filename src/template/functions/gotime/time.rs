//! Points in time with a location.
//!
//! The rules of time zones come from the host. The program has a copy for zones that the host lacks.

use std::cmp::Ordering;
use std::sync::LazyLock;

use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, Zoned};

use super::duration::SECOND;

/// The time zones in the program, for hosts that lack them.
static BUNDLED: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// A time zone under the name that Go gives the location.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::template) struct Location {
    /// An IANA name, `UTC`, `Local`, or the abbreviation from a parsed time. Empty for a bare offset.
    pub(in crate::template) name: String,
    rules: TimeZone,
}

impl Location {
    pub(in crate::template) fn utc() -> Self {
        Self { name: "UTC".to_owned(), rules: TimeZone::UTC }
    }

    /// The time zone of the host.
    pub(in crate::template) fn local() -> Self {
        Self { name: "Local".to_owned(), rules: TimeZone::system() }
    }

    pub(super) fn fixed(name: &str, offset: Offset) -> Self {
        Self { name: name.to_owned(), rules: TimeZone::fixed(offset) }
    }

    /// Looks up a location by its name, as Go's `time.LoadLocation` does.
    pub(in crate::template) fn named(name: &str) -> Result<Self, String> {
        match name {
            "" | "UTC" => return Ok(Self::utc()),
            "Local" => return Ok(Self::local()),
            _ => {}
        }
        let found = TimeZone::get(name).or_else(|_| BUNDLED.get(name)).ok();
        // `jiff` ignores case; Go does not.
        let rules = found.filter(|rules| rules.iana_name() == Some(name));
        rules.map(|rules| Self { name: name.to_owned(), rules }).ok_or_else(|| format!("unknown time zone {name}"))
    }
}

/// A point in time with its location. Comparisons ignore the location.
#[derive(Debug, Clone)]
pub(in crate::template) struct Time {
    zoned: Zoned,
    location: String,
}

impl PartialEq for Time {
    fn eq(&self, other: &Self) -> bool {
        self.zoned == other.zoned
    }
}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.zoned.partial_cmp(&other.zoned)
    }
}

impl From<Zoned> for Time {
    fn from(zoned: Zoned) -> Self {
        let location = zoned.time_zone().iana_name().unwrap_or("Local").to_owned();
        Self { zoned, location }
    }
}

impl Time {
    pub(in crate::template) fn new(at: Timestamp, location: Location) -> Self {
        Self { zoned: at.to_zoned(location.rules), location: location.name }
    }

    /// The time of a clock at the location. Of two such times the earlier one; a time that the clock skips is an error.
    pub(super) fn civil(at: DateTime, location: Location) -> Result<Self, String> {
        let found = location.rules.into_ambiguous_zoned(at);
        if matches!(found.offset(), AmbiguousOffset::Gap { .. }) {
            let shown = at.strftime("%Y-%m-%d %H:%M:%S");
            return Err(format!("the clocks of {} skip {shown}", location.name));
        }
        let zoned = found.earlier().map_err(|error| error.to_string())?;
        Ok(Self { zoned, location: location.name })
    }

    pub(in crate::template) fn zoned(&self) -> &Zoned {
        &self.zoned
    }

    pub(in crate::template) fn location(&self) -> Location {
        Location { name: self.location.clone(), rules: self.zoned.time_zone().clone() }
    }

    /// The same point in time at another location.
    pub(in crate::template) fn in_location(&self, location: Location) -> Self {
        Self::new(self.zoned.timestamp(), location)
    }

    pub(in crate::template) fn is_dst(&self) -> bool {
        self.zoned.time_zone().to_offset_info(self.zoned.timestamp()).dst().is_dst()
    }

    /// Nanoseconds between two times: `self - other`.
    pub(in crate::template) fn since(&self, other: &Self) -> Result<i64, String> {
        let span = self.zoned.timestamp().duration_since(other.zoned.timestamp());
        i64::try_from(span.as_nanos()).map_err(|_| "duration out of range".to_owned())
    }

    pub(in crate::template) fn plus(&self, nanoseconds: i64) -> Result<Self, String> {
        let at = self.zoned.timestamp().checked_add(jiff::SignedDuration::from_nanos(nanoseconds));
        Ok(self.clone().at_instant(at.map_err(|_| out_of_range())?))
    }

    fn at_instant(self, at: Timestamp) -> Self {
        let location = self.location();
        Self::new(at, location)
    }

    /// Adds years, months and days to the date. As in Go, a day beyond the end of a month falls into the next month.
    pub(in crate::template) fn add_date(&self, years: i64, months: i64, days: i64) -> Result<Self, String> {
        let date = self.zoned.date();
        let month = i64::from(date.month()) - 1;
        let month = years.checked_mul(12).and_then(|all| all.checked_add(months)?.checked_add(month)).ok_or_else(out_of_range)?;
        let year = i64::from(date.year()).checked_add(month.div_euclid(12)).and_then(|year| i16::try_from(year).ok());
        let first = jiff::civil::Date::new(
            year.ok_or_else(out_of_range)?,
            i8::try_from(month.rem_euclid(12) + 1).map_err(|_| out_of_range())?,
            1,
        );
        let days = days.checked_add(i64::from(date.day()) - 1).ok_or_else(out_of_range)?;
        let days = jiff::Span::new().try_days(days).map_err(|_| out_of_range())?;
        let date = first.and_then(|first| first.checked_add(days)).map_err(|_| out_of_range())?;
        Self::civil(date.to_datetime(self.zoned.time()), self.location())
    }

    /// Rounds down, or to the nearest, multiple of a duration since the year 1.
    pub(in crate::template) fn rounded(&self, unit: i64, to_nearest: bool) -> Result<Self, String> {
        if unit <= 0 {
            return Ok(self.clone());
        }
        let unit = i128::from(unit);
        let since_year_1 = self.zoned.timestamp().as_nanosecond() + i128::from(UNIX_EPOCH_OF_YEAR_1) * i128::from(SECOND);
        let rest = since_year_1.rem_euclid(unit);
        let change = if to_nearest && rest * 2 >= unit { unit - rest } else { -rest };
        self.plus(i64::try_from(change).map_err(|_| out_of_range())?)
    }

    /// True for Go's zero time, the first instant of the year 1 in UTC.
    pub(in crate::template) fn is_zero(&self) -> bool {
        self.zoned.timestamp().as_nanosecond() == -i128::from(UNIX_EPOCH_OF_YEAR_1) * i128::from(SECOND)
    }
}

/// Seconds from the first instant of the year 1 to the Unix epoch.
const UNIX_EPOCH_OF_YEAR_1: i64 = 62_135_596_800;

fn out_of_range() -> String {
    "date out of range".to_owned()
}
