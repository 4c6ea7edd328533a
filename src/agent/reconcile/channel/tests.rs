//! The table of transitions of a channel.

use super::ChannelState as S;
use super::*;

/// A moment, seconds after the start of the test.
struct Clock(Instant);

impl Clock {
    fn at(&self, seconds: u64) -> Instant {
        self.0 + Duration::from_secs(seconds)
    }

    fn timers(&self, run: u64, health: u64) -> Timers {
        Timers { run_at: self.at(run), health_at: Some(self.at(health)) }
    }

    /// A channel of this node: the latest assignment runs at 600 and is checked at 60, an earlier one at 700 and 70.
    fn view(&self) -> ChannelView {
        ChannelView {
            targets_node: true,
            has_filter: false,
            has_waves: false,
            result_pending: true,
            next_timers: self.timers(600, 60),
            good_timers: Some(self.timers(700, 70)),
            gate_interval: Duration::from_secs(5),
            is_gate_only: false,
            may_revert: false,
            is_reverted: false,
            previous_timers: None,
        }
    }
}

fn boxed(state: &S) -> Box<S> {
    Box::new(state.clone())
}

fn check(from: &S, event: ChannelEvent, view: &ChannelView, now: Instant, to: &S, effects: &[ChannelEffect]) {
    let name = format!("{from:?} {event:?}");
    let step = step(from.clone(), event, view, now);
    assert_eq!((&step.state, step.effects.as_slice()), (to, effects), "{name}");
}

/// The way of a new assignment to its run, with each answer of the filter and of the gate.
#[test]
fn a_new_assignment_is_filtered_gated_and_run() {
    let clock = Clock(Instant::now());
    let (view, now) = (clock.view(), clock.at(0));
    let first = S::AwaitingFirstRun { run_at: now };
    let filter = S::AwaitingFilter { work: ChannelWork::Latest, resume: boxed(&first) };
    let gate = S::AwaitingGate { resume: boxed(&first) };
    let run = S::AwaitingRun { resume: boxed(&first) };
    let (filtered, waves) = (ChannelView { has_filter: true, ..view }, ChannelView { has_waves: true, ..view });
    let good = Some(Timers { run_at: now, ..clock.timers(700, 70) });
    let wait = |seconds, why: Option<&str>| S::AwaitingTurn { ask_at: clock.at(seconds), good, why: why.map(str::to_owned) };
    let due = || ChannelEvent::Due(ChannelWork::Latest);
    let turn = |turn| ChannelEvent::GateAnswered(turn);
    for (from, event, view, to, effects) in [
        (&first, due(), view, &run, vec![ChannelEffect::RunLatest]),
        (&first, due(), filtered, &filter, vec![ChannelEffect::EvaluateFilter]),
        (&first, due(), waves, &gate, vec![ChannelEffect::AskGate]),
        (&filter, ChannelEvent::FilterEvaluated(Ok(true)), filtered, &run, vec![ChannelEffect::RunLatest]),
        (
            &filter,
            ChannelEvent::FilterEvaluated(Ok(true)),
            ChannelView { has_waves: true, ..filtered },
            &gate,
            vec![ChannelEffect::AskGate],
        ),
        (
            &filter,
            ChannelEvent::FilterEvaluated(Ok(false)),
            filtered,
            &S::NotSelected(view.next_timers),
            vec![ChannelEffect::Publish(AssignmentReport::NotSelected)],
        ),
        (
            &filter,
            ChannelEvent::FilterEvaluated(Err("no fact".into())),
            filtered,
            &S::Undecided {
                timers: clock.timers(30, 60),
                why: "cannot evaluate the filter (`where`) of the assignment: no fact".into(),
            },
            vec![ChannelEffect::Publish(AssignmentReport::BadFilter("no fact".into()))],
        ),
        (&gate, turn(RolloutTurn::Begin), waves, &run, vec![ChannelEffect::RunLatest]),
        (&gate, turn(RolloutTurn::Wait("wave 1".into())), waves, &wait(5, None), vec![]),
        (
            &gate,
            turn(RolloutTurn::Halted("halted by ops".into())),
            waves,
            &wait(30, Some("the new assignment is halted by ops")),
            vec![],
        ),
        (
            &gate,
            turn(RolloutTurn::Unknown("no stream".into())),
            waves,
            &wait(30, Some("cannot ask whether the new assignment may begin: no stream")),
            vec![],
        ),
        (
            &gate,
            turn(RolloutTurn::Ended("3 failed".into())),
            waves,
            &S::Stopped { ask_at: clock.at(3600), good, why: "the new assignment was not begun: 3 failed".into() },
            vec![ChannelEffect::Publish(AssignmentReport::Halted("3 failed".into()))],
        ),
    ] {
        check(from, event, &view, now, to, &effects);
    }
}

