//! The translation of regular expressions from the syntax of Go to the syntax of the crate `regex`.
//!
//! Both follow RE2. Differences: braces that repeat nothing, the content of classes, and syntax that only one side has. In
//! Go, `\d`, `\w`, `\s` and `\b` mean ASCII.

use std::fmt::Write as _;

/// The highest repeat count that Go takes.
const MAX_REPEAT: u32 = 1000;

/// Translates an expression. The error names the part that Go refuses.
pub(super) fn translate(pattern: &str) -> Result<String, String> {
    let mut translator = Translator { rest: pattern, out: String::with_capacity(pattern.len() + 16), repeated: false };
    while let Some(c) = translator.rest.chars().next() {
        translator.step(c)?;
    }
    Ok(translator.out)
}

struct Translator<'p> {
    rest: &'p str,
    out: String,
    /// The last token was a repetition.
    repeated: bool,
}

impl Translator<'_> {
    fn skip(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }

    fn step(&mut self, c: char) -> Result<(), String> {
        let was_repeated = std::mem::take(&mut self.repeated);
        match c {
            '\\' => self.escape(false),
            '[' => self.class(),
            '(' if self.rest.starts_with("(?") => self.group(),
            '*' | '+' | '?' => {
                self.repetition(1, was_repeated)?;
                Ok(())
            }
            '{' => match repetition(self.rest) {
                Some((length, most)) if most <= MAX_REPEAT => self.repetition(length, was_repeated),
                Some((length, _)) => {
                    Err(format!("the repeat count {} is larger than {MAX_REPEAT}", self.rest.get(..length).unwrap_or_default()))
                }
                // Go takes any other brace as a literal.
                None => {
                    self.out.push_str("\\{");
                    self.skip(1);
                    Ok(())
                }
            },
            plain => {
                self.out.push(plain);
                self.skip(plain.len_utf8());
                Ok(())
            }
        }
    }

    /// Translates `*`, `+`, `?` or `{1,2}`, with a `?` behind a lazy repetition.
    fn repetition(&mut self, length: usize, again: bool) -> Result<(), String> {
        if again {
            return Err("a repetition of a repetition needs a group".to_owned());
        }
        let lazy = self.rest.get(length..).is_some_and(|rest| rest.starts_with('?'));
        let length = length + usize::from(lazy);
        self.out.push_str(self.rest.get(..length).unwrap_or_default());
        self.skip(length);
        self.repeated = true;
        Ok(())
    }

    /// Translates `(?:`, `(?i)`, `(?P<name>`, and refuses flags that Go lacks.
    fn group(&mut self) -> Result<(), String> {
        let inside = self.rest.get(2..).unwrap_or_default();
        if !inside.starts_with("P<") && !inside.starts_with('<') {
            let flags = inside.find([':', ')']).and_then(|end| inside.get(..end)).unwrap_or(inside);
            if let Some(flag) = flags.chars().find(|flag| !matches!(flag, 'i' | 'm' | 's' | 'U' | '-')) {
                return Err(format!("(?{flag} is not supported"));
            }
        }
        self.out.push_str("(?");
        self.skip(2);
        Ok(())
    }

    /// Translates an escape sequence, outside of a class or in a class.
    fn escape(&mut self, in_class: bool) -> Result<(), String> {
        let Some(c) = self.rest.chars().nth(1) else { return Err("the expression ends in a backslash".to_owned()) };
        let length = 1 + c.len_utf8();
        let ascii = |plain: &'static str, within: &'static str| if in_class { within } else { plain };
        match c {
            'd' => self.out.push_str(ascii("[0-9]", "0-9")),
            'D' => self.out.push_str("[^0-9]"),
            'w' => self.out.push_str(ascii("[0-9A-Za-z_]", "0-9A-Za-z_")),
            'W' => self.out.push_str("[^0-9A-Za-z_]"),
            's' => self.out.push_str(ascii("[\\t\\n\\x0C\\r ]", "\\t\\n\\x0C\\r ")),
            'S' => self.out.push_str("[^\\t\\n\\x0C\\r ]"),
            'b' | 'B' if !in_class => {
                // Writing to a string can't fail.
                let _written = write!(self.out, "(?-u:\\{c})");
            }
            'Q' if !in_class => {
                let quoted = self.rest.get(2..).unwrap_or_default();
                let (text, end) = match quoted.find("\\E") {
                    Some(end) => (quoted.get(..end).unwrap_or_default(), 2 + end + 2),
                    None => (quoted, self.rest.len()),
                };
                self.out.push_str(&regex::escape(text));
                self.skip(end);
                return Ok(());
            }
            'x' | 'p' | 'P' if self.rest.get(2..).is_some_and(|rest| rest.starts_with('{')) => {
                let end = self.rest.find('}').map_or(self.rest.len(), |end| end + 1);
                self.out.push_str(self.rest.get(..end).unwrap_or_default());
                self.skip(end);
                return Ok(());
            }
            'x' | 'p' | 'P' | 'A' | 'z' | 'a' | 'f' | 'n' | 'r' | 't' | 'v' => {
                self.out.push('\\');
                self.out.push(c);
            }
            '0'..='7' => return self.octal(),
            c if c.is_ascii_punctuation() => self.out.push_str(&literal(c)),
            other => return Err(format!("unrecognized escape sequence \\{other}")),
        }
        self.skip(length);
        Ok(())
    }

    /// Translates `\0` or `\101`, a character by its octal number. A lone digit above zero would be a reference to a group.
    fn octal(&mut self) -> Result<(), String> {
        let digits: String = self.rest.chars().skip(1).take(3).take_while(|c| ('0'..='7').contains(c)).collect();
        if digits.len() == 1 && digits != "0" {
            return Err(format!("unrecognized escape sequence \\{digits}"));
        }
        let code = u32::from_str_radix(&digits, 8).unwrap_or_default();
        // Writing to a string can't fail.
        let _written = write!(self.out, "\\x{{{code:x}}}");
        self.skip(1 + digits.len());
        Ok(())
    }

    /// Translates a character of a class. Returns true for an escape that means several characters.
    fn class_character(&mut self) -> Result<bool, String> {
        let Some(c) = self.rest.chars().next() else { return Ok(false) };
        if c == '\\' {
            let several = self.rest.chars().nth(1).is_some_and(|c| "dDwWsSpP".contains(c));
            self.escape(true)?;
            return Ok(several);
        }
        self.out.push_str(&literal(c));
        self.skip(c.len_utf8());
        Ok(false)
    }

    /// Translates a class. Within a class, only ranges, escapes and names of classes have a meaning.
    fn class(&mut self) -> Result<(), String> {
        let negated = self.rest.starts_with("[^");
        self.out.push_str(if negated { "[^" } else { "[" });
        self.skip(1 + usize::from(negated));
        let mut first = true;
        loop {
            let Some(c) = self.rest.chars().next() else { return Err("missing closing ]".to_owned()) };
            match c {
                ']' if !first => {
                    self.out.push(']');
                    self.skip(1);
                    return Ok(());
                }
                '[' if self.rest.starts_with("[:") && self.rest.contains(":]") => {
                    let end = self.rest.find(":]").map_or(0, |end| end + 2);
                    self.out.push_str(self.rest.get(..end).unwrap_or_default());
                    self.skip(end);
                }
                _ if self.class_character()? => {}
                // A minus between two characters makes a range. Elsewhere, a minus is a literal.
                _ if self.rest.starts_with('-') && !self.rest.starts_with("-]") && self.rest.len() > 1 => {
                    self.out.push('-');
                    self.skip(1);
                    self.class_character()?;
                }
                _ => {}
            }
            first = false;
        }
    }
}

