use std::io::Write;

use proptest::prelude::*;

use super::*;
use crate::wire::CommandOutcome;
use crate::wire::report::RESULT;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn id(n: u8) -> Uuid {
    Uuid::from_bytes([n; 16])
}

fn accept(ledger: &mut Ledger, n: u8, channel: Option<(&str, ChannelPosition)>) {
    let (issued, expires) = (at(i64::from(n)), at(i64::from(n) + 300));
    let command = Acceptance {
        id: id(n),
        digest: &format!("d{n}"),
        issued,
        expires,
        subject: Some("s"),
        envelope: b"{}",
        channel,
        signers: &[],
    };
    ledger.record_acceptance(&command).unwrap();
}

fn done(n: u8, when: i64) -> CommandResult {
    CommandResult {
        protocol: RESULT.into(),
        id: Some(id(n)),
        digest: format!("d{n}"),
        node: "web1".parse().unwrap(),
        at: at(when),
        outcome: CommandOutcome::Stable,
        code: None,
        message: Some("x".into()),
        event: None,
        apply: None,
        failures: BTreeMap::default(),
        plan: None,
        answer: None,
        rule: None,
        signers: vec![],
    }
}

fn state(serial: u64) -> ChannelPosition {
    ChannelPosition { epoch: 1, serial, digest: "a".into() }
}

#[test]
fn accepted_commands_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::open(dir.path()).unwrap();
    accept(&mut ledger, 1, Some(("base", state(1))));
    accept(&mut ledger, 2, Some(("base", state(2))));
    accept(&mut ledger, 3, None);
    ledger.record_start(id(1)).unwrap();
    ledger.record_result(id(1), &done(1, 10)).unwrap();
    ledger.record_start(id(2)).unwrap();
    assert!(matches!(ledger.record_result(id(9), &done(9, 10)), Err(StoreError::NeverAccepted(_))));
    drop(ledger);
    let ledger = Ledger::open(dir.path()).unwrap();
    assert_eq!((ledger.accepted_digest(id(1)), ledger.accepted_digest(id(9))), (Some("d1"), None));
    assert_eq!(ledger.channel("base"), Some(&state(2)));
    assert_eq!(ledger.result(id(1)), Some(&done(1, 10)));
    assert_eq!(ledger.floor(), Some(at(3)));
    let open: Vec<_> = ledger.unfinished().into_iter().map(|open| (open.id, open.started, open.envelope)).collect();
    assert_eq!(open, [(id(2), true, b"{}".to_vec()), (id(3), false, b"{}".to_vec())]);
}

#[test]
fn the_ledger_has_one_owner() {
    let dir = tempfile::tempdir().unwrap();
    let _held = Ledger::open(dir.path()).unwrap();
    assert!(matches!(Ledger::open(dir.path()), Err(StoreError::InUse { .. })));
}

#[test]
fn an_id_is_accepted_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::open(dir.path()).unwrap();
    accept(&mut ledger, 1, None);
    let again = Acceptance {
        id: id(1),
        digest: "other",
        issued: at(0),
        expires: at(1),
        subject: None,
        envelope: b"",
        channel: Some(("base", state(9))),
        signers: &[],
    };
    assert!(matches!(ledger.record_acceptance(&again), Err(StoreError::AlreadyAccepted(_))));
    assert_eq!((ledger.accepted_digest(id(1)), ledger.channel("base")), (Some("d1"), None));
}

#[test]
fn a_torn_end_is_cut_off_and_a_damaged_middle_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let mut ledger = Ledger::open(dir.path()).unwrap();
    accept(&mut ledger, 1, None);
    drop(ledger);
    let good = std::fs::read(&path).unwrap();
    for tail in [&b"{\"started\":{\"id\""[..], b"\0\0\0\0", b"{\"sta\0\0\0\n", &good[..good.len() - 1]] {
        std::fs::write(&path, [&good, tail].concat()).unwrap();
        let mut ledger = Ledger::open(dir.path()).unwrap();
        assert!(ledger.was_truncated());
        accept(&mut ledger, 2, None);
        drop(ledger);
        let ledger = Ledger::open(dir.path()).unwrap();
        assert!(!ledger.was_truncated());
        assert_eq!((ledger.accepted_digest(id(1)), ledger.accepted_digest(id(2))), (Some("d1"), Some("d2")));
    }
    for damage in [&b"garbage\n"[..], b"\0\0\n"] {
        std::fs::write(&path, [&good, damage, &good].concat()).unwrap();
        let message = Ledger::open(dir.path()).unwrap_err().to_string();
        assert_eq!(message, format!("{}, line 2, is damaged", path.display()));
    }
}

