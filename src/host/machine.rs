//! The machine as providers see it, during one run.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use uuid::{ContextV7, Uuid};

use crate::model::{Effect, ResourceLimits, Secrets, lock};

use super::account::Accounts;
use super::cancel::Cancel;
use super::clock::{Clock, SystemClock};
use super::command::{CommandError, Output, ProcessCommand, Runner, SystemRunner};
use super::fs::{self, FsError};
use super::journal::Journal;
use super::package_cache::PackageCache;
use super::paths::{self, PathResolver};
use super::progress::{ProgressEvent, ProgressListener};
use super::run_scope::RunScope;
use super::systemd::Systemd;
use super::{dpkg, rpm};

/// An open file that may be read.
#[derive(Debug)]
pub struct ReadableFile {
    file: std::fs::File,
    path: PathBuf,
}

impl ReadableFile {
    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the open file, with links resolved.
    ///
    /// # Errors
    /// When the system call fails.
    pub fn real(&self) -> Result<PathBuf, FsError> {
        std::fs::read_link(fs::descriptor_path(&self.file)).map_err(|error| FsError::io("find the path of", &self.path, error))
    }

    /// Reads the file as text of at most `limit` bytes.
    ///
    /// # Errors
    /// When it can't be read, is larger, or is not UTF-8.
    pub fn text(self, limit: u64) -> Result<String, FsError> {
        String::from_utf8(fs::read_open(self.file, &self.path, limit)?).map_err(|_| FsError::NotText(self.path))
    }
}

/// The effects of resources that would have changed in a dry run.
#[derive(Debug, Clone, Default)]
pub(super) struct DryRunEffects {
    pub(super) done: Arc<Mutex<Vec<Effect>>>,
    pub(super) undone: Arc<Mutex<Vec<Effect>>>,
}

/// The machine as providers see it, during one run.
///
/// A run has its own `Host`, which caches accounts and package databases. Its cancel flag and deadline apply to every command.
#[derive(Clone)]
pub struct Host {
    scope: RunScope,
    clock: Arc<dyn Clock>,
    accounts: Arc<Accounts>,
    software: Arc<PackageCache>,
    ids: Arc<Mutex<ContextV7>>,
    directory: Option<PathBuf>,
    bounds: Arc<ResourceLimits>,
    audience: Option<ProgressListener>,
    secrets: Option<Arc<Secrets>>,
    root: PathBuf,
    pub(super) foreseen: Option<DryRunEffects>,
}

impl Host {
    /// Creates the real host. `search_path` is the search path of bare command names, written as `PATH` is.
    pub fn system(search_path: Option<&str>) -> Self {
        Self::with_runner(SystemRunner::new(search_path))
    }

    /// Creates the real host, which records every running command in this journal.
    pub fn with_journal(search_path: Option<&str>, journal: Arc<Journal>) -> Self {
        Self::with_runner(SystemRunner::new(search_path).with_journal(journal))
    }

    fn with_runner(runner: SystemRunner) -> Self {
        let host = Self::new(Arc::new(runner), Arc::new(SystemClock));
        Self { software: Arc::new(PackageCache::system()), ..host }
    }

    /// Creates a host with this runner of commands and this clock.
    pub fn new(runner: Arc<dyn Runner>, clock: Arc<dyn Clock>) -> Self {
        Self {
            scope: RunScope { runner, cancel: Cancel::default(), deadline: None, has_attempt_timeout: false },
            clock,
            accounts: Arc::default(),
            software: Arc::new(PackageCache::without_bus()),
            ids: Arc::new(Mutex::new(ContextV7::new())),
            directory: None,
            bounds: Arc::default(),
            audience: None,
            secrets: None,
            root: PathBuf::from("/"),
            foreseen: None,
        }
    }

    /// Returns the same host, with the system's own files below `root`.
    #[cfg(test)]
    #[must_use]
    pub fn with_root(mut self, root: &Path) -> Self {
        self.accounts = Arc::new(Accounts::in_directory(root.join("etc")));
        self.software = Arc::new(PackageCache::with_root(root));
        root.clone_into(&mut self.root);
        self
    }

    /// Returns the same host, which resolves relative sources in `directory`.
    #[must_use]
    pub fn with_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Returns the same host with a listener for progress.
    #[must_use]
    pub fn with_listener(mut self, audience: ProgressListener) -> Self {
        self.audience = Some(audience);
        self
    }

    /// Returns the same host, which redacts these secrets in the outputs of programs.
    #[must_use]
    pub fn with_secrets(mut self, secrets: Arc<Secrets>) -> Self {
        self.secrets = Some(secrets);
        self
    }

    /// The last characters, at most `limit`, of the output of a command, with the secrets of this run redacted.
    pub fn output_excerpt(&self, output: &Output, limit: usize) -> String {
        output.excerpt(limit, self.secrets.as_deref())
    }

    /// Shows a sentence to the user, as about a wait.
    pub fn notify(&self, what: &str) {
        self.notify_listener(ProgressEvent::Message(what));
    }

    /// Reports that the run begins to handle resources.
    pub fn notify_started(&self, kind: &str, name: &str, others: usize) {
        self.notify_listener(ProgressEvent::ResourceStarted { kind, name, others });
    }

    /// Reports the end of the current resources.
    pub fn notify_ended(&self) {
        self.notify_listener(ProgressEvent::ResourceEnded);
    }

    /// Returns the same host, for work that ends when `cancel` is set or `deadline` has passed.
    #[must_use]
    pub fn with_deadline(mut self, cancel: Cancel, deadline: Option<Instant>) -> Self {
        self.scope = RunScope { cancel, deadline, ..self.scope };
        self
    }

