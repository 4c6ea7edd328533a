//! Fleets on more than one server: a hub with leaf nodes, with and without JetStream domains, and a cluster.
//! The servers have the configurations of `deploy/nats`.

use std::path::Path;

use async_nats::jetstream::stream::{Config, External, Source};
use ensign::wire::Subjects;
use futures_util::TryStreamExt;
use serde_json::Value;

use crate::support::fleet::{FLEET, Fleet, Ran, ensign, owner};
use crate::support::nats::{NatsServer, on_each};
use crate::support::port::Port;
use crate::support::proxy::{Direction, Proxy};
use crate::support::single_node::PATIENCE;

/// web1 is on a leaf node without JetStream, db1 on a leaf node that has JetStream where domains are on.
const NODES: [(&str, &str); 2] = [("web1", "web"), ("db1", "db")];

/// A hub with two leaf nodes. The second leaf node reaches the hub through a proxy.
struct Sites {
    fleet: Fleet,
    leaves: [NatsServer; 2],
    proxy: Proxy,
}

impl Sites {
    fn new(binary: &Path, domain: Option<&'static str>) -> Self {
        let leaf_port = Port::new();
        let listen = format!("127.0.0.1:{}", leaf_port.number());
        let proxy = Proxy::new(leaf_port.number());
        let through = proxy.url().replace("nats://", "");
        // Servers before 2.11 advertise their own address all the same, past the proxy.
        let advertised = format!("advertise: \"{through}\"");
        let mut users = String::new();
        let mut fleet = Fleet::on(&NODES, domain, |made| {
            // A user for the mirror, whose own permissions would be for its domain.
            users = made.replace("users: [", "users: [\n    { user: admin, password: admin }");
            let own_domain = if domain.is_none() { ", domain: hub" } else { "" };
            let changes = [("0.0.0.0:7422", listen.as_str()), (own_domain, ""), ("no_advertise: true", &advertised)];
            NatsServer::start_deployed(binary, "leaf/hub.conf", &users, &changes)
        });
        let made = fleet.run(&["init"]);
        assert_eq!(made.code, 0, "{}", made.stderr);
        let second = if domain.is_some() { "leaf/site-jetstream.conf" } else { "leaf/site.conf" };
        let leaves = [("leaf/site.conf", listen.as_str()), (second, &through)];
        let leaves = leaves.map(|(file, hub)| {
            NatsServer::start_deployed(binary, file, &users, &[("hub.example.org:7422", hub), ("server_name: site-a", "")])
        });
        let lines = domain.map(|domain| format!("jetstream_domain = \"{domain}\"\n")).unwrap_or_default();
        for ((node, _), leaf) in NODES.iter().zip(&leaves) {
            fleet.connections.insert((*node).to_owned(), format!("{lines}servers = [\"{}\"]", leaf.url()));
        }
        for (node, group) in NODES {
            fleet.start_with(node, group, "", "exec = true");
        }
        Self { fleet, leaves, proxy }
    }

    /// Assigns a directory, which travels through the object store: a file of each node gets this content.
    fn assign(&self, content: &str, timeout: &str) -> Ran {
        let directory = self.fleet.path(&format!("bundle-{content}"));
        std::fs::create_dir_all(&directory).unwrap();
        let [uid, gid] = owner();
        let manifest = format!(
            "ccm:\n  resources:\n    - file:\n        - \"{{{{ Facts.site }}}}/motd\": {{ensure: present, source: motd, owner: \"{uid}\", group: \"{gid}\", mode: \"0644\"}}\n"
        );
        std::fs::write(directory.join("manifest.yaml"), manifest).unwrap();
        std::fs::write(directory.join("motd"), content).unwrap();
        let path = directory.display().to_string();
        self.fleet.run(&["assign", "base", &path, "--all", "--output", "json", "--timeout", timeout])
    }

    fn motd(&self, node: &str) -> String {
        std::fs::read_to_string(self.fleet.path(node).join("site/motd")).unwrap_or_default()
    }
}

