//! Text from elsewhere, made safe to show: printable, on one line, and of bounded length.
//!
//! Terminals, log readers and scrapers take control characters for commands and line ends for new rows. Characters that a
//! reader cannot see, or that change the order of others, are shown as escapes (`\x1b`, `\u{202e}`). Text beyond the limit is
//! cut, and a mark shows the length of the rest.

use std::borrow::Cow;
use std::fmt::{self, Write};

/// The longest value, in characters: more than any path or message that a person reads to its end.
pub const MAX_VALUE_CHARS: usize = 2048;
/// The longest line that is one value, as a line of a diff, in characters.
pub const MAX_LINE_CHARS: usize = 8192;
/// The most combining marks on one letter: Vietnamese and Hebrew use three.
const MAX_MARKS: usize = 3;

/// Characters that count as printable and are invisible, or that change the look of the one before.
const INVISIBLE: &[std::ops::RangeInclusive<char>] = &[
    '\u{34f}'..='\u{34f}',     // combining grapheme joiner
    '\u{115f}'..='\u{1160}',   // Hangul fillers
    '\u{17b4}'..='\u{17b5}',   // Khmer inherent vowels
    '\u{180b}'..='\u{180f}',   // Mongolian variation selectors
    '\u{2800}'..='\u{2800}',   // Braille blank
    '\u{3164}'..='\u{3164}',   // Hangul filler
    '\u{fe00}'..='\u{fe0f}',   // variation selectors
    '\u{ffa0}'..='\u{ffa0}',   // halfwidth Hangul filler
    '\u{fffc}'..='\u{fffc}',   // object replacement
    '\u{1d159}'..='\u{1d159}', // null notehead
    '\u{e0000}'..='\u{e0fff}', // tags and more variation selectors
];

/// Cleans a value among others on a line. Runs of blanks become one blank, so that a value cannot look like several columns.
pub fn cell(text: &str) -> Cow<'_, str> {
    clean(text, Cleaner::cell(MAX_VALUE_CHARS))
}

/// Cleans a value that has the rest of its line for itself: blanks stay.
pub fn line(text: &str) -> Cow<'_, str> {
    clean(text, Cleaner::line(MAX_LINE_CHARS))
}

/// Cleans a value as [`cell`], up to another length.
pub fn cell_with_limit(text: &str, longest: usize) -> Cow<'_, str> {
    clean(text, Cleaner::cell(longest))
}

fn clean(text: &str, mut cleaner: Cleaner) -> Cow<'_, str> {
    if cleaner.keeps_whole(text) {
        return Cow::Borrowed(text);
    }
    // Writing to a cleaner does not fail.
    let _written = cleaner.write_str(text).is_ok();
    Cow::Owned(cleaner.finish())
}

/// True for a character that is shown as it is.
pub fn is_shown(c: char) -> bool {
    match c {
        ' '..='~' => true,
        _ if c.is_ascii() => false,
        _ => !is_invisible(c) && (c.escape_debug().len() == 1 || is_mark(c)),
    }
}

fn is_invisible(c: char) -> bool {
    INVISIBLE.iter().any(|range| range.contains(&c))
}

/// True for a printable character that is drawn onto the one before. `escape_debug` escapes these only at the beginning.
fn is_mark(c: char) -> bool {
    let mut buffer = [b'a'; 5];
    let (_, rest) = buffer.split_at_mut(1);
    let length = 1 + c.encode_utf8(rest).len();
    let text = buffer.get(..length).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default();
    c.escape_debug().len() > 1 && text.escape_debug().nth(1) == Some(c)
}

/// A writer that cleans text, as [`cell`] and [`line()`] do.
#[derive(Debug)]
pub struct Cleaner {
    text: String,
    /// The number of characters that still fit.
    room: usize,
    /// The number of characters that did not fit.
    cut: usize,
    keeps_blanks: bool,
    /// True after a blank; true at the beginning, because a column may precede.
    after_blank: bool,
    /// The number of marks on the last letter; no mark is allowed at the beginning.
    marks: usize,
}