/// The end of a run: in force, or degraded with the last good assignment active.
#[test]
fn a_run_leads_into_force_or_back_to_the_last_good_assignment() {
    let clock = Clock(Instant::now());
    let (view, now) = (clock.view(), clock.at(0));
    let run = S::AwaitingRun { resume: boxed(&S::AwaitingFirstRun { run_at: now }) };
    let in_force = S::InForce(view.next_timers);
    let planned = |health| ChannelEvent::RunEnded(ChannelRunEnd::Planned(health));
    check(&run, planned(None), &view, now, &in_force, &[ChannelEffect::Promote, ChannelEffect::Publish(AssignmentReport::Run)]);
    let again = ChannelView { result_pending: false, ..view };
    let critical = Some(HealthStatus::Critical);
    let effects = [ChannelEffect::Promote, ChannelEffect::ReportHealth(critical), ChannelEffect::Publish(AssignmentReport::Run)];
    check(&run, planned(critical), &again, now, &in_force, &effects);

    let failed = || ChannelEvent::RunEnded(ChannelRunEnd::NotPlanned("not found".into()));
    let degraded = |why: &str| S::Degraded { timers: clock.timers(30, 60), why: why.into() };
    let kept = degraded("cannot apply the new assignment: not found; the previous one stays active");
    let last_good = S::AwaitingLastGoodRun { resume: boxed(&kept) };
    check(&run, failed(), &view, now, &last_good, &[ChannelEffect::Publish(AssignmentReport::Run), ChannelEffect::RunLastGood]);
    check(&last_good, planned(None), &view, now, &kept, &[]);
    let alone = ChannelView { good_timers: None, ..view };
    let alarm = degraded("cannot apply the new assignment: not found");
    check(&run, failed(), &alone, now, &alarm, &[ChannelEffect::Publish(AssignmentReport::Run)]);
    assert_eq!(kept.alarm(), Some("cannot apply the new assignment: not found; the previous one stays active"));
    assert_eq!(last_good.alarm(), kept.alarm(), "also while the last good one runs");
    // Half an hour later the attempt is repeated.
    check(
        &kept,
        ChannelEvent::Due(ChannelWork::Latest),
        &view,
        now,
        &S::AwaitingRun { resume: boxed(&kept) },
        &[ChannelEffect::RunLatest],
    );
}

/// While a new assignment waits for its wave, runs and health checks of the last good one go on.
#[test]
fn the_last_good_assignment_stays_active_while_the_new_one_waits() {
    let clock = Clock(Instant::now());
    let view = ChannelView { has_waves: true, ..clock.view() };
    let now = clock.at(10);
    let waiting = |run, health| S::AwaitingTurn { ask_at: clock.at(300), good: Some(clock.timers(run, health)), why: None };
    let state = waiting(10, 20);
    assert_eq!(state.due(None), Some((clock.at(10), ChannelWork::LastGood)));
    assert_eq!(waiting(700, 20).due(None), Some((clock.at(20), ChannelWork::HealthCheck)));
    assert_eq!(waiting(700, 800).due(None), Some((clock.at(300), ChannelWork::Latest)));
    let running = S::AwaitingLastGoodRun { resume: boxed(&state) };
    check(&state, ChannelEvent::Due(ChannelWork::LastGood), &view, now, &running, &[ChannelEffect::RunLastGood]);
    check(&running, ChannelEvent::RunEnded(ChannelRunEnd::Planned(None)), &view, now, &waiting(700, 70), &[]);
    let checking = S::AwaitingHealth { resume: boxed(&state) };
    check(&state, ChannelEvent::Due(ChannelWork::HealthCheck), &view, now, &checking, &[ChannelEffect::CheckHealth]);
    let effects = |health| [ChannelEffect::ReportHealth(health), ChannelEffect::CompleteHealthGate(health)];
    let (ok, critical) = (Some(HealthStatus::Ok), Some(HealthStatus::Critical));
    check(&checking, ChannelEvent::HealthChecked(ok), &view, now, &waiting(10, 70), &effects(ok));
    // A critical check brings the run of the last good assignment forward.
    let late = S::AwaitingHealth { resume: boxed(&waiting(700, 20)) };
    check(&late, ChannelEvent::HealthChecked(critical), &view, now, &waiting(10, 70), &effects(critical));
    // The gate is asked again, and the times of the last good assignment stay.
    let asking = S::AwaitingGate { resume: boxed(&waiting(700, 20)) };
    check(&waiting(700, 20), ChannelEvent::Due(ChannelWork::Latest), &view, now, &asking, &[ChannelEffect::AskGate]);
    let again = S::AwaitingTurn { ask_at: clock.at(15), good: Some(clock.timers(700, 20)), why: None };
    check(&asking, ChannelEvent::GateAnswered(RolloutTurn::Wait(String::new())), &view, now, &again, &[]);
    let stopped = S::Stopped { ask_at: clock.at(300), good: Some(clock.timers(700, 20)), why: "over".into() };
    assert_eq!(stopped.due(None), Some((clock.at(20), ChannelWork::HealthCheck)));
}

