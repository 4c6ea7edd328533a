//! The parser of operands: literals, paths and calls, with their members, indexes and methods.

use super::super::names::{Member, Path, Step};
use super::super::node::{NOT, Node, OPERATORS, Pointer, PredicateFunction, SIGN};
use super::super::value::Value;
use super::kinds;
use super::parser::{Parsed, Parser, Wrong};
use crate::template::lex::Kind;
use crate::template::remote::PROMETHEUS;

impl<'t> Parser<'_, 't> {
    /// Reads an operand with its signs, members and methods.
    pub(super) fn operand(&mut self) -> Parsed {
        let tightness = match self.word(0) {
            "not" | "!" => NOT,
            "-" | "+" => SIGN,
            _ => return self.primary(),
        };
        let (negative, offset) = (self.word(0) == "-", self.offset());
        self.at += 1;
        self.count()?;
        let node = self.binary(tightness)?;
        if tightness == NOT {
            kinds::condition(&node, offset)?;
            return Ok(negated(node));
        }
        kinds::signed(&node, negative, offset)?;
        Ok(Node::Signed(negative, Box::new(node)))
    }

    fn primary(&mut self) -> Parsed {
        let offset = self.offset();
        let Some(token) = self.tokens.get(self.at) else { return Err(self.unexpected()) };
        let node = match &token.kind {
            Kind::Text(text) => {
                self.at += 1;
                Node::Value(Value::String(text.clone()))
            }
            Kind::Bytes(bytes) => {
                self.at += 1;
                Node::Value(Value::Bytes(bytes.clone()))
            }
            Kind::Literal(word) => {
                self.at += 1;
                Node::Value(literal(word).ok_or_else(|| (offset, format!("{word} is no number")))?)
            }
            Kind::Sign("(") => {
                self.at += 1;
                self.inside(")", Self::sequence)?
            }
            Kind::Sign("[") => {
                self.at += 1;
                Node::List(self.inside("]", |parser| parser.list("]"))?)
            }
            Kind::Sign("{") => {
                self.at += 1;
                Node::Map(self.inside("}", Self::pairs)?)
            }
            // `.name` in a predicate is `#.name`.
            Kind::Sign(".") if !self.predicates.is_empty() => Node::Pointer(Pointer::Item),
            Kind::Name(name) => {
                let name: &'t str = name;
                self.at += 1;
                self.named(name, offset)?
            }
            Kind::Sign(_) => return Err(self.unexpected()),
        };
        self.postfix(node)
    }

    /// Reads a literal, a root, a variable or a call that begins with a name.
    fn named(&mut self, name: &'t str, offset: usize) -> Parsed {
        match name {
            "true" | "false" => return Ok(Node::Value(Value::Bool(name == "true"))),
            "nil" => return Ok(Node::Value(Value::Nil)),
            "$env" => return Ok(Node::Roots),
            _ => {}
        }
        if let Some(what) = name.strip_prefix('#') {
            let pointer = match what {
                _ if self.predicates.is_empty() => return Err((offset, format!("unexpected '{name}': only predicates have it"))),
                "" => Pointer::Item,
                "index" => Pointer::Index,
                "acc" if self.predicates.last() == Some(&true) => Pointer::Accumulator,
                "acc" => return Err((offset, "unknown pointer #acc, which only reduce has".to_owned())),
                _ => return Err((offset, format!("unknown pointer {name}, there are #, #index and #acc"))),
            };
            return Ok(Node::Pointer(pointer));
        }
        if self.takes("(") {
            return self.call(name, offset, None);
        }
        if self.locals.contains(&name) {
            return Ok(Node::Local(name.to_owned()));
        }
        if OPERATORS.iter().any(|(word, ..)| *word == name) || matches!(name, "not" | "let" | "if" | "else") {
            self.at -= 1;
            return Err(self.unexpected());
        }
        let root = self.names.root(name).map_err(|why| (offset, why))?;
        let mut steps = Vec::new();
        while let Some(step) = self.step() {
            steps.push(step);
        }
        let shown = self.source.get(offset..self.offset()).unwrap_or_default().trim().to_owned();
        let path = Path { root, steps, shown, offset };
        let same = |known: &Path| known.root == path.root && known.steps == path.steps && known.shown == path.shown;
        let index = self.paths.iter().position(same).unwrap_or_else(|| {
            self.paths.push(path);
            self.paths.len() - 1
        });
        Ok(Node::Path(index))
    }

    /// The next step of a path, when its key or index is a literal.
    fn step(&mut self) -> Option<Step> {
        let optional = self.word(0) == "?.";
        if (optional || self.word(0) == ".")
            && let Some(Kind::Name(name)) = self.peek(1)
        {
            // `postfix` reads the call of a method.
            if self.word(2) == "(" {
                return None;
            }
            let to = Member::Key((*name).to_owned());
            self.at += 2;
            return Some(Step { to, optional });
        }
        let open = usize::from(optional);
        if self.word(open) != "[" {
            return None;
        }
        let (to, length) = match (self.peek(open + 1)?, self.peek(open + 2)?) {
            (Kind::Text(key), _) => (Member::Key(key.clone()), 1),
            (Kind::Literal(index), _) => (Member::Index(index.parse().ok()?), 1),
            (Kind::Sign("-"), Kind::Literal(index)) => (Member::Index(index.parse::<i64>().ok()?.checked_neg()?), 2),
            _ => return None,
        };
        if self.word(open + 1 + length) != "]" {
            return None;
        }
        self.at += open + length + 2;
        Some(Step { to, optional })
    }

    /// Reads members, indexes, slices and methods behind an operand.
    fn postfix(&mut self, mut node: Node) -> Parsed {
        // Behind the first `?.`, a member of nil is nil.
        let mut optional = matches!(&node, Node::Path(index) if self.paths.get(*index).is_some_and(|path| path.steps.iter().any(|step| step.optional)));
        loop {
            let sign = self.word(0);
            let dotted = matches!(sign, "." | "?.") && matches!(self.peek(0), Some(Kind::Sign(_)));
            optional |= sign == "?.";
            if dotted && let Some(Kind::Name(name)) = self.peek(1) {
                let name: &'t str = name;
                let offset = self.offset();
                self.at += 2;
                self.count()?;
                if self.takes("(") {
                    node = self.method(node, name, offset)?;
                    continue;
                }
                let key = Box::new(Node::Value(Value::String(name.to_owned())));
                node = Node::Member { of: Box::new(node), key, optional };
                continue;
            }
            let indexed = matches!(self.peek(usize::from(sign == "?.")), Some(Kind::Sign("[")));
            if !indexed || sign == "." {
                return if dotted {
                    self.at += 1;
                    Err(self.unexpected())
                } else {
                    Ok(node)
                };
            }
            self.at += 1 + usize::from(sign == "?.");
            self.count()?;
            node = self.inside("]", |parser| parser.index(node, optional))?;
        }
    }

    /// Reads an index or a slice, without the brackets: `1`, `1:2`, `:`.
    fn index(&mut self, of: Node, optional: bool) -> Parsed {
        let of = Box::new(of);
        let from = if self.word(0) == ":" { None } else { Some(Box::new(self.whole()?)) };
        if self.takes(":") {
            let to = if self.word(0) == "]" { None } else { Some(Box::new(self.whole()?)) };
            return Ok(Node::Slice { of, from, to });
        }
        from.map(|key| Node::Member { of, key, optional }).ok_or_else(|| self.unexpected())
    }

    /// Reads a method behind its open bracket.
    fn method(&mut self, of: Node, name: &str, offset: usize) -> Parsed {
        let args = self.inside(")", |parser| parser.list(")"))?;
        // The only method that manifests call on a value other than a time.
        if name == PROMETHEUS {
            let args = std::iter::once(of).chain(args).collect();
            return Ok(Node::Call { name: name.to_owned(), args, offset });
        }
        Ok(Node::Method { of: Box::new(of), name: name.to_owned(), args })
    }

    /// Reads the call behind a pipe; `first` becomes its first argument.
    pub(super) fn piped(&mut self, first: Node) -> Parsed {
        let offset = self.offset();
        let Some(Kind::Name(name)) = self.peek(0) else { return Err(self.unexpected()) };
        let name: &'t str = name;
        self.at += 1;
        self.expect("(")?;
        let node = self.call(name, offset, Some(first))?;
        self.postfix(node)
    }

    /// Reads a call behind its open bracket.
    fn call(&mut self, name: &str, offset: usize, first: Option<Node>) -> Parsed {
        let Some(function) = PredicateFunction::named(name) else {
            self.names.function(name).map_err(|why| (offset, why))?;
            let args = self.inside(")", |parser| parser.list(")"))?;
            let args: Vec<Node> = first.into_iter().chain(args).collect();
            if matches!(name, "first" | "last" | "get") {
                args.first().map_or(Ok(()), |list| kinds::list(name, list, offset))?;
            }
            return Ok(Node::Call { name: name.to_owned(), args, offset });
        };
        let (list, predicate, rest) = self.inside(")", |parser| {
            let list = match first {
                Some(first) => first,
                None => {
                    let list = parser.whole()?;
                    if parser.word(0) != ")" {
                        parser.expect(",")?;
                    }
                    list
                }
            };
            let predicate = if parser.word(0) == ")" { None } else { Some(Box::new(parser.predicate(function)?)) };
            let rest = if parser.takes(",") && parser.word(0) != ")" { Some(Box::new(parser.whole()?)) } else { None };
            parser.takes(",");
            Ok((Box::new(list), predicate, rest))
        })?;
        kinds::list(name, &list, offset)?;
        if predicate.is_none() && !function.works_alone() {
            return Err((offset, format!("{name} requires a list and a predicate, as {name}(list, # > 1)")));
        }
        Ok(Node::PredicateCall { function, list, predicate, rest })
    }

    /// `# > 1` or `{ # > 1 }`
    fn predicate(&mut self, function: PredicateFunction) -> Parsed {
        let offset = self.offset();
        self.predicates.push(function == PredicateFunction::Reduce);
        let node = if self.word(0) == "{" && !self.map_begins() {
            self.at += 1;
            self.inside("}", Self::sequence)?
        } else {
            self.whole()?
        };
        self.predicates.pop();
        kinds::predicate(function, &node, offset)?;
        Ok(node)
    }

    /// True when the next brace begins a map and not a predicate.
    fn map_begins(&self) -> bool {
        let key = matches!(self.peek(1), Some(Kind::Name(_) | Kind::Text(_) | Kind::Literal(_)));
        self.word(1) == "}" || (key && self.word(2) == ":")
    }

    fn list(&mut self, close: &str) -> Result<Vec<Node>, Wrong> {
        let mut nodes = Vec::new();
        while self.word(0) != close || !matches!(self.peek(0), Some(Kind::Sign(_))) {
            nodes.push(self.whole()?);
            if !self.takes(",") {
                break;
            }
        }
        Ok(nodes)
    }

    /// `a: 1, "b": 2, (c): 3`
    fn pairs(&mut self) -> Result<Vec<(Node, Node)>, Wrong> {
        let mut pairs = Vec::new();
        while self.word(0) != "}" {
            let key = match self.peek(0) {
                Some(Kind::Name(name)) => Value::String((*name).to_owned()),
                Some(Kind::Literal(number)) => Value::String((*number).to_owned()),
                Some(Kind::Text(text)) => Value::String(text.clone()),
                _ => Value::Nil,
            };
            let key = if key.is_nil() {
                self.expect("(")?;
                self.inside(")", Self::whole)?
            } else {
                self.at += 1;
                Node::Value(key)
            };
            self.expect(":")?;
            pairs.push((key, self.whole()?));
            if !self.takes(",") {
                break;
            }
        }
        Ok(pairs)
    }
}

/// Negates a node; a literal at once.
pub(super) fn negated(node: Node) -> Node {
    match node {
        Node::Value(Value::Bool(truth)) => Node::Value(Value::Bool(!truth)),
        node => Node::Not(Box::new(node)),
    }
}

/// Reads a number.
fn literal(word: &str) -> Option<Value> {
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