    /// Returns the same host, with limits for fetching and unpacking.
    #[must_use]
    pub fn with_limits(mut self, bounds: ResourceLimits) -> Self {
        self.bounds = Arc::new(bounds);
        self
    }

    /// Returns the limits of fetching and unpacking.
    pub fn limits(&self) -> &ResourceLimits {
        &self.bounds
    }

    /// Sends an event to the listener.
    pub(super) fn notify_listener(&self, news: ProgressEvent<'_>) {
        if let Some(audience) = &self.audience {
            audience(news);
        }
    }

    /// Returns the same host, for work that ends after `time` at the latest.
    #[must_use]
    pub fn with_timeout(mut self, time: Duration) -> Self {
        let until = Instant::now() + time;
        self.scope.deadline = Some(self.scope.deadline.map_or(until, |deadline| deadline.min(until)));
        self
    }

    /// Returns the same host, for an attempt with a timeout of its own. Commands have no other limit.
    #[must_use]
    pub fn with_attempt_timeout(self, time: Duration) -> Self {
        let mut host = self.with_timeout(time);
        host.scope.has_attempt_timeout = true;
        host
    }

    /// True within an attempt that has a timeout of its own.
    pub fn has_attempt_timeout(&self) -> bool {
        self.scope.has_attempt_timeout
    }

    /// The current time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Creates a UUIDv7. Later ones sort after earlier ones, also within a millisecond.
    pub fn new_id(&self) -> Uuid {
        let now = self.clock.now();
        let seconds = u64::try_from(now.as_second()).unwrap_or(0);
        let nanos = u32::try_from(now.subsec_nanosecond()).unwrap_or(0);
        let context = lock(&self.ids);
        Uuid::new_v7(uuid::Timestamp::from_unix(&*context, seconds, nanos))
    }

    /// Users and groups.
    pub fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// The database of dpkg.
    pub fn dpkg(&self) -> Arc<dpkg::Dpkg> {
        Arc::clone(&self.software.dpkg)
    }

    /// The database of rpm.
    pub fn rpm(&self) -> Arc<rpm::Rpm> {
        Arc::clone(&self.software.rpm)
    }

    /// systemd over D-Bus; none without a bus.
    pub fn systemd(&self) -> Option<Arc<Systemd>> {
        self.software.systemd()
    }

    /// Returns a file of the system by its fixed path, as `/etc/cron.d`. Tests place it below another root.
    pub fn system_path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The directory of the manifest.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// Returns an absolute `path` unchanged, and a relative one in the directory of the manifest.
    pub fn resolve(&self, path: &Path) -> PathBuf {
        match &self.directory {
            Some(directory) if path.is_relative() => directory.join(path),
            _ => path.to_owned(),
        }
    }

    /// Returns the resolver of paths that resources manage. With `follow`, links of any owner are followed.
    pub fn managed_paths(&self, follow: bool) -> PathResolver<'_> {
        PathResolver::new(follow).within(self.bounds.write_paths.as_ref().map(|paths| paths.iter().map(Path::new).collect()))
    }

    /// Returns the resolver of files that resources and templates read. Allowed are the directory of the manifest and the
    /// readable paths of the limits. The owner of that directory decides about the run, and may make links.
    pub fn source_paths(&self, follow: bool) -> PathResolver<'_> {
        let within = self
            .bounds
            .read_paths
            .as_ref()
            .map(|paths| self.directory.as_deref().into_iter().chain(paths.iter().map(Path::new)).collect());
        PathResolver::new(follow).trusting(self.directory.as_deref().and_then(paths::owner_of)).within(within)
    }

    /// Opens a regular file that a template may read. The file is in the directory of the manifest, or in the readable paths of
    /// the limits.
    ///
    /// # Errors
    /// A message, when the file is not allowed or can't be opened.
    pub fn open_readable(&self, path: &Path) -> Result<ReadableFile, String> {
        let path = self.resolve(path);
        match self.source_paths(false).open(&path) {
            Ok((file, _)) => Ok(ReadableFile { file, path }),
            Err(FsError::NotAllowed(_)) => Err(format!("templates may not read \"{}\" on this node", path.display())),
            Err(error) => Err(crate::diag::error_chain(&error)),
        }
    }

    /// True for a path, with links resolved, in the directory of the manifest.
    pub fn is_in_manifest_directory(&self, real: &Path) -> bool {
        self.directory.as_deref().is_some_and(|directory| is_plain(real) && real.starts_with(fs::resolve_links(directory)))
    }

    /// The scope of this run: its runner of commands, its cancel flag and its deadline.
    pub fn scope(&self) -> &RunScope {
        &self.scope
    }

    /// The cancel flag of this run.
    pub fn cancel(&self) -> &Cancel {
        &self.scope.cancel
    }

    /// True when this run is cancelled or its deadline has passed.
    pub fn is_over(&self) -> bool {
        self.scope.is_over()
    }

    /// Sleeps for `time`, at most until this run is over.
    pub fn sleep(&self, time: Duration) {
        self.scope.sleep(time);
    }

    /// Runs a command to its end, within its own timeout and the deadline of this run.
    ///
    /// # Errors
    /// When the command can't be started, is killed by a signal, or exceeds its time.
    pub fn run(&self, command: &ProcessCommand) -> Result<Output, CommandError> {
        self.scope.run(command)
    }
}

/// True for a path without `..`.
fn is_plain(path: &Path) -> bool {
    !path.components().any(|part| part == std::path::Component::ParentDir)
}
