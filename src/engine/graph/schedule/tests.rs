use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::engine::graph::{BatchKey, Node, Reference, ReferenceKind};
use crate::manifest::Ordering;
use crate::model::{Identity, Need};

fn settings(parallelism: usize) -> ScheduleSettings {
    ScheduleSettings { parallelism: NonZeroUsize::new(parallelism).unwrap(), has_batches: true, selection: None }
}

fn key(kind: &str) -> Option<BatchKey> {
    Some(BatchKey { kind: kind.to_owned(), provider: String::new() })
}

fn node(requires: &[usize]) -> Node {
    let references = requires.iter().map(|target| Reference { target: *target, kind: ReferenceKind::Require });
    Node { references: references.collect(), ..Node::default() }
}

fn subscribes(target: usize) -> Node {
    Node { references: vec![Reference { target, kind: ReferenceKind::Subscribe }], ..Node::default() }
}

fn batched(requires: &[usize]) -> Node {
    Node { batch: key("package"), ..node(requires) }
}

fn guarded(semaphores: &[&str]) -> Node {
    Node {
        semaphores: semaphores.iter().map(|id| id.parse::<crate::resource::Semaphore>().unwrap()).collect(),
        ..Node::default()
    }
}

/// Starts all that can start.
fn starts(schedule: &mut Schedule<'_>) -> Vec<Vec<usize>> {
    std::iter::from_fn(|| schedule.next()).map(|start| start.resources).collect()
}

/// Runs a graph with one worker. Returns the starts.
fn sequential(graph: &Graph, settings: &ScheduleSettings, changed: &[usize]) -> Vec<Vec<usize>> {
    let mut schedule = Schedule::new(graph, settings);
    let mut all = Vec::new();
    while let Some(start) = schedule.next() {
        start.resources.iter().for_each(|at| schedule.ended(*at, changed.contains(at)));
        all.push(start.resources);
    }
    assert!(schedule.is_done());
    all
}

#[test]
fn a_selection_runs_with_the_subscribers_of_changes() {
    let some = |selection: &[usize]| ScheduleSettings { selection: Some(selection.to_vec()), ..settings(1) };
    let packages = [batched(&[]), node(&[]), batched(&[]), subscribes(5), node(&[3]), node(&[])];
    let graph = Graph::build(&packages, Ordering::Graph).unwrap();
    assert_eq!(graph.order(), [0, 2, 1, 5, 3, 4]);
    for (selection, changed, expected) in [
        (&[0, 2][..], &[][..], vec![vec![0, 2]]),
        (&[4, 5], &[5], vec![vec![5], vec![3], vec![4]]),
        (&[4, 5], &[], vec![vec![5], vec![4]]),
    ] {
        assert_eq!(sequential(&graph, &some(selection), changed), expected, "{selection:?} {changed:?}");
    }
    let four_waits = some(&[4, 5]);
    let mut schedule = Schedule::new(&graph, &ScheduleSettings { parallelism: NonZeroUsize::new(4).unwrap(), ..four_waits });
    assert_eq!(starts(&mut schedule), [[5]], "a resource waits while one before it may still be selected");
}

#[test]
fn ready_resources_start_as_workers_and_semaphores_allow() {
    let nodes = [guarded(&["a"]), guarded(&["a", "b:2"]), guarded(&["b:2"]), guarded(&["b:2"]), node(&[0, 1])];
    let graph = Graph::build(&nodes, Ordering::Graph).unwrap();
    let mut schedule = Schedule::new(&graph, &settings(8));
    assert_eq!(starts(&mut schedule), [[0], [2], [3]]);
    schedule.ended(0, false);
    assert_eq!(starts(&mut schedule), Vec::<Vec<usize>>::new(), "both semaphores are needed");
    assert_eq!(schedule.recordable(), [0]);
    schedule.ended(3, false);
    assert_eq!((starts(&mut schedule), schedule.recordable()), (vec![vec![1]], vec![]));
    schedule.ended(1, false);
    assert_eq!((starts(&mut schedule), schedule.recordable()), (vec![vec![4]], vec![1]));
    schedule.ended(2, false);
    schedule.ended(4, false);
    assert!(schedule.is_done());
    assert_eq!(schedule.recordable(), [2, 3, 4]);
    let mut two = Schedule::new(&graph, &settings(2));
    assert_eq!(starts(&mut two), [[0], [2]]);
}

