//! The description of a type, as its program prints it: properties, states, outputs and effects.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::property::{PropertyDescription, check_about};
use super::text_pattern::{Filled, TextPattern, plain_text};
use crate::host::Host;
use crate::model::effects::{PathScope, RedactedUrl};
use crate::model::{Effect, Effects, WatchTarget};
use crate::resource::core::watch_targets;
use crate::resource::{Common, OutputKind, ResourceOutput};
use crate::wire::value_decode;

/// The protocol that a description must name.
pub(super) const PROTOCOL: &str = "io.ensign.resource.v1";
/// Maximum number of properties, outputs, states and effects, each.
const MAX_ITEMS: usize = 64;
/// Maximum length of a name, in bytes.
const MAX_NAME: usize = 63;
/// The shortest interval of checks.
const MIN_POLL_SECONDS: u64 = 1;
/// The properties of every resource, beside the common ones.
const RESERVED: &[&str] = &["name", "ensure"];

/// A description that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct InvalidDescription {
    /// The place in the description.
    path: String,
    message: String,
}

/// The description of a type.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Description {
    protocol: String,
    pub(super) about: String,
    #[serde(default)]
    pub(super) properties: BTreeMap<String, PropertyDescription>,
    /// The states, the default first.
    #[serde(default = "presence")]
    pub(super) ensure: Vec<String>,
    #[serde(default)]
    pub(super) refreshes: bool,
    /// True when the program compares state and properties itself.
    #[serde(default)]
    pub(super) diff: bool,
    #[serde(default)]
    outputs: BTreeMap<String, OutputDescription>,
    effects: Option<Vec<EffectPattern>>,
    watches: Option<Vec<WatchPattern>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct OutputDescription {
    #[serde(rename = "type")]
    kind: OutputType,
    about: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OutputType {
    Text,
    Integer,
    Boolean,
    List,
}

/// An effect whose object depends on properties.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EffectPattern {
    Look(TextPattern),
    Read(TextPattern),
    ReadBelow(TextPattern),
    Write(TextPattern),
    WriteBelow(TextPattern),
    Run(TextPattern),
    Fetch(TextPattern),
    Request(TextPattern),
    Connect(TextPattern),
    User(TextPattern),
    Group(TextPattern),
    Unit(TextPattern),
    Package(TextPattern),
    /// The type changes the system itself, outside of every confinement.
    System,
}

/// A source of changes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WatchPattern {
    Path(TextPattern),
    Tree(TextPattern),
    Unit(TextPattern),
    /// The interval of checks, in seconds.
    Poll(u64),
}

fn presence() -> Vec<String> {
    vec!["present".to_owned(), "absent".to_owned()]
}

impl OutputType {
    fn kind(self) -> OutputKind {
        match self {
            Self::Text => OutputKind::Text,
            Self::Integer => OutputKind::Number,
            Self::Boolean => OutputKind::Flag,
            Self::List => OutputKind::List,
        }
    }
}

impl EffectPattern {
    fn pattern(&self) -> Option<&TextPattern> {
        match self {
            Self::Look(pattern)
            | Self::Read(pattern)
            | Self::ReadBelow(pattern)
            | Self::Write(pattern)
            | Self::WriteBelow(pattern)
            | Self::Run(pattern)
            | Self::Fetch(pattern)
            | Self::Request(pattern)
            | Self::Connect(pattern)
            | Self::User(pattern)
            | Self::Group(pattern)
            | Self::Unit(pattern)
            | Self::Package(pattern) => Some(pattern),
            Self::System => None,
        }
    }

    fn is_path(&self) -> bool {
        matches!(self, Self::Look(_) | Self::Read(_) | Self::ReadBelow(_) | Self::Write(_) | Self::WriteBelow(_))
    }

    fn is_of_system(&self) -> bool {
        matches!(self, Self::System | Self::User(_) | Self::Group(_) | Self::Unit(_) | Self::Package(_))
    }