/// Drift is repaired where an assignment is in force: the latest one, or an earlier one while the latest waits.
#[test]
fn drift_of_the_assignment_in_force_is_repaired() {
    let clock = Clock(Instant::now());
    let (view, now) = (clock.view(), clock.at(40));
    let (alone, filtered) = (ChannelView { good_timers: None, ..view }, ChannelView { has_filter: true, ..view });
    let waves = ChannelView { has_waves: true, ..view };
    let good = Some(clock.timers(700, 70));
    let in_force = S::InForce(clock.timers(500, 60));
    let first = S::AwaitingFirstRun { run_at: clock.at(60) };
    let turn = S::AwaitingTurn { ask_at: clock.at(300), good, why: None };
    let degraded = S::Degraded { timers: clock.timers(60, 60), why: "not found".into() };
    let stopped = S::Stopped { ask_at: clock.at(300), good, why: "over".into() };
    for (state, view) in [(&in_force, view), (&in_force, alone), (&in_force, waves), (&first, view)].into_iter().chain([
        (&turn, waves),
        (&turn, filtered),
        (&degraded, filtered),
        (&stopped, view),
    ]) {
        let repair = S::AwaitingRepair { resume: boxed(state) };
        check(state, ChannelEvent::Drifted, &view, now, &repair, &[ChannelEffect::RunSelected]);
        // The times of the next runs stay, whatever the end of the repair.
        for end in [ChannelRunEnd::Planned(Some(HealthStatus::Critical)), ChannelRunEnd::NotPlanned("no data".into())] {
            check(&repair, ChannelEvent::RunEnded(end), &view, now, state, &[]);
        }
        assert_eq!((repair.due(None), repair.alarm()), (None, state.alarm()));
    }
    // The filter of the latest assignment decides about its repairs, too.
    let filter = S::AwaitingFilter { work: ChannelWork::Repair, resume: boxed(&in_force) };
    check(&in_force, ChannelEvent::Drifted, &filtered, now, &filter, &[ChannelEffect::EvaluateFilter]);
    let repair = S::AwaitingRepair { resume: boxed(&in_force) };
    check(&filter, ChannelEvent::FilterEvaluated(Ok(true)), &filtered, now, &repair, &[ChannelEffect::RunSelected]);
    let elsewhere = ChannelView { targets_node: false, ..view };
    let undecided = S::Undecided { timers: view.next_timers, why: "no fact".into() };
    for (state, view) in [
        (S::NotSelected(view.next_timers), view),
        (undecided, view),
        (S::Absent, view),
        (first, alone),
        (degraded, alone),
        (in_force, elsewhere),
    ] {
        check(&state, ChannelEvent::Drifted, &view, now, &state, &[]);
    }
}

