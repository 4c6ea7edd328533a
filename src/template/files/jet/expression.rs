//! Translation of Jet expressions into those of minijinja.

use crate::template::expr::lex::{Token, TokenKind};
use crate::template::functions::bus_functions::PROMETHEUS;

/// The deepest nesting of an expression.
const MAX_DEPTH: usize = 48;

/// The name of the variables that the caller of a file or block passes.
pub(in crate::template::files) const GIVEN: &str = "ensign_given";

/// The operators by precedence, loosest first.
const LEVELS: [&[&str]; 5] = [&["||", "or", "&&", "and"], &["==", "!="], &["<", "<=", ">", ">="], &["+", "-"], &["*", "/", "%"]];
/// The level up to which a negation reaches.
const COMPARISON: usize = 1;

/// The meaning of names at the place of an expression.
pub(super) trait NameResolver {
    /// Returns the minijinja variable of a name.
    fn variable(&self, name: &str) -> Option<String>;
    /// Returns the code of `.`; `None` at the top, where `.` has all roots.
    fn dot(&self) -> Option<String>;
    /// True when the function exists.
    fn is_function(&self, name: &str) -> bool;
    /// True where an unknown name may be a variable of the caller or a field of `.`.
    fn allows_unknown_names(&self) -> bool;
}

/// An expression in minijinja's language.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Code {
    pub(super) code: String,
    /// For a path: the code of the path up to each of its steps.
    path_codes: Vec<String>,
    /// For a path: the source, for errors.
    source: String,
    is_nil: bool,
}

impl Code {
    fn from_code(code: impl Into<String>) -> Self {
        Self { code: code.into(), path_codes: Vec::new(), source: "a value".to_owned(), is_nil: false }
    }

    fn path(code: String, shown: &str) -> Self {
        Self { path_codes: vec![code.clone()], code, source: shown.to_owned(), is_nil: false }
    }

    /// Returns the member below, with its path.
    fn step(mut self, key: &str, shown: &str) -> Self {
        self.code = format!("at({}, {key}, {})", self.code, quoted(&self.source));
        self.source = if self.source == "." { format!(".{shown}") } else { format!("{}.{shown}", self.source) };
        if !self.path_codes.is_empty() {
            self.path_codes.push(self.code.clone());
        }
        self
    }

    /// Returns the code for the truth of the value.
    pub(super) fn truth(&self) -> String {
        format!("truth({})", self.code)
    }

    /// Returns the code that tests whether every step of the path has a value.
    pub(super) fn is_set(&self) -> String {
        let steps: Vec<_> = self.path_codes.iter().map(|step| format!("has({step})")).collect();
        if steps.is_empty() { format!("has({})", self.code) } else { format!("({})", steps.join(" and ")) }
    }
}

/// Quotes a text for minijinja.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Parser of tokens as expressions.
pub(super) struct ExpressionParser<'a, 't> {
    pub(super) tokens: &'a [Token<'t>],
    pub(super) at: usize,
    names: &'a dyn NameResolver,
    depth: usize,
    /// A `.` after space begins a new expression.
    is_sequence: bool,
}