    /// Returns the effect on an object.
    fn effect(&self, text: String) -> Option<Effect> {
        Some(match self {
            Self::Look(_) => Effect::Look(PathScope::single(text)),
            Self::Read(_) => Effect::read(text),
            Self::ReadBelow(_) => Effect::Read(PathScope::below(text)),
            Self::Write(_) => Effect::write(text),
            Self::WriteBelow(_) => Effect::write_below(text),
            // Nothing shows whether the program runs the command while it only observes.
            Self::Run(_) => Effect::run_always(text),
            Self::Fetch(_) => Effect::Fetch(RedactedUrl::new(text)),
            Self::Request(_) => Effect::Request(RedactedUrl::new(text)),
            Self::Connect(_) => Effect::Connect(text),
            Self::User(_) => Effect::user(text),
            Self::Group(_) => Effect::group(text),
            Self::Unit(_) => Effect::Unit(text),
            Self::Package(_) => Effect::Package(text),
            Self::System => return None,
        })
    }
}

impl Description {
    /// Reads the description of a program strictly.
    ///
    /// # Errors
    /// The first part that is wrong.
    pub(super) fn read(value: &Value) -> Result<Self, InvalidDescription> {
        if let Some(protocol) = value.get("protocol").and_then(Value::as_str).filter(|protocol| *protocol != PROTOCOL) {
            return Err(invalid("protocol", format!("\"{protocol}\" is unknown, this program knows {PROTOCOL}")));
        }
        let read: Self = value_decode::read(value).map_err(|wrong| {
            let path = wrong.path().to_string();
            let path = if path == "." { "the description".to_owned() } else { path };
            invalid(&path, wrong.inner().to_string())
        })?;
        read.check()?;
        Ok(read)
    }

    fn check(&self) -> Result<(), InvalidDescription> {
        check_about(&self.about).map_err(|why| invalid("about", why))?;
        let counts = [
            ("properties", self.properties.len()),
            ("outputs", self.outputs.len()),
            ("ensure", self.ensure.len()),
            ("effects", self.effects.as_ref().map_or(0, Vec::len)),
            ("watches", self.watches.as_ref().map_or(0, Vec::len)),
        ];
        if let Some((path, count)) = counts.into_iter().find(|(_, count)| *count > MAX_ITEMS) {
            return Err(invalid(path, format!("{count} entries are more than {MAX_ITEMS}")));
        }
        if self.ensure.is_empty() {
            return Err(invalid("ensure", "at least one state is needed"));
        }
        self.ensure.iter().try_for_each(|state| check_name("ensure", state))?;
        for (name, property) in &self.properties {
            let path = format!("properties.{name}");
            check_name(&path, name)?;
            if RESERVED.contains(&name.as_str()) || Common::KEYS.contains(&name.as_str()) {
                return Err(invalid(&path, "every resource has a property of this name"));
            }
            property.check().map_err(|why| invalid(&path, why))?;
        }
        for (name, output) in &self.outputs {
            let path = format!("outputs.{name}");
            check_name(&path, name)?;
            check_about(&output.about).map_err(|why| invalid(&path, why))?;
        }
        let effects = self.effects.iter().flatten().filter_map(EffectPattern::pattern);
        self.check_patterns("effects", effects)?;
        for watch in self.watches.iter().flatten() {
            match watch {
                WatchPattern::Path(pattern) | WatchPattern::Tree(pattern) | WatchPattern::Unit(pattern) => {
                    self.check_patterns("watches", std::iter::once(pattern))?;
                }
                WatchPattern::Poll(seconds) if *seconds < MIN_POLL_SECONDS => {
                    return Err(invalid("watches", "a poll has at least one second"));
                }
                WatchPattern::Poll(_) => {}
            }
        }
        Ok(())
    }

