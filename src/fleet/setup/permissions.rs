//! Permissions of roles on the NATS server, for `deploy/nats/ensign.conf` and `ensign fleet init --print-permissions`.
//!
//! Signatures keep nodes from executing forged commands. These permissions keep a compromised node from publishing in the
//! name of others, and from reading messages of others.

use std::fmt::Write;

use crate::model::NodeId;
use crate::transport::api_prefix;
use crate::wire::{Subjects, nats_micro};

/// The role of a user on the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Sends commands, reads everything, creates the streams.
    Operator,
    /// A node with its groups.
    Node(NodeId, Vec<String>),
    /// Reads everything, publishes nothing.
    Monitor,
}

/// The permissions of a role.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Permissions {
    /// Subjects that it may publish to.
    pub publish: Vec<String>,
    /// Subjects that it may subscribe to.
    pub subscribe: Vec<String>,
    /// True when it may answer on the reply subject of a message that it received.
    pub responses: bool,
}

/// Returns the prefix of the reply subjects of a node. The prefix is the node's own: no other node can subscribe to them.
pub fn inbox_prefix(node: &NodeId) -> String {
    format!("_INBOX_{node}")
}

/// Returns the prefix of the reply subjects of a node under a scoped signing key: [`node_template`] needs whole tokens.
pub fn scoped_inbox_prefix(node: &str) -> String {
    format!("_INBOX_NODE.{node}")
}

/// Prefix of the reply subjects of the monitor.
pub const MONITOR_INBOX: &str = "_INBOX_MONITOR";

/// Discovery requests of the NATS CLI to services: `nats micro ls`, `info`, `stats`.
const DISCOVERY: &str = "$SRV.>";

/// Returns the permissions of a role in a fleet, whose streams are in a JetStream domain, if any.
pub fn permissions(role: &Role, subjects: &Subjects, domain: Option<&str>) -> Permissions {
    let permissions = match role {
        Role::Operator => operator(subjects),
        Role::Node(node, groups) => node_permissions(node, groups, subjects),
        Role::Monitor => monitor(subjects),
    };
    with_domain(permissions, domain)
}

fn with_domain(mut permissions: Permissions, domain: Option<&str>) -> Permissions {
    if let Some(domain) = domain {
        // A server of the domain checks the requests without the name of the domain, all other servers check them with it.
        let (own, api) = (api_prefix(None), api_prefix(Some(domain)));
        let requests = permissions.publish.iter().filter_map(|subject| subject.strip_prefix(&own));
        let named: Vec<String> = requests.map(|request| format!("{api}{request}")).collect();
        permissions.publish.extend(named);
    }
    permissions
}

/// Stand-ins for the name and the group of a node in [`node_template`]. A fleet with one of them in its name gets templates
/// that match none of its subjects.
const STAND_INS: (&str, &str) = ("__node__", "__group__");

/// Returns the permissions of all nodes, for a scoped signing key in operator mode.
///
/// The server replaces `{{name()}}` by the name of the user. A subject with `{{tag(group)}}` applies for each tag `group:...`
/// of the user.
pub fn node_template(subjects: &Subjects, domain: Option<&str>) -> Permissions {
    let (node, group) = STAND_INS;
    let Ok(name) = node.parse() else { return Permissions::default() };
    let one = permissions(&Role::Node(name, vec![group.to_owned()]), subjects, domain);
    let inbox = format!("_INBOX_{node}");
    let token = |token: &str| match token {
        _ if token == node => "{{name()}}".to_owned(),
        _ if token == inbox => scoped_inbox_prefix("{{name()}}"),
        _ if token == group => "{{tag(group)}}".to_owned(),
        // Servers before 2.11 replace whole tokens only. Of its discovery requests, a node then sees those to other nodes too.
        _ if token.contains(node) => "*".to_owned(),
        _ => token.to_owned(),
    };
    let insert = |subject: String| subject.split('.').map(token).collect::<Vec<_>>().join(".");
    Permissions {
        publish: one.publish.into_iter().map(insert).collect(),
        subscribe: one.subscribe.into_iter().map(insert).collect(),
        responses: one.responses,
    }
}

/// Returns the prefix of the reply subjects of a join token, by the public key of its user.
pub fn join_inbox_prefix(user: &str) -> String {
    format!("_INBOX_JOIN.{user}")
}

