//! Functions and methods of times, durations and time zones.

use jiff::Timestamp;

use super::call_error::CallError;
use crate::model::EvaluationBudget;
use crate::template::expr::value::Value;
use crate::template::functions::gotime::{self, Location, SECOND, Time, parse_duration};

/// Layouts that `date` tries without one: Go's `DateOnly` to `RFC1123`.
const LAYOUTS: &[&str] = &[
    "2006-01-02",
    "15:04:05",
    "2006-01-02 15:04:05",
    "2006-01-02T15:04:05Z07:00",
    "02 Jan 06 15:04 MST",
    "Monday, 02-Jan-06 15:04:05 MST",
    "Mon, 02 Jan 2006 15:04:05 MST",
];

impl From<Time> for Value {
    fn from(time: Time) -> Self {
        Self::Time(Box::new(time))
    }
}

pub(super) fn now(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    if args.is_empty() { Ok(Time::new(Timestamp::now(), Location::utc()).into()) } else { Err(CallError::Arguments) }
}

pub(super) fn duration(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    let [Value::String(text)] = args else { return Err(CallError::Arguments) };
    Ok(Value::Duration(parse_duration(text)?))
}

pub(super) fn timezone(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    let [Value::String(name)] = args else { return Err(CallError::Arguments) };
    Ok(Value::Location(Box::new(Location::named(name)?)))
}

/// `date(text)`, `date(text, layout)`, `date(text, layout, zone)`; a `timezone` may come before the text.
pub(super) fn date(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    let (leading, args) = match args {
        [Value::Location(location), rest @ ..] => (Some(location.as_ref().clone()), rest),
        _ => (None, args),
    };
    let (text, layout, location) = match args {
        [Value::String(text)] => (text, None, leading),
        [Value::String(text), Value::String(layout)] => (text, Some(layout), leading),
        [Value::String(text), Value::String(layout), Value::String(zone)] => (text, Some(layout), Some(Location::named(zone)?)),
        _ => return Err(CallError::Arguments),
    };
    if let Some(layout) = layout {
        return Ok(gotime::parse(layout, text, location.as_ref())?.into());
    }
    let read = LAYOUTS.iter().find_map(|layout| gotime::parse(layout, text, location.as_ref()).ok());
    Ok(read.ok_or_else(|| format!("invalid date {text}"))?.into())
}

/// Calls a method of a time, a duration, a time zone, a month or a weekday.
pub(in super::super) fn method(of: &Value, name: &str, args: &[Value]) -> Result<Value, String> {
    let result = match of {
        Value::Time(time) => time_method(time, name, args)?,
        Value::Duration(nanoseconds) => duration_method(*nanoseconds, name, args),
        Value::Location(_) | Value::Month(_) | Value::Weekday(_) if (name, args) == ("String", &[]) => {
            Some(Value::String(of.to_string()))
        }
        _ => None,
    };
    let arguments = || args.iter().map(Value::kind).collect::<Vec<_>>().join(", ");
    result.ok_or_else(|| format!("{} has no method {name}({})", of.kind(), arguments()))
}

fn duration_method(nanoseconds: i64, name: &str, args: &[Value]) -> Option<Value> {
    #[expect(clippy::cast_precision_loss, reason = "a float has the digits that Go's float has")]
    let per = |unit: i64| Value::Float(nanoseconds as f64 / unit as f64);
    Some(match (name, args) {
        ("Hours", []) => per(3600 * SECOND),
        ("Minutes", []) => per(60 * SECOND),
        ("Seconds", []) => per(SECOND),
        ("Milliseconds", []) => Value::Integer(nanoseconds / 1_000_000),
        ("Microseconds", []) => Value::Integer(nanoseconds / 1_000),
        ("Nanoseconds", []) => Value::Integer(nanoseconds),
        ("String", []) => Value::String(gotime::format_duration(nanoseconds)),
        ("Abs", []) => Value::Duration(nanoseconds.saturating_abs()),
        ("Truncate", [Value::Duration(unit)]) if *unit <= 0 => Value::Duration(nanoseconds),
        ("Truncate", [Value::Duration(unit)]) => Value::Duration(nanoseconds - nanoseconds % unit),
        ("Round", [Value::Duration(unit)]) => Value::Duration(rounded(nanoseconds, *unit)),
        _ => return None,
    })
}

/// Rounds to the nearest multiple of a unit; halves round away from zero.
fn rounded(nanoseconds: i64, unit: i64) -> i64 {
    if unit <= 0 {
        return nanoseconds;
    }
    let rest = nanoseconds % unit;
    let down = nanoseconds - rest;
    if rest.unsigned_abs() < unit.unsigned_abs().div_ceil(2) {
        return down;
    }
    if nanoseconds < 0 { down.saturating_sub(unit) } else { down.saturating_add(unit) }
}

fn time_method(time: &Time, name: &str, args: &[Value]) -> Result<Option<Value>, String> {
    let zoned = time.zoned();
    let instant = zoned.timestamp();
    Ok(Some(match (name, args) {
        ("Year", []) => Value::Integer(zoned.year().into()),
        ("Month", []) => Value::Month(zoned.month()),
        ("Day", []) => Value::Integer(zoned.day().into()),
        ("Hour", []) => Value::Integer(zoned.hour().into()),
        ("Minute", []) => Value::Integer(zoned.minute().into()),
        ("Second", []) => Value::Integer(zoned.second().into()),
        ("Nanosecond", []) => Value::Integer(zoned.subsec_nanosecond().into()),
        ("Weekday", []) => Value::Weekday(zoned.weekday().to_sunday_zero_offset()),
        ("YearDay", []) => Value::Integer(zoned.day_of_year().into()),
        ("Unix", []) => Value::Integer(instant.as_second()),
        ("UnixMilli", []) => Value::Integer(instant.as_millisecond()),
        ("UnixMicro", []) => Value::Integer(instant.as_microsecond()),
        ("UnixNano", []) => Value::Integer(i64::try_from(instant.as_nanosecond()).unwrap_or_default()),
        ("String", []) => Value::String(time.to_string()),
        ("Format", [Value::String(layout)]) => Value::String(gotime::format(time, layout)),
        ("IsDST", []) => Value::Bool(time.is_dst()),
        ("IsZero", []) => Value::Bool(time.is_zero()),
        ("Location", []) => Value::Location(Box::new(time.location())),
        ("UTC", []) => time.in_location(Location::utc()).into(),
        ("Local", []) => time.in_location(Location::local()).into(),
        ("In", [Value::Location(location)]) => time.in_location(location.as_ref().clone()).into(),
        ("Add", [Value::Duration(nanoseconds)]) => time.plus(*nanoseconds)?.into(),
        ("AddDate", [Value::Integer(years), Value::Integer(months), Value::Integer(days)]) => {
            time.add_date(*years, *months, *days)?.into()
        }
        ("Round", [Value::Duration(unit)]) => time.rounded(*unit, true)?.into(),
        ("Truncate", [Value::Duration(unit)]) => time.rounded(*unit, false)?.into(),
        ("Sub", [Value::Time(other)]) => Value::Duration(time.since(other)?),
        ("After", [Value::Time(other)]) => Value::Bool(time > other.as_ref()),
        ("Before", [Value::Time(other)]) => Value::Bool(time < other.as_ref()),
        ("Equal", [Value::Time(other)]) => Value::Bool(time == other.as_ref()),
        ("Compare", [Value::Time(other)]) => Value::Integer(instant.cmp(&other.zoned().timestamp()) as i64),
        _ => return Ok(None),
    }))
}