    fn check_patterns<'a>(
        &self,
        path: &str,
        mut patterns: impl Iterator<Item = &'a TextPattern>,
    ) -> Result<(), InvalidDescription> {
        let is_known = |name: &str| RESERVED.contains(&name) || self.properties.contains_key(name);
        let unknown = patterns.find_map(|pattern| pattern.properties().find(|name| !is_known(name)));
        unknown.map_or(Ok(()), |name| Err(invalid(path, format!("{{{name}}} is no property of the type"))))
    }

    /// Returns the default state.
    pub(super) fn default_ensure(&self) -> &str {
        self.ensure.first().map_or("present", String::as_str)
    }

    /// Returns true for a type that changes the system itself.
    pub(super) fn changes_system(&self) -> bool {
        self.effects.iter().flatten().any(EffectPattern::is_of_system)
    }

    /// Returns the outputs for the documentation and for templates.
    pub(super) fn outputs(&self) -> Vec<ResourceOutput> {
        let output = |(name, output): (&String, &OutputDescription)| ResourceOutput {
            name: name.clone().into(),
            kind: output.kind.kind(),
            about: output.about.clone().into(),
        };
        self.outputs.iter().map(output).collect()
    }

    /// Returns the effects of a resource with these values. A type without a list has unknown effects.
    pub(super) fn effects(&self, values: &Map<String, Value>) -> Effects {
        let Some(patterns) = &self.effects else {
            return Effects::unknown("the type does not describe its effects");
        };
        let mut effects = Effects::default();
        for one in patterns {
            match one.pattern().map(|pattern| pattern.fill(values)) {
                Some(Filled::Texts(texts)) => effects.extend(texts.into_iter().filter_map(|text| one.effect(text))),
                Some(Filled::Unreadable(property)) => effects.push(Effect::unknown(None, property)),
                None => effects.push(Effect::System(values.get("name").and_then(plain_text).unwrap_or_default())),
            }
        }
        effects
    }

    /// Returns the paths of the effects of a resource with these values.
    pub(super) fn paths(&self, values: &Map<String, Value>) -> Vec<String> {
        let paths = self.effects.iter().flatten().filter(|one| one.is_path()).filter_map(EffectPattern::pattern);
        let texts = paths.map(|pattern| match pattern.fill(values) {
            Filled::Texts(texts) => texts,
            Filled::Unreadable(_) => Vec::new(),
        });
        texts.flatten().collect()
    }

    /// Returns what can change a resource with these values from outside.
    pub(super) fn watches(&self, values: &Map<String, Value>, host: &Host) -> Vec<WatchTarget> {
        let Some(patterns) = &self.watches else {
            return watch_targets::from_effects(&self.effects(values), host);
        };
        let texts = |pattern: &TextPattern| match pattern.fill(values) {
            Filled::Texts(texts) => texts,
            Filled::Unreadable(_) => Vec::new(),
        };
        let targets = patterns.iter().flat_map(|one| match one {
            WatchPattern::Path(pattern) => {
                texts(pattern).into_iter().map(|path| WatchTarget::Path(PathBuf::from(path))).collect()
            }
            WatchPattern::Tree(pattern) => {
                texts(pattern).into_iter().map(|path| WatchTarget::Tree(PathBuf::from(path))).collect()
            }
            WatchPattern::Unit(pattern) => texts(pattern).into_iter().map(WatchTarget::Unit).collect(),
            WatchPattern::Poll(seconds) => vec![WatchTarget::Poll(Duration::from_secs(*seconds))],
        });
        targets.collect()
    }
}

fn invalid(path: &str, message: impl Into<String>) -> InvalidDescription {
    InvalidDescription { path: path.to_owned(), message: message.into() }
}

fn check_name(path: &str, name: &str) -> Result<(), InvalidDescription> {
    if is_name(name) {
        return Ok(());
    }
    Err(invalid(path, format!("\"{name}\" is no name: a name has 1 to {MAX_NAME} of a-z, 0-9 and _, and begins with a letter")))
}

/// True for a name of a type, property, state or output.
pub(super) fn is_name(name: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.len() <= MAX_NAME && name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(is_inner)
}

#[cfg(test)]
mod tests;
