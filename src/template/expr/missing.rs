//! Keys that an expression reads and the data lacks.
//!
//! The data is known before anything runs. `find` reports a missing key unless the expression allows for a missing key.
//! The expression allows that by `??`, `?.`, a comparison with nil, or a test for the key. A key behind a condition may
//! never be read. `find` reports such a key only when the data has a key with nearly the same name.

use std::collections::HashSet;

use serde_json::{Map, Value as Json};

use super::names::{Member, Path, Root};
use super::node::{Node, Op};
use super::value::Value;
use crate::diag::did_you_mean;
use crate::template::lookup;

/// A key that the data lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The key.
    pub key: String,
    /// The path to the key, as written.
    pub path: String,
    /// The known key with nearly the same name.
    pub near: Option<String>,
    /// The keys of the same map.
    pub known: Vec<String>,
    /// The offset in the expression, in bytes.
    pub offset: usize,
}

/// The conditions under which a part of an expression runs.
#[derive(Clone, Copy)]
struct Way {
    /// The part runs whenever the expression runs.
    certain: bool,
    /// The expression allows for a missing value here.
    guarded: bool,
}

/// Finds the first key that the data lacks.
pub(super) fn find(node: &Node, paths: &[Path], data: &Json) -> Option<Missing> {
    let mut search = Search { paths, data, found: Vec::new(), allowed: HashSet::new() };
    search.walk(node, Way { certain: true, guarded: false });
    let Search { found, allowed, .. } = search;
    found.into_iter().find(|missing| !allowed.contains(missing.key.as_str()))
}

struct Search<'c> {
    paths: &'c [Path],
    data: &'c Json,
    found: Vec<Missing>,
    /// Keys for which the expression allows for a missing value.
    allowed: HashSet<String>,
}

impl Search<'_> {
    fn all<'n>(&mut self, nodes: impl IntoIterator<Item = &'n Node>, way: Way) {
        nodes.into_iter().for_each(|node| self.walk(node, way));
    }

    fn walk(&mut self, node: &Node, way: Way) {
        let plain = Way { guarded: false, ..way };
        let guarded = Way { guarded: true, ..way };
        let perhaps = Way { certain: false, ..way };
        match node {
            // The text may be a key that the expression tests for: `'tls' in Data`.
            Node::Value(Value::String(text)) => drop(self.allowed.insert(text.clone())),
            Node::Path(index) => self.path(*index, way),
            Node::Binary(Op::Coalesce, left, right) => {
                self.walk(left, guarded);
                self.walk(right, perhaps);
            }
            Node::Binary(Op::And | Op::Or, left, right) => {
                self.walk(left, plain);
                self.walk(right, Way { certain: false, guarded: false });
            }
            Node::Binary(Op::Equal | Op::NotEqual, left, right) => {
                let is_nil = |node: &Node| matches!(node, Node::Value(Value::Nil));
                self.walk(left, if is_nil(right) { guarded } else { plain });
                self.walk(right, if is_nil(left) { guarded } else { plain });
            }
            Node::Binary(_, left, right) => self.all([&**left, right], plain),
            Node::Not(of) | Node::Signed(_, of) | Node::Matches(of, _) => self.walk(of, plain),
            Node::Choice(condition, then, otherwise) => {
                self.walk(condition, plain);
                self.all([&**then, otherwise], perhaps);
            }
            Node::List(items) | Node::Sequence(items) => self.all(items, plain),
            Node::Map(pairs) => pairs.iter().for_each(|(key, value)| self.all([key, value], plain)),
            Node::Member { of, key, optional } => {
                self.walk(of, if *optional { guarded } else { plain });
                self.walk(key, plain);
            }
            Node::Slice { of, from, to } => self.all([&**of].into_iter().chain(from.as_deref()).chain(to.as_deref()), plain),
            Node::Method { of, args, .. } => self.all([&**of].into_iter().chain(args), plain),
            Node::Call { name, args, offset } => self.call(name, args, *offset, way),
            Node::PredicateCall { list, predicate, rest, .. } => {
                self.walk(list, plain);
                self.all(predicate.as_deref().into_iter().chain(rest.as_deref()), Way { certain: false, guarded: false });
            }
            Node::Let(_, value, body) => {
                self.walk(value, guarded);
                self.walk(body, way);
            }
            Node::Value(_) | Node::Roots | Node::Local(_) | Node::Pointer(_) => {}
        }
    }

    fn call(&mut self, name: &str, args: &[Node], offset: usize, way: Way) {
        if let ("lookup", [Node::Value(Value::String(path))]) = (name, args) {
            let steps = lookup::steps(path).unwrap_or_default();
            if let Some(("data", steps)) = steps.split_first().map(|(root, steps)| (*root, steps)) {
                let steps = steps.iter().map(|step| Some(*step));
                self.note(steps, way.certain, path, offset);
            }
            return;
        }
        let guarded = matches!(name, "first" | "get" | "last" | "type");
        self.all(args, Way { guarded, ..way });
    }

    fn path(&mut self, index: usize, way: Way) {
        let Some(Path { root: Root::Data, steps, shown, offset }) = self.paths.get(index) else { return };
        let keys = steps.iter().map(|step| match &step.to {
            Member::Key(key) => Some(key.as_str()),
            Member::Index(_) => None,
        });
        if way.guarded || steps.iter().any(|step| step.optional) {
            self.allowed.extend(keys.flatten().map(str::to_owned));
            return;
        }
        self.note(keys, way.certain, shown, *offset);
    }

    /// Records the first key of a path that the data lacks.
    fn note<'k>(&mut self, keys: impl Iterator<Item = Option<&'k str>>, certain: bool, path: &str, offset: usize) {
        let mut here = self.data;
        for key in keys {
            let (Some(key), Json::Object(map)) = (key, here) else { return };
            match map.get(key) {
                Some(below) => here = below,
                None => {
                    self.found.extend(Missing::of(map, key, path, offset).filter(|missing| certain || missing.near.is_some()));
                    return;
                }
            }
        }
    }
}