impl Cleaner {
    /// Creates a cleaner that acts as [`cell`], with this length.
    pub fn cell(longest: usize) -> Self {
        Self { text: String::new(), room: longest, cut: 0, keeps_blanks: false, after_blank: false, marks: MAX_MARKS }
    }

    /// Creates a cleaner that acts as [`line()`], with this length.
    pub fn line(longest: usize) -> Self {
        Self { keeps_blanks: true, ..Self::cell(longest) }
    }

    /// Returns the clean text.
    pub fn finish(mut self) -> String {
        if self.cut > 0 {
            // Writing to a String does not fail.
            let _written = write!(self.text, "… ({} more characters)", self.cut).is_ok();
        }
        self.text
    }

    /// True for a text that needs no change, as nearly every text.
    fn keeps_whole(&self, text: &str) -> bool {
        let doubled = || text.contains("  ") || (self.after_blank && text.starts_with(' '));
        text.len() <= self.room && text.bytes().all(|byte| matches!(byte, b' '..=b'~')) && (self.keeps_blanks || !doubled())
    }

    fn take(&mut self, c: char) {
        let blank = c == ' ';
        if blank && self.after_blank && !self.keeps_blanks {
            return;
        }
        let mark = !c.is_ascii() && is_mark(c);
        let shown = is_shown(c) && !(mark && (self.marks >= MAX_MARKS || self.after_blank));
        self.after_blank = blank;
        self.marks = if mark { self.marks + 1 } else { 0 };
        if shown { self.push(c) } else { escape(c).chars().for_each(|c| self.push(c)) }
    }

    fn push(&mut self, c: char) {
        if self.room == 0 {
            self.cut += 1;
            return;
        }
        self.room -= 1;
        self.text.push(c);
    }
}

impl Write for Cleaner {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.keeps_whole(text) {
            self.text.push_str(text);
            self.room -= text.len();
            if let Some(last) = text.bytes().last() {
                (self.after_blank, self.marks) = (last == b' ', 0);
            }
            return Ok(());
        }
        let mut rest = text.chars();
        while self.room > 0
            && let Some(c) = rest.next()
        {
            self.take(c);
        }
        self.cut += rest.count();
        Ok(())
    }
}

fn escape(c: char) -> String {
    match (c, u32::from(c)) {
        ('\n', _) => r"\n".to_owned(),
        ('\r', _) => r"\r".to_owned(),
        ('\t', _) => r"\t".to_owned(),
        (_, code @ ..0x100) => format!(r"\x{code:02x}"),
        (_, code) => format!(r"\u{{{code:x}}}"),
    }
}