#[test]
fn a_batch_holds_a_semaphore_once() {
    let package = |semaphores: &[&str]| Node { batch: key("package"), ..guarded(semaphores) };
    let graph = Graph::build(&[guarded(&["x"]), package(&["dnf"]), package(&["dnf"]), package(&["x"])], Ordering::Graph).unwrap();
    let mut schedule = Schedule::new(&graph, &settings(4));
    assert_eq!(starts(&mut schedule), [vec![0], vec![1, 2]]);
    schedule.ended(1, false);
    schedule.ended(0, false);
    assert_eq!(starts(&mut schedule), [[3]]);
}

#[test]
fn a_stopped_run_ends_with_what_runs() {
    let graph = Graph::build(&[node(&[]), node(&[]), node(&[0])], Ordering::Graph).unwrap();
    let mut schedule = Schedule::new(&graph, &settings(1));
    assert_eq!(starts(&mut schedule), [[0]]);
    schedule.stop();
    assert!(!schedule.is_done() && schedule.next().is_none());
    schedule.ended(0, true);
    assert!(schedule.is_done() && schedule.next().is_none());
    assert_eq!(schedule.recordable(), [0]);
}

/// A manifest whose references have no cycle, and the order that proves this.
fn manifests() -> impl Strategy<Value = Vec<Node>> {
    (1..16_usize).prop_flat_map(|count| {
        let proof = Just((0..count).collect::<Vec<_>>()).prop_shuffle();
        let object = || prop_oneof![(0..4_u8).prop_map(|n| Identity::User(n.to_string())), path().prop_map(Identity::Path)];
        fn path() -> impl Strategy<Value = std::path::PathBuf> {
            vec(0..3_u8, 1..4)
                .prop_map(|parts| parts.iter().fold("/".into(), |path: std::path::PathBuf, part| path.join(part.to_string())))
        }
        let need = prop_oneof![object().prop_map(Need::Exactly), path().prop_map(Need::Above), path().prop_map(Need::Below)];
        let references = vec((0..count, any::<bool>()), 0..3);
        let nodes =
            vec((references, vec(object(), 0..2), vec(object(), 0..2), vec(need, 0..3), 0..4_u8, vec(0..3_usize, 0..3)), count);
        (proof, nodes).prop_map(|(proof, nodes)| {
            let rank: BTreeMap<usize, usize> = proof.iter().enumerate().map(|(rank, at)| (*at, rank)).collect();
            let node = |(at, (references, provides, removes, needs, batch, semaphores)): (usize, _)| {
                let references: Vec<(usize, bool)> = references;
                let semaphores: Vec<usize> = semaphores;
                let earlier = references.into_iter().filter(|(target, _)| rank[target] < rank[&at]);
                let kind = |subscribes| if subscribes { ReferenceKind::Subscribe } else { ReferenceKind::Require };
                Node {
                    references: earlier.map(|(target, subscribes)| Reference { target, kind: kind(subscribes) }).collect(),
                    provides,
                    removes,
                    needs,
                    batch: [None, None, key("package"), key("unit")][usize::from(batch)].clone(),
                    semaphores: semaphores.iter().map(|id| ["a", "b:2", "c:3"][*id].parse().unwrap()).collect(),
                    exclusive: Vec::new(),
                }
            };
            nodes.into_iter().enumerate().map(node).collect()
        })
    })
}

