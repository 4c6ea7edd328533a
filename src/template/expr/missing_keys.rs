//! Keys that an expression reads and the data lacks.
//!
//! The data is known before anything runs. `find` reports a missing key unless the expression allows for a missing key.
//! The expression allows that by `??`, `?.`, a comparison with nil, or a test for the key. A key behind a condition may
//! never be read. `find` reports such a key only when the data has a key with nearly the same name.

use std::collections::HashSet;

use serde_json::{Map, Value as Json};

use super::names::{Member, Root, ValuePath};
use super::node::{ExprNode, Op};
use super::value::Value;
use crate::diag::did_you_mean;
use crate::template::text::plain_steps;

/// A key that the data lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingKey {
    /// The key.
    pub key: String,
    /// The path to the key, as written.
    pub path: String,
    /// The known key with nearly the same name.
    pub suggestion: Option<String>,
    /// The keys of the same map.
    pub known: Vec<String>,
    /// The offset in the expression, in bytes.
    pub offset: usize,
}

/// The conditions under which a part of an expression runs.
#[derive(Clone, Copy)]
struct RunConditions {
    /// The part runs whenever the expression runs.
    always_runs: bool,
    /// The expression allows for a missing value here.
    allows_nil: bool,
}

/// Finds the first key that the data lacks.
pub(super) fn find(node: &ExprNode, paths: &[ValuePath], data: &Json) -> Option<MissingKey> {
    let mut search = Search { paths, data, found: Vec::new(), allowed: HashSet::new() };
    search.walk(node, RunConditions { always_runs: true, allows_nil: false });
    let Search { found, allowed, .. } = search;
    found.into_iter().find(|missing| !allowed.contains(missing.key.as_str()))
}

struct Search<'c> {
    paths: &'c [ValuePath],
    data: &'c Json,
    found: Vec<MissingKey>,
    /// Keys for which the expression allows for a missing value.
    allowed: HashSet<String>,
}

impl Search<'_> {
    fn all<'n>(&mut self, nodes: impl IntoIterator<Item = &'n ExprNode>, way: RunConditions) {
        nodes.into_iter().for_each(|node| self.walk(node, way));
    }

    fn walk(&mut self, node: &ExprNode, way: RunConditions) {
        let plain = RunConditions { allows_nil: false, ..way };
        let guarded = RunConditions { allows_nil: true, ..way };
        let perhaps = RunConditions { always_runs: false, ..way };
        match node {
            // The text may be a key that the expression tests for: `'tls' in Data`.
            ExprNode::Value(Value::String(text)) => drop(self.allowed.insert(text.clone())),
            ExprNode::Path(index) => self.path(*index, way),
            ExprNode::Binary(Op::Coalesce, left, right) => {
                self.walk(left, guarded);
                self.walk(right, perhaps);
            }
            ExprNode::Binary(Op::And | Op::Or, left, right) => {
                self.walk(left, plain);
                self.walk(right, RunConditions { always_runs: false, allows_nil: false });
            }
            ExprNode::Binary(Op::Equal | Op::NotEqual, left, right) => {
                let is_nil = |node: &ExprNode| matches!(node, ExprNode::Value(Value::Nil));
                self.walk(left, if is_nil(right) { guarded } else { plain });
                self.walk(right, if is_nil(left) { guarded } else { plain });
            }
            ExprNode::Binary(_, left, right) => self.all([&**left, right], plain),
            ExprNode::Not(of) | ExprNode::Signed(_, of) | ExprNode::Matches(of, _) => self.walk(of, plain),
            ExprNode::Choice(condition, then, otherwise) => {
                self.walk(condition, plain);
                self.all([&**then, otherwise], perhaps);
            }
            ExprNode::List(items) | ExprNode::Sequence(items) => self.all(items, plain),
            ExprNode::Map(pairs) => pairs.iter().for_each(|(key, value)| self.all([key, value], plain)),
            ExprNode::Member { of, key, optional } => {
                self.walk(of, if *optional { guarded } else { plain });
                self.walk(key, plain);
            }
            ExprNode::Slice { of, from, to } => self.all([&**of].into_iter().chain(from.as_deref()).chain(to.as_deref()), plain),
            ExprNode::Method { of, args, .. } => self.all([&**of].into_iter().chain(args), plain),
            ExprNode::Call { name, args, offset } => self.call(name, args, *offset, way),
            ExprNode::PredicateCall { list, predicate, rest, .. } => {
                self.walk(list, plain);
                self.all(
                    predicate.as_deref().into_iter().chain(rest.as_deref()),
                    RunConditions { always_runs: false, allows_nil: false },
                );
            }
            ExprNode::Let(_, value, body) => {
                self.walk(value, guarded);
                self.walk(body, way);
            }
            ExprNode::Value(_) | ExprNode::AllRoots | ExprNode::Local(_) | ExprNode::Pointer(_) => {}
        }
    }

    fn call(&mut self, name: &str, args: &[ExprNode], offset: usize, way: RunConditions) {
        if let ("lookup", [ExprNode::Value(Value::String(path))]) = (name, args) {
            let steps = plain_steps(path).unwrap_or_default();
            if let Some(("data", steps)) = steps.split_first().map(|(root, steps)| (*root, steps)) {
                let steps = steps.iter().map(|step| Some(*step));
                self.record_missing(steps, way.always_runs, path, offset);
            }
            return;
        }
        let guarded = matches!(name, "first" | "get" | "last" | "type");
        self.all(args, RunConditions { allows_nil: guarded, ..way });
    }

    fn path(&mut self, index: usize, way: RunConditions) {
        let Some(ValuePath { root: Root::Data, steps, written: shown, offset }) = self.paths.get(index) else { return };
        let keys = steps.iter().map(|step| match &step.to {
            Member::Key(key) => Some(key.as_str()),
            Member::Index(_) => None,
        });
        if way.allows_nil || steps.iter().any(|step| step.optional) {
            self.allowed.extend(keys.flatten().map(str::to_owned));
            return;
        }
        self.record_missing(keys, way.always_runs, shown, *offset);
    }

    /// Records the first key of a path that the data lacks.
    fn record_missing<'k>(&mut self, keys: impl Iterator<Item = Option<&'k str>>, certain: bool, path: &str, offset: usize) {
        let mut here = self.data;
        for key in keys {
            let (Some(key), Json::Object(map)) = (key, here) else { return };
            match map.get(key) {
                Some(below) => here = below,
                None => {
                    self.found.extend(
                        MissingKey::new(map, key, path, offset).filter(|missing| certain || missing.suggestion.is_some()),
                    );
                    return;
                }
            }
        }
    }
}

impl MissingKey {
    fn new(map: &Map<String, Json>, key: &str, path: &str, offset: usize) -> Option<Self> {
        let known: Vec<String> = map.keys().cloned().collect();
        let near = did_you_mean(key, known.iter().map(String::as_str)).map(str::to_owned);
        Some(Self { key: key.to_owned(), path: path.to_owned(), suggestion: near, known, offset })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::compile;
    use super::super::names::NameScope;

    #[test]
    fn missing_keys_are_found() {
        let data = json!({"port": 80, "tls": {"cert": "x"}, "list": [1], "nothing": null});
        let names = NameScope { functions: &["lookup", "upper"], facts_only: false, value_only: false };
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
            let found = compile(source, &names).unwrap().missing_key(&data).map_or_else(String::new, |missing| {
                let near = missing.suggestion.map_or_else(String::new, |near| format!(", {near}?"));
                format!("{} at {}{near}", missing.key, missing.offset)
            });
            assert_eq!(found, expected, "{source}");
        }
    }
}
