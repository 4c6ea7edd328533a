//! Normalization of error texts: two hundred failures with one cause must read as one.
//!
//! Every word is examined. Numbers, addresses, times, ids, random names of temporary files and the name of the node become
//! placeholders. Exit codes and the like stay, since they tell causes apart.

use std::net::{IpAddr, SocketAddr};

use uuid::Uuid;

use crate::model::NodeId;

/// Words before a number that is part of the cause: such a number stays.
const CAUSE_WORDS: &[&str] = &["code", "error", "errno", "signal", "status", "exit", "http"];
/// Units behind a number.
const UNITS: &[&str] =
    &["", "%", "s", "ms", "us", "µs", "ns", "m", "min", "h", "d", "b", "k", "kb", "mb", "gb", "kib", "mib", "gib", "bytes"];
/// Fewest characters of a node name that is replaced. Shorter names are too likely a word.
const SHORTEST_NAME: usize = 3;

/// Returns the text with placeholders, equal on all nodes.
pub fn normalize(text: &str, node: &NodeId) -> String {
    rewrite(text, &Names::new(node), true)
}

/// Returns the text without the name of the node; numbers stay.
pub fn without_name(text: &str, node: &NodeId) -> String {
    rewrite(text, &Names::new(node), false)
}

/// Returns a diff without the name of the node. Lines without the name stay unchanged.
pub fn diff_without_name(diff: &str, node: &NodeId) -> String {
    let names = Names::new(node);
    let line = |line: &str| {
        let general = rewrite(line, &names, false);
        if general.matches("<node>").count() > line.matches("<node>").count() { general } else { line.to_owned() }
    };
    diff.lines().map(|text| line(text) + "\n").collect()
}

/// The names of a node in messages: its id, and the host names that the id may come from.
struct Names(Vec<String>);

impl Names {
    fn new(node: &NodeId) -> Self {
        let id = node.as_str();
        let mut names = vec![id.to_owned()];
        if id.contains('_') {
            names.push(id.replace('_', "."));
            names.extend(id.split('_').next().map(str::to_owned));
        }
        names.retain(|name| name.len() >= SHORTEST_NAME);
        Self(names)
    }

    /// True for one of the names, alone or with a domain.
    fn has(&self, word: &str) -> bool {
        let word = word.to_ascii_lowercase();
        self.0.iter().any(|name| word == *name || word.strip_prefix(name.as_str()).is_some_and(is_domain))
    }
}

/// True for `.example.org`, and false for the extension of a file: a domain has at least two labels.
fn is_domain(rest: &str) -> bool {
    rest.starts_with('.') && rest.matches('.').count() > 1 && rest.chars().all(|c| c.is_ascii_alphanumeric() || ".-".contains(c))
}

fn is_break(c: char) -> bool {
    c.is_whitespace() || "\"'`()[]{}<>,;=|".contains(c)
}

fn rewrite(text: &str, names: &Names, numbers: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut before = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if is_break(first) {
            if first.is_whitespace() {
                // All lines become one line.
                if !out.ends_with(' ') && !out.is_empty() {
                    out.push(' ');
                }
            } else {
                out.push(first);
            }
            rest = rest.get(first.len_utf8()..).unwrap_or_default();
            continue;
        }
        let end = rest.find(is_break).unwrap_or(rest.len());
        let (whole, tail) = rest.split_at(end);
        let bare = whole.trim_end_matches(['.', ':', '!', '?']);
        out.push_str(&normalize_word(bare, &before, names, numbers));
        out.push_str(whole.get(bare.len()..).unwrap_or_default());
        before = bare.to_ascii_lowercase();
        rest = tail;
    }
    out.truncate(out.trim_end().len());
    out
}

