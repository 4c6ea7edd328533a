//! Sprig: dates. Layouts are Go's: the reference time `Mon Jan 2 15:04:05 MST 2006` as it shall look.

use std::rc::Rc;

use jiff::fmt::strtime::BrokenDownTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, Zoned};

use super::super::Context;
use super::super::item::Item;
use super::{Function, function, int, one, string, three, two};

pub(super) static TABLE: &[Function] = &[
    function("now", 0, 0, |c, _| Ok(Item::Time(Rc::new(c.now().clone())))),
    function("date", 2, 2, |c, args| {
        let (layout, time) = two(args)?;
        formatted(&string(c, layout)?, &moment(c, time)?)
    }),
    function("dateInZone", 3, 3, in_zone),
    function("date_in_zone", 3, 3, in_zone),
    function("htmlDate", 1, 1, |c, args| formatted("2006-01-02", &moment(c, one(args)?)?)),
    function("htmlDateInZone", 2, 2, |c, args| {
        let (time, zone) = two(args)?;
        formatted("2006-01-02", &moment(c, time)?.with_time_zone(named(&string(c, zone)?)?))
    }),
    function("dateModify", 2, 2, modified),
    function("date_modify", 2, 2, modified),
    function("mustDateModify", 2, 2, modified),
    function("must_date_modify", 2, 2, modified),
    function("toDate", 2, 2, to_date),
    function("mustToDate", 2, 2, to_date),
    function("unixEpoch", 1, 1, |c, args| Ok(Item::text(moment(c, one(args)?)?.timestamp().as_second().to_string()))),
    function("durationRound", 1, 1, |c, args| match one(args)? {
        Item::Time(time) => Ok(Item::text(rounded(c.now().timestamp().as_second() - time.timestamp().as_second()))),
        Item::Text(text) => {
            let (sign, digits) = text.strip_prefix('-').map_or((1, text.as_ref()), |digits| (-1, digits));
            let span: SignedDuration = digits.parse().map_err(|_| format!("\"{text}\" is no span of time, as 1h30m"))?;
            Ok(Item::text(rounded(sign * span.as_secs())))
        }
        // Go's spans are counted in nanoseconds.
        other => Ok(Item::text(rounded(int(other) / 1_000_000_000))),
    }),
    function("duration", 1, 1, |_, args| Ok(Item::text(shown(int(one(args)?))))),
];

/// The pieces of layouts, longest first where one begins another, with those of `strftime`.
const PIECES: &[(&str, &str)] = &[
    ("January", "%B"),
    ("Jan", "%b"),
    ("Monday", "%A"),
    ("Mon", "%a"),
    ("MST", "%Z"),
    ("2006", "%Y"),
    ("-07:00", "%:z"),
    ("-0700", "%z"),
    ("002", "%j"),
    ("01", "%m"),
    ("02", "%d"),
    ("03", "%I"),
    ("04", "%M"),
    ("05", "%S"),
    ("06", "%y"),
    ("15", "%H"),
    ("PM", "%p"),
    ("pm", "%P"),
    ("_2", "%e"),
    (".000000000", ".%9f"),
    (".000000", ".%6f"),
    (".000", ".%3f"),
    ("1", "%-m"),
    ("2", "%-d"),
    ("3", "%-I"),
    ("4", "%-M"),
    ("5", "%-S"),
];

/// A layout of Go as one of `strftime`.
fn layout(layout: &str, is_utc: bool) -> String {
    let mut out = String::new();
    let mut rest = layout;
    while let Some(first) = rest.chars().next() {
        let zulu = [("Z07:00", "%:z"), ("Z0700", "%z")].into_iter().find(|(piece, _)| rest.starts_with(piece));
        if let Some((piece, code)) = zulu {
            out.push_str(if is_utc { "Z" } else { code });
            rest = rest.get(piece.len()..).unwrap_or_default();
        } else if let Some((piece, code)) = PIECES.iter().find(|(piece, _)| rest.starts_with(piece)) {
            out.push_str(code);
            rest = rest.get(piece.len()..).unwrap_or_default();
        } else {
            out.push(first);
            if first == '%' {
                out.push('%');
            }
            rest = rest.get(first.len_utf8()..).unwrap_or_default();
        }
    }
    out
}

fn formatted(wanted: &str, time: &Zoned) -> Result<Item, String> {
    let code = layout(wanted, time.offset().is_zero());
    let text = jiff::fmt::strtime::format(code, time);
    text.map(Item::text).map_err(|error| format!("can't format with \"{wanted}\": {error}"))
}

