//! Sends a command and collects what becomes of it, without printing: `report.rs` prints what nodes do, the others what they
//! answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::signal::unix::{SignalKind, signal};

use crate::fleet::job::dispatch;
use crate::fleet::job::dispatch::{Dispatched, SealError, SealedCommand};
use crate::fleet::job::liveness_monitor::{LivenessMonitor, Missing};
use crate::fleet::job::tracker;
use crate::fleet::job::tracker::Update;
use crate::fleet::targeting::key_discovery::KeyDiscovery;
use crate::fleet::targeting::states;
use crate::fleet::{CommandDraft, ExpectedNode, JobTracker, NodeResult};
use crate::model::NodeId;
use crate::transport::{Inbox, StreamReader};
use crate::wire::{Action, Command};

use super::super::error::{Exit, Failure};
use super::super::ui::{Ui, text};
use super::render_job::ago;
use super::session::{Session, borrowed, failure, signers, undelivered};
use super::target_filter;

/// What the way there and back may take beside the work.
pub(super) const MARGIN: Duration = Duration::from_secs(5);

/// With more nodes than this, groups of nodes are printed instead of each one.
pub(super) const EACH: usize = 20;
/// How often the progress is shown anew.
const REFRESH: Duration = Duration::from_millis(50);

/// What became of a command.
#[derive(Debug)]
pub(super) struct JobOutcome {
    /// What was sent.
    pub(super) signed: SealedCommand,
    /// What became of every node.
    pub(super) results: Vec<NodeResult>,
    /// False when the waiting was ended by hand.
    pub(super) complete: bool,
}

/// Signs an order.
///
/// # Errors
/// When there is no key, or no node could keep to it.
pub(super) fn sign(order: CommandDraft, session: &Session) -> Result<SealedCommand, Failure> {
    seal(order.command(&session.operator.fleet, session.host.new_id(), session.now()), session)
}

/// Whether nodes could keep to an order, before anything is done for it.
///
/// # Errors
/// Why not.
pub(super) fn check(order: CommandDraft, session: &Session) -> Result<(), Failure> {
    let command = order.command(&session.operator.fleet, session.host.new_id(), session.now());
    command.check().map_err(|error| Failure::from_error(Exit::Usage, &error))
}

/// Signs a command.
///
/// # Errors
/// When there is no key, or no node could keep to it.
pub(super) fn seal(command: Command, session: &Session) -> Result<SealedCommand, Failure> {
    session.expect(&command.to);
    let signers = signers(&session.operator)?;
    command.check().map_err(|error| Failure::from_error(Exit::Usage, &error))?;
    let remedy = shorter(&command);
    dispatch::sign(command, &borrowed(&signers)).map_err(|error| {
        let failure = Failure::from_error(Exit::Usage, &error);
        if matches!(error, SealError::TooLarge(_)) { failure.hint(remedy) } else { failure }
    })
}

/// What makes a command smaller that is too large.
fn shorter(command: &Command) -> &'static str {
    let length = |value: serde_json::Result<Vec<u8>>| value.map_or(0, |bytes| bytes.len());
    let (action, to) = (length(serde_json::to_vec(&command.action)), length(serde_json::to_vec(&command.to)));
    match command.action {
        _ if to > action => "name its nodes by --group, or by --all with --where",
        Action::Ensure(_) => {
            "pack it as a bundle: a directory with manifest.yaml and its files, and `ensign fleet apply DIR`; or shorten it"
        }
        _ => "put its data into the bundle, or shorten it",
    }
}

/// Who gathers what becomes of a command on these nodes, and on those that join meanwhile.
pub(super) fn gatherer(command: &Command, digest: &str, expected: Vec<ExpectedNode>, session: &Session) -> JobTracker {
    let Session { bus, subjects, roster, .. } = session;
    let newcomers = KeyDiscovery::new(bus.clone(), subjects.clone(), Arc::clone(roster), session.now());
    JobTracker::new(subjects.clone(), Arc::clone(roster), command.id, digest, expected).meeting(newcomers)
}

/// Signs an order, sends it, and waits for everybody, at most `wait`.
///
/// # Errors
/// When it can't be signed or sent, or the connection is lost.
pub(super) async fn ask(order: CommandDraft, wait: Duration, session: &Session, ui: &mut Ui) -> Result<JobOutcome, Failure> {
    let signed = sign(order, session)?;
    let states = session.states().await?;
    target_filter::warn_unknown(&signed.command.to, &states, ui);
    let expected = states::expected(&signed.command.to, &states, session.server_now());
    let dispatched =
        dispatch::dispatch(&session.bus, &session.subjects, &signed).await.map_err(|error| undelivered(&error, session))?;
    let Dispatched { mut feed, mut inbox, asked } = dispatched;
    let mut all = gatherer(&signed.command, &signed.digest, expected, session);
    let answers = Some((&mut inbox, asked.as_slice()));
    let complete = collect(&mut all, &mut feed, answers, Instant::now() + wait, session, ui, &mut |_, _| {}).await?;
    Ok(JobOutcome { signed, results: all.finish(), complete })
}

/// Who is waited for is said after this time, and then each time twice as much later. On a terminal it is always to be seen.
const SAID: Duration = Duration::from_secs(10);
/// As many messages that are not the word of their node are shown: anybody who may publish can send more.
const DOUBTS: usize = 50;
/// As many nodes that are waited for are named.
const NAMED: usize = 3;