#[test]
fn expired_commands_are_forgotten_and_still_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::open(dir.path()).unwrap();
    for n in 1..=3 {
        accept(&mut ledger, n, Some(("base", state(u64::from(n)))));
    }
    ledger.record_result(id(1), &done(1, 10)).unwrap();
    ledger.record_result(id(2), &done(2, 10)).unwrap();
    ledger.record_start(id(3)).unwrap();
    // Just before the hour, the ledger forgets no command.
    ledger.compact(at(301 + 3600)).unwrap();
    assert!(ledger.accepted_digest(id(1)).is_some());
    ledger.compact(at(302 + 3600)).unwrap();
    drop(ledger);
    let ledger = Ledger::open(dir.path()).unwrap();
    assert_eq!((ledger.accepted_digest(id(1)), ledger.accepted_digest(id(2))), (None, Some("d2")));
    assert_eq!(ledger.channel("base"), Some(&state(3)));
    assert_eq!(ledger.floor(), Some(at(301 + 60)));
    assert_eq!(ledger.unfinished().len(), 1);
    assert!(ledger.unfinished()[0].started);
    assert_eq!(ledger.result(id(2)), Some(&done(2, 10)));
}

#[test]
fn the_file_does_not_grow_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::open(dir.path()).unwrap();
    ledger.compact_at = 20;
    for n in 0..30 {
        accept(&mut ledger, n, None);
        ledger.record_result(id(n), &done(n, i64::from(n) * 1000)).unwrap();
        ledger.compact_at = ledger.compact_at.min(20);
    }
    drop(ledger);
    let ledger = Ledger::open(dir.path()).unwrap();
    assert!(ledger.records < 25, "{}", ledger.records);
    assert_eq!(ledger.accepted_digest(id(29)), Some("d29"));
}

#[test]
fn origin_and_trust_version_survive() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::open(dir.path()).unwrap();
    assert!(ledger.is_new() && ledger.origin().is_none());
    let birth = LedgerOrigin { at: at(1), lost: LostState { ledger: true, trust: false } };
    ledger.record_origin(birth).unwrap();
    for version in [2, 3, 1] {
        ledger.record_trust_version(version).unwrap();
    }
    accept(&mut ledger, 1, None);
    ledger.compact(at(10)).unwrap();
    drop(ledger);
    let mut ledger = Ledger::open(dir.path()).unwrap();
    assert!(!ledger.is_new());
    assert_eq!((ledger.origin(), ledger.trust_version()), (Some(birth), Some(3)));
    ledger.record_origin(LedgerOrigin { at: at(0), ..birth }).unwrap();
    assert_eq!(ledger.origin().unwrap().at, at(0), "the clock was set right");
}

#[test]
fn a_clock_that_jumps_ahead_lifts_no_floor_and_forgets_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::open(dir.path()).unwrap();
    let month = 30 * 86_400;
    ledger.advance_clock_floor(at(200));
    accept(&mut ledger, 1, None);
    ledger.record_result(id(1), &done(1, 10)).unwrap();
    // Signed and accepted while the clocks of operator and node were a month ahead.
    let ahead = Acceptance {
        id: id(2),
        digest: "d2",
        issued: at(month),
        expires: at(month + 300),
        subject: None,
        envelope: b"{}",
        channel: None,
        signers: &[],
    };
    ledger.record_acceptance(&ahead).unwrap();
    ledger.compact(at(2 * month)).unwrap();
    assert_eq!(ledger.floor(), Some(at(1)));
    drop(ledger);
    let mut ledger = Ledger::open(dir.path()).unwrap();
    assert_eq!(ledger.floor(), Some(at(1)));
    assert!(ledger.accepted_digest(id(1)).is_some() && ledger.accepted_digest(id(2)).is_some());
    // An assignment that expires by such a clock is rejected by its channel, not by the floor.
    let standing = Acceptance { id: id(3), expires: at(3 * month), issued: at(2), channel: Some(("base", state(1))), ..ahead };
    ledger.record_acceptance(&standing).unwrap();
    ledger.record_result(id(3), &done(3, 10)).unwrap();
    ledger.compact(at(4 * month)).unwrap();
    assert_eq!((ledger.accepted_digest(id(3)), ledger.floor()), (None, Some(at(301 + 60))));
    assert_eq!(ledger.channel("base"), Some(&state(1)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// A process that dies at any byte of its writing leaves the records before that byte.
    #[test]
    fn any_cut_leaves_the_records_before_it(cut in any::<prop::sample::Index>()) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let mut ledger = Ledger::open(dir.path()).unwrap();
        let mut ends = vec![];
        for n in 0..5 {
            accept(&mut ledger, n, None);
            ends.push(ledger.log.len());
        }
        drop(ledger);
        let bytes = std::fs::read(&path).unwrap();
        let cut = cut.index(bytes.len() + 1);
        std::fs::File::create(&path).unwrap().write_all(&bytes[..cut]).unwrap();
        let whole = ends.iter().filter(|end| **end <= cut as u64).count();
        let ledger = Ledger::open(dir.path()).unwrap();
        prop_assert_eq!(ledger.unfinished().len(), whole);
    }
}
