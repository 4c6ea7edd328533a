//! The flags of a rollout: which nodes begin when, and how many may fail.

use clap::Args;

use crate::fleet::PreparedJob;
use crate::fleet::rollout::request::{Count, InvalidPlan, RolloutRequest};
use crate::model::HumanDuration;
use crate::wire::rollout_plan::{OnFailure, WAVE_MARGIN};

use super::super::error::{CliError, Exit};
use super::super::format::nodes;
use super::super::ui::{Ui, text};
use super::session::FleetSession;

/// Default hold between two waves.
const DEFAULT_HOLD: HumanDuration = HumanDuration::seconds(60);

/// The flags of a rollout.
#[derive(Debug, Clone, Default, Args)]
pub(in crate::cli) struct WavesArgs {
    /// Total nodes of each wave, as 1,10%,50%,100%. Nodes wait for their wave by themselves.
    #[arg(long, global = true, value_name = "COUNTS")]
    waves: Option<String>,
    /// Time for which a node must stay healthy after its run before its success counts. 60s by default.
    #[arg(long, global = true, value_name = "DURATION")]
    hold: Option<HumanDuration>,
    /// Time of a wave beside its timeout and its hold, for the queue of a busy node. A witness that is silent for longer has
    /// failed. 30s by default.
    #[arg(long, global = true, value_name = "DURATION")]
    margin: Option<HumanDuration>,
    /// Number of nodes that may fail, as 3 or 2%, at most 50. After more failures no further node begins. Silence is a failure.
    /// 0 by default.
    #[arg(long, global = true, value_name = "COUNT")]
    max_failed: Option<String>,
    /// Successes of a wave that release the next one, as 3 or 90%, among its witnesses, at most 50. All but their share of
    /// --max-failed by default.
    #[arg(long, global = true, value_name = "COUNT")]
    min_ok: Option<String>,
    /// Run the health checks at the end of the hold; a critical check is a failure.
    #[arg(long, global = true)]
    health_gate: bool,
    /// Require a signed go-ahead for each wave after the first. This command gives it while it follows; `ensign fleet rollout
    /// go` gives it by hand.
    #[arg(long, global = true)]
    go: bool,
    /// Reaction of nodes whose wave failed: stop, or revert, by which they go back to their assignment before. For `assign`.
    #[arg(long, global = true, value_name = "stop|revert")]
    on_failure: Option<OnFailure>,
}

impl WavesArgs {
    /// Returns the rollout that the flags describe, if any.
    ///
    /// # Errors
    /// When the flags describe no valid rollout.
    pub(in crate::cli) fn plan(&self) -> Result<Option<RolloutRequest>, CliError> {
        let usage = |error: InvalidPlan| CliError::usage(error.to_string());
        let Some(counts) = &self.waves else {
            return match self {
                Self {
                    hold: None,
                    margin: None,
                    max_failed: None,
                    min_ok: None,
                    health_gate: false,
                    go: false,
                    on_failure: None,
                    ..
                } => Ok(None),
                _ => Err(CliError::usage(
                    "--hold, --margin, --max-failed, --min-ok, --health-gate, --go and --on-failure need --waves",
                )
                .hint("--waves 1,10%,50%,100% begins with one node, goes on with a tenth of all, ...")),
            };
        };
        let budget: Count = self.max_failed.as_deref().unwrap_or("0").parse().map_err(usage)?;
        let min_ok = self.min_ok.as_deref().map(str::parse::<Count>).transpose().map_err(usage)?;
        let plan = RolloutRequest::new(counts, self.hold.unwrap_or(DEFAULT_HOLD), budget, self.health_gate).map_err(usage)?;
        let plan = plan.with_min_ok(min_ok).with_go(self.go).with_margin(self.margin.unwrap_or(WAVE_MARGIN));
        Ok(Some(plan.with_on_failure(self.on_failure.unwrap_or_default())))
    }

    /// Returns the counts of the waves, as the user wrote them.
    pub(in crate::cli) fn counts(&self) -> Option<&str> {
        self.waves.as_deref()
    }

    /// Adds the waves to a job, counted in its nodes.
    ///
    /// # Errors
    /// When the waves are impossible.
    pub(in crate::cli) fn add_to(&self, job: &mut PreparedJob, session: &FleetSession, ui: &mut Ui) -> Result<(), CliError> {
        let Some(request) = self.plan()? else { return Ok(()) };
        let sizes = job.add_waves(session, &request).map_err(|error| {
            let hint = "`ensign fleet nodes` shows the online nodes; a first wave of more nodes has one that can";
            CliError::from_error(Exit::Usage, &error).hint(hint)
        })?;
        let Some(waves) = &job.command.options.waves else { return Ok(()) };
        let noun = if sizes == [1] { "node" } else { "nodes" };
        let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
        ui.message(text!(
            "waves of {} {}; each begins when the one before has been healthy for {}; {} may fail",
            sizes.join(", "),
            noun,
            waves.hold,
            nodes(usize::try_from(waves.max_failed).unwrap_or(usize::MAX))
        ));
        if waves.on_failure == OnFailure::Revert {
            ui.message("nodes of a wave that fails go back to their assignment before");
        }
        if job.command.to.filter.is_some() {
            ui.message("wave sizes are upper bounds: `--where` is evaluated on the nodes");
        }
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
