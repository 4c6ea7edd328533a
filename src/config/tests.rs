use std::path::Path;

use super::*;
use crate::diag::Diagnostic;
use crate::model::HumanDuration;

const MINIMAL: &str = "fleet = \"prod\"\n[nats]\nservers = [\"nats://127.0.0.1:4222\"]\n[trust]\nroot = [\"ed25519:AAAA\"]\n";

fn around() -> HostDefaults {
    HostDefaults { hostname: "Web1.example.org".into(), state_dir: "/var/lib/ensign".into(), directory: "/etc/ensign".into() }
}

fn read(text: &str) -> Result<AgentSettings, Vec<Diagnostic>> {
    AgentSettings::read(text, "agent.toml", &around())
}

/// The first diagnostic, as `line:column message`, with its hint.
fn first_wrong(text: &str) -> (String, String) {
    let wrong = read(text).unwrap_err();
    let first = &wrong[0];
    let place = first.place.as_ref().map_or_else(String::new, |place| format!("{}:{} ", place.line, place.column));
    (format!("{place}{}", first.message), first.hint.clone().unwrap_or_default())
}

#[test]
fn a_minimal_file_has_the_defaults() {
    let settings = read(MINIMAL).unwrap();
    assert_eq!(settings.node.as_str(), "web1_example_org");
    assert!(settings.node_is_mapped());
    assert_eq!(settings.state_dir, Path::new("/var/lib/ensign"));
    assert_eq!(settings.heartbeat, HumanDuration::seconds(30));
    assert_eq!((settings.outbox_max, settings.queue, settings.max_bundle), (64 << 20, 16, 64 << 20));
    assert_eq!((settings.outbox_age.as_std().as_secs(), settings.outbox_rate), (7 * 86_400, 50));
    assert_eq!((settings.events, settings.log), (PublishEvents::Changes, LogSettings::default()));
    assert_eq!(settings.trust.threshold, 1);
    let limits = Limits {
        types: None,
        paths: None,
        read_paths: None,
        exec: false,
        confine: ConfinePolicy::Auto,
        unix_sockets: false,
        mount: None,
        apply: true,
        watch: true,
        fetch_hosts: None,
        bus_data: BusDataPolicy::Signed,
        archive_size: 8 << 30,
        archive_entries: 500_000,
        archive_ratio: 1000,
    };
    assert_eq!(settings.limits, limits);
    assert_eq!(settings.nats.login(), None);
    assert_eq!(settings.http.listen, Some("127.0.0.1:9769".parse().unwrap()));
}

