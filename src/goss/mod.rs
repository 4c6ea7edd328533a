//! Health check rules in the language of Goss, run without the Goss program.
//!
//! A document of rules has sections, as `file`, `port` and `http`. A section has items by name. An item has attributes with
//! their wanted values. `matcher.rs` compares, and the other files probe the host:
//! - `local.rs`: files, mounts and kernel parameters
//! - `software.rs`: packages, services, processes and commands
//! - `accounts.rs`: users and groups
//! - `network.rs` and `web.rs`: ports, addresses, names, interfaces and URLs
//!
//! A probe reads the state at its source. Packages and services come from the caches of the run, which resources share. Only
//! commands of the author, and states without any other source, start programs.
//!
//! Neighbour: `engine::health` resolves templates, repeats a failed check, and reports the health check.

mod accounts;
mod effects;
mod local;
mod matcher;
mod network;
mod sections;
mod semver;
mod software;
mod web;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::diag::did_you_mean;
use crate::host::Host;
use crate::template;

pub use effects::effects;
use matcher::{Expectation, ProbedValue};
use sections::{Attribute, SECTIONS, Section};

/// Keys that each item may have: notes for readers, and `skip`.
const COMMON_KEYS: &[&str] = &["title", "meta", "skip"];
/// The most failures that a summary names.
const MAX_NAMED_FAILURES: usize = 5;

/// An error in rules.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", at.as_deref().map(|at| format!("{at}: ")).unwrap_or_default())]
pub struct RuleError {
    /// The reason.
    pub message: String,
    /// The section and the item.
    at: Option<String>,
    /// The key at fault, as written.
    pub key: Option<String>,
    /// A hint for the author.
    pub hint: Option<String>,
}

impl RuleError {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), at: None, key: None, hint: None }
    }

    fn key(mut self, key: &str) -> Self {
        self.key = self.key.or_else(|| Some(key.to_owned()));
        self
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    fn at(mut self, at: String) -> Self {
        self.at = self.at.or(Some(at));
        self
    }
}

/// Parsed rules.
#[derive(Debug)]
pub struct GossRules {
    items: Vec<RuleItem>,
}

/// An item of a section.
#[derive(Debug)]
struct RuleItem {
    section: &'static Section,
    key: String,
    skip: bool,
    /// The wanted attributes, in the order of the section.
    wanted: Vec<(&'static Attribute, Expectation)>,
    options: Map<String, Value>,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GossOutcome {
    /// The number of attributes.
    pub count: usize,
    /// A message for each attribute with another value than wanted.
    pub failures: Vec<String>,
    /// The number of skipped attributes: by `skip`, or because their item does not exist.
    pub skipped: usize,
}

impl GossOutcome {
    /// The summary line of Goss, and the first failures.
    pub fn summary(&self) -> String {
        let Self { count, failures, skipped } = self;
        let mut text = format!("Count: {count}, Failed: {}, Skipped: {skipped}", failures.len());
        for failure in failures.iter().take(MAX_NAMED_FAILURES) {
            text.push_str("; ");
            text.push_str(failure);
        }
        if failures.len() > MAX_NAMED_FAILURES {
            // Writing to a text can't fail.
            let _written = write!(text, "; and {} more", failures.len() - MAX_NAMED_FAILURES);
        }
        text
    }
}

impl GossOutcome {
    /// Adds another result.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self.count += other.count;
        self.failures.extend(other.failures);
        self.skipped += other.skipped;
        self
    }
}

impl GossRules {
    /// Splits the rules into commands of the author and all others. The others start no program that the author names.
    pub fn split_commands(self) -> (Self, Self) {
        let (commands, others) = self.items.into_iter().partition(|thing| thing.section.name == "command");
        (Self { items: commands }, Self { items: others })
    }

    /// Reads rules. Skips attributes whose values are still templates: the caller reads the rules again once resolved.
    ///
    /// # Errors
    /// Returns the first error in the rules.
    pub fn read(sections: &Map<String, Value>) -> Result<Self, RuleError> {
        let mut things = Vec::new();
        for (name, value) in sections {
            let section = SECTIONS.iter().find(|section| section.name == name).ok_or_else(|| unknown_section(name))?;
            let Value::Object(map) = value else {
                return Err(RuleError::new(format!("{name} must be a map of names, each with its attributes")).key(name));
            };
            for (key, attributes) in map {
                let thing = RuleItem::read(section, key, attributes);
                things.push(thing.map_err(|wrong| wrong.key(key).at(format!("{name} \"{key}\"")))?);
            }
        }
        if things.is_empty() {
            return Err(RuleError::new("goss_rules has no rules"));
        }
        Ok(Self { items: things })
    }

