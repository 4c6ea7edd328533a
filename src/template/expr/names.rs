//! The names that an expression may use, and the paths it goes.

use crate::diag::did_you_mean;
use crate::template::remote::PROMETHEUS;

/// The functions of the language that work on values; [`super::each::Each`] has those that take a predicate.
const BUILTINS: &[&str] = &[
    "abs",
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
    "date",
    "duration",
    "first",
    "flatten",
    "float",
    "floor",
    "fromBase64",
    "fromJSON",
    "fromPairs",
    "get",
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
    "max",
    "mean",
    "median",
    "min",
    "now",
    "repeat",
    "replace",
    "reverse",
    "round",
    "sort",
    "split",
    "splitAfter",
    "string",
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

/// A path into what an expression sees: `Data.a?.b["c"][0]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::template) struct Path {
    pub(in crate::template) root: Root,
    pub(in crate::template) steps: Vec<Step>,
    /// As it was written, for errors.
    pub(in crate::template) shown: String,
    /// Where it stands first, in bytes.
    pub(in crate::template) offset: usize,
}

/// Where a path begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::template) enum Root {
    Facts,
    Data,
    Environ,
    /// The one value that an expression is about.
    Value,
}

/// A step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::template) struct Step {
    pub(in crate::template) to: Member,
    /// Written `?.`: nothing below nothing is nothing.
    pub(in crate::template) optional: bool,
}

/// What a step leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::template) enum Member {
    Key(String),
    /// From the end when below zero.
    Index(i64),
}

/// What names an expression may use.
pub(in crate::template) struct Names<'a> {
    /// The functions besides those of the language.
    pub(in crate::template) functions: &'a [&'static str],
    /// Only `Facts` is there.
    pub(in crate::template) restricted: bool,
    /// Only `value` is there.
    pub(in crate::template) subject: bool,
}

impl Names<'_> {
    /// Where a path that begins with this name begins.
    pub(super) fn root(&self, name: &str) -> Result<Root, String> {
        match name {
            "value" | "Value" if self.subject => Ok(Root::Value),
            _ if self.subject => Err(unknown(name, ["value"])),
            "Facts" => Ok(Root::Facts),
            "Data" | "Environ" if self.restricted => Err(format!("{name} is not available here, only Facts is")),
            "Data" => Ok(Root::Data),
            "Environ" => Ok(Root::Environ),
            _ => Err(unknown(name, ["Facts", "Data", "Environ"])),
        }
    }

    /// Whether a name means something already.
    pub(super) fn is_taken(&self, name: &str) -> bool {
        self.root(name).is_ok()
            || BUILTINS.contains(&name)
            || super::each::NAMES.contains(&name)
            || self.functions.contains(&name)
    }

    /// Whether a function of this name can be called.
    pub(super) fn function(&self, name: &str) -> Result<(), String> {
        if UNAVAILABLE.contains(&name) && !self.functions.contains(&name) {
            return Err(format!("the function {name} is not available"));
        }
        if BUILTINS.contains(&name) || self.functions.contains(&name) && name != PROMETHEUS {
            return Ok(());
        }
        let own = self.functions.iter().filter(|name| **name != PROMETHEUS);
        let functions: Vec<&str> = BUILTINS.iter().chain(super::each::NAMES).chain(own).copied().collect();
        Err(unknown(name, functions))
    }
}

fn unknown<'a>(name: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> String {
    let same = known.clone().into_iter().find(|other| other.eq_ignore_ascii_case(name));
    match same.or_else(|| did_you_mean(name, known)) {
        Some(near) => format!("unknown name {name}, did you mean {near}?"),
        None => format!("unknown name {name}"),
    }
}
