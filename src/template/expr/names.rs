//! The names that an expression may use, and the paths it goes.

use super::functions;
use super::node::{PREDICATE_FUNCTIONS, PredicateFunction};
use crate::diag::did_you_mean;
use crate::template::remote::PROMETHEUS;

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
            || functions::is_builtin(name)
            || PredicateFunction::named(name).is_some()
            || self.functions.contains(&name)
    }

    /// Whether a function of this name can be called.
    pub(super) fn function(&self, name: &str) -> Result<(), String> {
        if UNAVAILABLE.contains(&name) && !self.functions.contains(&name) {
            return Err(format!("the function {name} is not available"));
        }
        if functions::is_builtin(name) || self.functions.contains(&name) && name != PROMETHEUS {
            return Ok(());
        }
        let own = self.functions.iter().filter(|name| **name != PROMETHEUS);
        let functions: Vec<&str> =
            functions::names().chain(PREDICATE_FUNCTIONS.iter().map(|(name, _)| *name)).chain(own.copied()).collect();
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