fn outcomes(ran: &Ran) -> Vec<(String, String)> {
    let document = ran.json();
    let rows = document["nodes"].as_array().unwrap().iter();
    rows.map(|row| (row["node"].as_str().unwrap().to_owned(), row["outcome"].as_str().unwrap().to_owned())).collect()
}

fn both(outcome: &str) -> Vec<(String, String)> {
    ["db1", "web1"].map(|node| (node.to_owned(), outcome.to_owned())).to_vec()
}

/// Runs `line` on every node, with one result each.
fn run_on_all(fleet: &Fleet, name: &str) -> Ran {
    fleet.run(&["ensure", "exec", name, "--command", "true", "--all", "--timeout", "30s", "--output", "json"])
}

/// Starts a command on db1 that ends `seconds` later, and waits for its beginning.
fn begin(fleet: &Fleet, name: &str, seconds: u32) -> String {
    let file = fleet.path("db1/site").join(name).display().to_string();
    let script = format!("touch {file}.begun; sleep {seconds}; echo line >> {file}");
    let args = ["ensure", "exec", name, "--command", &script, "--provider", "shell", "--node", "db1", "--detach"];
    let sent = wait_for_election("the command is sent", || {
        let sent = fleet.run(&args);
        if sent.code == 0 { Ok(sent) } else { Err(sent.stderr) }
    });
    fleet.wait_for("the run", || Path::new(&format!("{file}.begun")).exists());
    sent.stdout.trim().to_owned()
}

fn result_of(fleet: &Fleet, id: &str) -> String {
    let shown = fleet.run(&["job", "show", id, "--output", "json"]);
    let document: Value = serde_json::from_str(&shown.stdout).unwrap_or_default();
    document["nodes"][0]["outcome"].as_str().unwrap_or_default().to_owned()
}

fn everything_arrives(sites: &Sites) {
    let fleet = &sites.fleet;
    let ran = run_on_all(fleet, "first");
    assert_eq!((ran.code, outcomes(&ran)), (0, both("changed")), "{}", ran.stderr);
    let assigned = sites.assign("one", "30s");
    assert_eq!((assigned.code, outcomes(&assigned)), (0, both("changed")), "{}", assigned.stdout);
    assert_eq!(["web1", "db1"].map(|node| sites.motd(node)), ["one", "one"]);
    // A version of the trust bundle.
    let operator = fleet.path("operator.toml").display().to_string();
    let [sealed, root] = ["trust.dsse.json", "root.key"].map(|name| fleet.path(name).display().to_string());
    let edited = ensign(&["trust", "revoke", &sealed, "ops-bob", "--root", &root]);
    assert_eq!(edited.code, 0, "{}", edited.stderr);
    let published = ensign(&["trust", "publish", &sealed, "--operator", &operator]);
    assert_eq!((published.code, published.stdout.as_str()), (0, "2 of 2 nodes use version 2\n"), "{}", published.stderr);
    // Events of both nodes.
    fleet.wait_for("events of both nodes", || {
        let events = |node: &str| fleet.run(&["events", "--since", "1h", "--node", node, "--output", "json"]).json();
        NODES.iter().all(|(node, _)| events(node).as_array().is_some_and(|events| !events.is_empty()))
    });
}

