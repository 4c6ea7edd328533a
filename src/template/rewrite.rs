//! Expressions as authors write them, put into the words the evaluator takes.
//!
//! The evaluator is a crate whose dialect is near to the Expr language, not the same. What is
//! rewritten here, word by word, so that precedence stays with the crate:
//! - `Data.a.b[0]` becomes one name, so that a look at one value does not copy all the data, and a
//!   missing key can be named;
//! - names nobody knows are errors before anything is evaluated;
//! - texts become raw texts (the crate knows few escapes), maps become a function call (the crate
//!   takes constants only), ranges become a function call (that has a limit), `.Name` in a
//!   predicate becomes `#.Name`.

use crate::diag::did_you_mean;

use super::lex::{self, Kind, Token};
use super::remote::PROMETHEUS;

/// The longest expression, in bytes.
const MAX_SOURCE: usize = 16 << 10;
/// The most operators in an expression: the evaluator needs stack for each in a chain.
const MAX_OPERATORS: usize = 200;
/// The deepest brackets in an expression.
const MAX_DEPTH: usize = 32;
/// The deepest indexes in an index: the evaluator's parser needs twice the time for each.
const MAX_INDEX_DEPTH: usize = 6;

/// A rewritten name for a path begins with this.
pub(super) const PATH: &str = "ensign_path_";
/// The function that makes a map of keys and values.
pub(super) const MAP: &str = "ensign_map";
/// The function that makes a range.
pub(super) const RANGE: &str = "ensign_range";

/// The functions of the evaluator.
const BUILTINS: &[&str] = &[
    "abs",
    "all",
    "any",
    "bitand",
    "bitnand",
    "bitnot",
    "bitor",
    "bitshl",
    "bitshr",
    "bitushr",
    "bitxor",
    "ceil",
    "concat",
    "count",
    "date",
    "duration",
    "filter",
    "find",
    "findIndex",
    "findLast",
    "findLastIndex",
    "first",
    "flatten",
    "float",
    "floor",
    "fromBase64",
    "fromJSON",
    "fromPairs",
    "get",
    "groupBy",
    "hasPrefix",
    "hasSuffix",
    "indexOf",
    "int",
    "join",
    "keys",
    "last",
    "lastIndexOf",
    "len",
    "lower",
    "map",
    "max",
    "mean",
    "median",
    "min",
    "none",
    "now",
    "one",
    "reduce",
    "repeat",
    "replace",
    "reverse",
    "round",
    "sort",
    "sortBy",
    "split",
    "splitAfter",
    "string",
    "sum",
    "take",
    "timezone",
    "toBase64",
    "toJSON",
    "toPairs",
    "trim",
    "trimPrefix",
    "trimSuffix",
    "type",
    "uniq",
    "upper",
    "values",
];

/// Functions that are not there in every scope.
const UNAVAILABLE: &[&str] = &["kvGet", "registrations", "secret"];

/// Words between two values.
const WORD_OPERATORS: &[&str] = &["in", "contains", "startsWith", "endsWith", "matches", "and", "or", "not"];

/// A path into what an expression sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Path {
    /// `Facts`, `Data`, `Environ` or `value`.
    pub(super) root: Root,
    pub(super) steps: Vec<Step>,
    /// As it was written, for errors.
    pub(super) shown: String,
}

/// Where a path begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Root {
    Facts,
    Data,
    Environ,
    /// The one value that an expression is about.
    Value,
}

/// A step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) to: Member,
    /// Written `?.`: nothing below nothing is nothing.
    pub(super) optional: bool,
}

/// What a step leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Member {
    Key(String),
    /// From the end when below zero.
    Index(i64),
}

/// What names an expression may use.
pub(super) struct Names<'a> {
    /// The functions besides those of the evaluator.
    pub(super) functions: &'a [&'static str],
    /// Only `Facts` is there.
    pub(super) restricted: bool,
    /// Only `value` is there.
    pub(super) subject: bool,
}

/// A rewritten expression.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Rewritten {
    pub(super) source: String,
    pub(super) paths: Vec<Path>,
    /// For each word of `source` where it begins there, and in the original.
    places: Vec<(usize, usize)>,
}

