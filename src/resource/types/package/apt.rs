//! apt and dpkg. The database of dpkg (`host::dpkg`) has the installed packages. A single `apt-cache policy` queries the index
//! for all packages of a run. `apt-get` makes the transactions.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::diag::error_chain;
use crate::host::command::is_executable;
use crate::host::dpkg::{Dpkg, DpkgDatabase, DpkgRecord, DpkgStamp};
use crate::host::{DPKG_DIRECTORY, Host, Output, ProcessCommand, fs, lock};
use crate::model::{HumanDuration, lock};
use crate::resource::ResourceError;

use super::change::{PackageAction, PackageChange};
use super::manager::{PackageJob, PackageManager, TransactionFailure};
use super::output::describe;
use super::properties::{Properties, RequestedVersion};
use super::state::{Installed, Offer, PackageState, VersionOrder};

const APT_GET: &str = "/usr/bin/apt-get";
const APT_CACHE: &str = "/usr/bin/apt-cache";
const DPKG: &str = "/usr/bin/dpkg";

/// The locks of apt and dpkg, in their order.
const LOCKS: [&str; 2] = ["/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock"];
const LISTS_LOCK: &str = "/var/lib/apt/lists/lock";

/// A file that the hook of Ubuntu's apt and this provider touch after every read of the index.
const UPDATED: &str = "/var/lib/apt/periodic/update-success-stamp";
/// The directory of the index. Its time is that of the last update, if no better mark exists.
const LISTS: &str = "/var/lib/apt/lists";
/// Further files that determine the offers.
const SOURCES: [&str; 5] =
    ["/etc/apt/sources.list", "/etc/apt/sources.list.d", "/etc/apt/preferences", "/etc/apt/preferences.d", "/etc/apt/apt.conf.d"];

/// Maximum number of packages of one `apt-cache policy`: the kept part of the output must contain the whole answer.
const ASK_AT_ONCE: usize = 1000;

/// True where apt and a database of dpkg exist.
pub(super) fn is_installed() -> bool {
    let has_packages =
        || fs::stat(&Path::new(DPKG_DIRECTORY).join("status"), false).is_ok_and(|look| look.is_some_and(|l| l.size > 0));
    [APT_GET, APT_CACHE, DPKG].iter().all(|program| is_executable(Path::new(program))) && has_packages()
}

/// An answer and its validity: the stamp of the database, the index and its configuration at query time.
type CachedOffers = (DpkgStamp, HashMap<String, Offer>);

/// The provider for apt.
pub(super) struct Apt {
    dpkg: Arc<Dpkg>,
    /// Packages that the run may install, with true when any version will do.
    prefetched: Mutex<BTreeMap<String, bool>>,
    offers: Mutex<CachedOffers>,
}

impl Apt {
    /// Creates the provider over this database of dpkg.
    pub(super) fn new(dpkg: Arc<Dpkg>) -> Self {
        Self { dpkg, prefetched: Mutex::default(), offers: Mutex::default() }
    }

    /// Returns further packages for the query about a package.
    fn query_names(&self, name: &str, known: &HashMap<String, Offer>, database: &DpkgDatabase) -> Vec<String> {
        let prefetched = lock(&self.prefetched);
        let settled = |name: &str, any: bool| any && state(database, name).is_some_and(|state| state.newest().is_some());
        let mut names: Vec<String> = prefetched
            .iter()
            .filter(|(other, any)| *other != name && !known.contains_key(*other) && !settled(other, **any))
            .map(|(other, _)| other.clone())
            .collect();
        names.push(name.to_owned());
        names
    }

