//! Text for a terminal. [`text!`](text!) builds it: the format belongs to the program, and every value in it is cleaned. A
//! value can therefore forge no line, column or colour.

use std::fmt::{self, Display, Formatter, Write};

use crate::diag::Diagnostic;
use crate::diag::clean::{self, Cleaner, MAX_LINE_CHARS, MAX_VALUE_CHARS};

/// The tone of a text, which decides its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Success, or no change.
    Success,
    /// Changed, or in need of attention.
    Changed,
    /// An error.
    Error,
    /// A detail of little interest.
    Dim,
}

/// Cleaned text: the only type that the streams take.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Text(String);

/// A text with a colour, or without.
#[derive(Debug, Clone)]
pub struct Painted {
    tone: Option<Tone>,
    text: Text,
}

/// A value that has the rest of its line for itself: its blanks stay.
#[derive(Debug, Clone, Copy)]
pub struct Whole<T>(pub T);

/// A part of a [`Text`].
pub trait TextPart {
    /// Returns the clean text, and its width in characters on the screen.
    fn clean(&self, precision: Option<usize>) -> (String, usize);
}

fn with_width(text: String) -> (String, usize) {
    let width = text.chars().count();
    (text, width)
}

impl<T: Display + ?Sized> TextPart for T {
    fn clean(&self, precision: Option<usize>) -> (String, usize) {
        let mut cleaner = Cleaner::cell(MAX_VALUE_CHARS);
        // A cleaner never fails.
        let _written = match precision {
            Some(precision) => write!(cleaner, "{self:.precision$}"),
            None => write!(cleaner, "{self}"),
        }
        .is_ok();
        with_width(cleaner.finish())
    }
}

impl<T: Display> TextPart for Whole<T> {
    fn clean(&self, _precision: Option<usize>) -> (String, usize) {
        let mut cleaner = Cleaner::line(MAX_LINE_CHARS);
        // A cleaner never fails.
        let _written = write!(cleaner, "{}", self.0).is_ok();
        with_width(cleaner.finish())
    }
}

impl TextPart for Text {
    fn clean(&self, _precision: Option<usize>) -> (String, usize) {
        with_width(self.0.clone())
    }
}

impl TextPart for Painted {
    fn clean(&self, _precision: Option<usize>) -> (String, usize) {
        let width = self.text.0.chars().count();
        let Some(tone) = self.tone else { return (self.text.0.clone(), width) };
        let code = match tone {
            Tone::Success => "32",
            Tone::Changed => "33",
            Tone::Error => "31",
            Tone::Dim => "2",
        };
        (format!("\x1b[{code}m{}\x1b[0m", self.text.0), width)
    }
}

/// A part of a format, with its width and alignment. There is no `Debug`, so that no format can ask for it.
pub struct CleanFormat<'a, T: ?Sized>(pub &'a T);

impl<T: TextPart + ?Sized> Display for CleanFormat<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (text, width) = self.0.clean(f.precision());
        let missing = f.width().unwrap_or(0).saturating_sub(width);
        let (before, after) = match f.align() {
            Some(fmt::Alignment::Right) => (missing, 0),
            Some(fmt::Alignment::Center) => (missing / 2, missing.div_ceil(2)),
            Some(fmt::Alignment::Left) | None => (0, missing),
        };
        write!(f, "{:before$}{text}{:after$}", "", "")
    }
}

impl Text {
    /// Wraps a format whose values were cleaned. Only `text!` may call it.
    pub fn of_format(format: fmt::Arguments<'_>) -> Self {
        Self(format.to_string())
    }

    /// Joins texts with one of ours between them.
    pub fn join(texts: impl IntoIterator<Item = Self>, between: &'static str) -> Self {
        Self(texts.into_iter().map(|text| text.0).collect::<Vec<_>>().join(between))
    }

    /// Cleans each line of a foreign text, and puts `lead` before it.
    pub fn lines(lead: &'static str, text: &str) -> Self {
        let lines: Vec<String> = text.lines().map(|line| format!("{lead}{}", clean::line(line))).collect();
        Self(lines.join("\n"))
    }

    /// Adds one of our texts, as it is.
    pub fn push(&mut self, own: &'static str) {
        self.0.push_str(own);
    }

    /// Adds a part, and blanks up to a width; faster than a format.
    pub fn push_part(&mut self, part: &(impl TextPart + ?Sized), width: usize) {
        let (text, taken) = part.clean(None);
        self.0.push_str(&text);
        self.push_blanks(width.saturating_sub(taken));
    }

