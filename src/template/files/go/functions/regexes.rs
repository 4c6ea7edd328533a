//! Sprig: regular expressions; matching takes time in proportion to the text.

use regex::NoExpand;

use super::arguments::{as_integer, as_text, as_texts, one_argument, three_arguments};
use super::function::{GoFunction, function};
use crate::template::files::go::context::GoContext;
use crate::template::files::go::value::{CostMeter, GoValue};
use crate::template::functions::regexes::Pattern;

pub(super) static TABLE: &[GoFunction] = &[
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
    function("regexQuoteMeta", 1, 1, |c, args| Ok(GoValue::text(regex::escape(&as_text(c, one_argument(args)?)?)))),
];

fn compile(context: &GoContext<'_>, pattern: &str, text: &str) -> Result<Pattern, String> {
    context.consume_for(text.len().saturating_add(pattern.len()))?;
    let pattern = context.regex(pattern)?;
    pattern.charge(text, context.budget())?;
    Ok(pattern)
}

fn matches(context: &GoContext<'_>, args: &[GoValue]) -> Result<GoValue, String> {
    let [pattern, text] = as_texts(context, args)?;
    Ok(GoValue::Bool(compile(context, &pattern, &text)?.is_match(&text)))
}

fn find(context: &GoContext<'_>, args: &[GoValue]) -> Result<GoValue, String> {
    let [pattern, text] = as_texts(context, args)?;
    Ok(GoValue::text(compile(context, &pattern, &text)?.find(&text).map_or("", |found| found.as_str())))
}

/// Returns the maximum number of matches; a negative number means all.
fn limit(item: &GoValue) -> usize {
    usize::try_from(as_integer(item)).unwrap_or(usize::MAX)
}

fn find_all(context: &GoContext<'_>, args: &[GoValue]) -> Result<GoValue, String> {
    let (pattern, text, most) = three_arguments(args)?;
    let (pattern, text) = (as_text(context, pattern)?, as_text(context, text)?);
    let pattern = compile(context, &pattern, &text)?;
    GoValue::texts(pattern.find_iter(&text).take(limit(most)).map(|found| found.as_str()))
}

fn replace(context: &GoContext<'_>, args: &[GoValue]) -> Result<GoValue, String> {
    let [pattern, text, by] = as_texts(context, args)?;
    let pattern = compile(context, &pattern, &text)?;
    let places = pattern.find_iter(&text).count();
    // Each `$` can insert a match, which is at most the whole text.
    let found = by.matches('$').count().saturating_mul(text.len());
    context.charge_memory(text.len().saturating_add(places.saturating_mul(by.len())).saturating_add(found))?;
    Ok(GoValue::text(pattern.replace_all(&text, by.as_ref())))
}

fn replace_literal(context: &GoContext<'_>, args: &[GoValue]) -> Result<GoValue, String> {
    let [pattern, text, by] = as_texts(context, args)?;
    let pattern = compile(context, &pattern, &text)?;
    let places = pattern.find_iter(&text).count();
    context.charge_memory(text.len().saturating_add(places.saturating_mul(by.len())))?;
    Ok(GoValue::text(pattern.replace_all(&text, NoExpand(&by))))
}

fn split(context: &GoContext<'_>, args: &[GoValue]) -> Result<GoValue, String> {
    let (pattern, text, most) = three_arguments(args)?;
    let (pattern, text) = (as_text(context, pattern)?, as_text(context, text)?);
    let pattern = compile(context, &pattern, &text)?;
    GoValue::texts(pattern.splitn(&text, limit(most)))
}
