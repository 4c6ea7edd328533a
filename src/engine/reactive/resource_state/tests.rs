//! The table of transitions of one resource.

use std::time::Duration;

use super::super::event::Notice;
use super::ResourceEvent as E;
use super::ResourceState as S;
use super::*;

const FAILED: Outcome = Outcome::Failed { changed: false, undone: false };

/// A resource with a history, and moments in milliseconds after the start of the test.
struct Fixture {
    start: Instant,
    history: RepairHistory,
    policy: RepairPolicy,
}

impl Fixture {
    fn new(policy: RepairPolicy) -> Self {
        Self { start: Instant::now(), history: RepairHistory::default(), policy }
    }

    fn at(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    /// Lets a check end.
    fn ended(&mut self, outcome: Outcome, millis: u64) -> Option<Notice> {
        let at = self.at(millis);
        self.history.ended(7, outcome, &self.policy, at)
    }

    fn reason(&self, cause: DirtyCause, since: u64) -> CheckReason {
        CheckReason { cause, since: self.at(since) }
    }

    fn dirty(&self, at: u64, cause: DirtyCause, since: u64) -> S {
        S::Dirty { at: self.at(at), reason: self.reason(cause, since) }
    }

    fn retry(&self, at: u64, since: u64) -> S {
        S::AwaitingRetry { at: self.at(at), since: self.at(since) }
    }

    fn running(&self, dirty_again: Option<CheckReason>) -> S {
        S::Running { reason: self.reason(DirtyCause::Event, 90), dirty_again, requirement_met: false }
    }

    fn step(&self, state: S, event: E, now: u64) -> S {
        step(state, event, &self.history, &self.policy, self.at(now))
    }
}

/// All states, after a stable check at 100 ms; times of the states are 500 ms and earlier.
fn states(fixture: &Fixture) -> Vec<S> {
    vec![
        S::AwaitingWatch,
        S::Clean,
        S::WouldChange,
        fixture.dirty(500, DirtyCause::Event, 90),
        fixture.running(None),
        fixture.retry(500, 90),
        S::Parked,
        S::Blocked,
        S::Flapping { until: fixture.at(500) },
    ]
}

/// Every state and every event: the quiet fixture had its last check at 100 ms, the events come at 110 ms and at 200 ms.
#[test]
fn every_state_and_event_has_its_successor() {
    let mut fixture = Fixture::new(RepairPolicy::default());
    fixture.ended(Outcome::Stable, 100);
    let f = &fixture;
    let same = || states(f);
    let event = |at| E::Dirtied(f.reason(DirtyCause::Event, at));
    let again = |cause, since| f.running(Some(f.reason(cause, since)));
    let met = S::Running { reason: f.reason(DirtyCause::Event, 90), dirty_again: None, requirement_met: true };
    let started = |cause, since| S::Running { reason: f.reason(cause, since), dirty_again: None, requirement_met: false };
    // A row has the event, its time, and the successors of the states in the order of `states`.
    let rows: Vec<(E, u64, Vec<S>)> = vec![
        (E::Armed, 110, {
            let mut next = same();
            next[0] = f.dirty(110, DirtyCause::FirstCheck, 110);
            next
        }),
        (event(110), 110, {
            let waits = f.dirty(120, DirtyCause::Event, 110);
            let merged = f.dirty(120, DirtyCause::Event, 90);
            vec![
                S::AwaitingWatch,
                waits,
                waits,
                merged,
                again(DirtyCause::Event, 110),
                f.retry(120, 90),
                f.retry(120, 110),
                waits,
                waits,
            ]
        }),
        (event(200), 200, {
            let now = f.dirty(200, DirtyCause::Event, 200);
            let merged = f.dirty(200, DirtyCause::Event, 90);
            vec![S::AwaitingWatch, now, now, merged, again(DirtyCause::Event, 200), f.retry(200, 90), f.retry(200, 200), now, now]
        }),
        (E::Dirtied(f.reason(DirtyCause::Overflow, 200)), 200, {
            let waits = f.dirty(1100, DirtyCause::Overflow, 200);
            let merged = f.dirty(500, DirtyCause::Event, 90);
            vec![
                S::AwaitingWatch,
                waits,
                waits,
                merged,
                again(DirtyCause::Overflow, 200),
                f.retry(500, 90),
                f.retry(1100, 200),
                waits,
                waits,
            ]
        }),
        (E::Dirtied(f.reason(DirtyCause::Sweep, 110)), 110, {
            let now = f.dirty(110, DirtyCause::Sweep, 110);
            let merged = f.dirty(110, DirtyCause::Sweep, 90);
            vec![S::AwaitingWatch, now, now, merged, again(DirtyCause::Sweep, 110), merged, now, now, now]
        }),
        (E::Dirtied(f.reason(DirtyCause::Refresh, 110)), 110, {
            let now = f.dirty(110, DirtyCause::Refresh, 110);
            let merged = f.dirty(110, DirtyCause::Refresh, 90);
            vec![S::AwaitingWatch, now, now, merged, again(DirtyCause::Refresh, 110), merged, now, now, now]
        }),
        (E::RequirementMet, 110, {
            let mut next = same();
            next[4] = met;
            next[7] = f.dirty(110, DirtyCause::RequirementMet, 110);
            next
        }),
        (E::Started, 200, {
            let poll = started(DirtyCause::Poll, 200);
            let event = started(DirtyCause::Event, 90);
            vec![S::AwaitingWatch, poll, poll, event, event, started(DirtyCause::Retry, 90), poll, poll, poll]
        }),
        (E::Began, 200, same()),
        (E::Ended(Outcome::Stable), 200, {
            let mut next = same();
            next[4] = S::Clean;
            next
        }),
        (E::Ended(Outcome::Changed { corrective: true }), 200, {
            let mut next = same();
            next[4] = S::Clean;
            next
        }),
        (E::Ended(Outcome::Skipped), 200, {
            let mut next = same();
            next[4] = S::Clean;
            next
        }),
        (E::Ended(Outcome::WouldChange { digest: 1 }), 200, {
            let mut next = same();
            next[4] = S::WouldChange;
            next
        }),
        (E::Ended(Outcome::Unmet), 200, {
            let mut next = same();
            next[4] = S::Blocked;
            next
        }),
    ];
    for (event, now, next) in rows {
        for (state, next) in states(f).into_iter().zip(next) {
            assert_eq!(f.step(state, event, now), next, "{state:?}, {event:?}");
        }
    }
}

/// The end of a check of which the history knows a failure, or an earlier event.
#[test]
fn the_end_of_a_check_leads_to_the_next_wait() {
    let again = |f: &Fixture, cause| f.running(Some(f.reason(cause, 95)));
    let policy = |retry| RepairPolicy { retry, ..RepairPolicy::default() };
    type Successor = fn(&Fixture) -> S;
    let rows: Vec<(Option<u32>, Outcome, Option<DirtyCause>, Successor)> = vec![
        (None, Outcome::Stable, Some(DirtyCause::Event), |f| f.dirty(120, DirtyCause::Event, 95)),
        (None, Outcome::Changed { corrective: true }, Some(DirtyCause::Event), |f| f.dirty(120, DirtyCause::Event, 95)),
        (None, Outcome::Changed { corrective: true }, Some(DirtyCause::Refresh), |f| f.dirty(100, DirtyCause::Refresh, 95)),
        (None, Outcome::WouldChange { digest: 1 }, Some(DirtyCause::Event), |f| f.dirty(120, DirtyCause::Event, 95)),
        (None, Outcome::Unmet, Some(DirtyCause::Event), |f| f.dirty(120, DirtyCause::Event, 95)),
        (None, FAILED, None, |f| f.retry(1100, 90)),
        (None, FAILED, Some(DirtyCause::Event), |f| f.retry(1100, 90)),
        (None, FAILED, Some(DirtyCause::Sweep), |f| f.dirty(100, DirtyCause::Sweep, 90)),
        (Some(1), FAILED, None, |f| f.retry(1100, 90)),
        (Some(0), FAILED, None, |_| S::Parked),
        (Some(0), FAILED, Some(DirtyCause::Event), |f| f.retry(1100, 95)),
        (Some(0), FAILED, Some(DirtyCause::Refresh), |f| f.dirty(100, DirtyCause::Refresh, 95)),
    ];
    for (retry, outcome, cause, next) in rows {
        let mut fixture = Fixture::new(policy(retry));
        fixture.ended(outcome, 100);
        let state = cause.map_or_else(|| fixture.running(None), |cause| again(&fixture, cause));
        assert_eq!(fixture.step(state, E::Ended(outcome), 100), next(&fixture), "{retry:?} {outcome:?} {cause:?}");
    }
}

#[test]
fn an_unmet_requirement_that_succeeds_during_the_check_causes_one_more() {
    let mut fixture = Fixture::new(RepairPolicy::default());
    let state = fixture.step(fixture.running(None), E::RequirementMet, 95);
    fixture.ended(Outcome::Unmet, 100);
    assert_eq!(fixture.step(state, E::Ended(Outcome::Unmet), 100), fixture.dirty(100, DirtyCause::RequirementMet, 100));
    let state = fixture.step(state, E::Began, 97);
    assert_eq!(fixture.step(state, E::Ended(Outcome::Unmet), 100), S::Blocked, "the check saw the success");
}

#[test]
fn a_check_that_begins_late_covers_the_events_before() {
    let fixture = Fixture::new(RepairPolicy::default());
    let state = fixture.step(fixture.running(Some(fixture.reason(DirtyCause::Refresh, 95))), E::Began, 97);
    assert_eq!(state, fixture.running(None));
}

#[test]
fn retries_double_their_pause_until_the_tries_are_used_up() {
    let mut fixture = Fixture::new(RepairPolicy { retry: Some(2), ..RepairPolicy::default() });
    let failed = |f: &mut Fixture, millis| {
        let notice = f.ended(FAILED, millis);
        (f.step(f.running(None), E::Ended(FAILED), millis), notice)
    };
    assert_eq!(failed(&mut fixture, 0), (fixture.retry(1000, 90), None));
    assert_eq!(failed(&mut fixture, 1000), (fixture.retry(3000, 90), None));
    assert_eq!(failed(&mut fixture, 3000), (S::Parked, Some(Notice::Parked { key: 7, failures: 3 })));
    assert_eq!(failed(&mut fixture, 9000), (S::Parked, None), "the try of a sweep is reported once");
    let event = E::Dirtied(fixture.reason(DirtyCause::Event, 9001));
    assert_eq!(fixture.step(S::Parked, event, 9001), fixture.retry(17_000, 9001), "an event waits for the pause");
    fixture.ended(Outcome::Stable, 17_000);
    assert_eq!(failed(&mut fixture, 20_000), (fixture.retry(21_000, 90), None), "a success refills the tries");
}

#[test]
fn without_a_reset_the_tries_are_for_good() {
    let mut fixture = Fixture::new(RepairPolicy { retry: Some(1), retry_reset: false, ..RepairPolicy::default() });
    assert_eq!(fixture.ended(FAILED, 0), None);
    assert_eq!(fixture.ended(Outcome::Stable, 1000), None);
    assert_eq!(fixture.ended(FAILED, 2000), Some(Notice::Parked { key: 7, failures: 1 }));
}

#[test]
fn an_event_shortens_a_long_pause_after_a_failure() {
    let mut fixture = Fixture::new(RepairPolicy::default());
    for _ in 0..10 {
        fixture.ended(FAILED, 0);
    }
    let state = fixture.step(fixture.running(None), E::Ended(FAILED), 0);
    assert_eq!(state, fixture.retry(512_000, 90));
    let event = |at| E::Dirtied(fixture.reason(DirtyCause::Event, at));
    assert_eq!(fixture.step(state, event(10), 10), fixture.retry(30_000, 90), "no spin over own writes");
    assert_eq!(fixture.step(state, event(40_000), 40_000), fixture.retry(40_000, 90));
}

#[test]
fn a_flapping_resource_waits_for_its_pause_and_ends_after_its_quiet_period() {
    let mut fixture = Fixture::new(RepairPolicy::default());
    let repaired = Outcome::Changed { corrective: true };
    for millis in [0, 100, 200, 300] {
        assert_eq!(fixture.ended(repaired, millis), None);
    }
    let span = Duration::from_millis(400);
    assert_eq!(fixture.ended(repaired, 400), Some(Notice::FlappingBegan { key: 7, repairs: 5, span }));
    let flapping = fixture.step(fixture.running(None), E::Ended(repaired), 400);
    assert_eq!(flapping, S::Flapping { until: fixture.at(60_400) });
    let event = E::Dirtied(fixture.reason(DirtyCause::Event, 500));
    assert_eq!(fixture.step(flapping, event, 500), fixture.dirty(1400, DirtyCause::Event, 500), "the pause is 1 s");
    assert_eq!(fixture.ended(repaired, 1400), None, "reported once");
    let event = E::Dirtied(fixture.reason(DirtyCause::Event, 1500));
    assert_eq!(fixture.step(flapping, event, 1500), fixture.dirty(3400, DirtyCause::Event, 1500), "the pause is 2 s");
    assert_eq!(fixture.ended(Outcome::Stable, 3400), None);
    assert_eq!(fixture.step(fixture.running(None), E::Ended(Outcome::Stable), 3400), S::Flapping { until: fixture.at(61_400) });
    assert_eq!(flapping.reason(fixture.at(60_400)).map(|reason| reason.cause), Some(DirtyCause::QuietPeriod));
    let span = Duration::from_millis(61_400);
    assert_eq!(fixture.ended(Outcome::Stable, 61_400), Some(Notice::FlappingEnded { key: 7, repairs: 6, span }));
    assert_eq!(fixture.step(fixture.running(None), E::Ended(Outcome::Stable), 61_400), S::Clean);
}

#[test]
fn a_change_that_repairs_no_drift_is_not_flapping() {
    let mut fixture = Fixture::new(RepairPolicy::default());
    for millis in 0..20 {
        assert_eq!(fixture.ended(Outcome::Changed { corrective: false }, millis), None);
    }
}

#[test]
fn a_wanted_change_is_reported_once_per_state() {
    let mut fixture = Fixture::new(RepairPolicy::default());
    let report = Some(Notice::WouldChange { key: 7 });
    let wanted = |digest| Outcome::WouldChange { digest };
    let rows = [(wanted(1), report), (wanted(1), None), (wanted(2), report), (FAILED, None), (wanted(2), None)];
    for (outcome, notice) in rows.into_iter().chain([(Outcome::Stable, None), (wanted(2), report)]) {
        assert_eq!(fixture.ended(outcome, 0), notice, "{outcome:?}");
    }
}

#[test]
fn the_limit_counts_checks_that_events_cause() {
    use super::super::policy::CheckLimit;
    let limit = Some(CheckLimit { per_second: 0.5, burst: 1 });
    let mut fixture = Fixture::new(RepairPolicy { limit, ..RepairPolicy::default() });
    fixture.ended(Outcome::Stable, 0);
    let event = |f: &Fixture, at| f.step(S::Clean, E::Dirtied(f.reason(DirtyCause::Event, at)), at);
    assert_eq!(event(&fixture, 100), fixture.dirty(100, DirtyCause::Event, 100));
    let (start, policy) = (fixture.at(100), fixture.policy);
    fixture.history.started(DirtyCause::Sweep, &policy, start);
    assert_eq!(event(&fixture, 100), fixture.dirty(100, DirtyCause::Event, 100), "a sweep needs no token");
    fixture.history.started(DirtyCause::Event, &policy, start);
    assert_eq!(event(&fixture, 600), fixture.dirty(2100, DirtyCause::Event, 600));
    assert_eq!(event(&fixture, 1600), fixture.dirty(2100, DirtyCause::Event, 1600), "waiting events take no tokens");
}

#[test]
fn a_poll_follows_the_end_of_the_last_check() {
    let poll = Some(Duration::from_secs(5));
    let mut fixture = Fixture::new(RepairPolicy { poll, ..RepairPolicy::default() });
    fixture.ended(Outcome::Stable, 100);
    let due = |state: S| state.due_at(&fixture.history, &fixture.policy);
    for state in [S::Clean, S::WouldChange, S::Parked, S::Blocked, S::Flapping { until: fixture.at(60_000) }] {
        assert_eq!(due(state), Some(fixture.at(5100)), "{state:?}");
    }
    assert_eq!(due(S::AwaitingWatch), None);
    assert_eq!(due(fixture.running(None)), None);
    assert_eq!(due(S::Flapping { until: fixture.at(4000) }), Some(fixture.at(4000)));
    assert_eq!(due(fixture.dirty(120, DirtyCause::Event, 100)), Some(fixture.at(120)));
    assert_eq!(S::Clean.due_at(&fixture.history, &RepairPolicy::default()), None, "idle waits for no time");
}
