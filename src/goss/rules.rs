//! Rules: reading, checking, and the result.

use std::fmt::Write;

use serde_json::{Map, Value};

use crate::diag::did_you_mean;
use crate::host::Host;
use crate::model::{Effect, Effects};
use crate::template;

use super::effects::ItemOptions;
use super::error::RuleError;
use super::matcher::Expectation;
use super::probe::{ProbeContext, ProbedValue};
use super::sections::{self, Attribute, COMMON_KEYS, SECTIONS, Section};

/// The most failures that a summary names.
const MAX_NAMED_FAILURES: usize = 5;

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
    /// Splits the rules into those that start a program or read content, and all others.
    ///
    /// The others start no program that the author names, and open no file of the author's choice.
    pub fn split_guarded(self) -> (Self, Self) {
        let (guarded, others) = self.items.into_iter().partition(RuleItem::needs_guard);
        (Self { items: guarded }, Self { items: others })
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

    /// True for an item that starts a program of the author, or reads a path of the author.
    fn needs_guard(&self) -> bool {
        let mut options = self.options.clone();
        options.extend(self.wanted.iter().map(|(attribute, _)| (attribute.name.to_owned(), Value::Null)));
        let item = ItemOptions { key: &self.key, options: &options };
        (self.section.effects)(&item).iter().any(|effect| matches!(effect, Effect::Run { .. } | Effect::Read(_)))
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

/// The effects of all rules. Rules that can't be read have an unknown effect.
pub fn effects(sections: &Map<String, Value>) -> Effects {
    sections.iter().flat_map(|(name, things)| section_effects(name, things)).collect()
}

fn section_effects(name: &str, things: &Value) -> Vec<Effect> {
    let unreadable = || vec![Effect::unknown(None, format!("goss_rules: the section {name} can't be read"))];
    let section = SECTIONS.iter().find(|section| section.name == name);
    let (Some(section), Value::Object(things)) = (section, things) else { return unreadable() };
    let nothing = Map::new();
    let of_thing = |(key, thing): (&String, &Value)| match thing {
        Value::Object(options) => (section.effects)(&ItemOptions { key, options }),
        Value::Null => (section.effects)(&ItemOptions { key, options: &nothing }),
        _ => unreadable(),
    };
    things.iter().flat_map(of_thing).collect()
}