impl Rewritten {
    /// The place in the original of a place in the rewritten source.
    pub(super) fn original(&self, offset: usize) -> usize {
        self.places.iter().rev().find(|(here, _)| *here <= offset).map_or(0, |(_, original)| *original)
    }
}

/// Something that is wrong with an expression, and where in it.
pub(super) type Wrong = (usize, String);

/// Rewrites an expression.
pub(super) fn rewrite(source: &str, names: &Names<'_>) -> Result<Rewritten, Wrong> {
    if source.len() > MAX_SOURCE {
        return Err((0, format!("the expression has {} bytes, at most {MAX_SOURCE} are taken", source.len())));
    }
    let tokens = lex::lex(source)?;
    if tokens.is_empty() {
        return Err((0, "the expression is empty".to_owned()));
    }
    let mut rewriter = Rewriter {
        names,
        source,
        tokens: &tokens,
        at: 0,
        out: Vec::new(),
        paths: Vec::new(),
        levels: vec![Level { kind: Bracket::Top, operand: 0, in_range: false, key_next: false }],
        declared: Vec::new(),
        after_value: false,
        operators: 0,
    };
    rewriter.run()?;
    let mut rewritten = Rewritten { paths: rewriter.paths, ..Rewritten::default() };
    for (word, original) in rewriter.out {
        rewritten.places.push((rewritten.source.len(), original));
        rewritten.source.push_str(&word);
        rewritten.source.push(' ');
    }
    Ok(rewritten)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bracket {
    Top,
    Round,
    Array,
    Index,
    Map,
    Block,
}

/// An open bracket.
struct Level {
    kind: Bracket,
    /// Where in the output the operand of a range would begin.
    operand: usize,
    /// The right side of a range is being written.
    in_range: bool,
    /// A key of a map comes next.
    key_next: bool,
}

struct Rewriter<'a, 't> {
    names: &'a Names<'a>,
    source: &'t str,
    tokens: &'a [Token<'t>],
    at: usize,
    out: Vec<(String, usize)>,
    paths: Vec<Path>,
    levels: Vec<Level>,
    declared: Vec<&'t str>,
    after_value: bool,
    operators: usize,
}

