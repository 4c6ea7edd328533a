//! Sprig: regular expressions; matching takes time in proportion to the text.

use regex::NoExpand;

use super::super::Context;
use super::super::item::{Fuel, Item};
use super::{Function, function, int, one, string, strings, three};
use crate::template::regexes::Pattern;

pub(super) static TABLE: &[Function] = &[
    function("regexMatch", 2, 2, matches),
    function("mustRegexMatch", 2, 2, matches),
    function("regexFind", 2, 2, find),
    function("mustRegexFind", 2, 2, find),
    function("regexFindAll", 3, 3, find_all),
    function("mustRegexFindAll", 3, 3, find_all),
    function("regexReplaceAll", 3, 3, replace),
    function("mustRegexReplaceAll", 3, 3, replace),
    function("regexReplaceAllLiteral", 3, 3, replace_literal),
    function("mustRegexReplaceAllLiteral", 3, 3, replace_literal),
    function("regexSplit", 3, 3, split),
    function("mustRegexSplit", 3, 3, split),
    function("regexQuoteMeta", 1, 1, |c, args| Ok(Item::text(regex::escape(&string(c, one(args)?)?)))),
];

fn compiled(context: &Context<'_>, pattern: &str, text: &str) -> Result<Pattern, String> {
    context.afford(text.len().saturating_add(pattern.len()))?;
    let pattern = context.regex(pattern)?;
    pattern.on(text, context.budget())?;
    Ok(pattern)
}

fn matches(context: &Context<'_>, args: &[Item]) -> Result<Item, String> {
    let [pattern, text] = strings(context, args)?;
    Ok(Item::Bool(compiled(context, &pattern, &text)?.is_match(&text)))
}

fn find(context: &Context<'_>, args: &[Item]) -> Result<Item, String> {
    let [pattern, text] = strings(context, args)?;
    Ok(Item::text(compiled(context, &pattern, &text)?.find(&text).map_or("", |found| found.as_str())))
}

/// Returns the maximum number of matches; a negative number means all.
fn limit(item: &Item) -> usize {
    usize::try_from(int(item)).unwrap_or(usize::MAX)
}

fn find_all(context: &Context<'_>, args: &[Item]) -> Result<Item, String> {
    let (pattern, text, most) = three(args)?;
    let (pattern, text) = (string(context, pattern)?, string(context, text)?);
    let pattern = compiled(context, &pattern, &text)?;
    Item::texts(pattern.find_iter(&text).take(limit(most)).map(|found| found.as_str()))
}

fn replace(context: &Context<'_>, args: &[Item]) -> Result<Item, String> {
    let [pattern, text, by] = strings(context, args)?;
    let pattern = compiled(context, &pattern, &text)?;
    let places = pattern.find_iter(&text).count();
    // Each `$` can insert a match, which is at most the whole text.
    let found = by.matches('$').count().saturating_mul(text.len());
    context.make(text.len().saturating_add(places.saturating_mul(by.len())).saturating_add(found))?;
    Ok(Item::text(pattern.replace_all(&text, by.as_ref())))
}

fn replace_literal(context: &Context<'_>, args: &[Item]) -> Result<Item, String> {
    let [pattern, text, by] = strings(context, args)?;
    let pattern = compiled(context, &pattern, &text)?;
    let places = pattern.find_iter(&text).count();
    context.make(text.len().saturating_add(places.saturating_mul(by.len())))?;
    Ok(Item::text(pattern.replace_all(&text, NoExpand(&by))))
}

fn split(context: &Context<'_>, args: &[Item]) -> Result<Item, String> {
    let (pattern, text, most) = three(args)?;
    let (pattern, text) = (string(context, pattern)?, string(context, text)?);
    let pattern = compiled(context, &pattern, &text)?;
    Item::texts(pattern.splitn(&text, limit(most)))
}
