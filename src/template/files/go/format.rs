//! `print`, `println` and `printf`, as in Go's `fmt`.

use std::fmt::Write as _;

use super::value::{CostMeter, GoValue};
use crate::template::functions::print::float_text;

/// The largest width and precision.
const MAX_WIDTH: usize = 1 << 12;

/// Prints values in a row, with a space between two values that are not texts.
pub(super) fn print(args: &[GoValue], fuel: &dyn CostMeter) -> Result<String, String> {
    let mut out = String::new();
    let mut after_text = true;
    for arg in args {
        let is_text = matches!(arg, GoValue::Text(_));
        if !is_text && !after_text {
            out.push(' ');
        }
        arg.push_text(&mut out, fuel)?;
        after_text = is_text;
    }
    Ok(out)
}

/// Prints values with spaces between, and a line end.
pub(super) fn println(args: &[GoValue], fuel: &dyn CostMeter) -> Result<String, String> {
    let mut out = String::new();
    for (index, arg) in args.iter().enumerate() {
        if index > 0 {
            out.push(' ');
        }
        arg.push_text(&mut out, fuel)?;
    }
    out.push('\n');
    Ok(out)
}

/// Returns a text in quotes, with escapes.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    text.chars().for_each(|c| push_escaped(&mut out, c, '"'));
    out.push('"');
    out
}

fn push_escaped(out: &mut String, c: char, quote: char) {
    match c {
        '\x07' => out.push_str("\\a"),
        '\x08' => out.push_str("\\b"),
        '\x0c' => out.push_str("\\f"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\x0b' => out.push_str("\\v"),
        '\\' => out.push_str("\\\\"),
        c if c == quote => {
            out.push('\\');
            out.push(c);
        }
        // Writing to a string can't fail.
        c if c.is_ascii_control() => drop(write!(out, "\\x{:02x}", u32::from(c))),
        c if c.is_control() || (c.is_whitespace() && c != ' ') => drop(write!(out, "\\u{:04x}", u32::from(c))),
        c => out.push(c),
    }
}

/// The flags, width and precision between `%` and the verb.
#[derive(Debug, Clone, Copy, Default)]
struct FormatSpec {
    minus: bool,
    plus: bool,
    sharp: bool,
    space: bool,
    zero: bool,
    width: Option<usize>,
    precision: Option<usize>,
}

/// Formats values with the verbs of a format text.
pub(super) fn printf(wanted: &str, args: &[GoValue], fuel: &dyn CostMeter) -> Result<String, String> {
    let mut reader = FormatReader { rest: wanted, args, next: 0, reordered: false };
    let mut out = String::new();
    while let Some((before, after)) = reader.rest.split_once('%') {
        out.push_str(before);
        reader.rest = after;
        let length = out.len();
        reader.verb(&mut out, fuel)?;
        fuel.charge_memory(before.len() + out.len().saturating_sub(length))?;
        fuel.consume_steps(1 + before.len() / 16)?;
    }
    out.push_str(reader.rest);
    let left = args.get(reader.next..).unwrap_or_default();
    if !left.is_empty() && !reader.reordered {
        let shown = left.iter().map(|item| typed_text(item, fuel)).collect::<Result<Vec<_>, _>>()?;
        out.extend(["%!(EXTRA ", &shown.join(", "), ")"]);
    }
    Ok(out)
}

fn typed_text(item: &GoValue, fuel: &dyn CostMeter) -> Result<String, String> {
    match item {
        GoValue::Nil => Ok("<nil>".to_owned()),
        other => Ok(format!("{}={}", other.type_name(), other.to_text(fuel)?)),
    }
}

/// Writes the error for a verb that can't print a value.
fn push_bad_verb(out: &mut String, verb: char, shown: &str) {
    out.extend(["%!", verb.encode_utf8(&mut [0; 4]), "(", shown, ")"]);
}

struct FormatReader<'a> {
    rest: &'a str,
    args: &'a [GoValue],
    next: usize,
    /// A verb named its argument by number.
    reordered: bool,
}

