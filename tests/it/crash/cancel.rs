//! A cancel, wherever the agent dies before its answer: the job never runs again, and its result names the cancel.

use std::os::unix::process::ExitStatusExt;

use ensign::host::Checkpoint;
use ensign::wire::command::{Action, JobRef};
use ensign::wire::{CommandOutcome, CommandResult};
use futures_util::future::join_all;

use super::is_armed;
use crate::support::nats::binaries;
use crate::support::node_dir::{NodeDir, NodeSettings, read, stop, wait_for_exit};
use crate::support::single_node::{PATIENCE, SingleNodeFleet, ensure_action};

/// Checkpoints that only these tests reach.
pub(super) const ONLY: &[Checkpoint] = &[Checkpoint::CancelStored];

/// Kills the agent at a checkpoint of a cancel. The job runs, or waits behind another one.
async fn crash_at(fleet: &SingleNodeFleet, at: Checkpoint, count: u32, is_running: bool) {
    let name = format!("{}-{count}-{is_running}", at.name().replace(['.', '_'], "-"));
    let place = NodeDir::new(fleet, &name, &fleet.server.url(), &NodeSettings::default());
    let wanted = format!("{}:{count}", at.name());
    let mut agent = place.start(&fleet.bus, place.process().env("ENSIGN_CHECKPOINT", &wanted)).await;
    let script = format!("echo begun >> {}; sleep 600", place.site().join("long").display());
    let long = serde_json::json!({"name": "long", "command": script, "provider": "shell"});
    let running = place.command(fleet, ensure_action("exec", &long));
    fleet.send(&running).await;
    fleet.until("the run", || place.lines("long") == 1).await;
    let waiting = place.append_command(fleet, "waiting");
    place.first_answer(fleet, &waiting, &fleet.sign(&waiting), PATIENCE).await.expect("an acknowledgement");
    let job = if is_running { &running } else { &waiting };
    let mut cancel = place.command(fleet, Action::Cancel(JobRef { job: job.id }));
    cancel.reason = Some("smoke".into());
    fleet.send(&cancel).await;
    assert_eq!(wait_for_exit(&mut agent).await.signal(), Some(9), "{wanted}\n{}", place.log());

    let mut agent = place.start(&fleet.bus, &mut place.process()).await;
    let ended = place.only_result(&fleet.bus, job.id).await;
    assert_eq!((ended.outcome, ended.code.as_deref()), (CommandOutcome::Interrupted, Some("cancelled")), "{wanted}: {ended:?}");
    let why = ended.message.unwrap();
    assert!(why.starts_with("cancelled by ops at ") && why.contains(": smoke"), "{why}");
    // An operator without an answer sends the same bytes again.
    let again = place.first_answer(fleet, &cancel, &fleet.sign(&cancel), PATIENCE).await.expect("an answer");
    let again: CommandResult = read(&again).unwrap_or_else(|| panic!("{wanted}: {:?}", String::from_utf8_lossy(&again.payload)));
    assert!(matches!(again.outcome, CommandOutcome::Stable | CommandOutcome::Changed), "{wanted}: {again:?}");
    let other = place.only_result(&fleet.bus, if is_running { waiting.id } else { running.id }).await;
    let wanted_other = if is_running { CommandOutcome::Changed } else { CommandOutcome::Interrupted };
    assert_eq!((other.outcome, other.code), (wanted_other, None), "{wanted}");
    assert_eq!((place.lines("long"), place.lines("waiting")), (1, usize::from(is_running)), "{wanted}");
    assert_eq!(stop(&mut agent).await.code(), Some(0));
    assert_eq!(place.leftovers(), Vec::<std::path::PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_survives_the_death_of_the_agent() {
    if !is_armed() {
        return;
    }
    let fleet = SingleNodeFleet::new(binaries().last().unwrap(), "").await;
    // The file of cancelled jobs is written, and not in place: an earlier death is one before the cancel.
    let places = [(Checkpoint::CancelStored, 1), (Checkpoint::ResultPosted, 1)];
    join_all(places.iter().flat_map(|(at, count)| [true, false].map(|is_running| crash_at(&fleet, *at, *count, is_running))))
        .await;
}
