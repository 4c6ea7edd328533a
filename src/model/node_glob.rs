//! Patterns of node ids, as `web*`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::id::{InvalidId, NodeId};
use super::pattern;

/// A pattern of node ids: `*` matches any number of characters. Each pattern has one form, with at least one `*`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeGlob(String);

impl NodeGlob {
    /// Returns the pattern as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True when the whole id matches.
    pub fn matches(&self, node: &NodeId) -> bool {
        pattern::matches(&self.0, node.as_str())
    }
}

impl FromStr for NodeGlob {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        // Without its wildcards, the text must be a part of a node id.
        let plain = text.replace('*', "_").parse::<NodeId>().is_ok();
        if plain && text.contains('*') && !text.contains("**") {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidId::NodeGlob(text.to_owned()))
        }
    }
}

impl fmt::Display for NodeGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for NodeGlob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for NodeGlob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl schemars::JsonSchema for NodeGlob {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "NodeGlob".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "Pattern of node ids: `*` matches any number of characters. No two `*` follow each other.",
            "pattern": r"^[a-z0-9_-]*\*([a-z0-9_-]+\*)*[a-z0-9_-]*$",
            "maxLength": NodeId::MAX,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_node_ids_have_one_form() {
        for good in ["*", "web*", "*-eu", "w*b*1", &format!("{}*", "x".repeat(62))] {
            assert!(good.parse::<NodeGlob>().is_ok(), "{good}");
        }
        let long = format!("{}*", "x".repeat(63));
        for bad in
            ["", "web1", "web?", "**", "web**", "Web*", "web.*", "wéb*", "web* ", "*\n", ">", "a/*", "[ab]*", "{a,b}*", &long]
        {
            assert!(bad.parse::<NodeGlob>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_whole_id_must_match() {
        for (glob, node, wanted) in
            [("web*", "web1", true), ("web*", "web", true), ("web*", "xweb1", false), ("*", "a", true), ("w*1", "web12", false)]
        {
            assert_eq!(glob.parse::<NodeGlob>().unwrap().matches(&node.parse().unwrap()), wanted, "{glob} {node}");
        }
    }
}
