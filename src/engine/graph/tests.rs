use std::path::PathBuf;
use std::time::Instant;

use super::*;
use crate::manifest::Ordering;
use crate::model::{Identity, Need};

fn node() -> Node {
    Node::default()
}

fn requires(targets: &[usize]) -> Node {
    let references = targets.iter().map(|target| Reference { target: *target, kind: ReferenceKind::Require });
    Node { references: references.collect(), ..node() }
}

/// A file or directory, with the needs that all of them have.
fn file(path: &str) -> Node {
    Node { provides: vec![Identity::Path(path.into())], needs: vec![Need::above(path)], ..node() }
}

/// A resource that edits a file which another may make.
fn line(path: &str) -> Node {
    Node { needs: vec![Need::path(path), Need::above(path)], ..file(path) }
}

/// A resource that makes files in a directory.
fn filled(path: &str) -> Node {
    Node { provides: vec![Identity::Directory(path.into())], needs: vec![Need::path(path), Need::above(path)], ..node() }
}

fn absent(path: &str) -> Node {
    Node { removes: vec![Identity::Path(path.into())], needs: vec![Need::below(path)], ..node() }
}

fn mount(path: &str) -> Node {
    Node { provides: vec![Identity::MountPoint(path.into())], needs: vec![Need::path(path), Need::above(path)], ..node() }
}

fn unmounted(path: &str) -> Node {
    let provides = Vec::new();
    Node {
        removes: vec![Identity::MountPoint(path.into())],
        provides,
        needs: vec![Need::below(path), Need::path(path)],
        ..node()
    }
}

fn owned(path: &str, owner: &str) -> Node {
    let mut node = file(path);
    node.needs.push(Need::user(owner));
    node
}

fn user(name: &str, group: &str) -> Node {
    let provides = vec![Identity::User(name.into()), Identity::Group(name.into())];
    Node { provides, needs: vec![Need::group(group)], ..node() }
}

fn group(name: &str, members: &[&str]) -> Node {
    let needs = members.iter().map(|member| Need::user(*member)).collect();
    Node { provides: vec![Identity::Group(name.into())], needs, ..node() }
}

fn removed(object: Identity, uses: &[Identity]) -> Node {
    Node { removes: vec![object], needs: uses.iter().cloned().map(Need::Exactly).collect(), ..node() }
}

fn service(name: &str) -> Node {
    let unit = format!("/etc/systemd/system/{name}.service");
    let needs = vec![Need::path(unit), Need::below(format!("/etc/{name}")), Need::package(name)];
    Node { provides: vec![Identity::Unit(format!("{name}.service"))], needs, ..node() }
}

fn package(name: &str) -> Node {
    Node { provides: vec![Identity::Package(name.into())], ..node() }
}

fn lines(edges: &[Edge]) -> Vec<String> {
    let reasons = |edge: &Edge| edge.reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    edges.iter().map(|edge| format!("{} < {}: {}", edge.before, edge.after, reasons(edge))).collect()
}

#[test]
fn automatic_edges_follow_from_objects() {
    for (name, nodes, expected) in [
        ("nothing in common", vec![file("/a"), file("/b/c"), package("x")], vec![]),
        (
            "the nearest parent only",
            vec![file("/a/b/c"), file("/a"), file("/a/b")],
            vec!["2 < 0: automatic: parent directory /a/b", "1 < 2: automatic: parent directory /a"],
        ),
        (
            "a parent further up, and no sibling with the same beginning",
            vec![file("/a/b/c/d"), file("/a"), file("/a/b/cc")],
            vec!["1 < 0: automatic: parent directory /a", "1 < 2: automatic: parent directory /a"],
        ),
        (
            "a mount is between its directory and what lies in it",
            vec![file("/s/x"), mount("/s"), file("/s")],
            vec!["1 < 0: automatic: mount point /s", "2 < 0: automatic: parent directory /s", "2 < 1: automatic: path /s"],
        ),
        (
            "owner and group",
            vec![owned("/h/x", "bob"), user("bob", "staff"), group("staff", &[])],
            vec!["1 < 0: automatic: user bob", "2 < 1: automatic: group staff"],
        ),
        ("members after users", vec![group("staff", &["bob"]), user("bob", "")], vec!["1 < 0: automatic: user bob"]),
        (
            "lines after their file, in their order",
            vec![line("/a"), line("/a"), file("/a")],
            vec![
                "2 < 0: automatic: path /a, automatic: same path /a",
                "0 < 1: automatic: same path /a",
                "2 < 1: automatic: path /a",
            ],
        ),
        (
            "a service",
            vec![service("n"), file("/etc/systemd/system/n.service"), file("/etc/n/a/b"), file("/etc/nn/a"), package("n")],
            vec![
                "1 < 0: automatic: path /etc/systemd/system/n.service",
                "2 < 0: automatic: path below /etc/n",
                "4 < 0: automatic: package n",
            ],
        ),
        (
            "a service after the removal of its configuration",
            vec![service("n"), absent("/etc/n/a"), absent("/etc/systemd/system/n.service")],
            vec!["1 < 0: automatic: path below /etc/n"],
        ),
        (
            "a service before the removal of its package",
            vec![removed(Identity::Package("n".into()), &[]), service("n")],
            vec!["1 < 0: automatic: use of package n before its removal"],
        ),
        (
            "of absent paths the lower one first",
            vec![absent("/a"), absent("/a/b"), absent("/a/b/c"), absent("/ab")],
            vec!["1 < 0: automatic: path below /a", "2 < 0: automatic: path below /a", "2 < 1: automatic: path below /a/b"],
        ),
        ("an absent path provides nothing", vec![file("/a/b"), absent("/a")], vec![]),
        (
            "unmounted, then removed",
            vec![absent("/m"), unmounted("/m"), absent("/m/x")],
            vec![
                "1 < 0: automatic: use of path /m before its removal",
                "2 < 0: automatic: path below /m",
                "2 < 1: automatic: path below /m",
            ],
        ),
        (
            "removed users before their group",
            vec![removed(Identity::Group("g".into()), &[]), removed(Identity::User("u".into()), &[Identity::Group("g".into())])],
            vec!["1 < 0: automatic: use of group g before its removal"],
        ),
        (
            "a directory is filled by several at once",
            vec![filled("/a"), filled("/a"), file("/a"), file("/a/b")],
            vec![
                "2 < 0: automatic: path /a",
                "2 < 1: automatic: path /a",
                "0 < 3: automatic: parent directory /a",
                "1 < 3: automatic: parent directory /a",
                "2 < 3: automatic: parent directory /a",
            ],
        ),
        ("the same object twice", vec![package("x"), package("x"), package("y")], vec!["0 < 1: automatic: same package x"]),
    ] {
        let graph = Graph::build(&nodes, Ordering::Graph).unwrap();
        assert_eq!(lines(graph.edges()), expected, "{name}");
        assert_eq!(lines(graph.dropped()), Vec::<String>::new(), "{name}");
        assert_eq!(Graph::build(&nodes, Ordering::List).unwrap().edges(), [], "{name}");
    }
}