    /// Checks all items one after the other, until the run of `host` is over. The limits of `host` also hold for hosts on the
    /// network.
    pub fn run(&self, host: &Host) -> GossOutcome {
        let mut outcome = GossOutcome::default();
        for thing in &self.items {
            if host.is_over() {
                break;
            }
            thing.check(host, &mut outcome);
        }
        outcome
    }
}

fn unknown_section(name: &str) -> RuleError {
    let known = SECTIONS.iter().map(|section| section.name);
    let hint = match name {
        "gossfile" => "rules of other files are not supported: write the rules here, or include them by a template".to_owned(),
        _ => did_you_mean(name, known.clone()).map_or_else(
            || format!("sections are {}", known.collect::<Vec<_>>().join(", ")),
            |near| format!("did you mean \"{near}\"?"),
        ),
    };
    RuleError::new(format!("unknown section \"{name}\" in goss_rules")).key(name).hint(hint)
}

impl RuleItem {
    fn read(section: &'static Section, key: &str, written: &Value) -> Result<Self, RuleError> {
        let written = match written {
            Value::Object(map) => map.clone(),
            Value::Null => Map::new(),
            _ => return Err(RuleError::new("expected a map of attributes")),
        };
        let mut wanted = Vec::new();
        let mut options = Map::new();
        for (name, value) in written {
            let attribute = section.attributes.iter().find(|attribute| attribute.has_name(&name));
            match attribute {
                _ if holds_template(&value) => {}
                Some(attribute) => {
                    let read = Expectation::read(&value, attribute.lines);
                    wanted.push((attribute, read.map_err(|wrong| in_attribute(&name, wrong))?));
                }
                None if section.options.contains(&name.as_str()) || COMMON_KEYS.contains(&name.as_str()) => {
                    sections::check_option(&name, &value).map_err(|wrong| in_attribute(&name, wrong))?;
                    options.insert(name, value);
                }
                None => return Err(section.unknown_attribute(&name)),
            }
            if let Some(attribute) = attribute
                && !wanted.iter().any(|(known, _)| known.name == attribute.name)
            {
                options.insert(attribute.name.to_owned(), Value::Null);
            }
        }
        let is_there = |name: &str| wanted.iter().any(|(known, _)| known.name == name) || options.contains_key(name);
        if let Some(required) = section.required.filter(|required| !is_there(required)) {
            return Err(RuleError::new(format!("{required} is missing"))
                .hint(format!("add the wanted value, as {required}: {}", section.example)));
        }
        let order = |attribute: &Attribute| section.attributes.iter().position(|known| known.name == attribute.name);
        wanted.sort_by_key(|(attribute, _)| order(attribute));
        let skip = options.get("skip").and_then(Value::as_bool).unwrap_or(false);
        Ok(Self { section, key: key.to_owned(), skip, wanted, options })
    }

    fn check(&self, host: &Host, outcome: &mut GossOutcome) {
        outcome.count += self.wanted.len();
        if self.skip {
            outcome.skipped += self.wanted.len();
            return;
        }
        let attributes: Vec<&'static str> = self.wanted.iter().map(|(attribute, _)| attribute.name).collect();
        let look = ProbeContext { key: &self.key, options: &self.options, attributes: &attributes, host };
        let found = (self.section.probe)(&look);
        let label = |name: &str, what: &str| format!("{} {}: {name}: {what}", self.section.name, self.key);
        let mut gone = false;
        for (attribute, wanted) in &self.wanted {
            if gone {
                outcome.skipped += 1;
                continue;
            }
            let here = match &found {
                Ok(found) => found.get(attribute.name).cloned().unwrap_or_else(|| Err("unknown on this host".to_owned())),
                Err(why) => Err(why.clone()),
            };
            let is_gate = self.section.skip_rest_if_unmet && self.section.required == Some(attribute.name);
            match here {
                Ok(found) => {
                    let differs = wanted.difference(&found);
                    gone = is_gate && (differs.is_some() || found == ProbedValue::Value(Value::Bool(false)));
                    outcome.failures.extend(differs.map(|what| label(attribute.name, &what)));
                }
                Err(why) => {
                    gone = is_gate || found.is_err();
                    outcome.failures.push(label(attribute.name, &why));
                }
            }
        }
    }
}

fn in_attribute(name: &str, wrong: RuleError) -> RuleError {
    let message = format!("{name}: {}", wrong.message);
    RuleError { message, ..wrong.key(name) }
}

fn holds_template(value: &Value) -> bool {
    match value {
        Value::String(text) => template::is_template(text),
        Value::Array(items) => items.iter().any(holds_template),
        Value::Object(map) => map.values().any(holds_template),
        _ => false,
    }
}

/// The values of an item by attribute, or the reason why an attribute can't be read.
type Attributes = BTreeMap<&'static str, Result<ProbedValue, String>>;

/// The context of a probe: an item and the host.
struct ProbeContext<'a> {
    key: &'a str,
    options: &'a Map<String, Value>,
    /// The attributes with a wanted value. A probe may skip the others.
    attributes: &'a [&'static str],
    host: &'a Host,
}

impl ProbeContext<'_> {
    /// The text of an option; none when the option is missing or empty.
    fn text(&self, option: &str) -> Option<String> {
        option_text(self.options, option)
    }

    /// The name of the item: this option, else the key.
    fn name(&self, option: &str) -> String {
        self.text(option).unwrap_or_else(|| self.key.to_owned())
    }

    fn flag(&self, option: &str) -> bool {
        self.options.get(option).and_then(Value::as_bool).unwrap_or(false)
    }

    /// The option `timeout`; the default is in milliseconds.
    fn timeout(&self, default: u64) -> Duration {
        Duration::from_millis(self.options.get("timeout").and_then(Value::as_u64).filter(|time| *time > 0).unwrap_or(default))
    }

    fn is_wanted(&self, attribute: &str) -> bool {
        self.attributes.contains(&attribute)
    }
}

/// The text of an option; none when the option is missing or empty.
fn option_text(options: &Map<String, Value>, option: &str) -> Option<String> {
    options.get(option).filter(|value| !value.is_null()).map(template::to_text).filter(|text| !text.is_empty())
}

/// A found value.
fn found_value(value: impl Into<Value>) -> Result<ProbedValue, String> {
    Ok(ProbedValue::Value(value.into()))
}

#[cfg(test)]
mod tests;