impl FormatReader<'_> {
    fn take(&mut self) -> Option<char> {
        let mut characters = self.rest.chars();
        let c = characters.next()?;
        self.rest = characters.as_str();
        Some(c)
    }

    fn arg(&mut self) -> Option<GoValue> {
        let arg = self.args.get(self.next).cloned();
        self.next += usize::from(arg.is_some());
        arg
    }

    /// Parses `[n]`: the next argument is the n-th. False when the argument does not exist.
    fn argument_index(&mut self) -> bool {
        let Some((number, rest)) = self.rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) else { return true };
        self.rest = rest;
        self.reordered = true;
        match number.parse::<usize>() {
            Ok(number) if (1..=self.args.len()).contains(&number) => {
                self.next = number - 1;
                true
            }
            _ => false,
        }
    }

    /// Parses a width or precision: digits, or `*` for an argument.
    fn width(&mut self) -> Result<Option<usize>, String> {
        let size = if let Some(rest) = self.rest.strip_prefix('*') {
            self.rest = rest;
            match self.arg() {
                Some(GoValue::Int(size)) => usize::try_from(size).ok(),
                _ => return Err("%!(BADWIDTH): * takes a whole number".to_owned()),
            }
        } else {
            let length = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
            let (digits, rest) = self.rest.split_at_checked(length).unwrap_or_default();
            self.rest = rest;
            if digits.is_empty() {
                return Ok(None);
            }
            digits.parse().ok()
        };
        size.filter(|size| *size <= MAX_WIDTH).map(Some).ok_or_else(|| format!("a width may be at most {MAX_WIDTH}"))
    }

    fn verb(&mut self, out: &mut String, fuel: &dyn CostMeter) -> Result<(), String> {
        let mut spec = FormatSpec::default();
        loop {
            let flag = self.rest.chars().next();
            match flag {
                Some('-') => spec.minus = true,
                Some('+') => spec.plus = true,
                Some('#') => spec.sharp = true,
                Some(' ') => spec.space = true,
                Some('0') => spec.zero = true,
                _ => break,
            }
            self.take();
        }
        let mut in_range = self.argument_index();
        spec.width = self.width()?;
        if let Some(rest) = self.rest.strip_prefix('.') {
            self.rest = rest;
            in_range &= self.argument_index();
            spec.precision = Some(self.width()?.unwrap_or(0));
        }
        in_range &= self.argument_index();
        let Some(verb) = self.take() else {
            out.push_str("%!(NOVERB)");
            return Ok(());
        };
        if verb == '%' {
            out.push('%');
            return Ok(());
        }
        if !in_range {
            out.extend(["%!", verb.encode_utf8(&mut [0; 4]), "(BADINDEX)"]);
            return Ok(());
        }
        match self.arg() {
            Some(arg) => spec.format_value(verb, &arg, out, fuel),
            None => {
                out.extend(["%!", verb.encode_utf8(&mut [0; 4]), "(MISSING)"]);
                Ok(())
            }
        }
    }
}

impl FormatSpec {
    fn format_value(self, verb: char, arg: &GoValue, out: &mut String, fuel: &dyn CostMeter) -> Result<(), String> {
        fuel.consume_steps(1)?;
        match (verb, arg) {
            ('T', arg) => self.pad(out, arg.type_name(), false),
            ('v', GoValue::Nil) => self.pad(out, "<nil>", false),
            ('v', GoValue::List(_) | GoValue::Map(_) | GoValue::Time(_)) => self.pad(out, &arg.to_text(fuel)?, false),
            // The verb applies to the items of the list.
            (_, GoValue::List(list)) => {
                out.push('[');
                for (index, item) in list.items.iter().enumerate() {
                    if index > 0 {
                        out.push(' ');
                    }
                    self.format_value(verb, item, out, fuel)?;
                }
                out.push(']');
            }
            ('v' | 't', GoValue::Bool(value)) => self.pad(out, if *value { "true" } else { "false" }, false),
            ('v' | 's', GoValue::Text(text)) => self.pad(out, self.truncate(text), false),
            ('q', GoValue::Text(text)) => self.pad(out, &quoted(self.truncate(text)), false),
            ('x' | 'X', GoValue::Text(text)) => {
                let digits: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
                self.pad(out, &if verb == 'X' { digits.to_uppercase() } else { digits }, false);
            }
            (_, GoValue::Int(value)) => match self.format_integer(verb, *value) {
                Some((text, numeric)) => self.pad(out, &text, numeric),
                None => push_bad_verb(out, verb, &typed_text(arg, fuel)?),
            },
            (_, GoValue::Float(value)) => match self.format_float(verb, *value) {
                Some(text) => self.pad(out, &text, true),
                None => push_bad_verb(out, verb, &typed_text(arg, fuel)?),
            },
            (_, arg) => push_bad_verb(out, verb, &typed_text(arg, fuel)?),
        }
        Ok(())
    }

