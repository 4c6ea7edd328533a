//! Layouts of times: the reference time `Mon Jan 2 15:04:05 MST 2006`, written as the time should look.

use std::fmt::{self, Write as _};

use jiff::civil::{Date, DateTime};
use jiff::tz::Offset;

use super::time::{Location, Time};

/// Go's `time.RFC3339Nano`, the form of a time in JSON.
pub(in crate::template) const RFC3339_NANO: &str = "2006-01-02T15:04:05.999999999Z07:00";
/// The form of Go's `Time.String`.
const GO_STRING_LAYOUT: &str = "2006-01-02 15:04:05.999999999 -0700 MST";

const MONTHS: [&str; 12] =
    ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
/// The length of the short name of a month or weekday.
const SHORT_NAME_LETTERS: usize = 3;

/// Returns the name of a month, from 1.
pub(in crate::template) fn month_name(month: i8) -> &'static str {
    usize::try_from(month).ok().and_then(|month| MONTHS.get(month.checked_sub(1)?)).copied().unwrap_or_default()
}

/// Returns the name of a weekday, from Sunday as 0.
pub(in crate::template) fn weekday_name(day: i8) -> &'static str {
    usize::try_from(day).ok().and_then(|day| WEEKDAYS.get(day)).copied().unwrap_or_default()
}

/// The padding of a number.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Pad {
    None,
    Blank,
    Zero,
}

/// An element of a layout.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Element {
    MonthName(bool),
    WeekdayName(bool),
    Month(Pad),
    Day(Pad),
    YearDay(Pad),
    Hour,
    Hour12(Pad),
    Minute(Pad),
    Second(Pad),
    LongYear,
    Year,
    UpperPm,
    LowerPm,
    Abbreviation,
    /// `digits` counts hours, minutes and seconds; `zulu` writes UTC as `Z`.
    Offset {
        zulu: bool,
        colon: bool,
        digits: usize,
    },
    /// Go's `.000`, or `.999`, which drops zeros at the end.
    Fraction {
        separator: char,
        digits: usize,
        trimmed: bool,
    },
}

const fn offset(zulu: bool, colon: bool, digits: usize) -> Element {
    Element::Offset { zulu, colon, digits }
}

/// The elements by spelling. A longer spelling comes before its prefix.
const ELEMENTS: &[(&str, Element)] = &[
    ("January", Element::MonthName(true)),
    ("Jan", Element::MonthName(false)),
    ("Monday", Element::WeekdayName(true)),
    ("Mon", Element::WeekdayName(false)),
    ("MST", Element::Abbreviation),
    ("002", Element::YearDay(Pad::Zero)),
    ("01", Element::Month(Pad::Zero)),
    ("02", Element::Day(Pad::Zero)),
    ("03", Element::Hour12(Pad::Zero)),
    ("04", Element::Minute(Pad::Zero)),
    ("05", Element::Second(Pad::Zero)),
    ("06", Element::Year),
    ("15", Element::Hour),
    ("1", Element::Month(Pad::None)),
    ("2006", Element::LongYear),
    ("2", Element::Day(Pad::None)),
    ("__2", Element::YearDay(Pad::Blank)),
    ("_2", Element::Day(Pad::Blank)),
    ("3", Element::Hour12(Pad::None)),
    ("4", Element::Minute(Pad::None)),
    ("5", Element::Second(Pad::None)),
    ("PM", Element::UpperPm),
    ("pm", Element::LowerPm),
    ("Z07:00:00", offset(true, true, 3)),
    ("Z070000", offset(true, false, 3)),
    ("Z07:00", offset(true, true, 2)),
    ("Z0700", offset(true, false, 2)),
    ("Z07", offset(true, false, 1)),
    ("-07:00:00", offset(false, true, 3)),
    ("-070000", offset(false, false, 3)),
    ("-07:00", offset(false, true, 2)),
    ("-0700", offset(false, false, 2)),
    ("-07", offset(false, false, 1)),
];

