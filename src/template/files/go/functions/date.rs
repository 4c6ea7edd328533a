//! Sprig: dates, with Go's layouts.

use std::rc::Rc;

use jiff::Timestamp;

use super::arguments::{as_integer, as_text, one_argument, three_arguments, two_arguments};
use super::function::{GoFunction, function};
use crate::template::files::go::context::GoContext;
use crate::template::files::go::value::GoValue;
use crate::template::functions::gotime::{self, Location, SECOND, Time, format_duration, parse_duration};

pub(super) static TABLE: &[GoFunction] = &[
    function("now", 0, 0, |c, _| Ok(GoValue::Time(Rc::new(c.now().clone())))),
    function("date", 2, 2, |c, args| {
        let (layout, time) = two_arguments(args)?;
        Ok(format_time(&as_text(c, layout)?, &as_time(c, time)?))
    }),
    function("dateInZone", 3, 3, in_zone),
    function("date_in_zone", 3, 3, in_zone),
    function("htmlDate", 1, 1, |c, args| Ok(format_time("2006-01-02", &as_time(c, one_argument(args)?)?))),
    function("htmlDateInZone", 2, 2, |c, args| {
        let (time, zone) = two_arguments(args)?;
        format_in_zone(c, "2006-01-02", time, zone)
    }),
    function("dateModify", 2, 2, modify_date),
    function("date_modify", 2, 2, modify_date),
    function("mustDateModify", 2, 2, modify_date),
    function("must_date_modify", 2, 2, modify_date),
    function("toDate", 2, 2, to_date),
    function("mustToDate", 2, 2, to_date),
    function("unixEpoch", 1, 1, |c, args| {
        Ok(GoValue::text(as_time(c, one_argument(args)?)?.zoned().timestamp().as_second().to_string()))
    }),
    function("durationRound", 1, 1, |c, args| match one_argument(args)? {
        GoValue::Time(time) => Ok(GoValue::text(round_duration(c.now().since(time)?))),
        GoValue::Text(text) => Ok(GoValue::text(round_duration(parse_duration(text)?))),
        other => Ok(GoValue::text(round_duration(as_integer(other)))),
    }),
    function("duration", 1, 1, |_, args| {
        Ok(GoValue::text(format_duration(as_integer(one_argument(args)?).saturating_mul(SECOND))))
    }),
];

fn format_time(layout: &str, time: &Time) -> GoValue {
    GoValue::text(gotime::format(time, layout))
}

/// Returns an argument as a time; an integer is seconds since 1970.
fn as_time(context: &GoContext<'_>, item: &GoValue) -> Result<Time, String> {
    match item {
        GoValue::Time(time) => Ok(time.as_ref().clone()),
        GoValue::Int(seconds) => {
            let at = Timestamp::from_second(*seconds).map_err(|error| error.to_string())?;
            Ok(Time::new(at, context.now().location()))
        }
        other => Err(format!("expected a time, not {}; convert a text with toDate", other.type_name())),
    }
}

fn format_in_zone(context: &GoContext<'_>, layout: &str, time: &GoValue, zone: &GoValue) -> Result<GoValue, String> {
    Ok(format_time(layout, &as_time(context, time)?.in_location(Location::named(&as_text(context, zone)?)?)))
}

fn in_zone(context: &GoContext<'_>, args: &[GoValue]) -> Result<GoValue, String> {
    let (layout, time, zone) = three_arguments(args)?;
    format_in_zone(context, &as_text(context, layout)?, time, zone)
}

fn modify_date(context: &GoContext<'_>, args: &[GoValue]) -> Result<GoValue, String> {
    let (by, time) = two_arguments(args)?;
    Ok(GoValue::Time(Rc::new(as_time(context, time)?.plus(parse_duration(&as_text(context, by)?)?)?)))
}

fn to_date(context: &GoContext<'_>, args: &[GoValue]) -> Result<GoValue, String> {
    let (layout, text) = two_arguments(args)?;
    let time = gotime::parse(&as_text(context, layout)?, &as_text(context, text)?, Some(&context.now().location()))?;
    Ok(GoValue::Time(Rc::new(time)))
}

/// Formats nanoseconds in the largest unit that fits: `3mo`.
fn round_duration(nanoseconds: i64) -> String {
    let units = [("y", 31_536_000), ("mo", 2_592_000), ("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)];
    let (sign, all) = (if nanoseconds < 0 { "-" } else { "" }, (nanoseconds / SECOND).unsigned_abs());
    let found = units.into_iter().find(|(_, length)| all >= *length);
    found.map_or_else(|| "0s".to_owned(), |(unit, length)| format!("{sign}{}{unit}", all / length))
}

/// Calls a method of a time: `.Year`, `.Unix`, `.Format "2006"`, ….
pub(in crate::template::files::go) fn method(time: &Time, name: &str, args: &[GoValue]) -> Result<GoValue, String> {
    let zoned = time.zoned();
    Ok(match (name, args) {
        ("Format", [GoValue::Text(layout)]) => format_time(layout, time),
        ("Unix", []) => GoValue::Int(zoned.timestamp().as_second()),
        ("Year", []) => GoValue::Int(zoned.year().into()),
        ("Month", []) => format_time("January", time),
        ("Weekday", []) => format_time("Monday", time),
        ("Day", []) => GoValue::Int(zoned.day().into()),
        ("YearDay", []) => GoValue::Int(zoned.day_of_year().into()),
        ("Hour", []) => GoValue::Int(zoned.hour().into()),
        ("Minute", []) => GoValue::Int(zoned.minute().into()),
        ("Second", []) => GoValue::Int(zoned.second().into()),
        ("UTC", []) => GoValue::Time(Rc::new(time.in_location(Location::utc()))),
        _ => return Err(format!("a time has no {name} with {} arguments", args.len())),
    })
}