/// Health checks of an assignment in force.
#[test]
fn a_critical_health_check_brings_the_next_run_forward() {
    let clock = Clock(Instant::now());
    let (view, now) = (clock.view(), clock.at(40));
    let in_force = S::InForce(clock.timers(500, 40));
    assert_eq!(in_force.due(None), Some((clock.at(40), ChannelWork::HealthCheck)));
    assert_eq!(in_force.due(Some(clock.at(5))), Some((clock.at(5), ChannelWork::HealthCheck)), "the health gate comes first");
    let checking = S::AwaitingHealth { resume: boxed(&in_force) };
    check(&in_force, ChannelEvent::Due(ChannelWork::HealthCheck), &view, now, &checking, &[ChannelEffect::CheckHealth]);
    for (health, run_at) in [(None, 500), (Some(HealthStatus::Warning), 500), (Some(HealthStatus::Critical), 40)] {
        let effects = [ChannelEffect::ReportHealth(health), ChannelEffect::CompleteHealthGate(health)];
        check(&checking, ChannelEvent::HealthChecked(health), &view, now, &S::InForce(clock.timers(run_at, 60)), &effects);
    }
    let gate_only = ChannelView { is_gate_only: true, ..view };
    let after = S::InForce(clock.timers(500, 60));
    check(
        &in_force,
        ChannelEvent::Due(ChannelWork::HealthCheck),
        &gate_only,
        now,
        &after,
        &[ChannelEffect::CompleteHealthGate(None)],
    );
}

/// A withdrawn assignment, one for other nodes, and the way back.
#[test]
fn an_assignment_for_other_nodes_is_absent_until_it_names_this_one() {
    let clock = Clock(Instant::now());
    let (here, now) = (clock.view(), clock.at(0));
    let elsewhere = ChannelView { targets_node: false, ..here };
    let gone = [ChannelEffect::Forget, ChannelEffect::Publish(AssignmentReport::Stable)];
    for state in [S::AwaitingFirstRun { run_at: now }, S::InForce(here.next_timers), S::NotSelected(here.next_timers)] {
        check(&state, ChannelEvent::Due(ChannelWork::Latest), &elsewhere, now, &S::Absent, &gone);
    }
    assert_eq!(S::Absent.due(None), None);
    check(&S::Absent, ChannelEvent::Due(ChannelWork::Latest), &elsewhere, now, &S::Absent, &[]);
    let run = S::AwaitingRun { resume: boxed(&S::AwaitingFirstRun { run_at: now }) };
    check(&S::Absent, ChannelEvent::Due(ChannelWork::Latest), &here, now, &run, &[ChannelEffect::RunLatest]);
}

/// Events that a state does not wait for, and the stop of the agent.
#[test]
fn work_in_progress_is_not_begun_twice_and_a_stop_forgets_it() {
    let clock = Clock(Instant::now());
    let (view, now) = (clock.view(), clock.at(0));
    let rest = S::InForce(view.next_timers);
    let resume = boxed(&rest);
    let busy = [
        S::AwaitingFilter { work: ChannelWork::Latest, resume: resume.clone() },
        S::AwaitingGate { resume: resume.clone() },
        S::AwaitingRun { resume: resume.clone() },
        S::AwaitingLastGoodRun { resume: resume.clone() },
        S::AwaitingRepair { resume: resume.clone() },
        S::AwaitingHealth { resume },
    ];
    for state in &busy {
        assert_eq!(state.due(None), None, "{state:?}");
        check(state, ChannelEvent::Due(ChannelWork::Latest), &view, now, state, &[]);
        check(state, ChannelEvent::Drifted, &view, now, state, &[]);
        check(state, ChannelEvent::Interrupted, &view, now, &rest, &[]);
        assert!(state.is_selected() && state.alarm().is_none());
    }
    for event in [
        ChannelEvent::FilterEvaluated(Ok(true)),
        ChannelEvent::GateAnswered(RolloutTurn::Begin),
        ChannelEvent::RunEnded(ChannelRunEnd::Planned(None)),
        ChannelEvent::HealthChecked(None),
        ChannelEvent::Interrupted,
    ] {
        check(&rest, event, &view, now, &rest, &[]);
    }
    assert!(!S::NotSelected(view.next_timers).is_selected());
}

