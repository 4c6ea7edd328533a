//! The effects of the items of each section, derived from the rules alone: run, read, look, request and connect.
//!
//! A rule about state without content (an open port, an installed package) is harmless. A rule that compares content counts
//! as a read, since repeated guesses reveal the content.

use serde_json::{Map, Value};

use super::probe::option_text;
use crate::http;
use crate::model::Effect;
use crate::model::effects::{PathScope, RedactedUrl};
use crate::template;

/// Attributes of a file that depend on its content.
const CONTENT: &[&str] = &["contents", "contains", "sha256", "sha512"];

/// Parameters of the kernel that are secrets: only root may read them, and a comparison reveals them piece by piece.
const SECRET_PARAMETERS: &[&str] = &["stable_secret", "tcp_fastopen_key"];

/// The item of a rule, for its effects.
pub(super) struct ItemOptions<'a> {
    pub(super) key: &'a str,
    pub(super) options: &'a Map<String, Value>,
}

impl ItemOptions<'_> {
    fn text(&self, option: &str) -> Option<String> {
        option_text(self.options, option)
    }

    /// The name of the item: this option, else the key.
    fn name(&self, option: &str) -> String {
        self.text(option).unwrap_or_else(|| self.key.to_owned())
    }
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

pub(super) fn kernel_param(said: &ItemOptions<'_>) -> Vec<Effect> {
    let name = said.name("name");
    let is_secret = name.rsplit(['.', '/']).next().is_some_and(|last| SECRET_PARAMETERS.contains(&last));
    if is_secret { vec![Effect::read(format!("/proc/sys/{}", name.replace('.', "/")))] } else { Vec::new() }
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

/// A request to a URL. Any user of a host may read the bare status of a local URL: only a connection.
pub(super) fn http(said: &ItemOptions<'_>) -> Vec<Effect> {
    let url = said.name("url");
    let bare = http::reads_status_only(&url, said.text("method").as_deref(), said.options.keys().map(String::as_str));
    let host = http::host_of(&url).filter(|_| bare && !template::is_template(&url));
    vec![host.map_or_else(|| Effect::Request(RedactedUrl::new(url)), Effect::Connect)]
}