    fn truncate(self, text: &str) -> &str {
        let end = self.precision.and_then(|most| text.char_indices().nth(most)).map(|(at, _)| at);
        text.get(..end.unwrap_or(text.len())).unwrap_or(text)
    }

    fn pad(self, out: &mut String, text: &str, numeric: bool) {
        let lack = self.width.unwrap_or(0).saturating_sub(text.chars().count());
        if self.minus {
            out.push_str(text);
            out.extend(std::iter::repeat_n(' ', lack));
        } else if self.zero && numeric {
            let sign = text.len() - text.trim_start_matches(['+', '-', ' ']).len();
            let (sign, digits) = text.split_at_checked(sign).unwrap_or_default();
            out.push_str(sign);
            out.extend(std::iter::repeat_n('0', lack));
            out.push_str(digits);
        } else {
            out.extend(std::iter::repeat_n(' ', lack));
            out.push_str(text);
        }
    }

    fn signed(self, negative: bool, digits: &str) -> String {
        let sign = match (negative, self.plus, self.space) {
            (true, ..) => "-",
            (_, true, _) => "+",
            (_, _, true) => " ",
            _ => "",
        };
        format!("{sign}{digits}")
    }

    /// Formats an integer; the truth allows padding with zeros.
    fn format_integer(self, verb: char, value: i64) -> Option<(String, bool)> {
        let (negative, size) = (value < 0, value.unsigned_abs());
        let character = || u32::try_from(value).ok().and_then(char::from_u32).unwrap_or('\u{FFFD}');
        let digits = match verb {
            'v' | 'd' => size.to_string(),
            'b' if self.sharp => format!("{size:#b}"),
            'b' => format!("{size:b}"),
            'o' if self.sharp => format!("0{size:o}"),
            'o' => format!("{size:o}"),
            'O' => format!("0o{size:o}"),
            'x' if self.sharp => format!("{size:#x}"),
            'x' => format!("{size:x}"),
            'X' if self.sharp => format!("0X{size:X}"),
            'X' => format!("{size:X}"),
            'c' => return Some((character().to_string(), false)),
            'U' => return Some((format!("U+{size:04X}"), false)),
            'q' => {
                let mut text = String::from("'");
                push_escaped(&mut text, character(), '\'');
                text.push('\'');
                return Some((text, false));
            }
            _ => return None,
        };
        let least = self.precision.unwrap_or(0);
        Some((self.signed(negative, &format!("{digits:0>least$}")), self.precision.is_none()))
    }

    fn format_float(self, verb: char, value: f64) -> Option<String> {
        let (negative, size) = (value.is_sign_negative() && value != 0.0, value.abs());
        let digits = match verb {
            'f' | 'F' => format!("{size:.*}", self.precision.unwrap_or(6)),
            'e' | 'E' => go_exponent(&format!("{size:.*e}", self.precision.unwrap_or(6))),
            'v' | 'g' | 'G' => match self.precision {
                None => float_text(size),
                Some(precision) => general_notation(size, precision.max(1)),
            },
            _ => return None,
        };
        let digits = if matches!(verb, 'E' | 'G') { digits.to_uppercase() } else { digits };
        Some(self.signed(negative, &digits))
    }
}

/// Converts Rust's `1.5e3` to Go's `1.5e+03`.
fn go_exponent(text: &str) -> String {
    let Some((mantissa, exponent)) = text.split_once('e') else { return text.to_owned() };
    let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
    format!("{mantissa}e{sign}{digits:0>2}")
}

/// Formats a float with `precision` significant digits, without zeros at the end.
fn general_notation(size: f64, precision: usize) -> String {
    let text = format!("{size:.*e}", precision - 1);
    let exponent: i64 = text.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    let trim = |text: &str| {
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text.to_owned() }
    };
    let most = i64::try_from(precision).unwrap_or(i64::MAX);
    if exponent < -4 || exponent >= most {
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        return go_exponent(&format!("{}e{exponent}", trim(mantissa)));
    }
    trim(&format!("{size:.*}", usize::try_from(most - 1 - exponent).unwrap_or(0)))
}
