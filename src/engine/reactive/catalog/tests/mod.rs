//! The catalog: which checks are due, in which order, and that no event is lost.

mod any_order;

use std::time::Duration;

use super::super::{CatalogActivity, ConvergenceMonitor, RepairPolicy};
use super::*;

const REPAIRED: Outcome = Outcome::Changed { corrective: true };
const FAILED: Outcome = Outcome::Failed { changed: false, undone: false };

/// A catalog, and a clock that the test moves.
struct Fixture {
    catalog: Catalog,
    keys: Vec<u32>,
    now: Instant,
}

impl Fixture {
    fn new(rows: &[NewRow]) -> Self {
        let (mut catalog, now) = (Catalog::default(), Instant::now());
        let keys = catalog.swap(rows, now);
        Self { catalog, keys, now }
    }

    /// A catalog of which all resources were found stable.
    fn clean(rows: &[NewRow]) -> Self {
        let mut fixture = Self::new(rows);
        fixture.arm_all();
        fixture.run(|_| Outcome::Stable);
        fixture.wait(10_000);
        fixture
    }

    fn arm_all(&mut self) {
        for key in self.keys.clone() {
            self.catalog.armed(key, self.now);
        }
    }

    fn wait(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
    }

    fn event(&mut self, key: u32) {
        self.catalog.changed(key, DirtyCause::Event, self.now);
    }

    fn start(&mut self) -> Vec<u32> {
        self.catalog.start(self.now).into_iter().map(|check| check.key).collect()
    }

    fn end(&mut self, key: u32, outcome: Outcome) -> Option<Notice> {
        self.catalog.ended(key, outcome, self.now)
    }

    /// Starts and ends all checks that are due. Returns their keys.
    fn run(&mut self, outcome: impl Fn(u32) -> Outcome) -> Vec<u32> {
        let started = self.start();
        for key in &started {
            self.end(*key, outcome(*key));
        }
        started
    }

    fn next_millis(&self) -> Option<u128> {
        self.catalog.next_at().map(|at| at.saturating_duration_since(self.now).as_millis())
    }

    /// Puts a manifest in force that keeps these resources, in this order, with a new one for each `None`.
    fn swap(&mut self, same_as: &[Option<u32>]) -> Vec<u32> {
        let rows: Vec<_> = same_as.iter().map(|same_as| NewRow { same_as: *same_as, ..NewRow::default() }).collect();
        self.keys = self.catalog.swap(&rows, self.now);
        self.keys.clone()
    }
}

fn rows(count: usize) -> Vec<NewRow> {
    vec![NewRow::default(); count]
}

/// Two resources, the second of which subscribes to the first and requires it.
fn pair() -> Vec<NewRow> {
    vec![NewRow::default(), NewRow { subscribes: vec![0], requires: vec![0], ..NewRow::default() }]
}

#[test]
fn no_check_comes_before_the_watch_is_armed() {
    let mut fixture = Fixture::new(&rows(2));
    fixture.event(0);
    fixture.catalog.sweep(fixture.now);
    assert_eq!((fixture.start(), fixture.next_millis()), (vec![], None));
    fixture.catalog.armed(1, fixture.now);
    assert_eq!(fixture.start(), [1]);
    fixture.catalog.armed(1, fixture.now);
    assert_eq!(fixture.start(), [0; 0], "a running check is not started again");
}

#[test]
fn an_idle_catalog_waits_for_no_time() {
    let mut fixture = Fixture::clean(&rows(3));
    assert_eq!(fixture.next_millis(), None);
    fixture.event(1);
    assert_eq!(fixture.next_millis(), Some(0), "the first event is due at once");
    assert_eq!(fixture.run(|_| REPAIRED), [1]);
    fixture.event(1);
    assert_eq!(fixture.next_millis(), Some(20), "the event of our own write waits");
    fixture.wait(20);
    assert_eq!(fixture.run(|_| Outcome::Stable), [1]);
    assert_eq!(fixture.next_millis(), None);
}

#[test]
fn an_event_during_a_run_causes_exactly_one_more() {
    let mut fixture = Fixture::clean(&rows(1));
    fixture.event(0);
    assert_eq!(fixture.start(), [0]);
    for _ in 0..3 {
        fixture.event(0);
        assert_eq!(fixture.start(), [0; 0]);
    }
    fixture.end(0, REPAIRED);
    fixture.wait(20);
    assert_eq!(fixture.run(|_| Outcome::Stable), [0]);
    assert_eq!(fixture.next_millis(), None);
}

#[test]
fn a_storm_of_events_costs_at_most_fifty_checks_a_second() {
    let mut fixture = Fixture::clean(&rows(1));
    let mut checks = 0;
    for _ in 0..10_000 {
        fixture.event(0);
        checks += fixture.run(|_| Outcome::Stable).len();
        fixture.now += Duration::from_micros(100);
    }
    assert_eq!(checks, 50);
}