/// Runs a schedule: `choices` decide which running resource ends next, and whether it changed. Returns starts and events.
fn interleave(
    nodes: &[Node],
    graph: &Graph,
    settings: &ScheduleSettings,
    choices: &[(usize, bool)],
) -> (Vec<Vec<usize>>, Vec<usize>) {
    let mut schedule = Schedule::new(graph, settings);
    let (mut all, mut events, mut ended) = (Vec::new(), Vec::new(), BTreeSet::new());
    let mut running: Vec<Vec<usize>> = Vec::new();
    let mut choices = choices.iter().cycle();
    loop {
        while let Some(start) = schedule.next() {
            for at in &start.resources {
                let batch = &nodes[*at].batch;
                assert!(start.resources.len() == 1 || (batch.is_some() && *batch == nodes[start.resources[0]].batch));
                for edge in graph.incoming(*at) {
                    let can_run = settings.selection.is_none();
                    assert!(ended.contains(&edge.before) || !can_run, "{edge:?}");
                    assert!(!running.iter().chain([&start.resources]).flatten().any(|other| *other == edge.before), "{edge:?}");
                }
            }
            running.push(start.resources.clone());
            all.push(start.resources);
            assert!(running.len() <= settings.parallelism.get());
            for (name, count) in [("a", 1), ("b", 2), ("c", 3)] {
                let holds = |at: &usize| nodes[*at].semaphores.iter().any(|semaphore| semaphore.name == name);
                assert!(running.iter().filter(|start| start.iter().any(holds)).count() <= count, "{name}");
            }
        }
        if running.is_empty() {
            break;
        }
        let (choice, changed) = *choices.next().unwrap();
        let slot = choice % running.len();
        let at = running[slot].pop().unwrap();
        if running[slot].is_empty() {
            running.remove(slot);
        }
        ended.insert(at);
        schedule.ended(at, changed);
        events.extend(schedule.recordable());
    }
    assert!(schedule.is_done(), "nothing runs, and something waits");
    (all, events)
}

proptest! {
    #[test]
    fn every_run_keeps_the_edges_and_the_order_of_events(
        nodes in manifests(),
        parallelism in 1..6_usize,
        choices in vec((0..6_usize, any::<bool>()), 1..20),
    ) {
        let graph = Graph::build(&nodes, Ordering::Graph).unwrap();
        let place = &graph.places;
        prop_assert_eq!(graph.order().iter().copied().collect::<BTreeSet<_>>(), (0..nodes.len()).collect::<BTreeSet<_>>());
        for edge in graph.edges() {
            prop_assert!(place[edge.before] < place[edge.after]);
        }
        for (at, node) in nodes.iter().enumerate() {
            for reference in &node.references {
                prop_assert!(place[reference.target] < place[at]);
            }
        }
        let (starts, events) = interleave(&nodes, &graph, &settings(parallelism), &choices);
        prop_assert_eq!(starts.iter().map(Vec::len).sum::<usize>(), nodes.len(), "each runs once");
        prop_assert_eq!(&events, graph.order());
        prop_assert_eq!(sequential(&graph, &settings(1), &[]).concat(), graph.order());
    }

    #[test]
    fn every_selection_runs_with_all_subscribers_of_its_changes(
        nodes in manifests(),
        chosen in vec(any::<bool>(), 16),
        parallelism in 1..6_usize,
        choices in vec((0..6_usize, Just(true)), 1..20),
    ) {
        let graph = Graph::build(&nodes, Ordering::Graph).unwrap();
        let selection: Vec<usize> = (0..nodes.len()).filter(|at| chosen[*at]).collect();
        let mut expected: BTreeSet<usize> = selection.iter().copied().collect();
        for at in graph.order() {
            let subscribed = |edge: &crate::engine::graph::Edge| edge.is_subscription() && expected.contains(&edge.before);
            if graph.incoming(*at).iter().any(subscribed) {
                expected.insert(*at);
            }
        }
        let settings = ScheduleSettings { selection: Some(selection), ..settings(parallelism) };
        let (starts, events) = interleave(&nodes, &graph, &settings, &choices);
        prop_assert_eq!(starts.concat().into_iter().collect::<BTreeSet<_>>(), expected.clone());
        prop_assert_eq!(events, graph.order().iter().copied().filter(|at| expected.contains(at)).collect::<Vec<_>>());
    }
}