impl<'t> Rewriter<'_, 't> {
    fn run(&mut self) -> Result<(), Wrong> {
        while let Some(token) = self.tokens.get(self.at) {
            self.at += 1;
            match &token.kind {
                Kind::Name(name) => self.name(name, token.offset)?,
                Kind::Literal(word) => self.value((*word).to_owned(), token.offset),
                Kind::Text(text) => self.text(text, token.offset),
                Kind::Sign(sign) => self.sign(sign, token.offset)?,
            }
            if self.operators > MAX_OPERATORS {
                return Err((token.offset, format!("the expression has more than {MAX_OPERATORS} operators")));
            }
        }
        self.end_operand();
        if self.levels.len() > 1 { Err((self.source.len(), "a bracket is not closed".to_owned())) } else { Ok(()) }
    }

    fn peek(&self, ahead: usize) -> Option<&Kind<'t>> {
        self.tokens.get(self.at + ahead).map(|token| &token.kind)
    }

    fn next_is(&self, ahead: usize, sign: &str) -> bool {
        matches!(self.peek(ahead), Some(Kind::Sign(found)) if *found == sign)
    }

    fn emit(&mut self, word: impl Into<String>, offset: usize) {
        self.out.push((word.into(), offset));
    }

    fn value(&mut self, word: String, offset: usize) {
        self.emit(word, offset);
        self.after_value = true;
    }

    fn last(&mut self) -> Option<&mut Level> {
        self.levels.last_mut()
    }

    /// What binds looser than a range: the operands of one end here.
    fn end_operand(&mut self) {
        let next = self.out.len();
        let Some(level) = self.last() else { return };
        let closes = std::mem::take(&mut level.in_range);
        level.operand = next + usize::from(closes);
        if closes {
            let offset = self.tokens.get(self.at.saturating_sub(1)).map_or(0, |token| token.offset);
            self.emit(")", offset);
        }
    }

    /// An operator that binds looser than a range, or something that parts expressions.
    fn operator(&mut self, sign: &str, offset: usize) {
        self.operators += usize::from(!matches!(sign, "," | ":" | ";"));
        self.end_operand();
        self.emit(sign, offset);
        let next = self.out.len();
        if let Some(level) = self.last() {
            level.operand = next;
        }
        self.after_value = false;
    }

    /// In a map, when a key stands here: writes it as a text.
    fn key(&mut self, key: &str, offset: usize) -> bool {
        let is_key = self.last().is_some_and(|level| level.kind == Bracket::Map && level.key_next) && self.next_is(0, ":");
        if is_key {
            self.emit(raw(key), offset);
            self.at += 1;
            self.operator(",", offset);
            if let Some(level) = self.last() {
                level.key_next = false;
            }
        }
        is_key
    }

    fn text(&mut self, text: &str, offset: usize) {
        if !self.key(text, offset) {
            self.value(raw(text), offset);
        }
    }

    fn name(&mut self, name: &'t str, offset: usize) -> Result<(), Wrong> {
        let is_member = matches!(self.out.last(), Some((word, _)) if matches!(word.as_str(), "." | "?." | "#."));
        if is_member {
            self.value(name.to_owned(), offset);
            return Ok(());
        }
        if self.key(name, offset) {
            return Ok(());
        }
        match name {
            "true" | "false" | "nil" | "$env" => self.value(name.to_owned(), offset),
            "if" | "else" => self.operator(name, offset),
            "let" => {
                if let Some(Kind::Name(declared)) = self.peek(0) {
                    self.declared.push(declared);
                }
                self.operator(name, offset);
            }
            _ if WORD_OPERATORS.contains(&name) => self.operator(name, offset),
            _ if name.starts_with('#') => self.value(name.to_owned(), offset),
            _ if self.next_is(0, "(") => self.function(name, offset)?,
            _ if self.declared.contains(&name) => self.value(name.to_owned(), offset),
            _ => self.root(name, offset)?,
        }
        Ok(())
    }

    fn function(&mut self, name: &str, offset: usize) -> Result<(), Wrong> {
        if UNAVAILABLE.contains(&name) && !self.names.functions.contains(&name) {
            return Err((offset, format!("the function {name} is not available")));
        }
        if !BUILTINS.contains(&name) && !self.names.functions.contains(&name) {
            let functions = BUILTINS.iter().chain(self.names.functions).copied();
            return Err((offset, unknown(name, functions)));
        }
        self.emit(name, offset);
        self.after_value = false;
        Ok(())
    }

    /// A path: `Data.a?.b["c"][0]`.
    fn root(&mut self, name: &str, offset: usize) -> Result<(), Wrong> {
        let root = match name {
            "value" | "Value" if self.names.subject => Root::Value,
            _ if self.names.subject => return Err((offset, unknown(name, ["value"]))),
            "Facts" => Root::Facts,
            "Data" | "Environ" if self.names.restricted => {
                return Err((offset, format!("{name} is not available here, only Facts is")));
            }
            "Data" => Root::Data,
            "Environ" => Root::Environ,
            _ => return Err((offset, unknown(name, ["Facts", "Data", "Environ"]))),
        };
        let mut steps = Vec::new();
        while let Some(step) = self.step() {
            steps.push(step);
        }
        let end = self.tokens.get(self.at).map_or(self.source.len(), |token| token.offset);
        let shown = self.source.get(offset..end).unwrap_or_default().trim().to_owned();
        let path = Path { root, steps, shown };
        let index = self.paths.iter().position(|known| *known == path).unwrap_or_else(|| {
            self.paths.push(path);
            self.paths.len() - 1
        });
        self.value(format!("{PATH}{index}"), offset);
        Ok(())
    }

    /// The next step of a path, when it is known before the expression runs.
    fn step(&mut self) -> Option<Step> {
        let optional = self.next_is(0, "?.");
        let dotted = optional || self.next_is(0, ".");
        if dotted && let Some(Kind::Name(name)) = self.peek(1) {
            // A call of a method is for the evaluator.
            if self.next_is(2, "(") {
                return None;
            }
            let to = Member::Key((*name).to_owned());
            self.at += 2;
            return Some(Step { to, optional });
        }
        let open = usize::from(optional);
        if !self.next_is(open, "[") {
            return None;
        }
        let (to, length) = match (self.peek(open + 1)?, self.peek(open + 2)?) {
            (Kind::Text(key), _) => (Member::Key(key.clone()), 1),
            (Kind::Literal(index), _) => (Member::Index(index.parse().ok()?), 1),
            (Kind::Sign("-"), Kind::Literal(index)) => (Member::Index(index.parse::<i64>().ok()?.checked_neg()?), 2),
            _ => return None,
        };
        if !self.next_is(open + 1 + length, "]") {
            return None;
        }
        self.at += open + length + 2;
        Some(Step { to, optional })
    }

    fn sign(&mut self, sign: &str, offset: usize) -> Result<(), Wrong> {
        match sign {
            "(" => self.open(Bracket::Round, "(".to_owned(), offset)?,
            "[" if self.after_value => self.open(Bracket::Index, "[".to_owned(), offset)?,
            "[" => self.open(Bracket::Array, "[".to_owned(), offset)?,
            "{" if self.map_begins() => self.open(Bracket::Map, format!("{MAP}("), offset)?,
            "{" => self.open(Bracket::Block, "{".to_owned(), offset)?,
            ")" | "]" | "}" => self.close(sign, offset)?,
            "." if !self.after_value => self.emit("#.", offset),
            // The one method that manifests call: a function of what stands before it.
            "." if matches!(self.peek(0), Some(Kind::Name(PROMETHEUS))) => {
                self.operators += 1;
                self.emit("|", offset);
            }
            "." | "?." => {
                self.operators += 1;
                self.emit(sign, offset);
            }
            "+" | "-" | "*" | "/" | "%" | "**" | "^" | "!" => {
                self.operators += 1;
                self.emit(sign, offset);
                self.after_value = false;
            }
            ".." => self.range(offset)?,
            "," => {
                let in_map = self.last().is_some_and(|level| level.kind == Bracket::Map);
                if in_map && self.next_is(0, "}") {
                    self.end_operand();
                    return Ok(());
                }
                self.operator(sign, offset);
                if in_map && let Some(level) = self.last() {
                    level.key_next = true;
                }
            }
            _ => self.operator(sign, offset),
        }
        Ok(())
    }

    fn map_begins(&self) -> bool {
        let empty = self.next_is(0, "}") && !self.after_value;
        empty || (matches!(self.peek(0), Some(Kind::Name(_) | Kind::Text(_))) && self.next_is(1, ":"))
    }

    fn open(&mut self, kind: Bracket, word: String, offset: usize) -> Result<(), Wrong> {
        self.emit(word, offset);
        self.levels.push(Level { kind, operand: self.out.len(), in_range: false, key_next: kind == Bracket::Map });
        self.after_value = false;
        self.operators += usize::from(kind == Bracket::Index);
        let indexes = self.levels.iter().filter(|level| level.kind == Bracket::Index).count();
        if self.levels.len() > MAX_DEPTH || indexes > MAX_INDEX_DEPTH {
            return Err((offset, "the brackets are nested too deep".to_owned()));
        }
        Ok(())
    }

    fn close(&mut self, sign: &str, offset: usize) -> Result<(), Wrong> {
        self.end_operand();
        let level = self.levels.pop();
        let word = match (level.map(|level| level.kind), sign) {
            (Some(Bracket::Round), ")") | (Some(Bracket::Array | Bracket::Index), "]") | (Some(Bracket::Block), "}") => sign,
            (Some(Bracket::Map), "}") => ")",
            _ => return Err((offset, format!("unexpected {sign}"))),
        };
        self.value(word.to_owned(), offset);
        Ok(())
    }

    /// `a + 1..b * 2` becomes `range(a + 1, b * 2)`: what binds tighter belongs to the operands.
    fn range(&mut self, offset: usize) -> Result<(), Wrong> {
        let next = self.out.len();
        let Some(level) = self.last() else { return Ok(()) };
        if level.in_range || level.operand >= next {
            return Err((offset, "unexpected ..".to_owned()));
        }
        level.in_range = true;
        let start = level.operand;
        let begins = self.out.get(start).map_or(offset, |(_, offset)| *offset);
        self.out.insert(start, (format!("{RANGE}("), begins));
        self.emit(",", offset);
        self.after_value = false;
        Ok(())
    }
}

