//! Lexer for expressions, used by `expr` and `jet`.

use super::error::{ExprError, TemplateErrorKind};

/// A token with its position.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::template) struct Token<'a> {
    pub(in crate::template) kind: TokenKind<'a>,
    /// The start of the token in the expression, in bytes.
    pub(in crate::template) offset: usize,
    /// White space or a comment precedes the token.
    pub(in crate::template) after_space: bool,
    /// The quote character of a text.
    pub(in crate::template) quote: Option<char>,
}

/// The kind of a token, with its content.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::template) enum TokenKind<'a> {
    /// A name, including the forms `$env` and `#acc`.
    Name(&'a str),
    /// A number, as written.
    Literal(&'a str),
    /// The bytes of `b"…"`.
    Bytes(Vec<u8>),
    /// A text, without quotes and escapes.
    Text(String),
    /// An operator or a delimiter.
    Sign(&'a str),
}

/// Operators and delimiters; longer signs come first, so that the longest match wins.
const SIGNS: &[&str] = &[
    "**", "..", "==", "!=", "<=", ">=", "&&", "||", "??", "?.", "+", "-", "*", "/", "%", "^", "<", ">", "!", "?", ":", "|", ",",
    ".", ";", "=", "(", ")", "[", "]", "{", "}",
];

/// Splits an expression into tokens, without comments and white space.
///
/// # Errors
/// The text has a part that is no token.
pub(in crate::template) fn lex(source: &str) -> Result<Vec<Token<'_>>, ExprError> {
    let mut tokens = Vec::new();
    let mut at = 0;
    // The end of the last token.
    let mut ended = 0;
    while let Some(rest) = source.get(at..).filter(|rest| !rest.is_empty()) {
        let length = match rest.chars().next() {
            Some(c) if c.is_whitespace() => {
                at += c.len_utf8();
                continue;
            }
            _ if rest.starts_with("//") => {
                at += rest.find('\n').unwrap_or(rest.len());
                continue;
            }
            _ if rest.starts_with("/*") => {
                at += rest
                    .find("*/")
                    .ok_or_else(|| ExprError::new(at, TemplateErrorKind::Unclosed, "the comment is not closed"))?
                    + 2;
                continue;
            }
            Some(quote @ ('"' | '\'' | '`')) => {
                let (text, length) = quoted(rest, quote, false).map_err(|error| error.shifted(at))?;
                let text = String::from_utf8(text).map_err(|_| ExprError::syntax(at, "the text is not UTF-8"))?;
                tokens.push(Token { kind: TokenKind::Text(text), offset: at, after_space: at > ended, quote: Some(quote) });
                at += length;
                ended = at;
                continue;
            }
            Some('b' | 'B') if matches!(rest.as_bytes().get(1), Some(b'"' | b'\'')) => {
                let quote = if rest.as_bytes().get(1) == Some(&b'"') { '"' } else { '\'' };
                let behind = rest.get(1..).unwrap_or_default();
                let (bytes, length) = quoted(behind, quote, true).map_err(|error| error.shifted(at + 1))?;
                tokens.push(Token { kind: TokenKind::Bytes(bytes), offset: at, after_space: at > ended, quote: None });
                at += 1 + length;
                ended = at;
                continue;
            }
            Some(first) if first == '#' || first == '$' || is_letter(first) => {
                let is_part = |c: char| c.is_ascii_digit() || is_letter(c);
                let begin = first.len_utf8();
                begin + rest.get(begin..).unwrap_or_default().find(|c| !is_part(c)).unwrap_or(rest.len() - begin)
            }
            Some('0'..='9') => number(rest),
            Some('.') if rest.as_bytes().get(1).is_some_and(u8::is_ascii_digit) => number(rest),
            Some(other) => {
                let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign));
                sign.ok_or_else(|| ExprError::syntax(at, format!("unexpected '{other}'")))?.len()
            }
            None => break,
        };
        let word = rest.get(..length).unwrap_or_default();
        let kind = match word.as_bytes() {
            [b'0'..=b'9', ..] | [b'.', b'0'..=b'9', ..] => TokenKind::Literal(word),
            [b'#' | b'$', ..] => TokenKind::Name(word),
            _ if word.starts_with(is_letter) => TokenKind::Name(word),
            _ => TokenKind::Sign(word),
        };
        tokens.push(Token { kind, offset: at, after_space: at > ended, quote: None });
        at += length;
        ended = at;
    }
    Ok(tokens)
}

fn is_letter(c: char) -> bool {
    c == '_' || c.is_alphabetic()
}

/// Returns the length of a number; `1..3` is a number and a range.
fn number(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let digits = |from: usize| {
        let is_digit = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_';
        from + bytes.iter().skip(from).take_while(is_digit).count()
    };
    let mut end = digits(0);
    if bytes.get(end) == Some(&b'.') && bytes.get(end + 1) != Some(&b'.') {
        end = digits(end + 1);
    }
    let is_hex = matches!(bytes.get(..2), Some(b"0x" | b"0X"));
    if !is_hex && matches!(bytes.get(end - 1), Some(b'e' | b'E')) && matches!(bytes.get(end), Some(b'+' | b'-')) {
        end = digits(end + 1);
    }
    end
}

