//! Edits of a text for a line that is present or absent: bytes in, bytes out.
//!
//! Lines end with LF or CRLF. Unchanged lines keep their bytes, and a new line ends like the first line. A text without a final
//! line end stays so.

use regex::bytes::Regex;

/// The desired text.
#[derive(Debug)]
pub(super) enum DesiredLine<'a> {
    /// The line is in the text.
    Present {
        /// The line, without its end.
        line: &'a [u8],
        /// The lines to replace; only an equal line when none.
        pattern: Option<&'a Regex>,
        /// True to replace all matching lines.
        all: bool,
        /// The place of a new line.
        spot: InsertPosition<'a>,
    },
    /// No line of these is in the text.
    Absent(LineSelector<'a>),
}

/// Some lines of a text.
#[derive(Debug)]
pub(super) enum LineSelector<'a> {
    /// Lines equal to this text.
    Equal(&'a [u8]),
    /// Lines that match.
    Matching(&'a Regex),
}

/// The place of a new line.
#[derive(Debug)]
pub(super) struct InsertPosition<'a> {
    /// After the last, or before the first, matching line.
    pub(super) beside: Option<(Side, &'a Regex)>,
    /// The alternative place, without a matching line or pattern.
    pub(super) fallback: Option<End>,
}

/// A side of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Before,
    After,
}

/// An end of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Start,
    End,
}

/// An edit of a text. Lines are counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Edit {
    /// The text after the edit.
    pub(super) content: Vec<u8>,
    /// The number of the new line, after the edit.
    pub(super) added: Option<usize>,
    /// The lines that were replaced.
    pub(super) replaced: Vec<usize>,
    /// The removed lines, by their numbers before the edit.
    pub(super) removed: Vec<usize>,
}

impl Edit {
    /// True for an edit without changes.
    pub(super) fn is_none(&self) -> bool {
        self.added.is_none() && self.replaced.is_empty() && self.removed.is_empty()
    }
}

/// No edit leads to the desired text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum EditError {
    /// The text has several matching lines.
    #[error(
        "{count} lines match, among them lines {first} and {second}: make the match narrower, or set all: true to replace each"
    )]
    Several {
        /// The number of matching lines.
        count: usize,
        /// The number of the first matching line.
        first: usize,
        /// The number of the second matching line.
        second: usize,
    },
    /// No line matches `before` or `after`.
    #[error("no line matches {side}: \"{pattern}\"; say with at: start or at: end where the line goes then")]
    NoNeighbour {
        /// `before` or `after`.
        side: &'static str,
        /// The regular expression.
        pattern: String,
    },
}

/// A line with its end.
#[derive(Debug, Clone, Copy)]
struct TextLine<'a> {
    text: &'a [u8],
    end: &'a [u8],
}

const LF: &[u8] = b"\n";
const CRLF: &[u8] = b"\r\n";

fn split(content: &[u8]) -> Vec<TextLine<'_>> {
    let lines = content.split_inclusive(|byte| *byte == b'\n');
    lines
        .map(|whole| {
            let end = [CRLF, LF].into_iter().find(|end| whole.ends_with(end)).map_or(0, <[u8]>::len);
            let (text, end) = whole.split_at(whole.len() - end);
            TextLine { text, end }
        })
        .collect()
}

/// Returns the desired text, with the differences.
///
/// # Errors
/// When the line, or the place of a new line, is ambiguous.
pub(super) fn edit(content: &[u8], wish: &DesiredLine<'_>) -> Result<Edit, EditError> {
    let mut lines = split(content);
    let closed = lines.last().is_none_or(|last| !last.end.is_empty());
    let end = lines.first().map(|first| first.end).filter(|end| !end.is_empty()).unwrap_or(LF);
    let mut edit = Edit::default();
    match wish {
        DesiredLine::Absent(which) => {
            edit.removed = which.numbers(&lines);
            let mut number = 0;
            lines.retain(|_| {
                number += 1;
                edit.removed.binary_search(&number).is_err()
            });
        }
        DesiredLine::Present { line, pattern, all, spot } => {
            let found = pattern.map_or(LineSelector::Equal(line), LineSelector::Matching).numbers(&lines);
            if found.is_empty() {
                let at = spot.index(&lines)?;
                lines.insert(at, TextLine { text: line, end });
                edit.added = Some(at + 1);
            }
            edit.replaced = found.iter().copied().filter(|number| text_of(&lines, *number) != *line).collect();
            if let (false, false, [first, second, ..]) = (*all, edit.replaced.is_empty(), found.as_slice()) {
                return Err(EditError::Several { count: found.len(), first: *first, second: *second });
            }
            for number in &edit.replaced {
                if let Some(place) = number.checked_sub(1).and_then(|index| lines.get_mut(index)) {
                    place.text = line;
                }
            }
        }
    }
    edit.content = join(&lines, end, closed);
    Ok(edit)
}

