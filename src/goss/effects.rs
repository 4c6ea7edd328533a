//! The effects of rules, derived from the rules alone: run, read, look, fetch and connect.
//!
//! A rule about state without content (an open port, an installed package) is harmless. A rule that compares content counts
//! as a read, since repeated guesses reveal the content.

use serde_json::{Map, Value};

use super::SECTIONS;
use crate::http;
use crate::model::effects::{PathScope, RedactedUrl};
use crate::model::{Effect, Effects};
use crate::template;

/// Attributes of a file that depend on its content.
const CONTENT: &[&str] = &["contents", "contains", "sha256", "sha512"];

/// The item of a rule, for its effects.
pub(super) struct ItemOptions<'a> {
    key: &'a str,
    options: &'a Map<String, Value>,
}

impl ItemOptions<'_> {
    fn text(&self, option: &str) -> Option<String> {
        super::option_text(self.options, option)
    }

    /// The name of the item: this option, else the key.
    fn name(&self, option: &str) -> String {
        self.text(option).unwrap_or_else(|| self.key.to_owned())
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

/// The effects of items whose state reveals no content: none.
pub(super) fn none(_: &ItemOptions<'_>) -> Vec<Effect> {
    Vec::new()
}

pub(super) fn file(said: &ItemOptions<'_>) -> Vec<Effect> {
    let place = PathScope::single(said.name("path"));
    let reads = CONTENT.iter().any(|attribute| said.options.contains_key(*attribute));
    vec![if reads { Effect::Read(place) } else { Effect::Look(place) }]
}

pub(super) fn command(said: &ItemOptions<'_>) -> Vec<Effect> {
    vec![Effect::run_always(said.name("exec"))]
}

pub(super) fn mount(said: &ItemOptions<'_>) -> Vec<Effect> {
    vec![Effect::Look(PathScope::single(said.name("mountpoint")))]
}

/// A connection to an address: `tcp://host:port`.
pub(super) fn addr(said: &ItemOptions<'_>) -> Vec<Effect> {
    let address = said.name("address");
    let place = address.split_once("://").map_or(address.as_str(), |(_, place)| place);
    let host = place.rsplit_once(':').map_or(place, |(host, _)| host).trim_matches(['[', ']']);
    vec![Effect::Connect(host.to_owned())]
}

pub(super) fn dns(said: &ItemOptions<'_>) -> Vec<Effect> {
    vec![Effect::Connect(said.name("resolve"))]
}

/// A fetch of a URL. Any user of a host may read the bare status of a local URL: only a connection.
pub(super) fn http(said: &ItemOptions<'_>) -> Vec<Effect> {
    let url = said.name("url");
    let bare = http::reads_status_only(&url, said.text("method").as_deref(), said.options.keys().map(String::as_str));
    let host = http::host_of(&url).filter(|_| bare && !template::is_template(&url));
    vec![host.map_or_else(|| Effect::Fetch(RedactedUrl::new(url)), Effect::Connect)]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(rules: &Value) -> Vec<String> {
        effects(rules.as_object().unwrap()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn rules_have_their_effects() {
        for (rules, wanted) in [
            (
                json!({"command": {"a": {"exec": "c"}, "d": {}, "e": null, "f": {"exec": ""}}}),
                "runs \"c\" runs \"d\" runs \"e\" runs \"f\"",
            ),
            (json!({"command": ["x"]}), "has an effect that is not known: goss_rules: the section command can't be read"),
            (json!({"command": {"x": 7}}), "has an effect that is not known: goss_rules: the section command can't be read"),
            (json!({"nope": {}}), "has an effect that is not known: goss_rules: the section nope can't be read"),
            (
                json!({"file": {"/a": {"exists": true}, "/b": {"contains": ["x"]}, "c": {"path": "/d", "sha256": "x"}}}),
                "looks for \"/a\" reads \"/b\" reads \"/d\"",
            ),
            (json!({"port": {"tcp:22": {"listening": true}}, "package": {"x": {}}}), ""),
            (json!({"addr": {"tcp://h:80": {}, "x": {"address": "[::1]:80"}}}), "connects to \"h\" connects to \"::1\""),
            (json!({"dns": {"name": {}, "x": {"resolve": "other"}}}), "connects to \"name\" connects to \"other\""),
            (json!({"mount": {"/srv": {"exists": true}}}), "looks for \"/srv\""),
            (json!({"http": {"http://localhost:8080/health": {"status": 200}}}), "connects to \"localhost\""),
            (json!({"http": {"http://localhost/": {"status": 200, "body": []}}}), "fetches \"http://localhost/\""),
            (json!({"http": {"x": {"url": "https://u:p@h/?t=1", "status": 200}}}), "fetches \"https://h/\""),
        ] {
            assert_eq!(of(&rules).join(" "), wanted, "{rules}");
        }
    }
}
