//! `ensign apply`, `ensign plan` and `ensign check`: a manifest on this host.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use uuid::Uuid;

use crate::diag::{self, Diagnostic};
use crate::engine::{self, Diff, Plan, RunSettings};
use crate::host::Host;
use crate::model::{HumanDuration, ResourceOutcome, TransactionEvent};
use crate::store::history::{Recording, RunStart};

use super::graph::{self, GraphFormat};
use super::manifest_source::ManifestSource;
use super::prepare::{PreparedApply, prepare, print_event};
use super::refreshes;
use super::reversals;
use super::watch::{self, WatchArgs, WatchedRun};
use crate::cli::error::{CliError, Exit};
use crate::cli::local::inputs;
use crate::cli::local::inputs::{InputArgs, OutputFormat, RunWait};
use crate::cli::render;
use crate::cli::ui::{Ui, text};

/// Apply a manifest to this host.
#[derive(Debug, Args)]
pub struct LocalApplyArgs {
    #[command(flatten)]
    origin: ManifestSource,
    /// Show what would change; change nothing.
    #[arg(long)]
    noop: bool,
    /// Show what changes in the content of files.
    #[arg(long)]
    diff: bool,
    /// Run only the health checks.
    #[arg(long, alias = "monitor-only")]
    health_check_only: bool,
    /// Print the resolved data and resources; run nothing.
    #[arg(long)]
    render: bool,
    #[command(flatten)]
    given: InputArgs,
    /// Publish the registrations of `register_when_stable`, as an agent does.
    #[arg(long)]
    register: bool,
    /// Session directory that records the run.
    #[arg(long, value_name = "DIR", env = "CCM_SESSION_STORE", hide_env_values = true)]
    session: Option<PathBuf>,
    #[command(flatten)]
    patience: RunWait,
    /// Print no summary.
    #[arg(long)]
    no_report: bool,
    /// Exit with 10 when something changed and nothing failed.
    #[arg(long)]
    detailed_exitcodes: bool,
    /// Number of resources that may run at the same time, with `ordering: graph` [default: the processors, 2 to 8].
    #[arg(long, value_name = "N")]
    parallelism: Option<NonZeroUsize>,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
    #[command(flatten)]
    watch: WatchArgs,
    /// Print the graph in this format and run nothing: for `plan`.
    #[arg(skip)]
    graph: Option<GraphFormat>,
    /// Show only what is not as wanted, without the messages of the manifest: for `plan`.
    #[arg(skip)]
    brief: bool,
}

/// Show what applying a manifest would change.
#[derive(Debug, Args)]
pub struct LocalPlanArgs {
    #[command(flatten)]
    origin: ManifestSource,
    #[command(flatten)]
    given: InputArgs,
    /// Print what each resource waits for, and why; run nothing.
    #[arg(long, value_enum, value_name = "FORMAT", conflicts_with_all = ["output", "detailed_exitcodes"])]
    graph: Option<GraphFormat>,
    /// Exit with 10 when something would change and nothing failed.
    #[arg(long)]
    detailed_exitcodes: bool,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// Read, resolve and validate a manifest; touch nothing.
#[derive(Debug, Args)]
pub struct LocalCheckArgs {
    #[command(flatten)]
    origin: ManifestSource,
    #[command(flatten)]
    given: InputArgs,
    /// List the effects of each resource, which rules and limits decide over: read, write, run, mount, fetch.
    #[arg(long)]
    effects: bool,
    /// Output format of the effects.
    #[arg(long, value_enum, default_value_t, requires = "effects")]
    output: OutputFormat,
}

impl From<LocalPlanArgs> for LocalApplyArgs {
    fn from(args: LocalPlanArgs) -> Self {
        Self {
            origin: args.origin,
            noop: true,
            diff: true,
            health_check_only: false,
            render: false,
            given: args.given,
            register: false,
            session: None,
            patience: RunWait { wait: HumanDuration::default() },
            no_report: false,
            parallelism: None,
            detailed_exitcodes: args.detailed_exitcodes,
            output: args.output,
            watch: WatchArgs::default(),
            graph: args.graph,
            brief: true,
        }
    }
}

impl LocalApplyArgs {
    /// Returns the settings of a run that keeps the manifest in force.
    fn watched_run(&self) -> Result<WatchedRun<'_>, CliError> {
        let unfit =
            [("--session", self.session.is_some()), ("--render", self.render), ("--health-check-only", self.health_check_only)];
        if let Some((flag, _)) = unfit.into_iter().find(|(_, is_set)| *is_set) {
            return Err(CliError::usage(format!("{flag} is for a single run, and --watch keeps running")));
        }
        if self.output == OutputFormat::Json {
            return Err(
                CliError::usage("--watch has no single result to print as JSON").hint("use --output jsonl: one line an event")
            );
        }
        Ok(WatchedRun {
            origin: &self.origin,
            given: &self.given,
            watch: &self.watch,
            noop: self.noop,
            diff: self.diff,
            registers: self.register,
            wait: self.patience.wait,
            parallelism: self.parallelism.unwrap_or_else(engine::default_parallelism),
            output: self.output,
            detailed_exitcodes: self.detailed_exitcodes,
        })
    }

