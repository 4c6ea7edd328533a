//! The sections of rules: the attributes and options of their items, and their probes.

use serde_json::Value;

use super::effects::{self, ItemOptions};
use super::error::RuleError;
use super::probe::{Attributes, ProbeContext};
use super::{accounts, local, network, software, web};
use crate::diag::did_you_mean;
use crate::model::Effect;

/// Keys that each item may have: notes for readers, and `skip`.
pub(super) const COMMON_KEYS: &[&str] = &["title", "meta", "skip"];

/// An attribute of an item.
#[derive(Debug)]
pub(super) struct Attribute {
    pub(super) name: &'static str,
    /// Another name of the attribute.
    alias: Option<&'static str>,
    /// True for a text that is tested line by line.
    pub(super) lines: bool,
}

impl Attribute {
    pub(super) fn has_name(&self, name: &str) -> bool {
        self.name == name || self.alias == Some(name)
    }
}

/// A section: a type of item.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) name: &'static str,
    /// The attributes, in the order of comparison.
    pub(super) attributes: &'static [Attribute],
    /// The attribute that each item must have.
    pub(super) required: Option<&'static str>,
    /// A value of the required attribute, for the hint.
    pub(super) example: &'static str,
    /// Skips the other attributes when the required attribute does not match.
    pub(super) skip_rest_if_unmet: bool,
    /// The options of the probe, which are not compared.
    pub(super) options: &'static [&'static str],
    pub(super) probe: fn(&ProbeContext<'_>) -> Result<Attributes, String>,
    pub(super) effects: fn(&ItemOptions<'_>) -> Vec<Effect>,
}

const fn plain(name: &'static str) -> Attribute {
    Attribute { name, alias: None, lines: false }
}

const fn alias(name: &'static str, alias: &'static str) -> Attribute {
    Attribute { name, alias: Some(alias), lines: false }
}

const fn lines(name: &'static str) -> Attribute {
    Attribute { name, alias: None, lines: true }
}

const EMPTY_SECTION: Section = Section {
    name: "",
    attributes: &[],
    required: None,
    example: "true",
    skip_rest_if_unmet: false,
    options: &[],
    probe: |_| Ok(Attributes::new()),
    // Without known effects, only a rule or limit that allows everything allows the section.
    effects: |_| vec![Effect::unknown(None, "rules of a section without effects")],
};

/// All sections.
pub(super) static SECTIONS: &[Section] = &[
    Section {
        name: "file",
        attributes: &[
            plain("exists"),
            plain("filetype"),
            plain("mode"),
            plain("owner"),
            plain("group"),
            plain("uid"),
            plain("gid"),
            plain("size"),
            plain("linked-to"),
            Attribute { name: "contents", alias: Some("contains"), lines: true },
            plain("sha256"),
            plain("sha512"),
        ],
        required: Some("exists"),
        skip_rest_if_unmet: true,
        options: &["path"],
        probe: local::file,
        effects: effects::file,
        ..EMPTY_SECTION
    },
    Section {
        name: "package",
        attributes: &[plain("installed"), plain("versions")],
        required: Some("installed"),
        skip_rest_if_unmet: true,
        options: &["name"],
        probe: software::package,
        effects: effects::none,
        ..EMPTY_SECTION
    },
    Section {
        name: "service",
        attributes: &[plain("enabled"), plain("running")],
        options: &["name"],
        probe: software::service,
        effects: effects::none,
        ..EMPTY_SECTION
    },
    Section {
        name: "process",
        attributes: &[plain("running"), plain("count")],
        required: Some("running"),
        options: &["comm"],
        probe: software::process,
        effects: effects::none,
        ..EMPTY_SECTION
    },
    Section {
        name: "command",
        attributes: &[plain("exit-status"), lines("stdout"), lines("stderr")],
        required: Some("exit-status"),
        example: "0",
        options: &["exec", "timeout"],
        probe: software::command,
        effects: effects::command,
        ..EMPTY_SECTION
    },
    Section {
        name: "user",
        attributes: &[plain("exists"), plain("uid"), plain("gid"), plain("groups"), plain("home"), plain("shell")],
        required: Some("exists"),
        skip_rest_if_unmet: true,
        options: &["username"],
        probe: accounts::user,
        effects: effects::none,
        ..EMPTY_SECTION
    },
    Section {
        name: "group",
        attributes: &[plain("exists"), plain("gid")],
        required: Some("exists"),
        skip_rest_if_unmet: true,
        options: &["groupname"],
        probe: accounts::group,
        effects: effects::none,
        ..EMPTY_SECTION
    },
    Section {
        name: "port",
        attributes: &[plain("listening"), plain("ip")],
        required: Some("listening"),
        skip_rest_if_unmet: true,
        options: &["port"],
        probe: network::port,
        effects: effects::none,
        ..EMPTY_SECTION
    },
    Section {
        name: "addr",
        attributes: &[plain("reachable")],
        required: Some("reachable"),
        options: &["address", "timeout", "local-address"],
        probe: network::addr,
        effects: effects::addr,
        ..EMPTY_SECTION
    },
    Section {
        name: "dns",
        attributes: &[alias("resolvable", "resolveable"), plain("addrs")],
        required: Some("resolvable"),
        skip_rest_if_unmet: true,
        options: &["resolve", "timeout"],
        probe: network::dns,
        effects: effects::dns,
        ..EMPTY_SECTION
    },
    Section {
        name: "interface",
        attributes: &[plain("exists"), plain("addrs"), plain("mtu")],
        required: Some("exists"),
        skip_rest_if_unmet: true,
        options: &["name"],
        probe: network::interface,
        effects: effects::none,
        ..EMPTY_SECTION
    },
    Section {
        name: "http",
        attributes: &[plain("status"), lines("headers"), lines("body")],
        required: Some("status"),
        example: "200",
        skip_rest_if_unmet: true,
        options: &[
            "url",
            "method",
            "timeout",
            "allow-insecure",
            "no-follow-redirects",
            "username",
            "password",
            "request-headers",
            "request-body",
        ],
        probe: web::http,
        effects: effects::http,
    },
    Section {
        name: "mount",
        attributes: &[plain("exists"), plain("opts"), plain("vfs-opts"), plain("source"), plain("filesystem"), plain("usage")],
        required: Some("exists"),
        skip_rest_if_unmet: true,
        options: &["mountpoint", "timeout"],
        probe: local::mount,
        effects: effects::mount,
        ..EMPTY_SECTION
    },
    Section {
        name: "kernel-param",
        attributes: &[plain("value")],
        required: Some("value"),
        example: "1",
        options: &["name"],
        probe: local::kernel_param,
        effects: effects::kernel_param,
        ..EMPTY_SECTION
    },
    Section {
        name: "matching",
        attributes: &[plain("matches")],
        required: Some("matches"),
        example: "{gt: 0}",
        options: &["content"],
        probe: local::matching,
        effects: effects::none,
        ..EMPTY_SECTION
    },
];

/// Attributes and options of Goss that Ensign does not support: section, name and hint.
const UNSUPPORTED: &[(&str, &str, &str)] = &[
    ("file", "md5", "use sha256: different files can have the same md5"),
    ("dns", "server", "the resolver of the host answers; use a command (dig) for another server"),
    ("service", "runlevels", "services are those of systemd, which has no runlevels"),
    ("http", "proxy", "requests go directly to the host"),
    ("http", "ca-file", "the host decides which certificates are trusted; allow-insecure accepts any certificate"),
    ("http", "cert-file", "client certificates are not supported; use a command (curl)"),
    ("http", "key-file", "client certificates are not supported; use a command (curl)"),
];

impl Section {
    /// The error for an unknown attribute.
    pub(super) fn unknown_attribute(&self, name: &str) -> RuleError {
        if let Some((.., instead)) = UNSUPPORTED.iter().find(|(section, known, _)| *section == self.name && *known == name) {
            return RuleError::new(format!("{name} is not supported")).key(name).hint(*instead);
        }
        let known = self.attributes.iter().map(|attribute| attribute.name).chain(self.options.iter().chain(COMMON_KEYS).copied());
        let hint = did_you_mean(name, known.clone()).map_or_else(
            || format!("known attributes are {}", known.collect::<Vec<_>>().join(", ")),
            |near| format!("did you mean \"{near}\"?"),
        );
        RuleError::new(format!("unknown attribute \"{name}\"")).key(name).hint(hint)
    }
}

/// Checks the type of an option.
pub(super) fn check_option(name: &str, value: &Value) -> Result<(), RuleError> {
    match name {
        "timeout" if !value.is_u64() => Err(RuleError::new("expected a whole number of milliseconds, as 5000")),
        "skip" | "allow-insecure" | "no-follow-redirects" if !value.is_boolean() => Err(RuleError::new("expected true or false")),
        "request-headers" if !value.as_array().is_some_and(|list| list.iter().all(is_header)) => {
            Err(RuleError::new("expected a list of headers, as \"Accept: text/html\""))
        }
        "title" | "meta" | "content" | "timeout" | "skip" | "allow-insecure" | "no-follow-redirects" | "request-headers" => {
            Ok(())
        }
        _ if value.is_array() || value.is_object() => Err(RuleError::new("expected a text")),
        _ => Ok(()),
    }
}

fn is_header(value: &Value) -> bool {
    value.as_str().is_some_and(|header| header.contains(':'))
}
