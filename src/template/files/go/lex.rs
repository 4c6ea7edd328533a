//! Lexer for Go templates: text and actions, with actions as tokens.

/// White space that a trim marker removes, and that separates tokens.
const SPACE: [char; 4] = [' ', '\t', '\r', '\n'];

/// A token of an action, with its position.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct GoToken<'a> {
    pub(super) kind: GoTokenKind<'a>,
    /// In bytes from the beginning of the template.
    pub(super) at: usize,
    /// The end, in bytes from the beginning of the template.
    pub(super) end: usize,
    /// White space precedes the token.
    pub(super) after_space: bool,
}

/// The kind of a token, with its content.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum GoTokenKind<'a> {
    /// `.name`, without the dot.
    Field(&'a str),
    /// `.` alone.
    Dot,
    /// `$name`, with the dollar.
    Variable(&'a str),
    /// A keyword, a constant or a function.
    Name(&'a str),
    Int(i64),
    Float(f64),
    Text(String),
    /// `( ) | , := =`
    Sign(&'static str),
}

/// A segment of a template.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum GoSegment<'a> {
    Text(&'a str),
    Action {
        /// The start, with the delimiter.
        at: usize,
        /// The end, with the delimiter.
        end: usize,
        tokens: Vec<GoToken<'a>>,
    },
}

/// A syntax error with its position in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GoSyntaxError {
    pub(super) at: usize,
    pub(super) message: String,
}

pub(super) fn syntax_error<T>(at: usize, message: impl Into<String>) -> Result<T, GoSyntaxError> {
    Err(GoSyntaxError { at, message: message.into() })
}

/// Splits a template into text and actions.
pub(super) fn lex<'a>(source: &'a str, delimiters: (&str, &str)) -> Result<Vec<GoSegment<'a>>, GoSyntaxError> {
    let (left, right) = delimiters;
    if left.is_empty() || right.is_empty() {
        return syntax_error(0, "delimiters must not be empty");
    }
    let mut pieces = Vec::new();
    let mut at = 0;
    let mut trim = false;
    loop {
        let rest = source.get(at..).unwrap_or_default();
        let found = rest.find(left);
        let mut text = rest.get(..found.unwrap_or(rest.len())).unwrap_or_default();
        if trim {
            text = text.trim_start_matches(SPACE);
        }
        let begin = found.map(|found| at + found);
        let inside = begin.map_or(0, |begin| begin + left.len());
        let after = source.get(inside..).unwrap_or_default();
        let trims = begin.is_some() && after.strip_prefix('-').is_some_and(|after| after.starts_with(SPACE));
        if trims {
            text = text.trim_end_matches(SPACE);
        }
        if !text.is_empty() {
            pieces.push(GoSegment::Text(text));
        }
        let Some(begin) = begin else { return Ok(pieces) };
        let mut action = ActionLexer { source, at: inside + if trims { 2 } else { 0 }, right, begin };
        if action.rest().starts_with("/*") {
            trim = action.comment()?;
        } else {
            let words;
            (words, trim) = action.tokens()?;
            pieces.push(GoSegment::Action { at: begin, end: action.at, tokens: words });
        }
        at = action.at;
    }
}

/// The lexer of one action.
struct ActionLexer<'a, 'r> {
    source: &'a str,
    at: usize,
    right: &'r str,
    /// The start of the left delimiter, in bytes.
    begin: usize,
}