/// The element that a text begins with, and the length of its spelling.
fn element(text: &str) -> Option<(Element, usize)> {
    let begins_lower = |text: &str| text.starts_with(|c: char| c.is_ascii_lowercase());
    let mut found = ELEMENTS.iter().filter(|(spelling, _)| text.starts_with(spelling));
    if text.starts_with("_2006") {
        return None;
    }
    let named = found.find(|(spelling, element)| {
        let is_short = matches!(element, Element::MonthName(false) | Element::WeekdayName(false));
        !(is_short && text.get(spelling.len()..).is_some_and(begins_lower))
    });
    named.map(|(spelling, element)| (*element, spelling.len())).or_else(|| {
        let separator = text.chars().next().filter(|c| matches!(c, '.' | ','))?;
        let digits = text.get(1..)?;
        let digit = digits.chars().next().filter(|c| matches!(c, '0' | '9'))?;
        let behind = digits.trim_start_matches(digit);
        let digits = digits.len() - behind.len();
        let ends = !behind.starts_with(|c: char| c.is_ascii_digit());
        ends.then_some((Element::Fraction { separator, digits, trimmed: digit == '9' }, 1 + digits))
    })
}

/// Splits a layout at its first element: the text before, the element, the layout behind.
fn split_first_element(layout: &str) -> (&str, Option<Element>, &str) {
    let first = layout.char_indices().find_map(|(at, _)| {
        let (element, length) = element(layout.get(at..)?)?;
        Some((layout.get(..at)?, Some(element), layout.get(at + length..)?))
    });
    first.unwrap_or((layout, None, ""))
}

fn push_number(out: &mut String, number: i64, width: usize, pad: Pad) {
    // Writing to a string can't fail.
    let _written = match pad {
        Pad::None => write!(out, "{number}"),
        Pad::Blank => write!(out, "{number:width$}"),
        Pad::Zero => write!(out, "{number:0width$}"),
    };
}

/// Writes a time in a layout, as Go's `Time.Format` does.
pub(in crate::template) fn format(time: &Time, layout: &str) -> String {
    let (mut out, mut rest) = (String::new(), layout);
    loop {
        let (before, element, behind) = split_first_element(rest);
        out.push_str(before);
        let Some(element) = element else { return out };
        push_element(&mut out, time, element);
        rest = behind;
    }
}

fn push_element(out: &mut String, time: &Time, element: Element) {
    let at = time.zoned();
    let named = |name: &'static str, long: bool| if long { name } else { name.get(..SHORT_NAME_LETTERS).unwrap_or(name) };
    let hour12 = |hour: i8| if hour % 12 == 0 { 12 } else { hour % 12 };
    let half = if at.hour() < 12 { "AM" } else { "PM" };
    match element {
        Element::MonthName(long) => out.push_str(named(month_name(at.month()), long)),
        Element::WeekdayName(long) => out.push_str(named(weekday_name(at.weekday().to_sunday_zero_offset()), long)),
        Element::Month(pad) => push_number(out, at.month().into(), 2, pad),
        Element::Day(pad) => push_number(out, at.day().into(), 2, pad),
        Element::YearDay(pad) => push_number(out, at.day_of_year().into(), 3, pad),
        Element::Hour => push_number(out, at.hour().into(), 2, Pad::Zero),
        Element::Hour12(pad) => push_number(out, hour12(at.hour()).into(), 2, pad),
        Element::Minute(pad) => push_number(out, at.minute().into(), 2, pad),
        Element::Second(pad) => push_number(out, at.second().into(), 2, pad),
        Element::LongYear => push_number(out, at.year().into(), 4, Pad::Zero),
        Element::Year => push_number(out, i64::from(at.year()).rem_euclid(100), 2, Pad::Zero),
        Element::UpperPm => out.push_str(half),
        Element::LowerPm => out.push_str(&half.to_ascii_lowercase()),
        Element::Abbreviation => out.push_str(&zone_abbreviation(time)),
        Element::Offset { zulu: true, .. } if at.offset().is_zero() => out.push('Z'),
        Element::Offset { colon, digits, .. } => {
            let seconds = i64::from(at.offset().seconds());
            out.push(if seconds < 0 { '-' } else { '+' });
            let seconds = seconds.abs();
            for (index, part) in [seconds / 3600, seconds / 60 % 60, seconds % 60].into_iter().take(digits).enumerate() {
                out.push_str(if colon && index > 0 { ":" } else { "" });
                push_number(out, part, 2, Pad::Zero);
            }
        }
        Element::Fraction { separator, digits, trimmed } => {
            let all = format!("{:09}", at.subsec_nanosecond());
            let wanted = format!("{all:0<digits$}");
            let wanted = wanted.get(..digits).unwrap_or(&wanted);
            let wanted = if trimmed { wanted.trim_end_matches('0') } else { wanted };
            if !wanted.is_empty() {
                out.push(separator);
                out.push_str(wanted);
            }
        }
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format(self, GO_STRING_LAYOUT))
    }
}

