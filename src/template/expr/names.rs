//! The names in the scope of an expression, and the paths into its roots.

use super::error::{ExprError, TemplateErrorKind};
use super::functions;
use super::node::{PREDICATE_FUNCTIONS, PredicateFunction};
use crate::diag::did_you_mean;
use crate::model::ResourceRef;
use crate::template::functions::bus_functions::PROMETHEUS;

/// Functions that some scopes lack.
const UNAVAILABLE: &[&str] = &["kvGet", "registrations", "secret"];

/// A path into a root: `Data.a?.b["c"][0]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::template) struct ValuePath {
    pub(in crate::template) root: Root,
    pub(in crate::template) steps: Vec<PathStep>,
    /// The path as written, for errors.
    pub(in crate::template) written: String,
    /// The offset of its first occurrence, in bytes.
    pub(in crate::template) offset: usize,
}

impl ValuePath {
    /// The resource and the output of a path into `resources`, and true when the output may be missing.
    pub(in crate::template) fn output(&self) -> Option<(&str, &str, bool)> {
        match self.steps.as_slice() {
            [PathStep { to: Member::Key(resource), .. }, PathStep { to: Member::Key(output), optional }, ..]
                if self.root == Root::Resources =>
            {
                Some((resource, output, *optional))
            }
            _ => None,
        }
    }

    /// Refuses a path into `resources` without a literal resource and output: both decide the order of the resources.
    pub(super) fn check_output(&self) -> Result<(), ExprError> {
        let is_whole = self.output().is_some_and(|(resource, ..)| resource.parse::<ResourceRef>().is_ok());
        if self.root != Root::Resources || is_whole {
            return Ok(());
        }
        let wanted = "resources needs the resource and its output as literal texts, as resources['exec#build'].stdout";
        Err(ExprError::syntax(self.offset, wanted))
    }
}

/// The value at the beginning of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::template) enum Root {
    Facts,
    Data,
    Environ,
    /// The outputs of the resources that have run, by `type#name`.
    Resources,
    /// The value that a validation tests.
    Value,
}

impl Root {
    /// True when a text has the name of the root, with a capital letter or without.
    pub(in crate::template) fn is_mentioned(self, text: &str) -> bool {
        text.contains(match self {
            Self::Facts => "acts",
            Self::Data => "ata",
            Self::Environ => "nviron",
            Self::Resources => "esources",
            Self::Value => "alue",
        })
    }
}

/// A step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::template) struct PathStep {
    pub(in crate::template) to: Member,
    /// Written `?.`: a step into nil gives nil.
    pub(in crate::template) optional: bool,
}

/// The key or index of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::template) enum Member {
    Key(String),
    /// An index below zero counts from the end.
    Index(i64),
}

/// The names that an expression may use.
pub(in crate::template) struct NameScope<'a> {
    /// The functions besides those of the language.
    pub(in crate::template) functions: &'a [&'static str],
    /// The scope has no root but `Facts`.
    pub(in crate::template) facts_only: bool,
    /// The scope has no root but `value`.
    pub(in crate::template) value_only: bool,
}

impl NameScope<'_> {
    /// The root of this name.
    pub(super) fn root(&self, name: &str, offset: usize) -> Result<Root, ExprError> {
        match name {
            "value" | "Value" if self.value_only => Ok(Root::Value),
            _ if self.value_only => Err(unknown_name(name, offset, ["value"])),
            "Facts" => Ok(Root::Facts),
            "Data" | "Environ" | "resources" if self.facts_only => {
                Err(ExprError::syntax(offset, format!("{name} is not available here, only Facts is")))
            }
            "Data" => Ok(Root::Data),
            "Environ" => Ok(Root::Environ),
            "resources" => Ok(Root::Resources),
            _ => Err(unknown_name(name, offset, ["Facts", "Data", "Environ", "resources"])),
        }
    }

    /// True when the name is in use: a root, or a function.
    pub(super) fn is_taken(&self, name: &str) -> bool {
        self.root(name, 0).is_ok()
            || functions::is_builtin(name)
            || PredicateFunction::from_name(name).is_some()
            || self.functions.contains(&name)
    }

    /// Checks that the scope has a function of this name.
    pub(super) fn check_function(&self, name: &str, offset: usize) -> Result<(), ExprError> {
        if UNAVAILABLE.contains(&name) && !self.functions.contains(&name) {
            return Err(ExprError::syntax(offset, format!("the function {name} is not available")));
        }
        if functions::is_builtin(name) || self.functions.contains(&name) && name != PROMETHEUS {
            return Ok(());
        }
        let own = self.functions.iter().filter(|name| **name != PROMETHEUS);
        let functions: Vec<&str> =
            functions::names().chain(PREDICATE_FUNCTIONS.iter().map(|(name, _)| *name)).chain(own.copied()).collect();
        Err(unknown_name(name, offset, functions))
    }
}

fn unknown_name<'a>(name: &str, offset: usize, known: impl IntoIterator<Item = &'a str> + Clone) -> ExprError {
    let same = known.clone().into_iter().find(|other| other.eq_ignore_ascii_case(name));
    match same.or_else(|| did_you_mean(name, known)) {
        Some(near) => {
            ExprError::new(offset, TemplateErrorKind::MisspelledName, format!("unknown name {name}, did you mean {near}?"))
        }
        None => ExprError::new(offset, TemplateErrorKind::UnknownName, format!("unknown name {name}")),
    }
}