    /// Runs a transaction of apt-get.
    fn change(
        &self,
        verb: &str,
        options: &[&str],
        packages: &[String],
        wait: HumanDuration,
        host: &Host,
    ) -> Result<(), TransactionFailure> {
        let deadline = Instant::now() + wait.as_std();
        for path in LOCKS {
            wait_for(path, wait, deadline, host)?;
        }
        if self.dpkg.is_interrupted().map_err(|error| permanent_failure(error_chain(&error)))? {
            host.notify("dpkg was interrupted: finishing its operation");
            let go_on = command(DPKG, &["--force-confdef", "--force-confold", "--configure", "-a"]);
            // A failure here matters only to packages that depend on the unfinished ones.
            host.run(&go_on).map_err(|error| permanent_failure(error_chain(&error)))?;
        }
        // Another program may take the lock between the check and the start of apt-get.
        let left = deadline.saturating_duration_since(Instant::now()).as_secs();
        let timeout = format!("DPkg::Lock::Timeout={left}");
        let mut args = vec!["-y", "-q", "-o", "Dpkg::Use-Pty=0", "-o", &timeout];
        args.extend(["-o", "DPkg::Options::=--force-confdef", "-o", "DPkg::Options::=--force-confold"]);
        args.extend(options);
        args.extend([verb, "--"]);
        args.extend(packages.iter().map(String::as_str));
        let output = host.run(&command(APT_GET, &args)).map_err(|error| permanent_failure(error_chain(&error)))?;
        if output.code == 0 {
            return Ok(());
        }
        let hopeless = String::from_utf8_lossy(&output.stderr).contains("Could not get lock");
        Err(TransactionFailure { message: describe("apt-get", &output), is_permanent: hopeless })
    }
}

/// Creates a command with an environment in which no program asks questions.
fn command(program: &str, args: &[&str]) -> ProcessCommand {
    let mut command = ProcessCommand::new(program, args.iter().copied());
    let env = [
        ("HOME", "/root"),
        ("DEBIAN_FRONTEND", "noninteractive"),
        ("APT_LISTBUGS_FRONTEND", "none"),
        ("APT_LISTCHANGES_FRONTEND", "none"),
    ];
    command.env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    command
}

fn permanent_failure(message: String) -> TransactionFailure {
    TransactionFailure { message, is_permanent: true }
}

/// Waits until a lock is free, and reports its holder.
fn wait_for(path: &str, wait: HumanDuration, deadline: Instant, host: &Host) -> Result<(), TransactionFailure> {
    lock::wait_until_free(Path::new(path), deadline, host, lock::lock_owner, &|holder| {
        host.notify(&format!("waiting up to {wait} for {holder}, which holds {path}"));
    })
    .map_err(|error| permanent_failure(error_chain(&error)))
}

/// Splits a name into the name and its architecture.
fn split_architecture(name: &str) -> (&str, Option<&str>) {
    name.split_once(':').map_or((name, None), |(name, architecture)| (name, Some(architecture)))
}

/// Returns the state of a package in dpkg; `None` when unknown.
fn state(database: &DpkgDatabase, name: &str) -> Option<PackageState> {
    let (plain, architecture) = split_architecture(name);
    let native = database.native();
    let fits = |record: &&DpkgRecord| match architecture {
        None => true,
        Some(wanted) => record.architecture == wanted || (record.architecture == "all" && wanted == native),
    };
    let mut state = not_installed(name);
    let mut known = false;
    for record in database.records(plain).iter().filter(fits) {
        known = true;
        state.held |= record.held;
        match record.status.as_str() {
            "not-installed" | "config-files" => continue,
            // A package with pending triggers satisfies dependencies: deb-triggers(5).
            "installed" | "triggers-pending" if !record.reinstall => {}
            status => {
                state.unfinished = Some(status.to_owned());
                state.broken |= record.reinstall || status == "half-installed";
            }
        }
        if !record.version.is_empty() {
            state.installed.push(Installed { version: record.version.clone(), architecture: record.architecture.clone() });
        }
    }
    known.then_some(state)
}

fn not_installed(name: &str) -> PackageState {
    PackageState {
        versions: VersionOrder::Debian,
        manager: "apt",
        name: name.to_owned(),
        installed: Vec::new(),
        unfinished: None,
        broken: false,
        held: false,
        offer: Offer::NotAsked,
    }
}

