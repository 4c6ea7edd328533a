//! The flags of a rollout: which nodes begin when, and how many may fail.

use clap::Args;

use crate::fleet::rollout::{self, Count, InvalidPlan, Plan};
use crate::fleet::select;
use crate::model::Span;
use crate::wire::Command;

use super::super::error::Failure;
use super::super::ui::Ui;
use super::report::nodes as count;
use super::session::Session;

/// Between two waves, when it is not said.
const HOLD: Span = Span::seconds(60);

/// Which nodes begin when.
#[derive(Debug, Clone, Default, Args)]
pub(in crate::cli) struct WavesArgs {
    /// Begins in waves, each with so many nodes in all: as 1,10%,50%,100%. The nodes keep to them by themselves.
    #[arg(long, global = true, value_name = "COUNTS")]
    waves: Option<String>,
    /// Time from the beginning of a wave to that of the next one: longer than the run takes. 60s when left out.
    #[arg(long, global = true, value_name = "DURATION")]
    hold: Option<Span>,
    /// How many nodes may fail, as 3 or 2%: when more have, no further node begins. 0 when left out.
    #[arg(long, global = true, value_name = "COUNT")]
    max_failed: Option<String>,
    /// Nodes run the health checks once more before the next wave begins: critical ones count as failed.
    #[arg(long, global = true)]
    health_gate: bool,
}

impl WavesArgs {
    /// The rollout that they ask for, when they ask for one.
    ///
    /// # Errors
    /// When it is none.
    pub(in crate::cli) fn plan(&self) -> Result<Option<Plan>, Failure> {
        let usage = |error: InvalidPlan| Failure::usage(error.to_string());
        let Some(counts) = &self.waves else {
            return match self {
                Self { hold: None, max_failed: None, health_gate: false, .. } => Ok(None),
                _ => Err(Failure::usage("--hold, --max-failed and --health-gate are about --waves")
                    .hint("--waves 1,10%,50%,100% begins with one node, goes on with a tenth of all, ...")),
            };
        };
        let budget: Count = self.max_failed.as_deref().unwrap_or("0").parse().map_err(usage)?;
        Plan::new(counts, self.hold.unwrap_or(HOLD), budget, self.health_gate).map(Some).map_err(usage)
    }

    /// Gives a command the waves that they ask for, counted in the nodes that are there now.
    ///
    /// # Errors
    /// When they ask for none that there could be, or the states of the nodes can't be read.
    pub(in crate::cli) async fn put_into(&self, command: &mut Command, session: &Session, ui: &mut Ui) -> Result<(), Failure> {
        let Some(plan) = self.plan()? else { return Ok(()) };
        let states = session.states().await?;
        let expected = select::expected(&command.to, &states, session.now());
        let waves = plan.waves(command.id, &expected);
        let sizes: Vec<String> = rollout::sizes(&waves, command.id, &expected).iter().map(ToString::to_string).collect();
        let last = waves.last_begins(command.issued);
        ui.say(format_args!(
            "waves of {} nodes; the last begins at {last:.0}; {} may fail",
            sizes.join(", "),
            count(usize::try_from(waves.max_failed).unwrap_or(usize::MAX)),
        ));
        if command.to.only_where.is_some() {
            ui.say("which of them `where` selects they know only themselves: waves may have fewer nodes than that");
        }
        command.options.waves = Some(waves);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_about_waves_needs_them() {
        let args = |waves: Option<&str>, max_failed: Option<&str>| {
            let owned = |text: Option<&str>| text.map(str::to_owned);
            WavesArgs { waves: owned(waves), max_failed: owned(max_failed), ..WavesArgs::default() }.plan()
        };
        assert_eq!(args(None, None).unwrap(), None);
        assert!(args(Some("1,100%"), Some("2%")).unwrap().is_some());
        for wrong in [args(None, Some("1")), args(Some("1,100%"), Some("x")), args(Some("1"), None)] {
            assert_eq!(wrong.unwrap_err().exit, super::super::super::error::Exit::Usage);
        }
    }
}