#[test]
fn due_checks_start_in_the_order_of_the_manifest() {
    let mut fixture = Fixture::clean(&rows(3));
    assert_eq!(fixture.swap(&[Some(2), None, Some(0)]), [2, 3, 0]);
    fixture.catalog.armed(3, fixture.now);
    for key in [0, 3, 2] {
        fixture.event(key);
    }
    assert_eq!(fixture.start(), [2, 3, 0]);
    assert_eq!([0, 2, 3].map(|key| fixture.catalog.place(key)), [Some(2), Some(0), Some(1)]);
}

#[test]
fn a_change_refreshes_the_subscribers() {
    let mut fixture = Fixture::clean(&pair());
    fixture.event(0);
    assert_eq!(fixture.start(), [0]);
    fixture.wait(5);
    fixture.end(0, REPAIRED);
    let check = fixture.catalog.start(fixture.now);
    assert_eq!(check, [Check { key: 1, reason: CheckReason { cause: DirtyCause::Refresh, since: fixture.now } }]);
    fixture.end(1, FAILED);
    fixture.wait(1000);
    assert_eq!(fixture.run(|_| Outcome::Changed { corrective: false }), [1]);
    assert_eq!(fixture.next_millis(), None);
}

#[test]
fn a_refresh_follows_a_change_that_failed_and_the_recovery() {
    let mut fixture = Fixture::clean(&pair());
    fixture.event(0);
    assert_eq!(fixture.run(|_| Outcome::Failed { changed: true, undone: false }), [0]);
    assert_eq!(fixture.run(|_| Outcome::Stable), [1]);
    fixture.wait(1000);
    assert_eq!(fixture.run(|_| Outcome::Stable), [0]);
    let check = fixture.catalog.start(fixture.now).into_iter().map(|check| (check.key, check.reason.cause));
    assert_eq!(check.collect::<Vec<_>>(), [(1, DirtyCause::Refresh)], "a refresh may have been pending during the failure");
    fixture.end(1, Outcome::Stable);
    assert_eq!(fixture.next_millis(), None);
}

#[test]
fn two_changed_resources_both_refresh_their_subscriber() {
    let subscriber = NewRow { subscribes: vec![0, 1], ..NewRow::default() };
    for changed in [0, 1] {
        let mut fixture = Fixture::clean(&[rows(2), vec![subscriber.clone()]].concat());
        fixture.event(changed);
        assert_eq!(fixture.run(|_| REPAIRED), [changed]);
        assert_eq!(fixture.run(|_| Outcome::Stable), [2]);
    }
}

#[test]
fn a_check_that_began_after_the_change_needs_no_other_one() {
    let mut fixture = Fixture::new(&pair());
    fixture.arm_all();
    assert_eq!(fixture.start(), [0, 1]);
    fixture.end(0, REPAIRED);
    fixture.catalog.began(1, fixture.now);
    fixture.end(1, Outcome::Stable);
    assert_eq!(fixture.next_millis(), None);
}

#[test]
fn a_blocked_resource_is_due_when_its_requirement_succeeds() {
    let mut fixture = Fixture::new(&pair());
    fixture.arm_all();
    assert_eq!(fixture.run(|key| if key == 0 { FAILED } else { Outcome::Unmet }), [0, 1]);
    assert_eq!(fixture.catalog.counts(), StateCounts { failed: 1, blocked: 1, ..StateCounts::default() });
    fixture.wait(1000);
    assert_eq!(fixture.run(|_| Outcome::Stable), [0], "the retry");
    assert_eq!(fixture.run(|_| Outcome::Stable), [1]);
    assert_eq!(fixture.catalog.counts(), StateCounts { clean: 2, ..StateCounts::default() });
}

#[test]
fn a_noop_resource_never_notifies_and_never_spins() {
    let mut fixture = Fixture::clean(&pair());
    let wanted = |digest| Outcome::WouldChange { digest };
    for (digest, notice) in [(1, Some(Notice::WouldChange { key: 0 })), (1, None), (2, Some(Notice::WouldChange { key: 0 }))] {
        fixture.event(0);
        assert_eq!(fixture.start(), [0]);
        assert_eq!(fixture.end(0, wanted(digest)), notice);
        assert_eq!(fixture.next_millis(), None);
        fixture.wait(1000);
    }
    assert_eq!(fixture.catalog.counts(), StateCounts { would_change: 1, clean: 1, ..StateCounts::default() });
}