impl<'a> ActionLexer<'a, '_> {
    fn rest(&self) -> &'a str {
        self.source.get(self.at..).unwrap_or_default()
    }

    /// Takes the end of the action, when it comes next. True when the following text is trimmed.
    fn take_end(&mut self, spaced: bool) -> Option<bool> {
        let rest = self.rest();
        if rest.starts_with(self.right) {
            self.at += self.right.len();
            return Some(false);
        }
        let trims = spaced && rest.strip_prefix('-').is_some_and(|rest| rest.starts_with(self.right));
        trims.then(|| {
            self.at += 1 + self.right.len();
            true
        })
    }

    fn comment(&mut self) -> Result<bool, GoSyntaxError> {
        let Some(length) = self.rest().find("*/") else { return syntax_error(self.begin, "the comment is not closed") };
        self.at += length + 2;
        let spaced = self.rest().starts_with(SPACE);
        self.at += usize::from(spaced);
        let Some(trim) = self.take_end(spaced) else {
            return syntax_error(self.at, "a comment must end its action, with \"*/\" right before the delimiter");
        };
        Ok(trim)
    }

    fn tokens(&mut self) -> Result<(Vec<GoToken<'a>>, bool), GoSyntaxError> {
        let mut words = Vec::new();
        let mut spaced = true;
        loop {
            let rest = self.rest();
            let space = rest.len() - rest.trim_start_matches(SPACE).len();
            self.at += space;
            spaced |= space > 0;
            if let Some(trim) = self.take_end(spaced) {
                return Ok((words, trim));
            }
            let at = self.at;
            let Some(first) = self.rest().chars().next() else {
                return syntax_error(self.begin, "the action is not closed");
            };
            let word = self.token(first)?;
            words.push(GoToken { kind: word, at, end: self.at, after_space: spaced });
            spaced = false;
        }
    }

    fn token(&mut self, first: char) -> Result<GoTokenKind<'a>, GoSyntaxError> {
        let rest = self.rest();
        let digit_follows = rest.as_bytes().get(1).is_some_and(u8::is_ascii_digit);
        for sign in ["(", ")", "|", ",", ":=", "="] {
            if rest.starts_with(sign) {
                self.at += sign.len();
                return Ok(GoTokenKind::Sign(sign));
            }
        }
        match first {
            '"' => self.quoted('"').map(GoTokenKind::Text),
            '\'' => self.character(),
            '`' => self.raw(),
            '$' => Ok(GoTokenKind::Variable(self.take(1 + name_length(rest.get(1..).unwrap_or_default())))),
            '.' if !digit_follows => {
                let length = name_length(rest.get(1..).unwrap_or_default());
                let taken = self.take(1 + length);
                Ok(if length == 0 { GoTokenKind::Dot } else { GoTokenKind::Field(taken.get(1..).unwrap_or_default()) })
            }
            '0'..='9' | '.' => self.number(),
            '+' | '-' if digit_follows || rest.get(1..).is_some_and(|rest| rest.starts_with('.')) => self.number(),
            _ if is_name(first) => Ok(GoTokenKind::Name(self.take(name_length(rest)))),
            other => syntax_error(self.at, format!("unexpected {other:?} in an action")),
        }
    }

    fn take(&mut self, length: usize) -> &'a str {
        let taken = self.rest().get(..length).unwrap_or_default();
        self.at += taken.len();
        taken
    }

    fn number(&mut self) -> Result<GoTokenKind<'a>, GoSyntaxError> {
        let at = self.at;
        let mut previous = ' ';
        let length = self.rest().find(|c: char| {
            let sign = matches!(c, '+' | '-') && matches!(previous, ' ' | 'e' | 'E');
            let part = c.is_ascii_alphanumeric() || matches!(c, '_' | '.') || sign;
            previous = c;
            !part
        });
        let text = self.take(length.unwrap_or(self.rest().len()));
        number(text).map_or_else(|| syntax_error(at, format!("bad number {text}")), Ok)
    }

    fn raw(&mut self) -> Result<GoTokenKind<'a>, GoSyntaxError> {
        let inside = self.rest().get(1..).unwrap_or_default();
        let Some(length) = inside.find('`') else { return syntax_error(self.at, "the text is not closed") };
        let text = inside.get(..length).unwrap_or_default().replace('\r', "");
        self.at += length + 2;
        Ok(GoTokenKind::Text(text))
    }

    fn character(&mut self) -> Result<GoTokenKind<'a>, GoSyntaxError> {
        let at = self.at;
        let text = self.quoted('\'')?;
        let mut characters = text.chars();
        match (characters.next(), characters.next()) {
            (Some(only), None) => Ok(GoTokenKind::Int(i64::from(u32::from(only)))),
            _ => syntax_error(at, "'…' takes one character; write texts as \"…\""),
        }
    }

    fn quoted(&mut self, quote: char) -> Result<String, GoSyntaxError> {
        let at = self.at;
        let mut bytes = Vec::new();
        let mut characters = self.rest().char_indices().skip(1);
        loop {
            match characters.next() {
                None | Some((_, '\n')) => return syntax_error(at, "the text is not closed"),
                Some((length, c)) if c == quote => {
                    self.at += length + 1;
                    break;
                }
                Some((length, '\\')) => {
                    let escaped = escape(self.rest().get(length + 1..).unwrap_or_default(), quote);
                    let Some((value, taken)) = escaped else { return syntax_error(at + length, "unknown escape in a text") };
                    bytes.extend(value);
                    // The escape consumed `taken` bytes, all ASCII.
                    for _ in 0..taken {
                        characters.next();
                    }
                }
                Some((_, c)) => bytes.extend(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        String::from_utf8(bytes).or_else(|_| syntax_error(at, "the escapes of the text do not make UTF-8"))
    }
}

fn is_name(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

fn name_length(text: &str) -> usize {
    text.find(|c| !is_name(c)).unwrap_or(text.len())
}

/// Returns the bytes of an escape, and its length after the backslash.
fn escape(rest: &str, quote: char) -> Option<(Vec<u8>, usize)> {
    let first = rest.chars().next()?;
    let code = |from: usize, length: usize, radix| {
        let digits = rest.get(from..from + length)?;
        let plain = digits.chars().all(|c| c.is_digit(radix));
        plain.then(|| u32::from_str_radix(digits, radix).ok()).flatten()
    };
    let byte = |code: Option<u32>| Some(vec![u8::try_from(code?).ok()?]);
    let character = |code: Option<u32>| Some(char::from_u32(code?)?.to_string().into_bytes());
    let simple = |byte: u8| Some((vec![byte], 1));
    match first {
        'a' => simple(7),
        'b' => simple(8),
        'f' => simple(12),
        'n' => simple(b'\n'),
        'r' => simple(b'\r'),
        't' => simple(b'\t'),
        'v' => simple(11),
        '\\' => simple(b'\\'),
        c if c == quote => simple(u8::try_from(quote).ok()?),
        'x' => byte(code(1, 2, 16)).map(|value| (value, 3)),
        '0'..='7' => byte(code(0, 3, 8)).map(|value| (value, 3)),
        'u' => character(code(1, 4, 16)).map(|value| (value, 5)),
        'U' => character(code(1, 8, 16)).map(|value| (value, 9)),
        _ => None,
    }
}

/// Parses a number as Go writes it; integers in all bases.
fn number(text: &str) -> Option<GoTokenKind<'static>> {
    let clean = text.replace('_', "").to_ascii_lowercase();
    let (sign, digits) = match clean.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", clean.strip_prefix('+').unwrap_or(&clean)),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x', ..] => (16, digits.get(2..)?),
        [b'0', b'o', ..] => (8, digits.get(2..)?),
        [b'0', b'b', ..] => (2, digits.get(2..)?),
        [b'0', b'0'..=b'7', ..] if digits.bytes().all(|b| b.is_ascii_digit() && b < b'8') => (8, digits),
        _ => (10, digits),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    if let Ok(whole) = i64::from_str_radix(&format!("{sign}{digits}"), radix) {
        return Some(GoTokenKind::Int(whole));
    }
    let float = digits.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'+' | b'-'));
    let value: f64 = format!("{sign}{digits}").parse().ok().filter(|_| float && radix == 10)?;
    value.is_finite().then_some(GoTokenKind::Float(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_go() {
        for (text, expected) in [
            ("0", Some(GoTokenKind::Int(0))),
            ("-12", Some(GoTokenKind::Int(-12))),
            ("+7", Some(GoTokenKind::Int(7))),
            ("0x1F", Some(GoTokenKind::Int(31))),
            ("0o17", Some(GoTokenKind::Int(15))),
            ("017", Some(GoTokenKind::Int(15))),
            ("0b101", Some(GoTokenKind::Int(5))),
            ("1_000", Some(GoTokenKind::Int(1000))),
            ("1.5", Some(GoTokenKind::Float(1.5))),
            (".5", Some(GoTokenKind::Float(0.5))),
            ("1e3", Some(GoTokenKind::Float(1000.0))),
            ("-2.5e-3", Some(GoTokenKind::Float(-0.0025))),
            ("0x", None),
            ("1.2.3", None),
            ("12ab", None),
            ("--1", None),
            ("0x-1", None),
            ("9e999", None),
        ] {
            assert_eq!(number(text), expected, "{text}");
        }
    }

    #[test]
    fn texts_have_escapes() {
        let of = |source: &'static str| match lex(source, ("{{", "}}")).map(|mut pieces| pieces.pop()) {
            Ok(Some(GoSegment::Action { tokens: words, .. })) => words.first().map(|token| token.kind.clone()),
            _ => None,
        };
        for (source, expected) in [
            (r#"{{"a\tb\n\"\\"}}"#, Some(GoTokenKind::Text("a\tb\n\"\\".into()))),
            (r#"{{"\x41\101\u00e9\U0001F600"}}"#, Some(GoTokenKind::Text("AAé😀".into()))),
            (r#"{{"\xc3\xa9"}}"#, Some(GoTokenKind::Text("é".into()))),
            (r"{{'a'}}", Some(GoTokenKind::Int(97))),
            (r"{{'\n'}}", Some(GoTokenKind::Int(10))),
            (r"{{'é'}}", Some(GoTokenKind::Int(233))),
            ("{{`a\\n\"`}}", Some(GoTokenKind::Text("a\\n\"".into()))),
            (r#"{{"}}"}}"#, Some(GoTokenKind::Text("}}".into()))),
            (r#"{{"\q"}}"#, None),
            (r#"{{"\x4"}}"#, None),
            (r#"{{"\xff"}}"#, None),
            ("{{\"a\nb\"}}", None),
            ("{{'ab'}}", None),
            ("{{`a}}", None),
        ] {
            assert_eq!(of(source), expected, "{source}");
        }
    }
}
