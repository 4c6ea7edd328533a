//! Sprig: dates, with Go's layouts.

use std::rc::Rc;

use jiff::Timestamp;

use super::super::Context;
use super::super::item::Item;
use super::{Function, function, int, one, string, three, two};
use crate::template::gotime::{self, Location, SECOND, Time, format_duration, parse_duration};

pub(super) static TABLE: &[Function] = &[
    function("now", 0, 0, |c, _| Ok(Item::Time(Rc::new(c.now().clone())))),
    function("date", 2, 2, |c, args| {
        let (layout, time) = two(args)?;
        Ok(formatted(&string(c, layout)?, &moment(c, time)?))
    }),
    function("dateInZone", 3, 3, in_zone),
    function("date_in_zone", 3, 3, in_zone),
    function("htmlDate", 1, 1, |c, args| Ok(formatted("2006-01-02", &moment(c, one(args)?)?))),
    function("htmlDateInZone", 2, 2, |c, args| {
        let (time, zone) = two(args)?;
        in_location(c, "2006-01-02", time, zone)
    }),
    function("dateModify", 2, 2, modified),
    function("date_modify", 2, 2, modified),
    function("mustDateModify", 2, 2, modified),
    function("must_date_modify", 2, 2, modified),
    function("toDate", 2, 2, to_date),
    function("mustToDate", 2, 2, to_date),
    function("unixEpoch", 1, 1, |c, args| Ok(Item::text(moment(c, one(args)?)?.zoned().timestamp().as_second().to_string()))),
    function("durationRound", 1, 1, |c, args| match one(args)? {
        Item::Time(time) => Ok(Item::text(rounded(c.now().since(time)?))),
        Item::Text(text) => Ok(Item::text(rounded(parse_duration(text)?))),
        other => Ok(Item::text(rounded(int(other)))),
    }),
    function("duration", 1, 1, |_, args| Ok(Item::text(format_duration(int(one(args)?).saturating_mul(SECOND))))),
];

fn formatted(layout: &str, time: &Time) -> Item {
    Item::text(gotime::format(time, layout))
}

/// Returns an argument as a time; an integer is seconds since 1970.
fn moment(context: &Context<'_>, item: &Item) -> Result<Time, String> {
    match item {
        Item::Time(time) => Ok(time.as_ref().clone()),
        Item::Int(seconds) => {
            let at = Timestamp::from_second(*seconds).map_err(|error| error.to_string())?;
            Ok(Time::new(at, context.now().location()))
        }
        other => Err(format!("expected a time, not {}; convert a text with toDate", other.type_name())),
    }
}

fn in_location(context: &Context<'_>, layout: &str, time: &Item, zone: &Item) -> Result<Item, String> {
    Ok(formatted(layout, &moment(context, time)?.at(Location::named(&string(context, zone)?)?)))
}

fn in_zone(context: &Context<'_>, args: &[Item]) -> Result<Item, String> {
    let (layout, time, zone) = three(args)?;
    in_location(context, &string(context, layout)?, time, zone)
}

fn modified(context: &Context<'_>, args: &[Item]) -> Result<Item, String> {
    let (by, time) = two(args)?;
    Ok(Item::Time(Rc::new(moment(context, time)?.plus(parse_duration(&string(context, by)?)?)?)))
}

fn to_date(context: &Context<'_>, args: &[Item]) -> Result<Item, String> {
    let (layout, text) = two(args)?;
    let time = gotime::parse(&string(context, layout)?, &string(context, text)?, Some(&context.now().location()))?;
    Ok(Item::Time(Rc::new(time)))
}

/// Formats nanoseconds in the largest unit that fits: `3mo`.
fn rounded(nanoseconds: i64) -> String {
    let units = [("y", 31_536_000), ("mo", 2_592_000), ("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)];
    let (sign, all) = (if nanoseconds < 0 { "-" } else { "" }, (nanoseconds / SECOND).unsigned_abs());
    let found = units.into_iter().find(|(_, length)| all >= *length);
    found.map_or_else(|| "0s".to_owned(), |(unit, length)| format!("{sign}{}{unit}", all / length))
}

/// Calls a method of a time: `.Year`, `.Unix`, `.Format "2006"`, ….
pub(in super::super) fn method(time: &Time, name: &str, args: &[Item]) -> Result<Item, String> {
    let zoned = time.zoned();
    Ok(match (name, args) {
        ("Format", [Item::Text(layout)]) => formatted(layout, time),
        ("Unix", []) => Item::Int(zoned.timestamp().as_second()),
        ("Year", []) => Item::Int(zoned.year().into()),
        ("Month", []) => formatted("January", time),
        ("Weekday", []) => formatted("Monday", time),
        ("Day", []) => Item::Int(zoned.day().into()),
        ("YearDay", []) => Item::Int(zoned.day_of_year().into()),
        ("Hour", []) => Item::Int(zoned.hour().into()),
        ("Minute", []) => Item::Int(zoned.minute().into()),
        ("Second", []) => Item::Int(zoned.second().into()),
        ("UTC", []) => Item::Time(Rc::new(time.at(Location::utc()))),
        _ => return Err(format!("a time has no {name} with {} arguments", args.len())),
    })
}