impl<'a, 't> ExpressionParser<'a, 't> {
    pub(super) fn new(tokens: &'a [Token<'t>], names: &'a dyn NameResolver) -> Self {
        Self { tokens, at: 0, names, depth: 0, is_sequence: false }
    }

    /// Creates a parser for several expressions in a row.
    pub(super) fn for_sequence(tokens: &'a [Token<'t>], names: &'a dyn NameResolver) -> Self {
        Self { is_sequence: true, ..Self::new(tokens, names) }
    }

    /// Parses the next expression.
    pub(super) fn next_expression(&mut self) -> Result<Code, String> {
        self.pipeline()
    }

    /// Parses a name, for the statement `what`.
    pub(super) fn expect_name(&mut self, what: &str) -> Result<&'t str, String> {
        let Some(TokenKind::Name(name)) = self.peek() else { return Err(format!("{what} takes a name")) };
        self.at += 1;
        Ok(name)
    }

    /// True when no token is left.
    pub(super) fn is_at_end(&self) -> bool {
        self.at >= self.tokens.len()
    }

    /// Takes the next token when the token is this name. True when taken.
    pub(super) fn take_name(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Some(TokenKind::Name(name)) if *name == word);
        self.at += usize::from(found);
        found
    }

    /// Takes a comma, when the next token is a comma.
    pub(super) fn take_comma(&mut self) {
        self.take(",");
    }

    /// Parses `(a=1, b)` or nothing, as names with optional values.
    pub(super) fn parameters(&mut self) -> Result<Vec<(&'t str, Option<Code>)>, String> {
        let mut all = Vec::new();
        if !self.take("(") {
            return Ok(all);
        }
        while !self.take(")") {
            let Some(TokenKind::Name(name)) = self.peek() else {
                return Err(format!("{}: the parameters of a block have names, as id=1", self.unexpected()));
            };
            self.at += 1;
            let value = if self.take("=") { Some(self.ternary()?) } else { None };
            all.push((*name, value));
            if !self.take(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(all)
    }

    /// Parses all tokens as one expression.
    pub(super) fn parse_all(mut self) -> Result<Code, String> {
        let code = self.pipeline()?;
        if self.at < self.tokens.len() { Err(self.unexpected()) } else { Ok(code) }
    }

    fn peek(&self) -> Option<&'a TokenKind<'t>> {
        self.tokens.get(self.at).map(|token| &token.kind)
    }

    fn sign(&self) -> Option<&'t str> {
        if let Some(TokenKind::Sign(sign)) = self.peek() { Some(sign) } else { None }
    }

    fn take(&mut self, sign: &str) -> bool {
        let found = self.sign() == Some(sign);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, sign: &str) -> Result<(), String> {
        if self.take(sign) { Ok(()) } else { Err(self.unexpected()) }
    }

    pub(super) fn unexpected(&self) -> String {
        match self.peek() {
            None => "unexpected end".to_owned(),
            Some(TokenKind::Name(word) | TokenKind::Literal(word) | TokenKind::Sign(word)) => format!("unexpected {word}"),
            Some(TokenKind::Text(text)) => format!("unexpected {text:?}"),
            Some(TokenKind::Bytes(_)) => "unexpected bytes".to_owned(),
        }
    }

    fn pipeline(&mut self) -> Result<Code, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("the expression is nested too deep".to_owned());
        }
        let mut code = self.ternary()?;
        while self.take("|") {
            let Some(TokenKind::Name(name)) = self.peek() else { return Err(self.unexpected()) };
            self.at += 1;
            code = self.call(name, Some(code))?;
        }
        self.depth -= 1;
        Ok(code)
    }

    fn ternary(&mut self) -> Result<Code, String> {
        let condition = self.binary(0)?;
        if !self.take("?") {
            return Ok(condition);
        }
        // A pipe at the end applies to the whole conditional.
        let yes = self.nested_ternary()?;
        self.expect(":")?;
        let no = self.nested_ternary()?;
        Ok(Code::from_code(format!("({} if {} else {})", yes.code, condition.truth(), no.code)))
    }

    fn nested_ternary(&mut self) -> Result<Code, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("the expression is nested too deep".to_owned());
        }
        let code = self.ternary()?;
        self.depth -= 1;
        Ok(code)
    }

    /// Parses the operators from a level up; `&&` and `||` have the same precedence.
    fn binary(&mut self, level: usize) -> Result<Code, String> {
        let Some(signs) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        let mut count = 0;
        while let Some(sign) = self.operator(signs) {
            let right = self.binary(level + 1)?;
            count += 1;
            if count > MAX_DEPTH {
                return Err("the expression is too long".to_owned());
            }
            left = Self::join(&left, sign, &right);
        }
        Ok(left)
    }

    fn operator(&mut self, signs: &[&'static str]) -> Option<&'static str> {
        let (TokenKind::Sign(word) | TokenKind::Name(word)) = self.peek()? else { return None };
        let found = signs.iter().find(|sign| *sign == word).copied()?;
        self.at += 1;
        Some(found)
    }

    fn join(left: &Code, sign: &str, right: &Code) -> Code {
        let called = |name: &str| format!("{name}({}, {})", left.code, right.code);
        Code::from_code(match sign {
            "==" if right.is_nil => format!("(not {})", left.is_set()),
            "!=" if right.is_nil => left.is_set(),
            "==" if left.is_nil => format!("(not {})", right.is_set()),
            "!=" if left.is_nil => right.is_set(),
            "==" => called("same"),
            "!=" => format!("(not {})", called("same")),
            "||" | "or" => format!("({} or {})", left.truth(), right.truth()),
            "&&" | "and" => format!("({} and {})", left.truth(), right.truth()),
            "+" => called("plus"),
            "-" => called("minus"),
            "*" => called("times"),
            "/" => called("div"),
            "%" => called("rem"),
            order => format!("ordered({}, {}, {})", quoted(order), left.code, right.code),
        })
    }

    fn unary(&mut self) -> Result<Code, String> {
        let not = self.take("!") || self.operator(&["not"]).is_some();
        let sign = if not { None } else { self.operator(&["-", "+"]) };
        if !not && sign.is_none() {
            return self.postfix();
        }
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("the expression is nested too deep".to_owned());
        }
        // A negation reaches up to the next `&&` or `||`.
        let code = if not { self.binary(COMPARISON)? } else { self.postfix()? };
        self.depth -= 1;
        Ok(Code::from_code(match sign {
            None => format!("(not {})", code.truth()),
            Some(sign) => format!("signed({}, {})", quoted(sign), code.code),
        }))
    }

    fn postfix(&mut self) -> Result<Code, String> {
        let mut code = self.primary()?;
        loop {
            let another = self.is_sequence && self.tokens.get(self.at).is_some_and(|token| token.after_space);
            if !another && self.take(".") {
                let Some(TokenKind::Name(name)) = self.peek() else { return Err(self.unexpected()) };
                self.at += 1;
                // The only method that templates call.
                if *name == PROMETHEUS && self.take("(") {
                    self.expect(")")?;
                    code = Code::from_code(format!("{PROMETHEUS}({})", code.code));
                    continue;
                }
                // The message of the caught error.
                if *name == "Error" && self.take("(") {
                    self.expect(")")?;
                    continue;
                }
                code = member(code, name);
            } else if !another && self.take("[") {
                code = self.index(code)?;
            } else {
                return Ok(code);
            }
        }
    }

    /// Parses the content of `[…]`: an index, a key, or the bounds of a slice.
    fn index(&mut self, code: Code) -> Result<Code, String> {
        if let (Some(TokenKind::Text(key)), Some(TokenKind::Sign("]"))) =
            (self.peek(), self.tokens.get(self.at + 1).map(|t| &t.kind))
        {
            self.at += 2;
            return Ok(member(code, key));
        }
        let from = if self.sign() == Some(":") { None } else { Some(self.pipeline()?) };
        if self.take("]") {
            return from.map(|index| code.step(&index.code, &index.code)).ok_or_else(|| self.unexpected());
        }
        self.expect(":")?;
        let to = if self.sign() == Some("]") { None } else { Some(self.pipeline()?) };
        self.expect("]")?;
        let bound = |bound: Option<Code>| bound.map_or_else(|| "none".to_owned(), |code| code.code);
        Ok(Code::from_code(format!("part({}, {}, {})", code.code, bound(from), bound(to))))
    }

    fn primary(&mut self) -> Result<Code, String> {
        let token = self.peek().ok_or_else(|| self.unexpected())?;
        self.at += 1;
        match token {
            TokenKind::Text(text) if self.tokens.get(self.at - 1).is_some_and(|token| token.quote == Some('\'')) => {
                character(text)
            }
            TokenKind::Text(text) => Ok(Code::from_code(quoted(text))),
            TokenKind::Literal(word) => number(word).map(float).ok_or_else(|| format!("{word} is not a number")),
            TokenKind::Sign("(") => {
                let code = self.pipeline()?;
                self.expect(")")?;
                Ok(Code::from_code(format!("({})", code.code)))
            }
            TokenKind::Sign(".") => self.dot(),
            TokenKind::Name(name) => self.name(name),
            _ => {
                self.at -= 1;
                Err(self.unexpected())
            }
        }
    }

    /// Parses `.` alone, or a field of `.`.
    fn dot(&mut self) -> Result<Code, String> {
        let field = if let Some(TokenKind::Name(name)) = self.peek() { Some(*name) } else { None };
        self.at += usize::from(field.is_some());
        match (self.names.dot(), field) {
            (Some(dot), Some(field)) => Ok(member(Code::path(dot, "."), field)),
            (Some(dot), None) => Ok(Code::path(dot, ".")),
            (None, Some(field)) => root(field).ok_or_else(|| format!("unknown name .{field}")),
            (None, None) => Err(". has no value outside of a range".to_owned()),
        }
    }

    fn name(&mut self, name: &str) -> Result<Code, String> {
        if let Some(variable) = self.names.variable(name) {
            return Ok(Code::path(variable, name));
        }
        match name {
            "true" | "false" => return Ok(Code::from_code(name)),
            "nil" => return Ok(Code { is_nil: true, ..Code::from_code("none") }),
            _ => {}
        }
        let calls = matches!(self.sign(), Some("(" | ":"));
        if calls && (name == "isset" || self.names.is_function(name)) {
            return self.call(name, None);
        }
        let called = self.sign() == Some("(");
        root(name).or_else(|| self.field_of_dot(name).filter(|_| !called)).ok_or_else(|| format!("unknown name {name}"))
    }

    /// Returns a variable of the caller, or a field of `.`, by its name.
    fn field_of_dot(&self, name: &str) -> Option<Code> {
        let dot = self.names.dot().filter(|_| self.names.allows_unknown_names())?;
        Some(Code::path(format!("named({GIVEN}, {dot}, {})", quoted(name)), name))
    }

    /// Parses a call; the piped value becomes the argument `_`, or the first argument.
    fn call(&mut self, name: &str, piped: Option<Code>) -> Result<Code, String> {
        if name != "isset" && !self.names.is_function(name) {
            return Err(format!("unknown name {name}"));
        }
        let mut args = Vec::new();
        let mut slot = None;
        if self.take("(") {
            if !self.take(")") {
                self.arguments(&mut args, &mut slot)?;
                self.expect(")")?;
            }
        } else if self.take(":") {
            self.arguments(&mut args, &mut slot)?;
        }
        if let Some(piped) = piped {
            args.insert(slot.unwrap_or(0), piped);
        } else if slot.is_some() {
            return Err("_ needs a piped value".to_owned());
        }
        if name == "isset" {
            let set: Vec<_> = args.iter().map(Code::is_set).collect();
            return Ok(Code::from_code(format!("({})", set.join(" and "))));
        }
        let args: Vec<_> = args.into_iter().map(|code| code.code).collect();
        Ok(Code::from_code(format!("{name}({})", args.join(", "))))
    }

    fn arguments(&mut self, args: &mut Vec<Code>, slot: &mut Option<usize>) -> Result<(), String> {
        loop {
            if matches!(self.peek(), Some(TokenKind::Name("_"))) && slot.is_none() {
                *slot = Some(args.len());
                self.at += 1;
            } else {
                self.depth += 1;
                if self.depth > MAX_DEPTH {
                    return Err("the expression is nested too deep".to_owned());
                }
                args.push(self.ternary()?);
                self.depth -= 1;
            }
            if !self.take(",") {
                return Ok(());
            }
        }
    }
}

