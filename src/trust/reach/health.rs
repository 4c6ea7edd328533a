//! What the health checks of a resource run, look into and ask.
//!
//! Where a thing is looked at that tells nothing of what is in it (that a port is open, that a file exists), nothing is
//! reached. Whose content may be compared may be guessed piece by piece, so files whose content a rule looks at count as
//! files.

use serde_json::{Map, Value};

use super::{EXEC, Reach, UNREADABLE, command, text};
use crate::http::{self, is_loopback};

/// Attributes of a file that tell what is in it.
const CONTENT: &[&str] = &["contents", "contains", "sha256", "sha512"];

/// The commands that health checks run, and the files whose content they look at.
pub(in crate::trust) fn reaches(properties: &Map<String, Value>) -> Vec<Reach<'_>> {
    let unreadable = || vec![Reach::new(EXEC, UNREADABLE)];
    match properties.get("health_checks") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(checks)) => {
            checks.iter().flat_map(|check| check.as_object().map_or_else(unreadable, of_check)).collect()
        }
        Some(_) => unreadable(),
    }
}

fn of_check(check: &Map<String, Value>) -> Vec<Reach<'_>> {
    let given = |key: &str| check.get(key).filter(|value| !value.is_null());
    let mut found: Vec<Reach<'_>> = given("command").into_iter().map(command).collect();
    match given("goss_rules") {
        Some(Value::Object(rules)) => {
            found.extend(things(rules, "command").map(|(key, thing)| Reach::new(EXEC, named(key, thing, "exec"))));
            let files = things(rules, "file").filter(|(_, thing)| match thing {
                Some(Value::Object(thing)) => CONTENT.iter().any(|attribute| thing.contains_key(*attribute)),
                other => other.is_none(),
            });
            found.extend(files.map(|(key, thing)| Reach::new("file", named(key, thing, "path"))));
        }
        None if !found.is_empty() => {}
        _ => found.push(Reach::new(EXEC, UNREADABLE)),
    }
    found
}

/// The URLs that health checks fetch. Where this machine itself is asked for a status alone, nothing is fetched.
pub(in crate::trust) fn urls(properties: &Map<String, Value>) -> Vec<&str> {
    let things = asked(properties, "http");
    things
        .map(|(key, thing)| (named(key, thing, "url"), thing))
        .filter(|(url, thing)| !is_bare(url, *thing))
        .map(|(url, _)| url)
        .collect()
}

fn is_bare(url: &str, thing: Option<&Value>) -> bool {
    let Some(thing) = thing.and_then(Value::as_object) else { return false };
    let method = thing.get("method").filter(|method| !method.is_null());
    http::is_bare(url, method.map(text), thing.keys().map(String::as_str))
}

/// The hosts that health checks connect to or look up, but for this machine itself.
pub(in crate::trust) fn hosts(properties: &Map<String, Value>) -> Vec<&str> {
    let addresses = asked(properties, "addr").map(|(key, thing)| host(named(key, thing, "address")));
    let names = asked(properties, "dns").map(|(key, thing)| named(key, thing, "resolve"));
    addresses.chain(names).filter(|host| !is_loopback(host)).collect()
}

/// The host of `tcp://host:port`.
fn host(address: &str) -> &str {
    let place = address.split_once("://").map_or(address, |(_, place)| place);
    place.rsplit_once(':').map_or(place, |(host, _)| host).trim_matches(['[', ']'])
}

/// The things of one section, of all checks.
fn asked<'a>(
    properties: &'a Map<String, Value>,
    section: &'static str,
) -> impl Iterator<Item = (&'a str, Option<&'a Value>)> + use<'a> {
    let checks = properties.get("health_checks").and_then(Value::as_array);
    let rules = checks.into_iter().flatten().filter_map(|check| check.get("goss_rules")?.as_object());
    rules.flat_map(move |rules| things(rules, section))
}

/// The things in a section: their key and what is said of them; a section that can't be read is one unreadable thing.
fn things<'a>(rules: &'a Map<String, Value>, section: &str) -> impl Iterator<Item = (&'a str, Option<&'a Value>)> + use<'a> {
    let section = rules.get(section);
    let readable = section.and_then(Value::as_object);
    let unreadable = section.filter(|_| readable.is_none()).map(|_| (UNREADABLE, None));
    readable.into_iter().flatten().map(|(key, thing)| (key.as_str(), Some(thing))).chain(unreadable)
}

/// What an option names, else the key.
fn named<'a>(key: &'a str, thing: Option<&'a Value>, option: &str) -> &'a str {
    let option = thing.and_then(|thing| thing.get(option)).filter(|value| !value.is_null());
    option.map_or(key, text)
}