#[test]
fn a_parked_resource_is_tried_by_the_next_sweep() {
    let policy = RepairPolicy { retry: Some(0), ..RepairPolicy::default() };
    let mut fixture = Fixture::clean(&[NewRow { policy, ..NewRow::default() }]);
    fixture.event(0);
    assert_eq!(fixture.start(), [0]);
    assert_eq!(fixture.end(0, FAILED), Some(Notice::Parked { key: 0, failures: 1 }));
    assert_eq!((fixture.next_millis(), fixture.catalog.counts().parked), (None, 1));
    fixture.catalog.sweep(fixture.now);
    assert_eq!(fixture.run(|_| Outcome::Stable), [0]);
    assert_eq!(fixture.catalog.counts().clean, 1);
}

#[test]
fn an_overflow_makes_everything_due_but_not_at_once_again() {
    let mut fixture = Fixture::clean(&rows(3));
    fixture.catalog.overflow(fixture.now);
    assert_eq!(fixture.run(|_| Outcome::Stable), [0, 1, 2]);
    fixture.catalog.overflow(fixture.now);
    assert_eq!((fixture.start(), fixture.next_millis()), (vec![], Some(1000)));
    fixture.wait(1000);
    assert_eq!(fixture.start(), [0, 1, 2]);
}

#[test]
fn a_fight_backs_off_and_is_reported_once_in_each_direction() {
    let mut fixture = Fixture::clean(&rows(1));
    let (mut notices, mut checks) = (Vec::new(), 0);
    let until = fixture.now + Duration::from_secs(600);
    while fixture.now < until {
        fixture.event(0);
        for _ in fixture.start() {
            checks += 1;
            notices.extend(fixture.end(0, REPAIRED));
        }
        fixture.wait(10);
    }
    assert!(matches!(notices.as_slice(), [Notice::FlappingBegan { key: 0, repairs: 5, .. }]), "{notices:?}");
    assert!((10..=16).contains(&checks), "{checks} checks in 10 minutes");
    assert_eq!(fixture.catalog.counts(), StateCounts { flapping: 1, ..StateCounts::default() });
    while let Some(at) = fixture.catalog.next_at() {
        fixture.now = at;
        for _ in fixture.start() {
            notices.extend(fixture.end(0, Outcome::Stable));
        }
    }
    assert!(matches!(notices.as_slice(), [_, Notice::FlappingEnded { key: 0, .. }]), "{notices:?}");
    assert_eq!(fixture.catalog.counts(), StateCounts { clean: 1, ..StateCounts::default() });
}