/// Returns the permissions of join tokens, for a scoped signing key: to publish requests, and to read answers.
/// The server replaces `{{subject()}}` by the public key of the user.
pub fn join_template(subjects: &Subjects, domain: Option<&str>) -> Permissions {
    let answers = format!("$JS.API.DIRECT.GET.{}.{}", subjects.stream("JOIN"), subjects.join_answers());
    let join = Permissions {
        publish: vec![subjects.join_requests().to_string(), answers],
        subscribe: vec![format!("{}.>", join_inbox_prefix("{{subject()}}"))],
        responses: false,
    };
    with_domain(join, domain)
}

fn operator(subjects: &Subjects) -> Permissions {
    let bucket = subjects.bucket();
    Permissions {
        publish: vec![
            subjects.all_commands().to_string(),
            subjects.job_commands().to_string(),
            subjects.all_desired().to_string(),
            subjects.removals().to_string(),
            subjects.all_admitted().to_string(),
            subjects.rollout_controls().to_string(),
            subjects.rollout_go_aheads().to_string(),
            subjects.trust_versions().to_string(),
            subjects.join_answers().to_string(),
            format!("$O.{bucket}.>"),
            "$KV.>".to_owned(),
            DISCOVERY.to_owned(),
            "$JS.API.>".to_owned(),
            "$JS.FC.>".to_owned(),
            "_INBOX.>".to_owned(),
        ],
        subscribe: vec!["_INBOX.>".to_owned(), subjects.events(None).to_string(), subjects.states().to_string()],
        responses: false,
    }
}

/// Returns the permissions of a node.
///
/// An acknowledged publish needs only the subject and the own inbox. Bundles are read without a consumer, by direct gets of
/// the stream behind their bucket.
fn node_permissions(node: &NodeId, groups: &[String], subjects: &Subjects) -> Permissions {
    let inbox = format!("{}.>", inbox_prefix(node));
    let bundles = format!("$JS.API.DIRECT.GET.OBJ_{}", subjects.bucket());
    let read = |name: &str| {
        let stream = format!("$JS.API.DIRECT.GET.{}", subjects.stream(name));
        [format!("{stream}.>"), stream]
    };
    let commands = subjects.work_subscriptions(node, groups).into_iter().map(|subject| subject.to_string());
    Permissions {
        publish: vec![
            subjects.events(Some(node)).to_string(),
            subjects.state(node).to_string(),
            subjects.job_reports_of(node).to_string(),
            subjects.rollout_failures_of(node).to_string(),
            subjects.rollout_successes_of(node).to_string(),
            format!("{bundles}.>"),
            bundles,
            // Its own state as stored, with the time of the server.
            format!("$JS.API.DIRECT.GET.{}.{}", subjects.stream("STATE"), subjects.state(node)),
            inbox.clone(),
        ]
        .into_iter()
        .chain(["TRUST", "DESIRED", "ROLLOUTS"].into_iter().flat_map(read))
        .collect(),
        // Its own state too: a state that it did not publish comes from another host with its node id.
        subscribe: commands
            .chain([subjects.state(node).to_string(), subjects.live_trust_versions().to_string(), inbox])
            .chain(nats_micro::subjects(&nats_micro::id(subjects.fleet(), node)))
            .collect(),
        responses: true,
    }
}

fn monitor(subjects: &Subjects) -> Permissions {
    let inbox = format!("{MONITOR_INBOX}.>");
    let of_stream = |name: &str| {
        let stream = subjects.stream(name);
        [
            format!("$JS.API.STREAM.INFO.{stream}"),
            format!("$JS.API.CONSUMER.CREATE.{stream}"),
            format!("$JS.API.CONSUMER.CREATE.{stream}.>"),
            format!("$JS.API.CONSUMER.DELETE.{stream}.>"),
            format!("$JS.API.DIRECT.GET.{stream}.>"),
            format!("$JS.FC.{stream}.>"),
        ]
    };
    Permissions {
        publish: ["JOBS", "EVENTS", "STATE", "TRUST", "DESIRED", "ROLLOUTS"]
            .into_iter()
            .flat_map(of_stream)
            .chain([DISCOVERY.to_owned(), inbox.clone()])
            .collect(),
        subscribe: vec![subjects.events(None).to_string(), subjects.states().to_string(), subjects.all_jobs().to_string(), inbox],
        responses: false,
    }
}

