//! Random events, ends and swaps: no event is lost, and no check runs twice at once.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::super::CheckLimit;
use super::*;

const RESOURCES: usize = 5;

/// A step of the driver. Numbers select a resource or a running check.
#[derive(Debug, Clone)]
enum Operation {
    Arm(usize),
    Event(usize),
    Overflow,
    Sweep,
    Wait(u64),
    Sleep,
    Start,
    Begin(usize),
    End(usize, Outcome),
    Swap(Vec<Option<usize>>),
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        3 => Just(Outcome::Stable),
        4 => any::<bool>().prop_map(|corrective| Outcome::Changed { corrective }),
        1 => (0..2_u64).prop_map(|digest| Outcome::WouldChange { digest }),
        2 => any::<(bool, bool)>().prop_map(|(changed, undone)| Outcome::Failed { changed, undone }),
        1 => Just(Outcome::Unmet),
        1 => Just(Outcome::Skipped),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        2 => (0..RESOURCES).prop_map(Operation::Arm),
        6 => (0..RESOURCES).prop_map(Operation::Event),
        1 => Just(Operation::Overflow),
        1 => Just(Operation::Sweep),
        2 => (0..200_u64).prop_map(Operation::Wait),
        2 => Just(Operation::Sleep),
        6 => Just(Operation::Start),
        1 => (0..RESOURCES).prop_map(Operation::Begin),
        6 => (0..RESOURCES, outcome()).prop_map(|(number, outcome)| Operation::End(number, outcome)),
        1 => prop::collection::vec(prop::option::weighted(0.8, 0..RESOURCES), 1..=RESOURCES).prop_map(Operation::Swap),
    ]
}

fn policy() -> impl Strategy<Value = RepairPolicy> {
    let limit = prop::option::of((1..100_u32, 1..3_u32))
        .prop_map(|limit| limit.map(|(per_second, burst)| CheckLimit { per_second: f64::from(per_second), burst }));
    (prop::option::of(0..3_u32), 0..3000_u64, any::<bool>(), limit).prop_map(|(retry, delay, retry_reset, limit)| RepairPolicy {
        retry,
        delay: Duration::from_millis(delay),
        retry_reset,
        poll: None,
        limit,
    })
}

/// Rows of which each may subscribe to the row before, and require the first one.
fn rows(policies: &[RepairPolicy], same_as: &[Option<u32>]) -> Vec<NewRow> {
    let row = |(place, (same_as, policy)): (usize, (&Option<u32>, &RepairPolicy))| NewRow {
        same_as: *same_as,
        policy: *policy,
        subscribes: (place % 2 == 1).then(|| place - 1).into_iter().collect(),
        requires: (place > 1).then_some(0).into_iter().collect(),
    };
    same_as.iter().zip(policies.iter().cycle()).enumerate().map(row).collect()
}

/// The driver, with what it knows about each resource.
struct Driver {
    fixture: Fixture,
    policies: Vec<RepairPolicy>,
    armed: BTreeSet<u32>,
    running: BTreeSet<u32>,
    /// Resources with an event after the start of their last check.
    waiting: BTreeSet<u32>,
}

impl Driver {
    fn new(policies: Vec<RepairPolicy>) -> Self {
        let fixture = Fixture::new(&rows(&policies, &[None; RESOURCES]));
        Self { fixture, policies, armed: BTreeSet::new(), running: BTreeSet::new(), waiting: BTreeSet::new() }
    }

    fn key(&self, number: usize) -> u32 {
        self.fixture.keys[number % self.fixture.keys.len()]
    }

    fn running(&self, number: usize) -> Option<u32> {
        self.running.iter().nth(number % self.running.len().max(1)).copied()
    }

    fn carry_out(&mut self, operation: &Operation) {
        let now = self.fixture.now;
        match operation {
            Operation::Arm(number) => {
                let key = self.key(*number);
                self.fixture.catalog.armed(key, now);
                self.armed.insert(key);
            }
            Operation::Event(number) => {
                let key = self.key(*number);
                self.fixture.event(key);
                self.waiting.insert(key);
            }
            Operation::Overflow => {
                self.fixture.catalog.overflow(now);
                self.waiting.extend(self.fixture.keys.iter());
            }
            Operation::Sweep => {
                self.fixture.catalog.sweep(now);
                self.waiting.extend(self.fixture.keys.iter());
            }
            Operation::Wait(millis) => self.fixture.wait(*millis),
            Operation::Sleep => self.fixture.now = self.fixture.catalog.next_at().unwrap_or(now).max(now),
            Operation::Start => self.start(),
            Operation::Begin(number) => {
                if let Some(key) = self.running(*number) {
                    self.fixture.catalog.began(key, now);
                    self.waiting.remove(&key);
                }
            }
            Operation::End(number, outcome) => {
                if let Some(key) = self.running(*number) {
                    self.running.remove(&key);
                    self.fixture.end(key, *outcome);
                }
            }
            Operation::Swap(same_as) => self.swap(same_as),
        }
        self.check();
    }