/// Returns the content of a literal that begins with its quote, and the length of the literal.
///
/// In a text, the escapes `\x41` and `\101` are characters. In `b"…"` they are single bytes, and `\u` is unknown.
fn quoted(rest: &str, quote: char, is_bytes: bool) -> Result<(Vec<u8>, usize), ExprError> {
    let mut content = Vec::new();
    let mut push = |code: u32| {
        let byte = u8::try_from(code).ok().filter(|_| is_bytes);
        match (byte, char::from_u32(code)) {
            (Some(byte), _) => content.push(byte),
            (None, Some(c)) => content.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            (None, None) => return None,
        }
        Some(())
    };
    let mut chars = rest.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        let wrong = || ExprError::syntax(at, "unknown escape in the text; a backslash is written \\\\");
        let code = match c {
            // Within backticks, a doubled backtick is one backtick.
            '`' if quote == '`' && rest.get(at + 1..).is_some_and(|behind| behind.starts_with('`')) => {
                chars.next();
                u32::from(c)
            }
            c if c == quote => return Ok((content, at + 1)),
            '\\' if quote != '`' => match chars.next().map(|(_, c)| c).ok_or_else(wrong)? {
                'a' => 7,
                'b' => 8,
                'f' => 12,
                'n' => 10,
                'r' => 13,
                't' => 9,
                'v' => 11,
                plain @ ('\\' | '"' | '\'' | '`') => u32::from(plain),
                first @ '0'..='3' => octal_escape(first, &mut chars).ok_or_else(wrong)?,
                'x' => hex_escape(&mut chars, 2).ok_or_else(wrong)?,
                'u' if !is_bytes && rest.get(at + 2..).is_some_and(|behind| behind.starts_with('{')) => {
                    braced_escape(&mut chars).ok_or_else(wrong)?
                }
                'u' if !is_bytes => hex_escape(&mut chars, 4).ok_or_else(wrong)?,
                'U' if !is_bytes => hex_escape(&mut chars, 8).ok_or_else(wrong)?,
                _ => return Err(wrong()),
            },
            c if is_bytes && !c.is_ascii() => {
                c.encode_utf8(&mut [0; 4]).bytes().try_for_each(|byte| push(byte.into())).ok_or_else(wrong)?;
                continue;
            }
            c => u32::from(c),
        };
        push(code).ok_or_else(wrong)?;
    }
    Err(ExprError::new(0, TemplateErrorKind::Unclosed, "the text is not closed"))
}

/// Reads a number of `digits` hexadecimal digits.
fn hex_escape(chars: &mut impl Iterator<Item = (usize, char)>, digits: usize) -> Option<u32> {
    (0..digits).try_fold(0_u32, |code, _| code.checked_mul(16)?.checked_add(chars.next()?.1.to_digit(16)?))
}

/// Reads the rest of `\101`.
fn octal_escape(first: char, chars: &mut impl Iterator<Item = (usize, char)>) -> Option<u32> {
    (0..2).try_fold(first.to_digit(8)?, |code, _| Some(code * 8 + chars.next()?.1.to_digit(8)?))
}

/// Reads the rest of `\u{e9}`.
fn braced_escape(chars: &mut impl Iterator<Item = (usize, char)>) -> Option<u32> {
    let digits: String = chars.skip(1).map(|(_, c)| c).take(7).take_while(|c| *c != '}').collect();
    u32::from_str_radix(&digits, 16).ok().filter(|_| digits.len() < 7)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(source: &str) -> String {
        let word = |token: Token<'_>| match token.kind {
            TokenKind::Name(word) => format!("n:{word}"),
            TokenKind::Literal(word) => format!("l:{word}"),
            TokenKind::Bytes(bytes) => format!("b:{bytes:?}"),
            TokenKind::Text(text) => format!("t:{text}"),
            TokenKind::Sign(sign) => sign.to_owned(),
        };
        lex(source).map_or_else(
            |error| format!("error at {}", error.offset),
            |tokens| tokens.into_iter().map(word).collect::<Vec<_>>().join(" "),
        )
    }

    #[test]
    fn expressions_split_into_tokens() {
        let cases = [
            ("Data.port+1", "n:Data . n:port + l:1"),
            ("1..3", "l:1 .. l:3"),
            ("5. 1.e3", "l:5. l:1.e3"),
            ("\u{e9}a_1", "n:\u{e9}a_1"),
            (r"'\101\u{e9}' `a``b`", "t:A\u{e9} t:a`b"),
            ("1.5 .5 1e+06 0xFe+1 1_000", "l:1.5 l:.5 l:1e+06 l:0xFe + l:1 l:1_000"),
            ("a?.b ?? c ? d : e", "n:a ?. n:b ?? n:c ? n:d : n:e"),
            ("{# > 5} #acc $env", "{ n:# > l:5 } n:#acc n:$env"),
            (r#""a\"b\n\u00e9" 'it''s' `raw\`"#, "t:a\"b\né t:it t:s t:raw\\"),
            ("1 // c\n+ /* d */ 2", "l:1 + l:2"),
            (r#"b"\x00\377é" B'\''"#, "b:[0, 255, 195, 169] b:[39]"),
            (r"b'\u00e9'", "error at 2"),
            ("\"open", "error at 0"),
            (r#""\q""#, "error at 1"),
            (r"'\/'", "error at 1"),
            ("a § b", "error at 2"),
            ("/* open", "error at 0"),
        ];
        for (source, expected) in cases {
            assert_eq!(shown(source), expected, "{source}");
        }
    }

    proptest! {
        #[test]
        fn any_text_lexes(source in "[\\x20-\\x7e\u{e9}\\n]{0,30}") {
            drop(lex(&source));
        }
    }
}
