//! `ensign apply --watch`: keeps a manifest in force on this host. Drift is repaired when it happens.
//!
//! The first pass checks every resource. Later passes check the resources that may have changed. A change of the manifest puts
//! the new one in force: only its new and changed resources run.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::diag::{self, Diagnostic};
use crate::engine::reactive::{Enforcer, NamedNotice, Notice, RecordedEvent, StateCounts, watched_resources};
use crate::engine::{self, Diff, OutputStore, RefreshStore, ReversalStore, RunSelection, RunSettings};
use crate::host::Cancel;
use crate::model::{HumanDuration, ResourceOutcome, RunOutcome, TransactionEvent, WatchTarget};
use crate::store::MemorySession;
use crate::store::history::{Recording, RunStart};

use super::manifest_source::ManifestSource;
use super::prepare::{PreparedApply, prepare, print_event};
use super::refreshes;
use super::reload_timer::ReloadTimer;
use super::reversals;
use super::value_watch::ValueWatch;
use crate::cli::error::{CliError, Exit};
use crate::cli::local::inputs::{self, InputArgs, OutputFormat};
use crate::cli::render;
use crate::cli::ui::{Ui, text};

/// Arguments of a run that keeps the manifest in force.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct WatchArgs {
    /// Keep running: repair drift when it happens, and apply the manifest again when its file changes.
    #[arg(long)]
    pub(super) watch: bool,
    /// Time between two checks of all resources, beside the watches [default: 30m].
    #[arg(long, value_name = "TIME", requires = "watch")]
    interval: Option<HumanDuration>,
    /// Report when everything was as wanted for this time, and when it no longer is.
    #[arg(long, value_name = "TIME", requires = "watch")]
    converged_timeout: Option<HumanDuration>,
    /// End when converged, or when failures are all that is left for that time. The exit code tells failures.
    #[arg(long, requires = "converged_timeout")]
    converged_exit: bool,
}

/// Time between two checks of all resources, unless the command line has another one.
const INTERVAL: Duration = Duration::from_secs(30 * 60);

/// The settings of a run that keeps a manifest in force.
pub(super) struct WatchedRun<'a> {
    /// The manifest.
    pub(super) origin: &'a ManifestSource,
    /// Facts and data.
    pub(super) given: &'a InputArgs,
    /// The arguments of watching.
    pub(super) watch: &'a WatchArgs,
    /// True to report drift without repairs.
    pub(super) noop: bool,
    /// True to show the changes of content.
    pub(super) diff: bool,
    /// True to publish registrations.
    pub(super) registers: bool,
    /// The longest wait for another run of this host.
    pub(super) wait: HumanDuration,
    /// The number of resources that may run at the same time.
    pub(super) parallelism: NonZeroUsize,
    /// The format of events.
    pub(super) output: OutputFormat,
    /// True to exit with 10 after changes without failures.
    pub(super) detailed_exitcodes: bool,
}

/// Keeps the manifest in force, until a signal or the end of `--converged-exit`.
///
/// # Errors
/// When the manifest is wrong at the start, or the host has no watches.
pub(super) fn run(wanted: &WatchedRun<'_>, ui: &mut Ui) -> Result<Exit, CliError> {
    let timeout = wanted.watch.converged_timeout.map(HumanDuration::as_std);
    let mut enforcer = Enforcer::open(timeout).map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    // Watched before they are read, so that no change in between is lost.
    enforcer.watch_manifest(&manifest_sources(wanted, None, &BTreeSet::new()));
    let in_force = prepare(wanted.origin, wanted.given, ui)?;
    print_warnings(&in_force, ui);
    let cancel = Cancel::default();
    let (heard, waker) = (cancel.clone(), enforcer.waker());
    let mut signals = Signals::new([SIGINT, SIGTERM])
        .map_err(|error| CliError::new(Exit::Failed, Diagnostic::new(format!("cannot wait for signals: {error}"))))?;
    // A signal must end the wait for changes: the thread wakes the one that waits.
    std::thread::spawn(move || {
        for _ in signals.forever() {
            heard.cancel();
            waker.wake();
        }
    });
    let value = wanted.given.watched_value()?;
    let waker = enforcer.waker();
    let mut state = WatchState {
        wanted,
        value: value.map(|(settings, bucket, key)| ValueWatch::start(settings, bucket, key, waker)),
        in_force,
        enforcer,
        cancel,
        refreshes: refreshes::pending_refreshes()?,
        outputs: OutputStore::default(),
        reload: ReloadTimer::default(),
        template_files: BTreeSet::new(),
        reversals: reversals::reversal_store(wanted.origin, ui)?,
        width: 0,
        last_change: Instant::now(),
        has_changed: false,
        is_first: true,
        is_new_manifest: true,
        failures: None,
    };
    state.put_in_force(false, ui);
    state.keep(ui)
}