/// A text in the form that the evaluator takes as it stands.
fn raw(text: &str) -> String {
    if text.contains('`') {
        let pieces: Vec<_> = text.split('`').map(|piece| format!("`{piece}`")).collect();
        return format!("({})", pieces.join(" + \"`\" + "));
    }
    format!("`{text}`")
}

fn unknown<'a>(name: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> String {
    let same = known.clone().into_iter().find(|other| other.eq_ignore_ascii_case(name));
    match same.or_else(|| did_you_mean(name, known)) {
        Some(near) => format!("unknown name {name}, did you mean {near}?"),
        None => format!("unknown name {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(source: &str) -> Result<String, String> {
        let names = Names { functions: &["lookup"], restricted: false, subject: false };
        let squeeze = |rewritten: Rewritten| rewritten.source.trim().replace(PATH, "p");
        rewrite(source, &names).map(squeeze).map_err(|(at, message)| format!("{at}: {message}"))
    }

    #[test]
    fn expressions_are_rewritten() {
        let cases = [
            ("Data.a.b + Data.a.b", "p0 + p0"),
            ("Data.a?.b ?? 'x'", "p0 ?? `x`"),
            ("Data['a b'][-1].c", "p0"),
            ("Data.list[Data.i].x", "p0 [ p1 ] . x"),
            ("keys(Data)", "keys ( p0 )"),
            ("now().Year() + Data.at.Hour()", "now ( ) . Year ( ) + p0 . Hour ( )"),
            ("1..3", "ensign_range( 1 , 3 )"),
            ("map(1..Data.n + 1, # * 2)", "map ( ensign_range( 1 , p0 + 1 ) , # * 2 )"),
            ("3 in 1..5 ? 1 : 2", "3 in ensign_range( 1 , 5 ) ? 1 : 2"),
            ("(1..3)[0]", "( ensign_range( 1 , 3 ) ) [ 0 ]"),
            ("{a: 1, 'b c': [Data.x], c: {}}", "ensign_map( `a` , 1 , `b c` , [ p0 ] , `c` , ensign_map( ) )"),
            ("{a: 1,}", "ensign_map( `a` , 1 )"),
            ("filter(Data.l, .name == 'x')", "filter ( p0 , #. name == `x` )"),
            ("filter(Data.l, {len(.name) > 2})", "filter ( p0 , { len ( #. name ) > 2 } )"),
            ("let x = Data.a; x.b + 1", "let x = p0 ; x . b + 1"),
            ("if Data.on { 1 } else { 2 }", "if p0 { 1 } else { 2 }"),
            ("Data.on ? Data.a : Data.b", "p0 ? p1 : p2"),
            ("'it\\'s `x`'", "(`it's ` + \"`\" + `x` + \"`\" + ``)"),
            ("lookup('a') | lower()", "lookup ( `a` ) | lower ( )"),
            ("not Data.x and 'a' not in Data.l", "not p0 and `a` not in p1"),
        ];
        for (source, expected) in cases {
            assert_eq!(shown(source).as_deref(), Ok(expected), "{source}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_place() {
        let cases = [
            ("", "0: the expression is empty"),
            ("nosuch", "0: unknown name nosuch"),
            ("true ? 1 : nosuch", "11: unknown name nosuch"),
            ("1 + nosuch()", "4: unknown name nosuch"),
            ("kvGet('a', 'b')", "0: the function kvGet is not available"),
            ("(1", "2: a bracket is not closed"),
            ("1)", "1: unexpected )"),
            ("..3", "0: unexpected .."),
            ("1..2..3", "4: unexpected .."),
        ];
        for (source, expected) in cases {
            assert_eq!(shown(source), Err(expected.to_owned()), "{source}");
        }
        assert!(shown(&"(".repeat(100)).unwrap_err().contains("nested too deep"));
        assert!(shown(&"a[".repeat(100)).is_err());
        assert!(shown(&"1+".repeat(2000)).unwrap_err().contains("operators"));
        let restricted = Names { functions: &[], restricted: true, subject: false };
        assert!(rewrite("Data.x", &restricted).unwrap_err().1.contains("only Facts"));
        assert!(rewrite("Facts.x", &restricted).is_ok());
    }
}
