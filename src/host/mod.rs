//! The only door to the operating system: commands, files, accounts, the clock.
//!
//! [`Host`] is what every provider gets. Commands and the clock sit behind traits, so that unit
//! tests can script them (`fake.rs`); files are real, tests use temporary directories.
//! `store` is the one other module that writes files: the program's own state.

pub mod account;
pub mod checkpoint;
pub mod child;
pub mod command;
pub mod confine;
pub mod dpkg;
mod dry_run_effects;
#[cfg(test)]
pub mod fake;
pub mod fs;
pub mod journal;
pub mod kernel;
pub mod lock;
pub mod lstat;
pub mod orphans;
mod package_cache;
pub mod passwd;
pub mod paths;
pub mod progress;
pub mod resumable_file;
pub mod rpm;
pub mod run_lock;
pub mod ssh_agent;
pub mod systemd;
pub mod terminal;
pub mod tree;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use uuid::{ContextV7, Uuid};

use crate::model::{ResourceLimits, Secrets};

use package_cache::Software;

pub use account::{AccountError, Accounts};
pub use checkpoint::{Checkpoint, checkpoint};
pub use command::{Command, CommandError, Output, Runner, SystemRunner};
pub use fs::{FsError, WriteSpec};
pub use journal::Journal;
pub use orphans::Orphans;
pub use package_cache::DPKG_DIRECTORY;
pub use paths::{DirEntryHandle, PathInfo, PathResolver};
pub use progress::{Meter, Progress, ProgressEvent, ProgressListener};
pub use run_lock::{RunLock, RunLockError, Share};
pub use systemd::{Systemd, SystemdError, Unit};

/// Interval between two checks of the cancel flag by code that waits.
pub(crate) const CANCEL_POLL: Duration = Duration::from_millis(50);

/// The source of the time.
pub trait Clock: Send + Sync {
    /// The wall clock.
    fn now(&self) -> Timestamp;
}

/// The clock of the machine.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// A flag that ends work early; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Asks everything that holds a clone to stop.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// The flag itself, for a handler of signals to set.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    /// True after a request to cancel.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A file that may be read, opened.
#[derive(Debug)]
pub struct Readable {
    file: std::fs::File,
    path: PathBuf,
}

impl Readable {
    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path that the open file has, whatever links led to it.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn real(&self) -> Result<PathBuf, FsError> {
        std::fs::read_link(fs::path_of(&self.file)).map_err(|error| FsError::io("find the path of", &self.path, error))
    }

    /// The whole of it, text of at most `limit` bytes.
    ///
    /// # Errors
    /// When it can't be read, is larger, or is not UTF-8.
    pub fn text(self, limit: u64) -> Result<String, FsError> {
        String::from_utf8(fs::read_open(self.file, &self.path, limit)?).map_err(|_| FsError::NotText(self.path))
    }
}

/// The machine as providers see it, for the length of one run.
///
/// A run has its own `Host`. The host caches accounts and software.
/// The cancel flag and the deadline travel with it into every command.
#[derive(Clone)]
pub struct Host {
    runner: Arc<dyn Runner>,
    clock: Arc<dyn Clock>,
    accounts: Arc<Accounts>,
    software: Arc<Software>,
    ids: Arc<Mutex<ContextV7>>,
    cancel: Cancel,
    deadline: Option<Instant>,
    directory: Option<PathBuf>,
    bounds: Arc<ResourceLimits>,
    audience: Option<ProgressListener>,
    secrets: Option<Arc<Secrets>>,
    root: PathBuf,
    foreseen: Option<dry_run_effects::DryRunEffects>,
}

impl Host {
    /// The real machine. `search_path` is where bare command names are looked for, as in `PATH`.
    pub fn system(search_path: Option<&str>) -> Self {
        Self::running(SystemRunner::new(search_path))
    }

    /// The real machine, with every command in this journal while it runs.
    pub fn recorded(search_path: Option<&str>, journal: Arc<Journal>) -> Self {
        Self::running(SystemRunner::new(search_path).recorded(journal))
    }

    fn running(runner: SystemRunner) -> Self {
        let host = Self::new(Arc::new(runner), Arc::new(SystemClock));
        Self { software: Arc::new(Software::system()), ..host }
    }

    /// A machine with the given way of running commands and telling the time.
    pub fn new(runner: Arc<dyn Runner>, clock: Arc<dyn Clock>) -> Self {
        Self {
            runner,
            clock,
            accounts: Arc::default(),
            software: Arc::new(Software::without_bus()),
            ids: Arc::new(Mutex::new(ContextV7::new())),
            cancel: Cancel::default(),
            deadline: None,
            directory: None,
            bounds: Arc::default(),
            audience: None,
            secrets: None,
            root: PathBuf::from("/"),
            foreseen: None,
        }
    }

    /// The same machine, with the system's own files below `root`.
    #[cfg(test)]
    #[must_use]
    pub fn rooted(mut self, root: &Path) -> Self {
        self.accounts = Arc::new(Accounts::in_directory(root.join("etc")));
        self.software = Arc::new(Software::below(root));
        root.clone_into(&mut self.root);
        self
    }

    /// The same machine, with relative sources looked for in `directory`.
    #[must_use]
    pub fn in_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Returns the same machine with a listener for progress.
    #[must_use]
    pub fn with_listener(mut self, audience: ProgressListener) -> Self {
        self.audience = Some(audience);
        self
    }