/// Both ways of losing a site: its leaf node dies, or only the connection of the leaf node to the hub.
fn a_lost_site_comes_back(sites: &mut Sites) {
    for way in ["server", "link"] {
        let id = begin(&sites.fleet, way, 3);
        let stalled = Direction { stalled: true, ..Direction::default() };
        match way {
            "server" => sites.leaves[1].kill(),
            _ => {
                sites.proxy.set(stalled, stalled);
                sites.proxy.cut();
            }
        }
        let fleet = &sites.fleet;
        let file = fleet.path("db1/site").join(way);
        fleet.wait_for("the end of the run", || file.exists());
        let assigned = sites.assign(way, "3s");
        assert_eq!(assigned.code, 4, "{}{}", assigned.stdout, assigned.stderr);
        assert_eq!(sites.motd("web1"), way, "the other site goes on");
        assert_ne!(sites.motd("db1"), way);
        if way == "link" {
            // The agent is still connected to its leaf node. It learns of the cut when it sends a result.
            fleet.wait_for("an alarm of the agent", || {
                std::fs::read_to_string(fleet.path("db1/agent.log")).unwrap().contains("cannot publish results")
            });
        }
        match way {
            "server" => sites.leaves[1].start_again(),
            _ => {
                sites.proxy.set(Direction::default(), Direction::default());
                sites.proxy.cut();
            }
        }
        let fleet = &sites.fleet;
        fleet.wait_for("the result of the run", || result_of(fleet, &id) == "changed");
        fleet.wait_for("the assignment", || sites.motd("db1") == way);
        fleet.wait_until_published("db1");
        assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 1);
    }
    let ran = run_on_all(&sites.fleet, "last");
    assert_eq!((ran.code, outcomes(&ran)), (0, both("changed")), "{}", ran.stderr);
}

#[test]
fn without_a_domain_commands_arrive_and_an_alarm_names_the_setting() {
    on_each(|binary| {
        let sites = Sites::new(binary, None);
        let fleet = &sites.fleet;
        let ran = run_on_all(fleet, "first");
        assert_eq!((ran.code, outcomes(&ran)), (0, both("changed")), "{}", ran.stderr);
        // No hub forwards requests to its streams without a domain.
        fleet.wait_for("the alarms", || {
            let status = fleet.run(&["status"]).stdout;
            status.contains("cannot read newer trust bundles") && status.contains("set `jetstream_domain`")
        });
    });
}

#[test]
fn agents_on_leaf_nodes_get_everything_and_lose_nothing() {
    on_each(|binary| {
        let mut sites = Sites::new(binary, Some("hub"));
        everything_arrives(&sites);
        // An operator on the leaf node with JetStream, by a flag.
        let there = sites.leaves[1].url();
        let nodes = sites.fleet.run(&["nodes", "--nats", &there, "--jetstream-domain", "hub", "--output", "json"]);
        assert_eq!(nodes.json().as_array().unwrap().len(), 2, "{}", nodes.stderr);
        mirror_of_events(&sites);
        a_lost_site_comes_back(&mut sites);
    });
}

/// A mirror of the events on the leaf node: no subject overlaps, as a mirror has none.
fn mirror_of_events(sites: &Sites) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let events = Subjects::new(FLEET).stream("EVENTS");
        let login = async_nats::ConnectOptions::with_user_and_password("admin".into(), "admin".into());
        let client = login.connect(sites.leaves[1].url()).await.unwrap();
        let jetstream = async_nats::jetstream::with_domain(client.clone(), "site-b");
        let external = External { api_prefix: "$JS.hub.API".to_owned(), delivery_prefix: None };
        let source = Source { name: events.clone(), external: Some(external), ..Source::default() };
        let config = Config { name: "SITE_EVENTS".to_owned(), mirror: Some(source), ..Config::default() };
        let mut mirror = jetstream.create_stream(config).await.unwrap();
        let hub = async_nats::jetstream::with_domain(client, "hub");
        let wanted = hub.get_stream(&events).await.unwrap().cached_info().state.messages;
        assert!(wanted > 0);
        let start = std::time::Instant::now();
        while mirror.info().await.unwrap().state.messages < wanted {
            assert!(start.elapsed() < PATIENCE, "the mirror stays behind");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    });
}

/// A cluster of three servers, with a copy of every stream on each.
struct Cluster {
    fleet: Fleet,
    others: [NatsServer; 2],
}

