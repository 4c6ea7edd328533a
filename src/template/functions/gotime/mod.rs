//! Go's package `time`: points in time with a location, layouts, durations. Expressions and Go templates share this module.

mod duration;
mod layout;
mod time;

pub(in crate::template) use self::duration::{SECOND, format_duration, parse_duration};
pub(in crate::template) use self::layout::{RFC3339_NANO, format, month_name, parse, weekday_name};
pub(in crate::template) use self::time::{Location, Time};
