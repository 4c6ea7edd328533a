//! Sprig: texts.

use std::rc::Rc;

use super::arguments::{as_count, as_integer, as_list, as_text, as_texts, one_argument, three_arguments, two_arguments};
use super::function::{ANY, GoFunction, function};
use crate::template::files::go::context::GoContext;
use crate::template::files::go::format::quoted;
use crate::template::files::go::value::{CostMeter, GoValue, Pairs};
use crate::template::functions::limits::MAX_RESULT;

pub(super) static TABLE: &[GoFunction] = &[
    function("upper", 1, 1, |c, args| map_text(c, args, str::to_uppercase)),
    function("lower", 1, 1, |c, args| map_text(c, args, str::to_lowercase)),
    function("trim", 1, 1, |c, args| map_text(c, args, |text| text.trim().to_owned())),
    function("nospace", 1, 1, |c, args| map_text(c, args, |text| text.chars().filter(|c| !c.is_whitespace()).collect())),
    function("toString", 1, 1, |c, args| Ok(GoValue::Text(one_argument(args)?.to_text(c)?))),
    function("trimall", 2, 2, trim_all),
    function("trimAll", 2, 2, trim_all),
    function("trimPrefix", 2, 2, |c, args| {
        let [part, text] = as_texts(c, args)?;
        Ok(GoValue::text(text.strip_prefix(part.as_ref()).unwrap_or(&text)))
    }),
    function("trimSuffix", 2, 2, |c, args| {
        let [part, text] = as_texts(c, args)?;
        Ok(GoValue::text(text.strip_suffix(part.as_ref()).unwrap_or(&text)))
    }),
    function("contains", 2, 2, |c, args| {
        let [part, text] = as_texts(c, args)?;
        Ok(GoValue::Bool(text.contains(part.as_ref())))
    }),
    function("hasPrefix", 2, 2, |c, args| {
        let [part, text] = as_texts(c, args)?;
        Ok(GoValue::Bool(text.starts_with(part.as_ref())))
    }),
    function("hasSuffix", 2, 2, |c, args| {
        let [part, text] = as_texts(c, args)?;
        Ok(GoValue::Bool(text.ends_with(part.as_ref())))
    }),
    function("replace", 3, 3, |c, args| {
        let [from, to, text] = as_texts(c, args)?;
        check_length(text.len().saturating_add(text.len().saturating_add(1).saturating_mul(to.len())))
            .or_else(|_| check_length(text.matches(from.as_ref()).count().saturating_mul(to.len()).saturating_add(text.len())))?;
        Ok(GoValue::text(text.replace(from.as_ref(), &to)))
    }),
    function("repeat", 2, 2, |c, args| {
        let (times, text) = two_arguments(args)?;
        let (times, text) = (as_count(times)?, as_text(c, text)?);
        check_length(times.saturating_mul(text.len()))?;
        Ok(GoValue::text(text.repeat(times)))
    }),
    function("trunc", 2, 2, |c, args| {
        let (length, text) = two_arguments(args)?;
        let (length, text) = (as_integer(length), as_text(c, text)?);
        let keep = usize::try_from(length.unsigned_abs()).unwrap_or(usize::MAX);
        let all = text.chars().count();
        let part: String =
            if length < 0 { text.chars().skip(all.saturating_sub(keep)).collect() } else { text.chars().take(keep).collect() };
        Ok(GoValue::text(part))
    }),
    function("abbrev", 2, 2, |c, args| {
        let (width, text) = two_arguments(args)?;
        let (width, text) = (as_count(width)?, as_text(c, text)?);
        if width < 4 || text.chars().count() <= width {
            return Ok(GoValue::Text(text));
        }
        Ok(GoValue::text(text.chars().take(width - 3).chain("...".chars()).collect::<String>()))
    }),
    function("abbrevboth", 3, 3, |c, args| {
        let (left, right, text) = three_arguments(args)?;
        let (left, right, text) = (as_count(left)?, as_count(right)?, as_text(c, text)?);
        if right < 4 || (left > 0 && right < 7) {
            return Ok(GoValue::Text(text));
        }
        Ok(GoValue::text(abbreviate(&text.chars().collect::<Vec<_>>(), left, right)))
    }),
    function("substr", 3, 3, |c, args| {
        let (from, to, text) = three_arguments(args)?;
        let text = as_text(c, text)?;
        let all = text.chars().count();
        let from = usize::try_from(as_integer(from)).unwrap_or(0);
        let to = usize::try_from(as_integer(to)).ok().filter(|to| *to <= all).unwrap_or(all);
        Ok(GoValue::text(text.chars().take(to).skip(from).collect::<String>()))
    }),
    function("quote", 0, ANY, |c, args| map_texts(c, args, quoted)),
    function("squote", 0, ANY, |c, args| map_texts(c, args, |text| format!("'{text}'"))),
    function("cat", 0, ANY, |c, args| map_texts(c, args, str::to_owned)),
    function("indent", 2, 2, |c, args| Ok(GoValue::text(indent(c, args)?))),
    function("nindent", 2, 2, |c, args| Ok(GoValue::text(format!("\n{}", indent(c, args)?)))),
    function("plural", 3, 3, |_, args| {
        let (one, many, count) = three_arguments(args)?;
        Ok(if as_integer(count) == 1 { one.clone() } else { many.clone() })
    }),
    function("split", 2, 2, |c, args| {
        let [separator, text] = as_texts(c, args)?;
        numbered_map(split_text(&text, &separator, None))
    }),
    function("splitn", 3, 3, |c, args| {
        let (separator, most, text) = three_arguments(args)?;
        let (separator, text) = (as_text(c, separator)?, as_text(c, text)?);
        numbered_map(split_text(&text, &separator, Some(as_count(most)?)))
    }),
    function("splitList", 2, 2, |c, args| {
        let [separator, text] = as_texts(c, args)?;
        GoValue::texts(split_text(&text, &separator, None))
    }),
    function("join", 2, 2, |c, args| {
        let (separator, list) = two_arguments(args)?;
        let (separator, parts) = (as_text(c, separator)?, list_texts(c, list)?);
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let length = length.saturating_add(separator.len().saturating_mul(parts.len()));
        c.consume_for(length)?;
        c.charge_memory(length)?;
        Ok(GoValue::text(parts.join(&separator)))
    }),
    function("toStrings", 1, 1, |c, args| GoValue::texts(list_texts(c, one_argument(args)?)?)),
    function("sortAlpha", 1, 1, |c, args| {
        let mut parts = list_texts(c, one_argument(args)?)?;
        parts.sort();
        GoValue::texts(parts)
    }),
];