/// The abbreviation of the time zone at a time. A bare offset is its own abbreviation.
fn zone_abbreviation(time: &Time) -> String {
    let zone = time.zoned().time_zone();
    match (zone.to_fixed_offset(), time.location().name) {
        (Ok(_), name) if name.is_empty() => format(time, "-0700"),
        (Ok(_), name) => name,
        (Err(_), _) => zone.to_offset_info(time.zoned().timestamp()).abbreviation().to_owned(),
    }
}

/// The parts of a time, as parsed.
struct Parts {
    year: i16,
    month: Option<i8>,
    day: Option<i8>,
    year_day: Option<i16>,
    hour: i8,
    minute: i8,
    second: i8,
    nanosecond: i32,
    afternoon: Option<bool>,
    offset: Option<Offset>,
    abbreviation: Option<String>,
}

/// The rest of the text to parse.
struct Cursor<'t>(&'t str);

impl<'t> Cursor<'t> {
    fn take(&mut self, bytes: usize) -> Option<&'t str> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn consume(&mut self, text: &str) -> bool {
        let rest = self.0.strip_prefix(text);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn digits(&self, most: usize) -> usize {
        self.0.bytes().take(most).take_while(u8::is_ascii_digit).count()
    }

    /// Parses a number with `least` to `most` digits.
    fn number<T: std::str::FromStr>(&mut self, least: usize, most: usize) -> Option<T> {
        let digits = self.digits(most);
        if digits < least { None } else { self.take(digits)?.parse().ok() }
    }

    /// Parses a number of two digits; of one or two when the number has no zeros for padding.
    fn padded(&mut self, pad: Pad) -> Option<i8> {
        if pad == Pad::Blank {
            self.consume(" ");
        }
        self.number(if pad == Pad::Zero { 2 } else { 1 }, 2)
    }

    /// Parses a name of the list, in any case, and returns its index.
    fn name(&mut self, names: &[&str], long: bool) -> Option<i8> {
        let index = names.iter().position(|name| {
            let name = if long { name } else { name.get(..SHORT_NAME_LETTERS).unwrap_or(name) };
            self.0.get(..name.len()).is_some_and(|text| text.eq_ignore_ascii_case(name))
        })?;
        self.take(if long { names.get(index)?.len() } else { SHORT_NAME_LETTERS })?;
        i8::try_from(index).ok()
    }

    /// Parses the literal text between two elements. A blank matches any number of blanks.
    fn literal(&mut self, text: &str) -> Option<()> {
        for (index, part) in text.split(' ').enumerate() {
            if index > 0 {
                if !self.0.is_empty() && !self.0.starts_with(' ') {
                    return None;
                }
                self.0 = self.0.trim_start_matches(' ');
            }
            if !self.consume(part) {
                return None;
            }
        }
        Some(())
    }

    /// Parses a fraction of a second behind its separator. Returns nanoseconds.
    fn fraction(&mut self, digits: usize) -> Option<i32> {
        let text = self.take(digits)?;
        let nanoseconds = format!("{text:0<9}");
        nanoseconds.get(..9)?.parse().ok()
    }

    fn offset(&mut self, zulu: bool, colon: bool, parts: usize) -> Option<Offset> {
        if zulu && self.consume("Z") {
            return Some(Offset::UTC);
        }
        let sign = match self.take(1)? {
            "+" => 1,
            "-" => -1,
            _ => return None,
        };
        let mut seconds = 0;
        for (index, (unit, limit)) in [(3600, 24), (60, 60), (1, 60)].into_iter().take(parts).enumerate() {
            if colon && index > 0 && !self.consume(":") {
                return None;
            }
            seconds += unit * self.number::<i32>(2, 2).filter(|part| *part <= limit)?;
        }
        Offset::from_seconds(sign * seconds).ok()
    }

