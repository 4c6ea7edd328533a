//! Sprig: texts.

use std::rc::Rc;

use super::super::Context;
use super::super::format::quoted;
use super::super::item::{Fuel, Item, Pairs};
use super::{ANY, Function, MAX_MADE, as_list, function, int, one, size, string, strings, three, two};

pub(super) static TABLE: &[Function] = &[
    function("upper", 1, 1, |c, args| on(c, args, str::to_uppercase)),
    function("lower", 1, 1, |c, args| on(c, args, str::to_lowercase)),
    function("trim", 1, 1, |c, args| on(c, args, |text| text.trim().to_owned())),
    function("nospace", 1, 1, |c, args| on(c, args, |text| text.chars().filter(|c| !c.is_whitespace()).collect())),
    function("toString", 1, 1, |c, args| Ok(Item::Text(one(args)?.show(c)?))),
    function("trimall", 2, 2, trim_all),
    function("trimAll", 2, 2, trim_all),
    function("trimPrefix", 2, 2, |c, args| {
        let [part, text] = strings(c, args)?;
        Ok(Item::text(text.strip_prefix(part.as_ref()).unwrap_or(&text)))
    }),
    function("trimSuffix", 2, 2, |c, args| {
        let [part, text] = strings(c, args)?;
        Ok(Item::text(text.strip_suffix(part.as_ref()).unwrap_or(&text)))
    }),
    function("contains", 2, 2, |c, args| {
        let [part, text] = strings(c, args)?;
        Ok(Item::Bool(text.contains(part.as_ref())))
    }),
    function("hasPrefix", 2, 2, |c, args| {
        let [part, text] = strings(c, args)?;
        Ok(Item::Bool(text.starts_with(part.as_ref())))
    }),
    function("hasSuffix", 2, 2, |c, args| {
        let [part, text] = strings(c, args)?;
        Ok(Item::Bool(text.ends_with(part.as_ref())))
    }),
    function("replace", 3, 3, |c, args| {
        let [from, to, text] = strings(c, args)?;
        bounded(text.len().saturating_add(text.len().saturating_add(1).saturating_mul(to.len())))
            .or_else(|_| bounded(text.matches(from.as_ref()).count().saturating_mul(to.len()).saturating_add(text.len())))?;
        Ok(Item::text(text.replace(from.as_ref(), &to)))
    }),
    function("repeat", 2, 2, |c, args| {
        let (times, text) = two(args)?;
        let (times, text) = (size(times)?, string(c, text)?);
        bounded(times.saturating_mul(text.len()))?;
        Ok(Item::text(text.repeat(times)))
    }),
    function("trunc", 2, 2, |c, args| {
        let (length, text) = two(args)?;
        let (length, text) = (int(length), string(c, text)?);
        let keep = usize::try_from(length.unsigned_abs()).unwrap_or(usize::MAX);
        let all = text.chars().count();
        let part: String =
            if length < 0 { text.chars().skip(all.saturating_sub(keep)).collect() } else { text.chars().take(keep).collect() };
        Ok(Item::text(part))
    }),
    function("abbrev", 2, 2, |c, args| {
        let (width, text) = two(args)?;
        let (width, text) = (size(width)?, string(c, text)?);
        if width < 4 || text.chars().count() <= width {
            return Ok(Item::Text(text));
        }
        Ok(Item::text(text.chars().take(width - 3).chain("...".chars()).collect::<String>()))
    }),
    function("abbrevboth", 3, 3, |c, args| {
        let (left, right, text) = three(args)?;
        let (left, right, text) = (size(left)?, size(right)?, string(c, text)?);
        if right < 4 || (left > 0 && right < 7) {
            return Ok(Item::Text(text));
        }
        Ok(Item::text(abbreviated(&text.chars().collect::<Vec<_>>(), left, right)))
    }),
    function("substr", 3, 3, |c, args| {
        let (from, to, text) = three(args)?;
        let text = string(c, text)?;
        let all = text.chars().count();
        let from = usize::try_from(int(from)).unwrap_or(0);
        let to = usize::try_from(int(to)).ok().filter(|to| *to <= all).unwrap_or(all);
        Ok(Item::text(text.chars().take(to).skip(from).collect::<String>()))
    }),
    function("quote", 0, ANY, |c, args| each(c, args, quoted)),
    function("squote", 0, ANY, |c, args| each(c, args, |text| format!("'{text}'"))),
    function("cat", 0, ANY, |c, args| each(c, args, str::to_owned)),
    function("indent", 2, 2, |c, args| Ok(Item::text(indented(c, args)?))),
    function("nindent", 2, 2, |c, args| Ok(Item::text(format!("\n{}", indented(c, args)?)))),
    function("plural", 3, 3, |_, args| {
        let (one, many, count) = three(args)?;
        Ok(if int(count) == 1 { one.clone() } else { many.clone() })
    }),
    function("split", 2, 2, |c, args| {
        let [separator, text] = strings(c, args)?;
        numbered(pieces(&text, &separator, None))
    }),
    function("splitn", 3, 3, |c, args| {
        let (separator, most, text) = three(args)?;
        let (separator, text) = (string(c, separator)?, string(c, text)?);
        numbered(pieces(&text, &separator, Some(size(most)?)))
    }),
    function("splitList", 2, 2, |c, args| {
        let [separator, text] = strings(c, args)?;
        Item::texts(pieces(&text, &separator, None))
    }),
    function("join", 2, 2, |c, args| {
        let (separator, list) = two(args)?;
        let (separator, parts) = (string(c, separator)?, parts(c, list)?);
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let length = length.saturating_add(separator.len().saturating_mul(parts.len()));
        c.afford(length)?;
        c.make(length)?;
        Ok(Item::text(parts.join(&separator)))
    }),
    function("toStrings", 1, 1, |c, args| Item::texts(parts(c, one(args)?)?)),
    function("sortAlpha", 1, 1, |c, args| {
        let mut parts = parts(c, one(args)?)?;
        parts.sort();
        Item::texts(parts)
    }),
];