/// A user in the configuration of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerUser {
    /// The role.
    pub role: Role,
    /// The public nkey, `U...`.
    pub nkey: String,
}

/// Returns the `authorization` block of a server configuration with these users. `domain` is the JetStream domain of the
/// streams.
pub fn authorization(users: &[ServerUser], subjects: &Subjects, domain: Option<&str>) -> String {
    let mut text = String::from("authorization {\n  users: [\n");
    for user in users {
        text.push_str(&user_block(user, subjects, domain));
    }
    text.push_str("  ]\n}\n");
    text
}

fn user_block(user: &ServerUser, subjects: &Subjects, domain: Option<&str>) -> String {
    let what = match &user.role {
        Role::Operator => "operator: sends commands, reads everything, creates the streams".to_owned(),
        Role::Node(node, groups) if groups.is_empty() => format!("node {node}: only its own subjects"),
        Role::Node(node, groups) => format!("node {node} of {}: only its own subjects", groups.join(", ")),
        Role::Monitor => format!("monitor: reads everything, publishes nothing; its reply subjects begin with {MONITOR_INBOX}"),
    };
    let permissions = permissions(&user.role, subjects, domain);
    let mut text = format!("    # {what}\n    {{\n      nkey: {}\n      permissions: {{\n", user.nkey);
    list(&mut text, "publish", &permissions.publish);
    list(&mut text, "subscribe", &permissions.subscribe);
    if permissions.responses {
        text.push_str("        # Answers to the reply subject of a command, beside the reports in the stream of jobs.\n");
        text.push_str("        allow_responses: { max: 8, expires: \"15m\" }\n");
    }
    text.push_str("      }\n    }\n");
    text
}

fn list(text: &mut String, name: &str, subjects: &[String]) {
    let quoted: Vec<String> = subjects.iter().map(|subject| format!("          \"{subject}\"")).collect();
    // Writing to a String does not fail.
    let _written = write!(text, "        {name}: {{ allow: [\n{}\n        ] }}\n", quoted.join("\n")).is_ok();
}

/// Returns `deploy/nats/ensign.conf`: a complete server configuration.
pub fn sample() -> String {
    let subjects = Subjects::new("prod");
    let node = |name: &str, group: &str, nkey: &str| {
        let name = name.parse().ok()?;
        Some(ServerUser { role: Role::Node(name, vec![group.to_owned()]), nkey: nkey.to_owned() })
    };
    let users: Vec<ServerUser> = [
        Some(ServerUser { role: Role::Operator, nkey: SAMPLE_KEYS[0].to_owned() }),
        node("web1", "web", SAMPLE_KEYS[1]),
        node("db1", "db", SAMPLE_KEYS[2]),
        Some(ServerUser { role: Role::Monitor, nkey: SAMPLE_KEYS[3].to_owned() }),
    ]
    .into_iter()
    .flatten()
    .collect();
    format!("{HEAD}{}", authorization(&users, &subjects, None))
}

const HEAD: &str = "\
# A NATS server (2.10 or later) for the fleet \"prod\".
#
# Every nkey below is an example without a known seed: replace it with your own.
#   ensign key new --nats web1.nk            # writes the seed, prints the public nkey
# More nodes: ensign fleet init --fleet prod --print-permissions --node db2 --groups db
# Then, once: ensign fleet init --fleet prod

server_name: ensign
listen: 0.0.0.0:4222

# Without TLS, anyone on the network can read the messages of the fleet, but can't change them.
# tls { cert_file: \"/etc/nats/server.pem\", key_file: \"/etc/nats/server.key\" }