    /// Parses an abbreviation: `UTC`, `CEST`, `GMT+3`, `+03`.
    fn abbreviation(&mut self) -> Option<&'t str> {
        let signed = |text: &str| {
            let digits = text.get(1..).map_or(0, |text| text.bytes().take_while(u8::is_ascii_digit).count());
            if text.starts_with(['+', '-']) && digits > 0 { 1 + digits } else { 0 }
        };
        let letters = self.0.bytes().take(6).take_while(u8::is_ascii_uppercase).count();
        let length = match letters {
            _ if self.0.starts_with("ChST") || self.0.starts_with("MeST") => 4,
            0 => signed(self.0),
            3 if self.0.starts_with("GMT") => 3 + self.0.get(3..).map_or(0, signed),
            3 => 3,
            4 if self.0.get(3..4) == Some("T") || self.0.starts_with("WITA") => 4,
            5 if self.0.get(4..5) == Some("T") => 5,
            _ => 0,
        };
        if length == 0 { None } else { self.take(length) }
    }
}

/// Parses a time in a layout, as Go's `time.ParseInLocation` does. A text without a zone has the zone of `location`.
///
/// Without a location, the zone is UTC, and an abbreviation in the text is not resolved.
pub(in crate::template) fn parse(layout: &str, text: &str, location: Option<&Location>) -> Result<Time, String> {
    let wrong = || format!("cannot read \"{text}\" as a time of the layout \"{layout}\"");
    let parts = parse_parts(layout, text).ok_or_else(wrong)?;
    let at = parts.datetime().ok_or_else(wrong)?;
    let home = location.cloned().unwrap_or_else(Location::utc);
    if let Some(offset) = parts.offset {
        let instant = offset.to_timestamp(at).map_err(|_| wrong())?;
        if offset.is_zero() && parts.abbreviation.is_none() {
            return Ok(Time::new(instant, Location::utc()));
        }
        let there = Time::new(instant, home);
        let same = there.zoned().offset() == offset;
        let named = parts.abbreviation.as_deref().is_none_or(|name| zone_abbreviation(&there) == name);
        let bare = Location::fixed(parts.abbreviation.as_deref().unwrap_or_default(), offset);
        return Ok(if same && named { there } else { Time::new(instant, bare) });
    }
    let Some(name) = parts.abbreviation else { return Time::civil(at, home) };
    if name == "UTC" {
        return Time::civil(at, Location::utc());
    }
    let there = Time::civil(at, home)?;
    if location.is_some() && zone_abbreviation(&there) == name {
        return Ok(there);
    }
    let hours = name.strip_prefix("GMT").and_then(|hours| hours.parse::<i8>().ok());
    let offset = hours.and_then(|hours| Offset::from_hours(hours).ok()).unwrap_or(Offset::UTC);
    Time::civil(at, Location::fixed(&name, offset))
}

fn parse_parts(layout: &str, text: &str) -> Option<Parts> {
    let mut parts = Parts {
        year: 0,
        month: None,
        day: None,
        year_day: None,
        hour: 0,
        minute: 0,
        second: 0,
        nanosecond: 0,
        afternoon: None,
        offset: None,
        abbreviation: None,
    };
    let (mut cursor, mut rest) = (Cursor(text), layout);
    loop {
        let (before, element, behind) = split_first_element(rest);
        cursor.literal(before)?;
        let Some(element) = element else { return cursor.0.is_empty().then_some(parts) };
        parts.parse_element(&mut cursor, element)?;
        let follows = matches!(split_first_element(behind), ("", Some(Element::Fraction { .. }), _));
        // A fraction may follow the seconds even when the layout has none.
        if matches!(element, Element::Second(_)) && !follows && cursor.0.starts_with(['.', ',']) {
            let digits = Cursor(cursor.0.get(1..)?).digits(usize::MAX);
            if digits > 0 {
                cursor.take(1)?;
                parts.nanosecond = cursor.fraction(digits)?;
            }
        }
        rest = behind;
    }
}

