//! Sprig: texts by their words and letters.

use super::arguments::{as_count, as_text, one_argument, three_arguments, two_arguments};
use super::function::{GoFunction, function};
use crate::template::files::go::value::{CostMeter, GoValue};

pub(super) static TABLE: &[GoFunction] = &[
    function("title", 1, 1, |c, args| {
        let text = as_text(c, one_argument(args)?)?;
        Ok(GoValue::text(map_by_word(
            &text,
            |c, first, out| if first { out.extend(c.to_uppercase()) } else { out.extend(c.to_lowercase()) },
        )))
    }),
    function("untitle", 1, 1, |c, args| {
        let text = as_text(c, one_argument(args)?)?;
        Ok(GoValue::text(map_by_word(&text, |c, first, out| if first { out.extend(c.to_lowercase()) } else { out.push(c) })))
    }),
    function("swapcase", 1, 1, |c, args| {
        let swap = |c: char| if c.is_uppercase() { c.to_lowercase().collect::<String>() } else { c.to_uppercase().collect() };
        Ok(GoValue::text(as_text(c, one_argument(args)?)?.chars().map(swap).collect::<String>()))
    }),
    function("initials", 1, 1, |c, args| {
        let text = as_text(c, one_argument(args)?)?;
        Ok(GoValue::text(text.split_whitespace().filter_map(|word| word.chars().next()).collect::<String>()))
    }),
    function("snakecase", 1, 1, |c, args| Ok(GoValue::text(words(&as_text(c, one_argument(args)?)?).join("_")))),
    function("kebabcase", 1, 1, |c, args| Ok(GoValue::text(words(&as_text(c, one_argument(args)?)?).join("-")))),
    function("camelcase", 1, 1, |c, args| {
        let text = as_text(c, one_argument(args)?)?;
        let capital = |word: &str| {
            let mut letters = word.chars();
            letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect::<String>()
        };
        Ok(GoValue::text(text.split(['_', '-', ' ']).map(capital).collect::<String>()))
    }),
    function("wrap", 2, 2, |c, args| {
        let (width, text) = two_arguments(args)?;
        Ok(GoValue::text(wrap_text(&as_text(c, text)?, as_count(width)?.max(1), "\n", false)))
    }),
    function("wrapWith", 3, 3, |c, args| {
        let (width, separator, text) = three_arguments(args)?;
        let (separator, text) = (as_text(c, separator)?, as_text(c, text)?);
        let width = as_count(width)?.max(1);
        c.consume_for(text.len())?;
        // Lines broken at spaces can be shorter than the width.
        c.charge_memory(text.len().saturating_add((1 + text.len()).saturating_mul(separator.len())))?;
        Ok(GoValue::text(wrap_text(&text, width, &separator, true)))
    }),
];

/// Maps a text character by character; `put` gets the character and whether it begins a word.
fn map_by_word(text: &str, put: fn(char, bool, &mut String)) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        put(c, !inside, &mut out);
        inside = c.is_alphanumeric() || c == '\'';
    }
    out
}

/// Returns the words of a name in lower case: `FirstName`, `first-name` and `first_name` have two.
fn words(text: &str) -> Vec<String> {
    let letters: Vec<char> = text.chars().collect();
    let mut words = vec![String::new()];
    let mut previous = ' ';
    for (at, c) in letters.iter().copied().enumerate() {
        let follows_lower = letters.get(at + 1).is_some_and(|next| next.is_lowercase());
        let begins = (c.is_uppercase() && (previous.is_lowercase() || previous.is_numeric()))
            || (c.is_uppercase() && previous.is_uppercase() && follows_lower)
            || (c.is_numeric() && previous.is_alphabetic());
        let separates = matches!(c, '_' | '-' | '.') || c.is_whitespace();
        if (begins || separates) && words.last().is_some_and(|word| !word.is_empty()) {
            words.push(String::new());
        }
        if !separates && let Some(word) = words.last_mut() {
            word.extend(c.to_lowercase());
        }
        previous = c;
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Wraps a text at spaces into lines of at most `width` characters. With `cut`, long words are broken too.
fn wrap_text(text: &str, width: usize, separator: &str, cut: bool) -> String {
    let letters: Vec<char> = text.chars().collect();
    let part = |from: usize, to: usize| letters.get(from..to).unwrap_or_default().iter().collect::<String>();
    let space_in = |from: usize, to: usize| letters.get(from..to).and_then(|part| part.iter().rposition(|c| *c == ' '));
    let mut lines = Vec::new();
    let mut at = 0;
    while letters.len() - at > width {
        if letters.get(at) == Some(&' ') {
            at += 1;
        } else if let Some(space) = space_in(at, at + width + 1) {
            lines.push(part(at, at + space));
            at += space + 1;
        } else if cut {
            lines.push(part(at, at + width));
            at += width;
        } else {
            let space = letters.get(at + width..).and_then(|rest| rest.iter().position(|c| *c == ' '));
            let Some(space) = space else { break };
            lines.push(part(at, at + width + space));
            at += width + space + 1;
        }
    }
    lines.push(part(at, letters.len()));
    lines.join(separator)
}
