//! Sends a command and collects what becomes of it, without printing: `report.rs` prints what nodes do, the others what they
//! answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fleet::dispatch::{self, Dispatched, Signed};
use crate::fleet::gather::{self, Update};
use crate::fleet::{Gather, NodeResult, Order, select};
use crate::model::NodeId;
use crate::transport::{Feed, Inbox};
use crate::wire::Command;

use super::super::error::{Exit, Failure};
use super::super::ui::Ui;
use super::session::{Session, borrowed, failure, signers};

/// What the way there and back may take beside the work.
pub(super) const MARGIN: Duration = Duration::from_secs(5);

/// With more nodes than this, groups of nodes are printed instead of each one.
pub(super) const EACH: usize = 20;
/// How often the progress is shown anew.
const REFRESH: Duration = Duration::from_millis(50);

/// What became of a command.
#[derive(Debug)]
pub(super) struct Collected {
    /// What was sent.
    pub(super) signed: Signed,
    /// What became of every node.
    pub(super) results: Vec<NodeResult>,
    /// False when the waiting was ended by hand.
    pub(super) complete: bool,
}

/// Signs an order.
///
/// # Errors
/// When there is no key, or no node could keep to it.
pub(super) fn sign(order: Order, session: &Session) -> Result<Signed, Failure> {
    seal(order.command(&session.operator.fleet, session.host.new_id(), session.now()), session)
}

/// Signs a command.
///
/// # Errors
/// When there is no key, or no node could keep to it.
pub(super) fn seal(command: Command, session: &Session) -> Result<Signed, Failure> {
    let signers = signers(&session.operator)?;
    command.check().map_err(|error| Failure::from_error(Exit::Usage, &error))?;
    dispatch::sign(command, &borrowed(&signers)).map_err(|error| Failure::from_error(Exit::Usage, &error))
}

/// Signs an order, sends it, and waits for everybody, at most `wait`.
///
/// # Errors
/// When it can't be signed or sent, or the connection is lost.
pub(super) async fn ask(order: Order, wait: Duration, session: &Session, ui: &mut Ui) -> Result<Collected, Failure> {
    let signed = sign(order, session)?;
    let states = session.states().await?;
    let expected = select::expected(&signed.command.to, &states, session.now());
    let dispatched = dispatch::dispatch(&session.bus, &session.subjects, &signed).await.map_err(|error| failure(&error))?;
    let Dispatched { mut feed, mut inbox, asked } = dispatched;
    let mut all =
        Gather::new(session.subjects.clone(), Arc::clone(&session.roster), signed.command.id, signed.digest.as_str(), expected);
    let answers = Some((&mut inbox, asked.as_slice()));
    let complete = collect(&mut all, &mut feed, answers, Instant::now() + wait, ui, &mut |_, _| {}).await?;
    Ok(Collected { signed, results: all.finish(), complete })
}

/// Takes reports until every node has ended, the deadline is over, or somebody interrupts; then it is false.
///
/// # Errors
/// When the connection is lost.
pub(super) async fn collect(
    all: &mut Gather,
    feed: &mut Feed,
    answers: Option<(&mut Inbox, &[Option<NodeId>])>,
    deadline: Instant,
    ui: &mut Ui,
    on_ended: &mut dyn FnMut(NodeResult, &mut Ui),
) -> Result<bool, Failure> {
    let (id, began, many) = (all.id(), all.began(), all.progress().1 > EACH);
    let (mut heard, mut shown) = (false, began);
    let mut on_update = |gather: &Gather, update: Update| {
        match update {
            Update::Acked(_) => {}
            Update::Ended(result) => on_ended(*result, ui),
            Update::Doubted(node, why) => {
                ui.end_progress();
                ui.warn(format_args!("{node}: {why}"));
            }
        }
        if !heard && many && gather.is_heard() {
            heard = true;
            ui.end_progress();
            ui.say(format_args!("every node that is there has answered, in {:.2}s", began.elapsed().as_secs_f64()));
        }
        // A terminal takes longer to show a line than ten nodes to send theirs.
        if shown.elapsed() >= REFRESH {
            shown = Instant::now();
            let (ended, known) = gather.progress();
            ui.progress(format_args!("{ended} / {known} nodes"));
        }
    };
    let finished = tokio::select! {
        // The end of waiting, in every case: what is dropped is not used again.
        result = gather::gather(all, feed, answers, deadline, &mut on_update) => {
            result.map_err(|error| failure(&error).hint(format!("`ensign fleet job watch {id}` goes on")))?;
            true
        }
        // Safe to cancel: a signal that did not come.
        _ = tokio::signal::ctrl_c() => false,
    };
    ui.end_progress();
    Ok(finished)
}