impl Parts {
    fn parse_element(&mut self, cursor: &mut Cursor<'_>, element: Element) -> Option<()> {
        match element {
            Element::MonthName(long) => self.month = Some(cursor.name(&MONTHS, long)? + 1),
            Element::WeekdayName(long) => {
                cursor.name(&WEEKDAYS, long)?;
            }
            Element::Month(pad) => self.month = Some(cursor.padded(pad)?),
            Element::Day(pad) => self.day = Some(cursor.padded(pad)?),
            Element::YearDay(pad) => {
                let blanks = if pad == Pad::Blank { cursor.0.bytes().take(2).take_while(|c| *c == b' ').count() } else { 0 };
                cursor.take(blanks)?;
                self.year_day = Some(cursor.number(3 - blanks, 3 - blanks)?);
            }
            Element::Hour => self.hour = cursor.padded(Pad::None)?,
            Element::Hour12(pad) => self.hour = cursor.padded(pad).filter(|hour| *hour <= 12)?,
            Element::Minute(pad) => self.minute = cursor.padded(pad)?,
            Element::Second(pad) => self.second = cursor.padded(pad)?,
            Element::LongYear => self.year = cursor.number(4, 4)?,
            Element::Year => {
                let year: i16 = cursor.number(2, 2)?;
                self.year = if year < 69 { 2000 + year } else { 1900 + year };
            }
            Element::UpperPm | Element::LowerPm => {
                let half = cursor.take(2)?;
                let lower = element == Element::LowerPm;
                self.afternoon = Some(match half {
                    "AM" if !lower => false,
                    "PM" if !lower => true,
                    "am" if lower => false,
                    "pm" if lower => true,
                    _ => return None,
                });
            }
            Element::Abbreviation => self.abbreviation = Some(cursor.abbreviation()?.to_owned()),
            Element::Offset { zulu, colon, digits } => self.offset = Some(cursor.offset(zulu, colon, digits)?),
            Element::Fraction { digits, trimmed: false, .. } => {
                cursor.take(1).filter(|separator| matches!(*separator, "." | ","))?;
                self.nanosecond = if cursor.digits(digits) == digits { cursor.fraction(digits)? } else { return None };
            }
            Element::Fraction { .. } => {
                let digits = Cursor(cursor.0.get(1..).unwrap_or_default()).digits(9);
                if cursor.0.starts_with(['.', ',']) && digits > 0 {
                    cursor.take(1)?;
                    self.nanosecond = cursor.fraction(digits)?;
                }
            }
        }
        Some(())
    }