/// Parses the answer of `apt-cache policy`: blocks that begin with a name, `Candidate:` and a table of versions.
fn offers(answer: &str) -> HashMap<String, Offer> {
    let mut found = HashMap::new();
    let mut block: Option<(String, Option<String>, Vec<String>)> = None;
    let mut close = |block: Option<(String, Option<String>, Vec<String>)>| {
        if let Some((name, candidate, versions)) = block {
            found.insert(name, Offer::Known { candidate, versions });
        }
    };
    for line in answer.lines() {
        if let Some(name) = line.strip_suffix(':').filter(|name| !name.starts_with(' ')) {
            close(block.replace((name.to_owned(), None, Vec::new())));
        } else if let Some((_, candidate, versions)) = &mut block {
            if let Some(version) = line.strip_prefix("  Candidate: ") {
                *candidate = Some(version.to_owned()).filter(|version| version != "(none)");
            } else if let Some(entry) = line.strip_prefix(" *** ").or_else(|| line.strip_prefix("     "))
                && !entry.starts_with(' ')
            {
                versions.extend(entry.split(' ').next().map(str::to_owned));
            }
        }
    }
    close(block);
    found
}

/// Returns the argument for `apt-cache` that matches exactly this name. A name that looks like a pattern is written as an exact
/// pattern.
fn exact_pattern(name: &str) -> String {
    let (plain, architecture) = split_architecture(name);
    match architecture {
        _ if !plain.contains(['.', '+', '~', '_']) => name.to_owned(),
        None => format!("?exact-name({plain})"),
        Some(architecture) => format!("?and(?exact-name({plain}),?architecture({architecture}))"),
    }
}

impl PackageManager for Apt {
    fn prefetch(&self, all: &[&Properties]) {
        let mut prefetched = lock(&self.prefetched);
        for p in all.iter().filter(|p| p.wanted() != RequestedVersion::Absent) {
            let any = p.wanted() == RequestedVersion::Present;
            prefetched.entry(p.name.clone()).and_modify(|all| *all &= any).or_insert(any);
        }
    }

    fn installed_state(&self, name: &str, _: &Host) -> Result<PackageState, ResourceError> {
        Ok(state(&self.dpkg.database()?.1, name).unwrap_or_else(|| not_installed(name)))
    }

    fn offer(&self, p: &Properties, host: &Host) -> Result<Offer, ResourceError> {
        let name = p.name.as_str();
        let (mut stamp, database) = self.dpkg.database()?;
        for path in SOURCES.iter().chain([&LISTS, &UPDATED]) {
            stamp.push(fs::stamp(Path::new(path))?);
        }
        let mut asked = lock(&self.offers);
        if asked.0 != stamp {
            *asked = (stamp, HashMap::new());
        }
        if !asked.1.contains_key(name) {
            let names = self.query_names(name, &asked.1, &database);
            for some in names.chunks(ASK_AT_ONCE) {
                let patterns: Vec<String> = some.iter().map(|name| exact_pattern(name)).collect();
                let mut args = vec!["policy", "--"];
                args.extend(patterns.iter().map(String::as_str));
                let output = host.run(&command(APT_CACHE, &args))?;
                // The exit code is useless when some name is unknown.
                let answer = offers(&String::from_utf8_lossy(&output.stdout));
                if answer.is_empty() && output.code != 0 && !reports_unknown_name(&output) {
                    return Err(ResourceError::State(describe("apt-cache policy", &output)));
                }
                for name in some {
                    let (plain, architecture) = split_architecture(name);
                    // apt shows packages of the host's architecture without it.
                    let shown = if architecture == Some(database.native()) { plain } else { name };
                    let offer = answer.get(shown).cloned().unwrap_or(Offer::Unknown);
                    // Other packages refer to the name, but no package has it.
                    let known = !matches!(&offer, Offer::Known { candidate: None, versions } if versions.is_empty());
                    asked.1.insert(name.clone(), if known { offer } else { Offer::Unknown });
                }
            }
        }
        Ok(asked.1.get(name).cloned().unwrap_or(Offer::Unknown))
    }

    fn refresh(&self, p: &Properties, age: HumanDuration, host: &Host) -> Result<(), ResourceError> {
        let read = match fs::stat(Path::new(UPDATED), false)? {
            Some(look) => Some(look.mtime),
            None => fs::stat(Path::new(LISTS), false)?.map(|look| look.mtime),
        };
        let limit = jiff::SignedDuration::try_from(age.as_std()).unwrap_or(jiff::SignedDuration::MAX);
        if read.is_some_and(|read| host.now().duration_since(read).abs() <= limit) {
            return Ok(());
        }
        let deadline = Instant::now() + p.lock_timeout.as_std();
        let failed = |message: String| ResourceError::State(format!("could not read the package index again: {message}"));
        wait_for(LISTS_LOCK, p.lock_timeout, deadline, host).map_err(|failure| failed(failure.message))?;
        // The first option makes an unreachable index an error instead of a warning; the second leaves a mark of success.
        let mark = format!("APT::Update::Post-Invoke-Success::=touch {UPDATED}");
        let args = ["-q", "-o", "APT::Update::Error-Mode=any", "-o", &mark, "update"];
        let output = host.run(&command(APT_GET, &args))?;
        if output.code == 0 { Ok(()) } else { Err(failed(describe("apt-get update", &output))) }
    }

