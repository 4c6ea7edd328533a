//! Interpolation: finds the expressions `{{ expr }}` and `${ expr }` in a text.

/// The maximum distance from an opener to its end, in bytes; a longer expression is plain text.
const MAX_EXPRESSION_LENGTH: usize = 64 << 10;

/// A segment of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Segment<'a> {
    /// Literal text.
    Text(&'a str),
    /// An expression, without its delimiters and the white space around it.
    Expr {
        source: &'a str,
        /// The start of the expression in the text, in bytes.
        offset: usize,
    },
}

/// Splits a text into its segments, in order.
///
/// `{{` ends at the first `}}`, and `${` at the matching `}`. Both ends must be outside of quotes.
/// Quotes are `"` and `'` with backslash escapes, and backticks without escapes.
/// `${{ x }}` is a dollar and `{{ x }}`. An opener without an end is text.
pub(super) fn scan(text: &str) -> Vec<Segment<'_>> {
    let mut segments = Vec::new();
    let (mut done, mut at) = (0, 0);
    while let Some((opener, body)) = next_opener(text, at) {
        let rest = text.get(body..).unwrap_or_default();
        let end = if text.as_bytes().get(opener) == Some(&b'$') { end_of_dollar(rest) } else { end_of_braces(rest) };
        let Some((length, closer)) = end else {
            at = body;
            continue;
        };
        if opener > done {
            segments.push(Segment::Text(text.get(done..opener).unwrap_or_default()));
        }
        let inner = rest.get(..length).unwrap_or_default();
        let offset = body + (inner.len() - inner.trim_start().len());
        segments.push(Segment::Expr { source: inner.trim(), offset });
        done = body + length + closer;
        at = done;
    }
    if done < text.len() {
        segments.push(Segment::Text(text.get(done..).unwrap_or_default()));
    }
    segments
}

/// Returns the position of the first `{{` that has no end though a name follows, and so remains text.
pub(super) fn unclosed(text: &str) -> Option<usize> {
    let mut at = 0;
    while let Some((opener, body)) = next_opener(text, at) {
        let rest = text.get(body..).unwrap_or_default();
        let braces = text.as_bytes().get(opener) == Some(&b'{');
        let end = if braces { end_of_braces(rest) } else { end_of_dollar(rest) };
        at = match end {
            Some((length, closer)) => body + length + closer,
            None if braces && rest.trim_start_matches(' ').starts_with(char::is_alphabetic) => return Some(opener),
            None => body,
        };
    }
    None
}

/// Returns the positions of the next opener (`{{` or `${`) and of its content, from `from` on.
fn next_opener(text: &str, from: usize) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    let mut at = from;
    loop {
        at += text.get(at..)?.find('{')?;
        if at > from && bytes.get(at - 1) == Some(&b'$') && bytes.get(at + 1) != Some(&b'{') {
            return Some((at - 1, at + 1));
        }
        if bytes.get(at + 1) == Some(&b'{') {
            return Some((at, at + 2));
        }
        at += 1;
    }
}

/// Calls `seen` with the position and value of each byte outside of quotes, until `seen` returns a result.
pub(in crate::template) fn outside_quotes(text: &str, mut seen: impl FnMut(usize, u8) -> Option<usize>) -> Option<usize> {
    let mut quote = None;
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().take(MAX_EXPRESSION_LENGTH) {
        match quote {
            Some(open) => {
                if escaped {
                    escaped = false;
                } else if byte == b'\\' && open != b'`' {
                    escaped = true;
                } else if byte == open {
                    quote = None;
                }
            }
            None if matches!(byte, b'"' | b'\'' | b'`') => quote = Some(byte),
            None => {
                if let Some(end) = seen(at, byte) {
                    return Some(end);
                }
            }
        }
    }
    None
}

fn end_of_braces(rest: &str) -> Option<(usize, usize)> {
    let bytes = rest.as_bytes();
    outside_quotes(rest, |at, byte| (byte == b'}' && bytes.get(at + 1) == Some(&b'}')).then_some(at)).map(|end| (end, 2))
}