/// Takes reports until every node has ended, the deadline is over, or somebody interrupts; then it is false.
///
/// # Errors
/// When the connection is lost.
pub(super) async fn collect(
    all: &mut JobTracker,
    feed: &mut StreamReader,
    mut answers: Option<(&mut Inbox, &[Option<NodeId>])>,
    deadline: Instant,
    session: &Session,
    ui: &mut Ui,
    on_ended: &mut dyn FnMut(NodeResult, &mut Ui),
) -> Result<bool, Failure> {
    let (id, began, many) = (all.id(), all.began(), all.progress().1 > EACH);
    let mut vigil =
        LivenessMonitor::new(session.bus.clone(), session.subjects.clone(), Arc::clone(&session.roster), session.now());
    let mut teller =
        ProgressReporter { began, many, heard: false, doubts: 0, shown: began, said: began, pause: SAID, on_ended, ui };
    let work = async {
        loop {
            let answers = answers.as_mut().map(|(inbox, asked)| (&mut **inbox, *asked));
            let until = deadline.min(vigil.next());
            tracker::gather(all, feed, answers, until, &mut |gather, update| teller.tell(gather, update)).await?;
            if all.is_done() || Instant::now() >= deadline {
                break;
            }
            let (updates, missing) = vigil.look(all).await;
            updates.into_iter().for_each(|update| teller.tell(all, update));
            teller.tell_missing(all, &missing, vigil.now());
        }
        all.give_up().into_iter().for_each(|update| teller.tell(all, update));
        Ok(())
    };
    let finished = tokio::select! {
        // The end of waiting, in every case: what is dropped is not used again.
        result = work => {
            result.map_err(|error| failure(&error).hint(format!("`ensign fleet job watch {id}` goes on")))?;
            true
        }
        // Safe to cancel: a signal that did not come.
        () = stopped() => false,
    };
    ui.end_progress();
    Ok(finished)
}

/// Waits until somebody ends the waiting: Ctrl-C or SIGTERM.
pub(super) async fn stopped() {
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => signal.recv().await,
            // Then it ends the program as it would have anyway.
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        // Safe to cancel, both: a signal that did not come.
        _ = tokio::signal::ctrl_c() => (),
        _ = terminated => (),
    }
}

/// Tells whoever waits what comes in.
struct ProgressReporter<'a> {
    began: Instant,
    many: bool,
    heard: bool,
    /// So many messages were not the word of their node.
    doubts: usize,
    shown: Instant,
    said: Instant,
    pause: Duration,
    on_ended: &'a mut dyn FnMut(NodeResult, &mut Ui),
    ui: &'a mut Ui,
}

impl ProgressReporter<'_> {
    fn tell(&mut self, gather: &JobTracker, update: Update) {
        match update {
            Update::Acked(_) => {}
            Update::Ended(result) => {
                self.ui.end_progress();
                (self.on_ended)(*result, self.ui);
            }
            Update::Doubted(node, why) => {
                self.doubts += 1;
                if self.doubts <= DOUBTS {
                    self.ui.end_progress();
                    self.ui.warn(text!("{}: {}", node, why));
                }
                if self.doubts == DOUBTS {
                    self.ui.warn("there may be more of these; they are not shown");
                }
            }
        }
        if !self.heard && self.many && gather.is_heard() {
            self.heard = true;
            self.ui.end_progress();
            self.ui.say(text!("every node that is there has answered, in {:.2}s", self.began.elapsed().as_secs_f64()));
        }
        // A terminal takes longer to show a line than ten nodes to send theirs.
        if self.shown.elapsed() >= REFRESH {
            self.shown = Instant::now();
            let (ended, known) = gather.progress();
            self.ui.progress(text!("{} / {} nodes", ended, known));
        }
    }

    fn tell_missing(&mut self, gather: &JobTracker, missing: &[Missing], now: Timestamp) {
        if missing.is_empty() {
            return;
        }
        let (ended, known) = gather.progress();
        let text = format!("{ended} / {known} nodes; waiting for {}", waited_for(missing, now));
        if self.ui.is_watched() {
            self.ui.progress(text);
        } else if self.said.elapsed() >= self.pause {
            (self.said, self.pause) = (Instant::now(), self.pause.saturating_mul(2));
            self.ui.say(text);
        }
    }
}

/// `web1 (not heard for 45s), db1 (has it, heard 3s ago) +7`
fn waited_for(missing: &[Missing], now: Timestamp) -> String {
    let named: Vec<String> = missing
        .iter()
        .take(NAMED)
        .map(|Missing { node, heard, has_it }| match (heard, has_it) {
            (Some(heard), true) => format!("{node} (has it, heard {} ago)", ago(*heard, now)),
            (Some(heard), false) => format!("{node} (no answer, heard {} ago)", ago(*heard, now)),
            (None, true) => format!("{node} (has it)"),
            (None, false) => format!("{node} (no answer)"),
        })
        .collect();
    let more = missing.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" +{more}") } else { String::new() };
    format!("{}{more}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_waited_for_is_named() {
        let now: Timestamp = "2026-01-02T00:01:00Z".parse().unwrap();
        let missing = |node: &str, heard: Option<&str>, has_it| Missing {
            node: node.parse().unwrap(),
            heard: heard.map(|heard| heard.parse().unwrap()),
            has_it,
        };
        let mut all = vec![
            missing("a", Some("2026-01-02T00:00:15Z"), false),
            missing("b", Some("2026-01-02T00:00:57Z"), true),
            missing("c", None, false),
        ];
        assert_eq!(waited_for(&all, now), "a (no answer, heard 45s ago), b (has it, heard 3s ago), c (no answer)");
        all.extend([missing("d", None, true), missing("e", None, true)]);
        assert!(waited_for(&all, now).ends_with("c (no answer) +2"));
    }
}