struct WatchState<'a> {
    wanted: &'a WatchedRun<'a>,
    in_force: PreparedApply,
    enforcer: Enforcer,
    cancel: Cancel,
    refreshes: Option<Arc<dyn RefreshStore>>,
    outputs: OutputStore,
    reload: ReloadTimer,
    /// The value of a bucket with the data, if there is one.
    value: Option<ValueWatch>,
    /// The files that templates have read so far.
    template_files: BTreeSet<PathBuf>,
    reversals: Option<Arc<dyn ReversalStore>>,
    /// The width of the column of resources.
    width: usize,
    /// The last change of a resource or of the manifest.
    last_change: Instant,
    has_changed: bool,
    /// True until a pass has begun.
    is_first: bool,
    /// True until the manifest in force had a pass.
    is_new_manifest: bool,
    /// The failures at the end of the last pass that no signal interrupted; none before.
    failures: Option<u32>,
}

impl WatchState<'_> {
    fn keep(&mut self, ui: &mut Ui) -> Result<Exit, CliError> {
        let interval = self.wanted.watch.interval.map_or(INTERVAL, HumanDuration::as_std);
        let mut sweep_at = Instant::now() + interval;
        loop {
            let mut is_interrupted = false;
            while !is_interrupted && let Some(selection) = self.next_selection() {
                is_interrupted = self.pass(selection, ui);
            }
            if !is_interrupted {
                self.failures = Some(failures(&self.enforcer.counts()));
            }
            let mut has_converged = false;
            for notice in self.enforcer.notices() {
                has_converged |= matches!(notice.notice, Notice::Converged { .. });
                self.print_notice(&notice, ui);
            }
            ui.flush();
            let settled_at = self.settled_at();
            if self.cancel.is_cancelled()
                || (self.wanted.watch.converged_exit && (has_converged || settled_at.is_some_and(|at| at <= Instant::now())))
            {
                return Ok(self.exit());
            }
            let until = [settled_at, self.reload.due_at()].into_iter().flatten().fold(sweep_at, Instant::min);
            self.enforcer.wait(Some(until)).map_err(|error| CliError::from_error(Exit::Failed, &error))?;
            let now = Instant::now();
            let has_new_value = self.value.as_ref().is_some_and(ValueWatch::has_changed);
            if self.enforcer.manifest_changed() || has_new_value {
                self.reload.changed(now);
            }
            let is_sweep = now >= sweep_at;
            if self.reload.expire(now) || is_sweep {
                self.reload(ui);
            }
            if is_sweep {
                sweep_at = now + interval;
                self.enforcer.sweep(now);
            }
        }
    }

    /// Returns the resources that are due. After a new manifest, there is a pass in any case: a pass ends with the reversals.
    fn next_selection(&mut self) -> Option<RunSelection> {
        let has_reversals = std::mem::take(&mut self.is_new_manifest) && self.reversals.is_some();
        self.enforcer.start(Instant::now()).or_else(|| has_reversals.then(RunSelection::default))
    }

    /// Returns the time at which failures are all that is left, for `--converged-exit`.
    fn settled_at(&self) -> Option<Instant> {
        let timeout = self.wanted.watch.converged_timeout.filter(|_| self.wanted.watch.converged_exit)?;
        let counts = self.enforcer.counts();
        let is_waiting = counts.awaiting_watch + counts.dirty + counts.running + counts.flapping > 0;
        (!is_waiting && failures(&counts) > 0).then(|| self.last_change + timeout.as_std())
    }

    fn exit(&self) -> Exit {
        match self.failures {
            None => Exit::Partial,
            Some(0) if self.has_changed && self.wanted.detailed_exitcodes => Exit::Changed,
            Some(0) => Exit::Success,
            Some(_) => Exit::Failed,
        }
    }

    /// Puts the planned manifest in force, and reports its resources, unless nothing is new.
    fn put_in_force(&mut self, is_same: bool, ui: &mut Ui) {
        self.width = render::label_width(self.in_force.plan.resources.iter().map(engine::plan::PlannedResource::width));
        let (plan, host) = (&self.in_force.plan, &self.in_force.host);
        self.enforcer.watch_manifest(&manifest_sources(self.wanted, host.directory(), &self.template_files));
        let replaced = self.enforcer.replace(watched_resources(plan, None, host), Instant::now());
        if is_same && replaced.new == 0 {
            return;
        }
        self.last_change = Instant::now();
        for (resource, why) in &replaced.polled {
            tracing::info!(%resource, "checked at intervals only: {why}");
        }
        let polled = match replaced.polled.len() {
            0 => String::new(),
            count => format!("; {} checked at intervals only: {}", count, replaced.polled.first().map_or("", |(_, why)| why)),
        };
        let resources = diag::count_noun((replaced.kept + replaced.new) as u64, "resource");
        let news = if replaced.kept > 0 { format!(", {} new or changed", replaced.new) } else { String::new() };
        ui.message(text!("watching {}: {}{}{}", self.in_force.name, resources, news, polled));
    }

    /// Watches also the files that templates have read. A file may change before its watch, so the manifest is then read again.
    fn watch_template_files(&mut self) {
        // Unpacked files do not change.
        let read = if self.in_force.kept.is_none() { self.in_force.plan.template_files() } else { Vec::new() };
        let known = self.template_files.len();
        self.template_files.extend(read);
        if self.template_files.len() > known {
            let sources = manifest_sources(self.wanted, self.in_force.host.directory(), &self.template_files);
            self.enforcer.watch_manifest(&sources);
            self.reload.found_sources(Instant::now());
        }
    }

    /// Reads the manifest again. A wrong one leaves the manifest in force as it is.
    fn reload(&mut self, ui: &mut Ui) {
        match prepare(self.wanted.origin, self.wanted.given, ui) {
            Ok(next) => {
                let is_same = next.plan.manifest == self.in_force.plan.manifest;
                self.in_force = next;
                self.is_new_manifest |= !is_same;
                if !is_same {
                    print_warnings(&self.in_force, ui);
                }
                self.put_in_force(is_same, ui);
            }
            Err(failure) => {
                for diagnostic in failure.diagnostics {
                    ui.error(diagnostic);
                }
                ui.message("the new manifest is not applied; the previous one stays in force");
            }
        }
    }

    /// Checks the selected resources, and repairs them. Returns true when a signal interrupted the work.
    fn pass(&mut self, selection: RunSelection, ui: &mut Ui) -> bool {
        let host = inputs::host().with_deadline(self.cancel.clone(), None);
        let what = format!("ensign apply --watch {}", self.wanted.origin.label());
        let turn = if self.wanted.noop { Ok(None) } else { inputs::wait_for_run_lock(&what, self.wanted.wait, &host, ui) };
        let _turn = match turn {
            Ok(turn) => turn,
            Err(failure) => {
                // The pass counts as failed, and is tried again later.
                failure.diagnostics.into_iter().for_each(|diagnostic| ui.error(diagnostic));
                self.enforcer.end_pass(Instant::now());
                return self.cancel.is_cancelled();
            }
        };
        let host = match self.in_force.host.directory() {
            Some(directory) => host.with_directory(directory),
            None => host,
        };
        let is_first = std::mem::take(&mut self.is_first);
        let settings = self.settings(selection, host.new_id());
        let plan = &self.in_force.plan;
        let width = self.width;
        let mut recording = None;
        let (enforcer, output, wanted) = (&mut self.enforcer, self.wanted.output, self.wanted);
        let mut has_changed = false;
        let report = engine::run(plan, &settings, &host, &mut MemorySession::default(), &mut |event: TransactionEvent| {
            let RecordedEvent { repair, is_repeated } = enforcer.record(&event, Instant::now());
            let is_quiet = is_repeated || matches!(event.outcome(), ResourceOutcome::Stable);
            // A change that only the policy of a resource forbids is none of this run.
            has_changed |= event.changed && !is_repeated && (wanted.noop || !event.noop);
            match output {
                OutputFormat::Text if is_quiet => {}
                OutputFormat::Text => {
                    print_event(ui, &event, width);
                    if let Some(repair) = repair {
                        ui.line(text!("      repaired {} after the change", render::duration(repair.latency)));
                    }
                }
                OutputFormat::Json | OutputFormat::Jsonl if is_quiet && !is_first => {}
                OutputFormat::Json | OutputFormat::Jsonl => ui.jsonl(&event),
            }
            // Most passes find a resource as wanted: only the others are in the history of runs.
            if !wanted.noop && (is_first || !is_quiet) && recording.is_none() {
                recording = Some(Recording::begin(inputs::history().as_ref(), &run_start(&settings, plan, &host)));
            }
            if let Some(recording) = &mut recording {
                recording.event(&event);
            }
        });
        self.enforcer.end_pass(Instant::now());
        self.watch_template_files();
        for (resource, targets) in &report.late_targets {
            self.enforcer.watch_late(resource, targets);
        }
        if has_changed {
            (self.last_change, self.has_changed) = (Instant::now(), true);
        }
        if let Some(recording) = recording {
            inputs::finish_recording(recording, &report, &host, ui);
        }
        if is_first && self.wanted.output == OutputFormat::Text {
            ui.line(render::summary_line(ui, &report.summary, self.wanted.noop));
        }
        if let Some(error) = &report.error {
            ui.error(Diagnostic::new(format!("the pass stopped: {error}")));
        }
        ui.flush();
        self.cancel.is_cancelled() && matches!(report.outcome, RunOutcome::Interrupted | RunOutcome::Failed)
    }

    fn settings(&self, selection: RunSelection, run_id: uuid::Uuid) -> RunSettings {
        RunSettings {
            noop: self.wanted.noop,
            health_check_only: false,
            selection: Some(Arc::new(selection)),
            outputs: self.outputs.clone(),
            parallelism: self.wanted.parallelism,
            diff: Diff::when(self.wanted.diff),
            omit_details: self.wanted.output == OutputFormat::Text,
            run_id,
            node: None,
            authorizer: None,
            refreshes: self.refreshes.clone(),
            reversals: self.reversals.clone(),
            registrar: self.in_force.exchange.clone().filter(|_| self.wanted.registers),
            pseudonymize: None,
            unconfined_thread: None,
        }
    }

    fn print_notice(&self, notice: &NamedNotice, ui: &mut Ui) {
        if self.wanted.output != OutputFormat::Text {
            ui.jsonl(&json!({ "notice": describe(notice), "resource": notice.resource.as_ref().map(ToString::to_string) }));
            return;
        }
        match notice.notice {
            Notice::Converged { .. } | Notice::Diverged | Notice::FlappingEnded { .. } => ui.message(describe(notice)),
            Notice::WouldChange { .. } => {}
            Notice::Parked { .. } | Notice::FlappingBegan { .. } => ui.warn(Diagnostic::new(describe(notice))),
        }
    }
}