/// A resource with its policy, its first outcome, its outcome after each further event, and the number of repairs that are flapping.
type Fight = (RepairPolicy, Outcome, &'static [Outcome], Option<u32>);

#[test]
fn repairs_that_are_undone_before_their_verification_are_a_fight() {
    const UNDONE: Outcome = Outcome::Failed { changed: false, undone: true };
    let few_tries = RepairPolicy { retry: Some(2), ..RepairPolicy::default() };
    let cases: &[Fight] = &[
        (RepairPolicy::default(), Outcome::Stable, &[UNDONE; 5], Some(5)),
        (RepairPolicy::default(), Outcome::Stable, &[UNDONE, REPAIRED, UNDONE, REPAIRED, UNDONE], Some(5)),
        (RepairPolicy::default(), Outcome::Stable, &[UNDONE, REPAIRED, FAILED, REPAIRED, UNDONE], None),
        (RepairPolicy::default(), Outcome::Stable, &[FAILED; 8], None),
        // It never was as wanted: the failure may be its own.
        (RepairPolicy::default(), UNDONE, &[UNDONE; 8], None),
        // The end of the tries is reported instead of the third one.
        (few_tries, Outcome::Stable, &[UNDONE; 5], None),
        (few_tries, Outcome::Stable, &[UNDONE; 6], Some(5)),
    ];
    for (number, (policy, first, outcomes, wanted)) in cases.iter().enumerate() {
        let mut fixture = Fixture::new(&[NewRow { policy: *policy, ..NewRow::default() }]);
        fixture.arm_all();
        fixture.run(|_| *first);
        let mut found = None;
        for outcome in *outcomes {
            fixture.wait(10);
            fixture.event(0);
            if let Some(at) = fixture.catalog.next_at() {
                fixture.now = fixture.now.max(at);
            }
            assert_eq!(fixture.start(), [0], "case {number}");
            if let Some(Notice::FlappingBegan { repairs, .. }) = fixture.end(0, *outcome) {
                found = Some(repairs);
            }
        }
        assert_eq!(found, *wanted, "case {number}");
    }
}

#[test]
fn a_swap_checks_only_new_resources() {
    let mut fixture = Fixture::clean(&rows(4));
    fixture.event(0);
    fixture.event(3);
    assert_eq!(fixture.swap(&[Some(1), None, Some(0)]), [1, 4, 0]);
    assert_eq!(fixture.start(), [0], "the event of a kept resource stays, that of a dropped one goes");
    fixture.catalog.armed(4, fixture.now);
    assert_eq!(fixture.start(), [4]);
    assert_eq!([2, 3].map(|key| fixture.catalog.state(key)), [None, None]);
}

#[test]
fn a_swap_waits_for_no_running_check() {
    let mut fixture = Fixture::clean(&pair());
    fixture.event(0);
    fixture.event(1);
    assert_eq!(fixture.start(), [0, 1]);
    fixture.event(0);
    assert_eq!(fixture.swap(&[None, Some(0)]), [2, 0]);
    assert_eq!(fixture.end(1, FAILED), None);
    assert_eq!(fixture.catalog.counts(), StateCounts { awaiting_watch: 1, running: 1, ..StateCounts::default() });
    fixture.end(0, REPAIRED);
    assert_eq!(fixture.next_millis(), Some(20), "the event during the check is kept");
}

#[test]
fn a_swap_keeps_failures_and_flapping() {
    let mut fixture = Fixture::clean(&[pair(), rows(1)].concat());
    fixture.event(0);
    assert_eq!(fixture.run(|_| REPAIRED), [0]);
    assert_eq!(fixture.run(|_| FAILED), [1]);
    for _ in 0..5 {
        fixture.wait(20);
        fixture.event(2);
        assert_eq!(fixture.run(|_| REPAIRED), [2]);
    }
    let (before, next) = ([1, 2].map(|key| fixture.catalog.state(key)), fixture.next_millis());
    fixture.swap(&[Some(2), Some(1)]);
    assert_eq!([1, 2].map(|key| fixture.catalog.state(key)), before);
    assert_eq!(fixture.catalog.counts(), StateCounts { failed: 1, flapping: 1, ..StateCounts::default() });
    assert_eq!(fixture.next_millis(), next);
}

#[test]
fn a_swap_takes_the_new_policy_and_edges() {
    let mut fixture = Fixture::clean(&rows(2));
    let poll = RepairPolicy { poll: Some(Duration::from_secs(60)), ..RepairPolicy::default() };
    let (first, second) = (NewRow { same_as: Some(1), policy: poll, ..NewRow::default() }, Some(0));
    fixture.catalog.swap(&[first, NewRow { same_as: second, subscribes: vec![0], ..NewRow::default() }], fixture.now);
    assert_eq!(fixture.next_millis(), Some(50_000), "the last check was 10 s ago");
    fixture.event(1);
    assert_eq!(fixture.run(|_| REPAIRED), [1]);
    assert_eq!(fixture.run(|_| Outcome::Stable), [0]);
}

#[test]
fn convergence_toggles_in_both_directions() {
    let mut fixture = Fixture::new(&rows(2));
    let mut convergence = ConvergenceMonitor::new(Duration::from_secs(5));
    let mut observe = |fixture: &Fixture| convergence.observe(fixture.catalog.activity(), fixture.now);
    assert_eq!(fixture.catalog.activity(), CatalogActivity::Unsettled);
    fixture.arm_all();
    assert_eq!(fixture.catalog.activity(), CatalogActivity::Busy);
    fixture.run(|key| if key == 0 { Outcome::Stable } else { Outcome::WouldChange { digest: 1 } });
    assert_eq!(observe(&fixture), None);
    fixture.wait(5000);
    assert_eq!(observe(&fixture), Some(Notice::Converged { would_change: 1 }));
    fixture.catalog.sweep(fixture.now);
    assert_eq!(observe(&fixture), None);
    fixture.run(|key| if key == 0 { Outcome::Stable } else { Outcome::WouldChange { digest: 1 } });
    assert_eq!(observe(&fixture), None, "stable checks end no convergence");
    fixture.wait(1000);
    fixture.event(0);
    assert_eq!(fixture.run(|_| REPAIRED), [0]);
    assert_eq!(observe(&fixture), Some(Notice::Diverged));
    fixture.wait(5000);
    assert_eq!(observe(&fixture), Some(Notice::Converged { would_change: 1 }));
    fixture.event(0);
    assert_eq!(fixture.run(|_| FAILED), [0]);
    assert_eq!(observe(&fixture), Some(Notice::Diverged), "a failed resource is not converged");
    fixture.wait(1000);
    assert_eq!(fixture.run(|_| Outcome::Stable), [0]);
    assert_eq!(observe(&fixture), None);
    fixture.wait(5000);
    assert_eq!(observe(&fixture), Some(Notice::Converged { would_change: 1 }));
    fixture.swap(&[Some(0), Some(1), None]);
    assert_eq!(observe(&fixture), Some(Notice::Diverged), "a new resource is not converged");
}

#[test]
fn a_row_takes_at_most_two_hundred_bytes() {
    let agenda = size_of::<(Instant, u32)>();
    assert!(size_of::<Row>() + size_of::<u32>() + agenda <= 200, "{} bytes", size_of::<Row>());
}