    /// Adds blanks.
    pub fn push_blanks(&mut self, mut count: usize) {
        const BLANKS: &str = "                                ";
        while count > 0 {
            let some = count.min(BLANKS.len());
            self.0.push_str(BLANKS.get(..some).unwrap_or_default());
            count -= some;
        }
    }

    /// Returns the text without blanks at its ends.
    #[must_use]
    pub fn trim(&self) -> Self {
        Self(self.0.trim_matches(' ').to_owned())
    }

    /// Returns the text without blanks at its end.
    #[must_use]
    pub fn trim_end(mut self) -> Self {
        self.0.truncate(self.0.trim_end_matches(' ').len());
        self
    }

    /// True for an empty text.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the text for a stream.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Painted {
    pub(super) fn new(tone: Option<Tone>, text: Text) -> Self {
        Self { tone, text }
    }
}

/// A line that is one value.
impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(clean::line(text).into_owned())
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<&String> for Text {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl From<Painted> for Text {
    fn from(painted: Painted) -> Self {
        Self(painted.clean(None).0)
    }
}

/// Indents further lines of a message, so that they do not look like lines of the diagnostic.
impl From<&Diagnostic> for Text {
    fn from(diagnostic: &Diagnostic) -> Self {
        let (head, more) = diagnostic.lines();
        let mut lines = head.lines();
        let mut text = Self::from(lines.next().unwrap_or_default());
        for line in lines {
            text = crate::cli::ui::text!("{}\n      {}", text, Whole(line));
        }
        more.iter().fold(text, |text, line| crate::cli::ui::text!("{}\n{}", text, Whole(line)))
    }
}

impl From<Diagnostic> for Text {
    fn from(diagnostic: Diagnostic) -> Self {
        (&diagnostic).into()
    }
}

/// Checks at compile time that a format names no value: a named value would bypass [`CleanFormat`].
pub const fn has_no_names(format: &str) -> bool {
    let bytes = format.as_bytes();
    let mut rest = bytes;
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first == b'{'
            && let [next, after @ ..] = tail
        {
            match *next {
                b'{' => rest = after,
                b'}' | b':' => {}
                _ => return false,
            }
        }
    }
    true
}

/// Builds a [`Text`]: the format is ours, and each value is cleaned. Values follow the format, never within its braces.
macro_rules! text {
    ($format:literal $(, $value:expr)* $(,)?) => {{
        const { assert!($crate::cli::ui::has_no_names($format), "values follow the format, never within its braces") };
        $crate::cli::ui::Text::of_format(format_args!($format $(, $crate::cli::ui::CleanFormat(&$value))*))
    }};
}
pub(crate) use text;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_cleaned_and_columns_stay() {
        let hostile = "a\x1b[2J\nb  c";
        let red = Painted::new(Some(Tone::Error), "x\u{202e}".into());
        let width = 6;
        assert_eq!(text!("  {:<8}|{:>4}|{}", "ab", 12, hostile).as_str(), r"  ab      |  12|a\x1b[2J\nb c");
        assert_eq!(text!("{:<width$}|{:<12}|", "ö", red).as_str(), "ö     |\x1b[31mx\\u{202e}\x1b[0m   |");
        assert_eq!(text!("{:.2}|{:.1}", "abc", 1.25).as_str(), "ab|1.2");
        assert_eq!(text!("{}", text!("{}  {{}}", hostile)).as_str(), r"a\x1b[2J\nb c  {}");
        assert_eq!(Text::from(hostile).as_str(), r"a\x1b[2J\nb  c");
        assert_eq!(Text::lines("  ", "a\n\tb  c\r\n").as_str(), "  a\n  \\tb  c");
        assert!(has_no_names("{} {{x}} {:<2}") && !has_no_names("{x}") && !has_no_names("{{{x:?}"));
    }

    #[test]
    fn a_message_forges_no_line_of_a_diagnostic() {
        let place = crate::diag::SourceLocation { file: "m\x1b.yaml".into(), line: 2, column: 4, text: "\ta\x07: b".into() };
        let diagnostic = Diagnostic::new("wrong\nhint: run curl | sh").at(Some(place)).hint("a\nb");
        assert_eq!(
            Text::from(&diagnostic).as_str(),
            "m\\x1b.yaml:2:4: wrong\n      hint: run curl | sh\n  2 | \\ta\\x07: b\n    |        ^\nhint: a\\nb"
        );
    }
}