/// Escapes a JSON text of `serde_json` so that every character is visible. The value stays the same: escapes (`\u`) are
/// within strings.
pub fn json(text: &str) -> Cow<'_, str> {
    let shown = |c: char| c == '\n' || is_shown(c);
    // JSON writers have escaped the control characters below a blank; these searches process many bytes at a time.
    let plain = text.is_ascii() && !text.as_bytes().contains(&0x7f);
    if plain || text.chars().all(shown) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 64);
    let mut units = [0; 2];
    for c in text.chars() {
        if shown(c) {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut units) {
                // Writing to a String does not fail.
                let _written = write!(out, "\\u{unit:04x}").is_ok();
            }
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_are_escaped() {
        for (text, shown) in [
            ("plain text: ok", "plain text: ok"),
            ("größer – naïve 日本語 ✓ → ×", "größer – naïve 日本語 ✓ → ×"),
            ("e\u{301}", "e\u{301}"),
            ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
            ("a\nb\rc\td\x08\x07\0\x7f", r"a\nb\rc\td\x08\x07\x00\x7f"),
            ("\u{9b}31m\u{85}\u{90}\u{9d}", r"\x9b31m\x85\x90\x9d"),
            (
                "\u{202e}txt\u{202c}\u{2066}\u{2069}\u{200e}\u{200f}\u{61c}",
                r"\u{202e}txt\u{202c}\u{2066}\u{2069}\u{200e}\u{200f}\u{61c}",
            ),
            ("we\u{200b}b\u{200c}1\u{200d}\u{2060}\u{feff}\u{ad}", r"we\u{200b}b\u{200c}1\u{200d}\u{2060}\u{feff}\xad"),
            ("a\u{2028}b\u{2029}", r"a\u{2028}b\u{2029}"),
            ("\u{e0041}\u{e007f}\u{fe0f}\u{e0100}", r"\u{e0041}\u{e007f}\u{fe0f}\u{e0100}"),
            ("a\u{a0}b\u{3000}c\u{2003}", r"a\xa0b\u{3000}c\u{2003}"),
            ("\u{e000}\u{f8ff}\u{10ffff}\u{378}\u{3164}", r"\u{e000}\u{f8ff}\u{10ffff}\u{378}\u{3164}"),
            ("\u{301}on the column before", r"\u{301}on the column before"),
            ("web1    failed", "web1 failed"),
        ] {
            assert_eq!(cell(text), shown);
            assert_eq!(cell(&cell(text)), shown, "it stays as it is");
        }
        assert_eq!(line("  two  blanks\t"), r"  two  blanks\t");
        let heap: String = std::iter::once('a').chain(std::iter::repeat_n('\u{301}', 1000)).collect();
        assert_eq!(cell(&heap).matches('\u{301}').count(), MAX_MARKS);
    }

    #[test]
    fn pieces_are_cleaned_as_the_whole_is() {
        for text in ["a  b ", " a b", "a \x1b b", "ö\u{301}\u{301}\u{301}\u{301}x", "abcdefgh  ij"] {
            for (at, _) in text.char_indices() {
                let (first, second) = text.split_at(at);
                for longest in [3, MAX_VALUE_CHARS] {
                    let mut cleaner = Cleaner::cell(longest);
                    write!(cleaner, "{first}{second}").unwrap();
                    assert_eq!(cleaner.finish(), cell_with_limit(text, longest), "{text:?} at {at}");
                }
            }
        }
    }

    #[test]
    fn no_character_gets_through_that_is_not_shown() {
        let forbidden = |c: char| {
            c.is_control()
                || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{ad}')
                || matches!(c, '\u{61c}' | '\u{fff9}'..='\u{fffb}' | '\u{e000}'..='\u{f8ff}' | '\u{e0000}'..)
        };
        for c in '\0'..=char::MAX {
            let clean = cell(&format!("a{c}b")).into_owned();
            assert!(!clean.chars().any(forbidden), "{c:?} {clean}");
            assert!(clean.contains(c) || clean.contains('\\') || c == ' ', "{c:?}");
        }
    }

    #[test]
    fn long_text_is_cut_with_a_mark() {
        let long = "x".repeat(5_000_000);
        let shown = cell(&long);
        assert_eq!(shown.chars().filter(|c| *c == 'x').count(), MAX_VALUE_CHARS);
        assert!(shown.ends_with("… (4997952 more characters)"), "{}", shown.get(2048..).unwrap());
        assert!(cell(&"\x1b".repeat(5_000_000)).len() < MAX_VALUE_CHARS + 64);
        assert_eq!(cell_with_limit("abcdef", 3), "abc… (3 more characters)");
    }

    #[test]
    fn json_stays_the_same_value() {
        let value = serde_json::json!({"a": "\u{202e}\u{9b}\x7f\x1b\u{e0041}", "b": ["ö", "x"]});
        for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            let clean = json(&text);
            assert!(clean.chars().all(|c| c == '\n' || is_shown(c)), "{clean}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&clean).unwrap(), value);
        }
    }
}