/// Parses a number literal; all literals are floats.
fn number(word: &str) -> Option<f64> {
    if word.contains('_') {
        return None;
    }
    let radix = |digits: &str, radix: u32| u64::from_str_radix(digits, radix).ok();
    let whole = match word.as_bytes() {
        [b'0', b'x' | b'X', ..] => radix(word.get(2..)?, 16)?,
        _ if word.contains(['.', 'e', 'E']) => return word.parse().ok().filter(|float: &f64| float.is_finite()),
        [b'0', _, ..] => radix(word, 8)?,
        _ => radix(word, 10)?,
    };
    #[expect(clippy::cast_precision_loss, reason = "numbers beyond 2^53 are rounded in Go too")]
    Some(whole as f64)
}

/// Writes a float for minijinja.
fn float(value: f64) -> Code {
    Code::from_code(format!("{value:?}"))
}

/// Returns the code point of a character in single quotes.
fn character(text: &str) -> Result<Code, String> {
    let mut chars = text.chars();
    match (chars.next(), chars.next()) {
        (Some(one), None) => Ok(float(f64::from(u32::from(one)))),
        _ => Err(format!("'{text}' is not one character: write texts in double quotes")),
    }
}

/// Returns the code of a root, which needs no declaration.
fn root(name: &str) -> Option<Code> {
    let root = name.to_lowercase();
    let known = matches!(name, "Facts" | "facts" | "Data" | "data" | "Environ" | "environ");
    known.then(|| Code::path(root, name))
}

fn member(code: Code, key: &str) -> Code {
    if code.code == "environ" {
        return Code::from_code(format!("environ_of({})", quoted(key)));
    }
    code.step(&quoted(key), key)
}