    fn can_combine(&self, one: PackageAction, other: PackageAction) -> bool {
        (one == PackageAction::Remove) == (other == PackageAction::Remove)
    }

    fn transact(&self, jobs: &[PackageJob<'_>], host: &Host) -> Result<(), TransactionFailure> {
        let Some(first) = jobs.first() else { return Ok(()) };
        let wait = jobs.iter().map(|job| job.properties.lock_timeout).max().unwrap_or_default();
        let mut packages = Vec::new();
        for job in jobs {
            packages.extend(arguments(job).map_err(|error| permanent_failure(error_chain(&error)))?);
        }
        let verbs = |wanted: PackageAction| jobs.iter().any(|job| PackageAction::from_change(job.change) == wanted);
        if PackageAction::from_change(first.change) == PackageAction::Remove {
            return self.change("remove", &[], &packages, wait, host);
        }
        let mut options = Vec::new();
        if verbs(PackageAction::Downgrade) {
            options.push("--allow-downgrades");
        }
        if jobs.iter().any(|job| job.state.broken) {
            options.push("--reinstall");
        }
        self.change("install", &options, &packages, wait, host)
    }

    fn needs(&self, _: &[&str], _: &Host) -> Result<HashMap<String, Vec<String>>, ResourceError> {
        Ok(self.dpkg.dependencies()?)
    }

    fn records_failures(&self) -> bool {
        true
    }
}

fn reports_unknown_name(output: &Output) -> bool {
    String::from_utf8_lossy(&output.stderr).contains("No packages found")
}

/// Returns the arguments that name a package to apt-get: one for every installed architecture, when there are several.
fn arguments(job: &PackageJob<'_>) -> Result<Vec<String>, ResourceError> {
    let name = &job.properties.name;
    let installed = &job.state.installed;
    let names: Vec<String> = match installed.as_slice() {
        [_, _, ..] if !name.contains(':') => installed.iter().map(|one| format!("{name}:{}", one.architecture)).collect(),
        [one] if !name.contains(':') && matches!(job.change, PackageChange::Remove { .. }) && one.architecture != "all" => {
            vec![format!("{name}:{}", one.architecture)]
        }
        _ => vec![name.clone()],
    };
    if let PackageChange::Remove { .. } = job.change {
        return Ok(names);
    }
    let version = job.version()?.map_or_else(String::new, |version| format!("={version}"));
    Ok(names.into_iter().map(|name| format!("{name}{version}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "demo-plain:
  Installed: 1.0-1
  Candidate: 2.0-1
  Version table:
     2.0-1 500
        500 copy:/srv/apt ./ Packages
 *** 1.0-1 100
        100 /var/lib/dpkg/status
demo-multi:i386:
  Installed: (none)
  Candidate: 1:1.0-1
  Version table:
     1:1.0-1 -1
        500 copy:/srv/apt ./ Packages
mail-transport-agent:
  Installed: (none)
  Candidate: (none)
  Version table:
";

    #[test]
    fn policies_are_read() {
        let found = offers(POLICY);
        let known = |candidate: Option<&str>, versions: &[&str]| Offer::Known {
            candidate: candidate.map(str::to_owned),
            versions: versions.iter().map(|one| (*one).to_owned()).collect(),
        };
        assert_eq!(found["demo-plain"], known(Some("2.0-1"), &["2.0-1", "1.0-1"]));
        assert_eq!(found["demo-multi:i386"], known(Some("1:1.0-1"), &["1:1.0-1"]));
        assert_eq!(found["mail-transport-agent"], known(None, &[]));
        assert_eq!(found.len(), 3);
        assert!(offers("").is_empty());
    }
}