#[test]
fn automatic_edges_join_explicit_ones_and_never_close_a_cycle() {
    let subscribes = |node: Node, target| Node { references: vec![Reference { target, kind: ReferenceKind::Subscribe }], ..node };
    let with = |node: Node, target| Node { references: vec![Reference { target, kind: ReferenceKind::Require }], ..node };
    for (name, nodes, edges, dropped) in [
        (
            "the subscription stays",
            vec![subscribes(service("n"), 1), file("/etc/n/a")],
            vec!["1 < 0: subscribe, automatic: path below /etc/n"],
            vec![],
        ),
        (
            "against a reference",
            vec![package("n"), with(service("n"), 0), with(file("/etc/n/a"), 1)],
            vec!["0 < 1: require, automatic: package n", "1 < 2: require"],
            vec!["2 < 1: automatic: path below /etc/n"],
        ),
        (
            "against a way of references",
            vec![with(file("/a"), 1), with(node(), 2), file("/a/b")],
            vec!["1 < 0: require", "2 < 1: require"],
            vec!["0 < 2: automatic: parent directory /a"],
        ),
        (
            "against the written order",
            vec![group("a", &["a"]), user("a", "a")],
            vec!["0 < 1: automatic: group a, automatic: same group a"],
            vec!["1 < 0: automatic: user a"],
        ),
        (
            "the same the other way around",
            vec![user("a", "a"), group("a", &["a"])],
            vec!["0 < 1: automatic: user a, automatic: same group a"],
            vec!["1 < 0: automatic: group a"],
        ),
        (
            "the same object against the written order",
            vec![with(line("/a"), 1), line("/a")],
            vec!["1 < 0: require, automatic: same path /a"],
            vec![],
        ),
    ] {
        let graph = Graph::build(&nodes, Ordering::Graph).unwrap();
        assert_eq!(lines(graph.edges()), edges, "{name}");
        assert_eq!(lines(graph.dropped()), dropped, "{name}");
    }
}

#[test]
fn a_cycle_of_references_is_an_error() {
    let edge = |from, target| CycleEdge { from, target, kind: ReferenceKind::Require };
    for (nodes, expected) in [
        (vec![requires(&[0])], vec![edge(0, 0)]),
        (vec![requires(&[1]), requires(&[0])], vec![edge(0, 1), edge(1, 0)]),
        (vec![node(), requires(&[2, 0]), requires(&[3]), requires(&[1])], vec![edge(1, 2), edge(2, 3), edge(3, 1)]),
    ] {
        for ordering in [Ordering::List, Ordering::Graph] {
            assert_eq!(Graph::build(&nodes, ordering).unwrap_err(), expected.clone());
        }
    }
}

#[test]
fn the_written_order_breaks_ties() {
    let key = || Some(BatchKey { kind: "package".to_owned(), provider: String::new() });
    let batched = |node: Node| Node { batch: key(), ..node };
    for (nodes, expected) in [
        (vec![node(), node(), node()], vec![0, 1, 2]),
        (vec![requires(&[2]), node(), node()], vec![1, 2, 0]),
        (vec![requires(&[1]), requires(&[2]), node(), node()], vec![2, 1, 0, 3]),
        (vec![batched(node()), node(), batched(node()), batched(requires(&[1]))], vec![0, 2, 1, 3]),
    ] {
        assert_eq!(Graph::build(&nodes, Ordering::Graph).unwrap().order(), expected);
    }
}

#[test]
fn a_large_tree_is_matched_quickly() {
    // Every tenth path is a directory; children come before their parents.
    let mut paths: Vec<PathBuf> = vec!["/srv".into()];
    while paths.len() < 10_000 {
        let parent = paths[paths.len() / 10].clone();
        paths.push(parent.join(format!("entry-{}", paths.len())));
    }
    paths.reverse();
    let nodes: Vec<Node> = paths.iter().map(|path| owned(&path.display().to_string(), "root")).collect();
    let started = Instant::now();
    let graph = Graph::build(&nodes, Ordering::Graph).unwrap();
    println!("{} files: {:?}", graph.len(), started.elapsed());
    assert_eq!(graph.edges().len(), paths.len() - 1);
}