    /// Starts the record of this run in the history of the host; dry runs leave none.
    fn recording(&self, plan: &Plan, run_id: Uuid, host: &Host) -> Recording {
        let history = inputs::history().filter(|_| !self.noop);
        let digest = plan.manifest.as_ref().and_then(|manifest| manifest.digest.clone());
        let what = plan.manifest.as_ref().map(|manifest| manifest.source.clone()).unwrap_or_default();
        Recording::begin(history.as_ref(), &RunStart { run_id, started: host.now(), what, digest })
    }
}

/// Runs `ensign check`.
pub fn check(args: &LocalCheckArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let PreparedApply { plan, name, .. } = prepare(&args.origin, &args.given, ui)?;
    for warning in &plan.warnings {
        ui.warn(warning);
    }
    if args.effects && args.output != OutputFormat::Text {
        let effects = plan.resources.iter().map(|one| json!({"resource": one.reference().to_string(), "effects": one.effects()}));
        match args.output {
            OutputFormat::Jsonl => effects.for_each(|one| ui.jsonl(&one)),
            _ => ui.json(&effects.collect::<Vec<_>>()),
        }
    } else if args.effects {
        for planned in &plan.resources {
            planned.effects().iter().for_each(|effect| ui.line(text!("{} {}", planned.reference(), effect)));
        }
    }
    if !plan.failing.is_empty() {
        return Err(CliError { exit: Exit::Usage, diagnostics: plan.failing });
    }
    if args.effects && args.output != OutputFormat::Text {
        return Ok(Exit::Success);
    }
    ui.line(text!("{}: {}, no errors", name, diag::count_noun(plan.resources.len() as u64, "resource")));
    Ok(Exit::Success)
}

/// Runs `ensign apply`.
pub fn apply(args: &LocalApplyArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    if args.noop && args.health_check_only {
        return Err(CliError::usage("cannot set healthcheck only and noop mode at the same time")
            .hint("use --noop or --health-check-only"));
    }
    if args.watch.watch {
        return watch::run(&args.watched_run()?, ui);
    }
    let result = run_apply(args, ui);
    if let (Err(failure), OutputFormat::Json | OutputFormat::Jsonl) = (&result, args.output) {
        ui.json(&json!({"events": [], "error": failure.message_text()}));
    }
    result
}