/// The way back: a failed run, a critical health check or a failed wave. Then the assignment before is active, for good.
#[test]
fn a_failed_rollout_leads_back_to_the_assignment_before() {
    let clock = Clock(Instant::now());
    let (plain, now) = (clock.view(), clock.at(0));
    let previous = clock.timers(700, 70);
    let first = ChannelView { may_revert: true, previous_timers: Some(previous), ..plain };
    // The latest assignment is the last good one until the node goes back.
    let later = ChannelView { good_timers: None, result_pending: false, ..first };
    let alone = ChannelView { previous_timers: None, good_timers: None, ..first };
    let kept = ChannelView { may_revert: false, ..later };
    let in_force = S::InForce(plain.next_timers);
    let run = S::AwaitingRun { resume: boxed(&S::AwaitingFirstRun { run_at: now }) };
    let repair = S::AwaitingRepair { resume: boxed(&in_force) };
    let health = S::AwaitingHealth { resume: boxed(&in_force) };
    let verdict = S::AwaitingVerdict { resume: boxed(&in_force) };
    let reverted = S::Reverted(Some(previous));
    let back = S::AwaitingLastGoodRun { resume: boxed(&reverted) };
    let failed = || ChannelEvent::RunEnded(ChannelRunEnd::Failed("file#x: no".into(), None));
    let critical = Some(HealthStatus::Critical);
    let given = ChannelEvent::VerdictGiven;
    let effects = |cause: RevertCause, runs: bool| {
        let all = [
            ChannelEffect::Revert(cause),
            ChannelEffect::Publish(AssignmentReport::Run),
            ChannelEffect::ReportRevert,
            ChannelEffect::RunLastGood,
        ];
        all.into_iter().take(if runs { 4 } else { 3 }).collect::<Vec<_>>()
    };
    let own = || RevertCause::Node("its run failed: file#x: no".into());
    let ill = || RevertCause::Node("a health check is critical".into());
    let wave = || RevertCause::Wave("2 of 2 failed".into());
    for (from, event, view, to, wanted) in [
        (&run, failed(), first, &back, effects(own(), true)),
        (&run, failed(), later, &back, effects(own(), true)),
        (&run, failed(), alone, &S::Reverted(None), effects(own(), false)),
        (&run, ChannelEvent::RunEnded(ChannelRunEnd::Planned(critical)), first, &back, effects(ill(), true)),
        (&repair, failed(), later, &back, effects(own(), true)),
        (&health, ChannelEvent::HealthChecked(critical), later, &back, effects(ill(), true)),
        (&verdict, given(WaveVerdict::Failed("2 of 2 failed".into())), later, &back, effects(wave(), true)),
        (&verdict, given(WaveVerdict::Undecided), later, &in_force, vec![]),
        (&verdict, given(WaveVerdict::Stays), later, &in_force, vec![ChannelEffect::RemovePrevious]),
        // After the hold, a failure of this node sends it back no more.
        (
            &run,
            failed(),
            kept,
            &in_force,
            vec![ChannelEffect::Promote, ChannelEffect::ReportHealth(None), ChannelEffect::Publish(AssignmentReport::Run)],
        ),
        (&repair, failed(), kept, &in_force, vec![]),
        (&in_force, ChannelEvent::Due(ChannelWork::Verdict), later, &verdict, vec![ChannelEffect::AskVerdict]),
        (&verdict, ChannelEvent::Interrupted, later, &in_force, vec![]),
    ] {
        check(from, event, &view, now, to, &wanted);
    }

    // A node that cannot plan the assignment keeps the one before anyway, and tries again.
    let not_planned = ChannelEvent::RunEnded(ChannelRunEnd::NotPlanned("not found".into()));
    assert!(
        matches!(step(run, not_planned, &first, now).state, S::AwaitingLastGoodRun { resume } if matches!(*resume, S::Degraded { .. }))
    );

    // For good: also after a restart, and without a question to the filter or the gate.
    let gone = ChannelView { is_reverted: true, has_filter: true, has_waves: true, ..plain };
    let again = S::Reverted(Some(Timers { run_at: now, ..previous }));
    let reports = [ChannelEffect::Publish(AssignmentReport::Reverted), ChannelEffect::ReportRevert];
    for from in [S::AwaitingFirstRun { run_at: now }, S::Absent] {
        check(&from, ChannelEvent::Due(ChannelWork::Latest), &gone, now, &again, &reports);
    }
    assert_eq!(reverted.due(None), Some((clock.at(70), ChannelWork::HealthCheck)));
    let good = S::AwaitingLastGoodRun { resume: boxed(&reverted) };
    check(&reverted, ChannelEvent::Due(ChannelWork::LastGood), &gone, now, &good, &[ChannelEffect::RunLastGood]);
    let checking = S::AwaitingHealth { resume: boxed(&reverted) };
    check(&reverted, ChannelEvent::Due(ChannelWork::HealthCheck), &gone, now, &checking, &[ChannelEffect::CheckHealth]);
    assert_eq!((reverted.enforced(), S::Reverted(None).due(None)), (Enforced::EarlierGood, None));
}
