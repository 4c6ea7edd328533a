//! Rights: the effects and reads that the allowing rule grants the run of a command.
//!
//! The verifier checks them for an `ensure`. The run checks them again for every resource, after templates are resolved. A
//! restricting rule denies unknown effects.

use serde::{Deserialize, Serialize};

use crate::model::access::TemplateRead;
use crate::model::effects::{EffectKind, PathScope, RUN_GRANT};
use crate::model::{Effect, Effects, MountRequest};
use crate::wire::bundle::Rule;

use super::pattern;

/// The rights of one command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights {
    types: Option<Vec<String>>,
    names: Option<Vec<String>>,
    reads: Option<Vec<String>>,
    noop_only: bool,
}

impl Rights {
    /// Returns the rights of a rule.
    pub fn from_rule(rule: &Rule) -> Self {
        Self { types: rule.types.clone(), names: rule.names.clone(), reads: rule.reads.clone(), noop_only: rule.noop_only }
    }

    /// Returns the rights of a command that no rule allows any more. Its manifest runs, and reads only its own files.
    pub fn minimal() -> Self {
        Self { types: None, names: None, reads: Some(Vec::new()), noop_only: false }
    }

    /// Returns the rights that both grant to manifests: rules with types or names grant none.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Self {
        let reads = match (self.readable(), other.readable()) {
            (None, reads) | (reads, None) => reads.map(<[String]>::to_vec),
            (Some(a), Some(b)) => Some(a.iter().filter(|pattern| b.contains(pattern)).cloned().collect()),
        };
        let narrower = |a: &Option<Vec<String>>, b: &Option<Vec<String>>| match (a, b) {
            (None, list) | (list, None) => list.clone(),
            (Some(a), Some(b)) => Some(a.iter().filter(|pattern| b.contains(pattern)).cloned().collect()),
        };
        Self {
            types: narrower(&self.types, &other.types),
            names: narrower(&self.names, &other.names),
            reads,
            noop_only: self.noop_only || other.noop_only,
        }
    }

    /// Returns these rights for a run that a key with the `other` rights brings forward. A key for dry runs only starts no program
    /// and reads nothing, whatever the run may do by itself.
    #[must_use]
    pub fn brought_forward_by(&self, other: &Self) -> Self {
        Self { noop_only: self.noop_only || other.noop_only, ..self.clone() }
    }

    /// True when the rule allows only some resources, or only dry runs.
    pub fn is_restricted(&self) -> bool {
        self.types.is_some() || self.names.is_some() || self.noop_only
    }

    /// The patterns of allowed reads; none allows every read.
    fn readable(&self) -> Option<&[String]> {
        match &self.reads {
            Some(reads) => Some(reads),
            None if self.is_restricted() => Some(&[]),
            None => None,
        }
    }

    /// Checks a read of a template. Files of the signed bundle itself need no right.
    ///
    /// # Errors
    /// The missing right, as a message.
    pub fn may_read(&self, read: &TemplateRead<'_>) -> Result<(), String> {
        let Some(patterns) = self.readable() else { return Ok(()) };
        let any = |prefix: &str, text: &str| patterns.iter().any(|pattern| pattern::matches_after(pattern, prefix, text));
        let allowed = match read {
            TemplateRead::File(path) => path.to_str().is_some_and(|path| self.may_read_file(path)),
            TemplateRead::Environ(name) => any("env:", name),
            TemplateRead::Credential(name) => any("credential:", name) || any("secret:", name),
            TemplateRead::Value { bucket, key } => any("kv:", &format!("{bucket}/{key}")),
            TemplateRead::Registrations => patterns.iter().any(|pattern| pattern == "registrations"),
        };
        if allowed { Ok(()) } else { Err(format!("the rule that allows this command has no read for {read}")) }
    }

    fn may_read_file(&self, path: &str) -> bool {
        let patterns = self.readable();
        patterns.is_none_or(|patterns| path.starts_with('/') && pattern::matches_any_path(patterns, &PathScope::single(path)))
    }

    /// Checks all effects of a resource of this type.
    ///
    /// # Errors
    /// The first effect that the rule does not allow, as a message.
    pub fn check_effects(&self, kind: &str, effects: &Effects) -> Result<(), String> {
        if !self.has_type(kind) {
            return Err(format!("it does not allow the type {kind}"));
        }
        for effect in effects {
            let no = |why: &str| Err(format!("the {kind} {effect}{why}"));
            if matches!(effect, Effect::Run { .. } | Effect::Variable { .. }) && !self.has_type(RUN_GRANT) {
                return no(", and the rule does not allow the type exec");
            }
            if self.noop_only && matches!(effect, Effect::Run { dry: true, .. }) {
                return no(", also in a dry run, and the rule allows dry runs only");
            }
            if !self.allows(effect, effects) {
                return no(match effect {
                    Effect::Read(_) => ", which neither the names nor the reads of the rule allow",
                    _ => ", which the rule does not allow",
                });
            }
        }
        Ok(())
    }

    fn has_type(&self, kind: &str) -> bool {
        self.types.as_deref().is_none_or(|types| pattern::matches_any(types, kind))
    }

    /// True where only some resources are allowed: then an unknown effect may be a denied one.
    fn is_selective(&self) -> bool {
        self.types.is_some() || self.names.is_some()
    }

    fn allows(&self, effect: &Effect, all: &Effects) -> bool {
        let named = |name: &str| self.names.as_deref().is_none_or(|names| pattern::matches_any(names, name));
        let placed = |place: &PathScope| self.names.as_deref().is_none_or(|names| pattern::matches_any_path(names, place));
        match effect {
            Effect::Look(_) | Effect::Connect(_) | Effect::Fetch(_) | Effect::Write { implied: true, .. } => true,
            Effect::Read(place) => self.allows_read(place, all),
            Effect::Request(url) => self.allows_request(url.reveal()),
            // A registration decides where others connect to, so types alone do not allow any.
            Effect::Publish(name) => (self.types.is_none() || self.names.is_some()) && named(name),
            Effect::Write { place, .. } | Effect::Expose(place) => placed(place),
            Effect::Run { command, .. } => self.names.as_deref().is_none_or(|names| {
                // Without types, names are names of every type: a pattern of paths does not allow programs.
                names
                    .iter()
                    .any(|name| (self.types.is_some() || pattern::names_program(name)) && pattern::matches_command(name, command))
            }),
            Effect::Variable { name, value } => named(&format!("{name}={}", value.reveal())),
            Effect::Mount(MountRequest { device, point, .. }) => {
                placed(&PathScope::below(point)) && (device.is_empty() || named(&pattern::normalize_path(device)))
            }
            Effect::Account { name, .. } => named(name),
            Effect::Unit(name) | Effect::Package(name) | Effect::Kernel(name) | Effect::Schedule(name) => named(name),
            // Names are names of every type: without types, they do not mean changes that nothing describes.
            Effect::System(name) => (self.types.is_some() || self.names.is_none()) && named(name),
            Effect::Nested(_) => !self.is_selective(),
            Effect::Unknown { aspect, .. } => {
                let matters = matches!(aspect, None | Some(EffectKind::Run | EffectKind::Read));
                !(self.is_selective() || (self.noop_only && matters))
            }
        }
    }

    /// True when `reads` or `names` allow reading a source. Write access to a file may also depend on its content.
    fn allows_read(&self, place: &PathScope, all: &Effects) -> bool {
        let Some(reads) = self.readable() else { return true };
        pattern::matches_any_path(reads, place)
            || self.names.as_deref().is_some_and(|names| pattern::matches_any_path(names, place))
            || (!self.noop_only && all.writes(place))
    }

    /// True when `reads` or `names` allow requests to a URL: their responses reveal content, and may change something there.
    fn allows_request(&self, url: &str) -> bool {
        let Some(reads) = self.readable() else { return true };
        pattern::matches_any(reads, url) || self.names.as_deref().is_some_and(|names| pattern::matches_any(names, url))
    }

    /// Returns the same rights over paths with their links resolved. `real` replaces the part of each pattern before its first
    /// wildcard.
    #[must_use]
    pub fn resolve_links(&self, real: impl Fn(&str) -> String) -> Self {
        let all = |list: &Option<Vec<String>>| {
            list.as_ref().map(|list| list.iter().map(|pattern| pattern::resolve_links(pattern, &real)).collect())
        };
        Self { types: self.types.clone(), names: all(&self.names), reads: all(&self.reads), noop_only: self.noop_only }
    }
}

#[cfg(test)]
mod tests;