impl Missing {
    fn of(map: &Map<String, Json>, key: &str, path: &str, offset: usize) -> Option<Self> {
        let known: Vec<String> = map.keys().cloned().collect();
        let near = did_you_mean(key, known.iter().map(String::as_str)).map(str::to_owned);
        Some(Self { key: key.to_owned(), path: path.to_owned(), near, known, offset })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::compile;
    use super::super::names::Names;

    #[test]
    fn keys_that_are_not_there_are_found_where_nothing_allows_for_it() {
        let data = json!({"port": 80, "tls": {"cert": "x"}, "list": [1], "nothing": null});
        let names = Names { functions: &["lookup", "upper"], restricted: false, subject: false };
        for (source, expected) in [
            ("Data.prot", "prot at 0, port?"),
            ("1 + Data.prot", "prot at 4, port?"),
            ("Data.colour", "colour at 0"),
            ("Data.tls.crt", "crt at 0, cert?"),
            ("Data['prot'] == 80", "prot at 0, port?"),
            ("lookup('data.prot')", "prot at 0, port?"),
            ("upper(lookup('data.tls.crt'))", "crt at 6, cert?"),
            ("Data.prot == 80", "prot at 0, port?"),
            ("Data.port > 1 and Data.prot > 1", "prot at 18, port?"),
            ("Data.port > 1 ? Data.prot : 2", "prot at 16, port?"),
            ("map(Data.list, Data.prot + #)", "prot at 15, port?"),
            ("let x = Data.port; Data.prot + x", "prot at 19, port?"),
            // Expressions without a missing key.
            ("Data.port", ""),
            ("Data.tls.cert", ""),
            ("Data.nothing", ""),
            ("Data.list[7]", ""),
            ("Data.port.x", ""),
            ("Facts.prot", ""),
            ("Data.prot ?? 80", ""),
            ("(Data.prot ?? Data.port) + 1", ""),
            ("Data.prot == nil", ""),
            ("nil != Data.prot", ""),
            ("Data?.prot", ""),
            ("Data.prot?.x ?? 1", ""),
            ("'prot' in Data ? Data.prot : 1", ""),
            ("Data.prot != nil and Data.prot > 1", ""),
            ("Data.port > 1 ? Data.colour : 2", ""),
            ("Data.port > 1 or Data.colour", ""),
            ("first(Data.prots) ?? 1", ""),
            ("get(Data, 'prot')", ""),
            ("lookup('data.prot', 1)", ""),
            ("lookup('facts.prot')", ""),
            ("lookup('data.list.#')", ""),
            ("let x = Data.prot; x ?? 1", ""),
        ] {
            let found = compile(source, &names).unwrap().missing(&data).map_or_else(String::new, |missing| {
                let near = missing.near.map_or_else(String::new, |near| format!(", {near}?"));
                format!("{} at {}{near}", missing.key, missing.offset)
            });
            assert_eq!(found, expected, "{source}");
        }
    }
}