/// Returns about `width` characters from about `from` on, with dots in place of omitted text.
fn abbreviate(text: &[char], from: usize, width: usize) -> String {
    let part = |from: usize, to: usize| text.get(from..to).unwrap_or_default().iter().collect::<String>();
    let (length, room) = (text.len(), width.saturating_sub(3));
    if length <= width {
        return part(0, length);
    }
    let from = from.min(length - room);
    if from <= 4 {
        return format!("{}...", part(0, room));
    }
    if from + room < length {
        // Text is omitted at the end too.
        return format!("...{}...", part(from, from + room.saturating_sub(3)));
    }
    format!("...{}", part(length - room, length))
}

/// Checks the length of a text before its creation.
fn check_length(length: usize) -> Result<(), String> {
    if length > MAX_RESULT { Err(format!("the text would be longer than {MAX_RESULT} bytes")) } else { Ok(()) }
}

fn map_text(context: &GoContext<'_>, args: &[GoValue], change: fn(&str) -> String) -> Result<GoValue, String> {
    Ok(GoValue::text(change(&as_text(context, one_argument(args)?)?)))
}

fn trim_all(context: &GoContext<'_>, args: &[GoValue]) -> Result<GoValue, String> {
    let [cut, text] = as_texts(context, args)?;
    Ok(GoValue::text(text.trim_matches(|c| cut.contains(c))))
}

/// Changes every argument that has a value, and joins the results with spaces.
fn map_texts(context: &GoContext<'_>, args: &[GoValue], change: fn(&str) -> String) -> Result<GoValue, String> {
    let texts = args.iter().filter(|item| !matches!(item, GoValue::Nil)).map(|item| Ok(change(&item.to_text(context)?)));
    Ok(GoValue::text(texts.collect::<Result<Vec<_>, String>>()?.join(" ")))
}

fn indent(context: &GoContext<'_>, args: &[GoValue]) -> Result<String, String> {
    let (width, text) = two_arguments(args)?;
    let (width, text) = (as_count(width)?, as_text(context, text)?);
    let pad = " ".repeat(width);
    context.consume_for(text.len() + width.saturating_mul(1 + text.matches('\n').count()))?;
    Ok(format!("{pad}{}", text.replace('\n', &format!("\n{pad}"))))
}

/// Splits a text at separators; an empty separator splits into characters.
fn split_text(text: &str, separator: &str, most: Option<usize>) -> Vec<String> {
    let most = most.unwrap_or(usize::MAX);
    if separator.is_empty() {
        let mut characters = text.chars();
        let mut pieces: Vec<String> = characters.by_ref().take(most.saturating_sub(1)).map(String::from).collect();
        pieces.extend(Some(characters.collect()).filter(|rest: &String| !rest.is_empty()));
        return pieces;
    }
    text.splitn(most, separator).map(str::to_owned).collect()
}

/// Returns a map with the keys `_0`, `_1`, ….
fn numbered_map(pieces: Vec<String>) -> Result<GoValue, String> {
    GoValue::map(
        pieces.into_iter().enumerate().map(|(at, piece)| (Rc::from(format!("_{at}")), GoValue::text(piece))).collect::<Pairs>(),
    )
}

/// Returns the items of a list as texts; a single value is a list of one.
pub(super) fn list_texts(context: &GoContext<'_>, item: &GoValue) -> Result<Vec<Rc<str>>, String> {
    match item {
        GoValue::Nil => Ok(Vec::new()),
        GoValue::List(_) => {
            let items = as_list(item)?.items.iter().filter(|item| !matches!(item, GoValue::Nil));
            items.map(|item| item.to_text(context)).collect()
        }
        other => Ok(vec![other.to_text(context)?]),
    }
}