    fn datetime(&self) -> Option<DateTime> {
        let hour = match self.afternoon {
            Some(true) if self.hour < 12 => self.hour + 12,
            Some(false) if self.hour == 12 => 0,
            _ => self.hour,
        };
        let date = match self.year_day {
            Some(day) => {
                let date = Date::new(self.year, 1, 1).ok()?.with().day_of_year(day).build().ok()?;
                let same = |given: Option<i8>, real: i8| given.is_none_or(|given| given == real);
                Some(date).filter(|date| same(self.month, date.month()) && same(self.day, date.day()))?
            }
            None => Date::new(self.year, self.month.unwrap_or(1), self.day.unwrap_or(1)).ok()?,
        };
        let time = jiff::civil::Time::new(hour, self.minute, self.second, self.nanosecond).ok()?;
        Some(date.to_datetime(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Time {
        parse(RFC3339_NANO, text, None).unwrap()
    }

    #[test]
    fn layouts_format_as_in_go() {
        let (berlin, new_york) = (Location::named("Europe/Berlin").unwrap(), Location::named("America/New_York").unwrap());
        let summer = time("2026-07-04T13:05:09.120000000Z");
        for (location, layout, expected) in [
            (Location::utc(), GO_STRING_LAYOUT, "2026-07-04 13:05:09.12 +0000 UTC"),
            (berlin.clone(), GO_STRING_LAYOUT, "2026-07-04 15:05:09.12 +0200 CEST"),
            (berlin.clone(), "Mon, 02 Jan 2006 15:04:05 MST", "Sat, 04 Jul 2026 15:05:09 CEST"),
            (berlin.clone(), "Monday January _2 06 3:4:5pm", "Saturday July  4 26 3:5:9pm"),
            (new_york, "2006-01-02T15:04:05Z07:00", "2026-07-04T09:05:09-04:00"),
            (Location::utc(), "Z07:00 Z0700 -0700 -07 -07:00:00", "Z Z +0000 +00 +00:00:00"),
            (Location::utc(), "05.000 05.999999 05,00 .0a .01", "09.120 09.12 09,12 .1a .07"),
            (Location::utc(), "002 __2 03 PM", "185 185 01 PM"),
            // Neither a short name within a word nor a year behind an underscore.
            (Location::utc(), "Janus Month _2006 100%", "Janus Month _2026 700%"),
        ] {
            assert_eq!(format(&summer.in_location(location), layout), expected, "{layout}");
        }
    }

    #[test]
    fn layouts_read_as_in_go() {
        let berlin = Location::named("Europe/Berlin").unwrap();
        for (layout, text, location, expected) in [
            ("2006-01-02", "2026-07-04", None, "2026-07-04 00:00:00 +0000 UTC"),
            ("2006-01-02", "2026-07-04", Some(&berlin), "2026-07-04 00:00:00 +0200 CEST"),
            ("15:04:05", "10:20:30", None, "0000-01-01 10:20:30 +0000 UTC"),
            ("2 Jan 06 3:04 PM", "4 jul 26 12:07 AM", None, "2026-07-04 00:07:00 +0000 UTC"),
            ("2006-01-02 15:04:05", "2026-07-04  1:02:03.5", None, "2026-07-04 01:02:03.5 +0000 UTC"),
            ("2006-002", "2026-185", None, "2026-07-04 00:00:00 +0000 UTC"),
            (RFC3339_NANO, "2026-07-04T01:02:03+02:00", None, "2026-07-04 01:02:03 +0200 +0200"),
            (RFC3339_NANO, "2026-07-04T01:02:03+02:00", Some(&berlin), "2026-07-04 01:02:03 +0200 CEST"),
            ("02 Jan 06 15:04 MST", "04 Jul 26 01:02 CEST", None, "2026-07-04 01:02:00 +0000 CEST"),
            ("02 Jan 06 15:04 MST", "04 Jul 26 01:02 CEST", Some(&berlin), "2026-07-04 01:02:00 +0200 CEST"),
            ("15:04 MST", "01:02 GMT-3", None, "0000-01-01 01:02:00 -0300 GMT-3"),
            ("-0700 MST", "-0800 PST", None, "0000-01-01 00:00:00 -0800 PST"),
            // An hour that the clocks show twice.
            ("2006-01-02 15:04", "2026-10-25 02:30", Some(&berlin), "2026-10-25 02:30:00 +0200 CEST"),
        ] {
            let read = parse(layout, text, location).map(|time| time.to_string());
            assert_eq!(read.as_deref(), Ok(expected), "{layout} {text}");
        }
        let skipped = parse("2006-01-02 15:04", "2026-03-29 02:30", Some(&berlin)).map(|time| time.to_string());
        assert_eq!(skipped, Err("the clocks of Europe/Berlin skip 2026-03-29 02:30:00".to_owned()));
        for (layout, text) in [
            ("2006-01-02", "2026-7-04"),
            ("2006-01-02", "2026-02-30"),
            ("2006-01-02", "2026-07-04x"),
            ("15:04", "25:00"),
            ("3PM", "13PM"),
            ("05.000", "09.12"),
            ("2006-002 01", "2026-185 06"),
            ("Z07:00", "2"),
            ("", "x"),
        ] {
            assert!(parse(layout, text, None).is_err(), "{layout} {text}");
        }
    }

    #[test]
    fn zones_have_their_names_and_rules() {
        let at = |zone: &str, text: &str| time(text).in_location(Location::named(zone).unwrap());
        for (zone, text, expected, summer) in [
            ("Europe/Berlin", "2026-01-01T12:00:00Z", "2026-01-01 13:00:00 +0100 CET", false),
            ("America/New_York", "2150-07-01T12:00:00Z", "2150-07-01 08:00:00 -0400 EDT", true),
            ("America/Sao_Paulo", "2026-01-01T12:00:00Z", "2026-01-01 09:00:00 -0300 -03", false),
            ("Asia/Kolkata", "2026-01-01T12:00:00Z", "2026-01-01 17:30:00 +0530 IST", false),
            ("Europe/Berlin", "1800-01-01T12:00:00Z", "1800-01-01 12:53:28 +0053 LMT", false),
        ] {
            let shown = at(zone, text);
            assert_eq!((shown.to_string().as_str(), shown.is_dst()), (expected, summer));
        }
        for unknown in ["utc", "europe/berlin", "Europe/Nowhere", "../etc/passwd", "/etc/localtime"] {
            assert!(Location::named(unknown).is_err(), "{unknown}");
        }
    }
}