fn normalize_word(word: &str, before: &str, names: &Names, numbers: bool) -> String {
    if names.has(word) {
        return "<node>".to_owned();
    }
    if let Some((kind, name)) = word.split_once('#').filter(|(kind, _)| is_resource_type(kind)) {
        // The resource is part of the cause; only the host in its name is not.
        return format!("{kind}#{}", normalize_path(name, names, false));
    }
    if let Some((scheme, rest)) = word.split_once("://") {
        let (authority, rest) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        return format!("{scheme}://{}{}", normalize_host(authority, names), normalize_path(rest, names, numbers));
    }
    if word.contains('/') {
        return normalize_path(word, names, numbers);
    }
    if !numbers {
        return normalize_host(word, names);
    }
    let telling = CAUSE_WORDS.iter().any(|telling| before.trim_end_matches(':').ends_with(telling));
    if let Some(placeholder) = placeholder(word).filter(|placeholder| !(telling && *placeholder == "<n>")) {
        return placeholder.to_owned();
    }
    normalize_host(word, names)
}

fn is_resource_type(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
}

/// Replaces an address or the name of the node. In `name:port` the port stays.
fn normalize_host(word: &str, names: &Names) -> String {
    if is_address(word) {
        return "<address>".to_owned();
    }
    match word.rsplit_once(':') {
        Some((name, port)) if names.has(name) => format!("<node>:{port}"),
        None if names.has(word) => "<node>".to_owned(),
        _ => word.to_owned(),
    }
}

fn is_address(word: &str) -> bool {
    // "::" is an address, and also the end of many words.
    word.len() > 2 && (word.parse::<IpAddr>().is_ok() || word.parse::<SocketAddr>().is_ok())
}

fn normalize_path(text: &str, names: &Names, numbers: bool) -> String {
    let mut parent = "";
    let parts = text.split('/').map(|part| {
        let shown = if names.has(part) {
            "<node>".to_owned()
        } else if is_id(part) {
            "<id>".to_owned()
        } else if parent.ends_with("tmp") && is_random(part) {
            "<tmp>".to_owned()
        } else if numbers && !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) {
            "<n>".to_owned()
        } else if numbers && is_hex(part) {
            "<hex>".to_owned()
        } else {
            part.to_owned()
        };
        parent = part;
        shown
    });
    parts.collect::<Vec<_>>().join("/")
}

/// True for a generated name: at least six letters of both cases, or letters and digits, in one run.
fn is_random(part: &str) -> bool {
    let runs = part.split(['.', '-', '_']);
    runs.filter(|run| run.len() >= 6).any(|run| {
        let has = |test: fn(&char) -> bool| run.chars().any(|c| test(&c));
        let (upper, lower, digit) = (has(char::is_ascii_uppercase), has(char::is_ascii_lowercase), has(char::is_ascii_digit));
        (upper && lower) || (digit && (upper || lower))
    })
}

/// True for a UUID with hyphens. Without hyphens, the word may be a digest.
fn is_id(word: &str) -> bool {
    word.contains('-') && word.parse::<Uuid>().is_ok()
}

fn is_hex(word: &str) -> bool {
    word.len() >= 16 && word.bytes().all(|b| b.is_ascii_hexdigit())
}

fn placeholder(word: &str) -> Option<&'static str> {
    if is_address(word) {
        Some("<address>")
    } else if is_id(word) {
        Some("<id>")
    } else if is_date(word) {
        Some("<time>")
    } else if is_number(word) {
        Some("<n>")
    } else if is_hex(word) {
        Some("<hex>")
    } else {
        None
    }
}

/// True for a word that begins with a date, as `2026-11-20`.
fn is_date(word: &str) -> bool {
    let mut bytes = word.bytes();
    "dddd-dd-dd".bytes().all(|wanted| match (wanted, bytes.next()) {
        (b'd', Some(found)) => found.is_ascii_digit(),
        (wanted, found) => Some(wanted) == found,
    })
}

