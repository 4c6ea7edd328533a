//! The parser of operands: literals, paths and calls, with their members, indexes and methods.

use super::super::error::ExprError;
use super::super::names::{Member, PathStep, ValuePath};
use super::super::node::{ExprNode, NOT_PRECEDENCE, OPERATORS, Pointer, PredicateFunction, SIGN_PRECEDENCE};
use super::super::value::Value;
use super::parser::{Parsed, Parser};
use super::static_types;
use crate::template::expr::lex::TokenKind;
use crate::template::functions::bus_functions::PROMETHEUS;

impl<'t> Parser<'_, 't> {
    /// Reads an operand with its signs, members and methods.
    pub(super) fn operand(&mut self) -> Parsed {
        let tightness = match self.word_at(0) {
            "not" | "!" => NOT_PRECEDENCE,
            "-" | "+" => SIGN_PRECEDENCE,
            _ => return self.primary(),
        };
        let (negative, offset) = (self.word_at(0) == "-", self.offset());
        self.at += 1;
        self.count_operator()?;
        let node = self.binary_expression(tightness)?;
        if tightness == NOT_PRECEDENCE {
            static_types::check_condition(&node, offset)?;
            return Ok(negate(node));
        }
        static_types::check_sign(&node, negative, offset)?;
        Ok(ExprNode::Signed(negative, Box::new(node)))
    }

    fn primary(&mut self) -> Parsed {
        let offset = self.offset();
        let Some(token) = self.tokens.get(self.at) else { return Err(self.unexpected()) };
        let node = match &token.kind {
            TokenKind::Text(text) => {
                self.at += 1;
                ExprNode::Value(Value::String(text.clone()))
            }
            TokenKind::Bytes(bytes) => {
                self.at += 1;
                ExprNode::Value(Value::Bytes(bytes.clone()))
            }
            TokenKind::Literal(word) => {
                self.at += 1;
                ExprNode::Value(parse_number(word).ok_or_else(|| ExprError::syntax(offset, format!("{word} is no number")))?)
            }
            TokenKind::Sign("(") => {
                self.at += 1;
                self.bracketed(")", Self::sequence)?
            }
            TokenKind::Sign("[") => {
                self.at += 1;
                ExprNode::List(self.bracketed("]", |parser| parser.list("]"))?)
            }
            TokenKind::Sign("{") => {
                self.at += 1;
                ExprNode::Map(self.bracketed("}", Self::pairs)?)
            }
            // `.name` in a predicate is `#.name`.
            TokenKind::Sign(".") if !self.predicates.is_empty() => ExprNode::Pointer(Pointer::Item),
            TokenKind::Name(name) => {
                let name: &'t str = name;
                self.at += 1;
                self.identifier(name, offset)?
            }
            TokenKind::Sign(_) => return Err(self.unexpected()),
        };
        self.postfix(node)
    }

    /// Reads a literal, a root, a variable or a call that begins with a name.
    fn identifier(&mut self, name: &'t str, offset: usize) -> Parsed {
        match name {
            "true" | "false" => return Ok(ExprNode::Value(Value::Bool(name == "true"))),
            "nil" => return Ok(ExprNode::Value(Value::Nil)),
            "$env" => return Ok(ExprNode::AllRoots),
            _ => {}
        }
        if let Some(what) = name.strip_prefix('#') {
            let pointer = match what {
                _ if self.predicates.is_empty() => {
                    return Err(ExprError::syntax(offset, format!("unexpected '{name}': only predicates have it")));
                }
                "" => Pointer::Item,
                "index" => Pointer::Index,
                "acc" if self.predicates.last() == Some(&true) => Pointer::Accumulator,
                "acc" => return Err(ExprError::syntax(offset, "unknown pointer #acc, which only reduce has".to_owned())),
                _ => return Err(ExprError::syntax(offset, format!("unknown pointer {name}, there are #, #index and #acc"))),
            };
            return Ok(ExprNode::Pointer(pointer));
        }
        if self.consume("(") {
            return self.call(name, offset, None);
        }
        if self.locals.contains(&name) {
            return Ok(ExprNode::Local(name.to_owned()));
        }
        if OPERATORS.iter().any(|(word, ..)| *word == name) || matches!(name, "not" | "let" | "if" | "else") {
            self.at -= 1;
            return Err(self.unexpected());
        }
        let root = self.names.root(name, offset)?;
        let mut steps = Vec::new();
        while let Some(step) = self.path_step() {
            steps.push(step);
        }
        let shown = self.source.get(offset..self.offset()).unwrap_or_default().trim().to_owned();
        let path = ValuePath { root, steps, written: shown, offset };
        path.check_output()?;
        let same = |known: &ValuePath| known.root == path.root && known.steps == path.steps && known.written == path.written;
        let index = self.paths.iter().position(same).unwrap_or_else(|| {
            self.paths.push(path);
            self.paths.len() - 1
        });
        Ok(ExprNode::Path(index))
    }

    /// The next step of a path, when its key or index is a literal.
    fn path_step(&mut self) -> Option<PathStep> {
        let optional = self.word_at(0) == "?.";
        if (optional || self.word_at(0) == ".")
            && let Some(TokenKind::Name(name)) = self.peek(1)
        {
            // `postfix` reads the call of a method.
            if self.word_at(2) == "(" {
                return None;
            }
            let to = Member::Key((*name).to_owned());
            self.at += 2;
            return Some(PathStep { to, optional });
        }
        let open = usize::from(optional);
        if self.word_at(open) != "[" {
            return None;
        }
        let (to, length) = match (self.peek(open + 1)?, self.peek(open + 2)?) {
            (TokenKind::Text(key), _) => (Member::Key(key.clone()), 1),
            (TokenKind::Literal(index), _) => (Member::Index(index.parse().ok()?), 1),
            (TokenKind::Sign("-"), TokenKind::Literal(index)) => (Member::Index(index.parse::<i64>().ok()?.checked_neg()?), 2),
            _ => return None,
        };
        if self.word_at(open + 1 + length) != "]" {
            return None;
        }
        self.at += open + length + 2;
        Some(PathStep { to, optional })
    }

    /// Reads members, indexes, slices and methods behind an operand.
    fn postfix(&mut self, mut node: ExprNode) -> Parsed {
        // Behind the first `?.`, a member of nil is nil.
        let mut optional = matches!(&node, ExprNode::Path(index) if self.paths.get(*index).is_some_and(|path| path.steps.iter().any(|step| step.optional)));
        loop {
            let sign = self.word_at(0);
            let dotted = matches!(sign, "." | "?.") && matches!(self.peek(0), Some(TokenKind::Sign(_)));
            optional |= sign == "?.";
            if dotted && let Some(TokenKind::Name(name)) = self.peek(1) {
                let name: &'t str = name;
                let offset = self.offset();
                self.at += 2;
                self.count_operator()?;
                if self.consume("(") {
                    node = self.method(node, name, offset)?;
                    continue;
                }
                let key = Box::new(ExprNode::Value(Value::String(name.to_owned())));
                node = ExprNode::Member { of: Box::new(node), key, optional };
                continue;
            }
            let indexed = matches!(self.peek(usize::from(sign == "?.")), Some(TokenKind::Sign("[")));
            if !indexed || sign == "." {
                return if dotted {
                    self.at += 1;
                    Err(self.unexpected())
                } else {
                    Ok(node)
                };
            }
            self.at += 1 + usize::from(sign == "?.");
            self.count_operator()?;
            node = self.bracketed("]", |parser| parser.index(node, optional))?;
        }
    }

    /// Reads an index or a slice, without the brackets: `1`, `1:2`, `:`.
    fn index(&mut self, of: ExprNode, optional: bool) -> Parsed {
        let of = Box::new(of);
        let from = if self.word_at(0) == ":" { None } else { Some(Box::new(self.expression()?)) };
        if self.consume(":") {
            let to = if self.word_at(0) == "]" { None } else { Some(Box::new(self.expression()?)) };
            return Ok(ExprNode::Slice { of, from, to });
        }
        from.map(|key| ExprNode::Member { of, key, optional }).ok_or_else(|| self.unexpected())
    }

    /// Reads a method behind its open bracket.
    fn method(&mut self, of: ExprNode, name: &str, offset: usize) -> Parsed {
        let args = self.bracketed(")", |parser| parser.list(")"))?;
        // The only method that manifests call on a value other than a time.
        if name == PROMETHEUS {
            let args = std::iter::once(of).chain(args).collect();
            return Ok(ExprNode::Call { name: name.to_owned(), args, offset });
        }
        Ok(ExprNode::Method { of: Box::new(of), name: name.to_owned(), args })
    }

    /// Reads the call behind a pipe; `first` becomes its first argument.
    pub(super) fn pipe_call(&mut self, first: ExprNode) -> Parsed {
        let offset = self.offset();
        let Some(TokenKind::Name(name)) = self.peek(0) else { return Err(self.unexpected()) };
        let name: &'t str = name;
        self.at += 1;
        self.expect("(")?;
        let node = self.call(name, offset, Some(first))?;
        self.postfix(node)
    }

    /// Reads a call behind its open bracket.
    fn call(&mut self, name: &str, offset: usize, first: Option<ExprNode>) -> Parsed {
        let Some(function) = PredicateFunction::from_name(name) else {
            self.names.check_function(name, offset)?;
            let args = self.bracketed(")", |parser| parser.list(")"))?;
            let args: Vec<ExprNode> = first.into_iter().chain(args).collect();
            if matches!(name, "first" | "last" | "get") {
                args.first().map_or(Ok(()), |list| static_types::check_list(name, list, offset))?;
            }
            return Ok(ExprNode::Call { name: name.to_owned(), args, offset });
        };
        let (list, predicate, rest) = self.bracketed(")", |parser| {
            let list = match first {
                Some(first) => first,
                None => {
                    let list = parser.expression()?;
                    if parser.word_at(0) != ")" {
                        parser.expect(",")?;
                    }
                    list
                }
            };
            let predicate = if parser.word_at(0) == ")" { None } else { Some(Box::new(parser.predicate(function)?)) };
            let rest = if parser.consume(",") && parser.word_at(0) != ")" { Some(Box::new(parser.expression()?)) } else { None };
            parser.consume(",");
            Ok((Box::new(list), predicate, rest))
        })?;
        static_types::check_list(name, &list, offset)?;
        if predicate.is_none() && !function.has_default_predicate() {
            return Err(ExprError::syntax(offset, format!("{name} requires a list and a predicate, as {name}(list, # > 1)")));
        }
        Ok(ExprNode::PredicateCall { function, list, predicate, rest })
    }

    /// `# > 1` or `{ # > 1 }`
    fn predicate(&mut self, function: PredicateFunction) -> Parsed {
        let offset = self.offset();
        self.predicates.push(function == PredicateFunction::Reduce);
        let node = if self.word_at(0) == "{" && !self.begins_map() {
            self.at += 1;
            self.bracketed("}", Self::sequence)?
        } else {
            self.expression()?
        };
        self.predicates.pop();
        static_types::check_predicate(function, &node, offset)?;
        Ok(node)
    }

    /// True when the next brace begins a map and not a predicate.
    fn begins_map(&self) -> bool {
        let key = matches!(self.peek(1), Some(TokenKind::Name(_) | TokenKind::Text(_) | TokenKind::Literal(_)));
        self.word_at(1) == "}" || (key && self.word_at(2) == ":")
    }

    fn list(&mut self, close: &str) -> Result<Vec<ExprNode>, ExprError> {
        let mut nodes = Vec::new();
        while self.word_at(0) != close || !matches!(self.peek(0), Some(TokenKind::Sign(_))) {
            nodes.push(self.expression()?);
            if !self.consume(",") {
                break;
            }
        }
        Ok(nodes)
    }

    /// `a: 1, "b": 2, (c): 3`
    fn pairs(&mut self) -> Result<Vec<(ExprNode, ExprNode)>, ExprError> {
        let mut pairs = Vec::new();
        while self.word_at(0) != "}" {
            let key = match self.peek(0) {
                Some(TokenKind::Name(name)) => Value::String((*name).to_owned()),
                Some(TokenKind::Literal(number)) => Value::String((*number).to_owned()),
                Some(TokenKind::Text(text)) => Value::String(text.clone()),
                _ => Value::Nil,
            };
            let key = if key.is_nil() {
                self.expect("(")?;
                self.bracketed(")", Self::expression)?
            } else {
                self.at += 1;
                ExprNode::Value(key)
            };
            self.expect(":")?;
            pairs.push((key, self.expression()?));
            if !self.consume(",") {
                break;
            }
        }
        Ok(pairs)
    }
}

/// Negates a node; a literal at once.
pub(super) fn negate(node: ExprNode) -> ExprNode {
    match node {
        ExprNode::Value(Value::Bool(truth)) => ExprNode::Value(Value::Bool(!truth)),
        node => ExprNode::Not(Box::new(node)),
    }
}

/// Reads a number.
fn parse_number(word: &str) -> Option<Value> {
    let plain = word.replace('_', "");
    let digits = plain.to_ascii_lowercase();
    for (prefix, radix) in [("0x", 16), ("0o", 8), ("0b", 2)] {
        if let Some(digits) = digits.strip_prefix(prefix) {
            return i64::from_str_radix(digits, radix).ok().map(Value::Integer);
        }
    }
    if plain.contains(['.', 'e', 'E']) {
        return plain.parse().ok().filter(|float: &f64| float.is_finite()).map(Value::Float);
    }
    plain.parse().ok().map(Value::Integer)
}