/// Returns about `width` characters from about `from` on, with dots in place of omitted text.
fn abbreviated(text: &[char], from: usize, width: usize) -> String {
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
fn bounded(length: usize) -> Result<(), String> {
    if length > MAX_MADE { Err(format!("the text would be longer than {MAX_MADE} bytes")) } else { Ok(()) }
}

fn on(context: &Context<'_>, args: &[Item], change: fn(&str) -> String) -> Result<Item, String> {
    Ok(Item::text(change(&string(context, one(args)?)?)))
}

fn trim_all(context: &Context<'_>, args: &[Item]) -> Result<Item, String> {
    let [cut, text] = strings(context, args)?;
    Ok(Item::text(text.trim_matches(|c| cut.contains(c))))
}

/// Changes every argument that has a value, and joins the results with spaces.
fn each(context: &Context<'_>, args: &[Item], change: fn(&str) -> String) -> Result<Item, String> {
    let texts = args.iter().filter(|item| !matches!(item, Item::Nil)).map(|item| Ok(change(&item.show(context)?)));
    Ok(Item::text(texts.collect::<Result<Vec<_>, String>>()?.join(" ")))
}

fn indented(context: &Context<'_>, args: &[Item]) -> Result<String, String> {
    let (width, text) = two(args)?;
    let (width, text) = (size(width)?, string(context, text)?);
    let pad = " ".repeat(width);
    context.afford(text.len() + width.saturating_mul(1 + text.matches('\n').count()))?;
    Ok(format!("{pad}{}", text.replace('\n', &format!("\n{pad}"))))
}

/// Splits a text at separators; an empty separator splits into characters.
fn pieces(text: &str, separator: &str, most: Option<usize>) -> Vec<String> {
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
fn numbered(pieces: Vec<String>) -> Result<Item, String> {
    Item::map(
        pieces.into_iter().enumerate().map(|(at, piece)| (Rc::from(format!("_{at}")), Item::text(piece))).collect::<Pairs>(),
    )
}

/// Returns the items of a list as texts; a single value is a list of one.
pub(super) fn parts(context: &Context<'_>, item: &Item) -> Result<Vec<Rc<str>>, String> {
    match item {
        Item::Nil => Ok(Vec::new()),
        Item::List(_) => {
            let items = as_list(item)?.items.iter().filter(|item| !matches!(item, Item::Nil));
            items.map(|item| item.show(context)).collect()
        }
        other => Ok(vec![other.show(context)?]),
    }
}