/// What a value says of time: a time, or seconds since 1970.
fn moment(context: &Context<'_>, item: &Item) -> Result<Zoned, String> {
    match item {
        Item::Time(time) => Ok(time.as_ref().clone()),
        Item::Int(seconds) => {
            let time = Timestamp::from_second(*seconds).map_err(|error| error.to_string())?;
            Ok(time.to_zoned(context.now().time_zone().clone()))
        }
        other => Err(format!("a time is wanted, not {}; make one of a text with toDate", other.type_name())),
    }
}

fn named(zone: &str) -> Result<TimeZone, String> {
    match zone {
        "" | "UTC" => Ok(TimeZone::UTC),
        "Local" => Ok(TimeZone::system()),
        name => TimeZone::get(name).map_err(|error| error.to_string()),
    }
}

fn in_zone(context: &Context<'_>, args: &[Item]) -> Result<Item, String> {
    let (layout, time, zone) = three(args)?;
    formatted(&string(context, layout)?, &moment(context, time)?.with_time_zone(named(&string(context, zone)?)?))
}

fn modified(context: &Context<'_>, args: &[Item]) -> Result<Item, String> {
    let (by, time) = two(args)?;
    let by = string(context, by)?;
    let nothing = || format!("\"{by}\" is no span of time, as -1.5h or 2h45m");
    let (sign, digits) = match by.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, by.strip_prefix('+').unwrap_or(&by)),
    };
    let span: SignedDuration = digits.parse().map_err(|_| nothing())?;
    let span = span.checked_mul(sign).ok_or_else(nothing)?;
    let time = moment(context, time)?.checked_add(span).map_err(|error| error.to_string())?;
    Ok(Item::Time(Rc::new(time)))
}

fn to_date(context: &Context<'_>, args: &[Item]) -> Result<Item, String> {
    let (wanted, text) = two(args)?;
    let (wanted, text) = (string(context, wanted)?, string(context, text)?);
    let read = BrokenDownTime::parse(layout(&wanted, text.ends_with('Z')), text.as_ref());
    let read = read.map_err(|error| format!("\"{text}\" is not of the form \"{wanted}\": {error}"))?;
    let zoned = match (read.to_timestamp(), read.to_datetime()) {
        (Ok(time), _) => time.to_zoned(context.now().time_zone().clone()),
        (_, Ok(time)) => time.to_zoned(context.now().time_zone().clone()).map_err(|error| error.to_string())?,
        (_, Err(_)) => {
            let date = read.to_date().map_err(|error| error.to_string())?;
            date.to_zoned(context.now().time_zone().clone()).map_err(|error| error.to_string())?
        }
    };
    Ok(Item::Time(Rc::new(zoned)))
}

/// Seconds as Go shows a span of time: `1h2m3s`.
fn shown(seconds: i64) -> String {
    let (sign, all) = (if seconds < 0 { "-" } else { "" }, seconds.unsigned_abs());
    let (hours, minutes, rest) = (all / 3600, all / 60 % 60, all % 60);
    match (hours, minutes) {
        (0, 0) => format!("{sign}{rest}s"),
        (0, _) => format!("{sign}{minutes}m{rest}s"),
        _ => format!("{sign}{hours}h{minutes}m{rest}s"),
    }
}

/// Seconds in the largest unit that fits: `3mo`.
fn rounded(seconds: i64) -> String {
    let units = [("y", 31_536_000), ("mo", 2_592_000), ("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)];
    let (sign, all) = (if seconds < 0 { "-" } else { "" }, seconds.unsigned_abs());
    let found = units.into_iter().find(|(_, length)| all >= *length);
    found.map_or_else(|| "0s".to_owned(), |(unit, length)| format!("{sign}{}{unit}", all / length))
}

/// What can be asked of a time: `.Year`, `.Unix`, `.Format "2006"`, ….
pub(in super::super) fn method(time: &Rc<Zoned>, name: &str, args: &[Item]) -> Result<Item, String> {
    match (name, args) {
        ("Format", [Item::Text(layout)]) => formatted(layout, time),
        ("Unix", []) => Ok(Item::Int(time.timestamp().as_second())),
        ("Year", []) => Ok(Item::Int(time.year().into())),
        ("Month", []) => formatted("January", time),
        ("Weekday", []) => formatted("Monday", time),
        ("Day", []) => Ok(Item::Int(time.day().into())),
        ("YearDay", []) => Ok(Item::Int(time.day_of_year().into())),
        ("Hour", []) => Ok(Item::Int(time.hour().into())),
        ("Minute", []) => Ok(Item::Int(time.minute().into())),
        ("Second", []) => Ok(Item::Int(time.second().into())),
        ("UTC", []) => Ok(Item::Time(Rc::new(time.with_time_zone(TimeZone::UTC)))),
        _ => Err(format!("a time has no {name} with {} arguments", args.len())),
    }
}