/// Returns a sentence about a transition.
fn describe(named: &NamedNotice) -> String {
    let resource = named.resource.as_ref().map(ToString::to_string).unwrap_or_default();
    match named.notice {
        Notice::WouldChange { .. } => format!("{resource} needs a change, and is only observed"),
        Notice::Parked { failures, .. } => {
            format!("{resource} failed {failures} times; the next event or sweep tries again")
        }
        Notice::FlappingBegan { repairs, span, .. } => {
            let writer = named.writer.as_ref().map(|writer| format!(", last by {writer}")).unwrap_or_default();
            format!(
                "{resource} is flapping: repaired {repairs} times within {}, and changed again each time{writer}; checks now have pauses",
                render::duration(span)
            )
        }
        Notice::FlappingEnded { repairs, span, .. } => {
            format!("{resource} is no longer flapping, after {repairs} repairs within {}", render::duration(span))
        }
        Notice::Converged { would_change: 0 } => "converged: everything is as wanted".to_owned(),
        Notice::Converged { would_change } => {
            format!("converged: {} would change", diag::count_noun(u64::from(would_change), "resource"))
        }
        Notice::Diverged => "no longer converged".to_owned(),
    }
}

fn failures(counts: &StateCounts) -> u32 {
    counts.failed + counts.parked + counts.blocked
}

fn print_warnings(prepared: &PreparedApply, ui: &mut Ui) {
    for warning in prepared.plan.warnings.iter().chain(&prepared.plan.failing) {
        ui.warn(warning);
    }
}

/// Returns the sources of a manifest: its own file, those of facts and data, and what its templates read.
fn manifest_sources(wanted: &WatchedRun<'_>, directory: Option<&Path>, read: &BTreeSet<PathBuf>) -> Vec<WatchTarget> {
    let own = wanted.origin.file().into_iter().chain(read.iter().cloned());
    let absolute = own.filter_map(|path| std::path::absolute(path).ok()).map(WatchTarget::Path);
    absolute.chain(wanted.given.watches(directory)).collect()
}

fn run_start(settings: &RunSettings, plan: &engine::Plan, host: &crate::host::Host) -> RunStart {
    let manifest = plan.manifest.as_ref();
    RunStart {
        run_id: settings.run_id,
        started: host.now(),
        what: manifest.map(|manifest| manifest.source.clone()).unwrap_or_default(),
        digest: manifest.and_then(|manifest| manifest.digest.clone()),
    }
}