#[test]
fn the_example_shows_every_key_and_the_defaults() {
    let example = include_str!("../../agent.toml.example");
    let settings = read(example).unwrap();
    // Optional keys are shown commented out: with the comment signs of `#key = ...` gone it must parse as well.
    let uncommented: String = example
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(rest) if !rest.starts_with([' ', '#']) && !rest.is_empty() => format!("{rest}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let whole: toml::Table = uncommented.parse().unwrap();
    let schema = document::inlined_schema::<AgentSettings>();
    assert_same_keys(&whole, &schema, "");
    assert_eq!(as_default(settings), as_default(read(MINIMAL).unwrap()));
    // After removal of the keys without a default, the rest are the defaults.
    let mut shown = whole;
    shown.remove("groups");
    shown.remove("channels");
    shown.remove("data");
    shown.remove("types");
    shown["nats"].as_table_mut().unwrap().retain(|key, _| key == "servers");
    shown["trust"].as_table_mut().unwrap().remove("bundle");
    shown["registration"].as_table_mut().unwrap().remove("known_nodes");
    shown["limits"].as_table_mut().unwrap().retain(|key, _| key == "exec" || key == "apply");
    assert_eq!(as_default(read(&shown.to_string()).unwrap()), as_default(read(MINIMAL).unwrap()));
}

/// The settings with the required keys of [`MINIMAL`].
fn as_default(settings: AgentSettings) -> AgentSettings {
    let minimal = read(MINIMAL).unwrap();
    let trust = TrustSettings { root: minimal.trust.root, ..settings.trust };
    let nats = NatsSettings { servers: minimal.nats.servers, ..settings.nats };
    AgentSettings { fleet: minimal.fleet, trust, nats, ..settings }
}

fn assert_same_keys(table: &toml::Table, schema: &serde_json::Value, path: &str) {
    let known = document::properties(schema).unwrap();
    let shown: std::collections::BTreeSet<&str> = table.keys().map(String::as_str).collect();
    let known_names: std::collections::BTreeSet<&str> = known.keys().map(String::as_str).collect();
    assert_eq!(shown, known_names, "in [{path}]");
    for (name, value) in table {
        if let toml::Value::Table(inner) = value {
            assert_same_keys(inner, &known[name], &format!("{path}{name}."));
        }
    }
}

#[test]
fn mistakes_are_shown_where_they_are() {
    for (from, to, message, hint) in [
        ("fleet = \"prod\"", "fleet = \"prod\"\nheartbeet = \"1s\"", "2:1 unknown key `heartbeet`", "did you mean `heartbeat`?"),
        ("root =", "rot =", "5:1 unknown key `trust.rot`", "did you mean `root`?"),
        (
            "fleet = \"prod\"",
            "fleet = \"Prod.eu\"",
            "1:1 \"Prod.eu\" is not the name of a fleet: 1 to 63 of a-z, 0-9, _ and -",
            "",
        ),
        (
            "fleet = \"prod\"",
            "fleet = \"prod\"\nnode = \"Web1.x\"",
            "2:8 \"Web1.x\" is not a node id: 1 to 63 of a-z, 0-9, _ and -",
            "write it as \"web1_x\"",
        ),
        ("fleet = \"prod\"", "fleet = \"prod\"\nqueue = 0", "2:1 `queue` must be between 1 and 1024, not 0", ""),
        (
            "fleet = \"prod\"",
            "fleet = \"prod\"\nheartbeat = \"soon\"",
            "2:13 invalid duration \"soon\": expected a number with a unit, as 500ms, 30s, 5m, 1h30m, 1d or 1w",
            "",
        ),
        (
            "fleet = \"prod\"",
            "fleet = \"prod\"\noutbox_max = \"64 MB\"",
            "2:14 invalid size \"64 MB\": expected a number with KiB, MiB or GiB",
            "",
        ),
        ("\"nats://127.0.0.1:4222\"", "\"http://h\"", "3:1 a server begins with nats:// or tls://, not http://", ""),
        (
            "nats://127",
            "nats://u:hunter2@127",
            "3:1 an address holds no user and no password",
            "use `user` and `password_file`, or `creds`",
        ),
        ("[trust]", "user = \"u\"\n[trust]", "2:2 `user` and `password` (or `password_file`) need each other", ""),
        (
            "[trust]",
            "creds = \"c\"\nnkey = \"n\"\n[trust]",
            "2:2 more than one way to log in is given",
            "keep one of creds, nkey, user, token",
        ),
        (
            "[nats]",
            "[http]\nlisten = \"localhost\"\n[nats]",
            "3:10 \"localhost\" is not an address with a port",
            "write listen = \"127.0.0.1:9769\", or \"off\"",
        ),
        ("[trust]", "context = \"prod\"\n[trust]", "3:1 `servers` and `context` exclude each other", "keep one of the two"),
        ("[trust]", "tls = { cert = \"c\" }\n[trust]", "4:1 `cert` and `key` need each other", ""),
        ("[\"ed25519:AAAA\"]", "[\"ed25519:AAAA\"]\nthreshold = 2", "6:1 `trust.threshold` must be between 1 and 1, not 2", ""),
        (
            "[\"ed25519:AAAA\"]",
            "[]",
            "5:1 no root key is given: nothing could be verified",
            "write the line that `ensign key show` prints for the root key",
        ),
        (
            "[trust]",
            "[limits]\npaths = [\"/srv/../etc\"]\n[trust]",
            "5:1 \"/srv/../etc\" is not an absolute path without `..`",
            "",
        ),
    ] {
        let text = MINIMAL.replace(from, to);
        assert_ne!(text, MINIMAL);
        assert_eq!(first_wrong(&text), (message.to_owned(), hint.to_owned()));
    }
}

#[test]
fn missing_keys_and_broken_syntax_are_named() {
    assert!(first_wrong("").0.contains("missing field `fleet`"));
    assert!(first_wrong("fleet = ").0.starts_with("1:"));
}

#[test]
fn several_mistakes_are_reported_at_once() {
    let text = MINIMAL.replace("fleet = \"prod\"", "fleet = \"x\"\nqueu = 1\ngroup = []");
    assert_eq!(read(&text).unwrap_err().len(), 2);
    let text = MINIMAL.replace("fleet = \"prod\"", "fleet = \"\"\nqueue = 0\ngroups = [\"a.b\"]");
    assert_eq!(read(&text).unwrap_err().len(), 3);
}

#[test]
fn secrets_are_not_shown() {
    for line in ["password = \"hunter2\" x", "nats.token=\"hunter2\" x", "nats = { \"password\" = \"hunter2\" x"] {
        let shown = format!("{:?}", read(line).unwrap_err());
        assert!(!shown.contains("hunter2") && shown.contains("***"), "{shown}");
    }
    let settings = read(&MINIMAL.replace("[trust]", "token = \"hunter2\"\n[trust]")).unwrap();
    assert!(!format!("{settings:?}").contains("hunter2"));
}

#[test]
fn relative_paths_begin_at_the_file() {
    let text = MINIMAL.replace("[trust]", "creds = \"node.creds\"\n[trust]\nbundle = \"/srv/trust.json\"");
    let settings = read(&text).unwrap();
    assert_eq!(settings.nats.login(), Some(Login::Creds("/etc/ensign/node.creds".into())));
    assert_eq!(settings.trust.bundle.as_deref(), Some(Path::new("/srv/trust.json")));
}