jetstream { store_dir: \"/var/lib/nats\" }

";

/// Public keys for the sample. Their seeds were deleted.
const SAMPLE_KEYS: [&str; 4] = [
    "UDGWWPBV5MEC2RVVVL5J35YSCCYYC4RGTRT2KVHEVE4GJYYDDI6GO2WP",
    "UB667BCEMAEYYQU6FBE5GRUGA52ZPK5K7VWWRRGMCCDMXL4LCZJJNHWB",
    "UCE3V7N2YCSEAGIH3V4RX5NSXOBUTMFA3MDHCAHV726XZE6KS5J2XNK6",
    "UCG6WU4YTYRVNYCRIEXVNH64T3P2VUUQRRUAIOAEP4U337SQKB3TPX2R",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_its_own_subjects_only() {
        let role = Role::Node("web1".parse().unwrap(), vec!["web".into()]);
        let permissions = permissions(&role, &Subjects::new("prod"), None);
        assert_eq!(
            permissions.publish,
            [
                "ensign.v1.prod.event.web1.>",
                "ensign.v1.prod.state.web1",
                "ensign.v1.prod.job.*.web1.*",
                "ensign.v1.prod.rollout.*.failed.web1",
                "ensign.v1.prod.rollout.*.ok.web1",
                "$JS.API.DIRECT.GET.OBJ_ensign-prod-bundles.>",
                "$JS.API.DIRECT.GET.OBJ_ensign-prod-bundles",
                "$JS.API.DIRECT.GET.ENSIGN_prod_STATE.ensign.v1.prod.state.web1",
                "_INBOX_web1.>",
                "$JS.API.DIRECT.GET.ENSIGN_prod_TRUST.>",
                "$JS.API.DIRECT.GET.ENSIGN_prod_TRUST",
                "$JS.API.DIRECT.GET.ENSIGN_prod_DESIRED.>",
                "$JS.API.DIRECT.GET.ENSIGN_prod_DESIRED",
                "$JS.API.DIRECT.GET.ENSIGN_prod_ROLLOUTS.>",
                "$JS.API.DIRECT.GET.ENSIGN_prod_ROLLOUTS"
            ]
        );
        assert_eq!(
            permissions.subscribe,
            [
                "ensign.v1.prod.cmd.*.node.web1",
                "ensign.v1.prod.cmd.*.all",
                "ensign.v1.prod.cmd.*.group.web",
                "ensign.v1.prod.live.desired.*",
                "ensign.v1.prod.state.web1",
                "ensign.v1.prod.live.trust.>",
                "_INBOX_web1.>",
                "$SRV.*",
                "$SRV.*.ensign",
                "$SRV.*.ensign.prod-web1"
            ]
        );
    }

    #[test]
    fn templates_differ_from_the_permissions_of_a_node_only_in_its_name_and_groups() {
        for domain in [None, Some("hub")] {
            let subjects = Subjects::new("prod");
            let template = node_template(&subjects, domain);
            let own = permissions(&Role::Node("web1".parse().unwrap(), vec!["web".into()]), &subjects, domain);
            let insert = |subject: &String| {
                let subject = subject.replace("$SRV.*.ensign.*", "$SRV.*.ensign.prod-web1");
                let subject = subject.replace("_INBOX_NODE.{{name()}}", "_INBOX_web1");
                subject.replace("{{name()}}", "web1").replace("{{tag(group)}}", "web")
            };
            assert_eq!(template.publish.iter().map(insert).collect::<Vec<_>>(), own.publish);
            assert_eq!(template.subscribe.iter().map(insert).collect::<Vec<_>>(), own.subscribe);
            assert!(template.responses && template.subscribe.iter().all(|subject| !subject.contains("__")));
        }
    }

    #[test]
    fn requests_to_the_streams_of_another_domain_name_the_domain() {
        for role in [Role::Operator, Role::Monitor, Role::Node("web1".parse().unwrap(), vec![])] {
            let subjects = Subjects::new("prod");
            let (own, hub) = (permissions(&role, &subjects, None), permissions(&role, &subjects, Some("hub")));
            let requests = own.publish.iter().filter(|subject| subject.starts_with("$JS.API."));
            let named: Vec<String> = requests.map(|subject| subject.replace("$JS.API.", "$JS.hub.API.")).collect();
            assert!(!named.is_empty());
            assert_eq!((hub.publish, hub.subscribe), ([own.publish, named].concat(), own.subscribe));
        }
    }

    #[test]
    fn the_sample_file_matches_the_permissions() {
        let file = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/nats/ensign.conf")).unwrap();
        assert!(file == sample(), "write this to deploy/nats/ensign.conf:\n{}", sample());
    }
}