fn run_apply(args: &LocalApplyArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let waits = !args.noop && !args.health_check_only && !args.render;
    let cancel = waits.then(inputs::cancel_on_signals);
    let _turn = match &cancel {
        Some(cancel) => {
            let host = inputs::host().with_deadline(cancel.clone(), None);
            inputs::wait_for_run_lock(&format!("ensign apply {}", args.origin.label()), args.patience.wait, &host, ui)?
        }
        None => None,
    };
    // The unpacked files last until the run has ended.
    let PreparedApply { plan, host, exchange, cancel: heard, kept: _kept, .. } = prepare(&args.origin, &args.given, ui)?;
    tracing::info!(manifest = %args.origin.label(), resources = plan.resources.len(), "read the manifest");
    for warning in plan.warnings.iter().chain(&plan.failing) {
        ui.warn(warning);
    }
    if args.render {
        let mut rendered = plan.rendered();
        plan.secrets().redact_value(&mut rendered);
        ui.data(crate::yaml::to_string(&rendered).as_bytes());
        return Ok(Exit::Success);
    }
    if let Some(format) = args.graph {
        graph::print(&plan, format, ui);
        return Ok(Exit::Success);
    }
    if !args.noop {
        inputs::end_orphans(ui);
    }
    let host = inputs::with_progress(
        host.with_deadline(heard.or(cancel).unwrap_or_else(inputs::cancel_on_signals), None),
        args.output,
        ui,
    );
    let mut session = inputs::open_session(args.session.as_deref(), ui)?;
    session.start(host.now(), host.new_id()).map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    let settings = RunSettings {
        noop: args.noop,
        health_check_only: args.health_check_only,
        selection: None,
        outputs: engine::OutputStore::default(),
        parallelism: args.parallelism.unwrap_or_else(engine::default_parallelism),
        diff: Diff::when(args.diff),
        omit_details: args.output == OutputFormat::Text && args.session.is_none(),
        run_id: host.new_id(),
        node: None,
        authorizer: None,
        refreshes: refreshes::pending_refreshes()?,
        reversals: reversals::reversal_store(&args.origin, ui)?,
        registrar: exchange.filter(|_| args.register),
        pseudonymize: None,
        unconfined_thread: None,
    };
    if let (OutputFormat::Text, Some(message), false) = (args.output, &plan.pre_message, args.brief) {
        ui.lines(message);
        ui.line("");
    }
    let width = render::label_width(plan.resources.iter().map(engine::plan::PlannedResource::width));
    let mut events = Vec::new();
    let mut recording = args.recording(&plan, settings.run_id, &host);
    let report = engine::run(&plan, &settings, &host, session.as_mut(), &mut |event| {
        recording.event(&event);
        match args.output {
            OutputFormat::Text if args.brief && is_as_wanted(&event) => {}
            OutputFormat::Text => print_event(ui, &event, width),
            OutputFormat::Json => events.push(event),
            OutputFormat::Jsonl => {
                ui.jsonl(&event);
                ui.flush();
            }
        }
    });
    inputs::finish_recording(recording, &report, &host, ui);
    let unpublished: usize = plan.resources.iter().map(|planned| planned.common.register_when_stable.len()).sum();
    if unpublished > 0 && !args.register && !args.noop && !args.brief {
        let unpublished = diag::count_noun(unpublished as u64, "registration");
        ui.message(text!("{} not published; --register publishes them, and so does an agent", unpublished));
    }
    match args.output {
        OutputFormat::Text => {
            if let (Some(message), 0, false) = (&plan.post_message, report.summary.total_errors, args.brief) {
                ui.line("");
                ui.lines(message);
            }
            if !args.no_report {
                if !args.brief || report.summary.stable_resources < report.summary.total_resources {
                    ui.line("");
                }
                ui.line(render::summary_line(ui, &report.summary, args.noop));
            }
        }
        OutputFormat::Json => ui.json(&json!({"events": events, "summary": report.summary})),
        OutputFormat::Jsonl => ui.jsonl(&report.summary),
    }
    let skipped = report.unreached;
    let unreached =
        format!("{} {} not reached", diag::count_noun(skipped as u64, "resource"), if skipped == 1 { "was" } else { "were" });
    if let Some(error) = &report.error {
        ui.error(Diagnostic::new(format!("the run stopped because its session could not be written: {error}")));
    } else if inputs::exit_of_report(&report, false) == Exit::Partial {
        ui.error(Diagnostic::new(format!("the run was cancelled; {unreached}")));
    } else if skipped > 0 {
        ui.message(text!("stopped at the first failure (fail_on_error); {}", unreached));
    }
    // The process ends here: freeing its memory piece by piece would be a twentieth of a converged run.
    std::mem::forget((plan, session));
    Ok(inputs::exit_of_report(&report, args.detailed_exitcodes))
}

fn is_as_wanted(event: &TransactionEvent) -> bool {
    event.outcome() == ResourceOutcome::Stable && event.pending_refreshes.is_empty()
}