    /// The same machine, for work whose programs may print these secrets.
    #[must_use]
    pub fn hiding(mut self, secrets: Arc<Secrets>) -> Self {
        self.secrets = Some(secrets);
        self
    }

    /// The last characters, at most `limit`, of what a command said, for people: without the secrets of this run.
    pub fn said(&self, output: &Output, limit: usize) -> String {
        output.said(limit, self.secrets.as_deref())
    }

    /// Says what a person should know while it lasts, as that something is waited for.
    pub fn notify(&self, what: &str) {
        self.notify_listener(ProgressEvent::Said(what));
    }

    /// Says that resources have their turn.
    pub fn begins(&self, kind: &str, name: &str, others: usize) {
        self.notify_listener(ProgressEvent::Begins { kind, name, others });
    }

    /// Says that what began has ended.
    pub fn ends(&self) {
        self.notify_listener(ProgressEvent::Ends);
    }

    /// The same machine, for work that ends when `cancel` says so or `deadline` has passed.
    #[must_use]
    pub fn bounded(mut self, cancel: Cancel, deadline: Option<Instant>) -> Self {
        self.cancel = cancel;
        self.deadline = deadline;
        self
    }

    /// The same machine, for work that fetches and unpacks no more than this.
    #[must_use]
    pub fn within(mut self, bounds: ResourceLimits) -> Self {
        self.bounds = Arc::new(bounds);
        self
    }

    /// Returns the limits of fetching and unpacking.
    pub fn bounds(&self) -> &ResourceLimits {
        &self.bounds
    }

    /// Notifies the listener.
    fn notify_listener(&self, news: ProgressEvent<'_>) {
        if let Some(audience) = &self.audience {
            audience(news);
        }
    }

    /// The same machine, for work that ends after `time` at the latest.
    #[must_use]
    pub fn for_at_most(mut self, time: Duration) -> Self {
        let until = Instant::now() + time;
        self.deadline = Some(self.deadline.map_or(until, |deadline| deadline.min(until)));
        self
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// A new UUIDv7; later ones sort after earlier ones, also within a millisecond.
    pub fn new_id(&self) -> Uuid {
        let now = self.clock.now();
        let seconds = u64::try_from(now.as_second()).unwrap_or(0);
        let nanos = u32::try_from(now.subsec_nanosecond()).unwrap_or(0);
        let context = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// systemd over D-Bus; none where there is no bus.
    pub fn systemd(&self) -> Option<Arc<Systemd>> {
        self.software.systemd()
    }

    /// Returns a file of the system by its fixed path, as `/etc/cron.d`.
    pub fn system_path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The directory of the manifest.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// `path` as it is when absolute, else in the directory of the manifest.
    pub fn resolve(&self, path: &Path) -> PathBuf {
        match &self.directory {
            Some(directory) if path.is_relative() => directory.join(path),
            _ => path.to_owned(),
        }
    }

    /// Returns the rules for opening paths that resources manage. With `follow`, links of any owner are followed.
    pub fn managed(&self, follow: bool) -> PathResolver<'_> {
        PathResolver::new(follow).within(self.bounds.write_paths.as_ref().map(|paths| paths.iter().map(Path::new).collect()))
    }

    /// Returns the rules for files that resources and templates read: in the directory of the manifest,
    /// and where the bounds of the run allow it. The owner of that directory decides about the run, and may make links.
    pub fn sources(&self, follow: bool) -> PathResolver<'_> {
        let within = self
            .bounds
            .read_paths
            .as_ref()
            .map(|paths| self.directory.as_deref().into_iter().chain(paths.iter().map(Path::new)).collect());
        PathResolver::new(follow).trusting(self.directory.as_deref().and_then(paths::owner_of)).within(within)
    }

    /// A regular file that a template may read, opened: in the directory of the manifest, or where the bounds of the run
    /// allow it.
    ///
    /// # Errors
    /// When it may not, or can't be opened, in words.
    pub fn readable(&self, path: &Path) -> Result<Readable, String> {
        let path = self.resolve(path);
        match self.sources(false).open(&path) {
            Ok((file, _)) => Ok(Readable { file, path }),
            Err(FsError::NotWithin(_)) => Err(format!("templates may not read \"{}\" on this node", path.display())),
            Err(error) => Err(crate::diag::chain(&error)),
        }
    }

    /// True for a path, without links, in the directory of the manifest.
    pub fn is_own(&self, real: &Path) -> bool {
        self.directory.as_deref().is_some_and(|directory| is_plain(real) && real.starts_with(fs::real(directory)))
    }

    /// The flag that ends this run.
    pub fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// True when this run should do no more.
    pub fn is_over(&self) -> bool {
        self.cancel.is_cancelled() || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Waits, at most until this run is over.
    pub fn sleep(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.is_over() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(CANCEL_POLL));
        }
    }

    /// Runs a command to its end, within its own timeout and this run's deadline.
    ///
    /// # Errors
    /// When it can't be started, is killed by a signal, or is ended because its time is over.
    pub fn run(&self, command: &Command) -> Result<Output, CommandError> {
        self.runner.run(command, &self.cancel, self.deadline)
    }
}

/// True for a path without `..`.
fn is_plain(path: &Path) -> bool {
    !path.components().any(|part| part == std::path::Component::ParentDir)
}