fn text_of<'a>(lines: &[TextLine<'a>], number: usize) -> &'a [u8] {
    number.checked_sub(1).and_then(|index| lines.get(index)).map_or(&[], |line| line.text)
}

/// Joins lines to a text. `end` is for lines without an end, `closed` is true for a final line end.
fn join(lines: &[TextLine<'_>], end: &[u8], closed: bool) -> Vec<u8> {
    let mut content = Vec::with_capacity(lines.iter().map(|line| line.text.len() + 2).sum());
    for (left, line) in (0..lines.len()).rev().zip(lines) {
        content.extend_from_slice(line.text);
        // An empty last line exists only by its end.
        if left > 0 || closed || line.text.is_empty() {
            content.extend_from_slice(if line.end.is_empty() { end } else { line.end });
        }
    }
    content
}

impl LineSelector<'_> {
    /// Returns the numbers of these lines, in order.
    fn numbers(&self, lines: &[TextLine<'_>]) -> Vec<usize> {
        let is = |text: &[u8]| match self {
            Self::Equal(wanted) => text == *wanted,
            Self::Matching(pattern) => pattern.is_match(text),
        };
        (1..).zip(lines).filter(|(_, line)| is(line.text)).map(|(number, _)| number).collect()
    }
}

impl InsertPosition<'_> {
    /// Returns the index (from 0) of the line before which the new line goes.
    fn index(&self, lines: &[TextLine<'_>]) -> Result<usize, EditError> {
        let found = self.beside.and_then(|(side, pattern)| {
            let is = |line: &TextLine<'_>| pattern.is_match(line.text);
            match side {
                Side::Before => lines.iter().position(is),
                Side::After => lines.iter().rposition(is).map(|index| index + 1),
            }
        });
        match (found, self.beside, self.fallback) {
            (Some(index), ..) => Ok(index),
            (None, Some((side, pattern)), None) => Err(EditError::NoNeighbour {
                side: if side == Side::Before { "before" } else { "after" },
                pattern: pattern.as_str().to_owned(),
            }),
            (None, _, Some(End::Start)) => Ok(0),
            (None, _, Some(End::End) | None) => Ok(lines.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn present<'a>(line: &'a str, pattern: Option<&'a Regex>, all: bool) -> DesiredLine<'a> {
        DesiredLine::Present { line: line.as_bytes(), pattern, all, spot: InsertPosition { beside: None, fallback: None } }
    }

    fn regex(text: &str) -> Regex {
        Regex::new(text).unwrap()
    }

    fn text(edit: &Edit) -> &str {
        std::str::from_utf8(&edit.content).unwrap()
    }

    #[test]
    fn lines_are_added_replaced_and_left() {
        for (content, pattern, all, expected) in [
            ("", None, false, Ok("x=1\n")),
            ("a\n", None, false, Ok("a\nx=1\n")),
            ("a", None, false, Ok("a\nx=1")),
            ("a\r\nb\r\n", None, false, Ok("a\r\nb\r\nx=1\r\n")),
            ("a\r\nb", None, false, Ok("a\r\nb\r\nx=1")),
            ("a\nx=1\nb\n", None, false, Ok("a\nx=1\nb\n")),
            ("a\nx=1", None, false, Ok("a\nx=1")),
            ("x=1 \n", None, false, Ok("x=1 \nx=1\n")),
            ("a\nx=0\nb\n", Some("^x="), false, Ok("a\nx=1\nb\n")),
            ("a\nx=0\r\nb\n", Some("^x="), false, Ok("a\nx=1\r\nb\n")),
            ("a\nx=0", Some("^x="), false, Ok("a\nx=1")),
            ("a\n", Some("^x="), false, Ok("a\nx=1\n")),
            ("x=1\nx=1\n", Some("^x="), false, Ok("x=1\nx=1\n")),
            ("x=1\na\nx=2\n", Some("^x="), false, Err("2 lines match, among them lines 1 and 3")),
            ("x=1\na\nx=2\n", Some("^x="), true, Ok("x=1\na\nx=1\n")),
            ("x=3\nx=2", Some("^x="), true, Ok("x=1\nx=1")),
            ("\n\n", None, false, Ok("\n\nx=1\n")),
        ] {
            let pattern = pattern.map(regex);
            match (edit(content.as_bytes(), &present("x=1", pattern.as_ref(), all)), expected) {
                (Ok(edit), Ok(expected)) => {
                    assert_eq!(text(&edit), expected, "{content:?}");
                    assert_eq!(edit.is_none(), content == expected, "{content:?}");
                }
                (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{content:?}: {error}"),
                (got, _) => panic!("{content:?}: {got:?}"),
            }
        }
    }

    #[test]
    fn lines_are_removed() {
        for (content, pattern, expected, removed) in [
            ("a\nx\nb\n", None, "a\nb\n", vec![2]),
            ("x\nx\n", None, "", vec![1, 2]),
            ("a\nx", None, "a", vec![2]),
            ("x\na", None, "a", vec![1]),
            ("a\r\nx\r\n", None, "a\r\n", vec![2]),
            ("a\n", None, "a\n", vec![]),
            ("", None, "", vec![]),
            ("a1\nb\na2\n", Some("^a"), "b\n", vec![1, 3]),
        ] {
            let pattern = pattern.map(regex);
            let which = pattern.as_ref().map_or(LineSelector::Equal(b"x"), LineSelector::Matching);
            let edit = edit(content.as_bytes(), &DesiredLine::Absent(which)).unwrap();
            assert_eq!((text(&edit), &edit.removed), (expected, &removed), "{content:?}");
        }
    }

    #[test]
    fn a_new_line_goes_where_it_is_wanted() {
        let content = "[a]\nk\n[b]\nk\n";
        for (side, pattern, or, expected) in [
            (None, "", Some(End::Start), Ok("new\n[a]\nk\n[b]\nk\n")),
            (None, "", Some(End::End), Ok("[a]\nk\n[b]\nk\nnew\n")),
            (Some(Side::After), r"^\[a\]$", None, Ok("[a]\nnew\nk\n[b]\nk\n")),
            (Some(Side::After), "^k$", None, Ok("[a]\nk\n[b]\nk\nnew\n")),
            (Some(Side::Before), "^k$", None, Ok("[a]\nnew\nk\n[b]\nk\n")),
            (Some(Side::Before), "^z", None, Err("no line matches before: \"^z\"")),
            (Some(Side::After), "^z", Some(End::Start), Ok("new\n[a]\nk\n[b]\nk\n")),
        ] {
            let pattern = regex(pattern);
            let spot = InsertPosition { beside: side.map(|side| (side, &pattern)), fallback: or };
            let wish = DesiredLine::Present { line: b"new", pattern: None, all: false, spot };
            match (edit(content.as_bytes(), &wish), expected) {
                (Ok(edit), Ok(expected)) => assert_eq!(text(&edit), expected),
                (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
                (got, _) => panic!("{pattern}: {got:?}"),
            }
        }
    }

    #[test]
    fn bytes_that_are_no_text_stay() {
        let edit = edit(b"\xff\xfe\nx=0\n\x00", &present("x=1", Some(&regex("^x=")), false)).unwrap();
        assert_eq!(edit.content, b"\xff\xfe\nx=1\n\x00");
        assert_eq!(edit.replaced, [2]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// A repeated edit changes nothing, and unrelated lines stay.
        #[test]
        fn edits_converge(
            content in "([ax=01]{0,3}(\n|\r\n)){0,6}[ax=01]{0,3}",
            pattern in prop::option::of(prop::sample::select(vec!["x", "^x=", "1$", "^x=1$"])),
            all: bool,
            absent: bool,
        ) {
            let pattern = pattern.map(regex);
            let which = || pattern.as_ref().map_or(LineSelector::Equal(b"x=1"), LineSelector::Matching);
            let wish = if absent { DesiredLine::Absent(which()) } else { present("x=1", pattern.as_ref(), all) };
            if let Ok(first) = edit(content.as_bytes(), &wish) {
                let second = edit(&first.content, &wish).unwrap();
                prop_assert!(second.is_none());
                prop_assert_eq!(&second.content, &first.content);
                prop_assert_eq!(first.is_none(), first.content == content.as_bytes());
                let kept = |bytes: &[u8]| {
                    let lines = split(bytes);
                    let meant = which().numbers(&lines);
                    let others = (1..).zip(&lines).filter(|(number, _)| !meant.contains(number));
                    others.map(|(_, line)| line.text.to_vec()).collect::<Vec<_>>()
                };
                prop_assert_eq!(kept(content.as_bytes()), kept(&first.content));
            }
        }
    }
}