impl Cluster {
    fn new(binary: &Path) -> Self {
        let routes = [Port::new(), Port::new(), Port::new()];
        let routes = routes.map(|port| (format!("127.0.0.1:{}", port.number()), port));
        let start = |number: usize, users: &str| {
            let name = format!("server_name: n{}", number + 1);
            let mut changes = vec![("server_name: n1", name.as_str()), ("0.0.0.0:6222", &routes[number].0)];
            let hosts = ["n1.example.org:6222", "n2.example.org:6222", "n3.example.org:6222"];
            changes.extend(hosts.into_iter().zip(&routes).map(|(host, (route, _))| (host, route.as_str())));
            NatsServer::start_deployed(binary, "cluster.conf", users, &changes)
        };
        let mut others = None;
        let mut fleet = Fleet::on(&NODES, None, |users| {
            others = Some([start(1, users), start(2, users)]);
            start(0, users)
        });
        let others = others.unwrap();
        let servers = format!("servers = [\"{}\", \"{}\", \"{}\"]", fleet.server.url(), others[0].url(), others[1].url());
        let config = std::fs::read_to_string(fleet.path("operator.toml")).unwrap();
        let alone = format!("servers = [\"{}\"]", fleet.server.url());
        std::fs::write(fleet.path("operator.toml"), config.replace(&alone, &servers)).unwrap();
        // The servers elect a leader first.
        wait_for_election("the streams", || {
            let made = fleet.run(&["init", "--replicas", "3"]);
            (made.code == 0).then_some(()).ok_or(made.stderr)
        });
        for (node, group) in NODES {
            fleet.connections.insert(node.to_owned(), servers.clone());
            fleet.start_with(node, group, "", "exec = true");
        }
        Self { fleet, others }
    }

    /// Waits until every stream has a leader and two replicas that are up to date: only then may a server be lost.
    /// Returns the name of the server that leads the JOBS stream.
    fn wait_until_whole(&self) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        wait_for_election("the copies of all streams", || {
            runtime.block_on(self.check_replicas()).map_err(|error| error.to_string())
        })
    }

    async fn check_replicas(&self) -> Result<String, Box<dyn std::error::Error>> {
        let seed = std::fs::read_to_string(self.fleet.path("operator.nk"))?.trim().to_owned();
        let urls: Vec<_> = self.others.iter().map(NatsServer::url).chain([self.fleet.server.url()]).collect();
        let client = async_nats::ConnectOptions::with_nkey(seed).connect(urls).await?;
        let jetstream = async_nats::jetstream::new(client);
        let jobs = Subjects::new(FLEET).stream("JOBS");
        let mut leader = None;
        let streams: Vec<_> = jetstream.streams().try_collect().await?;
        for stream in &streams {
            let cluster = stream.cluster.as_ref().ok_or("a stream outside of the cluster")?;
            let current = cluster.replicas.iter().filter(|replica| replica.current && !replica.offline).count();
            if cluster.leader.is_none() || current != 2 {
                return Err(format!("{}: {cluster:?}", stream.config.name).into());
            }
            leader = leader.or(cluster.leader.clone().filter(|_| stream.config.name == jobs));
        }
        leader.ok_or_else(|| format!("no stream {jobs} of {}", streams.len()).into())
    }

    fn server(&mut self, name: &str) -> &mut NatsServer {
        match name {
            "n1" => &mut self.fleet.server,
            "n2" => &mut self.others[0],
            _ => &mut self.others[1],
        }
    }
}