/// The escaped form of a literal character.
fn literal(c: char) -> String {
    regex::escape(c.encode_utf8(&mut [0; 4]))
}

/// The length of `{1}`, `{1,}` or `{1,2}` at the beginning of a text, and its largest number.
fn repetition(text: &str) -> Option<(usize, u32)> {
    let inside = text.strip_prefix('{')?;
    let end = inside.find('}')?;
    let inside = inside.get(..end)?;
    let (least, most) = inside.split_once(',').map_or((inside, None), |(least, most)| (least, Some(most)));
    let number = |digits: &str| {
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        // A number that does not fit is above the limit.
        plain.then(|| digits.parse().unwrap_or(u32::MAX))
    };
    let least = number(least)?;
    let most = match most {
        None | Some("") => least,
        Some(most) => number(most)?,
    };
    Some((end + 2, least.max(most)))
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::*;

    /// The expected results are those of Go's package `regexp`; none for an expression that Go refuses.
    #[test]
    fn translated_expressions_match_as_in_go() {
        for (pattern, text, expected) in [
            ("a{b", "a{b", Some(true)),
            ("a{1", "a{1", Some(true)),
            ("a}", "a}", Some(true)),
            ("a{,2}", "a{,2}", Some(true)),
            ("a{2}", "aa", Some(true)),
            ("^a{2,}$", "aaa", Some(true)),
            ("a{x}", "a{x}", Some(true)),
            ("{{.*}}", "{{x}}", Some(true)),
            ("{", "{", Some(true)),
            ("{2}", "", None),
            ("a{2,1}", "aa", None),
            ("a{1001}", "", None),
            ("x{1000}", "", Some(false)),
            ("a]", "a]", Some(true)),
            ("[[]", "[", Some(true)),
            ("[]a]+", "a]", Some(true)),
            ("[^]a]", "b", Some(true)),
            ("[[:alpha:]]", "a", Some(true)),
            ("[a&&b]+", "&", Some(true)),
            ("[a~~b]+", "~", Some(true)),
            ("^[a-z-]+$", "a-b", Some(true)),
            ("[-a]", "-", Some(true)),
            ("[a--b]+", "", None),
            ("[z-a]", "", None),
            ("[\\d-]", "-", Some(true)),
            ("[\\w.]+", "a.b", Some(true)),
            ("\\w", "\u{e9}", Some(false)),
            ("\\d", "\u{663}", Some(false)),
            ("\\s", "\u{a0}", Some(false)),
            ("\\W", "\u{e9}", Some(true)),
            ("\\bab\\b", "x ab y", Some(true)),
            ("\\pL", "\u{e9}", Some(true)),
            ("\\p{Greek}", "\u{3b1}", Some(true)),
            ("\\Qx.\\E", "x.", Some(true)),
            ("\\Qx.", "xy", Some(false)),
            ("\\x78", "x", Some(true)),
            ("\\x{78}", "x", Some(true)),
            ("\\101", "A", Some(true)),
            ("\\1", "", None),
            ("\\u0078", "", None),
            ("\\Z", "", None),
            ("\\<ab", "<ab", Some(true)),
            ("\\/\\-\\_\\@\\\"", "/-_@\"", Some(true)),
            ("x++", "", None),
            ("x**", "", None),
            ("x*?", "", Some(true)),
            ("x*??", "", None),
            ("(x*)*", "", Some(true)),
            ("(?i)AB", "ab", Some(true)),
            ("(?i:A)", "a", Some(true)),
            ("(?s)a.b", "a\nb", Some(true)),
            ("a.b", "a\nb", Some(false)),
            ("(?x)a b", "", None),
            ("(?P<n>a)(?<m>b)", "ab", Some(true)),
            ("(?=a)", "", None),
            ("(a", "", None),
            ("a)", "", None),
            ("[a", "", None),
            ("a\\", "", None),
            ("a#b c", "a#b c", Some(true)),
            ("", "x", Some(true)),
        ] {
            let found = translate(pattern).ok().and_then(|pattern| Regex::new(&pattern).ok());
            assert_eq!(found.map(|regex| regex.is_match(text)), expected, "{pattern} {:?}", translate(pattern));
        }
    }
}