    fn start(&mut self) {
        let started = self.fixture.start();
        let places: Vec<_> = started.iter().map(|key| self.fixture.catalog.place(*key)).collect();
        assert!(places.is_sorted(), "in the order of the manifest: {places:?}");
        for key in started {
            assert!(self.armed.contains(&key), "{key} is not armed");
            assert!(self.running.insert(key), "{key} runs already");
            self.waiting.remove(&key);
        }
        assert!(self.fixture.catalog.next_at().is_none_or(|at| at > self.fixture.now), "the next time is in the future");
    }

    fn swap(&mut self, same_as: &[Option<usize>]) {
        let old = self.fixture.keys.clone();
        let same_as: Vec<_> = same_as.iter().map(|number| number.map(|number| old[number % old.len()])).collect();
        self.fixture.keys = self.fixture.catalog.swap(&rows(&self.policies, &same_as), self.fixture.now);
        let keys: BTreeSet<u32> = self.fixture.keys.iter().copied().collect();
        assert_eq!(keys.len(), same_as.len(), "each resource has its own key");
        for (key, same_as) in self.fixture.keys.iter().zip(&same_as) {
            assert!(Some(*key) == *same_as || !old.contains(key), "{key} had another resource");
        }
        for set in [&mut self.armed, &mut self.waiting, &mut self.running] {
            set.retain(|key| keys.contains(key));
        }
    }

    /// Compares the agenda and the counts with the rows.
    fn check(&self) {
        let catalog = &self.fixture.catalog;
        let (mut counts, mut agenda) = (StateCounts::default(), BTreeSet::new());
        for (key, row) in &catalog.rows {
            *counts.slot(&row.state, row.history.quiet_at().is_some()) += 1;
            agenda.extend(row.due_at().map(|at| (at, *key)));
        }
        assert_eq!((catalog.counts, &catalog.agenda), (counts, &agenda));
        for key in &self.running {
            assert!(matches!(catalog.state(*key), Some(ResourceState::Running { .. })), "{key} runs");
        }
    }

    /// Ends all checks as stable, until nothing is scheduled. Returns the number of checks of each resource.
    fn drain(&mut self) -> BTreeMap<u32, usize> {
        let mut checks = BTreeMap::new();
        for key in std::mem::take(&mut self.running) {
            self.fixture.end(key, Outcome::Stable);
        }
        while let Some(at) = self.fixture.catalog.next_at() {
            self.fixture.now = self.fixture.now.max(at);
            self.start();
            for key in std::mem::take(&mut self.running) {
                *checks.entry(key).or_default() += 1;
                self.fixture.end(key, Outcome::Stable);
            }
            self.check();
        }
        checks
    }
}

proptest! {
    #[test]
    fn no_event_is_lost_in_any_order(
        policies in prop::collection::vec(policy(), RESOURCES),
        operations in prop::collection::vec(operation(), 0..120),
    ) {
        let mut driver = Driver::new(policies);
        for operation in &operations {
            driver.carry_out(operation);
        }
        let (waiting, flapping) = (driver.waiting.clone(), driver.fixture.catalog.counts().flapping + driver.fixture.catalog.counts().running);
        let checks = driver.drain();
        for key in waiting.intersection(&driver.armed) {
            prop_assert!(checks.contains_key(key), "the event of {} was lost", key);
        }
        for (key, count) in &checks {
            // One for the event, one for a requirement that is met, one for the quiet period of a flapping resource.
            prop_assert!(*count <= 2 + usize::from(flapping > 0), "{} checks of {}", count, key);
        }
        prop_assert!(driver.waiting.is_disjoint(&driver.armed));
        let StateCounts { dirty, running, failed, flapping, .. } = driver.fixture.catalog.counts();
        prop_assert_eq!((dirty, running, failed, flapping), (0, 0, 0, 0), "only events can wake an idle catalog");
    }
}