fn end_of_dollar(rest: &str) -> Option<(usize, usize)> {
    let mut depth = 0_usize;
    outside_quotes(rest, |at, byte| {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 0 => return Some(at),
            b'}' => depth -= 1,
            _ => {}
        }
        None
    })
    .map(|end| (end, 1))
}

/// True when a text holds an expression.
pub fn is_template(text: &str) -> bool {
    may_be_template(text) && scan(text).iter().any(|segment| matches!(segment, Segment::Expr { .. }))
}

/// False for most texts, without a scan.
pub(super) fn may_be_template(text: &str) -> bool {
    // A search for one byte is far quicker than a search for two texts, and most texts have none.
    text.contains('{') && (text.contains("{{") || text.contains("${"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn expressions(text: &str) -> Vec<&str> {
        let inner = |segment: &Segment<'_>| matches!(segment, Segment::Expr { .. });
        let source = |segment| if let Segment::Expr { source, .. } = segment { source } else { "" };
        scan(text).into_iter().filter(inner).map(source).collect()
    }

    #[test]
    fn expressions_are_found() {
        let cases: [(&str, &[&str]); 22] = [
            ("", &[]),
            ("plain", &[]),
            ("{{ a } b }}", &["a } b"]),
            ("{{ x(\"}}\") }}", &["x(\"}}\")"]),
            ("{{ x('}}') }}", &["x('}}')"]),
            ("{{ x(`}}`) }}", &["x(`}}`)"]),
            ("{{ x(\"hello\\\"}}world\") }}", &["x(\"hello\\\"}}world\")"]),
            ("{{ x(`\\`) }}", &["x(`\\`)"]),
            ("${ map(list, { # + 1 }) }", &["map(list, { # + 1 })"]),
            ("${ x(\"}\") }", &["x(\"}\")"]),
            ("${{ Data.x }}", &["Data.x"]),
            ("{{  }}", &[""]),
            ("{{ x", &[]),
            ("${ x", &[]),
            ("$5 and $(cmd) and $name", &[]),
            ("{ x } and } and {", &[]),
            ("%{x} #{y} <%= z %>", &[]),
            ("{{a}}{{b}}-${c}", &["a", "b", "c"]),
            ("{{ never ${ x }", &["x"]),
            ("{{{ x }}", &["{ x"]),
            ("é{{ ü }}é", &["ü"]),
            ("$${a}", &["a"]),
        ];
        for (text, expected) in cases {
            assert_eq!(expressions(text), expected, "{text}");
        }
    }

    #[test]
    fn openers_without_an_end_are_found() {
        for (text, expected) in [
            ("a {{ Data.x", Some(2)),
            ("{{ a }} {{ upper('b) }}", Some(8)),
            ("{{ a }} {{", None),
            ("{{", None),
            ("{{ }", None),
            ("${ x", None),
            ("{{ never ${ x }", Some(0)),
            ("{{ a }}{{ b }}", None),
        ] {
            assert_eq!(unclosed(text), expected, "{text}");
        }
    }

    #[test]
    fn places_are_kept() {
        assert_eq!(
            scan("a ${{ Data.x }}!"),
            [Segment::Text("a $"), Segment::Expr { source: "Data.x", offset: 6 }, Segment::Text("!")]
        );
        assert_eq!(scan("${x}"), [Segment::Expr { source: "x", offset: 2 }]);
    }

    proptest! {
        #[test]
        fn any_text_scans(text in "[{}$ \"'`\\\\a\u{e9}]{0,40}") {
            for segment in scan(&text) {
                if let Segment::Expr { source, offset } = segment {
                    prop_assert!(text.get(offset..).unwrap().starts_with(source));
                }
            }
        }

        #[test]
        fn text_without_openers_is_one_piece(text in "[^{]{1,40}") {
            prop_assert_eq!(scan(&text), [Segment::Text(&text)]);
        }
    }
}