/// Waits until `attempt` succeeds. On a busy machine, elections take far longer than other things that tests wait for.
fn wait_for_election<T>(what: &str, mut attempt: impl FnMut() -> Result<T, String>) -> T {
    let start = std::time::Instant::now();
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(error) => assert!(start.elapsed() < 3 * PATIENCE, "{what}: {error}"),
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

#[test]
fn a_cluster_of_three_servers_survives_the_loss_of_one() {
    on_each(|binary| {
        let mut cluster = Cluster::new(binary);
        for (number, lost_leader) in [true, false].into_iter().enumerate() {
            let leader = cluster.wait_until_whole();
            let lost = ["n1", "n2", "n3"].into_iter().find(|name| (*name == leader) == lost_leader).unwrap();
            let id = begin(&cluster.fleet, &format!("long{number}"), 3);
            cluster.server(lost).kill();
            let fleet = &cluster.fleet;
            wait_for_election("the result of the run", || {
                let outcome = result_of(fleet, &id);
                (outcome == "changed").then_some(()).ok_or(outcome)
            });
            // The agents of the lost server reconnect to another.
            wait_for_election("a command on every node", || {
                let ran = run_on_all(fleet, &format!("after{number}"));
                (ran.code == 0 && outcomes(&ran).len() == 2).then_some(()).ok_or(ran.stderr)
            });
            for (node, _) in NODES {
                fleet.wait_until_published(node);
            }
            // For a while, the servers place readers on the lost one: a read then tries again.
            for _ in 0..6 {
                let nodes = fleet.run(&["nodes", "--output", "json"]);
                assert_eq!((nodes.code, nodes.json().as_array().map(Vec::len)), (0, Some(2)), "{}", nodes.stderr);
            }
            let file = fleet.path("db1/site").join(format!("long{number}"));
            assert_eq!(std::fs::read_to_string(file).unwrap().lines().count(), 1);
            cluster.server(lost).start_again();
        }
    });
}

/// Takes JetStream from a server, or gives it back.
fn set_jetstream(fleet: &mut Fleet, is_on: bool) {
    fleet.server.kill();
    let (from, to) = if is_on { ("#jetstream", "jetstream") } else { ("jetstream", "#jetstream") };
    fleet.server.edit(|text| text.replacen(from, to, 1));
    fleet.server.start_again();
}

#[test]
fn without_jetstream_a_command_still_reaches_nodes() {
    on_each(|binary| {
        let mut fleet = Fleet::new(binary, &NODES);
        for (node, group) in NODES {
            fleet.start_with(node, group, "", "exec = true");
        }
        let before = run_on_all(&fleet, "before");
        assert_eq!(before.code, 0, "{}", before.stderr);
        set_jetstream(&mut fleet, false);
        let ensure = |name: &str, target: &[&str]| {
            let args = ["ensure", "exec", name, "--command", "true", "--timeout", "20s", "--output", "json"];
            fleet.run(&[&args, target].concat())
        };
        // A named node is known, so that the job is complete. The agents reconnect first.
        let mut named = ensure("named", &["--node", "web1"]);
        fleet.wait_for("the named node", || {
            named = ensure("named", &["--node", "web1"]);
            named.code == 0
        });
        assert_eq!(outcomes(&named), [("web1".to_owned(), "changed".to_owned())]);
        assert!(
            named.stderr.contains("JetStream does not answer") && named.stderr.contains("without a record"),
            "{}",
            named.stderr
        );
        // Others are not: the exit code tells that the count may be incomplete.
        let mut all = ensure("all", &["--all"]);
        fleet.wait_for("both nodes", || {
            all = ensure("all", &["--all"]);
            outcomes(&all) == both("changed")
        });
        assert_eq!((all.code, &all.json()["complete"]), (4, &false.into()), "{}", all.stderr);
        assert!(all.stderr.contains("the targeted nodes are unknown"), "{}", all.stderr);
        let absent = ensure("absent", &["--node", "web9"]);
        assert_eq!((absent.code, outcomes(&absent)), (4, vec![("web9".to_owned(), "offline".to_owned())]), "{}", absent.stderr);
        let facts = fleet.run(&["facts", "host.info.os", "--all", "--timeout", "5s", "--output", "json"]);
        assert_eq!((facts.code, facts.json()["values"][0]["nodes"].as_array().map(Vec::len)), (4, Some(2)), "{}", facts.stderr);
        let waves = ensure("waves", &["--all", "--waves", "1,100%"]);
        assert_eq!(waves.code, 4, "{}", waves.stderr);
        assert!(waves.stderr.contains("nothing was sent"), "{}", waves.stderr);
        // The nodes kept the results for the stream.
        let id = all.json()["id"].as_str().unwrap().to_owned();
        set_jetstream(&mut fleet, true);
        for (node, _) in NODES {
            fleet.wait_until_published(node);
        }
        let stored = fleet.stored_results(&id);
        assert_eq!(stored, 2, "results of {id}");
    });
}
