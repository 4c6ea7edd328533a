//! The sections of rules: what can be said of which thing, and who looks.

use serde_json::Value;

use super::effects::{self, Said};
use super::{Attributes, COMMON, Look, Wrong};
use super::{accounts, local, network, software, web};
use crate::diag::did_you_mean;
use crate::model::Effect;

/// Something that a thing has.
#[derive(Debug)]
pub(super) struct Attribute {
    pub(super) name: &'static str,
    /// Another name of it.
    alias: Option<&'static str>,
    /// It is a text, looked through line by line.
    pub(super) lines: bool,
}

impl Attribute {
    pub(super) fn is(&self, name: &str) -> bool {
        self.name == name || self.alias == Some(name)
    }
}

/// A kind of thing.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) name: &'static str,
    /// In the order in which they are compared.
    pub(super) attributes: &'static [Attribute],
    /// What must be said of it.
    pub(super) required: Option<&'static str>,
    /// What could be said, for the hint.
    pub(super) example: &'static str,
    /// When what must be said is not so, there is nothing else to compare.
    pub(super) gate: bool,
    /// What is not compared but says how to look.
    pub(super) options: &'static [&'static str],
    pub(super) look: fn(&Look<'_>) -> Result<Attributes, String>,
    pub(super) effects: fn(&Said<'_>) -> Vec<Effect>,
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

const NONE: Section = Section {
    name: "",
    attributes: &[],
    required: None,
    example: "true",
    gate: false,
    options: &[],
    look: |_| Ok(Attributes::new()),
    // A section that does not say what it does is for nobody but those who may do everything.
    effects: |_| vec![Effect::unknown(None, "rules of a section without effects")],
};

/// All of them.
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
        gate: true,
        options: &["path"],
        look: local::file,
        effects: effects::file,
        ..NONE
    },
    Section {
        name: "package",
        attributes: &[plain("installed"), plain("versions")],
        required: Some("installed"),
        gate: true,
        options: &["name"],
        look: software::package,
        effects: effects::none,
        ..NONE
    },
    Section {
        name: "service",
        attributes: &[plain("enabled"), plain("running")],
        options: &["name"],
        look: software::service,
        effects: effects::none,
        ..NONE
    },
    Section {
        name: "process",
        attributes: &[plain("running"), plain("count")],
        required: Some("running"),
        options: &["comm"],
        look: software::process,
        effects: effects::none,
        ..NONE
    },
    Section {
        name: "command",
        attributes: &[plain("exit-status"), lines("stdout"), lines("stderr")],
        required: Some("exit-status"),
        example: "0",
        options: &["exec", "timeout"],
        look: software::command,
        effects: effects::command,
        ..NONE
    },
    Section {
        name: "user",
        attributes: &[plain("exists"), plain("uid"), plain("gid"), plain("groups"), plain("home"), plain("shell")],
        required: Some("exists"),
        gate: true,
        options: &["username"],
        look: accounts::user,
        effects: effects::none,
        ..NONE
    },
    Section {
        name: "group",
        attributes: &[plain("exists"), plain("gid")],
        required: Some("exists"),
        gate: true,
        options: &["groupname"],
        look: accounts::group,
        effects: effects::none,
        ..NONE
    },
    Section {
        name: "port",
        attributes: &[plain("listening"), plain("ip")],
        required: Some("listening"),
        gate: true,
        options: &["port"],
        look: network::port,
        effects: effects::none,
        ..NONE
    },
    Section {
        name: "addr",
        attributes: &[plain("reachable")],
        required: Some("reachable"),
        options: &["address", "timeout", "local-address"],
        look: network::addr,
        effects: effects::addr,
        ..NONE
    },
    Section {
        name: "dns",
        attributes: &[alias("resolvable", "resolveable"), plain("addrs")],
        required: Some("resolvable"),
        gate: true,
        options: &["resolve", "timeout"],
        look: network::dns,
        effects: effects::dns,
        ..NONE
    },
    Section {
        name: "interface",
        attributes: &[plain("exists"), plain("addrs"), plain("mtu")],
        required: Some("exists"),
        gate: true,
        options: &["name"],
        look: network::interface,
        effects: effects::none,
        ..NONE
    },
    Section {
        name: "http",
        attributes: &[plain("status"), lines("headers"), lines("body")],
        required: Some("status"),
        example: "200",
        gate: true,
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
        look: web::http,
        effects: effects::http,
    },
    Section {
        name: "mount",
        attributes: &[plain("exists"), plain("opts"), plain("vfs-opts"), plain("source"), plain("filesystem"), plain("usage")],
        required: Some("exists"),
        gate: true,
        options: &["mountpoint", "timeout"],
        look: local::mount,
        effects: effects::mount,
        ..NONE
    },
    Section {
        name: "kernel-param",
        attributes: &[plain("value")],
        required: Some("value"),
        example: "1",
        options: &["name"],
        look: local::kernel_param,
        effects: effects::none,
        ..NONE
    },
    Section {
        name: "matching",
        attributes: &[plain("matches")],
        required: Some("matches"),
        example: "{gt: 0}",
        options: &["content"],
        look: local::matching,
        effects: effects::none,
        ..NONE
    },
];

/// What Goss has and this does not, with the way out.
const UNSUPPORTED: &[(&str, &str, &str)] = &[
    ("file", "md5", "use sha256: two files can be made with one md5"),
    ("dns", "server", "the resolver of the host is asked; a command (dig) can ask another server"),
    ("service", "runlevels", "services are those of systemd, which has no runlevels"),
    ("http", "proxy", "requests go straight to the host"),
    ("http", "ca-file", "certificates are held to those that the host trusts; allow-insecure takes any"),
    ("http", "cert-file", "client certificates are not sent; a command (curl) can"),
    ("http", "key-file", "client certificates are not sent; a command (curl) can"),
];

impl Section {
    /// Why there is no attribute of this name.
    pub(super) fn unknown(&self, name: &str) -> Wrong {
        if let Some((.., instead)) = UNSUPPORTED.iter().find(|(section, known, _)| *section == self.name && *known == name) {
            return Wrong::new(format!("{name} is not supported")).key(name).hint(*instead);
        }
        let known = self.attributes.iter().map(|attribute| attribute.name).chain(self.options.iter().chain(COMMON).copied());
        let hint = did_you_mean(name, known.clone()).map_or_else(
            || format!("it has {}", known.collect::<Vec<_>>().join(", ")),
            |near| format!("did you mean \"{near}\"?"),
        );
        Wrong::new(format!("unknown attribute \"{name}\"")).key(name).hint(hint)
    }
}

/// Whether an option is of its kind.
pub(super) fn check_option(name: &str, value: &Value) -> Result<(), Wrong> {
    match name {
        "timeout" if !value.is_u64() => Err(Wrong::new("a whole number of milliseconds is wanted, as 5000")),
        "skip" | "allow-insecure" | "no-follow-redirects" if !value.is_boolean() => Err(Wrong::new("true or false is wanted")),
        "request-headers" if !value.as_array().is_some_and(|list| list.iter().all(is_header)) => {
            Err(Wrong::new("a list of headers is wanted, as \"Accept: text/html\""))
        }
        "title" | "meta" | "content" | "timeout" | "skip" | "allow-insecure" | "no-follow-redirects" | "request-headers" => {
            Ok(())
        }
        _ if value.is_array() || value.is_object() => Err(Wrong::new("a text is wanted")),
        _ => Ok(()),
    }
}

fn is_header(value: &Value) -> bool {
    value.as_str().is_some_and(|header| header.contains(':'))
}
