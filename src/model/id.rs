//! Identifiers of resources and nodes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The form of node ids and names: one token of a NATS subject.
const TOKEN_FORM: &str = "1 to 63 of a-z, 0-9, _ and -";

/// An identifier of the wrong form.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum InvalidId {
    /// A resource reference without its `#`.
    #[error("\"{0}\" is not of the form type#name")]
    ResourceRef(String),
    /// A node id with characters that are not allowed in a subject token.
    #[error("\"{0}\" is not a node id: {TOKEN_FORM}")]
    NodeId(String),
    /// A pattern of node ids with other characters, without a `*`, or with two of them in a row.
    #[error("\"{0}\" is not a pattern of node ids: 1 to 63 of a-z, 0-9, _, - and *, with at least one *, and no two in a row")]
    NodeGlob(String),
    /// A name with characters that are not allowed in a subject token.
    #[error("\"{name}\" is not the name of a {noun}: {TOKEN_FORM}")]
    Name {
        /// The kind of thing, as `fleet`.
        noun: &'static str,
        /// The name.
        name: String,
    },
}

/// Checks the name of a fleet, group or channel. `noun` is for the message.
///
/// # Errors
/// When the name is not one subject token.
pub fn check_name(noun: &'static str, name: &str) -> Result<(), InvalidId> {
    if is_token(name) { Ok(()) } else { Err(InvalidId::Name { noun, name: name.to_owned() }) }
}

/// True for a single subject token: `[a-z0-9_-]{1,63}`.
fn is_token(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-';
    !text.is_empty() && text.len() <= NodeId::MAX && text.bytes().all(allowed)
}

/// Identity of a resource: `type#name`, split at the first `#`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceRef {
    /// The resource type, as `file`.
    pub kind: String,
    /// The name (or alias) of the resource, as `/etc/motd`.
    pub name: String,
}

/// An edge of a subscription: the subscriber is refreshed when the other resource has changed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RefreshEdge {
    /// The resource that changed, as the subscriber names it.
    pub changed: ResourceRef,
    /// The resource that subscribes to it.
    pub subscriber: ResourceRef,
}

impl ResourceRef {
    /// Creates a reference from its two parts.
    pub fn new(kind: impl Into<String>, name: impl Into<String>) -> Self {
        Self { kind: kind.into(), name: name.into() }
    }
}

impl fmt::Display for ResourceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.kind, self.name)
    }
}

impl FromStr for ResourceRef {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        match text.split_once('#') {
            Some((kind, name)) if !kind.is_empty() && !name.is_empty() => Ok(Self::new(kind, name)),
            _ => Err(InvalidId::ResourceRef(text.to_owned())),
        }
    }
}

impl Serialize for ResourceRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ResourceRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Name of a node: one NATS subject token of 1 to 63 characters `a-z 0-9 _ -`.
///
/// Host names have dots, which separate tokens in a subject: [`NodeId::from_hostname`] maps them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(String);

impl NodeId {
    /// The longest id, in bytes: as long as a DNS label may be (RFC 1035, 2.3.4).
    pub const MAX: usize = 63;

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Converts a host name to an id: lower case, with `_` for `.` and other characters.
    ///
    /// # Errors
    /// When no usable character is left.
    pub fn from_hostname(hostname: &str) -> Result<Self, InvalidId> {
        let mapped: String = hostname
            .trim_end_matches('.')
            .chars()
            .map(|c| c.to_ascii_lowercase())
            .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' { c } else { '_' })
            .take(Self::MAX)
            .collect();
        mapped.parse()
    }
}

impl FromStr for NodeId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        if is_token(text) { Ok(Self(text.to_owned())) } else { Err(InvalidId::NodeId(text.to_owned())) }
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for NodeId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for NodeId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl schemars::JsonSchema for NodeId {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "NodeId".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "Name of a node: one NATS subject token.",
            "pattern": "^[a-z0-9_-]{1,63}$",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_refs_split_at_the_first_hash() {
        let reference: ResourceRef = "file#/tmp/a#b".parse().unwrap();
        assert_eq!(reference, ResourceRef::new("file", "/tmp/a#b"));
        for bad in ["", "file", "#x", "file#", "file:/x"] {
            assert!(bad.parse::<ResourceRef>().is_err(), "{bad}");
        }
    }

    #[test]
    fn node_ids_are_one_subject_token() {
        for good in ["web1", "a", "db-2_x", &"x".repeat(63)] {
            assert!(good.parse::<NodeId>().is_ok(), "{good}");
        }
        for bad in ["", "web.1", "*", ">", "Web", "a b", &"x".repeat(64)] {
            assert!(bad.parse::<NodeId>().is_err(), "{bad}");
        }
        assert_eq!(NodeId::from_hostname("Web1.Example.org.").unwrap().as_str(), "web1_example_org");
        assert!(NodeId::from_hostname("").is_err());
    }
}