/// True for numbers: `12`, `-1.5s`, `12:30:01`, `64KiB`, `0x7f`.
fn is_number(word: &str) -> bool {
    if let Some(hex) = word.strip_prefix("0x") {
        return !hex.is_empty() && hex.bytes().all(|b| b.is_ascii_hexdigit());
    }
    let bare = word.trim_start_matches(['-', '+', '~']);
    let unit = bare.trim_start_matches(|c: char| c.is_ascii_digit() || ".:".contains(c));
    bare.starts_with(|c: char| c.is_ascii_digit()) && UNITS.contains(&unit.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diff_keeps_its_lines_and_blanks() {
        let diff = "@@ -1,2 +1,2 @@\n-listen  80\n+  name  web1;\n";
        assert_eq!(diff_without_name(diff, &"web1".parse().unwrap()), "@@ -1,2 +1,2 @@\n-listen  80\n+ name <node>;\n");
    }

    #[test]
    fn parts_that_differ_between_hosts_become_placeholders() {
        let node = "web1".parse().unwrap();
        for (text, wanted) in [
            (
                "package#nginx: E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 12345 (apt-get)",
                "package#nginx: E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process <n> (apt-get)",
            ),
            (
                "E: Failed to fetch http://deb.debian.org/debian/pool/n/nginx_1.22.1-9_amd64.deb  404  Not Found [IP: 151.101.2.132 80]",
                "E: Failed to fetch http://deb.debian.org/debian/pool/n/nginx_1.22.1-9_amd64.deb <n> Not Found [IP: <address> <n>]",
            ),
            ("E: Unable to locate package nginx", "E: Unable to locate package nginx"),
            ("exec#migrate: exit code 3: \"no such table\"", "exec#migrate: exit code 3: \"no such table\""),
            (
                "could not write /srv/web1/app.conf: Permission denied (os error 13)",
                "could not write /srv/<node>/app.conf: Permission denied (os error 13)",
            ),
            ("file#/srv/web1/app.conf: no space", "file#/srv/<node>/app.conf: no space"),
            (
                "web1.example.org: connection to 10.0.3.7:5432 refused after 1.53s",
                "<node>: connection to <address> refused after <n>",
            ),
            ("could not open /tmp/.tmpAb3x9Q/manifest.yaml", "could not open /tmp/<tmp>/manifest.yaml"),
            (
                "/var/lib/ensign/work/0198c1f2-7a3b-7c4d-8e5f-102030405060/m.yaml is gone",
                "/var/lib/ensign/work/<id>/m.yaml is gone",
            ),
            ("dial [2001:db8::7]:443: i/o timeout", "dial [<address>]:443: i/o timeout"),
            ("sshd[4711]: killed by signal 9 at 2026-11-20T10:00:00Z", "sshd[<n>]: killed by signal 9 at <time>"),
            ("it has d41d8cd98f00b204e9800998ecf8427e,\n  not what was signed", "it has <hex>, not what was signed"),
            ("https://web1:8443/health: HTTP status 503", "https://<node>:8443/health: HTTP status 503"),
            ("no space left: 12.5MiB of 64 KiB, 99%", "no space left: <n> of <n> KiB, <n>"),
            ("the web10 of web1 is web1s", "the web10 of <node> is web1s"),
            ("", ""),
        ] {
            assert_eq!(normalize(text, &node), wanted);
        }
        let mapped = "web1_example_org".parse().unwrap();
        assert_eq!(normalize("WEB1.example.org and web1: x", &mapped), "<node> and <node>: x");
        // A short name of a node must not match common words.
        assert_eq!(normalize("a is not b", &"a".parse().unwrap()), "a is not b");
    }

    #[test]
    fn numbers_stay_when_only_names_are_replaced() {
        let node = "web1".parse().unwrap();
        assert_eq!(without_name("file#/srv/web1/a: mode 0600 → 0644, 12", &node), "file#/srv/<node>/a: mode 0600 → 0644, 12");
    }
}
